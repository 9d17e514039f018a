"""Which tiles there are, how evenly slots share them, and what warps tell each other."""

from itertools import chain

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

# B, H, Sq, Sk, Br, Bc, all causal: on 108 and 132 slots, 3 to 10 tiles for each ...
MANY = [
    (1, 8, 8192, 8192, 128, 128),
    (1, 8, 8192, 8192, 128, 64),
    (2, 16, 4096, 4096, 128, 64),
    (1, 16, 2048, 2048, 64, 64),
    (8, 16, 512, 512, 128, 128),
    (1, 8, 16384, 16384, 128, 128),
]
# ... and 1 to 3
FEW = [
    (4, 8, 1024, 1024, 128, 64),
    (1, 32, 1000, 3000, 128, 64),
    (1, 12, 2000, 2000, 128, 128),
    (1, 4, 4096, 4096, 64, 64),
]
SIZES = st.integers(1, 12)
LONG = (1, 8, 8192, 8192, 128, 128)


def tiles_of(kata, *work):
    return [kata.Tile(0, 0, i, kv_blocks) for i, kv_blocks in enumerate(work)]


def worst_balance(kata, oracle, shapes):
    """Makespan over what no schedule can beat, the largest of these launches."""
    ratios = []
    for shape in shapes:
        tiles = kata.work_tiles(2, *shape, causal=True)
        work = [tile.kv_blocks for tile in tiles]
        assert sorted(work) == sorted(oracle.causal_work(*shape))
        for n_slots in (108, 132):
            slots = kata.assign(tiles, n_slots)
            assert sorted(chain(*slots)) == sorted(tiles)
            ratios.append(oracle.makespan(slots) / oracle.least_makespan(work, n_slots))
    return max(ratios)


# ---- tiles ---------------------------------------------------------------------------------


def test_version_1_leaves_most_slots_idle(kata):
    tiles = kata.work_tiles(1, *LONG)
    assert sorted(tiles) == [kata.Tile(0, h, 0, 64 * 64) for h in range(8)]
    assert sum(map(bool, kata.assign(tiles, 132))) == 8


def test_version_2_has_a_block_for_each_tile_of_queries(kata):
    tiles = kata.work_tiles(2, *LONG)
    assert sorted(tiles) == [kata.Tile(0, h, i, 64) for h in range(8) for i in range(64)]
    tiles = kata.work_tiles(2, *LONG, causal=True)
    assert sorted(tiles) == [kata.Tile(0, h, i, i + 1) for h in range(8) for i in range(64)]


@pytest.mark.parametrize(
    ("Sq", "Sk", "work"),
    [
        (4, 10, {0: 4, 1: 5}),  # the first two queries see keys 0 to 7
        (8, 4, {2: 1, 3: 2}),  # the first four see none
        (5, 5, {0: 1, 1: 2, 2: 3}),  # the last tile has one query, which sees all
    ],
    ids=["more keys", "more queries", "ragged"],
)
def test_causal_mask_is_aligned_bottom_right(kata, Sq, Sk, work):
    tiles = kata.work_tiles(2, 1, 1, Sq, Sk, 2, 2, causal=True)
    assert {tile.i: tile.kv_blocks for tile in tiles} == work


# a mask that hides more than a whole tile of one key
@example(B=1, H=1, Sq=4, Sk=2, Br=1, Bc=1, causal=True)
@given(B=st.integers(1, 2), H=st.integers(1, 2), Sq=SIZES, Sk=SIZES, Br=SIZES, Bc=SIZES,
       causal=st.booleans())  # fmt: skip
