"""Files byte by byte, samples against slices of one list, and memory that does not grow."""

import hashlib
import os
import pickle
import random
import re
import struct
from pathlib import Path

import numpy as np
import pytest


def found_samples(dataset):
    return [dataset[i].tolist() for i in range(len(dataset))]


def refused(path):
    return pytest.raises(ValueError, match=f"^{re.escape(str(path))}: ")


# ---- the files -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("vocab_size", "code"), [(1, 1), (300, 1), (65_499, 1), (65_500, 2), (2**31, 2)], ids=str
)
def test_files_are_as_described(kata, oracle, tmp_path, seed, vocab_size, code):
    docs = [*oracle.documents(seed, [3, 0, 1, 40, 0], vocab_size), [vocab_size - 1, 0]]
    kata.write_tokens(iter(docs), tmp_path / "corpus", vocab_size)
    oracle.write(tmp_path / "expected", docs, code)
    for suffix in ("bin", "idx"):
        found = (tmp_path / f"corpus.{suffix}").read_bytes()
        expected = (tmp_path / f"expected.{suffix}").read_bytes()
        assert found == expected, f"vocab_size={vocab_size}, .{suffix}, {docs}"


def test_a_prefix_may_have_dots_and_is_a_path_or_a_string(kata, oracle, tmp_path):
    for prefix in (tmp_path / "corpus.v2", str(tmp_path / "corpus.v1.5")):
        kata.write_tokens([[1, 2, 3]], prefix, 10)
        assert Path(f"{prefix}.bin").read_bytes() == oracle.token_bytes([1, 2, 3])
        assert Path(f"{prefix}.idx").exists()
        assert kata.GPTTokens(prefix, 2, 0, 1)[0].tolist() == [1, 2, 3]


def test_nothing_is_written_as_nothing(kata, oracle, tmp_path):
    kata.write_tokens([], tmp_path / "corpus", 10)
    assert (tmp_path / "corpus.bin").read_bytes() == b""
    assert (tmp_path / "corpus.idx").read_bytes() == oracle.index_bytes([], [])


@pytest.mark.parametrize(
    ("vocab_size", "token"),
    [
        (10, 10),
        (10, -1),
        (300, 65_536),
        (65_500, 65_500),
        (65_500, 2**32),
        (65_500, 2**64),
        (2**31, 2**31),
    ],
    ids=str,
)
def test_tokens_outside_the_vocabulary_are_refused(kata, tmp_path, vocab_size, token):
    with pytest.raises(ValueError, match=r"^docs: "):
        kata.write_tokens([[1], [2, token, 3]], tmp_path / "corpus", vocab_size)


@pytest.mark.parametrize("vocab_size", [0, -1, 2**31 + 1], ids=str)
def test_vocabularies_of_no_size_are_refused(kata, tmp_path, vocab_size):
    with pytest.raises(ValueError, match=r"^vocab_size: "):
        kata.write_tokens([[]], tmp_path / "corpus", vocab_size)


def test_documents_are_written_as_they_come(kata, tmp_path, host_memory, cost):
    with host_memory() as held:
        kata.write_tokens(([7] * 4000 for _ in range(100)), tmp_path / "corpus", 10)
    cost.check("writing_bytes", held.peak_bytes)


# ---- the sample index ----------------------------------------------------------------------


def check_index(kata, oracle, lens, order, seq_len, dtype=np.int64):
    found = kata.build_sample_index(np.array(lens, dtype), np.array(order, np.int64), seq_len)
    expected = oracle.sample_index(lens, order, seq_len)
    given = f"build_sample_index({lens}, {order}, {seq_len})"
    assert found.dtype == np.int64, f"{given}: expected int64, found {found.dtype}"
    assert found.tolist() == expected, f"{given}: expected {expected}, found {found.tolist()}"


