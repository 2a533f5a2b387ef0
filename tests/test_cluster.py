"""Runs on a Ray cluster of two nodes on this machine: the same results as in one process, whatever happens to a node."""

import os
import shutil
import signal
import socket
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from support import contents, differences, forking, left_behind, write_npz

from selfens import load_run
from selfens.experiments import cluster, command, data, pool
from selfens.experiments.data import DataLocation
from selfens.experiments.records import Store
from selfens.experiments.tables import TABLES, Task
from selfens.experiments.worker import run_cell

SMALL = (
    "--set",
    "network.name=mlp",
    "--set",
    "network.width=8",
    "--set",
    "training.threads=1",
    "--no-report",
    "--no-baselines",
)
NOT_REPEATED = ("seconds", "seconds_per_epoch", "shared_device")
CELLS = "supervised-0,supervised-20,supervised-50,temporal-0,temporal-20,temporal-50"


@pytest.fixture(scope="module")
def ray():
    return pytest.importorskip("ray", reason="Ray is not installed")


# Without a cluster


@pytest.fixture
def listening():
    """Yield the address of a server that is not Ray."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_an_address_that_does_not_answer_is_one_sentence_within_seconds(ray, typed, listening, monkeypatch):
    monkeypatch.setattr(cluster, "PROBE_SECONDS", 2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        closed = f"127.0.0.1:{server.getsockname()[1]}"
    for address, reason in (
        (closed, "(Connection refused)"),
        (listening, "(something else listens there"),
        (f"ray://{closed}", "(Connection refused)"),
        ("nowhere.invalid:6379", "not known)"),
    ):
        monkeypatch.setenv("RAY_ADDRESS", address)
        began = time.monotonic()
        named = ("--ray",) if address == closed else ("--ray", address)
        code, _, complained = typed("reproduce", *named, "noise", "--quick")
        assert time.monotonic() - began < 10
        assert (code, complained.count("\n")) == (1, 1)
        assert complained.startswith(f"error: no Ray cluster answers at {address} (")
        assert reason in complained


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["reproduce", "--ray", "cifar"], "there is no table 'cifar'"),
        (["reproduce", "noise", "--ray=head"], "--ray is 'head'; expected HOST:PORT, such as 10.0.0.1:6379"),
        (["reproduce", "noise", "--ray", "--devices", "cpu"], "--ray and --devices were both given"),
        (["reproduce", "noise", "--ray", "--gpus", "2"], "--gpus is 2; expected the fraction of a GPU that a run gets"),
        (["reproduce", "noise", "--gpus", "1"], "--gpus is for runs on a Ray cluster; add --ray"),
        (["reproduce", "--ray"], "are for the runs of a table"),
        (["train", "digits", "--gpus", "1"], "--gpus is for runs on a Ray cluster; add --ray"),
        (["train", "digits", "--seed", "1", "--seeds", "0-1"], "--seed and --seeds were both given"),
        (["train", "digits", "--ray", "--time-limit", "5m"], "--seeds or --ray and --time-limit were both given"),
        (["evaluate", "run", "--ray"], "--ray trains the folds on a cluster; add --folds"),
    ],
)
def test_a_mistake_is_one_sentence(ray, typed, words, sentence):
    code, _, complained = typed(*words)
    assert (code, complained.count("\n")) == (1, 1)
    assert sentence in complained


def test_seeds_are_done_beside_each_other_and_continued_without_ray(tmp_path, typed, monkeypatch):
    monkeypatch.setattr(pool, "CONTEXT", forking())
    words = ("train", "digits", "--epochs", 2, *SMALL)
    code, said, complained = typed(*words, "--seeds", "0-1")
    assert (code, complained) == (0, "")
    errors = [load_run(f"runs/digits-temporal-seed{seed}").test_error for seed in range(2)]
    assert said.splitlines()[-1].startswith(f"error {sum(errors) / 2:.2f} ± ")
    assert typed(*words, "--seed", 1, "--run", "alone", "--quiet")[0] == 0
    assert differences(left_behind(Path("alone")), left_behind(Path("runs/digits-temporal-seed1"))) == []
    before = contents(tmp_path / "runs")
    shutil.rmtree("runs/digits-temporal-seed0")
    assert typed(*words, "--seeds", "0-1")[1].count("runs done") == 1  # only the one that is missing
    assert contents(tmp_path / "runs").keys() == before.keys()
    code, _, complained = typed(*words, "--seeds", "0-2", "--epochs", 3)
    assert code == 1
    assert "digits-temporal-seed0 holds a run with different settings; choose another folder" in complained


def test_without_ray_the_sentence_says_how_to_install_it(typed, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    code, _, complained = typed("reproduce", "noise", "--quick", "--ray")
    assert (code, complained.count("\n")) == (1, 1)
    assert "--ray needs the package ray, which cannot be imported" in complained
    assert "pip install 'selfens[ray]'" in complained


# On a cluster

QUICK_TO_NOTICE = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_failure_threshold": 3,
}


@pytest.fixture(scope="module")
def nodes(ray):
    """A cluster of two nodes with a CPU each; the first is the command's."""
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 1, "include_dashboard": False, "_system_config": QUICK_TO_NOTICE}
    with pytest.MonkeyPatch.context() as patch:
        made = Cluster(initialize_head=True, head_node_args=head)
        made.second = made.add_node(num_cpus=1)
        patch.setenv("RAY_ADDRESS", made.address)
        yield made
        ray.shutdown()
        made.shutdown()


