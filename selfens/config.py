"""Config: everything that decides a run, as frozen dataclasses that go to JSON and back. Imports no torch.

A value is checked when its section is made, so a Config that exists is a Config that can run. Overrides written as
`section.field=value` are parsed by the field's own type. The section `method` is the options of one method, which are
defined in that method's file (`selfens.methods`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, ClassVar, Literal

from selfens import methods
from selfens.errors import ConfigError, unknown_name
from selfens.methods import Options
from selfens.settings import Section, field_types, parse, setting

PAPER_EPOCHS, PAPER_RAMPUP, PAPER_RAMPDOWN = 300, 80, 50
MAX_THREADS = 1024  # torch crashes with very many
FRACTION = {"at_least": 0, "below": 1}
SIDE = {"at_least": 4, "at_most": 1024}
"""Of square images, in pixels."""
SEED = {"at_least": 0, "at_most": 2**32 - 1}


@dataclass(frozen=True, kw_only=True)
class DataConfig(Section):
    """Which rows are trained on, and which of them have labels."""

    section: ClassVar[str] = "data"
    name: str = setting(
        "digits",
        "A named data set (digits, cifar10, cifar100, svhn), or the path of an .npz file, a folder (images, .npy), a CSV of "
        "images, or a table (.csv or .parquet).",
    )
    label_column: str | None = setting(None, "The column of a table that holds the labels; empty cells are unlabeled.")
    id_column: str | None = setting(
        None, "The column of a table that identifies rows; none: one that differs in each row, by its name or texts."
    )
    folder: str | None = setting(
        None, "Where the official files are; none: the SELFENS_DATA variable, else the user's cache."
    )
    image_size: int = setting(32, "Side to which the images of a folder are scaled.", **SIDE)
    backbone: str | None = setting(
        None,
        "Train on the features that a pretrained network makes of the images: timm:NAME, or package.module:factory, which is "
        "called without arguments.",
    )
    backbone_weights: str | None = setting(
        None,
        "File of the backbone's weights (.safetensors, or a state_dict saved by torch); none: those it comes with.",
    )
    backbone_size: int | None = setting(
        None, "Side of the images that the backbone sees; none: what its own config says.", **SIDE
    )
    feature_cache: bool = setting(
        True, "Keep the backbone's features in the user's cache, so that each image's are computed once."
    )
    labels: int | None = setting(
        None, "How many labels to use, the same number per class; none: all that the data set has.", at_least=1
    )
    label_choice: Literal["balanced", "original", "file", "added"] = setting(
        "balanced",
        "Which rows are labeled: drawn per class, drawn as the authors' code draws them, read from labels_file, or drawn "
        "per class with those of labels_file added.",
    )
    labels_file: str | None = setting(None, "Rows, or row,label pairs, to use as the labels (text or CSV).")
    label_noise: float = setting(
        0.0, "Percentage of the labels in use that are redrawn uniformly over all classes.", at_least=0, at_most=100
    )
    validation: float = setting(
        0.0,
        "Fraction of the labeled rows held out of training to estimate the error without the test set.",
        **FRACTION,
    )
    preprocess: Literal["zca", "image", "channel", "none"] = setting(
        "none", "ZCA whitening, zero mean and unit variance per image, the same per channel or feature, or nothing."
    )
    preprocess_rows: Literal["all", "labeled"] = setting(
        "all", "Fit preprocessing on all training rows of the main set, or only on the labeled ones."
    )
    preprocess_after_views: bool = setting(
        False,
        "Preprocess each view instead of the whole set before, so that color operations see pixels (bytes, or 0 to 1).",
    )
    extra: str | None = setting(
        None,
        "More unlabeled rows: an .npz or .npy file, a folder of images, a CSV, or a named data set.",
    )
    extra_per_epoch: int | None = setting(
        None, "Draw this many unlabeled rows, main and extra, for each epoch; none: visit all of them.", at_least=1
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.label_choice in ("file", "added")) != (self.labels_file is not None):
            raise ConfigError(
                f"data.label_choice is '{self.label_choice}' and data.labels_file is {self.labels_file!r}; "
                "a labels file goes with label_choice=file or added, and only with them."
            )
        if self.id_column is not None and self.label_column is None:
            raise ConfigError("data.id_column is set without data.label_column; name the column of the labels, too.")
        if self.id_column is not None and self.id_column == self.label_column:
            raise ConfigError(
                f"data.id_column and data.label_column are both '{self.id_column}'; a label identifies no row."
            )
        if self.label_column is not None and self.backbone is not None:
            raise ConfigError(
                "data.label_column, which a table has, and data.backbone, which takes images, are both set."
            )
        if self.label_column is not None and self.extra is not None:
            raise ConfigError("data.extra is set with data.label_column; give a table more rows with an empty label.")
        for name, unused in (("backbone_weights", None), ("backbone_size", None), ("feature_cache", True)):
            if self.backbone is None and (given := getattr(self, name)) != unused:
                raise ConfigError(f"data.{name} is {given!r}, but data.backbone is none; name the backbone it is for.")
        if self.backbone is not None and not all(self.backbone.partition(":")):
            raise ConfigError(f"data.backbone is '{self.backbone}'; expected timm:NAME or package.module:factory.")
        if self.backbone is not None and self.extra is not None:
            raise ConfigError(
                "data.backbone and data.extra are both set; put the extra images beside the others, without a label."
            )


@dataclass(frozen=True, kw_only=True)
class AugmentConfig(Section):
    """What the views of a training step do; evaluation sees inputs as they are."""

    section: ClassVar[str] = "augment"
    flip: bool = setting(False, "weak, strong: mirror horizontally with probability one half.")
    shared_flip: bool = setting(
        True, "One flip for all views of an input (the paper's choice); false: one for each view."
    )
    translation: int = setting(
        0, "weak, strong: shift each view by up to this many pixels each way, borders reflected.", at_least=0
    )
    operations: int = setting(
        2,
        "strong: this many random operations on each image, such as a rotation or a change of contrast.",
        at_least=0,
        at_most=100,
    )
    cutout: float = setting(
        0.5, "strong: side of the square that is cut out, as a fraction of the image's side.", at_least=0, at_most=1
    )
    noise: float = setting(
        0.15, "noise, and strong for vectors: standard deviation of the Gaussian noise that is added.", at_least=0
    )
    feature_dropout: float = setting(0.3, "strong for vectors: probability that a feature is set to zero.", **FRACTION)


@dataclass(frozen=True, kw_only=True)
class NetworkConfig(Section):
    """The network, from inputs to logits."""

    section: ClassVar[str] = "network"
    name: str = setting(
        "conv13",
        "A name of `selfens.networks`, or package.module:factory, which is called with (input_shape, num_classes).",
    )
    noise: float = setting(
        0.15, "Standard deviation of the Gaussian noise added to the inputs in training.", at_least=0
    )
    dropout: float = setting(0.5, "Probability of dropping a unit.", **FRACTION)
    normalization: Literal["mean", "full"] = setting(
        "mean",
        "conv13, small, mlp: the paper's weight normalization with mean-only batch normalization, or full batch normalization.",
    )
    mean_momentum: float = setting(
        0.999, "Momentum of the running means (and variances) of batch normalization.", **FRACTION
    )
    width: int | None = setting(
        None,
        "Channels (or units) of the first layers; none: each network's own.",
        at_least=1,
        at_most=2**16,
    )


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig(Section):
    """How gradients change the weights."""

    section: ClassVar[str] = "optimizer"
    name: Literal["adam", "sgd", "adamw"] = setting(
        "adam", "The authors' Adam, stochastic gradient descent with Nesterov momentum, or AdamW."
    )
    learning_rate: float = setting(0.003, "The largest learning rate, lambda_max.", above=0, at_most=1e38)
    weight_decay: float = setting(0.0, "Weight decay; only of weights with two or more dimensions.", at_least=0)
    momentum: float = setting(0.9, "sgd: momentum of the gradient.", **FRACTION)
    beta1: float = setting(0.9, "adam, adamw: momentum of the gradient until the ramp-down.", **FRACTION)
    beta1_end: float = setting(0.5, "adam: momentum of the gradient at the end of the paper's ramp-down.", **FRACTION)
    beta2: float = setting(
        0.999, "adam, adamw: momentum of the squared gradient; 0.99 is steadier with very few labels.", **FRACTION
    )
    epsilon: float = setting(1e-8, "adam, adamw: added to the root of the second moment.", above=0)
    multipliers: str = setting(
        "",
        "Learning rates relative to the others', by the beginning of parameters' names, such as backbone:0.1,head:1.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.learning_rate_multipliers

    @property
    def learning_rate_multipliers(self) -> dict[str, float]:
        """`multipliers` by the beginning of parameters' names."""
        found: dict[str, float] = {}
        for entry in filter(None, (part.strip() for part in self.multipliers.split(","))):
            name, colon, number = entry.rpartition(":")
            value = parse("optimizer.multipliers", number, float) if colon and name else -1.0
            if not 0 <= value < float("inf"):
                raise ConfigError(
                    f"optimizer.multipliers holds '{entry}'; expected the beginning of a parameter's name, a colon and a "
                    "number of at least 0, such as backbone:0.1."
                )
            found[name.strip()] = value
        return found


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig(Section):
    """How learning rate, beta1 and the unsupervised weight w change."""

    section: ClassVar[str] = "schedule"
    name: Literal["paper", "cosine"] = setting(
        "paper",
        "Of the learning rate: the paper's ramps, constant within an epoch; or a linear warm-up and a cosine to 0, at every "
        "step.",
    )
    epochs: int = setting(PAPER_EPOCHS, "How often the training set is visited.", at_least=1, at_most=10**9)
    rampup_epochs: float | None = setting(
        None,
        "Length of the ramp-up of w, and with the paper's schedule of the learning rate; none: 80/300 of the epochs.",
        at_least=0,
    )
    rampdown_epochs: float | None = setting(
        None, "paper: length of the ramp-down of learning rate and beta1; none: 50/300 of the epochs.", at_least=0
    )
    rampup_constant: float = setting(5.0, "c of the ramp-up exp(-c(1-T)^2).", at_least=0)
    rampdown_constant: float = setting(12.5, "c of the ramp-down exp(-c T^2).", at_least=0)
    warmup_epochs: float = setting(0.0, "cosine: length of the warm-up.", at_least=0)
    weight_rampup_epochs: float | None = setting(
        None,
        "Length of the ramp-up of w; none: as rampup_epochs, with w = 0 in the first epoch; 0: all of w from the first step.",
        at_least=0,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, length in (("rampdown_epochs", self.rampdown), ("warmup_epochs", self.warmup_epochs)):
            if length > self.epochs:
                raise ConfigError(
                    f"schedule.{name} is {length!r}; expected from 0 to the number of epochs, {self.epochs}."
                )

    def scaled(self, epochs: int) -> ScheduleConfig:
        """The same shape in another number of epochs: ramps keep their proportion."""
        if epochs == self.epochs:
            return self  # to the last digit
        names = ("rampup_epochs", "rampdown_epochs", "warmup_epochs", "weight_rampup_epochs")
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        # Refuses a wrong number of epochs before it is computed with; the ramps of before may be longer than it.
        checked = replace(self, epochs=epochs, rampdown_epochs=None, warmup_epochs=0.0)
        return replace(checked, **{name: length * epochs / self.epochs for name, length in given.items()})

    @property
    def rampup(self) -> float:
        return self.epochs * PAPER_RAMPUP / PAPER_EPOCHS if self.rampup_epochs is None else self.rampup_epochs

    @property
    def rampdown(self) -> float:
        return self.epochs * PAPER_RAMPDOWN / PAPER_EPOCHS if self.rampdown_epochs is None else self.rampdown_epochs

    @property
    def weight_rampup(self) -> float:
        return self.rampup if self.weight_rampup_epochs is None else self.weight_rampup_epochs


@dataclass(frozen=True, kw_only=True)
class TrainingConfig(Section):
    """How steps are carried out. Batch size, rows, labeled_per_batch and means change the result; precision, residence,
    threads, compile and kernels only its last digits; the others do not."""

    section: ClassVar[str] = "training"
    batch_size: int = setting(100, "Rows per step; an incomplete last batch is left out.", at_least=2)
    labeled_per_batch: int | None = setting(
        None,
        "Begin each batch with this many labeled rows, at most as many as there are, and fill it with rows of the whole set "
        "whose labels are ignored; none: what the method wants, which for the paper's is one shuffle of all rows.",
        at_least=1,
    )
    min_steps_per_epoch: int = setting(
        1,
        "If batches begin with labeled rows: an epoch has at least this many steps, and visits rows as often as that needs.",
        at_least=1,
        at_most=100_000,
    )
    rows: Literal["all", "labeled"] = setting("all", "Visit all rows, or only the labeled ones.")
    residence: Literal["auto", "device", "ram", "file"] = setting(
        "auto",
        "Where the inputs are: on the device, or in RAM or a file from which they are prefetched; auto: on the device if "
        "they fit.",
    )
    means: Literal["own", "joint"] = setting(
        "own", "If several processes train together: batch means of each one's batch, or of all their batches."
    )
    device: Literal["auto", "cpu", "cuda"] = setting("auto", "Where to train; auto: a GPU if there is one.")
    precision: Literal["auto", "bf16", "tf32", "fp32"] = setting(
        "auto", "Of the network's arithmetic; auto: bf16 on GPUs that have it, else fp32."
    )
    compile: Literal["auto", "on", "off"] = setting("auto", "Compile the step with torch.compile; auto: on a GPU.")
    capture: Literal["auto", "on", "off"] = setting("auto", "Replay the step from a CUDA graph; auto: on a GPU.")
    kernels: Literal["auto", "on", "off"] = setting(
        "auto", "Use our own kernels between the convolutions; auto: on a GPU."
    )
    threads: int | None = setting(
        None, "CPU threads; none: torch's default, and with a GPU at most 4.", at_least=1, at_most=MAX_THREADS
    )
    evaluate_every: int = setting(
        1, "Epochs between evaluations on the validation and test rows; the last epoch is always evaluated.", at_least=1
    )
    checkpoint_every: int | None = setting(
        None, "Epochs between checkpoints; none: 1, but on one GPU at most a checkpoint in ten seconds.", at_least=1
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.labeled_per_batch is None:
            return
        if self.labeled_per_batch >= self.batch_size:
            raise ConfigError(
                f"training.labeled_per_batch is {self.labeled_per_batch} and training.batch_size {self.batch_size}; "
                "expected fewer, so that a batch has other rows too."
            )
        if self.rows == "labeled":
            raise ConfigError(
                "training.labeled_per_batch is set with training.rows=labeled, but it fills batches with rows of the whole "
                "set; leave training.rows at all."
            )


@dataclass(frozen=True, kw_only=True)
class SeedConfig(Section):
    """One seed governs everything; each part can be set separately."""

    section: ClassVar[str] = "seed"
    base: int = setting(0, "The seed of all that is not set below.", **SEED)
    labels: int | None = setting(None, "Seed of the choice and corruption of labels; none: base.", **SEED)
    split: int | None = setting(
        None, "Seed of the split into training and test rows, if the data set has none of its own; none: base.", **SEED
    )
    training: int | None = setting(
        None, "Seed of initial weights, order, augmentation, noise and dropout; none: base.", **SEED
    )

    def of(self, part: Literal["labels", "split", "training"]) -> int:
        value: int | None = getattr(self, part)
        return self.base if value is None else value


@dataclass(frozen=True, kw_only=True)
class Config:
    """A whole run."""

    data: DataConfig = field(default_factory=DataConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    method: Options = field(default_factory=lambda: methods.options("temporal"))
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    seed: SeedConfig = field(default_factory=SeedConfig)

    def __post_init__(self) -> None:
        for name, kind in SECTIONS.items():
            if not isinstance(getattr(self, name), kind):
                raise ConfigError(f"section '{name}' is {getattr(self, name)!r}; expected a {kind.__name__}.")
        if self.method.name not in methods.METHODS:
            raise ConfigError(
                f"method is {type(self.method).__qualname__}, but no method has these options by name; pass a method of your "
                "own, with its options, to train(..., method=...)."
            )
        if self.training.rows == "labeled" and self.data.extra is not None:
            raise ConfigError(
                "training.rows is 'labeled', which visits no unlabeled rows; leave out data.extra or set rows=all."
            )
        if self.training.labeled_per_batch is not None and self.data.extra_per_epoch is not None:
            raise ConfigError(
                "training.labeled_per_batch and data.extra_per_epoch are both set; each says which rows an epoch visits, so "
                "leave one out."
            )

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Sections of fields; `method` begins with its name."""
        raw = {section.name: asdict(getattr(self, section.name)) for section in fields(self)}
        return raw | {"method": {"name": self.method.name, **raw["method"]}}

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Config:
        try:
            raw = json.loads(text)
        except json.JSONDecodeError as error:
            raise ConfigError(f"the configuration is not JSON ({error}).") from None
        return cls.from_dict(raw)

    @classmethod
    def from_dict(cls, raw: Any) -> Config:
        if not isinstance(raw, dict):
            raise ConfigError(f"the configuration is a {type(raw).__name__}; expected sections of fields.")
        return cls()._changed(raw)

    def with_overrides(self, overrides: Iterable[str]) -> Config:
        """This config with `section.field=value` applied, each value read by its field's type. If the number of epochs is
        changed, ramps that are not set too keep their proportion.

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
            config = replace(self, schedule=self.schedule.scaled(parse("schedule.epochs", epochs, int)))
        return config._changed(changes, are_text=True)

    def with_values(self, section: str, **values: Any) -> Config:
        """This config with some fields of one section replaced; another `name` of `method` brings that method's options."""
        return self._changed({section: values})

    def _changed(self, changes: dict[str, Any], *, are_text: bool = False) -> Config:
        """Everything is changed together, because one value may go only with another."""
        sections: dict[str, Any] = {}
        for name, values in changes.items():
            if name not in SECTIONS:
                raise ConfigError(unknown_name("section", name, SECTIONS))
            if not isinstance(values, dict):
                raise ConfigError(f"section '{name}' holds {values!r}; expected its fields.")
            section: Section = getattr(self, name)
            if name == "method" and "name" in values:
                section, values = self._method(values["name"]), {k: v for k, v in values.items() if k != "name"}
            sections[name] = section.changed(values, are_text=are_text)
        return replace(self, **sections)

    def _method(self, name: Any) -> Options:
        """The options to begin with for the method of this name."""
        if not isinstance(name, str):
            raise ConfigError(f"method.name is {name!r} ({type(name).__name__}); expected text.")
        return self.method if name == self.method.name else methods.options(name)


SECTIONS: dict[str, type[Section]] = field_types(Config)
