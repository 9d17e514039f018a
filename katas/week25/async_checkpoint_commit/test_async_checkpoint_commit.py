"""What is special about checkpoints in the background: what is left, whatever happened when."""

import errno
import random
import shutil
import sys
import threading
import time
from concurrent.futures import wait as wait_for

import pytest
import torch
import torch.distributed as dist

from harness.simulators.deaths import Moment
from harness.simulators.ranks import rank_device

KILLS = 12


def gloo():
    """A group that the manager has for itself."""
    return dist.group.WORLD if dist.get_backend() == "gloo" else dist.new_group(backend="gloo")


def filled(oracle, seed, rank, step):
    return oracle.state(seed, rank, step, rank_device())


def zeros(oracle, seed, rank):
    """A state of this rank that is no step's."""
    return {key: torch.zeros_like(one) for key, one in filled(oracle, seed, rank, 0).items()}


def save(oracle, manager, disk, state, seed, rank, step):
    """Bring `state` to a step, save it, and spoil it at once; the log says when it is safe."""
    for key, tensor in filled(oracle, seed, rank, step).items():
        state[key].copy_(tensor)
    future = manager.save_async(state, step)
    for tensor in state.values():
        tensor.zero_()
    future.add_done_callback(lambda done: done.exception() or disk.note("done", step))
    return future


def restored(kata, oracle, disk, seed, rank, keep=2):
    """Start as after a crash: the manager, its state, and the step that was found, checked."""
    manager = kata.CheckpointManager(disk, gloo(), keep)
    state = zeros(oracle, seed, rank)
    step = manager.load(state)
    expected = zeros(oracle, seed, rank) if step is None else filled(oracle, seed, rank, step)
    assert oracle.same(state, expected), (
        f"rank {rank}, loaded step {step}: expected {expected}, found {state}"
    )
    return manager, state, step


def published(kata, root):
    steps = [kata.step_of(path.name) for path in root.iterdir()]
    return sorted(step for step in steps if step is not None)


def acknowledged(records):
    return max((step for op, step, *_ in records if op == "done"), default=0)


def no_published_name_without_its_files(kata, oracle, log, what):
    """After each record and any loss, a published folder has as many files as the first had."""
    records = oracle.records(log)
    count = None
    for n in range(len(records) + 1):
        for loss in oracle.LOSSES:
            tree = oracle.crashed(records[:n], loss)
            for name in tree:
                if kata.step_of(name) is None:
                    continue
                files = [tree[path] for path in tree if path.startswith(f"{name}/")]
                count = count or len(files)
                whole = len(files) == count and all(files)
                assert whole, (
                    f"{what}, {loss} after {records[n - 1][:2]}: expected {count} whole files in "
                    f"{name}, found lengths {[len(file or b'') for file in files]}"
                )


@pytest.fixture
def root(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "log").touch()
    return tmp_path / "disk"


# ---- killed --------------------------------------------------------------------------------


def test_a_job_that_is_killed_again_and_again_loses_nothing(kata, oracle, ranks, seed, root):
    log = root.parent / "log"
    draw = random.Random(seed)

    def train(rank, world, steps):
        disk = oracle.Disk(root, log)
        safe = acknowledged(oracle.records(log))
        manager, state, step = restored(kata, oracle, disk, seed, rank)
        first = step or 0
        assert first >= safe, f"rank {rank}: expected step {safe} or later, found {step}"
        for at in range(first + 1, first + 1 + steps):
            save(oracle, manager, disk, state, seed, rank, at)
        manager.wait()
        return step

    for number in range(KILLS):
        who = draw.choice([[0], [1], [0, 1]])
        dies = {rank: Moment(nth=draw.randint(1, 18 if rank == 0 else 9)) for rank in who}
        ends = ranks.ends(2, train, 3, dies=dies)
        for rank, end in enumerate(ends):
            if end.error and not (isinstance(end.error, RuntimeError) and ends[1 - rank].killed):
                raise end.error
        assert len({end.value for end in ends if not (end.killed or end.error)}) < 2, (
            f"run {number}, {dies}: expected one step on both ranks, found {ends}"
        )
    assert ranks.ends(2, train, 0, dies={})[0].value == published(kata, root)[-1]


