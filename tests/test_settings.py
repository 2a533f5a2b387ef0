"""Settings: checked when they are made, described for help and docs, parsed by their type."""

import re
from dataclasses import dataclass, fields
from pathlib import Path
from types import UnionType
from typing import ClassVar, Literal, get_args

import pytest

from selfens.config import REGISTRIES, SECTIONS
from selfens.errors import ConfigError
from selfens.settings import Section, field_types, parse, setting


@dataclass(frozen=True, kw_only=True)
class Example(Section):
    section: ClassVar[str] = "example"
    share: float = setting(0.5, "A share.", at_least=0, at_most=1)
    decay: float = setting(0.6, "A momentum.", at_least=0, below=1)
    rate: float = setting(0.1, "A rate.", above=0)
    count: int | None = setting(None, "A number of rows.", none="all", at_least=1)
    size: int = setting(3, "Any whole number.")
    kind: Literal["one", "other"] = setting("one", "A choice.")
    is_on: bool = setting(False, "A switch.")
    path: str | None = setting(None, "A file.", is_path=True)


ALL = [
    *(kind for section, kind in SECTIONS.items() if section not in REGISTRIES),
    *(registry.find(name).Options for registry in REGISTRIES.values() for name in registry),
    Example,
]


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("share", -0.1, "example.share is -0.1; expected at least 0 and at most 1."),
        ("decay", 1, "example.decay is 1.0; expected at least 0 and below 1."),
        ("rate", 0.0, "example.rate is 0.0; expected above 0."),
        ("count", 0, "example.count is 0; expected at least 1, or all."),
        ("count", 2.5, "example.count is 2.5 (float); expected a whole number or none."),
        ("count", True, "example.count is True (bool); expected a whole number or none."),
        ("size", None, "example.size is None (NoneType); expected a whole number."),
        ("rate", float("nan"), "example.rate is nan; expected a finite number."),
        ("rate", 10**400, "example.rate is inf; expected a finite number."),
        ("rate", "0.1", "example.rate is '0.1' (str); expected a number."),
        ("rate", True, "example.rate is True (bool); expected a number."),
        ("is_on", 1, "example.is_on is 1 (int); expected true or false."),
        ("path", 3, "example.path is 3 (int); expected text or none."),
        ("path", " ", "example.path is empty; give a path, or leave it out."),
        ("kind", "othr", "there is no choice for example.kind 'othr'; did you mean 'other'? Known: one, other."),
        ("kind", 3, "example.kind is 3 (int); expected one, other."),
        ("kind", ["one"], "example.kind is ['one'] (list); expected one, other."),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(field, value, sentence):
    with pytest.raises(ConfigError) as refusal:
        Example(**{field: value})
    assert str(refusal.value) == sentence


def test_borders_belong_to_the_range_or_not_as_they_say():
    assert Example(share=0, decay=0, count=1) == Example(share=0.0, decay=0.0, count=1)
    assert type(Example(share=1).share) is float  # 1 and 1.0 are one value and print alike


def test_paths_are_absolute():
    assert Example(path="~/x").path == str(Path.home() / "x")
    assert Example().changed({"path": "y"}, are_text=True).path == str(Path("y").absolute())


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: f"{kind.section}-{kind.__qualname__}")
def test_every_setting_has_a_default_that_can_be_and_is_described(kind):
    described = kind.describe()
    assert [name for name, *_ in described] == [item.name for item in fields(kind)]
    for (name, default, expected, doc), item in zip(described, fields(kind), strict=True):
        value = getattr(kind(), name)
        assert default == (item.metadata["none"] if value is None else str(value).lower())
        assert expected, name
        assert "  " not in expected
        assert doc.endswith("."), doc


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: f"{kind.section}-{kind.__qualname__}")
def test_every_bound_is_kept(kind):
    for item in fields(kind):
        bounds, hint = item.metadata["bounds"], field_types(kind)[item.name]
        whole = int in (get_args(hint) if isinstance(hint, UnionType) else (hint,))
        step = 1 if whole else 1e-6
        past = {"at_least": -step, "at_most": step, "above": 0, "below": 0}
        for word, bound in bounds.items():
            value = bound + past[word] * max(1, abs(bound) / 100)
            message = (
                rf"{kind.section}\.{item.name} is .*; expected .*{re.escape(f'{word} {bound:.10g}'.replace('_', ' '))}"
            )
            with pytest.raises(ConfigError, match=message):
                kind(**{item.name: int(value) if whole else float(value)})


@pytest.mark.parametrize(
    ("text", "hint", "value"),
    [
        ("-3", int, -3),
        ("1e-3", float, 0.001),
        ("none", int | None, None),
        ("NULL", str | None, None),
        ("all", int | None, None),
        *((word, bool, True) for word in ("true", "Yes", "on", "1")),
        *((word, bool, False) for word in ("false", "no", "OFF", "0")),
        ("none", str, "none"),
        ("one", Literal["one"], "one"),
    ],
)
def test_text_is_parsed_by_the_type_of_the_setting(text, hint, value):
    found = parse("example.x", text, hint, none="all")
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "hint", "sentence"),
    [
        ("3.5", int, "example.x is '3.5'; expected a whole number."),
        ("few", int | None, "example.x is 'few'; expected a whole number or all."),
        ("none", float, "example.x is 'none'; expected a number."),
        ("maybe", bool, "example.x is 'maybe'; expected true or false."),
    ],
)
def test_text_of_another_type_is_refused(text, hint, sentence):
    with pytest.raises(ConfigError) as refusal:
        parse("example.x", text, hint, none="all")
    assert str(refusal.value) == sentence
