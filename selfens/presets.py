"""Presets: complete configs by name, such as `get("cifar10-temporal")`.

Settings shared by all of the paper's runs are the defaults of `selfens.config`; the tables here hold the rest.
"""

from typing import NamedTuple

from selfens.config import Config
from selfens.data.sources import options_for
from selfens.errors import ConfigError, unknown_name

DEFAULT_METHOD = "temporal"


class Preset(NamedTuple):
    """A method on a data set: its overrides on top of those of `DATA_SETS`, its time and its error."""

    overrides: tuple[str, ...]
    time: str
    """Training time; on an H200, computed from the measured images/s."""
    ours: str = ""
    """Our test error, if it was measured."""
    paper: str = ""
    """The paper's test error."""


DIGITS = (
    *("labels.count=50", "network.name=small", "network.mean_momentum=0.95"),
    *("optimizer.learning_rate=0.01", "schedule.epochs=60"),
)
CIFAR = ("preprocess.kind=zca", "views.flip=true", "views.translation=2")
DATA_SETS: dict[str, tuple[str, tuple[str, ...]]] = {
    "digits": ("scikit-learn's digits", DIGITS),
    "cifar10": ("CIFAR-10 with augmentation", ("labels.count=4000", *CIFAR)),
    "cifar100": ("CIFAR-100 with augmentation", ("labels.count=10000", *CIFAR)),
    "svhn": ("SVHN with augmentation", ("labels.count=500", "preprocess.kind=image", "views.translation=2")),
}
"""The title of each data set, and the overrides that all of its presets share."""

WEIGHT_30, WEIGHT_60, WEIGHT_100 = ((f"method.weight_max={weight}",) for weight in (30, 60, 100))
NO_RAMPUP = "schedule.weight_rampup_epochs=0"
FIXMATCH = ("method.decay=0.99", "views.cutout=0.25", "training.labeled_per_batch=20")
TEACHER = (  # settings for the temporal teacher on images; docs/modern.md says how they were chosen
    "network.normalization=full",
    "network.noise=0",
    "network.dropout=0",
    "network.mean_momentum=0.99",
    "optimizer.name=sgd",
    "optimizer.learning_rate=0.1",
    "optimizer.weight_decay=0.0005",
    "schedule.name=cosine",
    "schedule.warmup_epochs=2",
    NO_RAMPUP,
    "training.batch_size=125",
)
MODERN = ("preprocess.kind=channel", "views.translation=4", "schedule.epochs=200", *TEACHER)
FAST = (  # the paper's normalization and Adam learn faster at first
    *MODERN,
    *("network.normalization=mean", "optimizer.name=adam", "optimizer.learning_rate=0.003", "optimizer.weight_decay=0"),
    "schedule.epochs=30",
)
SVHN_MODERN = (
    *MODERN,
    *("labels.count=1000", "views.translation=2", "optimizer.learning_rate=0.06", "schedule.epochs=160"),
)
DIGITS_MODERN = (
    *MODERN,
    *("views.translation=1", "views.cutout=0.25", "schedule.epochs=60", "training.batch_size=100"),
    *("network.mean_momentum=0.95", "method.decay=0.99"),  # slower averages would lag behind in a short run
)