def test_after_any_record_and_any_loss_the_newest_is_whole(kata, oracle, ranks, seed, root):
    """Each prefix of a log, with what is not synced kept, emptied, or gone with its name."""
    log = root.parent / "log"

    def train(rank, world):
        disk = oracle.Disk(root, log)
        disk.slow_s = 0.005 * rank
        manager, state, _ = restored(kata, oracle, disk, seed, rank, keep=1)
        for step in (3, 4, 10):
            save(oracle, manager, disk, state, seed, rank, step).result()

    ranks(2, train)
    records = oracle.records(log)
    cases = []
    for n in range(len(records) + 1):
        for loss in oracle.LOSSES:
            tree = oracle.crashed(records[:n], loss)
            if not cases or tree != cases[-1][0] or records[n - 1][0] == "done":
                cases.append(
                    (tree, f"{loss} after {records[n - 1][:2]}", acknowledged(records[:n]))
                )
    for number, (tree, _, _) in enumerate(cases):
        oracle.laid_out(tree, root / str(number))

    def check(rank, world):
        found = []
        for number in range(len(cases)):
            there = root / str(number)
            steps = published(kata, there)
            dist.barrier()
            disk = oracle.Disk(there)
            manager, state, newest = restored(kata, oracle, disk, seed, rank, keep=9)
            older = None
            if newest is not None:
                dist.barrier()
                if rank == 0:
                    shutil.rmtree(there / kata.step_name(newest))
                dist.barrier()
                older = manager.load(state)
            found.append((steps, newest, older))
        return found

    for rank, results in enumerate(ranks(2, check)):
        for (_, what, safe), (steps, newest, older) in zip(cases, results, strict=True):
            who = f"rank {rank}, {what}, published {steps}, step {safe} safe"
            assert (newest or 0) >= safe, f"{who}: loaded {newest}, which is older"
            expected = steps[-2:][::-1] + [None, None]
            assert [newest, older] == expected[:2], (
                f"{who}: expected {expected[0]} and before that {expected[1]}, found {newest} and "
                f"{older}"
            )


def test_clearing_away_leaves_no_published_name_without_its_files(kata, oracle, ranks, seed, root):
    """A process is killed right after a rename; the next one starts, and the power goes."""

    def train(rank, world, there, log, steps):
        disk = oracle.Disk(there, log)
        manager = kata.CheckpointManager(disk, gloo(), keep=1)
        for step in steps:
            manager.save_async(filled(oracle, seed, rank, step), step).result()

    def run(name, steps, dies):
        there, log = root / name, root / f"{name}.log"
        there.mkdir(exist_ok=True)
        log.touch()
        end = ranks.ends(1, lambda *args: train(*args, there, log, steps), dies=dies)[0]
        if end.error:
            raise end.error
        return end.points, log

    points, _ = run("whole", (1, 2), {})
    renames = [n for n, name in enumerate(points, 1) if name.startswith("rename ")]
    for nth in renames[1:]:
        what = f"killed after {points[nth - 1]}, started again"
        run(str(nth), (1, 2), {0: Moment(nth=nth + 1)})
        no_published_name_without_its_files(kata, oracle, run(str(nth), (), {})[1], what)


def test_what_was_not_published_is_cleared_away_at_the_start(kata, oracle, ranks, seed, root):
    for folder in ("saving-7", "step-00000008.tmp", "step-9", "step-00000005"):
        (root / folder).mkdir()
        (root / folder / "rank0.bin").write_bytes(b"half")
    (root / "note").write_bytes(b"")

    def start(rank, world):
        kata.CheckpointManager(oracle.Disk(root), gloo())
        return sorted(path.name for path in root.iterdir())

    for rank, found in enumerate(ranks(2, start)):
        assert found == ["step-00000005"], f"rank {rank}: expected step 5 alone, found {found}"


