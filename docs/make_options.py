"""Writes docs/options.md from the code: every section of the config, and the options of every source, encoder and method.

Run by `make docs`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from selfens.config import REGISTRIES, SECTIONS
from selfens.settings import Section

PAGE = Path(__file__).with_name("options.md")
INTRODUCTION = """# Options

`make docs` writes this page from the code. Set any option by `--set SECTION.FIELD=VALUE`, or in
Python by `config.with_overrides(["SECTION.FIELD=VALUE"])`.

The sections `source`, `encoder` and `method` hold the options of one source, one encoder and one
method. The source follows from the data that you name, and the encoder from the source, unless
`--encoder` or `--backbone` names another. `--method` names the method. In Python, set
`source.name`, `encoder.name` and `method.name`.
"""


def table(section: type[Section]) -> Iterator[str]:
    rows = section.describe()
    if not rows:
        yield "No options."
        return
    yield "| field | default | values | what it does |"
    yield "|---|---|---|---|"
    for name, default, values, doc in rows:
        yield f"| `{section.section}.{name}` | {default or 'empty'} | {values} | {doc} |"


def page() -> str:
    lines = [INTRODUCTION]
    for name, section in SECTIONS.items():
        if name in REGISTRIES:
            registry = REGISTRIES[name]
            parts = {f"{name.capitalize()} `{each}`": registry.find(each).Options for each in registry}
        else:
            parts = {f"Section `{name}`": section}
        for title, options in parts.items():
            lines += [f"## {title}\n", *table(options), ""]
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
