"""Several frozen backbones: the features of each, one after the other, for a committee with heads on each one's."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

import numpy as np
import torch
from torch import Tensor, nn

from selfens.data.arrays import standard_inputs
from selfens.data.images import SIDE
from selfens.data.rows import Rows
from selfens.encoders.backbone import BackboneEncoder
from selfens.encoders.base import Encoded, Encoder, EncoderOptions, Front, Shown
from selfens.errors import ConfigError
from selfens.settings import setting


class Joined(nn.Module):
    """Networks that see the same images; their features are joined."""

    def __init__(self, networks: list[nn.Module]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)

    def forward(self, images: Tensor) -> Tensor:
        return torch.cat([network(images).float() for network in self.networks], dim=1)


@final
class BackbonesEncoder(Encoder):
    """Each backbone has a cache of its own. All get images of one size."""

    @dataclass(frozen=True, kw_only=True)
    class Options(EncoderOptions):
        name: ClassVar[str] = "backbones"
        models: tuple[str, ...] = setting((), "The backbones, as encoder.model names one.")
        size: int | None = setting(None, "Side of the input images; none: what the backbones' configs say.", **SIDE)
        cache: bool = setting(True, "Keep features in the user's cache.", affects_result=False)

        def __post_init__(self) -> None:
            given: Any = self.models
            if isinstance(given, str | list):
                names = given.split(",") if isinstance(given, str) else given
                if not all(isinstance(each, str) for each in names):
                    raise ConfigError(f"encoder.models is {given!r}; expected names of backbones.")
                object.__setattr__(self, "models", tuple(name.strip() for name in names))
            super().__post_init__()
            if len({*self.models}) < len(self.models):
                raise ConfigError(f"encoder.models is {', '.join(self.models)}; name each backbone once.")
            for model in self.models:
                BackboneEncoder.Options(model=model)  # checks the name

        @property
        def summary(self) -> str:
            return f"features of {' and '.join(self.models)}"

        @property
        def code(self) -> str | None:
            own = [BackboneEncoder.Options(model=model).code for model in self.models]
            return ", ".join(filter(None, own)) or None

    needs_images = True
    has_features = True
    learns = False

    def __init__(self, options: Any = None, device: torch.device | str = "cpu") -> None:
        super().__init__(options, device)
        if len(self.options.models) < 2:
            raise ConfigError("encoder.models names fewer than two backbones; use the encoder backbone for one.")
        common = {"size": self.options.size, "cache": self.options.cache}
        self.parts = [
            BackboneEncoder(BackboneEncoder.Options(model=model, **common), device) for model in self.options.models
        ]
        sizes = [part.backbone.size for part in self.parts]
        if len({*sizes}) > 1:
            found = ", ".join(map(str, self.parts))
            raise ConfigError(f"the backbones take images of several sizes ({found}); give one size for all of them.")
        self.image_side = sizes[0]
        self.key = "-".join(part.key for part in self.parts)
        self.widths = tuple(int(part.about["features"]) for part in self.parts)

    def fit(self, raw: Any, rows: Rows) -> None:
        for part in self.parts:
            part.fit(raw, rows)
        self.notes = tuple(note for part in self.parts for note in part.notes)

    def accept(self, given: Any, where: str, what: str = "the images") -> Any:
        return standard_inputs(given, what=what)

    def transform(self, raw: Any, *, progress: bool = False) -> Encoded:
        """Return the features of images of any size, those of the first backbone first."""
        each = [part.transform(raw, progress=progress) for part in self.parts]
        inputs = np.concatenate([encoded.inputs for encoded in each], axis=1)
        notes = tuple(dict.fromkeys(note for encoded in each for note in encoded.notes))
        work = "; ".join(dict.fromkeys(encoded.work for encoded in each))
        return Encoded(inputs, notes, each[0].keys, work)

    def show(self, raw: Any, rows: Rows) -> Shown:
        return Shown(images=raw[rows])

    def front(self, input_shape: tuple[int, ...]) -> Front:
        joined = Joined([part.backbone for part in self.parts])
        return replace(self.parts[0].front(input_shape), module=joined)

    def to_dict(self) -> dict[str, Any]:
        return {"backbones": [part.to_dict() for part in self.parts]}

    def restore(self, learned: Mapping[str, Any]) -> None:
        for part, own in zip(self.parts, learned["backbones"], strict=True):
            part.restore(own)

    def __str__(self) -> str:
        return " and ".join(map(str, self.parts))