def test_others_learn_that_a_rank_has_died(kata, oracle, ranks, seed, root):
    def train(rank, world):
        disk = oracle.Disk(root)
        manager = kata.CheckpointManager(disk, gloo())
        futures = []
        for step in (1, 2):
            state = filled(oracle, seed, rank, step)
            futures.append(manager.save_async(state, step))
            manager.wait()
        return [type(future.exception()) for future in futures], disk.names()

    whole = ranks.ends(2, train, dies={})
    for end in whole:
        if end.error:
            raise end.error
    shutil.rmtree(root)
    root.mkdir()
    # in the middle of its second file
    halves = [one for one in whole[1].points if one.startswith("half")]
    dies = {1: Moment(halves[-1], halves.count(halves[-1]))}
    ends = ranks.ends(2, train, dies=dies)
    if ends[0].error:
        raise ends[0].error
    assert ends[1].killed, f"expected rank 1 dead at {dies}, found {ends[1]}"
    (first, second), names = ends[0].value
    assert first is type(None), f"step 1 on rank 0: expected no error, found {first}"
    assert issubclass(second, RuntimeError), f"step 2: expected a RuntimeError, found {second}"
    assert names == [kata.step_name(1)], f"expected step 1 alone, found {names}"


# ---- in the background ---------------------------------------------------------------------


def test_the_state_may_change_and_training_goes_on_while_the_disk_is_stuck(
    kata, oracle, ranks, seed, root
):
    def train(rank, world):
        disk = oracle.Disk(root)
        manager = kata.CheckpointManager(disk, gloo())
        state = zeros(oracle, seed, rank)
        disk.gate.clear()
        first = save(oracle, manager, disk, state, seed, rank, 1)
        done = first.done(), manager.latest()
        threading.Timer(0.1, disk.gate.set).start()
        second = save(oracle, manager, disk, state, seed, rank, 2)  # waits for the first
        after = first.done(), manager.latest()
        values = first.result(), second.result()
        loaded = []
        for _ in range(2):
            step = manager.load(state)
            loaded.append((step, oracle.same(state, filled(oracle, seed, rank, step))))
            dist.barrier()
            if rank == 0:
                shutil.rmtree(root / kata.step_name(step))
            dist.barrier()
        return done, after, values, loaded

    for rank, (done, after, values, loaded) in enumerate(ranks(2, train)):
        who = f"rank {rank}"
        assert done == (False, None), f"{who}, disk stuck: expected (False, None), found {done}"
        assert after[0], f"{who}: the second save began before the first one's future was done"
        assert after[1] == 1, f"{who}: expected step 1 published, found {after[1]}"
        assert values == (1, 2), f"{who}: expected results (1, 2), found {values}"
        assert loaded == [(2, True), (1, True)], f"{who}: steps and right bits: {loaded}"


def test_nothing_is_published_before_all_ranks_have_saved(kata, oracle, ranks, seed, root):
    def train(rank, world):
        disk = oracle.Disk(root)
        manager = kata.CheckpointManager(disk, gloo())
        disk.gate.clear()
        future = manager.save_async(filled(oracle, seed, rank, 1), 1)
        if rank == 0:
            disk.gate.set()
            time.sleep(0.2)
            before = future.done(), manager.latest()
            (root.parent / "seen").touch()
        else:
            before = future.done(), manager.latest()
            while not (root.parent / "seen").exists():
                time.sleep(0.01)
            disk.gate.set()
        return before, future.result(), manager.latest()

    for rank, (before, step, newest) in enumerate(ranks(2, train)):
        who = f"rank {rank}, rank 1 is still writing"
        assert before == (False, None), f"{who}: expected (False, None), found {before}"
        assert (step, newest) == (1, 1), f"rank {rank}: expected step 1, found {step}, {newest}"


