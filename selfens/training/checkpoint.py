"""Checkpoints: the `state_dict` of every component, of all processes together, so any number of processes can resume."""

import numpy as np
import torch
from torch import Tensor, nn

from selfens.core.randomness import PROCESS, stream
from selfens.data.rows import Rows
from selfens.errors import ConfigError, RunError, check_type
from selfens.runs.directory import Checkpoint, RunDirectory
from selfens.training.components import Components
from selfens.training.step import generators

State = dict[str, Tensor]


class Checkpointer:
    """Saves and loads the state of a run's components. Tensors of network and method must keep their type and shape."""

    def __init__(self, components: Components) -> None:
        self.components = components
        self.shapes = self._checked_shapes()

    def save(self, directory: RunDirectory, epoch: int, step: int, seconds: float = 0.0) -> None:
        """Save a checkpoint that continues at `step` of `epoch`, after the given seconds in that epoch."""
        components = self.components
        if changed := {*self._checked_shapes().items()} ^ {*self.shapes.items()}:
            name = min(changed)[0]
            raise ConfigError(f"{name} has changed since training began; it must keep its name, type and shape.")
        if step:
            average_over_processes(components)
        ensemble = components.method.ensemble
        targets = {name: each.cpu() for name, each in ensemble.state_dict().items()} if ensemble else {}
        random = {kind: each.get_state() for kind, each in generators(components.step.device).items()}
        every = components.group.gather((components.owned, targets, random))
        if components.group.is_first:
            tensors = _states(components) | {"targets": _all_targets(every)}
            tensors["random"] = {
                f"{kind}{rank}": state[kind] for rank, (_, _, state) in enumerate(every) for kind in state
            }
            directory.save_checkpoint(Checkpoint(epoch, step, tensors, seconds))
        components.group.barrier()  # otherwise the others might time out while the first one writes

    def load(self, checkpoint: Checkpoint) -> tuple[int, int, float]:
        """Restore every component. Return where training continues: epoch, step, and seconds spent in that epoch.

        If the number of processes has changed, so have the rows of each: an unfinished epoch starts again, and the random
        states are new.
        """
        components, tensors, random = self.components, checkpoint.tensors, checkpoint.tensors["random"]
        same_processes = sum(name.startswith("cpu") for name in random) == components.group.size
        step, ensemble = checkpoint.step if same_processes else 0, components.method.ensemble
        try:
            _check_fits(components, tensors)
            components.network.load_state_dict(tensors["network"])
            components.method.load_state_dict(tensors.get("method", {}))
            if "evaluated" in tensors:
                components.method.evaluated(components.network).load_state_dict(tensors["evaluated"])
            components.optimizer.load_state_dict(tensors["optimizer"])
            if step == checkpoint.step:
                components.step.load_state_dict(tensors["step"])
            if ensemble:
                owned = {
                    name: each[components.owned] if each.ndim else each for name, each in tensors["targets"].items()
                }
                ensemble.load_state_dict(owned)
            _restore_random_states(components, random if same_processes else {}, checkpoint.epoch)
        except (RuntimeError, KeyError, ValueError, TypeError) as error:
            found = f"the checkpoint does not fit the run ({str(error).splitlines()[0]})"
            raise RunError(f"{found}; it is damaged, or from another run.") from None
        if step >= components.loader.steps_per_epoch:
            raise RunError(f"the checkpoint is damaged: step {step} is beyond the end of an epoch.")
        return checkpoint.epoch, step, checkpoint.seconds if step else 0.0

    def _checked_shapes(self) -> dict[str, str]:
        evaluated = self.components.method.evaluated(self.components.network)
        check_type("what the method's `evaluated` returns", evaluated, nn.Module, "a network")
        states = _states(self.components)
        return _shapes({part: states[part] for part in ("network", "evaluated", "method")})


def average_over_processes(components: Components) -> None:
    """Average what each process computed from its batches: running means, and sums of losses."""
    states = _states(components)
    tensors = [*components.network.buffers(), *states["method"].values(), *states["evaluated"].values()]
    floats = [tensor for tensor in tensors if tensor.is_floating_point()]
    for tensor, mean in zip(floats, components.group.means(floats), strict=True):
        tensor.copy_(mean)
    components.group.mean(components.step.sums)


def _states(components: Components) -> dict[str, State]:
    evaluated = components.method.evaluated(components.network)
    return {
        "network": components.network.state_dict(),
        "evaluated": {} if evaluated is components.network else evaluated.state_dict(),
        "method": components.method.state_dict(),
        "optimizer": components.optimizer.state_dict(),
        "step": components.step.state_dict(),
    }


def _shapes(states: dict[str, State]) -> dict[str, str]:
    """Return the type and shape of each tensor by part/name; refuse what cannot be saved."""
    tensors = {f"{part}/{name}": tensor for part, state in states.items() for name, tensor in state.items()}
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor) or tensor.layout != torch.strided:
            raise ConfigError(f"{name} cannot be saved; expected a tensor that is not sparse.")
    return {name: f"{tensor.dtype} {tuple(tensor.shape)}" for name, tensor in tensors.items()}


def _check_fits(components: Components, tensors: dict[str, State]) -> None:
    """Raise a ValueError unless these are exactly the tensors that this run would save."""
    wanted, ensemble = _states(components), components.method.ensemble
    if ensemble:
        begun = {name: each for name, each in ensemble.arrays.items() if name in tensors.get("targets", {})}
        wanted["targets"] = {
            name: each.new_empty((len(components.labels), *each.shape[1:]), device="meta") if each.ndim else each
            for name, each in (ensemble.state_dict() | begun).items()
        }
    expected, found = _shapes(wanted), _shapes({part: tensors[part] for part in {*tensors} - {"random"}})
    for name in sorted({*expected, *found}):
        if expected.get(name) != found.get(name):
            raise ValueError(f"{name} is {found.get(name)}, expected {expected.get(name)}")


def _all_targets(every: list[tuple[Rows, State, State]]) -> State:
    """Concatenate the targets of all processes in the order of their rows. The decay, a 0-d tensor, is the same in all."""
    if len(every) == 1:
        return every[0][1]  # avoids a copy of what may be large
    order = np.argsort(np.concatenate([rows for rows, _, _ in every]))
    return {
        name: torch.cat([targets[name] for _, targets, _ in every])[order] if first.ndim else first
        for name, first in every[0][1].items()
    }


def _restore_random_states(components: Components, states: State, epoch: int) -> None:
    """Restore the random states, or if there are none, seed them anew from seed, process and epoch."""
    rank, seed = components.group.rank, components.config.seed.of("training")
    fresh = stream(seed, PROCESS, rank, epoch)
    for kind, generator in generators(components.step.device).items():
        if (name := f"{kind}{rank}") in states:
            generator.set_state(states[name])
        elif not states:
            generator.manual_seed(int(fresh.integers(2**62)))
