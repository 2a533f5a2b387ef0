"""Several processes: what they exchange, and that they train like a single one. All on gloo."""

import contextlib
import io
import json
import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import traceback
from pathlib import Path

import numpy as np
import pytest
import torch
from support import At, config, contents, crash, crashed, environment, interrupt, run_cli
from torch import nn

from selfens import EmaTeacher, EnsembleTargets, SelfEnsemblingClassifier, load_run, resume, train
from selfens.core.losses import cross_entropy
from selfens.data import preprocess
from selfens.data.dataset import Dataset
from selfens.data.sampler import Sampler
from selfens.errors import RunError
from selfens.methods import METHODS, Losses, Method
from selfens.runs.directory import RunDirectory
from selfens.training.checkpoint import Checkpointer
from selfens.training.components import misclassified
from selfens.training.distributed import Group, process_group

CPU = torch.device("cpu")
ROOT = Path(__file__).parents[1]


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def _process(rank, size, port, join, function, arguments, answers):
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    try:
        if join:
            with process_group(CPU) as group:
                answers.put((rank, function(group, *arguments)))
        else:
            answers.put((rank, function(*arguments)))
    except BaseException:
        answers.put((rank, traceback.format_exc()))
        raise SystemExit(1) from None


class FailedError(Exception):
    """One of the processes did."""


def in_processes(size, function, *arguments, join=True, lost=0):
    """What `function(group, *arguments)` gives in each of several processes, forked because torch is imported already.

    join  False for functions that join the group by themselves, as `train` does, and are not given it
    lost  how many processes are meant to die without an answer
    """
    context = multiprocessing.get_context("fork")
    answers, port = context.Queue(), free_port()
    processes = [
        context.Process(target=_process, args=(rank, size, port, join, function, arguments, answers))
        for rank in range(size)
    ]
    for process in processes:
        process.start()
    results = dict(answers.get(timeout=120) for _ in processes[lost:])
    for process in processes:
        process.join(60)
    if sum(process.exitcode != 0 for process in processes) != lost:
        raise FailedError("\n".join(map(str, results.values())))
    return [results[rank] for rank in sorted(results)]


SIZES = [1, 3]


# What is exchanged


def exchange(group):
    rank = torch.tensor(float(group.rank))
    taken = rank.clone()
    group.broadcast([taken])
    numbers = {
        "sum": group.all_reduce(rank.clone()),
        "mean": group.mean(rank.clone()),
        "least": group.min(group.rank + 5),
        "any": group.any(group.rank == group.size - 1) + 10 * group.any(False),
        "taken": taken,
    }
    means = group.means([torch.arange(3.0) + rank, torch.full((2, 2), group.rank)])
    gathered = group.gather(torch.full((group.rank + 1, 2), group.rank))
    return (
        {name: float(number) for name, number in numbers.items()},
        [mean.tolist() for mean in means],
        [part.tolist() for part in gathered],
    )


@pytest.mark.parametrize("size", SIZES)
def test_processes_tell_each_other_what_they_should(size):
    mean = (size - 1) / 2
    expected = {"sum": mean * size, "mean": mean, "least": 5, "any": 1, "taken": 0}
    for rank, (numbers, means, gathered) in enumerate(in_processes(size, exchange)):
        assert numbers == expected
        assert means == [[k + mean for k in range(3)], [[mean, mean]] * 2]
        assert gathered == ([[[r, r]] * (r + 1) for r in range(size)] if rank == 0 else [])


def wrong_of_share(group, inputs, labels):
    own = slice(group.rank, None, group.size)
    return misclassified(nn.Identity(), inputs[own], labels[own], "fp32", group)


def test_the_share_misclassified_is_over_the_rows_of_all_processes_even_if_one_has_none():
    assert in_processes(3, wrong_of_share, torch.eye(2), torch.tensor([0, 0])) == [50.0] * 3


@pytest.mark.parametrize("size", SIZES)
def test_every_row_has_one_owner_and_each_kind_of_row_is_spread(size):
    kinds = np.where(np.arange(100) % 3 == 0, 0, 1)
    kinds[40:60] = 2
    shares = [Group(rank, size).share(kinds) for rank in range(size)]
    assert sorted(np.concatenate(shares)) == list(range(100))
    assert all((np.diff(share) > 0).all() for share in shares)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    for kind in range(3):
        counts = [int((kinds[share] == kind).sum()) for share in shares]
        assert max(counts) - min(counts) <= 1


