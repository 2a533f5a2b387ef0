"""The paper's experiments: the cells are the paper's, runs are neither lost nor repeated, and the report says what is there."""

import csv
import doctest
import io
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import typer
from rich.console import Console
from support import Crash, child, config, crashed, finish, write_npz
from typer.testing import CliRunner

from selfens import Dataset, load_run, train
from selfens.config import Config
from selfens.errors import ConfigError, DataError, DeviceError, RunError
from selfens.experiments import baseline, noise, quick, runner, summary
from selfens.experiments import tables as tables_module
from selfens.experiments.cells import Cell
from selfens.experiments.claims import CLAIMS
from selfens.experiments.command import _finish, reproduce
from selfens.experiments.extra_images import ExtraImages
from selfens.experiments.presence import present
from selfens.experiments.records import Record, Store
from selfens.experiments.report import write_report
from selfens.experiments.summary import Summary, measured, summarize
from selfens.experiments.tables import CELLS, TABLES, Task, choose_cells, find_table, parse_seeds, tasks
from selfens.experiments.view import Tally, for_console
from selfens.experiments.worker import Event, Place, Worker, commit

FIGURES = Path(__file__).parent / "data" / "paper_tables.csv"
CPU = Place("cpu", threads=1)


@pytest.fixture(autouse=True)
def _known_commit(monkeypatch):
    monkeypatch.setenv("SELFENS_COMMIT", "abc123")


