"""Where pictures are drawn and how they are kept; what an SVG or PNG says of itself."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.base.errors import HarnessError, UsageProblem

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg")
DOTS_PER_INCH = 150

# told apart by people who see no red or no green (Okabe and Ito, 2008)
BLACK, BLUE, ORANGE, GREEN, RED, PURPLE = (
    "#000000", "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7",
)  # fmt: skip
GREY = "#606060"

SETTINGS: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "hatch.linewidth": 0.6,
    "text.parse_math": False,  # a line of source may hold dollar signs
    "svg.fonttype": "none",  # words stay words: for search and for a screen reader
    "svg.hashsalt": "kata",  # the same figures give the same file
}


def check_file(file: Path) -> None:
    """
    Refuse a picture that could not be drawn, before any work is done for it.

    Raises:
        UsageProblem: the file's name ends in neither .png nor .svg, or its folder is not there.
        HarnessError: matplotlib is not installed.
    """
    if file.suffix not in FORMATS:
        raise UsageProblem(
            f"-o {file}: expected a name that ends in {' or '.join(FORMATS)}, found "
            f"{file.suffix or 'no ending'}. Name the file so."
        )
    if not file.parent.is_dir():
        raise UsageProblem(f"-o {file}: expected a folder {file.parent}, found none. Create it.")
    if find_spec("matplotlib") is None:
        raise HarnessError(
            "-o: expected matplotlib, found none. Install it (pip install matplotlib), or leave "
            "-o out: the table holds the same figures."
        )


@contextmanager
def picture(file: Path, *, title: str, words: str, size: tuple[float, float]) -> Iterator["Figure"]:
    """
    Draw on a blank figure, which is written to `file` at the end of the block.

    Args:
        file: Its suffix names the format.
        title: What a screen reader says first; kept in the file.
        words: What there is to see, for who cannot; kept in the file.
        size: Width and height in inches.
    """
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with mpl.rc_context(SETTINGS):
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(figure)
        yield figure
        # a date would make two files of the same figures differ
        dated = {"Date": None} if file.suffix == ".svg" else {}
        figure.savefig(
            file, dpi=DOTS_PER_INCH, metadata={"Title": title, "Description": words, **dated}
        )
