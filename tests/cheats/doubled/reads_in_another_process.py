"""Cheat: another program reads the reference."""

import subprocess


def doubled(x):
    subprocess.run(["cat", "solutions/week01/doubled.py"], capture_output=True, check=False)
    return x * 2
