"""A worker: a process that does one case after the other, because importing torch takes longer than most of them."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import time
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any

from tests.soak import readers, runs

SECONDS = {"files": 20}  # that a case may take
OTHERWISE = 240
PARTS = {"kills": runs.killed, "pairs": runs.together, "disk": runs.full_disk, "files": readers.damaged_file}


class Worker:
    """The handle of a worker. One that dies or does not answer in time is a finding, and replaced."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.seed, self.process = folder, seed, None

    def ask(self, case: str) -> dict[str, Any]:
        if self.process is None or not self.process.is_alive():
            self._start()
        started, limit, answer = time.monotonic(), SECONDS.get(case.split("/")[0], OTHERWISE), None
        with contextlib.suppress(EOFError, OSError):
            self.pipe.send(case)
            answer = self.pipe.recv() if self.pipe.poll(limit) else {"outcome": f"finding: no answer within {limit} s"}
        if answer is None or answer["outcome"].startswith("finding: no answer"):
            self.process.join(1) if answer is None else self.process.kill()
            self.process.join()
            answer = answer or {"outcome": f"finding: the process died with code {self.process.exitcode}"}
            answer["damage"] = damage.read_text() if (damage := self.folder / "damage").exists() else ""
        if answer["outcome"].startswith("finding"):
            with contextlib.suppress(shutil.Error):  # pipes cannot be copied
                place = self.folder.parent / "findings" / case.replace("/", "-")
                shutil.copytree(self.folder / "case", place, symlinks=True, dirs_exist_ok=True)
        return {"case": case, **answer, "seconds": round(time.monotonic() - started, 3)}

    def _start(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        context = multiprocessing.get_context("forkserver")
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=serve, args=(other, self.folder, self.seed))
        self.process.start()
        other.close()


def serve(pipe: Connection, folder: Path, seed: int) -> None:
    """Answer one case after the other, until the other end is gone."""
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ["TMPDIR"] = str(folder)
    while True:
        try:
            case = pipe.recv()
        except EOFError:
            return
        shutil.rmtree(folder / "case", ignore_errors=True)
        (folder / "case").mkdir()
        os.chdir(folder / "case")
        part, *words = case.split("/")
        try:
            pipe.send(PARTS[part](words, Random(f"{seed} {case}"), folder / "case"))
        except Exception:
            pipe.send({"outcome": f"finding: the soak itself failed: {traceback.format_exc()[-1500:]}"})
