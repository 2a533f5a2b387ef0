"""Writes docs/options.md from the code: every section of the config and every method's options. Run by `make docs`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from selfens import methods
from selfens.config import SECTIONS
from selfens.settings import Section

PAGE = Path(__file__).with_name("options.md")
INTRODUCTION = """# Options

Made by `make docs` from the code. Set any of them by `--set SECTION.FIELD=VALUE`, or in Python by
`config.with_overrides(["SECTION.FIELD=VALUE"])`.
"""


def table(section: type[Section]) -> Iterator[str]:
    yield "| field | default | values | what it does |"
    yield "|---|---|---|---|"
    for name, default, values, doc in section.describe():
        yield f"| `{section.section}.{name}` | {default or 'empty'} | {values} | {doc} |"


def page() -> str:
    lines = [INTRODUCTION]
    for name in methods.METHODS:
        options = methods.find(name).Options
        lines += [f"## Method `{name}`\n", *(table(options) if options.describe() else ["No options."]), ""]
    for name, section in SECTIONS.items():
        if name != "method":
            lines += [f"## Section `{name}`\n", *table(section), ""]
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
