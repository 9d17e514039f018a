"""Samples against an archive opened at random, damage, memory, and who reads what."""

import os
import random
import tarfile
from itertools import islice
from operator import length_hint
from pathlib import Path

import pytest

from harness.judge import assert_follows

LONG = "train/" + "long-name/" * 12


def described(samples):
    """Samples with contents short enough to be read."""
    return [
        {
            name: f"{len(what)} bytes, {what[:6]}" if len(what) > 12 else what
            for name, what in one.items()
        }
        for one in samples
    ]


def in_order(samples):
    """Samples as lists, in which the order of the members counts."""
    return [list(one.items()) for one in samples]


def check_read(kata, oracle, raw, most=None):
    pipe = oracle.Pipe(raw, most)
    found, expected = list(kata.iter_samples(pipe)), oracle.samples(raw)
    assert found == expected, f"expected {described(expected)}, found {described(found)}"
    return pipe


def until_refused(kata, raw, match):
    """The samples that were given before the ValueError."""
    found, stream = [], iter(kata.iter_samples(raw))
    with pytest.raises(ValueError, match=match):
        found.extend(stream)  # what comes before the error stays
    return found


# ---- reading -------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["ustar", "gnu", "pax"])
def test_samples_are_runs_of_members(kata, oracle, seed, form):
    for draw in range(8):
        raw = oracle.archive(oracle.drawn_members(seed + draw), form)
        pipe = check_read(kata, oracle, raw)
        assert pipe.at == len(raw), f"of {len(raw)} bytes of the archive {pipe.at} were read"


def test_keys_end_at_the_first_dot_of_the_last_part(kata, oracle):
    names = [
        "a/b.seg.PNG",
        "a/b.Json",
        "a.b/c.tar.gz",
        "a.b/d.",
        "./e.x",
        "f.x",
        "F.x",
        "/g.x",
        "a/b.z",
    ]
    found = list(kata.iter_samples(oracle.Pipe(oracle.archive([(name, b"") for name in names]))))
    assert found == [
        {"__key__": "a/b", "seg.png": b"", "json": b""},
        {"__key__": "a.b/c", "tar.gz": b""},
        {"__key__": "a.b/d", "": b""},
        {"__key__": "./e", "x": b""},
        {"__key__": "f", "x": b""},
        {"__key__": "F", "x": b""},
        {"__key__": "/g", "x": b""},
        {"__key__": "a/b", "z": b""},
    ], f"members {names}: found {found}"


def test_what_is_no_file_with_an_extension_is_skipped(kata, oracle):
    for skipped in oracle.SKIPPED:
        members = [skipped, ("a.jpg", b"1"), skipped, ("a.txt", b"2"), skipped]
        check_read(kata, oracle, oracle.archive(members))


@pytest.mark.parametrize("form", ["ustar", "gnu", "pax"])
def test_names_of_more_than_100_characters(kata, oracle, form):
    members = [
        (f"{LONG}a.jpg", b"1"),
        (f"{LONG}a.txt", b"2"),
        (LONG, b"", tarfile.DIRTYPE),
        ("b.txt", b"3"),
        (f"{LONG}README", b"4"),
        ("b.jpg", b"5"),
        (f"{LONG}{'c' * 600}.jpg", b"6"),
    ]
    check_read(kata, oracle, oracle.archive(members[: 6 if form == "ustar" else 7], form))


@pytest.mark.parametrize("form", ["ustar", "gnu", "pax"])
def test_names_that_are_not_ascii(kata, oracle, form):
    names = ["grün/日本.jpg", os.fsdecode(b"gr\xfcn.jpg"), f"{LONG}ü.jpg"]
    raw = oracle.archive([(name, b"1") for name in names[: 2 if form == "ustar" else 3]], form)
    check_read(kata, oracle, raw)


def test_headers_for_all_members_are_skipped(kata, oracle):
    shared = tarfile.TarInfo.create_pax_global_header({"path": "wrong.txt", "comment": "x"})
    long_link = tarfile.TarInfo("l.jpg")
    long_link.type, long_link.linkname = tarfile.SYMTYPE, LONG + "z.txt"
    raw = (
        shared
        + long_link.tobuf(tarfile.GNU_FORMAT)
        + oracle.archive([("a.jpg", b"1"), ("b.jpg", b"2")])
    )
    found = list(kata.iter_samples(oracle.Pipe(raw)))
    assert found == [{"__key__": "a", "jpg": b"1"}, {"__key__": "b", "jpg": b"2"}], f"found {found}"


