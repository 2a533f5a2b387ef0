"""Tables as found in the wild: CSV and Parquet files, and DataFrames. Needs the extra `tables`."""

import csv
import json
import pickle
import re
import sys
from datetime import date

import numpy as np
import pytest
import torch
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_iris
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from support import left_behind
from torch import nn

from selfens import auto, encoders, load_run
from selfens.data import sources
from selfens.data.cells import as_numbers
from selfens.data.frames import check_frame, has_decimal_comma, read_frame
from selfens.encoders import ENCODERS
from selfens.errors import DataError, MissingPackageError, RunError, SelfensWarning
from selfens.estimator import SelfEnsemblingClassifier
from selfens.training.loop import train
from selfens.training.prepare import prepare
from selfens.training.progress import Progress

pandas = pytest.importorskip("pandas")

QUICK = ("--epochs", "3", "--quiet", "--no-report")
SMALL = {"network.width": 16, "training.threads": 1, "training.batch_size": 20}
HOSTILE = "=cmd|' /C calc'!A0"


def passengers(rows=120, seed=0):
    """A table with columns of each kind; a third of the labels is missing."""
    random = np.random.default_rng(seed)
    truth = random.integers(0, 3, rows)
    return pandas.DataFrame(
        {
            "passenger_id": [f"{number:05d}" for number in range(rows)],
            "age": np.where(random.random(rows) < 0.1, np.nan, 30 + 5 * truth + random.normal(size=rows)),
            "fare": random.gamma(2, 10, rows).round(2),
            "sex": np.where(random.random(rows) < 0.9, np.array(["female", "male", "other"])[truth], "male"),
            "port": random.choice(["S", "C", "Q, east", None], rows),
            "sailed": pandas.date_range("1912-04-10", periods=rows).astype(str),
            "alone": random.random(rows) < 0.5,
            "ship": "Titanic",
            "notes": np.nan,
            "class": np.where(random.random(rows) < 0.66, np.array(["first", "second", "third"])[truth], ""),
        }
    )


def with_test_rows():
    """Every fifth row that has a label is for testing."""
    table = passengers()
    return table.assign(split=np.where((table["class"] != "") & (np.arange(len(table)) % 5 == 0), "test", ""))


def write(path, text, encoding="utf-8"):
    path.write_bytes(text.encode(encoding))
    return path


def loaded(path, label="y", **options):
    """A table as a run trains on it."""
    config, _ = auto.config_for(str(path), device="cpu", label=label, id=options.pop("id", None))
    return prepare(config.with_values("labels", **options), torch.device("cpu"), None).data


def again(data, path):
    """The same encoder's inputs of a file that is predicted on."""
    found = sources.read(path, data.dataset.source)
    return data.encoder.transform(data.encoder.accept(found.raw, "the run"))


def fitted(frame):
    encoder = encoders.build(ENCODERS.options("columns"))
    encoder.fit(check_frame(frame), np.arange(len(frame)))
    return encoder


def kinds(encoder):
    return {column.name: column.kind for column in encoder.columns}


