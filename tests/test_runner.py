"""One kata judged in a process of its own; what can go wrong there is in tests/faults."""

import os
from importlib.metadata import distributions
from pathlib import Path

import pytest

from harness.content.catalog import load_curriculum
from harness.content.kata import load_kata
from harness.content.submission import resolve
from harness.running.runner import read_record, run_kata
from harness.running.verdict import events_of


@pytest.fixture
def judge(mini, tmp_path, monkeypatch):
    """Judge this file as the tiny kata's implementation."""
    monkeypatch.setenv("KATA_HOME", str(tmp_path / "home"))

    def run(impl, **options):
        kata = load_curriculum(mini).kata("doubled")
        submission = resolve(kata, str(impl), tmp_path / "cache")
        return run_kata(submission, device="cpu", **options)

    return run


def test_a_verdict_comes_with_seed_versions_and_measurements(judge):
    outcome = judge("solution", seed=7)
    assert (outcome.status, outcome.reason) == ("passed", "8 checks passed")
    assert (outcome.seed, outcome.device, outcome.profile) == (7, "cpu", "cpu")
    assert {"python", "torch"} <= outcome.versions.keys()
    (found,) = outcome.measurements
    assert (found.name, found.value, found.limit) == ("allocated_bytes", 4000.0, 4000.0)
    assert found.passed


def test_the_learners_own_exception_is_shown(judge, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def doubled(x):\n    raise KeyError('lost')\n")
    outcome = judge(file)
    assert outcome.status == "failed"
    assert any("KeyError: 'lost'" in check.message for check in outcome.checks)


def test_no_plugin_that_happens_to_be_installed_has_a_say(judge, tmp_path, monkeypatch):
    info = tmp_path / "path" / "meddler-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: meddler\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[pytest11]\nmeddler = meddler\n")
    (info.parent / "meddler.py").write_text("raise SystemExit('meddled')\n")
    monkeypatch.setenv("PYTHONPATH", str(info.parent))
    (meddler,) = distributions(path=[str(info.parent)])
    assert [point.group for point in meddler.entry_points] == ["pytest11"]
    assert judge("solution").status == "passed"


def test_garbage_is_looked_for_while_code_is_judged(judge, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "import gc\n\n\ndef doubled(x):\n"
        "    raise KeyError(f'{gc.isenabled()} {gc.get_freeze_count() > 0}')\n"
    )
    assert any("True True" in check.message for check in judge(file).checks)


def test_the_seed_is_nowhere_where_the_file_under_test_could_read_it(judge, tmp_path):
    file, told = tmp_path / "mine.py", tmp_path / "told"
    file.write_text(
        "import os, sys\nfrom pathlib import Path\nimport hypothesis.core\nimport torch\n"
        "places = [*os.environ.values(), *sys.argv, str(hypothesis.core.global_force_seed)]\n"
        "places.append(str(torch.initial_seed()))\n"
        "for name in ('environ', 'cmdline'):\n"
        "    places += Path('/proc/self', name).read_text().replace('=', chr(0)).split(chr(0))\n"
        f"Path({str(told)!r}).write_text(chr(10).join(places))\n"
        "doubled = lambda x: x * 2\n"
    )
    outcome = judge(file)
    assert outcome.seed > 0
    assert str(outcome.seed) not in told.read_text().splitlines()


def test_a_record_cut_short_keeps_its_whole_lines(tmp_path):
    record = tmp_path / "record.jsonl"
    record.write_text('{"event": "session"}\n{"event": "che')
    assert read_record(record) == [{"event": "session"}]
    assert read_record(tmp_path / "none") == []


def test_only_lines_that_tell_an_event_are_of_the_record():
    lines = [b'{"event": "end"}', b'{"end": "event"}', b"\xff", b"[1]", b"{"]
    assert events_of(lines) == [{"event": "end"}]


def test_katas_are_read_from_the_copy(mini):
    kata = load_kata(mini / "katas" / "week01" / "doubled")
    assert kata.solution == Path(mini) / "solutions" / "week01" / "doubled.py"
    assert os.path.commonpath([kata.wrong, mini]) == str(mini)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("katas/week01/doubled/conftest.py", "raise SystemExit('in conftest')\n"),
        ("katas/week01/doubled/pytest.ini", "[pytest]\npython_functions = none\n"),
        ("textwrap.py", "raise SystemExit('in the place of a module of Python')\n"),
    ],
)
def test_what_lies_about_in_a_folder_has_no_say(mini, name, text):
    (mini / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    (mini / name).write_text(text)
    kata = load_kata(mini / "katas" / "week01" / "doubled")
    outcome = run_kata(resolve(kata, "solution", mini), device="cpu")
    assert (outcome.status, len(outcome.checks)) == ("passed", 8), outcome.output
