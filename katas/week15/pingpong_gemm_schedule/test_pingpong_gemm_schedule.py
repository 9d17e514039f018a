"""Both warpgroups on a simulated multiprocessor; closed forms against what it takes there."""

import random

import pytest

MODES = ("cooperative", "pingpong")


@pytest.fixture(scope="module")
def gemm(kata):
    def make(**changes):
        usual = {"k": 512, "bk": 64, "t_mma": 512, "t_load": 0, "t_load_pair": 0, "t_epi": 0}
        return kata.Gemm(**usual | changes)

    return make


def random_tiles(draw, n):
    mainloops = [(draw.randint(1, 9), draw.choice((0, 0, 12))) for _ in range(n)]
    return mainloops, [draw.choice((0, 1, 5, 30)) for _ in range(n)]


# ---- the warpgroups ------------------------------------------------------------------------


def test_mainloops_take_turns_in_the_order_of_tiles(kata, oracle, seed):
    draw = random.Random(seed)
    for n in (*range(9), 30):
        mainloops, epilogues = random_tiles(draw, n)
        for first in (0, 1):
            sm = oracle.Sm(mainloops, epilogues, first)
            sm.run(kata.pingpong)
            starts = {tile: start for kind, tile, _, start, _ in sm.trace if kind == "mainloop"}
            found = [(tile, starts[tile]) for tile in sorted(starts)]
            expected, _ = oracle.earliest(mainloops, epilogues)
            assert found == list(enumerate(expected)), (
                f"mainloops {mainloops}, epilogues {epilogues}: they start at {found}, expected "
                f"{list(enumerate(expected))}"
            )


def test_nothing_else_is_waited_for(kata, oracle, seed):
    draw = random.Random(seed)
    for n in (1, 2, 3, 8, 21):
        mainloops, epilogues = random_tiles(draw, n)
        _, expected = oracle.earliest(mainloops, epilogues)
        assert oracle.Sm(mainloops, epilogues).run(kata.pingpong) == expected


def test_each_tile_is_stored_by_its_own_warpgroup(kata, oracle):
    sm = oracle.Sm([(5, 0)] * 7, [3] * 7)
    sm.run(kata.pingpong)
    for kind in ("mainloop", "epilogue"):
        done = sorted((tile, wg) for what, tile, wg, *_ in sm.trace if what == kind)
        assert done == [(tile, tile % 2) for tile in range(7)]


@pytest.mark.parametrize(
    ("t_main", "t_epi", "cycles"),
    [
        (10, 0, 100),
        (10, 4, 104),
        (10, 10, 110),  # the last epilogue is all that shows
        (10, 25, 185),  # 4 periods of 35, then both warpgroups' last tiles
        (1, 100, 506),
    ],
    ids=["none", "short", "equal", "long", "much longer"],
)
def test_ten_tiles_hide_what_can_be_hidden(kata, oracle, t_main, t_epi, cycles):
    assert oracle.Sm([(t_main, 0)] * 10, [t_epi] * 10).run(kata.pingpong) == cycles


def test_tensor_cores_are_as_busy_as_the_closed_form_says(kata, oracle, gemm, cost):
    shares, ordering = [], []
    for t_epi in (0, 1000, 4096, 5000, 40_000):
        one = gemm(t_epi=t_epi)
        sm = oracle.Sm([(4096, 0)] * 100, [t_epi] * 100)
        shares.append(float(100 * 4096 / sm.run(kata.pingpong) * _period(4096, t_epi) / 8192))
        ordering.append(sm.ordering / 100)
        assert kata.utilisation("pingpong", one) == pytest.approx(8192 / _period(4096, t_epi))
    cost.check("utilisation", min(shares))
    cost.check("ordering", max(ordering))


def _period(t_main, t_epi):
    return max(2 * t_main, t_main + t_epi)


# ---- closed forms --------------------------------------------------------------------------


def random_gemm(draw, gemm):
    t_load = draw.choice((0, 3, 20))
    return gemm(
        k=draw.randint(1, 20),
        bk=draw.randint(1, 6),
        t_mma=draw.randint(1, 12),
        t_load=t_load,
        t_load_pair=draw.randint(t_load, 2 * t_load),
        t_epi=draw.choice((0, 5, 40, 200)),
    )


