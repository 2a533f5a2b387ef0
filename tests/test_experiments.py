"""The paper's experiments: the cells match the paper, runs are neither lost nor repeated, and the report shows the records."""

import csv
import errno
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import typer
from support import child, config, crash, crashed, environment, finish, forking, write_npz
from typer.testing import CliRunner

from selfens import Dataset, load_run, presets
from selfens.config import Config, same_experiment
from selfens.data import official_files
from selfens.data.sources.official import ROWS, Official
from selfens.errors import ConfigError, DataError, RunError
from selfens.experiments import command as command_module
from selfens.experiments import data, pool, worker
from selfens.experiments.command import choose_cells, parse_devices, parse_seeds, reproduce
from selfens.experiments.data import DataLocation
from selfens.experiments.pool import Processes, run_all
from selfens.experiments.records import ExtraImages, Record, Store
from selfens.experiments.report import write_report
from selfens.experiments.tables import BASELINE, CELLS, TABLES, WHITENING, Cell, Task
from selfens.experiments.worker import CellRun, run_cell
from selfens.training import loop

FIGURES = Path(__file__).parent / "data" / "paper_tables.csv"
RESULTS = Path(__file__).parents[1] / "results"
PI = CELLS["cifar10/pi-4000"]
RANDOM = CELLS["tiny/temporal-aug-random"]
NATURAL = ExtraImages(source="natural.npy", rows=120_000)


@pytest.fixture(autouse=True)
def _small_processes(monkeypatch):
    monkeypatch.setattr(pool, "CONTEXT", forking())  # processes that start in milliseconds
    monkeypatch.setenv("SELFENS_COMMIT", "abc123")


@pytest.fixture
def command():
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(reproduce)
    return lambda *words: CliRunner().invoke(app, [str(word) for word in words], terminal_width=120)


# The cells

READINGS = ("baseline", "whitening")
"""Tables that read the paper's supervised rows in another way."""


def test_the_cells_are_those_of_the_paper_number_by_number():
    with FIGURES.open() as file:
        paper = {(line["table"], line["row"], line["labels"]): line for line in csv.DictReader(file)}
    ours = {(c.table, c.row, c.column): c for c in CELLS.values() if c.mean is not None and c.table not in READINGS}
    assert ours.keys() == paper.keys()
    for key, cell in ours.items():
        expected = (float(paper[key]["mean"]), float(paper[key]["deviation"]), int(paper[key]["runs"]))
        assert (cell.mean, cell.deviation, cell.runs) == expected, key


def test_cells_have_the_papers_settings():
    expected = {
        "cifar10/supervised-4000": (4000, "zca", False, 0, 0.003, None),
        "cifar10/pi-all": (None, "zca", False, 0, 0.003, 100),
        "cifar10/temporal-aug-4000": (4000, "zca", True, 2, 0.003, 30),
        "svhn/supervised-aug-1000": (1000, "image", False, 2, 0.003, None),
        "svhn/temporal-aug-500": (500, "image", False, 2, 0.001, 30),
        "cifar100/temporal-aug-10000": (10_000, "zca", True, 2, 0.003, 100),
        "tiny/pi-aug-random": (None, "zca", True, 2, 0.003, 300),
        "tiny/temporal-aug-restricted": (None, "zca", True, 2, 0.003, 1000),
        "noise/temporal-20": (None, "image", False, 2, 0.001, 300),
        "noise/temporal-50": (None, "image", False, 2, 0.001, 3000),
        "noise/supervised-90": (None, "image", False, 2, 0.003, None),
    }
    for key, values in expected.items():
        c = CELLS[key].config
        found = (c.labels.count, c.preprocess.kind, c.views.flip, c.views.translation, c.optimizer.learning_rate)
        assert (*found, getattr(c.method, "weight_max", None)) == values, key
        assert c.method.name in key


