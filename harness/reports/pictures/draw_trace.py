"""A recording as a picture: who touches what, sectors line by line, banks."""

from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING

from harness.reports.pictures.canvas import BLACK, BLUE, GREY, ORANGE, RED, picture
from harness.reports.pictures.recording import (
    BANKS,
    SECTOR_BYTES,
    ArrayMap,
    BankMap,
    Line,
    Recording,
    Run,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import SubFigure

WIDTH = 11.0
MOST_MAPS = 6  # side by side
MOST_BANK_MAPS = 4
MOST_KERNELS = 3  # that a title names
LABELLED_ROWS = 32
FACES = {"load": "#9CC9E8", "store": "#F5CF7A", "atomic": "#F0B49A"}
EDGES = {"load": BLUE, "store": ORANGE, "atomic": RED}
HATCHES = {"load": "////", "store": "....", "atomic": "xxxx"}


def draw_trace(found: Recording, title: str, file: Path) -> None:
    """Draw a recording into `file`."""
    maps = found.maps[:MOST_MAPS]
    banks = sorted(found.banks, key=lambda one: -one.wavefronts_per_request)[:MOST_BANK_MAPS]
    heights = [1.2 + min(6.0, max(1.6, 0.25 * found.rows)), 0.9 + 0.45 * len(found.lines)]
    if banks:
        heights.append(1.2 + 0.3 * max(len(one.words) for one in banks))
    with picture(
        file, title=title, words=describe(found), size=(WIDTH, sum(heights) + 0.4)
    ) as figure:
        figure.suptitle("\n".join(wrap(title, 100)), fontsize=11, fontweight="bold")
        parts = list(figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False).flat)
        _draw_maps(parts[0], found, maps)
        _draw_lines(parts[1], found.lines, found.unit)
        if banks:
            _draw_banks(parts[2], banks)


def describe(found: Recording) -> str:
    """A recording in words."""
    lines = [
        f"{one.where} {one.kind}: {one.sectors_per_request:.4g} sectors a request, "
        f"{one.least_per_request:.4g} at least"
        for one in found.lines
    ]
    banks = [
        f"{one.where} shared {one.kind}: {one.wavefronts_per_request:.3g} passes a request"
        for one in found.banks
    ]
    return "; ".join([*lines, *banks])


# ---- who touches what ----------------------------------------------------------------------


