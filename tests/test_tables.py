"""Tables as people have them: CSV and Parquet files, and DataFrames. Needs the extra `tables`."""

import csv
import json
import pickle
import sys
from dataclasses import asdict
from datetime import date

import numpy as np
import pytest
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_iris
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from support import left_behind
from torch import nn

from selfens import load_run
from selfens.config import DataConfig
from selfens.data import tabular
from selfens.data.labels import choose_labels
from selfens.data.table_files import named, read_frame
from selfens.data.tabular import Columns, load_table
from selfens.errors import ConfigError, DataError, MissingPackageError, RunError, SelfensWarning
from selfens.estimator import SelfEnsemblingClassifier
from selfens.training.loop import train
from selfens.training.progress import Progress

pandas = pytest.importorskip("pandas")

QUICK = ("--epochs", "3", "--quiet", "--no-report")
SMALL = {"network.width": 16, "training.threads": 1, "training.batch_size": 20}
HOSTILE = "=cmd|' /C calc'!A0"


def passengers(rows=120, seed=0):
    """Of each kind of column one or more; a third of the labels is missing."""
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


class Stop(Progress):
    def epoch(self, record):
        raise KeyboardInterrupt


def write(path, text, encoding="utf-8"):
    path.write_bytes(text.encode(encoding))
    return path


def loaded(path, label="y", **options):
    return load_table(DataConfig(name=str(path), label_column=label, **options))


