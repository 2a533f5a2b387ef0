"""The paper's experiments: the cells are the paper's, runs are neither lost nor repeated, and the report says what is there."""

import csv
import doctest
import json
import multiprocessing
import multiprocessing.util
import os
import pickle
import shutil
import signal
import tempfile
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import typer
from support import Crash, child, config, crashed, finish, forking, write_npz
from typer.testing import CliRunner

from selfens import Dataset, load_run, train
from selfens.config import Config
from selfens.errors import ConfigError, DataError, DeviceError, RunError
from selfens.experiments import command as command_module
from selfens.experiments import data, pool, summary, worker
from selfens.experiments.cells import Cell, Task, tasks
from selfens.experiments.command import _finish, choose_cells, parse_seeds, reproduce
from selfens.experiments.data import Source
from selfens.experiments.pool import Outcome, Pool, parse_devices
from selfens.experiments.records import Record, Store
from selfens.experiments.report import write_report
from selfens.experiments.summary import Summary, measured, summarize
from selfens.experiments.tables import BASELINE, CELLS, CLAIMS, NOISE, NOISE_CLAIMS, TABLES
from selfens.experiments.worker import DeviceUse, Place, UnusableError, current_commit, run_cell

FIGURES = Path(__file__).parent / "data" / "paper_tables.csv"
RESULTS = Path(__file__).parents[1] / "results"
CPU = Place("cpu", threads=1)


@pytest.fixture(autouse=True)
def _known_commit(monkeypatch):
    monkeypatch.setenv("SELFENS_COMMIT", "abc123")


@pytest.fixture(autouse=True)
def _own_machine(tmp_path, monkeypatch):
    """Runs elsewhere on this machine, and data of other tests, do not matter here."""
    multiprocessing.util.get_temp_dir()  # where that of all tests is, not in this one's folder
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(pool, "CONTEXT", pool.CONTEXT)  # given back after the test
    data.official.cache_clear()


# The cells


def test_the_cells_are_those_of_the_paper_number_by_number():
    with FIGURES.open() as file:
        paper = {(line["table"], line["row"], line["labels"]): line for line in csv.DictReader(file)}
    again = {cell.key for cell in BASELINE.cells}  # the same figures, compared with other runs
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
    levels = [cell.config.data.label_noise for cell in NOISE.cells]
    assert levels == [0, 20, 50, 80, 90] * 2


def test_the_baseline_of_labelled_rows_has_the_figures_of_the_tables():
    names = [cell.name for cell in BASELINE.cells]
    assert sorted(names) == sorted(
        f"{data}-{row}-{labels}"
        for row in ("supervised", "supervised-aug")
        for data, labels in (("cifar10", 4000), ("svhn", 500), ("svhn", 1000), ("cifar100", 10_000))
    )
    for cell in BASELINE.cells:
        same = CELLS[cell.name.replace("-", "/", 1)]
        assert (cell.row, cell.mean, cell.deviation, cell.runs) == (same.row, same.mean, same.deviation, same.runs)
        assert cell.config.with_values("training", rows="all") == same.config


def test_claims_speak_of_cells_there_are():
    assert {key for claim in (*CLAIMS, *NOISE_CLAIMS) for key in (claim.cell, claim.other) if key} <= CELLS.keys()


def test_cells_with_extra_images_are_run_if_there_are_some():
    stand_in, tiny = Source(extra="natural.npy"), Source(extra="tiny_images.bin", extra_index=Path("tiny_index.pkl"))
    for names in (None, "pi-aug-random"):
        with pytest.raises(ConfigError, match=r"needs extra unlabeled images \(--extra\)"):
            choose_cells(TABLES["tiny"], names, Source())
    assert [cell.extra for cell in choose_cells(TABLES["tiny"], None, stand_in)] == ["random", "random"]
    assert (
        len(choose_cells(TABLES["tiny"], None, tiny))
        == len(choose_cells(TABLES["tiny"], None, Source(quick=True)))
        == 4
    )
    with pytest.raises(ConfigError, match="needs --extra tiny_images.bin and --extra-index"):
        choose_cells(TABLES["tiny"], "pi-aug-restricted", stand_in)


def test_the_cells_with_extra_images_draw_as_many_as_the_paper():
    for cell in TABLES["tiny"].cells:
        assert cell.config.data.extra_per_epoch == 50_000
        assert (cell.config.data.extra, cell.config.data.labels) == (None, None)


