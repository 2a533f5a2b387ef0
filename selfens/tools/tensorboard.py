"""Write the history for TensorBoard, in RUN/tensorboard: one scalar per field and epoch."""

import os
import socket
import time
from pathlib import Path
from typing import Any

from selfens.errors import RunError, require
from selfens.files.tensors import write_errors
from selfens.runs.directory import RunDirectory
from selfens.training.progress import Progress, WarningsOnly


class TensorBoard(Progress):
    """A display that writes each epoch for TensorBoard, and forwards everything to the display `shown`."""

    def __init__(self, run_dir: str | Path, shown: Progress | None = None) -> None:
        require("tensorboard", "writing for TensorBoard")
        self.shown = shown or WarningsOnly()
        self.has_bars = self.shown.has_bars
        self.directory = RunDirectory(run_dir)
        self.folder = self.directory.path / "tensorboard"
        self.file: Path | None = None

    def start(self, title: str, *, epochs: int, first_epoch: int, steps_per_epoch: int) -> None:
        """Write all epochs of the history again, so that a resume neither doubles nor skips one."""
        from tensorboard.compat.proto.event_pb2 import SessionLog

        self.file = self.folder / f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}"
        with write_errors(self.folder):
            self.folder.mkdir(exist_ok=True)
            for old in self.folder.glob("events.out.tfevents.*"):
                old.unlink()
            self._append(file_version="brain.Event:2")
            # An open TensorBoard then discards the epochs it has read.
            self._append(step=0, session_log=SessionLog(status=SessionLog.START))
            for record in self.directory.history():
                self._append_epoch(record)
        self.shown.deadline = self.deadline
        self.shown.start(title, epochs=epochs, first_epoch=first_epoch, steps_per_epoch=steps_per_epoch)

    def step(self, epoch: int, step: int) -> None:
        self.shown.step(epoch, step)

    def epoch(self, record: dict[str, Any]) -> None:
        try:
            with write_errors(self.folder):
                self._append_epoch(record)
        except RunError as error:  # ends the logging, not the run
            self.warn(f"logging for TensorBoard stopped: {error}")
            self.file = None
        self.shown.epoch(record)

    def warn(self, message: str) -> None:
        self.shown.warn(message)

    def close(self) -> None:
        self.shown.close()

    def _append_epoch(self, record: dict[str, Any]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        numbers = {name: value for name, value in record.items() if name != "epoch" and value is not None}
        values = [Summary.Value(tag=name, simple_value=value) for name, value in numbers.items()]
        self._append(step=record["epoch"], summary=Summary(value=values))

    def _append(self, **event: Any) -> None:
        """Append an event. (The thread of a SummaryWriter prints a traceback if the disk is full.)"""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        if self.file is not None:
            with open(self.file, "ab") as file:
                RecordWriter(file).write(Event(wall_time=time.time(), **event).SerializeToString())
