"""A checkpoint: the `state_dict` of every component. It joins all processes, so any number of them can resume."""

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
        parts = self.components
        if changed := {*self._checked_shapes().items()} ^ {*self.shapes.items()}:
            name = min(changed)[0]
            raise ConfigError(f"{name} has changed since training began; it must keep its name, type and shape.")
        if step:
            average_over_processes(parts)
        ensemble = parts.method.ensemble
        targets = {name: each.cpu() for name, each in ensemble.state_dict().items()} if ensemble else {}
        random = {kind: each.get_state() for kind, each in generators(parts.step.device).items()}
        every = parts.group.gather((parts.owned, targets, random))
        if parts.group.is_first:
            tensors = _states(parts) | {"targets": _all_targets(every)}
            tensors["random"] = {f"{kind}{rank}": own[kind] for rank, (_, _, own) in enumerate(every) for kind in own}
            directory.save_checkpoint(Checkpoint(epoch, step, tensors, seconds))
        parts.group.barrier()  # a process that went on while the first one writes would time out

    def load(self, checkpoint: Checkpoint) -> tuple[int, int, float]:
        """Restore every component. Return where training continues: epoch, step, and seconds spent in that epoch.

        If the number of processes has changed, so have the rows of each: an unfinished epoch starts again, and the random
        states are new.
        """
        parts, tensors, random = self.components, checkpoint.tensors, checkpoint.tensors["random"]
        same_processes = sum(name.startswith("cpu") for name in random) == parts.group.size
        step, ensemble = checkpoint.step if same_processes else 0, parts.method.ensemble
        try:
            _check_fits(parts, tensors)
            parts.network.load_state_dict(tensors["network"])
            parts.method.load_state_dict(tensors.get("method", {}))
            if "evaluated" in tensors:
                parts.method.evaluated(parts.network).load_state_dict(tensors["evaluated"])
            parts.optimizer.load_state_dict(tensors["optimizer"])
            if step == checkpoint.step:
                parts.step.load_state_dict(tensors["step"])
            if ensemble:
                own = {name: each[parts.owned] if each.ndim else each for name, each in tensors["targets"].items()}
                ensemble.load_state_dict(own)
            _restore_random_states(parts, random if same_processes else {}, checkpoint.epoch)
        except (RuntimeError, KeyError, ValueError, TypeError) as error:
            found = f"the checkpoint does not fit the run ({str(error).splitlines()[0]})"
            raise RunError(f"{found}; it is damaged, or of another run.") from None
        if step >= parts.loader.steps_per_epoch:
            raise RunError(f"the checkpoint is damaged: step {step} is beyond the end of an epoch.")
        return checkpoint.epoch, step, checkpoint.seconds if step else 0.0

    def _checked_shapes(self) -> dict[str, str]:
        evaluated = self.components.method.evaluated(self.components.network)
        check_type("what the method's `evaluated` returns", evaluated, nn.Module, "a network")
        states = _states(self.components)
        return _shapes({part: states[part] for part in ("network", "evaluated", "method")})


def average_over_processes(parts: Components) -> None:
    """Average what each process has computed from its own batches: running means, and sums of losses."""
    states = _states(parts)
    tensors = [*parts.network.buffers(), *states["method"].values(), *states["evaluated"].values()]
    floats = [tensor for tensor in tensors if tensor.is_floating_point()]
    for tensor, mean in zip(floats, parts.group.means(floats), strict=True):
        tensor.copy_(mean)
    parts.group.mean(parts.step.sums)


def _states(parts: Components) -> dict[str, State]:
    evaluated = parts.method.evaluated(parts.network)
    return {
        "network": parts.network.state_dict(),
        "evaluated": {} if evaluated is parts.network else evaluated.state_dict(),
        "method": parts.method.state_dict(),
        "optimizer": parts.optimizer.state_dict(),
        "step": parts.step.state_dict(),
    }


def _shapes(states: dict[str, State]) -> dict[str, str]:
    """Return the type and shape of each tensor by part/name; refuse what cannot be saved."""
    tensors = {f"{part}/{name}": tensor for part, state in states.items() for name, tensor in state.items()}
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor) or tensor.layout != torch.strided:
            raise ConfigError(f"{name} cannot be saved; expected a tensor that is not sparse.")
    return {name: f"{tensor.dtype} {tuple(tensor.shape)}" for name, tensor in tensors.items()}


def _check_fits(parts: Components, tensors: dict[str, State]) -> None:
    """Raise a ValueError unless these are exactly the tensors that this run would save."""
    wanted, ensemble = _states(parts), parts.method.ensemble
    if ensemble:
        begun = {name: each for name, each in ensemble.arrays.items() if name in tensors.get("targets", {})}
        wanted["targets"] = {
            name: each.new_empty((len(parts.labels), *each.shape[1:]), device="meta") if each.ndim else each
            for name, each in (ensemble.state_dict() | begun).items()
        }
    expected, found = _shapes(wanted), _shapes({part: tensors[part] for part in {*tensors} - {"random"}})
    for name in sorted({*expected, *found}):
        if expected.get(name) != found.get(name):
            raise ValueError(f"{name} is {found.get(name)}, expected {expected.get(name)}")


def _all_targets(every: list[tuple[Rows, State, State]]) -> State:
    """Join the targets of all processes in the order of the rows; the decay has no rows."""
    if len(every) == 1:
        return every[0][1]  # avoids a copy of what may be large
    order = np.argsort(np.concatenate([rows for rows, _, _ in every]))
    return {
        name: torch.cat([targets[name] for _, targets, _ in every])[order] if first.ndim else first
        for name, first in every[0][1].items()
    }


def _restore_random_states(parts: Components, states: State, epoch: int) -> None:
    """Restore the states; if there are none, set new ones that depend only on seed, process and epoch."""
    rank, seed = parts.group.rank, parts.config.seed.of("training")
    fresh = stream(seed, PROCESS, rank, epoch)
    for kind, own in generators(parts.step.device).items():
        if (name := f"{kind}{rank}") in states:
            own.set_state(states[name])
        elif not states:
            own.manual_seed(int(fresh.integers(2**62)))
