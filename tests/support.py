"""What several test files share: small data, small configs, what a run left behind, and processes that can be killed."""

from __future__ import annotations

import contextlib
import ctypes
import json
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from selfens import encoders
from selfens.config import Config
from selfens.data.dataset import Dataset
from selfens.data.sources import PUBLIC, SOURCES, options_for
from selfens.encoders import ENCODERS
from selfens.encoders.dataset import EncodedDataset
from selfens.methods import TrainingRows
from selfens.runs.directory import RunDirectory
from selfens.training.progress import WarningsOnly

NOT_REPEATED = ("seconds", "images_per_second")
ROWS, FEATURES, CLASSES, BATCH = 60, 6, 3, 10
STEPS = ROWS // BATCH


def blobs(rows: int = ROWS, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Feature vectors around one point per class, classes in turn."""
    random = np.random.default_rng(seed)
    labels = np.arange(rows) % CLASSES
    centers = np.random.default_rng(99).normal(size=(CLASSES, FEATURES))
    return (centers[labels] + 0.7 * random.normal(size=(rows, FEATURES))).astype(np.float32), labels


def features(rows: int = ROWS, test_rows: int = 30) -> Dataset:
    return Dataset.from_arrays(*blobs(rows), *(blobs(test_rows, seed=1) if test_rows else (None, None)))


def relabeled(dataset: Dataset, labels: np.ndarray) -> Dataset:
    """The dataset with other labels for its training rows."""
    every = dataset.labels.copy()
    every[dataset.train_rows] = labels
    return replace(dataset, labels=every)


def images(rows: int = ROWS, side: int = 8) -> Dataset:
    """Bytes; a class is a brighter corner."""
    random = np.random.default_rng(0)
    labels = np.arange(rows + 20) % CLASSES
    pixels = random.integers(0, 120, size=(rows + 20, side, side, 1), dtype=np.uint8)
    for row, label in enumerate(labels):
        pixels[row, (label // 2) * 4 : (label // 2) * 4 + 3, (label % 2) * 4 : (label % 2) * 4 + 3] += 100
    return Dataset.from_arrays(pixels[:rows], labels[:rows], pixels[rows:], labels[rows:])


def write_npz(path: Path, **changes: Any) -> Path:
    """The blobs as a user's file, a third of the rows labeled."""
    x, y = blobs()
    x_test, y_test = blobs(30, seed=1)
    y = np.where(np.arange(len(y)) < len(y) // 3, y, -1)
    arrays = {"x_train": x, "y_train": y, "x_test": x_test, "y_test": y_test} | changes
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return path


def config(method: str = "temporal", *overrides: str, name: str = "arrays", epochs: int = 3) -> Config:
    """A run of a fraction of a second: 6 steps of 10 rows an epoch, one thread. `name` is a data set or a path."""
    source = options_for(name) if name in PUBLIC or Path(name).exists() else SOURCES.options("memory")
    basic = [
        "labels.count=12",
        "preprocess.kind=channel",
        "network.name=mlp",
        "network.width=8",
        "network.mean_momentum=0.9",
        f"method.name={method}",
        "optimizer.learning_rate=0.01",
        f"schedule.epochs={epochs}",
        f"training.batch_size={BATCH}",
        "training.threads=1",
        "training.device=cpu",
        *(["method.threshold=0.4"] if method == "fixmatch" else []),  # so that it learns from unlabeled rows so early
    ]
    return Config(source=source).with_overrides([*basic, *overrides])


def training_rows(inputs: Tensor, labels: Tensor, num_classes: int = CLASSES) -> TrainingRows:
    """What a method's `setup` gets, outside of a run."""
    counts = torch.bincount(labels[labels >= 0], minlength=num_classes).float()
    names = tuple(map(str, range(num_classes)))

    def labeled() -> tuple[Tensor, Tensor]:
        return inputs[labels >= 0], labels[labels >= 0]

    return TrainingRows(len(inputs), names, labels, counts, torch.device("cpu"), lambda: inputs.split(7), labeled)


SMALL_IMAGES = ("network.name=small", "network.width=4", "views.flip=true", "views.translation=1")


def encoded(dataset: Dataset, encoder: str = "identity", **options: Any) -> EncodedDataset:
    """A dataset as it is trained on."""
    fitted = encoders.build(ENCODERS.options(encoder, **options))
    fitted.fit(dataset.raw, dataset.train_rows)
    return EncodedDataset.make(dataset, fitted)


def left_behind(path: Path) -> dict[str, Any]:
    """All that a resume must give again to the bit: tensors as bytes, and the history but for the times."""
    directory = RunDirectory(path)
    checkpoint = directory.load_checkpoint()
    tensors = {
        f"{part}/{name}": (str(tensor.dtype), tuple(tensor.shape), tensor.numpy().tobytes())
        for part, named in checkpoint.tensors.items()
        for name, tensor in named.items()
    }
    history = [{k: v for k, v in record.items() if k not in NOT_REPEATED} for record in directory.history()]
    return {"at": (checkpoint.epoch, checkpoint.step), "history": history, **tensors}


def differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """The names of what differs; short to read if the values are long."""
    return [name for name in sorted(one.keys() | other.keys()) if one.get(name) != other.get(name)]


def weights(path: Path) -> bytes:
    network = RunDirectory(path).load_checkpoint().tensors["network"]
    return b"".join(tensor.numpy().tobytes() for _, tensor in sorted(network.items()))


def contents(path: Path) -> dict[str, bytes]:
    """Every file under a folder."""
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def sets(overrides: Sequence[str]) -> list[str]:
    return [word for override in overrides for word in ("--set", override)]


def train_arguments(npz: Path, run: Path, settings: Config) -> list[str]:
    """The words by which a user asks for `settings`."""
    flat = json.loads(settings.to_json())
    values = [f"{section}.{key}={value}" for section, pairs in flat.items() for key, value in pairs.items()]
    by_flags = ("source.name=", "source.path=", "method.name=", "encoder.", "source.dataset=")
    words = ["train", str(npz), "--run", str(run), "--method", settings.method.name]
    return [*words, *sets(value for value in values if not value.startswith(by_flags))]


def environment(**more: str) -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1", "NO_COLOR": "1", "PYTHONDONTWRITEBYTECODE": "1"} | more


def selfens(*arguments: str | Path, cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """The command as a user types it."""
    return subprocess.run(
        [sys.executable, "-m", "selfens", *map(str, arguments)],
        cwd=cwd,
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=120,
    )


# Processes that can be killed: forked from one that has torch imported already, so they start in milliseconds.


def _enter(function: Callable[..., Any], arguments: tuple[Any, ...], output: Path) -> None:
    with open(output, "w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    try:
        function(*arguments)
    except SystemExit as end:
        sys.stdout.flush()
        os._exit(int(end.code or 0))
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(70)
    sys.stdout.flush()
    os._exit(0)


def child(output: Path, function: Callable[..., Any], *arguments: Any) -> Any:
    """A started process running `function`; what it prints goes to the file `output`."""
    process = forking().Process(target=_enter, args=(function, arguments, output))
    process.start()
    return process


def forking() -> Any:
    """The context of such processes."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["selfens.training.loop", "selfens.cli", "selfens.demo", "support"])
    return context


def finish(process: Any, seconds: float = 60) -> int:
    """The exit code; minus the signal's number if one ended it."""
    process.join(seconds)
    if process.exitcode is None:
        process.kill()
        process.join()
        raise AssertionError(f"the process did not end within {seconds} s")
    return int(process.exitcode)


def run_cli(arguments: Sequence[str]) -> None:
    from selfens.cli import main

    main(list(arguments))


def run_cli_with_small_disk(limit: int, arguments: Sequence[str]) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    run_cli(arguments)


def run_cli_without_privileges(arguments: Sequence[str]) -> None:
    """Even for root a read-only folder is read-only then."""
    header, none = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    if os.geteuid() == 0 and ctypes.CDLL(None).capset(header, none) != 0:
        raise OSError("capabilities could not be dropped")
    run_cli(arguments)


class Crash(BaseException):
    """The process ends here, as far as the files can tell."""


def crash() -> None:
    raise Crash


def interrupt() -> None:
    """Ctrl-C."""
    signal.raise_signal(signal.SIGINT)


class At(WarningsOnly):
    """Calls `what` after a step (epoch and step from 0), once."""

    def __init__(self, epoch: int, step: int, what: Callable[[], object]) -> None:
        self.countdown, self.what = epoch * STEPS + step, what

    def step(self, epoch: int, step: int) -> None:
        if self.countdown == 0:
            self.what()
        self.countdown -= 1


@contextlib.contextmanager
def crashed():
    try:
        yield
    except Crash:
        return
    raise AssertionError("nothing crashed")
