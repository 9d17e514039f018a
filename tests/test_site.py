"""The course as pages: whole, without a dead link, and without what a learner is to find."""

import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner

from harness.base.errors import UsageProblem
from harness.cli import publish
from harness.content.catalog import load_curriculum
from harness.reports.measured import kept_results
from harness.reports.pictures.recording import BankMap, LaunchStart, Line, Recording
from harness.reports.pictures.timeline import Span, Timeline
from harness.reports.site import Site
from harness.reports.site.brief import as_page, as_words
from harness.reports.site.trace import without_code, without_lines

ROOT = Path(__file__).resolve().parents[1]
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
DRAWN = '<svg xmlns="http://www.w3.org/2000/svg" width="2000" height="300"/>'
in_a_browser = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium, which is not installed")


class Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.links, self.ids = [], set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        known = dict(attributes)
        self.links += [known[key] for key in ("href", "src", "action") if known.get(key)]
        if "id" in known:
            self.ids.add(known["id"])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The real course, with one picture for all."""
    folder = tmp_path_factory.mktemp("site")
    picture = folder / "trace.svg"
    picture.write_text(DRAWN)
    known = load_curriculum(ROOT)
    made = Site(curriculum=known, folder=folder / "out", results=kept_results(ROOT),
                picture=lambda kata: picture if kata.backend == "triton" else None)  # fmt: skip
    made.write()
    return made


def test_each_week_and_each_kata_has_a_page(site):
    assert {file.stem for file in (site.folder / "kata").iterdir()} == set(site.curriculum.katas)
    assert len(list((site.folder / "week").iterdir())) == len(site.curriculum.weeks) == 52


def test_no_link_is_dead(site):
    pages = {file: Page(file.read_text()) for file in site.folder.rglob("*.html")}
    dead, followed = [], 0
    for file, page in pages.items():
        for link in page.links:
            url = urlsplit(link)
            if url.scheme:
                assert url.scheme in ("https", "data"), (file, link)
                continue
            target = (file.parent / url.path).resolve() if url.path else file
            followed += 1
            if not target.is_file() or (url.fragment and url.fragment not in pages[target].ids):
                dead.append(f"{file.relative_to(site.folder)}: {link}")
    assert dead == []
    assert followed > 1000


def test_what_is_to_be_found_is_not_told(site):
    told = "\n".join(file.read_text() for file in site.folder.rglob("*") if file.is_file())
    for kata in site.curriculum.katas.values():
        brief = (kata.folder / "README.md").read_text()
        for hint in kata.hints[1:]:
            # whether a brief gives its hint away is for its author to say
            assert hint[:60] not in told or hint[:60] in brief, kata.name


def test_a_kata_has_its_brief_its_limits_and_what_was_measured(site):
    page = (site.folder / "kata" / "vector_add.html").read_text()
    assert "one <em>program</em> does with a whole block of elements" in page
    assert '<th scope="row">bytes_moved</th><td>at most 1 x the least possible</td>' in page
    assert '<a href="fused_silu.html">' in page  # which builds on it
    assert "trace/vector_add.svg" in page
    timed = (site.folder / "kata" / "matmul.html").read_text()
    (row, *_) = re.findall(r'<th scope="row">h100_sxm</th>.*?</tr>', timed, re.DOTALL)
    naive, limit, reference, _ = re.findall(r'<td class="n">([\d.]+)</td>', row)
    assert float(naive) < float(limit) < float(reference)


def test_a_folder_with_other_files_is_left_alone(site, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(UsageProblem, match="expected an empty folder or an earlier site"):
        Site(
            curriculum=site.curriculum, folder=tmp_path, results=(), picture=lambda _: None
        ).write()
    assert (tmp_path / "mine.txt").read_text() == "mine"


def test_the_command_writes_it_anew(kata_command, tmp_path):
    for _ in range(2):
        done = kata_command("site", "-o", str(tmp_path / "out"), "--no-pictures")
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "kata" / "doubled.html").is_file()
    assert "0 trace pictures" in done.stdout


def test_without_matplotlib_the_way_out_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(publish, "find_spec", lambda name: None)
    done = CliRunner().invoke(publish.site, ["-o", str(tmp_path)])
    assert done.exit_code == 3
    assert "pip install matplotlib" in done.output
    assert "--no-pictures" in done.output


# ---- in a browser --------------------------------------------------------------------------


def browse(url, *options):
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
               "--allow-file-access-from-files", "--virtual-time-budget=2000", "--dump-dom",
               *options, url]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, check=True)


@in_a_browser
def test_search_finds_pages_without_a_server(site):
    done = browse((site.folder / "search.html").as_uri() + "?q=online+soft")
    assert [line for line in done.stderr.splitlines() if "CONSOLE" in line] == []
    hits = re.findall(r'<li><a href="([^"]+)">', done.stdout)
    assert hits[0] == "kata/online_softmax.html"
    assert f"{len(hits)} pages" in done.stdout
    none = browse((site.folder / "search.html").as_uri() + "?q=online+zzzz")
    assert "0 pages" in none.stdout


@in_a_browser
@pytest.mark.parametrize("page", ["index", "map", "week/09", "kata/matmul"])
def test_a_page_is_no_wider_than_a_phone_and_complains_of_nothing(site, page, tmp_path):
    # a window is never narrower than 500 pixels: a frame is
    frame = site.folder / "frame.html"
    frame.write_text(
        f"<iframe id=f src={page}.html width=390 height=800></iframe><script>f.onload = () => "
        "setTimeout(() => document.title = f.contentDocument.documentElement.scrollWidth)</script>"
    )
    done = browse(frame.as_uri())
    frame.unlink()
    assert [line for line in done.stderr.splitlines() if "CONSOLE" in line] == []
    title = re.search("<title>([0-9]+)</title>", done.stdout)
    assert title is not None
    assert int(title[1]) <= 390


# ---- parts ---------------------------------------------------------------------------------


def test_a_brief_brings_no_markup_and_leads_nowhere_else():
    html = as_page("# Title\n\n<b>x</b> [a](other/) [b](../../c.md)\n", {"other/": "o.html"}.get)
    assert html == '<p>&lt;b&gt;x&lt;/b&gt; <a href="o.html">a</a> <span>b</span></p>\n'


def test_names_of_code_are_words():
    assert (
        as_words("Call `tl.load(x_ptr)`, then tl.load again: 2-D")
        == "call tl.load x_ptr then again 2-d"
    )


def test_a_trace_for_everybody_shows_no_code():
    line = Line(
        where="k.py:3", source="secret", kind="load", requests=1, sectors=1, least=1, bytes=4
    )
    bank = BankMap(where="k.py:4", source="secret", kind="load", requests=1, wavefronts=1,
                   words=((1,),))  # fmt: skip
    found = Recording(unit="warp", units=1, per_row=1, maps=(), lines=(line,), banks=(bank,),
                      launches=(LaunchStart(kernel="k", first=0, per_block=1),))  # fmt: skip
    assert "secret" not in without_code(found).as_json()
    assert "k.py" not in without_code(found).as_json()
    span = Span(lane="TMA load", kind="TMA load", start=0, end=1, where="k.py:3", source="secret")
    timed = Timeline(kernel="k", index=(0,), programs=1, steps=1, lanes=("TMA load",),
                     spans=(span,), overlaps={}, bytes_in_flight=0.0)  # fmt: skip
    assert "secret" not in without_lines(timed).as_json()
    assert "k.py" not in without_lines(timed).as_json()
