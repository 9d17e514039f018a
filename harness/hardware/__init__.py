"""What a GPU can do at best, and what is around a session. What a kata may import of it."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.hardware.roofline import Cost, Profile

__all__ = ["Cost", "Profile"]


def __getattr__(name: str) -> object:
    """What katas import; short commands need no roofline."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from harness.hardware import roofline

    return getattr(roofline, name)
