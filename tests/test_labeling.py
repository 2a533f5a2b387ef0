"""Labeling on a page: the journal, the queue, the server, and the page in a real browser."""

import json
import os
import random
import shutil
import threading
import time
from dataclasses import replace
from http.client import HTTPException
from pathlib import Path

import numpy as np
import pytest
from labeling_server import Server
from PIL import Image

from selfens import load_run
from selfens.cli import main
from selfens.data import journal, sources
from selfens.data.sources import options_for
from selfens.errors import ConfigError, DataError
from selfens.labeling import store as stores
from selfens.labeling.project import open_project
from selfens.labeling.store import Store

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
in_browser = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed (Debian: apt-get install chromium)")
EVIL = "<img src=x onerror=alert(1)>"


def photos(folder: Path, count: int = 24) -> Path:
    """Red and blue photos in turn."""
    folder.mkdir(parents=True)
    noise = np.random.default_rng(0)
    for number in range(count):
        pixels = noise.integers(0, 60, (12, 16, 3)) + np.array([[180, 0, 0], [0, 0, 180]])[number % 2]
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number:02}.png")
    return folder


def color(row: int) -> str:
    return ("red", "blue")[row % 2]


# The journal


def test_labels_of_the_journal_are_those_of_the_data(tmp_path):
    folder = photos(tmp_path / "photos")
    store = Store(open_project(folder))
    for row in range(10):
        store.label(row, color(row), why=stores.DRAWN if row < 4 else stores.TYPICAL, seconds=1.5)
    store.label(3, None)
    store.mark(20, "junk")
    store.mark(21, "skipped")
    data = sources.load(options_for(folder))
    assert data.classes == ("blue", "red")
    names = [Path(name).name for name in data.ids]
    assert "20.png" not in names
    assert len(names) == 23
    labels = {name: data.classes[label] for name, label in zip(names, data.labels, strict=True) if label >= 0}
    assert labels == {f"{row:02}.png": color(row) for row in range(10) if row != 3}
    assert [name for name, chosen in zip(names, data.suggested, strict=True) if chosen] == [
        f"0{n}.png" for n in range(4, 10)
    ]
    os.rename(folder / "05.png", folder / "moved.png")
    data = sources.load(options_for(folder))
    assert data.classes[data.labels[[Path(name).name for name in data.ids].index("moved.png")]] == "blue"


def test_a_run_does_not_see_labels_that_were_given_after_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("table.csv").write_text("size,id\n" + "".join(f"{n % 2 * 9 + n / 100},{n}\n" for n in range(30)))
    store = Store(open_project("table.csv"))
    for row in range(6):
        store.label(row, color(row))
    with pytest.raises(SystemExit) as done:
        main(["train", "table.csv", "--run", "first", "--epochs", "1", "--no-report", "--no-baselines", "--quiet"])
    assert not done.value.code
    before = load_run("first").data().fingerprint
    store.label(7, "green")
    store.mark(8, "junk")
    run = load_run("first")
    assert (run.data().fingerprint, run.classes) == (before, ("blue", "red"))
    assert sources.load(options_for("table.csv")).classes == ("blue", "green", "red")


def test_without_labels_a_table_says_what_to_do(tmp_path, capsys):
    path = tmp_path / "table.csv"
    path.write_text("size\n1\n2\n")
    with pytest.raises(SystemExit):
        main(["train", str(path)])
    assert "or label rows on a page: selfens label" in capsys.readouterr().err


def test_lines_that_a_person_writes_or_damages(tmp_path):
    folder = photos(tmp_path / "photos")
    store = Store(open_project(folder))
    store.label(0, "red")
    with open(store.path, "a") as file:
        file.write(
            '{"file": "02.png", "label": "pink"}\nnonsense\n{"row": 5}\n{"row": "unknown", "label": "red"}\n{"half": '
        )
    assert store.next("window") is not None  # reads what has changed
    assert (store.labels[2], store.classes) == ("pink", ["red", "pink"])
    store.label(4, "red")  # on a line of its own
    data = sources.load(options_for(folder))
    assert int((data.labels >= 0).sum()) == 3
    assert any("3 damaged lines of the journal beside the data passed over" in note for note in data.notes)
    store.path.write_text("")
    assert store.next("window") is not None
    assert store.num_labeled == 0


