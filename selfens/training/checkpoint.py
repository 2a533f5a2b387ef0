"""A checkpoint: the `state_dict` of every part, of all processes together, so that any number of them can resume from it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from selfens.core.device import generator
from selfens.core.randomness import PROCESS, stream
from selfens.errors import RunError
from selfens.runs.directory import Checkpoint, RunDirectory
from selfens.training.distributed import MAX, MIN
from selfens.training.setup import Parts


class Start(NamedTuple):
    """Where a run begins, or continues."""

    epoch: int = 0
    step: int = 0
    seconds: float = 0.0
    """Spent in that epoch before."""


BY_ROW = ("mean", "square", "count", "pending", "written")
"""The tensors of the targets that have a row for each training row."""
UNFINISHED = ("pending", "written")
"""Those of an epoch that is not finished."""


def save(parts: Parts, directory: RunDirectory, epoch: int, step: int, seconds: float = 0.0) -> None:
    """A checkpoint that continues at `step` of `epoch`, in which so many seconds have been spent by then."""
    if step:
        average_buffers(parts)
        join_sums(parts)
    tensors = _states(parts) | {"random": _random_states(parts)}
    ensemble, targets_file = parts.method.ensemble, {}
    if ensemble and ensemble.file:
        targets_file = ensemble.seal()
    elif ensemble:
        tensors["targets"] = _targets_of_all(parts, ensemble.state_dict())
    if parts.group.is_first:
        directory.save_checkpoint(Checkpoint(epoch, step, tensors, targets_file, seconds))
    parts.group.barrier()  # a process that went on while the first one writes would run into a timeout


def _states(parts: Parts) -> dict[str, dict[str, Tensor]]:
    """The `state_dict` of every part that is the same in all processes."""
    evaluated = parts.method.evaluated(parts.network)
    return {
        "network": parts.network.state_dict(),
        "evaluated": {} if evaluated is parts.network else evaluated.state_dict(),
        "method": parts.method.state_dict(),
        "optimizer": parts.optimizer.state_dict(),
        "step": parts.step.state_dict(),
    }


def _check_fits(parts: Parts, checkpoint: Checkpoint) -> None:
    """Refuse a checkpoint that is not of exactly the tensors that this run would save."""
    expected = {part: _kinds(state) for part, state in _states(parts).items()}
    ensemble = parts.method.ensemble
    if ensemble and not ensemble.file:
        found = checkpoint.tensors.get("targets", {})
        own = {name: tensor for name, tensor in ensemble.state_dict().items() if name not in UNFINISHED}
        own |= {name: getattr(ensemble, name) for name in UNFINISHED if name in found}
        expected["targets"] = _kinds(own, rows=len(parts.rows.kinds))
    for part in {*expected, *checkpoint.tensors} - {"random"}:
        wanted, given = expected.get(part, {}), _kinds(checkpoint.tensors.get(part, {}))
        if wanted != given:
            different = sorted(name for name in {*wanted, *given} if wanted.get(name) != given.get(name))
            raise ValueError(f"{part}/{different[0]} is {given.get(different[0])}, expected {wanted.get(different[0])}")


def _kinds(state: dict[str, Tensor], rows: int | None = None) -> dict[str, str]:
    """The type and shape of each tensor; with `rows`, of targets as if they had so many."""
    shapes = {
        name: tensor.shape if rows is None or name not in BY_ROW else (rows, *tensor.shape[1:])
        for name, tensor in state.items()
    }
    return {name: f"{tensor.dtype} {tuple(shapes[name])}" for name, tensor in state.items()}


def load(parts: Parts, checkpoint: Checkpoint) -> Start:
    """Bring every part into the state it was in."""
    tensors, step = checkpoint.tensors, checkpoint.step
    same_processes = sum(name.startswith("cpu") for name in tensors["random"]) == parts.group.size
    if step and not same_processes:
        step = 0  # other processes own the rows that are left of the epoch, so it starts again
    ensemble = parts.method.ensemble
    try:
        _check_fits(parts, checkpoint)
        parts.network.load_state_dict(tensors["network"])
        parts.method.load_state_dict(tensors.get("method", {}))
        parts.optimizer.load_state_dict(tensors["optimizer"])
        if step or not checkpoint.step:
            parts.step.load_state_dict(tensors["step"])
        if ensemble and ensemble.file:
            ensemble.restore(checkpoint.targets_file)
        elif ensemble:
            ensemble.load_state_dict(_own_targets(parts, tensors["targets"], unfinished=step > 0))
        _restore_random_states(parts, tensors["random"] if same_processes else {}, checkpoint.epoch)
    except (RuntimeError, KeyError, ValueError, TypeError) as error:
        raise RunError(
            f"the checkpoint does not fit the run ({str(error).splitlines()[0]}); it is damaged, or of another run."
        ) from None
    if step >= parts.loader.steps_per_epoch or checkpoint.epoch > parts.config.schedule.epochs:
        raise RunError(
            f"the checkpoint is of epoch {checkpoint.epoch}, step {checkpoint.step}, beyond the end of the run; it is damaged."
        )
    return Start(checkpoint.epoch, step, checkpoint.seconds if step else 0.0)


def average_buffers(parts: Parts) -> None:
    """Each process's running means follow its own batches; their average has followed all batches."""
    if parts.group.size == 1:
        return
    tensors = [*parts.network.buffers(), *parts.method.state_dict().values()]
    every = [
        tensor for tensor in {tensor.data_ptr(): tensor for tensor in tensors}.values() if tensor.is_floating_point()
    ]
    for tensor, mean in zip(every, parts.group.means(every), strict=True):
        tensor.copy_(mean)


