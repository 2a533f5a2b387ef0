"""Fine-tuning a backbone in two stages.

1  A committee is trained on the features of the frozen backbone: a run of its own, in the folder `frozen` of the run.
2  The whole network is trained. It starts from a linear classifier of the features, and its targets from the committee's
   predictions, which are its prior.
"""

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from selfens import auto
from selfens.config import Config
from selfens.core.device import keep_random_state
from selfens.data.rows import Array, pieces
from selfens.errors import plural
from selfens.networks.advisors import PENALTY, linear_model
from selfens.networks.finetuned import FineTuned
from selfens.runs.directory import RunDirectory
from selfens.runs.run import FROZEN, Run
from selfens.training.components import Components
from selfens.training.progress import Progress, duration

LIMIT_SHARE = 0.2  # of a time limit is for the first stage
FORWARDS = 3  # a training step of one image takes about as long as this many passes forward
TIMED = 4  # images

Train = Callable[..., Run]


def is_finetuned(config: Config) -> bool:
    return config.network.name == "backbone"


def first_config(config: Config, rows: int) -> Config:
    """Return the settings of the first stage."""
    chosen = auto.frozen_settings(config, rows)
    return chosen.with_values("training", device=config.training.device, threads=config.training.threads)


def begin(
    components: Components,
    directory: RunDirectory,
    show: Progress,
    train: Train,
    resume: Train,
    limit: float | None = None,
) -> None:
    """Do or finish the first stage, within `limit` seconds if it is new, and start the second from it."""
    is_new = not directory.has_checkpoint()
    if is_new:
        say_how_long(components, show)
    frozen = first_stage(components, directory.path, show, train, resume, limit)
    if is_new:
        start_network(components, frozen)


def first_stage(
    components: Components, path: Path, show: Progress, train: Train, resume: Train, limit: float | None = None
) -> Run:
    """Train the committee, or finish or load it; its predictions become the prior of the second stage."""
    folder, dataset = path / FROZEN, components.prepared.data.dataset
    with keep_random_state(components.prepared.device):
        if (folder / "config.json").is_file():
            run = Run(folder, device=components.prepared.device.type, trust_code=True)
            if not run.finished:
                run = resume(folder, dataset=dataset, progress=show, trust_code=True)
        else:
            config = first_config(components.config, dataset.num_train)
            run = train(config, folder, dataset=dataset, progress=show, time_limit=limit)
    assert components.prior is not None
    known = run.predict_training_rows(dataset)
    components.prior.set(torch.from_numpy(known[components.owned]))
    return run


def start_network(components: Components, frozen: Run) -> None:
    """Start network and teacher from a linear classifier of the features, fitted to the labels."""
    network, labels = components.network, components.prepared.labels
    assert isinstance(network, FineTuned)
    inputs = frozen.data().inputs
    labeled = np.asarray(inputs[labels.rows], dtype=np.float64)
    mean, scale = moments(inputs)
    weight, bias = linear_model((labeled - mean) / scale, labels.labels, len(frozen.classes), PENALTY)
    scaled = weight / torch.from_numpy(scale).float()
    network.start_head(scaled, bias - scaled @ torch.from_numpy(mean).float())
    if components.method.teacher is not None:
        components.method.teacher.network.load_state_dict(network.state_dict())


def moments(inputs: Array) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return mean and standard deviation of each feature; 1 for one that is constant."""
    count, total, squares = 0, 0.0, 0.0
    for piece in pieces(inputs, 4096):
        exact = piece.astype(np.float64)
        count, total, squares = count + len(exact), total + exact.sum(axis=0), squares + (exact**2).sum(axis=0)
    mean = np.asarray(total) / count
    scale = np.sqrt(np.maximum(np.asarray(squares) / count - mean**2, 0))
    return mean, np.where(scale > 1e-6, scale, 1.0)


@torch.no_grad()
def say_how_long(components: Components, show: Progress) -> None:
    """On a CPU, say about how long fine-tuning will take, from the time of a pass forward."""
    if components.prepared.device.type != "cpu":
        return
    image = torch.zeros(TIMED, *components.prepared.data.input_shape)
    with keep_random_state():
        components.network(image)
        began = time.perf_counter()
        components.network(image)
        each = (time.perf_counter() - began) / TIMED
    loader, epochs, dataset = components.loader, components.config.schedule.epochs, components.prepared.data.dataset
    steps = epochs * loader.steps_per_epoch
    taught = loader.batch_size - loader.num_labeled
    passes = len(dataset.labels) + steps * (FORWARDS * loader.batch_size + taught) + epochs * len(dataset.test_labels)
    seconds = duration(passes * each)
    show.say(
        f"fine-tuning {plural(steps, 'step')} of {loader.batch_size} images on a CPU takes about {seconds}; smaller images, "
        "fewer epochs or a time limit shorten it, a GPU takes a small part of that"
    )
