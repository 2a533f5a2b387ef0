"""Config: everything that decides a run, as frozen dataclasses that go to JSON and back. Imports no torch.

A value is checked where the object is made, so a Config that exists is a Config that can run. Overrides written as
`section.field=value` are parsed by the field's own type.
"""

from __future__ import annotations

import json
import math
import types
import typing
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from typing import Any, Literal

from selfens.errors import ConfigError, unknown_name

PAPER_EPOCHS, PAPER_RAMPUP, PAPER_RAMPDOWN = 300, 80, 50
IN_MEMORY = ("device", "ram")
"""The places to keep the ensemble in that are not the path of a file."""


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Which rows are trained on, and which of them have labels."""

    name: str = "digits"
    """A named data set (digits, cifar10, cifar100, svhn), or the path of an .npz file, a folder (images, .npy) or a CSV."""
    folder: str | None = None
    """Where the official files are; None: the SELFENS_DATA variable, else the user's cache."""
    image_size: int = 32
    """Side to which the images of a folder are brought."""
    labels: int | None = None
    """How many labels to use, the same number per class; None: all that the data set has."""
    label_choice: Literal["balanced", "original", "file", "added"] = "balanced"
    """Which rows are labelled: drawn per class, drawn as the authors' code draws them, read from labels_file, or drawn per
    class with those of labels_file added."""
    labels_file: str | None = None
    """Rows, or row,label pairs, to use as the labels (JSON, text or CSV)."""
    label_noise: float = 0.0
    """Percentage of the labels in use that are redrawn uniformly over all classes."""
    validation: float = 0.0
    """Fraction of the labelled rows held out of training to estimate the error without the test set."""
    preprocess: Literal["zca", "image", "channel", "none"] = "none"
    """ZCA whitening, zero mean and unit variance per image, the same per channel or feature, or nothing."""
    extra: str | None = None
    """More unlabeled rows: an .npz or .npy file, a folder of images, a CSV, tiny_images.bin, or a named data set."""
    extra_index: str | None = None
    """The authors' tiny_index.pkl: of tiny_images.bin take only images whose label is a class of the main set."""
    extra_rows: int | None = None
    """Take this many of the extra rows, drawn at random; None: all."""
    extra_per_epoch: int | None = None
    """Draw this many unlabeled rows, main and extra, anew for each epoch; None: visit all of them."""


@dataclass(frozen=True, kw_only=True)
class AugmentConfig:
    """How the inputs of a training step are varied; evaluation sees them as they are."""

    flip: bool = False
    """Mirror horizontally with probability one half."""
    shared_flip: bool = True
    """One flip for all views of an input (the paper's choice); False: one for each view."""
    translation: int = 0
    """Shift by up to this many pixels each way, borders reflected."""
    shared_translation: bool = False
    """One shift for all views of an input; False: one for each view (the paper's choice)."""


@dataclass(frozen=True, kw_only=True)
class NetworkConfig:
    """The network, from inputs to logits."""

    name: str = "conv13"
    """A name of `selfens.networks`, or package.module:factory called with (input_shape, num_classes)."""
    noise: float = 0.15
    """Standard deviation of the Gaussian noise added to the inputs in training."""
    dropout: float = 0.5
    """Probability of dropping a unit."""
    mean_momentum: float = 0.999
    """Momentum of the running means of mean-only batch normalisation."""
    initial_weights: Literal["normal", "he"] = "normal"
    """N(0, 0.05²) as the authors' code, or He's as the paper says."""
    width: int | None = None
    """Channels (or units) of the small networks' first layers; None: each network's own."""