def read(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def trained(typed, tmp_path):
    with_test_rows().to_csv(tmp_path / "t.csv", index=False)
    code, out, err = typed("train", "t.csv", "--label", "class", "--run", "run", *QUICK)
    assert (code, err) == (0, "")
    assert out.startswith("test error ")
    return tmp_path / "run"


# The whole way


def test_from_a_csv_to_predictions_with_their_identifiers(typed, tmp_path, trained):
    new = passengers(rows=30, seed=1).drop(columns=["class", "ship"])
    new.insert(0, "extra", 1)
    new.to_csv(tmp_path / "new.csv", index=False)
    code, out, err = typed("predict", trained, "new.csv", "-o", "out.csv")
    assert code == 0
    assert "predictions of 30 rows" in out
    assert err.strip() == "ignored columns of new.csv that were not trained on: 'extra'."
    lines = read(tmp_path / "out.csv")
    assert [line["row"] for line in lines] == [str(row) for row in range(30)]
    assert [line["passenger_id"] for line in lines] == new.passenger_id.tolist()  # with their zeros in front
    predicted = load_run(trained).predict(new).tolist()  # the same from the table itself
    assert [line["class"] for line in lines] == predicted


def test_every_command_works_on_a_tables_run(typed, tmp_path, trained):
    table = with_test_rows()
    assert typed("evaluate", trained)[0] == 0
    assert typed("report", trained, "-o", "page.html")[0] == 0
    assert typed("audit", trained, "-o", "issues.csv")[0] == 0
    assert typed("suggest", trained, "-n", "5", "-o", "next.csv")[0] == 0
    assert typed("predict", trained, "--training-rows", "-o", "own.csv")[0] == 0
    issues, suggested, own = (read(tmp_path / name) for name in ("issues.csv", "next.csv", "own.csv"))
    for line in (*issues, *suggested, *own):  # the row is that of the file
        assert table.passenger_id[int(line["row"])] == line["passenger_id"]
    assert all(table["class"][int(line["row"])] == line["label"] for line in issues)
    assert all(table["class"][int(line["row"])] == "" for line in suggested)
    held_out = np.flatnonzero(table.split == "test").tolist()
    assert {int(line["row"]) for line in own} == set(range(len(table))) - set(held_out)
    assert f"{min(held_out):05d}" in (tmp_path / "page.html").read_text()  # test rows are shown by their identifiers
    # A corrected audit is a labels file: its rows are those of the table, too.
    for line in issues:
        line["label"] = "first" if line["row"] == issues[0]["row"] else line["label"]
    with open(tmp_path / "fixed.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, issues[0])
        writer.writeheader()
        writer.writerows(issues)
    words = ("train", "t.csv", "--label", "class", "--labels-file", "fixed.csv", *QUICK, "--run")
    assert typed(*words, "again")[0] == 0
    again, data = load_run(tmp_path / "again").labels, load_run(tmp_path / "again").dataset()
    given = dict(zip(data.row_numbers[again.rows].tolist(), again.labels.tolist(), strict=True))
    assert given == {int(line["row"]): data.classes.index(line["label"]) for line in issues}
    write(tmp_path / "fixed.csv", f"row,label\n{min(held_out)},first\n")
    code, _, err = typed(*words, "other")
    assert code == 1
    assert f"names row {min(held_out)}; " in err
    assert "for testing" in err


def test_rows_of_a_table_are_shown_with_their_cells(typed, tmp_path, trained):
    assert typed("report", trained, "-o", "page.html")[0] == 0
    page = (tmp_path / "page.html").read_text()
    start = page.index("Most suspicious labels")
    headers = ("passenger_id", "given", "suggested", "score", "age", "fare", "sex", "port", "sailed", "alone")
    assert "".join(f"<th>{header}</th>" for header in headers) in page[start:]
    rows = [row for row in read(tmp_path / "t.csv") if f"<tr><td>{row['passenger_id']}</td>" in page[start:]]
    assert len(rows) == 50
    for row in rows:
        cells = [row[header][:15] + "…" if len(row[header]) > 16 else row[header] for header in headers[4:]]
        assert "".join(f"<td>{cell}</td>" for cell in cells) in page[start:]


def test_a_run_keeps_its_columns_as_plain_data_and_resumes(typed, tmp_path, trained):
    about = json.loads((trained / "run.json").read_text())
    assert about["columns"]["identifier"] == "passenger_id"
    assert {name["name"]: name["kind"] for name in about["columns"]["columns"]} == {
        "age": "number",
        "fare": "number",
        "sex": "category",
        "port": "category",
        "sailed": "date",
        "alone": "category",
    }
    assert about["columns"]["unused"] == {
        "class": "is the label",
        "split": "says which rows are for testing",
        "ship": "is the same in each row",
        "notes": "is empty",
    }
    assert {path.suffix for path in trained.iterdir()} <= {".json", ".jsonl", ".safetensors", ""}
    with pytest.raises(KeyboardInterrupt):
        train(load_run(trained).config, tmp_path / "halfway", progress=Stop())
    assert typed("resume", "halfway", "--quiet")[0] == 0
    assert left_behind(tmp_path / "halfway") == left_behind(trained)


def test_a_damaged_column_is_one_sentence(typed, trained):
    about = json.loads((trained / "run.json").read_text())
    age, fare, sex, port, sailed, alone = about["columns"]["columns"]
    assert (sex["name"], len(sex["values"])) == ("sex", 3)
    wrong = [
        [age | damage, fare, sex, port, sailed, alone]
        for damage in ({"kind": "code"}, {"scale": 0.0}, {"mean": "x"}, {"values": 3}, {"more": 1}, {"format": "%d"})
    ]
    for values in (["male", "male", "other"], [1, 2, 3], "abc", [["a"], "b", "c"]):
        wrong.append([age, fare, sex | {"values": values}, port, sailed, alone])
    for form in ("%Q", "", None):
        wrong.append([age, fare, sex, port, sailed | {"format": form}, alone])
    wrong.append([age, age, sex, port, sailed, alone])
    damages = [about["columns"] | {"columns": columns} for columns in wrong]
    damages += [about["columns"] | {"identifier": other} for other in ([5], 5, "age")]
    for damage in (*damages, None):
        (trained / "run.json").write_text(json.dumps(about | {"columns": damage}))
        with pytest.raises(RunError, match="damaged columns"):
            _ = load_run(trained).columns
    code, _, err = typed("predict", trained, "t.csv", "-o", "out.csv")
    assert code == 1
    assert "damaged columns of a table" in err
    assert err.count("\n") == 1


def test_parquet_is_read_alike(typed, tmp_path):
    pytest.importorskip("pyarrow")
    table = passengers()
    table["class"] = table["class"].replace("", None)
    table["sailed"] = pandas.to_datetime(table["sailed"])
    table["sex"] = table["sex"].astype("category")
    table.to_csv(tmp_path / "t.csv", index=False)
    table.to_parquet(tmp_path / "t.parquet")
    text, typed_cells = (loaded(tmp_path / name, "class") for name in ("t.csv", "t.parquet"))
    np.testing.assert_allclose(text.inputs, typed_cells.inputs, atol=1e-6)
    np.testing.assert_array_equal(text.labels, typed_cells.labels)
    assert text.row_names == typed_cells.row_names
    assert typed("train", "t.parquet", "--label", "class", "--run", "run", *QUICK)[0] == 0
    assert typed("predict", "run", "t.csv", "-o", "from-csv.csv")[0] == 0
    assert typed("predict", "run", "t.parquet", "-o", "from-parquet.csv")[0] == 0
    assert read(tmp_path / "from-csv.csv") == read(tmp_path / "from-parquet.csv")


# Cells


def test_the_inputs_are_those_of_scikit_learns_transformers():
    train, new = passengers(200), passengers(50, seed=5)
    new.loc[0, "sex"], new.loc[1, "port"], new.loc[2, "age"] = "unheard of", None, np.nan
    numbers, categories = ["age", "fare"], ["sex", "port"]
    ours = Columns.fit(named(train[numbers + categories]))
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

    theirs.fit(objects(train))
    expected = theirs.transform(objects(new))
    expected *= np.sqrt(expected.shape[1] / 4)  # four columns
    np.testing.assert_allclose(ours.encode(named(new))[0], expected, rtol=0, atol=1e-5)
    assert np.square(ours.encode(named(train))[0]).mean() == pytest.approx(1, abs=1e-3)
    kept = Columns.from_dict(json.loads(json.dumps(asdict(ours))))
    assert kept == ours


def test_only_training_rows_are_fitted_on(tmp_path):
    table = passengers().assign(split=["train"] * 90 + ["test"] * 30)
    table.loc[90:, "class"] = "first"
    table.to_csv(tmp_path / "a.csv", index=False)
    table.loc[90:, ["age", "fare"]] = 1e6
    table.loc[90:, "sex"] = "robot"
    table.to_csv(tmp_path / "b.csv", index=False)
    one, other = (loaded(tmp_path / name, "class") for name in ("a.csv", "b.csv"))
    assert one.columns == other.columns
    np.testing.assert_array_equal(one.inputs, other.inputs)
    assert len(one.test_labels) == 30
    assert "split" in one.columns.unused


def test_validation_rows_are_not_fitted_on(tmp_path):
    passengers().to_csv(tmp_path / "t.csv", index=False)
    options = DataConfig(name=str(tmp_path / "t.csv"), label_column="class", validation=0.5)
    data = load_table(options)
    held_out = choose_labels(data, options, label_seed=0, split_seed=0).validation
    assert len(held_out) > 30
    fitted_on = np.delete(np.arange(120), held_out)
    expected = Columns.fit(read_frame(tmp_path / "t.csv").iloc[fitted_on], unused={"class": "is the label"})
    assert data.columns == expected
    fares = passengers().fare[fitted_on]
    column = next(column for column in data.columns.columns if column.name == "fare")
    assert (column.mean, column.fill) == pytest.approx((fares.mean(), fares.median()))


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["1", "2.5", "", "NA", "-3e1"], [1, 2.5, np.nan, np.nan, -30]),
        (["1", "?", "None", "nan", "2"], [1, np.nan, np.nan, np.nan, 2]),
        (["1,234.5", "12", "1,000,000", "7", "8"], [1234.5, 12, 1e6, 7, 8]),
    ],
)
def test_numbers(tmp_path, cells, expected):
    lines = [["x", "split", "y"], *([cell, "train", label] for cell, label in zip(cells, "ababa", strict=True))]
    with open(tmp_path / "t.csv", "w", newline="") as file:
        csv.writer(file).writerows(lines)
    data = loaded(tmp_path / "t.csv")
    column = data.columns.columns[0]
    inputs = data.inputs[:, 0] * column.scale + column.mean
    np.testing.assert_allclose(inputs, np.where(np.isnan(expected), column.fill, expected), rtol=1e-5, atol=0.1)
    assert column.fill == pytest.approx(np.nanmedian(expected))


