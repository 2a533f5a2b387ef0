"""Labels from other tools, and rows to label for them: Label Studio, Prodigy, folders of classes (FiftyOne, CVAT).

Read: exports of Label Studio 1.x (JSON, JSON-MIN, CSV; one choice per task), JSON Lines of Prodigy 1.x (`db-out` of choices
or of accepted labels), and a folder with a folder of files per class, as FiftyOne's ImageClassificationDirectoryTree and CVAT's
"ImageNet 1.0" have it. Written: tasks of Label Studio with predictions, examples for Prodigy, and folders of classes.
"""

import csv
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

import numpy as np

from selfens.data.dataset import Dataset
from selfens.data.folders import UNLABELED_FOLDERS
from selfens.data.frames import is_frame, read_records
from selfens.data.rows import Labels, Rows
from selfens.errors import DataError
from selfens.files import check_regular
from selfens.files.tables import write_output

UPLOADED = re.compile(r"^[0-9a-f]{8}-")  # Label Studio's prefix of an uploaded file
OF_EXPORT = {"annotation_id", "annotator", "lead_time"}  # columns of Label Studio's exports
OTHERS = OF_EXPORT | {"id", "created_at", "updated_at", "row", "file", "image", "text", "agreement", "label_given"}


class Given(NamedTuple):
    """A label that another tool gave."""

    where: str
    label: str
    row: str = ""
    files: tuple[str, ...] = ()
    """Names that the file may have here, the most likely first."""
    text: str = ""
    path: Path | None = None
    """A copy of the file, which may have another name here."""


def is_for_tool(path: Path) -> bool:
    """Return True if what is written there is for another tool."""
    return path.is_dir() or path.suffix.lower() in (".json", ".jsonl")


def check_new(path: Path) -> None:
    """Refuse to write over a file or folder of another tool, which may hold somebody's labels."""
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise DataError(f"{path} exists, and may hold labels; choose another name.")


def is_foreign(path: Path) -> bool:
    """Return True for a labels file that is not a CSV of ours."""
    if os.path.isdir(path) or path.suffix.lower() in (".json", ".jsonl"):
        return True
    try:
        with open(path, newline="", encoding="utf-8-sig", errors="replace") as file:
            return {*next(csv.reader(file), [])} >= {"annotation_id", "id"}
    except (OSError, csv.Error):
        return False  # which reading it will explain


