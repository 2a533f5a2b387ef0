"""Train one config with several seeds, in parallel on this machine or on a Ray cluster."""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selfens import console
from selfens.console import complain, say
from selfens.errors import RunError, plural, visible
from selfens.experiments.pool import Processes, run_all
from selfens.runs.directory import REPORT, RunDirectory
from selfens.runs.run import load_run
from selfens.training import loop
from selfens.training.progress import Progress, describe

if TYPE_CHECKING:
    from selfens.config import Config

SECONDS_BETWEEN_LINES = 10.0


@dataclass(frozen=True)
class SeededRun:
    """A `pool.Job` that trains one seed in its own directory."""

    config: Config
    name: str
    note: str
    baselines: bool | None
    report: bool

    def __str__(self) -> str:
        return self.name

    @property
    def threads(self) -> int | None:
        return self.config.training.threads

    @property
    def data(self) -> str:
        return self.config.source.title

    def run(self, root: Path, device: str, *, is_shared: bool) -> None:
        with self.claimed(root) as is_ours:
            if not is_ours or self.is_done(root):
                return
            path, show = root / self.name, _Lines(self.name)
            run = load_run(path, trust_code=True) if self.is_begun(root) else None
            if run is None:
                run = loop.train(self.config, path, progress=show, note=self.note)
            elif not run.finished:
                run = loop.resume(path, progress=show, trust_code=True)
            console.finish(run, show, self.baselines, self.report, quiet=True)

    def is_begun(self, root: Path) -> bool:
        """Return True if the directory holds this run; raise if it holds a different one."""
        if not (root / self.name / "config.json").is_file():
            return False
        found, source = RunDirectory(root / self.name).config(), self.config.source
        if replace(self.config, source=found.source if source.is_completed_by(found.source) else source) != found:
            raise RunError(
                f"{root / self.name} holds a run with different settings; choose another folder with --run-dir."
            )
        return True

    def is_done(self, root: Path) -> bool:
        path = root / self.name
        if not self.is_begun(root) or (self.report and not (path / REPORT).is_file()):
            return False
        return RunDirectory(path).position()[0] >= self.config.schedule.epochs

    @contextmanager
    def claimed(self, root: Path) -> Iterator[bool]:
        from selfens.experiments.records import writable
        from selfens.files import lock

        path = root / f".{self.name}.lock"
        with ExitStack() as stack:
            with writable(root):
                is_ours = lock(stack.enter_context(open(path, "a")))
            yield is_ours

    def kept(self, root: Path) -> list[Path]:
        return [root / self.name]

    def clear(self, root: Path) -> None:
        """Remove nothing: the run directory is the result."""

    def check_data(self) -> None:
        from selfens.data import sources
        from selfens.errors import DataError

        if self.config.source.is_public:
            sources.load(self.config.source, seed=self.config.seed.of("split"))
        source, labels = self.config.source, self.config.labels
        files = [getattr(source, "path", None), source.extra, *(labels.file or ()), labels.prior]
        for path in filter(None, files):
            if os.path.isabs(path) and not os.path.exists(path):
                raise DataError(f"{path} does not exist; put the data into a folder that all nodes share.")


class _Lines(Progress):
    """Prints a line every ten seconds at most, with the name of the run."""

    def __init__(self, name: str) -> None:
        self.name, self.last = name, time.monotonic()

    def start(self, title: str, *, epochs: int, first_epoch: int, steps_per_epoch: int) -> None:
        self.epochs = epochs
        self.say(f"continues after epoch {first_epoch}/{epochs}" if first_epoch else f"started, {epochs} epochs")

    def epoch(self, record: dict[str, Any]) -> None:
        if time.monotonic() - self.last >= SECONDS_BETWEEN_LINES:
            self.say(f"epoch {record['epoch'] + 1}/{self.epochs}  {describe(record)}")

    def say(self, line: str) -> None:
        self.last = time.monotonic()
        sys.stdout.write(f"{self.name}: {line}\n")
        sys.stdout.flush()

    def warn(self, message: str) -> None:
        self.say(f"warning: {visible(message)}")


def train_seeds(
    config: Config,
    seeds: list[int],
    folder: Path | None,
    *,
    note: str,
    baselines: bool | None,
    report: bool,
    ray: str | None,
    gpus: float | None,
) -> None:
    """Do the missing runs, and print the mean of all errors."""
    from selfens.experiments.cluster import Cluster

    root = (folder or Path("runs")).absolute()
    stem = "" if folder else f"{Path(config.source.title).stem}-{config.method.name}-"
    jobs = [
        SeededRun(config.with_values("seed", base=seed), f"{stem}seed{seed}", note, baselines, report) for seed in seeds
    ]
    for job in jobs:
        job.is_begun(root)  # refuse a different run's directory before anything is trained
    if ray is None:
        failed, stopped = run_all(jobs, root, Processes(devices(config)), say)
    else:
        with Cluster(ray, gpus, say) as cluster:
            say(cluster.describe(len(jobs)))
            cluster.check(jobs)
            failed, stopped = run_all(jobs, root, cluster, say)
    done = [job for job in jobs if job.is_done(root)]
    missing = len(jobs) - len(done)
    left = "1 run is missing" if missing == 1 else f"{missing} runs are missing"
    if stopped:
        complain(f"stopped; {left}. Run it again to continue.")
        sys.exit(130)
    if failed:
        raise RunError(f"{left}, {failed} of them because of the errors above; run it again to continue.")
    if len(done) < len(jobs):
        complain(f"another process is doing the rest; {left}. Run it again to continue.")
        sys.exit(3)
    _summarize([load_run(root / job.name, device="cpu") for job in jobs], root)


def _summarize(runs: list[Any], root: Path) -> None:
    errors = [run.evidence.error if run.evidence else run.test_error for run in runs]
    known = [error for error in errors if error is not None]
    if len(known) == len(runs) > 1:
        spread = f"{statistics.mean(known):.2f} ± {statistics.stdev(known):.2f} %"
        say(f"error {spread} (mean and standard deviation over {len(runs)} seeds); runs in {root}")
    else:
        say(f"{plural(len(runs), 'run')} done; runs in {root}")


def devices(config: Config) -> list[str]:
    """Return one device per parallel run: every GPU, or "cpu" as many times as a run's threads fit into the cores."""
    import torch

    if config.training.device != "cpu" and torch.cuda.is_available():
        return [str(number) for number in range(torch.cuda.device_count())]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return ["cpu"] * max(1, cores // (config.training.threads or torch.get_num_threads()))
