"""The tables that `selfens bench` prints, and its JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from selfens.errors import DataError
from selfens.training.progress import wide_console

WIDTH = 124


def print_tables(result: dict[str, Any]) -> None:
    console = wide_console(WIDTH)
    about = result["environment"]
    sentences = [
        f"{result['network']}, batch {result['batch_size']}, {result['data']} (loaded in {result['load_seconds']:.1f} s); "
        f"{about['device']}, torch {about['torch']}, {about['precision']}, {about['threads']} threads; matrix products run at "
        f"{result['matrix_teraflops']:.3g} TFLOP/s"
    ]
    _print(console, sentences, _steps(result["measurements"]))
    notes = [f"{row['method']}, {row['mode']}: {note}" for row in result["measurements"] for note in row["notes"]]
    if any(row["graphs_compiled"] + row["graphs_from_cache"] for row in result["measurements"]):
        notes.insert(
            0, "compiled: how many of a step's graphs were not in the compiler's cache; start-up is long where any was"
        )
    loop = result["against_a_plain_loop"]
    if loop:
        notes.append(
            f"time of a digits step over that of a plain PyTorch loop of the same network: {loop['median_ratio']:.3f} "
            f"(median of {len(loop['ratios'])} alternations)"
        )
    _print(console, notes)
    if result["kernel_times"]:
        _print(
            console, ["time of the kernels of a step of temporal ensembling, in µs"], _kernels(result["kernel_times"])
        )
    if result["growth"]:
        _print(console, ["an epoch of temporal ensembling on made-up images"], _growth(result["growth"]))


def _print(console: Console, sentences: Sequence[str], table: Table | None = None) -> None:
    for sentence in sentences:
        console.print(sentence, highlight=False)
    if table is not None:
        console.print(table)


def _table(columns: Sequence[str], words: int) -> Table:
    """A table whose first `words` columns hold words and the others figures."""
    table = Table()
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number < words else "right")
    return table


def _steps(rows: list[dict[str, Any]]) -> Table:
    columns = (
        "method",
        "step",
        "images/s",
        "µs/step",
        "TFLOP/s",
        "of matrix rate",
        "peak GiB",
        "start-up s",
        "compiled",
    )
    table = _table(columns, words=2)
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


def _kernels(profiles: list[dict[str, Any]]) -> Table:
    table = _table(("kernels", *(profile["mode"] for profile in profiles)), words=1)
    for kind in profiles[0]["kinds"]:
        table.add_row(kind, *(f"{profile['kinds'][kind]:,.0f}" for profile in profiles))
    table.add_row("sum", *(f"{profile['total']:,.0f}" for profile in profiles))
    return table


def _growth(rows: list[dict[str, Any]]) -> Table:
    table = _table(("rows", "classes", "s/epoch", "µs/row", "last epoch / first"), words=0)
    for row in rows:
        table.add_row(
            f"{row['rows']:,}",
            f"{row['classes']:,}",
            f"{row['seconds_per_epoch']:.3f}",
            f"{row['microseconds_per_row']:.2f}",
            f"{row['last_epoch_over_first']:.3f}",
        )
    return table


def check_writable(path: Path) -> None:
    """Refuse a place for the JSON before minutes are put into measuring; a folder that is missing is made."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        was_there = path.exists()
        path.open("a").close()
        if not was_there:
            path.unlink()
    except OSError as error:
        raise DataError(f"{path} cannot be written ({error.strerror}); choose another --output.") from None


def write_json(path: Path, result: dict[str, Any]) -> None:
    try:
        path.write_text(json.dumps(result, indent=2) + "\n")
    except OSError as error:
        raise DataError(f"{path} could not be written ({error.strerror}).") from None
