"""Encoders by name. A new one is a file of this folder and a line of `ENCODERS`."""

from collections.abc import Mapping
from typing import Any

import torch

from selfens.encoders.base import Encoded, Encoder, EncoderOptions, Shown
from selfens.errors import RunError
from selfens.settings import Registry

ENCODERS = Registry(
    "encoder",
    {
        "identity": "selfens.encoders.identity:Identity",
        "columns": "selfens.encoders.columns:ColumnsEncoder",
        "backbone": "selfens.encoders.backbone:BackboneEncoder",
        "backbones": "selfens.encoders.backbones:BackbonesEncoder",
        "wordllama": "selfens.encoders.wordllama:WordLlama",
        "tfidf": "selfens.encoders.tfidf:Tfidf",
        "sentence-transformers": "selfens.encoders.sentences:SentenceTransformers",
    },
)
"""Maps each encoder's name to "module:Class"."""

__all__ = ["ENCODERS", "Encoded", "Encoder", "EncoderOptions", "Shown", "build", "restore"]


def build(options: EncoderOptions, device: torch.device | str = "cpu") -> Encoder:
    """Return the encoder that these options belong to, not yet fitted."""
    encoder: Encoder = ENCODERS.build(options, device=device)
    return encoder


def restore(options: EncoderOptions, learned: Mapping[str, Any], device: torch.device | str, where: str) -> Encoder:
    """Return a fitted encoder from what a run keeps of it; `where` names the file in an error message."""
    encoder = build(options, device)
    try:
        encoder.restore(learned)
    except (ValueError, TypeError, AttributeError, LookupError):
        raise RunError(f"{where} holds a damaged encoder '{options.name}'; put back the file.") from None
    return encoder
