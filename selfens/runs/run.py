"""Run: a finished or unfinished run, read back from its directory, ready to predict."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from selfens import networks
from selfens.config import Config
from selfens.core import evaluate
from selfens.core.device import prediction_settings, random_state_kept, resolve_device, resolve_precision
from selfens.core.targets import EnsembleTargets
from selfens.data import preprocess, sources
from selfens.data.arrays import PIECE, Inputs, as_trained, check_probabilities
from selfens.data.dataset import Dataset
from selfens.data.features import FeatureStore, open_store
from selfens.data.labels import LabelChoice
from selfens.data.rows import Source, pieces
from selfens.data.table_files import named
from selfens.data.tabular import Columns
from selfens.errors import DataError, RunError
from selfens.networks.backbone import is_code
from selfens.runs.directory import RunDirectory

BLOCK_BYTES = 1 << 24
FEW_TEST_ROWS = 50


class Run:
    """Everything a run left behind.

    network     the module to load the weights into, needed only if the run was given a module of your own
    dataset     what the run was trained on, if it is in memory already
    trust_code  import the code that the run's config names for its network or backbone (module:factory)
    """

    def __init__(
        self,
        path: str | Path,
        *,
        network: nn.Module | None = None,
        device: str = "auto",
        dataset: Dataset | None = None,
        trust_code: bool = False,
    ) -> None:
        self.directory = RunDirectory.open(path)
        self.path = self.directory.path
        self.config: Config = self.directory.config()
        self.about: dict[str, Any] = self.directory.about()
        self.classes: tuple[str, ...] = tuple(self.about["classes"])
        self.input_shape: tuple[int, ...] = tuple(self.about["input_shape"])
        self.device = resolve_device(device)
        self._given_network = network
        self._dataset, self._trust_code = dataset, trust_code
        self._tested: tuple[Dataset, NDArray[np.float32]] | None = None

    @property
    def history(self) -> list[dict[str, Any]]:
        """One record per finished epoch."""
        return self.directory.history()

    @property
    def finished(self) -> bool:
        """Whether the last epoch's checkpoint is there; its line in the history comes a moment before."""
        return self.directory.reached()[0] >= self.config.schedule.epochs

    @property
    def test_error(self) -> float | None:
        """In percent, after the checkpoint's epoch, whose weights predict: never the best epoch's. None if that epoch was not
        evaluated, or there are no test rows."""
        records = self.history[: self.directory.reached()[0]]  # a crash may have left later ones
        return records[-1].get("test_error") if records else None

    @property
    def error_margin(self) -> float | None:
        """In points, if there are so few test rows that it matters: half of the interval that holds 95 % of such counts, at
        an error of one half."""
        tested = self.about["test_rows"]
        return 98 / math.sqrt(tested) if 0 < tested < FEW_TEST_ROWS else None

    @cached_property
    def labels(self) -> LabelChoice:
        return self.directory.labels()

    @cached_property
    def columns(self) -> Columns | None:
        """How the cells of a table become inputs, if the run was trained on one."""
        raw, is_table = self.about.get("columns"), self.config.data.label_column is not None
        if raw is None and (not is_table or self.about["own_data"]):
            return None
        try:
            found = Columns.from_dict(raw)
            if (found.width,) != self.input_shape:
                raise ValueError("their number")
        except (ValueError, TypeError, KeyError, AttributeError):
            raise RunError(f"{self.path / 'run.json'} holds damaged columns of a table; put back the file.") from None
        return found

    @cached_property
    def preprocess(self) -> nn.Module:
        return self.directory.preprocess().to(self.device)

    @cached_property
    def network(self) -> nn.Module:
        """The trained network, in evaluation mode: preprocessed inputs to logits."""
        if self.directory.reached() == (0, 0):
            raise RunError(
                f"{self.path} has no checkpoint of a trained network; resume it, or put back its checkpoint.safetensors."
            )
        tensors = self.directory.load_checkpoint(with_targets=False).tensors
        weights = tensors.get("evaluated") or tensors["network"]
        with random_state_kept():  # weights are drawn before they are overwritten
            network = self._built_network() if self._given_network is None else self._given_network
        if self._given_network is not None and tensors.get("evaluated"):
            network = copy.deepcopy(network)  # the module that was passed keeps the trained weights, not the teacher's
        try:
            network.load_state_dict(weights)
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise RunError(
                f"the weights in {self.path} do not fit the network '{self.config.network.name}' ({reason}); "
                "put back the files of the run."
            ) from None
        return network.to(self.device).eval()

    def _built_network(self) -> nn.Module:
        if self.about["own_network"]:
            raise RunError(
                f"{self.path} was trained with a module of your own; pass it, in Python: load_run(path, network=...)."
            )
        self.check_code()
        return networks.build(self.config.network, self.input_shape, len(self.classes))

    @property
    def code(self) -> dict[str, str]:
        """The code that is imported to use the run, by what it is for: its network or its backbone."""
        network, backbone = self.config.network.name, self.config.data.backbone
        own = {"network": network} if networks.is_factory(network) and self._given_network is None else {}
        return own | ({"backbone": backbone} if backbone is not None and is_code(backbone) else {})

    def check_code(self) -> None:
        """Refuse to import code that the run names, which may be anybody's, unless the caller trusts it."""
        for part, name in self.code.items() if not self._trust_code else ():
            raise RunError(
                f"{self.path} names code for its {part}, '{name}', which is imported only if you trust it (trust_code=True; "
                "on the command line: --trust-code)."
            )

    @cached_property
    def features(self) -> FeatureStore | None:
        """What makes features of images, if the run was trained on those of a backbone."""
        if self.config.data.backbone is None:
            return None
        self.check_code()
        store = open_store(self.config.data, self.device)
        match self.about.get("backbone"):
            case {"key": key} if key == store.backbone.about["key"]:
                return store
        raise RunError(
            f"weights or statistics of the backbone '{self.config.data.backbone}' are not those that {self.path} was trained "
            "with (run.json names them); put them back, or train again."
        )

    @cached_property
    def ensemble(self) -> EnsembleTargets | None:
        """The targets of the last checkpoint, if the method keeps any; those in a file are read in place."""
        checkpoint = self.directory.load_checkpoint()
        state, (num_rows, num_classes) = checkpoint.tensors.get("targets"), (self.about["rows"], len(self.classes))
        if state is None and not checkpoint.targets_file:
            return None
        try:
            if state is None:
                ensemble = EnsembleTargets.read(checkpoint.targets_file)
                if (ensemble.num_rows, ensemble.num_classes) != (num_rows, num_classes):
                    raise ValueError(f"they are of {ensemble.layout}")
            else:
                dtype = str(state["mean"].dtype).removeprefix("torch.")
                ensemble = EnsembleTargets(num_rows, num_classes, dtype=dtype, variance="square" in state)
                ensemble.load_state_dict(state)
        except (RuntimeError, KeyError, ValueError) as error:
            raise RunError(f"the targets of {self.path} are damaged ({str(error).splitlines()[0]}).") from None
        return ensemble

    def dataset(self, *, source: str | Path | None = None, offline: bool = False) -> Dataset:
        """The data the run was trained and tested on, loaded again.

        source   where it is now, if it was moved; what is not the same data is refused
        offline  never download it
        """
        if self._dataset is not None and source is None:
            return self._dataset
        if self.about["own_data"] and source is None:
            raise RunError(f"{self.path} was trained on arrays passed in Python; pass the dataset again.")
        config = self.config
        if source is not None:
            place = {"folder": str(source)} if config.data.name in sources.SOURCES else {"name": str(source)}
            config = config.with_values("data", **place)
        try:
            dataset = sources.from_config(config, offline=offline, columns=self.columns, store=self.features)
        except DataError as error:
            reason = str(error).rstrip(".")
            raise RunError(
                f"the data of {self.path} cannot be loaded: {reason}; put it back, or say where it is now (on the command "
                "line: --data PATH)."
            ) from None
        self.check_dataset(dataset)
        return dataset

    def check_dataset(self, dataset: Dataset) -> None:
        if dataset.fingerprint() != self.about["fingerprint"]:
            raise RunError(
                f"the data of {dataset.name} is not what {self.path} was trained on; its files or its extra rows have changed, "
                "or they are other data."
            )

    def predict_proba(self, inputs: ArrayLike) -> NDArray[np.float32]:
        """[rows, classes] probabilities for raw inputs of the kind the run was trained on: rows of a table, images of a
        backbone."""
        if self.columns is not None and hasattr(inputs, "columns"):
            inputs, _ = self.columns.encode(named(inputs))
        if self.features is not None:
            return self.predict_rows(self.features.features(self.features.of_images(inputs)))
        limits, of_bytes = self.about.get("input_range"), self.about["input_type"] == "uint8"
        return self.predict_rows(as_trained(inputs, self.input_shape, limits, of_bytes, str(self.path)))

    def predict(self, inputs: ArrayLike) -> NDArray[np.str_]:
        """The name of the most probable class of each row."""
        best = self.predict_proba(inputs).argmax(axis=1)
        return np.array([self.classes[number] for number in best])

    def predict_rows(self, source: Source, rows: NDArray[np.int64] | None = None) -> NDArray[np.float32]:
        """The same for inputs of a data set, all or those of some rows, read a piece at a time."""
        parts = [self._probabilities(piece) for piece in pieces(source, PIECE, rows)]
        probabilities = np.concatenate([np.empty((0, len(self.classes)), dtype=np.float32), *parts])
        check_probabilities(probabilities, rows)
        return probabilities

    def predict_training_rows(self, dataset: Dataset, rows: NDArray[np.int64] | None = None) -> NDArray[np.float32]:
        """[rows, classes] probabilities for its own training rows, all of them by default: those of the ensemble, if there is
        one and it has seen the row; else the network's."""
        self.check_dataset(dataset)
        numbers = np.arange(dataset.num_rows) if rows is None else np.asarray(rows)
        if self.ensemble is None:
            return self.predict_rows(dataset.inputs, numbers)
        targets = self.ensemble.get(torch.from_numpy(numbers))
        probabilities, unknown = targets.probabilities.cpu().numpy(), ~targets.known.cpu().numpy()
        if unknown.any():
            probabilities[unknown] = self.predict_rows(dataset.inputs, numbers[unknown])
        return np.asarray(probabilities)

    def training_blocks(self) -> Iterator[NDArray[np.int64]]:
        """The numbers of the training rows in parts, so that predictions for all of them need not be in memory at once."""
        size = max(BLOCK_BYTES // (4 * len(self.classes)), 1)
        for start in range(0, self.about["rows"], size):
            yield np.arange(start, min(start + size, self.about["rows"]))

    def _probabilities(self, raw: Inputs) -> NDArray[np.float32]:
        inputs = preprocess.apply(self.preprocess, raw, self.device)
        return probabilities(self.network, inputs, self.config.training.precision)

    def test_probabilities(self, dataset: Dataset) -> NDArray[np.float32]:
        """[test rows, classes] of the data the run was trained on."""
        self.check_dataset(dataset)
        if len(dataset.test_labels) == 0:
            raise DataError(f"{dataset.name} has no test rows to evaluate on.")
        if self._tested is None or self._tested[0] is not dataset:  # for verdict, report and all, one after the other
            self._tested = (dataset, self.predict_rows(dataset.test_inputs))
        return self._tested[1].copy()

    def evaluate(self, dataset: Dataset | None = None) -> dict[str, Any]:
        """The test error computed again, in percent, over every test row, and the error of each class."""
        data = dataset or self.dataset()
        wrong = self.test_probabilities(data).argmax(axis=1) != data.test_labels
        per_class = {
            name: 100.0 * float(wrong[data.test_labels == number].mean())
            for number, name in enumerate(data.classes)
            if (data.test_labels == number).any()
        }
        error = 100.0 * int(wrong.sum()) / len(wrong)
        return {"test_error": error, "rows": len(wrong), "errors": int(wrong.sum()), "per_class": per_class}

    def __repr__(self) -> str:
        epochs = f"{len(self.history)}/{self.config.schedule.epochs}"
        return f"Run({str(self.path)!r}, epochs={epochs}, test_error={self.test_error})"


def probabilities(
    network: nn.Module, inputs: Tensor, precision: str = "fp32", dtype: torch.dtype = torch.float32
) -> NDArray[Any]:
    """[rows, classes] for preprocessed inputs on the network's device; the softmax is taken in `dtype`."""
    precision = resolve_precision(precision, inputs.device)
    with prediction_settings(precision, inputs.device):
        logits = evaluate.logits(network, inputs, precision)
    return np.asarray(logits.softmax(dim=1, dtype=dtype).cpu().numpy())


def load_run(
    path: str | Path, *, network: nn.Module | None = None, device: str = "auto", trust_code: bool = False
) -> Run:
    """A run from its directory. Code that it names for its network is imported only with `trust_code`."""
    return Run(path, network=network, device=device, trust_code=trust_code)
