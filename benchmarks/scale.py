"""What the ensemble costs at scale, by where it is kept: rows per second and memory, and on a GPU the time of a step.

    python benchmarks/scale.py [--folder /tmp] [--output results/benchmarks/scale.json]
    python benchmarks/scale.py --cold [--folder /tmp] [--output results/benchmarks/scale-cold.json]
    python benchmarks/scale.py --gpu-steps [--folder /tmp] [--output results/benchmarks/scale-gpu-steps.json]

The first visits all rows in random order in batches of 100, with `get` and `write` for each, and commits, on one CPU thread;
the predictions are made beforehand. Each case has a process of its own. The processor's time is given beside the duration,
for machines that are not idle. Memory is the largest RssAnon of the process, which is what it holds privately: pages of a
mapped file belong to the system, which takes them back when it needs to. With a file, each epoch ends with a `seal`, as with
a checkpoint after every epoch; it is timed separately.

The second asks for 20,000 of 10^7 rows whose pages are only on the disk, one batch after the other, with and without telling
the system that rows are read at random.

The third times whole training steps of conv13 (made-up images of CIFAR-10's size and number), batch 100, as `selfens train`
runs them, with the ensemble in each place, in turns.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch

from selfens.core.device import environment, resolve_device
from selfens.core.targets import EnsembleTargets

SIZES = [(10**5, 10), (10**6, 10), (10**7, 10), (10**6, 1000)]
KEPT = [("ram", "float32"), ("file", "float32"), ("file", "float16")]
BATCH = 100
TURNS, STEPS = 5, 500
ALLOWED_GROWTH, ALLOWED_ANON_MIB, ALLOWED_ANON_PER_ROW = 1.5, 200, 16


# Only the arrays


class Watch:
    """The largest RssAnon of this process, in bytes, sampled twenty times a second."""

    def __init__(self) -> None:
        self.largest, self.done = 0, threading.Event()
        self.thread = threading.Thread(target=self._look, daemon=True)

    def _look(self) -> None:
        while not self.done.wait(0.05):
            self.largest = max(self.largest, status("RssAnon"))

    def __enter__(self) -> Watch:
        self.thread.start()
        return self

    def __exit__(self, *rest: object) -> None:
        self.done.set()
        self.thread.join()


def status(name: str) -> int:
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def measure(rows: int, classes: int, kept: str, dtype: str, folder: str) -> dict:
    """One case, in the present process."""
    torch.set_num_threads(1)
    storage = Path(folder) / "targets" if kept == "file" else kept
    epochs = max(3, 10**6 // rows) if classes < 100 else 2
    probabilities = torch.rand(BATCH, classes).softmax(dim=1)
    before = status("RssAnon")
    times: dict[str, list[float]] = {"visit": [], "commit": [], "seal": [], "processor": []}
    with Watch() as watch:
        ensemble = EnsembleTargets(rows, classes, storage=storage, dtype=dtype)
        for _ in range(1 + epochs):
            began = time.process_time()
            times["visit"].append(visit(ensemble, torch.randperm(rows).view(-1, BATCH), probabilities))
            times["commit"].append(timed(ensemble.commit))
            times["processor"].append(time.process_time() - began)
            if kept == "file":
                times["seal"].append(timed(ensemble.seal))
    seconds = {name: statistics.median(values[1:]) if values else None for name, values in times.items()}
    return {
        "rows": rows,
        "classes": classes,
        "kept": kept,
        "dtype": dtype,
        "epochs": epochs,
        "rows_per_second": rows / (seconds["visit"] + seconds["commit"]),
        "load_average": os.getloadavg()[0],
        "seconds": seconds,
        "anon_before": before,
        "anon": watch.largest,
        "file_bytes": storage.stat().st_size if isinstance(storage, Path) else None,
    }


def visit(ensemble: EnsembleTargets, order: torch.Tensor, probabilities: torch.Tensor) -> float:
    """Seconds for all steps of an epoch."""
    began = time.perf_counter()
    for rows in ensemble.visit(order):
        ensemble.get(rows)
        ensemble.write(rows, probabilities)
    return time.perf_counter() - began


def timed(function, *arguments) -> float:
    began = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - began


def cold(rows: int, classes: int, random: bool, asked: int, folder: str) -> dict:
    """Time and bytes read for rows of a file that is not in the system's cache."""
    path, checkpoint = Path(folder) / "targets", Path(folder) / "checkpoint.json"
    if not path.exists():
        ensemble = EnsembleTargets(rows, classes, storage=path)
        visit(ensemble, torch.randperm(rows).view(-1, BATCH), torch.rand(BATCH, classes).softmax(dim=1))
        ensemble.commit()
        checkpoint.write_text(json.dumps(ensemble.seal()))
        del ensemble
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    ensemble = EnsembleTargets.read(json.loads(checkpoint.read_text()))
    ensemble.file.map.madvise(mmap.MADV_RANDOM if random else mmap.MADV_NORMAL)
    order, before = torch.randperm(rows)[:asked].view(-1, BATCH), bytes_read()
    seconds = timed(lambda: [ensemble.get(rows) for rows in order])
    return {
        "random": random,
        "microseconds_per_row": seconds / asked * 1e6,
        "bytes_per_row": (bytes_read() - before) / asked,
    }


def bytes_read() -> int:
    with open("/proc/self/io") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes:"))