def test_seeds_and_order():
    assert parse_seeds("3,0-2, 7") == [0, 1, 2, 3, 7]
    chosen = choose_cells(TABLES["cifar10"], "pi-4000, pi-all, pi-4000", Source())
    wanted = tasks({cell: cell.default_seeds() for cell in chosen})
    assert [(t.cell.name, t.seed) for t in wanted][:3] == [("pi-4000", 0), ("pi-all", 0), ("pi-4000", 1)]
    assert len(wanted) == 14


@pytest.mark.parametrize("text", ["", "a", "1-", "-1", "3-1", "0-5000", "1.5"])
def test_seeds_that_are_none(text):
    with pytest.raises(ConfigError, match="--seeds"):
        parse_seeds(text)


def test_devices():
    assert [place.device for place in parse_devices("cpu,cpu", quick=False)] == ["cpu", "cpu"]
    with pytest.raises(ConfigError, match="devices is 'gpu'"):
        parse_devices("gpu", quick=False)
    with pytest.raises(DeviceError, match="GPU 99 was asked for"):
        parse_devices("99", quick=False)


def test_a_worker_sees_the_gpu_of_its_number_among_those_it_may_see(monkeypatch):
    for allowed, expected in (("", "1"), ("4,7", "7"), ("GPU-a,GPU-b", "GPU-b")):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", allowed)
        worker.see_only(Place("1"))
        assert os.environ["CUDA_VISIBLE_DEVICES"] == expected
        assert DeviceUse("1").path.name == f"selfens-{os.getuid()}-{expected}.lock"


def test_a_quick_cell_keeps_the_method_and_is_small():
    for cell in CELLS.values():
        small = data.shrink(cell.config_for(3))
        assert small.method == cell.config.method
        assert small.seed.base == 3
        assert small.schedule.epochs == data.EPOCHS
        assert (small.data.labels is None) == (cell.config.data.labels is None)


def test_the_examples_hold():
    for module in (summary, command_module):
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
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 3, "new": 1}))
    with pytest.raises(RunError, match="was written by another version of selfens"):
        store.read(CELLS.values())


def test_every_record_of_ours_counts_and_is_left_as_it_is():
    paths = sorted((RESULTS / "runs").rglob("*.json"))
    before = {path: path.read_bytes() for path in paths}
    store = Store(RESULTS)
    assert len(store.read(CELLS.values())) == len(paths) >= 27
    assert store.strays() == []
    assert {path: path.read_bytes() for path in paths} == before


def test_a_record_of_the_first_edition_is_upgraded(tmp_path, monkeypatch):
    store, cell = Store(tmp_path), CELLS["cifar10/pi-4000"]
    keep(store, made_record(cell, 0), made_record(cell, 1))
    path = store.record_path(Task(cell, 0))
    raw = json.loads(path.read_text()) | {"format": 1}
    raw["config"]["method"]["nmae"] = raw["config"]["method"].pop("name")
    path.write_text(json.dumps(raw))
    with pytest.raises(RunError, match="is damaged"):
        store.read([cell])

    def upgrade(config):
        return config | {"method": {"name" if key == "nmae" else key: value for key, value in config["method"].items()}}

    monkeypatch.setattr("selfens.experiments.records.upgrade_config", upgrade)
    assert [record.seed for record in store.read([cell])] == [0, 1]


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


# Runs, on a table of our own


def made_tasks(folder, *, cells=1, seeds=1, epochs=12):
    """Runs of a user's file: real ones, as far as a worker can tell."""
    npz = folder / "data.npz"
    if not npz.exists():
        write_npz(npz)
    names = ("temporal", "pi", "supervised")[:cells]
    settings = {name: config(name, name=str(npz), epochs=epochs) for name in names}
    made = [Cell(table="made-up", name=name, row=name, column="", config=settings[name]) for name in names]
    return tasks({cell: range(seeds) for cell in made})


def do(store, task, commit="abc123"):
    return run_cell(task, CPU, store, Source(), commit)


def outcomes(store, wanted):
    """What must be the same however the runs came about."""
    return {str(task): json.loads(store.record_path(task).read_text())["test_error"] for task in wanted}


def undisturbed(folder, wanted):
    """The outcomes of runs that nothing interrupted."""
    store = Store(folder / "undisturbed")
    for task in wanted:
        do(store, task)
    return outcomes(store, wanted)


