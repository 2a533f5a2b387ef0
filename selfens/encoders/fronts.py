"""The front of an exported file that takes texts: token ids and counts of words become the inputs of the network.

ONNX has no operators for the tokenizers in use, so texts are taken apart before: by the Python in `Front.first`, which needs
no more than the file itself, numpy and the package tokenizers.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from selfens.data.rows import Array
from selfens.encoders.base import Front, RawRow

KNOWN = "known"  # the input that says which texts are not empty
IMPORTS = """import json, re
from collections import Counter
import numpy as np
from tokenizers import Tokenizer
"""
PROBES = ("", "What is known about this model?", "Wo bleibt mein Paket? 荷物はどこですか。", "A longer one. " * 40)


@dataclass(frozen=True)
class TextFront:
    """What one encoder of text adds to a front."""

    module: nn.Module
    """From what it takes to what the encoder's `embed` returns."""
    takes: Mapping[str, RawRow]
    feed: Callable[[Sequence[str]], Mapping[str, Array]]
    code: str
    """Does the same as `feed`, from a list `texts` and the file's metadata `about`, into a dict `given`."""
    files: Mapping[str, str] = field(default_factory=dict)


class TextInputs(nn.Module):
    """The vectors of all encoders, centered and scaled, side by side. Those of an empty text are zeros.

    Parameters
    ----------
    parts
        The encoders' modules, the centers of their vectors, and the factors that these are multiplied by.
    counts
        How many inputs each module takes.
    """

    def __init__(self, parts: Sequence[tuple[nn.Module, NDArray[Any], float]], counts: Sequence[int]) -> None:
        super().__init__()
        self.modules_, self.counts = nn.ModuleList(module for module, _, _ in parts), tuple(counts)
        self.factors = [factor for _, _, factor in parts]
        for number, (_, center, _) in enumerate(parts):
            self.register_buffer(f"center_{number}", torch.from_numpy(center.copy()))

    def forward(self, known: Tensor, *given: Tensor) -> Tensor:
        made, start = [], 0
        for number, (module, count, factor) in enumerate(zip(self.modules_, self.counts, self.factors, strict=True)):
            vectors = module(*given[start : start + count]).float()
            made.append((vectors - getattr(self, f"center_{number}")) * factor)
            start += count
        return torch.cat(made, dim=1) * known[:, None]


def front_of_texts(
    fronts: Sequence[TextFront],
    scales: Sequence[tuple[NDArray[Any], float]],
    texts_of: Callable[[Any], Sequence[str]],
    probes: Any,
    first: str,
) -> Front:
    """Return the front of a file that takes texts only.

    Parameters
    ----------
    scales
        The center of each encoder's vectors, and the factor that they are then multiplied by.
    texts_of
        Returns the texts of raw rows, as they are encoded.
    first
        Python that makes the list `texts`.
    """

    def feed(raw: Any) -> dict[str, Array]:
        texts = texts_of(raw)
        given: dict[str, Array] = {KNOWN: np.array([text != "" for text in texts], np.float32)}
        for each in fronts:
            given |= each.feed(texts)
        return given

    takes = {KNOWN: RawRow(())}
    files: dict[str, str] = {}
    for each in fronts:
        takes |= each.takes
        files |= each.files
    module = TextInputs(
        [(each.module, *scale) for each, scale in zip(fronts, scales, strict=True)],
        [len(each.takes) for each in fronts],
    )
    known = f'given = {{"{KNOWN}": np.array([text != "" for text in texts], "float32")}}\n'
    return Front(
        takes, module.eval(), feed, probes, IMPORTS + first + known + "".join(each.code for each in fronts), files
    )


def front_of_tokens(module: nn.Module, name: str, tokenizer: str) -> TextFront:
    """Return the front of an encoder of tokens; `tokenizer` is the JSON of the package tokenizers, with padding."""
    from tokenizers import Tokenizer

    built = Tokenizer.from_str(tokenizer)

    def feed(texts: Sequence[str]) -> dict[str, Array]:
        encoded = built.encode_batch(list(texts))
        ids, mask = ([getattr(each, what) for each in encoded] for what in ("ids", "attention_mask"))
        return {f"{name}_ids": np.array(ids, np.int64), f"{name}_mask": np.array(mask, np.int64)}

    code = (
        f'encoded = Tokenizer.from_str(about["{name}_tokenizer"]).encode_batch(texts)\n'
        f'given["{name}_ids"] = np.array([each.ids for each in encoded], "int64")\n'
        f'given["{name}_mask"] = np.array([each.attention_mask for each in encoded], "int64")\n'
    )
    row = RawRow(("tokens",), "int64")
    return TextFront(module, {f"{name}_ids": row, f"{name}_mask": row}, feed, code, {f"{name}_tokenizer": tokenizer})


def padded(tokenizer: str, pad: str, number: int, longest: int | None, *, special: bool) -> str:
    """Return the JSON of a tokenizer that pads each batch to its longest text.

    Parameters
    ----------
    pad, number
        The token that it pads with.
    longest
        Tokens after which a text is cut; None: it is not cut.
    special
        Add the tokens that the model expects at both ends.
    """
    about = json.loads(tokenizer)
    ends = {"pad_id": number, "pad_type_id": 0, "pad_token": pad}
    about["padding"] = {"strategy": "BatchLongest", "direction": "Right", "pad_to_multiple_of": None, **ends}
    cut = {"direction": "Right", "max_length": longest, "strategy": "LongestFirst", "stride": 0}
    about["truncation"] = None if longest is None else cut
    if not special:
        about["post_processor"] = None
    return json.dumps(about, ensure_ascii=False)
