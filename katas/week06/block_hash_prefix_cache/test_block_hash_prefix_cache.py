"""Blocks are found by whole prefixes and forgotten tail first; requests are put in a good order."""

import random
from itertools import pairwise, product
from time import perf_counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

IDS = st.integers(0, 4)
CALLS = st.one_of(
    st.tuples(st.just("append"), IDS, st.integers(0, 1)),
    st.tuples(st.just("allocate"), IDS, st.lists(st.integers(0, 1), min_size=1, max_size=9)),
    st.tuples(st.just("free"), IDS),
)
HASHES = ["its own", "remainder", "constant"]


@pytest.fixture
def ledger(kata, oracle):
    """A manager under test, beside one that keeps lists and hashes nothing."""

    def make(n_blocks, block_size, hashes="its own"):
        colliding = {
            "its own": {},
            "remainder": {"hash_fn": lambda *block: kata.block_hash(*block) % 3},
            "constant": {"hash_fn": lambda *_: 7},
        }
        return oracle.Ledger(kata, n_blocks, block_size, **colliding[hashes])

    return make


# ---- what is found ---------------------------------------------------------------------------


def test_only_full_blocks_are_found(kata):
    manager = kata.PrefixBlockManager(n_blocks=8, block_size=4)
    assert manager.allocate(0, [1, 2, 3, 4, 5, 6, 7]) == 0
    assert manager.allocate(1, [1, 2, 3, 4, 5, 6, 7, 8]) == 4
    assert manager.allocate(2, [1, 2, 3]) == 0
    first, second = manager.block_table(0), manager.block_table(1)
    assert first[0] == second[0]
    assert first[1] != second[1]


def test_a_prompt_that_is_cached_whole_computes_its_last_block(kata):
    manager = kata.PrefixBlockManager(n_blocks=8, block_size=4)
    prompt = [1, 2, 3, 4, 5, 6, 7, 8]
    manager.allocate(0, prompt)
    assert manager.allocate(1, prompt) == 4
    assert manager.block_table(1)[1] != manager.block_table(0)[1]
    assert manager.allocate(2, [*prompt, 9]) == 8


def test_the_same_block_after_another_prefix_is_not_found(kata):
    manager = kata.PrefixBlockManager(n_blocks=8, block_size=2)
    manager.allocate(0, [1, 1, 5, 6, 0])
    assert manager.allocate(1, [2, 2, 5, 6, 0]) == 0
    assert manager.allocate(2, [5, 6, 0]) == 0


def test_what_a_sequence_generates_is_found(kata):
    manager = kata.PrefixBlockManager(n_blocks=8, block_size=2)
    manager.allocate(0, [1])
    for token in (2, 3, 4, 5):
        manager.append(0, token)
    assert manager.allocate(1, [1, 2, 3, 4, 5, 6]) == 4
    assert manager.block_table(1)[:2] == manager.block_table(0)[:2]


@pytest.mark.parametrize("hashes", HASHES)
def test_an_adapter_or_an_image_keeps_its_blocks_to_itself(ledger, hashes):
    book = ledger(12, 2, hashes)
    for seq, extra in enumerate([(), ("lora 1",), ("lora 2",), ("lora 1",), ()]):
        book.allocate(seq, [1, 1, 2, 2, 3], extra)
        book.append(seq, 3)
    assert book.allocate(9, [1, 1, 2, 2, 3, 3, 4], ("lora 2",)) == 6  # what it appended, too


def test_a_collision_is_not_a_hit(kata):
    manager = kata.PrefixBlockManager(n_blocks=12, block_size=2, hash_fn=lambda *_: 0)
    manager.allocate(0, [1, 2, 3, 4, 0])
    assert manager.allocate(1, [5, 6, 3, 4, 0]) == 0
    assert manager.allocate(2, [1, 2, 3, 5, 0]) == 2


def test_a_collision_of_parents_is_not_a_hit(kata):
    def forgets_the_first(parent_hash, tokens, extra):
        return 0 if parent_hash is None else kata.block_hash(parent_hash, tokens, extra)

    manager = kata.PrefixBlockManager(n_blocks=12, block_size=2, hash_fn=forgets_the_first)
    manager.allocate(0, [1, 2, 3, 4, 0])
    manager.allocate(1, [5, 6, 0])
    assert manager.allocate(2, [5, 6, 3, 4, 0]) == 2  # not 4: those follow 1, 2


