"""A frozen pretrained network: images become its features, computed once and cached by the hash of their pixels."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np
import torch
from numpy.typing import NDArray

from selfens.data.arrays import CHANNEL_COUNTS, standard_inputs, value_range
from selfens.data.images import AT_ONCE, SIDE, resize, track
from selfens.data.rows import Rows
from selfens.encoders.base import INPUT, Encoded, Encoder, EncoderOptions, Front, RawRow, Shown
from selfens.encoders.cache import FeatureCache, Features, complete, digest
from selfens.encoders.pretrained import TIMM, build, noise
from selfens.errors import ConfigError, DataError, RunError
from selfens.settings import setting


@final
class BackboneEncoder(Encoder):
    """Learns nothing from the rows. A run keeps the hash of the weights, and predicts only with the same weights."""

    @dataclass(frozen=True, kw_only=True)
    class Options(EncoderOptions):
        name: ClassVar[str] = "backbone"
        model: str = setting(
            "", "timm:NAME, or package.module:factory, which is called without arguments for a module."
        )
        weights: str | None = setting(
            None, "File of weights (.safetensors, or a state_dict saved by torch); none: the model's own.", is_path=True
        )
        size: int | None = setting(None, "Side of its input images; none: what its own config says.", **SIDE)
        cache: bool = setting(True, "Keep features in the user's cache.", affects_result=False)

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.model and not all(self.model.partition(":")):
                raise ConfigError(f"encoder.model is '{self.model}'; expected timm:NAME or package.module:factory.")

        @property
        def summary(self) -> str:
            return f"features of {self.model}"

        @property
        def code(self) -> str | None:
            return None if self.model.startswith(TIMM) else self.model or None

    needs_images = True
    has_features = True
    learns = False

    def __init__(self, options: Any = None, device: torch.device | str = "cpu") -> None:
        super().__init__(options, device)
        if not self.options.model:
            raise ConfigError("encoder.model is empty; name a backbone, such as timm:tf_efficientnet_lite0.")
        self.backbone = build(self.options.model, self.options.weights, self.options.size).to(self.device)
        self.about, self.image_side, self.key = self.backbone.about, self.backbone.size, self.backbone.about["key"]
        self.known: dict[bytes, Features] = {}  # by the hashes of the images' pixels
        self.cache = None
        if self.options.cache:
            image = noise(1, self.backbone.size)
            self.cache = FeatureCache(self.key, digest(image[0]), self.backbone.features(image)[0])

    def fit(self, raw: Any, rows: Rows) -> None:
        if assumed := self.about["assumed"]:
            values = ", ".join(f"{key} {self.about['size' if key == 'input_size' else key]}" for key in assumed)
            what = f"the backbone '{self.about['name']}' has no pretrained_cfg that describes its inputs"
            self.notes = (f"{what}; assumed: {values}.",)

    def accept(self, given: Any, where: str, what: str = "the images") -> Any:
        return standard_inputs(given, what=what)

    def transform(self, raw: Any, *, progress: bool = False) -> Encoded:
        """Return the features of images of any size. A few are resized at a time, so not all need to be in memory."""
        if len(raw):
            _check_pixels(raw)
        keys, computed, began = list[bytes](), 0, time.perf_counter()
        for start in track(range(0, len(raw), AT_ONCE), "computing features", progress):
            images = resize(raw[start : start + AT_ONCE], self.backbone.size)
            some = [digest(image) for image in images]
            computed += self._compute(some, images)
            keys += some
        seconds = f" in {time.perf_counter() - began:.0f} s" if computed else ""
        work = f"features of {computed:,} images computed{seconds}, {len({*keys}) - computed:,} known before"
        features = np.array([self.known[key] for key in keys], np.float32).reshape(len(keys), self.about["features"])
        if len({*keys}) > 1 and bool((features == features[0]).all()):
            name = self.about["name"]
            raise DataError(f"the backbone '{name}' returns the same features for all images; check its weights.")
        trouble = (self.cache.trouble,) if self.cache and self.cache.trouble else ()
        return Encoded(features, trouble, np.frombuffer(b"".join(keys), np.uint8).reshape(len(keys), 32), work)

    def _compute(self, keys: Sequence[bytes], images: NDArray[np.uint8]) -> int:
        """Look up or compute the features of some images. Return how many had to be computed."""
        return complete(self.known, keys, lambda rows: self.backbone.features(images[rows]), self.cache)

    def show(self, raw: Any, rows: Rows) -> Shown:
        return Shown(images=raw[rows])

    def front(self, input_shape: tuple[int, ...]) -> Front:
        side = self.backbone.size
        taken = {INPUT: RawRow((3, side, side), "uint8", [0, 255])}
        return Front(taken, self.backbone, lambda raw: {INPUT: resize(raw, side)})

    def to_dict(self) -> dict[str, Any]:
        return self.about

    def restore(self, learned: Mapping[str, Any]) -> None:
        if learned["key"] != self.key:
            what = f"weights or statistics of the backbone '{self.about['name']}'"
            expected = "those that the run was trained with (run.json names them)"
            raise RunError(f"{what} are not {expected}; put them back, or train again.")

    def __str__(self) -> str:
        return f"{self.about['name']} at {self.about['size']} px"


def _check_pixels(images: Any) -> None:
    """Refuse anything but images of bytes, or of floats from 0 to 1."""
    if images.ndim != 4 or images.shape[1] not in CHANNEL_COUNTS:
        shape = tuple(images.shape[1:])
        raise DataError(f"a backbone takes images of 1, 3 or 4 channels, but the inputs have shape {shape} per row.")
    low, high = value_range(images)
    if images.dtype != np.uint8 and (low < 0 or high > 1):
        found = f"{images.dtype} from {low:g} to {high:g}"
        raise DataError(f"the images are {found}, but a backbone needs pixels; pass bytes, or floats from 0 to 1.")
