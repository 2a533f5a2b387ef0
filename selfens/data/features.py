"""Features of images by a pretrained backbone, computed once: they are kept in the user's cache, by the hash of the pixels.

The cache is a folder that only the user can enter. A backbone has its own folder in it, whose name is a hash of its weights,
input size and statistics, with files of some features each (.npz, which has checksums) that are written whole or not at all;
a damaged file is as good as none. The features of a test image are among them: if the backbone makes others of it now, its
code has changed, and all are computed again.
"""

from __future__ import annotations

import hashlib
import io
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from selfens.config import DataConfig
from selfens.data.arrays import CHANNEL_COUNTS, standard_inputs
from selfens.data.dataset import Dataset, Origin
from selfens.data.images import ImageFiles, Images, read_all, resized
from selfens.errors import ConfigError, DataError, SelfensError
from selfens.files import check_regular
from selfens.files.tensors import write_atomically
from selfens.networks.backbone import Backbone, alike, build

OWN = os.getuid() if hasattr(os, "getuid") else 0  # as Windows says of every file

Digests = NDArray[np.uint8]
Features = NDArray[np.float32]


class FeatureStore:
    """The features of all images seen, by the hashes of their pixels."""

    def __init__(self, backbone: Backbone, *, cache: bool = True) -> None:
        self.backbone, self.size = backbone, backbone.size
        self.known: dict[bytes, Features] = {}
        self.computed: dict[bytes, float] = {}  # and the seconds that each took, until they are told
        self.cache = _Cache(backbone) if cache else None

    def digests(self, images: Images) -> Digests:
        """The hash of each image's pixels, [rows, 32]; from then on their features are known."""
        keys = [_hash(image) for image in images]
        if self.cache:
            self.known |= self.cache.read(key for key in keys if key not in self.known)
        missing = {key: place for place, key in enumerate(keys) if key not in self.known}
        if missing:
            began = time.perf_counter()
            added = dict(zip(missing, self.backbone.features(images[[*missing.values()]]), strict=True))
            self.computed |= dict.fromkeys(added, (time.perf_counter() - began) / len(added))
            self.known |= added
            if self.cache:
                self.cache.write(added)
        return np.frombuffer(b"".join(keys), np.uint8).reshape(len(keys), -1)

    def features(self, digests: Digests) -> Features:
        made = [self.known[digest.tobytes()] for digest in digests]
        return np.array(made, np.float32).reshape(len(made), self.backbone.about["features"])

    def of_images(self, images: ArrayLike, progress: bool = False) -> Digests:
        """`digests` of an array of images of any size."""
        x = standard_inputs(images, what="the images")
        if x.ndim != 4 or x.shape[1] not in CHANNEL_COUNTS:
            raise DataError(
                f"a backbone takes images of 1, 3 or 4 channels, but the inputs have shape {x.shape[1:]} per row."
            )
        if x.dtype != np.uint8 and (x.min() < 0 or x.max() > 1):
            raise DataError(
                f"the images are {x.dtype} from {x.min():g} to {x.max():g}, but a backbone wants pixels; give bytes, or floats "
                "from 0 to 1."
            )
        return read_all(len(x), lambda row: resized(x[row], self.size), self.size, progress, self.digests)[0]

    def with_features(self, data: Dataset, progress: bool = False) -> Dataset:
        """The data set with features as inputs: of arrays of images, or of files whose digests are its inputs now."""
        images, test_images = data.inputs, data.test_inputs
        if images.ndim == 2 and images.dtype == np.uint8:
            digests, test_digests = np.asarray(images), np.asarray(test_images)
            images, test_images = (ImageFiles(files, self.size) for files in (data.row_names, data.test_row_names))
        else:
            digests = self.of_images(images, progress)
            test_digests = self.of_images(test_images, progress) if len(test_images) else digests[:0]
        made, about = self.features(digests), self.backbone.about
        if len(np.unique(digests, axis=0)) > 1 and bool((made == made[0]).all()):
            raise DataError(
                f"the backbone '{about['name']}' returns the same features for all images, so there is nothing to learn from; "
                "are its weights and statistics right?"
            )
        notes = [self.cache.trouble] if self.cache and self.cache.trouble else []
        if about["assumed"]:
            said = ", ".join(f"{key} {about['size' if key == 'input_size' else key]}" for key in about["assumed"])
            notes.append(
                f"the backbone '{about['name']}' has no pretrained_cfg that describes its inputs; assumed: {said}."
            )
        images_seen = {digest.tobytes() for part in (digests, test_digests) for digest in part}
        times = [self.computed.pop(key) for key in images_seen if key in self.computed]
        seconds = f" in {sum(times):.0f} s" if times else ""
        known = len(images_seen) - len(times)
        summary = f"features of {len(times):,} images computed{seconds}, of {known:,} known before"
        origin = Origin(images, test_images, digests, test_digests, about, summary)
        features = self.features(test_digests)
        return replace(data, inputs=made, test_inputs=features, origin=origin, notes=(*data.notes, *notes))


