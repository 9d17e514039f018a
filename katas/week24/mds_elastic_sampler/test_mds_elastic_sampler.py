"""The order and the dealing sample by sample, and what must not depend on who reads."""

import json

import numpy as np
import pytest

SIZES = [7, 5, 9, 3, 8, 4, 0, 11]  # 47 samples


def rows_of(kata, oracle, sizes, canonical_nodes, block, seed, epoch):
    return [
        oracle.row(sizes, canonical_nodes, block, kata.generator(seed, epoch, node), node)
        for node in range(canonical_nodes)
    ]


def sampler(kata, sizes=SIZES, canonical_nodes=4, block=6, seed=3, global_batch=24):
    return kata.ElasticSampler(sizes, canonical_nodes, block, seed, global_batch)


def global_batches(ids):
    """The samples of each step, of all ranks, in order of step; steps of padding left out."""
    _, _, workers, batches, _ = ids.shape
    by_step = ids.transpose(3, 2, 0, 1, 4).reshape(batches * workers, -1)
    steps = [sorted(step[step >= 0].tolist()) for step in by_step]
    while steps and not steps[-1]:
        steps.pop()
    return steps


# ---- the order -----------------------------------------------------------------------------


@pytest.mark.parametrize("at", range(9))
def test_rows_are_shards_shuffled_and_samples_moved(kata, oracle, at, seed):
    sizes, canonical_nodes, block = oracle.SHUFFLES[at]
    for epoch in range(3):
        args = (sizes, canonical_nodes, block, seed, epoch)
        found = kata.py1e_shuffle(*args)
        expected = rows_of(kata, oracle, *args)
        assert [row.tolist() for row in found] == expected, (
            f"py1e_shuffle{args}: expected {expected}, found {[row.tolist() for row in found]}"
        )
        assert {row.dtype for row in found} == {np.dtype(np.int64)}


def test_rows_of_sizes_in_an_array(kata, oracle, seed):
    sizes = oracle.drawn_sizes(seed, 120, 9)  # more than 256 samples
    for given in (np.array(sizes, np.int32), np.array(sizes, np.uint8), tuple(sizes)):
        found = kata.py1e_shuffle(given, 3, 12, 1, 0)
        expected = rows_of(kata, oracle, sizes, 3, 12, 1, 0)
        assert [row.tolist() for row in found] == expected, f"sizes {given!r}"


@pytest.mark.parametrize("at", range(9))
def test_order_takes_from_canonical_nodes_in_turn(kata, oracle, at):
    sizes, canonical_nodes, block = oracle.SHUFFLES[at]
    found = sampler(kata, sizes, canonical_nodes, block, 5).epoch_order(2)
    expected = oracle.epoch_order(rows_of(kata, oracle, sizes, canonical_nodes, block, 5, 2))
    assert found.tolist() == expected, (
        f"{sizes}, {canonical_nodes} nodes, block {block}: expected {expected}, found {found}"
    )
    assert found.dtype == np.int64


def test_epochs_and_seeds_have_orders_of_their_own(kata):
    pairs = [(seed, epoch) for seed in range(3) for epoch in range(3)]
    orders = [sampler(kata, seed=seed).epoch_order(epoch).tolist() for seed, epoch in pairs]
    for i, order in enumerate(orders):
        first = orders.index(order)
        assert first == i, f"(seed, epoch) {pairs[i]} has the order of {pairs[first]}"
    again = sampler(kata, seed=1)
    assert again.epoch_order(2).tolist() == again.epoch_order(2).tolist() == orders[5]


def test_sizes_are_those_of_the_beginning(kata):
    for sizes in (list(SIZES), np.array(SIZES)):
        one = sampler(kata, sizes)
        before = one.epoch_order(0).tolist()
        sizes[0], sizes[1] = sizes[1], sizes[0] + 4
        assert one.epoch_order(0).tolist() == before, "the list that was given is changed later"


def test_what_is_returned_may_be_changed(kata):
    one = sampler(kata)
    expected = one.epoch_order(0).tolist()
    for change in (one.epoch_order, lambda epoch: one.ids(epoch, 1, 1, 1)):
        change(0)[:] = 0
        found = one.epoch_order(0).tolist()
        assert found == expected, f"the last answer was set to 0: expected {expected}, {found}"


