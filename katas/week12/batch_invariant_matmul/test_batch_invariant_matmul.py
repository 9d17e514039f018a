"""What is special about products for a server: the same bits in every batch, and who notices."""

import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

NAN = float("nan")
BUILD = {"n": 4096, "k": 4096, "dtype": "float16"}  # with 4096 rows a case of kata.toml


def bits(x):
    return x.view(torch.int16 if x.itemsize == 2 else torch.int32)


def operands(rows, k, n, dtype, device, transposed=False):
    """N(0, 1); `b` as it is, or as the weight of a linear layer lies."""
    a = torch.randn(rows, k).to(dtype).to(device)
    b = torch.randn((n, k) if transposed else (k, n)).to(dtype).to(device)
    return a, b.T if transposed else b


# ---- bits ----------------------------------------------------------------------------------


@settings(max_examples=5)
@given(
    picked=st.lists(st.integers(0, 19), min_size=1, max_size=18),
    dtype=st.sampled_from([torch.float16, torch.float32]),
    transposed=st.booleans(),
)
def test_any_batch_of_rows_has_the_bits_of_the_whole(kata, device, picked, dtype, transposed):
    # rows in any order, also twice
    a, b = operands(20, 40, 16, dtype, device, transposed)
    whole = kata.batch_invariant_matmul(a, b)
    part = kata.batch_invariant_matmul(a[picked], b)
    rows = [i for i, row in enumerate(bits(part) != bits(whole)[picked]) if row.any()]
    assert rows == [], f"rows {picked} of 20: other bits in places {rows}"


@pytest.mark.parametrize("k", [40, 35], ids=["aligned rows", "odd rows"])
@pytest.mark.parametrize("end", ["first", "last"])
def test_rows_have_the_same_bits_in_every_number_of_rows(kata, device, end, k):
    # the last rows stand elsewhere in a part than in the whole: in another tile, in another place
    a, b = operands(70, k, 8, torch.float32, device)
    whole = bits(kata.batch_invariant_matmul(a, b))
    for m in (1, 7, 16, 17, 33, 64):
        those = slice(m) if end == "first" else slice(70 - m, 70)
        part = bits(kata.batch_invariant_matmul(a[those], b))
        rows = (part != whole[those]).any(dim=1).nonzero().flatten().tolist()
        assert rows == [], f"the {end} {m} of 70 rows: other bits in rows {rows} of them"


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("bad", [NAN, 6e4], ids=["nan", "large"])
def test_other_rows_leave_no_trace(kata, device, dtype, bad):
    a, b = operands(20, 40, 16, dtype, device)
    alone = kata.batch_invariant_matmul(a[5:6], b)
    a[:5], a[6:] = bad, bad
    beside = kata.batch_invariant_matmul(a, b)[5:6]
    different = (bits(alone) != bits(beside)).flatten().nonzero().flatten().tolist()
    assert different == [], f"row 5 beside rows of {bad}: other bits in columns {different}"


def test_products_are_summed_in_float32(kata, device):
    # 49 terms of 10^4, then 47 of -10^4: far past float16 on the way, 20000 in the end
    a = torch.full((2, 96), 100.0, dtype=torch.float16, device=device)
    b = torch.full((96, 8), 100.0, dtype=torch.float16, device=device)
    b[49:] *= -1
    assert kata.batch_invariant_matmul(a, b).tolist() == [[20000.0] * 8] * 2


