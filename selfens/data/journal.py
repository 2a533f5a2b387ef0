"""The journal: a file beside the data that says which rows a model chose for labeling.

Such rows are hard, so an error measured on them would be too large. Rows are named by a hash of their content, so they may be
moved or renamed. The file is hidden, lines are only added, and lines that cannot be read are passed over.

    photos/.selfens.jsonl              of a folder
    .messages.csv.selfens.jsonl        beside a file
"""

import errno
import json
import os
from collections.abc import Iterable
from pathlib import Path

from selfens.files import check_regular

NAME = ".selfens.jsonl"


def path_for(data: Path) -> Path:
    """Return the journal of a folder or file."""
    return data / NAME if os.path.isdir(data) else data.with_name(f".{data.name}{NAME}")


def suggested(path: Path) -> set[str]:
    """Return the hashes of the rows that a model chose."""
    found: set[str] = set()
    try:
        check_regular(path)
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return found
    for line in lines:
        try:
            match json.loads(line):
                case {"row": str(row), "chosen": "by a model"}:
                    found.add(row)
        except (ValueError, RecursionError):
            continue
    return found


def add_suggested(path: Path, rows: Iterable[str]) -> None:
    """Note that a model chose these rows; OSError if the file cannot be written."""
    lines = [json.dumps({"row": row, "chosen": "by a model"}) + "\n" for row in rows]
    if path.is_symlink():
        raise OSError(errno.ELOOP, "it is a link", str(path))  # to a file of which we know nothing
    check_regular(path)
    with open(path, "a") as file:
        file.write("".join(["\n", *lines]))  # on lines of their own, even after one that was cut short
        file.flush()
        os.fsync(file.fileno())
