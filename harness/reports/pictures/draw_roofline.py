"""The roofline as a picture: ceilings of a device, katas under them."""

import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from harness.hardware.profiles import Profile
from harness.reports.pictures.canvas import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, RED, picture
from harness.reports.pictures.roofline import REFERENCE, SLOW, YOURS, Entry

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIZE = (10.5, 6.5)
CLEAR = {"facecolor": "white", "edgecolor": "none", "pad": 1}  # words on a dotted line
ROW = 14.0  # points: a counted mark's share of the strip under the axis
GAP = 12.0  # points between neighbouring labels
LETTER = 4.9  # points that a letter of a label takes
PIECES = 100  # of a ceiling, which labels keep clear of
CEILING = "ceiling"
LINES = {"memory": "-", "measured": "--"}
# shape and colour of an implementation; a baseline takes the rest, in the order of their names
STYLES = {REFERENCE: ("o", BLUE), YOURS: ("*", RED), SLOW: ("s", PURPLE)}
OTHERS = (("^", GREEN), ("D", ORANGE), ("v", GREY), ("P", BLACK))


class Box(NamedTuple):
    """A rectangle in points."""

    left: float
    bottom: float
    right: float
    top: float

    def meets(self, other: "Box") -> bool:
        """Whether the two overlap."""
        return (
            self.left < other.right
            and other.left < self.right
            and self.bottom < other.top
            and other.bottom < self.top
        )


def draw_roofline(entries: Sequence[Entry], profile: Profile, title: str, file: Path) -> None:
    """Draw the ceilings of `profile` and every entry into `file`."""
    said = "; ".join(map(describe, entries))
    with picture(file, title=title, words=said, size=SIZE) as figure:
        figure.suptitle(title, fontsize=12, fontweight="bold")
        working = [one for one in entries if one.cost.flops]
        moving = [one for one in entries if not one.cost.flops]
        styles = _styles(entries)
        plane, strip, movers = _layout(figure, working, moving)
        if plane is not None:
            _draw_plane(figure, plane, strip, working, profile, styles)
        if movers is not None:
            _draw_movers(movers, moving, profile, styles)
        _draw_legend(figure, entries, styles)


def _layout(
    figure: "Figure", working: Sequence[Entry], moving: Sequence[Entry]
) -> "tuple[Axes | None, Axes | None, Axes | None]":
    """The plane, the strip under it for what has no time, and room for what has no arithmetic."""
    counted = sum(not one.seconds for one in working)
    strip_inches = (counted + 1) * ROW / 72
    grid = figure.add_gridspec(
        2 if counted else 1,
        2 if working and moving else 1,
        width_ratios=(3, 1) if working and moving else None,
        height_ratios=(SIZE[1] - strip_inches, strip_inches) if counted else None,
    )
    plane = figure.add_subplot(grid[0, 0]) if working else None
    strip = figure.add_subplot(grid[1, 0], sharex=plane) if counted else None
    return plane, strip, figure.add_subplot(grid[:, -1]) if moving else None


def describe(entry: Entry) -> str:
    """An entry in words."""
    if entry.share is None:
        return f"{entry.kata} {entry.impl}: {entry.cost.intensity:.3g} FLOP/byte, {entry.source}"
    return f"{entry.kata} {entry.impl}: {entry.share:.0%} of the speed of light, {entry.source}"


def _styles(entries: Sequence[Entry]) -> dict[str, tuple[str, str]]:
    others = sorted({one.impl for one in entries} - set(STYLES))
    return {**STYLES, **{name: OTHERS[at % len(OTHERS)] for at, name in enumerate(others)}}


def _draw_legend(
    figure: "Figure", entries: Sequence[Entry], styles: dict[str, tuple[str, str]]
) -> None:
    from matplotlib.lines import Line2D

    there = {one.impl for one in entries}
    handles = [
        Line2D([], [], marker=shape, color=colour, linestyle="", markersize=8, label=impl)
        for impl, (shape, colour) in styles.items()
        if impl in there
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)


# ---- the plane of intensity and FLOP/s -----------------------------------------------------