def test_a_label_of_the_journal_replaces_that_of_the_folder_and_a_class_may_vanish(tmp_path):
    folder = photos(tmp_path / "photos", 6)
    for row in range(6):
        (folder / color(row)).mkdir(exist_ok=True)
        shutil.move(folder / f"{row:02}.png", folder / color(row))
    project = open_project(folder)
    store = Store(project)
    assert store.counts == {"blue": 3, "red": 3}
    for row, name in enumerate(store.names):
        if name.startswith("blue"):
            store.label(row, "azure")
    data = sources.load(options_for(folder))
    assert data.classes == ("red", "azure")
    assert np.bincount(data.labels).tolist() == [3, 3]


def test_labels_of_other_rows_are_not_lost_in_silence(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("topic,size\n" + "".join(f"{'ab'[n % 2]},{n}\n" for n in range(8)))
    store = Store(open_project(path, columns={"label": "topic"}))
    store.label(0, "c")
    assert sources.load(options_for(path, label="topic")).classes == ("a", "b", "c")
    with pytest.raises(DataError, match="none of the labels in the journal .* name the same columns as on the page"):
        sources.load(options_for(path))
    path.write_text("topic,size\n" + "".join(f"{'ab'[n % 2]},{n}\n" for n in range(2, 8)))
    assert any("1 label of the journal" in note for note in sources.load(options_for(path, label="topic")).notes)
    path.write_text("label,size\na,1\nb,2\n")
    with pytest.raises(ConfigError, match=r"has a column 'label'; say what holds the labels \(--label label\)"):
        open_project(path)


# The queue


def test_two_windows_show_different_rows_and_keep_both_labels(tmp_path):
    folder = photos(tmp_path / "photos")
    one, other = Store(open_project(folder)), Store(open_project(folder))  # two servers, even
    first, second = one.next("a")[0], one.next("b")[0]
    assert first != second
    assert one.next("a")[0] == first  # a reload shows it again
    one.label(first, "red")
    other.label(second, "blue")
    assert one.next("a")[0] not in (first, second)
    assert one.labels[second] == "blue"
    assert Store(open_project(folder)).counts == {"red": 1, "blue": 1}


def test_a_queue_of_suggestions_then_random_rows_each_once(tmp_path):
    store = Store(open_project(photos(tmp_path / "photos", 9)))
    store.put([5, 3])
    seen = []
    while (found := store.next("w")) is not None:
        seen.append(found)
        store.label(found[0], "red", why=found[1])
    assert [row for row, _ in seen[:2]] == [5, 3]
    assert sorted(row for row, _ in seen) == list(range(9))
    assert [why for _, why in seen] == [stores.TYPICAL] * 2 + [stores.DRAWN] * 7
    assert len(store.drawn) == 7


def test_doubtful_labels_come_in_between_and_are_asked_once(tmp_path):
    store = Store(open_project(photos(tmp_path / "photos")))
    for row in range(12):
        store.label(row, "red")
    store.doubtful = {3: "doubtful", 7: "doubtful"}
    asked = []
    for _ in range(11):
        row, why = store.next("w")
        asked += [row] if why == "doubtful" else []
        store.label(row, "red", why=why)
    assert asked == [3, 7]


def test_random_rows_come_first_when_an_error_is_to_be_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(stores, "MEASURED_ON", 4)
    store = Store(open_project(photos(tmp_path / "photos")))
    store.put([0, 1])
    assert store.draw() == 4
    for _ in range(4):
        row, why = store.next("w")
        assert (row in store.to_measure, why) == (True, stores.DRAWN)
        store.label(row, "red", why=why)
    assert store.next("w")[1] == stores.TYPICAL


# The server


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = photos(tmp_path_factory.mktemp("served") / EVIL.replace("/", ""), 30)
    (folder / "broken.png").write_bytes(b"no image")
    (folder / f"{EVIL}.png").write_bytes((folder / "00.png").read_bytes())
    served = Server(folder, "--every", "6")
    served.folder = folder
    yield served
    served.kill()


def test_nothing_is_told_without_the_token_or_to_another_site(server):
    for path in ("/status", "/row?window=w", "/image/0"):
        assert server.ask(path, X_Token="")[0] == 403
        assert server.ask(path, X_Token="x" * 32)[0] == 403
        assert server.ask(path, Host="evil.example")[0] == 403
        assert server.ask(path, Origin="http://evil.example")[0] == 403
        assert server.ask(path, Origin="null")[0] == 403
        assert server.ask(path, Origin=server.base)[0] == 200
    assert server.ask("/answer", {"row": 0, "window": "w", "label": "x"}, X_Token="")[0] == 403
    assert server.ask("/", X_Token="")[0] == 200  # holds nothing of the data
    assert server.ask("/", Host="evil.example")[0] == 403


def test_every_answer_has_the_policy_and_rows_go_by_number(server):
    for path in ("/", "/page.js", "/page.css", "/status", "/image/1"):
        status, _, headers = server.ask(path)
        assert status == 200
        assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'")
        assert headers["x-content-type-options"] == "nosniff"
    for path in ("/image/999", "/image/..%2f..%2fetc%2fpasswd", "/../server.py", "/server.py", "/image/-1"):
        assert server.ask(path)[0] == 404, path
    assert server.ask("/image/1")[1][:2] == b"\xff\xd8"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({}, "names no row"),
        ({"row": 999, "window": "w", "label": "x"}, "names no row"),
        ({"row": True, "window": "w", "label": "x"}, "names no row"),
        ({"row": 0, "window": "w", "label": 3}, "neither a label nor skip"),
        ({"row": 0, "window": "w"}, "neither a label nor skip"),
        ({"row": 0, "window": "w", "label": "x" * 101}, "at most 100 characters"),
        ({"row": 0, "window": "w", "label": "a\u202eb"}, "characters that can be shown"),
        ({"row": 0, "window": "w", "mark": "gone"}, "neither a label nor skip"),
        ({"row": 0, "window": "w" * 20_000, "label": "x"}, "too long"),
    ],
)
def test_strange_answers_are_refused_and_write_nothing(server, given, sentence):
    before = server.ask("/status")[1]["labeled"]
    status, said, _ = server.ask("/answer", given)
    assert status == 409
    assert sentence in said["error"]
    assert server.ask("/status")[1]["labeled"] == before
    assert server.ask("/answer", given, Content_Type="text/plain")[0] == 409