def lines_of(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def trained(typed, tmp_path):
    with_test_rows().to_csv(tmp_path / "t.csv", index=False)
    code, out, err = typed("train", "t.csv", "--label", "class", "--run", "run", *QUICK)
    assert (code, err) == (0, "")
    assert re.match(
        r"error \d+\.\d\d % \(90 % interval \S+ to \S+\), by 5-fold cross-validation on 64 labeled rows; trained ", out
    )
    return tmp_path / "run"


# From a file to predictions


def test_predictions_have_the_ids_of_their_rows(typed, tmp_path, trained):
    new = passengers(rows=30, seed=1).drop(columns=["class", "ship"])
    new.insert(0, "extra", 1)
    new.to_csv(tmp_path / "new.csv", index=False)
    code, out, err = typed("predict", trained, "new.csv", "-o", "out.csv")
    assert (code, "predictions of 30 rows" in out) == (0, True)
    assert err.strip() == "columns that were not trained on are ignored: 'extra'."
    lines = lines_of(tmp_path / "out.csv")
    assert [line["row"] for line in lines] == [str(row) for row in range(30)]
    assert [line["passenger_id"] for line in lines] == new.passenger_id.tolist()  # with their zeros in front
    assert [line["class"] for line in lines] == load_run(trained).predict(new).tolist()


def test_every_command_works_on_a_tables_run(typed, tmp_path, trained):
    table = with_test_rows()
    assert typed("evaluate", trained)[0] == 0
    assert typed("report", trained, "-o", "page.html")[0] == 0
    assert typed("audit", trained, "-o", "issues.csv")[0] == 0
    assert typed("suggest", trained, "-n", "5", "-o", "next.csv")[0] == 0
    assert typed("predict", trained, "--training-rows", "-o", "own.csv")[0] == 0
    issues, suggested, own = (lines_of(tmp_path / name) for name in ("issues.csv", "next.csv", "own.csv"))
    for line in (*issues, *suggested, *own):  # the row is that of the file
        assert table.passenger_id[int(line["row"])] == line["passenger_id"]
    assert all(table["class"][int(line["row"])] == line["label"] for line in issues)
    assert all(table["class"][int(line["row"])] == "" for line in suggested)
    held_out = np.flatnonzero(table.split == "test").tolist()
    assert {int(line["row"]) for line in own} == set(range(len(table))) - set(held_out)
    # A corrected audit is a labels file: its rows are those of the table, too.
    for line in issues:
        line["label"] = "first" if line["row"] == issues[0]["row"] else line["label"]
    with open(tmp_path / "fixed.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, issues[0])
        writer.writeheader()
        writer.writerows(issues)
    words = ("train", "t.csv", "--label", "class", "--labels-file", "fixed.csv", *QUICK, "--run")
    assert typed(*words, "again")[0] == 0
    run = load_run(tmp_path / "again")
    rows = run.data().dataset.row_numbers()[run.labels.rows]
    given = dict(zip(rows.tolist(), run.labels.labels.tolist(), strict=True))
    assert given == {int(line["row"]): run.classes.index(line["label"]) for line in issues}
    write(tmp_path / "fixed.csv", f"row,label\n{min(held_out)},first\n")
    code, _, err = typed(*words, "other")
    assert (code, f"names '{min(held_out)}'; expected the number of a training row" in err) == (1, True)


def test_rows_are_shown_with_their_ids_and_cells(typed, tmp_path, trained):
    assert typed("report", trained, "-o", "page.html")[0] == 0
    page = (tmp_path / "page.html").read_text()
    table = with_test_rows()
    titles = [
        "Rows to label next",
        "Most uncertain rows",
        "Most confident mistakes",
        "Most suspicious labels",
        "Least like",
    ]
    starts = [page.index(title) for title in titles]
    assert starts == sorted(starts)
    labeled = table[(table["class"] != "") & (table.split != "test")]  # the rows of the folds
    given = dict(zip(labeled.passenger_id, labeled["class"], strict=True))
    uncertain = re.findall(r"<tr><td>(\d+)</td><td>(\w+)</td>", page[starts[1] : starts[2]])
    assert len(uncertain) == 50
    assert all(given[name] == label for name, label in uncertain)
    start, page = starts[3], page[: starts[4]]
    headers = ("passenger_id", "given", "suggested", "score", "age", "fare", "sex", "port", "sailed", "alone")
    assert "".join(f"<th>{header}</th>" for header in headers) in page[start:]
    rows = [row for row in lines_of(tmp_path / "t.csv") if f"<tr><td>{row['passenger_id']}</td>" in page[start:]]
    assert len(rows) == 50
    for row in rows:
        cells = [row[header][:15] + "…" if len(row[header]) > 16 else row[header] for header in headers[4:]]
        assert "".join(f"<td>{cell}</td>" for cell in cells) in page[start:]


class Stop(Progress):
    def epoch(self, record):
        raise KeyboardInterrupt


def test_a_run_keeps_its_columns_as_plain_data_and_resumes(typed, tmp_path, trained):
    run = load_run(trained)
    assert (run.config.source.id, run.config.source.label) == ("passenger_id", "class")
    kept = json.loads((trained / "run.json").read_text())["encoder"]
    assert kept["names"] == ["age", "fare", "sex", "port", "sailed", "alone", "ship", "notes"]
    assert kept["unused"] == {"ship": "is the same in each row", "notes": "is empty"}
    found = {"age": "number", "fare": "number", "sailed": "date"}
    found |= dict.fromkeys(("sex", "port", "alone"), "category")
    assert {column["name"]: column["kind"] for column in kept["columns"]} == kinds(run.encoder) == found
    assert json.loads(json.dumps(run.encoder.to_dict())) == kept
    assert {path.suffix for path in trained.iterdir()} <= {".json", ".jsonl", ".safetensors", ""}
    with pytest.raises(KeyboardInterrupt):
        train(run.config, tmp_path / "halfway", progress=Stop())
    assert typed("resume", "halfway", "--quiet")[0] == 0
    assert left_behind(tmp_path / "halfway") == left_behind(trained)


def test_damaged_columns_are_one_sentence(typed, trained):
    about = json.loads((trained / "run.json").read_text())
    encoder = about["encoder"]
    age, fare, sex, port, sailed, alone = encoder["columns"]
    assert (sex["name"], len(sex["values"])) == ("sex", 3)
    wrong = [
        [age | damage, fare, sex, port, sailed, alone]
        for damage in ({"kind": "code"}, {"scale": 0.0}, {"mean": "x"}, {"values": 3}, {"more": 1}, {"format": "%d"})
    ]
    for values in (["male", "male", "other"], ["male", "other"], [1, 2, 3], "abc", [["a"], "b", "c"]):
        wrong.append([age, fare, sex | {"values": values}, port, sailed, alone])
    for date_format in ("%Q", "", None):
        wrong.append([age, fare, sex, port, sailed | {"format": date_format}, alone])
    wrong += [[age, age, sex, port, sailed, alone], []]
    damages = [encoder | {"columns": columns} for columns in wrong]
    damages += [encoder | {"names": 5}, encoder | {"unused": ["age"]}, {}]
    for damage in (*damages, None):
        (trained / "run.json").write_text(json.dumps(about | {"encoder": damage}))
        with pytest.raises(RunError, match="damaged"):
            _ = load_run(trained).encoder
    (trained / "run.json").write_text(json.dumps(about | {"encoder": damages[0]}))
    code, _, err = typed("predict", trained, "t.csv", "-o", "out.csv")
    assert (code, err.count("\n"), "run.json holds a damaged encoder 'columns'" in err) == (1, 1, True)


@pytest.mark.parametrize(("name", "mark"), [("t.tsv", "\t"), ("t.TSV", "\t"), ("bars.csv", "|"), ("t.parquet", "")])
def test_the_same_rows_are_the_same_in_every_kind_of_file(typed, tmp_path, name, mark):
    pytest.importorskip("pyarrow")
    table = passengers()
    table.to_csv(tmp_path / "t.csv", index=False)
    if mark:
        table.to_csv(tmp_path / name, index=False, sep=mark)
    else:
        table["class"] = table["class"].replace("", None)
        table["sailed"] = pandas.to_datetime(table["sailed"])
        table["sex"] = table["sex"].astype("category")
        table.to_parquet(tmp_path / name)
    text, other = (loaded(tmp_path / each, "class") for each in ("t.csv", name))
    np.testing.assert_allclose(text.inputs, other.inputs, atol=0 if mark else 1e-6)
    np.testing.assert_array_equal(text.labels, other.labels)
    assert text.dataset.ids == other.dataset.ids
    assert typed("train", name, "--label", "class", "--run", "run", *QUICK)[0] == 0
    for given, output in (("t.csv", "text.csv"), (name, "other.csv")):
        assert typed("predict", "run", given, "-o", output)[0] == 0
    assert lines_of(tmp_path / "text.csv") == lines_of(tmp_path / "other.csv")


def test_a_run_on_arrays_refuses_a_table_even_of_numbers(typed, tmp_path):
    x = np.random.default_rng(0).normal(size=(30, 4))
    np.savez(tmp_path / "d.npz", x_train=x, y_train=np.arange(30) % 2)
    pandas.DataFrame(x, columns=[*"abcd"]).to_parquet(tmp_path / "t.parquet")
    pandas.DataFrame(x, columns=[*"abcd"]).to_csv(tmp_path / "t.csv")
    assert typed("train", "d.npz", "--run", "run", *QUICK)[0] == 0
    for name in ("t.parquet", "t.csv"):
        code, _, err = typed("predict", "run", name, "-o", "out.csv")
        sentence = f"the inputs of {name} are a table, but run was trained on arrays"
        assert (code, err.count("\n"), sentence in err) == (1, 1, True)


# What is fitted


def test_the_inputs_are_those_of_scikit_learns_transformers():
    old, new = passengers(200), passengers(50, seed=5)
    new.loc[0, "sex"], new.loc[1, "port"], new.loc[2, "age"] = "unheard of", None, np.nan
    numbers, categories = ["age", "fare"], ["sex", "port"]
    ours = fitted(old[numbers + categories])
    theirs = make_column_transformer(
        (make_pipeline(SimpleImputer(strategy="median"), StandardScaler()), numbers),
        (
            make_pipeline(
                SimpleImputer(strategy="constant", fill_value="", missing_values=None),
                OneHotEncoder(min_frequency=2, max_categories=50, handle_unknown="infrequent_if_exist"),
            ),
            categories,
        ),
        sparse_threshold=0,
    )

    def objects(frame):
        return frame[numbers + categories].assign(
            **{name: frame[name].astype(object).where(frame[name].notna(), None) for name in categories}
        )

    theirs.fit(objects(old))
    expected = theirs.transform(objects(new))
    expected *= np.sqrt(expected.shape[1] / 4)  # four columns
    np.testing.assert_allclose(ours.transform(new).inputs, expected, rtol=0, atol=1e-5)
    assert np.square(ours.transform(old).inputs).mean() == pytest.approx(1, abs=1e-3)


def test_only_training_rows_are_fitted_on(tmp_path):
    table = passengers().assign(split=["train"] * 90 + ["test"] * 30)
    table.loc[90:, "class"] = "first"
    table.to_csv(tmp_path / "a.csv", index=False)
    table.loc[90:, ["age", "fare"]] = 1e6
    table.loc[90:, "sex"] = "robot"
    table.to_csv(tmp_path / "b.csv", index=False)
    one, other = (loaded(tmp_path / name, "class") for name in ("a.csv", "b.csv"))
    assert one.encoder.to_dict() == other.encoder.to_dict()
    np.testing.assert_array_equal(one.inputs, other.inputs)
    assert len(one.test_labels) == 30
    assert {"split", "class", "passenger_id"}.isdisjoint(one.encoder.names)


def test_validation_rows_are_not_fitted_on(tmp_path):
    table = passengers()
    table.to_csv(tmp_path / "t.csv", index=False)
    config, _ = auto.config_for(str(tmp_path / "t.csv"), device="cpu", label="class")
    prepared = prepare(config.with_values("labels", validation=0.5), torch.device("cpu"), None)
    held_out = prepared.labels.validation
    assert len(held_out) > 30
    frame = read_frame(tmp_path / "t.csv").drop(columns=["passenger_id", "class"])
    assert prepared.data.encoder.to_dict() == fitted(frame.drop(index=held_out)).to_dict()
    fares = table.fare.drop(index=held_out)
    (column,) = (column for column in prepared.data.encoder.columns if column.name == "fare")
    assert (column.mean, column.fill) == pytest.approx((fares.mean(), fares.median()))


def test_rows_for_validation_beside_test_rows_are_left_out_and_said(tmp_path):
    table = passengers().assign(split=["train"] * 80 + ["val"] * 25 + ["test"] * 15)
    table.loc[80:, "class"] = "first"
    table.to_csv(tmp_path / "t.csv", index=False)
    data = loaded(tmp_path / "t.csv", "class")
    assert (data.num_rows, len(data.test_labels)) == (80, 15)
    assert data.dataset.row_numbers(test=True).tolist() == [*range(105, 120)]
    assert data.notes == ("column 'split': rows marked val (25) are not used, because others are marked test.",)
    table.replace({"split": {"test": "train"}}).to_csv(tmp_path / "t.csv", index=False)
    data = loaded(tmp_path / "t.csv", "class")
    assert (data.num_rows, len(data.test_labels), data.notes) == (95, 25, ())


WORDS, OTHERS, NUMBERS = [f"{n}@b" for n in range(20)], [f"n{n}" for n in range(20)], [*range(20)]
IDS = {  # columns, the one that identifies rows, and those that differ in each training row besides
    "named so": ({"PassengerId": NUMBERS}, "PassengerId", []),
    "ID": ({"ID": NUMBERS}, "ID", []),
    "in two words": ({"row id": NUMBERS}, "row id", []),
    "without a name": ({"": NUMBERS}, "", []),
    "strings": ({"mail": WORDS}, "mail", []),
    "the first of two": ({"mail": WORDS, "other": OTHERS}, "mail", ["other"]),
    "by name rather than strings": ({"other": OTHERS, "id": NUMBERS}, "id", ["other"]),
    "numbers": ({"n": NUMBERS}, None, []),
    "part of a word": ({"paid": NUMBERS, "hybrid": NUMBERS}, None, []),
    "twice": ({"customer_id": [n // 2 for n in NUMBERS]}, None, []),
    "twice, but in test rows": ({"id": [*range(15), *range(5)], "split": ["train"] * 15 + ["test"] * 5}, None, ["id"]),
    "with a gap": ({"some_id": [None, *range(19)]}, None, []),
}


@pytest.mark.parametrize(("columns", "expected", "differ"), IDS.values(), ids=IDS)
def test_the_column_that_identifies_rows_is_found(tmp_path, columns, expected, differ):
    table = pandas.DataFrame(columns | {"x": [1, 2] * 10, "y": [*"uv"] * 10})
    table.to_csv(tmp_path / "t.csv", index=False)
    data = loaded(tmp_path / "t.csv")
    assert data.dataset.source.id == expected
    assert data.dataset.ids == (() if expected is None else tuple(map(str, columns[expected])))
    assert expected not in data.encoder.names
    assert data.encoder.unused == dict.fromkeys(differ, "differs in each row")


def test_an_id_may_be_any_column(tmp_path):
    passengers(30).to_csv(tmp_path / "t.csv", index=False)
    data = loaded(tmp_path / "t.csv", "class", id="sex")
    assert data.dataset.row_ids() == tuple(passengers(30).sex)
    assert "sex" not in data.encoder.names
    assert data.encoder.unused["passenger_id"] == "differs in each row"


def test_the_ids_column_is_named_on_screen_and_page(typed, tmp_path):
    table = passengers().rename(columns={"passenger_id": ""})
    more = {f"n{k}": np.arange(len(table)) % (k + 2) for k in range(12)}
    table.assign(**more).to_csv(tmp_path / "t.csv", index=False)
    code, out, _ = typed("train", "t.csv", "--label", "class", "--run", "run", "--epochs", 1)
    columns = (
        "inputs: 14 numbers (age, fare, n0, n1, n2, n3, n4, n5, n6, n7, n8, n9, ...), 1 date (sailed), 3 categories"
    )
    assert code == 0
    for text in (out, (tmp_path / "run/report.html").read_text()):
        assert f"{columns} (sex, port, alone); " in text
        assert "a column without a name identifies rows" in text.replace("&#39;", "'")


def test_an_id_named_as_a_column_of_ours(typed, tmp_path):
    passengers(60).rename(columns={"passenger_id": "Row", "class": "file"}).to_csv(tmp_path / "t.csv", index=False)
    assert typed("train", "t.csv", "--label", "file", "--id", "Row", "--run", "run", *QUICK)[0] == 0
    assert typed("audit", "run", "-o", "issues.csv")[0] == 0
    assert list(lines_of(tmp_path / "issues.csv")[0]) == ["row", "label", "suggested", "score", "id"]


# Cells


@pytest.mark.parametrize(
    ("cells", "expected", "mark"),
    [
        (["1", "2.5", "", "NA", "-3e1"], [1, 2.5, np.nan, np.nan, -30], ","),
        (["1", "?", "None", "nan", "2"], [1, np.nan, np.nan, np.nan, 2], ","),
        (["1,234.5", "12", "1,000,000", "7", "8"], [1234.5, 12, 1e6, 7, 8], ","),
        (["900", "937", "1,011", "12,345,678"], [900, 937, 1011, 12345678], "\t"),
        (["900", "937", "1,011", "1,5"], [900, 937, 1.011, 1.5], "\t"),
        (["900", "937", "1,011", "1,012"], [900, 937, 1.011, 1.012], ";"),
        (["1.234,50", "99,9", "7", "8"], [1234.5, 99.9, 7, 8], ";"),
    ],
)
def test_numbers_are_read_alike_to_train_and_to_predict(tmp_path, cells, expected, mark):
    lines = [["x", "z", "y"], *([cell, number, "ab"[number % 2]] for number, cell in enumerate(cells))]
    path = tmp_path / ("t.tsv" if mark == "\t" else "t.csv")
    with open(path, "w", newline="") as file:
        csv.writer(file, delimiter=mark).writerows(lines)
    data = loaded(path)
    column = data.encoder.columns[0]
    inputs = data.inputs[:, 0] * column.scale + column.mean
    filled = np.where(np.isnan(expected), column.fill, expected)
    np.testing.assert_allclose(inputs, filled, rtol=1e-5, atol=1e-6 * filled.max())
    assert column.fill == pytest.approx(np.nanmedian(expected))
    assert again(data, path).notes == data.notes == ()
    np.testing.assert_array_equal(again(data, path).inputs, data.inputs)


def test_a_european_csv(tmp_path):
    text = "Größe;Preis;Tag;Art\r\n1,5;1.234,50;31.12.2024;Käfer\r\n2,25;99,9;01.02.2024;Fliege\r\n"
    lines = text.splitlines() + ["3,75;7;15.03.2024;Käfer", "0,5;8;16.03.2024;Fliege", ";;;"]
    path = write(tmp_path / "t.csv", "\r\n".join(lines), encoding="utf-8-sig")
    data = loaded(path, "Art")
    assert (data.classes, data.num_rows) == (("Fliege", "Käfer"), 4)
    assert kinds(data.encoder) == {"Größe": "number", "Preis": "number", "Tag": "date"}
    size, price, day = data.encoder.columns
    assert (size.mean, price.mean) == pytest.approx((2, (1234.5 + 99.9 + 7 + 8) / 4))
    assert day.format == "%d.%m.%Y"


def test_odd_but_fine_csvs(tmp_path):
    text = '\n\ufeff id , "a, b",c,y,\n1, x,"say ""hi""",u,\n2,"x\nz",q,v,\n3,x,q,u,\n4,k,w,v\n\n'
    data = loaded(write(tmp_path / "t.csv", text.lstrip("\n")))
    assert data.dataset.source.id == "id"
    assert [*kinds(data.encoder)] == ["a, b", "c"]
    assert data.dataset.ids == ("1", "2", "3", "4")
    write(tmp_path / "long.csv", f"a,b,label\n1,{'x' * 200_000},\n2,y,k\n")
    assert read_frame(tmp_path / "long.csv").shape == (2, 3)


def test_labels_that_are_numbers_are_sorted_as_numbers(tmp_path):
    text = "x,y\n" + "".join(f"{row * 0.37},{label}\n" for row, label in enumerate([10, 9.0, "", -1, 2, "NA", 10] * 5))
    data = loaded(write(tmp_path / "t.csv", text))
    assert data.classes == ("2", "9", "10")
    assert (data.labels == -1).sum() == 15
    assert loaded(write(tmp_path / "u.csv", "x,y\n1,None\n2,Some\n3,None\n")).classes == ("None", "Some")


def test_numbers_stay_numbers_however_large_or_infinite(tmp_path):
    n = np.arange(40.0)
    table = pandas.DataFrame(
        {"a": 1.5 * n, "b": np.where(n % 3 == 0, np.inf, n), "c": np.roll(n, 7) * 1e31, "d": np.inf, "y": [*"uv"] * 20}
    )
    table.to_csv(tmp_path / "t.csv", index=False)
    table.to_parquet(tmp_path / "t.parquet")
    for suffix in ("csv", "parquet"):
        data = loaded(tmp_path / f"t.{suffix}")
        assert kinds(data.encoder) == {"a": "number", "b": "number"}
        assert data.dataset.source.id is None
        assert data.encoder.unused["d"] == "is infinite or too large"
        assert "column 'b': 14 cells (infinite or too large) taken as missing." in data.notes
        assert np.isfinite(data.inputs).all()


def test_dates_of_any_year(tmp_path):
    table = passengers()
    table.loc[[0, 7], "sailed"] = ["9999-12-31", "0001-01-01"]
    table.to_csv(tmp_path / "t.csv", index=False)
    table.assign(sailed=table.sailed.to_numpy(dtype="datetime64[us]")).to_parquet(tmp_path / "t.parquet")
    text, stored = (loaded(tmp_path / name, "class") for name in ("t.csv", "t.parquet"))
    np.testing.assert_allclose(text.inputs, stored.inputs, atol=1e-6)
    encoder = fitted(table[["sailed"]])
    (column,) = encoder.columns
    expected = [(date.fromisoformat(day) - date(1970, 1, 1)).days for day in table.sailed]
    found = encoder.transform(table[["sailed"]])
    np.testing.assert_allclose(
        found.inputs[:, 0].astype(float) * column.scale + column.mean, expected, rtol=1e-6, atol=1
    )
    assert found.notes == ()


@pytest.mark.parametrize("date_format", ["%d/%m/%Y", "%m/%d/%Y"])
def test_the_format_that_reads_the_most_dates_wins(date_format):
    days = pandas.to_datetime([f"2024-{row % 12 + 1}-{row % 11 + 1}" for row in range(55)] + ["2024-05-31"] * 5)
    frame = pandas.DataFrame({"day": days.strftime(date_format), "x": np.tile([1.0, 2.0], 30)})
    assert fitted(frame).columns[0].format == date_format


def test_lengths_of_time_are_numbers_and_intervals_identify_no_rows(tmp_path):
    frame = pandas.DataFrame(
        {
            "wait": pandas.to_timedelta([*np.arange(19) * 12, None], unit="h"),
            "range": pandas.interval_range(0, 20),
            "binned": pandas.cut(np.arange(20), 4),
        }
    )
    encoder = fitted(frame)
    assert encoder.unused == {"range": "differs in each row"}
    wait, binned = encoder.columns
    assert (wait.kind, wait.mean, wait.fill) == ("number", pytest.approx(4.5), pytest.approx(4.5))
    assert (binned.kind, binned.width) == ("category", 4)
    assert encoder.transform(frame).notes == ()
    frame[["wait", "range"]].assign(y=[*"uv"] * 10).to_parquet(tmp_path / "t.parquet")
    assert loaded(tmp_path / "t.parquet").dataset.source.id is None


def test_many_strings_share_an_input():
    frame = pandas.DataFrame({"x": [f"word {number % 300}" for number in range(1000)], "z": np.arange(1000.0)})
    encoder = fitted(frame)
    assert (encoder.columns[0].width, encoder.columns[0].rare) == (50, True)
    assert ((encoder.transform(frame).inputs[:, :50] != 0).sum(axis=1) == 1).all()


# Warnings


@pytest.mark.parametrize(
    ("cells", "warned"),
    [
        (["5,123.45 €", "7 €", "1'000.00 €", ""], True),
        (["12.3%", "4 %", "+7%", "-1%"], True),
        (["$5", "$1,000", "EUR 7", "$8"], True),
        (["12 kg", "5.5kg", "7kg", "8 g"], True),
        (["12A", "13B", "14C", "15D"], False),
        (["12:30", "3-4", "1/2", "2024Q1"], False),
        (["A12", "v3", "x", "y"], False),
    ],
)
def test_numbers_with_a_unit_are_warned_of(tmp_path, cells, warned):
    sentence = "{}: numbers with a unit are used as strings; remove the unit to use them as numbers.".format
    table = pandas.DataFrame({"a": range(8), "b": cells * 2, "c": [f"{n} €" for n in range(8)]})
    assert fitted(table).notes == (sentence("columns 'b', 'c'" if warned else "column 'c'"),)
    assert fitted(table[["a"]]).notes == ()
    table.assign(y=[*"uv"] * 4).to_csv(tmp_path / "t.csv", index=False)
    data = loaded(tmp_path / "t.csv")
    assert data.dataset.source.id == "c"  # even then
    assert set(data.notes) == {sentence("column 'c'")} | ({sentence("column 'b'")} if warned else set())


def test_what_cannot_be_read_as_it_seems_to_be_meant_is_said(typed, tmp_path):
    table = passengers()
    table["fare"] = table["fare"].astype(object)
    table.loc[[3, 7], "fare"] = ["free", "1e999"]
    table["class"] = np.where(np.arange(120) % 2 == 0, table["class"], table["class"].str.upper())
    table.to_csv(tmp_path / "t.csv", index=False)
    code, _, err = typed("train", "t.csv", "--label", "class", "--run", "run", *QUICK)
    assert code == 0
    assert "column 'fare': 1 cell (not a number) taken as missing." in err
    assert "column 'fare': 1 cell (infinite or too large) taken as missing." in err
    assert (
        "warning: classes that differ only in case, spaces or invisible characters: 'FIRST' and 'first'; 'SECOND' and "
        "'second'; 'THIRD' and 'third'; are they the same class?" in err
    )


def test_classes_that_look_alike_are_grouped_with_what_cannot_be_seen(typed, tmp_path):
    names = ["cat", "c\u200bat", "ca\u0301t", "c\u00e1t", "dog", "d\uff4fg", "cow", "do\u00a0g"]
    write(tmp_path / "t.csv", "a,y\n" + "".join(f"{row},{name}\n" for row, name in enumerate(names * 3)))
    code, _, err = typed("train", "t.csv", "--label", "y", "--run", "run", *QUICK)
    said = r"characters: 'cat' and 'c\u200bat'; 'ca\u0301t' and 'cát'; 'dog' and 'd\uff4fg'; are they"
    assert (code, said in err) == (0, True), err


def test_classes_that_may_mean_no_label_are_counted_with_the_remedy(typed, tmp_path):
    words = [*"uv"] * 10 + ["Unknown"] * 6 + ["None"] * 2
    write(tmp_path / "t.csv", "a,y\n" + "".join(f"{number},{word}\n" for number, word in enumerate(words)))
    command = ("train", "t.csv", "--label", "y", *QUICK, "--run")
    said = "warning: rows 2 of class 'None', 6 of class 'Unknown': if this means that they have no label, add "
    code, _, err = typed(*command, "run4")
    assert (code, err.count(said + "--set source.unlabeled=None,Unknown.")) == (0, 1)
    code, _, err = typed(*command, "run2", "--set", "source.unlabeled=None,Unknown")
    assert (code, said in err, load_run("run2").classes) == (0, False, ("u", "v"))
    assert said not in typed(*command, "again", "--set", "source.unlabeled=")[2]


def test_lines_with_too_few_cells_are_said(tmp_path):
    write(tmp_path / "t.csv", 'a,b,y\n1,"x\ny",u\n2,4\n\n3,5,v\n7\n4,6,\n')
    note = "2 lines with too few cells; the first is line 4, and missing cells count as empty."
    assert note in loaded(tmp_path / "t.csv").notes
    write(tmp_path / "t.csv", "a,b,y\n1,3,u\n2,4,v\n3,5,\n")
    assert loaded(tmp_path / "t.csv").notes == ()


def test_columns_whose_values_are_all_new_are_named(typed, tmp_path, trained):
    new = passengers(rows=30, seed=1)
    new.assign(sex=new["sex"].str.upper()).to_csv(tmp_path / "upper.csv", index=False)
    new.assign(sex="f", port="X").to_csv(tmp_path / "other.csv", index=False)
    words = "none of the values in column{} occurred in training; are they written differently?"
    for name, columns in (("upper.csv", " 'sex'"), ("other.csv", "s 'sex', 'port'")):
        code, _, err = typed("predict", trained, name, "-o", "out.csv")
        assert (code, err.strip()) == (0, words.format(columns))
    new.assign(sex=np.where(np.arange(30) == 0, "male", "f")).to_csv(tmp_path / "one.csv", index=False)
    assert typed("predict", trained, "one.csv", "-o", "out.csv")[2] == ""


def test_hostile_names_stay_names(typed, tmp_path):
    table = passengers(60).rename(columns={"passenger_id": HOSTILE, "fare": "\x1b[31mfare\n"})
    table[HOSTILE] = [f"@SUM({number})" for number in range(60)]
    table.to_csv(tmp_path / "t.csv", index=False)
    assert typed("train", "t.csv", "--label", "class", "--id", HOSTILE, "--run", "run", "--epochs", "2")[0] == 0
    code, out, err = typed("predict", "run", "t.csv", "-o", "out.csv")
    assert (code, "\x1b" in out + err) == (0, False)
    header, first, *_ = (tmp_path / "out.csv").read_text().splitlines()
    assert "=cmd" in header
    assert not any(cell.startswith(("=", "@")) for line in (header, first) for cell in next(csv.reader([line])))
    written = read_frame(tmp_path / "out.csv")  # and they are read back as they were
    assert written.iloc[:, -1].tolist() == table[HOSTILE].tolist()
    assert written.columns[-1] == HOSTILE


# Refusals


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,Y2\n1,u\n2,v\n", "no column 'y2'; did you mean 'Y2'"),
        ("a,a,y2\n1,1,u\n2,2,v\n", "two columns named 'a'"),
        ("a,y2\n1,u\n2,u\n3,u\n", "all labels are of one class ('u')"),
        ("a,y2\n1,1\n2,-1\n3,1\n", "one class ('1'); expected at least two classes"),
        ("a,y2\n1,u\n", "one class ('u')"),
        ("a,y2\n1,\n2,\n", "no training row of"),
        ("a,split,y2\n1,,\n2,test,u\n3,test,v\n", "no training row of"),
        ("a,y2\n", "no rows below"),
        ("", "t.csv is empty; expected a line of column names, and rows below it."),
        ("a,y2\n1,u\n2,v,3\n", "expected 2 cells in line 3, found 3"),
        ('a,y2\n1,u\n"2,v\n3,u\n', "t.csv cannot be read as a table (unexpected end of data)"),
        ("y2\nu\nv\nu\n", "t.csv has no column to learn from; 'y2' is the label."),
        (
            "n,y2\na,u\nb,v\nc,u\n",
            "'y2' is the label; 'n' identifies rows; if 'n' is text, name it (--text 'n').",
        ),
        ("a,b,y2\n1,,u\n1,,v\n1,,u\n", "'a' is the same in each row; 'b' is empty"),
        ("a,split,y2\n1,train,u\n2,test,\n3,train,v\n", "1 test row has no label"),
        ("a,split,y2\n1,test,u\n2,test,v\n", "t.csv leaves no row to train on"),
        ("a,split,y2\n1,train,u\n2,dev,v\n3,,u\n", "t.csv says 'dev'; expected train, test, val or an empty cell"),
        ("a,y2\n" + "".join(f"{n % 7},{n * 0.37:.2f}\n" for n in range(100)), "100 different numbers, such as"),
    ],
)
def test_a_table_that_cannot_be_trained_on_gets_one_sentence_and_nothing_is_written(typed, tmp_path, text, message):
    write(tmp_path / "t.csv", text)
    code, out, err = typed("train", "t.csv", "--label", "y2", "--run", "run", *QUICK)
    assert (code, out) == (1, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert message in err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("t.csv",), "name one of passenger_id, age, fare"),
        (("t.csv", "--id", "passenger_id"), "on the command line: --label"),
        (("t.csv", "--label", "clas"), "did you mean 'class'?"),
        (("t.csv", "--label", "class", "--id", "passenger"), "did you mean 'passenger_id'?"),
        (("t.csv", "--label", "class", "--size", "8"), "source.size was given, but t.csv is a table"),
        (("t.csv", "--label", "class", "--id", "class"), "source.id and source.label are both 'class'"),
        (("t.csv", "--label", "class", "--backbone", "timm:x"), "needs images, but"),
        (("digits", "--label", "class"), "source.label was given, but digits is a public data set"),
        (("digits", "--id", "class"), "source.id was given, but digits is a public data set"),
        (("digits", "--set", "source.label=f0"), "there is no digits option 'label'"),
        (("digits", "--set", "source.name=table", "--set", "source.path=notes.txt"), "notes.txt is not a table"),
        (("nowhere.csv", "--label", "class"), "No such file"),
        (("latin.csv", "--label", "class"), "it is not UTF-8 text; save it as UTF-8"),
        (("utf16.csv", "--label", "class"), "it is not UTF-8 text; save it as UTF-8"),
        (("zip.parquet", "--label", "class"), "cannot be read as a table"),
        (("zip.parquet",), "cannot be read as a table"),
    ],
)
def test_options_that_do_not_fit_are_refused(typed, tmp_path, words, message):
    passengers(30).to_csv(tmp_path / "t.csv", index=False)
    passengers(30).to_csv(tmp_path / "notes.txt", index=False)
    write(tmp_path / "latin.csv", "größe,class\n1,ä\n", encoding="latin-1")
    write(tmp_path / "utf16.csv", "a,class\n1,u\n", encoding="utf-16")
    write(tmp_path / "zip.parquet", "PK no table")
    code, _, err = typed("train", *words, "--run", "run", *QUICK)
    assert (code, err.count("\n")) == (1, 1)
    assert message in err
    assert not (tmp_path / "run").exists()


def test_missing_columns_are_named(typed, tmp_path, trained):
    new = passengers(10).rename(columns={"fare": "Fare", "passenger_id": "number"}).drop(columns=["age"])
    new.to_csv(tmp_path / "new.csv", index=False)
    code, _, err = typed("predict", trained, "new.csv", "-o", "out.csv")
    assert code == 1
    assert "lacks 2 of the 6 columns that were trained on: age, fare; its other columns are number, Fare." in err
    assert not (tmp_path / "out.csv").exists()
    passengers(10).drop(columns="passenger_id").to_csv(tmp_path / "new.csv", index=False)
    code, _, err = typed("predict", trained, "new.csv", "-o", "out.csv")
    assert (code, "has no column 'passenger_id'" in err) == (0, True)
    assert list(lines_of(tmp_path / "out.csv")[0]) == ["row", "class", "probability", "runner_up", "novelty"]


def test_without_pandas_the_extra_is_named(tmp_path, monkeypatch):
    passengers(30).to_csv(tmp_path / "t.csv", index=False)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingPackageError, match=r"selfens\[tables\]"):
        loaded(tmp_path / "t.csv", "class")