def test_period_is_what_two_more_tiles_take(kata, oracle, gemm, seed):
    draw = random.Random(seed)
    for one in [random_gemm(draw, gemm) for _ in range(30)]:
        for mode, warpgroup in zip(MODES, (kata.cooperative, oracle.taking_turns), strict=True):
            (less, _), (more, _) = (oracle.simulated(one, mode, warpgroup, n) for n in (8, 10))
            assert kata.period(mode, one) == int(more - less)


def test_choice_is_the_faster_of_two_simulations(kata, oracle, gemm, seed):
    draw = random.Random(seed)
    seen = set()
    for one in [random_gemm(draw, gemm) for _ in range(40)]:
        both = (kata.cooperative, oracle.taking_turns)
        cycles = [
            oracle.simulated(one, mode, warpgroup, 10)[0]
            - oracle.simulated(one, mode, warpgroup, 8)[0]
            for mode, warpgroup in zip(MODES, both, strict=True)
        ]
        expected = "pingpong" if cycles[1] < cycles[0] else "cooperative"
        assert kata.choose(one) == expected
        seen.add(expected)
    assert seen == set(MODES)


@pytest.mark.parametrize(
    ("changes", "cooperative", "pingpong"),
    [
        ({}, 8192, 8192),
        ({"t_epi": 4000}, 12_192, 8192),
        ({"t_epi": 5000}, 13_192, 9096),
        ({"k": 4096, "t_load": 640, "t_load_pair": 768, "t_epi": 4000}, 69_536, 81_920),
        ({"k": 512, "t_load": 640, "t_load_pair": 768, "t_epi": 4000}, 12_192, 10_240),
        ({"t_load": 640, "t_load_pair": 1280, "t_epi": 6000}, 16_240, 11_120),
        ({"k": 513}, 9216, 9216),
        ({"k": 63}, 1024, 1024),
    ],
    ids=[
        "no epilogue", "hidden", "too long", "loads, long k", "loads, short k", "loads of a pair",
        "a step for one more", "less than a step",
    ],
)  # fmt: skip
def test_periods_by_hand(kata, gemm, changes, cooperative, pingpong):
    one = gemm(**changes)
    assert kata.period("cooperative", one) == cooperative
    assert kata.period("pingpong", one) == pingpong


def test_utilisation_counts_multiplying_and_not_waiting_for_loads(kata, gemm):
    one = gemm(k=4096, t_load=640, t_load_pair=768, t_epi=4000)
    assert kata.utilisation("pingpong", one) == pytest.approx(512 / 640)
    assert kata.utilisation("cooperative", one) == pytest.approx(65_536 / 69_536)
    assert kata.utilisation("pingpong", gemm(k=65)) == 1  # two whole steps


def test_of_equals_cooperative_is_chosen(kata, gemm):
    assert kata.choose(gemm()) == "cooperative"
    # 8 steps of 1000 cycles for two tiles, either way
    assert kata.choose(gemm(t_mma=400, t_load=500, t_load_pair=1000, t_epi=0)) == "cooperative"


def test_long_loops_are_counted_exactly(kata, gemm):
    one = gemm(k=2**62 + 1, bk=2, t_mma=3, t_epi=2**70 + 1)
    assert kata.period("pingpong", one) == 3 * (2**61 + 1) + 2**70 + 1
    assert kata.period("cooperative", one) == 6 * (2**61 + 1) + 2**70 + 1
    # a cycle apart
    assert kata.choose(gemm(k=1, t_mma=2**60, t_load_pair=2**61 + 1)) == "pingpong"


# ---- bad input -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("k", 0), ("bk", 0), ("t_mma", 0), ("t_load", -1), ("t_load_pair", -1), ("t_epi", -1),
        ("k", -640), ("bk", -64),
    ],
    ids=["k", "bk", "t_mma", "t_load", "t_load_pair", "t_epi", "k far below", "bk far below"],
)  # fmt: skip
def test_impossible_figures_are_refused(kata, gemm, name, value):
    one = gemm(**{name: value})
    for mode in MODES:
        for ask in (kata.period, kata.utilisation):
            with pytest.raises(ValueError, match=f"^{name}: "):
                ask(mode, one)
    with pytest.raises(ValueError, match=f"^{name}: "):
        kata.choose(one)


def test_an_unknown_mode_is_refused(kata, gemm):
    for ask in (kata.period, kata.utilisation):
        with pytest.raises(ValueError, match="^mode: .*stream-k"):
            ask("stream-k", gemm())