def orders(size, rows=120, labeled=10, **options):
    """[processes, steps, batch] of three epochs, in numbers of all rows."""
    kinds = (np.arange(rows) >= labeled).astype(int)
    shares = [Group(rank, size).share(kinds) for rank in range(size)]
    made = [
        Sampler(np.arange(len(own)), kinds[own] == 0, 5, 0, process=rank, **options) for rank, own in enumerate(shares)
    ]
    return [np.stack([own[order.of_epoch(e)] for own, order in zip(shares, made, strict=True)]) for e in range(3)]


def test_no_two_rows_of_different_processes_stay_together():
    together = []
    for order in orders(2):
        (first, second), step_of = order, np.empty(120, int)
        for rows in (first, second):
            step_of[rows] = np.arange(len(rows))[:, None]
        together.append({(a, b) for a in first.flat for b in second.flat if step_of[a] == step_of[b]})
    shared = set.intersection(*together)
    assert len(shared) < 0.1 * len(together[0])  # by chance one in 144


def test_the_split_sampler_gives_each_process_labeled_rows_of_its_own():
    for order in orders(2, labeled=10, num_labeled=2):
        first, others = order[:, :, :2], order[:, :, 2:]
        assert (first < 10).all()
        assert not set(first[0].flat) & set(first[1].flat)
        assert len(set(others.flat)) == others.size


# Training


