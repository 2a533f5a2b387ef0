"""The command: plans the cases, gives them to workers, and writes down what came of them."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import math
import multiprocessing
import os
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from selfens.core.device import environment
from tests.soak.readers import READERS
from tests.soak.runs import DISK, Answer
from tests.soak.worker import Worker

ROOT = Path(__file__).parents[2]
FULL = {"kills": 300, "pairs": 120, "disk": 1, "files": 20_000}
ENVIRONMENT = ("OMP_NUM_THREADS", "SELFENS_OFFLINE", "NO_COLOR", "PYTHONDONTWRITEBYTECODE")
KILLS_OF_A_RUN = 2.5  # on average


def missing(wanted: dict[str, int], done: dict[str, Answer]) -> list[str]:
    """The cases to do, as far as they are known: how many runs take all kills, and how often a command writes, turns out."""
    runs = sum(case.startswith("kills/") for case in done)
    left = max(wanted["kills"] - sum(answer.get("kills", 0) for answer in done.values()), 0)
    cases = [f"kills/{place}" for place in range(runs, runs + math.ceil(left / KILLS_OF_A_RUN))]
    cases += [f"pairs/{place}" for place in range(wanted["pairs"])]
    for command in DISK if wanted["disk"] else []:
        writes = done.get(f"disk/{command}", {}).get("writes", 0)
        cases += [f"disk/{command}", *(f"disk/{command}/{room}" for room in range(writes))]
    names = list(READERS)
    cases += [f"files/{names[place % len(names)]}/{place // len(names)}" for place in range(wanted["files"])]
    return [case for case in cases if case not in done]


def soak(folder: Path, seed: int, wanted: dict[str, int], jobs: int) -> dict[str, Any]:
    """Do what is missing; what is done has a line of done.jsonl. Returns the summary."""
    about, own, done = folder / "about.json", threading.local(), folder / "done.jsonl"
    mine = {"commit": commit(), "seed": seed, "environment": environment(torch.device("cpu"), "fp32")}
    if not about.exists() or json.loads(about.read_text()) != mine:
        say(f"begun in {folder}{', which was of another commit' if about.exists() else ''}")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        about.write_text(json.dumps(mine))
    answers: dict[str, Answer] = {}
    for line in done.read_text().splitlines() if done.exists() else []:
        with contextlib.suppress(ValueError):  # cut short by a kill: that case is done again
            answers[json.loads(line)["case"]] = json.loads(line)
    done.write_text("".join(json.dumps(answer) + "\n" for answer in answers.values()))
    say(f"{len(answers):,} cases are done already")

    def ask(case: str) -> Answer:
        if not hasattr(own, "worker"):
            own.worker = Worker(folder / threading.current_thread().name, seed)
        return own.worker.ask(case)

    while todo := missing(wanted, answers):
        with ThreadPoolExecutor(jobs, "worker") as pool, open(done, "a") as file:
            shown = 0.0
            for number, answer in enumerate(pool.map(ask, todo), start=1):
                answers[answer["case"]] = answer
                file.write(json.dumps(answer) + "\n")
                file.flush()
                if answer["outcome"].startswith("finding"):
                    say(f"{answer['case']}: {answer['outcome'][:300]}")
                if time.monotonic() - shown > 10 or number == len(todo):
                    shown = time.monotonic()
                    say(f"{number:,} of {len(todo):,} cases; now {answer['case']}")
    return mine | summary(answers)


def summary(answers: dict[str, Answer]) -> dict[str, Any]:
    outcomes: dict[str, Counter[str]] = {}
    for case, answer in answers.items():
        part, which = case.split("/")[:2]
        name = f"{part}/{which}" if part in ("files", "disk") else part
        outcomes.setdefault(name, Counter())[answer["outcome"].partition(":")[0]] += 1
    cases = Counter(case.split("/")[0] for case in answers)
    return {
        "kills": sum(answer.get("kills", 0) for answer in answers.values()),
        "cases": cases,
        "seconds_of_all_cases": round(sum(answer["seconds"] for answer in answers.values())),
        "outcomes": dict(sorted(outcomes.items())),
        "findings": [answer for answer in answers.values() if answer["outcome"].startswith("finding")],
    }


def commit() -> str:
    """The commit, and a hash of what was changed since."""
    words = (["rev-parse", "HEAD"], ["diff", "HEAD", "--", "selfens", "tests"])
    there, changes = (
        subprocess.run(["git", *each], cwd=ROOT, capture_output=True, check=False).stdout for each in words
    )
    return there.decode().strip() + (f" and changes {hashlib.sha256(changes).hexdigest()[:8]}" if changes else "")


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak", description="Kills, pairs, full disks, damaged files."
    )
    for part, count in FULL.items():
        parser.add_argument(f"--{part}", type=int, default=count)
    parser.add_argument("--jobs", type=int, default=2, help="cases at a time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--work", type=Path, default=ROOT / "build/soak", help="where cases run, and what is done is kept"
    )
    parser.add_argument("--only", metavar="CASE", help="do one case again, in WORK/only")
    given = parser.parse_args()
    wanted, work = {part: getattr(given, part) for part in FULL}, given.work.absolute()
    os.environ |= dict.fromkeys(ENVIRONMENT, "1")
    multiprocessing.get_context("forkserver").set_forkserver_preload(["tests.soak.worker", "matplotlib.font_manager"])
    if given.only:
        say(json.dumps(Worker(work / "only", given.seed).ask(given.only), indent=1))
        return 0
    found = soak(work, given.seed, wanted, given.jobs)
    output = ROOT / "results/soak.json" if all(wanted[part] >= FULL[part] for part in FULL) else work / "soak.json"
    output.write_text(json.dumps(found, indent=1) + "\n")
    say(f"{sum(found['cases'].values()):,} cases, {len(found['findings'])} findings; written to {output}")
    return 1 if found["findings"] else 0


if __name__ == "__main__":
    sys.exit(main())
