"""The table that `selfens bench` prints, and its JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.table import Table

from selfens.errors import DataError
from selfens.training.progress import wide_console

WIDTH = 90
COLUMNS = ("method", "step", "images/s", "µs/step", "peak GiB", "start-up s")


def print_table(result: dict[str, Any]) -> None:
    console, about = wide_console(WIDTH), result["environment"]
    console.print(
        f"{result['network']}, batch {result['batch_size']}, {result['data']}; {about['device']}, "
        f"torch {about['torch']}, {about['precision']}, {about['threads']} threads",
        highlight=False,
    )
    table = Table()
    for column in COLUMNS:
        table.add_column(column, justify="left" if column in ("method", "step") else "right")
    for row in result["measurements"]:
        table.add_row(
            row["method"],
            row["mode"],
            f"{row['images_per_second']:,.0f}",
            f"{row['microseconds_per_step']:,.0f}",
            f"{row['peak_memory_gib']:.2f}",
            f"{row['startup_seconds']:.1f}",
        )
    console.print(table)
    for row in result["measurements"]:
        for note in row["notes"]:
            console.print(f"{row['method']}, {row['mode']}: {note}", highlight=False)


def check_writable(path: Path) -> None:
    """Refuse a path for the JSON before minutes are spent on measuring; a missing folder is created."""
    with _refusal(path):
        path.open("a").close()


def write_json(path: Path, result: dict[str, Any]) -> None:
    with _refusal(path):
        path.write_text(json.dumps(result, indent=2) + "\n")


@contextmanager
def _refusal(path: Path) -> Iterator[None]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise DataError(f"{path} cannot be written ({error.strerror}); choose another file.") from None