def _draw_maps(part: "SubFigure", found: Recording, maps: Sequence[ArrayMap]) -> None:
    part.suptitle(_maps_title(found), x=0.01, ha="left", fontsize=10)
    every = part.subplots(1, max(1, len(maps)), sharey=True, squeeze=False)[0]
    for axes, one in zip(every[: len(maps)], maps, strict=True):
        _draw_map(axes, one)
        _draw_borders(axes, found)
    step = max(1, -(-found.rows // LABELLED_ROWS))
    unit = "program" if found.unit == "program" else "warp, blocks apart"
    every[0].set_ylabel(f"{unit}, in launch order")
    every[0].set_yticks(range(0, found.rows, step))
    every[0].set_yticklabels([str(row * found.per_row) for row in range(0, found.rows, step)])
    every[0].set_ylim(found.rows - 0.5, -0.5)


def _maps_title(found: Recording) -> str:
    kernels = ", then ".join(launch.kernel for launch in found.launches[:MOST_KERNELS])
    if len(found.launches) > MOST_KERNELS:
        kernels += f" and {len(found.launches) - MOST_KERNELS} launches more"
    notes = [f"{found.units} {found.unit}s"]
    if found.per_row > 1:
        notes.append(f"{found.per_row} to a row")
    if len(found.launches) > 1:
        notes.append("a line between launches")
    if len(found.maps) > MOST_MAPS:
        notes.append(f"arrays not shown: {len(found.maps) - MOST_MAPS}")
    return f"Who touches which addresses: {kernels} ({'; '.join(notes)})"


def _draw_borders(axes: "Axes", found: Recording) -> None:
    """Lines between launches, and fainter ones between the blocks of one."""
    for at, launch in enumerate(found.launches):
        if at:
            axes.axhline(launch.first / found.per_row - 0.5, color=BLACK, linewidth=0.8)
        end = found.launches[at + 1].first if at + 1 < len(found.launches) else found.units
        if launch.per_block > 1 and found.per_row == 1:
            for first in range(launch.first + launch.per_block, end, launch.per_block):
                axes.axhline(first - 0.5, color=GREY, linewidth=0.5, linestyle=":")


def _draw_map(axes: "Axes", one: ArrayMap) -> None:
    both = bool(one.loads and one.stores)
    sides = (("load", one.loads, -0.42), ("store", one.stores, 0.02 if both else -0.42))
    done = []
    for kind, runs, top in sides:
        if runs:
            _draw_runs(axes, kind, runs, top, 0.4 if both else 0.84)
            done.append(f"{kind}s")
    axes.set_title(f"{one.name}: {' and '.join(done)}", fontsize=9)
    axes.set_xlabel(f"bytes, {one.bin_bytes} to a bin")
    axes.set_xlim(0, one.size_bytes)
    axes.locator_params(axis="x", nbins=5)
    axes.margins(0)


def _draw_runs(axes: "Axes", kind: str, runs: Sequence[Run], top: float, height: float) -> None:
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Rectangle

    boxes = [Rectangle((run.low, run.row + top), run.high - run.low, height) for run in runs]
    axes.add_collection(
        PatchCollection(
            boxes, facecolor=FACES[kind], edgecolor=EDGES[kind], hatch=HATCHES[kind], linewidth=0.4
        )
    )


# ---- line by line --------------------------------------------------------------------------


def _draw_lines(part: "SubFigure", lines: Sequence[Line], unit: str) -> None:
    what = "instruction of a program" if unit == "program" else "access of a warp"
    part.suptitle(
        f"Sectors of {SECTOR_BYTES} bytes a request, which is one {what}; the mark is the least "
        "that its bytes would fill",
        x=0.01,
        ha="left",
        fontsize=10,
    )
    axes = part.subplots()
    for at, line in enumerate(lines):
        axes.barh(
            at,
            line.sectors_per_request,
            height=0.6,
            facecolor=FACES[line.kind],
            edgecolor=EDGES[line.kind],
            hatch=HATCHES[line.kind],
        )
        axes.plot([line.least_per_request] * 2, [at - 0.42, at + 0.42], color=BLACK, linewidth=2)
        axes.annotate(
            f"{line.sectors_per_request:.4g} ({line.requests} {line.kind}s)",
            (max(line.sectors_per_request, line.least_per_request), at),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
        )
    axes.set_yticks(range(len(lines)))
    axes.set_yticklabels([_label(line) for line in lines], family="DejaVu Sans Mono", fontsize=8)
    axes.set_xlim(0, 1.25 * max(line.sectors_per_request for line in lines))
    axes.set_ylim(len(lines) - 0.5, -0.5)


def _label(line: Line | BankMap, most: int = 56) -> str:
    text = line.source if len(line.source) <= most else line.source[: most - 1] + "…"
    return f"{line.where}  {line.kind}\n{text}"


# ---- banks ---------------------------------------------------------------------------------


def _draw_banks(part: "SubFigure", banks: Sequence[BankMap]) -> None:
    from matplotlib.colors import LinearSegmentedColormap, LogNorm

    part.suptitle(
        "Words that the worst request of each warp of a block wants of each bank: every one beyond "
        "the first is a pass more; the slowest lines first",
        x=0.01,
        ha="left",
        fontsize=10,
    )
    colours = LinearSegmentedColormap.from_list("passes", ["#DCEBF5", "#F5CF7A", RED])
    worst = max(one.worst for one in banks)
    every = part.subplots(1, len(banks), sharey=True, squeeze=False)[0]
    for axes, one in zip(every, banks, strict=True):
        axes.imshow(one.words, cmap=colours, norm=LogNorm(1, max(8, worst)), aspect="auto")
        _write_counts(axes, one)
        count = one.wavefronts_per_request
        passes = f"{count:.3g} {'pass' if count == 1 else 'passes'} a request"
        axes.set_title(
            f"{_label(one, 150 // len(banks) - 4)}\n{passes}", fontsize=8, family="DejaVu Sans Mono"
        )
        axes.set_xlabel("bank")
        axes.set_xticks(range(0, BANKS, 4))
        axes.set_yticks(range(len(one.words)))
    every[0].set_ylabel("warp of the block")


def _write_counts(axes: "Axes", one: BankMap) -> None:
    """The number itself in each cell: a colour alone says too little."""
    for warp, row in enumerate(one.words):
        for bank, count in enumerate(row):
            if count:
                ink = BLACK if count > 1 else GREY
                axes.text(bank, warp, str(count), ha="center", va="center", fontsize=5.5, color=ink)
