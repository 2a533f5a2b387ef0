"""RunDirectory: the files of a run, and the rules by which they survive a crash.

    config.json              the settings
    run.json                 what it ran on: data, encoder, versions, hardware (`RunInfo`)
    labels.json              which rows were labeled, and how
    preprocess.safetensors   the fitted preprocessing
    prior.safetensors        what another model said about the training rows, if that was given
    history.jsonl            one line per epoch
    checkpoint.safetensors   the state of every part: network, method, targets, optimizer, step, random numbers
    evidence.safetensors     predictions for labeled rows that the model had not seen (`Evidence`)
    novelty.safetensors      training rows to compare new rows with (`Novelty`)
    inspection.json          copies and look-alikes in the data
    frozen/                  the first stage of fine-tuning, a run of its own
    report.html              the report
    lock                     held by the process that is training

Every file but the history is written under a temporary name and renamed, so a checkpoint is complete or absent. Resuming
drops the history lines that are later than the checkpoint, and writes them again.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from selfens.config import Config
from selfens.data.labels import LabelChoice
from selfens.data.preprocess import load_preprocess, save_preprocess
from selfens.errors import ConfigError, RunError
from selfens.files import check_regular, lock
from selfens.files.tensors import load_tensors, read_metadata, save_tensors, write_atomically, write_errors
from selfens.runs.history import Record, is_record
from selfens.runs.info import RunInfo

FORMAT = "3"
NOT_JSON = (ValueError, RecursionError)  # what json.loads may raise
REPORT = "report.html"
PRIOR = "prior.safetensors"
PARTS = ("network", "optimizer", "step", "random")  # what a checkpoint must hold


@dataclass(frozen=True)
class Checkpoint:
    """The state at the beginning of `step` of `epoch`."""

    epoch: int
    step: int
    tensors: dict[str, dict[str, Tensor]]  # the `state_dict` of each part, such as the network
    seconds: float  # spent in the epoch so far


class RunDirectory:
    """The files of a run, written atomically and checked when they are read."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    # Creating and locking

    @classmethod
    def create(
        cls,
        path: str | Path,
        config: Config,
        labels: LabelChoice,
        preprocess: nn.Module,
        info: RunInfo,
        prior: NDArray[np.float32] | None = None,
    ) -> RunDirectory:
        """Create the directory of a new run atomically."""
        path = Path(path)
        check_free(path)
        draft = path.absolute().with_name(f".{path.absolute().name}.{os.getpid()}.tmp")
        made_of = json.dumps([config.to_json(), labels.to_json(), info.to_json(FORMAT)])  # equal runs leave equal files
        info = replace(info, id=_digest(made_of)[:32], config=_digest(config.to_json()))
        with write_errors(path):
            try:
                shutil.rmtree(draft, ignore_errors=True)  # left by a killed process with the same id
                draft.mkdir(parents=True)
                write_atomically(draft / "run.json", info.to_json(FORMAT).encode())
                write_atomically(draft / "labels.json", labels.to_json().encode())
                save_preprocess(draft / "preprocess.safetensors", config.preprocess.kind, preprocess)
                if prior is not None:
                    save_tensors(draft / PRIOR, {"prior": torch.from_numpy(prior)})
                write_atomically(draft / "config.json", config.to_json().encode())
                _move_into_place(draft, path)
            finally:
                shutil.rmtree(draft, ignore_errors=True)
        return cls(path)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes out. The system releases the lock when this process ends, even if it is killed."""
        path = self.path / "lock"
        with ExitStack() as stack:
            with write_errors(path):
                check_regular(path)
                is_ours = lock(stack.enter_context(open(path, "a")))
            if not is_ours:
                raise RunError(f"{self.path} is being trained by another process; wait for it or stop it.")
            for leftover in self.path.glob(".*.tmp"):  # by a process that was killed while writing
                with suppress(OSError):
                    leftover.unlink()
            yield

    # Files that do not change

    def config(self) -> Config:
        raw = self._read_json("config.json")
        try:
            return Config.from_dict(raw)
        except ConfigError as error:
            raise RunError(f"{self.path / 'config.json'}: {error}") from None

    def check_resumable(self) -> None:
        """Refuse to continue a run whose config was edited, or that lost its history or its checkpoint."""
        if self.info().config != _digest(self._read("config.json")):
            raise RunError(
                f"{self.path / 'config.json'} was changed after the run began; undo the change, or start a new run."
            )
        known, done = len(self.history()), self.position()[0]
        if known < done or (known and not self.has_checkpoint()):
            counts = f"{known} epochs in history.jsonl and {done} in checkpoint.safetensors"
            raise RunError(f"{self.path} has {counts}; put back the missing file, or start a new run.")

    def info(self) -> RunInfo:
        raw, path = self._read_json("run.json"), self.path / "run.json"
        if not isinstance(raw, dict):
            raise RunError(f"{path} is damaged.")
        if (found := raw.get("format")) != FORMAT:
            raise RunError(f"{self.path} was written in format {found}; use the version of selfens that wrote it.")
        try:
            return RunInfo.from_dict(raw)
        except (ConfigError, KeyError) as error:
            raise RunError(f"{path} is damaged ({str(error)[:100]}).") from None

    def labels(self) -> LabelChoice:
        info = self.info()
        try:
            labels = LabelChoice.from_json(self._read("labels.json"))
            labels.check(num_rows=info.rows, num_classes=len(info.classes))
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            raise RunError(f"{self.path / 'labels.json'} is damaged; the run cannot be continued without it.") from None
        return labels

    def preprocess(self) -> nn.Module:
        path, row = self.path / "preprocess.safetensors", torch.zeros(1, *self.info().input_shape)
        found = load_preprocess(path)
        try:
            made = found(row)
        except RuntimeError:
            made = row[:0]
        if made.shape != row.shape or made.dtype != row.dtype or not made.isfinite().all():
            raise RunError(f"{path} does not fit the inputs of the run; it is damaged, or from another run.")
        return found

    def prior(self) -> NDArray[np.float32] | None:
        """Return [training rows, classes], NaN for rows without a prior; None if the run was given none."""
        path, info = self.path / PRIOR, self.info()
        if not path.exists():
            return None
        found = load_tensors(path)[0].get("prior", torch.empty(0))
        if found.dtype != torch.float32 or found.shape != (info.rows, len(info.classes)):
            raise RunError(f"{path} is damaged, or of another run; put back the file.")
        return np.asarray(found)

    # History

    def append_history(self, record: Record) -> None:
        path = self.path / "history.jsonl"
        with write_errors(path), open(path, "a") as file:
            file.write(json.dumps(record) + "\n")

    def history(self) -> list[Record]:
        """Return the records of all finished epochs. A line that a crash cut short does not count."""
        path = self.path / "history.jsonl"
        records: list[Record] = []
        for line in self._read(path.name).splitlines() if path.exists() else []:
            try:
                record = json.loads(line)
            except NOT_JSON:
                break
            if not is_record(record) or record["epoch"] != len(records):
                break
            records.append(record)
        return records

    def truncate_history(self, epochs: int) -> None:
        """Keep the first `epochs` records."""
        kept = [json.dumps(record) + "\n" for record in self.history()[:epochs]]
        write_atomically(self.path / "history.jsonl", "".join(kept).encode())

    # Checkpoints

    def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        parts = checkpoint.tensors.items()
        flat = {f"{part}/{name}": tensor for part, tensors in parts for name, tensor in tensors.items()}
        metadata = {
            "format": FORMAT,
            "run": self.info().id,
            "epoch": str(checkpoint.epoch),
            "step": str(checkpoint.step),
            "seconds": f"{checkpoint.seconds:.3f}",
        }
        save_tensors(self.path / "checkpoint.safetensors", flat, metadata)

    def has_checkpoint(self) -> bool:
        return (self.path / "checkpoint.safetensors").exists()

    def position(self) -> tuple[int, int]:
        """Return the epoch and the step at which the checkpoint continues; (0, 0) if there is none."""
        if not self.has_checkpoint():
            return 0, 0
        found = self._parsed(read_metadata(self.path / "checkpoint.safetensors"))
        return found.epoch, found.step

    def load_checkpoint(self, *, with_targets: bool = True) -> Checkpoint:
        """Load the whole state, or everything but the targets, which predicting does not need."""
        path = self.path / "checkpoint.safetensors"
        flat, metadata = load_tensors(path, skip=() if with_targets else ("targets/",))
        checkpoint = self._parsed(metadata)
        for key, tensor in flat.items():
            part, _, name = key.partition("/")
            checkpoint.tensors.setdefault(part, {})[name] = tensor
        if any(part not in checkpoint.tensors for part in PARTS):
            raise self._damaged_checkpoint()
        return checkpoint

    def _parsed(self, metadata: dict[str, str]) -> Checkpoint:
        """Return the checkpoint that the metadata describe, without its tensors. Refuse one from another run."""
        try:
            found = Checkpoint(int(metadata["epoch"]), int(metadata["step"]), {}, float(metadata["seconds"]))
            is_of_this_run = (metadata["format"], metadata["run"]) == (FORMAT, self.info().id)
        except (KeyError, ValueError):
            raise self._damaged_checkpoint() from None
        is_within = 0 <= found.epoch <= self.config().schedule.epochs and found.step >= 0
        if not is_of_this_run or not is_within or not 0 <= found.seconds < math.inf:
            raise self._damaged_checkpoint()
        return found

    def _damaged_checkpoint(self) -> RunError:
        return RunError(f"the checkpoint of {self.path} is damaged, or from another run or another version of selfens.")

    # Small files

    def _read(self, name: str) -> str:
        path = self.path / name
        try:
            check_regular(path)
            return path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            reason = "it does not exist" if isinstance(error, FileNotFoundError) else error
            raise RunError(f"{path} cannot be read ({reason}); expected a run made by selfens train.") from None

    def _read_json(self, name: str) -> Any:
        try:
            return json.loads(self._read(name))
        except NOT_JSON as error:
            raise RunError(f"{self.path / name} is damaged ({str(error)[:200]}).") from None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _move_into_place(draft: Path, path: Path) -> None:
    """Rename the draft, or move its files into an empty directory, config.json last: it makes the directory a run."""
    if not path.exists():
        os.rename(draft, path)
        return
    for file in sorted(draft.iterdir(), key=lambda file: file.name == "config.json"):
        os.rename(file, path / file.name)


def free_directory(path: Path) -> Path:
    """Create the directory, or the first of PATH-2, PATH-3 and so on that is free, before another process does."""
    with write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        for number in itertools.count(1):
            candidate = path if number == 1 else path.with_name(f"{path.name}-{number}")
            with suppress(FileExistsError):
                candidate.mkdir()
                return candidate
    raise AssertionError


def check_free(path: Path) -> None:
    """Raise a RunError if the directory is not empty, or is a file."""
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    if not (path / "config.json").is_file():
        raise RunError(f"{path} exists and is not a run; choose another directory.")
    raise RunError(f"{path} already holds a run; resume it, or choose another directory.")
