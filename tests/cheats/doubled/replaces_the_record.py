"""Cheat: a record that was written elsewhere takes the place of the real one."""

import sys
from pathlib import Path

RECORD = Path(sys.argv[sys.argv.index("--record") + 1])


def doubled(x):
    forged = RECORD.with_name("forged")
    forged.touch()
    forged.replace(RECORD)
    return x * 2
