"""Labels from other tools and rows for them, as Label Studio 1.20, Prodigy 1.18, FiftyOne 1 and CVAT 2 write their files."""

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from selfens.cli import main
from selfens.data import sources
from selfens.data.label_files import read_labels
from selfens.data.labels import LabelsConfig, with_classes
from selfens.data.sources import options_for
from selfens.errors import DataError

TEXTS = [
    "the bus came late today",
    "my card was not accepted",
    "the train never came at all",
    "I want my money back now",
]
TOPICS = ["travel", "money", "travel", "money"]


@pytest.fixture
def typed(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def typed(*words):
        with pytest.raises(SystemExit) as done:
            main([str(word) for word in words])
        said = capsys.readouterr()
        assert not done.value.code, said.err
        return said.out

    return typed


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    for number in range(24):
        place = folder / ("a" if number < 12 else "b c") if number % 2 else folder
        place = place.parent / "unlabeled" / place.name if place != folder else folder
        place.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 60, (10, 10, 3)) + [[180, 0, 0], [0, 0, 180]][number % 2]
        Image.fromarray(pixels.astype(np.uint8)).save(place / f"{number:02}.png")
    return folder


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "messages.csv"
    path.write_text("text\n" + "".join(f"{text}\n" for text in TEXTS))
    return path


def color(name) -> str:
    return ("red", "blue")[int(Path(name).name[:2]) % 2]


def labels_in(path, data) -> dict[str, str]:
    """What a labels file says of unlabeled data, by what tells its rows apart."""
    dataset = sources.load(options_for(data))
    named = with_classes(dataset, LabelsConfig(choice="added", file=(str(path),)))
    names = [Path(name).name for name in dataset.ids] or dataset.raw["text"].tolist()
    return {names[row]: named.classes[label] for row, label in read_labels(Path(path), named).items()}


def task(number, data, *choices, **more):
    """A task of Label Studio's JSON export."""
    result = [{"id": f"r{number}", "type": "choices", "from_name": "label", "to_name": "example", "origin": "manual",
               "value": {"choices": [choice]}} for choice in choices]  # fmt: skip
    annotation = {"id": 100 + number, "completed_by": 1, "result": result, "was_cancelled": False, "ground_truth": False,
                  "created_at": "2026-11-01T10:00:00.000000Z", "lead_time": 2.5, "prediction": {}}  # fmt: skip
    return {"id": number, "annotations": [annotation | more], "drafts": [], "predictions": [], "data": data, "meta": {},
            "file_upload": "", "total_annotations": 1, "project": 1}  # fmt: skip


# What we write, labeled and given back


