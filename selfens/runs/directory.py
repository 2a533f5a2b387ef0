"""RunDirectory: the files of a run, and the rules by which they survive a crash.

    config.json              what was asked for
    run.json                 what it ran on: data, versions, hardware, threads
    labels.json              which rows were labeled, and how
    preprocess.safetensors   what is done to inputs before the network
    history.jsonl            one line per epoch
    checkpoint.safetensors   the state of every part: network, method, targets, optimizer, step, random numbers
    baselines.json           how simple methods do on the same labels, if they were asked for
    report.html              a page to look at
    lock                     held by the process that is training

Every file but the history is written under a temporary name and renamed, so a checkpoint is there whole or not at all. History
lines later than the checkpoint are dropped on a resume and written again. Targets in a file of their own: see
`selfens.files.targets_file`.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from selfens.config import MAX_THREADS, Config
from selfens.data.labels import LabelChoice
from selfens.data.preprocess import load_preprocess, save_preprocess
from selfens.errors import ConfigError, RunError
from selfens.files import check_regular, locks
from selfens.files.tensors import (
    load_tensors,
    read_metadata,
    save_tensors,
    write_atomically,
    write_failure,
)

FORMAT = "2"
NOT_JSON = (ValueError, RecursionError)
"""What reading text that is not JSON may raise: too deep, or with numbers of thousands of digits."""
LARGEST = 1e300
"""A number of the history; larger ones are none that was measured."""
REPORT = "report.html"
SIMPLE = {"fingerprint": str, "rows": int, "test_rows": int, "input_type": str}
SIMPLE |= {"parameters": int, "unreadable": list, "own_data": bool, "own_network": bool, "own_method": bool}
"""What run.json must hold beside classes, input shape and threads."""
PARTS = ("network", "optimizer", "step", "random")
"""What a checkpoint must hold."""


@dataclass(frozen=True)
class Checkpoint:
    """The state at the beginning of `step` of `epoch`."""

    epoch: int
    step: int
    tensors: dict[str, dict[str, Tensor]]
    """The `state_dict` of each part, by its name: network, evaluated, method, targets, optimizer, step, random."""
    targets_file: dict[str, str]
    """What finds the targets that belong to this checkpoint, if they are in a file of their own."""
    seconds: float
    """Spent in the epoch so far."""


class RunDirectory:
    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    # Creating and opening

    @classmethod
    def create(
        cls, path: str | Path, config: Config, choice: LabelChoice, preprocess: nn.Module, about: dict[str, Any]
    ) -> RunDirectory:
        """A new run, whole or not at all. `about` goes into run.json."""
        path = Path(path)
        check_free(path)
        draft = path.absolute().with_name(f".{path.absolute().name}.{os.getpid()}.tmp")
        made_of = json.dumps([config.to_json(), choice.to_json(), about])  # equal runs leave equal files
        identity = {"format": FORMAT, "id": _digest(made_of)[:32], "config": _digest(config.to_json())}
        try:
            draft.mkdir(parents=True)
            write_atomically(draft / "run.json", (json.dumps(identity | about, indent=2) + "\n").encode())
            write_atomically(draft / "labels.json", choice.to_json().encode())
            save_preprocess(draft / "preprocess.safetensors", config.data.preprocess, preprocess)
            write_atomically(draft / "config.json", config.to_json().encode())
            _move_into_place(draft, path)
        except (OSError, RunError) as error:
            cause = error if isinstance(error, OSError) else error.__cause__
            raise RunError(write_failure(path, cause) if isinstance(cause, OSError) else str(error)) from error
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        return cls(path)

    @classmethod
    def open(cls, path: str | Path) -> RunDirectory:
        """An existing run."""
        directory = cls(path)
        about = directory.about()
        if about.get("format") != FORMAT:
            raise RunError(
                f"{path} was written in format {about.get('format')}, by another version of selfens; this one reads format "
                f"{FORMAT}: use that version, or train again."
            )
        if not _is_sound(about):
            raise RunError(f"{directory.path / 'run.json'} is missing fields or holds invalid values; it is damaged.")
        return directory

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes out; the system releases the lock when this one ends, however it ends."""
        try:
            check_regular(self.path / "lock")
            file = open(self.path / "lock", "a")  # noqa: SIM115  held open on purpose
        except OSError as error:
            raise RunError(write_failure(self.path / "lock", error)) from None
        with file:
            if not locks.take(file):
                raise RunError(f"{self.path} is being trained by another process; wait for it or stop it.")
            for leftover in self.path.glob(".*.tmp"):  # of a process killed while it was writing
                leftover.unlink(missing_ok=True)
            yield

    # What does not change

    def config(self) -> Config:
        raw = self._read_json("config.json")
        try:
            return Config.from_dict(raw)
        except ConfigError as error:
            raise RunError(f"{self.path / 'config.json'}: {error}") from None

    def check_resumable(self) -> None:
        """Refuse to continue a run whose config was edited, or that lost its history or its checkpoint."""
        if self.about().get("config") != _digest(self._read("config.json")):
            raise RunError(
                f"{self.path / 'config.json'} was changed after the run began; undo that, or train another run."
            )
        known, done = len(self.history()), self.reached()[0]
        if known < done or (known and not self.has_checkpoint()):
            raise RunError(
                f"{self.path} has {known} epochs in history.jsonl and {done} in checkpoint.safetensors; put back the file that "
                "was lost, or train again in another directory."
            )

    def about(self) -> dict[str, Any]:
        about = self._read_json("run.json")
        if not isinstance(about, dict):
            raise RunError(f"{self.path / 'run.json'} is damaged; expected what the run was made of.")
        return about

    def labels(self) -> LabelChoice:
        about = self.about()
        try:
            choice = LabelChoice.from_json(self._read("labels.json"))
            choice.check(num_rows=about["rows"], num_classes=len(about["classes"]))
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            raise RunError(f"{self.path / 'labels.json'} is damaged; the run cannot be continued without it.") from None
        return choice

    def preprocess(self) -> nn.Module:
        return load_preprocess(self.path / "preprocess.safetensors")

    # History

    def append_history(self, record: dict[str, Any]) -> None:
        try:
            with open(self.path / "history.jsonl", "a") as file:
                file.write(json.dumps(record) + "\n")
        except OSError as error:
            raise RunError(write_failure(self.path / "history.jsonl", error)) from error

    def history(self) -> list[dict[str, Any]]:
        """The records of all finished epochs, numbers by their names; a line cut short by a crash is not one."""
        path = self.path / "history.jsonl"
        records: list[dict[str, Any]] = []
        for line in self._read(path.name).splitlines() if path.exists() else []:
            try:
                record = json.loads(line)
            except NOT_JSON:
                break
            if not _is_record(record) or record["epoch"] != len(records):
                break
            records.append(record)
        return records

    def truncate_history(self, epochs: int) -> None:
        """Keep the first `epochs` records."""
        kept = [json.dumps(record) + "\n" for record in self.history()[:epochs]]
        write_atomically(self.path / "history.jsonl", "".join(kept).encode())

    # Checkpoints

    def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        flat = {
            f"{part}/{name}": tensor for part, tensors in checkpoint.tensors.items() for name, tensor in tensors.items()
        }
        metadata = {
            "format": FORMAT,
            "run": str(self.about().get("id")),
            "epoch": str(checkpoint.epoch),
            "step": str(checkpoint.step),
            "seconds": f"{checkpoint.seconds:.3f}",
            "targets_file": json.dumps(checkpoint.targets_file),
        }
        save_tensors(self.path / "checkpoint.safetensors", flat, metadata)

    def has_checkpoint(self) -> bool:
        return (self.path / "checkpoint.safetensors").exists()

    def reached(self) -> tuple[int, int]:
        """The epoch and the step at which the checkpoint continues; (0, 0) if there is none."""
        if not self.has_checkpoint():
            return 0, 0
        found = self._described(read_metadata(self.path / "checkpoint.safetensors"))
        return found.epoch, found.step

    def load_checkpoint(self, *, with_targets: bool = True) -> Checkpoint:
        """The whole state, or all but the targets, which the network does not need."""
        path = self.path / "checkpoint.safetensors"
        flat, metadata = load_tensors(path, but="" if with_targets else "targets/")
        checkpoint = self._described(metadata)
        for key, tensor in flat.items():
            part, _, name = key.partition("/")
            checkpoint.tensors.setdefault(part, {})[name] = tensor
        if any(part not in checkpoint.tensors for part in PARTS):
            raise self._damaged_checkpoint()
        return checkpoint

    def _described(self, metadata: dict[str, str]) -> Checkpoint:
        """The checkpoint of this run that the strings of its file describe, without its tensors."""
        try:
            found = Checkpoint(
                int(metadata["epoch"]),
                int(metadata["step"]),
                {},
                json.loads(metadata["targets_file"]),
                float(metadata["seconds"]),
            )
            of_this_run = (metadata["format"], metadata["run"]) == (FORMAT, self.about().get("id"))
        except (KeyError, *NOT_JSON):
            raise self._damaged_checkpoint() from None
        has_file = isinstance(found.targets_file, dict) and all(isinstance(x, str) for x in found.targets_file.values())
        is_within = 0 <= found.epoch <= self.config().schedule.epochs and found.step >= 0
        if not of_this_run or not has_file or not is_within or not 0 <= found.seconds < math.inf:
            raise self._damaged_checkpoint()
        return found

    def _damaged_checkpoint(self) -> RunError:
        return RunError(f"the checkpoint of {self.path} is of another run, version or program, or damaged.")

    # Small files

    def _read(self, name: str) -> str:
        try:
            check_regular(self.path / name)
            return (self.path / name).read_text()
        except (OSError, UnicodeDecodeError) as error:
            reason = "it is not there" if isinstance(error, FileNotFoundError) else error
            raise RunError(
                f"{self.path / name} cannot be read ({reason}); expected a run made by selfens train."
            ) from None

    def _read_json(self, name: str) -> Any:
        try:
            return json.loads(self._read(name))
        except NOT_JSON as error:
            raise RunError(f"{self.path / name} is damaged ({str(error)[:200]}).") from None


