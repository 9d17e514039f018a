"""What is special about loading on other ranks: what is read, by whom, and what is refused."""

import math
import time
from itertools import pairwise

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.meters.communication import comm_meter
from harness.simulators.ranks import rank_device


def assert_plan(kata, oracle, chunks, want, itemsize=4):
    chunks = [kata.Chunk(file, at, kata.Box(*box)) for file, at, box in chunks]
    want = kata.Box(*want)
    found = [tuple(read) for read in kata.plan_reads(chunks, want, itemsize)]
    expected = oracle.fewest_reads(chunks, want, itemsize)
    assert found == expected, (
        f"chunks {chunks}, want {want}, itemsize {itemsize}: expected {expected}, found {found}"
    )


def test_rows_of_rows_are_one_read_a_file(kata, oracle):
    # 7 rows of 4 on 4 ranks, behind other tensors; the last two of the first file and so on
    chunks = [("b", 100, ((2, 0), (2, 4))), ("a", 3, ((0, 0), (2, 4))), ("c", 0, ((4, 0), (3, 4)))]
    assert_plan(kata, oracle, chunks, ((1, 0), (4, 4)))
    assert_plan(kata, oracle, chunks, ((0, 0), (7, 4)), itemsize=2)
    assert_plan(kata, oracle, chunks, ((2, 0), (2, 4)), itemsize=1)
    # two chunks side by side in one file, a read each
    chunks = [("a", 35, ((2, 0), (2, 4))), ("a", 3, ((0, 0), (2, 4)))]
    assert_plan(kata, oracle, chunks, ((0, 0), (4, 4)))


def test_columns_are_a_read_for_each_row(kata, oracle):
    rows = [("a", 0, ((0, 0), (3, 6))), ("b", 0, ((3, 0), (3, 6)))]
    assert_plan(kata, oracle, rows, ((0, 2), (6, 2)))
    columns = [("a", 0, ((0, 0), (5, 2))), ("b", 8, ((0, 2), (5, 3)))]
    assert_plan(kata, oracle, columns, ((1, 0), (3, 5)))
    assert_plan(kata, oracle, columns, ((1, 2), (3, 3)))
    assert_plan(kata, oracle, columns, ((0, 1), (5, 2)))


def test_planes_join_where_what_follows_is_whole(kata, oracle):
    chunks = [("a", 16, ((0, 0, 0), (3, 4, 5))), ("b", 0, ((3, 0, 0), (2, 4, 5)))]
    for want in [
        ((1, 0, 0), (3, 4, 5)),  # one run a file
        ((0, 1, 0), (5, 2, 5)),  # one a plane
        ((0, 1, 2), (5, 2, 3)),  # one a row
        ((2, 3, 1), (1, 1, 3)),  # one
        ((1, 2, 0), (1, 1, 5)),
    ]:
        assert_plan(kata, oracle, chunks, want)


def test_scalars_and_nothing_at_all(kata, oracle):
    assert_plan(kata, oracle, [("a", 5, ((), ()))], ((), ()), itemsize=8)
    assert_plan(kata, oracle, [], ((0, 0), (0, 4)))
    assert_plan(kata, oracle, [("a", 0, ((0, 0), (3, 4)))], ((2, 0), (0, 4)))
    assert_plan(kata, oracle, [("a", 0, ((0,), (0,))), ("b", 2, ((0,), (3,)))], ((1,), (2,)))


def test_what_no_chunk_has_is_refused(kata):
    chunk = kata.Chunk("a", 0, kata.Box((2, 0), (2, 4)))
    for want in [((1, 0), (2, 4)), ((2, 0), (3, 4)), ((0, 0), (1, 4)), ((2, 3), (2, 2))]:
        with pytest.raises(ValueError, match="^want: "):
            kata.plan_reads([chunk], kata.Box(*want), 4)
    with pytest.raises(ValueError, match="^want: "):
        kata.plan_reads([], kata.Box((), ()), 4)


