"""RunDirectory: the files of a run, and the rules by which they survive a crash.

    config.json              what was asked for
    run.json                 what it ran on: data, versions, hardware, threads
    labels.json              which rows were labelled, and how
    preprocess.safetensors   what is done to inputs before the network
    history.jsonl            one line per epoch
    checkpoint.safetensors   the state of every part: network, method, targets, optimizer, step, random numbers
    report.html              a page to look at
    lock                     held by the process that is training

Every file but the history is written under a temporary name and renamed, so a checkpoint is there whole or not at all. History
lines later than the checkpoint are dropped on a resume and written again. Targets in a file of their own: see
`selfens.files.targets_file`. Runs of the first edition (format 1) can be read, not resumed.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
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
from selfens.upgrade import upgrade_config

FORMAT, FIRST_EDITION = "2", "1"
NOT_JSON = (ValueError, RecursionError)
"""What reading text that is not JSON may raise: too deep, or with numbers of thousands of digits."""
REPORT = "report.html"
ABOUT: dict[str, type] = {
    "fingerprint": str,
    "rows": int,
    "classes": list,
    "input_shape": list,
    "input_type": str,
    "own_data": bool,
    "own_network": bool,
    "own_method": bool,
    "environment": dict,
}
"""What run.json must hold."""
PARTS = ("network", "optimizer", "step", "random")
"""What a checkpoint must hold; one of the first edition, which is only read, the network."""


@dataclass(frozen=True)
class Checkpoint:
    """The state at the beginning of `step` of `epoch`."""

    epoch: int
    step: int
    tensors: dict[str, dict[str, Tensor]]
    """The `state_dict` of each part, by its name: network, evaluated, method, targets, optimizer, step, random."""
    targets_file: dict[str, str] = field(default_factory=dict)
    """What finds the targets that belong to this checkpoint, if they are in a file of their own."""
    seconds: float = 0.0
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
        check_free(path, config)
        draft = cls(path.absolute().with_name(f".{path.absolute().name}.{os.getpid()}.tmp"))
        try:
            draft.path.mkdir(parents=True)
            identity = {"format": FORMAT, "id": secrets.token_hex(16), "config": _digest(config.to_json())}
            draft._write("run.json", json.dumps(identity | about, indent=2) + "\n")
            draft._write("labels.json", choice.to_json())
            save_preprocess(draft.path / "preprocess.safetensors", config.data.preprocess, preprocess)
            draft._write("config.json", config.to_json())
            _move_into_place(draft.path, path)
        except (OSError, RunError) as error:
            cause = error if isinstance(error, OSError) else error.__cause__
            raise RunError(write_failure(path, cause) if isinstance(cause, OSError) else str(error)) from error
        finally:
            shutil.rmtree(draft.path, ignore_errors=True)
        return cls(path)

    @classmethod
    def open(cls, path: str | Path) -> RunDirectory:
        """An existing run."""
        directory = cls(path)
        try:
            is_run = (directory.path / "config.json").is_file()
        except OSError as error:
            raise RunError(f"{path} cannot be read ({error.strerror}); check the rights to it.") from None
        if not is_run:
            there = "is a file" if directory.path.exists() else "does not exist"
            what = "holds no config.json" if directory.path.is_dir() else there
            raise RunError(f"{directory.path} {what}; expected the directory of a run made by selfens train.")
        about = directory.about()
        if about.get("format") not in (FORMAT, FIRST_EDITION):
            raise RunError(
                f"{path} was written in format {about.get('format')}; this version of selfens reads formats "
                f"{FIRST_EDITION} and {FORMAT}."
            )
        missing = [key for key, kind in ABOUT.items() if not isinstance(about.get(key), kind)]
        if missing:
            raise RunError(f"{directory.path / 'run.json'} lacks {', '.join(missing)}; it is damaged.")
        sides, names, threads = about["input_shape"], about["classes"], about["environment"].get("threads")
        if (
            not all(type(side) is int and side > 0 for side in sides)
            or len(sides) not in (1, 2, 3)
            or not all(isinstance(name, str) for name in names)
            or len(set(names)) != len(names)
            or type(threads) is not int
            or not 1 <= threads <= MAX_THREADS
        ):
            raise RunError(
                f"{directory.path / 'run.json'} holds an input shape, classes or threads that cannot be; it is damaged."
            )
        return directory

    @contextmanager
    def locked(self, is_writer: bool = True) -> Iterator[None]:
        """Keep other processes out; the system releases the lock when this one ends, however it ends.

        Of several processes that train together only the one that writes takes it.
        """
        if not is_writer:
            yield
            return
        try:
            check_regular(self.path / "lock")
            file = open(self.path / "lock", "a")  # noqa: SIM115  held open on purpose
        except OSError as error:
            raise RunError(f"{self.path} cannot be trained in ({error.strerror}); is it read-only?") from None
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
            first_edition = self._is_first_edition()
            return Config.from_dict(upgrade_config(raw, first_edition=first_edition) if isinstance(raw, dict) else raw)
        except ConfigError as error:
            raise RunError(f"{self.path / 'config.json'}: {error}") from None

    def _is_first_edition(self) -> bool:
        return bool(self.about().get("format") == FIRST_EDITION)

    def check_resumable(self) -> None:
        """Refuse to continue a run of the first edition, or one whose config was edited or whose checkpoint is lost."""
        if self._is_first_edition():
            raise RunError(
                f"{self.path} was trained by selfens 0.1; this version can read it, but not resume it: finish it with 0.1, or "
                "train again."
            )
        self.check_config_unchanged()
        self.check_not_lost()
        if (known := len(self.history())) < (done := self.reached()[0]):
            raise RunError(
                f"{self.path / 'history.jsonl'} has {known} of the {done} epochs that are done; put the file back, or train "
                "again in another directory."
            )

    def check_config_unchanged(self) -> None:
        """Refuse to continue a run whose config was edited: what it did before would no longer be what it says."""
        if self.about().get("config") != _digest(self._read("config.json")):
            raise RunError(
                f"{self.path / 'config.json'} was changed after the run began; undo that, or train another run."
            )

    def check_not_lost(self) -> None:
        """Refuse to start over beside a history whose checkpoint is lost; every run writes a checkpoint first."""
        if not self.has_checkpoint() and (done := len(self.history())):
            raise RunError(
                f"{self.path} has a history of {done} epoch{'s' * (done > 1)} but no checkpoint.safetensors to resume from; "
                "put that back, or train again in another directory."
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
        """The records of all finished epochs; a line cut short by a crash is not one."""
        path = self.path / "history.jsonl"
        records = []
        for line in self._read(path.name).splitlines() if path.exists() else []:
            try:
                record = json.loads(line)
            except NOT_JSON:
                break
            if not isinstance(record, dict):
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
        epoch, step, _ = self._position(read_metadata(self.path / "checkpoint.safetensors"))
        return epoch, step

    def _position(self, metadata: dict[str, str]) -> tuple[int, int, float]:
        """The epoch, the step and the seconds spent in the epoch."""
        try:
            position = int(metadata["epoch"]), int(metadata["step"]), float(metadata.get("seconds", 0))
        except (KeyError, ValueError):
            position = -1, -1, 0.0
        if metadata.get("format") not in (FORMAT, FIRST_EDITION) or min(position) < 0 or not math.isfinite(position[2]):
            raise self._damaged_checkpoint()
        return position

    def without_checkpoint(self) -> RunError:
        return RunError(f"{self.path} has no checkpoint yet; train it first (selfens.resume).")

    def _damaged_checkpoint(self) -> RunError:
        return RunError(f"the checkpoint of {self.path} is of another run, version or program, or damaged.")

    def load_checkpoint(self, *, with_targets: bool = True) -> Checkpoint:
        """The whole state, or all but the targets, which the network does not need."""
        self.check_not_lost()
        if not self.has_checkpoint():
            raise self.without_checkpoint()
        path = self.path / "checkpoint.safetensors"
        flat, metadata = load_tensors(path, but="" if with_targets else "targets/")
        epoch, step, seconds = self._position(metadata)
        tensors: dict[str, dict[str, Tensor]] = {}
        for key, tensor in flat.items():
            part, _, name = key.partition("/")
            tensors.setdefault(part, {})[name] = tensor
        needed = PARTS if metadata["format"] == FORMAT else PARTS[:1]
        about = self.about()
        of_this_run = metadata["format"] == about["format"] and metadata.get("run", about.get("id")) == about.get("id")
        if any(part not in tensors for part in needed) or not of_this_run:
            raise self._damaged_checkpoint()
        if metadata.get("targets") and with_targets:  # the first edition kept them in a file of each checkpoint's own
            tensors["targets"], _ = load_tensors(self.path / metadata["targets"])
        return Checkpoint(epoch, step, tensors, self._targets_file(metadata), seconds)

    def _targets_file(self, metadata: dict[str, str]) -> dict[str, str]:
        try:
            found = json.loads(metadata.get("targets_file", "{}"))
            if isinstance(found, dict) and all(isinstance(value, str) for value in found.values()):
                return found
        except NOT_JSON:
            pass
        raise RunError(
            f"the checkpoint of {self.path} does not say where its targets are; it is damaged, or of selfens 0.1."
        )

    # Small files

    def _write(self, name: str, text: str) -> None:
        write_atomically(self.path / name, text.encode())

    def _read(self, name: str) -> str:
        try:
            check_regular(self.path / name)
            return (self.path / name).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise RunError(f"{self.path / name} cannot be read ({error}).") from None

    def _read_json(self, name: str) -> Any:
        try:
            return json.loads(self._read(name))
        except NOT_JSON as error:
            raise RunError(f"{self.path / name} is damaged ({str(error)[:200]}).") from None


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


def check_free(path: Path, config: Config) -> None:
    """Refuse a directory that is taken, and say by what."""
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    if not (path / "config.json").is_file():
        raise RunError(f"{path} exists and is not a run; choose another directory.")
    there = RunDirectory.open(path)
    if difference := _first_difference(config, there.config()):
        raise RunError(f"{path} holds a run of another configuration ({difference}); choose another directory.")
    if there.reached()[0] >= config.schedule.epochs:
        raise RunError(f"{path} already holds this run, and it is complete; choose another directory.")
    raise RunError(f"{path} already holds this run; resume it, or choose another directory.")


def _first_difference(mine: Config, other: Config) -> str | None:
    there = other.to_dict()
    for section, values in mine.to_dict().items():
        for name, value in values.items():
            if (found := there[section].get(name)) != value:
                return f"{section}.{name} is {found} there and {value} here"
    return None