@pytest.fixture(autouse=True)
def _own_machine(tmp_path, monkeypatch):
    """Runs elsewhere on this machine are none of the tests' business."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)


# The cells


def test_the_cells_are_those_of_the_paper_number_by_number():
    with FIGURES.open() as file:
        paper = {(line["table"], line["row"], line["labels"]): line for line in csv.DictReader(file)}
    again = {cell.key for cell in baseline.TABLE.cells}  # the same figures, compared with other runs
    ours = {(c.table, c.row, c.column): c for c in CELLS.values() if c.mean is not None and c.key not in again}
    assert ours.keys() == paper.keys()
    for key, cell in ours.items():
        expected = (float(paper[key]["mean"]), float(paper[key]["deviation"]), int(paper[key]["runs"]))
        assert (cell.mean, cell.deviation, cell.runs) == expected, key


@pytest.mark.parametrize(
    ("key", "labels", "preprocess", "flip", "translation", "method", "learning_rate", "weight_max"),
    [
        ("cifar10/supervised-4000", 4000, "zca", False, 0, "supervised", 0.003, 0),
        ("cifar10/pi-all", None, "zca", False, 0, "pi", 0.003, 100),
        ("cifar10/pi-aug-4000", 4000, "zca", True, 2, "pi", 0.003, 100),
        ("cifar10/temporal-aug-4000", 4000, "zca", True, 2, "temporal", 0.003, 30),
        ("svhn/supervised-aug-1000", 1000, "image", False, 2, "supervised", 0.003, 0),
        ("svhn/pi-aug-500", 500, "image", False, 2, "pi", 0.003, 100),
        ("svhn/temporal-aug-500", 500, "image", False, 2, "temporal", 0.001, 30),
        ("cifar100/temporal-aug-10000", 10_000, "zca", True, 2, "temporal", 0.003, 100),
        ("tiny/pi-aug-random", None, "zca", True, 2, "pi", 0.003, 300),
        ("tiny/temporal-aug-restricted", None, "zca", True, 2, "temporal", 0.003, 1000),
        ("noise/temporal-20", None, "image", False, 2, "temporal", 0.001, 300),
        ("noise/temporal-50", None, "image", False, 2, "temporal", 0.001, 3000),
        ("noise/supervised-90", None, "image", False, 2, "supervised", 0.003, 0),
        ("claims/pi-aug-250-beta2-0.99", 250, "image", False, 2, "pi", 0.003, 100),
    ],
)
def test_a_cell_has_the_papers_settings(key, labels, preprocess, flip, translation, method, learning_rate, weight_max):
    c = CELLS[key].config
    assert (c.data.labels, c.data.preprocess) == (labels, preprocess)
    assert (c.augment.flip, c.augment.translation) == (flip, translation)
    assert (c.method.name, c.method.weight_max) == (method, weight_max)
    assert c.optimizer.learning_rate == learning_rate


def test_what_the_paper_never_changes_is_the_same_in_all_cells():
    for cell in CELLS.values():
        c = cell.config
        assert (c.schedule.epochs, c.schedule.rampup, c.schedule.rampdown) == (300, 80, 50)
        assert (c.method.decay, c.method.weight_scale, c.training.batch_size) == (0.6, "original", 100)
        assert (c.network.name, c.network.noise, c.optimizer.beta1) == ("conv13", 0.15, 0.9)
        assert (c.training.rows == "labelled") == (cell.table == "baseline")
        assert (c.optimizer.beta2 == 0.99) == (cell.key == "claims/pi-aug-250-beta2-0.99")
        assert (c.augment.shared_flip is False) == (cell.key == "claims/pi-aug-4000-independent-flips")
        assert (c.method.consistency == "cross_entropy") == (cell.key == "claims/pi-aug-4000-cross-entropy")


def test_the_noise_figure_has_ten_cells_with_its_percentages():
    levels = [cell.config.data.label_noise for cell in noise.TABLE.cells]
    assert levels == [0, 20, 50, 80, 90] * 2


def test_the_baseline_of_labelled_rows_has_the_figures_of_the_tables():
    names = [cell.name for cell in baseline.TABLE.cells]
    assert sorted(names) == sorted(
        f"{data}-{row}-{labels}"
        for row in ("supervised", "supervised-aug")
        for data, labels in (("cifar10", 4000), ("svhn", 500), ("svhn", 1000), ("cifar100", 10_000))
    )
    for cell in baseline.TABLE.cells:
        same = CELLS[cell.name.replace("-", "/", 1)]
        assert (cell.row, cell.mean, cell.deviation, cell.runs) == (same.row, same.mean, same.deviation, same.runs)
        assert cell.config.with_values("training", rows="all") == same.config


def test_claims_speak_of_cells_there_are():
    assert {key for claim in CLAIMS for key in (claim.cell, claim.other) if key} <= CELLS.keys()


def test_cells_with_extra_images_are_run_where_there_are_some():
    standing_in, tiny = ExtraImages("natural.npy"), ExtraImages("tiny_images.bin", Path("tiny_index.pkl"))
    for names in (None, "pi-aug-random"):
        with pytest.raises(ConfigError, match=r"needs extra unlabeled images \(--extra\)"):
            choose_cells(TABLES["tiny"], names)
    assert [cell.extra for cell in choose_cells(TABLES["tiny"], None, standing_in)] == ["random", "random"]
    assert len(choose_cells(TABLES["tiny"], None, tiny)) == 4
    with pytest.raises(ConfigError, match="needs --extra tiny_images.bin and --extra-index"):
        choose_cells(TABLES["tiny"], "pi-aug-restricted", standing_in)


def test_the_cells_with_extra_images_draw_as_many_as_the_paper():
    for cell in TABLES["tiny"].cells:
        assert cell.config.data.extra_per_epoch == 50_000
        assert (cell.config.data.extra, cell.config.data.labels) == (None, None)


def test_seeds_and_order():
    assert parse_seeds("3,0-2, 7") == [0, 1, 2, 3, 7]
    wanted = tasks({cell: cell.default_seeds() for cell in choose_cells(TABLES["cifar10"], "pi-4000, pi-all, pi-4000")})
    assert [(t.cell.name, t.seed) for t in wanted][:3] == [("pi-4000", 0), ("pi-all", 0), ("pi-4000", 1)]
    assert len(wanted) == 14


@pytest.mark.parametrize("text", ["", "a", "1-", "-1", "3-1", "0-5000", "1.5"])
def test_seeds_that_are_none(text):
    with pytest.raises(ConfigError, match="--seeds"):
        parse_seeds(text)


def test_unknown_names_are_refused_with_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'cifar10'"):
        find_table("cifar11")
    with pytest.raises(ConfigError, match="did you mean 'temporal-aug-4000'"):
        choose_cells(TABLES["cifar10"], "temporal-4000")


def test_devices():
    assert [place.device for place in runner.parse_devices("cpu,cpu", quick_runs=False)] == ["cpu", "cpu"]
    with pytest.raises(ConfigError, match="--devices is 'gpu'"):
        runner.parse_devices("gpu", quick_runs=False)
    with pytest.raises(DeviceError, match="GPU 99 was asked for"):
        runner.parse_devices("0,99", quick_runs=False)


def test_a_quick_cell_keeps_the_method_and_is_small():
    for cell in CELLS.values():
        small = quick.shrink(cell.config_for(3))
        assert small.method == cell.config.method
        assert small.seed.base == 3
        assert small.schedule.epochs == quick.EPOCHS
        assert (small.data.labels is None) == (cell.config.data.labels is None)


def test_the_examples_hold():
    for module in (summary, tables_module):
        assert doctest.testmod(module) == (0, 1)


# Records


def made_record(cell, seed, error=10.0, **changes):
    errors = tuple(round(error + 50 * 0.98**epoch, 4) for epoch in range(299)) + (error,)
    usual = Record(
        table=cell.table,
        cell=cell.name,
        seed=seed,
        quick=False,
        config=cell.config_for(seed),
        labelled_rows=f"{seed:064x}",
        data="d",
        test_error=errors,
        final_error=error,
        seconds=300.0,
        seconds_per_epoch=1.0,
        shared_device=False,
        environment={"device": "GPU", "precision": "bf16", "torch": "2"},
        commit="abc",
    )
    return replace(usual, **changes)


def keep(store, *records):
    for record in records:
        store.write(Task(CELLS[record.key], record.seed), record)


def test_a_record_of_another_version_is_not_called_damaged(tmp_path):
    store = Store(tmp_path)
    keep(store, made_record(CELLS["cifar10/pi-4000"], 0))
    path = tmp_path / "runs/cifar10/pi-4000/seed000.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 2, "new": 1}))
    with pytest.raises(RunError, match="was written by another version of selfens"):
        store.read(CELLS.values())


def test_a_record_comes_back_as_it_was(tmp_path):
    store, cell = Store(tmp_path), CELLS["cifar10/pi-4000"]
    record = made_record(cell, 7)
    keep(store, record)
    assert store.read(CELLS.values()) == [record]
    assert (tmp_path / "runs/cifar10/pi-4000/seed007.json").is_file()


@pytest.mark.parametrize(
    "damage",
    [
        lambda raw: raw | {"test_error": raw["test_error"][:-1]},
        lambda raw: raw | {"final_error": 1.0},
        lambda raw: raw | {"labelled_rows": ""},
        lambda raw: raw | {"seconds": None},
        lambda raw: raw | {"surplus": 1},
        lambda raw: {key: value for key, value in raw.items() if key != "config"},
        lambda raw: [],
        lambda raw: raw | {"config": {"data": {"nmae": "x"}}},
        *(
            lambda raw, name=name, value=value: raw | {name: value}
            for name, value in (
                ("table", 5),
                ("seed", "0"),
                ("seed", None),
                ("seed", True),
                ("seed", -1),
                ("quick", "no"),
                ("labelled_rows", [0] * 64),
                ("test_error", 5),
                ("test_error", ["x"] * 300),
                ("test_error", [101.0] * 300),
                ("final_error", "x"),
                ("seconds", -1.0),
                ("seconds_per_epoch", float("nan")),
                ("shared_device", 1),
                ("environment", None),
                ("commit", 5),
                ("seconds", 10**400),
                ("note", 5),
                ("note", "\ud800"),
                ("extra", 5),
                ("extra", {"source": "x.npy"}),
                ("extra", {"source": "x.npy", "rows": "many"}),
            )
        ),
    ],
)
def test_a_damaged_record_is_refused_with_its_path(tmp_path, damage):
    store = Store(tmp_path)
    keep(store, made_record(CELLS["cifar10/pi-4000"], 0))
    path = tmp_path / "runs/cifar10/pi-4000/seed000.json"
    path.write_text(json.dumps(damage(json.loads(path.read_text()))))
    with pytest.raises(RunError, match=r"seed000.json is damaged \(.*\); remove it"):
        store.read(CELLS.values())


def test_a_record_cut_short_is_refused(tmp_path):
    store = Store(tmp_path)
    keep(store, made_record(CELLS["cifar10/pi-4000"], 0))
    path = tmp_path / "runs/cifar10/pi-4000/seed000.json"
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(RunError, match="is damaged"):
        store.read(CELLS.values())


def test_records_are_never_mixed(tmp_path):
    store, cell = Store(tmp_path), CELLS["cifar10/pi-4000"]
    keep(store, made_record(cell, 0, quick=True))
    with pytest.raises(RunError, match="a quick run among the real ones"):
        store.read([cell])
    keep(store, made_record(cell, 0, config=cell.config_for(0).with_values("optimizer", beta2=0.9)))
    with pytest.raises(RunError, match="another configuration"):
        store.read([cell])
    os.rename(store.record_path(Task(cell, 0)), store.record_path(Task(cell, 1)))
    with pytest.raises(RunError, match="wrong place"):
        store.read([cell])


def test_where_it_ran_makes_no_difference_to_a_record(tmp_path):
    store, cell = Store(tmp_path), CELLS["cifar10/pi-4000"]
    elsewhere = cell.config_for(0).with_values("training", device="cuda", checkpoint_every=7)
    keep(store, made_record(cell, 0, config=elsewhere.with_values("data", folder="/data")))
    assert len(store.read([cell])) == 1


NATURAL, TINY = {"source": "natural.npy", "rows": 120_000}, {"source": "tiny_images.bin", "rows": 500_000}
RANDOM = CELLS["tiny/temporal-aug-random"]


def test_records_of_different_extra_images_are_not_averaged(tmp_path):
    store = Store(tmp_path)
    keep(store, made_record(RANDOM, 0, extra=NATURAL), made_record(RANDOM, 1, extra=NATURAL | {"rows": 70}))
    with pytest.raises(RunError, match=r"seed001.json .* 70 images of natural.npy and .*seed000.json with 120,000"):
        store.read([RANDOM])


@pytest.mark.parametrize(("cell", "images"), [(RANDOM, {}), (CELLS["cifar10/pi-4000"], NATURAL)])
def test_a_record_has_extra_images_where_its_cell_has(tmp_path, cell, images):
    store = Store(tmp_path)
    keep(store, made_record(cell, 0, extra=images))
    with pytest.raises(RunError, match=f"seed000.json was trained with .*, unlike {cell.key}"):
        store.read([cell])


# Workers and runners, on a table of our own


class Listener:
    """A view that remembers."""

    def __init__(self):
        self.events = []

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        pass

    def show(self, event):
        self.events.append(event)

    def send(self, event):  # what a worker does with its pipe
        self.events.append(event)

    def refresh(self):
        pass

    def of(self, kind):
        return [str(event.task) for event in self.events if event.kind == kind]


def made_tasks(folder, *, cells=2, seeds=2, epochs=30):
    """Runs of a user's file: real ones, as far as the runner can tell."""
    npz = folder / "data.npz"
    if not npz.exists():
        write_npz(npz)
    names = ("temporal", "pi", "supervised")[:cells]
    return tasks(
        {
            Cell(
                table="made-up", name=name, row=name, column="", config=config(name, name=str(npz), epochs=epochs)
            ): range(seeds)
            for name in names
        }
    )


