"""Where and in which arithmetic a run computes. What is set globally in torch is set for the run and put back after."""

from __future__ import annotations

import os
import platform
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from selfens.config import TrainingConfig
from selfens.errors import ConfigError, DeviceError

HOST_THREADS = 4
TURN = threading.RLock()  # what is set below is the whole process's, so trainings in several threads take turns


def resolve_device(name: str) -> torch.device:
    """`auto` is a GPU if torch sees one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise DeviceError("device 'cuda' was asked for, but torch sees no GPU here; choose cpu or auto.")
    return torch.device(name)


def resolve_precision(name: str, device: torch.device) -> str:
    """`auto` is bf16 on GPUs that have it, fp32 elsewhere."""
    if name == "auto":
        has_bf16 = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return "bf16" if has_bf16 else "fp32"
    if name == "tf32" and device.type != "cuda":
        raise ConfigError(f"precision 'tf32' was asked for on a {device.type}; it exists on GPUs, use fp32 here.")
    return name


def resolve_switch(setting: str, device: torch.device) -> bool:
    """`auto` is on for a GPU, off for a CPU."""
    return device.type == "cuda" if setting == "auto" else setting == "on"


def generator(device: torch.device) -> torch.Generator:
    """The generator that torch's random operations on this device use."""
    if device.type != "cuda":
        return torch.default_generator
    torch.cuda.init()  # type: ignore[no-untyped-call]  # there are no generators before
    return torch.cuda.default_generators[device.index or torch.cuda.current_device()]


class Stopwatch:
    """Time between two points of the work given to a device, without waiting for it in between."""

    def __init__(self, device: torch.device) -> None:
        self.on_gpu = device.type == "cuda"
        self.marks: list[Any] = []

    def mark(self) -> None:
        if not self.on_gpu:
            self.marks.append(time.perf_counter())
            return
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        self.marks.append(event)

    def seconds(self) -> float:
        """From the first mark to the last, once the device has reached it."""
        first, last = self.marks[0], self.marks[-1]
        return float(first.elapsed_time(last)) / 1000 if self.on_gpu else last - first


class Awaited:
    """Numbers that are still to be worked out, by name, while the host goes on.

    numbers  where they will be
    work     what must be given to the device before they are right, a piece at each look
    stream   the GPU's stream that the work is for
    read_by_work  tensors of another stream, held as long as the work may read them: their memory would be given out again
    """

    def __init__(
        self, numbers: dict[str, Tensor], work: Iterator[None], stream: Any = None, read_by_work: object = None
    ) -> None:
        self.numbers, self.work, self.stream, self.read_by_work = numbers, work, stream, read_by_work
        self.on_host: Tensor | None = None
        self.arrived: Any = None

    def are_known(self) -> bool:
        """Whether there is nothing left to wait for. Gives out one more piece of the work where some is left."""
        if self.on_host is None:
            with nullcontext() if self.stream is None else torch.cuda.stream(self.stream):
                self._give_out()
        return self.on_host is not None and (self.arrived is None or bool(self.arrived.query()))

    def _give_out(self) -> None:
        for _ in self.work:
            return
        together = torch.stack([number.to(torch.float64) for number in self.numbers.values()])
        self.on_host = together.to("cpu", non_blocking=True)
        if together.is_cuda:
            self.arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self.arrived.record()

    def read(self) -> dict[str, float]:
        """Gives out what is left of the work, and waits for it."""
        while self.on_host is None:
            self.are_known()
        if self.arrived is not None:
            self.arrived.synchronize()
        self.read_by_work = None
        return dict(zip(self.numbers, self.on_host.tolist(), strict=True))


def evaluation_stream(device: torch.device) -> Any:
    """The one stream of a GPU for evaluations: torch hands out a few in turn, and one of them is for capturing."""
    return _second_stream(torch.cuda.current_device() if device.index is None else device.index)


@cache
def _second_stream(gpu: int) -> Any:
    return torch.cuda.Stream(gpu)  # type: ignore[no-untyped-call]


@contextmanager
def autocast(device: torch.device, precision: str) -> Iterator[None]:
    """The network's arithmetic in bf16 where that is asked for; what must not lose digits asks for float32 itself."""
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16", cache_enabled=False):
        yield