def test_of_equal_blocks_the_one_filled_first_is_found(kata):
    manager = kata.PrefixBlockManager(n_blocks=8, block_size=2)
    for seq in range(3):
        manager.allocate(seq, [1, 2])  # each computes a block of its own
    assert manager.allocate(3, [1, 2, 3]) == 2
    assert manager.block_table(3)[0] == manager.block_table(0)[0]


def test_an_equal_block_is_found_when_the_first_is_gone(ledger):
    book = ledger(n_blocks=3, block_size=2)
    book.allocate(0, [1, 2])
    book.allocate(1, [1, 2])
    book.free(0)
    book.allocate(2, [7, 8, 9])  # the third block, and that of sequence 0
    book.free(2)
    assert book.allocate(3, [1, 2, 3]) == 2


# ---- held, free, forgotten -------------------------------------------------------------------


def test_a_shared_block_stays_until_its_last_holder_leaves(kata):
    manager = kata.PrefixBlockManager(n_blocks=4, block_size=2)
    manager.allocate(0, [1, 2, 3])
    manager.allocate(1, [1, 2, 4])
    assert manager.n_free == 1
    manager.free(0)
    assert manager.n_free == 2
    manager.free(1)
    assert manager.n_free == 4


def test_a_freed_block_is_found_until_it_is_handed_out(kata):
    manager = kata.PrefixBlockManager(n_blocks=3, block_size=2)
    manager.allocate(0, [1, 2, 3])
    manager.free(0)
    assert manager.n_free == 3
    assert manager.allocate(1, [1, 2, 4]) == 2
    assert manager.n_free == 1
    manager.free(1)
    manager.allocate(2, [7, 7, 8, 8, 9])  # all three
    manager.free(2)
    assert manager.allocate(3, [1, 2, 3]) == 0


def test_new_blocks_are_handed_out_in_order(kata):
    manager = kata.PrefixBlockManager(n_blocks=5, block_size=2)
    manager.allocate(0, [1, 2, 3])
    manager.allocate(1, [4])
    assert manager.block_table(0) == [0, 1]
    assert manager.block_table(1) == [2]


def test_the_tail_of_a_sequence_is_forgotten_before_its_head(ledger):
    book = ledger(n_blocks=4, block_size=2)
    prompt = [1, 1, 2, 2, 3, 3, 4]
    book.allocate(0, prompt)
    book.free(0)
    book.allocate(1, [9])  # in place of the 4
    book.free(1)
    for found in (6, 4, 2):
        assert book.allocate(0, prompt) == found
        book.free(0)
        book.allocate("a", [9] * (10 - found))
        book.free("a")


def test_who_was_freed_first_is_forgotten_first(ledger):
    book = ledger(n_blocks=4, block_size=2)
    for seq in (5, 3, 4, 1):
        book.allocate(seq, [seq, seq])
    for seq in (4, 5, 1, 3):
        book.free(seq)
    book.allocate(0, [5, 5, 0])  # found, so the block of 4 goes
    book.allocate(2, [0])  # the block of 1
    book.free(0)
    book.free(2)
    assert book.allocate(9, [3, 3, 0]) == 2


def test_what_is_found_is_not_handed_out_as_new(ledger):
    book = ledger(n_blocks=3, block_size=2)
    book.allocate(0, [1, 2])
    book.free(0)
    book.allocate(1, [8, 8, 8])  # the blocks that never were used: block 0 is the next one
    book.free(1)
    assert book.allocate(2, [1, 2, 3, 4, 5]) == 2


def test_a_block_handed_out_anew_forgets_even_before_it_is_full(ledger):
    book = ledger(n_blocks=2, block_size=2)
    book.allocate(0, [1, 2, 3, 4])
    book.free(0)
    book.allocate(1, [1])
    assert book.manager.allocate(2, [1, 2]) == 0


def test_the_pool_may_be_filled_to_the_last_slot(ledger):
    book = ledger(n_blocks=3, block_size=2)
    book.allocate(0, [1, 2, 3, 4, 5])
    book.append(0, 6)
    assert book.manager.n_free == 0
    book.free(0)
    assert book.allocate(1, [1, 2, 3, 4, 5, 6]) == 4
    assert book.manager.n_free == 0


