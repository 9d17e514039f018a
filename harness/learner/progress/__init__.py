"""
What the learner has done: every attempt and every note, kept for good in one SQLite file.

An attempt is written when it starts and when it ends, and never again: triggers in the database
refuse it. Nothing derived is stored; mastery is worked out from these rows.
"""

from harness.learner.progress.records import (
    Attempt,
    Best,
    Check,
    ImportResult,
    Measurement,
    Note,
    Outline,
)
from harness.learner.progress.store import Progress

__all__ = [
    "Attempt",
    "Best",
    "Check",
    "ImportResult",
    "Measurement",
    "Note",
    "Outline",
    "Progress",
]
