"""Features that a pretrained network has computed, in the user's cache, by the hash of the pixels or the text.

Only the user can enter the cache folder. In it, each network has a folder of .npz files, named by a hash of weights,
input size and statistics. One file holds the features of a test input. If the network returns others now, its code has
changed, and all features are computed again.
"""

import hashlib
import io
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfens.encoders.pretrained import is_close
from selfens.errors import SelfensError
from selfens.files import check_regular
from selfens.files.tensors import write_atomically

USER = os.getuid()

Features = NDArray[np.float32]


def cache_folder() -> Path:
    import platformdirs

    return platformdirs.user_cache_path("selfens") / "features"


def digest(image: NDArray[np.uint8]) -> bytes:
    return hashlib.sha256(np.ascontiguousarray(image).data).digest()


class FeatureCache:
    """The files of one network. If they cannot be used, `trouble` says why, and features are computed every time.

    Parameters
    ----------
    name
        Of its folder: a hash of what determines the features.
    key, expected
        Hash and features of the test input.
    """

    def __init__(self, name: str, key: bytes, expected: Features) -> None:
        self.folder = cache_folder() / name
        self.width, self.trouble = len(expected), ""
        self.files: dict[bytes, Path] = {}
        try:
            files = sorted(self.folder.glob("*.npz"))
            for path in (self.folder.parent, self.folder, *files):
                if path.is_symlink():  # whose target may be meant for others
                    raise OSError(f"{path} is a link; remove it")
                if path.exists() and (path.stat().st_uid != USER or path.stat().st_mode & 0o022):
                    raise OSError(f"other users could have written to {path}; remove it")
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.folder.parent.chmod(0o700)
            self.files = {row.tobytes(): path for path in files for row in _array(path, "pixels", 32, np.uint8)}
            found = self.read([key]).get(key)
            if found is None or not is_close(found, expected):
                for path in files:
                    path.unlink(missing_ok=True)
                self.files = {}
                self.write({key: expected})
        except OSError as error:
            self._give_up(error)

    def read(self, keys: Iterable[bytes]) -> dict[bytes, Features]:
        """Return all features of the files that hold at least one of `keys`."""
        found: dict[bytes, Features] = {}
        for path in {self.files[key] for key in keys if key in self.files}:
            found |= self._load(path)
        return found

    def write(self, added: dict[bytes, Features]) -> None:
        if self.trouble:
            return
        pixels, file = b"".join(added), io.BytesIO()
        digests = np.frombuffer(pixels, np.uint8).reshape(len(added), -1)
        np.savez(file, pixels=digests, features=np.stack([*added.values()]))
        try:
            path = self.folder / f"{hashlib.sha256(pixels).hexdigest()[:40]}.npz"
            write_atomically(path, file.getvalue())
            path.chmod(0o600)  # whatever the umask
        except (SelfensError, OSError) as error:
            self._give_up(error)

    def _load(self, path: Path) -> dict[bytes, Features]:
        """Return the features of a file. Remove a damaged one, so that its features are computed and written again."""
        pixels, features = _array(path, "pixels", 32, np.uint8), _array(path, "features", self.width, np.float32)
        if len(pixels) == len(features) and np.isfinite(features).all():
            return {key.tobytes(): row for key, row in zip(pixels, features, strict=True)}
        with suppress(OSError):
            path.unlink()
        return {}

    def _give_up(self, error: Exception) -> None:
        self.trouble = f"features are not cached ({str(error).rstrip('.')})."


def complete(
    known: dict[bytes, Features],
    keys: Sequence[bytes],
    compute: Callable[[list[int]], Features],
    cache: FeatureCache | None,
) -> int:
    """Add the features of `keys` to `known`, from the cache, or computed and cached. Return how many were computed.

    `compute` takes positions in `keys` and returns the features of these.
    """
    if cache:
        known |= cache.read(key for key in keys if key not in known)
    missing = {key: row for row, key in enumerate(keys) if key not in known}
    if missing:
        added = dict(zip(missing, compute([*missing.values()]), strict=True))
        known |= added
        if cache:
            cache.write(added)
    return len(missing)


def _array(path: Path, name: str, width: int, kind: type) -> NDArray[Any]:
    """Return an array [rows, width] of a file; no rows if the file is damaged or missing."""
    with suppress(Exception):  # zipfile, zlib and numpy raise a dozen kinds
        check_regular(path)
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            found = np.asarray(arrays[name])
            if found.dtype == kind and found.shape == (len(found), width):
                return found
    return np.empty((0, width), kind)