@pytest.mark.parametrize("of", ["a", "b"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_what_lies_past_the_end_adds_nothing(kata, device, of, dtype):
    # NaN times a masked zero would still be NaN; rows of 24 suit a descriptor
    size = {"a": (5, 24), "b": (24, 8)}[of]
    padded = torch.full(size, NAN, device=device, dtype=dtype)
    part = padded[:, :19] if of == "a" else padded[:19]
    part.fill_(1.0)
    other = torch.ones((19, 8) if of == "a" else (5, 19), device=device, dtype=dtype)
    a, b = (part, other) if of == "a" else (other, part)
    assert kata.batch_invariant_matmul(a, b).tolist() == [[19.0] * 8] * 5


def test_rows_may_begin_anywhere(kata, device):
    # 2 bytes past a multiple of 16; all at one place, which is a stride of 0
    ones = torch.ones(1 + 8 * 32, dtype=torch.float16, device=device)
    b = torch.ones(16, 8, dtype=torch.float16, device=device)
    for a in (ones[1:129].view(8, 16), ones[:16].expand(8, 16)):
        assert kata.batch_invariant_matmul(a, b).tolist() == [[16.0] * 8] * 8


# ---- what the compiler makes of it ---------------------------------------------------------


def test_all_numbers_of_rows_have_one_build(compiled, cost):
    # 1 and multiples of 16 are what Triton builds into a kernel
    builds = {compiled(target="sm_90", m=m, **BUILD)[0].ptx for m in (1, 16, 17, 100, 4096)}
    cost.check("builds", len(builds))


def test_float32_has_one_build_too(compiled):
    case = {**BUILD, "dtype": "float32"}
    builds = {compiled(target="sm_80", m=m, **case)[0].ptx for m in (1, 17, 4096)}
    assert len(builds) == 1, f"1, 17 and 4096 rows: expected one build, found {len(builds)}"


@pytest.mark.parametrize(
    ("target", "instruction"), [("sm_90", "wgmma.mma_async"), ("sm_80", "mma.sync")]
)
def test_products_run_on_tensor_cores(compiled, target, instruction):
    # by descriptor there, by pointer here
    (kernel,) = compiled(target=target, m=4096, b_layout="cols", **BUILD)
    assert kernel.has(instruction)


def test_sums_are_not_atomic(compiled):
    (kernel,) = compiled(target="sm_90", m=4096, **BUILD)
    assert re.findall(r"\b(?:red|atom)\.", kernel.ptx) == []


# ---- who notices ---------------------------------------------------------------------------


def odd_when(rows, *places):
    """A product of integers whose last column is 1 too large at `places` of `rows` rows."""

    def fn(a, b):
        assert len(a), "a batch of no rows"
        c = a @ b
        if len(a) == rows:
            c[list(places), -1] += 1
        return c

    return fn


@pytest.mark.parametrize(
    ("fn", "sizes", "want"),
    [
        (odd_when(3, 1), [4, 3, 1], (9, 4)),  # the last batch of 11 rows in fours has three
        (odd_when(3, 1), [11, 5, 3, 1], (1, 3)),
        (odd_when(4, 3), [1, 2, 4], (3, 4)),
        (odd_when(4, 3, 2), [4, 2], (2, 4)),
        (odd_when(1, 0), [7, 5], (10, 5)),
        (odd_when(1, 0), [4, 1, 5], (0, 1)),
        (odd_when(1, 0), [4, 6, 11, 12, 1000], None),
        (odd_when(2, 0), [], None),
    ],
    ids=["short", "order", "within", "lowest", "alone", "first", "none", "no sizes"],
)
def test_first_divergence_by_hand(kata, device, fn, sizes, want):
    a = torch.arange(44.0, device=device).view(11, 4)
    b = torch.ones(4, 3, device=device)
    found = kata.first_divergence(fn, a, b, iter(sizes))
    assert repr(found) == repr(want)  # two ints, no tensors


def test_first_divergence_in_a_product_tuned_by_rows(kata, oracle, device):
    a, b = operands(40, 64, 16, torch.float32, device)
    assert kata.first_divergence(oracle.tuned, a, b, [40, 20, 16]) == (32, 16)
    assert kata.first_divergence(oracle.tuned, a, b, [20, 1, 16])[1] == 1


def test_first_divergence_finds_none_in_yours(kata, device):
    a, b = operands(20, 40, 16, torch.float16, device)
    assert kata.first_divergence(kata.batch_invariant_matmul, a, b, [17, 5]) is None


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str
)
def test_first_divergence_compares_bits(kata, device, dtype):
    a = torch.zeros(3, 2, dtype=dtype, device=device)
    b = torch.zeros(2, 2, dtype=dtype, device=device)

    def nan(a, b):
        return torch.full((len(a), 2), NAN, dtype=dtype, device=device)

    def minus_zero(a, b):
        return torch.full((len(a), 2), 0.0 if len(a) == 3 else -0.0, dtype=dtype, device=device)

    assert kata.first_divergence(nan, a, b, [1, 2]) is None
    assert kata.first_divergence(minus_zero, a, b, [3, 2]) == (0, 2)


def test_first_divergence_of_results_in_one_buffer(kata, device):
    # as a captured graph returns them
    buffer = torch.zeros(6, 2, device=device)

    def fn(a, b):
        out = buffer[: len(a)]
        out.copy_(a @ b + (len(a) == 2))
        return out

    a, b = torch.ones(6, 3, device=device), torch.ones(3, 2, device=device)
    assert kata.first_divergence(fn, a, b, [3, 2]) == (0, 2)


@pytest.mark.parametrize("sizes", [[0], [2, -1]], ids=str)
def test_first_divergence_refuses_sizes_below_1(kata, sizes):
    a, b = torch.ones(6, 3), torch.ones(3, 2)
    with pytest.raises(ValueError, match="^batch_sizes: "):
        kata.first_divergence(odd_when(2, 0), a, b, sizes)


def test_first_divergence_of_no_rows(kata):
    assert kata.first_divergence(torch.matmul, torch.ones(0, 3), torch.ones(3, 2), [1, 4]) is None
