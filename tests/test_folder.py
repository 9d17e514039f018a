"""A learner's own folder: placed, brought up to date, and no line of theirs is ever lost."""

import json
import os
import random
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import pytest

from harness.base.errors import HarnessError, UsageProblem
from harness.base.files import write_atomically
from harness.content.course import PACKAGED
from harness.learner import folder as folders
from harness.learner.folder import create, placed, update
from harness.running.remote import PARTS, SETTINGS
from harness.running.runner import child_environment

ROOT = Path(__file__).resolve().parents[1]
KATA = "katas/week01/doubled"
NAMES = (
    f"{KATA}/doubled.py",
    f"{KATA}/README.md",
    f"{KATA}/test_doubled.py",
    "katas/week02/halved/halved.py",
    "katas/curriculum.toml",
    "hardware_profiles/cpu.toml",
    "Makefile",
)


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch):
    """Only a power cut needs what is synced, and none is tried here."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


class Release:
    """What a release ships, on disk."""

    def __init__(self, folder, texts):
        self.files = {}
        for number, (name, text) in enumerate(texts.items()):
            self.files[name] = folder / str(number)
            folder.mkdir(parents=True, exist_ok=True)
            self.files[name].write_text(text)

    def texts(self):
        return {name: path.read_text() for name, path in self.files.items()}


@pytest.fixture
def release(tmp_path):
    made = []

    def make(**texts):
        made.append(None)
        return Release(tmp_path / f"release{len(made)}", texts)

    return make


@pytest.fixture
def mine(tmp_path):
    return tmp_path / "mine"


def test_a_new_folder_has_every_file_that_is_shipped(mine, release):
    one = release(a="1\n", b="2\n")
    found = create(mine, one.files, "1")
    assert found.added == ["a", "b"]
    assert {path.name: path.read_text() for path in mine.glob("?")} == one.texts()
    assert placed(mine).version == "1"


def test_what_stood_in_a_new_folder_stays(mine, release):
    mine.mkdir()
    (mine / "a").write_text("mine\n")
    assert create(mine, release(a="1\n").files, "1").both == {"a": "a.new"}
    assert (mine / "a").read_text() == "mine\n"
    assert (mine / "a.new").read_text() == "1\n"


@pytest.mark.parametrize("before", ["clone", "placed"], ids=str)
def test_a_folder_is_made_once_and_not_in_a_clone(mine, release, before):
    one = release(a="1\n")
    if before == "placed":
        create(mine, one.files, "1")
    else:
        (mine / "harness").mkdir(parents=True)
        (mine / "katas").mkdir()
    with pytest.raises(UsageProblem, match="expected a folder without katas"):
        create(mine, one.files, "1")


def test_no_folder_is_made_inside_another(mine, release):
    one = release(a="1\n")
    create(mine, one.files, "1")
    with pytest.raises(UsageProblem, match="found one inside"):
        create(mine / "katas" / "week01", one.files, "1")
    assert not (mine / "katas" / "week01").exists()


def test_only_a_folder_that_was_placed_is_brought_up_to_date(mine, release):
    with pytest.raises(UsageProblem, match="expected a folder made by `kata init`, found none"):
        update(mine, release(a="1\n").files, "2")


def test_a_damaged_record_is_told_and_a_new_one_loses_nothing(mine, release):
    one = release(a="1\n")
    create(mine, one.files, "1")
    (mine / "a").write_text("mine\n")
    record = mine / "katas" / ".placed.json"
    record.write_text("{")
    with pytest.raises(HarnessError, match=r"Remove it, then run `kata init` there again"):
        update(mine, one.files, "2")
    record.unlink()
    create(mine, one.files, "2")
    assert (mine / "a").read_text() == "mine\n"


@pytest.mark.parametrize(
    ("was", "there", "ships", "left", "told"),
    [
        ("1", "1", "2", {"a": "2"}, "replaced"),
        ("1", "mine", "1", {"a": "mine"}, "kept"),
        ("1", "mine", "2", {"a": "mine", "a.new": "2"}, "both"),
        ("1", "2", "2", {"a": "2"}, None),
        ("1", None, "1", {"a": "1"}, "restored"),
        ("1", "1", None, {}, "removed"),
        ("1", "mine", None, {"a": "mine"}, "dropped"),
        ("1", None, None, {}, None),
        (None, None, "1", {"a": "1"}, "added"),
        (None, "mine", "1", {"a": "mine", "a.new": "1"}, "both"),
    ],
    ids=lambda value: str(value),
)
def test_each_way_in_which_the_three_sides_differ(mine, release, was, there, ships, left, told):
    create(mine, release(**({"a": was} if was else {})).files, "1")
    if there is None:
        (mine / "a").unlink(missing_ok=True)
    else:
        (mine / "a").write_text(there)
    new = release(**({"a": ships} if ships else {}))
    found = update(mine, new.files, "2")
    assert {path.name: path.read_text() for path in mine.glob("a*")} == left
    lists = ("added", "restored", "replaced", "removed", "kept", "dropped", "both")
    assert [name for name in lists if getattr(found, name)] == ([told] if told else [])
    again = update(mine, new.files, "2")  # the three-way case is settled: mine
    assert not any(getattr(again, name) for name in lists if name != "kept")
    assert {path.name: path.read_text() for path in mine.glob("a*")} == left


def test_what_was_put_beside_gives_way_to_a_newer_one_unless_it_was_edited(mine, release):
    create(mine, release(a="1").files, "1")
    (mine / "a").write_text("mine")
    update(mine, release(a="2").files, "2")
    assert update(mine, release(a="3").files, "3").both == {"a": "a.new"}
    assert (mine / "a.new").read_text() == "3"
    (mine / "a.new").write_text("3 and mine")
    assert update(mine, release(a="4").files, "4").both == {"a": "a.2.new"}
    assert (mine / "a.new").read_text() == "3 and mine"


@pytest.mark.parametrize("kind", ["folder", "link"])
def test_what_is_no_file_stays(mine, release, kind):
    create(mine, release(a="1").files, "1")
    (mine / "a").unlink()
    (mine / "a").mkdir() if kind == "folder" else (mine / "a").symlink_to("nowhere")
    assert update(mine, release(a="2").files, "2").both == {"a": "a.new"}
    assert (mine / "a").is_dir() if kind == "folder" else (mine / "a").is_symlink()


def test_an_update_that_was_cut_short_is_done_by_the_next(mine, release, monkeypatch):
    texts = dict.fromkeys("abcdef", "1\n")
    create(mine, release(**texts).files, "1")
    (mine / "b").write_text("mine\n")
    new = release(**dict.fromkeys("abcdeg", "2\n"))
    written = []

    def until_the_third(path, data):
        written.append(path)
        if len(written) == 3:
            raise HarnessError("no room")
        write_atomically(path, data)

    monkeypatch.setattr(folders, "write_atomically", until_the_third)
    with pytest.raises(HarnessError, match="no room"):
        update(mine, new.files, "2")
    monkeypatch.undo()
    found = update(mine, new.files, "2")
    assert found.both == {"b": "b.new"}
    there = {path.name: path.read_text() for path in mine.glob("[a-g]*") if path.is_file()}
    assert there == {**new.texts(), "b": "mine\n", "b.new": "2\n"}


def lines_of(folder):
    """Every line of the learner's in a folder, wherever it is, and how often."""
    texts = (path.read_bytes() for path in folder.rglob("*") if path.is_file())
    return Counter(line for text in texts for line in text.splitlines() if b"mine" in line)


