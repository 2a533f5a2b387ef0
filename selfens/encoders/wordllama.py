"""Embeddings of words that come with the package wordllama: 256 numbers per token, averaged over the tokens of a text.

Weights (16 MB) and tokenizer are read from the installed package, which is not imported. Nothing is downloaded.
"""

import functools
import hashlib
import importlib.util
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from selfens.encoders.base import EncoderOptions
from selfens.encoders.fronts import TextFront, front_of_tokens, padded
from selfens.encoders.texts import TextEncoder, Vectors
from selfens.errors import ConfigError, require, root_cause

EXTRA, PACKAGE = "text", "wordllama"
WEIGHTS, TOKENIZER = "weights/l2_supercat_256.safetensors", "tokenizers/l2_supercat_tokenizer_config.json"


@final
class WordLlama(TextEncoder):
    @dataclass(frozen=True, kw_only=True)
    class Options(EncoderOptions):
        name: ClassVar[str] = "wordllama"

    def __init__(self, options: Any = None, device: torch.device | str = "cpu") -> None:
        super().__init__(options, device)
        purpose = f"the encoder '{self.options.name}'"
        if not is_installed():
            require(EXTRA, purpose, PACKAGE)
        require(EXTRA, purpose, "tokenizers")
        self.tokenizer, self.vectors, digest = _load(str(_folder()))
        self.about = {"weights": WEIGHTS, "license": "MIT", "sha256": digest, "key": digest}
        self.key = digest

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Average the vectors of the tokens of each text, and scale the mean to length 1."""
        from scipy.sparse import csr_matrix

        ids = [encoding.ids for encoding in self.tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]
        ends = np.cumsum([0, *map(len, ids)])
        columns = np.fromiter((number for each in ids for number in each), np.int32, int(ends[-1]))
        counts = csr_matrix((np.ones(len(columns), np.float32), columns, ends), (len(texts), len(self.vectors)))
        sums: Vectors = np.asarray(counts @ self.vectors)
        lengths = np.linalg.norm(sums, axis=1, keepdims=True)
        vectors: Vectors = (sums / np.maximum(lengths, 1e-12)).astype(np.float32)
        return vectors

    def text_front(self, name: str) -> TextFront:
        pad = self.tokenizer.id_to_token(0)
        tokenizer = padded(self.tokenizer.to_str(), pad, 0, None, special=False)
        return front_of_tokens(MeanOfTokens(self.vectors), name, tokenizer)

    def __str__(self) -> str:
        return "wordllama"


class MeanOfTokens(nn.Module):
    """Does what `WordLlama.embed` does, for padded token ids. The vectors are kept in half precision, as in the package."""

    vectors: Tensor

    def __init__(self, vectors: Vectors) -> None:
        super().__init__()
        self.register_buffer("vectors", torch.from_numpy(vectors).half())

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        sums = (self.vectors[ids].float() * mask[:, :, None]).sum(dim=1)
        return functional.normalize(sums, dim=1)


def is_installed() -> bool:
    return importlib.util.find_spec(PACKAGE) is not None


def _folder() -> Path:
    spec = importlib.util.find_spec(PACKAGE)
    assert spec is not None
    return Path(next(iter(spec.submodule_search_locations or [])))


@functools.cache
def _load(folder: str) -> tuple[Any, Vectors, str]:
    """Return the tokenizer, [tokens, 256] vectors, and the hash of both files."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # threads would make it warn when the process is forked
    from safetensors.numpy import load
    from tokenizers import Tokenizer

    try:
        weights, tokens = (Path(folder, name).read_bytes() for name in (WEIGHTS, TOKENIZER))
        (vectors,) = load(weights).values()
        tokenizer = Tokenizer.from_str(tokens.decode())
        tokenizer.no_truncation()
        tokenizer.no_padding()
        if vectors.ndim != 2 or len(vectors) < tokenizer.get_vocab_size() or not np.isfinite(vectors).all():
            raise ValueError(f"its weights have shape {vectors.shape}")
    except Exception as error:  # of safetensors, tokenizers, the system
        advice = "install it again: pip install --force-reinstall --no-deps wordllama"
        raise ConfigError(f"the package {PACKAGE} in {folder} is damaged ({root_cause(error)}); {advice}.") from None
    return tokenizer, vectors.astype(np.float32), hashlib.sha256(weights + tokens).hexdigest()
