"""
The levels of a kata and of a concept, in order, and the glyph of each.

Pure data: whatever draws a level, in a terminal or on a page, takes word and glyph from here.
"""

from enum import IntEnum


class Level(IntEnum):
    """How far a kata or a concept is owned."""

    UNTRIED = 0
    ATTEMPTED = 1
    CORRECT = 2
    SOLVED = 3
    FAST = 4
    MASTERED = 5

    def __str__(self) -> str:
        return self.name.lower()

    @property
    def glyph(self) -> str:
        """One character that stands for it, with or without colour."""
        return GLYPHS[self]

    @property
    def owned(self) -> bool:
        """Whether a run has passed: what builds on it is within reach."""
        return self >= Level.SOLVED


GLYPHS = dict(zip(Level, "·○◐●◆★", strict=True))
LEGEND = "  ".join(f"{GLYPHS[level]} {level}" for level in Level)