def test_what_the_paper_never_changes_is_the_same_in_all_cells():
    for cell in (cell for cell in CELLS.values() if cell.table != "modern"):
        c = cell.config
        assert (c.schedule.epochs, c.schedule.rampup, c.schedule.rampdown) == (300, 80, 50)
        assert (c.network.name, c.network.noise, c.optimizer.beta1, c.optimizer.beta2) == ("conv13", 0.15, 0.9, 0.999)
        assert (c.training.batch_size, getattr(c.method, "decay", 0.6)) == (100, 0.6)
        assert (c.training.rows == "labeled") == (cell.table in READINGS)
        assert (c.preprocess.rows == "labeled") == (cell.table == "whitening")
        assert c.training.evaluate_every == 1
        assert (c.training.unlabeled_per_epoch == 50_000) == (cell.extra is not None)
        assert c.views.shared_flip
        assert getattr(c.method, "consistency", "") != "cross_entropy"
    assert [cell.config.labels.noise for cell in TABLES["noise"].cells] == [0, 20, 50, 80, 90] * 2


def test_cells_of_our_own_are_presets_and_claim_no_figure_of_the_paper():
    cells = TABLES["modern"].cells
    assert len({cell.name for cell in cells}) == len(cells)
    for cell in cells:
        preset = "-".join(cell.name.split("-")[:2])
        assert str(cell.config.labels.count) in cell.name
        same = presets.get(preset).with_values("labels", count=cell.config.labels.count)
        assert cell.config == same.with_values("schedule", epochs=cell.config.schedule.epochs)
        assert (cell.mean, cell.deviation, cell.runs) == (None, None, None)
    assert sum(cell.seeds for cell in cells) == 14


def test_other_readings_of_the_supervised_rows_differ_from_them_in_one_setting():
    assert len(BASELINE.cells) == 8
    for cell in BASELINE.cells:
        same = CELLS[cell.name.replace("-", "/", 1)]
        assert (cell.row, cell.mean, cell.deviation, cell.runs) == (same.row, same.mean, same.deviation, same.runs)
        assert cell.config.with_values("training", rows="all") == same.config
    assert [cell.name for cell in WHITENING.cells] == [c.name for c in BASELINE.cells if c.name.startswith("cifar")]
    for cell in WHITENING.cells:
        same = CELLS[f"baseline/{cell.name}"]
        assert (cell.row, cell.mean, cell.deviation, cell.runs) == (same.row, same.mean, same.deviation, same.runs)
        assert cell.config.with_values("preprocess", rows="all") == same.config
        assert not same_experiment(cell.config, same.config)


def test_cells_with_extra_images_are_run_if_there_are_some():
    table, stand_in = TABLES["tiny"], DataLocation(extra="natural.npy")
    for names in (None, "pi-aug-random"):
        with pytest.raises(ConfigError, match="needs extra unlabeled images; add --extra with"):
            choose_cells(table, names, DataLocation())
    assert [cell.extra for cell in choose_cells(table, None, stand_in)] == ["random", "random"]
    assert len(choose_cells(table, None, DataLocation(quick=True))) == 4
    with pytest.raises(ConfigError, match="needs categories of Tiny Images, which its authors have withdrawn"):
        choose_cells(table, "pi-aug-restricted", stand_in)


@pytest.fixture
def asked(command, tmp_path, monkeypatch):
    """Return the runs that a command would do, without doing them or reading data."""
    monkeypatch.setattr(command_module, "check_data", lambda *arguments: None)

    def ask(*words):
        tasks = []
        monkeypatch.setattr(pool, "run_all", lambda jobs, *others: tasks.extend(job.task for job in jobs) or (0, False))
        command(*words, "--devices", "cpu", "--results", tmp_path / "results")
        return tasks

    return ask


def test_one_seed_of_every_cell_comes_before_the_next_seed_of_any(asked):
    wanted = asked("cifar10", "--cells", "pi-4000, pi-all, pi-4000")
    assert [(t.cell.name, t.seed) for t in wanted][:3] == [("pi-4000", 0), ("pi-all", 0), ("pi-4000", 1)]
    assert len(wanted) == 14
    assert [task.seed for task in asked("whitening")] == [0] * 4 + [1] * 4 + [2] * 4
    assert len(asked("whitening", "--seeds", "0-9")) == 40
    assert parse_seeds("3,0-2, 7") == [0, 1, 2, 3, 7]
    for text in ("", "a", "1-", "-1", "3-1", "0-5000", "1.5"):
        with pytest.raises(ConfigError, match="--seeds"):
            parse_seeds(text)