def outcomes(store, wanted):
    """What must be the same however the runs came about."""
    return {str(task): json.loads(store.record_path(task).read_text())["test_error"] for task in wanted}


@pytest.fixture
def expected(tmp_path):
    """The outcomes of runs that nothing interrupted."""

    def leave(wanted):
        store = Store(tmp_path / "undisturbed")
        for task in wanted:
            Worker(store, CPU, None, Listener()).consider(task)
        return outcomes(store, wanted)

    return leave


def run_in_child(folder, wanted, places):
    view = Listener()
    outcome = runner.run(wanted, Store(folder), places=places, view=view)
    print(json.dumps(view.of("finished")), outcome.missing, outcome.stopped)


class Broken(Listener):
    """Output that ends at the first epoch, as a pipe does whose reader has gone."""

    def show(self, event):
        if event.kind == "epoch" and event.error is not None:
            raise BrokenPipeError


def test_workers_stop_at_a_checkpoint_when_the_output_of_their_command_is_gone(tmp_path):
    wanted = made_tasks(tmp_path, cells=2, seeds=2, epochs=2000)
    store, of_other_tests = Store(tmp_path / "results"), set(multiprocessing.active_children())
    with pytest.raises(BrokenPipeError):
        runner.run(wanted, store, places=[CPU, CPU], view=Broken())
    assert set(multiprocessing.active_children()) <= of_other_tests
    assert not any(store.has(task) for task in wanted)
    begun = [task for task in wanted if store.unfinished_path(task).exists()]
    assert begun
    assert all(load_run(store.unfinished_path(task)).directory.has_checkpoint() for task in begun)


def test_what_a_kill_left_behind_a_record_is_cleared_away(tmp_path):
    (task,) = made_tasks(tmp_path, cells=1, seeds=1)
    store = Store(tmp_path / "results")
    Worker(store, CPU, None, Listener()).consider(task)
    left = store.unfinished_path(task)
    left.mkdir()
    (left / "checkpoint.safetensors").touch()
    assert not Worker(store, CPU, None, Listener()).consider(task)
    assert not left.exists()


def free(store, wanted, seconds=30):
    """Wait until no process holds any of the runs."""
    deadline = time.monotonic() + seconds
    for task in wanted:
        while True:
            with store.claimed(task) as ours:
                if ours:
                    break
            assert time.monotonic() < deadline, f"{task} is still being done"
            time.sleep(0.05)


def test_a_run_interrupted_goes_on_from_its_checkpoint(tmp_path, expected, monkeypatch):
    (task,) = made_tasks(tmp_path, cells=1, seeds=1)
    store, view = Store(tmp_path / "results"), Listener()

    class Interrupted(Worker):
        def epoch(self, record):
            if record["epoch"] == 24:
                raise Crash

    with crashed():
        Interrupted(store, CPU, None, view).consider(task)
    assert store.unfinished_path(task).is_dir()
    assert not store.has(task)
    monkeypatch.setenv("SELFENS_COMMIT", "def456")
    resuming = Worker(store, CPU, None, view)
    monkeypatch.setenv("SELFENS_COMMIT", "later")  # what is committed while it trains did not train it
    resuming.consider(task)
    assert [event.epoch for event in view.events if event.kind == "epoch"] == [0, 20, *range(21, 31)]
    assert outcomes(store, [task]) == expected([task])
    assert store.read([task.cell])[0].commit == "abc123, then def456"
    assert not store.commits_path(task).exists()
    assert not store.unfinished_path(task).exists()


def test_a_run_trained_but_not_recorded_is_only_recorded(tmp_path, monkeypatch):
    (task,) = made_tasks(tmp_path, cells=1, seeds=1)
    store, view = Store(tmp_path / "results"), Listener()

    def crash(*arguments):
        raise Crash

    with monkeypatch.context() as patch, crashed():
        patch.setattr(Store, "write", crash)
        Worker(store, CPU, None, view).consider(task)
    view.events.clear()
    Worker(store, CPU, None, view).consider(task)
    assert [event.kind for event in view.events] == ["started", "finished"]
    record = store.read([task.cell])[0]
    assert record.commit == "abc123"
    assert record.environment["device_type"] == "cpu"
    assert not record.shared_device


def test_an_unfinished_run_of_another_configuration_is_not_continued(tmp_path):
    (task,) = made_tasks(tmp_path, cells=1, seeds=1)
    store = Store(tmp_path / "results")
    train(task.cell.config.with_values("optimizer", beta2=0.5), store.unfinished_path(task))
    view = Listener()
    Worker(store, CPU, None, view).consider(task)
    assert "begun with another configuration" in view.events[-1].text
    assert f"remove {store.unfinished_path(task)} to do it anew" in view.events[-1].text
    assert not store.has(task)


