"""What comes before the network: data, labels, encoder, preprocessing."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from selfens import encoders
from selfens.config import Config
from selfens.data import preprocess, sources
from selfens.data.dataset import Dataset
from selfens.data.labels import LabelChoice, choose_labels, with_classes
from selfens.data.prior import with_prior
from selfens.encoders.dataset import EncodedDataset
from selfens.runs.run import Run


@dataclass(frozen=True)
class Prepared:
    """The config and the prepared data; the same in all processes."""

    config: Config
    device: torch.device
    data: EncodedDataset
    labels: LabelChoice
    preprocess: nn.Module

    def preprocesses_views(self, views: Sequence[str]) -> bool:
        """Return True if each view is preprocessed, rather than the whole set once.

        This requires pixels: a view fills empty areas with gray, or, after preprocessing, with the mean, which is 0.
        """
        return self.config.preprocess.is_after_views(views) and self.data.are_pixels

    def views_see_pixels(self, views: Sequence[str]) -> bool:
        """Return True if views get inputs that are known to range from 0 (black) to 1 (white)."""
        is_raw = self.config.preprocess.kind == "none" or self.config.preprocess.is_after_views(views)
        return is_raw and self.data.are_pixels


def prepare(
    config: Config, device: torch.device, dataset: Dataset | None, prior: Any = None, *, progress: bool = False
) -> Prepared:
    """Load the data of a new run, choose the labels, and fit encoder and preprocessing on the main training rows."""
    encoder, seeds = encoders.build(config.encoder, device), config.seed
    if dataset is None:
        dataset = sources.load(config.source, seed=seeds.of("split"), side=encoder.image_side, progress=progress)
        config = replace(config, source=dataset.source or config.source)
    dataset = with_classes(dataset, config.labels)
    given = config.labels.prior if prior is None else prior
    if given is not None:
        dataset = with_prior(dataset, given)
    labels = choose_labels(dataset, config.labels, label_seed=seeds.of("labels"), split_seed=seeds.of("split"))
    main = np.setdiff1d(np.arange(dataset.num_main), labels.validation)
    encoder.fit(dataset.raw, dataset.train_rows[main])
    if encoder.widths and not config.network.groups:
        config = config.with_values("network", groups=",".join(map(str, encoder.widths)))
    data = EncodedDataset.make(dataset, encoder, progress=progress)
    kind, rows = config.preprocess.kind, None if len(main) == data.num_rows else main
    if config.preprocess.rows == "labeled":
        rows = labels.rows
    sets = {"training": data.inputs, "test": data.test_inputs}
    # Standardizing does not square raw values in float32, and scales large ones down.
    limit = torch.finfo(torch.float32).max if kind == "channel" else preprocess.LARGEST
    preprocess.check_range(preprocess.NoPreprocess(), sets, device, limit)
    fitted = preprocess.fit(kind, data.inputs, device, rows)
    if kind == "channel":
        preprocess.check_range(fitted, sets, device)
    return Prepared(config, device, data, labels, fitted)


def prepare_again(run: Run, device: torch.device, dataset: Dataset | None) -> Prepared:
    """Take labels, encoder, preprocessing and residence from the run that is resumed."""
    data, config = run.data(dataset), run.config
    if config.training.residence == "auto":  # the available memory may have changed
        config = config.with_values("training", residence=run.info.residence)
    return Prepared(config, device, data, run.labels, run.directory.preprocess().to(device))
