"""Runs on a Ray cluster: one task for each run, placed by Ray where the CPUs and GPUs that it needs are free.

Ray is imported only in the functions of this module. Nodes need not share a folder with the command: a task gets the files of
its run, works in a temporary folder on its node, and sends its output and each new checkpoint back through a queue that lives
on the command's node. If a node dies, its runs start again from the last checkpoints that arrived.
"""

from __future__ import annotations

import hashlib
import logging
import os
import pickle
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack, redirect_stderr, redirect_stdout, suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from selfens.errors import ConfigError, DataError, SelfensError, plural, require, root_cause

CONNECT_SECONDS = 5.0
PROBE_SECONDS = 15.0  # for Ray to be imported, and to answer
STOP_SECONDS = 60.0  # for a step and a checkpoint, after Ctrl-C
SNAPSHOT_SECONDS, SNAPSHOT_SHARE = 1.0, 20  # sending checkpoints takes at most a twentieth of the time
CHECKPOINT = "checkpoint.safetensors"
Files = dict[str, bytes]
"""The content of files, by their path below a folder."""


class Cluster:
    """The `pool.Workers` of a Ray cluster: a context manager that connects this process to it.

    A process that is already connected, such as a notebook's, uses and keeps its connection.

    Parameters
    ----------
    address
        HOST:PORT, ray://HOST:PORT, or `auto` for the cluster that RAY_ADDRESS names or that runs on this machine.
    gpus
        GPUs per run, at most 1; with 0.5, two runs share one. By default 1 if the cluster has any, else 0.
    say
        Prints a line.
    """

    retries = 3

    def __init__(self, address: str, gpus: float | None, say: Callable[[str], None]) -> None:
        if gpus is not None and not 0 <= gpus <= 1:
            raise ConfigError(f"--gpus is {gpus:g}; expected the fraction of a GPU that a run gets, from 0 to 1.")
        self.address, self.wanted, self.say = address, gpus, say
        self.running: dict[Future[bool], tuple[int, ExitStack]] = {}
        self.tasks: dict[
            int, tuple[Any, Path]
        ] = {}  # for each running task: Ray's reference, and the folder of its run
        self.started = 0
        self._queue: Any = None

    # The connection

    def __enter__(self) -> Cluster:
        require("ray", "--ray")
        import ray

        self.is_ours = not ray.is_initialized()
        self.name = connect(self.address) if self.is_ours else ray.get_runtime_context().gcs_address
        if self.address not in ("auto", self.name):
            raise ConfigError(
                f"this process is connected to the Ray cluster {self.name} already; leave out the address."
            )
        gone = ray.exceptions
        self.lost = gone.NodeDiedError, gone.WorkerCrashedError, gone.LocalRayletDiedError, gone.OutOfMemoryError
        try:
            self.nodes = [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
            self.gpus = self._gpus()
        except BaseException:
            self.__exit__()
            raise
        self.work = ray.remote(max_retries=0)(_work)
        return self

    def __exit__(self, *exception: object) -> None:
        import ray

        if self._queue is not None:
            self._queue.shutdown(force=True)
        if self.is_ours:
            ray.shutdown()

    @property
    def queue(self) -> Any:
        """The queue for what tasks send, in a process on the command's node."""
        import ray
        from ray.util.queue import Queue

        if self._queue is None:
            here = ray.get_runtime_context().get_node_id()
            self._queue = Queue(actor_options={"num_cpus": 0, "scheduling_strategy": _on(here)})
        return self._queue

    def _total(self, resource: str) -> float:
        return float(sum(node["Resources"].get(resource, 0) for node in self.nodes))

    def _gpus(self) -> float:
        """Return how many GPUs each run gets."""
        if self.wanted and not self._total("GPU"):
            raise ConfigError(
                f"a GPU was asked for, and none of the {plural(len(self.nodes), 'node')} of the Ray cluster {self.name} "
                "has one; start a node with GPUs, or use the CPUs: --gpus 0."
            )
        return min(1.0, self._total("GPU")) if self.wanted is None else self.wanted

    @property
    def device(self) -> str:
        """The device of each run: `cpu`, or 0, which is the only GPU that Ray lets it see."""
        return "0" if self.gpus else "cpu"

    def describe(self, count: int, noun: str = "run") -> str:
        totals = f"{self._total('CPU'):g} CPUs and {self._total('GPU'):g} GPUs"
        nodes = plural(len(self.nodes), "node")
        each = f"{self.gpus:g} of a GPU each" if 0 < self.gpus < 1 else "a GPU each" if self.gpus else "no GPU"
        return f"Ray cluster {self.name}: {nodes} with {totals}; {plural(count, noun)}, {each}"

    def _options(self, threads: int | None) -> dict[str, Any]:
        return {"num_cpus": threads or 1, "num_gpus": self.gpus}

    def check(self, jobs: Sequence[Any], threads: int | None = None) -> None:
        """Raise an error unless the nodes have our versions, and have the data of the runs or can download them.

        Parameters
        ----------
        threads
            CPU threads of a task that is not one of the jobs.
        """
        import ray

        cpus = max([threads or 1, *(job.threads or 1 for job in jobs)])
        able = [
            node
            for node in self.nodes
            if node["Resources"].get("CPU", 0) >= cpus and node["Resources"].get("GPU", 0) >= self.gpus
        ]
        if not able:
            what = f"{plural(cpus, 'CPU')} and {self.gpus:g} GPUs" if self.gpus else plural(cpus, "CPU")
            raise ConfigError(
                f"no node of the Ray cluster {self.name} has {what}, which a run needs; start such a node."
            )
        ours, data = versions(), pickle.dumps(list({repr(job.data): job for job in jobs}.values()))

        def probe(expected: dict[str, str], jobs: bytes) -> tuple[dict[str, str], str]:
            try:  # imports are inside, because this function is sent to nodes where selfens may be missing
                import pickle

                from selfens.errors import SelfensError
                from selfens.experiments.cluster import versions

                found = versions()
            except ImportError as error:
                return dict.fromkeys(expected, f"none that can be imported ({error})"), ""
            try:
                if found == expected:
                    for job in pickle.loads(jobs):
                        job.check_data()
            except SelfensError as error:
                return found, str(error)
            return found, ""

        task = ray.remote(num_cpus=0, max_retries=0)(probe)
        asked = {
            node["NodeManagerAddress"] + f" ({node['NodeID'][:6]})": task.options(
                scheduling_strategy=_on(node["NodeID"])
            ).remote(ours, data)
            for node in able
        }
        for name, ref in asked.items():
            try:
                theirs, problem = ray.get(ref)
            except ray.exceptions.RayTaskError as error:
                raise ConfigError(f"node {name} cannot run selfens ({root_cause(error)}).") from None
            except ray.exceptions.RayError as error:  # it has died since
                self.say(f"warning: node {name} does not answer ({type(error).__name__}); continuing without it.")
                continue
            for package, version in ours.items():
                if theirs[package] != version:
                    raise ConfigError(
                        f"node {name} has {package} {theirs[package]}, and this machine has {version}; install the same "
                        "on all nodes."
                    )
            if problem:
                raise DataError(f"node {name}: {problem}")

    # One task for each run

    def has_room(self) -> bool:
        return True  # Ray queues the rest

    def start(self, job: Any, root: Path) -> Future[bool] | None:
        stack = ExitStack()
        if not stack.enter_context(job.claimed(root)) or job.is_done(root):
            stack.close()
            return None
        number = self.started = self.started + 1
        shared = 0 < self.gpus < 1 or not self.gpus  # runs on CPUs share their node
        files = pack(root, job.kept(root))
        # Always the same function, so that Ray reuses its processes.
        task = self.work.options(**self._options(job.threads))
        ref = task.remote(self.queue, number, job, str(root), files, self.device, shared, _commit())
        future: Future[bool] = ref.future()
        self.running[future], self.tasks[number] = (number, stack), (ref, root)
        return future

    def poll(self) -> None:
        """Print the output that tasks have sent, and write their checkpoints."""
        for number, item in self.queue.get_nowait_batch(self.queue.qsize()):
            if number not in self.tasks:
                continue  # from a node that was given up
            if isinstance(item, str):
                self.say(item)
            else:
                unpack(item, self.tasks[number][1])

    def ended(self, future: Future[bool]) -> None:
        self.poll()  # the task sent its last files before it ended
        number, stack = self.running.pop(future)
        del self.tasks[number]
        stack.close()

    def stop(self, running: Collection[Future[bool]]) -> None:
        """Interrupt all tasks, wait until they have sent their last checkpoint, and kill those that do not end."""
        import ray

        refs = {future: self.tasks[self.running[future][0]][0] for future in running}
        for future, ref in refs.items():
            if not future.done():
                ray.cancel(ref)
        deadline = time.monotonic() + STOP_SECONDS
        while wait(refs, 0.2).not_done and time.monotonic() < deadline:
            self.poll()
        for future, ref in refs.items():
            if not future.done():
                ray.cancel(ref, force=True)
            self.ended(future)

    # One task for each item of a list

    def map(self, function: Callable[[Any], Any], items: Iterable[Any], *, threads: int | None = None) -> Iterator[Any]:
        """Like the built-in map, with a task for each item. Ray repeats the items of a node that died."""
        import ray

        task = ray.remote(max_retries=self.retries, **self._options(threads))(_call)
        shared = ray.put(function)  # it may hold a data set
        refs = [task.remote(shared, item) for item in items]
        try:
            for ref in refs:
                result = ray.get(ref)
                if isinstance(result, SelfensError):
                    raise result
                yield result
        except BaseException:  # an interrupt or an error; never by force, which can crash Ray if a task is just ending
            for ref in ray.wait(refs, num_returns=len(refs), timeout=0)[1]:
                ray.cancel(ref)
            raise


def connect(address: str) -> str:
    """Connect to a cluster and return its address. Raise within seconds if it does not answer."""
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS") or "auto"
    import ray

    if address == "auto":
        from ray._private.services import canonicalize_bootstrap_address

        try:
            address = canonicalize_bootstrap_address("auto") or "auto"
        except ConnectionError:
            raise ConfigError(
                "no Ray cluster was found: RAY_ADDRESS is not set, and none runs on this machine; start one with "
                "'ray start --head', or name one: --ray HOST:PORT."
            ) from None
    found = re.fullmatch(r"(?:ray://)?\[?([^/\s]+?)\]?:(\d{1,5})", address)
    if not found:
        raise ConfigError(f"--ray is '{address}'; expected HOST:PORT, such as 10.0.0.1:6379, or ray://HOST:10001.")
    if problem := _why_unreachable(found[1], int(found[2]), address.startswith("ray://")):
        raise ConfigError(
            f"no Ray cluster answers at {address} ({problem}); check the address, and that 'ray status' works."
        )
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.CRITICAL)
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"the Ray cluster at {address} answers, but rejects this process ({root_cause(error)}); it must be "
            "on a node of the cluster, or use ray://HOST:10001, and have the same versions of Python and Ray."
        ) from None
    return address