def test_a_european_csv(tmp_path):
    text = "Größe;Preis;Tag;Art\r\n1,5;1.234,50;31.12.2024;Käfer\r\n2,25;99,9;01.02.2024;Fliege\r\n"
    lines = text.splitlines() + ["3,75;7;15.03.2024;Käfer", "0,5;8;16.03.2024;Fliege", ";;;"]
    path = write(tmp_path / "t.csv", "\r\n".join(lines), encoding="utf-8-sig")
    data = loaded(path, "Art")
    assert data.classes == ("Fliege", "Käfer")
    assert data.num_rows == 4
    kinds = [(column.name, column.kind) for column in data.columns.columns]
    assert kinds == [("Größe", "number"), ("Preis", "number"), ("Tag", "date")]
    assert data.columns.columns[0].mean == pytest.approx(2.0)
    assert data.columns.columns[1].mean == pytest.approx((1234.5 + 99.9 + 7 + 8) / 4)
    assert data.columns.columns[2].format == "%d.%m.%Y"


def test_odd_but_fine_csvs(tmp_path):
    text = '\n\ufeff id , "a, b",c,y,\n1, x,"say ""hi""",u,\n2,"x\nz",q,v,\n3,x,q,u,\n4,k,w,v\n\n'
    data = loaded(write(tmp_path / "t.csv", text.lstrip("\n")))
    assert data.columns.identifier == "id"
    assert [column.name for column in data.columns.columns] == ["a, b", "c"]
    assert data.row_names == ("1", "2", "3", "4")


