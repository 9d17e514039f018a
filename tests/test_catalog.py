"""The curriculum as data: complete, and every mistake in a file told at once."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from harness.base.errors import MetadataError, UsageProblem
from harness.cli import KNOWN
from harness.content.catalog import load_curriculum
from harness.content.coverage import coverage_of
from harness.content.kata import load_kata

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def curriculum():
    return load_curriculum(ROOT)


def test_the_whole_curriculum_is_there(curriculum):
    found = coverage_of(curriculum)
    assert sorted(curriculum.weeks) == list(range(1, 53))
    assert found.counts("concepts")[1] == 281
    assert found.counts("hands_on")[1] == 49
    assert found.counts("milestone")[1] == 20


def test_parts_cover_each_week_once(curriculum):
    weeks = [number for part in curriculum.parts for number in part.weeks]
    assert weeks == list(range(1, 53))


def test_the_dependency_map_has_no_circle(curriculum):
    needs = {topic.id: set(topic.needs) for topic in curriculum.topics}
    while ready := [topic for topic, open_needs in needs.items() if not open_needs]:
        for topic in ready:
            del needs[topic]
        for open_needs in needs.values():
            open_needs.difference_update(ready)
    assert needs == {}


def test_every_reading_has_an_address(curriculum):
    readings = [entry for week in curriculum.weeks.values() for entry in week.reading]
    assert len(readings) > 180
    assert all(entry.link.startswith("https://") and entry.title for entry in readings)


def test_katas_cover_only_what_exists(curriculum):
    known = {item for week in curriculum.weeks.values() for item in week.items()}
    for kata in curriculum.katas.values():
        assert set(kata.covers) <= known, kata.id


def test_a_typo_gets_the_nearest_names(curriculum):
    with pytest.raises(UsageProblem, match="Did you mean fused_silu"):
        curriculum.kata("fused_silo")


def test_a_kata_may_cover_only_what_some_week_has(mini):
    path = mini / "katas/week01/doubled/kata.toml"
    path.write_text(path.read_text().replace('"01.M"', '"01.9"'))
    words = r"covers: expected ids of some week\.toml, found '01\.9'"
    with pytest.raises(MetadataError, match=words):
        load_curriculum(mini).kata("doubled")
    with pytest.raises(MetadataError, match=words):
        _ = load_curriculum(mini).katas


def test_a_week_is_found_by_its_number(mini):
    assert load_curriculum(mini).week(2).number == 2
    with pytest.raises(UsageProblem, match="expected week01 to week02, found week60"):
        load_curriculum(mini).week(60)


def test_a_week_without_katas_says_so(mini):
    with pytest.raises(UsageProblem, match="found none yet in 2"):
        load_curriculum(mini).week_katas(2)
    with pytest.raises(UsageProblem, match="found none yet in 2 to 9"):
        load_curriculum(mini).week_katas(2, 9)
    assert [kata.name for kata in load_curriculum(mini).week_katas(1, 2)] == ["doubled"]


def test_every_problem_of_a_kata_toml_is_told_at_once(mini):
    path = mini / "katas" / "week01" / "doubled" / "kata.toml"
    text = path.read_text().replace("difficulty = 1", "difficulty = 9\nlevel = 3")
    text = text.replace('backend = "torch"', 'backend = "tritn"').replace("minutes = 5", "")
    path.write_text(text.replace('meter = "allocated_bytes"', 'meter = "alocated_bytes"'))
    with pytest.raises(MetadataError) as caught:
        load_kata(path.parent)
    for expected in (
        "kata.toml: 5 problem(s)",
        "difficulty: expected 1 to 5, found 9",
        "level: expected one of",
        "Did you mean triton",
        "minutes: expected a whole number, found nothing",
        "cost[0].meter: expected one of",
        "Did you mean allocated_bytes",
    ):
        assert expected in caught.value.message


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("at_most = 4000", "", "exactly one of bound, at_most, at_least, exactly, found 0"),
        ("at_most = 4000", "at_most = 1\nbound = 1.0", "exactly one of"),
        ("at_most = 4000", "at_most = 1\ncase = {n = 3}", "is reported by a test"),
        ('meter = "allocated_bytes"', 'meter = "spills"', "`target` and `case`"),
        ('hints = ["Add it to itself.", "Or multiply.", "double: 2 * x"]', "hints = []", "three"),
        ("[[cost]]", "[[costs]]", "Did you mean cost,"),
        ("minutes = 5", 'minutes = "five"', "a whole number, found 'five'"),
        ("title = ", "title : ", "expected valid TOML"),
    ],
)
def test_one_problem_of_a_kata_toml(mini, before, after, expected):
    path = mini / "katas" / "week01" / "doubled" / "kata.toml"
    path.write_text(path.read_text().replace(before, after))
    with pytest.raises(MetadataError, match=r"kata\.toml") as caught:
        load_kata(path.parent)
    assert expected in caught.value.message


def test_two_broken_files_are_both_named(mini):
    for week in ("week01", "week02"):
        (mini / "katas" / week / "week.toml").write_text("goal = 3\n")
    with pytest.raises(MetadataError) as caught:
        _ = load_curriculum(mini).weeks
    assert "week01/week.toml" in caught.value.message
    assert "week02/week.toml" in caught.value.message


HEAVY = ("torch", "triton", "numba", "numpy")


def test_the_command_line_imports_nothing_heavy():
    commands = ", ".join(f"harness.cli.{module}" for module, _ in KNOWN.values())
    code = (
        f"import json, sys, {commands}, harness.reports.scorecard, harness.authoring.scaffold, "
        "harness.running.runner, harness.authoring.check; print(json.dumps(sorted(sys.modules)))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert not set(HEAVY) & set(json.loads(shown.stdout))


def test_the_command_line_does_without_pytest():
    commands = ", ".join(f"harness.cli.{module}" for module, _ in KNOWN.values())
    code = f"import sys, {commands}; sys.exit('pytest' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_threshold_may_be_another_for_a_gpu_an_architecture_or_a_generation():
    (timed,) = [
        one for one in load_curriculum(ROOT).kata("blelloch_scan").speed if one.kind == "roofline"
    ]
    timed = replace(timed, fraction=0.5, profiles={"ampere": 0.6, "sm_80": 0.7, "a100": 0.8})
    assert timed.required(["a100", "sm_80", "ampere"]) == 0.8
    assert timed.required(["a30", "sm_80", "ampere"]) == 0.7
    assert timed.required(["a10", "sm_86", "ampere"]) == 0.6
    assert timed.required(["h100", "sm_90", "hopper"]) == 0.5


def test_a_broken_week_is_told_once_however_many_katas_there_are(mini):
    week = mini / "katas/week01/week.toml"
    week.write_text("mine\n")
    shutil.copytree(mini / "katas/week01/doubled", mini / "katas/week01/again")
    with pytest.raises(MetadataError) as told:
        load_curriculum(mini).all_katas()
    assert told.value.message.count(str(week)) == 1
