"""The list of tiles, what a document must not see of its neighbours, and the work that is left."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.judge import assert_matches

BUILD = {"lengths": [1500, 548], "hq": 32, "hkv": 8, "d": 128}


def draw(oracle, device, seed, lengths, *, hq=1, d=16, dtype=torch.float16, **more):
    return oracle.make_inputs(
        lengths=lengths, hq=hq, d=d, dtype=dtype, device=device, seed=seed, **more
    )


def ends_of(lengths, device):
    ends = [sum(lengths[:at]) for at in range(len(lengths) + 1)]
    return torch.tensor(ends, dtype=torch.int32, device=device)


# ---- the list ------------------------------------------------------------------------------


def assert_mapped(kata, device, lengths, block_m, ends=None):
    ends = ends_of(lengths, device) if ends is None else ends
    seq, row = kata.tile_map(ends, sum(lengths), block_m)
    for name, x in (("seq", seq), ("row", row)):
        assert x.dtype == torch.int32, f"{name}: expected int32, found {x.dtype}"
        assert x.device.type == device, f"{name}: expected it on {device}, found it on {x.device}"
    want = [(i, at) for i, length in enumerate(lengths) for at in range(0, length, block_m)]
    want += [(-1, -1)] * (sum(lengths) // block_m + len(lengths) - len(want))
    found = list(zip(seq.tolist(), row.tolist(), strict=True))
    assert found == want, f"lengths {lengths}, block_m {block_m}: {found}, expected {want}"


@settings(max_examples=25)
@given(lengths=st.lists(st.integers(0, 9), max_size=7), block_m=st.integers(1, 5))
def test_no_tile_has_rows_of_two_documents(kata, device, lengths, block_m):
    assert_mapped(kata, device, lengths, block_m)


@pytest.mark.parametrize(
    ("lengths", "block_m"),
    [([127, 0, 128, 129], 128), ([1] * 64, 128), ([2**31 - 1], 2**30), ([0, 2**31 - 2, 1], 2**30),
     ([2**24 + 1], 2**23)],
    ids=["around a tile", "a token each", "the longest", "and one more", "no quotient of float32"],
)  # fmt: skip
def test_documents_around_the_size_of_a_tile(kata, device, lengths, block_m):
    assert_mapped(kata, device, lengths, block_m)


def test_a_list_is_of_the_documents_there_are_now(kata, device):
    # a buffer that every batch is written to: the same memory, tokens and number of documents
    ends = ends_of([5, 0, 40], device)
    assert_mapped(kata, device, [5, 0, 40], 16, ends)
    ends.copy_(ends_of([20, 20, 5], device))
    assert_mapped(kata, device, [20, 20, 5], 16, ends)


def test_the_host_does_not_wait(kata, device, dispatch, cost):
    ends = ends_of([5, 0, 40], device)
    with dispatch() as seen:
        kata.tile_map(ends, 45, 16)
    cost.check("host_waits", seen.host_syncs)


def test_as_many_operators_for_any_number_of_documents(kata, device, dispatch):
    used = []
    for documents in (2, 60):
        ends = ends_of([1] * documents, device)
        with dispatch() as seen:
            kata.tile_map(ends, documents, 16)
        used.append(sum(seen.calls.values()))
    assert used[0] == used[1], f"2 documents: {used[0]}, 60: {used[1]} operators of PyTorch"


def test_twice_the_documents_take_twice_the_memory(kata, device, dispatch):
    # not four times, as a matrix of tiles and documents does
    taken = []
    for documents in (500, 1000):
        ends = ends_of([1] * documents, device)
        with dispatch() as seen:
            kata.tile_map(ends, documents, 16)
        taken.append(seen.allocated_bytes)
    assert taken[1] < 2.5 * taken[0], f"500 documents: {taken[0]}, 1000: {taken[1]} bytes allocated"


# ---- documents -----------------------------------------------------------------------------


def test_each_document_begins_anew(kata, device):
    # all scores are 0, so a query that sees n keys has lse = ln n; values count 1, 2, 4 …
    q = torch.zeros(5, 1, 16, dtype=torch.float16, device=device)
    v = (2.0 ** torch.arange(5, device=device)).half().reshape(5, 1, 1).expand(5, 1, 16)
    out, lse = kata.packed_varlen_attn(q, q, v, ends_of([2, 3], device), 3)
    want = torch.tensor([1, 3 / 2, 4, 12 / 2, 28 / 3], dtype=torch.float64)
    assert_matches(out[:, 0, 0], want)
    assert_matches(lse[0], torch.tensor([1, 2, 1, 2, 3], dtype=torch.float64).log())


@pytest.mark.parametrize("d", [16, 20], ids=["by descriptor", "by pointers"])
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "whole"])
def test_two_tiles_of_keys_to_one_of_queries(kata, oracle, device, seed, monkeypatch, causal, d):
    # as on a GPU: the diagonal crosses both
    monkeypatch.setattr(kata, "CPU", kata.Config(m=32, n=16))
    inputs = draw(oracle, device, seed, [32, 1, 17, 45], d=d, causal=causal)
    want, trusted = oracle.reference(**inputs), oracle.same_precision(**inputs)
    assert_matches(kata.packed_varlen_attn(**inputs), want, same_precision=trusted)


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "whole"])
def test_other_documents_keep_their_bits(kata, oracle, device, seed, causal):
    lengths, at = [20, 33, 37], slice(20, 53)
    inputs = draw(oracle, device, seed, lengths, causal=causal)
    before = [x.clone() for x in kata.packed_varlen_attn(**inputs)]
    for name in "qkv":
        inputs[name][at] = -3 * inputs[name][at]
    out, lse = kata.packed_varlen_attn(**inputs)
    others = torch.ones(90, dtype=torch.bool, device=device)
    others[at] = False
    assert torch.equal(out[others], before[0][others]), "document 1 changed, out of 0 or 2 as well"
    assert torch.equal(lse[:, others], before[1][:, others]), "document 1 changed, lse of 0 or 2"


@pytest.mark.parametrize("bad", [math.nan, math.inf], ids=["nan", "inf"])
@pytest.mark.parametrize("d", [16, 20], ids=["by descriptor", "by pointers"])
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "whole"])
def test_what_is_not_finite_stays_in_its_document(kata, oracle, device, seed, causal, d, bad):
    inputs = draw(oracle, device, seed, [4, 20, 3, 7], d=d, causal=causal)
    before, _ = kata.packed_varlen_attn(**inputs)
    before = before.clone()
    for name in "qkv":
        inputs[name][24:27] = bad
    out, lse = kata.packed_varlen_attn(**inputs)
    for at in (slice(0, 24), slice(27, 34)):
        assert torch.equal(out[at], before[at]), f"{bad} in tokens 24 to 26, found in {at}"
        assert lse[:, at].isfinite().all(), f"{bad} in tokens 24 to 26, found in lse of {at}"


def test_products_of_a_packed_batch(kata, oracle, device, seed, traffic, cost):
    # tiles of 32 queries and 32 keys: 1, 1, 1, 1 + 2, none and 1 + 2 + 3 + 4 of keys
    inputs = draw(oracle, device, seed, [1, 31, 32, 33, 0, 100], hq=2)
    with traffic() as work:
        kata.packed_varlen_attn(**inputs)
    cost.check("products", work.dots)


def test_inputs_are_read_in_place(kata, oracle, device, seed, dispatch):
    inputs = draw(oracle, device, seed, [70], hq=2, layout="fused")
    with dispatch() as seen:
        out, lse = kata.packed_varlen_attn(**inputs)
    room = seen.allocated_bytes - out.nbytes - lse.nbytes
    assert room < inputs["k"].nbytes, f"{room} bytes allocated besides the results"


# ---- the softmax ---------------------------------------------------------------------------


def test_keys_in_order_of_rising_score(kata, oracle, device, seed):
    # scores of j / 4 to j for key j: each outweighs those before, each tile moves the maximum
    inputs = draw(oracle, device, seed, [100, 4], scale=0.25, causal=False)
    inputs["q"].zero_()[..., 0] = (1 + torch.arange(104) % 4)[:, None]
    inputs["k"][..., 0] = torch.arange(104)[:, None]
    want, trusted = oracle.reference(**inputs), oracle.same_precision(**inputs)
    assert_matches(kata.packed_varlen_attn(**inputs), want, same_precision=trusted)


@pytest.mark.parametrize(("x", "y"), [(33.0, 33.03125), (-6e4, 6e4)], ids=["near", "low"])
def test_scores_are_kept_in_float32(kata, device, x, y):
    # documents of one token, whose lse is their score; float16 has steps of 1 there, and no -3.6e9
    q, k = (torch.zeros(3, 1, 16, dtype=torch.float16, device=device) for _ in range(2))
    q[..., 0], k[..., 0] = x, y
    out, lse = kata.packed_varlen_attn(q, k, k, ends_of([1, 1, 1], device), 1, scale=0.3)
    assert lse[0].tolist() == pytest.approx([0.3 * x * y] * 3, rel=1e-6)
    assert out.tolist() == k.tolist()


def test_sums_are_kept_in_float32(kata, device):
    # the sum of 256 times 0.1 is 25.6, where float16 has steps of 1/64
    q = torch.zeros(256, 1, 16, dtype=torch.float16, device=device)
    v = torch.full_like(q, 0.1)
    out, _ = kata.packed_varlen_attn(q, q, v, ends_of([256], device), 256)
    assert out.unique().tolist() == v[0, 0, :1].tolist()


# ---- bad input -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ends",
    [[1, 5], [-1, 5], [0, 4], [0, 6], [0, 3, 2, 5], [0, 2**31 - 1, -2, 5], [0]],
    ids=["begins late", "begins early", "ends early", "ends late", "falls", "falls far",
         "no documents"],
)  # fmt: skip
def test_documents_that_are_not_those_of_the_tokens_are_refused(kata, device, ends):
    if device != "cpu":
        pytest.skip("values are looked at on the CPU only")
    q = torch.zeros(5, 1, 16, dtype=torch.float16)
    with pytest.raises(ValueError, match="^cu_seqlens: "):
        kata.packed_varlen_attn(q, q, q, torch.tensor(ends, dtype=torch.int32), 5)


@pytest.mark.parametrize("lengths", [[2, 4, 1], [1, 0]], ids=str)
def test_no_document_is_longer_than_max_seqlen(kata, device, lengths):
    if device != "cpu":
        pytest.skip("values are looked at on the CPU only")
    q = torch.zeros(sum(lengths), 1, 16, dtype=torch.float16)
    with pytest.raises(ValueError, match="^max_seqlen: "):
        kata.packed_varlen_attn(q, q, q, ends_of(lengths, device), max(lengths) - 1)
    kata.packed_varlen_attn(q, q, q, ends_of(lengths, device), max(lengths) + 1)


@pytest.mark.parametrize("name", ["scale", "cu_seqlens"])
def test_what_is_refused_takes_no_memory(kata, device, dispatch, name):
    n = 2**14
    q = torch.zeros(1, 1, 1, dtype=torch.float16, device=device).expand(n, 8, 128)
    ends = ends_of([n], device)
    bad = {"scale": {"scale": 0.0}, "cu_seqlens": {"cu_seqlens": ends.long()}}[name]
    with dispatch() as seen, pytest.raises(ValueError, match=f"^{name}: "):
        kata.packed_varlen_attn(q, q, q, **{"cu_seqlens": ends, "max_seqlen": n, **bad})
    results = n * 8 * (128 * 2 + 4)
    taken = seen.allocated_bytes
    assert taken < results / 2, f"{name} refused: {taken} bytes allocated, of results {results}"


def test_bfloat16_on_the_cpu_is_refused(kata):
    q = torch.zeros(3, 1, 16, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="^q: "):
        kata.packed_varlen_attn(q, q, q, ends_of([3], "cpu"), 3)


# ---- the build ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "instruction", "dtype"),
    [("sm_90", "wgmma.mma_async", "bfloat16"), ("sm_80", "mma.sync", "float16")],
)
def test_products_run_on_tensor_cores(compiled, target, instruction, dtype):
    kernels = compiled(target=target, dtype=dtype, **BUILD)
    assert kernels, "no kernel was launched"
    assert all(kernel.has(instruction) for kernel in kernels), f"no {instruction} for {target}"


def test_float32_is_not_rounded_to_tf32(compiled):
    (kernel,) = compiled(target="sm_80", dtype="float32", lengths=[128], hq=1, d=64)
    assert "tf32" not in kernel.ptx, 'expected input_precision="ieee" in both products'