# The page in a browser


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def visit(browser):
    """Opens a page; the test fails if it logs anything unexpected."""
    opened = []

    def visit(server, width=1280):
        page = browser.new_page(viewport={"width": width, "height": 844})
        complaints: list[str] = []
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(dialog.message))
        page.goto(server.address)
        page.locator("body[data-row]").wait_for()
        opened.append((page, complaints))
        return page

    yield visit
    for page, complaints in opened:
        assert [line for line in complaints if "Failed to load resource" not in line] == []
        page.close()


def shown(page) -> int:
    return int(page.locator("body").get_attribute("data-row"))


def after(page, *keys):
    """Press keys, and return the row that is shown then."""
    row = shown(page)
    for key in keys:
        page.keyboard.type(key) if len(key) > 1 and key.islower() else page.keyboard.press(key)
    page.locator(f"body:not([data-row='{row}'])").wait_for()
    return shown(page)


def said(page, words):
    page.locator("#message", has_text=words).wait_for()


@in_browser
def test_a_person_labels_with_keys(server, visit):
    page = visit(server)
    page.keyboard.press("7")
    said(page, "No class has the key 7; there are no classes yet, and n adds a class.")
    page.keyboard.press("Enter")
    said(page, "Choose a class first")
    page.keyboard.press("Backspace")
    said(page, "nothing to undo")
    first = shown(page)
    second = after(page, "n", "first kind", "Enter")
    assert page.locator("#classes button").count() == 1
    assert "1 of 32 labeled · last took" in page.inner_text("#counts")
    third = after(page, "1")
    entries = [json.loads(line) for line in (server.folder / ".selfens.jsonl").read_text().splitlines()]
    assert [entry["label"] for entry in entries] == ["first kind"] * 2
    assert all(0 < entry["seconds"] < 60 for entry in entries)
    assert after(page, "Backspace") == second  # undone
    page.reload()
    page.locator("body[data-row]").wait_for()
    assert after(page, "ArrowDown", "Enter") != second  # the class marked by an arrow
    after(page, "Backspace")
    assert after(page, "Backspace") == first  # also what was before the reload
    assert "0 of 32 labeled" in page.inner_text("#counts")
    assert third not in (first, second)
    page.keyboard.press("z")
    assert page.locator("#shown.zoomed").count() == 1
    assert after(page, "x") != first
    assert after(page, "Backspace") == first
    assert after(page, "ArrowRight") != first
    after(page, "ArrowLeft")
    assert shown(page) == first


