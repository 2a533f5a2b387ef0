"""TF-IDF of words and pairs of words, reduced by a truncated SVD. It needs no pretrained weights and no other package.

scikit-learn fits both. A run keeps the words, their weights and the SVD's components as plain data.
"""

import base64
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from selfens.data.dataset import UNLABELED
from selfens.data.rows import Array, Labels
from selfens.encoders.base import EncoderOptions, RawRow
from selfens.encoders.fronts import TextFront
from selfens.encoders.texts import TextEncoder, Vectors
from selfens.errors import DataError
from selfens.settings import setting

MAX_WORDS = 5000  # single words and pairs
WORD = r"(?u)[\u3040-\u30ff\u3400-\u9fff\u0e00-\u0eff]|\w+"  # scripts without spaces are taken letter by letter
BASELINE = "TF-IDF + logistic regression"


@final
class Tfidf(TextEncoder):
    @dataclass(frozen=True, kw_only=True)
    class Options(EncoderOptions):
        name: ClassVar[str] = "tfidf"
        size: int = setting(200, "Numbers that each text becomes.", at_least=2, at_most=2000)

    words: tuple[str, ...] = ()
    weights: Vectors = np.zeros(0, np.float32)
    """Inverse document frequency of each word."""
    components: Any = np.zeros((0, 0), np.float16)
    """[words, size]"""

    def learn(self, texts: Sequence[str]) -> None:
        from sklearn.decomposition import TruncatedSVD

        vectorizer = _vectorizer(min_df=2 if len(texts) > 100 else 1, max_features=MAX_WORDS)
        try:
            found = vectorizer.fit_transform(texts)
        except ValueError:  # no word is left
            raise DataError("the texts hold no words that occur in two of them; expected sentences.") from None
        self.words = tuple(map(str, vectorizer.get_feature_names_out()))
        self.weights = vectorizer.idf_.astype(np.float32)
        size = min(self.options.size, len(self.words) - 1, len(texts) - 1)
        if size < 2:
            raise DataError(f"the texts hold only {len(self.words)} different words; expected sentences.")
        reduced = TruncatedSVD(size, random_state=0).fit(found)
        self.components = np.ascontiguousarray(reduced.components_.T, np.float16)

    def embed(self, texts: Sequence[str]) -> Vectors:
        return np.asarray(self._fitted.transform(texts) @ self.components.astype(np.float32), np.float32)

    @property
    def _fitted(self) -> Any:
        vectorizer = _vectorizer(vocabulary={word: number for number, word in enumerate(self.words)})
        vectorizer.idf_ = self.weights.astype(np.float64)
        return vectorizer

    def text_front(self, name: str) -> TextFront:
        positions = {word: number for number, word in enumerate(self.words)}

        def feed(texts: Sequence[str]) -> dict[str, Array]:
            counts = np.zeros((len(texts), len(self.words)), np.float32)
            for row, text in enumerate(texts):
                words = re.findall(WORD, text.lower())
                for word in (*words, *map(" ".join, pairwise(words))):
                    if word in positions:
                        counts[row, positions[word]] += 1
            return {f"{name}_counts": counts}

        return TextFront(
            WeightedWords(self.weights, self.components),
            {f"{name}_counts": RawRow((len(self.words),))},
            feed,
            f"words = [re.findall({ascii(WORD)}, text.lower()) for text in texts]\n"
            'counts = [Counter([*each, *map(" ".join, zip(each, each[1:]))]) for each in words]\n'
            f'vocabulary = json.loads(about["{name}_words"])\n'
            f'given["{name}_counts"] = np.array([[each[word] for word in vocabulary] for each in counts], "float32")\n',
            {f"{name}_words": json.dumps(self.words, ensure_ascii=False)},
        )

    def to_dict(self) -> dict[str, Any]:
        packed = base64.b64encode(self.components.tobytes()).decode()
        about = {"words": list(self.words), "weights": self.weights.tolist(), "components": packed}
        return super().to_dict() | about

    def restore(self, learned: Mapping[str, Any]) -> None:
        super().restore(learned)
        self.words, self.weights = tuple(map(str, learned["words"])), np.array(learned["weights"], np.float32)
        packed = np.frombuffer(base64.b64decode(learned["components"], validate=True), np.float16)
        self.components = packed.reshape(len(self.words), -1)
        if len({*self.words}) < len(self.words) or self.weights.shape != (len(self.words),):
            raise ValueError("words")
        if self.components.shape[1] != len(self.center) or not np.isfinite(self.components).all():
            raise ValueError("components")

    def __str__(self) -> str:
        return "TF-IDF with SVD"


class WeightedWords(nn.Module):
    """Does what `Tfidf.embed` does, for [texts, words] counts."""

    weights: Tensor
    components: Tensor

    def __init__(self, weights: Vectors, components: Any) -> None:
        super().__init__()
        self.register_buffer("weights", torch.from_numpy(weights.copy()))
        self.register_buffer("components", torch.from_numpy(components.copy()))

    def forward(self, counts: Tensor) -> Tensor:
        weighted = torch.where(counts > 0, 1 + counts.clamp_min(1).log(), 0) * self.weights
        return functional.normalize(weighted, dim=1) @ self.components.float()


def _vectorizer(**options: Any) -> Any:
    from sklearn.feature_extraction.text import TfidfVectorizer

    return TfidfVectorizer(token_pattern=WORD, ngram_range=(1, 2), sublinear_tf=True, **options)


def linear_predictions(texts: Sequence[str], labels: Labels, test_texts: Sequence[str]) -> dict[str, Labels]:
    """Return what logistic regression on the words predicts, as scikit-learn's examples do it; nothing if it cannot be fitted.

    `labels` are -1 if unknown. The frequencies of words are counted in all texts, the classifier sees the labeled ones.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    vectorizer, known = TfidfVectorizer(token_pattern=WORD, sublinear_tf=True), labels != UNLABELED
    try:
        words = vectorizer.fit_transform(texts)
        model = LogisticRegression(max_iter=1000).fit(words[known], labels[known])
        return {BASELINE: model.predict(vectorizer.transform(test_texts))}
    except ValueError:  # no text holds a word
        return {}