def test_a_diverged_run_is_a_result(tmp_path):
    wild = config("supervised", "optimizer.learning_rate=1e30", name=str(write_npz(tmp_path / "data.npz")))
    task = Task(Cell(table="made-up", name="wild", row="", column="", config=wild), 0)
    store, view = Store(tmp_path / "results"), Listener()
    Worker(store, CPU, None, view).consider(task)
    assert [event.kind for event in view.events][-1] == "diverged"
    record = store.read([task.cell])[0]
    assert record.final_error is None
    assert "stopped being finite" in record.note
    assert Summary(task.cell, (record,)).diverged == 1


def test_a_killed_table_resumes_without_repeating_or_losing_a_run(tmp_path, expected):
    wanted = made_tasks(tmp_path, cells=2, seeds=2, epochs=100)
    store, places = Store(tmp_path / "results"), [CPU, CPU]
    process = child(tmp_path / "out", run_in_child, tmp_path / "results", wanted, places)
    while not any(store.has(task) for task in wanted) and process.is_alive():
        time.sleep(0.01)
    process.kill()
    assert finish(process) == -signal.SIGKILL
    free(store, wanted)  # the workers stop by themselves when their runner is gone
    before = {task: store.record_path(task).read_bytes() for task in wanted if store.has(task)}
    assert 0 < len(before) < len(wanted)
    view = Listener()
    outcome = runner.run(wanted, store, places=places, view=view)
    assert (outcome.missing, outcome.failures) == (0, ())
    assert sorted(view.of("finished")) == sorted(str(task) for task in wanted if task not in before)
    assert all(store.record_path(task).read_bytes() == content for task, content in before.items())
    assert outcomes(store, wanted) == expected(wanted)


def test_two_runners_started_at_once_share_the_work(tmp_path, expected):
    wanted = made_tasks(tmp_path, cells=3, seeds=2, epochs=60)
    both = [child(tmp_path / f"out{n}", run_in_child, tmp_path / "results", wanted, [CPU]) for n in range(2)]
    assert [finish(process) for process in both] == [0, 0]
    done = [json.loads((tmp_path / f"out{n}").read_text().rsplit(" ", 2)[0]) for n in range(2)]
    assert sorted(done[0] + done[1]) == sorted(map(str, wanted))
    assert outcomes(Store(tmp_path / "results"), wanted) == expected(wanted)


class Clock:
    """Stands still until the view has seen some epochs; then the time is up."""

    def __init__(self, view):
        self.view, self.sleep = view, time.sleep

    def monotonic(self):
        return 1e9 if max((event.epoch for event in self.view.events), default=0) >= 5 else 0.0


def test_when_the_time_is_up_the_next_call_goes_on(tmp_path, expected, monkeypatch):
    wanted = made_tasks(tmp_path, cells=1, seeds=1, epochs=400)
    store, first, second = Store(tmp_path / "results"), Listener(), Listener()
    with monkeypatch.context() as patch:
        patch.setattr(runner, "time", Clock(first))
        outcome = runner.run(wanted, store, places=[CPU], view=first, max_minutes=1)
    assert outcome == runner.Outcome(missing=1, stopped=False, failures=(), time_is_up=True)
    assert runner.run(wanted, store, places=[CPU], view=second).missing == 0
    begins = [event.epoch for event in second.events if event.kind == "epoch" and event.error is None]
    assert begins[0] >= 5
    assert outcomes(store, wanted) == expected(wanted)


def test_ctrl_c_stops_at_a_checkpoint(tmp_path):
    (task,) = made_tasks(tmp_path, cells=1, seeds=1, epochs=5000)
    store = Store(tmp_path / "results")
    process = child(tmp_path / "out", run_in_child, tmp_path / "results", [task], [CPU])
    history = store.unfinished_path(task) / "history.jsonl"
    while process.is_alive() and not (history.exists() and history.read_text().count("\n") > 12):
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGINT)
    assert finish(process) == 0
    assert (tmp_path / "out").read_text() == "[] 1 True\n"
    epoch, _ = load_run(store.unfinished_path(task)).directory.reached()
    assert epoch > 10


def test_when_a_worker_is_killed_the_others_take_its_run_over(tmp_path):
    wanted = made_tasks(tmp_path, cells=2, seeds=1, epochs=150)
    store, view, results = Store(tmp_path / "results"), Listener(), []
    others = set(multiprocessing.active_children())  # joblib's, left by the estimator's tests
    runner_thread = threading.Thread(
        target=lambda: results.append(runner.run(wanted, store, places=[CPU, CPU], view=view))
    )
    runner_thread.start()
    while len(view.of("started")) < 2:
        time.sleep(0.01)
    os.kill((set(multiprocessing.active_children()) - others).pop().pid, signal.SIGKILL)
    runner_thread.join(60)
    (outcome,) = results
    assert (outcome.missing, outcome.failures) == (0, ())  # the other worker has taken its run over
    assert [event.text for event in view.events if event.kind == "warning"] == [
        "the worker on cpu ended unexpectedly (code -9); call again to go on."
    ]
    assert sorted(view.of("finished")) == sorted(map(str, wanted))


@pytest.fixture
def interrupted(tmp_path):
    """A run stopped half-way, and another that has not begun."""
    wanted, store = made_tasks(tmp_path, cells=1, seeds=2), Store(tmp_path / "results")

    class Interrupted(Worker):
        def epoch(self, record):
            if record["epoch"] == 12:
                raise Crash

    with crashed():
        Interrupted(store, CPU, None, Listener()).consider(wanted[0])
    return wanted, store


def stray_file(path):
    shutil.rmtree(path)
    path.mkdir()
    (path / "mine.txt").touch()


def begun_on_a_gpu(path):
    changed = Config.from_json((path / "config.json").read_text()).with_values("training", device="cuda")
    (path / "config.json").write_text(changed.to_json())


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (stray_file, "holds no config.json"),
        (lambda path: (shutil.rmtree(path), path.touch()), "is a file"),
        (lambda path: (path / "config.json").write_text("{"), "config.json"),
        (lambda path: (path / "config.json").write_text("[]"), "config.json"),
        (lambda path: (path / "run.json").write_text("[]"), "run.json is damaged"),
        (lambda path: (path / "checkpoint.safetensors").write_text("x"), "checkpoint.safetensors"),
        (lambda path: (path / "labels.json").write_text("x"), "labels.json is damaged"),
        (lambda path: (path / "history.jsonl").write_text("5\n" * 12), "not subscriptable"),
        (begun_on_a_gpu, "it was begun on a GPU"),
    ],
)
def test_a_run_that_cannot_go_on_is_left_out_with_a_remedy_and_the_others_go_on(interrupted, damage, reason):
    (begun, other), store = interrupted
    damage(store.unfinished_path(begun))
    outcome = runner.run([begun, other], store, places=[CPU], view=Listener())
    (sentence,) = outcome.failures
    remedy = f"remove {store.unfinished_path(begun)} to do it anew."
    assert reason in sentence
    assert sentence.endswith(remedy)
    assert (store.has(begun), store.has(other), outcome.missing) == (False, True, 1)
    subprocess.run(["rm", "-r", store.unfinished_path(begun)], check=True)
    assert runner.run([begun, other], store, places=[CPU], view=Listener()) == runner.Outcome(0, False, ())


