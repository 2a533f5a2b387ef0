"""The soak itself, with tiny counts: good files pass every reader, cases can be repeated, a soak that was stopped goes on."""

import json
import sys
from random import Random

import pytest

from tests.soak import readers
from tests.soak.__main__ import DISK, ENVIRONMENT, main, missing
from tests.soak.damage import damage


@pytest.mark.parametrize("name", readers.READERS)
def test_every_reader_reads_its_files_as_long_as_they_are_good(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(readers, "damage", lambda path, random: "none")
    (tmp_path / "case").mkdir()
    answer = readers.damaged_file([name], Random(0), tmp_path / "case")
    assert answer["outcome"] == "harmless"


def test_a_damage_is_decided_by_the_name_of_its_case(tmp_path):
    made = set()
    for case in range(60):
        for time in range(2):
            path = tmp_path / f"{case}-{time}"
            path.write_bytes(bytes(range(256)) + b'{"rows": [1, 2.5, "three"]}\n' * 9)
            made.add((case, damage(path, Random(case)), path.read_bytes() if path.is_file() else b""))
    assert len(made) == 60
    assert len({content for _, _, content in made}) > 50


def test_the_cases_that_are_missing_follow_from_those_that_are_done():
    wanted = {"kills": 5, "files": 0, "pairs": 1, "disk": 1}
    assert missing(wanted, {}) == ["kills/0", "kills/1", "pairs/0", *(f"disk/{command}" for command in DISK)]
    done = {"kills/0": {"kills": 3}, "kills/1": {"kills": 1}, "pairs/0": {}, "disk/train": {"writes": 2}}
    others = [f"disk/{command}" for command in DISK if command != "train"]
    assert missing(wanted, done) == ["kills/2", "disk/train/0", "disk/train/1", *others]


def test_a_tiny_soak_goes_on_where_it_was_and_counts_what_it_did(tmp_path, monkeypatch, capsys):
    for name in ENVIRONMENT:
        monkeypatch.setenv(name, "1")  # so that they are afterward as they were

    def soaked(*words):
        counts = ["--pairs", "0", "--disk", "0", "--jobs", "1", *words]
        monkeypatch.setattr(sys, "argv", ["soak", "--work", str(tmp_path), *counts])
        main()
        return capsys.readouterr().err

    soaked("--kills", "0", "--files", "2")
    done = (tmp_path / "done.jsonl").read_text()
    (tmp_path / "done.jsonl").write_text(done + '{"case": "kil')  # as a kill leaves it
    assert "2 cases are done already" in soaked("--kills", "1", "--files", "4")
    assert (tmp_path / "done.jsonl").read_text().startswith(done)
    found = json.loads((tmp_path / "soak.json").read_text())
    assert found["cases"]["files"] == 4
    assert found["kills"] >= 1
    assert found["outcomes"]["kills"] == {"the same bits": found["cases"]["kills"]}