@pytest.mark.parametrize("form", ["gnu", "pax"])
def test_a_long_name_waits_for_its_member(kata, oracle, form):
    raw = oracle.archive([(f"{LONG}a.jpg", b"1"), ("b.jpg", b"2")], form)
    between = [tarfile.TarInfo.create_pax_global_header({"comment": "x"})]
    if form == "gnu":
        long_link = tarfile.TarInfo("l.jpg")
        long_link.linkname = LONG
        between.append(long_link.tobuf(tarfile.GNU_FORMAT)[:1024])  # the header of type K alone
    for header in between:
        check_read(kata, oracle, raw[:1024] + header + raw[1024:])


def test_other_pax_records_do_not_matter(kata, oracle):
    info = tarfile.TarInfo("a.jpg")
    info.pax_headers = {"comment": "no path", "mtime": "1.5"}
    raw = info.tobuf(tarfile.PAX_FORMAT) + oracle.archive([("a.txt", b"1")])
    check_read(kata, oracle, raw)


def test_an_archive_of_nothing_has_no_samples(kata, oracle):
    check_read(kata, oracle, bytes(10_240))
    check_read(kata, oracle, oracle.archive(oracle.SKIPPED))


def test_one_block_of_zeros_is_an_end(kata, oracle):
    check_read(kata, oracle, oracle.archive([("a.jpg", b"1"), ("b.jpg", b"2")])[:-512])
    check_read(kata, oracle, bytes(512))


@pytest.mark.parametrize("most", [1, 500, 513])
def test_a_pipe_gives_less_than_asked_for(kata, oracle, seed, most):
    check_read(kata, oracle, oracle.archive(oracle.drawn_members(seed, 2)), most)


def test_what_follows_the_end_is_read_and_ignored(kata, oracle):
    first, then = oracle.archive([("a.jpg", b"1")]), oracle.archive([("b.jpg", b"2")])
    pipe = oracle.Pipe(first + bytes(9000) + then)
    found = list(kata.iter_samples(pipe))
    assert found == [{"__key__": "a", "jpg": b"1"}], f"found {found}"
    assert pipe.at == len(first + then) + 9000, (
        f"read {pipe.at} bytes of {len(first + then) + 9000}"
    )


def test_samples_come_while_the_archive_is_read(kata, oracle):
    pipe = oracle.EndlessPipe(100, 1000)
    first = next(iter(kata.iter_samples(pipe)))
    assert first == {"__key__": "a", "bin": b"1" * 1000}
    assert pipe.at < pipe.size // 2, (
        f"the first of 100 samples came after {pipe.at} of {pipe.size} bytes"
    )


def test_an_extension_twice_is_refused(kata, oracle):
    for second in ("b.jpg", "b.JPG"):
        raw = oracle.archive(
            [("a.jpg", b"1"), ("b.jpg", b"2"), ("b.txt", b"3"), (second, b"4"), ("c.jpg", b"5")]
        )
        found = until_refused(kata, oracle.Pipe(raw), f"^{second}: ")
        assert found == [{"__key__": "a", "jpg": b"1"}], f"before the error came {found}"
    raw = oracle.archive([("a.__key__", b"1")])
    assert until_refused(kata, oracle.Pipe(raw), r"^a\.__key__: ") == []


