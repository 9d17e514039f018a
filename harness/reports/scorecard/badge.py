"""The scorecard as a badge for a README."""

from markupsafe import Markup

from harness.learner.levels import Level
from harness.reports.scorecard import Scorecard

CHARACTER = 6.6  # width of one, on average, in the badge's units
PADDING = 8


def as_svg(card: Scorecard) -> str:
    """Two fields: what this is, and how many katas are mastered and solved."""
    levels = card.whole.katas
    left = "GPU katas"
    right = f"{levels[Level.MASTERED]} of {len(card.katas)} katas mastered"
    solved = sum(count for level, count in levels.items() if level.owned)
    if more := solved - levels[Level.MASTERED]:
        right += f", {more} more solved"
    widths = [round(len(words) * CHARACTER + 2 * PADDING) for words in (left, right)]
    return Markup(
        '<svg xmlns="http://www.w3.org/2000/svg" width="{total}" height="20" role="img" '
        'aria-label="{left}: {right}"><title>{left}: {right}</title>'
        '<rect width="{a}" height="20" fill="#24292f"/>'
        '<rect x="{a}" width="{b}" height="20" fill="#0a58ca"/>'
        '<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">'
        '<text x="{x}" y="14">{left}</text><text x="{y}" y="14">{right}</text></g></svg>\n'
    ).format(
        total=sum(widths),
        a=widths[0],
        b=widths[1],
        left=left,
        right=right,
        x=PADDING,
        y=widths[0] + PADDING,
    )