@dataclass(frozen=True, kw_only=True)
class MethodConfig:
    """What is learnt from the rows without labels."""

    name: str = "temporal"
    """A name of `selfens.methods`."""
    weight_max: float = 30.0
    """The unsupervised loss's largest weight before scaling, w_max."""
    weight_scale: Literal["original", "paper", "none"] = "original"
    """Times M/N always (paper), never (none), or unless the whole main set is labelled (the authors' code)."""
    decay: float = 0.6
    """The ensemble's momentum, alpha."""
    consistency: Literal["squared", "cross_entropy"] = "squared"
    """How two predictions are compared."""
    unseen_rows: Literal["skip", "zero"] = "skip"
    """A row without an ensemble yet: no unsupervised loss, or compared with zeros as in the authors' code."""
    certainty: bool = False
    """Rows whose ensemble is certain count more in the unsupervised loss (temporal ensembling)."""
    variance: bool = True
    """Keep the ensemble's second moment too, for the variance of each row's predictions; off saves a third of its memory."""
    targets: str = "device"
    """Where the ensemble is kept: on the `device`, in the host's `ram`, or in the file of this path."""
    targets_type: Literal["float32", "float16"] = "float32"
    """In which the ensemble is kept; arithmetic is in float32."""


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """Adam."""

    learning_rate: float = 0.003
    """The largest learning rate, lambda_max."""
    beta1: float = 0.9
    """Momentum of the gradient until the ramp-down."""
    beta1_end: float = 0.5
    """Momentum of the gradient at the end of the ramp-down."""
    beta2: float = 0.999
    """Momentum of the squared gradient; 0.99 is steadier with very few labels."""
    epsilon: float = 1e-8
    """Added to the root of the second moment."""


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """How learning rate, beta1 and w change; all are constant within an epoch."""

    epochs: int = PAPER_EPOCHS
    """How often the training set is visited."""
    rampup_epochs: float | None = None
    """Length of the ramp-up of learning rate and w; None: 80/300 of the epochs."""
    rampdown_epochs: float | None = None
    """Length of the ramp-down of learning rate and beta1; None: 50/300 of the epochs."""
    rampup_constant: float = 5.0
    """c of the ramp-up exp(-c(1-T)^2)."""
    rampdown_constant: float = 12.5
    """c of the ramp-down exp(-c T^2)."""

    @property
    def rampup(self) -> float:
        return self.epochs * PAPER_RAMPUP / PAPER_EPOCHS if self.rampup_epochs is None else self.rampup_epochs

    @property
    def rampdown(self) -> float:
        return self.epochs * PAPER_RAMPDOWN / PAPER_EPOCHS if self.rampdown_epochs is None else self.rampdown_epochs


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """How steps are carried out. Batch size, rows and batches change what is computed, precision and residence at most the
    last digits, the rest nothing."""

    batch_size: int = 100
    """Rows per step; an incomplete last batch is left out."""
    rows: Literal["all", "labelled"] = "all"
    """Visit all rows, or the labelled ones alone."""
    batches: Literal["shuffled", "stratified", "repeated"] = "shuffled"
    """Rows in random order; or labelled ones spread evenly over the batches; or that, repeated so that no batch lacks them."""
    residence: Literal["auto", "device", "ram", "file"] = "auto"
    """Where the inputs lie: on the device, or in RAM or a file from which they stream; auto: on the device if they fit."""
    means: Literal["own", "joint"] = "own"
    """Where several processes train together: batch means of each one's batch, or of all their batches."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train; auto: a GPU if there is one."""
    precision: Literal["auto", "bf16", "tf32", "fp32"] = "auto"
    """Of the network's arithmetic; auto: bf16 on GPUs that have it, fp32 elsewhere."""
    compile: Literal["auto", "on", "off"] = "auto"
    """Compile the step with torch.compile; auto: on a GPU."""
    capture: Literal["auto", "on", "off"] = "auto"
    """Replay the step from a CUDA graph; auto: on a GPU."""
    kernels: Literal["auto", "on", "off"] = "auto"
    """Use our own kernels between the convolutions; auto: on a GPU."""
    threads: int | None = None
    """CPU threads; None: as torch has it, and beside a GPU at most 4."""
    checkpoint_every: int | None = None
    """Epochs between checkpoints; None: 1, but on one GPU at most a checkpoint in ten seconds."""
    report: bool = True
    """Write report.html into the run when the last epoch is done."""


@dataclass(frozen=True, kw_only=True)
class SeedConfig:
    """One seed governs everything; each part can be set apart."""

    base: int = 0
    """The seed of all that is not set below."""
    labels: int | None = None
    """Of the choice and corruption of labels."""
    split: int | None = None
    """Of the split into training and test rows, where the data set has none of its own."""
    training: int | None = None
    """Of initial weights, order, augmentation, noise and dropout."""

    def of(self, part: Literal["labels", "split", "training"]) -> int:
        value: int | None = getattr(self, part)
        return self.base if value is None else value


