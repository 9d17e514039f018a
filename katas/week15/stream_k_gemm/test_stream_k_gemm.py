"""What is special about a GEMM cut evenly: who has which iterations, and parts that add up."""

import re
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.judge import assert_matches

NAN = float("nan")
TILE = 16 * 16  # elements of a that an iteration of the interpreter's tiles loads
BUILD = {"m": 1536, "n": 3072, "k": 8192, "dtype": "float16"}  # a case of kata.toml


# ---- the plan ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "programs", "want"),
    [
        (
            (32, 48, 40), 4,  # 6 tiles of 3 iterations
            [
                [(0, 0, 3), (4, 0, 2)],
                [(1, 0, 3), (4, 2, 3), (5, 0, 1)],
                [(2, 0, 3), (5, 1, 2)],
                [(3, 0, 3), (5, 2, 3)],
            ],
        ),
        ((16, 16, 112), 3, [[(0, 0, 3)], [(0, 3, 5)], [(0, 5, 7)]]),
        ((16, 17, 32), 5, [[(0, 0, 1)], [(0, 1, 2)], [(1, 0, 1)], [(1, 1, 2)], []]),
        ((32, 32, 20), 2, [[(0, 0, 2), (2, 0, 2)], [(1, 0, 2), (3, 0, 2)]]),
        ((1, 33, 1), 2, [[(0, 0, 1), (2, 0, 1)], [(1, 0, 1)]]),
        ((40, 16, 0), 2, [[], []]),
    ],
    ids=["two tiles cut", "for three", "more programs", "whole waves", "one iteration", "no k"],
)  # fmt: skip
def test_plan_by_hand(kata, sizes, programs, want):
    assert kata.stream_k_plan(*sizes, 16, 16, 16, programs) == want


@settings(max_examples=25)
@given(
    m=st.integers(0, 30), n=st.integers(0, 30), k=st.integers(0, 40),
    bm=st.integers(1, 12), bn=st.integers(1, 12), bk=st.integers(1, 12),
    programs=st.integers(1, 20),
)  # fmt: skip
def test_plan_deals_out_every_iteration(kata, oracle, m, n, k, bm, bn, bk, programs):
    sizes = (m, n, k, bm, bn, bk, programs)
    assert kata.stream_k_plan(*sizes) == oracle.plan(*sizes)


def test_plan_names_its_units(kata):
    # a whole one and two parts
    units = [unit for mine in kata.stream_k_plan(5, 30, 20, 16, 16, 16, 1) for unit in mine]
    units += [unit for mine in kata.stream_k_plan(5, 5, 20, 16, 16, 16, 2) for unit in mine]
    found = [(unit.tile, unit.k0, unit.k1) for unit in units]
    assert found == [(0, 0, 2), (1, 0, 2), (0, 0, 1), (0, 1, 2)]


def test_plan_does_not_count_one_by_one(kata, lines):
    with lines(limit=2000):
        plan = kata.stream_k_plan(1, 2, 2**50, 1, 1, 1, 3)
    third = 2**51 // 3
    first, second = third + 1, 2 * (third + 1)
    assert plan == [
        [(0, 0, first)],
        [(0, first, 2**50), (1, 0, second - 2**50)],
        [(1, second - 2**50, 2**50)],
    ]


@pytest.mark.parametrize("name", ["m", "n", "k", "bm", "bn", "bk", "programs"])
def test_plan_refuses_sizes_that_cannot_be(kata, name):
    sizes = {"m": 3, "n": 3, "k": 3, "bm": 2, "bn": 2, "bk": 2, "programs": 2}
    with pytest.raises(ValueError, match=f"^{name}: "):
        kata.stream_k_plan(**{**sizes, name: -1 if len(name) == 1 else 0})


# ---- who does what -------------------------------------------------------------------------


class Work:
    """Elements of `a` that each program loads."""

    def __init__(self, a):
        self.first, self.end = a.data_ptr(), a.data_ptr() + a.nbytes
        self.loaded = Counter()

    def launched(self, kernel, arguments):
        pass

    def program(self, index):
        self.now = index[0]

    def accessed(self, kind, addresses, size):
        self.loaded[self.now] += int(((addresses >= self.first) & (addresses < self.end)).sum())


def iterations(kata, traffic, m, n, k, programs):
    """How many tiles of `a` each program loads."""
    a, b = torch.ones(m, k, dtype=torch.float16), torch.ones(k, n, dtype=torch.float16)
    work = Work(a)
    with traffic(listener=work):
        kata.stream_k_gemm(a, b, programs)
    return [work.loaded[p] / TILE for p in range(programs)]


@pytest.mark.parametrize(
    ("sizes", "programs"),
    [((32, 48, 48), 4), ((16, 16, 112), 6), ((16, 32, 32), 5), ((48, 48, 32), 2)],
    ids=["two tiles cut", "one tile for six", "more programs", "one of nine cut"],
)
def test_programs_follow_the_plan(kata, oracle, traffic, sizes, programs):
    plan = oracle.plan(*sizes, 16, 16, 16, programs)
    want = [sum(k1 - k0 for _, k0, k1 in units) for units in plan]
    assert iterations(kata, traffic, *sizes, programs) == want


def test_no_program_has_more_than_its_share(kata, traffic, cost):
    cost.check("iterations", max(iterations(kata, traffic, 16, 80, 64, 4)))


def gaps(rows, cols):
    """Ones, a gap after each: a copy of them would be seen."""
    return torch.ones(rows, 2 * cols, dtype=torch.float16)[:, ::2]