@in_browser
def test_after_enough_labels_a_model_is_trained_and_its_class_is_marked(server, visit):
    server.wait(lambda status: not status["state"]["doing"])
    page = visit(server)
    for _ in range(40):
        name = page.inner_text("#name")
        if len(server.ask("/status")[1]["curve"]) or not name[:2].isdigit():
            break
        known = page.locator("#classes button").evaluate_all("all => all.map(each => each.dataset.label)")
        label = color(int(name[:2]))
        if label in known:
            after(page, str(known.index(label) + 1))
        else:
            after(page, "n", label, "Enter")
        if server.ask("/status")[1]["labeled"] >= 6:
            break
    status = server.wait(lambda status: status["curve"])
    assert 0 <= status["curve"][0]["low"] <= status["curve"][0]["error"] <= status["curve"][0]["high"] <= 100
    page.locator("#verdict", has_text="90 % interval").wait_for()
    page.reload()
    page.locator("#why", has_text="The model says").wait_for()
    marked = page.locator("#classes [aria-pressed=true]").get_attribute("data-label")
    row, name = shown(page), page.inner_text("#name")
    after(page, "Enter")
    labels = [json.loads(line) for line in (server.folder / ".selfens.jsonl").read_text().splitlines()]
    assert next(line["label"] for line in reversed(labels) if line.get("file") == name) == marked, row
    page.keyboard.press("r")
    said(page, "random rows come next, to measure the error")


@in_browser
def test_names_are_shown_as_they_are_and_a_phone_needs_no_scrolling_sideways(server, visit):
    page = visit(server, 390)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.inner_text("#data").endswith(EVIL.replace("/", ""))
    page.locator("#typed").fill(EVIL)
    row = shown(page)
    page.locator("#typed").press("Enter")
    page.locator(f"body:not([data-row='{row}'])").wait_for()
    assert EVIL in page.locator("#classes").inner_text()
    page.locator("#classes button").last.click()
    page.locator(f"body:not([data-row='{row}'])").wait_for()
    heights = page.locator("button").evaluate_all("all => all.map(each => each.getBoundingClientRect().height)")
    assert min(heights) >= 40
    broken = server.ask("/status")[1]["rows"] - 1
    names = [server.ask(f"/row?window=x&row={number}")[1]["name"] for number in range(broken + 1)]
    status, told, _ = server.ask(f"/image/{names.index('broken.png')}")
    assert (status, "cannot be read" in told["error"]) == (404, True)


