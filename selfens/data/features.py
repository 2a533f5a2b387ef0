"""Features of images by a pretrained backbone, computed once: they are kept in the user's cache, by the hash of the pixels.

The cache is a folder that only the user can enter, with a file for each backbone, whose name is a hash of its weights, input
size and statistics. A file is a row of records: the hash of an image's pixels, a checksum and the features. It is only ever
appended to, under a lock. What a crash left at its end is cut off, and a damaged record is as good as none. The first record
is of a test image, which is computed each time: if it has other features now, the backbone's code has changed, and the file
is begun again.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from selfens.config import DataConfig
from selfens.data.arrays import standard_inputs
from selfens.data.dataset import Dataset, Origin
from selfens.data.images import ImageFiles, Images, read_all, resized
from selfens.data.rows import Source
from selfens.errors import ConfigError, DataError, RunError
from selfens.files import locks
from selfens.files.tensors import write_atomically
from selfens.networks.backbone import Backbone, build

HASH_BYTES, CHECK_BYTES = 32, 8
INDEXED_AT_ONCE = 4096  # records
TOLERANCE = (
    1e-3  # of the test image's features, compared with the largest: machines and numbers of threads round differently
)

Digests = NDArray[np.uint8]
Features = NDArray[np.float32]


class FeatureStore:
    """The features of all images seen, by the hashes of their pixels."""

    def __init__(self, backbone: Backbone, *, cache: bool = True) -> None:
        self.backbone, self.size = backbone, backbone.size
        self.known: dict[bytes, Features] = {}
        self.computed, self.seconds = 0, 0.0
        self.file = _CacheFile(backbone) if cache else None

    def digests(self, images: Images) -> Digests:
        """The hash of each image's pixels, [rows, 32]; from then on their features are known."""
        keys = [hashlib.sha256(image.data).digest() for image in images]
        new = {key: place for place, key in enumerate(keys) if key not in self.known}
        if self.file:
            self.known |= self.file.read(new)
        missing = [place for key, place in new.items() if key not in self.known]
        if missing:
            began = time.perf_counter()
            made = self.backbone.features(images[missing])
            self.seconds += time.perf_counter() - began
            self.computed += len(missing)
            added = dict(zip((keys[place] for place in missing), made, strict=True))
            self.known |= added
            if self.file:
                self.file.append(added)
        return np.frombuffer(b"".join(keys), np.uint8).reshape(len(keys), HASH_BYTES)

    def features(self, digests: Digests) -> Features:
        made = [self.known[digest.tobytes()] for digest in digests]
        return np.stack(made) if made else np.empty((0, self.backbone.about["features"]), np.float32)

    def of_images(self, images: ArrayLike, progress: bool = False) -> Digests:
        """`digests` of an array of images of any size."""
        x = standard_inputs(images, what="the images")
        if x.ndim != 4 or x.shape[1] not in (1, 3, 4):
            raise DataError(
                f"a backbone takes images, and the inputs have shape {x.shape[1:]} per row; give images of 1, 3 or 4 channels, "
                "or train without the backbone."
            )
        if x.dtype != np.uint8 and (x.min() < 0 or x.max() > 1):
            raise DataError(
                f"the images are {x.dtype} from {x.min():g} to {x.max():g}, but a backbone wants pixels; give bytes, or floats "
                "from 0 to 1."
            )
        return read_all(len(x), lambda row: resized(x[row], self.size), self.size, progress, self.digests)[0]

    def with_features(self, data: Dataset, progress: bool = False) -> Dataset:
        """The data set with features as inputs: of arrays of images, or of files whose digests are its inputs now."""
        sources: list[Source] = []
        digests: list[Digests] = []
        for inputs, files in ((data.inputs, data.row_names), (data.test_inputs, data.test_row_names)):
            is_files = inputs.dtype == np.uint8 and inputs.ndim == 2
            sources.append(ImageFiles(files, self.size) if is_files else inputs)
            empty = np.empty((0, HASH_BYTES), np.uint8)
            digests.append(
                np.asarray(inputs) if is_files else self.of_images(inputs, progress) if len(inputs) else empty
            )
        made = [self.features(part) for part in digests]
        if len(np.unique(digests[0], axis=0)) > 1 and bool((made[0] == made[0][0]).all()):
            raise DataError(
                f"the backbone '{self.backbone.about['name']}' makes the same features of all images, so there is nothing to "
                "learn from; are its weights and statistics right?"
            )
        about = {key: value for key, value in self.backbone.about.items() if key != "assumed"}
        origin = Origin(*sources, *digests, about, self._summary(len(digests[0]) + len(digests[1])), self._notes())
        return replace(data, inputs=made[0], test_inputs=made[1], origin=origin)

    def _summary(self, images: int) -> str:
        seconds = f" in {self.seconds:.0f} s" if self.computed else ""
        return f"features of {images:,} images ({self.computed:,} computed{seconds}, {images - self.computed:,} known before)"

    def _notes(self) -> tuple[str, ...]:
        about = self.backbone.about
        assumed = ", ".join(f"{key} {about['size' if key == 'input_size' else key]}" for key in about["assumed"])
        said = (
            f"the backbone '{about['name']}' does not say how its inputs are made (pretrained_cfg); assumed: {assumed}."
        )
        return (*((said,) if assumed else ()), *((self.file.trouble,) if self.file and self.file.trouble else ()))


