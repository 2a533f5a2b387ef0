"""Settings: frozen dataclasses whose fields carry their description and bounds, checked when the object is made.

@dataclass(frozen=True, kw_only=True)
class Options(Section):
    section = "method"
    decay: float = setting(0.6, "The ensemble's momentum.", at_least=0, below=1)
"""

from __future__ import annotations

import functools
import math
import operator
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from typing import Any, ClassVar, Literal, Self

from selfens.errors import ConfigError, unknown_name

COMPARED = {"at_least": operator.ge, "above": operator.gt, "at_most": operator.le, "below": operator.lt}
TRUTHS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
TYPE_NAMES = {type(None): "none", int: "a whole number", float: "a number", bool: "true or false", str: "text"}


class Bounds:
    """Of a number: at_least, above, at_most, below.

    >>> str(Bounds(at_least=0, below=1)), Bounds(at_least=0, below=1).contains(1)
    ('at least 0 and below 1', False)
    """

    def __init__(self, **bounds: float) -> None:
        self.bounds = bounds

    def contains(self, value: float) -> bool:
        return all(COMPARED[word](value, bound) for word, bound in self.bounds.items())

    def __str__(self) -> str:
        return " and ".join(f"{word.replace('_', ' ')} {bound:.10g}" for word, bound in self.bounds.items())


def setting(default: Any, doc: str, **bounds: float) -> Any:
    """A field with its default, a sentence that says what it does, and its bounds: at_least, above, at_most, below."""
    return field(default=default, metadata={"doc": doc, "bounds": Bounds(**bounds)})


@dataclass(frozen=True, kw_only=True)
class Section:
    """A group of settings. Invalid values raise a ConfigError when the object is made."""

    section: ClassVar[str] = ""

    def __post_init__(self) -> None:
        hints = field_types(type(self))
        for item in fields(self):
            _check(self, item, hints[item.name])

    def changed(self, values: Mapping[str, Any], *, are_text: bool = False) -> Self:
        """The same with other values; text is read by the type of its setting."""
        hints = field_types(type(self))
        for name in values:
            if name not in hints:
                raise ConfigError(unknown_name(self._noun(), name, hints))
        if are_text:
            values = {name: parse(f"{self.section}.{name}", text, hints[name]) for name, text in values.items()}
        return replace(self, **values)

    @classmethod
    def describe(cls) -> list[tuple[str, str, str, str]]:
        """For help and docs: each setting's name, default, bounds or choices, and what it does."""
        hints = field_types(cls)
        return [
            (item.name, str(item.default).lower(), _expected(hints[item.name], item), item.metadata.get("doc", ""))
            for item in fields(cls)
        ]

    @classmethod
    def _noun(cls) -> str:
        """What a setting is called if it does not exist."""
        return f"{cls.section} field"


def _field_types(section: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(section)
    return {item.name: hints[item.name] for item in fields(section)}


field_types: Callable[[Any], dict[str, Any]] = functools.cache(_field_types)
"""The type of each setting, resolved."""


def parse(path: str, text: str, hint: Any) -> Any:
    """A value from text, read by the setting's type; `path` names the setting in a refusal."""
    kinds = _alternatives(hint)
    if type(None) in kinds and text.lower() in ("none", "null"):
        return None
    readers: dict[Any, Callable[[str], Any]] = {bool: lambda word: TRUTHS[word.lower()], int: int, float: float}
    for kind, read in readers.items():
        if kind in kinds:
            try:
                return read(text)
            except (ValueError, KeyError):
                raise ConfigError(f"{path} is '{text}'; expected {TYPE_NAMES[kind]}.") from None
    return text


def seconds(name: str, given: float | str) -> float:
    """A length of time: a number of seconds, or text such as 90s, 5m or 1.5h; `name` is that of the setting in a refusal.

    >>> seconds("time_limit", "1.5h"), seconds("time_limit", 30)
    (5400.0, 30.0)
    """
    length = 0.0
    if isinstance(given, int | float):
        length = float(given)
    elif isinstance(given, str) and (found := re.fullmatch(r"(\d+\.?\d*)\s*(s|m|min|h)?", given.strip())):
        length = float(found[1]) * {"h": 3600, "s": 1, None: 1}.get(found[2], 60)
    if isinstance(given, bool) or not 0 < length < math.inf:
        raise ConfigError(
            f"{name} is {given!r}; expected seconds above 0, or a length of time such as 90s, 5m or 1.5h."
        )
    return length


def _check(section: Section, item: Field[Any], hint: Any) -> None:
    path, value = f"{section.section}.{item.name}", getattr(section, item.name)
    kinds, choices = _alternatives(hint), _choices(hint)
    if choices and isinstance(value, str) and value not in choices:
        raise ConfigError(unknown_name(f"choice for {path}", value, choices))
    if float in kinds and type(value) is int:  # 30 and 30.0 are one value and print alike
        value = float(value) if abs(value) <= sys.float_info.max else math.inf
        object.__setattr__(section, item.name, value)
    if value not in choices and type(value) not in [typing.get_origin(kind) or kind for kind in kinds]:
        words = " or ".join(TYPE_NAMES.get(kind, str(kind)) for kind in kinds)
        raise ConfigError(f"{path} is {value!r} ({type(value).__name__}); expected {words}.")
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{path} is {value!r}; expected a finite number.")
    if isinstance(value, int | float) and not _bounds(item).contains(value):
        raise ConfigError(f"{path} is {value!r}; expected {_expected(hint, item)}.")


def _expected(hint: Any, item: Field[Any]) -> str:
    """What a value may be, in words."""
    kinds = _alternatives(hint)
    words = ", ".join(_choices(hint)) or str(_bounds(item)) or TYPE_NAMES.get(kinds[0], str(kinds[0]))
    return f"{words}, or none" if type(None) in kinds else words


def _bounds(item: Field[Any]) -> Bounds:
    found: Bounds = item.metadata.get("bounds", Bounds())
    return found


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)


def _choices(hint: Any) -> tuple[str, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) is Literal else ()