def _why_unreachable(host: str, port: int, is_client: bool) -> str:
    """Return why no Ray cluster answers there, or "". (`ray.init` would try for minutes, and print a lot.)"""
    try:
        socket.create_connection((host, port), CONNECT_SECONDS).close()
    except (OSError, UnicodeError) as error:
        return getattr(error, "strerror", None) or str(error)
    if is_client:
        return ""  # Ray's own time limit is half a minute
    words = ["-m", "ray.scripts.scripts", "health-check", "--skip-version-check", "--address", f"{host}:{port}"]
    with suppress(subprocess.TimeoutExpired):
        asked = subprocess.run([sys.executable, *words], capture_output=True, timeout=PROBE_SECONDS)
        return "something else listens there" if asked.returncode == 1 else ""  # 2: a Ray without this command
    return "something else listens there, or it is overloaded"


def versions() -> dict[str, str]:
    """Return the versions that must be the same on all nodes."""
    from selfens import __version__

    package, digest = Path(__file__).parents[1], hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(str(path.relative_to(package)).encode() + path.read_bytes())
    torch = metadata.version("torch").partition("+")[0]  # a build for CPUs may start runs on GPUs
    return {"selfens": f"{__version__} (code {digest.hexdigest()[:8]})", "torch": torch}


def _on(node: str) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node, soft=False)


