"""The process beside the server: it encodes the rows, and then trains whenever it is asked to.

It takes the labels from the journal, so it needs to be told nothing, and a kill loses nothing. The model is a committee on the
encoded rows, whatever `train` would train: it takes seconds. Messages are tuples of a word and what belongs to it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfens import auto
from selfens.config import Config
from selfens.data import journal
from selfens.data.dataset import UNLABELED, Dataset
from selfens.data.rows import Labels
from selfens.encoders.dataset import EncodedDataset
from selfens.errors import SelfensError, root_cause
from selfens.labeling.project import Project, encode
from selfens.tools import selection
from selfens.tools.audit import audit_evidence
from selfens.tools.folds import default_folds, evidence_by_folds
from selfens.training.loop import train
from selfens.training.progress import Progress

QUEUE = 200  # rows suggested at a time
EPOCHS = 15  # a third of what `train` does, for the queue to be ready sooner
FOLDS = 3
MOST_DOUBTFUL = 20


class Interrupted(Exception):
    """The server wants something else."""


def work(server: Connection, project: Project) -> None:
    """Encode, then do what the server asks, until it is gone."""
    with suppress(EOFError, BrokenPipeError, KeyboardInterrupt):
        try:
            data, usable = encode(project, lambda done: server.send(("encoded", done)))
            space = selection.embed(data.inputs, standardize=not data.encoder.is_scaled)
            server.send(("queue", queue_of(space, data.labels, usable)))
            server.send(("ready", None))
        except (EOFError, OSError):
            raise
        except Exception as error:
            server.send(("failed", said(error)))
            return
        while server.recv() == "train":
            while server.poll():
                server.recv()
            try:
                train_and_measure(server, project, data, space, usable)
            except Interrupted:
                server.send(("idle", None))
            except (EOFError, BrokenPipeError):
                raise
            except Exception as error:
                server.send(("failed", said(error)))


def said(error: Exception) -> str:
    return str(error) if isinstance(error, SelfensError) else root_cause(error)


def train_and_measure(
    server: Connection, project: Project, data: EncodedDataset, space: NDArray[np.float32], usable: NDArray[np.bool_]
) -> None:
    """Train with the labels of the journal, send a new queue, then the error and what looks wrong."""
    noted = journal.read(project.journal)
    labeled = project.labeled(noted)
    junk = {row for key, found in journal.locate(project.data, noted).items() if key in noted.marks for row in found}
    usable = usable & ~np.isin(project.rows, [*junk])
    labels, number = labeled.train_labels, int((labeled.train_labels != UNLABELED).sum())
    if labeled.num_classes < 2:
        server.send(("queue", queue_of(space, labels, usable)))
        server.send(("waiting", "The first model is trained when two classes have a label."))
        return
    server.send(("training", number))
    chosen = None if labeled.suggested is None else labeled.suggested[project.rows]
    dataset = Dataset(
        raw=data.inputs, labels=labels, is_test=np.zeros(len(labels), bool), classes=labeled.classes, suggested=chosen
    )
    config = settings(dataset, scaled=data.encoder.is_scaled)
    with tempfile.TemporaryDirectory(prefix="selfens-") as folder:
        run = train(config, Path(folder) / "run", dataset=dataset, progress=Progress())
        probabilities = run.predict_training_rows()
    best = probabilities.argmax(axis=1)
    predicted = [labeled.classes[each] for each in best]
    certain = probabilities.max(axis=1).round(3).tolist()
    server.send(("predicted", (predicted, certain)))
    server.send(("queue", queue_of(space, labels, usable, probabilities)))
    server.send(("doubtful", conflicts(space, labels, labeled.classes)))
    folds = min(FOLDS, default_folds(labels))
    if folds > 1:
        server.send(("measuring", number))
        evidence = evidence_by_folds(config, dataset, folds, progress=Progress(), each=stoppable(server))
        low, high = evidence.error_interval
        measured = {"labels": number, "error": evidence.error, "low": low, "high": high}
        audit = audit_evidence(evidence)
        wrong = [
            (int(row), f"models that have not seen this label say '{labeled.classes[suggested]}'")
            for row, suggested in zip(audit.rows, audit.suggested, strict=True)
            if row in audit.disputed
        ]
        server.send(("measured", (measured, list(evidence.notes))))
        server.send(("doubtful", wrong[:MOST_DOUBTFUL]))
    server.send(("idle", None))


def settings(dataset: Dataset, *, scaled: bool) -> Config:
    """Return the settings for encoded rows, for a model that is trained in seconds."""
    config = auto.config_for_dataset(dataset, device="auto").with_epochs(EPOCHS)
    return config.with_values("preprocess", kind="none" if scaled else "channel")


def conflicts(space: NDArray[np.float32], labels: Labels, classes: Sequence[str]) -> list[tuple[int, str]]:
    """Return labeled rows that are nearly the same as one with another label, and what to say of them."""
    return [
        (one, f"nearly the same as a row that is labeled '{classes[labels[other]]}'")
        for pair in selection.near_duplicates(space, np.flatnonzero(labels != UNLABELED))
        for one, other in (pair, pair[::-1])
        if labels[one] != labels[other]
    ]


def stoppable(server: Connection) -> Callable[..., Iterable[Any]]:
    """Return a `map` that stops when the server sends something."""

    def each(compute: Callable[[int], Any], numbers: Iterable[int]) -> Iterator[Any]:
        for number in numbers:
            if server.poll():
                raise Interrupted
            yield compute(number)

    return each


def queue_of(
    space: NDArray[np.float32],
    labels: Labels,
    usable: NDArray[np.bool_],
    probabilities: NDArray[np.floating[Any]] | None = None,
) -> list[int]:
    """Return the rows to label next."""
    doubt = None if probabilities is None else 1 - selection.margin_of(probabilities)
    usable = usable if usable.mean() > 0.5 else np.ones_like(usable)
    pool = selection.Pool(rows=space, known=labels != UNLABELED, usable=usable, uncertainty=doubt, seed=len(labels))
    return [int(row) for row in selection.cover(pool, QUEUE)]
