"""Settings: frozen dataclasses whose fields carry their description and bounds, checked when the object is made.

@dataclass(frozen=True, kw_only=True)
class Options(Section):
    section = "method"
    decay: float = setting(0.6, "The ensemble's momentum.", at_least=0, below=1)
"""

from __future__ import annotations

import functools
import math
import types
import typing
from collections.abc import Iterator
from dataclasses import Field, dataclass, field, fields
from typing import Any, ClassVar, Literal

from selfens.errors import ConfigError, unknown_name


@dataclass(frozen=True)
class Bounds:
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None

    def contains(self, value: float) -> bool:
        return (
            (self.at_least is None or value >= self.at_least)
            and (self.above is None or value > self.above)
            and (self.at_most is None or value <= self.at_most)
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        """
        >>> str(Bounds(at_least=0, below=1)), str(Bounds(above=0)), str(Bounds(at_least=4, at_most=1024))
        ('from 0 to below 1', 'more than 0', 'from 4 to 1024')
        """
        low = f"from {self.at_least:.10g}" if self.at_least is not None else ""
        low = f"more than {self.above:.10g}" if self.above is not None else low
        high = f"to {self.at_most:.10g}" if self.at_most is not None else ""
        high = f"to below {self.below:.10g}" if self.below is not None else high
        if low and high:
            return f"{low} {high}" if self.above is None else f"{low}, {high.replace('to ', 'at most ', 1)}"
        return low.replace("from", "at least") or high.replace("to below", "below").replace("to ", "at most ")


def setting(default: Any, doc: str, **bounds: float) -> Any:
    """A field with its default, a sentence that says what it does, and its bounds: at_least, above, at_most, below."""
    return field(default=default, metadata={"doc": doc, "bounds": Bounds(**bounds)})


@dataclass(frozen=True, kw_only=True)
class Section:
    """A group of settings. Invalid values raise a ConfigError when the object is made."""

    section: ClassVar[str] = ""

    def __post_init__(self) -> None:
        for item, hint in self._settings():
            _check(self, item, hint)

    @classmethod
    def _settings(cls) -> Iterator[tuple[Field[Any], Any]]:
        hints = field_types(cls)
        return ((item, hints[item.name]) for item in fields(cls))

    @classmethod
    def describe(cls) -> list[tuple[str, str, str, str]]:
        """For help and docs: each setting's name, default, bounds or choices, and what it does."""
        return [
            (item.name, str(item.default).lower(), _expected(hint, item), item.metadata.get("doc", ""))
            for item, hint in cls._settings()
        ]


def field_types(section: Any) -> dict[str, Any]:
    """The type of each setting, resolved."""
    return _field_types(section)


@functools.cache
def _field_types(section: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(section)
    return {item.name: hints[item.name] for item in fields(section)}


def parse(path: str, text: str, hint: Any) -> Any:
    """A value from text, read by the setting's type; `path` names the setting in a refusal."""
    kinds = _alternatives(hint)
    if type(None) in kinds and text.lower() in ("none", "null"):
        return None
    if bool in kinds:
        if text.lower() in ("true", "yes", "on", "1"):
            return True
        if text.lower() in ("false", "no", "off", "0"):
            return False
        raise ConfigError(f"{path} is '{text}'; expected true or false.")
    for number in (int, float):
        if number in kinds:
            try:
                return number(text)
            except ValueError:
                expected = "a whole number" if number is int else "a number"
                raise ConfigError(f"{path} is '{text}'; expected {expected}.") from None
    return text


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)


def _check(section: Section, item: Field[Any], hint: Any) -> None:
    path, value = f"{section.section}.{item.name}", getattr(section, item.name)
    kinds = _alternatives(hint)
    choices = [choice for kind in kinds if typing.get_origin(kind) is Literal for choice in typing.get_args(kind)]
    if choices and isinstance(value, str) and value not in choices:
        raise ConfigError(unknown_name(f"choice for {path}", value, choices))
    if float in kinds and type(value) is int:  # 30 and 30.0 are one value and print alike
        value = _as_float(path, value)
        object.__setattr__(section, item.name, value)
    if value not in choices and type(value) not in [typing.get_origin(kind) or kind for kind in kinds]:
        words = " or ".join(_type_name(kind) for kind in kinds)
        raise ConfigError(f"{path} is {value!r} ({type(value).__name__}); expected {words}.")
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{path} is {value!r}; expected a finite number.")
    if isinstance(value, int | float) and not _bounds(item).contains(value):
        raise ConfigError(f"{path} is {value!r}; expected {_expected(hint, item)}.")


def _bounds(item: Field[Any]) -> Bounds:
    found: Bounds = item.metadata.get("bounds", Bounds())
    return found


def _expected(hint: Any, item: Field[Any]) -> str:
    """What a value may be, in words."""
    kinds = _alternatives(hint)
    choices = [str(choice) for kind in kinds if typing.get_origin(kind) is Literal for choice in typing.get_args(kind)]
    bounds = str(_bounds(item))
    words = [", ".join(choices) or bounds or " or ".join(_type_name(kind) for kind in kinds if kind is not type(None))]
    return ", or ".join([*words, "none"] if type(None) in kinds else words)


def _type_name(kind: Any) -> str:
    names = {type(None): "none", int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    return names.get(kind, str(kind))


def _as_float(path: str, value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        raise ConfigError(f"{path} is a whole number of {len(str(value))} digits; expected a finite number.") from None