def test_labels_that_are_numbers(tmp_path):
    text = "x,y\n" + "".join(f"{row * 0.37},{label}\n" for row, label in enumerate([10, 9.0, "", -1, 2, "NA", 10] * 5))
    data = loaded(write(tmp_path / "t.csv", text))
    assert data.classes == ("2", "9", "10")
    assert (data.labels == -1).sum() == 15
    assert loaded(write(tmp_path / "u.csv", "x,y\n1,None\n2,Some\n3,None\n")).classes == ("None", "Some")


def test_cells_that_are_no_numbers_count_as_missing_and_are_said(typed, tmp_path):
    table = passengers()
    table["fare"] = table["fare"].astype(object)
    table.loc[[3, 7], "fare"] = ["free", "1e999"]
    table.to_csv(tmp_path / "t.csv", index=False)
    code, _, err = typed("train", "t.csv", "--label", "class", "--run", "run", *QUICK)
    assert code == 0
    assert "column 'fare': 1 cell is not a number and counts as missing." in err
    assert "column 'fare': 1 cell is infinite or too large and counts as missing." in err


def test_numbers_stay_numbers_however_large_or_infinite(tmp_path):
    n = np.arange(40.0)
    table = pandas.DataFrame(
        {"a": n, "b": np.where(n % 3 == 0, np.inf, n), "c": n * 1e31, "d": np.inf, "y": [*"uv"] * 20}
    )
    table.to_csv(tmp_path / "t.csv", index=False)
    table.to_parquet(tmp_path / "t.parquet")
    for suffix in ("csv", "parquet"):
        data = loaded(tmp_path / f"t.{suffix}")
        assert [(column.name, column.kind) for column in data.columns.columns] == [("a", "number"), ("b", "number")]
        assert data.columns.identifier is None
        assert data.columns.unused["d"] == "is infinite or too large"
        assert "column 'b': 14 cells are infinite or too large and count as missing." in data.notes
        assert np.isfinite(data.inputs).all()


def test_columns_are_named_on_screen_and_page(typed, tmp_path):
    table = passengers().rename(columns={"passenger_id": ""})
    table.assign(**{f"n{k}": np.arange(len(table)) % (k + 2) for k in range(12)}).to_csv(
        tmp_path / "t.csv", index=False
    )
    code, out, _ = typed("train", "t.csv", "--label", "class", "--run", "run", "--epochs", 1)
    named = "inputs: 14 numbers (age, fare, n0, n1, n2, n3, n4, n5, n6, n7, n8, n9, ...), 1 date (sailed), 3 categories"
    assert code == 0
    for text in (out, (tmp_path / "run/report.html").read_text()):
        assert f"{named} (sex, port, alone); " in text
        assert "a column without a name identifies rows" in text.replace("&#39;", "'")


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
def test_numbers_with_a_unit_are_warned_of(cells, warned):
    table = pandas.DataFrame({"a": range(8), "b": cells * 2, "c": [f"{n} €" for n in range(8)]})
    (sentence,) = Columns.fit(table).remarks(table)
    columns = "columns 'b', 'c'" if warned else "column 'c'"
    assert sentence == f"{columns}: numbers with a unit are taken for texts; to use them as numbers, remove the unit."
    assert Columns.fit(table[["a"]]).remarks(table[["a"]]) == []


@pytest.mark.parametrize(("name", "mark"), [("t.tsv", "\t"), ("t.TSV", "\t"), ("t.csv", "|")])
def test_tabs_and_bars_separate_cells(typed, tmp_path, name, mark):
    write(tmp_path / name, passengers(60).to_csv(index=False, sep=mark))
    assert typed("train", name, "--label", "class", "--run", "run", *QUICK)[0] == 0
    assert typed("predict", "run", name, "-o", "out.csv")[0] == 0
    assert len(read(tmp_path / "out.csv")) == 60