def test_a_run_trained_on_other_images_is_not_recorded_as_on_these(tmp_path, monkeypatch):
    (task,), store, view = made_tasks(tmp_path, cells=1, seeds=1), Store(tmp_path / "results"), Listener()
    with monkeypatch.context() as patch, crashed():
        patch.setattr(Store, "write", lambda *arguments: (_ for _ in ()).throw(Crash))
        Worker(store, CPU, None, view).consider(task)
    write_npz(tmp_path / "data.npz", y_test=np.zeros(30, dtype=int))
    Worker(store, CPU, None, view).consider(task)
    assert "is not what" in view.events[-1].text
    assert not store.has(task)


def test_a_place_for_the_record_is_made_sure_of_before_training(tmp_path):
    wanted, view = made_tasks(tmp_path, cells=1, seeds=2), Listener()
    (tmp_path / "results").mkdir()
    (tmp_path / "results/runs").touch()
    outcome = runner.run(wanted, Store(tmp_path / "results"), places=[CPU], view=view)
    (sentence,) = outcome.failures
    assert "results/runs/made-up/temporal cannot be written to" in sentence
    assert not view.of("started")


# Sharing a device


def test_the_later_run_on_a_device_leaves_a_mark_for_both(tmp_path):
    marks = [tmp_path / name for name in "abc"]
    with present("0", marks[0]), present("1", marks[1]):
        assert not any(mark.exists() for mark in marks)
        with present("0", marks[2]):
            pass
    assert [mark.exists() for mark in marks] == [True, False, True]
    marks[0].unlink()
    with present("0", marks[0]):
        assert not marks[0].exists()


def hold(folder):
    tempfile.tempdir = str(folder)  # as the test has it, and not the server that forks the process
    with present("0", folder / "theirs"):
        (folder / "held").touch()
        time.sleep(60)


def test_a_killed_run_is_no_longer_there(tmp_path):
    process = child(tmp_path / "out", hold, tmp_path)
    while not (tmp_path / "held").exists() and process.is_alive():
        time.sleep(0.01)
    with present("0", tmp_path / "first"):
        pass
    assert (tmp_path / "first").exists()
    process.kill()
    finish(process)
    with present("0", tmp_path / "second"):
        pass
    assert not (tmp_path / "second").exists()


def test_a_record_says_whether_another_command_shared_the_device_at_any_time(tmp_path):
    (task,), results = made_tasks(tmp_path, cells=1, seeds=1), [Store(tmp_path / name) for name in "abc"]

    class Visited(Worker):
        def epoch(self, record):
            if record["epoch"] == 12:
                Worker(results[1], CPU, None, Listener()).consider(task)
                raise Crash

    with crashed():
        Visited(results[0], CPU, None, Listener()).consider(task)
    for store in (results[0], results[2]):  # the first goes on alone
        Worker(store, CPU, None, Listener()).consider(task)
    assert [store.read([task.cell])[0].shared_device for store in results] == [True, True, False]
    assert not results[0].shared_mark(task).exists()


def test_missing_data_is_one_sentence_before_anything_starts(tmp_path, monkeypatch):
    monkeypatch.setenv("SELFENS_OFFLINE", "1")
    with pytest.raises(DataError, match="downloading is switched off"):
        runner.run([Task(CELLS["svhn/pi-500"], 0)], Store(tmp_path), places=[CPU], view=Listener(), data_dir=tmp_path)


def test_the_stated_commit_wins():
    assert commit() == "abc123"


# What a person sees


@pytest.mark.parametrize("terminal", [True, False])
def test_the_view_tells_how_far_all_runs_are(tmp_path, terminal):
    wanted, text = made_tasks(tmp_path, cells=1, seeds=2, epochs=10), io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=120, color_system=None)
    view = for_console(Tally(wanted, Store(tmp_path)), console)
    with view:
        view.show(Event("started", wanted[0]))
        view.show(Event("epoch", wanted[0], 5, 40.0))
        view.show(Event("warning", wanted[0], text="careful"))
        view.refresh()
        view.show(Event("finished", wanted[0], 10, 12.5))
    shown = text.getvalue()
    assert "0 of 2 runs done, 1 running" in shown
    assert "1 of 2 runs done, 0 running, about 0 s left" in shown
    assert shown.count("warning: careful") == 1
    assert ("●○" in shown) == terminal
    assert ("finished, test error 12.50 %" in shown) == (not terminal)


def test_what_other_commands_have_done_counts(tmp_path, monkeypatch):
    wanted, text = made_tasks(tmp_path, cells=1, seeds=3, epochs=30), io.StringIO()
    store = Store(tmp_path / "results")
    view = for_console(Tally(wanted, store), Console(file=text, width=120))
    with view:
        view.show(Event("started", wanted[0]))
        Worker(store, CPU, None, Listener()).consider(wanted[1])
        monkeypatch.setattr("selfens.experiments.view.READ_EVERY_SECONDS", 0)
        view.refresh()
        view.show(Event("finished", wanted[0], 30, 12.5))
        Worker(store, CPU, None, Listener()).consider(wanted[2])
    assert "(2 of 3 runs done, 0 running, about" in text.getvalue()
    assert text.getvalue().endswith("\n3 of 3 runs done, 0 running\n")


# The report


def test_the_report_on_made_up_records(tmp_path):
    store = Store(tmp_path)
    pi, temporal = CELLS["cifar10/pi-aug-4000"], CELLS["cifar10/temporal-aug-4000"]
    keep(store, *(made_record(pi, seed, 12.4 + 0.2 * seed, seconds_per_epoch=2.0) for seed in range(3)))
    keep(store, *(made_record(temporal, seed, 12.0 + 0.1 * seed) for seed in range(2)))
    keep(store, made_record(temporal, 2, 13.9, shared_device=True, seconds_per_epoch=9.0))
    keep(store, made_record(CELLS["cifar10/pi-aug-all"], 0, 9.0))
    for level, error in ((0, 3.0), (80, 8.0)):
        keep(store, made_record(CELLS[f"noise/temporal-{level}"], 0, error))
    paths = write_report(store)
    assert [path.name for path in paths] == ["README.md", "report.html", "label-noise.svg"]
    text = paths[0].read_text()
    assert "| Π-model with augmentation | 4000 | 12.60 ± 0.20 | 3 | 12.36 ± 0.31 | 10 | +0.24 | yes | yes |" in text
    assert "| Π-model with augmentation | All (50000) | 9.00 | 1 | 5.56 ± 0.10 | 4 | +3.44 | no | no |" in text
    assert "| Supervised-only | 4000 | not run |  | 35.56 ± 1.59 | 10 |" in text
    paired = (
        "| 4000 | Π-model with augmentation | Temporal ensembling with augmentation | -0.07 ± 0.90 | 3 | +0.20 | yes |"
    )
    assert paired in text
    assert "2.00 times (2.000 s against 1.000 s per epoch, GPU, bf16, torch 2)" in text
    figure, claims = text.index("](label-noise.svg)"), text.index("### What the paper says of the figure")
    assert figure < claims < text.index("| over 90 % | 92.00 %, n = 1 |") < text.index("## Claims in the paper's text")
    assert "| over 90 % | 92.00 %, n = 1 |" in text
    assert "needs extra unlabeled images (--extra)" in text
    assert "CatGAN" in text
    assert "about a third of its training and test images" in text
    page = paths[1].read_text()
    assert page.count("<svg") == 1
    assert "://" not in page.replace("http://www.w3.org", "")
    assert "<td>12.60\u00a0±\u00a00.20</td>" in page  # not broken over two lines
    assert paths[2].read_text().startswith("<svg")
    again = [path.read_bytes() for path in write_report(store)]
    assert again == [path.read_bytes() for path in paths]


