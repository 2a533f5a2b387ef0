"""The history for TensorBoard: one scalar per number and epoch, in RUN/tensorboard.

Events are written here and not by torch's `SummaryWriter`, whose thread prints a traceback of its own if the disk is full.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selfens.errors import RunError
from selfens.files.tensors import write_failure
from selfens.runs.directory import RunDirectory
from selfens.tools import optional
from selfens.training.progress import Progress, Silent

FOLDER = "tensorboard"


class TensorBoard(Progress):
    """Writes each epoch's numbers for TensorBoard, and passes everything on to `shown`."""

    def __init__(self, run_dir: str | Path, shown: Progress | None = None) -> None:
        optional.require("tensorboard", "writing for TensorBoard")
        self.shown = shown or Silent()
        self.talkative = self.shown.talkative
        self.run = RunDirectory(run_dir)
        self.folder = self.run.path / FOLDER
        self.records: Any = None

    def start(self, title: str, *, epochs: int, first_epoch: int, steps_per_epoch: int) -> None:
        """Write all epochs of the history again, so that a resume neither doubles nor skips one."""
        from tensorboard.compat.proto.event_pb2 import SessionLog
        from tensorboard.summary.writer.record_writer import RecordWriter

        with self._writing():
            self.folder.mkdir(exist_ok=True)
            for old in self.folder.glob("events.out.tfevents.*"):
                old.unlink()
            self.records = RecordWriter(open(self.folder / f"events.out.tfevents.{time.time_ns()}", "wb"))  # noqa: SIM115
            self._write(file_version="brain.Event:2")
            self._write(session_log=SessionLog(status=SessionLog.START))  # an open TensorBoard forgets what it has read
            for record in self.run.history():
                self._write_epoch(record)
        self.shown.start(title, epochs=epochs, first_epoch=first_epoch, steps_per_epoch=steps_per_epoch)

    def step(self, epoch: int, step: int) -> None:
        self.shown.step(epoch, step)

    def epoch(self, record: dict[str, Any]) -> None:
        with self._writing():
            self._write_epoch(record)
        self.shown.epoch(record)

    def warn(self, message: str) -> None:
        self.shown.warn(message)

    def close(self) -> None:
        self.shown.close()
        with self._writing():
            self.records.close()

    def _write_epoch(self, record: dict[str, Any]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        numbers = {name: value for name, value in record.items() if name != "epoch" and value is not None}
        values = [Summary.Value(tag=name, simple_value=value) for name, value in numbers.items()]
        self._write(step=record["epoch"], summary=Summary(value=values))

    def _write(self, **event: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self.records.write(Event(wall_time=time.time(), **event).SerializeToString())
        self.records.flush()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RunError(write_failure(self.folder, error)) from error
