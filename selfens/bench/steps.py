"""The speed of a step: steady state, after start-up, the device waited for at both ends.

Start-up (whitening, building, compiling, capturing) is reported by itself, with how many graphs the compiler found in its
cache: a row finds there what an earlier one has compiled. An image counts once per step whatever the number of views.
"""

from __future__ import annotations

import copy
import gc
import resource
import statistics
import sys
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch._dynamo import utils as dynamo
from torch.utils.flop_counter import FlopCounterMode

from selfens import networks, presets
from selfens.config import Config
from selfens.core.device import environment, resolve_precision, torch_settings
from selfens.data import preprocess
from selfens.data.dataset import Dataset
from selfens.data.labels import choose_labels
from selfens.training.distributed import Group
from selfens.training.setup import Session

MODES: dict[str, list[str]] = {
    "plain": ["training.compile=off", "training.capture=off", "training.kernels=off"],
    "compiled": ["training.compile=on", "training.capture=off", "training.kernels=off"],
    "captured": ["training.compile=off", "training.capture=on", "training.kernels=off"],
    "compiled+captured": ["training.compile=on", "training.capture=on", "training.kernels=off"],
    "compiled+captured+kernels": ["training.compile=on", "training.capture=on", "training.kernels=on"],
}
GPU_MODES = tuple(MODES)
CPU_MODES = ("plain", "compiled")
BATCH = 100
TIMINGS = 3  # of which the median counts


@dataclass(frozen=True)
class Measurement:
    method: str
    mode: str
    images_per_second: float
    microseconds_per_step: float
    teraflops: float
    share_of_matrix_rate: float
    peak_memory_gib: float
    """Of the steps and an evaluation, on the device; on a CPU, of the process since it began."""
    startup_seconds: float
    graphs_compiled: int
    graphs_from_cache: int
    notes: tuple[str, ...]


def measure(
    method: str, mode: str, data: Dataset, device: torch.device, rate: float, steps: int, precision: str = "auto"
) -> Measurement:
    """One row of the table."""
    config = config_for(method, data, device, precision).with_overrides(MODES[mode])
    notes: list[str] = []
    compiled, cached = _graphs()
    if device.type == "cuda":
        gc.collect()  # of what an earlier measurement left behind
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    with torch_settings(config.training, device, 0):
        began = time.perf_counter()
        session = build_session(config, data, device, notes)
        rows = endless_rows(session)
        for _ in range(10):
            session.step(next(rows))
        wait(device)
        startup = time.perf_counter() - began
        seconds = statistics.median(time_steps(session, rows, steps) for _ in range(TIMINGS))
        session.close_epoch().read()
        peak = _peak_memory(device)  # before operations are counted, which takes memory of its own
        flops = step_flops(session)
    compiled_now, cached_now = _graphs()
    batch = session.loader.batch_size
    return Measurement(
        method=method,
        mode=mode,
        images_per_second=batch / seconds,
        microseconds_per_step=seconds * 1e6,
        teraflops=flops / seconds / 1e12,
        share_of_matrix_rate=flops / seconds / 1e12 / rate,
        peak_memory_gib=peak,
        startup_seconds=startup,
        graphs_compiled=compiled_now - compiled,
        graphs_from_cache=cached_now - cached,
        notes=tuple(notes),
    )


def _graphs() -> tuple[int, int]:
    """How many graphs the compiler has compiled in this process, and how many it found in its cache."""
    counts = dynamo.counters["inductor"]
    return counts["fxgraph_cache_miss"] + counts["fxgraph_cache_bypass"], counts["fxgraph_cache_hit"]


def _peak_memory(device: torch.device) -> float:
    """In GiB."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30


def conditions(data: Dataset, device: torch.device, precision: str = "auto") -> dict[str, Any]:
    """The environment as it is while steps are timed."""
    options = config_for("temporal", data, device, precision).training
    with torch_settings(options, device, 0):
        return environment(device, resolve_precision(options.precision, device))


def matrix_rate(device: torch.device) -> float:
    """What the device itself reaches on a large matrix product of random numbers, in TFLOP/s: bf16 on a GPU, else fp32."""
    size, kind = (8192, torch.bfloat16) if device.type == "cuda" else (1024, torch.float32)
    a, b = (torch.randn(size, size, device=device, dtype=kind) for _ in range(2))
    for _ in range(3):
        a @ b
    wait(device)
    began = time.perf_counter()
    for _ in range(10):
        a @ b
    wait(device)
    return 10 * 2 * size**3 / (time.perf_counter() - began) / 1e12


def step_flops(session: Session) -> float:
    """Floating-point operations of the matrix products and convolutions of one step, forward and backward."""
    network = copy.deepcopy(session.network)
    networks.fuse(network, False)
    batch = session.loader.batch(session.loader.order(0)[0], 1)
    with FlopCounterMode(display=False) as counter:
        network(batch.views[0]).sum().backward()
    return float(counter.get_total_flops()) * session.method.num_views


def config_for(method: str, data: Dataset, device: torch.device, precision: str = "auto") -> Config:
    name = "cifar10" if device.type == "cuda" else "digits"
    config = presets.get(f"{name}-{method}")
    config = config.with_values("training", device=device.type, precision=precision, batch_size=BATCH)
    return config if data.name == name else config.with_values("data", preprocess="channel")


def build_session(
    config: Config, data: Dataset, device: torch.device, notes: list[str], group: Group | None = None
) -> Session:
    choice = choose_labels(data, config.data, label_seed=0, split_seed=0)
    fitted = preprocess.fit(config.data.preprocess, data.inputs, device)
    session = Session(config, device, data, choice, fitted, None, None, notes.append, group)
    session.step.set(learning_rate=1e-4, beta1=0.9, weight=session.weight_max)
    return session


def endless_rows(session: Session) -> Any:
    epoch = 0
    while True:
        yield from session.visit(epoch)
        epoch += 1


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def time_steps(session: Session, rows: Any, steps: int) -> float:
    """Seconds per step."""
    wait(session.device)
    began = time.perf_counter()
    for _ in range(steps):
        session.step(next(rows))
    wait(session.device)
    return (time.perf_counter() - began) / steps