def test_an_archive_that_is_cut_off_is_refused(kata, oracle):
    members = [
        ("a.jpg", b"1" * 600),
        ("a.txt", b"2"),
        ("b.jpg", b""),
        ("c.jpg", b"3" * 512),
        (f"{LONG}d.jpg", b"4"),
    ]
    raw = oracle.archive(members)
    whole = oracle.samples(raw)
    ends = [len(oracle.archive(members[:n])) - 1024 for n in range(len(members) + 1)]
    sure = {ends[3]: 1, ends[4]: 2, ends[5]: 3}  # bytes after which so many have to be there
    for cut in sorted(
        {
            0,
            1,
            511,
            512,
            513,
            *(end + d for end in ends for d in (-1, 0, 1, 511, 512) if end + d >= 0),
        }
    ):
        if cut >= len(raw) - 512:
            continue
        found = until_refused(kata, oracle.Pipe(raw[:cut]), "^archive: ")
        least = max([n for end, n in sure.items() if end <= cut], default=0)
        assert whole[: len(found)] == found, f"cut off after {cut} bytes: found {described(found)}"
        assert least <= len(found) <= 3, (
            f"cut off after {cut} bytes: {len(found)} samples, expected {least}"
        )


def test_a_damaged_header_is_refused(kata, oracle):
    raw = bytearray(
        oracle.archive([("a.jpg", b"1"), ("b.jpg", b"2"), ("c.jpg", b"3"), ("d.jpg", b"4")])
    )
    raw[3 * 1024] ^= 1  # the name of d
    found = until_refused(kata, oracle.Pipe(raw), "^archive: ")
    expected = oracle.samples(oracle.archive([("a.jpg", b"1"), ("b.jpg", b"2")]))
    assert found[:2] == expected, f"before the error came {found}"
    assert len(found) == 2, f"c may be cut off: found {found}"


def test_reading_holds_one_sample(kata, oracle, host_memory, cost):
    pipe, n = oracle.EndlessPipe(3000, 1000), 0
    with host_memory() as held:
        for sample in kata.iter_samples(pipe):
            n += len(sample["bin"])
    assert n == 3_000_000, f"expected 3,000 samples of 1,000 bytes, found {n} bytes"
    cost.check("reading_bytes", held.peak_bytes)
    cost.check("reads_per_member", pipe.reads / 3000)


# ---- writing -------------------------------------------------------------------------------


def as_read(oracle, paths):
    return [oracle.samples(Path(path).read_bytes()) for path in paths]


@pytest.mark.parametrize(
    ("max_bytes", "max_count"),
    [(10**9, 4), (10**9, 1), (2000, 10**9), (1, 10**9), (1500, 3)],
    ids=["by count", "one each", "by bytes", "too large each", "either"],
)
def test_shards_are_filled_in_order(kata, oracle, tmp_path, seed, max_bytes, max_count):
    samples = oracle.samples(oracle.archive(oracle.drawn_members(seed, 20)))
    pattern = f"{tmp_path}/train-%04d.tar"
    paths = kata.write_shards(iter(samples), pattern, max_bytes, max_count)
    expected = oracle.plain_shards(samples, max_bytes, max_count)
    assert paths == [pattern % n for n in range(len(expected))], f"found {paths}"
    ends = [Path(path).read_bytes()[-1024:] for path in paths]
    assert set(ends) == {bytes(1024)}, "expected two blocks of zeros at the end of each shard"
    found = as_read(oracle, paths)
    assert [*map(in_order, found)] == [*map(in_order, expected)], (
        f"expected {[*map(described, expected)]}, found {[*map(described, found)]}"
    )


def test_an_exact_fit_fits(kata, oracle, tmp_path):
    samples = [
        {"__key__": str(n), "a": bytes(size), "b": b"1"}
        for n, size in enumerate([6, 2, 0, 0, 9, 10, 0])
    ]
    paths = kata.write_shards(samples, f"{tmp_path}/%d.tar", 10, 3)
    keys = [[one["__key__"] for one in shard] for shard in as_read(oracle, paths)]
    assert keys == [["0", "1"], ["2", "3"], ["4"], ["5"], ["6"]], f"found {keys}"


def test_no_samples_make_no_shard(kata, tmp_path):
    assert kata.write_shards([], f"{tmp_path}/%d.tar", 10, 3) == []
    assert list(tmp_path.iterdir()) == []


def test_any_name_is_read_back(kata, oracle, tmp_path):
    keys = [
        "grün/日本",
        os.fsdecode(b"gr\xfcn"),
        f"{LONG}{'k' * 300}",
        "./a",
        "a.b/c",
        "a b\n",
        "/x",
    ]
    samples = [{"__key__": key, "seg.png": b"1", "": b"", "x": b"2"} for key in keys]
    paths = kata.write_shards(samples, f"{tmp_path}/%d.tar", 1000, 1000)
    found = as_read(oracle, paths)
    assert found == [samples], f"expected {samples}, found {found}"


