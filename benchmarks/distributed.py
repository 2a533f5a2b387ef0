"""Throughput of two processes against one, on CPU cores: temporal ensembling, network `small` on 32x32 images.

    python benchmarks/distributed.py [--alternations 5] [--output results/benchmarks/distributed.json]

Each process has one thread and batches of 100. The cores should be idle: the load before each turn is recorded.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import socket
import statistics
import time
from pathlib import Path

import torch

from selfens import presets
from selfens.bench import build, random_images, settings, write_json
from selfens.core.device import environment
from selfens.training.distributed import process_group

CPU = torch.device("cpu")
WARM_UP, STEPS, ROWS = 3, 20, 4000


def work(rank: int, size: int, port: int, answers: multiprocessing.Queue) -> None:
    """One process: its share of the training; the first one reports how many images per second all of them trained on."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    data = random_images(ROWS)
    config = presets.get("digits-temporal").with_overrides(["training.threads=1", "preprocess.kind=channel"])
    with process_group(CPU) as group, settings(config, CPU, seed=rank):
        parts = build(config, data, CPU, [], group)
        order = parts.loader.order(0)
        for number in range(WARM_UP + STEPS):
            if number == WARM_UP:
                group.barrier()
                began = time.perf_counter()
            parts.step(order[number % len(order)])
        group.barrier()
        if group.is_first:
            answers.put(size * STEPS * parts.loader.batch_size / (time.perf_counter() - began))


def throughput(size: int) -> float:
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    processes = [context.Process(target=work, args=(rank, size, port, answers)) for rank in range(size)]
    for process in processes:
        process.start()
    result = float(answers.get(timeout=300))
    for process in processes:
        process.join()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--alternations", type=int, default=5)
    parser.add_argument("--output", type=Path, default=Path("results/benchmarks/distributed.json"))
    options = parser.parse_args()
    turns = []
    for _ in range(options.alternations):
        load = os.getloadavg()[0]
        one, two = throughput(1), throughput(2)
        turns.append({"one": one, "two": two, "ratio": two / one, "load_before": load})
        print(
            f"one process {one:,.0f} images/s, two {two:,.0f}: {two / one:.2f} times (load before {load:.1f})",
            flush=True,
        )
    ratio = statistics.median(turn["ratio"] for turn in turns)
    print(f"median {ratio:.2f}")
    result = {"environment": environment(CPU, "fp32"), "turns": turns, "median_ratio": ratio}
    write_json(options.output, result)


if __name__ == "__main__":
    main()
