"""TargetsFile: the ensemble in a memory-mapped file, for more rows and classes than memory holds.

    one page             what the file is: format, shape, type, momentum, and the run it belongs to
    one page each half   the position of the checkpoint that relies on this half, or nothing
    half 0, half 1       the arrays, each from the beginning of a page

A checkpoint names one half and that half is not touched again until a later checkpoint names the other: the end of an epoch
reads the averages from the one and writes them into the other. So a process may be killed at any moment, and the half that
the checkpoint names still holds Z as it was then. All room is taken when the file is made: a full disk is an error then, not
in the middle of a training.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from selfens.core.targets.arrays import Arrays, Layout
from selfens.errors import RunError
from selfens.files import locks

FORMAT = "selfens targets 1"
PAGE = 4096
READ_AROUND = 1 << 16  # bytes; Linux reads 128 KiB where a page is missing
LONGEST_DIRECTORY = 500  # letters, of which each may take 6 bytes of the page
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class TargetsFile:
    """A file open for training, or with `read_only` for looking at.

    half    the half in use
    sealed  whether a checkpoint relies on it, so that it must not change
    ours    whether it may be changed: a file that a run has taken, by that run alone
    """

    def __init__(self, path: Path, descriptor: int, header: dict[str, Any], *, read_only: bool = False) -> None:
        self.path, self.read_only = path, read_only
        self.header = header
        self.layout = Layout(**header["layout"])
        self.decay: float = header["decay"]
        self.half, self.sealed, self.ours = 0, False, not header["run"]
        self._descriptor = descriptor
        protection = mmap.PROT_READ if read_only else mmap.PROT_READ | mmap.PROT_WRITE
        self._map = mmap.mmap(descriptor, _size(self.layout), mmap.MAP_SHARED, protection)
        weakref.finalize(self, os.close, descriptor)  # last: until here whoever opened it closes it

    # Making and opening

    @classmethod
    def create_or_open(cls, path: str | Path, layout: Layout, decay: float) -> TargetsFile:
        """The file at `path`: made anew where there is none, or one that no run has taken; else the one that is there."""
        path = Path(path).resolve()
        try:
            if _is_free(path):
                return cls._create(path, layout, decay)
            file = cls._open(path, os.O_RDWR)
        except OSError as error:
            raise RunError(_failure(path, layout, error)) from error
        if file.layout != layout:
            raise RunError(
                f"{path} holds targets of {file.layout}; this run needs {layout}, so name another file with --targets."
            )
        return file

    @classmethod
    def read(cls, path: str | Path) -> TargetsFile:
        """An existing file, to be looked at."""
        try:
            return cls._open(Path(path), os.O_RDONLY)
        except OSError as error:
            raise RunError(_unreadable(Path(path), error)) from None

    @classmethod
    def _create(cls, path: Path, layout: Layout, decay: float) -> TargetsFile:
        path.unlink(missing_ok=True)  # what a process killed while it was starting has left
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            header = {"format": FORMAT, "run": "", "decay": decay, "layout": asdict(layout)}
            _write_page(descriptor, 0, header)
            _take_room(descriptor, _size(layout))
            _write_page(descriptor, PAGE, {})
            _write_page(descriptor, 2 * PAGE, {})
            return cls(path, descriptor, header)
        except BaseException:
            os.close(descriptor)  # else a disk that is full stays so while the process lives
            path.unlink()
            raise

    @classmethod
    def _open(cls, path: Path, flags: int) -> TargetsFile:
        descriptor = os.open(path, flags)
        try:
            header = _header(path, descriptor)
            return cls(path, descriptor, header, read_only=flags == os.O_RDONLY)
        except BaseException:
            os.close(descriptor)
            raise

    # Whose it is

    def claim(self, run: str, where: Path) -> None:
        """Make the file that of a run, or see that it is; `where` is the run's directory, for people to find it."""
        if self.header["run"]:
            self.check_owner(run)
        else:
            self.header |= {"run": run, "directory": str(where.absolute())[-LONGEST_DIRECTORY:]}
            _write_page(self._descriptor, 0, self.header)
            os.fsync(self._descriptor)
        self.ours = True
        if not self._is_there():
            raise RunError(f"{self.path} was replaced by another process while this one started; name another file.")

    def _is_there(self) -> bool:
        """Whether the file of that name is still the one that is open."""
        return self.path.exists() and os.path.samestat(os.stat(self.path), os.fstat(self._descriptor))

    def check_owner(self, run: str) -> None:
        if self.header["run"] != run:
            whose = f"another run ({self.header['directory']})" if self.header["run"] else "no run"
            raise RunError(f"{self.path} belongs to {whose}, not to this one; put the run's own file there.")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes out while a run trains with it: copies of a run would all take this file for theirs."""
        if not locks.take(self._descriptor):
            raise _in_use(self.path)
        try:
            yield
        finally:
            locks.release(self._descriptor)

    def remove_unclaimed(self) -> None:
        """Leave nothing of a file that no run has taken."""
        if not self.header["run"]:
            self.path.unlink(missing_ok=True)

    # Halves

    def arrays(self, half: int) -> Arrays:
        start, offsets = _half_offset(self.layout, half), _offsets(self.layout)
        return self.layout.build(lambda name, shape, kind: self._array(start + offsets[name], shape, kind))

    def _array(self, offset: int, shape: tuple[int, ...], kind: torch.dtype) -> Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that it cannot be written to, when it is only looked at
            flat = torch.frombuffer(self._map, dtype=kind, count=torch.Size(shape).numel(), offset=offset)
        return flat.view(shape)

    def seal(self, epoch: int, step: int) -> None:
        """Bring the half in use to the disk and promise that it stays as it is, for a checkpoint to rely on."""
        if not self._is_there():
            raise RunError(
                f"{self.path}, which holds the targets, was removed or replaced while they were in use, so they are lost; "
                "train anew, and leave it where it is."
            )
        try:
            start = _half_offset(self.layout, self.half)
            before = start % mmap.ALLOCATIONGRANULARITY  # pages of the system may be larger than ours
            self._map.flush(start - before, before + _half_size(self.layout))
            self._stamp(self.half, {"epoch": epoch, "step": step})
        except OSError as error:
            raise RunError(f"{self.path} could not be written ({error.strerror}).") from error
        self.sealed = True

    def restore(self, half: int, epoch: int, step: int) -> None:
        """Take up the half that a checkpoint relies on."""
        found = _read_page(self._descriptor, PAGE * (1 + half))
        if found != {"epoch": epoch, "step": step}:
            raise RunError(
                f"{self.path} is not as the checkpoint after epoch {epoch} and {step} steps left it; it was restored from "
                "another copy or the checkpoint was, and only a pair of the same time can be resumed."
            )
        self.half, self.sealed = half, True

    def turn(self) -> None:
        """Use the other half from now on; its averages are yet to be written."""
        self.half, self.sealed = 1 - self.half, False
        self._stamp(self.half, {})

    def _stamp(self, half: int, position: dict[str, int]) -> None:
        _write_page(self._descriptor, PAGE * (1 + half), position)
        os.fsync(self._descriptor)

    @property
    def wants_single_pages(self) -> bool:
        """Whether what the system reads around a row would push out other rows, instead of being there for their turn."""
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return (
            hasattr(self._map, "madvise") and _half_size(self.layout) > memory and self.layout.row_bytes < READ_AROUND
        )

    def advise(self, *, random: bool) -> None:
        """Tell the system whether rows are about to be read at random or in turn."""
        self._map.madvise(mmap.MADV_RANDOM if random else mmap.MADV_NORMAL)


def check_free(path: Path) -> None:
    """Refuse, before anything is loaded, a path where a new run cannot keep its targets."""
    try:
        if not _is_free(path):
            header = TargetsFile.read(path).header
            raise RunError(
                f"{path} holds the targets of another run ({header['directory']}); name another file with --targets, or "
                "delete it if that run is gone."
            )
        place = path.absolute().parent
        if not place.is_dir():
            raise RunError(
                f"{path} cannot be written, because there is no folder {place}; make it, or name another file."
            )
        if not os.access(place, os.W_OK):
            raise RunError(f"{path} cannot be written, because {place} is read-only; name another file with --targets.")
    except OSError as error:
        raise RunError(f"{path} cannot be used for the targets ({error.strerror}).") from None


def check_unused(path: Path) -> None:
    """Refuse a file that another process trains with, before it is looked at: it is changing."""
    if path.is_file():
        with open(path, "rb") as file:
            if not locks.take(file, shared=True):
                raise _in_use(path)


def _in_use(path: Path) -> RunError:
    return RunError(f"{path} is in use by another process; wait for it or stop it.")


def _is_free(path: Path) -> bool:
    """Whether a file may be made there: nothing is, or an empty file, or one of ours that was never taken by a run."""
    if not path.exists():
        return True
    if not path.is_file():
        what = "a folder" if path.is_dir() else "no file to write to but a device or the like"
        raise RunError(f"{path} is {what}; name a file for the targets.")
    if path.stat().st_size == 0:
        return True
    descriptor = os.open(path, os.O_RDONLY)
    try:
        header = _read_page(descriptor, 0)
    finally:
        os.close(descriptor)
    return header.get("format") == FORMAT and not header.get("run")


def _header(path: Path, descriptor: int) -> dict[str, Any]:
    header = _read_page(descriptor, 0)
    if header.get("format") != FORMAT:
        known = str(header.get("format", "")).startswith("selfens targets")
        what = f"is in the format '{header['format']}'" if known else "is not a file of targets"
        raise RunError(
            f"{path} {what}; this version of selfens keeps targets in the format '{FORMAT}', so name another file."
        )
    needed, there = _size(Layout(**header["layout"])), os.fstat(descriptor).st_size
    if there != needed:
        raise RunError(
            f"{path} is {there:,} bytes long and should be {needed:,}; it is cut short or damaged, so bring back a copy of "
            "the same time as the checkpoint, or train anew."
        )
    return header


def _read_page(descriptor: int, offset: int) -> dict[str, Any]:
    """What is noted on a page; nothing where that is not of our making."""
    try:
        noted = json.loads(os.pread(descriptor, PAGE, offset))
    except ValueError:
        return {}
    return noted if isinstance(noted, dict) else {}


def _write_page(descriptor: int, offset: int, noted: dict[str, Any]) -> None:
    page = json.dumps(noted).encode().ljust(PAGE - 1) + b"\n"
    assert len(page) == PAGE
    os.pwrite(descriptor, page, offset)


def _take_room(descriptor: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
    else:  # macOS: the room is only looked for, not taken
        room = os.fstatvfs(descriptor)
        if room.f_bavail * room.f_frsize < size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.ftruncate(descriptor, size)


def _offsets(layout: Layout) -> dict[str, int]:
    """Where in a half each array begins, and, under an empty name, where the half ends."""
    offset, found = 0, {}
    for name, (shape, kind) in layout.specifications().items():
        found[name] = offset
        offset += -(-torch.Size(shape).numel() * kind.itemsize // PAGE) * PAGE
    return found | {"": offset}


def _half_size(layout: Layout) -> int:
    return _offsets(layout)[""]


def _half_offset(layout: Layout, half: int) -> int:
    return 3 * PAGE + half * _half_size(layout)


def _size(layout: Layout) -> int:
    return _half_offset(layout, 2)


def _failure(path: Path, layout: Layout, error: OSError) -> str:
    if error.errno in FULL:
        return (
            f"{path} needs {_size(layout):,} bytes for the targets of {layout}, and the disk has no room for them; "
            "free some, or name a file elsewhere with --targets."
        )
    if path.exists():
        return f"{path}, which holds the run's targets, cannot be written to ({error.strerror}); allow it."
    return f"{path} cannot be made for the targets ({error.strerror or error}); name a file elsewhere with --targets."


def _unreadable(path: Path, error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return f"{path}, where the run keeps its targets, is not there; put the file back, or a link to it."
    return f"{path}, where the run keeps its targets, cannot be read ({error.strerror})."
