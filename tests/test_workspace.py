"""The learner's file is never lost: not by a swap, a slip, a full disk or a kill at any moment."""

import errno
import itertools
import json
import os
import resource
import signal
import stat
import sys
import traceback
import warnings
from datetime import UTC, datetime
from pathlib import Path

import pytest

from harness.base import files
from harness.base.errors import HarnessError, UsageProblem
from harness.learner.workspace import Workspace

KATA = "row_softmax"
STUB = b"raise NotImplementedError\n"
MINE = b"mine = 1\nstill = 'mine'\n"
REFERENCE = b"reference = True\n"
EDITED = b"reference = True  # what if?\n"


class Desk:
    """A learner's file, the reference, and the workspace that guards them."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.file = folder / "katas" / "row_softmax.py"
        self.solution = folder / "solutions" / "row_softmax.py"
        for path, data in ((self.file, MINE), (self.solution, REFERENCE)):
            path.parent.mkdir(parents=True)
            path.write_bytes(data)
        self.workspace = Workspace(folder / "home", clock=lambda: datetime(2026, 1, 31, tzinfo=UTC))

    def swap(self):
        return self.workspace.swap(KATA, self.file, self.solution)

    def restore(self):
        return self.workspace.restore(KATA, self.file)

    def swapped(self):
        return self.workspace.is_swapped(KATA, self.file)

    def kept(self):
        return {self.workspace.read(entry.sha256) for entry in self.workspace.versions(KATA)}


@pytest.fixture
def desk(tmp_path):
    return Desk(tmp_path)


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch):
    """Only a power cut needs what is synced, and none is tried here; a kill does not."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


def forked(work):
    """Run `work` in a forked process; its id."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of libraries' threads, from 3.12 on
        pid = os.fork()
    if pid:
        return pid
    try:
        work()
        os._exit(0)
    except BaseException:  # noqa: BLE001 -- a fork must not run on into pytest
        traceback.print_exc()
        os._exit(1)


def ended(pid):
    """Wait for a forked process: 0, its exit code, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def killed_at(step, work):
    """Kill a process that does `work` before its `step`-th touch of a file; False: it was done."""
    left = itertools.count(step - 1, -1)

    def watch(event, _):
        if event in ("open", "os.rename", "os.remove", "fcntl.flock") and next(left) == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def watched():
        sys.addaudithook(watch)
        work()

    code = ended(forked(watched))
    assert code in (0, -signal.SIGKILL)
    return code != 0


def every_kill(tmp_path, prepare, work):
    """Desks on which `work` was killed, each at another moment, until it ran through unharmed."""
    for step in itertools.count(1):
        desk = Desk(tmp_path / str(step))
        prepare(desk)
        killed = killed_at(step, lambda desk=desk: work(desk))
        yield desk
        if not killed:
            assert step > 10  # else nothing was tried
            return


def every_failure(tmp_path, monkeypatch, prepare, work):
    """Desks on which `work` met a full disk, each at another file, until it met none."""
    replace = os.replace
    for step in itertools.count(1):
        desk = Desk(tmp_path / str(step))
        prepare(desk)
        left = itertools.count(step - 1, -1)

        def fail(source, target, left=left):
            if next(left) == 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            replace(source, target)

        with monkeypatch.context() as full:
            full.setattr(os, "replace", fail)
            try:
                work(desk)
                failed = False
            except HarnessError as error:
                assert "Free some space" in error.message  # noqa: PT017 -- the last one fails not
                failed = True
        yield desk
        if not failed:
            assert step > 1
            return


# swap and restore


def test_a_swap_puts_the_reference_in_place_and_restore_brings_the_own_file_back(desk):
    swapped = desk.swap()
    assert desk.file.read_bytes() == REFERENCE
    assert desk.swapped()
    assert (swapped.kept, swapped.original, swapped.already) == (
        files.hash_of(MINE),
        files.hash_of(MINE),
        False,
    )
    restored = desk.restore()
    assert desk.file.read_bytes() == MINE
    assert not desk.swapped()
    assert (restored.restored, restored.kept) == (files.hash_of(MINE), None)