@dataclass(frozen=True, kw_only=True)
class Config:
    """A whole run."""

    data: DataConfig = field(default_factory=DataConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    method: MethodConfig = field(default_factory=MethodConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    seed: SeedConfig = field(default_factory=SeedConfig)

    def __post_init__(self) -> None:
        for section in fields(self):
            _check_types(section.name, getattr(self, section.name))
        _check_values(self)

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2) + "\n"

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
        sections: dict[str, Any] = {}
        for name, values in raw.items():
            section = _section(name)
            if not isinstance(values, dict):
                raise ConfigError(f"section '{name}' holds {values!r}; expected its fields.")
            hints = typing.get_type_hints(section)
            for key in values:
                if key not in hints:
                    raise ConfigError(unknown_name(f"field in section '{name}'", key, hints))
            sections[name] = section(**values)
        return cls(**sections)

    def with_overrides(self, overrides: Iterable[str]) -> Config:
        """This config with `section.field=value` applied, each value read by its field's type.

        >>> Config().with_overrides(["optimizer.beta2=0.99"]).optimizer.beta2
        0.99
        """
        sections = {f.name: getattr(self, f.name) for f in fields(self)}
        for override in overrides:
            path, equals, text = override.partition("=")
            name, dot, key = path.strip().partition(".")
            if not equals or not dot:
                raise ConfigError(f"'{override}' is not an override; write section.field=value.")
            hints = typing.get_type_hints(_section(name))
            if key not in hints:
                raise ConfigError(unknown_name(f"field in section '{name}'", key, hints))
            value = _parse(f"{name}.{key}", text.strip(), hints[key])
            sections[name] = replace(sections[name], **{key: value})
        return type(self)(**sections)

    def with_values(self, section: str, **values: Any) -> Config:
        """This config with some fields of one section replaced."""
        changed = replace(getattr(self, section), **values)
        return replace(self, **{section: changed})


def _section(name: str) -> Any:
    sections = typing.get_type_hints(Config)
    if name not in sections:
        raise ConfigError(unknown_name("section", name, sections))
    return sections[name]


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)


def _parse(path: str, text: str, hint: Any) -> Any:
    """A value from the text of an override."""
    kinds = _alternatives(hint)
    if type(None) in kinds and text.lower() in ("none", "null"):
        return None
    if bool in kinds:
        if text.lower() in ("true", "yes", "on", "1"):
            return True
        if text.lower() in ("false", "no", "off", "0"):
            return False
        raise ConfigError(f"{path} is '{text}'; expected true or false.")
    for number in (int, float):
        if number in kinds:
            try:
                return number(text)
            except ValueError:
                expected = "a whole number" if number is int else "a number"
                raise ConfigError(f"{path} is '{text}'; expected {expected}.") from None
    return text


def _check_types(section_name: str, section: Any) -> None:
    expected = _section(section_name)
    if not is_dataclass(section) or not isinstance(section, expected):
        raise ConfigError(f"section '{section_name}' is {section!r}; expected a {expected.__name__}.")
    for name, hint in typing.get_type_hints(expected).items():
        _check_type(f"{section_name}.{name}", section, name, hint)


def _check_type(path: str, section: Any, name: str, hint: Any) -> None:
    value = getattr(section, name)
    for kind in _alternatives(hint):
        if typing.get_origin(kind) is Literal:
            if value in typing.get_args(kind):
                return
            if isinstance(value, str):
                raise ConfigError(unknown_name(f"choice for {path}", value, typing.get_args(kind)))
        elif kind is float and isinstance(value, int) and not isinstance(value, bool):
            object.__setattr__(section, name, _as_float(path, value))  # 30 and 30.0 are one value and print alike
            return
        elif type(value) is kind:
            return
    words = " or ".join(
        getattr(kind, "__name__", str(kind)).replace("NoneType", "none") for kind in _alternatives(hint)
    )
    raise ConfigError(f"{path} is {value!r} ({type(value).__name__}); expected {words}.")


