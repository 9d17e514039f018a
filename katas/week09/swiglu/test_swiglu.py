"""What is special about SwiGLU: extremes, and a backward pass written over its inputs."""

import pytest
import torch

from harness.judge import assert_matches


@pytest.fixture
def drawn(device, seed):
    """Draw dh, e and g of a shape, contiguous unless a row stride is given."""

    def draw(rows, cols, dtype=torch.float32, row_stride=None):
        generator = torch.Generator().manual_seed(seed)
        wide = [2 * torch.randn(rows, row_stride or cols, generator=generator) for _ in range(3)]
        return [x.to(dtype).to(device)[:, :cols] for x in wide]

    return draw


def assert_backward(kata, oracle, dh, e, g):
    want = oracle.backward(dh, e, g)
    trusted = tuple(x.to(e.dtype) for x in oracle.backward(dh, e, g, torch.float32))
    found = kata.swiglu_backward_(dh, e, g)
    for name, one, truth, similar in zip(("h", "dg", "de"), found, want, trusted, strict=True):
        assert_matches(one, truth, same_precision=similar, name=name)


# ---- forward -------------------------------------------------------------------------------


def test_extreme_gates(kata, oracle, device):
    gates = [1e4, -1e4, 0.0, float("inf"), float("-inf"), float("nan"), -20.0, 88.8, 1.0]
    e = torch.tensor([gates], device=device)
    g = torch.full_like(e, -3.0)
    g[0, -1] = float("nan")
    want, trusted = oracle.reference(e=e, g=g), oracle.same_precision(e=e, g=g)
    assert_matches(kata.swiglu(e, g), want, same_precision=trusted)


def test_float16_is_rounded_once(kata, oracle, device):
    e = torch.linspace(-17, 12, 3001, device=device).to(torch.float16).reshape(1, -1)
    g = torch.linspace(-3, 5, 3001, device=device).to(torch.float16).reshape(1, -1)
    assert_matches(kata.swiglu(e, g), oracle.reference(e=e, g=g))


def test_what_is_only_read_may_overlap(kata, oracle, drawn):
    # one row, four times, and both arguments the same
    row = drawn(1, 50)[0].expand(4, 50)
    want, trusted = oracle.reference(e=row, g=row), oracle.same_precision(e=row, g=row)
    assert_matches(kata.swiglu(row, row), want, same_precision=trusted)


# ---- backward ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "cols", "row_stride"),
    [(1, 1, None), (3, 1025, None), (5, 130, 200)],
    ids=["one element", "two blocks", "strided rows"],
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=["float16", "float32"])
def test_backward_matches_autograd(kata, oracle, drawn, rows, cols, row_stride, dtype):
    assert_backward(kata, oracle, *drawn(rows, cols, dtype, row_stride))


@pytest.mark.parametrize("cols", [1023, 1024, 2047, 2048, 2049])
def test_backward_at_the_edges_of_blocks(kata, oracle, drawn, cols):
    assert_backward(kata, oracle, *drawn(2, cols))


def test_backward_of_extreme_gates(kata, oracle, device):
    gates = [1e4, -1e4, 0.0, 30.0, -30.0, float("nan"), float("inf"), float("-inf")]
    e = torch.tensor([gates], device=device)
    assert_backward(kata, oracle, torch.full_like(e, 0.5), e, torch.full_like(e, -3.0))


def test_float16_gradients_are_rounded_once(kata, oracle, device):
    ends = ((-2, 4), (-9, 12), (-3, 5))
    dh, e, g = (torch.linspace(*end, 3001, device=device).half().reshape(1, -1) for end in ends)
    want = oracle.backward(dh, e, g)
    found = kata.swiglu_backward_(dh, e, g)
    for name, one, truth in zip(("h", "dg", "de"), found, want, strict=True):
        assert_matches(one, truth, name=name)


def test_backward_keeps_to_the_gaps(kata, drawn):
    wide = drawn(3, 40)
    before = [x.clone() for x in wide]
    kata.swiglu_backward_(*(x[:, 8:32] for x in wide))
    for name, x, old in zip(("dh", "e", "g"), wide, before, strict=True):
        for part in (slice(0, 8), slice(32, 40)):
            assert torch.equal(x[:, part], old[:, part]), f"{name}: wrote beside its columns"


def test_the_results_are_the_arguments(kata, drawn):
    given = drawn(3, 50, row_stride=64)
    found = kata.swiglu_backward_(*given)
    for name, one, argument in zip(("dh", "e", "g"), found, given, strict=True):
        assert one is argument, f"over {name}: expected {name} itself, found another tensor"


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=["float16", "float32"])
def test_h_is_bit_for_bit_the_forward_pass(kata, drawn, dtype):
    dh, e, g = drawn(4, 300, dtype)
    h = kata.swiglu(e, g)
    assert torch.equal(kata.swiglu_backward_(dh, e, g)[0], h)


def test_backward_costs_three_reads_and_three_writes(kata, traffic, dispatch, cost, drawn):
    dh, e, g = drawn(5, 2000, torch.float16, 2048)
    with dispatch() as ops, traffic() as moved:
        kata.swiglu_backward_(dh, e, g)
    cost.check("backward_bytes", moved.loaded_bytes + moved.stored_bytes)
    cost.check("backward_allocated_bytes", ops.allocated_bytes)
    assert moved.launches == 1


