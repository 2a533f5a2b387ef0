"""Render templates. Text from users is escaped, after invalid characters are replaced."""

import base64
import hashlib
import statistics
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from selfens.errors import visible

TEMPLATES = Path(__file__).parent / "templates"
SEARCH = "search.js"
ISOLATE, END_ISOLATE = "\u2068", "\u2069"  # Unicode's, because a chart or an attribute cannot contain <bdi>


def render(template: str, **values: Any) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=template.endswith(".html"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    script = (TEMPLATES / SEARCH).read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    environment.globals |= {"search": script, "search_hash": f"sha256-{digest}"}  # a browser runs no other script
    return environment.get_template(template).render(**values)


def shown(text: str, limit: int | None = None) -> str:
    """Return a name as one line of valid text, truncated. Right-to-left text is isolated from the text around it."""
    valid = text.encode("utf-8", "replace").decode()  # file names may hold bytes that are not UTF-8
    line = visible(" ".join(valid.split()))
    line = line if limit is None or len(line) <= limit else f"{line[: limit - 1]}…"
    leftward = any(unicodedata.bidirectional(letter) in ("R", "AL", "AN") for letter in line)
    return f"{ISOLATE}{line}{END_ISOLATE}" if leftward else line


def mean_and_deviation(values: Sequence[float]) -> str:
    """Format the mean, with the standard deviation if there are several values."""
    mean = f"{statistics.mean(values):.2f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.2f}"