@pytest.mark.parametrize(
    ("cells", "kind"),
    [([[1, 2], [3]], "list"), ([b"a", b"b"], "bytes"), ([{}, {}], "dict"), ([1j, 2j], "complex"),
     (np.array([1j, 2], dtype=object), "complex"), ([np.ones(2), np.ones(1)], "ndarray")],
)  # fmt: skip
def test_cells_that_are_not_numbers_strings_or_dates_are_refused(cells, kind):
    for name in ("x", "x_id"):
        with pytest.raises(
            DataError, match=f"column '{name}' holds values of type {kind}; expected numbers, strings or dates"
        ):
            fitted(pandas.DataFrame({name: cells, "z": [1, 2]}))


def test_extra_rows_with_other_decimal_commas_are_refused(tmp_path):
    table = passengers(30)
    table.to_csv(tmp_path / "t.csv", index=False)
    table.to_csv(tmp_path / "e.csv", index=False, sep=";", decimal=",")
    options = sources.options_for(tmp_path / "t.csv", label="class")
    assert sources.load(options.changed({"extra": str(tmp_path / "t.csv")})).extra_rows == 30
    with pytest.raises(
        DataError, match="only one of .*e.csv and .*t.csv has decimal commas; save both in the same way"
    ):
        sources.load(options.changed({"extra": str(tmp_path / "e.csv")}))


