"""Presets: complete configs by name, such as `get("cifar10-temporal")`. Imports no torch.

What is the same in all of the paper's runs are the defaults of `selfens.config`; the tables here are the rest.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from selfens import methods
from selfens.config import Config, DataConfig, NetworkConfig, ScheduleConfig
from selfens.errors import ConfigError, unknown_name

DEFAULT_METHOD = "temporal"
VECTORS_METHOD, IMAGES_METHOD = "committee", "temporal-teacher"
VECTORS_NETWORKS = ("committee", "mlp")  # of that method, and of the others


class Preset(NamedTuple):
    """A method on a data set: what is set besides `DATA_SETS`, and what to expect."""

    overrides: tuple[str, ...]
    time: str
    """Times on an H200 follow from the measured images/s."""
    ours: str = ""
    """The test error, if it was measured."""
    paper: str = ""
    method: str = ""
    """If it is not the name's second part."""


DATA_SETS: dict[str, tuple[str, tuple[str, ...]]] = {
    "digits": (
        "scikit-learn's digits",
        (
            "data.labels=50",
            "network.name=small",
            "network.mean_momentum=0.95",
            "optimizer.learning_rate=0.01",
            "schedule.epochs=60",
        ),
    ),
    "cifar10": (
        "CIFAR-10 with augmentation",
        ("data.labels=4000", "data.preprocess=zca", "augment.flip=true", "augment.translation=2"),
    ),
    "cifar100": (
        "CIFAR-100 with augmentation",
        ("data.labels=10000", "data.preprocess=zca", "augment.flip=true", "augment.translation=2"),
    ),
    "svhn": (
        "SVHN with augmentation",
        ("data.labels=500", "data.preprocess=image", "augment.translation=2"),
    ),
}
"""A title, and what all presets of the data set have in common."""

WEIGHT_30, WEIGHT_60, WEIGHT_100 = ((f"method.weight_max={weight}",) for weight in (30, 60, 100))
FIXMATCH = ("method.decay=0.99", "augment.cutout=0.25", "training.labeled_per_batch=20")
TEACHER = (  # what goes with the temporal teacher on images; docs/modern.md says how it was chosen
    "network.normalization=full",
    "network.noise=0",
    "network.dropout=0",
    "network.mean_momentum=0.99",
    "optimizer.name=sgd",
    "optimizer.learning_rate=0.1",
    "optimizer.weight_decay=0.0005",
    "schedule.name=cosine",
    "schedule.warmup_epochs=2",
    "schedule.weight_rampup_epochs=0",
    "training.batch_size=125",
)
MODERN = (
    *("data.preprocess=channel", "data.preprocess_after_views=true", "augment.translation=4", "schedule.epochs=200"),
    *TEACHER,
)
FAST = (  # the paper's normalization and Adam learn faster at first
    *MODERN,
    *("network.normalization=mean", "optimizer.name=adam", "optimizer.learning_rate=0.003", "optimizer.weight_decay=0"),
    "schedule.epochs=30",
)
SVHN_MODERN = (
    *MODERN,
    *("data.labels=1000", "augment.translation=2", "optimizer.learning_rate=0.06", "schedule.epochs=160"),
)
DIGITS_MODERN = (
    *MODERN,
    *("augment.translation=1", "augment.cutout=0.25", "schedule.epochs=60", "training.batch_size=100"),
    *("network.mean_momentum=0.95", "method.decay=0.99"),  # slower averages would lag behind in so few steps
)

PRESETS: dict[str, Preset] = {
    "digits-supervised": Preset((), "10 s on one CPU core", "11.7 ± 1.9 % (seeds 0-4)"),
    "digits-pi": Preset(WEIGHT_60, "17 s on one CPU core", "6.3 ± 2.1 % (seeds 0-4)"),
    "digits-temporal": Preset(WEIGHT_60, "10 s on one CPU core", "7.6 ± 1.3 % (seeds 0-4)"),
    "digits-mean-teacher": Preset((*WEIGHT_100, "method.decay=0.9"), "14 s on one CPU core", "7.1 ± 1.8 % (seeds 0-4)"),
    "digits-fixmatch": Preset(
        (*FIXMATCH, "schedule.weight_rampup_epochs=0"), "20 s on one CPU core", "4.4 ± 0.4 % (seeds 0-4)"
    ),
    "digits-modern": Preset(
        DIGITS_MODERN, "16 s on one CPU core", "3.3 ± 1.1 % (seeds 0-4)", method="temporal-teacher"
    ),
    "cifar10-supervised": Preset(
        (), "4 min on an H200", "17.44 % (seed 0; docs/methods.md says why)", "34.85 ± 1.65 %"
    ),
    "cifar10-pi": Preset(WEIGHT_100, "7 min on an H200", "12.68 ± 0.40 % (seeds 0-1)", "12.36 ± 0.31 %"),
    "cifar10-temporal": Preset(WEIGHT_30, "4 min on an H200", "12.21 ± 0.30 % (seeds 0-5)", "12.16 ± 0.24 %"),
    "cifar10-modern": Preset(MODERN, "4 min on an H200", "6.08 ± 0.03 % (seeds 0-2)", method="temporal-teacher"),
    "cifar10-fast": Preset(FAST, "40 s on an H200", "11.95 ± 0.28 % (seeds 0-2)", method="temporal-teacher"),
    "cifar100-supervised": Preset((), "4 min on an H200", paper="44.56 ± 0.30 %"),
    "cifar100-pi": Preset(WEIGHT_100, "7 min on an H200", paper="39.19 ± 0.36 %"),
    "cifar100-temporal": Preset(WEIGHT_100, "4 min on an H200", "39.27 % (seed 0)", "38.65 ± 0.51 %"),
    "cifar100-modern": Preset(
        (*MODERN, "schedule.epochs=220"), "5 min on an H200", "27.51 % (seed 0)", method="temporal-teacher"
    ),
    "svhn-supervised": Preset((), "6 min on an H200", paper="31.59 ± 3.60 %"),
    "svhn-pi": Preset(WEIGHT_100, "10 min on an H200", "6.38 % (seed 0)", "6.65 ± 0.53 %"),
    "svhn-temporal": Preset(
        (*WEIGHT_30, "optimizer.learning_rate=0.001"), "6 min on an H200", "5.25 ± 0.20 % (seeds 0-1)", "5.12 ± 0.13 %"
    ),
    "svhn-modern": Preset(SVHN_MODERN, "5 min on an H200", "3.24 % (seed 0)", method="temporal-teacher"),
}