def edit(folder, rng, number):
    """Change anything in a learner's folder, as learners do; each line is one of a kind."""
    mine = f"mine {number}\n".encode()
    there = sorted(path for path in folder.rglob("*") if path.is_file() and path.name[0] != ".")
    path = rng.choice(there)
    lines = path.read_bytes().splitlines(keepends=True)
    match rng.choice(["append", "insert", "replace", "beside", "move", "copy", "binary"]):
        case "append":
            path.write_bytes(path.read_bytes() + mine)
        case "insert":
            lines.insert(rng.randrange(len(lines) + 1), mine)
            path.write_bytes(b"".join(lines))
        case "replace":
            others = [line for line in lines if b"mine" in line]
            path.write_bytes(b"".join([*others, mine]))
        case "beside":
            (path.parent / f"{path.name}{rng.choice(['.new', '.2.new', '.orig'])}").write_bytes(
                mine + b"".join(lines)
            )
        case "move":
            path.rename(path.with_name(f"{path.name}.{number}"))
        case "copy":
            (folder / rng.choice(NAMES)).parent.mkdir(parents=True, exist_ok=True)
            target = folder / rng.choice(NAMES)
            target.parent.mkdir(parents=True, exist_ok=True)
            kept = target.read_bytes() if target.is_file() else b""
            target.write_bytes(kept + mine)
        case "binary":
            path.write_bytes(path.read_bytes() + b"\n\xff\0" + mine)