def test_classes_that_differ_only_in_case_are_warned_of(typed, tmp_path):
    write(tmp_path / "t.csv", "a,y\n" + "".join(f"{n},{word}\n" for n, word in enumerate(["No", "no", "yes"] * 5)))
    code, _, err = typed("train", "t.csv", "--label", "y", "--run", "run", *QUICK)
    assert code == 0
    assert "warning: classes that differ only in case or spaces: 'No', 'no'; are they meant to be one?\n" in err


def test_lines_with_too_few_cells_are_said(tmp_path):
    write(tmp_path / "t.csv", 'a,b,y\n1,"x\ny",u\n2,4\n\n3,5,v\n7\n4,6,\n')
    assert (
        "2 lines have too few cells, the first is line 4; missing ones count as empty."
        in loaded(tmp_path / "t.csv").notes
    )
    write(tmp_path / "t.csv", "a,b,y\n1,3,u\n2,4,v\n3,5,\n")
    assert loaded(tmp_path / "t.csv").notes == ()


def test_dates_of_any_year(typed, tmp_path):
    table = with_test_rows()
    table.loc[[0, 7], "sailed"] = ["9999-12-31", "0001-01-01"]
    table.to_csv(tmp_path / "t.csv", index=False)
    table.assign(sailed=table.sailed.to_numpy(dtype="datetime64[us]")).to_parquet(tmp_path / "t.parquet")
    assert typed("train", "t.csv", "--label", "class", "--run", "run", *QUICK)[0] == 0
    assert typed("predict", "run", "t.csv", "-o", "out.csv")[0] == 0
    text, stored = (loaded(tmp_path / name, "class") for name in ("t.csv", "t.parquet"))
    np.testing.assert_allclose(text.inputs, stored.inputs, atol=1e-6)
    (cells,) = (column for column in Columns.fit(table[["sailed", "class"]]).columns if column.kind == "date")
    inputs, strange, _ = cells.encode(table.sailed, comma=False)
    assert strange == 0
    expected = [(date.fromisoformat(day) - date(1970, 1, 1)).days for day in table.sailed]
    np.testing.assert_allclose(inputs[:, 0] * cells.scale + cells.mean, expected, atol=1e-6)


@pytest.mark.parametrize("form", ["%d/%m/%Y", "%m/%d/%Y"])
def test_the_format_that_reads_the_most_dates_wins(form):
    days = pandas.to_datetime([f"2024-{row % 12 + 1}-{row % 11 + 1}" for row in range(55)] + ["2024-05-31"] * 5)
    frame = pandas.DataFrame({"day": days.strftime(form), "x": np.tile([1.0, 2.0], 30)})
    assert Columns.fit(frame).columns[0].format == form


def test_rows_for_validation_beside_test_rows_are_left_out_and_said(tmp_path):
    table = passengers().assign(split=["train"] * 80 + ["val"] * 25 + ["test"] * 15)
    table.loc[80:, "class"] = "first"
    table.to_csv(tmp_path / "t.csv", index=False)
    data = loaded(tmp_path / "t.csv", "class")
    assert (data.num_rows, len(data.test_labels)) == (80, 15)
    assert data.notes == ("column 'split': rows marked val (25) are not used, because others are marked test.",)
    table.replace({"split": {"test": "train"}}).to_csv(tmp_path / "t.csv", index=False)
    data = loaded(tmp_path / "t.csv", "class")
    assert (data.num_rows, len(data.test_labels), data.notes) == (95, 25, ())


def test_lengths_of_time_are_numbers_and_intervals_identify_no_rows():
    frame = pandas.DataFrame(
        {
            "wait": pandas.to_timedelta([*np.arange(19) * 12, None], unit="h"),
            "range": pandas.interval_range(0, 20),
            "binned": pandas.cut(np.arange(20), 4),
        }
    )
    columns = Columns.fit(frame)
    assert columns.identifier is None
    assert columns.unused == {"range": "differs in each row"}
    wait, binned = columns.columns
    assert (wait.kind, wait.mean, wait.fill) == ("number", pytest.approx(4.5), pytest.approx(4.5))
    assert (binned.kind, binned.width) == ("category", 4)
    assert columns.encode(frame)[1] == []