def full_name(name: str) -> str | None:
    """The preset that `name` means: itself, or with the default method added (digits: digits-temporal)."""
    return next((candidate for candidate in (name, f"{name}-{DEFAULT_METHOD}") if candidate in PRESETS), None)


def get(name: str, method: str | None = None) -> Config:
    """The config of a preset; with another method, that of the preset of its data set for the method. If there is none, the
    other settings are kept where they suit both methods.

    >>> get("digits", "mean-teacher") == get("digits-mean-teacher")
    True
    >>> get("cifar10-modern", "fixmatch").optimizer == get("cifar10-modern").optimizer
    True
    """
    found = full_name(name)
    if found is None:
        raise ConfigError(unknown_name("preset", name, PRESETS))
    data, overrides = found.partition("-")[0], PRESETS[found].overrides
    if method not in (None, method_of(found)):
        own = overrides if {method, method_of(found)} <= STRONG_METHODS.keys() else ()
        named = (other for other in PRESETS if other.startswith(f"{data}-") and method_of(other) == method)
        overrides = next((PRESETS[other].overrides for other in named), own)
    config = Config(data=DataConfig(name=data)).with_overrides(DATA_SETS[data][1])
    return with_method(config, method or method_of(found), images=True).with_overrides(overrides)


def method_of(name: str) -> str:
    """The method of a preset."""
    return PRESETS[name].method or name.partition("-")[2]


def about(name: str) -> str:
    """What to expect of a preset, in a line."""
    preset, title = PRESETS[name], DATA_SETS[name.partition("-")[0]][0]
    data = f"{title}, {get(name).data.labels:,} labels"
    paper = f"{preset.paper} in the paper" if preset.paper else ""
    return "; ".join(filter(None, (data, preset.ours, paper, f"about {preset.time}")))


def with_method(config: Config, method: str, *, images: bool) -> Config:
    """`config` with another method, with that method's own options."""
    if images and "strong" in methods.find(method).views and config.data.preprocess == "channel":
        config = config.with_values("data", preprocess_after_views=True)  # so that colors can be changed
    return config.with_values("method", name=method)


VECTORS = (
    f"method.name={VECTORS_METHOD}",
    "network.name=committee",
    "network.noise=0",
    "network.dropout=0.3",
    "optimizer.name=adamw",
    "optimizer.learning_rate=0.002",
    "optimizer.weight_decay=0.01",
    "schedule.name=cosine",
    "training.batch_size=320",
    "training.min_steps_per_epoch=20",
)
"""Chosen on the tasks that `benchmarks/own_data.py` names."""
VECTORS_EPOCHS, VECTORS_MIN_EPOCHS = 50, 10
VECTORS_ROWS = 5120  # with so many rows, an epoch of 20 steps visits each once


