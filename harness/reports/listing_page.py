"""`kata lines --html`: the listing as one HTML file, for a phone, paper and a screen reader."""

from harness.content.kata import Kata
from harness.reports.listing import Listing, Row
from harness.reports.pictures.trace import case_words
from harness.reports.scorecard.html import breakable, page_template

HOTTEST = 3  # lines that the top of the page names for a counter
COUNTERS = {  # what the page calls a column, and what is counted in it
    "instructions": ("instructions", "executed, once for each warp"),
    "requests": ("requests", "of warps to global memory"),
    "sectors": ("sectors", "of 32 bytes that these requests touch"),
    "bytes_moved": ("bytes", "between global memory and the kernel"),
    "wavefronts": ("wavefronts", "passes through shared memory"),
    "conflicts": ("conflicts", "wavefronts that bank conflicts cost"),
}


def as_html(found: Listing, kata: Kata, case: int, impl: str) -> str:
    """
    The whole page; it loads nothing and runs no script.

    A bar below a count has the length of its share of the column.

    Args:
        found: What `listed` has counted.
        kata: Whose kernels those are.
        case: Which of its cases was run, from 1.
        impl: Which implementation, as it was asked for.
    """
    return page_template("lines").render(
        found=found,
        kata=kata,
        case=case,
        case_words=case_words(kata, case),
        impl=impl,
        counters={name: COUNTERS[name] for name in found.columns},
        totals={name: sum(getattr(row, name) for row in found.rows) for name in found.columns},
        hottest={name: _hottest(found, name) for name in found.columns},
        breakable=breakable,
    )


def _hottest(found: Listing, name: str) -> list[Row]:
    """The lines with the most of a counter, the first of them first."""
    counted = [row for row in found.rows if getattr(row, name)]
    return sorted(counted, key=lambda row: -int(getattr(row, name)))[:HOTTEST]