def test_the_report_without_records_says_so(tmp_path):
    text = write_report(Store(tmp_path))[0].read_text()
    assert "No run has been recorded yet." in text
    assert "The curves appear here" in text


def test_what_is_written_in_a_record_cannot_break_the_page(tmp_path):
    store = Store(tmp_path)
    keep(store, made_record(CELLS["cifar10/pi-4000"], 0, note="<script>|x\n## Title"))
    readme, page = write_report(store)
    assert "<script>\\|x ## Title |" in readme.read_text()
    assert "<script>" not in page.read_text()


def test_what_diverged_is_counted_apart(tmp_path):
    store, cell = Store(tmp_path), CELLS["cifar10/pi-4000"]
    keep(store, made_record(cell, 0, 16.0), made_record(cell, 1, 17.0), made_record(cell, 2, final_error=None))
    keep(store, made_record(CELLS["cifar10/pi-all"], 0, final_error=None))
    text = write_report(store)[0].read_text()
    assert (
        "| Π-model | 4000 | 16.50 ± 0.71, 1 diverged | 2 | 16.55 ± 0.29 | 10 | -0.05 | yes, of those that ended |"
        in text
    )
    assert "| Π-model | All (50000) | 1 diverged |  | 6.90 ± 0.07 | 4 |  |  |  |" in text


def test_the_list_says_what_diverged_and_cuts_no_figure_off(tmp_path, command):
    cell = CELLS["cifar10/pi-4000"]
    keep(Store(tmp_path), made_record(cell, 0, 16.0), made_record(cell, 1, final_error=None))
    keep(Store(tmp_path), *(made_record(CELLS["cifar10/pi-aug-4000"], seed, 12.0 + seed / 100) for seed in range(25)))
    lines = command("--results", tmp_path).output.splitlines()
    (line,) = [line for line in lines if "pi-4000 " in line]
    assert " ".join(line.split()) == "pi-4000 2 of 10 16.00, 1 diverged 16.55 ± 0.29"
    (line,) = [line for line in lines if "pi-aug-4000 " in line]
    assert " ".join(line.split()) == "pi-aug-4000 10 of 10 and 15 more 12.12 ± 0.07 12.36 ± 0.31"


def test_the_accuracy_of_a_claim_has_a_deviation_and_says_what_diverged():
    (claim,) = [claim for claim in CLAIMS if claim.measure == "accuracy"]
    cell = CELLS[claim.cell]
    records = [made_record(cell, 0, 8.0), made_record(cell, 1, 10.0), made_record(cell, 2, final_error=None)]
    assert measured(claim, summarize(CELLS.values(), records)) == "91.00 ± 1.41 %, n = 2; 1 diverged"


@pytest.mark.parametrize(("key", "error"), [("temporal-aug-4000", 12.40), ("pi-aug-all", 5.66), ("pi-4000", 16.84)])
def test_an_error_one_deviation_away_is_within_it(key, error):
    cell = CELLS[f"cifar10/{key}"]
    assert Summary(cell, (made_record(cell, 0, error),)).within_joint
    twice = round(cell.mean + 2 * cell.deviation, 2)
    assert Summary(cell, (made_record(cell, 0, twice),)).within_two
    assert not Summary(cell, (made_record(cell, 0, twice + 0.01),)).within_two


def test_runs_on_different_files_are_pointed_out(tmp_path):
    cell = CELLS["cifar10/pi-4000"]
    keep(Store(tmp_path), made_record(cell, 0), made_record(cell, 1))
    assert "different versions" not in write_report(Store(tmp_path))[0].read_text()
    keep(Store(tmp_path), made_record(cell, 2, data="e"))
    assert "The runs on cifar10 were trained on 2 different versions" in write_report(Store(tmp_path))[0].read_text()


def test_all_records_that_are_damaged_are_named_at_once(tmp_path):
    cells = [CELLS["cifar10/pi-4000"], CELLS["svhn/pi-500"]]
    keep(Store(tmp_path), *(made_record(cell, 0) for cell in cells))
    for cell in cells:
        Store(tmp_path).record_path(Task(cell, 0)).write_text("{")
    with pytest.raises(RunError, match=r"cifar10/pi-4000/seed000.json is damaged.*svhn/pi-500/seed000.json is damaged"):
        Store(tmp_path).read(CELLS.values())


@pytest.mark.parametrize("name", ["README.md", "report.html", "label-noise.svg"])
@pytest.mark.parametrize("with_records", [False, True])
def test_a_page_of_somebody_else_is_not_written_over(tmp_path, name, with_records):
    if with_records:
        keep(Store(tmp_path), made_record(CELLS["noise/temporal-80"], 0))
    (tmp_path / name).write_text("# Mine\nToday I ran selfens reproduce --report.\n")
    with pytest.raises(RunError, match=f"{name} is there already and not a report of ours"):
        write_report(Store(tmp_path))
    assert (tmp_path / name).read_text().startswith("# Mine\n")
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == [name]


def test_a_folder_in_the_place_of_a_page_is_refused_before_anything_is_trained(tmp_path, command):
    (tmp_path / "quick/README.md").mkdir(parents=True)
    done = command("noise", "--quick", "--report", "--results", tmp_path)
    assert isinstance(done.exception, RunError)
    assert "README.md is there already" in str(done.exception)
    assert not (tmp_path / "quick/runs").exists()


def test_a_report_is_written_again_over_itself(tmp_path):
    keep(Store(tmp_path), made_record(CELLS["noise/temporal-80"], 0))
    first = {path: path.read_bytes() for path in write_report(Store(tmp_path))}
    assert len(first) == 3
    assert {path: path.read_bytes() for path in write_report(Store(tmp_path))} == first