def test_index_says_where_every_sample_begins(kata, oracle, seed):
    draw = random.Random(seed)
    for trial in range(60):
        lens = [draw.choice([0, 0, 1, 2, 3, 9]) for _ in range(draw.randint(1, 8))] + [trial + 1]
        order = [draw.randrange(len(lens)) for _ in range(2 * len(lens))] + [len(lens) - 1]
        total = sum(lens[number] for number in order)
        if total > 1:
            dtype = draw.choice([np.int32, np.int64])
            check_index(kata, oracle, lens, order, draw.randint(1, min(total - 1, 12)), dtype)


@pytest.mark.parametrize(
    ("lens", "seq_len"),
    [([4, 4, 4], 4), ([4, 4, 5], 4), ([0, 5, 0, 0, 5, 0], 5), ([13], 12), ([1, 1], 1)],
    ids=["multiple", "one more", "empty at the borders", "one sample", "shortest"],
)
def test_index_where_samples_meet_documents(kata, oracle, lens, seq_len):
    check_index(kata, oracle, lens, range(len(lens)), seq_len)


def test_index_past_31_bits(kata):
    lens = np.array([2**31 - 1, 0, 2**31 - 1], np.int32)
    found = kata.build_sample_index(lens, np.array([2, 1, 0, 2, 2]), 2**31)
    assert found.tolist() == [[0, 0], [2, 1], [3, 2], [4, 3]]


@pytest.mark.parametrize(
    ("lens", "seq_len"),
    [([3, 4], 0), ([3, 4], -1), ([3, 4], 7), ([0, 0], 1), ([], 1)],
    ids=["zero", "negative", "no label for the last", "only empty ones", "no documents"],
)
def test_samples_that_do_not_exist_are_refused(kata, oracle, tmp_path, lens, seq_len):
    with pytest.raises(ValueError, match=r"^seq_len: "):
        kata.build_sample_index(np.array(lens, np.int64), np.arange(len(lens)), seq_len)
    oracle.write(tmp_path / "corpus", oracle.documents(0, lens, 10))
    with pytest.raises(ValueError, match=r"^seq_len: "):
        kata.GPTTokens(tmp_path / "corpus", seq_len, 0, 1)


def test_index_takes_few_lines(kata, lines, cost):
    lens = np.arange(20_000) % 97
    with lines(limit=1_000_000) as counted:
        kata.build_sample_index(lens, np.arange(20_000), 64)
    cost.check("index_lines", counted.lines)


# ---- samples -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lens", "seq_len", "epochs"),
    [
        ([50, 31], 8, 1),
        ([3, 1, 0, 2, 4, 0, 1, 5], 7, 1),
        ([3, 1, 0, 2], 5, 3),
        ([5], 8, 2),
        ([0, 3, 0], 2, 1),
        ([2, 2, 2], 1, 2),
    ],
    ids=["long", "short and empty", "over epochs", "too short alone", "one", "pairs"],
)
def test_samples_are_slices_of_the_shuffled_documents(
    kata, oracle, tmp_path, seed, lens, seq_len, epochs
):
    for code in (1, 2):
        docs = oracle.documents(seed, lens, 60_000)
        oracle.write(tmp_path / "corpus", docs, code)
        for own in range(5):
            dataset = kata.GPTTokens(tmp_path / "corpus", seq_len, own, epochs)
            expected = oracle.samples(docs, seq_len, own, epochs)
            found = found_samples(dataset)
            assert found == expected, (
                f"GPTTokens({docs}, {seq_len}, {own}, {epochs}): expected {expected}, found {found}"
            )
            assert {dataset[i].dtype for i in range(len(dataset))} == {np.dtype("Hi"[code - 1])}


def test_the_index_says_where_documents_are(kata, oracle, tmp_path, seed):
    docs = oracle.documents(seed, [5, 0, 9, 4], 1000)
    oracle.write(tmp_path / "corpus", docs, places=[3, 1, 0, 2])
    with (tmp_path / "corpus.bin").open("ab") as file:
        file.write(oracle.token_bytes([1, 2, 3]))  # of no document
    found = found_samples(kata.GPTTokens(tmp_path / "corpus", 4, 1, 2))
    assert found == oracle.samples(docs, 4, 1, 2)


