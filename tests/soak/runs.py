"""Runs that are killed, run out of disk or meet another process: in the end the bits are those of a run left in peace."""

from __future__ import annotations

import builtins
import errno
import io
import os
import re
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from support import SMALL_IMAGES, child, config, contents, differences, finish, left_behind, run_cli, train_arguments

import selfens
from selfens.data import journal
from tests.soak.readers import complaint, made, make_photos, make_run

EPOCHS = 60  # about a second
KILLS_AT_MOST = 3  # of one run
EACH, SPLIT = "training.checkpoint_every=1", ("training.labeled_per_batch=4", "training.batch_size=14")
VARIANTS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "supervised": ("supervised", "data.npz", ()),
    "temporal": ("temporal", "data.npz", (EACH,)),
    "photos": ("pi", "photos", (EACH, *SMALL_IMAGES, "labels.count=none", "source.size=8", "training.batch_size=4")),
    "mean-teacher": ("mean-teacher", "data.npz", ("training.checkpoint_every=7", "optimizer.name=adamw")),
    "temporal-split": ("temporal", "data.npz", SPLIT),
    "fixmatch": ("fixmatch", "data.npz", (EACH, *SPLIT, "optimizer.name=sgd", "method.alignment=labels")),
    "committee": ("committee", "data.npz", (EACH,)),
    "temporal-teacher": ("temporal-teacher", "data.npz", (EACH, "schedule.name=cosine")),
}
"""A method, its data and other settings: every method, and images that must be decoded. Most write a checkpoint after each
epoch, some only at the beginning and the end."""

Answer = dict[str, Any]


def start(folder: Path, words: Sequence[str], room: int | None = None, output: str = "said") -> Any:
    """A command in a process of its own."""
    process = child(folder.parent / output, typed, folder, words, room)
    process.output = folder.parent / output
    return process


def typed(folder: Path, words: Sequence[str], room: int | None) -> None:
    os.chdir(folder)
    if room is not None:
        fill_disk(room, folder.parent / "writes")
    run_cli(words)


def ended(process: Any) -> tuple[int, str]:
    return finish(process, 100), process.output.read_text()


def train_words(variant: str, run: Path, epochs: int = EPOCHS) -> list[str]:
    method, source, overrides = VARIANTS[variant]
    settings = config(method, *overrides, name=str(run.parent / source), epochs=epochs)
    return [*train_arguments(run.parent / source, run, settings), "--quiet", "--no-report"]


def words_to_go_on(train: list[str], run: Path) -> list[str]:
    """What a user types: resume if there is a run, else the same as before."""
    return ["resume", str(run), "--quiet", "--no-report"] if (run / "config.json").exists() else train


def in_peace(variant: str, scratch: Path, epochs: int = EPOCHS) -> dict[str, Any]:
    """What a run left behind that nothing happened to. In the scratch folder are its data, and a run that crashed."""

    def make(folder: Path) -> None:
        make_run(folder)
        make_photos(folder)
        (folder / "run").rename(folder / "half")
        code, said = ended(start(folder, train_words(variant, folder / "whole", epochs)))
        assert code == 0, said

    made(f"{variant}-{epochs}", make, scratch)
    return left_behind(scratch / "whole")


def verdict(train: list[str], run: Path, expected: dict[str, Any]) -> str:
    """Finish the run if it is not, and compare it."""
    code, said = ended(start(run.parent, words_to_go_on(train, run)))
    if code:
        return f"finding: it could not be finished: exit code {code}, {said[-600:]!r}"
    if different := differences(left_behind(run), expected):
        return f"finding: not the same bits: {different[:6]}"
    litter = [path.name for path in run.iterdir() if path.name.startswith(".")]
    return f"finding: left over in the run: {litter}" if litter else "the same bits"


def seconds_of(run: Path) -> float:
    return 0.2 + sum(record["seconds"] for record in selfens.load_run(run, device="cpu").history)


def killed(words: list[str], random: Random, scratch: Path) -> Answer:
    """Kill a run at random moments, from its first instant on, and go on until it is finished."""
    variant, run, moments = list(VARIANTS)[int(words[0]) % len(VARIANTS)], scratch / "run", []
    expected, train = in_peace(variant, scratch), train_words(variant, run)
    code, said, history = -signal.SIGKILL, "", run / "history.jsonl"
    while code == -signal.SIGKILL:
        done = len(history.read_bytes().splitlines()) / EPOCHS if history.exists() else 0
        moment = random.uniform(0, seconds_of(scratch / "whole") * (1.1 - done))
        process = start(scratch, words_to_go_on(train, run))
        if len(moments) < KILLS_AT_MOST:
            process.join(moment)
            process.kill()
        code, said = ended(process)
        moments += [round(moment, 3)] if code == -signal.SIGKILL else []
    outcome = f"finding: exit code {code}: {said[-600:]!r}" if code else verdict(train, run, expected)
    return {"outcome": outcome, "kills": len(moments), "moments": moments, "variant": variant}