# The estimator


def classifier(**changes):
    return SelfEnsemblingClassifier(**({"epochs": 5, "random_state": 0, "device": "cpu", "config": SMALL} | changes))


def test_the_estimator_takes_dataframes():
    table = passengers()
    x, y = table.drop(columns="class"), table["class"]
    x["sex"] = x["sex"].astype("category")
    before = x.copy()
    model = classifier(epochs=40).fit(x, y)
    pandas.testing.assert_frame_equal(x, before)
    assert model.feature_names_in_.tolist() == x.columns.tolist()
    assert model.n_features_in_ == x.shape[1]
    assert model.score(x, y) > 0.75
    assert model.encoder_.unused["passenger_id"] == "differs in each row"
    x.loc[0, ["age", "port"]], x.loc[1, "port"] = None, "never seen"
    assert model.predict_proba(x).shape == (120, 3)
    with pytest.raises(ValueError, match="the table lacks 1 of the 6 columns that were trained on: age"):
        model.predict(x.drop(columns="age"))
    with pytest.raises(DataError, match="X's rows are empty; expected at least one row"):
        model.predict(x[:0])
    unpickled = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(unpickled.predict_proba(x), model.predict_proba(x))
    others = x.assign(extra=1).drop(columns=["ship", "passenger_id"]).iloc[:, ::-1]  # nothing was learned from these
    np.testing.assert_array_equal(model.predict_proba(others), model.predict_proba(x))


