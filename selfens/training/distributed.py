"""Several processes as one training: who this process is among them, and what they exchange.

`torchrun` starts the processes and says through the environment how many there are. A single process is a group of one, for
which every exchange is the identity, so training has one path for one process and for many.

Tensors of a step go through nccl between GPUs and gloo between CPUs, with a timeout of a minute. What may come after a long
wait for one process (loading data, writing a checkpoint) goes through gloo with a timeout of hours; a process that has died is
noticed there at once too.
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
from selfens.errors import RunError, SelfensError

Value = TypeVar("Value")
Rows = NDArray[np.int64]

MIN, MAX = dist.ReduceOp.MIN, dist.ReduceOp.MAX
STEP_TIMEOUT = timedelta(seconds=60)
LOAD_TIMEOUT = timedelta(hours=2)


class Group:
    """The processes of one training. `Group()` is a single process."""

    def __init__(self, rank: int = 0, size: int = 1, patient: dist.ProcessGroup | None = None) -> None:
        self.rank, self.size, self._patient = rank, size, patient

    def __deepcopy__(self, memo: dict[int, Any]) -> Group:
        """Itself: a layer that averages over the processes may be copied to make a teacher."""
        return self

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes files and shows progress."""
        return self.rank == 0

    # Which rows each process owns

    def share(self, kinds: NDArray[np.int64]) -> Rows:
        """The rows that this process owns, in ascending order: every size-th of each kind of row, in a fixed shuffle.

        The division depends only on the kinds and the number of processes, so a row has the same owner in every epoch. It is
        shuffled because rows may come in a pattern, such as one class after another, that would leave a process without some
        classes.
        """
        shuffle = stream(0, PROCESS).permutation
        ordered = np.concatenate([shuffle(np.flatnonzero(kinds == kind)) for kind in np.unique(kinds)])
        return np.sort(ordered[self.rank :: self.size])

    # What is exchanged in every step

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
        averaged: Tensor = _Mean.apply(tensor, self)  # type: ignore[no-untyped-call]
        return averaged

    def all_reduce(self, tensor: Tensor, how: Any = dist.ReduceOp.SUM) -> Tensor:
        """The tensor summed over the processes, or the MIN or MAX of each value, in place."""
        if self.size > 1:
            dist.all_reduce(tensor, how)
        return tensor

    # What is exchanged now and then, perhaps after what has taken long in one process

    def all_reduce_int(self, number: int, how: Any) -> int:
        """The MIN or MAX of the numbers that the processes have."""
        told = torch.tensor(number)
        if self.size > 1:
            dist.all_reduce(told, how, group=self._patient)
        return int(told)

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Copy the first process's tensors into those of the others, after a barrier."""
        self.barrier()
        for tensor in tensors if self.size > 1 else ():
            dist.broadcast(tensor, src=0)

    def gather(self, value: Value) -> list[Value]:
        """What every process gives, on the first one; nothing on the others. Tensors must be on the host."""
        if self.size == 1:
            return [value]
        found: list[Any] = [None] * self.size
        dist.gather_object(value, found if self.is_first else None, dst=0, group=self._patient)
        return found if self.is_first else []

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
    """The group that torchrun started this process in, or a group of one.

    Errors of the network between processes, which mean nothing to a user, become a sentence about a lost process.
    """
    if launcher.world_size() == 1:
        yield Group()
        return
    try:
        yield _join(device)
    except RuntimeError as error:
        text = str(error).strip()
        # gloo's errors are of no class of their own, and running out of memory is a RuntimeError too
        is_lost = isinstance(error, dist.DistError) or re.search("gloo|connect|socket|timed? ?out", text, re.IGNORECASE)
        if isinstance(error, SelfensError) or not is_lost:
            raise
        raise RunError(
            f"another process of this training has ended or no longer answers ({text.splitlines()[-1][:200]}); start them all "
            "again, and resume the run if there is a checkpoint."
        ) from error
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def _join(device: torch.device) -> Group:
    if device.type == "cuda":
        torch.cuda.set_device(launcher.local_rank())
    found, rank, size = next(rendezvous("env://", timeout=STEP_TIMEOUT))
    # torchrun may keep one store over its restarts, with the addresses of processes that are no more.
    store = dist.PrefixStore(f"restart {launcher.restarts()}", found)  # type: ignore[attr-defined]
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=STEP_TIMEOUT)
    return Group(rank, size, patient=dist.new_group(backend="gloo", timeout=LOAD_TIMEOUT))
