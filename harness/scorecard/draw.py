"""The scorecard in the format that was asked for."""

import json

from harness.scorecard import Scorecard
from harness.scorecard.plain import as_json


def drawn(card: Scorecard, form: str) -> str:
    """The scorecard as "html", "svg", "md" or "json"."""
    if form == "html":
        from harness.scorecard.html import as_html

        return as_html(card)
    if form == "svg":
        from harness.scorecard.badge import as_svg

        return as_svg(card)
    if form == "md":
        from harness.scorecard.markdown import as_markdown

        return as_markdown(card)
    return json.dumps(as_json(card), indent=2) + "\n"
