"""The way of a kata from the command to the verdict: one line down the layers, and one back."""

import sys
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner

import harness
from harness.cli import main
from tests.test_house import layers

HARNESS = Path(harness.__file__).parent
LAYERS = layers()


def _place(frame):
    """The package, module and function of a frame of the harness; None for others."""
    file = Path(frame.f_code.co_filename)
    if not file.is_relative_to(HARNESS) or frame.f_code.co_name == "<module>":
        return None
    module = file.relative_to(HARNESS)
    return module.parts[0], str(module), frame.f_code.co_qualname


@pytest.fixture
def calls(mini, tmp_path, monkeypatch):
    """Run `kata`, and count its calls between functions of the harness: caller and callee."""
    monkeypatch.setenv("KATA_HOME", str(tmp_path / "home"))
    places = {}

    def follow(*arguments):
        found = Counter()

        def note(frame, event, _):
            if event != "call":
                return
            code = frame.f_code
            if code not in places:
                places[code] = _place(frame)
            caller = frame.f_back
            while caller is not None and places.get(caller.f_code) is None:
                caller = caller.f_back
            if places[code] and caller is not None:
                found[places[caller.f_code], places[code]] += 1

        sys.setprofile(note)
        try:
            result = CliRunner().invoke(main, ["--root", str(mini), *arguments])
        finally:
            sys.setprofile(None)
        return result, found

    return follow


def test_a_run_never_climbs_back_to_a_layer_above(calls, mini):
    solution = mini / "solutions" / "week01" / "doubled.py"
    file = mini / "katas" / "week01" / "doubled" / "doubled.py"
    file.write_text("# mine\n" + solution.read_text())
    result, found = calls("run", "doubled")
    assert result.exit_code == 0, result.output
    climbs = [
        f"{caller[1]} {caller[2]} -> {callee[1]} {callee[2]}: {count} times"
        for (caller, callee), count in found.items()
        if LAYERS.get(caller[0], 0) < LAYERS.get(callee[0], 0)
    ]
    assert climbs == []


def test_whose_file_it_is_is_asked_once(calls):
    _, found = calls("run", "--all")
    asked = Counter()
    for (_, callee), count in found.items():
        asked[callee[2]] += count
    assert asked["resolve"] == 1  # of the one kata there is
    assert asked["committed_stub"] <= 1