def _commit() -> str | None:
    from selfens.experiments.worker import current_commit

    return current_commit()


# In a task


def _work(
    queue: Any, number: int, job: Any, root: str, files: Files, device: str, is_shared: bool, commit: str | None
) -> bool:
    """Start or continue a run in a temporary folder on this node, and send its output and its files."""
    from selfens.experiments.pool import work

    if commit is not None:
        os.environ["SELFENS_COMMIT"] = commit  # the node has the same code, but perhaps no git checkout
    with tempfile.TemporaryDirectory(prefix="selfens-") as folder:
        scratch = Path(folder)
        unpack(files, scratch)
        output = _Lines(lambda line: queue.put((number, line.replace(folder, root))))
        sending = _Sending(lambda: queue.put((number, pack(scratch, job.kept(scratch)))), job, scratch)
        try:
            with redirect_stdout(output), redirect_stderr(output), sending:
                return work(job, scratch, device, is_shared)
        finally:
            sending.send()


def _call(function: Callable[[Any], Any], item: Any) -> Any:
    try:
        return function(item)
    except SelfensError as error:  # the command raises it again
        return error


class _Lines:
    """A text stream that forwards complete lines."""

    def __init__(self, put: Callable[[str], None]) -> None:
        self.put, self.rest = put, ""

    def write(self, text: str) -> int:
        *lines, self.rest = (self.rest + text).split("\n")
        for line in lines:
            self.put(line)
        return len(text)

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return False