@contextmanager
def at_epoch(number, what, store):
    """Calls `what` after an epoch of a training of the store."""
    usual = worker._Watch.epoch

    def epoch(self, record):
        usual(self, record)
        if record["epoch"] == number and self.store is store:
            what()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker._Watch, "epoch", epoch)
        yield


def crash():
    raise Crash


def test_a_run_interrupted_goes_on_from_its_checkpoint(tmp_path, capsys):
    (task,) = made_tasks(tmp_path, epochs=24)
    store = Store(tmp_path / "results")
    with at_epoch(14, crash, store), crashed():
        do(store, task)
    assert store.unfinished_path(task).is_dir()
    assert not store.has(task)
    do(store, task, "def456")
    assert capsys.readouterr().out.splitlines() == [
        "made-up/temporal seed 0: started, 24 epochs",
        "made-up/temporal seed 0: goes on after epoch 10/24",
    ]
    assert outcomes(store, [task]) == undisturbed(tmp_path, [task])
    assert store.read([task.cell])[0].commit == "abc123, then def456"
    assert [path.suffix for path in store.unfinished_path(task).parent.iterdir()] == [".lock"]


def test_a_run_trained_but_not_recorded_is_only_recorded(tmp_path, monkeypatch, capsys):
    (task,), store = made_tasks(tmp_path), Store(tmp_path / "results")
    with monkeypatch.context() as patch, crashed():
        patch.setattr(Store, "write", lambda *arguments: crash())
        do(store, task)
    do(store, task, "def456")
    assert capsys.readouterr().out.count("\n") == 1  # it was started once
    record = store.read([task.cell])[0]
    assert record.commit == "abc123"
    assert record.environment["device_type"] == "cpu"
    assert not record.shared_device


def test_what_a_kill_left_beside_a_record_is_removed(tmp_path):
    (task,), store = made_tasks(tmp_path), Store(tmp_path / "results")
    do(store, task)
    left = store.unfinished_path(task)
    left.mkdir()
    (left / "checkpoint.safetensors").touch()
    assert do(store, task) is None
    assert not left.exists()


def test_a_run_that_another_process_has_is_left_to_it(tmp_path):
    (task,), store = made_tasks(tmp_path), Store(tmp_path / "results")
    with store.claimed(task) as ours:
        assert ours
        assert do(store, task) is None
    assert do(store, task) is not None


def test_an_unfinished_run_of_another_configuration_is_not_continued(tmp_path):
    (task,), store = made_tasks(tmp_path), Store(tmp_path / "results")
    train(task.cell.config.with_values("optimizer", beta2=0.5), store.unfinished_path(task))
    with pytest.raises(UnusableError, match="begun with another configuration"):
        do(store, task)
    assert not store.has(task)


def test_a_diverged_run_is_a_result(tmp_path):
    wild = config("supervised", "optimizer.learning_rate=1e30", name=str(write_npz(tmp_path / "data.npz")))
    task = Task(Cell(table="made-up", name="wild", row="", column="", config=wild), 0)
    store = Store(tmp_path / "results")
    do(store, task)
    record = store.read([task.cell])[0]
    assert record.final_error is None
    assert "stopped being finite" in record.note
    assert Summary(task.cell, (record,)).diverged == 1


@pytest.fixture
def interrupted(tmp_path):
    """A run stopped half-way."""
    (task,), store = made_tasks(tmp_path), Store(tmp_path / "results")
    with at_epoch(10, crash, store), crashed():
        do(store, task)
    return task, store


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
        (begun_on_a_gpu, "it was begun on a GPU and can go on only there"),
    ],
)
def test_a_run_that_cannot_go_on_is_refused_with_a_remedy(interrupted, damage, reason):
    task, store = interrupted
    damage(store.unfinished_path(task))
    with pytest.raises(UnusableError) as refusal:
        do(store, task)
    assert reason in str(refusal.value)
    assert str(refusal.value).endswith(f"remove {store.unfinished_path(task)} to do it again.")
    assert not store.has(task)


def test_a_run_trained_on_other_images_is_not_recorded_as_on_these(tmp_path, monkeypatch):
    (task,), store = made_tasks(tmp_path), Store(tmp_path / "results")
    with monkeypatch.context() as patch, crashed():
        patch.setattr(Store, "write", lambda *arguments: crash())
        do(store, task)
    write_npz(tmp_path / "data.npz", y_test=np.zeros(30, dtype=int))
    data.official.cache_clear()
    with pytest.raises(UnusableError, match="is not what"):
        do(store, task)
    assert not store.has(task)


