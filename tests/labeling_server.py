"""A server of `selfens label` in a process of its own, for tests and benchmarks, and a client for it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from selfens.labeling.project import open_project
from selfens.labeling.server import serve

ROOT = Path(__file__).parents[1]


class Server:
    def __init__(self, data: Path, *words: str, port: int = 0) -> None:
        self.log = data.parent / "server.log"
        command = [sys.executable, "-m", "selfens", "label", str(data), "--no-browser", *words]
        command += ["--port", str(port)] if port else []
        environment = os.environ | {
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            "XDG_STATE_HOME": str(data.parent),
        }
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
        self.address = ""
        for _ in range(1200):
            said = self.log.read_text()
            if "Ctrl-C" in said:
                self.address = said[said.index("http://") :].split()[0]
                break
            assert self.process.poll() is None, said
            time.sleep(0.05)
        self.pid = self.process.pid
        self._found()

    def _found(self) -> None:
        self.base, _, self.token = self.address.partition("/#")
        self.port = int(self.base.rpartition(":")[2])

    def ask(self, path: str, given: dict | None = None, **headers: str):
        """Return the status and the answer, as JSON if it is."""
        sent = {"X-Token": self.token, **({} if given is None else {"Content-Type": "application/json"})}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        content = None if given is None else json.dumps(given).encode()
        request = urllib.request.Request(self.base + path, content, {k: v for k, v in sent.items() if v})
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, read(answer), answer.headers
        except urllib.error.HTTPError as error:
            return error.code, read(error), error.headers

    def wait(self, condition, seconds: float = 120):
        end = time.monotonic() + seconds
        while not condition(status := self.ask("/status")[1]):
            assert time.monotonic() < end, status
            time.sleep(0.1)
        return status

    def kill(self) -> None:
        os.killpg(self.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(30)


class Forked(Server):
    """A server forked from this process, which has imported everything already: it starts at once."""

    def __init__(self, data: Path) -> None:
        reading, writing = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.setsid()
            os.environ["PYTHONPATH"], os.environ["XDG_STATE_HOME"] = str(ROOT), str(data.parent)
            with contextlib.suppress(BaseException):
                tell = lambda address: os.write(writing, address.encode() + b"\n")  # noqa: E731
                serve(open_project(data), host="127.0.0.1", port=None, every=20, tell=tell)
            os._exit(0)
        os.close(writing)
        with open(reading, "rb") as pipe:
            self.address = pipe.readline().decode().strip()
        self._found()

    def kill(self) -> None:
        os.killpg(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def read(answer):
    raw = answer.read()
    return json.loads(raw) if answer.headers.get("content-type", "").startswith("application/json") else raw
