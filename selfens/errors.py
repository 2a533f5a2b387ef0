"""The exceptions selfens raises on purpose.

Each message is one sentence that says what was given, what was expected and what to do. The command line prints the
sentence and exits with a nonzero code; in Python every one of them is a `SelfensError`.
"""

import difflib
import importlib
import os
import re
import reprlib
import sys
from collections.abc import Iterable, Sequence
from types import UnionType
from typing import Any

# Control characters, line separators, bidirectional marks, and lone surrogates (bytes that are not UTF-8).
UNSEEN = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")

# The packages that each optional extra installs: pip install 'selfens[onnx]'.
EXTRAS = {
    "onnx": ("onnx", "onnxscript", "onnxruntime"),
    "tensorboard": ("tensorboard",),
    "tables": ("pandas", "pyarrow"),
    "ray": ("ray",),
    "timm": ("timm", "torchvision"),
    "text": ("wordllama", "tokenizers", "pandas"),
    "label": ("starlette", "uvicorn"),
    "sentence-transformers": ("sentence-transformers", "pandas"),
}


class SelfensError(Exception):
    """Base class of all exceptions that selfens raises on purpose."""


class ConfigError(SelfensError, ValueError):
    """A preset, setting or argument that does not exist, is out of range, or is not available on this machine."""


class DataError(SelfensError, ValueError):
    """Arrays, labels or files that cannot be trained on."""


class RunError(SelfensError):
    """A run that is in use, incomplete, damaged, with a different config, not trusted, or that lost one of its processes."""


class MissingPackageError(SelfensError, ImportError):
    """An optional package that is not installed."""


class DivergedError(SelfensError, ArithmeticError):
    """A loss that stopped being finite."""


class SelfensWarning(UserWarning):
    """Training continues, but probably not as intended."""


def check_type(name: str, given: object, kind: type | UnionType, expected: str) -> None:
    """Raise a ConfigError if an argument has the wrong type."""
    if not isinstance(given, kind):
        raise ConfigError(f"{name} is {reprlib.repr(given)} ({type(given).__name__}); expected {expected}.")


def require(extra: str, purpose: str, *packages: str) -> None:
    """Raise a MissingPackageError if one of the packages (default: those of the extra) cannot be imported."""
    for package in packages or EXTRAS[extra]:
        try:
            importlib.import_module(package)
        except Exception as error:  # a torchvision built for another torch may raise anything
            what = "it" if isinstance(error, ImportError) else "matching versions"
            found = f"{purpose} needs the package {package}, which cannot be imported ({root_cause(error)})"
            raise MissingPackageError(f"{found}; install {what} with: pip install 'selfens[{extra}]'") from None


def import_factory(path: str, what: str) -> Any:
    """Import the function named by `package.module:factory`, from an installed package or the current directory."""
    module_name, _, attribute = path.partition(":")
    path_before = list(sys.path)
    sys.path.insert(0, os.getcwd())  # like `python`; an installed command does not search the current directory
    try:
        return getattr(importlib.import_module(module_name), attribute)
    except (Exception, SystemExit) as error:  # a user's module may raise anything
        found = f"the {what} '{path}' cannot be imported ({root_cause(error)})"
        raise ConfigError(f"{found}; expected package.module:factory.") from None
    finally:
        sys.path[:] = path_before


def unknown_name(kind: str, given: str, known: Iterable[str]) -> str:
    """Return the message for an unknown name, with the closest known one.

    >>> unknown_name("method", "temporale", ["pi", "temporal"])
    "there is no method 'temporale'; did you mean 'temporal'? Known: pi, temporal."
    """
    names = sorted(known)
    return f"there is no {kind} '{given}'{did_you_mean(given, names)} Known: {', '.join(names) or 'none'}."


def did_you_mean(given: str, known: Sequence[str]) -> str:
    """Return the end of a message about an unknown name: a suggestion if a name is close, or just a period."""
    names = {name.lower(): name for name in known}
    near = difflib.get_close_matches(given.lower(), names, n=1, cutoff=0.5)
    return f"; did you mean '{names[near[0]]}'?" if near else "."


def visible(text: str) -> str:
    """Escape every character that would change the line or control the terminal."""
    return UNSEEN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def plural(count: int, noun: str, plural_noun: str = "") -> str:
    """Return a count with its noun: 1 row, 1,200 rows."""
    return f"{count:,} {noun if count == 1 else plural_noun or noun + 's'}"


def listed(names: Sequence[object], limit: int = 20) -> str:
    """Join names with commas; "..." replaces those after the first `limit`."""
    return ", ".join([*map(str, names[:limit]), *(["..."] if len(names) > limit else [])])


def root_cause(error: BaseException) -> str:
    """Return the first line of the innermost exception (the compiler wraps its errors in others)."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__


def one_line(error: BaseException) -> str:
    """Return an error's message without line breaks or a final period, to be part of a sentence."""
    return " ".join(str(error).rstrip(".").split())[:300] or type(error).__name__
