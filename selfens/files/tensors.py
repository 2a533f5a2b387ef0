"""Tensor files: named tensors and a few strings, by safetensors, so that loading never runs code.

A file is written under a temporary name, flushed to disk and renamed, so it is complete or absent.
"""

import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from selfens.errors import RunError
from selfens.files import check_regular


def write_atomically(path: Path, *content: bytes | memoryview) -> None:
    """Replace the content of `path`, or leave it as it was."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with write_errors(path):
        try:
            with open(temporary, "wb") as file:
                file.writelines(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            with suppress(OSError):  # unlinking fails on a read-only file system too
                temporary.unlink(missing_ok=True)


@contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """Turn a failed write into one sentence that names `path`, which may be the folder of the file that failed."""
    try:
        yield
    except (OSError, RunError) as error:
        cause = error if isinstance(error, OSError) else error.__cause__
        if not isinstance(cause, OSError):
            raise
        is_full = cause.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        why = "because the disk is full; free some room" if is_full else f"({cause.strerror or cause})"
        raise RunError(f"{path} could not be written {why}; what was saved before is untouched.") from cause


def save_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Save tensors and strings. The same content gives the same bytes (safetensors alone would change their order)."""
    # Copies, because safetensors refuses tensors that share memory (tied weights, a teacher kept twice).
    plain = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
    content = memoryview(save(plain, metadata))
    start = 8 + int.from_bytes(content[:8], "little")
    names = json.dumps(json.loads(bytes(content[8:start])), sort_keys=True, separators=(",", ":")).encode()
    names += b" " * (-len(names) % 8)  # tensors begin at a multiple of 8 bytes
    write_atomically(path, len(names).to_bytes(8, "little"), names, content[start:])


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open a file for reading. Any error inside the context becomes one sentence."""
    try:
        check_regular(path)
        with open(path, "rb"):
            pass  # safetensors says that an unreadable file is missing
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, OSError, ValueError) as error:
        raise RunError(f"{path} cannot be read ({error}); it is missing, cut short or of another kind.") from None


def read_metadata(path: Path) -> dict[str, str]:
    """Return the strings, without reading the tensors."""
    with _opened(path) as file:
        return dict(file.metadata() or {})


def load_tensors(path: Path, skip: tuple[str, ...] = ()) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors, on the CPU, and the strings. Tensors whose names begin with one of `skip` are not read."""
    with _opened(path) as file:
        names = [name for name in file.keys() if not name.startswith(skip)]  # noqa: SIM118
        return {name: file.get_tensor(name) for name in names}, dict(file.metadata() or {})
