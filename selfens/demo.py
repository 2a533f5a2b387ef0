"""The demo: three methods on scikit-learn's digits with 50 labels, same labelled rows, several seeds.

The settings are those of the digits presets and were chosen on seeds 100 and up; the seeds shown here took no part.
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

METHODS = {"supervised": "supervised only", "pi": "Π-model", "temporal": "temporal ensembling"}
BASELINE = "supervised"


@dataclass(frozen=True)
class Result:
    method: str
    seed: int
    test_error: float
    seconds: float
    images_per_second: float
    """Of training alone, each image counted once per epoch."""
    path: Path


def run_demo(directory: Path, *, jobs: int | None = None, num_seeds: int = 5, quiet: bool = False) -> list[Result]:
    """Train what is missing in `directory`, print a table, return the results."""
    if jobs is not None and jobs < 1:
        raise ConfigError(f"the demo was asked for {jobs} processes; expected at least 1.")
    if num_seeds < 2:
        raise ConfigError(f"the demo was asked for {num_seeds} seeds; a deviation needs at least 2.")
    wanted = [(method, seed) for seed in range(num_seeds) for method in METHODS]
    processes = min(jobs or available_cores(), len(wanted))
    if not quiet:
        _print(f"digits, 50 labels, {num_seeds} seeds x {len(METHODS)} methods, {processes} processes of one thread")
    began = time.monotonic()
    results = _train_all(directory, wanted, processes, quiet)
    _print_table(results, num_seeds)
    page = _write_page(directory, results)
    if not quiet:
        _print(f"done in {time.monotonic() - began:.0f} s; the runs are in {directory}, and are not repeated next time")
    _print(f"all of them compared, to open in a browser: {page}")
    return results


def available_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def demo_config(method: str, seed: int) -> Config:
    config = presets.get(f"digits-{method}").with_values("seed", base=seed)
    return config.with_values("training", threads=1, device="cpu")


def _train_all(directory: Path, wanted: list[tuple[str, int]], processes: int, quiet: bool) -> list[Result]:
    results = []
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        waiting = [pool.submit(_train_one, directory, method, seed) for method, seed in wanted]
        for number, done in enumerate(as_completed(waiting), start=1):
            result = done.result()
            results.append(result)
            if not quiet:
                _print(
                    f"  {number:>2}/{len(wanted)}  seed {result.seed}  {METHODS[result.method]:<20} "
                    f"test error {result.test_error:5.2f} %  {result.seconds:5.1f} s"
                )
    return results


def _train_one(directory: Path, method: str, seed: int) -> Result:
    """One run: trained, continued, or only read if it is complete."""
    from selfens.runs.run import Run, load_run
    from selfens.training.loop import resume, train

    config = demo_config(method, seed)
    version = hashlib.sha256(config.to_json().encode()).hexdigest()[:8]  # other settings do not meet older runs
    path = directory / f"{method}-seed{seed}-{version}"
    run: Run
    if (path / "config.json").exists():
        run = load_run(path)
        run = run if run.finished else resume(path)
    else:
        run = train(config, path)
    assert run.test_error is not None
    history = run.history
    speed = statistics.mean(record["images_per_second"] for record in history)
    return Result(method, seed, run.test_error, sum(record["seconds"] for record in history), speed, path)


def _write_page(directory: Path, results: list[Result]) -> Path:
    from selfens.report.page import write_report
    from selfens.runs.directory import REPORT

    ordered = sorted(results, key=lambda result: (list(METHODS).index(result.method), result.seed))
    return write_report([result.path for result in ordered], directory / REPORT)


def _print_table(results: list[Result], num_seeds: int) -> None:
    from rich.console import Console
    from rich.table import Table

    errors = {method: {r.seed: r.test_error for r in results if r.method == method} for method in METHODS}
    table = Table(title=f"digits, 50 labels (5 per class), 1,297 training rows, 500 test rows, n = {num_seeds} seeds")
    for column in ("method", "test error %", "beats supervised", "s per run", "images/s"):
        table.add_column(column, justify="left" if column == "method" else "right")
    for method, name in METHODS.items():
        runs = [result for result in results if result.method == method]
        values = list(errors[method].values())
        wins = sum(errors[method][seed] < errors[BASELINE][seed] for seed in errors[method])
        seconds = statistics.mean(run.seconds for run in runs)
        speed = statistics.mean(run.images_per_second for run in runs)
        table.add_row(
            name,
            f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}",
            "" if method == BASELINE else f"{wins} of {num_seeds} seeds",
            f"{seconds:.1f}",
            f"{speed:,.0f}",
        )
    Console().print(table)


def _print(text: str) -> None:
    print(text, flush=True)  # noqa: T201
