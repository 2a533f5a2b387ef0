"""The pages in a real browser: a headless Chromium, driven by Playwright. Skipped if there is none."""

import re
import shutil

import numpy as np
import pytest
from support import SMALL_IMAGES, config, encoded, features, images

from selfens import train, write_report
from selfens.data.dataset import Dataset
from selfens.data.frames import text_frame
from selfens.report.page import write_suggestions_page
from selfens.tools import audit

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed (Debian: apt-get install chromium)")
WIDE, NARROW = 1280, 380
COLORED = (("body", "backgroundColor"), ("h1", "color"), ("svg text", "fill"), (".chart", "backgroundColor"))
CHARTS = {"run": 9, "table": 6, "comparison": 2, "suggestions": 0, "many classes": 5}
TEXTS = [
    "<script>alert(1)</script> & my PARCEL has not arrived",
    "השליח לא הגיע אתמול ואני עדיין מחכה לחבילה שלי",
    "👩‍👩‍👧‍👦 my family waits for the parcel that never came 🇳🇴",
    "荷物がまだ届いていません。いつ届くか教えてください。",
    "Ｆｕｌｌ width letters about an invoice",
]
CUT_OFF = """
    () => [...document.querySelectorAll("svg")].flatMap(svg => {
        const frame = svg.getBoundingClientRect();
        return [...svg.querySelectorAll("text")].filter(text => {
            const box = text.getBoundingClientRect();
            return box.left < frame.left - 1 || box.right > frame.right + 1
                || box.top < frame.top - 1 || box.bottom > frame.bottom + 1;
        }).map(text => text.textContent);
    })"""


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """One page of each kind, by name."""
    folder = tmp_path_factory.mktemp("pages")
    data, table, many = images(), features(), many_classes()
    run = train(config("temporal", *SMALL_IMAGES), folder / "run", dataset=data)
    other = train(config("pi", *SMALL_IMAGES, epochs=2), folder / "other-of-a-longer-name-seed-0", dataset=data)
    tabular = train(config("supervised", epochs=2), folder / "tabular", dataset=table)
    classes = train(config("supervised", "labels.count=60", epochs=1), folder / "classes", dataset=many)
    suggestions = audit.suggest_run(run, 12, data)
    texts = audit.Suggestions(np.arange(5), np.arange(5) % 2, np.linspace(0, 1, 5))
    return {
        "run": write_report(run, folder / "run.html", dataset=data),
        "table": write_report(tabular, folder / "table.html", dataset=table),
        "comparison": write_report([run, other], folder / "comparison.html", dataset=data),
        "suggestions": write_suggestions_page(folder / "suggestions.html", suggestions, encoded(data)),
        "texts": write_suggestions_page(folder / "texts.html", texts, encoded(messages(), "columns", texts="tfidf")),
        "many classes": write_report(classes, folder / "classes.html", dataset=many),
    }


def many_classes():
    """Thirty classes, with names that are long, and would be markup if they were not escaped."""
    random = np.random.default_rng(0)
    names = [f"<img src=x onerror=alert({n})> a name that goes on and on" for n in range(30)]
    x, y = random.normal(size=(120, 6)), np.arange(120) % 30
    return Dataset.from_arrays(x, y, x[:60], y[:60], classes=names)


def messages():
    return Dataset(
        raw=text_frame(TEXTS), labels=np.arange(5) % 2, is_test=np.zeros(5, bool), classes=("billing", "delivery")
    )


@pytest.fixture
def visit(browser, pages):
    """Opens a page by its name, and all that is folded away; the test fails if it logs anything or makes a request."""
    opened = []

    def visit(name, width=WIDE, scheme="light", unfolded=True):
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        complaints: list[str] = []
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(dialog.message))
        page.on("request", lambda request: complaints.append(request.url) if not is_local(request.url) else None)
        page.goto(pages[name].as_uri())
        if unfolded:
            page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
        opened.append((page, complaints))
        return page

    yield visit
    for page, complaints in opened:
        assert complaints == []
        page.close()


def is_local(address):
    return address.startswith(("file:", "data:"))


@pytest.mark.parametrize("name", CHARTS)
@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_a_page_fits_the_screen_and_its_charts_are_whole(visit, name, width):
    page = visit(name, width)
    assert page.title().startswith("selfens: ")
    assert page.locator("h1").count() == 1
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    boxes = [chart.bounding_box() for chart in page.locator("svg").all()]
    assert len(boxes) == CHARTS[name]
    assert all(box["width"] > 200 and box["height"] > 120 for box in boxes)
    panels = [panel.bounding_box() for panel in page.locator(".chart").all()]
    assert all(panel["x"] >= 0 and panel["x"] + panel["width"] <= width for panel in panels)
    assert page.evaluate(CUT_OFF) == []


@pytest.mark.parametrize("width", [WIDE, 1000, 800])
@pytest.mark.parametrize("name", [name for name, count in CHARTS.items() if count])
def test_every_row_of_charts_is_full_whatever_their_number(visit, name, width):
    gaps = visit(name, width).evaluate(
        """() => [...document.querySelectorAll(".charts")].flatMap(charts => {
            const found = [], edge = charts.getBoundingClientRect().right;
            for (; charts.children.length > 1; charts.lastElementChild.remove()) {
                const ends = {};
                for (const chart of charts.children) {
                    const box = chart.getBoundingClientRect();
                    ends[box.top] = Math.max(ends[box.top] || 0, box.right);
                }
                found.push(...Object.values(ends).map(end => edge - end));
            }
            return found; })"""
    )
    assert max(map(abs, gaps)) < 1