def suitable_threads(available: int, device: torch.device) -> int:
    """All of them on a CPU. Beside a GPU the host has short sums alone, and the slowest of many threads holds up the rest."""
    return available if device.type == "cpu" else min(available, HOST_THREADS)


@contextmanager
def own_turn() -> Iterator[None]:
    """While torch's random numbers are drawn from: other threads that want to wait, and the caller's are put back after."""
    with TURN, torch.random.fork_rng(devices=[]):
        yield


@contextmanager
def float32_mode(precision: str) -> Iterator[None]:
    """float32 arithmetic in all its digits, or with TF32 inside where that is the precision, whatever the caller has set.

    Threads that ask for the same share it, and the last one to leave puts back what the first one found.
    """
    mode = "tf32" if precision == "tf32" else "ieee"
    with _FLOAT32_LOCK:
        if not _FLOAT32 or _FLOAT32[-1].mode != mode:
            _FLOAT32.append(_Float32(mode, _set_float32(mode)))
        present = _FLOAT32[-1]
        present.users += 1
    try:
        yield
    finally:
        with _FLOAT32_LOCK:
            present.users -= 1
            while _FLOAT32 and _FLOAT32[-1].users == 0:
                _FLOAT32.pop().put_back()


@dataclass
class _Float32:
    mode: str
    put_back: Callable[[], None]
    users: int = 0


_FLOAT32: list[_Float32] = []
"""The modes that were asked for one within the other, the present one last."""
_FLOAT32_LOCK = threading.Lock()


def _set_float32(mode: str) -> Callable[[], None]:
    """Set the mode, and return what puts everything back.

    torch has a general setting, one for each library, which counts more, and an older one for matrix products; where these
    disagree it refuses to answer a compiler that asks. So all are set.
    """
    backends: Any = torch.backends  # its fp32_precision is not in torch's own types yet
    products, convolutions = (backends.cuda.matmul, backends.mkldnn.matmul), (backends.cudnn.conv, backends.mkldnn.conv)
    older, general = _older_setting(), backends.fp32_precision
    before = [(part, part.fp32_precision) for part in products]
    torch.set_float32_matmul_precision("high" if mode == "tf32" else "highest")
    backends.fp32_precision = mode
    before += [(part, part.fp32_precision) for part in convolutions if part.fp32_precision != mode]  # the others follow
    for part, _ in before:
        part.fp32_precision = mode

    def put_back() -> None:
        torch.set_float32_matmul_precision(older)
        for part, setting in before:
            part.fp32_precision = setting
        backends.fp32_precision = general

    return put_back


def _older_setting() -> str:
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # the caller's settings disagree
        return "highest"


@contextmanager
def prediction_settings(precision: str, device: torch.device) -> Iterator[None]:
    """The float32 mode of predictions outside of a training; on a GPU not while another thread trains in another mode."""
    with TURN if device.type == "cuda" else nullcontext(), float32_mode(precision):
        yield


@contextmanager
def torch_settings(options: TrainingConfig, device: torch.device, seed: int) -> Iterator[None]:
    """Random state, thread count and float32 mode of a run; the caller's are restored. For whoever holds `TURN`."""
    threads, benchmark = torch.get_num_threads(), torch.backends.cudnn.benchmark
    forked = torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])
    with forked, float32_mode(options.precision):
        try:
            torch.set_num_threads(options.threads or suitable_threads(threads, device))
            torch.backends.cudnn.benchmark = device.type == "cuda"
            generator(device).manual_seed(seed)
            torch.default_generator.manual_seed(seed)
            yield
        finally:
            torch.set_num_threads(threads)
            torch.backends.cudnn.benchmark = benchmark


def environment(device: torch.device, precision: str) -> dict[str, Any]:
    """What a number depends on besides the config: versions, hardware, threads."""
    from selfens import __version__

    return {
        "selfens": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else _processor(),
        "device_type": device.type,
        "precision": precision,
        "threads": torch.get_num_threads(),
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
        return f"{names[0]}, {os.cpu_count()} cores"
    except (OSError, IndexError):
        return platform.processor() or "CPU"