def test_all_scores_that_are_seen_are_covered_once(kata, oracle, B, H, Sq, Sk, Br, Bc, causal):
    work = [oracle.kv_blocks(i, Sq, Sk, Br, Bc, causal) for i in range(-(-Sq // Br))]
    heads = [(b, h) for b in range(B) for h in range(H)]
    tiles = kata.work_tiles(2, B, H, Sq, Sk, Br, Bc, causal)
    assert sorted(tiles) == [(b, h, i, n) for b, h in heads for i, n in enumerate(work) if n]
    whole = kata.work_tiles(1, B, H, Sq, Sk, Br, Bc, causal)
    assert sorted(whole) == [(b, h, 0, sum(work)) for b, h in heads]


# ---- slots ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("work", "n_slots", "best"),
    [
        ((1, 1, 2), 2, 2),
        ((2, 1, 1), 2, 2),  # the same, the long one not last
        ((*[1] * 20, 9), 4, 9),  # three slots share the ones: dealing 5 or 6 to each is no good
    ],
    ids=["two slots", "long one first", "four slots"],
)
def test_a_slot_with_a_long_tile_gets_little_else(kata, oracle, work, n_slots, best):
    tiles = tiles_of(kata, *work)
    makespan = oracle.makespan(kata.assign(tiles, n_slots))
    assert tiles == tiles_of(kata, *work), "the caller's list was changed"
    assert 3 * n_slots * makespan <= (4 * n_slots - 1) * best


def test_equal_tiles_are_shared_out_all_the_same(kata):
    twice = tiles_of(kata, 2) * 2  # as of two launches that run side by side
    assert sorted(kata.assign(twice, 2)) == [twice[:1], twice[1:]]


@given(work=st.lists(st.integers(1, 9), max_size=5), n_slots=st.integers(1, 3))
def test_sharing_is_within_a_third_of_the_best(kata, oracle, work, n_slots):
    tiles = tiles_of(kata, *work)
    slots = kata.assign(iter(tiles), n_slots)
    assert len(slots) == n_slots
    assert sorted(chain(*slots)) == tiles
    best = oracle.best_makespan(work, n_slots)
    assert 3 * n_slots * oracle.makespan(slots) <= (4 * n_slots - 1) * best


def test_many_tiles_share_out_evenly(kata, oracle, cost):
    cost.check("many_tiles", worst_balance(kata, oracle, MANY))


def test_few_tiles_share_out_well(kata, oracle, cost):
    cost.check("few_tiles", worst_balance(kata, oracle, FEW))


def test_version_2_fills_the_gpu(kata, oracle, cost):
    times = []
    for version in (1, 2):
        slots = kata.assign(kata.work_tiles(version, *LONG, causal=True), 132)
        work = sum(tile.kv_blocks for tile in chain(*slots))
        assert work == sum(oracle.causal_work(*LONG)), "some of the work is done by nobody"
        times.append(oracle.makespan(slots))
    cost.check("speedup", times[0] / times[1])


# ---- warps ---------------------------------------------------------------------------------


def test_split_queries_exchange_nothing(kata):
    assert kata.exchange_bytes("q", Br=64, d=64, warps=4) == 0
    assert kata.exchange_bytes("k", Br=64, d=64, warps=1) == 0


def test_split_keys_exchange_outputs_and_statistics(kata):
    # 4 warps x 64 rows x (64 outputs, a maximum, a sum) x 4 bytes, there and back
    assert kata.exchange_bytes("k", Br=64, d=64, warps=4) == 135_168
    # 2 warps x 128 rows x (32 + 2) numbers x 4 bytes, there and back
    assert kata.exchange_bytes("k", Br=128, d=32, warps=2) == 69_632


# ---- bad input -----------------------------------------------------------------------------


@pytest.mark.parametrize("version", [-1, 0, 3])
def test_other_versions_are_refused(kata, version):
    with pytest.raises(ValueError, match="version"):
        kata.work_tiles(version, 1, 1, 4, 4, 2, 2)


@pytest.mark.parametrize("n_slots", [0, -1])
def test_no_slots_are_refused(kata, n_slots):
    with pytest.raises(ValueError, match="n_slots"):
        kata.assign(tiles_of(kata, 1), n_slots)


@pytest.mark.parametrize("warps", [1, 4])
def test_other_splits_are_refused(kata, warps):
    with pytest.raises(ValueError, match="split"):
        kata.exchange_bytes("v", Br=64, d=64, warps=warps)