def _draw_plane(
    figure: "Figure",
    axes: "Axes",
    strip: "Axes | None",
    entries: Sequence[Entry],
    profile: Profile,
    styles: dict[str, tuple[str, str]],
) -> None:
    dtypes = list(dict.fromkeys(one.dtype for one in entries))
    peaks = {dtype: profile.peak_of(dtype) for dtype in dtypes}
    ridge = max(peaks.values()) / profile.bandwidth
    at = [one.cost.intensity for one in entries]
    left, right = min([*at, ridge]) / 5, max([*at, ridge]) * 12
    timed = [one for one in entries if one.seconds]
    roofs = [min(one.cost.intensity * profile.bandwidth, peaks[one.dtype]) for one in entries]
    lowest = min([*roofs, *(one.flops_per_s for one in timed)]) / 2.5
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(left, right)
    axes.set_ylim(lowest, max(peaks.values()) * 2.5)
    foot = axes if strip is None else strip
    foot.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value / 1e12:g}")
    foot.set_xlabel("FLOP per byte moved: the least possible for what was timed")
    axes.set_ylabel("TFLOP/s")
    axes.set_title("percent: of the speed of light", fontsize=9, loc="left", color=GREY)
    axes.grid(which="major", color="#E4E4E4", linewidth=0.6)
    _draw_ceilings(figure, axes, profile, peaks)
    if strip is not None:
        counted = [one for one in entries if not one.seconds]
        _draw_counted(axes, strip, counted, profile, peaks, styles)
    for one in timed:
        shape, colour = styles[one.impl]
        axes.plot(
            one.cost.intensity, one.flops_per_s, shape, color=colour, markersize=8,
            markeredgecolor="white", markeredgewidth=0.6, zorder=4,
        )  # fmt: skip
    _label_points(figure, axes, timed)


def _bandwidths(profile: Profile) -> dict[str, float]:
    """Bytes per second by name: the datasheet's, and what was measured where there is that."""
    measured = profile.measured.get("bandwidth")
    return {"memory": profile.bandwidth, **({"measured": measured} if measured else {})}


def _draw_ceilings(
    figure: "Figure", axes: "Axes", profile: Profile, peaks: dict[str, float]
) -> None:
    left, right = axes.get_xlim()
    highest = max(peaks.values())
    bandwidths = _bandwidths(profile)
    for name, bandwidth in bandwidths.items():
        # many short pieces, so that labels can keep clear of them
        at = [left * (highest / bandwidth / left) ** (step / PIECES) for step in range(PIECES + 1)]
        style = LINES[name]
        axes.plot(at, [x * bandwidth for x in at], style, color=BLACK, linewidth=1.4, gid=CEILING)
    by_peak: dict[float, list[str]] = defaultdict(list)
    for dtype, peak in peaks.items():
        by_peak[peak].append(dtype)
    for peak, dtypes in by_peak.items():
        ridge = peak / profile.bandwidth
        at = [ridge * (right / ridge) ** (step / PIECES) for step in range(PIECES + 1)]
        axes.plot(at, [peak] * len(at), color=BLACK, linewidth=1.4, gid=CEILING)
        axes.annotate(
            f"{', '.join(dtypes)} {peak / 1e12:.4g} TFLOP/s",
            (right, peak),
            xytext=(-2, 3),
            textcoords="offset points",
            ha="right",
        )
    said = ", ".join(f"{name} {rate / 1e12:.3g} TB/s" for name, rate in bandwidths.items())
    _write_along(figure, axes, said, profile.bandwidth, left)


def _write_along(figure: "Figure", axes: "Axes", text: str, bandwidth: float, left: float) -> None:
    """Write above the slope, at its angle on the page, and a little up from its foot."""
    figure.draw_without_rendering()
    (x0, y0), (x1, y1) = axes.transData.transform([(x, x * bandwidth) for x in (left, 10 * left)])
    foot = max(left, axes.get_ylim()[0] / bandwidth) * 1.15
    axes.annotate(
        text,
        (foot, foot * bandwidth),
        xytext=(-4, 4),
        textcoords="offset points",
        rotation=math.degrees(math.atan2(y1 - y0, x1 - x0)),
        rotation_mode="anchor",
    )