# ---- dealing -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "global_batch"),
    [([24, 24], 24), ([49], 24), ([4], 24), (SIZES, 8), ([9, 9, 9], 12), ([3, 4], 1)],
    ids=["exact", "one more", "fewer than ranks", "47 in eights", "27 in twelves", "one by one"],
)
def test_each_worker_is_dealt_its_batches(kata, oracle, sizes, global_batch):
    one = sampler(kata, sizes, global_batch=global_batch)
    order = one.epoch_order(1).tolist()
    for nodes, ranks in oracle.layouts(global_batch, 4):
        for workers in (1, 2, 3):
            for skip in sorted({0, 1, global_batch, 2 * global_batch + 3, len(order) - 1}):
                if skip >= len(order):
                    continue
                found = one.ids(1, nodes, ranks, workers, skip)
                expected = oracle.dealt(order, global_batch, nodes, ranks, workers, skip)
                given = f"{len(order)} samples, ids(1, {nodes}, {ranks}, {workers}, {skip})"
                batch = global_batch // (nodes * ranks)
                shape = (nodes, ranks, workers, len(expected[0, 0, 0]), batch)
                assert found.shape == shape, f"{given}: shape {found.shape}, expected {shape}"
                for hand, batches in expected.items():
                    assert found[hand].tolist() == batches, (
                        f"{given}, (node, rank, worker) {hand}: expected {batches}, found "
                        f"{found[hand].tolist()}"
                    )
    assert found.dtype == np.int64


def test_a_global_batch_has_the_same_samples_on_any_number_of_ranks(kata, oracle):
    one = sampler(kata)
    expected = global_batches(one.ids(0, 1, 1, 1))
    assert sorted({i for step in expected for i in step}) == list(range(47)), f"{expected}"
    assert sum(map(len, expected)) == 48, f"one of 47 samples comes twice: {expected}"
    for nodes, ranks in oracle.layouts(24, 4):
        for workers in (1, 2, 3):
            found = global_batches(one.ids(0, nodes, ranks, workers))
            assert found == expected, (
                f"{nodes} nodes, {ranks} ranks, {workers} workers: expected {expected}, {found}"
            )


def test_a_rank_sees_the_same_batches_with_any_number_of_workers(kata):
    one = sampler(kata, [200], global_batch=8)
    alone = one.ids(0, 2, 2, 1)[1, 1, 0].tolist()
    for workers in (2, 3, 5):
        found = one.ids(0, 2, 2, workers)[1, 1]
        in_turn = [found[w, b].tolist() for b in range(found.shape[1]) for w in range(workers)]
        expected = alone + [[-1, -1]] * (len(in_turn) - len(alone))
        assert in_turn == expected, f"{workers} workers: expected {expected}, found {in_turn}"


def test_what_is_left_is_the_end_of_what_there_was(kata):
    one = sampler(kata, [100, 30], global_batch=8)
    whole = global_batches(one.ids(4, 2, 2, 2))
    for done in range(len(whole)):
        found = global_batches(one.ids(4, 4, 1, 3, skip=8 * done))
        assert found == whole[done:], f"after {done} batches: expected {whole[done:]}, {found}"


# ---- stopping and going on -----------------------------------------------------------------


def test_a_run_goes_on_where_it_stopped(kata):
    one, expected = sampler(kata), []
    for epoch in range(3):
        expected += [(epoch, step) for step in global_batches(one.ids(epoch, 2, 3, 2))]
    for stops in ([0], [1], [2], [1, 1], [2, 2], [2, 1, 2], [0, 1, 0, 1]):
        found, epoch, skip, state = [], 0, 0, one.state_dict(0, 0)
        for nodes, batches in zip((1, 8, 2, 4), [*stops, 2], strict=False):
            state = json.loads(json.dumps(state))
            epoch, ids = sampler(kata).resume(state, nodes, 3 if nodes != 8 else 1, 2)
            steps = global_batches(ids)
            skip = 48 - sum(map(len, steps))
            batches = min(batches, len(steps))
            found += [(epoch, step) for step in steps[:batches]]
            state = one.state_dict(epoch, batches, skip)
        assert found == expected[: len(found)], f"stopped after {stops}: {found}"
        assert found, f"stopped after {stops}: nothing was read"


def test_a_run_goes_on_with_another_global_batch(kata):
    one = sampler(kata, global_batch=8)
    state = one.state_dict(5, 3, skip=7)
    epoch, ids = sampler(kata, global_batch=12).resume(state, 1, 3, 1)
    expected = sorted(one.epoch_order(5)[7 + 24 :].tolist())
    found = sorted(ids[ids >= 0].tolist())
    assert (epoch, found) == (5, expected)
    assert ids.shape == (1, 3, 1, 2, 4), f"17 samples in batches of 12: found {ids.shape}"


def test_the_last_batch_of_an_epoch_may_be_small(kata):
    one = sampler(kata, [49])  # 52 places, 2 batches of 24 and 4 more
    for skip, batches, epoch, left in ((0, 2, 0, 4), (0, 3, 1, 52), (30, 1, 1, 52), (30, 0, 0, 22)):
        found, ids = one.resume(one.state_dict(0, batches, skip), 1, 1, 1)
        assert (found, int((ids >= 0).sum())) == (epoch, left), (
            f"52 places, {skip} skipped, {batches} batches of 24: expected epoch {epoch} with "
            f"{left} places left, found epoch {found} with {int((ids >= 0).sum())}"
        )