def test_a_run_sees_the_device_it_was_given_and_no_other(tmp_path, monkeypatch):
    assert parse_devices("cpu,cpu", quick=False) == ["cpu", "cpu"]
    for text in ("gpu", "99"):
        with pytest.raises(ConfigError, match=f"--devices is '{text}'; expected cpu, or numbers .* of the GPUs"):
            parse_devices(text, quick=False)
    monkeypatch.setattr(pool, "CONTEXT", multiprocessing.get_context("fork"))
    monkeypatch.setattr(worker, "run_cell", use_and_tell)
    for allowed, expected in (("", "1"), ("4,7", "7"), ("GPU-a,GPU-b", "GPU-b")):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", allowed)
        run_all([CellRun(Task(PI, 0), DataLocation())], tmp_path / expected, Processes(["1"]), lambda text: None)
        assert (tmp_path / expected / "visible").read_text() == expected


def use_and_tell(task, device, store, location, *, is_shared):
    assert not is_shared
    (store.root / "visible").write_text(os.environ["CUDA_VISIBLE_DEVICES"])


# Records


def made_record(cell, seed, error=10.0, **changes):
    errors = tuple(round(error + 50 * 0.98**epoch, 4) for epoch in range(299)) + (error,)
    usual = Record(
        table=cell.table,
        cell=cell.name,
        seed=seed,
        quick=False,
        config=Task(cell, seed).config,
        labeled_rows=f"{seed:064x}",
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


def reported(store):
    return [path.read_text() for path in write_report(store, list(TABLES.values()))]


def test_every_record_of_ours_counts_and_is_left_as_it_is():
    before = {path: path.read_bytes() for path in (RESULTS / "runs").rglob("*.json")}
    assert len(Store(RESULTS).read(CELLS.values())) == len(before) >= 29
    assert {path: path.read_bytes() for path in (RESULTS / "runs").rglob("*.json")} == before


def test_a_record_comes_back_as_it_was(tmp_path):
    elsewhere = Task(PI, 7).config.with_values("training", device="cuda").with_values("source", folder="/data")
    records = [made_record(PI, 7, config=elsewhere), made_record(RANDOM, 0, extra=NATURAL)]
    keep(Store(tmp_path), *records)
    assert Store(tmp_path).read([PI, RANDOM]) == records
    assert (tmp_path / "runs/cifar10/pi-4000/seed007.json").is_file()


BAD_VALUES = {
    "surplus": [1],
    "config": [None, {"network": {"nmae": "x"}}, {"data": {"name": "cifar10"}}],
    "table": [5],
    "seed": ["0", None, True, -1],
    "quick": ["no"],
    "labeled_rows": [[0] * 64, "abc", "x" * 64],
    "test_error": [5, [], ["x"] * 300, [101.0] * 300],
    "final_error": [1.0, "x"],
    "seconds": [None, -1.0, 10**400],
    "seconds_per_epoch": [float("nan")],
    "shared_device": [1],
    "environment": [None],
    "commit": [5],
    "note": [5, "\ud800"],
    "extra": [5, {"source": "x.npy"}, {"source": "x.npy", "rows": "many"}],
}


def test_a_damaged_record_is_refused_with_its_path(tmp_path):
    keep(Store(tmp_path), made_record(PI, 0))
    path = tmp_path / "runs/cifar10/pi-4000/seed000.json"
    good = json.loads(path.read_text())
    texts = [json.dumps(good | {name: value}) for name, values in BAD_VALUES.items() for value in values]
    for text in [*texts, json.dumps(good)[:500], "[]", json.dumps({"format": 2})]:
        path.write_text(text)
        with pytest.raises(RunError, match=r"seed000.json is not a record \(.+\); move it away"):
            Store(tmp_path).read(CELLS.values())
    path.write_text(json.dumps(good | {"format": 3, "new": 1}))
    with pytest.raises(RunError, match="was written by another version of selfens"):
        Store(tmp_path).read([PI])


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_file_is_neither_waited_for_nor_read(tmp_path, make):
    store, task = Store(tmp_path), Task(PI, 0)
    for path in (store.record_path(task), store.unfinished_path(task).with_suffix(".lock")):
        path.parent.mkdir(parents=True)
        make(path)
    with pytest.raises(RunError, match=r"seed000.json is not a record \(it is not a regular file\)"):
        store.read([PI])
    with pytest.raises(RunError, match="cannot be written to"), store.claimed(task):
        pass


def test_records_are_never_mixed(tmp_path):
    store = Store(tmp_path)
    (small,) = [cell for cell in data.quick(TABLES["cifar10"]).cells if cell.key == PI.key]
    changes = {"config": small.config}, {"config": PI.config.with_values("optimizer", beta2=0.9)}, {"extra": NATURAL}
    for change in changes:
        keep(store, made_record(PI, 0, final_error=None, **change))
        with pytest.raises(RunError, match="different config"):
            store.read([PI])
    os.rename(store.record_path(Task(PI, 0)), store.record_path(Task(PI, 1)))
    with pytest.raises(RunError, match="wrong place"):
        store.read([PI])
    keep(store, made_record(RANDOM, 0, extra=NATURAL), made_record(RANDOM, 1, extra=replace(NATURAL, rows=70)))
    with pytest.raises(RunError, match=r"had 120,000 images of natural.npy and 70 images of .* cannot be averaged"):
        store.read([RANDOM])


# Runs, of a table made up here


def made_tasks(folder, *overrides, seeds=1, epochs=12, method="temporal"):
    """Runs on a user's file, which a worker cannot tell from real ones."""
    settings = config(method, *overrides, name=str(write_npz(folder / "data.npz")), epochs=epochs)
    cell = Cell(table="made-up", name=method, row="", column="", config=settings)
    return [Task(cell, seed) for seed in range(seeds)]


def do(store, task):
    return run_cell(task, "cpu", store, DataLocation())


def outcomes(store, wanted):
    """Return what must be the same however the runs were done."""
    return {str(task): json.loads(store.record_path(task).read_text())["test_error"] for task in wanted}


def undisturbed(folder, wanted):
    """The outcomes of runs that nothing interrupted."""
    store = Store(folder / "undisturbed")
    for task in wanted:
        do(store, task)
    return outcomes(store, wanted)


@contextmanager
def crashed_in_epoch(number):
    """End training in this epoch, counted from 0, before anything is written."""
    genuine = loop.train

    def train(settings, path, *, progress):
        epoch = progress.epoch
        progress.epoch = lambda record: crash() if record["epoch"] == number else epoch(record)
        return genuine(settings, path, progress=progress)

    with pytest.MonkeyPatch.context() as patch, crashed():
        patch.setattr(loop, "train", train)
        yield


def test_a_run_interrupted_goes_on_from_its_checkpoint(tmp_path, capsys, monkeypatch):
    (task,), store = made_tasks(tmp_path), Store(tmp_path / "results")
    with crashed_in_epoch(10):
        do(store, task)
    assert store.unfinished_path(task).is_dir()
    assert not store.has(task)
    monkeypatch.setenv("SELFENS_COMMIT", "def456")
    do(store, task)
    lines = [line.partition(": ")[2].partition(",")[0] for line in capsys.readouterr().out.splitlines()]
    assert lines == ["started", "epoch 10/12", "continues after epoch 10/12", "finished"]
    assert outcomes(store, [task]) == undisturbed(tmp_path, [task])
    (record,) = store.read([task.cell])
    assert record.commit == "abc123, then def456"
    assert (record.environment["device_type"], record.shared_device) == ("cpu", False)
    assert [path.suffix for path in store.unfinished_path(task).parent.iterdir()] == [".lock"]


def test_a_run_trained_but_not_recorded_is_only_recorded(tmp_path, capsys, monkeypatch):
    (task,), store = made_tasks(tmp_path), Store(tmp_path / "results")
    with monkeypatch.context() as patch, crashed():
        patch.setattr(Store, "write", lambda *arguments: crash())
        do(store, task)
    write_npz(tmp_path / "data.npz", y_test=np.zeros(30, dtype=int))
    with pytest.raises(RunError, match="are not what"):
        do(store, task)
    write_npz(tmp_path / "data.npz")
    monkeypatch.setenv("SELFENS_COMMIT", "def456")
    do(store, task)
    assert capsys.readouterr().out.count("started") == 1
    assert store.read([task.cell])[0].commit == "abc123"
    assert do(store, task) is None


def test_a_run_goes_on_if_its_data_were_moved(tmp_path):
    (task,), store = made_tasks(tmp_path), Store(tmp_path / "results")
    expected = undisturbed(tmp_path, [task])
    with crashed_in_epoch(10):
        do(store, task)
    (tmp_path / "data.npz").rename(tmp_path / "moved.npz")
    moved = task.config.with_values("source", path=str(tmp_path / "moved.npz"))
    do(store, Task(replace(task.cell, config=moved), 0))
    assert outcomes(store, [task]) == expected


def test_a_run_that_another_process_has_is_left_to_it(tmp_path):
    (task,), store = made_tasks(tmp_path), Store(tmp_path / "results")
    with store.claimed(task) as ours:
        assert ours
        assert do(store, task) is None
        run_pool(tmp_path / "results", [task])
    assert not store.has(task)


def test_a_diverged_run_is_a_result(tmp_path):
    (task,) = made_tasks(tmp_path, "optimizer.learning_rate=1e30", method="supervised", epochs=3)
    store = Store(tmp_path / "results")
    do(store, task)
    (record,) = store.read([task.cell])
    assert record.final_error is None
    assert "stopped being finite" in record.note


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """A run stopped half-way."""
    folder = tmp_path_factory.mktemp("interrupted")
    (task,), store = made_tasks(folder), Store(folder / "results")
    with crashed_in_epoch(10):
        do(store, task)
    return task, store


def stray_file(path):
    shutil.rmtree(path)
    path.mkdir()
    (path / "mine.txt").touch()


def changed(section, **values):
    def change(path):
        settings = Config.from_dict(json.loads((path / "config.json").read_text())).with_values(section, **values)
        (path / "config.json").write_text(settings.to_json())

    return change


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (stray_file, "run.json cannot be read"),
        (lambda path: (shutil.rmtree(path), path.touch()), "run.json cannot be read"),
        (lambda path: (path / "config.json").write_text("[]"), "config.json"),
        (lambda path: (path / "run.json").write_text("[]"), "run.json is damaged"),
        (lambda path: (path / "checkpoint.safetensors").write_text("x"), "checkpoint.safetensors"),
        (lambda path: (path / "labels.json").write_text("x"), "labels.json is damaged"),
        (lambda path: (path / "history.jsonl").write_text("5\n" * 12), "has 0 epochs in history.jsonl"),
        (changed("training", device="cuda"), "it was started with the device cuda and can continue only there"),
        (changed("optimizer", beta2=0.5), "it was started with a different config"),
        (changed("training", evaluate_every=2), "it was started with a different config"),
    ],
)
def test_a_run_that_cannot_go_on_is_refused_with_a_remedy(tmp_path, interrupted, damage, reason):
    task, store = interrupted[0], Store(tmp_path)
    shutil.copytree(interrupted[1].root, tmp_path, dirs_exist_ok=True)
    damage(store.unfinished_path(task))
    with pytest.raises(RunError) as refusal:
        do(store, task)
    assert reason in str(refusal.value)
    assert str(refusal.value).endswith(f"remove {store.unfinished_path(task)} to do it again.")
    assert not store.has(task)


