"""The pages in a real browser: what is there, what links where, how wide it is."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from itertools import product
from pathlib import Path

import pytest

from harness.learner.progress import Progress
from harness.reports.classroom import Pupil
from harness.reports.scorecard import read_scorecard
from harness.reports.scorecard.html import as_html, class_as_html, read_picture
from tests.scorecards.learner import curriculum
from tests.scorecards.test_year import END

PAGE = Path(__file__).parent / "year" / "scorecard.html"
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
PHONE = 390
LEVELS = ("untried", "attempted", "correct", "solved", "fast", "mastered")
# a page cannot be asked how wide it is, but it can say so in its title
MEASURE = """<script>addEventListener("load", () => {
    const page = document.documentElement
    document.title = page.scrollWidth + " of " + page.clientWidth
})</script>"""

in_a_browser = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium, which is not installed")


def browse(page, *options):
    """Open `page`; what the browser printed, the document or its errors."""
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", *options, page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, check=True)


class Document(HTMLParser):
    """Elements with their attributes, and the text between them."""

    def __init__(self, source):
        super().__init__()
        self.elements, self.words = [], []
        self.feed(source)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_data(self, text):
        self.words.append(text)

    def all(self, tag):
        return [attributes for found, attributes in self.elements if found == tag]

    @property
    def text(self):
        return " ".join("".join(self.words).split())


@pytest.fixture(scope="module")
def dom():
    """The page as Chromium understood it."""
    return Document(browse(PAGE, "--dump-dom").stdout)


@pytest.fixture(scope="module")
def card(tmp_path_factory):
    """Of somebody who has not begun."""
    return read_scorecard(curriculum(), Progress(tmp_path_factory.mktemp("new")), END)


def broad_picture(folder):
    file = folder / "broad.svg"
    size = 'width="1200" height="300"'
    file.write_text(f'<svg xmlns="http://www.w3.org/2000/svg" {size}><rect {size}/></svg>')
    return read_picture(file)


@pytest.fixture(scope="module")
def class_page(card, tmp_path_factory):
    page = tmp_path_factory.mktemp("class") / "class.html"
    names = ("Ada <b>", *(f"learner{at}" for at in range(20)))
    page.write_text(class_as_html([Pupil(name=name, card=card) for name in names]))
    return page


@in_a_browser
def test_what_was_done_is_on_the_page(dom):
    levels = json.loads(PAGE.with_suffix(".json").read_text())["whole"]["items"]
    owned = sum(levels[name] for name in ("solved", "fast", "mastered"))
    assert f"{owned} of the 416 concepts that have katas are owned" in dom.text
    assert "kata_01_1" in dom.text
    assert "Topic 5 · untried · later · 0 of 56 solved" in dom.text
    assert len(dom.all("tr")) > 187  # a row for each kata that was tried, and headings
    assert dom.all("html")[0]["lang"] == "en"


@in_a_browser
def test_every_link_leads_somewhere(dom):
    targets = {attributes["id"] for _, attributes in dom.elements if "id" in attributes}
    links = [attributes["href"] for attributes in dom.all("a")]
    assert len(links) > 200
    assert {link for link in links if not link.startswith("#")} == set()
    assert {link[1:] for link in links} <= targets


@in_a_browser
def test_the_page_has_landmarks_and_boxes_for_the_keyboard(dom):
    assert [len(dom.all(tag)) for tag in ("header", "nav", "main", "footer", "h1")] == [1] * 5
    boxes = [one for one in dom.all("div") if "wide" in one.get("class", "")]
    assert len(boxes) == 2  # the other sections fit a phone
    assert all(one["tabindex"] == "0" and one["aria-label"] for one in boxes)
    assert dom.all("script") == []
    assert dom.all("link") == []


@in_a_browser
@pytest.mark.parametrize("which", ["scorecard", "class", "pictures"])
def test_a_phone_scrolls_down_only(which, class_page, card, tmp_path):
    text = class_page.read_text() if which == "class" else PAGE.read_text()
    if which == "pictures":
        text = as_html(card, [broad_picture(tmp_path)])
    page = tmp_path / "measured.html"
    page.write_text(text.replace("</head>", f"{MEASURE}</head>"))
    # a window is never narrower than 500 pixels: a frame is
    frame = tmp_path / "phone.html"
    frame.write_text(
        f"<iframe id=f src={page.name} width={PHONE} height=800></iframe><script>"
        "f.onload = () => setTimeout(() => document.title = f.contentDocument.title)</script>"
    )
    options = ("--allow-file-access-from-files", "--dump-dom", "--virtual-time-budget=2000")
    shown = browse(frame, *options).stdout
    title = re.search("<title>(.*)</title>", shown)
    assert title is not None, shown
    needed, there = map(int, title.group(1).split(" of "))
    assert needed == there <= PHONE


@in_a_browser
def test_it_is_drawn_and_nothing_is_complained_of(tmp_path):
    picture = tmp_path / "page.png"
    done = browse(
        PAGE, f"--screenshot={picture}", "--window-size=1200,2000", "--enable-logging=stderr"
    )
    assert [line for line in done.stderr.splitlines() if "CONSOLE" in line] == []
    data = picture.read_bytes()
    width, height = (int.from_bytes(data[at : at + 4]) for at in (16, 20))
    assert (width, height) == (1200, 2000)
    assert len(data) > 50_000  # an empty page is a tenth of this


@in_a_browser
def test_a_year_is_printed_on_few_sheets(tmp_path):
    paper = tmp_path / "page.pdf"
    browse(PAGE, f"--print-to-pdf={paper}", "--no-pdf-header-footer")
    assert len(re.findall(rb"/Type\s*/Page\b", paper.read_bytes())) <= 4


def test_what_is_due_first_stands_first(card):
    source = PAGE.read_text()
    dates = re.findall(r'<td class="whole">(?:<b>now</b>, )?(\d{4}-\d\d-\d\d)</td>', source)
    assert len(dates) > 150
    assert dates == sorted(dates)


def test_a_topic_has_the_colour_of_its_level():
    topics = json.loads(PAGE.with_suffix(".json").read_text())["topics"]
    known = {one["name"]: one for one in topics}
    boxes = re.findall(r"<title>(Topic \d): .*?<rect [^>]*?fill=\"var\(--(\w+)", PAGE.read_text())
    assert len(boxes) == len(known) == 6
    assert {name: known[name]["level"] for name, _ in boxes} == dict(boxes)
    assert len({fill for _, fill in boxes}) > 1


def test_a_name_cannot_bring_markup(class_page):
    assert "Ada &lt;b&gt;" in class_page.read_text()


def test_every_text_stands_out_from_its_ground():
    source = PAGE.read_text()
    light, dark = re.findall(r":root \{(.*?)\}", source, re.DOTALL)
    for theme in (light, dark):
        colour = dict(re.findall(r"--(\w+): (#\w+)", theme))
        pairs = [*product(["ink"], ["paper", *LEVELS]), ("soft", "paper"), ("focus", "paper")]
        low = {pair: contrast(*(colour[name] for name in pair)) for pair in pairs}
        assert {pair: ratio for pair, ratio in low.items() if ratio < 4.5} == {}


def contrast(one, other):
    """The ratio of WCAG 2: 4.5 is what small text needs."""
    bright, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


def luminance(colour):
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