def join_sums(parts: Parts) -> None:
    """Let the step's sums be those of all processes."""
    parts.group.mean(parts.step.sums)
    parts.group.all_reduce(parts.step.low, MIN)
    parts.group.all_reduce(parts.step.high, MAX)


def _targets_of_all(parts: Parts, own: dict[str, Tensor]) -> dict[str, Tensor]:
    """The targets of all rows, on the first process."""
    group = parts.group
    if group.size == 1:
        return own
    shares = [group.share(parts.rows.kinds, rank) for rank in range(group.size)]
    whole = {}
    for name, tensor in own.items():
        if name not in BY_ROW:
            whole[name] = tensor
            continue
        gathered = group.gather(tensor, [(len(share), *tensor.shape[1:]) for share in shares])
        if gathered is not None:
            whole[name] = torch.zeros(len(parts.rows.kinds), *tensor.shape[1:], dtype=tensor.dtype)
            for share, part in zip(shares, gathered, strict=True):
                whole[name][torch.from_numpy(share)] = part
    return whole


def _own_targets(parts: Parts, whole: dict[str, Tensor], *, unfinished: bool) -> dict[str, Tensor]:
    """The targets of this process's rows, with or without the predictions of an unfinished epoch."""
    kept = {name: tensor for name, tensor in whole.items() if unfinished or name not in UNFINISHED}
    if parts.group.size == 1:
        return kept
    own = torch.from_numpy(parts.rows.owned)
    return {name: tensor[own] if name in BY_ROW else tensor for name, tensor in kept.items()}


def _devices(parts: Parts) -> Iterator[tuple[str, torch.device]]:
    """The devices that have a random state, by the name of its kind."""
    yield "cpu", torch.device("cpu")
    if parts.prepared.device.type == "cuda":
        yield "cuda", parts.prepared.device


def _random_states(parts: Parts) -> dict[str, Tensor]:
    """Of the generators of every process, on the first one."""
    states: dict[str, Tensor] = {}
    for kind, device in _devices(parts):
        state = generator(device).get_state()
        every = parts.group.gather(state, [state.shape] * parts.group.size) or []
        states |= {f"{kind}{rank or ''}": other for rank, other in enumerate(every)}
    return states


def _restore_random_states(parts: Parts, states: dict[str, Tensor], epoch: int) -> None:
    """As they were; with other processes than before, states that depend only on seed, process and epoch."""
    rank, seed = parts.group.rank, parts.config.seed.of("training")
    fresh = stream(seed, PROCESS, rank, epoch)
    for kind, device in _devices(parts):
        if (name := f"{kind}{rank or ''}") in states:
            generator(device).set_state(states[name])
        elif not states:
            generator(device).manual_seed(int(fresh.integers(2**62)))