def _draw_counted(
    axes: "Axes",
    strip: "Axes",
    entries: Sequence[Entry],
    profile: Profile,
    peaks: dict[str, float],
    styles: dict[str, tuple[str, str]],
) -> None:
    """The intensities that were counted, under the axis: in the plane a height would be a rate."""
    lowest = axes.get_ylim()[0]
    axes.tick_params(labelbottom=False)
    strip.set_ylim(len(entries) - 0.5, -1.5)
    strip.set_yticks([])
    strip.spines["left"].set_visible(False)
    strip.annotate(
        "counted, not timed:",
        (0, -1),
        xycoords=strip.get_yaxis_transform(),
        va="center",
        fontsize=8,
        color=GREY,
        bbox=CLEAR,
    )
    for row, one in enumerate(entries):
        shape, colour = styles[one.impl]
        at = one.cost.intensity
        strip.plot([at, at], [-1.5, row], ":", color=GREY, linewidth=1.2)
        strip.plot(at, row, shape, color=colour, markersize=7, fillstyle="none")
        strip.annotate(
            f"{one.kata} {one.impl}",
            (at, row),
            xytext=(8, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            color=GREY,
            bbox=CLEAR,
        )
        roof = min(at * profile.bandwidth, peaks[one.dtype])
        axes.plot([at, at], [lowest, roof], ":", color=GREY, linewidth=1.2)


def _label_points(figure: "Figure", axes: "Axes", entries: Sequence[Entry]) -> None:
    """Write beside each point what it is, where no label lies yet."""
    figure.draw_without_rendering()
    scale = 72 / figure.dpi
    lines = [line.get_xydata() for line in axes.lines if line.get_gid() == CEILING]
    points = [[(one.cost.intensity, one.flops_per_s)] for one in entries]
    taken = [
        Box(x - 4, y - 4, x + 4, y + 4)
        for line in [*points, *lines]
        for x, y in axes.transData.transform(line) * scale
    ]
    groups: dict[tuple[str, str, float], list[Entry]] = defaultdict(list)
    for one in sorted(entries, key=lambda one: -one.flops_per_s):
        groups[one.kata, one.impl, one.cost.intensity].append(one)
    for (kata, impl, _), group in groups.items():
        point = group[0].cost.intensity, group[0].flops_per_s
        text = f"{kata} {impl} {', '.join(f'{one.share:.0%}' for one in group)}"
        x, y = axes.transData.transform(point) * scale
        offset, box = _free_place(x, y, LETTER * len(text), taken)
        taken.append(box)
        axes.annotate(
            text,
            point,
            xytext=offset,
            textcoords="offset points",
            va="center",
            fontsize=8,
            arrowprops={
                "arrowstyle": "-",
                "color": GREY,
                "linewidth": 0.5,
                "relpos": (0 if offset[0] > 0 else 1, 0.5),  # from the end that is nearer
            },
        )


def _free_place(
    x: float, y: float, width: float, taken: Sequence[Box]
) -> tuple[tuple[float, float], Box]:
    """The nearest place for a label of a point, right of it if there is one; else far down."""
    for dx, dy in _offsets(width):
        box = Box(x + dx, y + dy - GAP / 2, x + dx + width, y + dy + GAP / 2)
        if not any(box.meets(other) for other in taken):
            break
    return (dx, dy), box


def _offsets(width: float) -> list[tuple[float, float]]:
    """Where a label may stand beside its point, the nearest place first."""
    down = [-GAP * step for step in range(6)]
    up = [GAP * step for step in range(1, 6)]
    sides = 10.0, -width - 10.0
    # above a point there is more often a ceiling than below it
    return [(dx, dy) for steps in (down, up) for dx in sides for dy in steps]


# ---- katas without arithmetic --------------------------------------------------------------


def _draw_movers(
    axes: "Axes",
    entries: Sequence[Entry],
    profile: Profile,
    styles: dict[str, tuple[str, str]],
) -> None:
    """Bytes a second, where there is no FLOP to count."""
    katas = list(dict.fromkeys(one.kata for one in entries))
    for name, rate in _bandwidths(profile).items():
        axes.axhline(rate / 1e12, linestyle=LINES[name], color=BLACK, linewidth=1.4)
        axes.annotate(
            f"{name} {rate / 1e12:.3g} TB/s",
            (len(katas) - 0.5, rate / 1e12),
            xytext=(-2, 3),
            textcoords="offset points",
            ha="right",
        )
    for at, kata in enumerate(katas):
        mine = [one for one in entries if one.kata == kata]
        for one in mine:
            if one.seconds:
                _draw_mover(axes, at, one, styles[one.impl])
        _write_counted(axes, at, [one for one in mine if not one.seconds])
    axes.set_title("no arithmetic: bytes only", fontsize=9)
    axes.set_ylabel("TB of the least traffic per second")
    axes.set_ylim(0, 1.15 * profile.bandwidth / 1e12)
    axes.set_xlim(-0.5, len(katas) - 0.5)
    axes.set_xticks(range(len(katas)))
    axes.set_xticklabels(katas)


def _draw_mover(axes: "Axes", at: int, one: Entry, style: tuple[str, str]) -> None:
    shape, colour = style
    rate = one.bytes_per_s / 1e12
    axes.plot(at, rate, shape, color=colour, markersize=8)
    axes.annotate(
        f"{one.impl} {one.share:.0%}",
        (at, rate),
        xytext=(8, 0),
        textcoords="offset points",
        va="center",
        fontsize=8,
    )


def _write_counted(axes: "Axes", at: int, entries: Sequence[Entry]) -> None:
    """What has no time stands in words: a point would claim a rate."""
    if entries:
        rows = [f"{one.impl}: {one.cost.bytes / one.least:.2f} x the least" for one in entries]
        axes.annotate(
            "\n".join(["bytes counted, not timed", *rows]),
            (at, 0),
            xytext=(0, 6),
            textcoords="offset points",
            ha="center",
            va="bottom",
            fontsize=8,
            color=GREY,
        )