def test_the_key_may_stand_anywhere_in_a_sample(kata, oracle, tmp_path):
    samples = [{"jpg": b"1", "__key__": "a", "txt": b"2"}, {"jpg": b"3", "__key__": "b"}]
    paths = kata.write_shards(samples, f"{tmp_path}/%d.tar", 1000, 1000)
    found = as_read(oracle, paths)
    assert found == [samples], f"expected {samples}, found {found}"


def test_the_same_samples_make_the_same_bytes(kata, tmp_path):
    raws = []
    for _ in range(2):
        (path,) = kata.write_shards([{"__key__": "a", "jpg": b"1"}], f"{tmp_path}/%d.tar", 10, 3)
        with tarfile.open(path) as tar:
            found = [info.mtime for info in tar]
        assert found == [0], f"expected a member with mtime 0, found {found}"
        raws.append(Path(path).read_bytes())
    assert raws[0] == raws[1], "written again, the shard has other bytes"


def test_samples_that_would_not_be_read_back_are_refused(kata, tmp_path):
    good = {"__key__": "a", "jpg": b"1"}
    for bad in (
        {"jpg": b"1"},
        {"__key__": "", "jpg": b"1"},
        {"__key__": "", "": b"1"},
        {"__key__": "b"},
        {"__key__": "x/", "jpg": b"1"},
        {"__key__": "b.c", "jpg": b"1"},
        {"__key__": "b", "JPG": b"1"},
        {"__key__": "b", "seg/png": b"1"},
        {"__key__": "b", "jpg": b"1", "Jpg": b"2"},
        {"__key__": "a", "txt": b"1"},
    ):
        with pytest.raises(ValueError, match="^samples: "):
            kata.write_shards([good, bad], f"{tmp_path}/%d.tar", 1, 3)


def test_limits_below_one_are_refused(kata, tmp_path):
    for name, limits in (("max_bytes", (0, 1)), ("max_count", (1, 0)), ("max_bytes", (-1, 0))):
        with pytest.raises(ValueError, match=f"^{name}: "):
            kata.write_shards([], f"{tmp_path}/%d.tar", *limits)


def test_writing_holds_one_sample(kata, tmp_path, host_memory, cost):
    samples = ({"__key__": str(n), "bin": bytes(1000)} for n in range(1000))
    with host_memory() as held:
        kata.write_shards(samples, f"{tmp_path}/%d.tar", 10**9, 10**9)
    cost.check("writing_bytes", held.peak_bytes)


# ---- who reads what ------------------------------------------------------------------------


def dealt(kata, urls, world, workers, epoch=0, seed=0):
    return [
        [
            kata.split_shards(urls, rank, world, worker, workers, epoch, seed)
            for worker in range(workers)
        ]
        for rank in range(world)
    ]


@pytest.mark.parametrize(
    ("n", "world", "workers"),
    [(24, 3, 2), (25, 3, 2), (7, 4, 3), (0, 2, 2), (5, 1, 1), (1, 2, 1)],
    ids=["even", "one more", "fewer than workers", "none", "alone", "one"],
)
def test_every_shard_has_one_reader(kata, n, world, workers):
    urls = [f"shard-{i % 20}.tar" for i in range(n)]  # some are there twice
    for epoch in range(3):
        parts = dealt(kata, tuple(urls), world, workers, epoch)
        found = sorted(url for rank in parts for part in rank for url in part)
        given = f"{n} shards, world={world}, workers={workers}, epoch={epoch}"
        assert found == sorted(urls), f"{given}: {parts}"
        ranks = [sum(map(len, rank)) for rank in parts]
        assert max(ranks) - min(ranks) <= 1, f"{given}: {ranks} shards on the ranks"
        for rank in parts:
            sizes = [len(part) for part in rank]
            assert max(sizes) - min(sizes) <= 1, (
                f"{given}: {sizes} shards for the workers of a rank"
            )