def test_samples_end(kata, oracle, tmp_path):
    oracle.write(tmp_path / "corpus", [[1, 2, 3, 4, 5]])
    dataset = kata.GPTTokens(tmp_path / "corpus", 2, 0, 1)
    for i in (2, -1, -3):
        with pytest.raises(IndexError):
            dataset[i]
    assert len(list(dataset)) == 2


def test_a_sample_of_one_document_is_a_view(kata, oracle, tmp_path):
    oracle.write(tmp_path / "corpus", [list(range(9)), [20] * 5])
    dataset = kata.GPTTokens(tmp_path / "corpus", 4, 3, 1)
    for i in range(len(dataset)):
        sample = dataset[i]
        alone = (sample < 20).all() or (sample == 20).all()
        assert np.shares_memory(sample, dataset.tokens) or not alone, (
            f"sample {i}, {sample.tolist()}: expected a view of dataset.tokens, found a copy"
        )
    assert not dataset.tokens.flags.writeable


def test_a_sample_of_several_documents_is_a_new_array(kata, oracle, tmp_path, seed):
    docs = oracle.documents(seed, [3] * 6, 60_000)
    oracle.write(tmp_path / "corpus", docs)
    dataset = kata.GPTTokens(tmp_path / "corpus", 4, 0, 1)
    kept = [dataset[i] for i in range(len(dataset))]
    found, expected = [sample.tolist() for sample in kept], oracle.samples(docs, 4, 0, 1)
    assert found == expected, f"{docs}: expected {expected} kept from reading to reading: {found}"


def check_mapped(kata, oracle, prefix):
    oracle.write(prefix, [[1] * 40, [1] * 30])
    dataset = kata.GPTTokens(prefix, 6, 3, 1)
    with Path(f"{prefix}.bin").open("r+b") as file:
        file.write(oracle.token_bytes([2] * 70))
    found = found_samples(dataset)
    assert found == [[2] * 7] * 11, f"every token was changed to 2 in the file, found {found}"


def test_the_file_is_mapped_and_not_kept(kata, oracle, tmp_path):
    check_mapped(kata, oracle, tmp_path / "corpus")


def test_offsets_past_31_bits(kata, oracle, tmp_path):
    check_mapped(kata, oracle, tmp_path / "small")  # or else 5 GiB would be read
    far = 5 * 2**30
    oracle.write_sparse(tmp_path / "corpus", [4, 4], [far, 0], far + 8)
    with (tmp_path / "corpus.bin").open("r+b") as file:
        file.write(oracle.token_bytes([1, 2, 3, 4]))
        file.seek(far)
        file.write(oracle.token_bytes([5, 6, 7, 8]))
    found = found_samples(kata.GPTTokens(tmp_path / "corpus", 4, 0, 2))
    assert found == oracle.samples([[5, 6, 7, 8], [1, 2, 3, 4]], 4, 0, 2)


def test_workers_get_no_tokens_but_the_same_samples(kata, oracle, tmp_path, seed):
    docs = oracle.documents(seed, [4000, 3000], 1000)
    oracle.write(tmp_path / "corpus", docs)
    dataset = kata.GPTTokens(tmp_path / "corpus", 9, 5, 1)
    sent = pickle.dumps(dataset)
    assert len(sent) < 1000, f"expected fewer than 1000 bytes pickled, found {len(sent)}"
    received = pickle.loads(sent)
    assert found_samples(received) == found_samples(dataset)


