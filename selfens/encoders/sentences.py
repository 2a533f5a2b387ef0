"""Embeddings by a model of sentence-transformers: sentence-transformers:NAME, or :FOLDER. They are cached by text."""

import copy
import functools
import json
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
import torch
from torch import Tensor, nn

from selfens.data.rows import Rows
from selfens.encoders.base import Encoded, EncoderOptions
from selfens.encoders.cache import FeatureCache, Features, complete
from selfens.encoders.fronts import PROBES, TextFront, front_of_tokens, padded
from selfens.encoders.pretrained import digest_of_weights, is_close
from selfens.encoders.texts import TextEncoder, Vectors, digests
from selfens.errors import ConfigError, DataError, require, root_cause
from selfens.settings import setting

EXTRA, PROBE = "sentence-transformers", "What is known about this model?"
BATCHES = {"cpu": 32, "cuda": 256}


@final
class SentenceTransformers(TextEncoder):
    @dataclass(frozen=True, kw_only=True)
    class Options(EncoderOptions):
        name: ClassVar[str] = "sentence-transformers"
        model: str = setting("", "Name of a model, such as all-MiniLM-L6-v2, or a folder that holds one.")

        def __post_init__(self) -> None:
            super().__post_init__()
            if os.path.isdir(self.model) or self.model.startswith(("/", "./", "../", "~")):
                object.__setattr__(self, "model", str(Path(self.model).expanduser().absolute()))

    def __init__(self, options: Any = None, device: torch.device | str = "cpu") -> None:
        super().__init__(options, device)
        if not self.options.model:
            raise ConfigError(
                "the encoder 'sentence-transformers' needs a model; write sentence-transformers:NAME, such as "
                "sentence-transformers:all-MiniLM-L6-v2, or sentence-transformers:FOLDER."
            )
        require(EXTRA, f"the encoder '{self}'", "sentence_transformers")
        self.model, about = _load(self.options.model, str(self.device))
        self.about, self.key = about, about["key"]
        self.known, self.cache = _remembered(self.key, str(self.device), self.options.model)
        self.computed, self.seconds = 0, 0.0

    def embed(self, texts: Sequence[str]) -> Vectors:
        keys, began = [key.tobytes() for key in digests(texts)], time.perf_counter()
        added = complete(self.known, keys, lambda rows: self._compute([texts[row] for row in rows]), self.cache)
        self.computed, self.seconds = self.computed + added, self.seconds + time.perf_counter() - began
        return np.array([self.known[key] for key in keys], np.float32)

    def _compute(self, texts: Sequence[str]) -> Features:
        return compute(self.model, texts, self.options.model)

    def fit(self, raw: Any, rows: Rows) -> None:
        super().fit(raw, rows)
        if trouble := self.cache.trouble:
            self.notes = (trouble,)

    def transform(self, raw: Any, *, progress: bool = False) -> Encoded:
        made = super().transform(raw, progress=progress)
        if len({*raw}) > 1 and bool((made.inputs[:] == made.inputs[0]).all()):
            raise DataError(
                f"the model '{self.options.model}' returns the same vector for all texts; check its weights."
            )
        seconds = f" in {self.seconds:.0f} s" if self.computed else ""
        work = f"{self.computed:,} texts encoded{seconds}, {max(len({*raw}) - self.computed, 0):,} known before"
        self.computed, self.seconds = 0, 0.0
        return made._replace(work=work)

    def text_front(self, name: str) -> TextFront | None:
        """See `TextEncoder.text_front`. None if tokens are not made by the package tokenizers, or texts are changed before."""
        try:
            tokenizer, longest = self.model.tokenizer, self.model.max_seq_length
            fast, pad = tokenizer.backend_tokenizer.to_str(), tokenizer.pad_token
            file = padded(fast, pad, tokenizer.pad_token_id, longest, special=True)
            front = front_of_tokens(Sentences(copy.deepcopy(self.model).cpu()), name, file)
            texts = [text.strip() for text in PROBES if text]
            with torch.no_grad():
                made = front.module(*(torch.from_numpy(each) for each in front.feed(texts).values()))
        except Exception:  # the model is of another kind
            return None
        return front if is_close(made.numpy(), self._compute(texts)) else None

    def __str__(self) -> str:
        return f"{self.options.name}:{self.options.model}"


