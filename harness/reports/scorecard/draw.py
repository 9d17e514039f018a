"""The scorecard in the format that was asked for."""

import json
from collections.abc import Sequence
from pathlib import Path

from harness.reports.scorecard import Scorecard
from harness.reports.scorecard.plain import as_json


def drawn(card: Scorecard, form: str, pictures: Sequence[Path] = ()) -> str:
    """The scorecard as "html" with these pictures in it, or as "svg", "md" or "json"."""
    if form == "html":
        from harness.reports.scorecard.html import as_html, read_picture

        return as_html(card, [read_picture(file) for file in pictures])
    if form == "svg":
        from harness.reports.scorecard.badge import as_svg

        return as_svg(card)
    if form == "md":
        from harness.reports.scorecard.markdown import as_markdown

        return as_markdown(card)
    return json.dumps(as_json(card), indent=2) + "\n"