def test_dataframes_of_numbers_do_as_arrays_do():
    x, y = load_iris(return_X_y=True, as_frame=True)
    given = np.where(np.arange(150) % 5 == 0, y, -1)
    frame, array = classifier(epochs=30).fit(x, given), classifier(epochs=30).fit(x.to_numpy(), given)
    np.testing.assert_allclose(frame.predict_proba(x), array.predict_proba(x.to_numpy()), atol=1e-3)
    with pytest.warns(UserWarning, match="valid feature names"):
        np.testing.assert_array_equal(frame.predict_proba(x.to_numpy()), frame.predict_proba(x))
    numbered = x.set_axis([3, 2, 1, 0], axis=1)
    model = classifier().fit(numbered, given)
    np.testing.assert_array_equal(model.predict(numbered.to_numpy()), model.predict(numbered))


def test_duplicate_names_and_tables_of_other_libraries_are_one_sentence(trained):
    x, y = load_iris(return_X_y=True, as_frame=True)
    twice = x.set_axis([*"aabc"], axis=1)
    models = [classifier(epochs=1).fit(given, y) for given in (x.set_axis([*"abcd"], axis=1), x.to_numpy())]
    for use in (lambda: classifier().fit(twice, y), *((lambda model=model: model.predict(twice)) for model in models)):
        with pytest.raises(DataError, match="two columns named 'a'"):
            use()
    pyarrow = pytest.importorskip("pyarrow")
    for use in (load_run(trained).predict, models[0].predict):
        with pytest.raises(DataError, match=r"a pyarrow.Table was given as a table; expected a pandas DataFrame"):
            use(pyarrow.Table.from_pandas(x))


