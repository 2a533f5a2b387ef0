"""Run: a finished or unfinished run, read back from its directory, ready to predict."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import nn

from selfens import encoders, networks
from selfens.config import Config
from selfens.core.device import keep_random_state, resolve_device
from selfens.core.targets import EnsembleTargets
from selfens.data import sources
from selfens.data.dataset import Dataset
from selfens.data.inspection import Inspection, file_names
from selfens.data.labels import LabelChoice
from selfens.data.rows import Rows, take
from selfens.encoders.base import Encoder
from selfens.encoders.dataset import EncodedDataset
from selfens.encoders.pretrained import TIMM
from selfens.errors import DataError, RunError, listed, plural
from selfens.runs.directory import REPORT, RunDirectory
from selfens.runs.evidence import Evidence
from selfens.runs.history import Record
from selfens.runs.info import RunInfo
from selfens.runs.model import Model
from selfens.runs.novelty import Novelty
from selfens.settings import field_types

FROZEN = "frozen"  # folder of the first stage of fine-tuning


class Run:
    """A run, read from its directory.

    Parameters
    ----------
    path
        The directory of the run.
    network
        The module to load the weights into, needed only if you passed your own network to `train`.
    device
        Device to predict on; auto: a GPU if there is one.
    data
        The data that the run was trained on, encoded, if they are in memory already.
    trust_code
        Import the code that the run's config names for its network or backbone (module:factory).
    """

    def __init__(
        self,
        path: str | Path,
        *,
        network: nn.Module | None = None,
        device: str = "auto",
        data: EncodedDataset | None = None,
        trust_code: bool = False,
    ) -> None:
        self.directory = RunDirectory(path)
        self.path = self.directory.path
        self.info: RunInfo = self.directory.info()  # read first: its error says what a folder that is not a run lacks
        self.config: Config = self.directory.config()
        self.classes, self.input_shape = self.info.classes, self.info.input_shape
        self.device = resolve_device(device)
        self._passed_network = network
        self._data, self._trust_code = data, trust_code

    @property
    def history(self) -> list[Record]:
        """One record per finished epoch."""
        return self.directory.history()

    @property
    def finished(self) -> bool:
        """True once the checkpoint of the last epoch exists; the history gets its line a moment earlier."""
        return self.directory.position()[0] >= self.config.schedule.epochs

    @property
    def test_error(self) -> float | None:
        """Test error in percent at the checkpoint, not at the best epoch; None if it was not measured."""
        records = self.history[: self.directory.position()[0]]  # a crash may have left later ones
        return records[-1].get("test_error") if records else None

    @property
    def was_passed_data(self) -> bool:
        """The dataset was passed in Python, so it cannot be loaded again."""
        return self.config.source.name == "memory"

    @property
    def has_report(self) -> bool:
        """Its page was written; a link is none, which may lead anywhere."""
        page = self.path / REPORT
        return page.is_file() and not page.is_symlink()

    # Parts

    @cached_property
    def labels(self) -> LabelChoice:
        return self.directory.labels()

    @cached_property
    def encoder(self) -> Encoder:
        if self._data is not None:
            return self._data.encoder
        self.check_code()
        return encoders.restore(self.config.encoder, self.info.encoder, self.device, str(self.path / "run.json"))

    @cached_property
    def preprocess(self) -> nn.Module:
        return self.directory.preprocess().to(self.device)

    @cached_property
    def network(self) -> nn.Module:
        """The trained network, in evaluation mode: preprocessed inputs to logits."""
        if self.directory.position() == (0, 0):
            raise RunError(f"{self.path} has no checkpoint; resume it, or put back its checkpoint.safetensors.")
        network = self._passed_network
        if network is None and self.info.custom_network:
            raise RunError(f"{self.path} was trained with a module of your own; pass it: load_run(path, network=...).")
        tensors = self.directory.load_checkpoint(with_targets=False).tensors
        if network is None:
            self.check_code()
            with keep_random_state():  # building draws weights, which are overwritten below
                network = networks.build(self.config.network, self.input_shape, len(self.classes), pretrained=False)
        elif tensors.get("evaluated"):
            network = copy.deepcopy(network)  # the passed module keeps the trained weights, not the teacher's
        try:
            network.load_state_dict(tensors.get("evaluated") or tensors["network"])
        except RuntimeError as error:
            reason = str(error).splitlines()[-1].strip().rstrip(".")
            name = self.config.network.name
            raise RunError(f"the weights in {self.path} do not fit the network '{name}' ({reason}).") from None
        return network.to(self.device).eval()

    @cached_property
    def frozen(self) -> Run | None:
        """The committee on frozen features that a fine-tuned backbone started from; None for any other run."""
        if not (self.path / FROZEN / "config.json").is_file():
            return None
        return Run(self.path / FROZEN, device=self.device.type, trust_code=self._trust_code)

    @property
    def model(self) -> Model:
        return Model(
            encoder=self.encoder,
            preprocess=self.preprocess,
            network=self.network,
            classes=self.classes,
            input_shape=self.input_shape,
            precision=self.config.training.precision,
            temperature=self.temperature,
        )

    @cached_property
    def ensemble(self) -> EnsembleTargets | None:
        """The targets of the last checkpoint, if the method keeps any."""
        state = self.directory.load_checkpoint().tensors.get("targets")
        if state is None:
            return None
        try:
            ensemble = EnsembleTargets(self.info.rows, len(self.classes))
            ensemble.load_state_dict(state)
        except (RuntimeError, KeyError, ValueError) as error:
            raise RunError(f"the targets of {self.path} are damaged ({str(error).splitlines()[0]}).") from None
        return ensemble

    @cached_property
    def evidence(self) -> Evidence | None:
        """Predictions for labeled rows that the model had not seen, if its errors were measured."""
        found = Evidence.load(self.path, self.info.id, len(self.classes))
        if found is None:
            return None
        known = self.info.rows if found.folds else self.info.test_rows
        return found if found.rows.max() < known else None

    def keep_evidence(self, evidence: Evidence) -> None:
        """Write evidence into the run's directory, in place of any other."""
        evidence.save(self.path, self.info.id)
        self.evidence = evidence

    @property
    def temperature(self) -> float:
        """Logits are divided by this to calibrate probabilities; 1 if errors were not measured."""
        return 1.0 if self.evidence is None else self.evidence.model_temperature

    @cached_property
    def inspection(self) -> Inspection | None:
        """What the inspection of the data found, if there was one."""
        return Inspection.load(self.path, self.info.rows + self.info.test_rows)

    @cached_property
    def novelty(self) -> Novelty | None:
        """Compares rows with the training rows; None before `keep_novelty`."""
        return Novelty.load(self.path, self.input_shape)

    def keep_novelty(self) -> None:
        """Fit `novelty` on the training rows, and write it into the run's directory."""
        data = self.data()
        inputs = take(data.inputs, np.arange(data.dataset.num_main))
        self.novelty = Novelty.fit(inputs, standardize=not data.encoder.is_scaled)
        self.novelty.save(self.path)

    # Trust

    @property
    def code(self) -> dict[str, str]:
        """The user's code that the run imports, by purpose: "network" or "backbone"."""
        network, encoder = self.config.network.name, self.config.encoder.code
        found = {"network": network} if networks.is_factory(network) and self._passed_network is None else {}
        tuned = self.config.network.backbone
        if self.config.network.name == networks.BACKBONE and not tuned.startswith(TIMM):
            encoder = tuned
        return found | ({"backbone": encoder} if encoder is not None else {})

    def check_code(self) -> None:
        """Raise a RunError if the run names code and the caller does not trust it: anybody may have written it."""
        if self.code and not self._trust_code:
            part, name = next(iter(self.code.items()))
            advice = "which is imported only if you trust it (trust_code=True, or --trust-code)"
            raise RunError(f"{self.path} names code for its {part}, '{name}', {advice}.")

    # Data

    def data(self, dataset: Dataset | None = None, *, source: str | Path | None = None) -> EncodedDataset:
        """Return the data the run was trained and tested on, encoded. Load them unless they are in memory.

        Parameters
        ----------
        dataset
            The dataset, if it is in memory.
        source
            Where the data are now, if they were moved. Different data are refused.
        """
        if self._data is not None and source is None and dataset in (None, self._data.dataset):
            return self._data
        if dataset is None and source is None and self.was_passed_data:
            raise RunError(f"{self.path} was trained on a dataset passed in Python; pass it, or a file of it (--data).")
        try:
            dataset = dataset or self._load(source)
        except DataError as error:
            advice = "put them back, or say where they are now (--data PATH)"
            reason = str(error).rstrip(".")
            raise RunError(f"the data of {self.path} cannot be loaded: {reason}; {advice}.") from None
        if not dataset.classes:  # they came from a labels file
            dataset = replace(dataset, classes=self.classes)
        prior = self.directory.prior()
        if prior is not None and len(prior) == dataset.num_train:
            dataset = dataset.with_prior(prior)
        data = EncodedDataset.make(dataset, self.encoder)
        if (data.fingerprint, data.num_rows) != (self.info.fingerprint, self.info.rows):
            raise RunError(
                f"the data of {dataset.name} are not what {self.path} was trained on: {self._what_changed(dataset)}, or train "
                "again; predict and export work all the same."
            )
        self._data = data
        return data

    def _what_changed(self, dataset: Dataset) -> str:
        before, now = set(self.inspection.files if self.inspection else ()), set(file_names(dataset))
        changes = {"missing": sorted(before - now), "new": sorted(now - before)}
        if not before or before == now:
            return "rows, labels or extra rows have changed; put them back, say where they are now (--data PATH)"
        found = " and ".join(f"{plural(len(x), 'file')} {word} ({listed(x, 3)})" for word, x in changes.items() if x)
        what = {"missing": "put back what is missing", "new": "take what is new out of the folder"}
        how = " and ".join(words for word, words in what.items() if changes[word])
        return f"{found}; {how}, or name a copy of the folder as it was (--data PATH)"

    def _load(self, source: str | Path | None) -> Dataset:
        options = self.config.source
        if source is not None and self.was_passed_data:
            options = sources.options_for(source)
        elif source is not None:
            where = "folder" if options.is_public else "path"
            if where not in field_types(type(options)):
                raise RunError(f"{options.title} is not read from a folder, so it cannot have been moved.")
            options = options.changed({where: str(source)})
        return sources.load(options, seed=self.config.seed.of("split"), side=self.encoder.image_side)

    # Predictions

    def predict_proba(self, inputs: Any) -> NDArray[np.float32]:
        """Return [rows, classes] probabilities for new examples of the kind the run was trained on."""
        return self.model.predict_proba(inputs, str(self.path))

    def predict(self, inputs: ArrayLike) -> NDArray[np.str_]:
        """Return the name of the most probable class of each row."""
        best = self.predict_proba(inputs).argmax(axis=1)
        return np.array([self.classes[number] for number in best])

    def predict_training_rows(self, dataset: Dataset | None = None, rows: Rows | None = None) -> NDArray[np.float32]:
        """Return [rows, classes] probabilities for training rows: the ensemble's if it has seen the row, else the network's."""
        data = self.data(dataset)
        numbers = np.arange(data.num_rows) if rows is None else np.asarray(rows)
        if self.ensemble is None:
            return self.model.predict_inputs(data.inputs, numbers)
        targets = self.ensemble.get(torch.from_numpy(numbers))
        probabilities, unknown = targets.probabilities.cpu().numpy(), ~targets.known.cpu().numpy()
        if unknown.any():
            probabilities[unknown] = self.model.predict_inputs(data.inputs, numbers[unknown])
        return np.asarray(probabilities)

    @cached_property
    def test_probabilities(self) -> NDArray[np.float32]:
        """[test rows, classes] probabilities of the network."""
        data = self.data()
        if len(data.test_labels) == 0:
            raise DataError(f"{data.dataset.name} has no test rows to evaluate on.")
        return self.model.predict_inputs(data.test_inputs)

    def evaluate(self, dataset: Dataset | None = None) -> dict[str, Any]:
        """Compute the test error again, over every test row, and the error of each class, in percent."""
        data = self.data(dataset)
        wrong = self.test_probabilities.argmax(axis=1) != data.test_labels
        present = np.unique(data.test_labels)
        per_class = {data.classes[n]: 100.0 * float(wrong[data.test_labels == n].mean()) for n in present}
        error = 100.0 * int(wrong.sum()) / len(wrong)
        return {"test_error": error, "rows": len(wrong), "errors": int(wrong.sum()), "per_class": per_class}

    def __repr__(self) -> str:
        epochs = f"{len(self.history)}/{self.config.schedule.epochs}"
        return f"Run({str(self.path)!r}, epochs={epochs}, test_error={self.test_error})"


def load_run(
    path: str | Path, *, network: nn.Module | None = None, device: str = "auto", trust_code: bool = False
) -> Run:
    """Load a run from its directory.

    Parameters
    ----------
    path
        The directory of the run.
    network
        The module to load the weights into, needed only if you passed your own network to `train`.
    device
        Device to predict on; auto: a GPU if there is one.
    trust_code
        Import the code that the run's config names for its network or backbone (module:factory).

    Returns
    -------
    Run
    """
    return Run(path, network=network, device=device, trust_code=trust_code)