class FollowsRows(nn.Module):
    """Predictions that depend only on the row: no noise, no batch means."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(6, 3)

    def forward(self, x):
        return self.layer(x.flatten(1))


def rows_and_labels(rows=120):
    random = np.random.default_rng(0)
    labels = np.arange(rows) % 3
    x = random.normal(labels[:, None], 1, (rows, 6)).astype(np.float32)
    return Dataset.from_arrays(x, np.where(np.arange(rows) < 30, labels, -1), x[:50], labels[:50])


def settings(*overrides, epochs=3):
    return config("temporal", "labels.count=none", "training.batch_size=20", *overrides, epochs=epochs)


def _train(path, settings, custom_network, stop):
    network = custom_network() if custom_network else None
    progress = At(*stop, interrupt) if stop and os.environ["RANK"] == "0" else None
    train(settings, path, dataset=rows_and_labels(), network=network, progress=progress)


def train_in(size, path, settings, *, custom_network=None, stop=None):
    in_processes(size, _train, path, settings, custom_network, stop, join=False)


def _resume(path):
    resume(path, dataset=rows_and_labels())


def resume_in(size, path):
    in_processes(size, _resume, path, join=False)


def test_targets_after_three_epochs_are_those_of_one_process(tmp_path):
    ensembles = {}
    for number in (1, 3):
        path = tmp_path / str(number)
        train_in(number, path, settings("optimizer.learning_rate=1e-30"), custom_network=FollowsRows)
        ensembles[number] = load_run(path, network=FollowsRows()).ensemble
    assert (ensembles[3].count == 3).all()
    torch.testing.assert_close(ensembles[3].mean, ensembles[1].mean, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(ensembles[3].square, ensembles[1].square, atol=1e-6, rtol=1e-6)


def errors_of(path):
    return [record["test_error"] for record in load_run(path).history]


OPTIONS = {
    "supervised": ["optimizer.name=sgd", "optimizer.weight_decay=1e-3"],
    "temporal": ["training.residence=ram"],
    "stability": ["method.weight_max=1"],
    "mean-teacher": ["method.decay=0.9", "optimizer.name=adamw"],
    "fixmatch": ["method.decay=0.9", "training.labeled_per_batch=5", "method.alignment=labels", "schedule.name=cosine"],
}
"""The settings to train each method with, so that all of its parts are used."""


def _train_and_tell(path, settings):
    """Return the final weights of this process, and the state of its method."""
    kept = []
    genuine = Checkpointer.save

    def save(self, *rest):
        network, method = self.components.network, self.components.method
        modules = (network, method, method.evaluated(network))
        kept[:] = [tensor for module in modules for tensor in module.state_dict().values()]
        genuine(self, *rest)

    Checkpointer.save = save
    train(settings, path, dataset=rows_and_labels())
    return b"".join(tensor.numpy().tobytes() for tensor in kept)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns_with_the_same_bits_in_all_processes_and_twice(method, tmp_path):
    chosen = settings(f"method.name={method}", "network.mean_momentum=0.5", *OPTIONS.get(method, ()), epochs=20)
    for name in ("one", "other"):
        first, second = in_processes(2, _train_and_tell, tmp_path / name, chosen, join=False)
        assert len(first) > 100
        assert first == second
    one, other = load_run(tmp_path / "one"), load_run(tmp_path / "other")
    assert one.finished
    assert one.info.processes == 2
    assert one.test_error < 50
    assert errors_of(tmp_path / "one") == errors_of(tmp_path / "other")
    assert_same_state(one, other)
    assert one.evaluate(rows_and_labels())["test_error"] == pytest.approx(one.test_error)
    assert one.history[0]["images_per_second"] > 0


def assert_same_state(one, other):
    ours, theirs = (run.directory.load_checkpoint().tensors for run in (one, other))
    for part, tensors in ours.items():
        for name, tensor in tensors.items():
            if "running_mean" in name:  # averaged once more if a run was stopped
                torch.testing.assert_close(tensor, theirs[part][name], atol=1e-6, rtol=1e-5)
            else:
                assert torch.equal(tensor, theirs[part][name]), f"{part}/{name}"


def test_a_training_of_two_stopped_within_an_epoch_goes_on_in_one_two_and_three(tmp_path):
    """One process gets the stop signal and tells the other; both stop at the same step."""
    smaller = settings("training.batch_size=5", epochs=4)  # 12 steps an epoch: they ask each other at steps 0 and 8
    train_in(2, tmp_path / "whole", smaller)
    with pytest.raises(FailedError, match="KeyboardInterrupt: stopped in epoch 2"):
        train_in(2, tmp_path / "stopped", smaller, stop=(0, 12 + 2))
    assert load_run(tmp_path / "stopped").directory.position() == (1, 8)
    for size in (1, 2, 3):
        shutil.copytree(tmp_path / "stopped", tmp_path / f"by{size}")
        resume_in(size, tmp_path / f"by{size}")
        run = load_run(tmp_path / f"by{size}")
        assert run.finished
        assert [record["epoch"] for record in run.history] == [0, 1, 2, 3]
        assert int(run.ensemble.count.min()) == 4
    assert_same_state(load_run(tmp_path / "by2"), load_run(tmp_path / "whole"))


def _train_for(path, settings, time_limit):
    return train(settings, path, dataset=rows_and_labels(), time_limit=time_limit).config.schedule.epochs


def test_processes_agree_on_the_epochs_that_fit_into_a_time_limit_and_measure_without_a_trace(tmp_path):
    chosen = settings("method.name=mean-teacher", "training.batch_size=2")
    epochs, others = in_processes(2, _train_for, tmp_path / "limited", chosen, 3, join=False)
    assert epochs == others
    train_in(2, tmp_path / "run", chosen.with_epochs(epochs))
    assert_same_state(load_run(tmp_path / "limited"), load_run(tmp_path / "run"))


class Own(Method):
    """Supervised, with an ensemble of its own, and a layer that is drawn differently in each process and its teacher."""

    def setup(self, network, rows):
        self.ensemble = EnsembleTargets(rows.num_rows, rows.num_classes)
        self.layer = nn.Linear(6, 3)
        nn.init.normal_(self.layer.weight, mean=os.getpid() % 1000)
        self.follower = EmaTeacher(self.layer)

    def losses(self, network, batch, targets, weight):
        logits = network(batch.views[0])
        loss = cross_entropy(logits, batch.labels, batch.labeled)
        return Losses(loss, {"supervised": loss, "unsupervised": loss.detach()}, logits.detach().softmax(dim=1))

    def after_step(self, network, rows, predictions):
        self.ensemble.write(rows, predictions)

    def end_epoch(self):
        self.ensemble.commit()


def _train_own(path, kind):
    method = kind()
    train(settings(epochs=2), path, dataset=rows_and_labels(), network=FollowsRows(), method=method)
    assert method.ensemble.num_rows == 60
    return method.layer.weight.tolist(), method.follower.network.weight.tolist()


@pytest.mark.filterwarnings("ignore:the unsupervised weight")
def test_a_method_of_ones_own_begins_as_in_the_first_process_and_has_an_ensemble_of_its_share(tmp_path):
    one, other = in_processes(2, _train_own, tmp_path / "run", Own, join=False)
    assert one == other
    run = load_run(tmp_path / "run", network=FollowsRows())
    assert run.directory.load_checkpoint().tensors["method"]["follower.network.weight"].tolist() == one[1]
    assert int(run.ensemble.count.min()) == 2


class KeptByRow(Own):
    def setup(self, network, rows):
        super().setup(network, rows)
        self.seen = EnsembleTargets(rows.num_rows, rows.num_classes)


def test_what_a_method_keeps_by_row_is_refused_with_several_processes(tmp_path):
    with pytest.raises(FailedError, match="KeptByRow keeps 'seen' by row, but 2 processes have different rows"):
        in_processes(2, _train_own, tmp_path / "run", KeptByRow, join=False)


def _train_as_many_rows_as_classes(path):
    data = Dataset.from_arrays(np.arange(12.0, dtype=np.float32).reshape(6, 2), np.arange(6) % 3)
    train(config("fixmatch", "labels.count=none", "training.batch_size=4", epochs=1), path, dataset=data)


@pytest.mark.filterwarnings("ignore")
def test_what_is_kept_by_class_is_not_taken_for_kept_by_row(tmp_path):
    """Each process has three rows, and there are three classes."""
    in_processes(2, _train_as_many_rows_as_classes, tmp_path / "run", join=False)
    assert load_run(tmp_path / "run").finished


def _train_elsewhere(folder):
    os.makedirs(folder / os.environ["RANK"], exist_ok=True)
    os.chdir(folder / os.environ["RANK"])
    train(settings(), "run", dataset=rows_and_labels())


def test_a_directory_that_is_not_the_same_for_all_is_refused_before_training(tmp_path):
    with pytest.raises(FailedError, match="run is not seen by all processes; give the path"):
        in_processes(2, _train_elsewhere, tmp_path, join=False)
    assert not (tmp_path / "0" / "run").exists()


def _fit():
    SelfEnsemblingClassifier(epochs=1).fit(np.zeros((6, 2)), [0, 1, 0, 1, -1, -1])


def test_the_estimator_is_for_one_process():
    with pytest.raises(FailedError, match="SelfEnsemblingClassifier trains in one process; .* use selfens.train"):
        in_processes(2, _fit, join=False)


def test_options_that_concern_all_rows_are_the_same_in_all_processes(tmp_path):
    options = ["labels.validation=0.2", "preprocess.rows=labeled", "training.unlabeled_per_epoch=60"]
    train_in(2, tmp_path / "run", settings(*options, "training.evaluate_every=2"))
    run = load_run(tmp_path / "run")
    fitted = preprocess.fit("channel", rows_and_labels().raw[run.labels.rows])
    torch.testing.assert_close(run.preprocess.state_dict(), fitted.state_dict(), rtol=0, atol=0)
    for name in ("test_error", "validation_error"):
        assert [record[name] is None for record in run.history] == [True, False, False]


class WithBatchNorm(FollowsRows):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(6)

    def forward(self, x):
        return super().forward(self.norm(x.flatten(1)))


def test_what_is_tested_is_what_is_saved_with_buffers_of_ones_own(tmp_path):
    train_in(2, tmp_path / "run", settings(epochs=3), custom_network=WithBatchNorm)
    run = load_run(tmp_path / "run", network=WithBatchNorm())
    assert run.evaluate(rows_and_labels())["test_error"] == pytest.approx(run.test_error)


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["labels.count=3", "training.rows=labeled"], "4 processes have 3 rows an epoch to share"),
        (["labels.count=3", "training.labeled_per_batch=8"], "is 8, but there are only 3 labeled rows per process"),
        (["training.unlabeled_per_epoch=1000"], "there are only 90 unlabeled rows"),
    ],
)
def test_what_several_processes_cannot_do_is_said(overrides, sentence, tmp_path):
    with pytest.raises(FailedError, match=sentence):
        train_in(4, tmp_path / "run", settings(*overrides))
    assert not (tmp_path / "run").exists()


# As a user starts it


def torchrun(tmp_path, *words, restarts=0):
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", str(restarts)]
    command += ["--master-port", str(free_port()), "-m", "selfens", *words]
    return subprocess.Popen(
        command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


SLOWLY = ["--set", "schedule.epochs=10", "--set", "training.checkpoint_every=1", "--set", "training.threads=1"]


def wait_for_checkpoint(path, process, epoch, seconds=90):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.poll() is None:
        if (path / "checkpoint.safetensors").exists() and RunDirectory(path).position()[0] >= epoch:
            return
        time.sleep(0.05)
    raise AssertionError(process.communicate(timeout=60)[0])


def workers_of(process):
    """The training processes that torchrun has started."""
    listed = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True).stdout
    return [int(number) for number in listed.split()]


def test_torchrun_trains_one_run_and_restarts_it_from_the_last_checkpoint(tmp_path):
    process = torchrun(tmp_path, "train", "digits-temporal", "--run-dir", "two", *SLOWLY, restarts=1)
    wait_for_checkpoint(tmp_path / "two", process, 2)
    os.kill(workers_of(process)[0], signal.SIGKILL)
    out, _ = process.communicate(timeout=240)
    assert process.returncode == 0, out
    run = load_run(tmp_path / "two")
    assert run.finished
    assert [record["epoch"] for record in run.history] == list(range(10))
    assert out.count("epoch 1/10 ") == 1  # it did not start over, and only one process prints


def _lose_a_process(path):
    network = DiesAt(8) if os.environ["RANK"] == "1" else FollowsRows()
    try:
        train(settings(), path, dataset=rows_and_labels(), network=network)
    except RunError as error:
        return str(error)


class DiesAt(FollowsRows):
    """Ends its process at one of its calls."""

    def __init__(self, calls):
        super().__init__()
        self.calls_left = calls

    def forward(self, x):
        self.calls_left -= 1
        if self.calls_left == 0:
            os._exit(9)
        return super().forward(x)


def test_a_process_that_dies_ends_the_others_in_a_sentence_and_the_checkpoint_is_there(tmp_path):
    (said,) = in_processes(2, _lose_a_process, tmp_path / "run", join=False, lost=1)
    assert "another process of this training has ended or no longer answers" in said
    assert "\n" not in said
    assert load_run(tmp_path / "run", network=FollowsRows()).directory.position()[0] >= 1


def _type(words, restarts=0):
    os.environ["TORCHELASTIC_RESTART_COUNT"] = str(restarts)
    stderr = io.StringIO()
    with contextlib.redirect_stderr(stderr), contextlib.suppress(SystemExit):
        run_cli(words)
    return stderr.getvalue()


def test_a_directory_must_be_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for said in in_processes(2, _type, ["train", "digits-temporal"], join=False):
        assert "must agree on a directory; name it with --run-dir DIRECTORY." in said


def test_a_restart_leaves_the_run_of_others_alone(tmp_path):
    train(settings(epochs=1), tmp_path / "two", dataset=rows_and_labels())
    before = contents(tmp_path / "two")
    words = ["train", "digits-temporal", "--run-dir", str(tmp_path / "two")]
    said = in_processes(2, _type, words, 1, join=False)
    assert any("already holds a run" in text for text in said)
    assert contents(tmp_path / "two") == before


def test_a_restart_continues_the_run_that_is_asked_for_and_no_other(tmp_path, monkeypatch):
    """Of a table whose id column was found when it was read."""
    lines = [f"r{row},{row % 7},{row * row},{'ab'[row % 2]},{'cd'[row % 3 == 0]}" for row in range(40)]
    (tmp_path / "rows.csv").write_text("\n".join(["id,x,y,kind,other", *lines]))
    asked = ["encoder.name=columns", "labels.count=none", "source.label=kind"]
    asked, run = config("temporal", *asked, name=str(tmp_path / "rows.csv")), tmp_path / "run"
    with crashed():
        train(asked, run, progress=At(0, 5, crash))
    assert load_run(run).config.source.id == "id"
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    for other in ("source.label=other", "source.id=x", f"source.extra={tmp_path / 'rows.csv'}", "seed.base=1"):
        with pytest.raises(RunError, match="already holds a run"):
            train(asked.with_overrides([other]), run)
    assert train(asked, run).finished


def busy_share(seconds=1.0):
    """Return the share of all cores that other processes are using."""

    def times():
        numbers = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
        return sum(numbers), numbers[3] + numbers[4]  # idle, and waiting for a disk

    (before, idle_before), _ = times(), time.sleep(seconds)
    after, idle_after = times()
    return 1 - (idle_after - idle_before) / (after - before)


@pytest.mark.alone
def test_two_processes_are_faster_than_one(tmp_path):
    if os.cpu_count() == 1 or not Path("/proc/stat").exists() or busy_share() > 0.15:
        pytest.skip("needs two idle cores")
    output = tmp_path / "out.json"
    words = [sys.executable, "benchmarks/distributed.py", "--output", output]
    subprocess.run(words, cwd=ROOT, env=environment(), check=True)
    ratio = json.loads(output.read_text())["median_ratio"]
    if ratio < 1.4 and busy_share() > 0.15:
        pytest.skip("others have begun to use the cores")
    assert ratio >= 1.4
