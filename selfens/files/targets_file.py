"""TargetsFile: the ensemble in a memory-mapped file, for a Z larger than memory.

    page 0          what the file is: format, decay, rows, classes, type (JSON)
    pages 1 and 2   the seals of the two halves (JSON), empty for a half that no checkpoint relies on
    half 0, half 1  the arrays

A checkpoint names a half and the random token in its seal. That half is not written to until the next checkpoint, which
names the other one, is in place, so a process may be killed at any moment. A half's seal is removed before the half changes:
a token that is found belongs to the arrays as that checkpoint left them, and to no other run. All space is allocated when
the file is made, so a full disk is an error then and not in the middle of training.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import secrets
import shutil
import warnings
import weakref
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch

from selfens.core.targets_arrays import Arrays, Layout
from selfens.errors import RunError
from selfens.files import locks

FORMAT = "selfens targets 2"
PAGE = 4096
NOTE_LENGTH = 300  # characters, each of up to 12 bytes in JSON
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class TargetsFile:
    """The file at `path`. Given a layout and a decay it is locked and open for training, otherwise open for reading.

    For training, a file is made if there is none, and again if no checkpoint relies on it.
    """

    def __init__(self, path: str | Path, layout: Layout | None = None, decay: float = 0.0) -> None:
        self.path, self.is_writable = _resolved(path), layout is not None
        with _one_sentence(self.path, layout), ExitStack() as on_error:
            _check_regular(self.path)
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT if layout else os.O_RDONLY, 0o644)
            on_error.callback(os.close, self._file)
            if layout and not locks.take(self._file):
                raise RunError(f"{self.path} is in use by another process; wait for it or stop it.")
            if layout and _is_free(self._file):
                on_error.callback(self.path.unlink)
                self._create(layout, decay)
            self.layout, self.decay = _read_header(self.path, self._file)
            if layout and layout != self.layout:
                raise RunError(f"{self.path} holds targets of {self.layout}; expected {layout}, so name another file.")
            access = mmap.ACCESS_WRITE if layout else mmap.ACCESS_READ
            self.map = mmap.mmap(self._file, _size(self.layout), access=access)
            on_error.pop_all()
        weakref.finalize(self, os.close, self._file)
        self.halves = self._half(0), self._half(1)

    def _create(self, layout: Layout, decay: float) -> None:
        os.ftruncate(self._file, 0)
        _write_page(self._file, 0, {"format": FORMAT, "decay": decay, **asdict(layout)})
        if shutil.disk_usage(self.path.parent).free < _size(layout):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        allocate = getattr(os, "posix_fallocate", lambda file, _, size: os.ftruncate(file, size))  # macOS has none
        allocate(self._file, 0, _size(layout))

    def _half(self, number: int) -> Arrays:
        shapes, sizes = self.layout.shapes(), self.layout.sizes()
        offset = 3 * PAGE + number * _half_size(self.layout)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that it is read-only
            flat = torch.frombuffer(self.map, dtype=torch.uint8, count=sum(sizes), offset=offset)
        parts = zip(shapes.items(), torch.split(flat, sizes), strict=True)
        return {name: part.view(dtype).view(shape) for (name, (shape, dtype)), part in parts}

    def first_half(self) -> Arrays | None:
        """A half to begin with that holds no predictions; None if a checkpoint relies on some."""
        seals = [_read_page(self._file, page) for page in (1, 2)]
        if any(seal and not seal.get("empty") for seal in seals):
            return None
        return self.halves[1 if seals[1] else 0]

    def seal(self, half: int, *, empty: bool, note: str) -> dict[str, str]:
        """Flush a half and note that a checkpoint relies on it; returns what that checkpoint must hold."""
        if not self.path.exists() or not os.path.samestat(os.stat(self.path), os.fstat(self._file)):
            raise RunError(
                f"{self.path} was removed or replaced while it was in use, so the targets are lost; train again."
            )
        token = _read_page(self._file, 1 + half).get("token")  # one that is there means that nothing changed since
        if not token:
            token = secrets.token_hex(16)
            with _one_sentence(self.path):
                self.map.flush()
                self._write_seal(half, {"token": token, "empty": empty, "note": note[-NOTE_LENGTH:]})
        return {"targets_file": str(self.path), "targets_half": str(half), "targets_token": token}

    def unseal(self, half: int) -> None:
        """Before a half changes."""
        if not self.is_writable:
            raise RunError(f"{self.path} is open for reading only, so its targets cannot be changed here.")
        with _one_sentence(self.path):
            self._write_seal(half, {})

    def _write_seal(self, half: int, seal: dict[str, Any]) -> None:
        _write_page(self._file, 1 + half, seal)
        os.fsync(self._file)

    def sealed_half(self, metadata: Mapping[str, str]) -> int:
        """The half that a checkpoint relies on."""
        half, token = metadata.get("targets_half"), metadata.get("targets_token")
        if half not in ("0", "1") or not token:
            raise RunError(f"the checkpoint does not say which half of {self.path} it relies on; it is damaged.")
        if _read_page(self._file, 1 + int(half)).get("token") != token:
            raise RunError(
                f"{self.path} is not as this checkpoint left it; put back the file of the same run and the same time."
            )
        return int(half)

    def refusal(self) -> str:
        """The sentence for a file that another checkpoint relies on."""
        notes = [_read_page(self._file, page).get("note") for page in (1, 2)]
        whose = next((f" ({note})" for note in notes if note), "")
        return f"{self.path} holds targets that a checkpoint relies on{whose}; name another file, or delete this one."

    def close(self) -> None:
        """Unlock the file, and remove it if no checkpoint relies on it. What is mapped can still be read."""
        if self.is_writable:
            self.is_writable = False
            if _is_free(self._file):
                self.path.unlink(missing_ok=True)
            locks.release(self._file)


def check_free(path: Path) -> None:
    """Refuse, before anything is loaded, a path at which a new run cannot keep its targets."""
    folder = path.absolute().parent
    if not folder.is_dir():
        raise RunError(f"{path} cannot be written, because there is no folder {folder}; make it, or name another file.")
    if not os.access(folder, os.W_OK):
        raise RunError(f"{path} cannot be written, because {folder} is read-only; name another file.")
    with _one_sentence(path):
        _check_regular(path)
        if path.exists():
            with open(path, "rb") as file:
                is_free = _is_free(file.fileno())
            if not is_free:
                raise RunError(TargetsFile(path).refusal())


@contextmanager
def _one_sentence(path: Path, layout: Layout | None = None) -> Iterator[None]:
    """Answer whatever the system refuses with one sentence."""
    try:
        yield
    except FileNotFoundError:
        raise RunError(f"{path}, which should hold the targets, is not there; put it back, or a link to it.") from None
    except OSError as error:
        if error.errno in NO_SPACE and layout:
            raise RunError(
                f"{path} needs {_size(layout):,} bytes for the targets of {layout}, and the disk has no room for them."
            ) from error
        raise RunError(f"{path} cannot be used for the targets ({error.strerror or error}).") from error


def _resolved(path: str | Path) -> Path:
    try:
        return Path(path).resolve()
    except (OSError, RuntimeError, ValueError) as error:  # a name too long, a loop of links, a null byte
        raise RunError(f"{str(path)!r} cannot be the path of a file ({error}); name another file.") from None


def _check_regular(path: Path) -> None:
    if path.exists() and not path.is_file():
        what = "a folder" if path.is_dir() else "a device, a pipe or the like"
        raise RunError(f"{path} is {what}; expected a file for the targets, so name another.")


def _is_free(file: int) -> bool:
    """Whether nothing would be lost: the file is empty, or ours with no checkpoint that relies on it."""
    if os.fstat(file).st_size == 0:
        return True
    is_ours = _read_page(file, 0).get("format") == FORMAT
    return is_ours and not _read_page(file, 1) and not _read_page(file, 2)


def _read_header(path: Path, file: int) -> tuple[Layout, float]:
    header = _read_page(file, 0)
    if header.get("format") != FORMAT:
        is_ours = str(header.get("format")).startswith("selfens targets")
        what = f"is in the format '{header['format']}'" if is_ours else "is not a file of targets"
        raise RunError(
            f"{path} {what}; expected '{FORMAT}', which this version of selfens writes, so name another file."
        )
    try:
        layout, decay = Layout(*(header[field.name] for field in fields(Layout))), header["decay"]
        is_sensible = 0 <= decay < 1
    except (KeyError, TypeError, ValueError):
        is_sensible = False
    size = os.fstat(file).st_size
    if not is_sensible or size != _size(layout):
        raise RunError(f"{path} is cut short or damaged ({size:,} bytes long); put back a copy, or train again.")
    return layout, decay


def _read_page(file: int, number: int) -> dict[str, Any]:
    """The JSON on a page; empty if it is not ours."""
    try:
        content = json.loads(os.pread(file, PAGE, PAGE * number))
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _write_page(file: int, number: int, content: dict[str, Any]) -> None:
    os.pwrite(file, json.dumps(content).encode().ljust(PAGE - 1) + b"\n", PAGE * number)


def _half_size(layout: Layout) -> int:
    return -(-sum(layout.sizes()) // PAGE) * PAGE


def _size(layout: Layout) -> int:
    return 3 * PAGE + 2 * _half_size(layout)
