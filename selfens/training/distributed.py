"""Several processes as one training: who this process is among them, and what they exchange.

`torchrun` starts the processes and says through the environment how many there are. A single process is a group of one, for
which every exchange is the identity, so training has one path for one process and for many.

Tensors of a step go through nccl between GPUs and gloo between CPUs, with a timeout of a minute. Around what may take long in
one process (loading data, writing a checkpoint) there are barriers through gloo with a timeout of hours; a process that has
died is noticed there at once too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from selfens.core import launcher
from selfens.core.randomness import PROCESS, stream
from selfens.errors import RunError

Value = TypeVar("Value")
Rows = NDArray[np.int64]

MIN, MAX = dist.ReduceOp.MIN, dist.ReduceOp.MAX
STEP_TIMEOUT = timedelta(seconds=60)
LOAD_TIMEOUT = timedelta(hours=2)


class Group:
    """The processes of one training. `Group()` is a single process."""

    def __init__(
        self,
        rank: int = 0,
        size: int = 1,
        prompt: dist.ProcessGroup | None = None,
        patient: dist.ProcessGroup | None = None,
    ) -> None:
        self.rank, self.size, self._prompt, self._patient = rank, size, prompt, patient

    def __deepcopy__(self, memo: dict[int, Any]) -> Group:
        """Itself: a layer that averages over the processes may be copied to make a teacher."""
        return self

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes files and shows progress."""
        return self.rank == 0

    # Which rows each process owns

    def share(self, kinds: NDArray[np.int64], rank: int | None = None) -> Rows:
        """The rows that a process owns, in ascending order: every size-th of each kind of row, in a fixed shuffle.

        The division depends only on the kinds and the number of processes, so a row has the same owner in every epoch. It is
        shuffled because rows may come in a pattern, such as one class after another, that would leave a process without some
        classes.
        """
        shuffle = stream(0, PROCESS).permutation
        ordered = np.concatenate([shuffle(np.flatnonzero(kinds == kind)) for kind in np.unique(kinds)])
        return np.sort(ordered[self.rank if rank is None else rank :: self.size])

    # What is exchanged in every step

    def average_gradients(
        self, gradients: Sequence[Tensor | None], parameters: Sequence[Tensor]
    ) -> Sequence[Tensor | None]:
        """Each gradient averaged over the processes, in one exchange.

        A parameter may take no part in one process and take part in another, so None counts as zeros.
        """
        if self.size == 1:
            return gradients
        pairs = zip(gradients, parameters, strict=True)
        return self.means([torch.zeros_like(own) if gradient is None else gradient for gradient, own in pairs])

    def means(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        """Each tensor averaged over the processes, in one exchange."""
        if self.size == 1 or not tensors:
            return tensors
        flat = self.mean(torch.cat([tensor.reshape(-1) for tensor in tensors]))
        pieces = torch.split(flat, [tensor.numel() for tensor in tensors])
        return [piece.view(tensor.shape) for piece, tensor in zip(pieces, tensors, strict=True)]

    def mean(self, tensor: Tensor) -> Tensor:
        """The tensor averaged over the processes, in place."""
        return self.all_reduce(tensor).div_(self.size) if self.size > 1 else tensor

    def mean_with_gradient(self, tensor: Tensor) -> Tensor:
        """The tensor averaged over the processes; gradients of all their losses flow back into each one's."""
        averaged: Tensor = _Mean.apply(tensor, self) if self.size > 1 else tensor  # type: ignore[no-untyped-call]
        return averaged

    def all_reduce(self, tensor: Tensor, how: Any = dist.ReduceOp.SUM) -> Tensor:
        """The tensor summed over the processes, or the MIN or MAX of each value, in place."""
        if self.size > 1:
            with _lost_processes_named():
                dist.all_reduce(tensor, how)
        return tensor

    # What is exchanged now and then

    def all_reduce_int(self, number: int, how: Any, *, patient: bool = False) -> int:
        """The MIN or MAX of the numbers that the processes have; `patient` after what may have taken long in one."""
        if self.size == 1:
            return number
        with _lost_processes_named():
            told = torch.tensor(number)
            dist.all_reduce(told, how, group=self._patient if patient else self._prompt)
        return int(told)

    def broadcast_object(self, value: Value) -> Value:
        """The value of the first process."""
        if self.size == 1:
            return value
        with _lost_processes_named():
            told: list[Any] = [value]
            dist.broadcast_object_list(told, src=0, group=self._patient)
        return told[0]  # type: ignore[no-any-return]

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Copy the first process's tensors into those of the others, after a barrier."""
        if self.size > 1:
            self.barrier()
            with _lost_processes_named():
                for tensor in tensors:
                    dist.broadcast(tensor, src=0)

    def gather(self, tensor: Tensor, shapes: Sequence[Sequence[int]]) -> list[Tensor] | None:
        """The tensor of every process, on the host of the first one; None elsewhere. `shapes` are those of each process."""
        own = tensor.detach().cpu()
        if self.size == 1:
            return [own]
        with _lost_processes_named():
            if not self.is_first:
                dist.send(own.contiguous(), 0, group=self._patient)
                return None
            others = [torch.empty(tuple(shape), dtype=own.dtype) for shape in shapes[1:]]
            for rank, other in enumerate(others, start=1):
                dist.recv(other, rank, group=self._patient)
        return [own, *others]

    @contextmanager
    def first_process_first(self) -> Iterator[None]:
        """The first process goes through this block before the others, so that they find what it has downloaded or decoded."""
        if not self.is_first:
            self.barrier()
        yield
        if self.is_first:
            self.barrier()

    def barrier(self) -> None:
        """Wait until all processes have come here."""
        if self.size > 1:
            with _lost_processes_named():
                dist.barrier(group=self._patient)


class _Mean(torch.autograd.Function):
    """An average over processes: of the values on the way there, of the gradients on the way back."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return group.mean(tensor.clone())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.group.mean(gradient.clone()), None


@contextmanager
def joined(device: torch.device) -> Iterator[Group]:
    """The group that torchrun started this process in, or a group of one."""
    size = launcher.size()
    if size == 1:
        yield Group()
        return
    if device.type == "cuda":
        torch.cuda.set_device(launcher.rank_here())
    with _lost_processes_named():
        found, rank, _ = next(rendezvous("env://", timeout=STEP_TIMEOUT))
        # torchrun may keep one store over its restarts, with the addresses of processes that are no more.
        store = dist.PrefixStore(f"restart {launcher.restarts()}", found)  # type: ignore[attr-defined]
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=STEP_TIMEOUT)
        prompt, patient = (dist.new_group(backend="gloo", timeout=limit) for limit in (STEP_TIMEOUT, LOAD_TIMEOUT))
    try:
        yield Group(rank, size, prompt, patient)
    finally:
        dist.destroy_process_group()


@contextmanager
def _lost_processes_named() -> Iterator[None]:
    """Errors of the network, which mean nothing to a user, as a sentence about a lost process."""
    try:
        yield
    except RuntimeError as error:
        text = str(error).strip()
        # gloo's errors are of no class of their own, and running out of memory is a RuntimeError too
        if not isinstance(error, dist.DistError) and not re.search(
            "gloo|connect|socket|timed? ?out", text, re.IGNORECASE
        ):
            raise
        raise RunError(
            f"another process of this training has ended or no longer answers ({text.splitlines()[-1][:200]}); start them all "
            "again, and resume the run if there is a checkpoint."
        ) from error
