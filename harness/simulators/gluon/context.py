"""What runs now, where it stands in the kernel's source, and to whom hazards are told."""

import sys
from pathlib import Path
from types import FrameType
from typing import Protocol, TypeVar

from harness.base.errors import HarnessError
from harness.simulators.hazards import Hazard, Place

OURS = frozenset(str(path) for path in Path(__file__).parent.glob("*.py"))
E = TypeVar("E", bound=Exception)


class NotModelled(HarnessError):
    """A kernel uses what the simulator does not know: no fault of the kernel's."""


class Listener(Protocol):
    """Who decides what becomes of a hazard."""

    def report(self, hazard: Hazard, *, legal: bool = False) -> None:
        """Raise it or keep it; what is `legal` is odd, but no fault by itself."""


class _Now:
    listener: Listener | None = None


now = _Now()


def site() -> Place:
    """Where the kernel that runs stands: the nearest line that is not the simulator's own."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename in OURS:
        frame = frame.f_back
    if frame is None:
        return Place(file="?", line=0)
    # who called it, unless that was by way of the simulator: a partition is called by nobody
    caller = frame.f_back
    called_by_kernel = caller is not None and caller.f_code.co_filename not in OURS
    return Place(
        file=frame.f_code.co_filename,
        line=frame.f_lineno,
        function=frame.f_code.co_name,
        called_at=caller.f_lineno if caller is not None and called_by_kernel else None,
    )


def hazard(
    name: str,
    text: str,
    at: Place | None = None,
    before: Place | None = None,
    also: Place | None = None,
    *,
    legal: bool = False,
) -> None:
    """Tell of a hazard to whoever listens."""
    assert now.listener is not None
    now.listener.report(Hazard(name, text, at, before, also), legal=legal)


def fault(kind: type[E], text: str) -> E:
    """An error of the kernel's that is no hazard, with its line."""
    return kind(f"{text}, at {site()}")


def not_modelled(what: str) -> NotModelled:
    """The error that says so of `what`, with its line."""
    here = site()
    return NotModelled(
        f"{Path(here.file).name}:{here.line}: expected code that the simulator models, found "
        f"{what}. Run it on a GPU."
    )