def test_without_a_gpu_there_the_sentence_says_so(tmp_path, typed, nodes):
    code, _, complained = typed("train", "digits", "--ray", "--device", "cuda")
    assert (code, complained.count("\n")) == (1, 1)
    assert f"a GPU was asked for, and none of the 2 nodes of the Ray cluster {nodes.address} has one" in complained


@pytest.fixture(scope="module")
def connected(ray, nodes):
    """The nodes keep their processes from one test to the next."""
    ray.init(nodes.address, log_to_driver=False, logging_level="CRITICAL")
    return nodes


@contextmanager
def quick_cells(network="mlp", **schedule):
    """Quick runs have this network and schedule."""
    genuine = data._quick

    def shorter(cell):
        made = genuine(cell)
        small = made.config.with_values("network", name=network, width=4).with_values("training", batch_size=100)
        return replace(made, config=small.with_values("schedule", **schedule))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data, "_quick", shorter)
        patch.setenv("SELFENS_COMMIT", "abc123")
        yield


def in_one_process(folder, cells, seeds):
    """Return the records of quick runs that this process does one after another."""
    store, every = Store(folder), {cell.name: cell for cell in data.quick(TABLES["noise"]).cells}
    tasks = [Task(every[name], seed) for name in cells.split(",") for seed in seeds]
    for task in tasks:
        run_cell(task, "cpu", store, DataLocation(quick=True))
    return tasks, records(folder, tasks)


def records(folder, tasks):
    """Return what must be the same however the runs were done."""
    found = Store(folder).read(dict.fromkeys(task.cell for task in tasks))
    return [{name: value for name, value in vars(each).items() if name not in NOT_REPEATED} for each in found]


def test_twelve_runs_on_two_nodes_leave_the_records_of_one_process(tmp_path, typed, connected, capsys):
    with quick_cells(epochs=2, rampup_epochs=1, rampdown_epochs=1):
        tasks, expected = in_one_process(tmp_path / "one", CELLS, range(2))
        capsys.readouterr()
        words = ("reproduce", "--ray", "noise", "--quick", "--cells", CELLS, "--seeds", "0-1", "--results", "out")
        code, said, complained = typed(*words)
    assert (code, complained) == (0, "")
    assert f"Ray cluster {connected.address}: 2 nodes with 2 CPUs and 0 GPUs; 12 runs, no GPU" in said
    assert said.count("started, 2 epochs") == said.count("finished, test error") == 12
    assert said.endswith("12 of 12 runs done\nall requested runs are done; --report writes a report on them.\n")
    assert len(expected) == 12
    assert records(tmp_path / "out/quick", tasks) == expected
    assert not list((tmp_path / "out/quick/unfinished").rglob("*.safetensors"))