def test_found_blocks_that_are_free_are_no_room(ledger):
    book = ledger(n_blocks=4, block_size=2)
    book.allocate(0, [1, 2, 3, 4])
    book.free(0)
    book.allocate(1, [9])
    book.allocate(2, [8, 8])
    # two are free, of which one is found: three blocks are too many
    assert book.allocate(3, [1, 2, 3, 4, 5]) is None
    assert book.allocate(3, [1, 2, 3]) == 2


def test_a_prompt_that_does_not_fit_leaves_the_queue_as_it_was(ledger):
    book = ledger(n_blocks=4, block_size=2)
    book.allocate(0, [1, 2])
    book.allocate(1, [3, 4])
    book.allocate(2, [5, 6])
    for seq in (0, 1, 2):
        book.free(seq)
    book.allocate(3, [9])
    assert book.allocate(4, [1, 2, *range(20)]) is None  # refused, and block 0 stays the next one
    book.allocate(5, [7])
    assert book.allocate(6, [3, 4, 0]) == 2


def test_a_token_that_does_not_fit_leaves_no_trace(ledger):
    book = ledger(n_blocks=2, block_size=2)
    book.allocate(0, [1, 2])
    book.allocate(1, [3, 4])
    book.append(0, 5)  # refused
    book.append(0, 5)
    book.free(1)
    book.append(0, 6)
    book.append(0, 7)
    assert book.manager.n_free == 0


class NoHashError(Exception):
    pass


@pytest.mark.parametrize("block_size", [1, 2])
def test_a_hash_that_fails_leaves_no_trace(kata, block_size):
    def fails_on_nines(parent_hash, tokens, extra):
        if 9 in tokens:
            raise NoHashError
        return kata.block_hash(parent_hash, tokens, extra)

    def blocks(*tokens):  # each as often as a block has tokens
        return [token for token in tokens for _ in range(block_size)]

    manager = kata.PrefixBlockManager(n_blocks=6, block_size=block_size, hash_fn=fails_on_nines)
    manager.allocate(0, blocks(1, 2))
    manager.free(0)  # queue: 2 3 4 5 1 0
    manager.allocate(0, blocks(3, 4)[:-1])
    held, free = manager.block_table(0), manager.n_free
    with pytest.raises(NoHashError):
        manager.allocate(1, blocks(1, 9, 9))  # the first block is found
    with pytest.raises(NoHashError):
        manager.append(0, 9)
    assert manager.block_table(0) == held
    assert manager.n_free == free
    manager.append(0, 4)
    manager.allocate(1, blocks(5, 6))
    assert manager.block_table(0) == [2, 3]
    assert manager.block_table(1) == [4, 5]
    assert manager.allocate(2, blocks(1, 2)) == block_size
    manager.free(2)
    assert manager.allocate(3, [*blocks(3, 4), 7]) == 2 * block_size


def test_ids_are_told_apart(kata):
    ids = [1, "1", (1,), "", (), None]
    manager = kata.PrefixBlockManager(n_blocks=6, block_size=2)
    for seq in ids:
        manager.allocate(seq, [5])
    assert [manager.block_table(seq) for seq in ids] == [[at] for at in range(6)]
    for seq in ids:
        manager.free(seq)
    assert manager.n_free == 6


def test_what_is_the_caller_s_stays_so(kata):
    manager = kata.PrefixBlockManager(n_blocks=6, block_size=2)
    prompt = [1, 2, 3, 4, 5]
    manager.allocate(0, prompt)
    manager.append(0, 6)
    assert prompt == [1, 2, 3, 4, 5]
    prompt[:] = [9] * 5
    table = manager.block_table(0)
    table.clear()
    assert manager.allocate(1, (1, 2, 3, 4, 5, 6, 7)) == 6
    assert len(manager.block_table(0)) == 3


# ---- bad input -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("append", (17, 1)), ("free", (17,)), ("block_table", (17,))],
    ids=["append", "free", "block_table"],
)
def test_an_unknown_sequence_is_refused(kata, name, arguments):
    manager = kata.PrefixBlockManager(n_blocks=3, block_size=4)
    manager.allocate(17, [1])
    manager.free(17)
    with pytest.raises(KeyError, match="17"):
        getattr(manager, name)(*arguments)
    assert manager.n_free == 3