PRESETS: dict[str, Preset] = {
    "digits-supervised": Preset((), "10 s on one CPU core", "11.7 ± 1.9 % (seeds 0-4)"),
    "digits-pi": Preset(WEIGHT_60, "17 s on one CPU core", "6.3 ± 2.1 % (seeds 0-4)"),
    "digits-temporal": Preset(WEIGHT_60, "10 s on one CPU core", "7.6 ± 1.3 % (seeds 0-4)"),
    "digits-mean-teacher": Preset((*WEIGHT_100, "method.decay=0.9"), "14 s on one CPU core", "7.1 ± 1.8 % (seeds 0-4)"),
    "digits-fixmatch": Preset((*FIXMATCH, NO_RAMPUP), "20 s on one CPU core", "4.4 ± 0.4 % (seeds 0-4)"),
    "digits-modern": Preset(DIGITS_MODERN, "16 s on one CPU core", "3.3 ± 1.1 % (seeds 0-4)"),
    "digits-pseudo-label": Preset((), "15 s on one CPU core", "10.6 ± 3.1 % (seeds 0-1)"),
    "digits-bootstrapping": Preset((), "15 s on one CPU core"),
    "digits-elr": Preset((NO_RAMPUP,), "12 s on one CPU core", "8.1 ± 1.6 % (seeds 0-1)"),
    "digits-stability": Preset(
        ("method.weight_max=10", "method.exclusivity=0.1"), "35 s on one CPU core", "5.0 ± 0.3 % (seeds 0-1)"
    ),
    "digits-ict": Preset((*WEIGHT_100, "method.decay=0.9"), "25 s on one CPU core", "6.3 ± 0.7 % (seeds 0-1)"),
    "digits-gamma": Preset(
        ("network.noise=0", "network.dropout=0", "training.labeled_per_batch=20"),
        "26 s on one CPU core",
        "7.6 ± 1.1 % (seeds 0-1)",
    ),
    "digits-vat": Preset(("method.entropy=1",), "38 s on one CPU core", "5.5 ± 3.3 % (seeds 0-1)"),
    "cifar10-supervised": Preset((), "4 min on an H200", "17.44 % (seed 0; see docs/methods.md)", "34.85 ± 1.65 %"),
    "cifar10-pi": Preset(WEIGHT_100, "7 min on an H200", "12.68 ± 0.40 % (seeds 0-1)", "12.36 ± 0.31 %"),
    "cifar10-temporal": Preset(WEIGHT_30, "4 min on an H200", "12.21 ± 0.30 % (seeds 0-5)", "12.16 ± 0.24 %"),
    "cifar10-modern": Preset(MODERN, "4 min on an H200", "6.08 ± 0.03 % (seeds 0-2)"),
    "cifar10-fast": Preset(FAST, "40 s on an H200", "11.95 ± 0.28 % (seeds 0-2)"),
    "cifar100-supervised": Preset((), "4 min on an H200", paper="44.56 ± 0.30 %"),
    "cifar100-pi": Preset(WEIGHT_100, "7 min on an H200", paper="39.19 ± 0.36 %"),
    "cifar100-temporal": Preset(WEIGHT_100, "4 min on an H200", "39.27 % (seed 0)", "38.65 ± 0.51 %"),
    "cifar100-modern": Preset((*MODERN, "schedule.epochs=220"), "5 min on an H200", "27.51 % (seed 0)"),
    "svhn-supervised": Preset((), "6 min on an H200", paper="31.59 ± 3.60 %"),
    "svhn-pi": Preset(WEIGHT_100, "10 min on an H200", "6.38 % (seed 0)", "6.65 ± 0.53 %"),
    "svhn-temporal": Preset(
        (*WEIGHT_30, "optimizer.learning_rate=0.001"), "6 min on an H200", "5.25 ± 0.20 % (seeds 0-1)", "5.12 ± 0.13 %"
    ),
    "svhn-modern": Preset(SVHN_MODERN, "5 min on an H200", "3.24 % (seed 0)"),
}

STRONG_METHODS = ("temporal-teacher", "fixmatch")
"""Methods for which the settings in `TEACHER` are suitable."""


def full_name(name: str) -> str | None:
    """Return the full name of a preset (digits means digits-temporal), or None if there is no such preset."""
    return next((full for full in (name, f"{name}-{DEFAULT_METHOD}") if full in PRESETS), None)


def get(name: str, method: str | None = None) -> Config:
    """Return the config of a preset.

    Parameters
    ----------
    name
        Such as "cifar10-pi"; "cifar10" means "cifar10-temporal".
    method
        Train this method instead, with the settings of its preset on the same data set. If it has none, the settings of
        `name` are kept if they suit both methods; otherwise only those of the data set are.

    Examples
    --------
    >>> get("digits", "mean-teacher") == get("digits-mean-teacher")
    True
    >>> get("cifar10-modern", "fixmatch").optimizer == get("cifar10-modern").optimizer
    True
    """
    preset = full_name(name)
    if preset is None:
        raise ConfigError(unknown_name("preset", name, PRESETS))
    data, overrides = preset.partition("-")[0], PRESETS[preset].overrides
    if method not in (None, method_of(preset)):
        suits_both = {method, method_of(preset)} <= {*STRONG_METHODS}
        same_data = (other for other in PRESETS if other.startswith(f"{data}-") and method_of(other) == method)
        overrides = next((PRESETS[other].overrides for other in same_data), overrides if suits_both else ())
    config = Config(source=options_for(data)).with_overrides(DATA_SETS[data][1])
    return config.with_values("method", name=method or method_of(preset)).with_overrides(overrides)


def method_of(name: str) -> str:
    """Return the method of a preset."""
    word = name.partition("-")[2]
    return "temporal-teacher" if word in ("modern", "fast") else word


def about(name: str) -> str:
    """Describe a preset in one line: the data, its error, the paper's error, the time."""
    preset, title = PRESETS[name], DATA_SETS[name.partition("-")[0]][0]
    data = f"{title}, {get(name).labels.count:,} labels"
    paper = f"{preset.paper} in the paper" if preset.paper else ""
    return "; ".join(filter(None, (data, preset.ours, paper, f"about {preset.time}")))