def test_the_estimator_warns_of_cells_that_are_not_numbers():
    table = passengers(60)
    x = table[["age", "sex"]].assign(fare=[*["oops"], *map(str, range(59))])
    x.attrs = {"comma": True, "notes": "of somebody else"}
    with pytest.warns(SelfensWarning, match=r"column 'fare': 1 cell \(not a number\) taken as missing."):
        classifier().fit(x, table["class"])


def test_true_and_false_are_the_same_values_whether_or_not_a_cell_is_empty():
    """pandas makes booleans a column of objects if a cell is empty."""
    random = np.random.default_rng(0)
    y = random.integers(0, 2, 120)
    x = pandas.DataFrame({"flag": [*map(bool, y)], "noise": random.normal(size=120)}).astype({"flag": object})
    model = classifier(epochs=30).fit(x, y)
    assert kinds(model.encoder_)["flag"] == "category"
    gap = x.copy()
    gap.loc[0, "flag"] = None
    assert model.score(x, y) == 1
    assert model.score(gap, y) >= 1 - 1 / 120


def test_a_network_of_ones_own_gets_as_many_inputs_in_every_fold():
    """A value that occurs twice may occur only once among the rows of a fold, and lose its input."""
    random = np.random.default_rng(0)
    y, letters = random.integers(0, 2, 60), random.choice([*"uvw"], 60).astype(object)
    letters[:20] = np.repeat([*"abcdefghij"], 2)
    x = pandas.DataFrame({"number": random.normal(size=60) + 2 * y, "letter": letters})
    model = classifier(method="temporal", network=nn.Linear(14, 2), measure=True, epochs=2).fit(x, y)
    assert model.encoder_.width == 14
    assert (model.comparison_.evidence.folds, len(model.comparison_.evidence.rows)) == (5, 60)
    assert 0 <= model.comparison_.errors["this model"] == model.error_ < 100


