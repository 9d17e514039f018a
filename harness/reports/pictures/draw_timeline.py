"""A timeline as a picture: partitions above, and below them what was in flight meanwhile."""

from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING

from harness.reports.pictures.canvas import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    RED,
    picture,
)
from harness.reports.pictures.timeline import RUNS, WAITS, Span, Timeline, lines_of, stacked

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH = 11.0
ROW = 0.28  # inches
# told apart by their hatches as well
STYLES = {
    RUNS: ("#DCEBF5", BLUE, ""),
    WAITS: ("#FFFFFF", GREY, "////"),
    "TMA load": ("#9CC9E8", BLUE, "...."),
    "TMA store": ("#F5CF7A", ORANGE, "xxxx"),
    "cp.async": ("#A8DCCB", GREEN, "...."),
    "wgmma": ("#F0B49A", RED, "\\\\\\\\"),
}
WORK = ("#E8C8DC", PURPLE, "")
FULL = 0.84  # of a row
LABELLED = 0.035  # of the width: what is narrower has no room for words


def draw_timeline(found: Timeline, title: str, file: Path) -> None:
    """Draw a timeline into `file`."""
    rows = {
        lane: stacked([one for one in found.spans if one.lane == lane and one.kind == lane])
        for lane in found.lanes
    }
    heights = {
        lane: 1 + max((row for row, _ in placed), default=0) for lane, placed in rows.items()
    }
    size = (WIDTH, 1.4 + ROW * (sum(heights.values()) + len(heights)))
    with picture(file, title=title, words=describe(found), size=size) as figure:
        figure.suptitle("\n".join(wrap(title, 100)), fontsize=11, fontweight="bold")
        axes = figure.subplots()
        top, ticks = 0.0, []
        for lane in found.lanes:
            ticks.append(top + heights[lane] / 2)
            own = [(0, one) for one in found.spans if one.lane == lane and one.kind != lane]
            for row, span in [*own, *rows[lane]]:
                _draw_span(axes, span, top + row, found.steps)
            top += heights[lane] + 0.6
        axes.set_yticks(ticks)
        axes.set_yticklabels(found.lanes)
        axes.set_ylim(top, -0.3)
        axes.set_xlim(0, max(1, found.steps))
        axes.set_xlabel(
            f"operations of program {found.index} of {found.kernel}, one of {found.programs}; what "
            "is in flight stays so as long as the waits allow"
        )


def _draw_span(axes: "Axes", span: Span, top: float, steps: int) -> None:
    face, edge, hatch = STYLES.get(span.kind, WORK)
    width = span.end - span.start
    if not width:
        axes.plot([span.start] * 2, [top, top + FULL], color=edge, lw=1.2)
        return
    axes.barh(
        top, width, left=span.start, height=FULL, align="edge", facecolor=face, edgecolor=edge,
        hatch=hatch, linewidth=0.6,
    )  # fmt: skip
    if span.label and width > LABELLED * steps:
        axes.text(
            span.start + width / 2, top + FULL / 2, span.label, ha="center", va="center",
            fontsize=6.5, color=BLACK, clip_on=True,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6},
        )  # fmt: skip


def describe(found: Timeline) -> str:
    """A timeline in words."""
    lines = [
        f"{one.where} {one.kind}: {one.count} times, {one.steps:.4g} operations on average"
        for one in lines_of(found)
    ]
    shares = [f"{share:.0%} of {name}" for name, share in found.overlaps.items()]
    return "; ".join([*lines, *shares])
