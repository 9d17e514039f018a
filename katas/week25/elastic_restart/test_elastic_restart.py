"""What is special about restarts: other ranks, the same bits, every sample once."""

import pytest
import torch
import torch._dynamo  # by an optimizer, else in each fork anew
import torch.distributed as dist

from harness.meters.communication import comm_meter
from harness.simulators.deaths import Moment

STEPS = 8


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "store").mkdir()
    return tmp_path


@pytest.fixture
def launch(kata, oracle, ranks, folder, monkeypatch):
    """
    What an agent does: start all ranks; if one dies, so do the others.

    `launch(job, start, world, dies)` returns the ranks' ends, each with (report, saved steps).
    """

    def run(job, start, world, dies=None, steps=STEPS):
        def work(rank, world):
            store = oracle.Store(folder / "store")
            data = oracle.Data(folder / "log", start, rank)
            return kata.train(job, data, store, steps), store.saved

        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", str(start))
        ends = ranks.ends(world, work, dies=dies or {}, together=True)
        for end in ends:
            if end.error and not any(other.killed for other in ends):
                raise end.error
        if dies:
            assert any(end.killed for end in ends), f"start {start}: nobody came to {dies}"
        return ends

    return run


def assert_same_bits(ranks, kata, oracle, job, ends, steps=STEPS):
    expected = ranks.alone(oracle.weights_after, kata, job, steps)
    for rank, end in enumerate(ends):
        found = end.value[0].weights
        who = f"{job}, weights on rank {rank} of {len(ends)} after {steps} steps"
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype), (
            f"{who}: expected {expected.dtype} {expected.shape}, found {found.dtype} {found.shape}"
        )
        assert not found.requires_grad, f"{who}: expected a tensor that autograd does not know of"
        apart = (found - expected).abs()
        assert torch.equal(found, expected), (
            f"{who}: expected {expected[:4].tolist()} …, found {found[:4].tolist()} …; "
            f"{(apart > 0).sum()} differ, by up to {apart.max():.1e}"
        )


def assert_read(kata, oracle, job, folder, starts, steps=STEPS):
    """Each start, of (first step, world), has read what its steps need, in order, and no more."""
    found = oracle.read_log(folder / "log")
    every = oracle.batches(kata, job, steps)
    micros = job.global_batch // job.micro_batch
    for start, (first, world) in enumerate(starts):
        begin = 0
        for rank in range(world):
            count = micros // world + (rank < micros % world)
            expected = [
                ids[at * job.micro_batch : (at + 1) * job.micro_batch]
                for ids in every[first:]
                for at in range(begin, begin + count)
            ]
            begin += count
            batches = found.get((start, rank), [])
            killed = start < len(starts) - 1
            wanted = expected[: len(batches)] if killed else expected
            assert batches == wanted, (
                f"start {start} from step {first}, rank {rank} of {world}, samples read: expected "
                f"{wanted}, found {batches}"
            )


# ---- shares and samples --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("global_batch", "world", "micro_batch", "expected"),
    [
        (12, 1, 2, [6]),
        (12, 4, 2, [2, 2, 1, 1]),
        (12, 3, 4, [1, 1, 1]),
        (14, 4, 2, [2, 2, 2, 1]),
        (5, 5, 1, [1] * 5),
        (6, 1, 6, [1]),
    ],
    ids=str,
)
def test_micro_batches_are_shared_out(kata, global_batch, world, micro_batch, expected):
    assert kata.grad_accum(global_batch, world, micro_batch) == expected


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ((13, 2, 2), "global_batch"),
        ((2, 1, 4), "global_batch"),
        ((0, 1, 2), "global_batch"),
        ((12, 1, 0), "global_batch"),
        ((-4, 1, 2), "global_batch"),
        ((4, 2, -2), "global_batch"),
        ((12, 7, 2), "world"),
        ((12, 0, 2), "world"),
        ((13, 0, 2), "global_batch"),
    ],
    ids=str,
)
def test_batches_that_cannot_be_shared_out_are_refused(kata, arguments, name):
    with pytest.raises(ValueError, match=f"^{name}: "):
        kata.grad_accum(*arguments)


# an epoch and a half; less than one; exactly one; several; one sample
@pytest.mark.parametrize("samples", [17, 30, 12, 5, 1])
def test_epochs_follow_one_another_without_a_gap(kata, oracle, seed, samples):
    job = oracle.config(kata, seed, samples=samples)
    for step, expected in enumerate(oracle.batches(kata, job, 7)):
        found = kata.samples_at(job, step)
        assert found == expected, f"{job}, step {step}: expected {expected}, found {found}"


# the end of one epoch and the beginning of the next; exactly one; exactly three
@pytest.mark.parametrize(("samples", "epochs"), [(17, 2), (12, 1), (4, 3)], ids=str)
def test_a_late_step_asks_for_its_own_epochs_alone(kata, oracle, seed, calls, samples, epochs):
    job = oracle.config(kata, seed, samples=samples)
    step = 10**6
    epoch, at = divmod(step * 12, samples)
    stream = [one for more in range(epochs) for one in kata.epoch_order(job, epoch + more)]
    expected = stream[at : at + 12]
    asked = calls("epoch_order", limit=epochs + 1)
    found = kata.samples_at(job, step)
    assert found == expected, f"{job}, step {step}: expected {expected}, found {found}"
    assert asked.calls == epochs, (
        f"{job}, step {step}: expected {epochs} calls of epoch_order, found {asked.calls}"
    )


# ---- training ------------------------------------------------------------------------------


