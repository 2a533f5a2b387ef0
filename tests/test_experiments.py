"""The paper's experiments: the cells are the paper's, runs are neither lost nor repeated, and the report says what is there."""

import csv
import doctest
import io
import json
import multiprocessing
import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from rich.console import Console
from support import Crash, child, config, crashed, finish, write_npz
from typer.testing import CliRunner

from selfens import load_run, train
from selfens.errors import ConfigError, DataError, DeviceError, RunError
from selfens.experiments import noise, quick, runner, summary
from selfens.experiments import tables as tables_module
from selfens.experiments.cells import Cell
from selfens.experiments.claims import CLAIMS
from selfens.experiments.command import reproduce
from selfens.experiments.extras import ExtraImages
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


# The cells


def test_the_cells_are_those_of_the_paper_number_by_number():
    with FIGURES.open() as file:
        paper = {(line["table"], line["row"], line["labels"]): line for line in csv.DictReader(file)}
    ours = {(c.table, c.row, c.column): c for c in CELLS.values() if c.mean is not None}
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
        assert c.training.rows == "all"
        assert (c.optimizer.beta2 == 0.99) == (cell.key == "claims/pi-aug-250-beta2-0.99")
        assert (c.augment.shared_flip is False) == (cell.key == "claims/pi-aug-4000-independent-flips")
        assert (c.method.consistency == "cross_entropy") == (cell.key == "claims/pi-aug-4000-cross-entropy")


def test_the_noise_figure_has_ten_cells_with_its_percentages():
    levels = [cell.config.data.label_noise for cell in noise.TABLE.cells]
    assert levels == [0, 20, 50, 80, 90] * 2


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
    wanted = tasks(choose_cells(TABLES["cifar10"], "pi-4000,pi-all"))
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
    both = runner.parse_devices("cpu,cpu", quick_runs=False)
    assert [place.shared for place in both] == [True, True]
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
        environment={"device": "GPU", "torch": "2"},
        commit="abc",
    )
    return replace(usual, **changes)


def keep(store, *records):
    for record in records:
        store.write(Task(CELLS[record.key], record.seed), record)


def test_a_record_comes_back_as_it_was(tmp_path):
    store, cell = Store(tmp_path), CELLS["cifar10/pi-4000"]
    record = made_record(cell, 7)
    keep(store, record)
    assert store.read(CELLS.values()) == [record]
    assert (tmp_path / "runs/cifar10/pi-4000/seed007.json").is_file()


@pytest.mark.parametrize(
    "damage",
    [
        lambda raw: raw | {"format": 2},
        lambda raw: raw | {"test_error": raw["test_error"][:-1]},
        lambda raw: raw | {"final_error": 1.0},
        lambda raw: raw | {"labelled_rows": ""},
        lambda raw: raw | {"seconds": None},
        lambda raw: raw | {"surplus": 1},
        lambda raw: {key: value for key, value in raw.items() if key != "config"},
        lambda raw: [],
        lambda raw: raw | {"config": {"data": {"nmae": "x"}}},
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
        tuple(
            Cell(table="made-up", name=name, row=name, column="", config=config(name, name=str(npz), epochs=epochs))
            for name in names
        ),
        list(range(seeds)),
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
    Worker(store, CPU, None, view).consider(task)
    assert [event.epoch for event in view.events if event.kind == "epoch"] == [0, 20, *range(21, 31)]
    assert outcomes(store, [task]) == expected([task])
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
    with pytest.raises(RunError, match="begun with another configuration"):
        Worker(store, CPU, None, Listener()).consider(task)


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
    assert outcome == runner.Outcome(missing=1, stopped=False, failures=())
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


def test_a_killed_worker_is_reported_and_the_others_go_on(tmp_path):
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
    assert outcome.failures == ("the worker on cpu ended unexpectedly (code -9); call again to go on.",)
    assert outcome.missing == 0  # the other worker has taken its run over
    assert sorted(view.of("finished")) == sorted(map(str, wanted))


def test_a_worker_that_cannot_go_on_says_why(tmp_path):
    (task,) = made_tasks(tmp_path, cells=1, seeds=1)
    store = Store(tmp_path / "results")
    store.unfinished_path(task).mkdir(parents=True)
    (store.unfinished_path(task) / "mine.txt").write_text("")
    outcome = runner.run([task], store, places=[CPU], view=Listener())
    assert len(outcome.failures) == 1
    assert "is not a run" in outcome.failures[0]


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
    assert "2.00 times (2.000 s against 1.000 s per epoch, GPU)" in text
    assert "| over 90 % | 92.00 %, n = 1 |" in text
    assert "needs extra unlabeled images (--extra)" in text
    assert "CatGAN" in text
    assert "about a third of its training and test images" in text
    page = paths[1].read_text()
    assert page.count("<svg") == 1
    assert "://" not in page.replace("http://www.w3.org", "")
    assert "<td>12.60 ± 0.20</td>" in page
    assert paths[2].read_text().startswith("<svg")
    again = [path.read_bytes() for path in write_report(store)]
    assert again == [path.read_bytes() for path in paths]


def test_the_report_without_records_says_so(tmp_path):
    text = write_report(Store(tmp_path))[0].read_text()
    assert "No run has been recorded yet." in text
    assert "The curves appear here" in text


def test_what_is_written_in_a_record_cannot_break_the_page(tmp_path):
    store = Store(tmp_path)
    keep(store, made_record(CELLS["cifar10/pi-4000"], 0, note="<script>|x"))
    readme, page = write_report(store)
    assert "<script>\\|x" in readme.read_text()
    assert "<script>" not in page.read_text()


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
    assert "needs extra unlabeled images (--extra)" in text


@pytest.mark.parametrize(
    ("words", "error", "sentence"),
    [
        (["cifar"], ConfigError, "there is no table 'cifar'"),
        (["cifar10", "--cells", "pi-4001"], ConfigError, "there is no cell in table cifar10 'pi-4001'"),
        (["cifar10", "--seeds", "x"], ConfigError, "--seeds is 'x'"),
        (["cifar10", "--max-minutes", "0"], ConfigError, "--max-minutes is 0"),
        (["--seeds", "0"], ConfigError, "--seeds was given without a table"),
        (["tiny"], ConfigError, "needs extra unlabeled images"),
        (["tiny", "--quick", "--extra", "x.npy"], ConfigError, "--extra was given with --quick"),
        (["tiny", "--extra-index", "x.pkl"], ConfigError, "--extra-index was given without --extra"),
        (["--extra", "x.npy"], ConfigError, "--extra was given without a table"),
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
    assert len(store.read(CELLS.values())) == 10
    again = command("noise", "--quick", "--seeds", "0", "--results", tmp_path)
    assert "started" not in again.output
    assert (tmp_path / "quick/.gitignore").read_text() == "*\n"