def test_the_stated_commit_wins():
    assert current_commit() == "abc123"


def test_a_warning_is_said_once(tmp_path, capsys):
    for task in made_tasks(tmp_path, seeds=2):
        worker._Watch(task, Store(tmp_path), DeviceUse("cpu"), None).warn(f"careful in {tmp_path}")
    assert capsys.readouterr().out == f"made-up/temporal seed 0: warning: careful in {tmp_path}\n"


# Sharing a device


def test_runs_on_one_device_know_of_each_other():
    with DeviceUse("0") as first, DeviceUse("1") as elsewhere:
        assert not first.is_shared()
        with DeviceUse("0") as second:
            assert second.is_shared()
        with DeviceUse("0") as third:
            pass
        assert (first.is_shared(), second.is_shared(), third.is_shared()) == (True, True, True)
        assert not elsewhere.is_shared()
    with DeviceUse("0") as alone:
        assert not alone.is_shared()


def hold(folder):
    tempfile.tempdir = str(folder)  # as the test has it, and not the server that forks the process
    with DeviceUse("0"):
        (folder / "held").touch()
        time.sleep(60)


def test_a_killed_run_is_no_longer_there(tmp_path):
    process = child(tmp_path / "out", hold, tmp_path)
    while not (tmp_path / "held").exists() and process.is_alive():
        time.sleep(0.01)
    with DeviceUse("0") as use:
        assert use.is_shared()
    process.kill()
    finish(process)
    with DeviceUse("0") as use:
        assert not use.is_shared()


def test_a_device_file_that_cannot_be_used_does_not_stop_a_run(tmp_path):
    DeviceUse("0").path.symlink_to(tmp_path / "mine")
    with DeviceUse("0") as use:
        assert not use.is_shared()
    assert not (tmp_path / "mine").exists()


def test_a_record_says_whether_another_command_shared_the_device_at_any_time(tmp_path):
    (task,), results = made_tasks(tmp_path), [Store(tmp_path / name) for name in "abc"]

    def visit():
        do(results[1], task)

    with at_epoch(4, visit, results[0]), at_epoch(10, crash, results[0]), crashed():
        do(results[0], task)
    for store in (results[0], results[2]):  # the first goes on alone
        do(store, task)
    assert [store.read([task.cell])[0].shared_device for store in results] == [True, True, False]


# The pool


def run_pool(folder, wanted, *, places=(CPU,), say=None, context=None, **limits):
    pool.CONTEXT = context or forking()  # workers that start in milliseconds
    return Pool(Store(folder), Source(), places, say or (lambda text: None)).run(wanted, **limits)


def run_in_child(folder, wanted, context):
    lines = []
    outcome = run_pool(folder, wanted, say=lines.append, context=context)
    print(json.dumps([lines, outcome.missing, outcome.stopped]))


def said(path):
    """What `run_in_child` printed last; the lines of its workers come before."""
    return json.loads(path.read_text().splitlines()[-1])


def finished(lines):
    return [line.partition(":")[0] for line in lines if ": finished, test error" in line]


