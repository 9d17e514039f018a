"""What starts when, what is trained on, and how long it takes with very unequal answers."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st


def filled(kata, requests, slots=2, staleness=0, group_size=1, batch=2):
    """Make a scheduler with requests given as (id, group) or (id, group, hint)."""
    scheduler = kata.RolloutScheduler(slots, staleness, group_size, batch)
    for request in requests:
        scheduler.add(kata.Request(*request))
    return scheduler


def ticks(scheduler, version, *expected):
    found = scheduler.on_tick(version)
    assert found == [*expected], f"on_tick({version}): {found}, expected {[*expected]}"


def trains(scheduler, version, *expected):
    found = scheduler.on_train_ready(version)
    assert found == [*expected], f"on_train_ready({version}): {found}, expected {[*expected]}"


def finish(scheduler, *ids):
    for one in ids:
        scheduler.on_finish(one)


# ---- what starts ---------------------------------------------------------------------------


def test_a_slot_is_filled_as_soon_as_it_is_free(kata):
    scheduler = filled(kata, [(at, at) for at in range(5)], batch=5)
    ticks(scheduler, 0, 0, 1)
    ticks(scheduler, 0)
    finish(scheduler, 1)
    ticks(scheduler, 0, 2)
    finish(scheduler, 0, 2)
    ticks(scheduler, 0, 3, 4)


def test_order_is_that_of_arrival(kata):
    scheduler = filled(kata, [(9, 4), (2, 7), (5, 1)], slots=3, batch=3)
    ticks(scheduler, 0, 9, 2, 5)
    scheduler = filled(kata, [], slots=3, batch=1, staleness=1)
    ticks(scheduler, 0)
    for one in ((8, 30), (1, 20)):
        scheduler.add(kata.Request(*one))
    ticks(scheduler, 0, 8, 1)


def test_groups_of_a_later_version_wait(kata):
    # two groups of two in a batch; the requests of groups come mixed
    order = [(0, 5), (1, 3), (2, 8), (3, 5), (4, 3), (5, 8)]
    scheduler = filled(kata, order, slots=9, group_size=2)
    ticks(scheduler, 0, 0, 1, 3, 4)
    finish(scheduler, 0, 1, 3, 4)
    ticks(scheduler, 0)
    trains(scheduler, 0, 5, 3)
    ticks(scheduler, 0)  # it learns: what is written now would be too old
    ticks(scheduler, 1, 2, 5)


@pytest.mark.parametrize("staleness", [0, 1, 2, 5])
def test_as_many_batches_ahead_as_staleness_allows(kata, staleness):
    scheduler = filled(kata, [(at, at) for at in range(30)], slots=99, staleness=staleness, batch=3)
    ticks(scheduler, 0, *range(3 * (staleness + 1)))
    ticks(scheduler, 1, *range(3 * (staleness + 1), 3 * (staleness + 2)))


def test_the_longest_of_a_batch_start_first(kata):
    requests = [(0, 0, 5), (1, 1, 90), (2, 2, 90), (3, 3, 7), (4, 4, 900), (5, 5, 901)]
    scheduler = filled(kata, requests, slots=3, staleness=1, batch=4)
    ticks(scheduler, 0, 1, 2, 3)
    finish(scheduler, 1, 2, 3)
    ticks(scheduler, 0, 0, 5, 4)  # the second batch is no reason to keep the first one waiting


# ---- what is trained on --------------------------------------------------------------------


def test_a_group_is_complete_when_all_of_it_is(kata):
    scheduler = filled(kata, [(at, at // 3) for at in range(6)], slots=6, group_size=3, batch=1,
                       staleness=1)  # fmt: skip
    trains(scheduler, 0)
    ticks(scheduler, 0, *range(6))
    finish(scheduler, 0, 3, 4, 1)
    trains(scheduler, 0)
    finish(scheduler, 5)
    trains(scheduler, 0, 1)
    trains(scheduler, 0)  # not twice
    finish(scheduler, 2)
    trains(scheduler, 1, 0)


def test_the_oldest_are_trained_on_first(kata):
    scheduler = filled(kata, [(at, 10 - at) for at in range(6)], slots=4, staleness=2, batch=2)
    ticks(scheduler, 0, 0, 1, 2, 3)
    finish(scheduler, 3)
    ticks(scheduler, 1, 4)
    finish(scheduler, 4, 2)
    ticks(scheduler, 1, 5)
    finish(scheduler, 5)
    trains(scheduler, 1, 8, 7)  # ids 2 and 3: of one version, by arrival
    finish(scheduler, 1)
    trains(scheduler, 2)  # group 10 would be too old after that
    finish(scheduler, 0)
    trains(scheduler, 2, 10, 9)


def test_age_goes_before_arrival_and_arrival_before_starting(kata):
    requests = [(0, 0, 1), (1, 1, 9), (2, 2, 1), (3, 3, 5)]
    scheduler = filled(kata, requests, slots=1, staleness=2, batch=2)
    ticks(scheduler, 0, 1)
    for ended, started in ((1, 0), (0, 3), (3, 2)):
        finish(scheduler, ended)
        ticks(scheduler, 1, started)
    finish(scheduler, 2)
    trains(scheduler, 1, 1, 0)
    trains(scheduler, 2, 2, 3)


def test_nobody_is_left_behind_to_grow_too_old(kata):
    scheduler = filled(kata, [(0, 0), (1, 1), (2, 2)], slots=2, staleness=1, batch=1)
    ticks(scheduler, 0, 0, 1)
    finish(scheduler, 1)
    trains(scheduler, 0, 1)  # group 0 may be a version old
    ticks(scheduler, 1, 2)
    finish(scheduler, 2)
    trains(scheduler, 1)  # and no more
    finish(scheduler, 0)
    trains(scheduler, 1, 0)
    trains(scheduler, 2, 2)


def test_a_group_is_as_old_as_its_first_token(kata):
    first = [(0, 0), (2, 1), (3, 1)]
    scheduler = filled(kata, first, slots=3, staleness=1, group_size=2, batch=1)
    ticks(scheduler, 0, 0, 2, 3)
    finish(scheduler, 0, 2, 3)
    trains(scheduler, 0, 1)
    for request in ((1, 0), (4, 2), (5, 2)):
        scheduler.add(kata.Request(*request))
    ticks(scheduler, 1, 1, 4, 5)
    finish(scheduler, 4, 5)
    trains(scheduler, 1)  # half of group 0 is of version 0, though the other half is not
    finish(scheduler, 1)
    trains(scheduler, 1, 0)
    trains(scheduler, 2, 2)


# ---- with an engine ------------------------------------------------------------------------


@given(
    slots=st.integers(1, 9),
    staleness=st.integers(0, 3),
    group_size=st.sampled_from([1, 2, 8]),
    batch=st.integers(1, 4),
    batches=st.integers(0, 4),
    train_s=st.sampled_from([0.0, 0.01, 0.3, 5.0]),
    hints=st.booleans(),
    draw=st.integers(0, 999),
)
@example(4, 1, 8, 2, 3, 0.1, False, 0)
@example(3, 1, 1, 4, 4, 0.3, True, 1)
@example(64, 1, 64, 1, 3, 0.3, False, 2)
@example(5, 0, 1, 3, 0, 0.3, False, 2)  # nothing to do
@example(5, 2, 1, 2, 4, 0.0, False, 340)  # more that age together than one step takes
def test_an_engine_is_kept_busy_within_the_rules(
    kata, oracle, slots, staleness, group_size, batch, batches, train_s, hints, draw
):
    drawn = oracle.lengths(batches * batch * group_size, draw, cap=400)
    result = oracle.serve(
        kata, kata.RolloutScheduler, drawn, slots=slots, staleness=staleness, batch=batch,
        group_size=group_size, train_s=train_s, hints=hints, strict=True,
    )  # fmt: skip
    assert len(result.batches) == batches
    if staleness == 0:
        assert result.overlapped == 0, f"{result.overlapped} tokens were written while learning"


def test_a_straggler_keeps_nobody_waiting(kata, oracle):
    drawn = [50, 4096, *[50] * 62]
    of_engine = {"slots": 8, "batch": 16, "train_s": 0.3, "strict": True}
    waits, goes_on = (
        oracle.serve(kata, kata.RolloutScheduler, drawn, staleness=staleness, **of_engine)
        for staleness in (0, 2)
    )
    straggler = 1000 - 1
    found = [straggler in batch for batch in goes_on.batches]
    assert found == [False, False, True, False], f"batches with the straggler: {found}"
    assert straggler in waits.batches[0]
    assert goes_on.overlapped > 0


# ---- how long it takes ---------------------------------------------------------------------

SEEDS = range(5)


def generated(kata, oracle, make, seed, slots=64, **options):
    drawn = oracle.lengths(512, seed)
    result = oracle.serve(kata, make, drawn, slots=slots, staleness=0, batch=512, **options)
    return result.ended


def test_generation_outruns_static_batches(kata, oracle, cost):
    ours = [generated(kata, oracle, kata.RolloutScheduler, seed) for seed in SEEDS]
    static = [generated(kata, oracle, oracle.Static, seed) for seed in SEEDS]
    least = [oracle.least_s(oracle.lengths(512, seed), 64) for seed in SEEDS]
    cost.check("generation", min(theirs / own for theirs, own in zip(static, ours, strict=True)))
    cost.check("makespan", max(own / best for own, best in zip(ours, least, strict=True)))


def test_known_lengths_leave_nothing_to_gain(kata, oracle, cost):
    found = []
    for seed in SEEDS[:3]:
        least = oracle.least_s(oracle.lengths(512, seed), 64)
        found.append(generated(kata, oracle, kata.RolloutScheduler, seed, hints=True) / least)
    cost.check("makespan, lengths known", max(found))


def test_many_slots_gain_less(kata, oracle, cost):
    found = [
        generated(kata, oracle, oracle.Static, seed, 256)
        / generated(kata, oracle, kata.RolloutScheduler, seed, 256)
        for seed in SEEDS[:2]
    ]
    cost.check("generation, 256 slots", min(found))


def test_training_is_hidden_behind_generation(kata, oracle, cost):
    found = []
    for seed in SEEDS[:3]:
        drawn = oracle.lengths(1024, 50 + seed)
        alone = oracle.serve(
            kata, oracle.Static, drawn[:256], slots=64, staleness=0, batch=256
        ).ended
        of_engine = {"slots": 64, "batch": 256, "train_s": alone / 4}
        static = oracle.serve(kata, oracle.Static, drawn, staleness=0, **of_engine)
        ours = oracle.serve(kata, kata.RolloutScheduler, drawn, staleness=1, **of_engine)
        found.append(static.ended / ours.ended)
    cost.check("end to end", min(found))


# ---- bad input -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "named"),
    [((0, 0, 1, 1), "slots"), ((1, -1, 1, 1), "max_staleness"), ((1, 0, 0, 1), "group_size"),
     ((1, 0, 1, 0), "batch_groups")],
    ids=["slots", "max_staleness", "group_size", "batch_groups"],
)  # fmt: skip
def test_sizes_that_make_no_sense_are_refused(kata, given, named):
    with pytest.raises(ValueError, match=f"^{named}: "):
        kata.RolloutScheduler(*given)


def test_requests_out_of_place_are_refused(kata):
    scheduler = filled(kata, [(0, 0), (1, 0)], slots=1, group_size=2)

    def refused(named, call):
        with pytest.raises(ValueError, match=f"^{named}: "):
            call()

    refused("group", lambda: scheduler.add(kata.Request(2, 0)))
    refused("id", lambda: scheduler.add(kata.Request(1, 77)))  # it waits
    refused("req_id", lambda: scheduler.on_finish(0))  # it waits as well
    ticks(scheduler, 0, 0)
    refused("id", lambda: scheduler.add(kata.Request(0, 77)))  # it runs
    finish(scheduler, 0)
    refused("req_id", lambda: scheduler.on_finish(0))
    scheduler.add(kata.Request(0, 1))  # free again
    ticks(scheduler, 0, 1)
    finish(scheduler, 1)
    ticks(scheduler, 0, 0)
    trains(scheduler, 0)  # group 1 has one of two
    scheduler.add(kata.Request(2, 1))  # refused above, which changed nothing
    finish(scheduler, 0)
    ticks(scheduler, 0, 2)
    finish(scheduler, 2)
    trains(scheduler, 0, 0, 1)
    refused("group", lambda: scheduler.add(kata.Request(3, 0)))  # trained on, it has all it had