@pytest.mark.parametrize(
    ("lines", "numbers", "note"),
    [
        (["1.100;0.5", "1.101;1.5"], [1.1, 1.101], ""),  # some point cannot stand between thousands
        (["1.100;0,5", "1.101;1,5"], [1100, 1101], ""),
        (["0,5;0.5", "1,5;1.5"], [0.5, 1.5], "numbers with a decimal comma (column 'a': 0,5) and with a decimal point"),
        (
            ["1.100;3", "1.101;4"],
            [1100, 1101],
            "column 'a': 1.100 is read as 1100, because semicolons separate the cells",
        ),
        (["1.100\t3", "1.101\t4"], [1.1, 1.101], ""),
    ],
)
def test_a_file_has_one_way_of_writing_numbers_or_a_note_says_so(tmp_path, lines, numbers, note):
    path, separator = tmp_path / "t.csv", "\t" if "\t" in lines[0] else ";"
    path.write_text("\n".join([f"a{separator}b", *lines]) + "\n")
    frame = read_frame(path)
    assert as_numbers(frame["a"], "", has_decimal_comma(frame))[0].tolist() == numbers
    assert [note in each for each in frame.attrs["selfens.notes"]] == [True] * bool(note)


def test_rows_are_read_for_prediction_as_they_were_for_training(typed, tmp_path):
    random = np.random.default_rng(0)
    rows = [(1 + 0.1 * number if number % 9 else 0.123, number % 2) for number in random.permutation(60)]
    cells = [
        f'"{value:.3f}"'.replace(".", ",") + f",{kind if number < 30 else ''}"
        for number, (value, kind) in enumerate(rows)
    ]
    whole, part = tmp_path / "whole.csv", tmp_path / "part.csv"
    whole.write_text("\n".join(["a,kind", *cells]) + "\n")
    kept = [number for number, cell in enumerate(cells) if not cell.startswith('"0')]
    part.write_text("\n".join(["a,kind", *(cells[number] for number in kept)]) + "\n")  # looks like thousands
    words = ("--epochs", 1, "--run", "run", "--no-report", "--no-baselines", "--set", "training.threads=1")
    assert typed("train", whole, "--label", "kind", *words)[0] == 0
    found = []
    for path in (whole, part):
        assert typed("predict", "run", path, "-o", "out.csv")[0] == 0
        with (tmp_path / "out.csv").open() as file:
            found.append([line["probability"] for line in csv.DictReader(file)])
        (tmp_path / "out.csv").unlink()
    assert [found[0][number] for number in kept] == found[1]
