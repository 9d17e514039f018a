"""A child that misbehaves ends its own run, in words, and nothing else."""

import os
import sys
import textwrap
import time
from pathlib import Path

import pytest

from harness.catalog import load_curriculum
from harness.kata import load_kata
from harness.processes import run_group
from harness.runner import read_record, run_kata


@pytest.fixture
def judge(mini, tmp_path, monkeypatch):
    """Judge this source text as the tiny kata's implementation."""
    monkeypatch.setenv("KATA_HOME", str(tmp_path / "home"))

    def run(source):
        file = tmp_path / "mine.py"
        file.write_text(textwrap.dedent(source), encoding="utf-8")
        kata = load_curriculum(mini).kata("doubled")
        return run_kata(kata, impl=str(file), device="cpu")

    return run


def test_exit_at_import_is_no_verdict(judge):
    outcome = judge("import os\nos._exit(0)\n")
    assert outcome.status == "crashed"
    assert outcome.reason == (
        "ended with exit code 0 in the set-up of test_matches_reference[7-float32], "
        "before the tests were through"
    )


def test_exit_in_a_call_is_no_verdict(judge):
    outcome = judge("import os\ndef doubled(x):\n    os._exit(0)\n")
    assert outcome.status == "crashed"


def test_a_segmentation_fault_is_named(judge):
    outcome = judge(
        """
        import os, signal
        def doubled(x):
            os.kill(os.getpid(), signal.SIGSEGV)
        """
    )
    assert outcome.status == "crashed"
    assert outcome.reason == "ended by signal 11 (SIGSEGV) in test_matches_reference[7-float32]"


def test_a_forged_record_is_no_verdict(judge):
    outcome = judge(
        """
        import json, os, sys
        path = sys.argv[sys.argv.index("--record") + 1] if "--record" in sys.argv else None
        def doubled(x):
            with open(path, "a") as stream:
                stream.write(json.dumps({"event": "end", "exit": 0, "nonce": "guess"}) + "\\n")
            os._exit(0)
        """
    )
    assert outcome.status != "passed"


def test_the_learners_own_exception_is_shown(judge):
    outcome = judge("def doubled(x):\n    raise KeyError('lost')\n")
    assert outcome.status == "failed"
    assert any("KeyError: 'lost'" in check.message for check in outcome.checks)


def test_a_syntax_error_is_a_failure_of_every_test(judge):
    outcome = judge("def doubled(x)\n    return x\n")
    assert outcome.status == "failed"
    assert all("SyntaxError" in check.message for check in outcome.checks)


def test_running_out_of_time_ends_the_whole_group(tmp_path):
    marker = tmp_path / "alive"
    grandchild = f"import time; time.sleep(2); open({str(marker)!r}, 'w').write('x')"
    script = (
        "import subprocess, sys, time\n"
        f"subprocess.Popen([sys.executable, '-c', {grandchild!r}])\n"
        "time.sleep(60)\n"
    )
    start = time.monotonic()
    code, _ = run_group([sys.executable, "-c", script], 1.0, {}, cwd=tmp_path)
    assert code is None
    assert time.monotonic() - start < 10
    time.sleep(2.5)
    assert not marker.exists()


def test_much_output_neither_blocks_nor_fills_memory(tmp_path):
    script = "import sys\nfor _ in range(300):\n    sys.stdout.write('x' * 10_000)\nprint('end')"
    code, output = run_group([sys.executable, "-c", script], 30, {}, cwd=tmp_path)
    assert code == 0
    assert output.endswith("end\n")
    assert len(output) <= 32_768


def test_invalid_utf8_in_output_is_survived(tmp_path):
    script = "import os; os.write(1, b'\\xff\\xfe ok')"
    code, output = run_group([sys.executable, "-c", script], 30, {}, cwd=tmp_path)
    assert (code, output.endswith(" ok")) == (0, True)


def test_a_record_cut_short_keeps_its_whole_lines(tmp_path):
    record = tmp_path / "record.jsonl"
    record.write_text('{"event": "session"}\n{"event": "che')
    assert read_record(record) == [{"event": "session"}]
    assert read_record(tmp_path / "none") == []


def test_katas_are_read_from_the_copy(mini):
    kata = load_kata(mini / "katas" / "week01" / "doubled")
    assert kata.solution == Path(mini) / "solutions" / "week01" / "doubled.py"
    assert os.path.commonpath([kata.wrong, mini]) == str(mini)
