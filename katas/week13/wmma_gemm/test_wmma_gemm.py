"""What is special about a product by fragments: exact sums, tiles in shared memory, reuse."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.judge import assert_matches

INF, NAN = float("inf"), float("nan")


def integers(*size, device):
    """From -4 to 4: products and sums are exact in float32, in any order."""
    return torch.randint(-4, 5, size, device=device).half()


# ---- sums ----------------------------------------------------------------------------------


@settings(max_examples=6)
@given(m=st.integers(0, 11), n=st.integers(0, 11), k=st.integers(0, 6))
def test_any_whole_fragments_are_exact_in_integers(kata, device, m, n, k):
    a, b = integers(16 * m, 16 * k, device=device), integers(16 * k, 16 * n, device=device)
    assert_matches(kata.wmma_gemm(a, b), a.double() @ b.double())


def test_products_are_summed_in_float32(kata, device):
    # 40 terms of 10^4, then 40 of -10^4 and one: far past float16 on the way
    a = torch.full((16, 96), 100.0, dtype=torch.float16, device=device)
    b = torch.full((96, 16), 100.0, dtype=torch.float16, device=device)
    b[40:] *= -1
    b[81:] = 0
    assert kata.wmma_gemm(a, b).tolist() == [[-10000.0] * 16] * 16


def test_nan_and_infinity_stay_in_their_rows_and_columns(kata, device):
    a, b = (torch.ones(48, 48, dtype=torch.float16, device=device) for _ in "ab")
    a[3, 7], b[9, 40] = NAN, INF
    want = torch.full((48, 48), 48.0, device=device)
    want[:, 40], want[3] = INF, NAN
    assert torch.equal(kata.wmma_gemm(a, b).nan_to_num(nan=-1.0), want.nan_to_num(nan=-1.0))


# ---- memory --------------------------------------------------------------------------------


@pytest.mark.parametrize("of", ["a", "b"])
def test_rows_that_lie_apart_are_read_in_place(kata, dispatch, device, of):
    # eight elements between two rows, which are no part of the matrix
    a, b = integers(32, 48, device=device), integers(48, 80, device=device)
    want = a.double() @ b.double()
    given = a if of == "a" else b
    wide = torch.full((len(given), given.shape[1] + 8), NAN, dtype=torch.float16, device=device)
    part = wide[:, :-8].copy_(given)
    with dispatch() as d:
        c = kata.wmma_gemm(part, b) if of == "a" else kata.wmma_gemm(a, part)
    assert_matches(c, want)
    assert d.allocated_bytes <= c.nbytes


def ones(*size, device):
    return torch.ones(size, dtype=torch.float16, device=device)


# the first row lies between two pieces; or only every other row begins where a piece does; or all
# rows do, but their elements lie apart
ODD = {
    "from 8 bytes on": lambda device: ones(16 * 16 + 4, device=device)[4:].view(16, 16),
    "40 bytes apart": lambda device: ones(16, 20, device=device)[:, :16],
    "every other element": lambda device: ones(16, 32, device=device)[:, ::2],
}


@pytest.mark.parametrize("name", ["a", "b"])
@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_rows_that_are_no_whole_pieces_are_refused(kata, device, name, odd):
    operands = {"a": ones(16, 16, device=device), "b": ones(16, 16, device=device)}
    with pytest.raises(ValueError, match=f"^{name}: .*strides"):
        kata.wmma_gemm(**operands | {name: odd(device)})


@pytest.mark.parametrize("name", ["a", "b"])
@pytest.mark.parametrize("size", [(16,), (16, 16, 1), (16, 24), (24, 16)], ids=str)
def test_a_refusal_begins_with_the_argument(kata, device, name, size):
    operands = {"a": ones(16, 16, device=device), "b": ones(16, 16, device=device)}
    with pytest.raises(ValueError, match=f"^{name}: "):
        kata.wmma_gemm(**operands | {name: ones(*size, device=device)})


# ---- what warps do -------------------------------------------------------------------------


@pytest.fixture
def counted(kata, ptx):
    """What whole tiles take: 128 x 128 x 64."""

    def count():
        with ptx() as p:
            kata.wmma_gemm(integers(128, 64, device="cpu"), integers(64, 128, device="cpu"))
        return p

    return count


def test_tensor_cores_make_all_products(counted):
    assert counted().counters["tensor_flops"] >= 2 * 128 * 128 * 64


def test_each_fragment_feeds_several_products(counted, cost):
    p = counted()
    cost.check("products_per_load", p.tensor_ops / max(p.counters["wmma_load"], 1))


def test_rows_of_a_tile_lie_in_different_banks(counted, cost):
    cost.check("bank_conflicts", counted().bank_conflicts)


@pytest.mark.parametrize("target", ["sm_75", "sm_90"])
def test_product_is_built_for_other_gpus(compiled, target):
    (kernel,) = compiled(target=target, m=256, n=256, k=128, dtype="float16")
    assert kernel.has("HMMA")
    assert kernel.spills == 0