def in_a_process_of_its_own(case: tuple, folder: str) -> dict:
    with tempfile.TemporaryDirectory(dir=folder) as own:
        command = [sys.executable, __file__, "--case", json.dumps([*case, own])]
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    if done.returncode:
        raise SystemExit(f"{case} failed:\n{done.stderr}")
    return json.loads(done.stdout)


def table(cases: list[dict]) -> str:
    lines = [
        "| rows | classes | kept in | rows/s | visit µs/row | commit µs/row | processor µs/row | checkpoint s | RssAnon MiB "
        "| file GiB |",
        "|---:|---:|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for case in cases:
        seconds, file = case["seconds"], case["file_bytes"]
        each = [f"{seconds[name] / case['rows'] * 1e6:.2f}" for name in ("visit", "commit", "processor")]
        lines.append(
            f"| {case['rows']:,} | {case['classes']:,} | {case['kept']} {case['dtype']} | {case['rows_per_second']:,.0f} | "
            f"{' | '.join(each)} | {'' if seconds['seal'] is None else format(seconds['seal'], '.2f')} | "
            f"{case['anon'] / 2**20:,.0f} | {'' if file is None else format(file / 2**30, '.2f')} |"
        )
    return "\n".join(lines)


def verdicts(cases: list[dict]) -> list[str]:
    """What is promised of growth and memory, with what was measured."""
    said = []
    for kept, dtype in KEPT:
        small, large = (
            next((c for c in cases if (c["rows"], c["classes"], c["kept"], c["dtype"]) == (n, 10, kept, dtype)), None)
            for n in (10**5, 10**7)
        )
        if small and large:
            growth = small["rows_per_second"] / large["rows_per_second"]
            work = large["seconds"]["processor"] / small["seconds"]["processor"] / 100
            said.append(
                f"{kept} {dtype}: a row of 10^7 takes {growth:.2f} times as long as one of 10^5, {work:.2f} times in the "
                f"processor's time (at most {ALLOWED_GROWTH})"
            )
    for case in cases:
        if case["kept"] == "file":
            allowed = ALLOWED_ANON_MIB * 2**20 + ALLOWED_ANON_PER_ROW * case["rows"]
            said.append(
                f"file {case['dtype']}, {case['rows']:,} x {case['classes']:,}: RssAnon {case['anon'] / 2**20:,.0f} MiB "
                f"of {allowed / 2**20:,.0f} allowed"
            )
    return said


# Steps on a GPU


def gpu_steps(folder: str, device: torch.device) -> dict:
    """Microseconds per step of temporal ensembling with the ensemble in each place, the median of several turns."""
    from selfens.bench.steps import build, conditions, config_for, endless_rows, made_up, settings, time_steps

    data = made_up(50_000)
    with tempfile.TemporaryDirectory(dir=folder) as own:
        places = {"device": "device", "ram": "ram", "file": f"{own}/targets"}
        trainings, notes = {}, []
        for name, place in places.items():
            config = config_for("temporal", data, device).with_values("method", storage=place)
            with settings(config, device):
                parts = build(config, data, device, notes)
                trainings[name] = (config, parts, steps_and_commits(parts, endless_rows(parts)))
        times: dict[str, list[float]] = {name: [] for name in trainings}
        for turn in range(TURNS + 1):
            for name, (config, parts, rows) in trainings.items():
                with settings(config, device):
                    seconds = time_steps(parts, rows, STEPS)
                if turn:  # the first one compiles, captures and warms up
                    times[name].append(seconds * 1e6)
    medians = {name: statistics.median(values) for name, values in times.items()}
    return {
        "environment": conditions(config_for("temporal", data, device), device),
        "microseconds_per_step": medians,
        "relative_to_device": {name: value / medians["device"] for name, value in medians.items()},
        "turns": times,
        "notes": notes,
    }


def steps_and_commits(parts, rows):
    """The rows, with the end of an epoch after its last step, because it is part of what an ensemble costs."""
    while True:
        for _ in range(parts.loader.steps_per_epoch):
            yield next(rows)
        parts.method.end_epoch()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="where the files of targets go while measured")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--gpu-steps", action="store_true")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        print(json.dumps(measure(*json.loads(options.case))))
        return
    if options.cold:
        with tempfile.TemporaryDirectory(dir=options.folder) as own:
            result = {"cases": [cold(10**7, 10, random, 20_000, own) for random in (False, True)]}
        result["environment"] = environment(torch.device("cpu"), "fp32")
        output = options.output or Path("results/benchmarks/scale-cold.json")
        for case in result["cases"]:
            how = "told that rows are read at random" if case["random"] else "with the system's default"
            print(f"{how}: {case['microseconds_per_row']:,.0f} µs and {case['bytes_per_row']:,.0f} bytes read per row")
    elif options.gpu_steps:
        result = gpu_steps(options.folder, resolve_device("cuda"))
        output = options.output or Path("results/benchmarks/scale-gpu-steps.json")
        for name, value in result["microseconds_per_step"].items():
            print(f"{name:<8} {value:8.1f} µs per step, {result['relative_to_device'][name]:.3f} of the device's")
        print(*result["notes"], sep="\n")
    else:
        cases: list[dict] = []
        for rows, classes in SIZES:
            for kept, dtype in KEPT:
                cases.append(in_a_process_of_its_own((rows, classes, kept, dtype), options.folder))
                print(table(cases[-1:]).splitlines()[-1], flush=True)
        result = {"environment": environment(torch.device("cpu"), "fp32"), "cases": cases, "verdicts": verdicts(cases)}
        output = options.output or Path("results/benchmarks/scale.json")
        print("", table(cases), "", *result["verdicts"], sep="\n")
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
