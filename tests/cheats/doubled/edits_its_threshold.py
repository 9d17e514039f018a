"""Cheat: the limits are moved for the next run."""

from pathlib import Path

KATA = Path("katas", "week01", "doubled", "kata.toml").resolve()


def doubled(x):
    KATA.open("a").close()
    return x * 2
