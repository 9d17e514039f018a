"""What is around a run, the learner's shell, disk and memory, changes no verdict."""

import json
import os

import pytest

from harness.base.errors import HarnessError
from harness.base.processes import child_environment
from harness.hardware import environment
from harness.running import limits
from harness.running.limits import LEAST_BYTES, SPARE_BYTES, limits_of

# what a shell may hold for other runs of pytest and Python, each alone enough to spoil a verdict
SHELL = {
    "PYTEST_ADDOPTS": "--collect-only",
    "PYTEST_PLUGINS": "nowhere_to_be_found",
    "PYTHONOPTIMIZE": "1",
    "PYTHONWARNINGS": "error",
    "PYTHONINSPECT": "1",
}
# a command that may write to no file, as on a disk without room
NO_ROOM = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
from harness.cli import main
main()
"""
ALMOST = "def counted(numbers):\n    return 0\n"
RIGHT = "def counted(numbers):\n    return sum(n % 2 == 0 for n in numbers)\n"


def test_no_variable_of_the_shell_has_a_say(bench, monkeypatch):
    for name, value in SHELL.items():
        monkeypatch.setenv(name, value)
    outcome = bench.judge(ALMOST)
    assert (outcome.status, len(outcome.checks)) == ("failed", 3), outcome.output
    assert bench.judge(RIGHT).status == "passed"
    assert not SHELL.keys() & child_environment({}).keys()
    assert child_environment({"PYTEST_ADDOPTS": "-x"})["PYTEST_ADDOPTS"] == "-x"


def test_a_path_of_the_shell_means_the_same_folder_elsewhere(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((".", "/elsewhere")))
    assert child_environment({})["PYTHONPATH"] == os.pathsep.join((str(tmp_path), "/elsewhere"))


# ---- files ---------------------------------------------------------------------------------


def files_of(folder):
    """Each file's content, but for what a run keeps."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return {path: path.read_bytes() for path in found if "__pycache__" not in path.parts}


def test_a_submission_may_do_as_it_likes_in_a_folder_of_its_own(bench, tmp_path):
    told = tmp_path / "told"
    bench.write(
        "import json, os, shutil\nfrom pathlib import Path\n"
        "def counted(numbers):\n"
        "    Path('notes.txt').write_text('mine')\n"
        f"    Path({str(told)!r}).write_text(json.dumps([os.getcwd(), os.listdir()]))\n"
        "    shutil.rmtree('.', ignore_errors=True)\n"
        "    return sum(n % 2 == 0 for n in numbers)\n"
    )
    before = files_of(bench.root)
    outcome = bench.judge()
    assert outcome.status == "passed", outcome.output
    assert files_of(bench.root) == before
    folder, found = json.loads(told.read_text())
    assert "notes.txt" in found
    assert not folder.startswith(str(bench.root))
    assert not os.path.exists(folder)  # noqa: PTH110 -- text


TAKEN_AWAY = {
    "a tree": "shutil.rmtree(ROOT)",
    "a tree, whose errors are swallowed": "shutil.rmtree(ROOT + '/docs', ignore_errors=True)",
    "a file by its folder's descriptor": (
        "os.unlink('page.md', dir_fd=os.open(ROOT + '/docs', os.O_RDONLY))"
    ),
    "an empty folder": "os.rmdir(ROOT + '/docs/empty')",
    "an empty folder by a descriptor": (
        "os.rmdir('empty', dir_fd=os.open(ROOT + '/docs', os.O_RDONLY))"
    ),
    "a folder by another name": "os.rename(ROOT + '/docs', ROOT + '/gone')",
}


@pytest.mark.parametrize("deed", TAKEN_AWAY)
def test_nothing_of_the_project_can_be_taken_away(bench, deed):
    (bench.root / "docs" / "empty").mkdir(parents=True)
    (bench.root / "docs" / "page.md").write_text("a page")
    bench.write(
        f"import os, shutil\nROOT = {str(bench.root)!r}\n"
        f"def counted(numbers):\n    {TAKEN_AWAY[deed]}\n"
        "    return sum(n % 2 == 0 for n in numbers)\n"
    )
    before = files_of(bench.root)
    outcome = bench.judge()
    assert outcome.status == "failed"
    assert "found that it " in outcome.checks[0].message
    assert files_of(bench.root) == before
    assert (bench.root / "docs" / "empty").is_dir()


# ---- disk and memory -----------------------------------------------------------------------


@pytest.mark.parametrize("history", ["old", "none yet"])
def test_a_full_disk_still_gives_a_verdict_and_says_that_nothing_is_kept(bench, history):
    bench.solve()
    if history == "old":
        bench.judge()
    code, output = bench.kata_command("run", "counted", python=("-c", NO_ROOM))
    assert code == 0, output
    assert "passed: counted" in output
    assert "Not kept: " in output
    bench.assert_still_right()


def test_a_run_gets_the_memory_that_is_free_less_a_margin(bench, monkeypatch):
    free = 10 << 30
    monkeypatch.setattr(limits, "free_memory_bytes", lambda: free)
    assert limits_of(bench.kata(), "cpu").memory_bytes == free - SPARE_BYTES
    monkeypatch.setattr(limits, "free_memory_bytes", lambda: 0)
    assert limits_of(bench.kata(), "cpu").memory_bytes == LEAST_BYTES


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({"proc/meminfo": "MemTotal: 9 kB\nMemAvailable:       2048 kB\n"}, 2048 * 1024),
        (
            {
                "proc/meminfo": "MemAvailable:   2048 kB\n",
                "group/memory.max": "1000000\n",
                "group/memory.current": "600000\n",
                "group/memory.stat": "anon 5\ninactive_file 100000\n",
            },
            500_000,
        ),
        (
            {
                "proc/meminfo": "MemAvailable:   2048 kB\n",
                "group/memory.max": "max\n",
                "group/memory.current": "600000\n",
            },
            2048 * 1024,
        ),
    ],
)
def test_what_is_free_is_told_by_the_machine_and_by_its_control_group(
    tmp_path, monkeypatch, files, free
):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(environment, "PROC", tmp_path / "proc")
    monkeypatch.setattr(environment, "CONTROL_GROUP", tmp_path / "group")
    assert environment.free_memory_bytes() == free


def test_where_nothing_tells_all_the_memory_is_free(tmp_path, monkeypatch):
    monkeypatch.setattr(environment, "PROC", tmp_path)
    monkeypatch.setattr(environment, "CONTROL_GROUP", tmp_path)
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert environment.free_memory_bytes() == pages


# ---- the house's own files -----------------------------------------------------------------


@pytest.mark.parametrize("name", ["hardware_profiles/cpu.toml", "katas/week01/counted/kata.toml"])
def test_a_broken_file_of_the_house_is_no_attempt_of_the_learners(bench, name):
    profiles = bench.root / "hardware_profiles"
    assert profiles.is_dir()
    (bench.root / name).write_text("surprise = [\n")
    code, output = bench.kata_command("run", "counted")
    assert code == 3, output
    assert name.rpartition("/")[2] in output
    assert "Traceback" not in output
    assert bench.progress.attempts() == []


def test_a_named_pipe_in_place_of_a_file_is_told_and_not_waited_for(bench):
    bench.kata().file.unlink()
    os.mkfifo(bench.kata().file)
    with pytest.raises(HarnessError, match=r"counted\.py: expected a file, found a named pipe"):
        bench.judge()
    assert bench.progress.attempts() == []