def test_swapping_twice_still_restores_the_own_file(desk):
    desk.swap()
    again = desk.swap()
    assert (again.already, again.original) == (True, files.hash_of(MINE))
    desk.restore()
    assert desk.file.read_bytes() == MINE


def test_edits_to_the_reference_are_kept_on_restore_and_named(desk):
    desk.swap()
    desk.file.write_bytes(EDITED)
    assert desk.swapped()
    restored = desk.restore()
    assert desk.file.read_bytes() == MINE
    assert desk.workspace.read(restored.kept) == EDITED


def test_edits_to_the_reference_are_kept_on_a_second_swap(desk):
    desk.swap()
    desk.file.write_bytes(EDITED)
    again = desk.swap()
    assert desk.file.read_bytes() == REFERENCE
    assert desk.workspace.read(again.kept) == EDITED
    desk.restore()
    assert desk.file.read_bytes() == MINE


def test_a_reference_that_changed_between_two_swaps_is_put_in_place(desk):
    desk.swap()
    desk.solution.write_bytes(b"better = True\n")
    desk.swap()
    assert desk.file.read_bytes() == b"better = True\n"
    assert desk.restore().kept is None
    assert desk.file.read_bytes() == MINE


def test_a_file_deleted_while_swapped_is_restored(desk):
    desk.swap()
    desk.file.unlink()
    desk.restore()
    assert desk.file.read_bytes() == MINE


def test_restoring_what_was_never_swapped_is_refused_and_changes_nothing(desk):
    with pytest.raises(UsageProblem, match=r"row_softmax: .*found no swap to undo"):
        desk.restore()
    desk.swap()
    desk.restore()
    with pytest.raises(UsageProblem, match="found no swap to undo"):
        desk.restore()
    assert desk.file.read_bytes() == MINE


def test_a_swap_without_a_file_says_how_to_get_one(desk):
    desk.file.unlink()
    with pytest.raises(UsageProblem, match=r"row_softmax\.py: .*kata reset row_softmax"):
        desk.swap()


def test_a_swap_without_a_solution_leaves_the_file_alone(desk):
    desk.solution.unlink()
    with pytest.raises(HarnessError, match=r"solutions/row_softmax\.py: .*No such file"):
        desk.swap()
    assert desk.file.read_bytes() == MINE
    assert not desk.swapped()


def test_one_kata_swapped_says_nothing_about_another(desk):
    neighbour = desk.folder / "fused_silu.py"
    neighbour.write_bytes(MINE)
    desk.swap()
    assert not desk.workspace.is_swapped("fused_silu", neighbour)


def test_a_file_that_is_not_text_comes_back_byte_for_byte(desk):
    odd = bytes(range(256)) + b"\r\n no newline at the end"
    desk.file.write_bytes(odd)
    desk.swap()
    desk.restore()
    assert desk.file.read_bytes() == odd


# crashes


def swapped_and_edited(desk):
    desk.swap()
    desk.file.write_bytes(EDITED)


def check_after_interrupted_swap(desk):
    """One of the two whole files is there; work goes on from it and nothing is lost."""
    assert desk.file.read_bytes() == (REFERENCE if desk.swapped() else MINE)
    if desk.swapped():
        desk.restore()
        assert desk.file.read_bytes() == MINE
    desk.file.write_bytes(b"worked on\n")
    desk.swap()
    desk.restore()
    assert desk.file.read_bytes() == b"worked on\n"


def test_a_swap_killed_at_any_moment_loses_nothing(tmp_path):
    for desk in every_kill(tmp_path, lambda _: None, Desk.swap):
        check_after_interrupted_swap(desk)


def test_a_swap_on_a_full_disk_loses_nothing(tmp_path, monkeypatch):
    for desk in every_failure(tmp_path, monkeypatch, lambda _: None, Desk.swap):
        check_after_interrupted_swap(desk)