@in_browser
def test_a_server_that_is_killed_and_started_again_and_a_photo_that_is_gone(tmp_path, visit):
    folder = photos(tmp_path / "photos", 12)
    first = Server(folder)
    page = visit(first)
    after(page, "n", "thing", "Enter")
    first.kill()
    page.keyboard.press("1")
    said(page, "The server does not answer. Start selfens label again")
    second = Server(folder, port=first.port)
    try:
        after(page, "1")  # the open page goes on
        assert second.ask("/status")[1]["labeled"] == 2
        row, name = shown(page), page.inner_text("#name")
        os.unlink(folder / name)
        assert after(page, "1") != row
        said(page, f"{name} is no longer there, so it was passed over.")
        assert second.ask("/status")[1]["labeled"] == 2
    finally:
        assert second.stop() in (0, 130)
    assert "Traceback" not in second.log.read_text()


# Kills


def test_no_label_is_lost_in_kills(tmp_path):
    folder, acknowledged = photos(tmp_path / "photos", 200), {}
    moments = random.Random(0)
    for _ in range(2):
        served = Server(folder)
        killer = threading.Timer(moments.uniform(0.05, 0.6), served.kill)
        killer.start()
        try:
            view = served.ask("/row?window=w")[1]
            while view["row"] is not None:  # a fast server may come to the end first
                row, name, label = view["row"], view["name"], moments.choice(["a", "b"])
                status, view, _ = served.ask("/answer", {"row": row, "window": "w", "label": label, "why": view["why"]})
                assert status == 200
                acknowledged[name] = label
        except (OSError, ValueError, HTTPException):
            pass
        killer.join()
    kept = Store(open_project(folder))
    labels = {kept.names[row]: label for row, label in enumerate(kept.labels) if label}
    assert acknowledged
    assert acknowledged.items() <= labels.items()


# The command


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["digits"], "digits holds no data of your own"),
        (["empty"], "empty holds no images"),
        (["photos", "--host", "0.0.0.0"], "is open to other machines: anybody who sees the traffic"),
        (["photos", "--encoder", "tfidf"], "the encoder 'columns' does not suit"),
        (["photos", "--port", "1", "--host", "192.0.2.1", "--allow-others"], "cannot be served on 192.0.2.1, port 1"),
    ],
)
def test_what_cannot_be_labeled_is_one_sentence(tmp_path, monkeypatch, capsys, words, sentence):
    monkeypatch.chdir(tmp_path)
    photos(Path("photos"), 4)
    Path("empty").mkdir()
    with pytest.raises(SystemExit) as done:
        main(["label", *words, "--no-browser"])
    error = capsys.readouterr().err
    assert done.value.code == 1
    assert sentence in error
    assert error.count("\n") == 1


def test_a_port_in_use_is_a_sentence_if_it_was_asked_for(server, tmp_path, capsys):
    folder = photos(tmp_path / "photos", 4)
    with pytest.raises(SystemExit):
        main(["label", str(folder), "--no-browser", "--port", str(server.port)])
    assert f"port {server.port} (Address already in use); choose another --port" in capsys.readouterr().err


def test_the_journal_of_texts_arrays_and_lines(tmp_path):
    (tmp_path / "lines.txt").write_text("one text\n\nanother text\nthe third text\n")
    np.savez(tmp_path / "vectors.npz", x_train=np.arange(12.0).reshape(4, 3))
    for path, rows in ((tmp_path / "lines.txt", 3), (tmp_path / "vectors.npz", 4)):
        store = Store(open_project(path))
        assert len(store.rows) == rows
        store.label(1, "x")
        store.label(2, "y")
        data = sources.load(replace(options_for(path)))
        assert data.train_labels.tolist() == [-1, 0, 1] + [-1] * (rows - 3)
        assert journal.read(journal.path_for(path)).lines == 2


def test_answers_are_quick(server):
    times = []
    view = server.ask("/row?window=quick")[1]
    for _ in range(10):
        began = time.perf_counter()
        server.ask(f"/row?window=quick&row={view['row']}")
        times.append(time.perf_counter() - began)
    assert sorted(times)[5] < 0.5