def test_an_id_in_use_is_refused(kata):
    manager = kata.PrefixBlockManager(n_blocks=3, block_size=4)
    manager.allocate(17, [1])
    with pytest.raises(ValueError, match="17"):
        manager.allocate(17, [2])
    assert manager.n_free == 2


def test_an_empty_prompt_is_refused(kata):
    manager = kata.PrefixBlockManager(n_blocks=3, block_size=4)
    with pytest.raises(ValueError, match="tokens"):
        manager.allocate(0, [])
    manager.allocate(0, [1])


@pytest.mark.parametrize("name", ["n_blocks", "block_size"])
def test_a_pool_without_slots_is_refused(kata, name):
    with pytest.raises(ValueError, match=name):
        kata.PrefixBlockManager(**{"n_blocks": 4, "block_size": 4, name: 0})


# ---- any history -----------------------------------------------------------------------------


@given(
    n_blocks=st.integers(1, 8),
    block_size=st.integers(1, 3),
    calls=st.lists(CALLS, max_size=40),
)
def test_any_history_finds_what_a_search_through_lists_finds(
    kata, oracle, n_blocks, block_size, calls
):
    book = oracle.Ledger(kata, n_blocks, block_size)
    for name, *arguments in calls:
        getattr(book, name)(*arguments)