class _Sending(threading.Thread):
    """A context in which a thread sends the files of a run after each new checkpoint."""

    def __init__(self, send: Callable[[], None], job: Any, scratch: Path) -> None:
        super().__init__(daemon=True)
        self.send, self.job, self.scratch, self.over = send, job, scratch, threading.Event()

    def __enter__(self) -> None:
        self.start()

    def __exit__(self, *exception: object) -> None:
        self.over.set()
        self.join()

    def run(self) -> None:
        sent, pause = self._checkpoints(), SNAPSHOT_SECONDS
        while not self.over.wait(pause):
            if (found := self._checkpoints()) != sent:
                began = time.monotonic()
                self.send()
                sent, pause = found, max(SNAPSHOT_SECONDS, SNAPSHOT_SHARE * (time.monotonic() - began))

    def _checkpoints(self) -> list[int]:
        paths = [path / CHECKPOINT for path in self.job.kept(self.scratch)]
        return [path.stat().st_mtime_ns for path in paths if path.exists()]


# Files


def pack(root: Path, kept: Iterable[Path]) -> Files:
    """Read the files of a run, which may be training. The checkpoint comes first, so that the history is not behind it."""
    found = [file for path in kept for file in (path.rglob("*") if path.is_dir() else [path])]
    files = {}
    for file in sorted(found, key=lambda file: file.name != CHECKPOINT):
        if file.name != "lock" and not file.name.endswith(".tmp") and file.is_file():
            with suppress(FileNotFoundError):
                files[str(file.relative_to(root))] = file.read_bytes()
    return files


def unpack(files: Files, root: Path) -> None:
    """Write files so that a kill at any moment leaves a run that can resume: new folders by renaming, checkpoints last."""
    from selfens.files.tensors import write_atomically, write_errors

    for folder in sorted({(root / name).parent for name in files}):
        inside = {Path(name).name: content for name, content in files.items() if (root / name).parent == folder}
        target = folder if folder.is_dir() else folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
        with write_errors(folder):
            target.mkdir(parents=True, exist_ok=True)
            for name in sorted(inside, key=lambda name: name == CHECKPOINT):
                write_atomically(target / name, inside[name])
            if target != folder:
                os.replace(target, folder)