def test_each_epoch_has_an_order_of_its_own(kata):
    urls = [f"{i:03d}" for i in range(40)]
    pairs = [(epoch, seed) for epoch in range(4) for seed in range(4)] + [(11, 1), (1, 11)]
    pairs += [(base**power, 0) for base in (2, 10) for power in (3, 4, 5, 6, 8, 9, 16, 32)]
    orders = [tuple(dealt(kata, urls, 1, 1, *pair)[0][0]) for pair in pairs]
    assert urls == [f"{i:03d}" for i in range(40)], "the list that was given has changed"
    for i, order in enumerate(orders):
        assert order != tuple(urls), f"epoch and seed {pairs[i]}: not shuffled"
        assert orders.index(order) == i, (
            f"epoch and seed {pairs[i]} as {pairs[orders.index(order)]}"
        )
    halves = {frozenset(kata.split_shards(urls, 0, 2, 0, 1, epoch, 0)) for epoch in range(4)}
    assert len(halves) == 4, "rank 0 of 2 gets the same shards in another epoch"


def test_the_order_is_the_same_in_every_process(kata, monkeypatch):
    urls = [f"{i:03d}" for i in range(40)]
    found = []
    for salt in (1, 2):
        random.seed(salt)
        state = random.getstate()
        with monkeypatch.context() as patch:
            patch.setattr("builtins.hash", lambda _, salt=salt: salt)
            found.append(dealt(kata, urls, 2, 2, 3, 4))
        assert random.getstate() == state, "the state of the module random has changed"
    assert found[0] == found[1], "the answer depends on hash() or on random's own state"


def test_ranks_and_workers_that_do_not_exist_are_refused(kata):
    for name, args in (
        ("rank", (2, 2, 0, 1)), ("rank", (-1, 2, 0, 1)), ("world", (0, 0, 0, 0)),
        ("worker", (0, 1, 3, 3)), ("worker", (0, 1, -1, 3)), ("workers", (0, 1, 0, 0)),
        ("rank", (5, 2, 0, 0)),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"^{name}: "):
            kata.split_shards(["a"], *args, 0, 0)


# ---- shuffling -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "size"), [(0, 3), (1, 3), (2, 3), (3, 3), (4, 3), (50, 7), (20, 1)], ids=str
)
def test_shuffled_items_are_the_same_items(kata, n, size):
    items = [None if i % 5 == 0 else i for i in range(n)]
    found = list(kata.shuffle_buffer(iter(items), size, random.Random(n)))
    assert sorted(found, key=str) == sorted(items, key=str), f"{items} became {found}"
    equal = [(1, True, 1.0)[i % 3] for i in range(n)]
    given = list(kata.shuffle_buffer(equal, size, random.Random(n)))
    assert sorted(map(repr, given)) == sorted(map(repr, equal)), f"{equal} became {given}"
    found = list(kata.shuffle_buffer(range(n), size, random.Random(n)))
    late = [(at, item) for at, item in enumerate(found) if item > at + size - 1]
    assert not late, f"size {size}: (place, item) {late}, which could not have been held yet"
    again = list(kata.shuffle_buffer(range(n), size, random.Random(n)))
    assert again == found, f"the same rng: {found}, then {again}"


def test_no_more_than_size_items_are_held(kata):
    for size in (1, 2, 10):
        source = iter(range(1000))
        stream = iter(kata.shuffle_buffer(source, size, random.Random(0)))
        for given, _ in enumerate(islice(stream, 30), 1):
            taken = 1000 - length_hint(source)
            assert taken - given < size, f"size {size}: {taken} items taken when {given} were given"


def test_every_order_is_as_likely_within_the_buffer(kata):
    rng, counts = random.Random(5), {}
    for _ in range(1200):
        order = tuple(kata.shuffle_buffer(range(3), 3, rng))
        counts[order] = counts.get(order, 0) + 1
    expected = sorted({tuple(random.Random(i).sample(range(3), 3)) for i in range(100)})
    assert_follows([counts.get(order, 0) for order in expected], [1 / 6] * 6)


def test_a_buffer_of_no_size_is_refused(kata):
    for size in (0, -1):
        with pytest.raises(ValueError, match="^size: "):
            next(iter(kata.shuffle_buffer([1], size, random.Random(0))))