def test_many_texts_share_an_input():
    frame = pandas.DataFrame({"x": [f"word {number % 300}" for number in range(1000)], "z": np.arange(1000.0)})
    columns = Columns.fit(frame)
    assert columns.columns[0].width == 50
    assert columns.columns[0].rare
    inputs, _ = columns.encode(frame)
    assert ((inputs[:, :50] != 0).sum(axis=1) == 1).all()


def test_identifiers():
    frame = passengers(30)
    assert Columns.fit(frame).identifier == "passenger_id"
    assert Columns.fit(frame, identifier="fare").identifier == "fare"
    assert "fare" not in {column.name for column in Columns.fit(frame, identifier="fare").columns}
    for name, found in (
        ("PassengerId", True),
        ("ID", True),
        ("row id", True),
        ("", True),
        ("paid", False),
        ("hybrid", False),
    ):
        numbered = pandas.DataFrame({"x": np.tile([1.0, 2.0], 10), name: np.arange(20)})
        assert (Columns.fit(numbered).identifier == name) is found, name
    repeated = pandas.DataFrame({"x": np.tile([1.0, 2.0], 10), "customer_id": np.arange(20) // 2})
    assert Columns.fit(repeated).identifier is None
    mail = pandas.DataFrame(
        {"x": np.tile([1.0, 2.0], 10), "mail": [f"{n}@b" for n in range(20)], "n": [f"n{n}" for n in range(20)]}
    )
    assert Columns.fit(mail).identifier == "mail"
    assert Columns.fit(mail).unused == {"n": "differs in each row"}


def test_hostile_names_stay_names(typed, tmp_path):
    table = passengers(60).rename(columns={"passenger_id": HOSTILE, "fare": "\x1b[31mfare\n"})
    table[HOSTILE] = [f"@SUM({number})" for number in range(60)]
    table.to_csv(tmp_path / "t.csv", index=False)
    assert typed("train", "t.csv", "--label", "class", "--id", HOSTILE, "--run", "run", "--epochs", "2")[0] == 0
    code, out, err = typed("predict", "run", "t.csv", "-o", "out.csv")
    assert code == 0
    assert "\x1b" not in out + err
    header, first, *_ = (tmp_path / "out.csv").read_text().splitlines()
    assert "=cmd" in header
    assert not any(cell.startswith(("=", "@")) for line in (header, first) for cell in next(csv.reader([line])))
    again = read_frame(tmp_path / "out.csv")  # and they are read back as they were
    assert again.iloc[:, -1].tolist() == table[HOSTILE].tolist()
    assert again.columns[-1] == HOSTILE


def test_an_identifier_named_as_a_column_of_ours(typed, tmp_path):
    passengers(60).rename(columns={"passenger_id": "Row", "class": "file"}).to_csv(tmp_path / "t.csv", index=False)
    assert typed("train", "t.csv", "--label", "file", "--id", "Row", "--run", "run", *QUICK)[0] == 0
    assert typed("audit", "run", "-o", "issues.csv")[0] == 0
    assert list(read(tmp_path / "issues.csv")[0]) == ["row", "label", "suggested", "score", "id"]


# Refusals


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,Y2\n1,u\n2,v\n", "no column 'y2'; did you mean 'Y2'"),
        ("a,a,y2\n1,1,u\n2,2,v\n", "two columns named 'a'"),
        ("a,y2\n1,u\n2,u\n3,u\n", "one class only ('u')"),
        ("a,y2\n1,1\n2,-1\n3,1\n", "one class only ('1'); expected at least two (-1, NaN and empty mean unlabeled)"),
        ("a,y2\n1,\n2,\n", "no training row of"),
        ("a,split,y2\n1,,\n2,test,u\n3,test,v\n", "no training row of"),
        ("a,y2\n", "no rows below"),
        ("", "cannot be read as a table (No columns"),
        ("a,y2\n1,u\n2,v,3\n", "Expected 2 fields in line 3, saw 3"),
        ("y2\nu\nv\nu\n", "no column to learn from; inputs: none; 'y2' is the label"),
        ("a,b,y2\n1,,u\n1,,v\n1,,u\n", "'a' is the same in each row; 'b' is empty"),
        ("a,split,y2\n1,train,u\n2,test,\n3,train,v\n", "1 test row has no label"),
        ("a,split,y2\n1,test,u\n2,test,v\n", "t.csv leaves no row to train on"),
        ("a,split,y2\n1,train,u\n2,dev,v\n3,,u\n", "t.csv says 'dev'; expected train, test, val or an empty cell"),
        ("a,y2\n" + "".join(f"{n % 7},{n * 0.37:.2f}\n" for n in range(100)), "100 different numbers, such as"),
    ],
)
def test_one_sentence_and_nothing_written(typed, tmp_path, text, message):
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
        (("t.csv",), "add --label and one of passenger_id, age, "),
        (("t.csv", "--label", "clas"), "did you mean 'class'?"),
        (("t.csv", "--label", "class", "--id", "passenger"), "did you mean 'passenger_id'?"),
        (("t.csv", "--label", "class", "--size", "8"), "not a folder of images"),
        (("t.csv", "--label", "class", "--set", "data.extra=t.csv"), "give a table more rows with an empty label"),
        (("t.csv", "--id", "passenger_id"), "add --label"),
        (("t.csv", "--label", "class", "--id", "class"), "data.id_column and data.label_column are both 'class'"),
        (("t.csv", "--label", "class", "--backbone", "timm:x"), "a backbone was named, but t.csv holds vectors"),
        (("digits", "--label", "class"), "is not a table"),
        (
            ("digits", "--set", "data.label_column=f0"),
            "data.label_column is 'f0', but digits is not a table (.csv, .tsv or",
        ),
        (("digits", "--id", "class"), "data.id_column is set without data.label_column"),
        (("nowhere.csv", "--label", "class"), "No such file"),
        (("latin.csv", "--label", "class"), "it is not UTF-8 text; save it as UTF-8"),
        (("utf16.csv", "--label", "class"), "it is not UTF-8 text; save it as UTF-8"),
        (("zip.parquet", "--label", "class"), "cannot be read as a table"),
        (("zip.parquet",), "cannot be read as a table"),
    ],
)
def test_flags_that_do_not_fit(typed, tmp_path, words, message):
    passengers(30).to_csv(tmp_path / "t.csv", index=False)
    write(tmp_path / "latin.csv", "größe,class\n1,ä\n", encoding="latin-1")
    write(tmp_path / "utf16.csv", "a,class\n1,u\n", encoding="utf-16")
    write(tmp_path / "zip.parquet", "PK no table")
    code, _, err = typed("train", *words, "--run", "run", *QUICK)
    assert code == 1
    assert message in err
    assert err.count("\n") == 1
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
    assert code == 0
    assert "has no column 'passenger_id'" in err
    assert list(read(tmp_path / "out.csv")[0]) == ["row", "class", "probability"]


