"""The command `compare`: several methods on the same labels and the same rows."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
from support import blobs, write_npz

from selfens import load_run
from selfens.runs.evidence import Evidence
from selfens.tools.baselines import CHANCE, LOGISTIC
from selfens.tools.ranking import Ranking

TINY = ("--set", "schedule.epochs=2", "--set", "training.threads=1", "--device", "cpu", "--quiet")


def wrong_of(run):
    return run.evidence.probabilities.argmax(axis=1) != run.evidence.labels


def table_of(out):
    """Name and error of each line."""
    return dict(re.findall(r"^(\S.*?)  +(\d+\.\d\d)  +[\d.]+ to", out, re.MULTILINE))


def test_methods_are_ranked_on_the_same_test_rows_beside_simple_ones(typed, tmp_path):
    data = write_npz(tmp_path / "data.npz")
    code, out, err = typed("compare", data, "--methods", "supervised,pi,elr", *TINY)
    assert (code, err) == (0, "")
    runs = {name: load_run(tmp_path / "runs" / "data-compare" / name) for name in ("supervised", "pi", "elr")}
    assert len({run.labels.to_json() for run in runs.values()}) == 1
    found = table_of(out)
    assert {LOGISTIC, CHANCE, *runs} < set(found)
    assert [*map(float, found.values())] == sorted(map(float, found.values()))
    for name, run in runs.items():
        assert float(found[name]) == pytest.approx(run.test_error, abs=0.006)
    best = re.search(r"^(\S+) .*best method$", out, re.MULTILINE)[1]
    assert float(found[best]) == min(float(found[name]) for name in runs)
    assert "All on the same 20 labels and the same 30 test rows." in out
    assert (tmp_path / "runs" / "data-compare" / "report.html").is_file()
    np.save(tmp_path / "new.npy", blobs(5)[0])
    assert typed("predict", tmp_path / "runs" / "data-compare" / best, "new.npy", "-o", "out.csv")[0] == 0


def test_without_test_rows_methods_are_judged_by_the_same_folds(typed, tmp_path):
    data = write_npz(tmp_path / "data.npz", x_test=None, y_test=None)
    code, out, _ = typed("compare", data, "--methods", "supervised,temporal", "--run-dir", "both", *TINY)
    assert code == 0
    runs = {name: load_run(tmp_path / "both" / name) for name in ("supervised", "temporal")}
    one, other = (run.evidence for run in runs.values())
    assert one.folds == other.folds == 5
    assert np.array_equal(one.rows, other.rows)
    assert one.others.keys() == other.others.keys()
    assert "20 labeled rows, by the same 5 folds" in out
    assert not (tmp_path / "both" / "report.html").exists()  # it would show losses instead of errors
    ranking = Ranking(runs)
    few, many = sorted(runs, key=lambda name: wrong_of(runs[name]).sum())
    assert wrong_of(runs[ranking.best]).sum() == wrong_of(runs[few]).sum() <= wrong_of(runs[many]).sum()
    assert [result.error for result in ranking.results] == sorted(result.error for result in ranking.results)


def made_up(wrong, seconds, rows=200, others=()):
    """What is read of a run that misclassifies that many rows of two classes, and of simple methods likewise."""
    labels = np.arange(rows) % 2
    classes = [np.where(np.arange(rows) < count, 1 - labels, labels) for count in (wrong, *dict(others).values())]
    evidence = Evidence.of(
        rows=np.arange(rows),
        labels=labels,
        probabilities=np.eye(2, dtype=np.float32)[classes[0]],
        others=dict(zip(dict(others), classes[1:], strict=True)),
        suggested=np.zeros(rows, bool),
    )
    history = [{"epoch": 0, "seconds": seconds}]
    return SimpleNamespace(
        evidence=evidence, history=history, labels=SimpleNamespace(rows=np.arange(8)), input_shape=(3,)
    )


def test_a_difference_is_claimed_only_if_chance_does_not_explain_it():
    simple = {LOGISTIC: 2, CHANCE: 100}
    runs = {"a": made_up(42, 9.0), "b": made_up(40, 5.0, others=simple), "c": made_up(40, 3.0, others=simple)}
    runs["d"] = made_up(80, 1.0)
    ranking = Ranking(runs)
    assert ranking.best == "c"  # as good as b, but quicker
    remarks = {line[:24].strip(): line.split("  ")[-1].strip() for line in ranking.lines[1:-1]}
    names = [LOGISTIC, "c", "b", "a", "d", CHANCE]
    assert [*remarks] == names
    assert [remarks[name] for name in names[:4]] == ["better", "best method", "may be as good", "may be as good"]
    assert not {remarks[name] for name in names[4:]} & {"better", "best method", "may be as good"}
    assert [ranking.seconds(name) for name in ("c", "d", LOGISTIC)] == [3.0, 1.0, None]


def test_a_method_that_cannot_be_trained_is_left_out_with_its_reason(typed, tmp_path):
    data = write_npz(tmp_path / "data.npz")
    words = ("--methods", "supervised,pi,committee", "--set", "network.name=small", "--no-report", *TINY)
    code, out, err = typed("compare", data, *words)
    assert (code, out) == (1, "")
    assert err.count("is left out: ") == 3
    assert "none of the methods could be trained" in err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--methods", "pi"), "pi was given; name two methods or more to compare"),
        (("--methods", "pi,temporl"), "no method 'temporl'; did you mean 'temporal'"),
        (("--time-limit", "0.5"), "--time-limit is 0.5 s, but starting"),
        (("--labels", "3", "--labels-file", "a.csv"), "--labels and --labels-file were both given"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_is_trained(typed, tmp_path, words, sentence):
    code, out, err = typed("compare", write_npz(tmp_path / "data.npz"), *words)
    assert (code, out) == (1, "")
    assert sentence in err
    assert not [*tmp_path.glob("runs/*/*")]
