"""Config: everything that decides a run, as frozen dataclasses that convert to JSON and back.

A section checks its values when it is created, so every Config is valid. Overrides written as `section.field=value` are parsed
by the type of the field. The sections `source`, `encoder` and `method` are the options of a source, an encoder and a method,
each defined in the file of its class.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, ClassVar, Literal

from selfens.core.views import VIEWS, ViewsConfig
from selfens.data.labels import LabelsConfig
from selfens.data.sources import SOURCES, SourceOptions
from selfens.encoders import ENCODERS, EncoderOptions
from selfens.errors import ConfigError, check_type, unknown_name
from selfens.methods import METHODS, MethodOptions
from selfens.settings import Registry, Section, field_types, parse, setting

MAX_THREADS = 1024  # torch crashes with many more
Switch = Literal["auto", "on", "off"]
FRACTION: dict[str, Any] = {"at_least": 0, "below": 1}
SEED: dict[str, Any] = {"at_least": 0, "at_most": 2**32 - 1}

REGISTRIES: dict[str, Registry] = {"source": SOURCES, "encoder": ENCODERS, "method": METHODS}
"""The sections that are the options of a class, and the registries of these classes."""


@dataclass(frozen=True, kw_only=True)
class PreprocessConfig(Section):
    section: ClassVar[str] = "preprocess"
    kind: Literal["zca", "image", "channel", "none"] = setting(
        "none", "ZCA whitening, zero mean and unit variance per image, the same per channel or feature, or nothing."
    )
    rows: Literal["all", "labeled"] = setting("all", "Fit on all rows of the main set, or only on the labeled ones.")
    after_views: Switch = setting(
        "auto",
        "Preprocess views, not inputs, so that colors change on pixels; auto: if kind is channel and a view changes colors.",
    )

    def is_after_views(self, views: Iterable[str]) -> bool:
        """Return True if each view of a method is preprocessed, rather than the whole set once."""
        if self.after_views != "auto":
            return self.after_views == "on"
        return self.kind == "channel" and any(VIEWS[name].has_colors for name in views)


@dataclass(frozen=True, kw_only=True)
class NetworkConfig(Section):
    section: ClassVar[str] = "network"
    name: str = setting("conv13", "A built-in network, or module:factory, a function of (input_shape, num_classes).")
    noise: float = setting(0.15, "Standard deviation of the noise added to the inputs in training.", at_least=0)
    dropout: float = setting(0.5, "Probability of dropping a unit.", **FRACTION)
    normalization: Literal["mean", "full"] = setting(
        "mean", "conv13, small, mlp: the paper's weight and mean-only batch normalization, or full batch normalization."
    )
    mean_momentum: float = setting(0.999, "Momentum of batch normalization's running means and variances.", **FRACTION)
    width: int | None = setting(
        None, "Channels (or units) of the first layers; none: the network's default.", at_least=1, at_most=2**16
    )
    groups: str = setting(
        "", "committee: numbers of features that have heads of their own, such as 1280,2048; set by the encoder."
    )

    backbone: str = setting("", "backbone: what is fine-tuned, timm:NAME or package.module:factory.")
    weights: str | None = setting(None, "backbone: file of its weights; none: the model's own.", is_path=True)
    size: int | None = setting(None, "backbone: side of its input images; none: what its own config says.", at_least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.feature_groups

    @property
    def feature_groups(self) -> tuple[int, ...]:
        """`groups` as numbers."""
        numbers = [parse("network.groups", part.strip(), int) for part in self.groups.split(",") if self.groups]
        if not all(number > 0 for number in numbers):
            raise ConfigError(f"network.groups is '{self.groups}'; expected numbers above 0, such as 1280,2048.")
        return tuple(numbers)


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig(Section):
    section: ClassVar[str] = "optimizer"
    name: Literal["adam", "sgd", "adamw"] = setting("adam", "The authors' Adam, SGD with Nesterov momentum, or AdamW.")
    learning_rate: float = setting(0.003, "The largest learning rate, lambda_max.", above=0, at_most=1e38)
    weight_decay: float = setting(0.0, "Weight decay of weights with two or more dimensions.", at_least=0)
    momentum: float = setting(0.9, "sgd: momentum of the gradient.", **FRACTION)
    beta1: float = setting(0.9, "adam, adamw: momentum of the gradient until the ramp-down.", **FRACTION)
    beta1_end: float = setting(0.5, "adam: momentum of the gradient at the end of the paper's ramp-down.", **FRACTION)
    beta2: float = setting(0.999, "adam, adamw: momentum of the squared gradient.", **FRACTION)
    epsilon: float = setting(1e-8, "adam, adamw: added to the root of the second moment.", above=0)
    multipliers: str = setting("", "Factors of the learning rate by prefix of parameter names: backbone:0.1,head:1.")

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.learning_rate_multipliers

    @property
    def learning_rate_multipliers(self) -> dict[str, float]:
        """`multipliers` as a dict, by prefix of parameter names."""
        found: dict[str, float] = {}
        for entry in filter(None, (part.strip() for part in self.multipliers.split(","))):
            name, colon, number = entry.rpartition(":")
            value = parse("optimizer.multipliers", number, float) if colon and name else -1.0
            if not 0 <= value < float("inf"):
                raise ConfigError(f"optimizer.multipliers holds '{entry}'; expected entries such as backbone:0.1.")
            found[name.strip()] = value
        return found


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig(Section):
    """How learning rate, beta1 and the unsupervised weight w change."""

    section: ClassVar[str] = "schedule"
    name: Literal["paper", "cosine"] = setting(
        "paper", "Learning rate: the paper's ramps, by epochs; or a linear warm-up and a cosine to 0, by steps."
    )
    epochs: int = setting(300, "Number of passes over the training set.", at_least=1, at_most=10**9)
    rampup_epochs: float | None = setting(
        None, "Ramp-up of w (paper: also of the learning rate); none: 80/300 of the epochs.", at_least=0
    )
    rampdown_epochs: float | None = setting(
        None, "paper: ramp-down of learning rate and beta1; none: 50/300 of the epochs.", at_least=0
    )
    rampup_constant: float = setting(5.0, "c of the ramp-up exp(-c(1-T)^2).", at_least=0)
    rampdown_constant: float = setting(12.5, "c of the ramp-down exp(-c T^2).", at_least=0)
    warmup_epochs: float = setting(0.0, "cosine: length of the warm-up.", at_least=0)
    weight_rampup_epochs: float | None = setting(
        None, "Ramp-up of w; none: as rampup_epochs, with w = 0 in the first epoch; 0: no ramp-up.", at_least=0
    )
    prior: float = setting(
        0.3, "Share of the epochs over which targets go from the prior to the method's own.", at_least=0, at_most=1
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, length in (("rampdown_epochs", self.rampdown), ("warmup_epochs", self.warmup_epochs)):
            if length > self.epochs:
                raise ConfigError(f"schedule.{name} is {length!r}; expected 0 to {self.epochs}, the number of epochs.")

    def scaled(self, epochs: int) -> ScheduleConfig:
        """Return this schedule with another number of epochs. Ramps scale with it."""
        if epochs == self.epochs:
            return self  # without rounding
        names = ("rampup_epochs", "rampdown_epochs", "warmup_epochs", "weight_rampup_epochs")
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        # Check the new number of epochs before computing with it; the old ramps may be longer than it.
        checked = replace(self, epochs=epochs, rampdown_epochs=None, warmup_epochs=0.0)
        return replace(checked, **{name: length * epochs / self.epochs for name, length in given.items()})

    @property
    def rampup(self) -> float:
        return self.epochs * 80 / 300 if self.rampup_epochs is None else self.rampup_epochs

    @property
    def rampdown(self) -> float:
        return self.epochs * 50 / 300 if self.rampdown_epochs is None else self.rampdown_epochs

    @property
    def weight_rampup(self) -> float:
        return self.rampup if self.weight_rampup_epochs is None else self.weight_rampup_epochs


@dataclass(frozen=True, kw_only=True)
class TrainingConfig(Section):
    section: ClassVar[str] = "training"
    batch_size: int = setting(100, "Rows per step; an incomplete last batch is dropped.", at_least=2)
    labeled_per_batch: int | None = setting(
        None, "Labeled rows at the beginning of each batch; none: by method.", at_least=1
    )
    unlabeled_per_epoch: int | None = setting(
        None, "Draw this many unlabeled rows for each epoch, extra ones included; none: all of them.", at_least=1
    )
    min_steps_per_epoch: int = setting(
        1, "If batches begin with labeled rows: minimum number of steps of an epoch.", at_least=1, at_most=100_000
    )
    rows: Literal["all", "labeled"] = setting("all", "Visit all rows, or only the labeled ones.")
    residence: Literal["auto", "device", "ram", "file"] = setting(
        "auto", "Where the inputs are kept; auto: on the device if they fit.", affects_result=False
    )
    device: Literal["auto", "cpu", "cuda"] = setting(
        "auto", "Device to train on; auto: a GPU if there is one.", affects_result=False
    )
    precision: Literal["auto", "bf16", "tf32", "fp32"] = setting(
        "auto", "Precision of the network; auto: bf16 on GPUs that support it, else fp32.", affects_result=False
    )
    compile: Switch = setting("auto", "Compile the step with torch.compile; auto: on a GPU.", affects_result=False)
    capture: Switch = setting("auto", "Replay the step from a CUDA graph; auto: on a GPU.", affects_result=False)
    kernels: Switch = setting("auto", "Use our own kernels between convolutions; auto: on a GPU.", affects_result=False)
    threads: int | None = setting(
        None, "CPU threads; none: torch's default.", at_least=1, at_most=MAX_THREADS, affects_result=False
    )
    evaluate_every: int = setting(1, "Evaluate every n-th epoch, and the last one.", at_least=1, affects_result=False)
    checkpoint_every: int | None = setting(
        None, "Epochs between checkpoints; none: one every ten seconds.", at_least=1, affects_result=False
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.labeled_per_batch is None:
            return
        if self.labeled_per_batch >= self.batch_size:
            given = f"{self.labeled_per_batch} and training.batch_size {self.batch_size}"
            raise ConfigError(
                f"training.labeled_per_batch is {given}; expected fewer labeled rows than rows in a batch."
            )
        if self.rows == "labeled":
            raise ConfigError("training.labeled_per_batch needs unlabeled rows; set training.rows to 'all'.")
        if self.unlabeled_per_epoch is not None:
            raise ConfigError("training.labeled_per_batch and unlabeled_per_epoch are both set; leave one out.")


@dataclass(frozen=True, kw_only=True)
class SeedConfig(Section):
    """One seed for everything; each part can have its own."""

    section: ClassVar[str] = "seed"
    base: int = setting(0, "Seed of every part that has none of its own.", **SEED)
    labels: int | None = setting(None, "Seed of the choice and corruption of labels; none: base.", **SEED)
    split: int | None = setting(None, "Seed of the split, if the data set has none of its own; none: base.", **SEED)
    training: int | None = setting(None, "Seed of weights, order, views, noise and dropout; none: base.", **SEED)

    def of(self, part: Literal["labels", "split", "training"]) -> int:
        value: int | None = getattr(self, part)
        return self.base if value is None else value


@dataclass(frozen=True, kw_only=True)
class Config:
    """The settings of a run, one attribute per section. Immutable: `with_values` and `with_overrides` return copies."""

    source: SourceOptions = field(default_factory=lambda: SOURCES.options("digits"))
    encoder: EncoderOptions = field(default_factory=lambda: ENCODERS.options("identity"))
    labels: LabelsConfig = field(default_factory=LabelsConfig)
    preprocess: PreprocessConfig = field(default_factory=PreprocessConfig)
    views: ViewsConfig = field(default_factory=ViewsConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    method: MethodOptions = field(default_factory=lambda: METHODS.options("temporal"))
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    seed: SeedConfig = field(default_factory=SeedConfig)

    def __post_init__(self) -> None:
        for name, kind in SECTIONS.items():
            check_type(f"section '{name}'", getattr(self, name), kind, f"a {kind.__name__}")
        for name, registry in REGISTRIES.items():
            options = getattr(self, name)
            if options.name not in registry:
                advice = "pass a method of your own to train(..., method=...)" if name == "method" else "register it"
                given = type(options).__qualname__
                raise ConfigError(f"{name} is {given}, which is not registered in {name.upper()}S; {advice}.")
        if self.training.rows == "labeled" and self.source.extra is not None:
            raise ConfigError("training.rows is 'labeled', which visits no unlabeled rows; leave out source.extra.")

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Return the fields by section. Sections in `REGISTRIES` begin with the name of their class."""
        raw = {section.name: asdict(getattr(self, section.name)) for section in fields(self)}
        return raw | {name: {"name": getattr(self, name).name, **raw[name]} for name in REGISTRIES}

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2) + "\n"

    @classmethod
    def from_dict(cls, raw: Any) -> Config:
        check_type("the configuration", raw, dict, "sections of fields")
        return cls()._changed(raw)

    def with_overrides(self, overrides: Iterable[str]) -> Config:
        """Return this config with `section.field=value` applied, each value parsed by its field's type.

        If the number of epochs changes, ramps scale with it, unless they are set too.

        >>> Config().with_overrides(["method.decay=0.999", "method.name=mean-teacher"]).method.decay
        0.999
        """
        changes: dict[str, dict[str, str]] = {}
        for text in overrides:
            path, equals, value = text.partition("=")
            section, dot, key = path.strip().partition(".")
            if not equals or not dot:
                raise ConfigError(f"'{text}' is not an override; write section.field=value.")
            changes.setdefault(section, {})[key] = value.strip()
        config = self
        if (epochs := changes.get("schedule", {}).get("epochs")) is not None:
            config = self.with_epochs(parse("schedule.epochs", epochs, int))
        return config._changed(changes, are_text=True)

    def with_epochs(self, epochs: int) -> Config:
        """Return this config with another number of epochs. Ramps scale with it."""
        return replace(self, schedule=self.schedule.scaled(epochs))

    def with_values(self, section: str, **values: Any) -> Config:
        """Return this config with fields of one section replaced. A new method, source or encoder starts at its defaults."""
        return self._changed({section: values})

    def _changed(self, changes: dict[str, Any], *, are_text: bool = False) -> Config:
        """Apply all changes at once, because one value may be valid only with another."""
        sections: dict[str, Any] = {}
        for name, values in changes.items():
            if name not in SECTIONS:
                raise ConfigError(unknown_name("section", name, SECTIONS))
            check_type(f"section '{name}'", values, dict, "its fields")
            section: Any = getattr(self, name)
            if name in REGISTRIES and "name" in values:
                values = dict(values)
                kind = values.pop("name")
                check_type(f"{name}.name", kind, str, "text")
                section = section if kind == section.name else REGISTRIES[name].options(kind)
            sections[name] = section.changed(values, are_text=are_text)
        return replace(self, **sections)


SECTIONS: dict[str, type[Section]] = field_types(Config)


def decisive_fields(config: Config, *, with_seed: bool = True) -> str:
    """Return the settings that affect the result, as text to compare: no hardware, and no folder of official files."""
    sections = config.to_dict()
    if not with_seed:
        del sections["seed"]
    for name in sections:
        for item in fields(getattr(config, name)):
            if not item.metadata.get("affects_result", True):
                del sections[name][item.name]
    return json.dumps(sections, sort_keys=True)


def same_experiment(one: Config, other: Config) -> bool:
    return decisive_fields(one) == decisive_fields(other)