def test_a_second_swap_killed_at_any_moment_loses_neither_file_nor_edits(tmp_path):
    for desk in every_kill(tmp_path, swapped_and_edited, Desk.swap):
        assert desk.swapped()
        desk.restore()
        assert desk.file.read_bytes() == MINE
        assert EDITED in desk.kept()


def test_a_restore_killed_at_any_moment_loses_neither_file_nor_edits(tmp_path):
    for desk in every_kill(tmp_path, swapped_and_edited, Desk.restore):
        if desk.swapped():
            assert desk.file.read_bytes() == EDITED
            desk.restore()
        assert desk.file.read_bytes() == MINE
        assert EDITED in desk.kept()


def test_a_restore_on_a_full_disk_can_be_repeated(tmp_path, monkeypatch):
    for desk in every_failure(tmp_path, monkeypatch, swapped_and_edited, Desk.restore):
        if desk.swapped():
            desk.restore()
        assert desk.file.read_bytes() == MINE
        assert EDITED in desk.kept()


def test_a_reset_killed_at_any_moment_loses_neither_file_nor_edits(tmp_path):
    def reset(desk):
        desk.workspace.reset(KATA, desk.file, STUB)

    for desk in every_kill(tmp_path, swapped_and_edited, reset):
        assert desk.file.read_bytes() == (EDITED if desk.swapped() else STUB)
        assert MINE in desk.kept()
        assert desk.swapped() or EDITED in desk.kept()


def test_swaps_by_several_processes_at_once_keep_the_own_file(desk):
    assert [ended(pid) for pid in [forked(desk.swap) for _ in range(8)]] == [0] * 8
    assert desk.file.read_bytes() == REFERENCE
    desk.restore()
    assert desk.file.read_bytes() == MINE


def test_copies_kept_by_several_processes_at_once_are_all_listed(desk):
    def keep():
        for number in range(10):
            mine = desk.folder / f"{os.getpid()}.py"
            mine.write_text(f"{os.getpid()} {number}")
            desk.workspace.keep(str(os.getpid()), mine, "by hand")

    assert [ended(pid) for pid in [forked(keep) for _ in range(4)]] == [0] * 4
    assert len({entry.sha256 for entry in desk.workspace.versions()}) == 40


# the stash


def test_a_copy_is_stored_under_the_hash_of_its_content(desk):
    assert desk.workspace.keep(KATA, desk.file, "by hand") == files.sha256(desk.file)
    desk.file.write_bytes(b"")
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert desk.workspace.keep(KATA, desk.file, "by hand") == empty
    assert (desk.folder / "home/stash/objects" / empty).read_bytes() == b""


def test_keeping_the_same_file_twice_lists_it_once(desk):
    for _ in range(2):
        desk.workspace.keep(KATA, desk.file, "by hand")
    (entry,) = desk.workspace.versions()
    assert (entry.kata, entry.why, entry.lines) == (KATA, "by hand", 2)
    assert entry.time == "2026-01-31T00:00:00.000000+00:00"


def test_versions_are_listed_oldest_first_and_by_kata(desk):
    first = desk.workspace.keep(KATA, desk.file, "by hand")
    desk.workspace.keep("fused_silu", desk.file, "by hand")
    desk.file.write_bytes(EDITED)
    second = desk.workspace.keep(KATA, desk.file, "by hand")
    desk.file.write_bytes(MINE)
    desk.workspace.keep(KATA, desk.file, "by hand")
    hashes = [entry.sha256 for entry in desk.workspace.versions(KATA)]
    assert hashes == [first, second, first]
    assert len(desk.workspace.versions()) == 4


def test_the_index_is_one_json_object_a_line(desk):
    desk.swap()
    desk.workspace.reset(KATA, desk.file, STUB)
    lines = (desk.folder / "home/stash/index.jsonl").read_text().splitlines()
    assert [json.loads(line)["why"] for line in lines] == ["before swap", "before reset"]
    assert set(json.loads(lines[0])) == {"time", "kata", "sha256", "why", "lines"}


