"""What the gallery of wrong kernels promises is what one is told."""

import re

from tests.gallery import EXHIBITS, GALLERY, gallery


def without_numbers(text):
    """The words: rounding differs from one machine and version to the next."""
    return re.sub(r"\d[\d.e+-]*", "0", text)


def test_the_gallery_is_what_is_told_now():
    shown, told = GALLERY.read_text(), gallery()
    assert without_numbers(shown) == without_numbers(told), "make it anew: python -m tests.gallery"


def test_every_mistake_has_a_cause_or_two_runs_that_differ():
    for part in GALLERY.read_text().split("\n## ")[1:]:
        assert "likely cause: " in part or "differ between two runs" in part, part
    assert len({one.title for one in EXHIBITS}) == len(EXHIBITS)