class Sentences(nn.Module):
    """A model of sentence-transformers as a function of token ids and mask."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        return self.model({"input_ids": ids, "attention_mask": mask})["sentence_embedding"]  # type: ignore[no-any-return]


def compute(model: Any, texts: Sequence[str], name: str) -> Features:
    """Return the vectors of texts, in batches of texts of similar length."""
    try:
        size = BATCHES.get(model.device.type, BATCHES["cpu"])
        made = model.encode(list(texts), batch_size=size, show_progress_bar=False, convert_to_numpy=True)
    except Exception as error:  # a damaged model may fail anywhere
        raise ConfigError(f"the model '{name}' failed on texts ({root_cause(error)}); check its files.") from None
    vectors = np.asarray(made, np.float32)
    if vectors.ndim != 2 or not np.isfinite(vectors).all():
        raise DataError(f"the model '{name}' returned NaN or infinite vectors; check its weights.")
    return vectors


@functools.cache
def _load(name: str, device: str) -> tuple[Any, dict[str, Any]]:
    """Return a model, and what a run keeps of it. It is loaded once in a process."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    is_folder = os.path.isabs(name)
    if is_folder:
        _check_folder(Path(name))
    from sentence_transformers import SentenceTransformer
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    offline = is_folder or os.environ.get("SELFENS_OFFLINE", "") not in ("", "0")
    try:
        model = SentenceTransformer(name, device=device, trust_remote_code=False, local_files_only=offline).eval()
    except Exception as error:  # of transformers, safetensors, the hub, the system
        advice = "check its files" if is_folder else "check its name, or give a folder that holds it"
        what = "loaded" if is_folder else "found or loaded"
        raise ConfigError(f"the model '{name}' cannot be {what} ({root_cause(error)}); {advice}.") from None
    sha256 = digest_of_weights(model, name)
    probe = compute(model, [PROBE], name)
    about = {"model": Path(name).name, "sha256": sha256, "license": _license(name), "key": sha256[:40]}
    return model, about | {"size": probe.shape[1]}


@functools.cache
def _remembered(key: str, device: str, name: str) -> tuple[dict[bytes, Features], FeatureCache]:
    """Return the vectors known in this process and the files of earlier ones: folds encode the same texts again."""
    model = _load(name, device)[0]
    (probe,) = digests([PROBE])
    return {}, FeatureCache(key, probe.tobytes(), compute(model, [PROBE], name)[0])


def _check_folder(folder: Path) -> None:
    """Refuse a folder that holds no model, or one that would run code of its own."""
    try:
        modules = json.loads((folder / "modules.json").read_text())
        kinds = [module["type"] for module in modules]
    except (OSError, ValueError, TypeError, LookupError) as error:
        expected = "expected a folder that sentence-transformers has saved, with modules.json and weights"
        raise ConfigError(f"the model {folder} cannot be read ({root_cause(error)}); {expected}.") from None
    if strange := [kind for kind in kinds if not str(kind).startswith("sentence_transformers.")]:
        raise ConfigError(
            f"the model {folder} needs code of its own, '{strange[0]}', which is not run; use another model."
        )


def _license(name: str) -> str | None:
    """Return the license that a model's README states at its top, if it is on this machine."""
    page: Any = Path(name, "README.md")
    if not os.path.isabs(name):
        from huggingface_hub import try_to_load_from_cache

        page = try_to_load_from_cache(name if "/" in name else f"sentence-transformers/{name}", "README.md")
    try:
        found = re.search(r"^license:\s*(\S+)", Path(page).read_text(errors="replace"), re.MULTILINE)
    except (OSError, TypeError):
        return None
    return found[1] if found else None
