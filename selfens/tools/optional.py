"""Packages that only some features need, by the extra that installs them: pip install 'selfens[onnx]'."""

from __future__ import annotations

import importlib

from selfens.errors import MissingPackageError

EXTRAS = {"onnx": ("onnx", "onnxscript", "onnxruntime"), "tensorboard": ("tensorboard",)}


def require(extra: str, purpose: str) -> None:
    """Refuse `purpose` if a package of the extra cannot be imported."""
    for package in EXTRAS[extra]:
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise MissingPackageError(
                f"{purpose} needs the package {package}, which cannot be imported ({error}); "
                f"install it with: pip install 'selfens[{extra}]'"
            ) from None
