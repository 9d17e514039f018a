"""`kata lines --html`: the figures of the terminal on a page, for any screen."""

import re

import pytest

from harness.cli import lines
from harness.reports.listing import Listing, listed
from harness.reports.listing_page import COUNTERS, as_html
from tests.scorecards.test_browser import MEASURE, PHONE, Document, browse, in_a_browser

ROW = re.compile(r'<tr id="line-(\d+)">(.*?)</tr>')
CELL = re.compile(r'<td class="n">(?:<span data-name=" ([a-z]+)">([\d,]+)</span>.*?)?</td>')


@pytest.fixture
def page(fresh):
    """``page(found)``: that listing of a kata, as HTML."""
    submission = fresh("numba")
    return lambda found: as_html(found, submission.kata, 1, "solution")


def listing(*rows, **rest):
    """A listing of (source, counts)."""
    text = {at: source for at, (source, _) in enumerate(rows, 7)}
    counts = {at: found for at, (_, found) in enumerate(rows, 7)}
    given = {"file": "k.cu", "kernels": {"k": 1}, "how": "as PTX of sm_90", **rest}
    return Listing.of(given.pop("file"), text, counts, **given)


def on_the_page(html):
    """Line number to the counts beside it, by their heads."""
    return {int(line): {head: n for head, n in CELL.findall(row) if n}
            for line, row in ROW.findall(html)}  # fmt: skip


def in_the_terminal(found):
    """The same of the terminal's table, whose columns end where their heads do."""
    heads, *rows = lines._table(found)
    names = {short: COUNTERS[name][0] for name, short in lines.HEADS.items()}
    table = heads[: heads.rindex("  ")]
    ends = {names[head[0]]: head.end() for head in re.finditer(r"\S+", table)}
    counts = {}
    for row in rows:
        line = int(row[len(table) :].split()[0])
        cells = {head: row[:end].rpartition(" ")[2] for head, end in ends.items()}
        counts[line] = {head: n for head, n in cells.items() if n}
    return counts


@pytest.mark.parametrize("backend", ["numba", "cuda", "triton", "gluon"])
def test_the_figures_are_those_of_the_terminal(fresh, backend):
    if backend in ("triton", "gluon"):
        pytest.importorskip("triton")
    submission = fresh(backend)
    found = listed(submission, 2, "sm_90")
    shown = on_the_page(as_html(found, submission.kata, 2, "solution"))
    assert any(shown.values())
    assert shown == in_the_terminal(found)


def test_a_bar_has_the_length_of_its_share(page):
    html = page(listing(("a", {"global_load_sectors": 30}), ("b", {"global_load_sectors": 10})))
    assert re.findall(r'class="share" style="width:([\d.]+)%"', html) == ["75.0", "25.0"]


def test_the_hottest_lines_stand_first_and_lead_to_the_source(page):
    counts = (1, 5, 3, 5, 2)
    html = page(listing(*((f"x{n}", {"warp_instructions": n}) for n in counts)))
    links = re.findall(r'<a href="#line-(\d+)">line \1</a> (\d+%)', html)
    assert links == [("8", "31%"), ("10", "31%"), ("9", "19%")]
    assert {line for line, _ in links} <= {str(line) for line in on_the_page(html)}


def test_columns_without_a_count_are_left_out(page):
    html = page(listing(("x", {"shared_load_wavefronts": 2, "shared_load_ideal": 2})))
    assert re.findall(r'<th scope="col" class="n">(\w+)</th>', html) == ["line", "wavefronts"]


def test_source_and_hazards_bring_no_markup(page):
    found = listing(("if (a<b) // &amp;", {"warp_instructions": 1}), hazards=("race <on> s",))
    html = page(found)
    assert "if (a&lt;b) // &amp;amp;" in html
    assert "<li>race &lt;on&gt; s</li>" in html


def test_the_command_writes_a_page_and_says_where(kata_command, fresh, tmp_path):
    fresh("numba")
    asked = ("lines", "fresh", "--impl", "solution", "--html")
    done = kata_command(*asked, str(tmp_path / "page.html"))
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r".*page\.html: \d+ KiB of html\n", done.stdout)
    to_output = kata_command(*asked)
    assert to_output.stdout == (tmp_path / "page.html").read_text() + "\n"
    both = kata_command(*asked, "--json")
    assert (both.returncode, "found both" in both.stderr) == (2, True)


# ---- in a browser --------------------------------------------------------------------------


@pytest.fixture
def broad(page, tmp_path):
    """A page of every counter, with long lines and large counts."""
    counts = dict.fromkeys(
        ("warp_instructions", "global_load_requests", "global_load_sectors", "global_load_bytes",
         "shared_load_wavefronts"), 10**12,
    )  # fmt: skip
    long = ("    " * 6 + "x" * 90, counts)
    file = tmp_path / "page.html"
    found = listing(long, long, ("}", {}), long, kernels={"k" * 60: 1}, file="f" * 60 + ".cu")
    file.write_text(page(found).replace("</head>", f"{MEASURE}</head>"))
    return file


@in_a_browser
@pytest.mark.parametrize("width", [PHONE, 1200])
def test_nothing_is_wider_than_the_screen_and_nothing_is_complained_of(broad, width):
    # a window is never narrower than 500 pixels: a frame is
    frame = broad.with_name("frame.html")
    frame.write_text(
        f"<iframe id=f src={broad.name} width={width} height=800></iframe><script>"
        "f.onload = () => setTimeout(() => document.title = f.contentDocument.title)</script>"
    )
    done = browse(frame, "--allow-file-access-from-files", "--dump-dom",
                  "--virtual-time-budget=2000", "--enable-logging=stderr")  # fmt: skip
    assert [line for line in done.stderr.splitlines() if "CONSOLE" in line] == []
    title = re.search("<title>(.*)</title>", done.stdout)
    assert title is not None, done.stdout
    needed, there = map(int, title[1].split(" of "))
    assert needed == there <= width


@in_a_browser
def test_it_loads_nothing_and_its_links_lead_somewhere(page, tmp_path):
    file = tmp_path / "page.html"
    file.write_text(page(listing(("x", {"warp_instructions": 3}))))
    dom = Document(browse(file, "--dump-dom").stdout)
    assert [dom.all(tag) for tag in ("script", "link", "img")] == [[], [], []]
    ids = {attributes["id"] for _, attributes in dom.elements if "id" in attributes}
    assert {one["href"] for one in dom.all("a")} == {"#line-7"} <= {f"#{one}" for one in ids}
    assert [len(dom.all(tag)) for tag in ("header", "main", "footer", "h1")] == [1] * 4