@pytest.mark.parametrize("full", [0, 1])  # no folder; half a file
def test_a_full_disk_fails_the_save_and_not_the_training(kata, oracle, ranks, seed, root, full):
    def train(rank, world):
        disk = oracle.Disk(root)
        manager, state, _ = restored(kata, oracle, disk, seed, rank)
        found = []
        for step in (1, 2, 2):
            disk.full = rank == full and len(found) == 1
            future = save(oracle, manager, disk, state, seed, rank, step)
            manager.wait()
            dist.barrier()
            found.append((type(future.exception()).__name__, manager.latest(), disk.names()))
            dist.barrier()
        return found, manager.load(state), oracle.same(state, filled(oracle, seed, rank, 2))

    one, two = ["step-00000001"], ["step-00000001", "step-00000002"]
    for rank, (found, step, right) in enumerate(ranks(2, train)):
        error = "OSError" if rank == full else "SaveFailed"
        expected = [("NoneType", 1, one), (error, 1, one), ("NoneType", 2, two)]
        assert found == expected, (
            f"rank {rank}, disk of rank {full} full: expected {expected}, found {found}"
        )
        assert (step, right) == (2, True), f"rank {rank}: loaded {step}, right bits: {right}"


def test_whatever_fails_on_the_disk_nothing_is_published(kata, oracle, ranks, seed, root):
    """Each change of a save raises once; then the step is saved again at once."""
    log = root.parent / "log"

    def train(rank, world):
        disk = oracle.Disk(root, log)
        manager = kata.CheckpointManager(disk, gloo(), keep=99)
        save(oracle, manager, disk, zeros(oracle, seed, rank), seed, rank, 1).result()
        found = []
        for step in range(2, 30):
            dist.barrier()
            disk.fails_in = step - 2 if rank == 0 else None
            disk.slow_s = 0.01 * (rank == 0)
            error = manager.save_async(filled(oracle, seed, rank, step), step).exception()
            if error is None:
                break
            names = disk.names() if rank == 0 else []
            code = getattr(error, "errno", None)
            disk.slow_s = 0.0
            again = manager.save_async(filled(oracle, seed, rank, step), step).result()
            found.append((type(error).__name__, code, kata.step_name(step) in names, again))
        return found

    for rank, found in enumerate(ranks(2, train)):
        one = ("OSError", errno.EIO) if rank == 0 else ("SaveFailed", None)
        assert len(found) > 3, f"rank {rank}: expected more changes than {len(found)}"
        for number, results in enumerate(found):
            expected = (*one, False, number + 2)
            assert results == expected, (
                f"rank {rank}, change {number} of step {number + 2} fails on rank 0: expected "
                f"(error, errno, published, saved again) = {expected}, found {results}"
            )
    no_published_name_without_its_files(kata, oracle, log, "a disk that fails")


# ---- damaged -------------------------------------------------------------------------------


