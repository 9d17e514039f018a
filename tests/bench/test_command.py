"""
How long short commands take, as a multiple of `import click` in the same run: `kata` is click.

CPU seconds of whole processes are compared, the least of several rounds of each, so that what
else the machine does takes no part. Not part of the tests: `make bench`, or pytest tests/bench.
"""

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROUNDS = 10
MOST = 2.0


def cpu_s(*arguments):
    """CPU seconds of a Python process from its start to its end."""
    # what an installed package has, compiled modules, is what is measured
    environment = {name: value for name, value in os.environ.items() if "BYTECODE" not in name}
    silent = [(os.POSIX_SPAWN_OPEN, stream, os.devnull, os.O_WRONLY, 0) for stream in (1, 2)]
    process = os.posix_spawn(
        sys.executable, [sys.executable, *arguments], environment, file_actions=silent
    )
    _, status, used = os.wait4(process, 0)
    assert status == 0
    return used.ru_utime + used.ru_stime


@pytest.mark.parametrize("command", ["--help", "list"])
def test_a_short_command_costs_little_more_than_its_library(
    benchmark, command, tmp_path, monkeypatch
):
    monkeypatch.setenv("KATA_HOME", str(tmp_path / "home"))
    arguments = ["-m", "harness", "--root", str(ROOT), command]
    cpu_s(*arguments)  # compiles modules, and fills the shelf
    click_s, command_s = [], []

    def both():
        click_s.append(cpu_s("-c", "import click"))
        command_s.append(cpu_s(*arguments))

    benchmark.pedantic(both, rounds=ROUNDS)
    ratio = min(command_s) / min(click_s)
    benchmark.extra_info["times_import_click"] = round(ratio, 2)
    assert ratio <= MOST
