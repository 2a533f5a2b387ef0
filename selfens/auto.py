"""Automatic settings for data that nobody has tuned for: from a `Peek` at the data and the device to a Config.

The command and `SelfEnsemblingClassifier` both get their settings here, so they are the same for the same data.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from selfens import presets
from selfens.config import Config
from selfens.core.device import resolve_device
from selfens.data import sources
from selfens.data.dataset import Dataset
from selfens.data.frames import is_frame
from selfens.data.sources import Peek, SourceOptions
from selfens.encoders import ENCODERS, EncoderOptions
from selfens.encoders.columns import options_of
from selfens.encoders.pretrained import build
from selfens.errors import ConfigError, plural
from selfens.methods import METHODS
from selfens.settings import field_types

VECTORS_METHOD, IMAGES_METHOD = "committee", "temporal-teacher"
VECTORS = (  # chosen on the tasks that `benchmarks/own_data.py` names
    *(f"method.name={VECTORS_METHOD}", "network.name=committee", "network.noise=0", "network.dropout=0.3"),
    *("optimizer.name=adamw", "optimizer.learning_rate=0.002", "optimizer.weight_decay=0.01"),
    *("schedule.name=cosine", "training.batch_size=320", "training.min_steps_per_epoch=20"),
)
VECTORS_EPOCHS, VECTORS_MIN_EPOCHS = 50, 10
VECTORS_ROWS = 5120  # with this many rows, an epoch of 20 steps visits each once


class ImageSettings(NamedTuple):
    """Settings for images with a strong method, on a CPU or on a GPU."""

    overrides: tuple[str, ...]
    network: str
    min_side: int  # in pixels; smaller images get the network `small`
    steps: int  # for images of up to 32 pixels
    min_steps_per_epoch: int


ON_CPU = ImageSettings(  # a minute or two; chosen on other labels than results are reported for (docs/log.md)
    overrides=(
        *("network.noise=0", "network.dropout=0", "network.mean_momentum=0.9", "method.decay=0.97"),
        *("optimizer.name=adamw", "optimizer.learning_rate=0.008", "optimizer.weight_decay=0.01"),
        *("schedule.name=cosine", "schedule.weight_rampup_epochs=0", "training.batch_size=256"),
    ),
    network="tiny",
    min_side=12,
    steps=1100,
    min_steps_per_epoch=1,
)
ON_GPU = ImageSettings(overrides=presets.TEACHER, network="conv13", min_side=24, steps=20_000, min_steps_per_epoch=200)

BACKBONE = "backbone"  # the name of the network that is fine-tuned
OTHER_STEPS, OTHER_MIN_EPOCHS, OTHER_MAX_EPOCHS = 1000, 30, 600
OTHER_MOMENTUM, OTHER_VECTORS_RATE = 0.95, 0.02
"""For all other methods; `benchmarks/estimator.py` shows how they do."""


def config_for(
    data: str,
    *,
    method: str | None = None,
    device: str = "auto",
    encoder: EncoderOptions | None = None,
    as_text: Mapping[str, str] | None = None,
    finetune: bool = False,
    **source: Any,
) -> tuple[Config, Peek | None]:
    """Return the config for what a person names, and a peek at the data unless it is a preset.

    Parameters
    ----------
    data
        A preset, a public data set, or a path. A preset wins over a file or folder of that name.
    encoder
        Used instead of the one that suits the source.
    as_text
        Options of the source as a person writes them.
    finetune
        Train the whole backbone that the encoder names, not only a committee on its features.
    source
        Options of the source that are already known, such as the label column of a table.
    """
    source = {key: value for key, value in source.items() if value is not None}
    if presets.full_name(data) is not None:
        if encoder is not None:
            raise ConfigError(f"the encoder '{encoder.name}' was named, but {data} is a preset; name data of your own.")
        config = presets.get(data, method)
        return replace(config, source=sources.options_for(config.source.title, **source)), None
    options = sources.options_for(data, hints=(*presets.PRESETS,), **source).changed(as_text or {}, are_text=True)
    peek = sources.build(options).peek()
    on_gpu = resolve_device(device).type == "cuda"
    config = settings_for(options, peek, method=method, encoder=encoder, on_gpu=on_gpu)
    return (finetuned(config, peek, on_gpu=on_gpu) if finetune else config), peek


def config_for_dataset(
    dataset: Dataset,
    method: str | None = None,
    *,
    device: str = "auto",
    encoder: EncoderOptions | None = None,
    finetune: bool = False,
) -> Config:
    """Return the config for a dataset in memory: the one that `config_for` returns for the same data in a file."""
    shape = dataset.raw.shape[1:]
    peek = Peek(dataset.num_train, image_side=min(shape[1:]) if len(shape) == 3 else None)
    source = sources.SOURCES.options("memory", dataset=dataset.name)
    encoder = encoder or ENCODERS.options("columns" if is_frame(dataset.raw) else "identity")
    on_gpu = resolve_device(device).type == "cuda"
    config = settings_for(source, peek, method=method, encoder=encoder, on_gpu=on_gpu)
    return finetuned(config, peek, on_gpu=on_gpu) if finetune else config


def encoder_for(names: Sequence[str]) -> EncoderOptions:
    """Return the options of the encoder that these names stand for. Encoders of text are used by the encoder `columns`.

    >>> encoder_for(["tfidf", "wordllama"]).texts
    ('tfidf', 'wordllama')
    """
    if len(names) == 1 and names[0] in ENCODERS and not ENCODERS.find(names[0]).takes_texts:
        options: EncoderOptions = ENCODERS.options(names[0])
        return options
    texts: EncoderOptions = ENCODERS.options("columns", texts=tuple(names))
    for name in texts.texts:  # type: ignore[attr-defined]
        options_of(name)
    return texts


def backbone_for(names: Sequence[str], *, weights: str | None = None, **common: Any) -> EncoderOptions:
    """Return the options of the encoder that computes the features of one backbone, or of several."""
    if len(names) == 1:
        one: EncoderOptions = ENCODERS.options("backbone", model=names[0], weights=weights, **common)
        return one
    several: EncoderOptions = ENCODERS.options("backbones", models=tuple(names), **common)
    return several


def settings_for(
    source: SourceOptions,
    peek: Peek,
    *,
    method: str | None = None,
    encoder: EncoderOptions | None = None,
    on_gpu: bool = False,
) -> Config:
    """Return the settings for data, with this method or the one that suits the data."""
    encoder = encoder or ENCODERS.options(sources.SOURCES.find(source.name).encoder)
    kind = ENCODERS.find(encoder.name)
    if kind.needs_images:
        if peek.image_side is None:
            raise ConfigError(f"the encoder '{encoder.name}' needs images, but {source.title} does not hold any.")
        peek = Peek(peek.rows)  # from then on they are vectors
    config = Config(source=source, encoder=encoder)
    config = config.with_values("preprocess", kind="none" if kind.is_scaled else "channel")
    if peek.image_side is None and method in (None, VECTORS_METHOD):
        return _for_vectors(config, peek.rows)
    method = method or IMAGES_METHOD
    side = peek.image_side or 0
    if peek.image_side is not None and method in presets.STRONG_METHODS:
        config = _for_images(config, peek, method, ON_GPU if on_gpu else ON_CPU)
    else:
        config = _for_other_method(config, peek, method, on_gpu)
    return config.with_values("views", flip=peek.flips, translation=2 if side >= 24 else 1 if side >= 12 else 0)


def _for_vectors(config: Config, rows: int) -> Config:
    """1,000 steps, and more if these visit all rows less than ten times."""
    epochs = max(VECTORS_EPOCHS * VECTORS_ROWS // max(rows, VECTORS_ROWS), VECTORS_MIN_EPOCHS)
    return config.with_overrides(VECTORS).with_values("schedule", epochs=epochs, weight_rampup_epochs=epochs / 10)


def _for_images(config: Config, peek: Peek, method: str, chosen: ImageSettings) -> Config:
    """As many epochs as make `chosen.steps`; fewer for large images, but at least three."""
    config = config.with_values("method", name=method).with_overrides(chosen.overrides)
    if method == "fixmatch":
        config = config.with_values("method", threshold=0.8)
    side = peek.image_side or 0
    steps = max(chosen.steps * 32**2 // max(side, 32) ** 2, chosen.steps // 3)
    rows_per_step = round(config.training.batch_size * (1 - METHODS.find(method).labeled_share))
    epochs = max(-(-steps // max(peek.rows // rows_per_step, chosen.min_steps_per_epoch)), 3)
    training = {"evaluate_every": -(-epochs // 20), "min_steps_per_epoch": chosen.min_steps_per_epoch}
    config = config.with_values("training", **training)
    config = config.with_values("network", name=chosen.network if side >= chosen.min_side else "small")
    return config.with_values("schedule", epochs=epochs, warmup_epochs=min(epochs / 40, 1))


def _for_other_method(config: Config, peek: Peek, method: str, on_gpu: bool) -> Config:
    """The paper's schedule with about 1,000 steps. Runs are short, so running means are quick."""
    side = peek.image_side
    network = "mlp" if side is None else "conv13" if on_gpu and side >= ON_GPU.min_side else "small"
    steps_per_epoch = max(peek.rows // config.training.batch_size, 1)
    epochs = min(max(OTHER_STEPS // steps_per_epoch, OTHER_MIN_EPOCHS), OTHER_MAX_EPOCHS)
    config = config.with_values("method", name=method).with_values("schedule", epochs=epochs)
    config = config.with_values("network", name=network, mean_momentum=OTHER_MOMENTUM)
    return config if side is not None else config.with_values("optimizer", learning_rate=OTHER_VECTORS_RATE)


class FineTuning(NamedTuple):
    """Settings for fine-tuning a backbone, on a CPU or on a GPU."""

    steps: int
    min_steps_per_epoch: int
    batch_size: int


TUNED_ON_CPU, TUNED_ON_GPU = FineTuning(300, 20, 80), FineTuning(9000, 300, 160)
TUNING = (  # chosen on CIFAR-10 and PlantVillage
    *("network.dropout=0.2", "method.decay=0.998", "method.slack=1.5", "method.threshold=0.8"),
    *("optimizer.name=adamw", "optimizer.learning_rate=0.0005", "optimizer.weight_decay=0.05"),
    *("optimizer.multipliers=head:5", "schedule.name=cosine", "schedule.weight_rampup_epochs=0"),
    *("preprocess.kind=none", "preprocess.after_views=on"),
)
WARM_UP_STEPS = 100  # at most a tenth of all


def finetuned(config: Config, peek: Peek, *, on_gpu: bool = False) -> Config:
    """Return the settings that fine-tune the backbone of a config that has its frozen features as inputs."""
    if config.encoder.name != "backbone":
        raise ConfigError("fine-tuning needs a backbone, and one only; name it, such as timm:tf_efficientnet_lite0.")
    frozen: Any = config.encoder
    size = build(frozen.model, frozen.weights, frozen.size).size
    if "size" in field_types(type(config.source)):  # files; arrays are enlarged by the network
        config = config.with_values("source", size=size)
        peek = replace(peek, image_side=size)
    side = peek.image_side or 0
    chosen = TUNED_ON_GPU if on_gpu else TUNED_ON_CPU
    config = replace(config, encoder=ENCODERS.options("identity"))
    config = config.with_values("method", name=IMAGES_METHOD).with_overrides(TUNING)
    network = {"backbone": frozen.model, "weights": frozen.weights, "size": size}
    config = config.with_values("network", name=BACKBONE, **network)
    per_epoch = max(peek.rows // round(0.8 * chosen.batch_size), chosen.min_steps_per_epoch)
    epochs = max(-(-chosen.steps // per_epoch), 3)
    training = {"batch_size": chosen.batch_size, "min_steps_per_epoch": chosen.min_steps_per_epoch}
    config = config.with_values("training", **training, evaluate_every=-(-epochs // 20))
    config = config.with_values("views", flip=peek.flips, translation=max(side // 8, 1))
    warmup = min(WARM_UP_STEPS / per_epoch, epochs / 10)
    return config.with_values("schedule", epochs=epochs, warmup_epochs=warmup)


def frozen_settings(config: Config, rows: int) -> Config:
    """Return the settings of a committee on the frozen features of the backbone that a config fine-tunes."""
    network = config.network
    encoder = ENCODERS.options("backbone", model=network.backbone, weights=network.weights, size=network.size)
    first = Config(source=config.source, encoder=encoder, labels=config.labels, seed=config.seed)
    first = first.with_values("labels", prior=None).with_values("preprocess", kind="channel")
    return _for_vectors(first, rows)


def explain(peek: Peek, chosen: Config, used: Config, *, timed: bool = False) -> str:
    """Say in one line which settings were chosen and why, besides those that the user has changed.

    Parameters
    ----------
    timed
        A time limit decides the number of epochs.
    """
    is_images = peek.image_side is not None and not ENCODERS.find(chosen.encoder.name).needs_images
    where = "on a GPU" if resolve_device(used.training.device).type == "cuda" else "without a GPU"
    reasons = []
    if used.method.name == chosen.method.name:
        reasons.append(f"method {chosen.method.name}")
    if used.network.name == chosen.network.name:
        reasons.append(f"network {chosen.network.name}, for {'images' if is_images else 'vectors'} {where}")
    if used.schedule.epochs == chosen.schedule.epochs and not timed:
        reasons.append(f"{chosen.schedule.epochs:,} epochs, for this number of rows")
    if is_images and used.views.translation == chosen.views.translation > 0:
        reasons.append(f"shifts of up to {plural(chosen.views.translation, 'pixel')}")
    if is_images and used.views.flip == chosen.views.flip:
        reasons.append(f"{'' if chosen.views.flip else 'no '}flips, {peek.why}")
    return f"chosen: {'; '.join(reasons)}" if reasons else ""
