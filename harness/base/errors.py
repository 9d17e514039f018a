"""
Everything the harness raises on purpose.

* HarnessError            exit 3: a fault in the katas or the harness
  - UsageProblem          exit 2: asked for something that is not there
  - MetadataError         exit 3: a kata, week or profile file is wrong
  - SubmissionError       exit 1: the file under test cannot be judged
  - DeviceError           exit 4: no usable device, or an unknown one
  - DiskFull              exit 3: there is no room to write

Each message says *where: expected X, found Y. What to do.* A learner's own
exception is never wrapped in one of these.
"""

import difflib
from collections.abc import Iterable

import click


class HarnessError(click.ClickException):
    """A problem with a known way out; shown without a traceback."""

    exit_code = 3


class UsageProblem(HarnessError):
    """A name, week or option that does not exist, or a call that makes no sense."""

    exit_code = 2


class MetadataError(HarnessError):
    """A TOML file breaks its schema; the message lists every problem found in it."""


class SubmissionError(HarnessError):
    """The file under test does not import, or lacks a function it must define."""

    exit_code = 1


class DeviceError(HarnessError):
    """The device is missing, unknown, or lacks what was asked of it."""

    exit_code = 4


class DiskFull(HarnessError):
    """Something cannot be written for want of room; what does not need it may go on."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `` Did you mean a, b?`` for a misspelt `name`, or nothing when none is near."""
    close = difflib.get_close_matches(name, list(known), n=3, cutoff=0.5)
    return f" Did you mean {', '.join(close)}?" if close else ""