def open_store(options: DataConfig, device: Any) -> FeatureStore:
    """The features that a config asks for, computed on the device."""
    if options.backbone is None:
        raise ConfigError("data.backbone is none; name one, such as timm:tf_efficientnet_lite0.")
    backbone = build(options.backbone, options.backbone_weights, options.backbone_size)
    return FeatureStore(backbone.to(device), cache=options.feature_cache)


def cache_folder() -> Path:
    import platformdirs

    return platformdirs.user_cache_path("selfens") / "features"


class _Cache:
    """The files of one backbone. What the system refuses is told in `trouble`; features are computed then."""

    def __init__(self, backbone: Backbone) -> None:
        self.folder = cache_folder() / backbone.about["key"]
        self.width, self.trouble = backbone.about["features"], ""
        self.places: dict[bytes, Path] = {}
        image = np.random.default_rng(0).integers(0, 256, (1, 3, backbone.size, backbone.size), dtype=np.uint8)
        key, expected = _hash(image[0]), backbone.features(image)[0]
        try:
            files = sorted(self.folder.glob("*.npz"))
            for place in (self.folder.parent, self.folder, *files):
                if place.is_symlink():  # to a folder that may be meant for others
                    raise OSError(f"{place} is a link; remove it")
                if place.exists() and (place.stat().st_uid != OWN or (place.is_dir() and place.stat().st_mode & 0o002)):
                    raise OSError(f"other users could have written to {place}; remove it")
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.folder.parent.chmod(0o700)
            self.places = {row.tobytes(): path for path in files for row in _pixels(path)}
            found = self.read([key]).get(key)
            if found is None or not alike(found, expected):
                for path in files:
                    path.unlink(missing_ok=True)
                self.places = {}
                self.write({key: expected})
        except OSError as error:
            self._give_up(error)

    def read(self, keys: Iterable[bytes]) -> dict[bytes, Features]:
        """The features of the images whose files hold some of these."""
        found: dict[bytes, Features] = {}
        for path in {self.places[key] for key in keys if key in self.places}:
            found |= self._load(path)
        return found

    def write(self, added: dict[bytes, Features]) -> None:
        if self.trouble:
            return
        pixels, file = b"".join(added), io.BytesIO()
        np.savez(
            file, pixels=np.frombuffer(pixels, np.uint8).reshape(len(added), -1), features=np.stack([*added.values()])
        )
        try:
            write_atomically(self.folder / f"{hashlib.sha256(pixels).hexdigest()[:40]}.npz", file.getvalue())
        except (SelfensError, OSError) as error:
            self._give_up(error)

    def _load(self, path: Path) -> dict[bytes, Features]:
        """The features of a file; if they are not what was written, it goes, so that those computed again are found."""
        pixels, features = _pixels(path), _array(path, "features")
        is_whole = features.dtype == np.float32 and features.shape == (len(pixels), self.width)
        if not is_whole or not np.isfinite(features).all():
            with suppress(OSError):
                path.unlink()
            return {}
        return {key.tobytes(): row for key, row in zip(pixels, features, strict=True)}

    def _give_up(self, error: Exception) -> None:
        self.trouble = f"features are not cached ({str(error).rstrip('.')})."


def _pixels(path: Path) -> Digests:
    """The hashes that a file has features of; none if they are not what was written."""
    found = _array(path, "pixels")
    return found if found.dtype == np.uint8 and found.shape[1:] == (32,) else np.empty((0, 32), np.uint8)


def _array(path: Path, name: str) -> NDArray[Any]:
    """An array of a file; empty if it is damaged, or was removed since."""
    try:
        check_regular(path)
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return np.asarray(arrays[name])
    except Exception:  # zipfile, zlib and numpy raise a dozen kinds
        return np.empty(0)


def _hash(image: Images) -> bytes:
    return hashlib.sha256(np.ascontiguousarray(image).data).digest()
