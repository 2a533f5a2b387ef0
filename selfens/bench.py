"""selfens bench: how fast a training step is on this machine, in each way it can be carried out.

Times are of training alone: steady state, after start-up, the device waited for at both ends; start-up (building, compiling,
capturing; not loading and whitening, which a run does once) is reported by itself. An image
counts once per step whatever the number of views. On a CPU the digits run is also set against a plain PyTorch loop written
by hand, in alternation, because a machine's speed drifts.
"""

from __future__ import annotations

import copy
import gc
import json
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from selfens import networks, presets
from selfens.config import Config
from selfens.data import preprocess, sources
from selfens.data.dataset import Dataset
from selfens.data.labels import choose_labels
from selfens.device import environment, resolve_device, torch_settings
from selfens.errors import ConfigError, DataError
from selfens.networks.layers import update_running_means
from selfens.training import Session

MODES: dict[str, list[str]] = {
    "plain": ["training.compile=off", "training.capture=off", "training.kernels=off"],
    "compiled": ["training.compile=on", "training.capture=off", "training.kernels=off"],
    "captured": ["training.compile=off", "training.capture=on", "training.kernels=off"],
    "compiled+captured": ["training.compile=on", "training.capture=on", "training.kernels=off"],
    "compiled+captured+kernels": ["training.compile=on", "training.capture=on", "training.kernels=on"],
}
GPU_MODES = tuple(MODES)
CPU_MODES = ("plain", "compiled")
ALTERNATIONS = 5
WIDTH = 112


@dataclass(frozen=True)
class Measurement:
    method: str
    mode: str
    images_per_second: float
    microseconds_per_step: float
    teraflops: float
    share_of_matrix_rate: float
    peak_memory_gib: float | None
    startup_seconds: float
    notes: tuple[str, ...]


def bench(
    device_name: str = "auto",
    *,
    methods: tuple[str, ...] = ("temporal", "pi", "supervised"),
    modes: tuple[str, ...] | None = None,
    data_dir: str | None = None,
    steps: int | None = None,
) -> dict[str, Any]:
    """All measurements, as plain data. With `data_dir`, conv13 runs on the CIFAR-10 files there, else on made-up images."""
    if steps is not None and steps < 1:
        raise ConfigError(f"bench was asked to time {steps} steps; expected at least 1.")
    device = resolve_device(device_name)
    on_gpu = device.type == "cuda"
    rate = matrix_rate(device)
    data = _gpu_data(data_dir) if on_gpu else sources.load("digits")
    results = [
        measure(method, mode, data, device, rate, steps or (500 if on_gpu else 60))
        for method in methods
        for mode in modes or (GPU_MODES if on_gpu else CPU_MODES)
    ]
    return {
        "environment": environment(device, "bf16" if on_gpu else "fp32"),
        "network": "conv13" if on_gpu else "small",
        "data": data.name,
        "batch_size": 100,
        "matrix_teraflops": rate,
        "measurements": [asdict(result) for result in results],
        "against_a_plain_loop": None if on_gpu else against_plain_loop(data),
    }


def measure(method: str, mode: str, data: Dataset, device: torch.device, rate: float, steps: int) -> Measurement:
    """One row of the table."""
    config = _config(method, data, device).with_overrides(MODES[mode])
    notes: list[str] = []
    if device.type == "cuda":
        gc.collect()  # of what an earlier measurement left behind
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    with torch_settings(config.training, device, 0):
        began = time.perf_counter()
        session = _session(config, data, device, notes)
        rows = _endless_rows(session)
        for _ in range(10):
            session.step(next(rows))
        _wait(device)
        startup = time.perf_counter() - began
        seconds = min(_time_steps(session, rows, steps) for _ in range(2))
        flops = step_flops(session)
    batch = session.loader.batch_size
    return Measurement(
        method=method,
        mode=mode,
        images_per_second=batch / seconds,
        microseconds_per_step=seconds * 1e6,
        teraflops=flops / seconds / 1e12,
        share_of_matrix_rate=flops / seconds / 1e12 / rate,
        peak_memory_gib=torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else None,
        startup_seconds=startup,
        notes=tuple(notes),
    )


def matrix_rate(device: torch.device) -> float:
    """What the device itself reaches on a large matrix product of random numbers, in TFLOP/s: bf16 on a GPU, else fp32."""
    size, kind = (8192, torch.bfloat16) if device.type == "cuda" else (1024, torch.float32)
    a, b = (torch.randn(size, size, device=device, dtype=kind) for _ in range(2))
    for _ in range(3):
        a @ b
    _wait(device)
    began = time.perf_counter()
    for _ in range(10):
        a @ b
    _wait(device)
    return 10 * 2 * size**3 / (time.perf_counter() - began) / 1e12


def step_flops(session: Session) -> float:
    """Floating-point operations of the matrix products and convolutions of one step, forward and backward."""
    network = copy.deepcopy(session.network)
    networks.fuse(network, False)
    batch = session.loader.batch(session.loader.order(0)[0], 1)
    with FlopCounterMode(display=False) as counter:
        network(batch.views[0]).sum().backward()
    return float(counter.get_total_flops()) * session.method.num_views