def until(condition, process=None, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition() and (process is None or process.is_alive()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def epochs_done(store, task):
    history = store.unfinished_path(task) / "history.jsonl"
    return history.read_text().count("\n") if history.exists() else 0


def is_free(store, task):
    with store.claimed(task) as ours:
        return ours


def test_a_killed_command_is_continued_without_repeating_or_losing_a_run(tmp_path):
    wanted = made_tasks(tmp_path, seeds=4, epochs=40)
    store = Store(tmp_path / "results")
    process = child(tmp_path / "out", run_in_child, tmp_path / "results", wanted, pool.CONTEXT)
    until(lambda: any(store.has(task) for task in wanted), process)
    process.kill()
    assert finish(process) == -signal.SIGKILL
    for task in wanted:  # the worker stops by itself when its command is gone
        until(lambda task=task: is_free(store, task))
    before = {task: store.record_path(task).read_bytes() for task in wanted if store.has(task)}
    assert 0 < len(before) < len(wanted)
    both = [child(tmp_path / f"out{n}", run_in_child, tmp_path / "results", wanted, None) for n in range(2)]
    assert [finish(process) for process in both] == [0, 0]  # two commands share what is missing
    done = [name for n in range(2) for name in finished(said(tmp_path / f"out{n}")[0])]
    assert sorted(done) == sorted(str(task) for task in wanted if task not in before)
    assert all(store.record_path(task).read_bytes() == content for task, content in before.items())
    assert outcomes(store, wanted) == undisturbed(tmp_path, wanted)


def test_ctrl_c_stops_at_a_checkpoint(tmp_path):
    (task,) = made_tasks(tmp_path, epochs=5000)
    store = Store(tmp_path / "results")
    process = child(tmp_path / "out", run_in_child, tmp_path / "results", [task], None)
    until(lambda: epochs_done(store, task) > 12, process)
    os.kill(process.pid, signal.SIGINT)
    assert finish(process) == 0
    assert said(tmp_path / "out") == [[], 1, True]
    epoch, _ = load_run(store.unfinished_path(task)).directory.reached()
    assert epoch > 10


def test_when_the_time_is_up_the_run_stops_at_a_checkpoint(tmp_path, monkeypatch):
    (task,), store = made_tasks(tmp_path, epochs=5000), Store(tmp_path / "results")

    class Clock:
        monotonic = staticmethod(lambda: 1e9 if epochs_done(store, task) > 12 else 0.0)

    monkeypatch.setattr(pool, "time", Clock)
    assert run_pool(tmp_path / "results", [task], deadline=60) == Outcome(1, time_is_up=True)
    epoch, _ = load_run(store.unfinished_path(task)).directory.reached()
    assert epoch > 10


def test_when_a_worker_is_killed_the_others_take_its_run_over(tmp_path):
    wanted, lines = made_tasks(tmp_path, cells=2, epochs=100), []
    store, others = Store(tmp_path / "results"), set(multiprocessing.active_children())  # left by other tests
    results = []
    places = [CPU, CPU]
    thread = threading.Thread(
        target=lambda: results.append(run_pool(tmp_path / "results", wanted, places=places, say=lines.append))
    )
    thread.start()
    until(lambda: all(epochs_done(store, task) for task in wanted))
    os.kill((set(multiprocessing.active_children()) - others).pop().pid, signal.SIGKILL)
    thread.join(60)
    assert results == [Outcome(0)]
    assert "warning: the worker on cpu ended unexpectedly (code -9); call again to go on." in lines
    assert sorted(finished(lines)) == sorted(map(str, wanted))


def test_when_nobody_reads_its_output_the_pool_stops(tmp_path):
    wanted, others = made_tasks(tmp_path, seeds=2), set(multiprocessing.active_children())

    def say(text):
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        run_pool(tmp_path / "results", wanted, say=say)
    assert set(multiprocessing.active_children()) <= others
    assert [Store(tmp_path / "results").has(task) for task in wanted] == [True, False]


def test_when_nobody_reads_its_output_a_worker_stops_at_a_checkpoint(tmp_path, monkeypatch):
    (task,), store = made_tasks(tmp_path, epochs=24), Store(tmp_path / "results")

    class Gone:
        def write(self, text):
            if "started" not in text:
                raise BrokenPipeError

        def flush(self):
            pass

    monkeypatch.setattr(worker, "LINE_EVERY_SECONDS", 0)
    monkeypatch.setattr("sys.stdout", Gone())
    with pytest.raises(KeyboardInterrupt):
        do(store, task)
    assert load_run(store.unfinished_path(task)).directory.has_checkpoint()


def test_a_run_that_cannot_go_on_does_not_stop_the_others(tmp_path):
    wanted, lines = made_tasks(tmp_path, seeds=2), []
    store = Store(tmp_path / "results")
    train(wanted[0].cell.config.with_values("optimizer", beta2=0.5), store.unfinished_path(wanted[0]))
    outcome = run_pool(tmp_path / "results", wanted, say=lines.append)
    (sentence,) = outcome.failures
    assert "begun with another configuration" in sentence
    assert f"left out: {sentence}" in lines
    assert (store.has(wanted[0]), store.has(wanted[1]), outcome.missing) == (False, True, 1)


def test_there_is_a_place_for_the_record_before_anything_is_trained(tmp_path):
    wanted = made_tasks(tmp_path, seeds=2)
    (tmp_path / "results").mkdir()
    (tmp_path / "results/runs").touch()
    (sentence,) = run_pool(tmp_path / "results", wanted).failures
    assert "results/runs/made-up/temporal cannot be written to" in sentence


def test_missing_data_is_one_sentence_before_anything_starts(tmp_path, monkeypatch):
    monkeypatch.setenv("SELFENS_OFFLINE", "1")
    with pytest.raises(DataError, match="downloading is switched off"):
        pool.check_data([Task(CELLS["svhn/pi-500"], 0)], Store(tmp_path), Source(data_dir=tmp_path))


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
    assert "needs extra images" in text
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
    (claim,) = [claim for claim in NOISE_CLAIMS if claim.measure == "accuracy"]
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
    with pytest.raises(RunError, match=f"{name} exists and is not a report of ours"):
        write_report(Store(tmp_path))
    assert (tmp_path / name).read_text().startswith("# Mine\n")
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == [name]


def test_a_folder_in_the_place_of_a_page_is_refused_before_anything_is_trained(tmp_path, command):
    (tmp_path / "quick/README.md").mkdir(parents=True)
    done = command("noise", "--quick", "--report", "--results", tmp_path)
    assert isinstance(done.exception, RunError)
    assert "README.md exists" in str(done.exception)
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
    assert f"warning: {path} is not in the place of any cell's record" in command("--results", tmp_path).output


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
        assert "replaced NaN by zero and went on" in " ".join(text.split())
    assert "(`method.unseen_rows=skip`)" in readme
    assert "(<code>method.unseen_rows=skip</code>)" in page
    assert "`" not in page


def test_a_column_is_called_what_it_holds(tmp_path):
    text = write_report(Store(tmp_path))[0].read_text()
    for title, first in (("labels", "4000"), ("extra images", "Random 500k"), ("random labels", "20 %")):
        assert f"| method | {title} |" in text
        assert f" | {first} |" in text
    assert "| Restricted 237k | needs extra images |" in text


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
    monkeypatch.setitem(data.OFFICIAL_ROWS, "cifar100", (20, 20))


@pytest.mark.parametrize(
    ("name", "rows", "seeds", "sentence"),
    [
        ("natural.npy", 70, "0", None),
        (
            "natural.npy",
            71,
            "0",
            "with 70 images of natural.npy, not with 71 images of natural.npy; use another results folder",
        ),
        (
            "other.npy",
            70,
            "0",
            "with 70 images of natural.npy, not with images of other.npy; use another results folder",
        ),
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
    ("outcome", "code", "reason"),
    [
        (Outcome(2, time_is_up=True), 3, "the time is up"),
        (Outcome(2), 3, "another process is doing the rest"),
        (Outcome(2, stopped=True), 130, "stopped"),
    ],
)
def test_the_last_line_and_the_exit_code_say_that_runs_are_missing(capsys, outcome, code, reason):
    with pytest.raises(typer.Exit) as end:
        _finish(outcome, reported=False)
    assert end.value.exit_code == code
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
    assert record.extra == {"source": "made-up images", "rows": data.EXTRA_ROWS}
    assert record.config.data.extra_per_epoch == data.ROWS


def test_quick_from_the_command_to_the_report(tmp_path, command):
    words = ("noise", "--quick", "--seeds", "0", "--cells", "supervised-0,temporal-0", "--results", tmp_path)
    result = command(*words, "--report")
    assert result.exit_code == 0, result.output
    assert "2 of 2 runs done" in result.output
    assert "all runs asked for are done." in result.output
    assert "no number here means anything" in (tmp_path / "quick/README.md").read_text()
    assert not (tmp_path / "runs").exists()
    store = Store(tmp_path, quick=True)
    records = store.read(CELLS.values())
    learned = {record.cell: record.final_error for record in records}
    assert len(learned) == 2
    assert all(error < 60 for error in learned.values()), learned  # 90 is chance
    again = command(*words)
    assert "finished" not in again.output
    assert (tmp_path / "quick/.gitignore").read_text() == "*\n"


def test_files_that_cannot_be_the_papers_are_refused(tmp_path, command):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    batch = {b"data": np.zeros((20, 3072), np.uint8), b"labels": [0] * 20}
    for name in [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]:
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))
    (folder / "batches.meta").write_bytes(pickle.dumps({b"label_names": list("abcdefghij")}, protocol=2))
    result = command("cifar10", "--data-dir", tmp_path, "--devices", "cpu", "--results", tmp_path / "results")
    assert type(result.exception) is DataError
    assert "cifar10 has 100 training and 20 test images here; the official files" in str(result.exception)