def test_columns_whose_values_are_all_new_are_named(typed, tmp_path, trained):
    new = passengers(rows=30, seed=1)
    new.assign(sex=new["sex"].str.upper()).to_csv(tmp_path / "upper.csv", index=False)
    new.assign(sex="f", port="X").to_csv(tmp_path / "other.csv", index=False)
    words = "training has seen none of the values in column{} of {}; are they written differently?"
    for name, columns in (("upper.csv", " 'sex'"), ("other.csv", "s 'sex', 'port'")):
        code, _, err = typed("predict", trained, name, "-o", "out.csv")
        assert (code, err.strip()) == (0, words.format(columns, name))
    new.assign(sex=np.where(np.arange(30) == 0, "male", "f")).to_csv(tmp_path / "one.csv", index=False)
    assert typed("predict", trained, "one.csv", "-o", "out.csv")[2] == ""


def test_a_table_that_changed_is_refused(tmp_path, trained):
    passengers(seed=9).to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(RunError, match="not what"):
        load_run(trained).dataset()


def test_without_pandas_the_extra_is_named(tmp_path, monkeypatch):
    passengers(30).to_csv(tmp_path / "t.csv", index=False)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingPackageError, match=r"selfens\[tables\]"):
        loaded(tmp_path / "t.csv", "class")


def test_lists_in_cells_are_refused():
    frame = pandas.DataFrame({"x": [[1, 2], [3, 4]], "z": [1, 2]})
    with pytest.raises(DataError, match="column 'x' holds a list"):
        Columns.fit(frame)
    for cells in ([1j, 2j], np.array([1j, 2], dtype=object)):
        with pytest.raises(DataError, match="column 'x' holds a complex; expected numbers, texts or dates"):
            Columns.fit(frame.assign(x=cells))


def test_an_id_needs_a_label():
    with pytest.raises(ConfigError, match="without data.label_column"):
        DataConfig(id_column="a")


