"""The history for TensorBoard: one scalar per number and epoch, in RUN/tensorboard."""

from __future__ import annotations

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
        self.writer: Any = None

    def start(self, title: str, *, epochs: int, first_epoch: int, steps_per_epoch: int) -> None:
        """Write all epochs of the history again, so that a resume neither doubles nor skips one."""
        from torch.utils.tensorboard import SummaryWriter

        folder = self.run.path / FOLDER
        try:
            for old in folder.glob("events.out.tfevents.*"):
                old.unlink()
            self.writer = SummaryWriter(folder, purge_step=0)  # a TensorBoard that is open forgets what it has read
        except OSError as error:
            raise RunError(write_failure(folder, error)) from error
        for record in self.run.history():
            self._write(record)
        self.shown.start(title, epochs=epochs, first_epoch=first_epoch, steps_per_epoch=steps_per_epoch)

    def step(self, epoch: int, step: int) -> None:
        self.shown.step(epoch, step)

    def epoch(self, record: dict[str, Any]) -> None:
        self._write(record)
        self.shown.epoch(record)

    def warn(self, message: str) -> None:
        self.shown.warn(message)

    def close(self) -> None:
        self.writer.close()
        self.shown.close()

    def _write(self, record: dict[str, Any]) -> None:
        for name, value in record.items():
            if name != "epoch" and value is not None:
                self.writer.add_scalar(name, value, record["epoch"])
        self.writer.flush()
