"""What encoders of text share: how texts are read, put on one scale and shown.

An encoder of text makes a vector of each text. The vectors are centered and divided by one number, so that their
components have a mean square of 1 together. Components are not standardized one by one: that would make noise of the
many that hardly vary as loud as the few that say what a text is about. An empty text is the mean, zeros.
"""

import hashlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from selfens.data.images import track
from selfens.data.rows import Rows
from selfens.encoders.base import Encoded, Encoder, Shown
from selfens.encoders.fronts import TextFront
from selfens.errors import DataError, RunError, plural

LONGEST = 20_000  # characters; what follows is not encoded
AT_ONCE = 1000  # texts
SAMPLE = 5000  # rows that the scale is measured on

Vectors = NDArray[np.float32]


class TextEncoder(Encoder):
    """Rows are an array of strings, as the encoder `columns` takes them from the text columns of a table."""

    is_scaled = True
    takes_texts: ClassVar[bool] = True
    about: Mapping[str, Any] = {}
    """What a run keeps of the weights: their name, hash and license."""
    center: Vectors = np.zeros(0, np.float32)
    scale: float = 1.0
    work: str = ""
    """What `embed` computed, if it may take long."""

    @abstractmethod
    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return [texts, width] vectors; `learn` has been called."""

    def text_front(self, name: str) -> TextFront | None:
        """Return what this encoder adds to an exported file, under this name; None if it cannot be in one."""
        return None

    def learn(self, texts: Sequence[str]) -> None:  # noqa: B027
        """Learn from the training texts, none of which is empty."""

    def fit(self, raw: Any, rows: Rows) -> None:
        texts = [text for text in cut(raw[rows]) if text]
        if not texts:
            raise DataError("all texts are empty; expected some to learn from.")
        self.learn(texts)
        made = self._embed_all(texts[:: 1 + len(texts) // SAMPLE]).astype(np.float64)
        center = made.mean(axis=0)
        self.center, self.scale = center.astype(np.float32), float(np.sqrt(((made - center) ** 2).mean())) or 1.0

    def accept(self, given: Any, where: str, what: str = "the inputs") -> Any:
        texts = np.asarray(given, dtype=object)
        if texts.ndim != 1 or not all(isinstance(text, str) for text in texts):
            raise DataError(f"{what} are not strings; {where} expects a list of texts.")
        return texts

    def transform(self, raw: Any, *, progress: bool = False) -> Encoded:
        texts = cut(raw)
        made = self._embed_all(texts, progress)
        made -= self.center
        made /= np.float32(self.scale)
        empty = np.array([not text for text in texts], dtype=bool)
        made[empty] = 0
        long = sum(len(text) > LONGEST for text in raw)
        counts = {
            f"{plural(int(empty.sum()), 'empty text')} taken as an average one.": empty.any(),
            f"of {plural(long, 'text')} only the first {LONGEST:,} characters are encoded.": long,
        }
        notes = tuple(note for note, holds in counts.items() if holds)
        return Encoded(made, notes, digests(texts), self.work)

    def _embed_all(self, texts: Sequence[str], progress: bool = False) -> Vectors:
        made = None
        for start in track(range(0, len(texts), AT_ONCE), "encoding texts", progress):
            some = self.embed(texts[start : start + AT_ONCE])
            if made is None:
                made = np.empty((len(texts), some.shape[1]), np.float32)
            made[start : start + len(some)] = some
        return np.empty((0, len(self.center)), np.float32) if made is None else made

    def show(self, raw: Any, rows: Rows) -> Shown:
        return Shown(texts=[*raw[rows]])

    def to_dict(self) -> dict[str, Any]:
        return {"about": dict(self.about), "center": self.center.tolist(), "scale": self.scale}

    def restore(self, learned: Mapping[str, Any]) -> None:
        self.center, self.scale = np.array(learned["center"], np.float32), float(learned["scale"])
        if self.center.ndim != 1 or not len(self.center) or not self.scale > 0 or not np.isfinite(self.center).all():
            raise ValueError("center or scale")
        if learned["about"].get("key") != self.about.get("key"):
            what = f"the weights of the text encoder '{self}' are not those that the run was trained with"
            raise RunError(f"{what} (run.json names them); put them back, or train again.")


def cut(texts: Sequence[str]) -> list[str]:
    """Return the beginning of each text, without space around it. What is not valid Unicode is replaced."""
    return [text[:LONGEST].strip().encode("utf-8", "replace").decode() for text in texts]


def digests(texts: Sequence[str]) -> NDArray[np.uint8]:
    """Return [texts, 32] hashes."""
    joined = b"".join(hashlib.sha256(text.encode()).digest() for text in texts)
    return np.frombuffer(joined, np.uint8).reshape(len(texts), 32)