def test_a_kept_copy_can_be_applied_by_the_start_of_its_hash(desk):
    mine = desk.workspace.keep(KATA, desk.file, "by hand")
    desk.file.write_bytes(EDITED)
    applied = desk.workspace.apply(KATA, desk.file, mine[:6])
    assert desk.file.read_bytes() == MINE
    assert applied.placed == mine
    assert desk.workspace.read(applied.kept[:6]) == EDITED


def test_applying_a_copy_ends_a_swap(desk):
    swapped = desk.swap()
    desk.workspace.apply(KATA, desk.file, swapped.original)
    assert not desk.swapped()
    assert desk.file.read_bytes() == MINE


def test_an_unknown_version_is_refused(desk):
    desk.workspace.keep("fused_silu", desk.file, "by hand")
    with pytest.raises(UsageProblem, match=r"version 'ffff': .*found none that starts so"):
        desk.workspace.read("ffff")
    with pytest.raises(UsageProblem, match="found none that starts so"):
        desk.workspace.apply(KATA, desk.file, files.hash_of(MINE))
    assert desk.file.read_bytes() == MINE


def test_an_ambiguous_version_is_refused_and_names_the_candidates(desk):
    versions = []
    for number in range(17):  # of 17 hashes two start with the same hexadecimal digit
        desk.file.write_text(f"{number}")
        versions.append(desk.workspace.keep(KATA, desk.file, "by hand"))
    starts = [version[0] for version in versions]
    shared = next(start for start in starts if starts.count(start) > 1)
    with pytest.raises(UsageProblem, match=f"found {starts.count(shared)}: {shared}"):
        desk.workspace.apply(KATA, desk.file, shared)
    assert desk.file.read_text() == "16"


def test_a_damaged_copy_is_not_put_in_place(desk):
    mine = desk.swap().original
    (desk.folder / "home/stash/objects" / mine).write_bytes(b"rot")
    with pytest.raises(HarnessError, match=f"{mine}: .*found a damaged one"):
        desk.restore()
    assert desk.file.read_bytes() == REFERENCE


def test_keeping_a_file_again_mends_its_damaged_copy(desk):
    mine = desk.workspace.keep(KATA, desk.file, "by hand")
    (desk.folder / "home/stash/objects" / mine).write_bytes(b"rot")
    desk.workspace.keep(KATA, desk.file, "by hand")
    assert desk.workspace.read(mine) == MINE


def test_a_damaged_index_names_its_line(desk):
    desk.workspace.keep(KATA, desk.file, "by hand")
    with (desk.folder / "home/stash/index.jsonl").open("a") as index:
        index.write('{"kata": 1}\n')
    with pytest.raises(HarnessError, match=r"index\.jsonl:2: expected a kept copy"):
        desk.workspace.versions()


def test_a_damaged_record_of_a_swap_is_named(desk):
    desk.swap()
    (desk.folder / "home/stash/swaps/row_softmax.json").write_text("{}")
    with pytest.raises(HarnessError, match=r"row_softmax\.json: expected the record of a swap"):
        desk.restore()
    assert desk.kept() == {MINE}


# the stub


def test_a_reset_keeps_the_file_and_leaves_the_blank_stub(desk):
    result = desk.workspace.reset(KATA, desk.file, STUB)
    assert desk.file.read_bytes() == STUB
    assert desk.workspace.read(result.kept) == MINE
    assert result.placed == files.hash_of(STUB)


def test_a_reset_while_swapped_ends_the_swap_and_the_own_file_stays_kept(desk):
    desk.swap()
    desk.workspace.reset(KATA, desk.file, STUB)
    assert not desk.swapped()
    assert MINE in desk.kept()