# alone; even shares; 2 2 1 1
@pytest.mark.parametrize("world", [1, 2, 4])
def test_any_number_of_ranks_comes_to_the_same_bits(
    kata, oracle, ranks, launch, seed, folder, world
):
    job = oracle.config(kata, seed)
    ends = launch(job, 0, world)
    assert_same_bits(ranks, kata, oracle, job, ends)
    assert_read(kata, oracle, job, folder, [(0, world)])
    for rank, end in enumerate(ends):
        report, saved = end.value
        expected = (0, STEPS, 0), [3, 6, 8] if rank == 0 else []
        found = (report.first, report.steps_run, report.restarts), saved
        assert found == expected, f"rank {rank}: expected {expected}, found {found}"


def test_a_crash_costs_the_steps_since_the_last_checkpoint(
    kata, oracle, ranks, launch, seed, folder, cost
):
    """Rank 1 of 2 dies in its fifth step, with 3 micro-batches in each."""
    job = oracle.config(kata, seed)
    launch(job, 0, 2, {1: Moment("batch", 4 * 3 + 2)})
    ends = launch(job, 1, 2)
    cost.check("recomputed", 4 - ends[0].value[0].first)
    assert_same_bits(ranks, kata, oracle, job, ends)
    assert_read(kata, oracle, job, folder, [(0, 2), (3, 2)])
    for rank, end in enumerate(ends):
        report = end.value[0]
        found, expected = (report.first, report.steps_run, report.restarts), (3, STEPS - 3, 1)
        assert found == expected, f"start 1, rank {rank}: expected {expected}, found {found}"


def test_four_ranks_then_three_then_one(kata, oracle, ranks, launch, seed, folder):
    """Killed before the first checkpoint, in the middle of saving the second, and once more."""
    job = oracle.config(kata, seed)
    launch(job, 0, 4, {2: Moment("batch", 2)})
    launch(job, 1, 3, {0: Moment("half", 2)})
    launch(job, 2, 2, {0: Moment("saved")})
    ends = launch(job, 3, 1)
    assert_same_bits(ranks, kata, oracle, job, ends)
    assert_read(kata, oracle, job, folder, [(0, 4), (0, 3), (3, 2), (6, 1)])
    restarts = ends[0].value[0].restarts
    assert restarts == 3, f"restarts: expected 3, found {restarts}"


def test_a_job_that_was_done_goes_on_under_another_agent(kata, oracle, ranks, launch, seed):
    """Who wants more steps starts torchrun anew: no restarts, and saved as if never stopped."""
    job = oracle.config(kata, seed)
    launch(job, 0, 2, steps=2)
    ends = launch(job, 0, 2)
    assert_same_bits(ranks, kata, oracle, job, ends)
    for rank, end in enumerate(ends):
        report, saved = end.value
        expected = (2, STEPS - 2, 0), [3, 6, 8] if rank == 0 else []
        found = (report.first, report.steps_run, report.restarts), saved
        assert found == expected, f"rank {rank}, after 2 steps: expected {expected}, found {found}"


def test_a_job_that_is_done_does_nothing(kata, oracle, ranks, launch, seed, folder):
    """Saved once, though the last step is also one of every two; asked for fewer steps, or none."""
    job = oracle.config(kata, seed, every=2)
    asked = [(0, (0, 0)), (2, (0, 2)), (2, (2, 0)), (1, (2, 0))]
    for start, (steps, expected) in enumerate(asked):
        ends = launch(job, start, 2, steps=steps)
        for rank, end in enumerate(ends):
            report, saved = end.value
            wanted = *expected, [2] if (start, rank) == (1, 0) else []
            found = report.first, report.steps_run, saved
            assert found == wanted, f"start {start}, rank {rank}: expected {wanted}, found {found}"
        assert_same_bits(ranks, kata, oracle, job, ends, steps=sum(expected))
    read = sorted({start for start, _ in oracle.read_log(folder / "log")})
    assert read == [1], f"starts that have read samples: expected [1], found {read}"


def test_a_group_of_ranks_can_be_the_job(kata, oracle, ranks, seed, folder, cost):
    """Ranks 1 and 2 of 3; 6 gradients of 74 numbers in float64 in each step."""
    job = oracle.config(kata, seed)

    def work(rank, world):
        group = dist.new_group([1, 2], backend="gloo")
        if rank == 0:
            return None
        store = oracle.Store(folder / "store")
        with comm_meter() as meter:
            report = kata.train(job, oracle.Data(folder / "log", 0, rank - 1), store, 2, group)
        return report, meter.bytes_sent, store.saved

    _, first, second = ranks(3, work)
    expected = ranks.alone(oracle.weights_after, kata, job, 2)
    for rank, (report, _, saved) in enumerate((first, second)):
        who = f"rank {rank} of the group of ranks 1 and 2"
        assert torch.equal(report.weights, expected), (
            f"{who}, weights: expected {expected[:4].tolist()} …, "
            f"found {report.weights[:4].tolist()} …"
        )
        wanted = [2] if rank == 0 else []
        assert saved == wanted, f"{who}, saved: expected {wanted}, found {saved}"
    cost.check("sent", max(first[1], second[1]))


def test_a_job_that_cannot_be_shared_out_reads_nothing(kata, oracle, ranks, seed, folder):
    class Shut:
        def load(self):
            raise AssertionError("nothing may be loaded")

        batch = save = load

    job = oracle.config(kata, seed, micro_batch=12)
    odd = oracle.config(kata, seed, micro_batch=5)

    def work(rank, world):
        for changed, name in [(job, "world"), (odd, "global_batch")]:
            with pytest.raises(ValueError, match=f"^{name}: "):
                kata.train(changed, Shut(), Shut(), 1)

    ranks(2, work)