def test_a_damaged_checkpoint_gives_way_to_the_one_before(kata, oracle, ranks, seed, root):
    """Each file of the newest one: a bit, a byte less, empty, gone; another step's."""
    kinds = ["bit", "first bit", "short", "empty", "gone"]

    def train(rank, world):
        disk = oracle.Disk(root)
        manager, state, _ = restored(kata, oracle, disk, seed, rank)
        for step in (1, 2):
            save(oracle, manager, disk, state, seed, rank, step)
        manager.wait()
        dist.barrier()
        files = sorted(path.name for path in (root / kata.step_name(2)).iterdir())
        found = []
        for file in files:
            for kind in kinds:
                there = root.parent / "copy"
                dist.barrier()
                if rank == 0:
                    shutil.rmtree(there, ignore_errors=True)
                    shutil.copytree(root, there)
                    damage(there / kata.step_name(2) / file, kind)
                dist.barrier()
                disk = oracle.Disk(there)
                manager = kata.CheckpointManager(disk, gloo())
                step = manager.load(state)
                right = oracle.same(state, filled(oracle, seed, rank, 1))
                dist.barrier()
                names = disk.names()
                dist.barrier()
                again = save(oracle, manager, disk, state, seed, rank, 2).result()
                found.append((f"{file}, {kind}", step, right, names, again))
        return found

    def damage(path, kind):
        raw = bytearray(path.read_bytes())
        raw[0 if kind == "first bit" else len(raw) // 2] ^= 1
        whole = {"short": raw[:-1], "empty": b""}
        path.unlink() if kind == "gone" else path.write_bytes(whole.get(kind, raw))

    for rank, results in enumerate(ranks(2, train)):
        assert len(results) >= 2 * len(kinds), f"expected a file for each rank, found {results}"
        for what, step, right, names, again in results:
            who = f"rank {rank}, {what}"
            assert step == 1, f"{who}: expected step 1, found {step}"
            assert right, f"{who}: expected the bits of step 1, found others"
            assert names == ["step-00000001"], f"{who}: expected step 1 alone, found {names}"
            assert again == 2, f"{who}: expected that 2 can be saved again, found {again}"


def test_nothing_whole_is_nothing_filled(kata, oracle, ranks, seed, root):
    def train(rank, world):
        manager = kata.CheckpointManager(oracle.Disk(root), gloo())
        manager.save_async(filled(oracle, seed, rank, 1), 1).result()
        dist.barrier()
        name = kata.step_name(1)
        found = []
        for file in sorted(path.name for path in (root / name).iterdir()):
            there = root.parent / f"without-{file}"
            if rank == 0:
                shutil.copytree(root, there)
                (there / name / file).write_bytes(b"")
            dist.barrier()
            disk = oracle.Disk(there)
            manager, _, step = restored(kata, oracle, disk, seed, rank)
            dist.barrier()
            found.append((file, step, disk.names()))
        return found

    for rank, results in enumerate(ranks(2, train)):
        for file, step, names in results:
            who = f"rank {rank}, {file} empty"
            assert step is None, f"{who}: expected None, found {step}"
            assert names == [], f"{who}: expected the damaged one gone, found {names}"


# ---- the rest ------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [1, 3])
def test_the_newest_stay(kata, oracle, ranks, seed, root, keep):
    def train(rank, world):
        disk = oracle.Disk(root)
        manager = kata.CheckpointManager(disk, gloo(), keep)
        nothing = manager.latest(), manager.load(filled(oracle, seed, rank, 0))
        found = []
        for step in (0, 5, 9, 10, 100):
            manager.save_async(filled(oracle, seed, rank, step), step).result()
            found.append((manager.latest(), [kata.step_of(name) for name in disk.names()]))
        return nothing, found

    for nothing, found in ranks(1, train):
        assert nothing == (None, None), f"an empty folder: expected (None, None), found {nothing}"
        steps = [0, 5, 9, 10, 100]
        expected = [(steps[n], steps[: n + 1][-keep:]) for n in range(5)]
        assert found == expected, f"keep={keep}: expected {expected}, found {found}"


def test_steps_may_have_nine_digits(kata, oracle, ranks, seed, root):
    steps = [99_999_999, 100_000_000, 1_000_000_001]

    def train(rank, world):
        disk = oracle.Disk(root)
        manager = kata.CheckpointManager(disk, gloo())
        for step in steps:
            manager.save_async(filled(oracle, seed, rank, step), step).result()
        before = manager.latest()
        state = zeros(oracle, seed, rank)
        loaded = kata.CheckpointManager(disk, gloo()).load(state)
        right = oracle.same(state, filled(oracle, seed, rank, steps[-1]))
        return before, loaded, right, sorted(map(kata.step_of, disk.names()))

    found = ranks(1, train)[0]
    expected = steps[-1], steps[-1], True, steps[1:]
    assert found == expected, (
        f"latest, loaded, right bits, kept: expected {expected}, found {found}"
    )


def test_a_save_cannot_be_called_off(kata, oracle, ranks, seed, root):
    """The other ranks count on it, and may be further already."""

    def train(rank, world):
        manager = kata.CheckpointManager(oracle.Disk(root), gloo())
        found = []
        for step in range(3):
            state = filled(oracle, seed, rank, step)
            before = sys.getswitchinterval()
            sys.setswitchinterval(10)  # no other thread runs before `cancel` does
            try:
                future = manager.save_async(state, step)
                found.append(future.cancel())
            finally:
                sys.setswitchinterval(before)
            found.append(wait_for([future], 5).done == {future} and future.result() == step)
        return found

    for rank, found in enumerate(ranks(2, train)):
        assert found == [False, True] * 3, f"rank {rank}, cancelled and saved: found {found}"


def test_steps_go_forward_and_something_is_kept(kata, oracle, ranks, seed, root):
    def train(rank, world):
        for keep in (0, -1):
            with pytest.raises(ValueError, match="^keep: "):
                kata.CheckpointManager(oracle.Disk(root), gloo(), keep)
        manager = kata.CheckpointManager(oracle.Disk(root), gloo())
        manager.wait()
        state = filled(oracle, seed, rank, 5)
        with pytest.raises(ValueError, match="^step: "):
            manager.save_async(state, -1)
        manager.save_async(state, 5)  # still in flight, or not
        for step in (5, 4):
            with pytest.raises(ValueError, match="^step: "):
                manager.save_async(state, step)
        other = kata.CheckpointManager(oracle.Disk(root), gloo())
        with pytest.raises(ValueError, match="^step: "):
            other.save_async(state, 5)
        return other.save_async(state, 6).result()

    assert ranks(1, train) == [6]


def test_load_waits_for_the_save_in_flight(kata, oracle, ranks, seed, root):
    def train(rank, world):
        disk = oracle.Disk(root)
        manager, state, _ = restored(kata, oracle, disk, seed, rank)
        disk.gate.clear()
        save(oracle, manager, disk, state, seed, rank, 1)
        threading.Timer(0.1, disk.gate.set).start()
        return manager.load(state), oracle.same(state, filled(oracle, seed, rank, 1))

    assert ranks(1, train) == [(1, True)]


def test_parameters_and_strides_are_saved_as_they_are(kata, oracle, ranks, root):
    base = torch.arange(12.0).view(3, 4)

    def train(rank, world):
        manager = kata.CheckpointManager(oracle.Disk(root), gloo())
        state = {"w": base.clone().t().requires_grad_(), "every.second": base.clone()[:, ::2]}
        manager.save_async(state, 1).result()
        leaf = torch.zeros(3, 4, requires_grad=True)
        other = {"w": leaf.t(), "every.second": torch.zeros(3, 4)[:, ::2]}
        assert manager.load(other) == 1
        return other["w"].detach().clone(), other["every.second"].clone(), leaf.grad_fn

    w, second, _ = ranks(1, train)[0]
    assert torch.equal(w, base.t()), f"expected {base.t()}, found {w}"
    assert torch.equal(second, base[:, ::2]), f"expected {base[:, ::2]}, found {second}"


def test_one_buffer_is_used_again_and_a_rank_reads_its_own(
    kata, oracle, ranks, dispatch, root, cost
):
    """64 KiB a rank, saved five times."""

    def train(rank, world):
        disk = oracle.Disk(root)
        manager = kata.CheckpointManager(disk, gloo())
        state = {key: torch.full((8192,), 1.0 + rank) for key in "ab"}
        with dispatch() as d:
            for step in range(5):
                manager.save_async(state, step)
        manager.wait()
        before = disk.read_bytes
        assert manager.load(state) == 4
        return d.allocated_bytes, d.copied_bytes, disk.read_bytes - before

    allocated, copied, read = zip(*ranks(2, train), strict=True)
    cost.check("staging", max(allocated))
    cost.check("copied", max(copied))
    cost.check("read_bytes", max(read))
