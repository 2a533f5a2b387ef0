"""The demo: several methods on scikit-learn's digits with the same 50 labels, over several seeds.

The settings are those of the digits presets, which were chosen on seeds from 100 on, not on the demo's.
"""

import hashlib
import os
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

from rich.console import Console
from rich.table import Column, Table
from typer import echo

from selfens import presets
from selfens.config import Config
from selfens.errors import ConfigError
from selfens.report.page import write_report
from selfens.report.render import mean_and_deviation
from selfens.runs.directory import REPORT
from selfens.runs.run import Run, load_run
from selfens.training.loop import resume, train

METHODS = {
    "digits-supervised": "supervised only",
    "digits-pi": "Π-model",
    "digits-temporal": "temporal ensembling",
    "digits-modern": "temporal teacher",
}
"""Preset and name of each row of the table; the first is the baseline."""


def run_demo(directory: Path, *, jobs: int | None = None, num_seeds: int = 5) -> None:
    """Train the runs missing in `directory`, print a table and write a report."""
    if jobs is not None and jobs < 1:
        raise ConfigError(f"--jobs is {jobs}; expected at least 1.")
    if num_seeds < 2:
        raise ConfigError(f"--seeds is {num_seeds}; expected at least 2, for a standard deviation.")
    wanted = [(preset, seed) for seed in range(num_seeds) for preset in METHODS]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    processes, began = min(jobs or cores, len(wanted)), time.monotonic()
    echo(f"digits, 50 labels, {num_seeds} seeds x {len(METHODS)} methods, {processes} processes of one thread")
    found: dict[tuple[str, int], Run] = {}
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        futures = {pool.submit(_train_one, directory, *each): each for each in wanted}
        for number, done in enumerate(as_completed(futures), start=1):
            preset, seed = futures[done]
            found[preset, seed] = run = load_run(done.result())
            echo(f"  {number:>2}/{len(wanted)}  seed {seed}  {METHODS[preset]:<20} test error {run.test_error:5.2f} %")
    runs = {preset: [found[preset, seed] for seed in range(num_seeds)] for preset in METHODS}
    _print_table({preset: [run.test_error or 0.0 for run in each] for preset, each in runs.items()})
    page = write_report([run.path for each in runs.values() for run in each], directory / REPORT)
    echo(f"done in {time.monotonic() - began:.0f} s; the runs in {directory} will not be repeated")
    echo(f"comparison of the runs, to open in a browser: {page}")


def demo_config(preset: str, seed: int) -> Config:
    config = presets.get(preset).with_values("seed", base=seed)
    return config.with_values("training", threads=1, device="cpu")


def _train_one(directory: Path, preset: str, seed: int) -> Path:
    config = demo_config(preset, seed)
    version = hashlib.sha256(config.to_json().encode()).hexdigest()[:8]  # runs with other settings have other names
    path = directory / f"{preset}-seed{seed}-{version}"
    if not (path / "config.json").exists():
        train(config, path)
    elif not load_run(path).finished:
        resume(path)
    return path


def _print_table(errors: dict[str, list[float]]) -> None:
    baseline = next(iter(errors.values()))
    seeds = f"{len(baseline)} seeds"
    figures = [Column(name, justify="right") for name in ("test error %", "beats supervised")]
    title = f"digits, 50 labels (5 per class), 1,297 training rows, 500 test rows, n = {seeds}"
    table = Table("method", *figures, title=title)
    for preset, each in errors.items():
        wins = sum(error < other for error, other in zip(each, baseline, strict=True))
        table.add_row(METHODS[preset], mean_and_deviation(each), "" if each is baseline else f"{wins} of {seeds}")
    Console().print(table)
