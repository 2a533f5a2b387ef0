"""Settings: frozen dataclasses whose fields carry a description and bounds, checked when the object is made.

@dataclass(frozen=True, kw_only=True)
class Options(MethodOptions):
    name = "my-method"
    decay: float = setting(0.6, "The ensemble's momentum.", at_least=0, below=1)

A `Registry` maps the names of methods, sources and encoders to their classes.
"""

import functools
import math
import operator
import pkgutil
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from selfens.errors import ConfigError, unknown_name

COMPARISONS = {"at_least": operator.ge, "above": operator.gt, "at_most": operator.le, "below": operator.lt}
BOOLEANS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
TYPE_NAMES = {type(None): "none", int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def setting(
    default: Any, doc: str, *, none: str = "none", is_path: bool = False, affects_result: bool = True, **bounds: float
) -> Any:
    """A dataclass field with a default, a description and bounds.

    Parameters
    ----------
    doc
        A description, for help and docs.
    none
        The word for None on the command line, such as "all".
    is_path
        The value is the path of a file or folder, and is made absolute.
    affects_result
        False if two runs that differ only in this setting compute the same result, up to rounding.
    bounds
        at_least, above, at_most, below.
    """
    about = {"doc": doc, "none": none, "is_path": is_path, "affects_result": affects_result, "bounds": bounds}
    return field(default=default, metadata=about)


@dataclass(frozen=True, kw_only=True)
class Section:
    """A group of settings. Invalid values raise a ConfigError when the object is made."""

    section: ClassVar[str] = ""

    def __post_init__(self) -> None:
        hints = field_types(type(self))
        for item in fields(self):
            _check(self, item, hints[item.name])

    def changed(self, values: Mapping[str, Any], *, are_text: bool = False) -> Self:
        """Return a copy with these values. If they `are_text`, each is parsed by the type of its setting."""
        hints, items = field_types(type(self)), {item.name: item for item in fields(self)}
        for name in values:
            if name not in hints:
                owner = f"{self.name} option" if isinstance(self, NamedOptions) else f"{self.section} field"
                raise ConfigError(unknown_name(owner, name, hints))
        if are_text:
            values = {
                name: parse(f"{self.section}.{name}", text, hints[name], items[name].metadata.get("none", "none"))
                for name, text in values.items()
            }
        return replace(self, **values)

    @classmethod
    def describe(cls) -> list[tuple[str, str, str, str]]:
        """Return name, default, allowed values and description of each setting, for help and docs."""
        hints, rows = field_types(cls), []
        for item in fields(cls):
            default = item.metadata.get("none", "none") if item.default is None else str(item.default).lower()
            rows.append((item.name, default, _expected(hints[item.name], item), item.metadata.get("doc", "")))
        return rows


@dataclass(frozen=True, kw_only=True)
class NamedOptions(Section):
    """The options of one method, source or encoder; a subclass adds its fields."""

    name: ClassVar[str] = ""
    """The name in the registry."""


class Registry(dict[str, str]):
    """Maps names to classes, as "module:Class". A module is imported when its class is first used.

    Each class has an inner class `Options` (a `NamedOptions`) and is built from an instance of it.
    """

    def __init__(self, kind: str, classes: Mapping[str, str]) -> None:
        super().__init__(classes)
        self.kind = kind

    def find(self, name: str) -> Any:
        """Return the class of this name."""
        if name not in self:
            raise ConfigError(unknown_name(self.kind, name, self))
        return pkgutil.resolve_name(self[name])

    def options(self, name: str, **values: Any) -> Any:
        """Return the options of the class of this name."""
        return self.find(name).Options().changed(values)

    def build(self, options: NamedOptions, **arguments: Any) -> Any:
        """Return an object of the class that these options belong to."""
        return self.find(options.name)(options, **arguments)


def _field_types(section: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(section)
    return {item.name: hints[item.name] for item in fields(section)}


field_types: Callable[[Any], dict[str, Any]] = functools.cache(_field_types)
"""Return the resolved type of each field of a dataclass."""


def parse(path: str, text: str, hint: Any, none: str = "none") -> Any:
    """Parse text by the type of a setting; `path` names the setting in an error message."""
    kinds = _alternatives(hint)
    if type(None) in kinds and text.lower() in ("none", "null", none):
        return None
    readers: dict[Any, Callable[[str], Any]] = {bool: lambda word: BOOLEANS[word.lower()], int: int, float: float}
    for kind, read in readers.items():
        if kind in kinds:
            try:
                return read(text)
            except (ValueError, KeyError):
                or_none = f" or {none}" if type(None) in kinds else ""
                raise ConfigError(f"{path} is '{text}'; expected {TYPE_NAMES[kind]}{or_none}.") from None
    return text


def seconds(name: str, given: float | str) -> float:
    """Parse a duration: a number of seconds, or text such as 90s, 5m or 1.5h.

    >>> seconds("time_limit", "1.5h"), seconds("time_limit", 30)
    (5400.0, 30.0)
    """
    length = 0.0
    if isinstance(given, int | float):
        length = float(given)
    elif isinstance(given, str) and (found := re.fullmatch(r"(\d+\.?\d*)\s*(s|m|min|h)?", given.strip())):
        length = float(found[1]) * {"h": 3600, "s": 1, None: 1}.get(found[2], 60)
    if isinstance(given, bool) or not 0 < length < math.inf:
        raise ConfigError(f"{name} is {given!r}; expected seconds above 0, or a duration such as 90s, 5m or 1.5h.")
    return length


def absolute(name: str, path: str) -> str:
    """Return the absolute path, with ~ expanded; refuse a blank one."""
    if not path.strip():
        raise ConfigError(f"{name} is empty; give a path, or leave it out.")
    return str(Path(path).expanduser().absolute())


def _check(section: Section, item: Field[Any], hint: Any) -> None:
    path, value = f"{section.section}.{item.name}", getattr(section, item.name)
    kinds, choices = _alternatives(hint), _choices(hint)
    if choices and isinstance(value, str) and value not in choices:
        raise ConfigError(unknown_name(f"choice for {path}", value, choices))
    if float in kinds and type(value) is int:  # so that 30 and 30.0 are the same
        value = float(value) if abs(value) <= sys.float_info.max else math.inf
        object.__setattr__(section, item.name, value)
    if value not in choices and type(value) not in [typing.get_origin(kind) or kind for kind in kinds]:
        words = ", ".join(choices) or " or ".join(
            TYPE_NAMES.get(kind, "paths" if typing.get_origin(kind) is tuple else str(kind)) for kind in kinds
        )
        raise ConfigError(f"{path} is {value!r} ({type(value).__name__}); expected {words}.")
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{path} is {value!r}; expected a finite number.")
    bounds = item.metadata.get("bounds", {}).items()
    if isinstance(value, int | float) and not all(COMPARISONS[word](value, bound) for word, bound in bounds):
        raise ConfigError(f"{path} is {value!r}; expected {_expected(hint, item)}.")
    if item.metadata.get("is_path") and value is not None:
        paths = tuple(absolute(path, each) for each in value) if isinstance(value, tuple) else absolute(path, value)
        object.__setattr__(section, item.name, paths)


def _expected(hint: Any, item: Field[Any]) -> str:
    """Describe the allowed values in words."""
    kinds, bounds = _alternatives(hint), item.metadata.get("bounds", {})
    limits = [f"{word.replace('_', ' ')} {bound:.10g}" for word, bound in bounds.items()]
    words = ", ".join(_choices(hint)) or " and ".join(limits) or TYPE_NAMES.get(kinds[0], str(kinds[0]))
    return f"{words}, or {item.metadata.get('none', 'none')}" if type(None) in kinds else words


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)


def _choices(hint: Any) -> tuple[str, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) is Literal else ()
