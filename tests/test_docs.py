"""Every Python block of README and docs runs."""

import re
import warnings
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCKS = [
    (page, number, code)
    for page in PAGES
    for number, code in enumerate(
        re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL), start=1
    )
]


def test_there_are_blocks():
    assert {page.name for page, _, _ in BLOCKS} >= {"README.md", "data.md", "runs.md", "extending.md"}


@pytest.mark.parametrize(
    ("page", "number", "code"), BLOCKS, ids=[f"{page.name}-{number}" for page, number, _ in BLOCKS]
)
def test_the_block_runs(page, number, code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # a reader sees warnings and goes on
        exec(compile(code, f"{page.name}, block {number}", "exec"), {"__name__": "__main__"})


def test_the_loop_of_ones_own_learns_more_from_the_ensemble():
    """The example is not only run: it classifies the unlabeled rows far better than chance."""
    code = next(code for page, _, code in BLOCKS if page.name == "extending.md" and "EnsembleTargets" in code)
    assert len([line for line in code.splitlines() if line.strip()]) <= 26
    names: dict = {}
    import torch

    torch.manual_seed(0)
    exec(compile(code, "extending.md", "exec"), names)
    known = names["ensemble"].all()
    assert known.known.all()
    unlabeled = ~names["labelled"]
    right = (known.probabilities.argmax(dim=1) == names["y"])[unlabeled].float().mean()
    assert right > 0.8
