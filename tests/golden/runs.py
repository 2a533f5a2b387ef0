"""The golden runs: trained once by the first edition (commit 0db500a), kept in `golden.json`, and compared ever since.

    python -m tests.golden.runs            train them all and compare with golden.json, to the last bit
    python -m tests.golden.runs --write    replace golden.json by what this code computes

Same CPU model and torch: every number of every epoch and every bit of the final weights must be the same. A test
holds the first three epochs to 1e-5 there, and to 1 % on other CPUs, which round otherwise.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import selfens
from selfens import presets
from selfens.config import Config

GOLDEN = Path(__file__).with_name("golden.json")
COMPARED = ("supervised", "unsupervised", "total", "test_error", "learning_rate", "weight", "ensemble_variance")


@dataclass(frozen=True)
class Golden:
    config: Config
    dataset: selfens.Dataset | None = None


def made_up_images() -> selfens.Dataset:
    """Byte images of four textures, too noisy to be separated at once."""
    random = np.random.default_rng(5)
    labels = np.arange(300) % 4
    y, x = np.mgrid[:32, :32]
    textures = np.stack([np.sin(x / 2), np.sin(y / 2), np.sin((x + y) / 3), np.sin((x - y) / 3)])
    images = textures[labels] * 40 + 128 + random.normal(0, 40, (300, 32, 32))
    inputs = images.clip(0, 255).astype(np.uint8)[:, None]
    known = np.where(np.arange(200) < 40, labels[:200], -1)
    return selfens.Dataset.from_arrays(inputs[:200], known, inputs[200:], labels[200:], layout="NCHW")


def golden_runs() -> dict[str, Golden]:
    runs = {
        f"digits-{method}-seed{seed}": Golden(presets.get(f"digits-{method}").with_values("seed", base=seed))
        for method in ("supervised", "pi", "temporal")
        for seed in (0, 1)
    }
    images = made_up_images()
    for method in ("pi", "temporal"):
        config = presets.get(f"cifar10-{method}").with_overrides(
            ["labels.count=all", "network.name=small", "network.mean_momentum=0.9"]
            + ["schedule.epochs=3", "schedule.rampup_epochs=1", "training.batch_size=50", "seed.base=3"]
        )
        runs[f"images-{method}"] = Golden(config, images)
    return runs


def trained(golden: Golden, path: Path) -> dict[str, Any]:
    """The numbers of a run: each epoch's, and a digest of each final weight."""
    config = golden.config.with_overrides(["training.threads=1", "training.device=cpu"])
    run = selfens.train(config, path, dataset=golden.dataset)
    weights = {
        name: hashlib.sha256(tensor.detach().cpu().contiguous().numpy().tobytes()).hexdigest()
        for name, tensor in sorted(run.network.state_dict().items())
    }
    return {"history": [numbers(record) for record in run.history], "weights": weights}


def numbers(record: dict[str, Any]) -> dict[str, Any]:
    return {name: record.get(name) for name in COMPARED}


def environment() -> dict[str, str]:
    with open("/proc/cpuinfo") as lines:
        names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return {"cpu": names[0] if names else "unknown", "torch": torch.__version__}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="replace golden.json")
    parser.add_argument("--only", help="runs whose name contains this")
    options = parser.parse_args()
    torch.set_num_threads(1)  # training.threads does not reach the fit of ZCA
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, golden in golden_runs().items():
            if options.only is None or options.only in name:
                found[name] = trained(golden, Path(folder) / name)
                print(name, found[name]["history"][-1]["test_error"], flush=True)
    if options.write:
        GOLDEN.write_text(json.dumps({"environment": environment(), "runs": found}, indent=1) + "\n")
        return 0
    kept = json.loads(GOLDEN.read_text())
    different = [name for name in found if found[name] != kept["runs"][name]]
    print("environment", environment(), "kept from", kept["environment"])
    print(f"differ: {', '.join(different)}" if different else f"all {len(found)} runs are the same to the last bit")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
