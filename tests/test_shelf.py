"""Parsed TOML kept from call to call: never an old text, never in the way."""

import json
import os

import pytest

from harness.base import shelf as shelves
from harness.base.errors import MetadataError
from harness.base.shelf import Shelf
from harness.content.catalog import load_curriculum


@pytest.fixture
def toml(tmp_path):
    path = tmp_path / "one.toml"
    path.write_text("x = 1\n")
    return path


@pytest.fixture
def parsed(monkeypatch):
    """The files that were parsed, one after another."""
    paths, parse = [], shelves.read_toml
    monkeypatch.setattr(shelves, "read_toml", lambda path: paths.append(path) or parse(path))
    return paths


def read(file, path):
    """What a call reads that has the shelf to itself."""
    shelf = Shelf(file)
    found = shelf.read(path)
    shelf.save()
    return found


def test_a_file_is_parsed_once_until_it_changes(toml, parsed, tmp_path):
    file = tmp_path / "cache" / "toml.json"
    assert [read(file, toml), read(file, toml)] == [{"x": 1}] * 2
    assert parsed == [toml]
    toml.write_text("x = 2\n")
    os.utime(toml, ns=(0, 1))
    assert read(file, toml) == {"x": 2}
    toml.write_text("x = 22\n")
    os.utime(toml, ns=(0, 1))
    assert read(file, toml) == {"x": 22}
    assert parsed == [toml] * 3


@pytest.mark.parametrize(
    "kept", [b"", b"[1]", b"\xff", b'{"one.toml": 3}', b'{"one.toml": [1, 2]}']
)
def test_what_is_no_shelf_is_written_anew(toml, tmp_path, kept):
    file = tmp_path / "toml.json"
    file.write_bytes(kept.replace(b"one.toml", str(toml).encode()))
    assert read(file, toml) == {"x": 1}
    assert json.loads(file.read_bytes())[str(toml)][1] == {"x": 1}


def test_without_a_place_to_write_each_call_parses(toml, parsed, tmp_path):
    (tmp_path / "file").touch()
    for _ in range(2):
        assert read(tmp_path / "file" / "toml.json", toml) == {"x": 1}
    assert len(parsed) == 2


def test_a_date_is_read_and_not_kept(toml, tmp_path):
    toml.write_text("day = 2026-01-31\n")
    for _ in range(2):
        assert read(tmp_path / "toml.json", toml)["day"].year == 2026
    assert not (tmp_path / "toml.json").exists()


def test_a_file_that_is_gone_or_broken_is_told(toml, tmp_path):
    file = tmp_path / "toml.json"
    read(file, toml)
    toml.write_text("x =\n")
    with pytest.raises(MetadataError, match="expected valid TOML"):
        read(file, toml)
    toml.unlink()
    with pytest.raises(MetadataError, match="expected a TOML file, found none"):
        read(file, toml)


def test_a_kata_to_be_judged_is_read_afresh(mini, tmp_path):
    file = tmp_path / "toml.json"
    load_curriculum(mini, Shelf(file)).katas  # noqa: B018 -- fills the shelf
    kept = json.loads(file.read_bytes())
    kata = str(mini / "katas" / "week01" / "doubled" / "kata.toml")
    kept[kata][1]["title"] = "Meddled with"
    file.write_text(json.dumps(kept))
    curriculum = load_curriculum(mini, Shelf(file))
    assert curriculum.katas["doubled"].title == "Meddled with"  # to look at
    judged = [curriculum.kata("doubled"), *curriculum.week_katas(1), *curriculum.all_katas()]
    assert {one.title for one in judged} == {"Doubled"}