def test_a_table_has_no_backbone():
    with pytest.raises(ConfigError, match="are both set"):
        DataConfig(name="t.csv", label_column="a", backbone="timm:x")


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
    assert model.columns_.identifier == "passenger_id"
    x.loc[0, ["age", "port"]], x.loc[1, "port"] = None, "never seen"
    assert model.predict_proba(x).shape == (120, 3)
    with pytest.raises(ValueError, match="X lacks 1 of the 6 columns that were trained on: age"):
        model.predict(x.drop(columns="age"))
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict_proba(x), model.predict_proba(x))
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


def test_names_that_are_there_twice_are_refused_in_our_words():
    x, y = load_iris(return_X_y=True, as_frame=True)
    twice = x.set_axis([*"aabc"], axis=1)
    with pytest.raises(DataError, match="two columns named 'a'"):
        classifier().fit(twice, y)
    model = classifier().fit(x.set_axis([*"abcd"], axis=1), y)
    for fitted in (model, classifier().fit(x.to_numpy(), y)):
        with pytest.raises(DataError, match="two columns named 'a'"):
            fitted.predict(twice)


def test_tables_of_other_libraries_are_one_sentence(trained):
    pyarrow = pytest.importorskip("pyarrow")
    with pytest.raises(DataError, match=r"a pyarrow.Table was given as a table; expected a pandas DataFrame"):
        load_run(trained).predict(pyarrow.Table.from_pandas(passengers(10)))
    x, y = load_iris(return_X_y=True, as_frame=True)
    with pytest.raises(DataError, match=r"a pyarrow.Table was given as a table"):
        classifier().fit(x, y).predict(pyarrow.Table.from_pandas(x))


def test_what_is_no_number_is_warned_of():
    table = passengers(60)
    x = table[["age", "sex"]].assign(fare=[*["oops"], *map(str, range(59))])
    with pytest.warns(SelfensWarning, match="column 'fare': 1 cell is not a number and counts as missing."):
        classifier().fit(x, table["class"])


def test_true_and_false_are_the_same_values_whether_or_not_a_cell_is_empty():
    """A column of them is one of objects as soon as one cell is empty."""
    random = np.random.default_rng(0)
    y = random.integers(0, 2, 120)
    x = pandas.DataFrame({"flag": [*map(bool, y)], "noise": random.normal(size=120)}).astype({"flag": object})
    model = classifier(epochs=30).fit(x, y)
    assert model.columns_.columns[0].kind == "category"
    gap = x.copy()
    gap.loc[0, "flag"] = None
    assert model.score(x, y) == 1
    assert model.score(gap, y) >= 1 - 1 / 120


def test_commas_between_thousands_are_none_of_decimals(tmp_path):
    for name, cells, expected in (
        ("t.tsv", ["900", "937", "1,011", "12,345,678"], [900, 937, 1011, 12345678]),
        ("d.tsv", ["900", "937", "1,011", "1,5"], [900, 937, 1.011, 1.5]),
        ("s.csv", ["900", "937", "1,011", "1,012"], [900, 937, 1.011, 1.012]),
    ):
        mark = ";" if name.endswith("csv") else "\t"
        (tmp_path / name).write_text(f"n{mark}y\n" + "".join(f"{cell}{mark}a\n" for cell in cells))
        frame = read_frame(tmp_path / name)
        numbers, known = tabular._numbers(frame["n"], "", tabular._has_comma(frame))
        assert numbers.tolist() == expected
        assert known.all()


def test_cells_may_be_long(tmp_path):
    (tmp_path / "long.csv").write_text(f"a,b,label\n1,{'x' * 200_000},\n2,y,k\n")
    assert read_frame(tmp_path / "long.csv").shape == (2, 3)


def test_a_network_of_one_s_own_gets_as_many_inputs_in_every_fold():
    """Values that are there twice may be there once among the rows of a fold, and lose their input."""
    random = np.random.default_rng(0)
    y, letters = random.integers(0, 2, 60), random.choice([*"uvw"], 60).astype(object)
    letters[:20] = np.repeat([*"abcdefghij"], 2)
    x = pandas.DataFrame({"number": random.normal(size=60) + 2 * y, "letter": letters})
    model = classifier(method="temporal", network=nn.Linear(14, 2), baselines=True, epochs=2).fit(x, y)
    assert model.columns_.width == 14
    assert 0 <= model.baselines_.errors["this model"] < 100