def for_vectors(name: str, rows: int) -> Config:
    """Settings for a user's own vectors: 1,000 steps, and more if these are less than ten visits of all rows."""
    config = Config(data=DataConfig(name=name, preprocess="channel")).with_overrides(VECTORS)
    epochs = max(VECTORS_EPOCHS * VECTORS_ROWS // max(rows, VECTORS_ROWS), VECTORS_MIN_EPOCHS)
    return config.with_values("schedule", epochs=epochs, weight_rampup_epochs=epochs / 10)


class ImageSettings(NamedTuple):
    """Settings for a user's own images, on a CPU or on a GPU."""

    overrides: tuple[str, ...]
    network: str
    min_side: int
    """Of images, in pixels, for this network; smaller ones get `small`."""
    steps: int
    """For images of up to 32 pixels."""
    steps_per_epoch: int
    """The fewest of an epoch."""


ON_CPU = ImageSettings(
    overrides=(
        *("network.noise=0", "network.dropout=0", "network.mean_momentum=0.9", "method.decay=0.97"),
        *("optimizer.name=adamw", "optimizer.learning_rate=0.008", "optimizer.weight_decay=0.01"),
        *("schedule.name=cosine", "schedule.weight_rampup_epochs=0", "training.batch_size=256"),
    ),
    network="tiny",
    min_side=12,
    steps=1100,
    steps_per_epoch=1,
)
"""A minute or two. Chosen on images with other labels than those that results are reported for (docs/log.md)."""
ON_GPU = ImageSettings(overrides=TEACHER, network="conv13", min_side=24, steps=20_000, steps_per_epoch=200)
STRONG_METHODS = {IMAGES_METHOD: (), "fixmatch": ("method.threshold=0.8",)}  # which these settings suit


def for_images(name: str, side: int, rows: int, method: str, chosen: ImageSettings) -> Config:
    """Settings for a user's own images: epochs enough for `chosen.steps`, fewer for large images, but at least three."""
    config = with_method(Config(data=DataConfig(name=name, preprocess="channel")), method, images=True)
    config = config.with_overrides((*chosen.overrides, *STRONG_METHODS[method]))
    steps = max(chosen.steps * 32**2 // max(side, 32) ** 2, chosen.steps // 3)
    rows_per_step = round(config.training.batch_size * (1 - methods.find(method).labeled_share))
    epochs = max(-(-steps // max(rows // rows_per_step, chosen.steps_per_epoch)), 3)
    training = {"evaluate_every": -(-epochs // 20), "min_steps_per_epoch": chosen.steps_per_epoch}
    config = config.with_values("training", **training)
    config = config.with_values("network", name=chosen.network if side >= chosen.min_side else "small")
    return config.with_values("schedule", epochs=epochs, warmup_epochs=min(epochs / 40, 1))


def for_arrays(
    name: str,
    *,
    images_side: int | None,
    rows: int,
    method: str | None = None,
    on_gpu: bool = False,
    photos: bool = False,
) -> Config:
    """Settings for a user's own data, with this method, or with the one that fits the data.

    Features (no `images_side`) have those of `for_vectors`, images those of `for_images`. With another method: conv13 on a
    GPU for images of 24 pixels and more, else a small network; mlp for features; and the fewer the rows, the more epochs, so
    that there are enough steps to learn in. Only photos are flipped: a mirrored digit is no digit.
    """
    if images_side is None and method in (None, VECTORS_METHOD):
        return for_vectors(name, rows)
    side, method = images_side or 0, method or IMAGES_METHOD
    if images_side is not None and method in STRONG_METHODS:
        config = for_images(name, images_side, rows, method, ON_GPU if on_gpu else ON_CPU)
    else:
        network = "mlp" if images_side is None else "conv13" if on_gpu and side >= ON_GPU.min_side else "small"
        config = Config(
            data=DataConfig(name=name, preprocess="channel"),
            network=NetworkConfig(name=network, mean_momentum=0.99),
            schedule=ScheduleConfig(epochs=min(300, max(60, 200_000 // rows))),
        )
        config = with_method(config, method, images=images_side is not None)
    return config.with_values("augment", flip=photos, translation=2 if side >= 24 else 1 if side >= 12 else 0)


def why(chosen: Config, used: Config, *, on_gpu: bool, images: str, timed: bool = False) -> str:
    """One line: which settings were chosen for a user's own data and why, and which of them the user has changed. `images`:
    "arrays" or "files" of images, empty for vectors. `timed`: a time limit decides the number of epochs."""
    where, shift = "on a GPU" if on_gpu else "without a GPU", chosen.augment.translation
    flips = "flips, because files of images are taken for photos (augment.flip=false if left and right matter)"
    if not chosen.augment.flip:
        reason = "arrays do not say whether left and right matter"
        flips = f"no flips, because {reason if images == 'arrays' else 'the classes are numbers or letters'}"
    reasons = {
        "method.name": f"method {chosen.method.name}",
        "network.name": f"network {chosen.network.name}, for {'images' if images else 'vectors'} {where}",
        "schedule.epochs": "" if timed else f"{chosen.schedule.epochs:,} epochs, for this number of rows",
        "augment.translation": f"shifts of up to {shift} pixel{'s' if shift > 1 else ''}" if shift else "",
        "augment.flip": flips if images else "",
    }
    scaled = replace(chosen, schedule=chosen.schedule.scaled(used.schedule.epochs))
    before, after = (
        {f"{section}.{name}": value for section, values in config.to_dict().items() for name, value in values.items()}
        for config in (scaled, used)
    )
    before["schedule.epochs"] = chosen.schedule.epochs
    changed = [field for field, value in after.items() if before.get(field) != value]
    own = [f"{x}={after[x]}" for x in changed if not x.startswith(("data.", "seed.")) and x != "training.device"]
    kept = [reason for field, reason in reasons.items() if reason and field not in changed]
    return "chosen: " + "; ".join([*kept, *([f"set by you: {', '.join(own)}"] if own else [])])