def test_a_file_system_without_locks_is_one_sentence(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", refuse)
    refused = pytest.raises(RunError, match=r"cannot be written to \(No locks available\)")
    with refused, Store(tmp_path).claimed(Task(PI, 0)):
        pass


def test_a_record_says_whether_another_run_was_on_the_device_at_any_time(tmp_path):
    (task,), store = made_tasks(tmp_path), Store(tmp_path / "results")
    with crashed_in_epoch(10):
        run_cell(task, "cpu", store, DataLocation(), is_shared=True)
    assert do(store, task).shared_device  # it goes on by itself


def test_runs_on_a_device_named_twice_share_it(tmp_path):
    tasks, store = made_tasks(tmp_path, seeds=2), Store(tmp_path / "results")
    run_pool(store.root, tasks, devices=["cpu", "cpu"])
    assert [record.shared_device for record in store.read([tasks[0].cell])] == [True, True]


# The pool


def run_pool(folder, wanted, *, devices=("cpu",), say=lambda text: None):
    return run_all([CellRun(task, DataLocation()) for task in wanted], folder, Processes(devices), say)


def run_in_child(folder, wanted):
    pool.CONTEXT = multiprocessing.get_context("fork")
    print(json.dumps(run_pool(folder, wanted)))


def finished(path):
    return [line.partition(":")[0] for line in path.read_text().splitlines() if ": finished, test error" in line]


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
    process = child(tmp_path / "out", run_in_child, tmp_path / "results", wanted)
    until(lambda: store.has(wanted[0]) and epochs_done(store, wanted[1]), process)
    process.kill()
    assert finish(process) == -signal.SIGKILL
    for task in wanted:  # the run stops by itself when its command is gone
        until(lambda task=task: is_free(store, task))
    before = {task: store.record_path(task).read_bytes() for task in wanted if store.has(task)}
    assert list(before) == wanted[:1]
    store.unfinished_path(wanted[0]).mkdir()  # as if the kill had come before it was removed
    both = [child(tmp_path / f"out{n}", run_in_child, tmp_path / "results", wanted) for n in range(2)]
    assert [finish(process) for process in both] == [0, 0]  # two commands share what is missing
    done = [name for n in range(2) for name in finished(tmp_path / f"out{n}")]
    assert sorted(done) == sorted(str(task) for task in wanted if task not in before)
    assert all(store.record_path(task).read_bytes() == content for task, content in before.items())
    assert outcomes(store, wanted) == undisturbed(tmp_path, wanted)
    assert not store.unfinished_path(wanted[0]).exists()


def test_ctrl_c_stops_at_a_checkpoint(tmp_path):
    (task,) = made_tasks(tmp_path, epochs=5000)
    store = Store(tmp_path / "results")
    process = child(tmp_path / "out", run_in_child, tmp_path / "results", [task])
    until(lambda: epochs_done(store, task) > 12, process)
    os.kill(process.pid, signal.SIGINT)
    assert finish(process) == 0
    assert json.loads((tmp_path / "out").read_text().splitlines()[-1]) == [0, True]
    epoch, _ = load_run(store.unfinished_path(task)).directory.position()
    assert epoch > 10


def test_ctrl_c_in_a_terminal_while_runs_start_leaves_no_traceback(tmp_path):
    words = [sys.executable, "-m", "selfens", "reproduce", "noise", "--quick", "--results", str(tmp_path)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(words, env=environment(), start_new_session=True, **pipes) as process:
        assert process.stdout.readline().startswith("quick: ")
        time.sleep(0.5)
        os.killpg(process.pid, signal.SIGINT)  # to all processes, as a terminal does
        output = process.stdout.read()
    assert process.returncode == 130
    assert "Traceback" not in output
    assert "unexpectedly" not in output


def test_a_run_that_is_killed_or_cannot_go_on_does_not_stop_the_others(tmp_path):
    wanted, lines = made_tasks(tmp_path, seeds=3, epochs=100), []
    store, others = Store(tmp_path / "results"), set(multiprocessing.active_children())  # left by other tests
    store.unfinished_path(wanted[1]).mkdir(parents=True)
    (store.unfinished_path(wanted[1]) / "mine.txt").touch()

    def kill_the_first():
        until(lambda: epochs_done(store, wanted[0]))
        os.kill((set(multiprocessing.active_children()) - others).pop().pid, signal.SIGKILL)

    thread = threading.Thread(target=kill_the_first)
    thread.start()
    assert run_pool(store.root, wanted, say=lines.append) == (2, False)
    thread.join()
    assert [line for line in lines if "warning" in line] == [
        f"warning: {task} was left out ({reason}); run it again to continue."
        for task, reason in zip(wanted, ("its process died", "see above"), strict=False)
    ]
    assert [store.has(task) for task in wanted] == [False, False, True]


def test_a_run_goes_on_if_nobody_reads_its_lines(tmp_path, monkeypatch):
    (task,), store = made_tasks(tmp_path), Store(tmp_path / "results")

    class Gone:
        def write(self, text):
            raise BrokenPipeError

    monkeypatch.setattr("sys.stdout", Gone())
    assert do(store, task)


# The report


def test_the_report_on_made_up_records(tmp_path):
    store = Store(tmp_path)
    (tmp_path / "notes.md").write_text("Made on a\nlaptop <at home>.\n\nTwice.\n")
    pi = CELLS["cifar10/pi-aug-4000"]
    keep(store, *(made_record(pi, seed, 12.4 + 0.2 * seed) for seed in range(3)))
    keep(store, made_record(pi, 3, final_error=None), made_record(RANDOM, 0, 24.35, extra=NATURAL))
    keep(store, made_record(PI, 0, 16.0, shared_device=True, note="<script>|x\n## Title", commit="a" * 40 + "-dirty"))
    for level, error in ((0, 3.0), (80, 8.0)):
        keep(store, made_record(CELLS[f"noise/temporal-{level}"], 0, error))
    text, figure = reported(store)
    for line in (
        "| Π-model with augmentation | 4000 | 12.60 ± 0.20, 1 diverged | 3 | 12.36 ± 0.31 | 10 | +0.24 | +0.8 |",
        "| Supervised-only | 4000 | not run |  | 35.56 ± 1.59 | 10 |  |  |",
        "| Random 500k | 24.35, with 120,000 images of natural.npy | 1 | 23.62 ± 0.23 | 10 | +0.73 |  |\n",
        "| Temporal ensembling | 80 % | 8.00 | 1 |  |  |  |  |",
        "| (300) | (1.00) | GPU | bf16 | 2 | aaaaaaaaaaaa-dirty | <script>\\|x ## Title |",
        "Made on a\nlaptop <at home>.\n\nTwice.\n",
    ):
        assert line in text
    assert "](label-noise.svg)" in text
    assert figure.startswith("<svg")
    assert reported(store) == [text, figure]  # the same again


def test_the_report_without_records_says_so(tmp_path):
    store = Store(tmp_path)
    keep(store, made_record(CELLS["noise/temporal-80"], 0))
    assert len(reported(store)) == 2
    store.record_path(Task(CELLS["noise/temporal-80"], 0)).unlink()
    (text,) = reported(store)
    assert "No run has been recorded yet." in text
    assert "The curves appear here" in text
    assert not (tmp_path / "label-noise.svg").exists()


@pytest.mark.parametrize("name", ["README.md", "label-noise.svg"])
def test_a_page_of_somebody_else_is_not_written_over(tmp_path, command, name):
    (tmp_path / "quick").mkdir()
    (tmp_path / "quick" / name).write_text("# Mine\nToday I ran selfens reproduce --report.\n")
    done = command("noise", "--quick", "--report", "--results", tmp_path)
    assert type(done.exception) is RunError
    assert f"{name} exists and was not written by selfens reproduce" in str(done.exception)
    assert [path.name for path in (tmp_path / "quick").iterdir()] == [name]  # before anything is trained


# The command


def test_without_arguments_the_tables_are_listed_with_what_has_been_run(tmp_path, command):
    keep(Store(tmp_path), made_record(PI, 0, 16.0), made_record(PI, 1, final_error=None))
    lines = command("--results", tmp_path).output.splitlines()
    assert all(any(line.startswith(f"{name}: ") for line in lines) for name in TABLES)
    assert "pi-4000 16.00, 1 diverged 2 16.55 ± 0.29 10" in [" ".join(line.split()) for line in lines]
    assert lines[-2] == f"2 records in {tmp_path}; another folder: --results"
    assert f"no records in {tmp_path / 'none'}" in command("--results", tmp_path / "none").output


@pytest.fixture
def small_files(monkeypatch):
    """Make twenty training and twenty test images pass for the official ones."""
    pixels, labels = np.zeros((20, 3, 32, 32), dtype=np.uint8), np.arange(20) % 2
    small = Dataset.from_arrays(pixels, labels, pixels, labels, layout="NCHW")
    monkeypatch.setattr(Official, "load", lambda source, **options: small)
    monkeypatch.setattr(data, "ROWS", dict.fromkeys(data.ROWS, (20, 20)))
    return monkeypatch


def test_a_run_is_done_for_its_own_extra_images_only(tmp_path, command, small_files):
    keep(Store(tmp_path), made_record(RANDOM, 0, extra=replace(NATURAL, rows=70)))
    results = {}
    for name, rows in (("natural.npy", 70), ("natural.npy", 71), ("other.npy", 70)):
        np.save(tmp_path / name, np.zeros((rows, 3, 32, 32), dtype=np.uint8))
        words = ("tiny", "--cells", RANDOM.name, "--seeds", "0", "--extra", tmp_path / name, "--devices", "cpu")
        results[f"{rows} images of {name}"] = command(*words, "--results", tmp_path)
    assert "all requested runs are done" in results.pop("70 images of natural.npy").output
    for images, result in results.items():
        assert type(result.exception) is RunError
        assert f"has runs with 70 images of natural.npy, not {images}" in str(result.exception)


def test_the_last_line_and_the_exit_code_say_that_runs_are_missing(command, tmp_path, monkeypatch):
    words = ("noise", "--quick", "--cells", "temporal-20,temporal-50", "--devices", "cpu", "--results", tmp_path)
    for stopped, code, reason in (
        (False, 3, "another process is doing the rest"),
        (True, 130, "stopped"),
    ):
        monkeypatch.setattr(pool, "run_all", lambda *arguments, stopped=stopped: (0, stopped))
        result = command(*words)
        assert result.exit_code == code
        assert result.output.splitlines()[-1] == f"{reason}; 2 runs are missing. Run it again to continue."
    monkeypatch.setattr(pool, "run_all", lambda *arguments: (1, False))
    assert "2 runs are missing, 1 of them because of the errors above" in str(command(*words).exception)


def test_results_that_cannot_be_written_are_one_sentence(tmp_path, command):
    (tmp_path / "file").touch()
    for place in (tmp_path / "file/below", "/proc/nowhere"):
        result = command("--report", "--results", place)
        assert type(result.exception) is RunError
        assert f"{place} cannot be written to" in str(result.exception)
    result = command("--results", tmp_path / "file")
    assert result.exit_code == 2
    assert "is a file" in " ".join(result.output.replace("│", " ").split())
    (tmp_path / "quick").mkdir()
    (tmp_path / "quick/runs").touch()  # before anything is trained
    result = command("noise", "--quick", "--cells", "temporal-20", "--results", tmp_path)
    assert f"{tmp_path}/quick/runs/noise/temporal-20 cannot be written to" in str(result.exception)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["cifar"], "there is no table 'cifar'"),
        (["cifar10", "--cells", "pi-4001"], "there is no cifar10 cell 'pi-4001'"),
        (["cifar10", "--seeds", "x"], "--seeds is 'x'"),
        (["--seeds", "0"], "are for the runs of a table"),
        (["--extra", "x.npy"], "are for the runs of a table"),
        (["tiny"], "needs extra unlabeled images"),
        (["tiny", "--quick", "--extra", "x.npy"], "--extra is for cells with extra images"),
        (["svhn", "--extra", "x.npy"], "--extra is for cells with extra images"),
    ],
)
def test_a_mistake_is_one_sentence(tmp_path, command, words, sentence):
    result = command(*words, "--results", tmp_path)
    assert type(result.exception) is ConfigError
    assert sentence in str(result.exception)


