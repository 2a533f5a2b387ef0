"""TargetsFile: the ensemble in a memory-mapped file, for a Z larger than memory.

    page 0          what the file is: format, decay, rows, classes, type (JSON)
    pages 1 and 2   the seals of the two halves (JSON), empty for a half that no checkpoint relies on
    half 0, half 1  the arrays

A checkpoint names a half and the random token in its seal. That half is not written to until the next checkpoint, which names
the other half, is in place, so the process may be killed at any moment. A half's seal is removed before the half changes, so a
token that is found belongs to the arrays as that checkpoint left them. All space is allocated when the file is made, so a full
disk is an error then and not in the middle of training.
"""

from __future__ import annotations

import json
import mmap
import os
import secrets
import weakref
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch

from selfens.core.targets.layout import PAGE, Arrays, TargetsLayout
from selfens.errors import RunError
from selfens.files import check_regular, locks
from selfens.files.tensors import is_disk_full, write_failure

FORMAT = "selfens targets 2"


class TargetsFile:
    """The file at `path`. With a layout and a decay it is locked and open for training, otherwise open for reading.

    For training, the file is made if there is none, and made again if no checkpoint relies on it.
    """

    def __init__(self, path: str | Path, layout: TargetsLayout | None = None, decay: float = 0.0) -> None:
        with _one_sentence(path), ExitStack() as on_error:
            self.path, self.is_writable = Path(path).resolve(), layout is not None
            check_regular(self.path)
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT if layout else os.O_RDONLY, 0o644)
            weakref.finalize(self, os.close, self._file)
            if layout and not locks.take(self._file):
                raise RunError(f"{self.path} is in use by another process; wait for it or stop it.")
            if layout and _is_free(self._file):
                on_error.callback(self.path.unlink)
                _create(self._file, layout, decay)
            self.layout, self.decay = _read_header(self.path, self._file)
            if layout and layout != self.layout:
                raise RunError(f"{self.path} holds targets of {self.layout}; expected {layout}, so name another file.")
            self.map = mmap.mmap(self._file, 0, access=mmap.ACCESS_WRITE if layout else mmap.ACCESS_COPY)
            on_error.pop_all()
        halves = torch.frombuffer(self.map, dtype=torch.uint8)[3 * PAGE :].view(2, -1)
        self._halves = [self.layout.arrays_in(half) for half in halves]
        self._half = 1 if self._seal_of(1) else 0
        self._is_sealed = bool(self._seal_of(self._half))  # a checkpoint relies on the half in use: it must not change
        self._is_restored = all(not seal or seal.get("empty") for seal in map(self._seal_of, (0, 1)))

    @property
    def arrays(self) -> Arrays:
        """The half in use; an error if a checkpoint relies on predictions in the file and was not restored."""
        if not self._is_restored:
            raise RunError(
                f"{self.path} holds targets that a checkpoint relies on; name another file, or delete this one."
            )
        return self._halves[self._half]

    def unseal(self) -> None:
        """Allow changes: if a checkpoint relies on the half in use, copy it to the other half and continue there."""
        if not self.is_writable:
            raise RunError(f"{self.path} is open for reading only, so its targets cannot be changed here.")
        old, other = self.arrays, 1 - self._half
        if self._is_sealed:
            self._write_seal(other, {})
            for name, array in self._halves[other].items():
                if name != "pending" or old["written"].any():
                    array.copy_(old[name])
            self._half, self._is_sealed = other, False

    def seal(self) -> dict[str, str]:
        """Flush the half in use and note that a checkpoint relies on it; return what that checkpoint must hold."""
        if not self.path.exists() or not os.path.samestat(os.stat(self.path), os.fstat(self._file)):
            raise RunError(
                f"{self.path} was removed or replaced while it was in use, so the targets are lost; train again."
            )
        arrays = self.arrays
        if not self._is_sealed:
            self.map.flush()
            empty = not (arrays["count"].any() or arrays["written"].any())
            self._write_seal(self._half, {"token": secrets.token_hex(16), "empty": empty})
            self._is_sealed = True
        token = str(self._seal_of(self._half).get("token"))
        return {"targets_file": str(self.path), "targets_half": str(self._half), "targets_token": token}

    def restore(self, metadata: Mapping[str, str]) -> None:
        """Use the half that a checkpoint relies on."""
        half, token = metadata.get("targets_half"), metadata.get("targets_token")
        if half not in ("0", "1") or not token or self._seal_of(int(half)).get("token") != token:
            raise RunError(
                f"{self.path} is not as this checkpoint left it; put back the file of the same run and the same time."
            )
        self._half, self._is_sealed, self._is_restored = int(half), True, True

    def close(self) -> None:
        """Unlock the file, and remove it if no checkpoint relies on it. What is mapped can still be read."""
        if self.is_writable:
            self.is_writable = False
            if _is_free(self._file):
                self.path.unlink(missing_ok=True)
            locks.release(self._file)

    def _seal_of(self, half: int) -> dict[str, Any]:
        return _read_page(self._file, 1 + half)

    def _write_seal(self, half: int, seal: dict[str, Any]) -> None:
        with _one_sentence(self.path):
            _write_page(self._file, 1 + half, seal)
            os.fsync(self._file)


@contextmanager
def _one_sentence(path: str | Path) -> Iterator[None]:
    """Turn whatever the system refuses into one sentence."""
    try:
        yield
    except (OSError, RuntimeError, ValueError) as error:  # also a loop of links, a null byte
        if isinstance(error, OSError) and is_disk_full(error):
            raise RunError(write_failure(Path(path), error)) from None
        raise RunError(
            f"{str(path)!r} cannot be used for the targets ({error}); put it back, or name another."
        ) from None


def _create(file: int, layout: TargetsLayout, decay: float) -> None:
    os.ftruncate(file, 0)
    _write_page(file, 0, {"format": FORMAT, "decay": decay, **asdict(layout)})
    allocate = getattr(os, "posix_fallocate", lambda file, _, size: os.ftruncate(file, size))  # macOS has none
    allocate(file, 0, layout.file_size)


def _is_free(file: int) -> bool:
    """Return True if nothing would be lost: the file is empty, or ours and no checkpoint relies on it."""
    if os.fstat(file).st_size == 0:
        return True
    is_ours = _read_page(file, 0).get("format") == FORMAT
    return is_ours and not _read_page(file, 1) and not _read_page(file, 2)


def _read_header(path: Path, file: int) -> tuple[TargetsLayout, float]:
    header = _read_page(file, 0)
    if header.get("format") != FORMAT:
        raise RunError(f"{path} is not a file of targets in the format '{FORMAT}'; name another file.")
    try:
        layout, decay = TargetsLayout(*(header[field.name] for field in fields(TargetsLayout))), header["decay"]
        is_sensible = 0 <= decay < 1
    except (KeyError, TypeError, ValueError):
        is_sensible = False
    size = os.fstat(file).st_size
    if not is_sensible or size != layout.file_size:
        raise RunError(f"{path} is cut short or damaged ({size:,} bytes long); put back a copy, or train again.")
    return layout, decay


def _read_page(file: int, number: int) -> dict[str, Any]:
    """Return the JSON on a page; empty if it is not ours."""
    try:
        content = json.loads(os.pread(file, PAGE, PAGE * number))
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _write_page(file: int, number: int, content: dict[str, Any]) -> None:
    os.pwrite(file, json.dumps(content).encode().ljust(PAGE - 1) + b"\n", PAGE * number)