def test_what_people_note_of_their_records_stands_in_the_report(tmp_path):
    (tmp_path / "notes.md").write_text("Made on a\nlaptop <at home>.\n\nTwice.\n")
    page, text = (path.read_text() for path in reversed(write_report(Store(tmp_path))))
    assert "\nMade on a laptop <at home>.\n\nTwice.\n" in text
    assert "<p>Made on a laptop &lt;at home&gt;.</p>" in page


@pytest.mark.parametrize("place", ["cifar10/pi-5000/seed000.json", "foo/seed000.json", "svhn/pi-500/seed003.JSON"])
def test_a_record_in_no_cells_place_is_named(tmp_path, command, place):
    keep(Store(tmp_path), made_record(CELLS["svhn/pi-500"], 0))
    assert "warning" not in command("--results", tmp_path).output
    path = tmp_path / "runs" / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{}")
    assert f"warning: {path} is not where the records of any cell are" in command("--results", tmp_path).output


def test_a_figure_that_has_no_records_any_more_is_removed(tmp_path):
    store = Store(tmp_path)
    keep(store, made_record(CELLS["noise/temporal-80"], 0))
    assert len(write_report(store)) == 3
    store.record_path(Task(CELLS["noise/temporal-80"], 0)).unlink()
    assert len(write_report(store)) == 2
    assert not (tmp_path / "label-noise.svg").exists()


@pytest.mark.parametrize(
    ("images", "verdict"),
    [(TINY, "no"), (TINY | {"rows": 400_000}, "other images"), (NATURAL, "other images")],
)
def test_a_verdict_is_given_on_the_papers_own_images_alone(tmp_path, images, verdict):
    keep(Store(tmp_path), made_record(RANDOM, 0, 24.35, extra=images))
    text = write_report(Store(tmp_path))[0].read_text()
    assert f"| Random 500k | 24.35 | 1 | 23.62 ± 0.23 | 10 | +0.73 | {verdict} | {verdict} |" in text


@pytest.mark.parametrize("images", [TINY, NATURAL])
def test_methods_are_compared_on_the_same_extra_images(images):
    pi = CELLS["tiny/pi-aug-random"]
    records = [made_record(pi, 0, 25.0, extra=images), made_record(RANDOM, 0, 24.0, extra=NATURAL)]
    pairs = summary.pairs(TABLES["tiny"], summarize(CELLS.values(), records))
    assert [pair.differences for pair in pairs] == ([[1.0]] if images == NATURAL else [])


def test_a_claim_on_other_images_says_so():
    (claim,) = [claim for claim in CLAIMS if claim.paper == "2.7 points"]
    without, seeds = CELLS["cifar100/temporal-aug-all"], (0, 1)
    for images, remark in ((TINY, ""), (NATURAL, "; with 120,000 images of natural.npy, not the paper's")):
        records = [made_record(without, seed, 26.3) for seed in seeds]
        records += [made_record(RANDOM, seed, 23.8, extra=images) for seed in seeds]
        assert measured(claim, summarize(CELLS.values(), records)) == f"+2.50 ± 0.00 points, n = 2{remark}"


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, "2.00 times (2.000 s against 1.000 s per epoch, GPU, bf16, torch 2)"),
        ({"precision": "tf32"}, "not run on the same device with the same precision and torch"),
        ({"device": "CPU"}, "not run on the same device with the same precision and torch"),
        ({"torch": "1"}, "not run on the same device with the same precision and torch"),
    ],
)
def test_speeds_are_compared_of_one_device_and_precision(environment, expected):
    (claim,) = [claim for claim in CLAIMS if claim.measure == "slowdown"]
    pi, temporal = CELLS[claim.cell], CELLS[claim.other]
    usual = {"device": "GPU", "precision": "bf16", "torch": "2"}
    elsewhere = made_record(temporal, 1, seconds_per_epoch=7.0, environment=usual | {"device": "Other"})
    here = made_record(temporal, 0, environment=usual | environment)
    records = [made_record(pi, 0, seconds_per_epoch=2.0), here, elsewhere]
    assert measured(claim, summarize(CELLS.values(), records)) == expected


def test_the_report_says_what_differs_from_the_authors_code(tmp_path):
    readme, page = (path.read_text() for path in write_report(Store(tmp_path)))
    for text in (readme, page):
        assert "fits its figures" not in text
        assert "does not scale it by M/N here" in text
        assert "compares it with zeros" in text
        assert "replaced what was not a number by zero and went on" in " ".join(text.split())
    assert "(`method.unseen_rows=skip`)" in readme
    assert "(<code>method.unseen_rows=skip</code>)" in page
    assert "`" not in page


def test_a_column_is_called_what_it_holds(tmp_path):
    text = write_report(Store(tmp_path))[0].read_text()
    for title, first in (("labels", "4000"), ("extra images", "Random 500k"), ("random labels", "20 %")):
        assert f"| method | {title} |" in text
        assert f" | {first} |" in text
    assert "| Restricted 237k | needs extra unlabeled images (--extra, --extra-index) |" in text


def test_a_claim_says_which_seeds_it_lacks():
    independent, shared = CELLS["claims/pi-aug-4000-independent-flips"], CELLS["cifar10/pi-aug-4000"]
    summaries = summarize(CELLS.values(), [made_record(independent, 0), made_record(shared, 1)])
    assert measured(CLAIMS[0], summaries) == "not run with the same seeds"
    summaries = summarize(CELLS.values(), [made_record(independent, 0, 12.9), made_record(shared, 0, 12.4)])
    assert measured(CLAIMS[0], summaries) == "+0.50 points, n = 1"
    assert measured(CLAIMS[1], summaries) == "not run: claims/pi-aug-4000-cross-entropy"


# The command


@pytest.fixture
def command():
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(reproduce)
    return lambda *words: CliRunner().invoke(app, [str(word) for word in words], terminal_width=120)


def test_without_arguments_the_tables_are_listed_with_how_full_they_are(tmp_path, command):
    keep(Store(tmp_path), made_record(CELLS["svhn/temporal-aug-500"], 0, 5.0))
    text = command("--results", tmp_path).output
    assert all(f"{name}: " in text for name in TABLES)
    assert "svhn: SVHN; 1 of 120 runs" in text
    assert f"selfens reproduce svhn --results {tmp_path}\n" in text
    assert f"selfens reproduce tiny --extra tiny_images.bin --extra-index tiny_index.pkl --results {tmp_path}\n" in text


def test_the_list_counts_runs_beyond_the_papers_apart(tmp_path, command):
    keep(Store(tmp_path), *(made_record(CELLS["svhn/pi-all"], seed, 2.8) for seed in range(5)))
    text = command("--results", tmp_path).output
    assert "svhn: SVHN; 4 of 120 and 1 more runs" in text
    assert "4 of 4 and 1 more" in text
    quick_text = command("--quick", "--results", tmp_path).output
    assert "svhn: SVHN; 0 of 30 runs" in quick_text
    assert f"selfens reproduce tiny --quick --results {tmp_path}\n" in quick_text