def test_a_page_begins_with_the_verdict(visit):
    for width in (WIDE, NARROW):
        page = visit("run", width, unfolded=False)
        assert re.match(r"[\d.]+\s%\sof rows that it has not seen are misclassified: ", page.locator("h1").inner_text())
        number = page.locator("h1 strong")
        sizes = [
            float(each.evaluate("each => parseFloat(getComputedStyle(each).fontSize)"))
            for each in (number, page.locator("h1"))
        ]
        assert sizes[0] >= 1.5 * sizes[1]
        assert page.locator(".next").inner_text().startswith(("Next, ", "More labels "))
        charts = page.locator(".chart")
        assert [chart.is_visible() for chart in charts.all()] == [True] * 3 + [False] * 6  # training is folded away
        gallery = page.locator(".gallery").first.bounding_box()
        assert page.locator(".next").bounding_box()["y"] < gallery["y"] < charts.first.bounding_box()["y"]
        table = page.locator(".verdict").bounding_box()
        assert table["y"] < page.locator(".chart").first.bounding_box()["y"]
        assert table["x"] + table["width"] <= width
        assert page.locator(".verdict .ours").inner_text().startswith("this model")


def test_galleries_are_folded_on_a_phone_and_only_there(visit):
    page = visit("run", NARROW)
    tiles, fold = page.locator(".tiles").first, page.locator(".fold").first
    assert not tiles.is_visible()
    fold.click()
    assert tiles.is_visible()
    fold.click()
    assert not tiles.is_visible()
    assert not visit("table", NARROW).locator(".gallery table").first.is_visible()
    assert visit("suggestions", NARROW).locator(".tiles").is_visible()  # it is the page
    wide = visit("run", WIDE)
    assert wide.locator(".tiles").first.is_visible()
    assert not wide.locator(".fold").first.is_visible()


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("parcel", [0, 2]),
        ("came PARCEL", [2]),
        ("<script>alert(1)</script>", [0]),
        ("מחכה השליח", [1]),
        ("👩", [2]),
        ("届", [3]),
        ("full", [4]),
        ("\\", []),
        ("  ", [0, 1, 2, 3, 4]),
    ],
)
def test_a_gallery_is_searched_by_words_in_any_script(visit, typed, found):
    page = visit("texts", NARROW)
    page.locator(".search input").fill(typed)
    rows = page.locator("tbody tr").all()
    assert [number for number, row in enumerate(rows) if row.is_visible()] == found
    assert page.locator(".search output").inner_text() == (f"{len(found)} of 5" if typed.strip() else "")
    page.locator(".search input").fill("")
    assert all(row.is_visible() for row in rows)


def test_pictures_are_searched_by_name_and_class_in_their_own_gallery(visit):
    page = visit("run")
    gallery, other = page.locator(".gallery").nth(0), page.locator(".gallery").nth(1)
    first, count = gallery.locator(".tile .file").first.inner_text(), other.locator(".tile").count()
    gallery.locator(".search input").fill(first)
    assert 1 <= gallery.locator(".tile:visible").count() < gallery.locator(".tile").count()
    assert other.locator(".tile:visible").count() == count


def test_a_page_runs_its_own_script_and_no_other(browser, pages, tmp_path):
    source, changed = pages["texts"].read_text(), tmp_path / "changed.html"
    assert source.count("<script>") == 1
    changed.write_text(source.replace("<script>", "<script>document.title = 'mine';"))
    page = browser.new_page()
    page.goto(changed.as_uri())
    assert page.title() != "mine"
    assert not page.locator(".search").first.is_visible()
    page.close()


def test_the_table_of_a_comparison_is_whole_and_under_its_chart(visit):
    page = visit("comparison", 1200)
    assert page.locator(".comparison .wide:has(table)").evaluate("box => box.scrollWidth - box.clientWidth") == 0
    chart, table = (page.locator(f".comparison {part}").first.bounding_box() for part in (".chart", "table"))
    assert table["y"] > chart["y"] + chart["height"]


def test_pictures_are_shown_and_small_ones_keep_their_squares(visit):
    image = visit("run").locator(".tile img").first
    assert image.evaluate("image => image.complete && image.naturalWidth") == 8
    assert image.bounding_box()["width"] > 80
    assert image.evaluate("image => getComputedStyle(image).imageRendering") == "pixelated"


def test_light_and_dark_differ_and_both_can_be_read(visit):
    seen = {}
    for scheme in ("light", "dark"):
        page = visit("comparison", scheme=scheme)
        seen[scheme] = [
            page.evaluate(f"getComputedStyle(document.querySelector('{where}')).{what}") for where, what in COLORED
        ]
        paper, heading, text, panel = (brightness(color) for color in seen[scheme])
        assert abs(paper - heading) > 0.5
        assert abs(panel - text) > 0.5
    assert all(light != dark for light, dark in zip(seen["light"], seen["dark"], strict=True))


def brightness(color):
    """Of rgb(r, g, b), from 0 to 1."""
    numbers = color.removeprefix("rgb(").removesuffix(")").split(",")
    return sum(float(number) for number in numbers) / (3 * 255)


def test_names_that_are_markup_are_shown_as_they_are(visit):
    page = visit("many classes")
    assert page.locator("img").count() == 0
    assert "<img src=x onerror=alert(" in page.locator(".gallery").first.inner_text()
