"""Pictures stand in the page itself; anything else is refused."""

import re
from base64 import b64decode

import pytest

from harness.base.errors import UsageProblem
from harness.reports.scorecard.html import read_picture

SVG = '<svg xmlns="http://www.w3.org/2000/svg"><title>Roofline &amp; more</title></svg>'


def test_a_picture_keeps_its_title_and_its_bytes(tmp_path):
    file = tmp_path / "one.svg"
    file.write_text(SVG)
    found = read_picture(file)
    assert found.title == "Roofline & more"
    kind, _, data = found.uri.partition(";base64,")
    assert kind == "data:image/svg+xml"
    assert b64decode(data).decode() == SVG


def test_a_picture_without_a_title_is_called_after_its_file(tmp_path):
    file = tmp_path / "trace.png"
    file.write_bytes(b"\x89PNG")
    assert read_picture(file).title == "trace"


def test_what_is_no_picture_is_refused(tmp_path):
    with pytest.raises(UsageProblem, match=r"notes\.txt: expected an SVG or a PNG, found \.txt"):
        read_picture(tmp_path / "notes.txt")


def test_the_command_puts_it_into_the_page(kata_command, tmp_path):
    (tmp_path / "one.svg").write_text(SVG)
    page = tmp_path / "page.html"
    asked = ["scorecard", "--picture", str(tmp_path / "one.svg"), "-o", str(page)]
    finished = kata_command(*asked, "--format", "html")
    assert finished.returncode == 0, finished.stderr
    (alt,) = re.findall(
        r'<img src="data:image/svg\+xml;base64,[^"]+" alt="([^"]+)">', page.read_text()
    )
    assert alt == "Roofline &amp; more"
    refused = kata_command(*asked, "--format", "md")
    assert refused.returncode == 2
    assert "--picture: expected --format html, found md" in refused.stderr + refused.stdout