@pytest.mark.parametrize("hashes", HASHES)
@pytest.mark.parametrize("block_size", [1, 3])
def test_a_long_life_finds_what_a_search_through_lists_finds(
    ledger, oracle, seed, block_size, hashes
):
    oracle.random_calls(ledger(24 // block_size, block_size, hashes), seed, 1_700)


@pytest.mark.parametrize("workload", ["few-shot", "multi-turn", "tree of thought", "unrelated"])
def test_a_served_workload_finds_what_a_search_through_lists_finds(ledger, oracle, seed, workload):
    requests = oracle.WORKLOADS[workload](random.Random(seed))
    book = ledger(n_blocks=80, block_size=16)
    for at, tokens in enumerate(requests):
        book.allocate(at, tokens)
        book.append(at, 5)
        if at >= 2:  # two others are still running
            book.free(at - 2)


# ---- hashes ----------------------------------------------------------------------------------


def test_a_hash_tells_parents_tokens_and_extras_apart(kata):
    parents = [None, 0, 1, kata.block_hash(None, [1, 2])]
    tokens = [(), *product(range(3), repeat=1), *product(range(3), repeat=2), (1, 2, 2)]
    extras = [(), (1,), (2,), (1, 2), ("lora",)]
    blocks = [*product(parents, tokens, extras)]
    seen = {}
    for block in blocks:
        hashed = kata.block_hash(*block)
        other = seen.setdefault(hashed, block)
        assert other == block, f"expected two hashes for {other} and {block}, found {hashed} twice"


def test_a_hash_is_the_same_for_equal_blocks(kata):
    assert kata.block_hash(3, [1, 2]) == kata.block_hash(3, (1, 2), ())
    assert kata.block_hash(None, [1, 2], ["a"]) == kata.block_hash(None, (1, 2), ("a",))


def test_a_prompt_is_hashed_block_by_block_each_with_its_parent(kata):
    calls = []

    def recorded(parent_hash, tokens, extra):
        calls.append((parent_hash, tokens, extra))
        return len(calls) * 100 - 100  # the first one is 0, which is not None

    manager = kata.PrefixBlockManager(n_blocks=8, block_size=2, hash_fn=recorded)
    manager.allocate(0, [1, 2, 3, 4, 5], ["lora"])
    assert calls == [(None, (1, 2), ("lora",)), (0, (3, 4), ("lora",))]
    manager.append(0, 6)
    assert calls[2:] == [(100, (5, 6), ("lora",))]


def test_a_token_that_finds_no_room_is_not_hashed(kata):
    calls = []
    manager = kata.PrefixBlockManager(
        n_blocks=1, block_size=1, hash_fn=lambda *block: calls.append(block) or 7
    )
    manager.allocate(0, [1])
    with pytest.raises(kata.OutOfBlocks):
        manager.append(0, 2)
    assert calls == [(None, (1,), ())]


def test_a_prompt_takes_one_hash_a_block(kata, cost):
    calls = []

    def counted(*block):
        calls.append(block)
        return kata.block_hash(*block)

    manager = kata.PrefixBlockManager(n_blocks=1_000, block_size=16, hash_fn=counted)
    prompt = [*range(1_603)]
    taken = []
    for seq, tokens in enumerate([prompt, prompt, prompt[:800] + prompt[:803]]):
        before = len(calls)
        manager.allocate(seq, tokens)
        taken.append(len(calls) - before)
    before = len(calls)
    for token in range(32):
        manager.append(0, token)
    manager.free(0)
    assert len(calls) - before == 2  # one for each block that was filled
    cost.check("hashes", max(taken))


# ---- long prompts ----------------------------------------------------------------------------

LONG = range(1_200)  # Python ends a recursion after 1,000 calls


def test_a_prompt_of_many_blocks_is_found(kata):
    manager = kata.PrefixBlockManager(n_blocks=len(LONG) + 1, block_size=1)
    manager.allocate(0, [*LONG])
    assert manager.allocate(1, [*LONG, 7]) == len(LONG)


def test_long_prompts_are_put_in_order(kata):
    requests = [[*LONG, 7], [5], [*LONG, 8], [*LONG, 7, 7]]
    assert kata.shareable_tokens(requests, 1) == 2 * len(LONG) + 1
    order = kata.order(requests, [[*LONG, 8]])
    assert order[0] == 2
    assert order[3] == 1


# ---- cost ------------------------------------------------------------------------------------


def test_what_is_forgotten_takes_no_memory(kata, host_memory, cost):
    manager = kata.PrefixBlockManager(n_blocks=64, block_size=4)
    with host_memory() as held:
        for seq in range(3_000):
            manager.allocate(seq, [seq, 0, 0, 1, 0, 0, 0, 2, 0])
            manager.free(seq)
    cost.check("memory", held.peak_bytes)


def turnover_s(kata, n_blocks):
    """Best time of finding, growing and freeing prompts from the middle of a queue of blocks."""
    manager = kata.PrefixBlockManager(n_blocks, block_size=2)
    prompts = [[at, *range(14), at] for at in range(n_blocks // 8)]
    for seq, prompt in enumerate(prompts):
        manager.allocate(seq, prompt)
    for seq in range(len(prompts)):
        manager.free(seq)
    times = []
    for _ in range(10):
        start_s = perf_counter()
        for seq in range(20):
            manager.allocate(seq, [*prompts[len(prompts) // 2 + seq], 1])
            manager.append(seq, min(2, manager.n_free))
            manager.free(seq)
        times.append(perf_counter() - start_s)
    return min(times)


def test_a_large_pool_is_as_fast_as_a_small_one(kata, cost):
    small_s = turnover_s(kata, 1 << 9)
    growth = turnover_s(kata, 1 << 12) / small_s
    # whoever goes through the pool for each block would not come to an end with a large one
    growth = turnover_s(kata, 1 << (16 if growth < 3 else 14)) / small_s
    cost.check("growth", growth)


# ---- what could be shared, and in which order ------------------------------------------------


@pytest.mark.parametrize("granularity", [1, 3, 16])
@pytest.mark.parametrize("workload", ["few-shot", "multi-turn", "tree of thought", "unrelated"])
def test_shareable_tokens_are_those_of_the_longest_earlier_prefix(
    kata, oracle, seed, workload, granularity
):
    requests = oracle.WORKLOADS[workload](random.Random(seed))
    expected = oracle.shared(requests, granularity)
    assert kata.shareable_tokens(iter(requests), granularity) == expected


def test_blocks_share_as_much_as_a_radix_tree_where_prefixes_are_whole_blocks(kata, oracle, seed):
    requests = oracle.few_shot(random.Random(seed), shots=160, instructions=32)
    radix = kata.shareable_tokens(requests, 1)
    assert kata.shareable_tokens(requests, 16) == radix
    odd = oracle.few_shot(random.Random(seed), shots=155, instructions=32)
    assert kata.shareable_tokens(odd, 16) < kata.shareable_tokens(odd, 1)


def test_a_granularity_below_one_is_refused(kata):
    with pytest.raises(ValueError, match="granularity"):
        kata.shareable_tokens([[1, 2]], 0)


@pytest.mark.parametrize(("granularity", "shared"), [(1, 5), (2, 4), (3, 3), (5, 5), (6, 0)])
def test_a_request_is_shared_in_whole_units(kata, granularity, shared):
    assert kata.shareable_tokens([[1, 2, 3, 4, 5], [1, 2, 3, 4, 5]], granularity) == shared


def test_units_are_compared_token_by_token(kata):
    assert kata.shareable_tokens([[1, 23], [12, 3]], 2) == 0


def test_equal_requests_are_served_each(kata):
    assert sorted(kata.order([[1, 2], [3], [1, 2], [1, 2]])) == [0, 1, 2, 3]


def test_nothing_to_serve(kata):
    assert kata.order([]) == []
    assert kata.shareable_tokens([], 16) == 0


@pytest.mark.parametrize("workload", ["few-shot", "multi-turn", "tree of thought", "unrelated"])
def test_requests_that_share_a_prefix_are_served_in_a_row(kata, oracle, seed, workload):
    rng = random.Random(seed)
    requests = oracle.WORKLOADS[workload](rng)
    cached = [tokens[: rng.randint(1, len(tokens))] for tokens in rng.sample(requests, 4)]
    for held in ([], cached):
        order = kata.order(requests, held)
        assert sorted(order) == [*range(len(requests))]
        for length in range(1, max(map(len, requests)) + 1):
            prefixes = [tuple(requests[at][:length]) for at in order if len(requests[at]) >= length]
            starts = [prefixes[0], *(b for a, b in pairwise(prefixes) if a != b)]
            torn = [prefix for at, prefix in enumerate(starts) if prefix in starts[:at]]
            assert not torn, (
                f"expected all that begin with {torn[0]} in a row, found them at places "
                f"{[at for at, i in enumerate(order) if tuple(requests[i][:length]) == torn[0]]}"
                f" of {len(order)}"
            )


def test_what_is_cached_is_served_before_it_is_forgotten(kata, oracle, seed):
    rng = random.Random(seed)
    ours = [1, *oracle.tokens_of(rng, 47)]
    theirs = [[first, *oracle.tokens_of(rng, 47)] for first in (0, 2, 1)]
    requests = [prefix + oracle.tokens_of(rng, 4) for prefix in [*theirs, ours, *theirs, ours]]
    order = kata.order(requests, [ours])
    assert sorted(order) == [*range(8)]
    assert order[:2] in ([3, 7], [7, 3])


def test_of_those_that_share_with_the_cache_the_longest_come_first(kata):
    cached = [[5, 5, 5, 5], [9, 1]]
    requests = [[5, 5, 1], [0, 0], [5, 5, 5, 7], [5, 0], [5, 5, 9], [9, 0]]
    order = kata.order(requests, cached)
    place = {at: order.index(at) for at in range(6)}
    told = f"found {[requests[at] for at in order]} | cached: {cached}"
    assert place[2] < min(place[0], place[4]), (
        f"expected 5 5 5 before what leaves it at 5 5, {told}"
    )
    assert max(place[0], place[4]) < place[3], f"expected 5 5 before what leaves it at 5, {told}"
    assert place[1] == 5, f"expected 0 0 last, which shares nothing with the cache, {told}"


def test_no_order_of_a_few_finds_more(kata, oracle, seed):
    rng = random.Random(seed)
    for _ in range(4):
        trunk, left, right = (oracle.tokens_of(rng, 4) for _ in range(3))
        paths = [trunk + left, trunk + right, oracle.tokens_of(rng, 8)]
        requests = [rng.choice(paths) + oracle.tokens_of(rng, 3) for _ in range(5)]
        warm = [rng.choice(paths) + [0]]
        served = [requests[at] for at in kata.order(requests, warm)]
        found = oracle.hits(served, 7, 2, warm)
        assert found == oracle.best_hits(requests, 7, 2, warm), (
            f"requests: {requests}, cached: {warm}"
        )


def test_the_order_finds_what_there_is_to_find(kata, oracle, seed, cost):
    rng = random.Random(seed)
    found = on_arrival = there = 0
    for _ in range(4):  # one load alone may arrive in a good order by luck
        requests = oracle.few_shot(rng)
        n_blocks = oracle.capacity(requests, 0.3)
        found += oracle.hits([requests[at] for at in kata.order(requests)], n_blocks)
        on_arrival += oracle.hits(requests, n_blocks)
        there += oracle.shared(requests, 16)
    cost.check("hits", found / there)
    cost.check("gain", found / on_arrival)