def open_store(options: DataConfig, device: Any) -> FeatureStore:
    """The features that a config asks for, computed on the device."""
    if options.backbone is None:
        raise ConfigError("data.backbone is none; name one, such as timm:tf_efficientnet_lite0.")
    backbone = build(options.backbone, options.backbone_weights, options.image_size)
    return FeatureStore(backbone.to(device), cache=options.feature_cache)


def cache_folder() -> Path:
    import platformdirs

    return platformdirs.user_cache_path("selfens") / "features"


class _CacheFile:
    """The file of one backbone. Whatever the system refuses is a note, and the file is not used any more."""

    def __init__(self, backbone: Backbone) -> None:
        about = {key: backbone.about[key] for key in ("name", "sha256", "size", "mean", "std")}
        self.path = cache_folder() / f"{hashlib.sha256(json.dumps(about).encode()).hexdigest()[:40]}.features"
        features = ("features", np.float32, (backbone.about["features"],))
        self.kind = np.dtype([("pixels", np.uint8, HASH_BYTES), ("check", np.uint8, CHECK_BYTES), features])
        self.places, self.trouble = dict[bytes, int](), ""
        image = np.random.default_rng(0).integers(0, 256, (1, 3, backbone.size, backbone.size), dtype=np.uint8)
        key, expected = hashlib.sha256(image.data).digest(), backbone.features(image)[0]
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.path.parent.chmod(0o700)
            with open(os.open(self.path, os.O_RDONLY | os.O_CREAT, 0o600), "rb") as file:
                while len(part := np.fromfile(file, self.kind, INDEXED_AT_ONCE)):
                    self.places |= {
                        pixels.tobytes(): place for place, pixels in enumerate(part["pixels"], len(self.places))
                    }
        except OSError as error:
            self._give_up(error)
        found = self.read([key]).get(key)
        if found is None or not np.abs(found - expected).max() <= TOLERANCE * np.abs(expected).max():
            self.places = {}
            self.append({key: expected}, begin=True)

    def read(self, keys: Iterable[bytes]) -> dict[bytes, Features]:
        """The features of these images that are there and whole."""
        found: dict[bytes, Features] = {}
        try:
            with open(self.path, "rb") as file:
                for key in keys:
                    if key in self.places:
                        file.seek(self.places[key] * self.kind.itemsize)
                        (record,) = np.fromfile(file, self.kind, 1)
                        if record["pixels"].tobytes() == key and _check(record) == record["check"].tobytes():
                            found[key] = np.array(record["features"])
        except (OSError, ValueError):  # it is gone, or was cut short since
            self.places = {}
        return found

    def append(self, added: dict[bytes, Features], *, begin: bool = False) -> None:
        """After the whole records. If another process is writing at this moment, they are computed again another time."""
        if self.trouble:
            return
        made = np.zeros(len(added), self.kind)
        for record, (key, features) in zip(made, added.items(), strict=True):
            record["pixels"], record["features"] = np.frombuffer(key, np.uint8), features
            record["check"] = np.frombuffer(_check(record), np.uint8)
        try:
            if begin:
                write_atomically(self.path, made.tobytes())
                self.path.chmod(0o600)
                return
            with open(self.path, "r+b") as file:
                if locks.take(file):
                    end = os.fstat(file.fileno()).st_size // self.kind.itemsize * self.kind.itemsize
                    file.truncate(end)
                    file.seek(end)
                    file.write(made.tobytes())
        except (OSError, RunError) as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        reason = str(getattr(error, "strerror", None) or error).rstrip(".")
        self.trouble = f"features are not kept, because {self.path} cannot be used ({reason})."


def _check(record: Any) -> bytes:
    content = record["pixels"].tobytes() + record["features"].tobytes()
    return hashlib.blake2b(content, digest_size=CHECK_BYTES).digest()
