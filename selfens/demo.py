"""The demo: several methods on scikit-learn's digits with 50 labels, same labelled rows, several seeds.

The settings are those of the digits presets and were chosen on seeds from 100 on, none of which is shown here.
"""

from __future__ import annotations

import hashlib
import os
import statistics
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from selfens import presets
from selfens.config import Config
from selfens.errors import ConfigError

METHODS = [
    ("digits-supervised", "supervised only"),
    ("digits-pi", "Π-model"),
    ("digits-temporal", "temporal ensembling"),
]
"""Preset and name of each row; the others are compared with the first."""


@dataclass(frozen=True)
class Result:
    preset: str
    seed: int
    test_error: float
    seconds: float
    images_per_second: float
    """Of the training only, each image counted once per epoch."""
    path: Path


def run_demo(directory: Path, *, jobs: int | None = None, num_seeds: int = 5, quiet: bool = False) -> list[Result]:
    """Train what is missing in `directory`, print a table, return the results."""
    if jobs is not None and jobs < 1:
        raise ConfigError(f"the demo was asked for {jobs} processes; expected at least 1.")
    if num_seeds < 2:
        raise ConfigError(f"the demo was asked for {num_seeds} seeds; a deviation needs at least 2.")
    wanted = [(preset, seed) for seed in range(num_seeds) for preset, _ in METHODS]
    processes = min(jobs or available_cores(), len(wanted))
    say = (lambda text: None) if quiet else _print
    say(f"digits, 50 labels, {num_seeds} seeds x {len(METHODS)} methods, {processes} processes of one thread")
    began, names = time.monotonic(), dict(METHODS)
    results: list[Result] = []
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for done in as_completed([pool.submit(_train_one, directory, preset, seed) for preset, seed in wanted]):
            results.append(result := done.result())
            say(
                f"  {len(results):>2}/{len(wanted)}  seed {result.seed}  {names[result.preset]:<20} "
                f"test error {result.test_error:5.2f} %  {result.seconds:5.1f} s"
            )
    _print_table(results, num_seeds)
    page = _write_page(directory, results)
    say(f"done in {time.monotonic() - began:.0f} s; the runs are in {directory}, and are not repeated next time")
    _print(f"all of them compared, to open in a browser: {page}")
    return results


def available_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def demo_config(preset: str, seed: int) -> Config:
    config = presets.get(preset).with_values("seed", base=seed)
    return config.with_values("training", threads=1, device="cpu")


def _train_one(directory: Path, preset: str, seed: int) -> Result:
    """One run: trained, continued, or only read if it is complete."""
    from selfens.runs.run import load_run
    from selfens.training.loop import resume, train

    config = demo_config(preset, seed)
    version = hashlib.sha256(config.to_json().encode()).hexdigest()[:8]  # runs of other settings are left alone
    path = directory / f"{preset}-seed{seed}-{version}"
    if not (path / "config.json").exists():
        run = train(config, path)
    elif not (run := load_run(path)).finished:
        run = resume(path)
    assert run.test_error is not None
    history = run.history
    speed = statistics.mean(record["images_per_second"] for record in history)
    return Result(preset, seed, run.test_error, sum(record["seconds"] for record in history), speed, path)


def _write_page(directory: Path, results: list[Result]) -> Path:
    from selfens.report.page import write_report
    from selfens.runs.directory import REPORT

    order = list(dict(METHODS))
    ordered = sorted(results, key=lambda result: (order.index(result.preset), result.seed))
    return write_report([result.path for result in ordered], directory / REPORT)


def _print_table(results: list[Result], num_seeds: int) -> None:
    from rich.console import Console
    from rich.table import Table

    baseline = {result.seed: result.test_error for result in results if result.preset == METHODS[0][0]}
    table = Table(title=f"digits, 50 labels (5 per class), 1,297 training rows, 500 test rows, n = {num_seeds} seeds")
    for column in ("method", "test error %", "beats supervised", "s per run", "images/s"):
        table.add_column(column, justify="left" if column == "method" else "right")
    for preset, name in METHODS:
        runs = [result for result in results if result.preset == preset]
        errors = [run.test_error for run in runs]
        wins = sum(run.test_error < baseline[run.seed] for run in runs)
        table.add_row(
            name,
            f"{statistics.mean(errors):.2f} ± {statistics.stdev(errors):.2f}",
            "" if preset == METHODS[0][0] else f"{wins} of {num_seeds} seeds",
            f"{statistics.mean(run.seconds for run in runs):.1f}",
            f"{statistics.mean(run.images_per_second for run in runs):,.0f}",
        )
    Console().print(table)


def _print(text: str) -> None:
    print(text, flush=True)  # noqa: T201