def test_seeds_and_folds_are_those_of_one_machine(tmp_path, typed, connected):
    words = ("train", "digits", "--epochs", 2, *SMALL)
    for seed in range(2):
        assert typed(*words, "--seed", seed, "--run", f"one/seed{seed}", "--quiet")[0] == 0
    code, said, complained = typed(*words, "--seeds", "0-1", "--run", "ray", "--ray", connected.address)
    assert (code, complained) == (0, "")
    errors = [load_run(tmp_path / f"ray/seed{seed}").test_error for seed in range(2)]
    assert f"error {sum(errors) / 2:.2f} ± " in said.splitlines()[-1]
    for seed in range(2):
        assert differences(left_behind(tmp_path / f"ray/seed{seed}"), left_behind(tmp_path / f"one/seed{seed}")) == []
    found = []
    for more in ((), ("--ray",)):
        code, said, _ = typed("evaluate", "one/seed0", "--folds", 2, *more)
        assert (code, "fold 2/2" in said) == (0, True)
        found.append(load_run(tmp_path / "one/seed0").evidence)
    assert (found[0].probabilities == found[1].probabilities).all()
    assert found[0].others.keys() == found[1].others.keys()


def test_what_the_nodes_lack_is_one_sentence_before_anything_is_trained(tmp_path, typed, connected, monkeypatch):
    write_npz(tmp_path / "my.npz")
    words = ("train", "my.npz", "--seeds", "0-1", "--ray", *SMALL)
    code, _, complained = typed(*words, "--set", "training.threads=3")
    assert (code, "has 3 CPUs, which a run needs; start such a node." in complained) == (1, True)
    ours = cluster.versions()
    for package in ours:
        monkeypatch.setattr(cluster, "versions", lambda package=package: ours | {package: "9.9"})
        code, _, complained = typed(*words)
        assert (code, complained.count("\n")) == (1, 1)
        assert f") has {package} {ours[package]}, and this machine has 9.9; install the same on all" in complained
    monkeypatch.setattr(cluster, "versions", lambda: os.unlink(tmp_path / "my.npz") or ours)  # no node sees the file
    code, _, complained = typed(*words)
    assert (code, complained.count("\n")) == (1, 1)
    assert f"{tmp_path}/my.npz does not exist; put the data into a folder that all nodes share." in complained
    assert not list(tmp_path.rglob("config.json"))


def kill(cluster, node):
    """Kill a node with its processes, as a power cut does."""
    below = [int(word) for word in children(node.all_processes["raylet"][0].process.pid)]
    cluster.remove_node(node, allow_graceful=False)
    for process in below:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def children(process):
    found = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [*found, *(below for each in found for below in children(each))]


def test_a_killed_node_and_ctrl_c_lose_nothing(tmp_path, typed, connected, capsys, monkeypatch):
    words = ("reproduce", "noise", "--quick", "--cells", "temporal-0,temporal-20", "--results", "out", "--ray")
    echo, lines = command.typer.echo, []

    def checkpoints():
        return len(list(tmp_path.glob("out/quick/unfinished/noise/*/seed000/checkpoint.safetensors")))

    def kill_and_interrupt():
        try:
            until(lambda: checkpoints() == 2)
            kill(connected, connected.second)
            until(lambda: any("died" in line for line in lines))
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(command.typer, "echo", lambda line: lines.append(line) or echo(line))
    with quick_cells("small", epochs=60, rampup_epochs=10, rampdown_epochs=10):
        thread = threading.Thread(target=kill_and_interrupt)
        thread.start()
        code, said, _ = typed(*words)
        thread.join()
        assert said.count("its node or process died; starting it again.") == 1
        assert code == 130
        assert said.splitlines()[-1].endswith(" missing. Run it again to continue.")
        code, said, _ = typed(*words)
        assert (code, "continues after epoch" in said) == (0, True), said
        tasks, expected = in_one_process(tmp_path / "one", "temporal-0,temporal-20", [0])
    assert records(tmp_path / "out/quick", tasks) == expected


def until(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