def test_a_large_tensor_is_planned_in_a_few_steps(kata, lines):
    """2**20 rows of 2**20: neither elements nor rows can be gone through one by one."""
    n, box = 2**20, kata.Box
    chunks = [kata.Chunk("a", 2**40, box((0, 0), (n, n))), kata.Chunk("b", 7, box((n, 0), (n, n)))]
    plans = {
        box((n // 2, n // 4), (1, n // 2)): [("a", 2**40 + 2**41 + 2**20, 2**21, 0)],
        box((n // 2, 0), (n, n)): [("a", 2**40 + 2**41, 2**41, 0), ("b", 7, 2**41, 2**41)],
        box((0, 0), (2 * n, n)): [("a", 2**40, 2**42, 0), ("b", 7, 2**42, 2**42)],
    }
    for want, expected in plans.items():
        with lines(limit=2_000):
            found = [tuple(read) for read in kata.plan_reads(chunks, want, 4)]
        assert found == expected, f"want {want}: expected {expected}, found {found}"


def test_many_chunks_are_each_looked_at_once(kata, lines):
    """1,000 rows of 3, each a chunk, of which one column is wanted: a read for each."""
    n = 1_000
    chunks = [kata.Chunk("a", 12 * row, kata.Box((row, 0), (1, 3))) for row in range(n)]
    expected = [("a", 12 * row + 4, 4, 4 * row) for row in range(n)]
    with lines(limit=200 * n):
        found = [tuple(read) for read in kata.plan_reads(chunks, kata.Box((0, 1), (n, 1)), 4)]
    for row, (read, want) in enumerate(zip(found, expected, strict=True)):
        assert read == want, f"column 1 of 3, row {row} of {n}: expected {want}, found {read}"


@st.composite
def cuts(draw):
    """A tensor cut into a grid, one chunk a file or many in one, and a box of it."""
    shape = draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    edges = [sorted({0, n, *draw(st.lists(st.integers(1, n), max_size=2))}) for n in shape]
    spans = [list(pairwise(axis)) for axis in edges]
    boxes = [((), ())]
    for axis in spans:
        boxes = [((*o, a), (*n, b - a)) for o, n in boxes for a, b in axis]
    one_file = draw(st.booleans())
    at, chunks = 3, []
    for number, box in enumerate(draw(st.permutations(boxes))):
        chunks.append(("f" if one_file else f"f{number}", at, box))
        at += 4 * math.prod(box[1]) + (0 if number % 2 else 7)
    low = [draw(st.integers(0, n - 1)) for n in shape]
    size = [draw(st.integers(1, n - a)) for a, n in zip(low, shape, strict=True)]
    return chunks, (tuple(low), tuple(size))


@settings(max_examples=25)
@given(cuts())
def test_any_box_of_any_grid(kata, oracle, drawn):
    assert_plan(kata, oracle, *drawn)


def save(kata, oracle, state, path, rank, world, group=None):
    """Save with the layouts of the oracle; return what the rank has written."""
    folder = oracle.Folder(path)
    kinds = {key: kind for key, (_, _, kind) in oracle.TENSORS.items()}
    kata.save_shards(folder, oracle.pieces(kata, state, rank, world, kinds, rank_device()), group)
    return folder.written


def wanted(kata, oracle, state, rank, world, kind):
    """What a rank asks for: each tensor cut along one axis or whole, with other values in it."""
    kinds = {
        key: "replicated" if not shape or (kind == "columns" and len(shape) < 2) else kind
        for key, (_, shape, _) in oracle.TENSORS.items()
    }
    ones = {key: torch.ones_like(tensor) for key, tensor in state.items()}
    found = oracle.pieces(kata, ones, rank, world, kinds, rank_device())
    found["b.weight"].tensor.requires_grad_()  # views of a parameter are refused by autograd
    return found


def load(kata, oracle, state, path, rank, world, kind, group=None):
    """Load; return what the rank read, and what it should have found as (key, expected, found)."""
    folder = oracle.Folder(path)
    pieces = wanted(kata, oracle, state, rank, world, kind)
    memory = {key: piece.tensor.detach() for key, piece in pieces.items()}  # as it was passed
    kata.load_shards(folder, pieces, group)
    wrong = [
        (key, want, found)
        for key, piece in pieces.items()
        for want in [oracle.bits(oracle.cut(state[key], *piece.box))]
        for found in [oracle.bits(memory[key])]
        if want != found
    ]
    return folder.reads, wrong, pieces


def assert_loaded(oracle, kata, path, results):
    """Values are right, and each rank has read its own bytes, in as few reads as there can be."""
    entries = kata.unpack((path / kata.METADATA).read_bytes())
    for rank, (reads, wrong, pieces) in enumerate(results):
        who = f"rank {rank} of {len(results)}"
        for key, want, found in wrong:
            raise AssertionError(f"{who}, bytes of {key}: expected {want}, found {found}")
        expected = sorted(
            read[:3]
            for key, piece in pieces.items()
            for read in oracle.fewest_reads(entries[key].chunks, piece.box, piece.tensor.itemsize)
        )
        found = sorted(read for read in reads if read[0] != kata.METADATA)
        assert found == expected, f"reads of {who}: expected {expected}, found {found}"
        asked = sum(name == kata.METADATA for name, *_ in reads)
        assert asked == (rank == 0), f"{who}: read METADATA {asked} times, rank 0 alone reads it"


# fewer, more, one from many, many from one; rows that do not divide, ranks without any
@pytest.mark.parametrize(
    ("saving", "loading", "kind"),
    [(4, 2, "columns"), (2, 3, "rows"), (1, 4, "last"), (4, 1, "rows"), (3, 3, "replicated")],
    ids=str,
)
def test_other_ranks_find_the_same_bits(kata, oracle, ranks, seed, tmp_path, saving, loading, kind):
    state = oracle.whole(seed)
    world = max(saving, loading)

    def work(rank, world):
        groups = [dist.new_group(list(range(n))) for n in (saving, loading)]
        if rank < saving:
            save(kata, oracle, state, tmp_path, rank, saving, groups[0])
        dist.barrier()
        if rank < loading:
            return load(kata, oracle, state, tmp_path, rank, loading, kind, groups[1])
        return None

    assert_loaded(oracle, kata, tmp_path, ranks(world, work)[:loading])


def test_each_box_is_written_once_by_whoever_has_least(kata, oracle, ranks, seed, tmp_path):
    state = oracle.whole(seed)
    results = ranks(4, lambda rank, world: save(kata, oracle, state, tmp_path, rank, world))
    written = [dict(files) for files in results]
    # flags 2 2 2 1; weight 36 36 36 12; moment 140 140 140; step 8 to rank 3 (13); bias 40 to
    # rank 3; grid 120 96 120 96 (5 + 4 columns, 3 rows); few 5 to rank 0
    sizes = [2 + 36 + 140 + 120 + 5, 2 + 36 + 140 + 96, 2 + 36 + 140 + 120, 1 + 12 + 48 + 96]
    for rank, (files, size) in enumerate(zip(written, sizes, strict=True)):
        expected = {kata.shard_file(rank): size}
        found = {name: n for name, n in files.items() if name != kata.METADATA}
        assert found == expected, f"rank {rank}: expected {expected}, found {found}"
    assert [kata.METADATA in files for files in written] == [True, False, False, False]
    entries = kata.unpack((tmp_path / kata.METADATA).read_bytes())
    for key, (dtype, shape, kind) in oracle.TENSORS.items():
        assert (entries[key].dtype, entries[key].shape) == (dtype, shape), key
        boxes = {oracle.box(shape, kind, rank, 4) for rank in range(4)}
        expected = sorted(box for box in boxes if 0 not in box[1])
        assert sorted(tuple(chunk.box) for chunk in entries[key].chunks) == expected, key


def test_order_of_keys_and_boxes_decides_and_not_that_of_ranks(kata, oracle, ranks, tmp_path):
    """Rank 0 has the later rows, rank 2 nothing, nobody the last row; keys in another order."""
    rows = torch.arange(6, dtype=torch.int16).view(3, 2)

    def work(rank, world):
        mine = {}
        if rank < 2:
            half = rows[1:] if rank == 0 else rows[:1]
            mine["z"] = kata.Piece(half, (1 - rank, 0), (4, 2))
            mine["m"] = kata.Piece(torch.ones(5, dtype=torch.uint8), (0,), (5,))
            mine["a"] = kata.Piece(torch.ones(3, dtype=torch.int16), (0,), (3,))
            mine["n"] = kata.Piece(torch.ones(2, dtype=torch.uint8), (0,), (2,))
        kata.save_shards(oracle.Folder(tmp_path), mine)
        want = (
            {}
            if rank == 1
            else {
                key: kata.Piece(torch.zeros_like(value), *where)
                for key, value, *where in [("z", rows, (0, 0), (4, 2))]
            }
        )
        if rank == 2:
            for key, n in [("m", 5), ("a", 3), ("n", 2)]:
                dtype = torch.int16 if key == "a" else torch.uint8
                want[key] = kata.Piece(torch.zeros(n, dtype=dtype), (0,), (n,))
        kata.load_shards(oracle.Folder(tmp_path), want)
        return {key: piece.tensor.tolist() for key, piece in want.items()}

    found = ranks(3, work)
    whole = {"z": rows.tolist()}
    assert found == [whole, {}, {**whole, "m": [1] * 5, "a": [1] * 3, "n": [1] * 2}]
    first, second = kata.shard_file(0), kata.shard_file(1)
    # a: 6 bytes, 3 elements, to rank 0; m: 5 bytes to rank 1, and n: 2, for 5 are fewer than 6;
    # z: each its own
    expected = {
        "a": kata.Entry("int16", (3,), (kata.Chunk(first, 0, kata.Box((0,), (3,))),)),
        "m": kata.Entry("uint8", (5,), (kata.Chunk(second, 0, kata.Box((0,), (5,))),)),
        "n": kata.Entry("uint8", (2,), (kata.Chunk(second, 5, kata.Box((0,), (2,))),)),
        "z": kata.Entry(
            "int16",
            (4, 2),
            (
                kata.Chunk(second, 7, kata.Box((0, 0), (1, 2))),
                kata.Chunk(first, 6, kata.Box((1, 0), (2, 2))),
            ),
        ),
    }
    entries = kata.unpack((tmp_path / kata.METADATA).read_bytes())
    for key, entry in expected.items():
        assert entries[key] == entry, f"{key}: expected {entry}, found {entries[key]}"


def test_nothing_is_named_before_it_is_written(kata, oracle, ranks, tmp_path):
    class Slow(oracle.Folder):
        def write(self, name, parts):
            self.there = sorted(file.name for file in self.path.iterdir())
            time.sleep(0.2)
            super().write(name, parts)

    def work(rank, world):
        folder = Slow(tmp_path)
        mine = kata.Piece(torch.zeros(0 if rank == 0 else 3, 2), (0, 0), (3, 2))
        kata.save_shards(folder, {"w": mine})
        return sorted(file.name for file in tmp_path.iterdir()), folder.there

    results = ranks(2, work)
    expected = [kata.shard_file(1)]  # rank 0 has nothing to write
    there = results[0][1]
    assert there == expected, f"when METADATA is written: expected {expected}, found {there}"
    expected = sorted([kata.METADATA, kata.shard_file(1)])
    for rank, (there, _) in enumerate(results):
        assert there == expected, f"when rank {rank} is done: expected {expected}, found {there}"


def test_no_keys_make_a_checkpoint_without_keys(kata, oracle, ranks, tmp_path):
    def work(rank, world):
        kata.save_shards(oracle.Folder(tmp_path), {})
        kata.load_shards(oracle.Folder(tmp_path), {})
        return sorted(file.name for file in tmp_path.iterdir())

    for rank, found in enumerate(ranks(2, work)):
        assert found == [kata.METADATA], f"rank {rank}: expected [{kata.METADATA!r}], found {found}"
    found = kata.unpack((tmp_path / kata.METADATA).read_bytes())
    assert found == {}, f"METADATA of no keys: expected {{}}, found {found}"


def test_stages_have_keys_of_their_own_and_any_ranks_are_a_group(kata, oracle, ranks, tmp_path):
    """Ranks 1 and 3 of 4 save a layer each; loaded the other way round."""
    layers = [torch.arange(6.0).view(2, 3), torch.arange(4) + 2**53 + 1]

    def work(rank, world):
        group = dist.new_group([1, 3])
        if rank not in (1, 3):
            return None
        at = rank // 2
        mine = {f"layer{at}": kata.Piece(layers[at], (0,) * layers[at].dim(), (*layers[at].shape,))}
        kata.save_shards(oracle.Folder(tmp_path), mine, group)
        other = torch.zeros_like(layers[1 - at])
        want = {f"layer{1 - at}": kata.Piece(other, (0,) * other.dim(), (*other.shape,))}
        folder = oracle.Folder(tmp_path)
        kata.load_shards(folder, want, group)
        return other, folder.reads

    results = ranks(4, work)
    assert torch.equal(results[1][0], layers[1]), f"expected {layers[1]}, found {results[1][0]}"
    assert torch.equal(results[3][0], layers[0]), f"expected {layers[0]}, found {results[3][0]}"
    first, second = kata.shard_file(0), kata.shard_file(1)
    assert [name for name, *_ in results[1][1]] == [kata.METADATA, second], results[1][1]
    assert [name for name, *_ in results[3][1]] == [first], results[3][1]


def lines_of(error):
    return [line.partition(": ")[0] for line in str(error).splitlines()]


def test_what_does_not_fit_is_named_on_all_ranks_before_anything_is_filled(
    kata, oracle, ranks, tmp_path
):
    names = ("a", "dtype", "empty", "shape", "unexpected", "hole")

    def piece(tensor, rank):
        if not len(tensor):
            return kata.Piece(tensor, (4, 0), (4, 3))
        return kata.Piece(tensor, (rank * len(tensor), 0), (2 * len(tensor), tensor.shape[1]))

    def work(rank, world):
        whole = {key: torch.ones(2, 3) for key in names}
        state = {key: piece(tensor, rank) for key, tensor in whole.items()}
        if rank == 1:
            del state["hole"]  # its rows are never saved
        kata.save_shards(oracle.Folder(tmp_path), state)
        want = {"a": torch.zeros(2, 3), "missing": torch.zeros(2, 3)}
        if rank == 1:
            want["dtype"] = torch.zeros(2, 3, dtype=torch.bfloat16)
            want["empty"] = torch.zeros(0, 3, dtype=torch.bfloat16)
            want["shape"] = torch.zeros(3, 3)
            want["hole"] = torch.zeros(2, 3)
        folder = oracle.Folder(tmp_path)
        with pytest.raises(ValueError, match="^dtype: ") as caught:
            kata.load_shards(folder, {key: piece(tensor, rank) for key, tensor in want.items()})
        read = [name for name, *_ in folder.reads if name != kata.METADATA]
        return lines_of(caught.value), [*map(torch.count_nonzero, want.values())], read

    expected = ["dtype", "empty", "hole", "missing", "shape", "unexpected"]
    for rank, (found, filled, read) in enumerate(ranks(2, work)):
        assert found == expected, f"keys named on rank {rank}: expected {expected}, found {found}"
        assert not any(filled), f"rank {rank}: expected nothing filled, found {filled}"
        assert not read, f"rank {rank}: expected no read of a shard, found {read}"


@pytest.mark.parametrize("what", ["dtype", "shape"])
def test_ranks_that_disagree_write_nothing(kata, oracle, ranks, tmp_path, what):
    def work(rank, world):
        dtype, rows = (torch.float16, 0) if what == "dtype" and rank else (torch.bfloat16, 2)
        shape = (4, 3) if what == "shape" and rank else (4, 2)
        state = {
            "fine": kata.Piece(torch.ones(2), (2 * rank,), (6,)),
            "odd": kata.Piece(torch.ones(rows, 2, dtype=dtype), (2 * rank, 0), shape),
        }
        if rank == 2:
            del state["odd"]
        with pytest.raises(ValueError, match="^odd: "):
            kata.save_shards(oracle.Folder(tmp_path), state)
        dist.barrier()
        return [file.name for file in tmp_path.iterdir()]

    for rank, found in enumerate(ranks(3, work)):
        assert found == [], f"files that rank {rank} sees: expected none, found {found}"


def test_nobody_reads_or_sends_more_than_it_needs(kata, oracle, ranks, tmp_path, cost):
    """256 x 64 float32, cut by rows on 4 ranks, then by columns: 64 KiB, 256 runs a rank."""
    whole = torch.arange(256.0 * 64).view(256, 64)

    def work(rank, world):
        rows = kata.Piece(whole[rank * 64 : rank * 64 + 64], (rank * 64, 0), (256, 64))
        with comm_meter() as meter:
            kata.save_shards(oracle.Folder(tmp_path), {"w": rows})
        mine = torch.zeros(256, 16)
        folder = oracle.Folder(tmp_path)
        with comm_meter() as loading:
            kata.load_shards(folder, {"w": kata.Piece(mine, (0, rank * 16), (256, 64))})
        assert torch.equal(mine, whole[:, rank * 16 : rank * 16 + 16])
        sizes = [n for name, _, n in folder.reads if name != kata.METADATA]
        return sum(sizes), len(sizes), meter.bytes_sent, loading.bytes_sent

    read, reads, saving, loading = zip(*ranks(4, work), strict=True)
    cost.check("read_bytes", max(read))
    cost.check("reads", max(reads))
    cost.check("save_comm", max(saving))
    cost.check("load_comm", max(loading))


def test_time_of_full_and_sharded_checkpoints(kata):
    # 8 GB on 16 GPUs in nodes of 8: 7.5 GB come over 5 GB/s, 8 GB go to 2 GB/s; or 4 GB do
    full = kata.ckpt_time("full", 8e9, 16, 8, 2e9, 5e9)
    assert full == pytest.approx(1.5 + 4.0)
    assert kata.ckpt_time("sharded", 8e9, 16, 8, 2e9, 5e9) == pytest.approx(2.0)
    assert kata.ckpt_time("full", 8e9, 1, 8, 2e9, 5e9) == pytest.approx(4.0)
    assert kata.ckpt_time("sharded", 8e9, 4, 8, 2e9, 5e9) == pytest.approx(4.0)  # half a node
    assert kata.ckpt_time("sharded", 9e9, 12, 8, 2e9, 5e9) == pytest.approx(3.0)  # 8 of 12
    with pytest.raises(ValueError, match="^kind: "):
        kata.ckpt_time("Sharded", 8e9, 16, 8, 2e9, 5e9)