def test_a_reset_brings_back_a_deleted_file(desk):
    desk.file.unlink()
    assert desk.workspace.reset(KATA, desk.file, STUB).kept is None
    assert desk.file.read_bytes() == STUB


def test_the_stub_is_what_was_there_when_the_kata_was_first_seen(desk):
    desk.file.write_bytes(STUB)
    assert desk.workspace.pristine(KATA, desk.file) == files.hash_of(STUB)
    desk.file.write_bytes(MINE)
    assert desk.workspace.pristine(KATA, desk.file) == files.hash_of(STUB)


# writing


def test_a_home_that_cannot_be_made_is_named_and_the_file_left_alone(desk):
    (desk.folder / "home").write_text("in the way")
    with pytest.raises(HarnessError, match="home/stash: expected a folder to write in"):
        desk.swap()
    assert desk.file.read_bytes() == MINE


def test_content_is_on_disk_before_it_takes_the_name_and_the_name_after(tmp_path, monkeypatch):
    replace, steps = os.replace, []

    def move(source, target):
        steps.append("replace")
        replace(source, target)

    def sync(descriptor):
        steps.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "content")

    monkeypatch.setattr(os, "replace", move)
    monkeypatch.setattr(os, "fsync", sync)
    files.write_atomically(tmp_path / "file.py", MINE)
    assert steps == ["content", "replace", "folder"]


def test_a_file_system_that_cannot_sync_a_folder_is_written_all_the_same(tmp_path, monkeypatch):
    def sync(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "fsync", sync)
    files.write_atomically(tmp_path / "file.py", MINE)
    assert (tmp_path / "file.py").read_bytes() == MINE


def test_a_write_keeps_permissions(tmp_path):
    path = tmp_path / "file.py"
    path.write_bytes(MINE)
    path.chmod(0o640)
    files.write_atomically(path, STUB)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert path.read_bytes() == STUB


def test_a_new_file_has_the_permissions_of_any_other(tmp_path):
    (tmp_path / "ordinary").write_bytes(STUB)
    files.write_atomically(tmp_path / "new", STUB)
    assert (tmp_path / "new").stat().st_mode == (tmp_path / "ordinary").stat().st_mode


def test_a_write_goes_through_a_symbolic_link(tmp_path):
    (tmp_path / "real").write_bytes(MINE)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    files.write_atomically(tmp_path / "link", STUB)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == STUB


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "file.py"
    path.write_bytes(MINE)

    def write_too_much():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        with pytest.raises(HarnessError, match=r"file\.py: .*nothing was lost"):
            files.write_atomically(path, b"x" * 5000)

    assert ended(forked(write_too_much)) == 0
    assert [found.name for found in tmp_path.iterdir()] == ["file.py"]
    assert path.read_bytes() == MINE


def test_a_folder_that_is_missing_or_a_file_is_named(tmp_path):
    with pytest.raises(HarnessError, match=r"none/file\.py: .*No such file.*Check the path"):
        files.write_atomically(tmp_path / "none" / "file.py", STUB)
    (tmp_path / "plain").write_bytes(MINE)
    with pytest.raises(HarnessError, match=r"plain/file\.py: .*Not a directory.*Check the path"):
        files.write_atomically(tmp_path / "plain" / "file.py", STUB)


def test_a_folder_that_may_not_be_written_is_named_with_the_way_out(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(HarnessError, match=r"file\.py: .*Permission denied.*chmod"):
        files.write_atomically(tmp_path / "file.py", STUB)
    assert list(tmp_path.iterdir()) == []


def test_readers_never_see_part_of_a_write(tmp_path):
    path = tmp_path / "file.py"
    contents = [letter * 200_000 for letter in (b"a", b"b")]
    path.write_bytes(contents[0])

    def write():
        for number in range(30):
            files.write_atomically(path, contents[number % 2])

    writer = forked(write)
    while os.waitid(os.P_PID, writer, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
        assert path.read_bytes() in contents
    assert ended(writer) == 0
