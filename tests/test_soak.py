"""The soak itself, with tiny counts: good files pass every reader, cases can be repeated, a soak that was stopped goes on."""

import json
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from tests.soak import readers
from tests.soak.__main__ import DISK, missing
from tests.soak.damage import damage

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("name", readers.READERS)
def test_every_reader_reads_its_files_as_long_as_they_are_good(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SELFENS_CACHE", str(tmp_path / "case/cache"))
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


def test_a_tiny_soak_goes_on_where_it_was_and_counts_what_it_did(tmp_path):
    done = [soaked(tmp_path, "--kills", "0", "--files", "2"), (tmp_path / "done.jsonl").read_text()]
    (tmp_path / "done.jsonl").write_text(done[1] + '{"case": "kil')  # as a kill leaves it
    ended = soaked(tmp_path, "--kills", "1", "--files", "4")
    assert "2 cases are done already" in ended.stderr
    assert (tmp_path / "done.jsonl").read_text().startswith(done[1])
    found = json.loads((tmp_path / "soak.json").read_text())
    assert found["cases"]["files"] == 4
    assert found["kills"] >= 1
    assert found["outcomes"]["kills"] == {"the same bits": found["cases"]["kills"]}


def soaked(folder, *words):
    command = [sys.executable, "-m", "tests.soak", "--work", str(folder), "--pairs", "0", "--disk", "0", "--jobs", "1"]
    return subprocess.run([*command, *words], cwd=ROOT, capture_output=True, text=True, timeout=300)
