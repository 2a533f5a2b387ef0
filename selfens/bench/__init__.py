"""selfens bench: the speed of a training step on this machine, in each mode.

steps  images per second, start-up and memory of one method in one mode
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from selfens.bench.steps import CPU_MODES, MODES, conditions, config_for, made_up, measure
from selfens.core.device import resolve_device
from selfens.data import sources
from selfens.errors import ConfigError, unknown_name
from selfens.files.tables import write_output
from selfens.methods import METHODS

GPU_STEPS, CPU_STEPS = 500, 60


def bench(
    device_name: str,
    *,
    methods: Sequence[str],
    modes: Sequence[str] | None,
    data_dir: str | None,
    steps: int | None,
    batch: int,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Measure conv13 on CIFAR-10 on a GPU, or the small network on digits on a CPU; return plain data.

    modes     of `MODES`; by default all that make sense on the device
    data_dir  CIFAR-10's files; without them a GPU is measured on random images of the same shape
    """
    if steps is not None and steps < 1:
        raise ConfigError(f"bench was asked to time {steps} steps; expected at least 1.")
    for kind, names, known in (("method", methods, METHODS), ("mode", modes or (), MODES)):
        for name in names:
            if name not in known:
                raise ConfigError(unknown_name(kind, name, known))
    device = resolve_device(device_name)
    on_gpu = device.type == "cuda"
    if data_dir is not None and not on_gpu:
        raise ConfigError(f"CIFAR-10's files were given ({data_dir}), but a CPU is measured on digits; leave them out.")
    if data_dir is not None:
        data = sources.load(sources.options_for("cifar10", folder=data_dir))
    else:
        data = made_up(50_000) if on_gpu else sources.load(sources.options_for("digits"))
    results = []
    for method in methods:
        config = config_for(method, data, device, batch)
        for mode in modes or (MODES if on_gpu else CPU_MODES):
            say(f"measuring {method}, {mode}")
            results.append(measure(config, mode, data, device, steps or (GPU_STEPS if on_gpu else CPU_STEPS)))
    return {
        "environment": conditions(config, device),
        "network": config.network.name,
        "data": data.name,
        "batch_size": results[0]["batch_size"],  # less than asked for, if there are fewer rows
        "measurements": results,
    }


def print_table(result: dict[str, Any]) -> None:
    about = result["environment"]
    console = Console(width=max(Console().width, 90))  # a narrow terminal wraps the table; rich would cut its figures
    console.print(
        f"{result['network']}, batch {result['batch_size']}, {result['data']}; {about['device']}, "
        f"torch {about['torch']}, {about['precision']}, threads: {about['threads']}",
        highlight=False,
    )
    table = Table()
    for column in ("method", "step", "images/s", "µs/step", "peak GiB", "start-up s"):
        table.add_column(column, justify="left" if column in ("method", "step") else "right")
    for row in result["measurements"]:
        table.add_row(
            row["method"],
            row["mode"],
            f"{row['images_per_second']:,.0f}",
            f"{row['microseconds_per_step']:,.0f}",
            "" if row["peak_memory_gib"] is None else f"{row['peak_memory_gib']:.2f}",
            f"{row['startup_seconds']:.1f}",
        )
    console.print(table)
    for row in result["measurements"]:
        for note in row["notes"]:
            console.print(f"{row['method']}, {row['mode']}: {note}", highlight=False)


def write_json(path: Path, result: dict[str, Any]) -> None:
    write_output(path, (json.dumps(result, indent=2) + "\n").encode(), beginning=b'{\n  "environment"')