def _config(method: str, data: Dataset, device: torch.device) -> Config:
    name = "cifar10" if device.type == "cuda" else "digits"
    config = presets.get(f"{name}-{method}").with_values("training", device=device.type)
    return config if data.name == name else config.with_values("data", preprocess="channel")


def _session(config: Config, data: Dataset, device: torch.device, notes: list[str]) -> Session:
    choice = choose_labels(data, config.data, label_seed=0, split_seed=0)
    fitted = preprocess.fit(config.data.preprocess, data.inputs, device)
    session = Session(config, device, data, choice, fitted, None, None, notes.append)
    session.step.set(learning_rate=1e-4, beta1=0.9, weight=session.weight_max)
    return session


def _gpu_data(data_dir: str | None) -> Dataset:
    if data_dir is not None:
        return sources.load("cifar10", data_dir=data_dir)
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (50_000, 3, 32, 32), dtype=np.uint8)
    labels = np.arange(50_000) % 10
    classes = tuple("0123456789")
    return Dataset(
        inputs=images, labels=labels, test_inputs=images[:0], test_labels=labels[:0], classes=classes, name="made-up"
    )


def _endless_rows(session: Session) -> Any:
    epoch = 0
    while True:
        yield from session.loader.order(epoch)
        epoch += 1


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _time_steps(session: Session, rows: Any, steps: int) -> float:
    """Seconds per step."""
    _wait(session.device)
    began = time.perf_counter()
    for _ in range(steps):
        session.step(next(rows))
    _wait(session.device)
    return (time.perf_counter() - began) / steps


def against_plain_loop(data: Dataset, steps: int = 60) -> dict[str, Any]:
    """Temporal ensembling on digits: our step against a loop written by hand, in turns; the median of the ratios."""
    device = torch.device("cpu")
    config = _config("temporal", data, device).with_values("method", unseen_rows="zero")  # as the loop has it
    with torch_settings(config.training, device, 0):
        session = _session(config, data, device, [])
        loop = PlainLoop(session)
        rows, same_rows = _endless_rows(session), _endless_rows(session)
        ratios = []
        for _ in range(ALTERNATIONS + 1):
            ours = _time_steps(session, rows, steps)
            theirs = loop.time_steps(same_rows, steps)
            ratios.append(ours / theirs)
    kept = ratios[1:]  # the first turn warms both up
    return {"median_ratio": statistics.median(kept), "ratios": kept, "steps_per_turn": steps}


class PlainLoop:
    """Temporal ensembling as one would write it in an afternoon: the same network, torch's Adam, Z as two tensors."""

    def __init__(self, session: Session) -> None:
        self.network: nn.Module = copy.deepcopy(session.network)
        self.inputs, self.labels = session.loader.inputs, session.loader.labels
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=1e-4)
        self.targets = torch.zeros(len(self.labels), 10)
        self.predictions = torch.zeros(len(self.labels), 10)
        self.weight = session.weight_max

    def step(self, rows: Tensor) -> None:
        x, y = self.inputs[rows], self.labels[rows]
        logits = self.network(x)
        z = logits.softmax(dim=1)
        labelled = y >= 0
        supervised = functional.cross_entropy(logits[labelled], y[labelled], reduction="sum") / len(rows)
        loss = supervised + self.weight * functional.mse_loss(z, self.targets[rows])
        self.optimizer.zero_grad()
        torch.autograd.backward(loss)
        self.optimizer.step()
        update_running_means(self.network)
        self.predictions[rows] = z.detach()

    def time_steps(self, rows: Any, steps: int) -> float:
        began = time.perf_counter()
        for _ in range(steps):
            self.step(next(rows))
        return (time.perf_counter() - began) / steps


def print_table(result: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    about, console = result["environment"], Console()
    console = Console(width=max(console.width, WIDTH))  # rather wrapped by the terminal than with figures cut off
    console.print(
        f"{result['network']}, batch {result['batch_size']}, {result['data']}; {about['device']}, torch {about['torch']}, "
        f"{about['threads']} threads; matrix products run at {result['matrix_teraflops']:.3g} TFLOP/s",
        highlight=False,
    )
    table = Table()
    columns = ("method", "step", "images/s", "µs/step", "TFLOP/s", "of matrix rate", "peak GiB", "start-up s")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number < 2 else "right")
    for row in result["measurements"]:
        memory = row["peak_memory_gib"]
        table.add_row(
            row["method"],
            row["mode"],
            f"{row['images_per_second']:,.0f}",
            f"{row['microseconds_per_step']:,.0f}",
            f"{row['teraflops']:.3g}",
            f"{row['share_of_matrix_rate']:.1%}",
            "" if memory is None else f"{memory:.2f}",
            f"{row['startup_seconds']:.1f}",
        )
    console.print(table)
    for row in result["measurements"]:
        for note in row["notes"]:
            console.print(f"{row['method']}, {row['mode']}: {note}", highlight=False)
    loop = result["against_a_plain_loop"]
    if loop:
        console.print(
            f"time of a digits step over that of a plain PyTorch loop of the same network: {loop['median_ratio']:.3f} "
            f"(median of {len(loop['ratios'])} alternations)",
            highlight=False,
        )


def write_json(path: Path, result: dict[str, Any]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=2) + "\n")
    except OSError as error:
        raise DataError(f"{path} could not be written ({error.strerror}).") from None