def test_label_studio_gets_tasks_and_gives_labels_back(typed, photos):
    typed("suggest", photos, "--count", "12", "-o", "tasks.json")
    tasks = json.loads(Path("tasks.json").read_text())
    assert len(tasks) > 6
    assert all(each["data"]["image"].startswith("/data/local-files/?d=photos/") for each in tasks)
    assert all(each["predictions"] == [] for each in tasks)
    export = [task(number, each["data"], color(each["data"]["file"])) for number, each in enumerate(tasks)]
    export[0]["annotations"][0]["was_cancelled"] = True  # skipped
    export[1]["annotations"] = []  # not yet seen
    Path("export.json").write_text(json.dumps(export))
    flat = [{**each["data"], "id": 1, "annotator": 1, "annotation_id": 7, "label": color(each["data"]["file"]),
             "created_at": "2026-11-01", "updated_at": "2026-11-01", "lead_time": 1.5} for each in tasks]  # fmt: skip
    Path("min.json").write_text(json.dumps(flat))
    with open("export.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, sorted(flat[0]))
        writer.writeheader()
        writer.writerows(flat)
    expected = {Path(each["data"]["file"]).name: color(each["data"]["file"]) for each in tasks}
    assert labels_in("min.json", photos) == labels_in("export.csv", photos) == expected
    assert labels_in("export.json", photos) == dict(list(expected.items())[2:])
    said = typed(
        "train", photos, "--labels-file", "export.json", "--epochs", "1", "--no-report", "--run", "run", "--quiet"
    )
    assert "run in run" in said
    typed("suggest", "run", "-n", "3", "-o", "more.json")
    assert json.loads(Path("more.json").read_text())[0]["predictions"][0]["result"][0]["value"]["choices"][0] in (
        "red",
        "blue",
    )
    typed("audit", "run", "--in-sample", "-o", "audit.json")
    audited = json.loads(Path("audit.json").read_text())
    assert {each["data"]["label_given"] for each in audited} == {"red", "blue"}
    assert all(0 <= each["predictions"][0]["score"] <= 1 for each in audited)


def test_prodigy_gets_examples_and_gives_labels_back(typed, texts):
    typed("suggest", texts, "--count", "4", "-o", "examples.jsonl")
    examples = [json.loads(line) for line in Path("examples.jsonl").read_text().splitlines()]
    assert {each["text"] for each in examples} == {*TEXTS}
    topic = dict(zip(TEXTS, TOPICS, strict=True))
    answers = [
        {**each, "_input_hash": 5, "_task_hash": 6, "_view_id": "choice", "accept": [topic[each["text"]]], "answer": "accept",
         "config": {"choice_style": "single"}, "_timestamp": 1762000000}
        for each in examples
    ]  # fmt: skip
    answers[0]["answer"] = "ignore"
    Path("out.jsonl").write_text("".join(json.dumps(each) + "\n" for each in answers))
    expected = {each["text"]: topic[each["text"]] for each in answers[1:]}
    assert labels_in("out.jsonl", texts) == expected
    binary = [{"text": text, "label": topic[text], "score": 0.4, "answer": "accept"} for text in TEXTS[:3]]
    binary += [{"text": TEXTS[3], "label": "travel", "answer": "reject"}]
    Path("binary.jsonl").write_text("".join(json.dumps(each) + "\n" for each in binary))
    assert labels_in("binary.jsonl", texts) == {text: topic[text] for text in TEXTS[:3]}


def test_folders_of_classes_are_written_and_read(typed, photos):
    Path("next").mkdir()
    typed("suggest", photos, "--count", "10", "-o", "next")
    copies = sorted(Path("next/unlabeled").iterdir())
    assert len(copies) > 5
    for copy in copies[2:]:
        kind = color(copy.name.rpartition("__")[2])
        Path("next", kind).mkdir(exist_ok=True)
        shutil.move(copy, Path("next", kind))
    expected = {copy.name.rpartition("__")[2]: color(copy.name.rpartition("__")[2]) for copy in copies[2:]}
    assert labels_in("next", photos) == expected


# What the tools name their files


def test_files_of_label_studio_by_other_roots_uploads_and_addresses(tmp_path, photos):
    export = [
        task(1, {"image": "/data/local-files/?d=home/me/photos/00.png"}, "red"),
        task(2, {"image": "/data/upload/3/0a1b2c3d-02.png"}, "red"),
        task(3, {"image": "https://example.com/pictures/04.png"}, "red"),
        task(4, {"image": "/data/local-files/?d=photos/unlabeled/b%20c/13.png"}, "blue"),
        task(5, {"image": str(photos / "06.png")}, "red"),
    ]
    (tmp_path / "export.json").write_text(json.dumps(export))
    found = labels_in(tmp_path / "export.json", photos)
    assert found == {"00.png": "red", "02.png": "red", "04.png": "red", "13.png": "blue", "06.png": "red"}


def test_folders_of_fiftyone_and_cvat(tmp_path, photos):
    """FiftyOne copies files with their names; CVAT puts the class before them; a copy may also be named at will."""
    for kind, name, copy in (
        ("red", "00.png", "00.png"),
        ("blue", "unlabeled/a/01.png", "blue_01.png"),
        ("red", "02.png", "x.png"),
    ):
        (tmp_path / "out" / kind).mkdir(parents=True, exist_ok=True)
        shutil.copy(photos / name, tmp_path / "out" / kind / copy)
    (tmp_path / "out" / "synsets.txt").write_text("red\nblue\n")
    assert labels_in(tmp_path / "out", photos) == {"00.png": "red", "01.png": "blue", "02.png": "red"}


def test_texts_of_label_studio_that_it_was_given_by_others(tmp_path, texts):
    export = [
        task(number, {"text": text}, topic) for number, (text, topic) in enumerate(zip(TEXTS, TOPICS, strict=True))
    ]
    (tmp_path / "export.json").write_text(json.dumps(export))
    assert labels_in(tmp_path / "export.json", texts) == dict(zip(TEXTS, TOPICS, strict=True))


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("x.json", "{", "cannot be read as an export of Label Studio or Prodigy"),
        ("x.json", '{"a": 1}', "expected a list of tasks"),
        ("x.json", [task(1, {"image": "00.png"}, "red", "blue")], "task 1 of .* has the labels blue, red; expected one"),
        ("x.json", [task(1, {"image": "nowhere.png"}, "red")], "names 'nowhere.png', which is no training row"),
        ("x.json", [task(n, {"image": "00.png"}, kind) for n, kind in enumerate("ab")], "a second label, 'b'"),
        ("x.jsonl", '{"image": "00.png", "accept": ["a", "b"], "answer": "accept"}', "accepts .* expected one label"),
        ("x.jsonl", "nonsense", "line 1 is not a JSON object"),
    ],
)  # fmt: skip
def test_what_cannot_be_understood_is_one_sentence(tmp_path, photos, name, content, sentence):
    (tmp_path / name).write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(DataError, match=sentence):
        labels_in(tmp_path / name, photos)


def test_a_file_that_may_hold_labels_is_not_replaced(typed, photos, capsys):
    Path("tasks.json").write_text("[]")
    with pytest.raises(SystemExit):
        main(["suggest", str(photos), "-o", "tasks.json"])
    assert "tasks.json exists, and may hold labels" in capsys.readouterr().err