def _as_float(path: str, value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        raise ConfigError(f"{path} is a whole number of {len(str(value))} digits; expected a finite number.") from None


def _check_values(config: Config) -> None:
    def need(path: str, holds: bool, expected: str) -> None:
        if not holds:
            section, name = path.split(".")
            raise ConfigError(f"{path} is {getattr(getattr(config, section), name)!r}; expected {expected}.")

    data, augment, network, method = config.data, config.augment, config.network, config.method
    optimizer, schedule, training, seed = config.optimizer, config.schedule, config.training, config.seed
    for section in fields(config):
        for name, value in asdict(getattr(config, section.name)).items():
            need(f"{section.name}.{name}", not isinstance(value, float) or math.isfinite(value), "a finite number")
    need("data.labels", data.labels is None or data.labels >= 1, "at least 1 label, or none for all")
    need("data.image_size", 4 <= data.image_size <= 1024, "from 4 to 1024 pixels")
    need("data.label_noise", 0 <= data.label_noise <= 100, "a percentage from 0 to 100")
    need("data.extra_rows", data.extra_rows is None or data.extra_rows >= 1, "at least 1 row, or none for all")
    need(
        "data.extra_per_epoch",
        data.extra_per_epoch is None or data.extra_per_epoch >= 1,
        "at least 1 row, or none for all",
    )
    need("data.validation", 0 <= data.validation < 1, "a fraction from 0 to below 1")
    need("augment.translation", augment.translation >= 0, "0 pixels or more")
    need("network.noise", network.noise >= 0, "0 or more")
    need("network.dropout", 0 <= network.dropout < 1, "a probability from 0 to below 1")
    need("network.mean_momentum", 0 <= network.mean_momentum < 1, "a momentum from 0 to below 1")
    need("network.width", network.width is None or network.width >= 1, "at least 1")
    need("method.weight_max", method.weight_max >= 0, "0 or more")
    is_path = method.targets.strip().lower() not in ("", *IN_MEMORY)
    need("method.targets", is_path or method.targets in IN_MEMORY, "device, ram or the path of a file")
    need("method.decay", 0 <= method.decay < 1, "a momentum from 0 to below 1")
    need("optimizer.learning_rate", optimizer.learning_rate > 0, "more than 0")
    need("optimizer.beta1", 0 <= optimizer.beta1 < 1, "a momentum from 0 to below 1")
    need("optimizer.beta1_end", 0 <= optimizer.beta1_end < 1, "a momentum from 0 to below 1")
    need("optimizer.beta2", 0 <= optimizer.beta2 < 1, "a momentum from 0 to below 1")
    need("optimizer.epsilon", optimizer.epsilon > 0, "more than 0")
    need("schedule.epochs", schedule.epochs >= 1, "at least 1")
    need("schedule.rampup_epochs", schedule.rampup >= 0, "0 epochs or more")
    need("schedule.rampdown_epochs", 0 <= schedule.rampdown <= schedule.epochs, "from 0 to the number of epochs")
    need("schedule.rampup_constant", schedule.rampup_constant >= 0, "0 or more")
    need("schedule.rampdown_constant", schedule.rampdown_constant >= 0, "0 or more")
    need("training.batch_size", training.batch_size >= 2, "at least 2")
    need("training.threads", training.threads is None or training.threads >= 1, "at least 1")
    need(
        "training.checkpoint_every",
        training.checkpoint_every is None or training.checkpoint_every >= 1,
        "at least 1 epoch",
    )
    for part in ("base", "labels", "split", "training"):
        value = getattr(seed, part)
        need(f"seed.{part}", value is None or 0 <= value < 2**32, "a whole number from 0 to 4294967295")
    if (data.label_choice in ("file", "added")) != (data.labels_file is not None):
        raise ConfigError(
            f"data.label_choice is '{data.label_choice}' and data.labels_file is {data.labels_file!r}; "
            "a labels file goes with label_choice=file or added, and only with them."
        )
    if data.extra is None and (data.extra_index is not None or data.extra_rows is not None):
        raise ConfigError("data.extra_index and data.extra_rows say which extra rows to take, but data.extra is none.")
    if training.rows == "labelled" and data.extra is not None:
        raise ConfigError(
            "training.rows is 'labelled', which visits no unlabeled rows; leave out data.extra or set rows=all."
        )
