"""Every Python block of README and docs runs, and every block of the tutorials, those of the command line too."""

import json
import os
import re
import runpy
import shutil
import statistics
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from support import blobs, config, environment, features

from selfens import cli, export_run, load_run, methods, train
from selfens.config import REGISTRIES

ROOT = Path(__file__).parent.parent
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *TUTORIALS]


def blocks(page, languages="python|sh"):
    """The blocks of a page: language and text."""
    return re.findall(rf"^```({languages})\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


def run_python(code, name):
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # a reader sees warnings and goes on
        exec(compile(code, name, "exec"), {"__name__": "__main__"})


def run_shell(code, folder):
    """As typed, with the command of the environment that runs the tests."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-ec", code], cwd=folder, env=environment(PATH=path), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_there_are_blocks():
    with_blocks = {page.name for page in PAGES if blocks(page)}
    assert with_blocks >= {"README.md", "data.md", "runs.md", "extending.md", "export.md", "extra-data.md"}
    assert with_blocks >= {page.name for page in TUTORIALS}
    assert len(TUTORIALS) >= 3


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: page.name)
def test_the_blocks_of_the_page_run(page, tmp_path, monkeypatch):
    """One after another in one folder: a later one may use a file that an earlier one made, and no name of it.

    Trainings take fewer epochs than the page says: how well they do is not the question here.
    """
    monkeypatch.chdir(tmp_path)
    for file in page.parent.glob("*.csv"):  # that a tutorial asks to copy
        shutil.copy(file, tmp_path)
    for number, (language, written) in enumerate(blocks(page), start=1):
        code = re.sub(r"epochs([ =]+)\d\d+", r"epochs\g<1>3", written)
        if language == "python":
            run_python(code, f"{page.name}, block {number}")
        else:
            run_shell(code, tmp_path)


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.name)
def test_a_tutorial_has_no_block_that_is_not_run(page):
    text = page.read_text()
    assert set(re.findall(r"^```(\S+)$", text, re.MULTILINE)) <= {"python", "sh"}
    outside = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    assert not re.findall(r"^    \S.*$", outside, re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        assert target.startswith("http") or (page.parent / target).exists(), target


def test_the_page_of_options_is_what_the_code_says():
    made = runpy.run_path(str(ROOT / "docs" / "make_options.py"))["page"]()
    assert (ROOT / "docs" / "options.md").read_text() == made, "run `make docs`"
    names = [(kind.capitalize(), name) for kind, registry in REGISTRIES.items() for name in registry]
    assert all(f"## {kind} `{name}`" in made for kind, name in names)


def test_the_method_of_the_page_works_by_its_name_too(tmp_path, monkeypatch, capsys):
    """What docs/extending.md says of the one line in METHODS, the command line and refused options."""
    (code,) = (code for _, code in blocks(ROOT / "docs" / "extending.md") if "class ConfidentTeacher" in code)
    (tmp_path / "mine.py").write_text(code.partition("config = ")[0])
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(methods.METHODS, "mine", "mine:ConfidentTeacher")
    command = ["train", "digits", "--method", "mine", "--epochs", "1", "--quiet", "--run", "run", "--set"]
    with pytest.raises(SystemExit) as done:
        cli.main([*command, "method.threshold=0.7"])
    assert not done.value.code
    assert load_run("run").config.method.threshold == 0.7
    with pytest.raises(SystemExit, match="1"):
        cli.main([*command, "method.threshold=2"])
    assert "method.threshold is 2.0; expected at least 0 and at most 1." in capsys.readouterr().err


def test_five_lines_use_an_exported_file_with_onnxruntime_alone():
    code = next(code for _, code in blocks(ROOT / "docs" / "export.md") if "onnxruntime" in code)
    assert len([line for line in code.splitlines() if line.strip()]) == 5
    assert "selfens" not in code
    assert "torch" not in code


def test_the_lines_that_use_an_exported_file_take_the_float64_of_ones_own_arrays(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    export_run(train(config("supervised", epochs=1), "run", dataset=features()), "model.onnx")
    np.save("new.npy", blobs(3)[0].astype("float64"))
    (code,) = (
        code for _, code in blocks(ROOT / "docs" / "export.md") if "model.onnx" in code and "selfens" not in code
    )
    run_python(code, "export.md")


def test_the_loop_of_ones_own_learns_more_from_the_ensemble():
    """The example is not only run: it classifies the unlabeled rows far better than chance."""
    code = next(code for _, code in blocks(ROOT / "docs" / "tutorials" / "my-own-loop.md") if "EnsembleTargets" in code)
    assert len([line for line in code.splitlines() if line.strip()]) <= 26
    names: dict = {}
    import torch

    torch.manual_seed(0)
    exec(compile(code, "my-own-loop.md", "exec"), names)
    known = names["ensemble"].all()
    assert known.known.all()
    unlabeled = ~names["labeled"]
    right = (known.probabilities.argmax(dim=1) == names["y"])[unlabeled].float().mean()
    assert right > 0.8


@pytest.mark.parametrize(
    ("page", "file", "names"),
    [
        ("README.md", "images-cpu", ("ours", "logistic regression", "self-training")),
        ("docs/data.md", "images-cpu", ("ours", "logistic regression", "self-training", "random forest", "SVC, C 10")),
        ("docs/data.md", "images-cpu-40", ("ours", "logistic regression", "random forest")),
    ],
)
def test_figures_of_own_images_are_those_of_the_records(page, file, names):
    records = json.loads((ROOT / f"results/{file}.json").read_text())["records"]
    text = " ".join((ROOT / page).read_text().split())
    for name in names:
        errors = [record[name] for record in records]
        assert f"{statistics.mean(errors):.1f} ± {statistics.stdev(errors):.1f}" in text, name


@pytest.mark.parametrize("page", ["README.md", "docs/modern.md"])
@pytest.mark.parametrize("cell", sorted((ROOT / "results/runs/modern").glob("*/")), ids=lambda cell: cell.name)
def test_figures_of_the_temporal_teacher_are_those_of_the_records(page, cell):
    records = [json.loads(path.read_text()) for path in cell.iterdir()]
    errors, seconds = ([record[name] for record in records] for name in ("final_error", "seconds"))
    error = f"**{statistics.mean(errors):.2f}**" + (f" ± {statistics.stdev(errors):.2f}" if len(errors) > 1 else "")
    figures = re.compile(rf"(.*)\| {re.escape(error)} \| {statistics.mean(seconds):.0f}( s)? \|")
    (row,) = (found[1] for line in (ROOT / page).read_text().splitlines() if (found := figures.match(line)))
    preset, labels, *epochs = re.fullmatch(r"(\w+-\w+)-(\d+)(?:-(\d+)-epochs)?", cell.name).groups()
    assert f"{int(labels):,} |" in row
    assert (f" {epochs[0]}" if epochs[0] else preset) in row


def lines_of(path):
    return [json.loads(line) for line in (ROOT / path).read_text().splitlines()]


def test_figures_of_forty_labels_are_those_of_the_records():
    records = lines_of("results/runs/modern/few-labels.jsonl")
    errors, seconds = ([record[name] for record in records] for name in ("error", "seconds"))
    assert [record["seed"] for record in records] == [0, 1, 2]
    assert {(record["labels"], record["held_out"]) for record in records} == {(40, False)}
    figures = f"**{statistics.mean(errors):.2f}** ± {statistics.stdev(errors):.2f} | {statistics.mean(seconds):.0f}"
    for page in ("README.md", "docs/modern.md"):
        (row,) = (line for line in (ROOT / page).read_text().splitlines() if figures in line)
        assert "few_labels.py" in row
    text = " ".join((ROOT / "docs/modern.md").read_text().split())
    assert "ends at {:.1f}, {:.1f} and {:.1f} %".format(*errors) in text
    assert f"by {statistics.median(errors) - 20:.1f} points" in text
    for epoch, words in (("60", "the error is {} to {} %;"), ("80", "after 80 it is {} to {}.")):
        reached = [record["errors"][epoch] for record in records]
        assert words.format(round(min(reached)), round(max(reached))) in text


TRIALS_AT_FORTY = {
    "nothing": "base",
    "SoftMatch's weighting": "soft",
    "threshold 0.95": "threshold",
    "threshold 0.95, learning rate 0.05": "thr-0.05",
    "contrast first": "moco",
    "contrast first, for 48 epochs": "moco-0.6",
    "contrast first, kept afterward at a weight of 0.3": "moco-kept",
    "contrast first, SoftMatch's weighting": "moco-soft",
    "contrast first, half of a target from the 20 nearest rows": "moco-near",
    "prototypes first (256, from crops)": "proto",
    "contrast first, learning rate 0.05": "moco-0.05",
    "contrast first, learning rate 0.05, threshold 0.95": "moco-thr-0.05",
    "the same, contrast kept afterward at a weight of 0.3": "moco-thr-kept-0.05",
}


def test_figures_of_the_trials_at_forty_labels_are_those_of_the_records():
    errors = {line["trial"].removeprefix("40-"): line["error"] for line in lines_of("results/modern-trials-40.jsonl")}
    errors["threshold@101"] = errors.pop("thr@101")
    table = (ROOT / "docs/modern.md").read_text().split("| changed | seed 100 | seed 101 |")[1].split("\n\n")[0]
    rows = [[cell.strip(" *") for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]
    assert [row[0] for row in rows] == list(TRIALS_AT_FORTY)
    for name, *shown in rows:
        trial = TRIALS_AT_FORTY[name]
        assert shown == [f"{errors.pop(key):.2f}" if key in errors else "" for key in (trial, f"{trial}@101")]
    assert not errors


ABLATION = {
    "": "nothing",
    "-memory-0.6": "α = 0.6",
    "-memory-0.9": "α = 0.9",
    "-single-pass": "no teacher",
    "-unsharpened": "no sharpening",
    "-unaligned": "no alignment",
    "-weak-view": "no strong view",
}


@pytest.mark.parametrize("part", ABLATION)
def test_figures_of_the_ablation_are_those_of_the_trials(part):
    lines = lines_of("results/modern-trials.jsonl")
    errors = {line["trial"]: line["error"] for line in lines if (line["epochs"], line["seed"]) == (60, 100)}
    table = (ROOT / "docs/modern.md").read_text().split("| changed | 4,000 labels | 250 labels |")[1].split("\n\n")[0]
    (row,) = (line for line in table.splitlines() if line.startswith(f"| {ABLATION[part]}"))
    cells = [cell.strip(" *") for cell in row.split("|")]
    assert cells[2:4] == [f"{errors[labels + part]:.2f}" for labels in ("4000", "250")]


def test_figures_of_the_peer_are_those_of_its_record():
    (line,) = lines_of("results/peer.jsonl")
    text = (ROOT / "docs/modern.md").read_text()
    for each in (line["ours"], line["peer"]):
        figures = "| **{error:.2f}** | {seconds:.0f} | {iterations:,} | {images_per_second:,} |"
        assert figures.format(**each) in text
    assert f"ends at {line['peer']['error']:.1f} %" in (ROOT / "README.md").read_text()


def test_figures_of_own_images_on_a_gpu_are_those_of_the_record():
    (record,) = json.loads((ROOT / "results/images-gpu.json").read_text())["records"]
    text = " ".join((ROOT / "docs/data.md").read_text().split())
    assert f"one draw has been measured: {record['ours']:.1f} % in {record['seconds']:.0f} s" in text


def test_the_figures_of_honest_numbers_are_those_of_the_records():
    result = json.loads((ROOT / "results" / "honest.json").read_text())
    every, found = result["all"], result["images"]["found"]
    expected = [
        *(f"{every[name]:.1f}" for name in ("covered", "distance", "distance_after_suggestions")),
        *(f"{every[name]:.1f}" for name in ("calibration_before", "calibration_after", "answered", "error_of_answers")),
        f"{sum(result['novelty'].values()) / 3:.2f}",
        f"{100 * found['copy']:.0f}",
        f"{100 * min(found[kind] for kind in ('smaller', 'larger', 'jpeg')):.0f}",
        *(f"{every[name]:.1f}" for name in ("wrong_labels_found", "wrong_labels_found_by_cleanlab", "cost")),
    ]
    page = (ROOT / "docs" / "honest.md").read_text().partition("## Does it hold?")[2]
    lines = [line for line in page.splitlines() if line.startswith("| ")][1:]
    assert [line.split("|")[-2].strip() for line in lines] == expected


def test_the_figures_beside_datalab_are_those_of_the_record():
    found = json.loads((ROOT / "results/benchmarks/datalab.json").read_text())["summary"]
    digits = {"near_duplicates found": ".0%", "near_duplicates others": ".0f", "wrong_labels": ".0%", "outliers": ".2f"}
    expected = [
        [format(found[name][tool], form).rstrip("%") for tool in ("selfens", "datalab")]
        for name, form in digits.items()
    ]
    page = (ROOT / "docs" / "labels-partly-wrong.md").read_text().partition("## Beside Datalab")[2]
    lines = [line for line in page.splitlines() if line.startswith("| ")][1:]
    assert [[cell.strip() for cell in line.split("|")[2:4]] for line in lines] == expected
