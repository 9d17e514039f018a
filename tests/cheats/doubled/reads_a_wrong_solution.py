"""Cheat: what must die tells what must live."""

from pathlib import Path

Path("tests/wrong/week01/doubled/edits.toml").read_text()


def doubled(x):
    return x * 2
