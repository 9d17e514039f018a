"""Each sequence finds its own tokens, in as few blocks as hold them, whoever forks and ends."""

import random
from time import perf_counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

IDS = st.integers(0, 5)
CALLS = st.one_of(
    st.tuples(st.just("append"), IDS),
    st.tuples(st.just("allocate"), IDS, st.integers(1, 9)),
    st.tuples(st.just("fork"), IDS, IDS),
    st.tuples(st.just("free"), IDS),
)


@pytest.fixture
def ledger(kata, oracle):
    """A manager under test, and what it should say, kept in lists."""
    return lambda n_blocks, block_size: oracle.Ledger(kata, n_blocks, block_size)


# ---- one sequence ----------------------------------------------------------------------------


@pytest.mark.parametrize(("n_tokens", "blocks"), [(1, 1), (4, 1), (5, 2), (40, 10)])
def test_a_sequence_gets_as_few_blocks_as_hold_it(kata, n_tokens, blocks):
    manager = kata.BlockManager(n_blocks=10, block_size=4)
    manager.allocate(7, n_tokens)
    assert manager.n_free == 10 - blocks
    assert len(set(manager.block_table(7))) == blocks


def test_a_slot_is_block_times_size_plus_offset(kata):
    manager = kata.BlockManager(n_blocks=10, block_size=4)
    manager.allocate("other", 3)
    manager.allocate("mine", 6)
    first, second = manager.block_table("mine")
    expected = [first * 4, first * 4 + 1, first * 4 + 2, first * 4 + 3, second * 4, second * 4 + 1]
    slots = manager.slot_mapping("mine")
    assert slots.tolist() == expected
    assert slots.dtype == np.int64
    assert manager.append("mine") == (second * 4 + 2, None)


def test_slots_may_be_past_31_bits(kata):
    manager = kata.BlockManager(n_blocks=5, block_size=1 << 30)
    for seq in range(5):
        manager.allocate(seq, 1)
    slots = sorted(manager.slot_mapping(seq).item() for seq in range(5))
    assert slots == [block << 30 for block in range(5)]


def test_a_full_last_block_is_followed_by_another(kata):
    manager = kata.BlockManager(n_blocks=3, block_size=4)
    manager.allocate(0, 4)
    (first,) = manager.block_table(0)
    slot, copy = manager.append(0)
    assert copy is None
    assert manager.block_table(0) == [first, slot // 4]
    assert slot % 4 == 0
    assert manager.n_free == 1


def test_what_was_returned_is_the_caller_s(kata):
    manager = kata.BlockManager(n_blocks=4, block_size=2)
    manager.allocate(0, 3)
    table, slots = manager.block_table(0), manager.slot_mapping(0)
    kept = [*table]
    manager.append(0)
    manager.append(0)
    assert table == kept, "a table that was returned has changed"
    table.clear()
    slots[:] = 99
    assert manager.block_table(0)[:2] == kept
    assert manager.slot_mapping(0)[0] == kept[0] * 2


def test_ids_are_told_apart(kata):
    ids = [1, "1", (1,), "", (), None]
    manager = kata.BlockManager(n_blocks=7, block_size=2)
    for seq in ids:
        manager.allocate(seq, 1)
    manager.fork(1, "(1,)")
    tables = [manager.block_table(seq) for seq in ids]
    assert len({block for table in tables for block in table}) == 6
    for seq in [*ids, "(1,)"]:
        manager.append(seq)
        assert len(manager.slot_mapping(seq)) == 2, f"tokens of {seq!r}"
        manager.free(seq)
    assert manager.n_free == 7


# ---- sharing ---------------------------------------------------------------------------------


def test_a_fork_takes_no_blocks(kata):
    manager = kata.BlockManager(n_blocks=4, block_size=4)
    manager.allocate(0, 15)
    manager.fork(0, 1)
    assert manager.n_free == 0
    assert manager.block_table(1) == manager.block_table(0)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["parent first", "child first"])