def _is_sound(about: dict[str, Any]) -> bool:
    """Whether run.json holds what readers rely on."""
    match about:
        case {"classes": [*names], "input_shape": [*sides], "environment": {"threads": int(threads)}}:
            has_names = all(isinstance(name, str) for name in names) and len(set(names)) == len(names)
            has_shape = len(sides) in (1, 2, 3) and all(type(side) is int and side > 0 for side in sides)
            has_rest = all(isinstance(about.get(key), kind) for key, kind in SIMPLE.items())
            return has_names and has_shape and has_rest and _has_range(about) and 1 <= threads <= MAX_THREADS
    return False


def _has_range(about: dict[str, Any]) -> bool:
    """Two numbers, or none: of vectors, and of a run of an earlier version."""
    match about.get("input_range"):
        case None | [int() | float(), int() | float()]:
            return True
    return False


def _is_record(found: Any) -> bool:
    """Whether a line of the history is numbers by their names; None stands for what was not measured in an epoch."""
    if not isinstance(found, dict) or found.get("epoch") is None or found.get("total") is None:
        return False
    return all(value is None or (type(value) in (int, float) and not abs(value) > LARGEST) for value in found.values())


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _move_into_place(draft: Path, path: Path) -> None:
    """In one step if nothing is there yet; into an empty directory file by file, the one that makes it a run last."""
    if not path.exists():
        os.rename(draft, path)
        return
    for name in ("run.json", "labels.json", "preprocess.safetensors", "config.json"):
        os.rename(draft / name, path / name)


def free_directory(path: Path) -> Path:
    """The path, or the first of PATH-2, PATH-3 and so on that holds no run yet."""
    numbered = (path.with_name(f"{path.name}-{number}") for number in itertools.count(2))
    return next(each for each in itertools.chain([path], numbered) if not (each / "config.json").exists())


def check_free(path: Path) -> None:
    """Refuse a directory that is taken, and say by what."""
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    if not (path / "config.json").is_file():
        raise RunError(f"{path} exists and is not a run; choose another directory.")
    raise RunError(f"{path} already holds a run; resume it, or choose another directory.")
