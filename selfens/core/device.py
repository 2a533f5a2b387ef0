"""Device, precision, threads and random state of a run. torch's global settings are changed for the run and restored."""

import os
import platform
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

import torch

from selfens.errors import ConfigError, unknown_name

HOST_THREADS = 4
TORCH_GLOBALS_LOCK = threading.RLock()  # the settings below are per process, so runs in different threads take turns


def resolve_device(name: str) -> torch.device:
    """Return the device; `auto` is a GPU if torch sees one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device 'cuda' was asked for, but torch sees no GPU here; choose cpu or auto.")
    try:
        return torch.device(name)
    except (RuntimeError, TypeError):
        raise ConfigError(unknown_name("device", str(name), ("auto", "cpu", "cuda"))) from None


def resolve_precision(name: str, device: torch.device) -> str:
    """Return the precision; `auto` is bf16 on GPUs that have it, else fp32."""
    if name == "auto":
        has_bf16 = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return "bf16" if has_bf16 else "fp32"
    if name == "tf32" and device.type != "cuda":
        raise ConfigError(f"precision 'tf32' was asked for on a {device.type}; only GPUs have it, so use fp32.")
    return name


def generator(device: torch.device) -> torch.Generator:
    """Return the generator that torch's random operations on this device use."""
    if device.type != "cuda":
        return torch.default_generator
    torch.cuda.init()  # type: ignore[no-untyped-call]  # creates the generators
    index = torch.cuda.current_device() if device.index is None else device.index
    return torch.cuda.default_generators[index]


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """Return the autocast context for a precision. Code that needs full precision casts to float32 itself."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16", cache_enabled=False)


def suitable_threads(available: int, device: torch.device) -> int:
    """Return all `available` threads for a CPU, but few for a GPU: short host operations wait for the slowest thread."""
    return available if device.type == "cpu" else min(available, HOST_THREADS)


@contextmanager
def keep_random_state(device: torch.device | None = None) -> Iterator[None]:
    """Restore the caller's random state afterward, on the host and on this device; other threads wait."""
    devices = [device] if device is not None and device.type == "cuda" else []
    with TORCH_GLOBALS_LOCK, torch.random.fork_rng(devices=devices):
        yield


@contextmanager
def float32_mode(precision: str) -> Iterator[None]:
    """Set float32 arithmetic to full precision or TF32, and restore it. Other threads wait.

    torch has a general setting, one per library that overrides it, and an older one for matrix products. The compiler fails
    if they disagree, so all are set.
    """
    mode = "tf32" if precision == "tf32" else "ieee"
    backends: Any = torch.backends  # its fp32_precision is not in torch's own types yet
    products, convolutions = (backends.cuda.matmul, backends.mkldnn.matmul), (backends.cudnn.conv, backends.mkldnn.conv)
    with TORCH_GLOBALS_LOCK:
        older, general = "highest", backends.fp32_precision
        with suppress(RuntimeError):  # the caller's settings disagree
            older = torch.get_float32_matmul_precision()
        before = [(part, part.fp32_precision) for part in products]
        torch.set_float32_matmul_precision("high" if mode == "tf32" else "highest")
        backends.fp32_precision = mode
        # the others follow the general setting
        before += [(part, part.fp32_precision) for part in convolutions if part.fp32_precision != mode]
        for part, _ in before:
            part.fp32_precision = mode
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(older)
            for part, setting in before:
                part.fp32_precision = setting
            backends.fp32_precision = general


def prediction_settings(precision: str, device: torch.device) -> AbstractContextManager[None]:
    """Set the float32 mode for predictions. On a CPU nothing is set, so that threads can predict at the same time."""
    return float32_mode(precision) if device.type == "cuda" else nullcontext()


@contextmanager
def torch_settings(precision: str, threads: int | None, device: torch.device, seed: int) -> Iterator[None]:
    """Set random state, thread count and float32 mode for a run, and restore the caller's. Other threads wait."""
    threads_before, benchmark = torch.get_num_threads(), torch.backends.cudnn.benchmark
    with keep_random_state(device), float32_mode(precision):
        try:
            torch.set_num_threads(threads or suitable_threads(threads_before, device))
            torch.backends.cudnn.benchmark = device.type == "cuda"
            generator(device).manual_seed(seed)
            torch.default_generator.manual_seed(seed)
            yield
        finally:
            torch.set_num_threads(threads_before)
            torch.backends.cudnn.benchmark = benchmark


def environment(device: torch.device, precision: str) -> dict[str, Any]:
    """Return what a result depends on besides the config: versions, hardware, threads."""
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
            name = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
        return f"{name}, {os.cpu_count()} cores"
    except (OSError, StopIteration, IndexError):
        return platform.processor() or "CPU"