def test_of_two_that_share_a_block_one_copies_it(kata, order):
    manager = kata.BlockManager(n_blocks=4, block_size=4)
    manager.allocate(0, 6)
    manager.fork(0, 1)
    shared = manager.block_table(0)[1]
    slot, copy = manager.append(order[0])
    assert copy == (shared, slot // 4)
    assert slot // 4 != shared
    assert manager.append(order[1]) == (shared * 4 + 2, None)  # it has the block to itself now
    assert manager.n_free == 1


def test_a_full_block_is_shared_for_good(kata):
    manager = kata.BlockManager(n_blocks=4, block_size=4)
    manager.allocate(0, 8)
    manager.fork(0, 1)
    assert [manager.append(seq).copy for seq in (0, 1)] == [None, None]
    assert manager.block_table(0)[:2] == manager.block_table(1)[:2]


def test_a_fork_of_a_fork_copies_while_anybody_shares(ledger):
    book = ledger(n_blocks=6, block_size=4)
    book.allocate("a", 6)
    book.fork("a", "b")
    book.fork("b", "c")
    assert book.append("b").copy is not None
    book.fork("b", "d")
    copies = [book.append(seq).copy is not None for seq in ("c", "a", "d", "b", "a")]
    assert copies == [True, False, True, False, False]


def test_who_is_left_alone_with_a_block_writes_to_it(ledger):
    book = ledger(n_blocks=2, block_size=4)
    book.allocate(0, 6)
    book.fork(0, 1)
    book.free(0)
    book.append(1)  # without a copy: there is no free block for one
    assert book.manager.n_free == 0


def test_attention_over_slots_is_attention_over_a_contiguous_cache(kata, oracle, seed):
    rng = np.random.default_rng(seed)
    manager = kata.BlockManager(n_blocks=8, block_size=4)
    pool = rng.standard_normal((2, 8 * 4, 16))
    manager.allocate("parent", 6)
    pool[:, manager.slot_mapping("parent")] = prompt = rng.standard_normal((2, 6, 16))
    manager.fork("parent", "child")
    for seq in ("parent", "child"):
        own = rng.standard_normal((2, 5, 16))
        for at in range(5):
            slot, copy = manager.append(seq)
            if copy is not None:
                source, destination = (slice(4 * block, 4 * block + 4) for block in copy)
                pool[:, destination] = pool[:, source]
            pool[:, slot] = own[:, at]
        contiguous = np.concatenate([prompt, own], axis=1)
        if seq == "parent":
            parent = contiguous
    query = rng.standard_normal(16)
    for seq, (keys, values) in (("parent", parent), ("child", contiguous)):
        found = oracle.attention(query, *pool[:, manager.slot_mapping(seq)])
        expected = oracle.attention(query, keys, values)
        assert np.array_equal(found, expected), f"{seq} attends to tokens that are not its own"


# ---- the end of a sequence, the end of the pool ----------------------------------------------


def test_freed_in_any_order_all_blocks_come_back(ledger, seed):
    rng = random.Random(seed)
    for _ in range(10):
        book = ledger(n_blocks=12, block_size=2)
        book.allocate(0, 5)
        for child in range(1, 5):
            book.fork(rng.randrange(child), child)
            book.append(rng.randrange(child + 1))
        for seq in rng.sample(range(5), 5):
            book.free(seq)
        assert book.manager.n_free == 12


def test_the_pool_may_be_filled_to_the_last_slot(ledger):
    book = ledger(n_blocks=3, block_size=4)
    book.allocate(0, 11)
    book.append(0)
    assert book.manager.n_free == 0
    book.free(0)
    book.allocate(0, 12)
    assert book.manager.n_free == 0


def test_a_sequence_that_does_not_fit_leaves_no_trace(kata):
    manager = kata.BlockManager(n_blocks=3, block_size=4)
    manager.allocate(0, 4)
    with pytest.raises(kata.OutOfBlocks):
        manager.allocate(1, 9)
    assert manager.n_free == 2
    manager.allocate(1, 8)  # its id is free, and so are both blocks
    assert manager.n_free == 0


def test_a_token_that_does_not_fit_leaves_no_trace(ledger):
    book = ledger(n_blocks=2, block_size=2)
    book.allocate(0, 2)
    book.allocate(1, 2)
    book.append(0)  # refused, and so again
    book.append(0)
    book.free(1)
    assert book.append(0).slot % 2 == 0
    assert book.append(0).slot % 2 == 1


def test_a_copy_that_does_not_fit_leaves_no_trace(ledger):
    book = ledger(n_blocks=2, block_size=2)
    book.allocate(0, 1)
    book.fork(0, 1)
    book.allocate(2, 1)
    book.append(1)  # refused
    book.free(2)
    assert book.append(1).copy is not None
    assert book.append(0).copy is None


# ---- bad input -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["append", "free", "block_table", "slot_mapping"])
def test_an_unknown_sequence_is_refused(kata, name):
    manager = kata.BlockManager(n_blocks=3, block_size=4)
    manager.allocate(12, 4)
    with pytest.raises(KeyError, match="17"):
        getattr(manager, name)(17)


def test_a_fork_needs_a_parent(kata):
    manager = kata.BlockManager(n_blocks=3, block_size=4)
    with pytest.raises(KeyError, match="17"):
        manager.fork(17, 12)
    manager.allocate(12, 4)  # which nothing has taken


def test_a_sequence_is_freed_once(kata):
    manager = kata.BlockManager(n_blocks=3, block_size=4)
    manager.allocate(17, 4)
    manager.free(17)
    with pytest.raises(KeyError, match="17"):
        manager.free(17)
    assert manager.n_free == 3


def test_an_id_in_use_is_refused(kata):
    manager = kata.BlockManager(n_blocks=4, block_size=4)
    manager.allocate(12, 4)
    manager.allocate(17, 5)
    with pytest.raises(ValueError, match="17"):
        manager.allocate(17, 1)
    with pytest.raises(ValueError, match="17"):
        manager.fork(12, 17)
    with pytest.raises(ValueError, match="17"):
        manager.fork(17, 17)
    assert len(manager.block_table(17)) == 2
    assert manager.n_free == 1


@pytest.mark.parametrize("n_tokens", [0, -1])
def test_a_sequence_without_tokens_is_refused(kata, n_tokens):
    manager = kata.BlockManager(n_blocks=4, block_size=4)
    with pytest.raises(ValueError, match="n_tokens"):
        manager.allocate(0, n_tokens)
    manager.allocate(0, 1)


@pytest.mark.parametrize("name", ["n_blocks", "block_size"])
def test_a_pool_without_slots_is_refused(kata, name):
    with pytest.raises(ValueError, match=name):
        kata.BlockManager(**{"n_blocks": 4, "block_size": 4, name: 0})


# ---- any history -----------------------------------------------------------------------------


@given(
    n_blocks=st.integers(1, 10),
    block_size=st.integers(1, 4),
    calls=st.lists(CALLS, max_size=60),
)
def test_any_history_leaves_everybody_their_own_tokens(kata, oracle, n_blocks, block_size, calls):
    book = oracle.Ledger(kata, n_blocks, block_size)
    for name, *arguments in calls:
        getattr(book, name)(*arguments)


@pytest.mark.parametrize("block_size", [1, 4])
def test_a_long_life_leaks_nothing(ledger, oracle, seed, block_size):
    book = ledger(n_blocks=48 // block_size, block_size=block_size)
    oracle.random_calls(book, seed, 5_000)
    for seq in [*book.tokens]:
        book.free(seq)
    assert book.manager.n_free == 48 // block_size


# ---- waste -----------------------------------------------------------------------------------


def test_waste_counts_each_block_once(kata):
    manager = kata.BlockManager(n_blocks=10, block_size=4)
    assert manager.waste() == 0.0
    manager.allocate(0, 5)  # 3 of 8 slots are empty
    assert manager.waste() == pytest.approx(3 / 8)
    manager.fork(0, 1)  # the same blocks
    assert manager.waste() == pytest.approx(3 / 8)
    manager.append(0)  # a copy: 2 empty slots here, 3 there, in 3 blocks
    assert manager.waste() == pytest.approx(5 / 12)
    manager.allocate(2, 8)
    assert manager.waste() == pytest.approx(5 / 20)
    for seq in (1, 2, 0):
        manager.free(seq)
    assert manager.waste() == 0.0


def test_waste_agrees_with_a_count_of_slots(ledger, oracle, seed):
    book = ledger(n_blocks=12, block_size=4)
    for step in range(40):
        oracle.random_calls(book, seed + step, 10)
        assert book.manager.waste() == pytest.approx(book.waste())


# ---- cost ------------------------------------------------------------------------------------


def test_a_chat_wastes_less_than_a_block_each(kata, oracle, cost):
    cost.check("waste", oracle.chat_waste(kata))


def test_forks_that_write_copy_one_block_each(kata, cost):
    manager = kata.BlockManager(n_blocks=100, block_size=16)
    manager.allocate(0, 200)
    for child in range(1, 41):
        manager.fork(child // 2, child)
    writes = [manager.append(seq) for _ in range(20) for seq in range(41)]
    cost.check("block_copies", sum(write.copy is not None for write in writes))


def test_an_append_takes_a_few_lines(kata, lines, cost):
    manager = kata.BlockManager(n_blocks=1_000, block_size=16)
    manager.allocate(0, 500)
    for child in range(1, 200):
        manager.fork(0, child)
    with lines(limit=1_000_000) as counted:
        for _ in range(5_000):
            manager.append(0)
    cost.check("lines_per_append", counted.lines / 5_000)


def turnover_s(kata, n_blocks):
    """Best time of what a busy manager does, half of its blocks held by one sequence."""
    manager = kata.BlockManager(n_blocks, block_size=2)
    manager.allocate("long", n_blocks)
    times = []
    for _ in range(15):
        start_s = perf_counter()
        for seq in range(20):
            manager.allocate(seq, min(7, manager.n_free))
            manager.fork(seq, -1 - seq)
            manager.append(seq)
            manager.append("long")
            manager.free(seq)
            manager.free(-1 - seq)
        times.append(perf_counter() - start_s)
    return min(times)


def test_a_large_pool_is_as_fast_as_a_small_one(kata, cost):
    small_s = turnover_s(kata, 1 << 9)
    growth = turnover_s(kata, 1 << 14) / small_s
    if growth < 10:  # whoever goes through the pool for each block would not come to an end
        growth = turnover_s(kata, 1 << 18) / small_s
    cost.check("growth", growth)