def test_backward_of_rows_past_2_31_elements(kata, oracle, device):
    # the stride alone fits in 31 bits
    wide = torch.empty(2**31 + 64, dtype=torch.float16, device=device)
    dh, e, g = (wide[at:].as_strided((3, 16), (2**30, 1)).normal_() for at in (0, 16, 48))
    assert_backward(kata, oracle, dh, e, g)


@pytest.mark.parametrize("shape", [(0, 4), (3, 0)], ids=["no rows", "no columns"])
def test_backward_of_nothing(kata, device, shape):
    # no elements are shared, though all begin at one address
    memory = torch.empty(12, device=device)
    dh, e, g = (memory.as_strided(shape, (4, 1)) for _ in range(3))
    assert [x.shape for x in kata.swiglu_backward_(dh, e, g)] == [shape] * 3


# ---- what may share memory -----------------------------------------------------------------


def columns(wide, *starts):
    return [wide[:, at : at + 10] for at in starts]


@pytest.mark.parametrize("starts", [(0, 10, 20), (20, 0, 10)], ids=["in order", "not in order"])
def test_columns_of_one_buffer_are_taken(kata, oracle, drawn, starts):
    wide = drawn(2, 30)[0]
    assert_backward(kata, oracle, *columns(wide, *starts))


def test_columns_of_other_rows_are_taken(kata, oracle, drawn):
    wide = drawn(5, 30)[0]
    dh, e, g = wide[2:, :10], wide[:3, 10:20], wide[1:4, 20:]
    assert_backward(kata, oracle, dh, e, g)


def test_parts_of_one_storage_are_taken(kata, oracle, drawn):
    # each begins where the one before ends, and every one has a row stride of its own
    flat = drawn(1, 58 + 50 + 62)[0][0]
    dh, e, g = (
        flat[start:].as_strided((5, 10), (stride, 1))
        for start, stride in ((0, 12), (58, 10), (108, 13))
    )
    assert_backward(kata, oracle, dh, e, g)
    assert_backward(kata, oracle, g, e, dh)


def test_neighbouring_elements_share_nothing(kata, oracle, drawn):
    x = drawn(1, 3)[0]
    assert_backward(kata, oracle, x[:, 2:], x[:, 1:2], x[:, :1])


def test_one_row_has_any_stride(kata, oracle, drawn):
    strides = (0, 1, 9)
    dh, e, g = (
        x.as_strided((1, 10), (stride, 1)) for x, stride in zip(drawn(1, 10), strides, strict=True)
    )
    assert_backward(kata, oracle, dh, e, g)


def overlaps():
    flat = torch.arange(240.0)
    x, other = flat.view(4, 60), torch.ones(4, 10)

    def rows(count, start, stride):
        return flat[start:].as_strided((count, 10), (stride, 1))

    return {
        "e is g": ("g", (other, x[:, :10], x[:, :10])),
        "dh is e": ("e", (x[:, :10], x[:, :10], other)),
        "dh is g": ("g", (x[:, :10], other, x[:, :10])),
        "one column": ("g", (other, x[:, :10], x[:, 9:19])),
        "one column, the second first": ("g", (other, x[:, 9:19], x[:, :10])),
        "one row down": ("g", (other[:3], x[:3, :10], x[1:, 1:11])),
        "around the end of a row": ("g", (other[:3], x[:3, :10], rows(3, 51, 60))),
        "the last element": ("g", (other[:2], rows(2, 0, 10), rows(2, 19, 10))),
        "another row stride": ("g", (other[:3], rows(3, 0, 60), rows(3, 75, 50))),
        "another row stride, no element": ("g", (other[:3], rows(3, 0, 60), rows(3, 10, 65))),
        "one row, expanded": ("g", (other[:1], rows(1, 0, 0), rows(1, 9, 0))),
    }


@pytest.mark.parametrize("which", overlaps().keys())
def test_shared_memory_is_refused(kata, which):
    later, given = overlaps()[which]
    before = [x.clone() for x in given]
    with pytest.raises(ValueError, match=f"^{later}: "):
        kata.swiglu_backward_(*given)
    for x, old in zip(given, before, strict=True):
        assert torch.equal(x, old), f"{which}: written to before it was refused"


@pytest.mark.parametrize("name", ["dh", "e", "g"])
def test_rows_over_each_other_are_refused(kata, name):
    given = {key: torch.ones(2, 10) for key in ("dh", "e", "g")}
    given[name] = torch.ones(20).as_strided((2, 10), (9, 1))
    with pytest.raises(ValueError, match=f"^{name}: "):
        kata.swiglu_backward_(**given)


@pytest.mark.parametrize(
    ("names", "wrong", "says"),
    [
        (["e"], torch.ones(4, 9), ""),
        (["g"], torch.ones(3, 10), ""),
        (["e"], torch.ones(10, 4), ""),
        (["g"], torch.ones(4, 10, dtype=torch.float16), ""),
        (["e"], torch.ones(4, 20)[:, ::2], ".*contiguous"),
        (["dh"], torch.ones(4, 10, dtype=torch.int32), ""),
        (["dh", "e", "g"], torch.ones(2, 2, 2), ""),
    ],
    ids=["columns", "rows", "turned", "dtype", "strided columns", "integers", "three axes"],
)
def test_backward_is_checked(kata, names, wrong, says):
    given = {key: torch.ones(4, 10) for key in ("dh", "e", "g")} | dict.fromkeys(names, wrong)
    with pytest.raises(ValueError, match=f"^{names[0]}: {says}"):
        kata.swiglu_backward_(**given)
