"""Presets: named functions that return a complete Config. Imports no torch.

Each docstring says the command, the time to expect and the error to expect: the paper's, and ours if it was measured. Times on
an H200 follow from the measured images/s. The paper's settings are in a small table here; what is the same in all of its runs
are the defaults of `selfens.config`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from selfens import methods
from selfens.config import (
    AugmentConfig,
    Config,
    DataConfig,
    NetworkConfig,
    OptimizerConfig,
    ScheduleConfig,
)
from selfens.errors import ConfigError, unknown_name

DEFAULT_METHOD = "temporal"


@dataclass(frozen=True)
class Rates:
    """What the paper sets by data set and method: the largest learning rate and w_max."""

    learning_rate: float
    weight_max: float | None = None
    """None: the method has none, or its own default."""


RATES: dict[str, dict[str, Rates]] = {
    "digits": {
        "supervised": Rates(0.01),
        "pi": Rates(0.01, 60),
        "temporal": Rates(0.01, 60),
        "mean-teacher": Rates(0.01, 100),
        "fixmatch": Rates(0.01),
    },
    "cifar10": {"supervised": Rates(0.003), "pi": Rates(0.003, 100), "temporal": Rates(0.003, 30)},
    "cifar100": {"supervised": Rates(0.003), "pi": Rates(0.003, 100), "temporal": Rates(0.003, 100)},
    "svhn": {"supervised": Rates(0.003), "pi": Rates(0.003, 100), "temporal": Rates(0.001, 30)},
}


def with_method(config: Config, method: str) -> Config:
    """`config` with another method: the preset of its data set for that method, if there is one and `config` is a preset;
    else with the learning rate and w_max that go with the method on this data set."""
    preset = PRESETS.get(f"{config.data.name}-{method}")
    if preset is not None and any(config == make() for make in PRESETS.values()):
        return preset()
    return _with_rates(config, method)


def _with_rates(config: Config, method: str) -> Config:
    if "strong" in methods.find(method).views and config.data.preprocess == "channel":
        config = config.with_values("data", preprocess_after_views=True)  # so that colours can be changed
    config = config.with_values("method", name=method)
    rates = RATES.get(config.data.name, {}).get(method)
    if rates is None:
        return config
    if rates.weight_max is not None:
        config = config.with_values("method", weight_max=rates.weight_max)
    return config.with_values("optimizer", learning_rate=rates.learning_rate)


def _digits(method: str) -> Config:
    return _with_rates(
        Config(
            data=DataConfig(name="digits", labels=50),
            network=NetworkConfig(name="small", mean_momentum=0.95),
            schedule=ScheduleConfig(epochs=60),
        ),
        method,
    )


def _paper(name: str, labels: int, preprocess: Literal["zca", "image"], flip: bool, method: str) -> Config:
    return _with_rates(
        Config(
            data=DataConfig(name=name, labels=labels, preprocess=preprocess),
            augment=AugmentConfig(flip=flip, translation=2),
        ),
        method,
    )


def digits_supervised() -> Config:
    """scikit-learn's digits, 50 labels, supervised-only.

    selfens train digits-supervised
    About 10 s on one CPU core; 11.7 ± 1.9 % (seeds 0-4).
    """
    return _digits("supervised")


def digits_pi() -> Config:
    """scikit-learn's digits, 50 labels, Π-model.

    selfens train digits-pi
    About 17 s on one CPU core; 6.3 ± 2.1 % (seeds 0-4).
    """
    return _digits("pi")


def digits_temporal() -> Config:
    """scikit-learn's digits, 50 labels, temporal ensembling.

    selfens train digits
    About 10 s on one CPU core; 7.6 ± 1.3 % (seeds 0-4).
    """
    return _digits("temporal")


def digits_mean_teacher() -> Config:
    """scikit-learn's digits, 50 labels, mean teacher.

    selfens train digits-mean-teacher
    About 14 s on one CPU core; 7.1 ± 1.8 % (seeds 0-4).
    """
    return _digits("mean-teacher").with_values("method", decay=0.9)


def digits_fixmatch() -> Config:
    """scikit-learn's digits, 50 labels, FixMatch.

    selfens train digits-fixmatch
    About 20 s on one CPU core; 5.2 ± 1.1 % (seeds 0-4).
    """
    config = _digits("fixmatch").with_values("method", decay=0.99)
    config = config.with_values("augment", cutout=0.25).with_values("training", labelled_per_batch=20)
    return config.with_values("schedule", weight_rampup_epochs=0)


def cifar10_supervised() -> Config:
    """CIFAR-10, 4,000 labels, supervised-only with augmentation: 34.85 ± 1.65 % in the paper.

    selfens train cifar10-supervised
    About 4 min on an H200; 17.44 % (seed 0; docs/methods.md says why the paper has twice that).
    """
    return _paper("cifar10", 4000, "zca", True, "supervised")


def cifar10_pi() -> Config:
    """CIFAR-10, 4,000 labels, Π-model with augmentation: 12.36 ± 0.31 % in the paper.

    selfens train cifar10-pi
    About 7 min on an H200; 12.68 ± 0.40 % (seeds 0-1).
    """
    return _paper("cifar10", 4000, "zca", True, "pi")


def cifar10_temporal() -> Config:
    """CIFAR-10, 4,000 labels, temporal ensembling with augmentation: 12.16 ± 0.24 % in the paper.

    selfens train cifar10-temporal
    About 4 min on an H200; 12.27 ± 0.29 % (seeds 0-4).
    """
    return _paper("cifar10", 4000, "zca", True, "temporal")


def cifar100_supervised() -> Config:
    """CIFAR-100, 10,000 labels, supervised-only with augmentation: 44.56 ± 0.30 % in the paper.

    selfens train cifar100-supervised
    About 4 min on an H200.
    """
    return _paper("cifar100", 10_000, "zca", True, "supervised")


def cifar100_pi() -> Config:
    """CIFAR-100, 10,000 labels, Π-model with augmentation: 39.19 ± 0.36 % in the paper.

    selfens train cifar100-pi
    About 7 min on an H200.
    """
    return _paper("cifar100", 10_000, "zca", True, "pi")


def cifar100_temporal() -> Config:
    """CIFAR-100, 10,000 labels, temporal ensembling with augmentation: 38.65 ± 0.51 % in the paper.

    selfens train cifar100-temporal
    About 4 min on an H200; 39.27 % (seed 0).
    """
    return _paper("cifar100", 10_000, "zca", True, "temporal")


def svhn_supervised() -> Config:
    """SVHN, 500 labels, supervised-only with augmentation: 31.59 ± 3.60 % in the paper.

    selfens train svhn-supervised
    About 6 min on an H200.
    """
    return _paper("svhn", 500, "image", False, "supervised")


def svhn_pi() -> Config:
    """SVHN, 500 labels, Π-model with augmentation: 6.65 ± 0.53 % in the paper.

    selfens train svhn-pi
    About 10 min on an H200.
    """
    return _paper("svhn", 500, "image", False, "pi")


def svhn_temporal() -> Config:
    """SVHN, 500 labels, temporal ensembling with augmentation: 5.12 ± 0.13 % in the paper.

    selfens train svhn-temporal
    About 6 min on an H200; 5.25 ± 0.20 % (seeds 0-1).
    """
    return _paper("svhn", 500, "image", False, "temporal")


PRESETS: dict[str, Callable[[], Config]] = {
    preset.__name__.replace("_", "-"): preset
    for preset in (
        digits_supervised,
        digits_pi,
        digits_temporal,
        digits_mean_teacher,
        digits_fixmatch,
        cifar10_supervised,
        cifar10_pi,
        cifar10_temporal,
        cifar100_supervised,
        cifar100_pi,
        cifar100_temporal,
        svhn_supervised,
        svhn_pi,
        svhn_temporal,
    )
}


def full_name(name: str) -> str | None:
    """The preset that `name` means: itself, or with the default method added (digits: digits-temporal)."""
    return next((candidate for candidate in (name, f"{name}-{DEFAULT_METHOD}") if candidate in PRESETS), None)


def get(name: str) -> Config:
    found = full_name(name)
    if found is None:
        raise ConfigError(unknown_name("preset", name, PRESETS))
    return PRESETS[found]()


def for_arrays(name: str, *, images_side: int | None, rows: int | None = None, on_gpu: bool = False) -> Config:
    """Settings for a user's own data.

    conv13 on a GPU for images of 24 pixels and more, a small network on a CPU or for smaller ones, mlp for features (no
    `images_side`). The fewer the rows, the more epochs, so that there are enough steps to learn in.
    """
    if images_side is None:
        network, translation = "mlp", 0
    else:
        network = "conv13" if on_gpu and images_side >= 24 else "small"
        translation = 2 if images_side >= 24 else 1 if images_side >= 12 else 0
    return Config(
        data=DataConfig(name=name, preprocess="channel"),
        augment=AugmentConfig(translation=translation),
        network=NetworkConfig(name=network, mean_momentum=0.99),
        optimizer=OptimizerConfig(learning_rate=0.003),
        schedule=ScheduleConfig(epochs=100 if rows is None else min(300, max(60, 200_000 // rows))),
    )