def shipped_in(rng, before):
    """The next release: files are new, gone, changed, or as they were."""
    texts = {}
    for name in NAMES:
        kept = before.get(name, f"{name} 0\n")
        changed = f"{kept}and {rng.randrange(3)}\n"
        texts[name] = rng.choice([kept, kept, changed, changed, None])
    return {name: text for name, text in texts.items() if text is not None}


def test_no_line_is_lost_over_200_random_edits(tmp_path):
    seen = Counter()
    for seed in range(20):
        rng = random.Random(seed)
        mine = tmp_path / f"mine{seed}"
        release = Release(tmp_path / f"{seed}.0", dict.fromkeys(NAMES, "shipped\n"))
        create(mine, release.files, "0")
        for number in range(10):
            edit(mine, rng, number)
            if number % 3 == 2:
                before = {path: path.read_bytes() for path in mine.rglob("*") if path.is_file()}
                lines = lines_of(mine)
                texts = shipped_in(rng, release.texts())
                release = Release(tmp_path / f"{seed}.{number}", texts)
                found = update(mine, release.files, str(number))
                missing = lines - lines_of(mine)
                assert not missing, f"seed {seed}, edit {number}: {missing} lost, told {found}"
                edited = [path for path in before if b"mine" in before[path]]
                moved = [path for path in edited if path.read_bytes() != before[path]]
                assert moved == [], f"seed {seed}, edit {number}: edited files were changed"
                for name, text in texts.items():  # and the release's side is there as well
                    told = found.both.get(name, name)
                    sides = {(mine / told).read_text(errors="replace")}
                    assert text in sides or name in found.kept, f"seed {seed}: {name}"
                seen.update(kind for kind in ("both", "kept", "dropped") if getattr(found, kind))
    assert min(seen.values()) > 5  # each case of an edited file came up
    assert seen.keys() == {"both", "kept", "dropped"}


@pytest.fixture
def installed(tmp_path, mini):
    """Run `kata` in a folder as an installed package does, with the tiny course in it."""
    site = tmp_path / "site"
    shutil.copytree(ROOT / "harness", site / "harness")
    mini.rename(site / "gpu_katas")

    def run(folder, *args):
        done = subprocess.run(
            [sys.executable, "-m", "harness", *args],
            capture_output=True,
            text=True,
            cwd=folder,
            env=child_environment({"PYTHONPATH": str(site), "KATA_HOME": "", "KATA_ROOT": ""}),
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done

    run.course = site / "gpu_katas"
    return run


def test_outside_a_clone_from_an_empty_folder_to_a_release_later(installed, tmp_path):
    assert "Make one: kata init DIR" in installed(tmp_path, "list").stderr
    assert installed(tmp_path, "init", "mine").stdout.startswith("mine: 1 katas of release")
    mine = tmp_path / "mine"
    assert not (mine / "solutions").exists()
    solution = installed.course / "solutions/week01/doubled.py"
    file = mine / KATA / "doubled.py"
    stub = file.read_text()
    assert "not written yet" in installed(mine, "run", "doubled").stdout
    file.write_text("# mine\n" + solution.read_text())
    done = installed(mine / KATA, "run", "doubled")  # anywhere in the folder
    assert "passed: doubled (yours, cpu)" in done.stdout

    # the next release mends the brief and the stub
    for name in ("README.md", "doubled.py"):
        path = installed.course / KATA / name
        path.write_text(path.read_text() + "\n# mended\n")
    done = installed(mine, "update")
    assert f"! {KATA}/doubled.py: changed by you and by the release" in done.stdout
    assert "1 file brought up to date" in done.stdout
    assert file.read_text().startswith("# mine\n")
    assert (mine / KATA / "doubled.py.new").read_text() == stub + "\n# mended\n"
    assert (mine / KATA / "README.md").read_text().endswith("# mended\n")
    assert "Nothing to do." in installed(mine, "update").stdout
    # the blank stub is the release's, whatever git says
    assert installed(mine, "reset", "doubled").returncode == 0
    assert file.read_text() == stub + "\n# mended\n"
    attempts = installed(mine, "export").stdout.splitlines()
    assert sum("attempt" in json.loads(line) for line in attempts) == 1  # the stub is none


def test_a_clone_says_that_it_needs_neither(kata_command):
    assert "In a clone: git pull" in kata_command("update").stderr
    assert "Work there" in kata_command("init", "somewhere").stderr


def test_a_wheel_has_every_part_where_it_is_looked_for():
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    wheel = wheel["targets"]["wheel"]
    placed_at = {**wheel["sources"], **wheel["force-include"]}
    assert placed_at == {part: f"{PACKAGED.name}/{part}" for part in (*PARTS, *SETTINGS)}
    assert set(wheel["only-include"]) == {"harness", *PARTS}
