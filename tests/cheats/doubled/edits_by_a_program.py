"""Cheat: another program moves the limits for the next run."""

import subprocess


def doubled(x):
    command = ["sed", "-i", "s/at_most/at_least/", "katas/week01/doubled/kata.toml"]
    subprocess.run(command, check=False)
    return x * 2
