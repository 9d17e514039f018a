"""What is special about a product by registers: who holds what, exact sums, loads by ldmatrix."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

INF, NAN = float("inf"), float("nan")
LANES = range(32)


def integers(*size, device):
    """From -4 to 4: products and sums are exact in float32, in any order."""
    return torch.randint(-4, 5, size, device=device).half()


def first_wrong(c, a, b):
    """The first element of a @ b that is not exact, or ""."""
    want = a.double() @ b.double()
    for row, column in (c.double() != want).nonzero().tolist():
        return (
            f"input: integers, a {tuple(a.shape)}, b {tuple(b.shape)} | at {(row, column)}: "
            f"yours: {c[row, column]}, expected: {want[row, column]}"
        )
    return ""


# ---- who holds what ------------------------------------------------------------------------


@pytest.fixture
def fragment(kata, oracle):
    """The map of an operand, as the kata has it: row and column, [32][elements]."""

    def rows_and_columns(operand):
        find, count = getattr(kata, f"{operand}_coord"), oracle.elements(operand)
        return [[find(lane, i) for i in range(count)] for lane in LANES]

    return rows_and_columns


@pytest.mark.parametrize("operand", ["a", "b", "c"])
def test_elements_are_where_cute_has_them(oracle, fragment, operand):
    for lane, held in enumerate(fragment(operand)):
        for i, mine in enumerate(held):
            want = oracle.coord(operand, lane, i)
            assert mine == want, (
                f"input: {operand}_coord({lane}, {i}) | yours: {mine}, expected: {want}"
            )


def test_one_mma_multiplies_fragments_handed_out_so(oracle, fragment, device):
    a, b = integers(16, 16, device=device), integers(16, 8, device=device)
    c = oracle.multiplied(oracle.handed_out(a, fragment("a")), oracle.handed_out(b, fragment("b")))
    want = oracle.handed_out((a.double() @ b.double()).float(), fragment("c"))
    wrong = (c != want).nonzero().tolist()
    assert not wrong, (
        f"input: fragments by a_coord and b_coord | register {wrong[0][1]} of lane {wrong[0][0]}: "
        f"mma.sync makes {c[*wrong[0]]}, at your c_coord is {want[*wrong[0]]}"
    )


@pytest.mark.parametrize("trans", [False, True], ids=["a", "two of b"])
def test_ldmatrix_loads_fragments_from_these_rows(kata, oracle, device, trans):
    matrix = torch.arange(256.0, device=device).half().reshape(16, 16)
    rows = [kata.ldmatrix_row(lane) for lane in LANES]
    for lane, mine in enumerate(rows):
        assert mine in [(row, column) for row in range(16) for column in (0, 8)], (
            f"input: ldmatrix_row({lane}) | yours: {mine}, expected: a row below 16, and 0 or 8"
        )
    loaded = oracle.loaded(matrix, rows)[trans]
    for lane in LANES:
        for i in range(8):
            if trans:
                row, column = oracle.coord("b", lane, i % 4)
                column += i // 4 * 8
            else:
                row, column = oracle.coord("a", lane, i)
            found = divmod(int(loaded[lane, i]), 16)
            assert found == (row, column), (
                f"input: rows by ldmatrix_row, trans = {trans} | element {i} of lane {lane}: "
                f"yours comes from {found}, expected: {(row, column)}"
            )


@pytest.mark.parametrize(
    ("name", "lane", "i"),
    [("a", 3, 8), ("a", 3, -1), ("b", 3, 4), ("b", 3, -1), ("c", 3, 4), ("c", 3, -1)],
)
def test_elements_that_no_lane_holds_are_refused(kata, name, lane, i):
    with pytest.raises(ValueError, match="^i: "):
        getattr(kata, f"{name}_coord")(lane, i)


@pytest.mark.parametrize("lane", [-1, 32])
@pytest.mark.parametrize("name", ["a_coord", "b_coord", "c_coord", "ldmatrix_row"])
def test_lanes_that_no_warp_has_are_refused(kata, name, lane):
    with pytest.raises(ValueError, match="^lane: "):
        getattr(kata, name)(*((lane,) if name == "ldmatrix_row" else (lane, 0)))


# ---- sums ----------------------------------------------------------------------------------


@settings(max_examples=6)
@given(m=st.integers(0, 9), n=st.integers(0, 9), k=st.integers(0, 6))
def test_any_whole_fragments_are_exact_in_integers(kata, device, m, n, k):
    a, b = integers(16 * m, 16 * k, device=device), integers(16 * k, 16 * n, device=device)
    wrong = first_wrong(kata.mma_gemm(a, b), a, b)
    assert not wrong, wrong


@pytest.mark.parametrize(("m", "n"), [(16, 2064), (2064, 16)], ids=["wide", "tall"])
def test_a_fragment_past_many_tiles_is_multiplied(kata, device, m, n):
    # 16 tiles of 128 and 16 more: whoever takes a tile for one longer launches a block too few
    a, b = integers(m, 16, device=device), integers(16, n, device=device)
    wrong = first_wrong(kata.mma_gemm(a, b), a, b)
    assert not wrong, wrong


def test_products_are_summed_in_float32(kata, device):
    # 40 terms of 10^4, then 40 of -10^4 and one: far past float16 on the way
    a = torch.full((16, 96), 100.0, dtype=torch.float16, device=device)
    b = torch.full((96, 16), 100.0, dtype=torch.float16, device=device)
    b[40:] *= -1
    b[81:] = 0
    assert kata.mma_gemm(a, b).tolist() == [[-10000.0] * 16] * 16


def test_nan_and_infinity_stay_in_their_rows_and_columns(kata, device):
    a, b = (torch.ones(48, 48, dtype=torch.float16, device=device) for _ in "ab")
    a[3, 7], b[9, 40] = NAN, INF
    want = torch.full((48, 48), 48.0, device=device)
    want[:, 40], want[3] = INF, NAN
    c = kata.mma_gemm(a, b)
    for row, column in (c.nan_to_num(nan=-1.0) != want.nan_to_num(nan=-1.0)).nonzero().tolist():
        pytest.fail(
            "input: ones, but for a[3, 7] = nan and b[9, 40] = inf | "
            f"at {(row, column)}: yours: {c[row, column]}, expected: {want[row, column]}"
        )


@pytest.mark.parametrize("name", ["a", "b"])
def test_matrices_that_begin_between_pieces_of_16_bytes_are_refused(kata, device, name):
    room = torch.ones(16 * 16 + 4, dtype=torch.float16, device=device)
    operands = {"a": room[:256].view(16, 16), "b": room[:256].view(16, 16)}
    operands[name] = room[4:].view(16, 16)
    with pytest.raises(ValueError, match=f"^{name}: "):
        kata.mma_gemm(**operands)


@pytest.mark.parametrize("name", ["a", "b"])
def test_a_transposed_matrix_is_refused(kata, device, name):
    # it has no gaps, and lies by columns
    operands = {one: torch.ones(32, 32, dtype=torch.float16, device=device) for one in "ab"}
    operands[name] = operands[name].T
    with pytest.raises(ValueError, match=f"^{name}: .*contiguous"):
        kata.mma_gemm(**operands)


def test_nothing_but_the_result_is_allocated(kata, dispatch, device):
    a, b = integers(32, 48, device=device), integers(48, 80, device=device)
    with dispatch() as d:
        c = kata.mma_gemm(a, b)
    wrong = first_wrong(c, a, b)
    assert not wrong, wrong
    assert d.allocated_bytes <= c.nbytes


# ---- what warps do -------------------------------------------------------------------------


@pytest.fixture
def counted(kata, ptx):
    """What whole tiles take: 128 x 128 x 64."""

    def count():
        with ptx() as p:
            kata.mma_gemm(integers(128, 64, device="cpu"), integers(64, 128, device="cpu"))
        return p

    return count


def test_products_are_those_of_mma_sync(counted):
    assert counted().counters["mma_ops"] == 512  # of 16 x 8 x 16


def test_operands_come_from_shared_memory_by_ldmatrix(counted, cost):
    p = counted()
    assert p.counters["ldmatrix"] > 0
    cost.check("products_per_load", p.counters["mma_ops"] / p.counters["shared_load_requests"])


def test_rows_of_a_matrix_lie_in_different_banks(counted, cost):
    cost.check("bank_conflicts", counted().bank_conflicts)


@pytest.mark.parametrize("target", ["sm_90"])
def test_product_is_built_for_other_gpus(compiled, target):
    (kernel,) = compiled(target=target, m=256, n=256, k=128, dtype="float16")
    assert kernel.has("LDSM")
    assert kernel.has("HMMA.16816.F32")
    assert kernel.spills == 0