def test_opening_and_reading_take_little_memory(kata, oracle, tmp_path, host_memory, cost):
    size, seq_len = 2**26, 1024
    lens = [size // 2 // 512] * 512
    oracle.write_sparse(tmp_path / "corpus", lens, range(0, size, size // 512), size)
    with host_memory() as held:
        dataset = kata.GPTTokens(tmp_path / "corpus", seq_len, 0, 1)
    cost.check("open_bytes", held.peak_bytes)
    with host_memory() as held:
        for i in range(200):
            dataset[i]
    cost.check("item_bytes", held.peak_bytes)


# ---- damage --------------------------------------------------------------------------------


@pytest.mark.parametrize("places", [None, [2, 0, 1]], ids=["in order", "out of order"])
@pytest.mark.parametrize("cut", [1, 2, 14, -1], ids=str)
def test_a_token_file_of_another_size_is_refused(kata, oracle, tmp_path, cut, places):
    oracle.write(tmp_path / "corpus", [[1, 2, 3], [4, 5], [6, 7]], places=places)
    path = tmp_path / "corpus.bin"
    os.truncate(path, path.stat().st_size - cut)
    with refused(path):
        kata.GPTTokens(tmp_path / "corpus", 2, 0, 1)


@pytest.mark.parametrize(
    ("lens", "offsets"),
    [([1], [8]), ([3], [4]), ([4, 0], [0, 10])],
    ids=["behind the end", "across the end", "an empty one"],
)
def test_documents_behind_the_end_are_refused(kata, oracle, tmp_path, lens, offsets):
    oracle.write(tmp_path / "corpus", [[1, 2, 3, 4]])  # 8 bytes
    (tmp_path / "corpus.idx").write_bytes(oracle.index_bytes(lens, offsets))
    with refused(tmp_path / "corpus.bin"):
        kata.GPTTokens(tmp_path / "corpus", 1, 0, 2)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"KATATOKS",
        struct.pack("<8sQQ2q", b"KATATOKZ", 1, 1, 3, 0),
        struct.pack("<8sQQ2q", b"KATATOKS", 3, 1, 3, 0),
        struct.pack("<8sQQ2q", b"KATATOKS", 1, 1, 3, 0)[:-1],
        struct.pack("<8sQQ2q", b"KATATOKS", 1, 1, 3, 0) + b"\0",
        struct.pack("<8sQQ2q", b"KATATOKS", 1, 2**60, 3, 0),
        struct.pack("<8sQQ4q", b"KATATOKS", 1, 2, 3, -1, 0, 0),
        struct.pack("<8sQQ2q", b"KATATOKS", 1, 1, 3, -2),
        struct.pack("<8sQQ2q", b"KATATOKS", 1, 1, 3, 1),
    ],
    ids=[
        "empty",
        "short header",
        "magic",
        "dtype code",
        "cut off",
        "too long",
        "too many documents",
        "negative length",
        "negative offset",
        "half a token",
    ],
)
def test_a_damaged_index_is_refused(kata, oracle, tmp_path, raw):
    oracle.write(tmp_path / "corpus", [[1, 2, 3, 4]])
    (tmp_path / "corpus.idx").write_bytes(raw)
    with refused(tmp_path / "corpus.idx"):
        kata.GPTTokens(tmp_path / "corpus", 2, 0, 1)


def test_fewer_than_one_epoch_is_refused(kata, oracle, tmp_path):
    oracle.write(tmp_path / "corpus", [[1, 2, 3, 4]])
    with pytest.raises(ValueError, match=r"^epochs: "):
        kata.GPTTokens(tmp_path / "corpus", 2, 0, 0)


# ---- the key of a cache --------------------------------------------------------------------


@pytest.fixture
def sources(tmp_path):
    files = [tmp_path / "a.txt", tmp_path / "b.txt"]
    files[0].write_bytes("grün\r\n".encode())
    files[1].write_bytes(b"\xff\xfe\x00\x81")  # no UTF-8
    return files


def test_key_stays_where_the_tokens_stay(kata, tmp_path, sources):
    cfg = {"eos": 0, "split": {"train": 0.9, "test": 0.1}}
    key = kata.cache_key(sources, "bpe-50k", cfg)
    assert re.fullmatch("[0-9a-f]{64}", key), f"expected 64 hexadecimal digits, found {key}"
    os.utime(sources[0], (1, 1))
    assert kata.cache_key(sources, "bpe-50k", cfg) == key, "another mtime changed the key"
    moved = tmp_path / "moved"
    moved.mkdir()
    files = [str(file.rename(moved / f"c{file.name}")) for file in sources]
    assert kata.cache_key(files, "bpe-50k", cfg) == key, "another place and name changed the key"
    cfg = {"split": {"test": 0.1, "train": 0.9}, "eos": 0}
    assert kata.cache_key(files, "bpe-50k", cfg) == key, "another order of keys changed the key"


def test_key_changes_with_whatever_changes_tokens(kata, tmp_path, sources):
    a, b = sources
    joined, rest = tmp_path / "joined", tmp_path / "rest"
    joined.write_bytes(a.read_bytes() + b.read_bytes()[:1])
    rest.write_bytes(b.read_bytes()[1:])
    keys = {
        "as it was": kata.cache_key([a, b], "bpe", {"eos": 1}),
        "sources the other way round": kata.cache_key([b, a], "bpe", {"eos": 1}),
        "one source": kata.cache_key([a], "bpe", {"eos": 1}),
        "one source twice": kata.cache_key([a, b, b], "bpe", {"eos": 1}),
        "a byte in the next file": kata.cache_key([joined, rest], "bpe", {"eos": 1}),
        "no source": kata.cache_key([], "bpe", {"eos": 1}),
        "another tokenizer": kata.cache_key([a, b], "bpe2", {"eos": 1}),
        "another case": kata.cache_key([a, b], "BPE", {"eos": 1}),
        "a float for one": kata.cache_key([a, b], "bpe", {"eos": 1.0}),
        "another value": kata.cache_key([a, b], "bpe", {"eos": 2}),
        "true for one": kata.cache_key([a, b], "bpe", {"eos": True}),
        "text for one": kata.cache_key([a, b], "bpe", {"eos": "1"}),
        "another name": kata.cache_key([a, b], "bpe", {"bos": 1}),
        "the digest of a source in the tokenizer's name": kata.cache_key(
            [a], f"{hashlib.sha256(b.read_bytes()).hexdigest()}bpe", {"eos": 1}
        ),
        "no settings, another tokenizer": kata.cache_key([a, b], "bpe2", {}),
        "no settings": kata.cache_key([a, b], "bpe", {}),
        "a list": kata.cache_key([a, b], "bpe", {"eos": [1, 2]}),
        "the list the other way round": kata.cache_key([a, b], "bpe", {"eos": [2, 1]}),
    }
    joined.write_bytes(a.read_bytes().replace(b"\r\n", b"\n"))
    keys["another end of a line"] = kata.cache_key([joined, b], "bpe", {"eos": 1})
    rest.write_bytes(b.read_bytes().replace(b"\x81", b"\x82"))
    keys["another byte that is no text"] = kata.cache_key([a, rest], "bpe", {"eos": 1})
    before = a.stat()
    a.write_bytes(a.read_bytes().swapcase())
    os.utime(a, ns=(before.st_atime_ns, before.st_mtime_ns))
    keys["same size and mtime"] = kata.cache_key([a, b], "bpe", {"eos": 1})
    seen = {}
    for what, key in keys.items():
        assert key not in seen, f"{what}: expected a key of its own, found that of {seen[key]}"
        seen[key] = what


def test_key_is_the_same_in_every_process(kata, sources, monkeypatch):
    keys = []
    for salt in (1, 2):  # as each process has its own
        with monkeypatch.context() as patch:
            patch.setattr("builtins.hash", lambda _, salt=salt: salt)
            keys.append(kata.cache_key(sources, "bpe", {"eos": 1}))
    assert keys[0] == keys[1], f"hash() differs by process, and so does the key: {keys}"


def test_sources_are_not_held_in_memory(kata, tmp_path, host_memory, cost):
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(2**24)
    with host_memory() as held:
        before = kata.cache_key([large], "bpe", {})
    cost.check("key_bytes", held.peak_bytes)
    with large.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"1")
    after = kata.cache_key([large], "bpe", {})
    assert after != before, f"the last byte of 2**24 was changed: expected another key than {after}"
