"""The exceptions selfens raises on purpose.

Each message is one sentence that says what was given, what was expected and what to do. The command line prints the
sentence and exits with a code other than 0; in Python every one of them is a `SelfensError`.
"""

from __future__ import annotations

import difflib
import importlib
import re
import reprlib
from collections.abc import Iterable, Sequence
from types import UnionType

# Control characters, line separators, marks that turn text round (bidirectional), and bytes that are not UTF-8.
UNSEEN = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")

# Packages that only some features need, by the extra that installs them: pip install 'selfens[onnx]'.
EXTRAS = {
    "onnx": ("onnx", "onnxscript", "onnxruntime"),
    "tensorboard": ("tensorboard",),
    "tables": ("pandas", "pyarrow"),
    "timm": ("timm", "torchvision"),
}


class SelfensError(Exception):
    """Anything selfens refuses to do, with the reason."""


class ConfigError(SelfensError, ValueError):
    """A preset, field or value that does not exist, does not fit the others, or needs what this machine lacks."""


class DataError(SelfensError, ValueError):
    """Arrays, labels or files that cannot be trained on."""


class RunError(SelfensError):
    """A run that is in use, incomplete, damaged, of another configuration, not trusted, or that lost one of its processes."""


class MissingPackageError(SelfensError, ImportError):
    """A package that an optional feature needs and that is not installed."""


class DivergedError(SelfensError, ArithmeticError):
    """A loss that stopped being finite."""


class SelfensWarning(UserWarning):
    """Training continues, but probably not as intended."""


def check_kind(what: str, given: object, kind: type | UnionType, expected: str) -> None:
    """Refuse an argument of another kind, such as a path instead of what is there.

    >>> check_kind("config", "digits", dict, "a Config")
    Traceback (most recent call last):
    selfens.errors.ConfigError: config is 'digits' (str); expected a Config.
    """
    if not isinstance(given, kind):
        raise ConfigError(f"{what} is {reprlib.repr(given)} ({type(given).__name__}); expected {expected}.")


def require(extra: str, purpose: str, *packages: str) -> None:
    """Refuse `purpose` if one of these packages of an extra cannot be imported; by default all of them."""
    for package in packages or EXTRAS[extra]:
        try:
            importlib.import_module(package)
        except Exception as error:  # an ImportError, or anything that a torchvision of another torch raises
            what = "it" if isinstance(error, ImportError) else "versions that fit each other"
            raise MissingPackageError(
                f"{purpose} needs the package {package}, which cannot be imported ({root_cause(error)}); "
                f"install {what} with: pip install 'selfens[{extra}]'"
            ) from None


def unknown_name(kind: str, given: str, known: Iterable[str]) -> str:
    """The sentence for a name that does not exist, with the nearest that does.

    >>> unknown_name("method", "temporale", ["pi", "temporal"])
    "there is no method 'temporale'; did you mean 'temporal'? Known: pi, temporal."
    """
    names = sorted(known)
    return f"there is no {kind} '{given}'{nearest(given, names)} Known: {', '.join(names) or 'none'}."


def nearest(given: str, known: Sequence[str]) -> str:
    """The end of a sentence about a name that does not exist: with the one that was probably meant, if there is one.

    >>> nearest("temporale", ["pi", "temporal"]), nearest("x", ["pi", "temporal"])
    ("; did you mean 'temporal'?", '.')
    """
    names = {name.lower(): name for name in known}
    near = difflib.get_close_matches(given.lower(), names, n=1, cutoff=0.5)
    return f"; did you mean '{names[near[0]]}'?" if near else "."


def visible(text: str) -> str:
    """One line of text, with each character escaped that would change the line or the terminal instead of being seen.

    >>> visible("a\\nb \\x1b[31m \\u202e")
    'a\\\\nb \\\\x1b[31m \\\\u202e'
    """
    return UNSEEN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def root_cause(error: BaseException) -> str:
    """The first line of what lies at the root of an error, which the compiler wraps in others."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
