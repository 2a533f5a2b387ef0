"""The table that `selfens bench` prints, and its JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.table import Table

from selfens.errors import DataError
from selfens.training.progress import wide_console

WIDTH = 124
COLUMNS = ("method", "step", "images/s", "µs/step", "TFLOP/s", "of matrix rate", "peak GiB", "start-up s", "compiled")


def print_table(result: dict[str, Any]) -> None:
    console, about, rows = wide_console(WIDTH), result["environment"], result["measurements"]
    console.print(
        f"{result['network']}, batch {result['batch_size']}, {result['data']} (loaded in {result['load_seconds']:.1f} s); "
        f"{about['device']}, torch {about['torch']}, {about['precision']}, {about['threads']} threads; matrix products "
        f"run at {result['matrix_teraflops']:.3g} TFLOP/s",
        highlight=False,
    )
    console.print(_table(rows))
    if any(row["graphs_compiled"] + row["graphs_from_cache"] for row in rows):
        console.print(
            "compiled: how many of a step's graphs were not in the compiler's cache; if any were not, start-up is long"
        )
    for row in rows:
        for note in row["notes"]:
            console.print(f"{row['method']}, {row['mode']}: {note}", highlight=False)


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table()
    for column in COLUMNS:
        table.add_column(column, justify="left" if column in ("method", "step") else "right")
    for row in rows:
        graphs = row["graphs_compiled"] + row["graphs_from_cache"]
        table.add_row(
            row["method"],
            row["mode"],
            f"{row['images_per_second']:,.0f}",
            f"{row['microseconds_per_step']:,.0f}",
            f"{row['teraflops']:.3g}",
            f"{row['share_of_matrix_rate']:.1%}",
            f"{row['peak_memory_gib']:.2f}",
            f"{row['startup_seconds']:.1f}",
            f"{row['graphs_compiled']} of {graphs}" if graphs else "",
        )
    return table


def check_writable(path: Path) -> None:
    """Refuse a path for the JSON before minutes are spent on measuring; a missing folder is created."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        was_there = path.exists()
        path.open("a").close()
        if not was_there:
            path.unlink()
    except OSError as error:
        raise DataError(f"{path} cannot be written ({error.strerror}); choose another file.") from None


def write_json(path: Path, result: dict[str, Any]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=2) + "\n")
    except OSError as error:
        raise DataError(f"{path} could not be written ({error.strerror}).") from None