def test_quick_from_the_command_to_the_report(tmp_path, command):
    words = ("tiny", "--quick", "--cells", "temporal-aug-restricted", "--results", tmp_path)
    result = command(*words, "--report")
    assert result.exit_code == 0, result.output
    assert "1 of 1 runs done" in result.output
    assert "all requested runs are done" in result.output
    assert "no number here means anything" in (tmp_path / "quick/README.md").read_text()
    assert not (tmp_path / "runs").exists()
    (record,) = Store(tmp_path / "quick").read(data.quick(TABLES["tiny"]).cells)
    assert (record.quick, record.extra) == (True, ExtraImages(source="digits", rows=1297))
    assert record.final_error < 85  # 90 is chance
    assert "runs done" not in command(*words).output


def test_files_that_are_not_the_official_ones_are_mentioned_once(tmp_path, monkeypatch, command, small_files):
    monkeypatch.setattr(official_files, "altered_files", lambda name, folder: [folder / "data_batch_1"])
    monkeypatch.setattr(pool, "run_all", lambda *arguments: (0, False))
    words = ("cifar10", "--cells", "pi-4000", "--data-dir", tmp_path, "--devices", "cpu")
    (line, _) = command(*words, "--results", tmp_path / "results").output.splitlines()
    assert line.startswith("warning: 1 CIFAR-10 file does not match the published MD5 checksums (the first: ")


def test_files_that_cannot_be_the_papers_are_refused(tmp_path, command, small_files):
    words = ("tiny", "--extra", tmp_path / "natural.npy", "--devices", "cpu", "--results", tmp_path)
    np.save(tmp_path / "natural.npy", np.zeros((70, 3, 32, 32), dtype=np.uint8))
    small_files.setattr(data, "RANDOM_IMAGES", 60)
    result = command(*words)
    assert type(result.exception) is DataError
    assert "natural.npy has 70 images; the paper has 60 random ones" in str(result.exception)
    small_files.setattr(data, "ROWS", ROWS)
    result = command(*words)
    assert type(result.exception) is DataError
    assert "cifar100 has 20 training and 20 test images here; the official files" in str(result.exception)