def together(words: list[str], random: Random, scratch: Path) -> Answer:
    """Two processes want one run, or one reads what the other trains; sometimes the first is killed."""
    number, run = int(words[0]), scratch / "run"
    variant, kind = list(VARIANTS)[number // 4 % len(VARIANTS)], ["train", "resume", "evaluate", "both"][number % 4]
    expected, train = in_peace(variant, scratch), train_words(variant, run)
    first, second = train, train if kind == "train" else [kind, str(run)]
    if kind == "both":
        process = start(scratch, train)
        while process.is_alive() and not (run / "history.jsonl").exists():
            time.sleep(0.005)
        process.kill()
        process.join()
        first = second = ["resume", str(run)]
    seconds = seconds_of(scratch / "whole")
    processes = [start(scratch, first, output="said-1")]
    time.sleep(random.choice([0.0, random.uniform(0, seconds)]))
    processes.append(start(scratch, second, output="said-2"))
    if random.random() < 0.25:
        time.sleep(random.uniform(0, seconds))
        processes[0].kill()
    ends = [ended(process) for process in processes]
    wrong = [text for code, said in ends if code != -signal.SIGKILL and (text := complaint(code, said))]
    if not wrong and {code for code, _ in ends} == {1}:
        wrong = [f"neither succeeded: {ends}"]
    outcome = f"finding: {wrong[0]}" if wrong else verdict(train, run, expected)
    return {"outcome": outcome, "second": kind, "variant": variant}


DISK: dict[str, tuple[str, list[str]]] = {
    "train": ("temporal", ["--report"]),
    "train-photos": ("photos", []),
    "train-tensorboard": ("temporal", ["--tensorboard"]),
    "resume": ("half", ["--quiet", "--no-report"]),
    "report": ("half", ["-o", "page.html"]),
    "predict": ("half", ["--training-rows", "-o", "rows.csv"]),
    "audit": ("half", ["-o", "issues.csv"]),
    "suggest": ("half", ["-o", "rows.csv"]),
    "export": ("half", ["-o", "model.onnx"]),
}
"""Commands that write: a variant to train, or what to do with the run that crashed; and options."""


def full_disk(words: list[str], random: Random, scratch: Path) -> Answer:
    """`disk/COMMAND` counts the writes of a command, `disk/COMMAND/3` lets the disk be full after three of them."""
    name, room = words[0], int([*words, "1000000"][1])
    variant, options = DISK[name]
    expected = in_peace("temporal" if variant == "half" else variant, scratch, 3)
    run = scratch / ("half" if variant == "half" else "run")
    typed = [name, str(run), *options] if variant == "half" else [*train_words(variant, run, 3), *options]
    before = contents(scratch)
    code, said = ended(start(scratch, typed, room))
    writes, after = int((scratch.parent / "writes").read_text()), contents(scratch)
    may_change = ("half/checkpoint.safetensors", "half/history.jsonl") if name == "resume" else ()
    lost = [file for file in before if after.get(file) != before[file] and file not in may_change]
    litter = [str(path.relative_to(scratch)) for path in scratch.rglob(".*") if not path.name.endswith(journal.NAME)]
    wrong = complaint(code, said)
    if not wrong and (lost or litter):
        wrong = f"lost: {lost}; left over: {litter}"
    if not wrong and code and not re.search("disk is full|No space left|temporary dir", said):
        wrong = f"it does not say that the disk is full: {said!r}"
    if not wrong and variant == "half" and name != "resume":  # with room again
        code, said = ended(start(scratch, typed))
        wrong = complaint(code or 0, said) or (f"refused with room: {said!r}" if code else None)
    outcome = f"finding: {wrong}" if wrong else "the same with room"
    if not wrong and (variant != "half" or name == "resume"):
        outcome = verdict(typed, run, expected)
    return {"outcome": outcome, "writes": writes}


def fill_disk(room: int, count: Path) -> None:
    """From now on count what needs room in this process, and let there be none after so many: a file opened for writing, bytes
    handed to the system, a flush, a folder, a rename."""
    genuine, counter = builtins.open, os.open(count, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    write, writes = os.pwrite, 0

    def check(*_: Any) -> None:
        nonlocal writes
        writes += 1
        write(counter, str(writes).encode(), 0)
        if writes > room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    class File(io.FileIO):
        def write(self, data: Any) -> int:
            half = len(data) // 2  # a disk takes what it has room for
            super().write(bytes(data)[:half])
            check()
            return half + super().write(bytes(data)[half:])

    def opened(file: Any, mode: str = "r", buffering: int = -1, *text: Any, **named: Any) -> Any:
        if not set(mode) & set("wax+") or isinstance(file, int):
            return genuine(file, mode, buffering, *text, **named)
        check()
        raw = File(file, re.sub("[bt]", "", mode))
        if buffering == 0:
            return raw
        buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, *text, **named)

    def counted(call: Any) -> Any:
        return lambda *words, **named: (check(), call(*words, **named))[1]

    builtins.open = io.open = opened
    for name in ("write", "pwrite", "fsync", "mkdir", "rename", "replace", "ftruncate"):
        setattr(os, name, counted(getattr(os, name)))