def test_a_state_is_small_and_stays(kata):
    state = sampler(kata, [3] * 5000).state_dict(0, 1)
    text = json.dumps(state)
    assert len(text) < 1000, f"expected fewer than 1000 characters, found {len(text)}"
    sampler(kata, np.array([3] * 5000), block=6.0).resume(state, 1, 1, 1)
    assert json.dumps(state) == text, f"resume changed the state {text} to {state}"


def test_a_state_of_another_order_is_refused(kata):
    state = sampler(kata).state_dict(0, 1)
    swapped = [SIZES[1], SIZES[0], *SIZES[2:]]
    for other in ({"sizes": swapped}, {"canonical_nodes": 2}, {"block": 7}, {"seed": 4}):
        with pytest.raises(ValueError, match="^state: "):
            sampler(kata, **other).resume(state, 1, 1, 1)
    for sizes, others in (([1, 11, 5], [11, 1, 5]), ([3, 0, 2], [3, 2]), ([3, 2], [3, 2, 0])):
        state = sampler(kata, sizes).state_dict(0, 0)
        with pytest.raises(ValueError, match="^state: "):
            sampler(kata, others).resume(state, 1, 1, 1)


def test_a_state_is_good_in_another_process(kata, monkeypatch):
    found = []
    for salt in (1, 2):  # as each process has its own
        with monkeypatch.context() as patch:
            patch.setattr("builtins.hash", lambda _, salt=salt: salt)
            state = found[0] if found else sampler(kata).state_dict(0, 1)
            sampler(kata).resume(state, 1, 1, 1)
            found.append(state)


# ---- costs ---------------------------------------------------------------------------------


def test_a_node_reads_few_shards(kata, cost):
    ids = sampler(kata, [20] * 60, 8, 50, 1, 64).ids(0, 8, 2, 2)
    shards = [len(set((node[node >= 0] // 20).tolist())) for node in ids]
    cost.check("shards_per_node", max(shards))


def test_ids_take_few_lines(kata, lines, cost):
    one = sampler(kata, [200] * 1000, 8, 1000, 1, 512)
    with lines(limit=200_000) as counted:
        one.ids(0, 8, 8, 4, skip=512 * 100)
    cost.check("id_lines", counted.lines)


# ---- what makes no sense -------------------------------------------------------------------


def test_what_makes_no_sense_is_refused(kata):
    one = sampler(kata)
    for name, call in (
        ("shard_sizes", lambda: kata.py1e_shuffle([3, -1], 0, -1, 0, -1)),
        ("canonical_nodes", lambda: kata.py1e_shuffle([3, 1], 0, -1, 0, -1)),
        ("canonical_nodes", lambda: kata.py1e_shuffle([3, 1], 5, 1, 0, 0)),
        ("canonical_nodes", lambda: kata.py1e_shuffle([], 1, 1, 0, 0)),
        ("block", lambda: kata.py1e_shuffle([3, 1], 4, -1, 0, -1)),
        ("epoch", lambda: kata.py1e_shuffle([3, 1], 4, 0, 0, -1)),
        ("canonical_nodes", lambda: sampler(kata, [3], 4, 6, 3, 0)),
        ("block", lambda: sampler(kata, [3, 1], 4, -1, 3, 0)),
        ("global_batch", lambda: sampler(kata, global_batch=0)),
        ("epoch", lambda: one.epoch_order(-1)),
        ("epoch", lambda: one.ids(-1, 3, 0, 0, -1)),
        ("nodes", lambda: one.ids(0, 3, 0, 0, -1)),
        ("nodes", lambda: one.ids(0, 0, 1, 1)),
        ("nodes", lambda: one.ids(0, 6, 1, 1)),
        ("nodes", lambda: one.ids(0, -2, 1, 1)),
        ("ranks_per_node", lambda: one.ids(0, 2, 0, 0, -1)),
        ("ranks_per_node", lambda: one.ids(0, 2, 5, 1)),
        ("ranks_per_node", lambda: one.ids(0, 2, 24, 1)),
        ("workers", lambda: one.ids(0, 2, 12, 0, -1)),
        ("skip", lambda: one.ids(0, 2, 12, 1, -1)),
        ("skip", lambda: one.ids(0, 2, 12, 1, 48)),
        ("skip", lambda: one.state_dict(0, -1, 48)),
        ("batches", lambda: one.state_dict(0, -1)),
        ("batches", lambda: one.state_dict(0, 3)),
        ("batches", lambda: one.state_dict(0, 2, 24)),
        ("state", lambda: sampler(kata, seed=4).resume(one.state_dict(0, 1), 3, 0, 0)),
        ("nodes", lambda: one.resume(one.state_dict(0, 1), 3, 0, 0)),
    ):
        with pytest.raises(ValueError, match=f"^{name}: "):
            call()