def test_workspace_has_two_tiles_for_each_program(kata, device, dispatch, cost):
    if device != "cpu":
        pytest.skip("counted with the interpreter's tiles")
    a, b = gaps(80, 32), gaps(32, 80)
    with dispatch() as d:
        c = kata.stream_k_gemm(a, b, 16)
    cost.check("workspace", d.allocated_bytes - c.nbytes)


@pytest.mark.parametrize(
    ("k", "programs"), [(40, 2), (16, 3)], ids=["whole waves", "one iteration"]
)
def test_what_is_not_cut_needs_no_second_kernel(kata, traffic, dispatch, k, programs):
    # four tiles: two for each program; or one is left over that cannot be cut
    a, b = gaps(32, k), gaps(k, 32)
    with traffic() as t, dispatch() as d:
        c = kata.stream_k_gemm(a, b, programs)
    assert t.launches == 1
    assert d.allocated_bytes == c.nbytes


# ---- sums ----------------------------------------------------------------------------------


@settings(max_examples=8)
@given(
    m=st.integers(1, 20), n=st.integers(1, 35), k=st.integers(1, 50),
    programs=st.integers(1, 12), transposed=st.booleans(),
)  # fmt: skip
def test_any_size_is_exact_in_integers(kata, device, m, n, k, programs, transposed):
    # products up to 9 and sums up to 450 are exact in float16
    a = torch.randint(-3, 4, (m, k), device=device).half()
    b = torch.randint(-3, 4, (n, k), device=device).half().T
    if transposed:
        a, b = a.T.contiguous().T, b.contiguous()
    c = kata.stream_k_gemm(a, b, programs)
    assert c.is_contiguous()
    want = a.double() @ b.double()
    assert_matches(c, want, same_precision=want.half())


@pytest.mark.parametrize("programs", [1, 2, 3, 6])
def test_parts_are_float32(kata, device, programs):
    # 49 terms of 10^4, then 47 of -10^4: far past float16 on the way, 20000 in the end
    a = torch.full((2, 96), 100.0, dtype=torch.float16, device=device)
    b = torch.full((96, 8), 100.0, dtype=torch.float16, device=device)
    b[49:] *= -1
    assert kata.stream_k_gemm(a, b, programs).tolist() == [[20000.0] * 8] * 2


def test_parts_are_added_in_their_order_along_k(kata, traffic):
    # 2^24 + 1 is 2^24 in float32: 0 from the first part on, 1 from the last
    a = torch.zeros(1, 48, dtype=torch.float16)
    b = torch.zeros(48, 8, dtype=torch.float16)
    a[0, 0], a[0, 16], a[0, 32] = 4096, 1, -4096
    b[0], b[16], b[32] = 4096, 1, 4096
    for order in ("forward", "reversed"):
        with traffic(order=order):
            assert kata.stream_k_gemm(a, b, 3).tolist() == [[0.0] * 8]


@pytest.mark.parametrize("of", ["a", "b"])
@pytest.mark.parametrize("programs", [1, 2])
def test_what_lies_past_the_end_adds_nothing(kata, device, of, programs):
    # NaN times a masked zero would still be NaN; rows of 24 suit a descriptor
    size = {"a": (5, 24), "b": (24, 8)}[of]
    padded = torch.full(size, NAN, device=device, dtype=torch.float16)
    part = padded[:, :19] if of == "a" else padded[:19]
    part.fill_(1.0)
    other = torch.ones((19, 8) if of == "a" else (5, 19), device=device, dtype=torch.float16)
    a, b = (part, other) if of == "a" else (other, part)
    assert kata.stream_k_gemm(a, b, programs).tolist() == [[19.0] * 8] * 5


def test_rows_may_begin_anywhere(kata, device):
    # 2 bytes past a multiple of 16; all at one place, which is a stride of 0
    ones = torch.ones(1 + 8 * 32, dtype=torch.float16, device=device)
    b = torch.ones(16, 8, dtype=torch.float16, device=device)
    for a in (ones[1:129].view(8, 16), ones[:16].expand(8, 16)):
        assert kata.stream_k_gemm(a, b, 1).tolist() == [[16.0] * 8] * 8


@pytest.mark.parametrize(
    ("name", "programs"), [("b", None), ("programs", 0)], ids=["rows of b", "programs"]
)
def test_nothing_to_sum_is_checked_all_the_same(kata, device, name, programs):
    a = torch.empty(5, 0, dtype=torch.float16, device=device)
    b = torch.empty(3 if name == "b" else 0, 8, dtype=torch.float16, device=device)
    with pytest.raises(ValueError, match=f"^{name}: "):
        kata.stream_k_gemm(a, b, programs)


# ---- what the compiler makes of it ---------------------------------------------------------


def test_products_run_on_tensor_cores(compiled):
    assert any(kernel.has("wgmma.mma_async") for kernel in compiled(target="sm_90", **BUILD))


def test_whole_waves_run_on_tensor_cores(compiled):
    # 24 x 24 tiles of 128 x 128 for 144 programs: no workspace to point to
    (kernel,) = compiled(target="sm_80", **{**BUILD, "m": 3072}, programs=144)
    assert kernel.has("mma.sync")


def test_sums_are_not_atomic(compiled):
    for kernel in compiled(target="sm_90", **BUILD):
        assert re.findall(r"\b(?:red|atom)\.", kernel.ptx) == []
