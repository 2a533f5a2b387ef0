"""Several processes, started by `torchrun`, that train together.

A single process is a group of one, for which every collective is the identity, so training has one code path.

Tensors of a step go through nccl between GPUs and gloo between CPUs, with a timeout of a minute. Collectives that may have to
wait for a slow rank (loading data, writing a checkpoint) go through gloo with a timeout of hours; it also notices at once if a
process has died.
"""

import os
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
from selfens.data.rows import Rows
from selfens.errors import RunError, SelfensError

Value = TypeVar("Value")

STEP_TIMEOUT = timedelta(seconds=60)
LOAD_TIMEOUT = timedelta(hours=2)


class Group:
    """The processes of one training. `Group()` is a single process. Collectives on `slow` have a long timeout."""

    def __init__(self, rank: int = 0, size: int = 1, slow: dist.ProcessGroup | None = None) -> None:
        self.rank, self.size, self._slow = rank, size, slow

    @property
    def is_first(self) -> bool:
        """This process writes files and shows progress."""
        return self.rank == 0

    def share(self, kinds: NDArray[np.int64]) -> Rows:
        """Return the rows of this process, in ascending order: every size-th row of each kind, after a fixed shuffle.

        A row stays with the same process in every epoch. Without the shuffle, a process might lack a class in sorted data.
        """
        shuffle = stream(0, PROCESS).permutation
        ordered = np.concatenate([shuffle(np.flatnonzero(kinds == kind)) for kind in np.unique(kinds)])
        return np.sort(ordered[self.rank :: self.size])

    def means(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        """Average each tensor over the processes, in one all-reduce."""
        if self.size == 1 or not tensors:
            return tensors
        flat = self.mean(torch.cat([tensor.reshape(-1) for tensor in tensors]))
        pieces = torch.split(flat, [tensor.numel() for tensor in tensors])
        return [piece.view(tensor.shape) for piece, tensor in zip(pieces, tensors, strict=True)]

    def mean(self, tensor: Tensor) -> Tensor:
        """Average a tensor over the processes, in place."""
        return self.all_reduce(tensor).div_(self.size) if self.size > 1 else tensor

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over the processes, in place."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    # The following are called rarely and may have to wait for a slow rank.

    def min(self, number: int) -> int:
        """All-reduce an integer with MIN."""
        least = torch.tensor(int(number))  # gloo cannot reduce booleans
        if self.size > 1:
            dist.all_reduce(least, dist.ReduceOp.MIN, group=self._slow)
        return int(least)

    def any(self, flag: bool) -> bool:
        """Return True if the flag is set in any process."""
        return not self.min(not flag)

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Copy the first process's tensors to the others, after a barrier."""
        self.barrier()
        for tensor in tensors if self.size > 1 else ():
            dist.broadcast(tensor, src=0)

    def gather(self, value: Value) -> list[Value]:
        """Return the values of all processes on the first one, [] on the others. Tensors must be on the host."""
        if self.size == 1:
            return [value]
        found: list[Any] = [None] * self.size
        dist.gather_object(value, found if self.is_first else None, dst=0, group=self._slow)
        return found if self.is_first else []

    def barrier(self) -> None:
        if self.size > 1:
            dist.barrier(group=self._slow)


@contextmanager
def process_group(device: torch.device) -> Iterator[Group]:
    """Join the group that torchrun started this process in, or yield a group of one. A lost process raises a RunError."""
    if launcher.world_size() == 1:
        yield Group()
        return
    try:
        yield _join(device)
    except RuntimeError as error:
        text = str(error).strip()
        # gloo raises a plain RuntimeError, as does running out of memory
        is_lost = isinstance(error, dist.DistError) or re.search("gloo|connect|socket|timed? ?out", text, re.IGNORECASE)
        if isinstance(error, SelfensError) or not is_lost:
            raise
        found = f"another process of this training has ended or no longer answers ({text.splitlines()[-1][:200]})"
        raise RunError(f"{found}; start all of them again, and resume the run if it has a checkpoint.") from error
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def _join(device: torch.device) -> Group:
    if device.type == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    found, rank, size = next(rendezvous("env://", timeout=STEP_TIMEOUT))
    # torchrun may keep its store when it restarts processes; it then holds addresses of processes that have ended.
    store = dist.PrefixStore(f"restart {launcher.restarts()}", found)  # type: ignore[attr-defined]
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=STEP_TIMEOUT)
    return Group(rank, size, slow=dist.new_group(backend="gloo", timeout=LOAD_TIMEOUT))
