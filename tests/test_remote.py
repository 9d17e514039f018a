"""Katas judged on another machine: the tree goes there, the verdict and the history come back."""

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from harness.content.course import PLACED
from harness.running.remote import packed

ROOT = Path(__file__).resolve().parents[1]

# what stands in for ssh: the command runs here, with a home of its own
SSH = """#!/bin/sh
[ "$1" = box ] || exit 255
HOME={home} exec sh -c "$2"
"""
# what stands in for the Python there: its environments are this one, and pip has nothing to do
PYTHON = """#!/bin/sh
case "$*" in
  "-m venv .venv") mkdir -p .venv/bin; cp "$0" .venv/bin/python ;;
  *"pip install"*) exit {pip} ;;
  *) exec {python} "$@" ;;
esac
"""


@pytest.fixture
def course(mini):
    """The tiny curriculum, with what is installed from."""
    for name in ("pyproject.toml", "constraints.txt", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, mini)
    return mini


@pytest.fixture
def box(tmp_path, course, kata_command):
    """Run `kata` where `ssh box` is this machine; `there` is its home, `pip` how pip ends."""
    tools = tmp_path / "tools"
    there = tmp_path / "there"
    for folder in (tools, there):
        folder.mkdir()

    def put(name, text):
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)

    def run(*args, pip=0):
        put("ssh", SSH.format(home=there))
        for name in ("python3.13", "python3.12", "python3.11"):
            put(name, PYTHON.format(python=sys.executable, pip=pip))
        return kata_command(*args, PATH=f"{tools}{os.pathsep}{os.environ['PATH']}")

    run.there = there
    return run


def solve(root):
    file = root / "katas/week01/doubled/doubled.py"
    file.write_text("# mine\n" + (root / "solutions/week01/doubled.py").read_text())
    return file


def test_a_kata_is_judged_there_and_its_history_is_merged(box, course, kata_command):
    solve(course)
    done = box("run", "doubled", "--on", "box", "--seed", "7")
    assert done.returncode == 0, done.stderr
    assert "setting up" in done.stdout
    assert "passed: doubled (yours, cpu)" in done.stdout
    assert "--seed 7" in done.stdout
    assert "attempts that came back: 1" in done.stderr
    records = [json.loads(line) for line in kata_command("export").stdout.splitlines()]
    (attempt,) = [record["attempt"] for record in records if "attempt" in record]
    assert (attempt["kata"], attempt["impl"], attempt["status"]) == ("doubled", "yours", "passed")
    assert "passed" in kata_command("stash", "list").stdout  # the copy that the attempt is of

    # again: what was set up serves, what was edited goes along, and what failed is kept as well
    solve(course).write_text("def doubled(x):\n    return x\n")
    done = box("run", "doubled", "--on", "box")
    assert done.returncode == 1
    assert "setting up" not in done.stdout
    assert "failed: doubled (yours, cpu)" in done.stdout
    assert len(kata_command("export").stdout.splitlines()) == 3


def test_what_is_not_written_yet_is_not_sent(box, course):
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "as shipped"]):
        subprocess.run([*git, *command], cwd=course, check=True)
    done = box("run", "doubled", "--on", "box")
    assert done.returncode == 1
    assert "doubled: not written yet, not sent to box" in done.stdout
    assert not any(box.there.iterdir())


def test_a_machine_that_is_not_reached_is_told(box):
    done = box("run", "doubled", "--impl", "solution", "--on", "elsewhere")
    assert done.returncode == 3
    assert "--on elsewhere: expected a machine that ssh reaches, found none" in done.stderr


def test_an_environment_that_cannot_be_installed_is_told(box):
    done = box("run", "doubled", "--impl", "solution", "--on", "box", pip=17)
    assert done.returncode == 3
    assert "failed with exit code 17" in done.stderr


def names_in(data):
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return set(tar.getnames())


def test_what_is_sent_is_a_clone_without_what_was_made_or_measured(course):
    for name in ("katas/week01/doubled/__pycache__/x.pyc", PLACED, "hardware_profiles/measured/a"):
        path = course / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("{}")
    names = names_in(packed(course, {}, {"sent/note": b"1"}))
    assert {
        "harness/cli/__init__.py",
        "katas/week01/doubled/doubled.py",
        "katas/curriculum.toml",
        "hardware_profiles/cpu.toml",
        "pyproject.toml",
        "sent/note",
    } <= names
    left = ("__pycache__", "hardware_profiles/measured", ".placed")
    assert [name for name in names if any(part in name for part in left)] == []


def test_a_placed_folder_is_sent_with_what_it_shares_with_the_package(course, tmp_path):
    mine = tmp_path / "mine"
    shutil.copytree(course / "katas", mine / "katas")
    (mine / PLACED).write_text("{}")
    (mine / "pyproject.toml").write_text("[project]\nname = 'my-notes'\n")
    data = packed(mine, {}, {})
    assert "solutions/week09/vector_add.py" in names_in(data)  # of this installation
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        assert b'name = "gpu-katas"' in tar.extractfile("pyproject.toml").read()