def test_the_help_names_all_tables(command):
    text = " ".join(command("--help").output.replace("│", " ").split())
    assert ", ".join(TABLES).replace(", claims", " or claims") in text


@pytest.fixture
def small_cifar100(monkeypatch):
    pixels = np.zeros((20, 3, 32, 32), dtype=np.uint8)
    small = Dataset.from_arrays(pixels, np.arange(20) % 2, pixels, np.arange(20) % 2, layout="NCHW")
    monkeypatch.setattr("selfens.data.sources.load", lambda *arguments, **options: small)
    monkeypatch.setitem(runner.OFFICIAL_ROWS, "cifar100", (20, 20))


@pytest.mark.parametrize(
    ("name", "rows", "seeds", "sentence"),
    [
        ("natural.npy", 70, "0", None),
        (
            "natural.npy",
            71,
            "0",
            "with 70 images of natural.npy, not with 71 images of natural.npy; use --results ANOTHER",
        ),
        ("other.npy", 70, "0", "with 70 images of natural.npy, not with images of other.npy; use --results ANOTHER"),
        ("other.npy", 70, "1", "seed000.json was trained with 70 images of natural.npy"),
    ],
)
def test_a_run_is_done_for_its_own_extra_images_alone(tmp_path, command, small_cifar100, name, rows, seeds, sentence):
    keep(Store(tmp_path), made_record(RANDOM, 0, extra=NATURAL | {"rows": 70}))
    np.save(tmp_path / name, np.zeros((rows, 3, 32, 32), dtype=np.uint8))
    words = ("tiny", "--cells", RANDOM.name, "--seeds", seeds, "--extra", tmp_path / name, "--devices", "cpu")
    result = command(*words, "--results", tmp_path)
    if sentence is None:
        assert "all runs asked for are done." in result.output
    else:
        assert type(result.exception) is RunError
        assert sentence in str(result.exception)


@pytest.mark.parametrize(
    ("time_is_up", "trained", "reason"),
    [
        (True, True, "the time is up"),
        (True, False, "the time was up before an epoch was trained; if that happens again, give --max-minutes more"),
        (False, False, "another process has the rest"),
    ],
)
def test_the_last_line_says_why_runs_are_missing(capsys, time_is_up, trained, reason):
    _finish(runner.Outcome(2, False, (), time_is_up, trained), Console(width=200), reported=False)
    assert capsys.readouterr().out == f"{reason}; 2 runs are missing. Call again to go on.\n"


def test_results_that_cannot_be_written_are_one_sentence(tmp_path, command):
    (tmp_path / "file").touch()
    for place in (tmp_path / "file/below", "/proc/nowhere"):
        result = command("--report", "--results", place)
        assert type(result.exception) is RunError
        assert f"{place} cannot be written to" in str(result.exception)


@pytest.mark.parametrize(
    ("words", "error", "sentence"),
    [
        (["cifar"], ConfigError, "there is no table 'cifar'"),
        (["cifar10", "--cells", "pi-4001"], ConfigError, "there is no cifar10 cell 'pi-4001'"),
        (["cifar10", "--seeds", "x"], ConfigError, "--seeds is 'x'"),
        (["cifar10", "--max-minutes", "0"], ConfigError, "--max-minutes is 0"),
        (["--seeds", "0"], ConfigError, "--seeds was given without a table"),
        (["tiny"], ConfigError, "needs extra unlabeled images"),
        (["tiny", "--quick", "--extra", "x.npy"], ConfigError, "--extra was given with --quick"),
        (["tiny", "--extra-index", "x.pkl"], ConfigError, "--extra-index was given without --extra"),
        (["--extra", "x.npy"], ConfigError, "--extra was given without a table"),
        (["--extra-index", "x.pkl"], ConfigError, "--extra-index was given without a table"),
        (["svhn", "--extra", "x.npy"], ConfigError, "table svhn has no cell with extra images"),
    ],
)
def test_a_mistake_is_one_sentence(tmp_path, command, words, error, sentence):
    result = command(*words, "--results", tmp_path)
    assert type(result.exception) is error
    assert sentence in str(result.exception)


def test_results_that_are_a_file_are_refused(tmp_path, command):
    (tmp_path / "file").touch()
    result = command("--results", tmp_path / "file")
    assert type(result.exception) is ConfigError
    assert "which is a file; expected a folder" in str(result.exception)


def test_quick_runs_of_the_cells_with_extra_images_have_made_up_ones(tmp_path, command):
    result = command("tiny", "--quick", "--seeds", "0", "--cells", "temporal-aug-restricted", "--results", tmp_path)
    assert result.exit_code == 0, result.output
    (record,) = Store(tmp_path, quick=True).read([CELLS["tiny/temporal-aug-restricted"]])
    assert record.extra == {"source": "made-up images", "rows": quick.EXTRA_ROWS}
    assert record.config.data.extra_per_epoch == quick.ROWS


def test_quick_from_the_command_to_the_report(tmp_path, command):
    result = command("noise", "--quick", "--seeds", "0", "--results", tmp_path, "--report")
    assert result.exit_code == 0, result.output
    assert "10 of 10 runs done" in result.output
    assert "all runs asked for are done." in result.output
    assert "no number here means anything" in (tmp_path / "quick/README.md").read_text()
    assert not (tmp_path / "runs").exists()
    store = Store(tmp_path, quick=True)
    records = store.read(CELLS.values())
    assert len(records) == 10
    learned = {record.cell: record.final_error for record in records if record.cell.endswith("-0")}
    assert all(error < 60 for error in learned.values()), learned  # 90 is chance
    again = command("noise", "--quick", "--seeds", "0", "--results", tmp_path)
    assert "started" not in again.output
    assert (tmp_path / "quick/.gitignore").read_text() == "*\n"


@pytest.mark.parametrize(("encoding", "marks"), [("utf-8", "○◐●"), ("latin-1", "-o#"), ("ascii", "-o#")])
def test_the_board_has_marks_that_the_terminal_can_show(tmp_path, encoding, marks):
    console = Console(file=io.TextIOWrapper(io.BytesIO(), encoding=encoding), force_terminal=True)
    board = for_console(Tally(made_tasks(tmp_path), Store(tmp_path)), console)
    assert "".join(board.marks) == marks


def test_files_that_cannot_be_the_papers_are_refused(tmp_path, command):
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    names = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]
    for name in names:
        (folder / name).write_bytes(bytes(3073) * 20)
    (folder / "batches.meta.txt").write_text("\n".join("abcdefghij") + "\n")
    result = command("cifar10", "--data-dir", tmp_path, "--devices", "cpu", "--results", tmp_path / "results")
    assert type(result.exception) is DataError
    assert "cifar10 has 100 training and 20 test images here; the official files" in str(result.exception)