def read_foreign(path: Path) -> list[Given]:
    """Return the labels of an export; tasks without an answer are passed over."""
    try:
        if os.path.isdir(path):
            return list(_of_folder(path))
        check_regular(path)
        if path.suffix.lower() == ".jsonl":
            return [
                given for number, each in enumerate(read_records(path), 1) for given in _of_prodigy(path, number, each)
            ]
        if path.suffix.lower() == ".json":
            tasks = json.loads(path.read_text(encoding="utf-8-sig"))
        else:
            with open(path, newline="", encoding="utf-8-sig") as file:
                tasks = list(csv.DictReader(file))
        if not isinstance(tasks, list) or not all(isinstance(task, dict) for task in tasks):
            raise ValueError("expected a list of tasks")
    except (OSError, ValueError, RecursionError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DataError(f"{path} cannot be read as an export of Label Studio or Prodigy ({reason}).") from None
    return [given for number, task in enumerate(tasks, 1) for given in _of_label_studio(path, number, task)]


def _of_folder(folder: Path) -> Iterator[Given]:
    for kind in sorted(each for each in folder.iterdir() if each.is_dir() and not each.name.startswith(".")):
        if kind.name.lower() in UNLABELED_FOLDERS:
            continue
        for file in sorted(each for each in kind.rglob("*") if each.is_file() and not each.name.startswith(".")):
            short = file.name.removeprefix(f"{kind.name}_")  # CVAT's prefix
            yield Given(str(file), kind.name, files=tuple(dict.fromkeys((file.name, short))), path=file)


def _of_label_studio(path: Path, number: int, task: dict[str, Any]) -> Iterator[Given]:
    where, data = f"task {task.get('id', number)} of {path}", task.get("data", task)
    if not isinstance(data, dict):
        raise DataError(f"{where} has no data; expected an export of Label Studio.")
    labels: set[str] = set()
    if "annotations" in task:
        for annotation in task["annotations"] or ():
            if isinstance(annotation, dict) and not annotation.get("was_cancelled"):
                for result in annotation.get("result") or ():
                    labels |= {*map(str, (result.get("value") or {}).get("choices") or ())}
    elif "predictions" not in task:
        answers = [value for name, value in task.items() if name not in OTHERS and isinstance(value, str) and value]
        answers += [str(task["label"])] if isinstance(task.get("label"), str) and task["label"] not in answers else []
        labels = {*answers[:1]}
    if len(labels) > 1:
        raise DataError(f"{where} has the labels {', '.join(sorted(labels))}; expected one.")
    for label in labels:
        address = data.get("file") or data.get("image") or ""
        text = data.get("text") if isinstance(data.get("text"), str) else ""
        yield Given(where, label, str(data.get("row", "")), _file_names(str(address)), str(text or ""))


def _of_prodigy(path: Path, number: int, example: dict[str, Any]) -> Iterator[Given]:
    where = f"line {number} of {path}"
    if example.get("answer", "accept") != "accept":
        return
    accepted = example.get("accept", [example["label"]] if example.get("label") else [])
    if not isinstance(accepted, list) or len(accepted) > 1:
        raise DataError(f"{where} accepts {accepted!r}; expected one label.")
    meta = example["meta"] if isinstance(example.get("meta"), dict) else {}
    for label in map(str, accepted):
        address = str(meta.get("file") or example.get("path") or example.get("image") or "")
        files = () if address.startswith("data:") else _file_names(address)
        yield Given(where, label, str(meta.get("row", "")), files, str(example.get("text") or ""))


def _file_names(address: str) -> tuple[str, ...]:
    """Return the names that the file of an address may have here: its path, less and less of it."""
    parts = urlsplit(address)
    path = parse_qs(parts.query).get("d", [unquote(parts.path)])[0] if parts.query or parts.scheme else address
    pieces = [piece for piece in path.split("/") if piece]
    names = [path, *("/".join(pieces[start:]) for start in range(len(pieces)))] if pieces else []
    return tuple(dict.fromkeys([*names, *(UPLOADED.sub("", name) for name in names[-1:])]))


# Writing


def write_rows(
    path: Path, dataset: Dataset, rows: Rows, labels: Labels, scores: Sequence[float], given: Labels | None = None
) -> None:
    """Write rows for another tool, with the class that a model says (-1: none) and how certain it is.

    `.json` is for Label Studio, `.jsonl` for Prodigy; an empty folder gets a folder of copies for each class. `given` are the
    labels that the rows have.
    """
    names = [dataset.classes[label] if label >= 0 else "" for label in labels]
    known = [dataset.classes[label] for label in given] if given is not None else [""] * len(rows)
    numbers, _ = dataset.identify(rows)
    shown = [_shown(dataset, int(row)) for row in dataset.train_rows[rows]]
    if path.is_dir():
        return _write_folders(path, dataset, rows, [each or "unlabeled" for each in names])
    lines: list[dict[str, Any]] = []
    for number, about, name, before, score in zip(numbers.tolist(), shown, names, known, scores, strict=True):
        certain = {} if np.isnan(score) else {"score": round(float(score), 4)}
        about = {"row": number, **about, **({"label_given": before} if before else {})}
        if path.suffix.lower() == ".json":
            value = {"type": "choices", "from_name": "label", "to_name": "example", "value": {"choices": [name]}}
            guess = [{"model_version": "selfens", **certain, "result": [value]}] if name else []
            lines.append({"data": about, "predictions": guess})
        else:
            meta: dict[str, Any] = {key: about[key] for key in ("row", "file", "label_given") if key in about}
            options = [{"id": each, "text": each} for each in dataset.classes]
            seen: dict[str, Any] = {key: about[key] for key in ("text",) if key in about}
            seen |= {"image": dataset.ids[int(dataset.train_rows[rows[len(lines)]])]} if "image" in about else {}
            lines.append({**seen, "options": options, "accept": [name] if name else [], "meta": {**meta, **certain}})
    if path.suffix.lower() == ".json":
        return write_output(path, (json.dumps(lines, indent=1, ensure_ascii=False) + "\n").encode("utf-8", "replace"))
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    return write_output(path, text.encode("utf-8", "replace"))


def _shown(dataset: Dataset, row: int) -> dict[str, Any]:
    """Return what a tool shows of a row. Files are relative to the folder that the data's folder is in."""
    if dataset.folder:
        file = os.path.relpath(dataset.ids[row], dataset.folder)
        from_root = os.path.relpath(dataset.ids[row], Path(dataset.folder).absolute().parent)
        if len(dataset.raw.shape) == 4:
            return {"file": file, "image": f"/data/local-files/?d={from_root}"}
        return {"file": file, "text": str(dataset.raw.iloc[row, 0])}
    if is_frame(dataset.raw):
        cells: Mapping[str, Any] = dataset.raw.iloc[row]
        return {"text": "\n".join(str(cell) for cell in cells if cell == cell)}
    return {"text": " ".join(f"{number:g}" for number in np.ravel(dataset.raw[row])[:50])}


def _write_folders(path: Path, dataset: Dataset, rows: Rows, names: Sequence[str]) -> None:
    if not dataset.folder:
        raise DataError(
            f"{path} would be a folder of files, but the rows are not files; write a .csv, .json or .jsonl."
        )
    for row, name in zip(dataset.train_rows[rows].tolist(), names, strict=True):
        if name in (".", "..") or "/" in name:
            raise DataError(f"the class '{name}' cannot be the name of a folder; write a .csv, .json or .jsonl.")
        file = Path(os.path.relpath(dataset.ids[row], dataset.folder))
        target = path / name / "__".join(file.parts)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(dataset.ids[row], target)


# Which rows an export names


def find_rows(dataset: Dataset, given: Sequence[Given], find_file: Callable[[str], int | None]) -> list[list[int]]:
    """Return the training rows of each label: by its file, its number or its text, else by the content of its copy."""
    row_of = {str(number): row for row, number in enumerate(dataset.row_numbers().tolist())}
    texts: dict[str, list[int]] | None = None
    hashes: dict[str, list[int]] | None = None
    found = []
    for each in given:
        by_name = next((row for name in each.files if (row := find_file(name)) is not None), None)
        rows = [] if by_name is None else [by_name]
        if not rows and not each.path and each.row in row_of:
            rows = [row_of[each.row]]
        if not rows and each.text:
            texts = _texts(dataset) if texts is None else texts
            rows = texts.get(each.text.strip(), [])
        if not rows and each.path:
            if hashes is None:
                hashes = {}
                for row, content in enumerate(dataset.row_hashes(dataset.train_rows)):
                    hashes.setdefault(content, []).append(row)
            rows = hashes.get(hashlib.sha256(each.path.read_bytes()).hexdigest(), [])
        found.append(rows)
    return found


def _texts(dataset: Dataset) -> dict[str, list[int]]:
    """Return the rows that hold each text, in one of their cells or as `_shown` writes them."""
    rows: dict[str, list[int]] = {}
    if is_frame(dataset.raw):
        frame = dataset.raw.iloc[dataset.train_rows]
        for row, cells in enumerate(frame.itertuples(index=False)):
            shown = [str(cell).strip() for cell in cells if cell == cell]
            for text in {*shown, "\n".join(shown)}:
                rows.setdefault(text, []).append(row)
    return rows
