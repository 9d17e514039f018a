"""Which documents share a row, what each position holds, and a loss that no neighbour changes."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

REORDERED = 1e-11  # relative: float64, sums in another order


def check(what, found, expected):
    assert found == expected, f"{what}: {found}, expected {expected}"


# ---- bins ----------------------------------------------------------------------------------


def test_by_hand(kata):
    # 7 opens bin 0, 6 opens 1; 3 of the rooms 3 and 4 takes 3; the first 2 takes 4 and leaves 2
    lengths = [2, 7, 0, 3, 6, 2, 9]
    check(f"pack({lengths}, 10)", kata.pack(lengths, 10), [[6], [1, 3], [4, 0, 5]])
    check("lengths after the call", lengths, [2, 7, 0, 3, 6, 2, 9])


@given(
    lengths=st.lists(st.integers(0, 12), max_size=30),
    capacity=st.integers(12, 24),
)
@example([5, 5, 5, 5], 10)  # exact fits: two bins
@example([6, 6, 4, 4, 4], 10)  # equal rooms: the bin opened first
@example([4, 7, 4, 7, 3, 3], 12)  # equal lengths: the first of them
@example([12], 12)
@example([0, 0], 12)
@example([], 12)
def test_each_goes_where_the_least_room_is_enough(kata, oracle, lengths, capacity):
    expected = oracle.best_fit(lengths, capacity)
    check(f"pack({lengths}, {capacity})", kata.pack(lengths, capacity), expected)


@pytest.mark.parametrize("dtype", ["uint8", "int16", "int32", "int64"])
def test_lengths_may_be_narrow_integers(kata, oracle, dtype):
    # 200 + 200 is no uint8, and 70,000 none either, nor an int16
    lengths = np.array([120, 3, 127, 90, 0, 127], dtype=dtype)
    if dtype == "uint8":
        lengths[:4] += 100
    before = lengths.copy()
    found = kata.pack(lengths, 70_000)
    check(f"pack({lengths}, 70000)", found, [[int(at) for at in oracle.best_fit(lengths, 999)[0]]])
    assert all(type(index) is int for held in found for index in held), (
        f"pack(…): {found}, expected indices of type int"
    )
    assert np.array_equal(lengths, before), "pack(…) wrote to lengths"


def test_lengths_of_documents_fill_their_bins(kata, oracle, cost, seed):
    lengths, capacity = oracle.lognormal(5000, seed, 2048), 2048
    bins = kata.pack(lengths, capacity)
    check("all samples", sorted(index for held in bins for index in held), list(range(5000)))
    cost.check("bins", len(bins) / oracle.least_bins(lengths, capacity))


def test_a_bin_is_not_searched_for(kata, oracle, lines, cost):
    lengths = oracle.lognormal(5000, 0, 2048).tolist()
    with lines(limit=1_000_000) as counted:
        kata.pack(lengths, 2048)
    cost.check("lines", counted.lines / len(lengths))


# ---- efficiency ----------------------------------------------------------------------------


def test_efficiency_is_the_share_of_positions_with_a_token(kata):
    lengths = [2, 7, 0, 3, 6, 2, 9]
    check("[[1, 3], [4, 0]]", kata.packing_efficiency([[1, 3], [4, 0]], lengths, 10), 18 / 20)
    check("no bins", kata.packing_efficiency([], lengths, 10), 1.0)
    narrow = np.array([200, 100], dtype=np.uint8)
    check(f"of {narrow}", kata.packing_efficiency([[0, 1]], narrow, 400), 0.75)


# ---- batches -------------------------------------------------------------------------------

FIELDS = ("input_ids", "labels", "position_ids", "seq_id")


def batch_of(kata, bins, samples, capacity, **options):
    made = [kata.Sample(tokens=tokens, prompt=prompt) for tokens, prompt in samples]
    return kata.collate(bins, made, capacity, **options)


def test_a_batch_by_hand(kata):
    samples = [([5, 6, 7], 0), ([8, 9, 10, 11], 2), ([3], 0), ([1, 2, 3, 4], 4)]
    batch = batch_of(kata, [[1, 0], [2, 3]], samples, 8)
    expected = {
        "input_ids": [[8, 9, 10, 11, 5, 6, 7, 0], [3, 1, 2, 3, 4, 0, 0, 0]],
        "labels": [[-100, 10, 11, -100, 6, 7, -100, -100], [-100] * 8],
        "position_ids": [[0, 1, 2, 3, 0, 1, 2, 0], [0, 0, 1, 2, 3, 0, 1, 2]],
        "seq_id": [[1, 1, 1, 1, 0, 0, 0, -1], [2, 3, 3, 3, 3, -1, -1, -1]],
        "cu_seqlens": [0, 4, 7, 8, 9, 13, 16],
    }
    for field, rows in expected.items():
        check(field, getattr(batch, field).tolist(), rows)
    check("max_seqlen", batch.max_seqlen, 4)


def test_dtypes_are_those_of_the_brief(kata):
    batch = batch_of(kata, [[0]], [(np.arange(3, dtype=np.int16), 0)], 4)
    for field in FIELDS:
        check(f"{field}.dtype", getattr(batch, field).dtype, np.dtype(np.int64))
    check("cu_seqlens.dtype", batch.cu_seqlens.dtype, np.dtype(np.int32))
    check("type of max_seqlen", type(batch.max_seqlen), int)
    long = batch_of(kata, [[0]], [([7, 8], 0)], 70_000)  # not in 16 bits
    check("cu_seqlens of a long row", long.cu_seqlens.tolist(), [0, 2, 70_000])
    check("the last position of a long row", int(long.position_ids[0, -1]), 69_997)


@st.composite
def documents(draw):
    """Documents in bins, some in none, in no order; a bin may be empty, or full."""
    capacity = draw(st.integers(1, 9))
    samples, bins = [], []
    for _ in range(draw(st.integers(0, 3))):
        held, room = [], capacity
        for _ in range(draw(st.integers(0, 3))):
            if room:
                tokens = draw(st.lists(st.integers(0, 2**40), min_size=1, max_size=room))
                samples.append((tokens, draw(st.integers(0, len(tokens)))))
                held.append(len(samples) - 1)
                room -= len(tokens)
        bins.append(held)
    return capacity, samples, bins[::-1]


@given(documents(), st.sampled_from([-100, -1, 2**33]))
@example((4, [([1, 2, 3, 4], 0), ([5, 6], 1), ([7, 8], 2)], [[0], [2, 1]]), -100)  # both full
@example((3, [], [[], []]), -100)
@example((2, [([2**53 + 1, 2**63 - 1], 0)], [[0]]), -(2**63))  # no floats
@example((3, [([9], 0)], []), -100)
def test_each_position_is_of_one_document(kata, oracle, drawn, ignore):
    capacity, samples, bins = drawn
    told = f"collate({bins}, {samples}, {capacity}, {ignore})"
    batch = batch_of(kata, bins, samples, capacity, ignore=ignore)
    made = [kata.Sample(tokens=tokens, prompt=prompt) for tokens, prompt in samples]
    rows = oracle.rows(bins, made, capacity, ignore)
    for at, field in enumerate(FIELDS):
        found = getattr(batch, field)
        check(f"{told}.{field}.shape", found.shape, (len(bins), capacity))
        check(f"{told}.{field}", found.tolist(), [[entry[at] for entry in row] for row in rows])
    starts = [
        row * capacity + at
        for row, entries in enumerate(rows)
        for at, entry in enumerate(entries)
        if entry[2] == 0
    ]
    ends = [*starts, len(bins) * capacity]
    check(f"{told}.cu_seqlens", batch.cu_seqlens.tolist(), ends)
    longest = max((end - start for start, end in pairwise(ends)), default=0)
    check(f"{told}.max_seqlen", batch.max_seqlen, longest)


# ---- what a model makes of it --------------------------------------------------------------


def drawn_samples(kata, seed):
    draw = np.random.default_rng(seed)
    lengths = [5, 1, 7, 3, 6, 2, 4]
    prompts = [2, 0, 0, 3, 1, 1, 0]
    return [
        kata.Sample(tokens=draw.integers(0, 11, length), prompt=prompt)
        for length, prompt in zip(lengths, prompts, strict=True)
    ]


def test_the_loss_is_that_of_documents_alone(kata, oracle, seed):
    samples, model = drawn_samples(kata, seed), oracle.Model(11, 12, seed)
    before = [sample.tokens.copy() for sample in samples]
    batch = kata.collate([[2, 0], [4, 6, 1], [3, 5]], samples, 12)
    visible = kata.block_diag_mask(batch.seq_id)
    total, targets = 0.0, 0
    for row in range(3):
        losses = model.losses(batch.input_ids[row], batch.position_ids[row], visible[row])
        assert np.isfinite(losses).all(), f"row {row}: losses {losses}, expected finite ones"
        (kept,) = np.nonzero(batch.labels[row] != -100)
        total += losses[kept, batch.labels[row, kept]].sum()
        targets += len(kept)
    alone = [model.alone(sample) for sample in samples]
    check("targets", targets, sum(count for _, count in alone))
    expected = pytest.approx(sum(loss for loss, _ in alone), rel=REORDERED)
    check("sum of the losses", float(total), expected)
    assert all(
        np.array_equal(sample.tokens, old) for sample, old in zip(samples, before, strict=True)
    ), "collate(…) wrote to the tokens of a sample"


def test_segments_are_those_of_the_mask(kata, seed):
    samples = drawn_samples(kata, seed)
    batch = kata.collate([[2, 0], [4, 6, 1], [3, 5]], samples, 12)
    bounds = batch.cu_seqlens.tolist()
    for causal in (True, False):
        expected = np.zeros((36, 36), dtype=bool)
        for start, end in pairwise(bounds):
            expected[start:end, start:end] = np.tri(end - start) if causal else 1
        found = kata.block_diag_mask(batch.seq_id, causal)
        for row in range(3):
            part = slice(12 * row, 12 * row + 12)
            assert np.array_equal(found[row], expected[part, part]), (
                f"block_diag_mask({batch.seq_id[row].tolist()}, {causal}):\n"
                f"{found[row].astype(int)}, expected\n{expected[part, part].astype(int)}"
            )


def test_a_mask_by_hand(kata):
    mask = kata.block_diag_mask(np.array([[4, 4, 1, -1, -1]]))
    check("dtype", mask.dtype, np.dtype(bool))
    expected = ["10000", "11000", "00100", "00010", "00011"]
    check("mask", ["".join(map(str, row)) for row in mask[0].astype(int).tolist()], expected)
    check("shape of no rows", kata.block_diag_mask(np.zeros((0, 3), np.int64)).shape, (0, 3, 3))


# ---- bad input -----------------------------------------------------------------------------


def test_bad_lengths_are_refused(kata):
    for lengths in ([3, -1], [11, 2], np.array([2, -1], np.int8)):
        with pytest.raises(ValueError, match="^lengths: "):
            kata.pack(lengths, 10)
    for capacity in (0, -4):
        with pytest.raises(ValueError, match="^capacity: "):
            kata.pack([], capacity)
        with pytest.raises(ValueError, match="^capacity: "):
            kata.collate([], [], capacity)


@pytest.mark.parametrize(
    "bins", [[[0, 1, 2]], [[0], [1, 0]], [[1, 1]], [[3]], [[-1]]],
    ids=["too many tokens", "in two bins", "twice in one", "past the end", "negative"],
)  # fmt: skip
def test_bad_bins_are_refused(kata, bins):
    with pytest.raises(ValueError, match="^bins: "):
        batch_of(kata, bins, [([1, 2], 0), ([3], 0), ([4], 0)], 3)


@pytest.mark.parametrize("prompt", [-1, 3])
def test_a_prompt_is_part_of_its_document(kata, prompt):
    with pytest.raises(ValueError, match="^samples: "):
        batch_of(kata, [], [([1, 2], prompt)], 3)
