"""What a rotation promises: distances, inverses, exact angles far out, one rounding, no waste."""

import itertools
import math
from contextlib import contextmanager

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.judge import HostClock, Samples, assert_matches, assert_sound

LAYOUTS = pytest.mark.parametrize("layout", ["half", "interleaved"])
POSITION = st.integers(0, 100_000)


def normal(seed, *shape, dtype=torch.float32, device="cpu"):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype).to(device)


def assert_turned(oracle, out, x, cos, sin, layout):
    truth = oracle.turned(x.double(), cos.double(), sin.double(), layout)
    trusted = oracle.turned(x.float(), cos, sin, layout).to(x.dtype)
    assert_matches(out, truth, same_precision=trusted)


def table(kata, device, positions, d, **more):
    return kata.rope_table(torch.tensor(positions, device=device), d, **more)


@contextmanager
def every_byte(dispatch, host_memory):
    """Yield what tells the most bytes held at once so far: by PyTorch, or by Python and NumPy."""
    with host_memory() as held, dispatch() as ops:
        yield lambda: max(ops.peak_live_bytes, held.look())


@pytest.mark.parametrize(("base", "slow"), [(10_000.0, 0.01), (12_345.6, 12_345.6**-0.5)])
def test_angles_are_right_far_out_and_across_gaps(kata, device, base, slow):
    # float16 holds every integer up to 2048, bfloat16 up to 256; float32 near 131071 steps by 1/128
    farthest = 2**24 - 1
    positions = [131_071, -farthest, -3, 0, 1, 257, 2049, 1_000_003, farthest, 0, 1]  # and again
    turns = [[position, position * slow] for position in positions]
    for found, function in zip(
        table(kata, device, positions, 4, base=base), (math.cos, math.sin), strict=True
    ):
        truth = [[function(turn) for turn in row] for row in turns]
        error = found.double() - torch.tensor(truth, dtype=torch.float64, device=device)
        worst = float(error.abs().max())
        # below one, float32 numbers are at most 2^-24 apart: rounding costs half of that
        assert worst <= 2**-24, f"{function.__name__} is off by {worst:.1e}, not by a rounding"


def test_positions_may_change_in_place(kata, device):
    positions = torch.tensor([0, 9, 4000], device=device)
    table = kata.rope_table(positions, 2)
    assert table[0][1].item() == pytest.approx(math.cos(9), rel=1e-6)
    # past the tensor's version, and with the same sum
    positions.data += torch.tensor([-1, 1, 0], device=device)
    assert kata.rope_table(positions, 2)[0][1].item() == pytest.approx(math.cos(10), rel=1e-6)


@LAYOUTS
def test_position_zero_is_the_identity(kata, device, seed, layout):
    x = normal(seed, 2, 3, 1, 8, device=device)
    assert torch.equal(kata.apply_rope(x, *table(kata, device, [0], 8), layout), x)


@LAYOUTS
@given(m=POSITION, n=POSITION, shift=POSITION, seed=st.integers(0, 2**31))
def test_scores_depend_on_the_distance_alone(kata, device, layout, m, n, shift, seed):
    q, k = normal(seed, 2, 1, 1, 1, 16, device=device)

    def score(at_q, at_k):
        turned = [
            kata.apply_rope(x, *table(kata, device, [at], 16), layout).double()
            for x, at in ((q, at_q), (k, at_k))
        ]
        return float((turned[0] * turned[1]).sum())

    # each rotated channel is off by about 1.5e-7 of its pair's length: table, products and sum
    slack = 1e-6 * float(q.norm() * k.norm())
    assert math.isclose(score(m, n), score(m + shift, n + shift), abs_tol=slack)


def test_layouts_differ_by_the_order_of_channels(kata, oracle, device, seed):
    x = normal(seed, 1, 2, 5, 6, device=device)
    cos, sin = table(kata, device, [3, 4, 5, 6, 7], 6)
    order = [0, 2, 4, 1, 3, 5]  # first channels of all pairs, then the second ones
    # not to the bit: products of complex numbers round in their own way
    pairs = kata.apply_rope(x, cos, sin, "interleaved")[..., order]
    halves = kata.apply_rope(x[..., order], cos, sin, "half")
    for out in (pairs, halves):
        assert_turned(oracle, out, x[..., order], cos, sin, "half")


@LAYOUTS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_gradient_is_the_rotation_back(kata, device, seed, dtype, layout):
    x, upstream = normal(seed, 2, 1, 2, 4, 8, dtype=dtype, device=device)
    cos, sin = table(kata, device, [0, 9, 10, 4000], 8)
    x.requires_grad_()
    kata.apply_rope(x, cos, sin, layout).backward(upstream)
    assert x.grad is not None
    again = kata.apply_rope(x.grad, cos, sin, layout)
    # there and back: two rotations' rounding, on the scale of the largest channel
    slack = 8 * torch.finfo(dtype).eps * float(upstream.abs().max())
    assert float((again - upstream).abs().max()) <= slack


@LAYOUTS
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_16_bit_results_are_rounded_once(kata, oracle, device, seed, dtype, layout):
    inputs = oracle.make_inputs(
        b=1, h=4, s=64, d=64, start=131_008, layout=layout, dtype=dtype, device=device, seed=seed
    )
    truth = oracle.reference(**inputs)
    error = (kata.rope(**inputs).double() - truth).norm()
    once = (truth.to(dtype).double() - truth).norm()
    assert float(error / once) <= 1.05, f"more error than that of one rounding to {dtype}"


def test_rotating_needs_little_memory(kata, oracle, dispatch, host_memory, cost, seed):
    # counted on the CPU everywhere; 16 rows of x share one row of the table
    x = normal(seed, 2, 8, 64, 64)
    cos, sin = table(kata, "cpu", list(range(64)), 64)
    assert cos.shape == sin.shape == (64, 32)
    peaks = []
    view = normal(seed, 2, 64, 8, 64).transpose(1, 2)  # as a projection leaves it
    for values, layout in itertools.product((x, x.half(), view), ("half", "interleaved")):
        with every_byte(dispatch, host_memory) as peak_bytes:
            out = kata.apply_rope(values, cos, sin, layout)
            peaks.append(peak_bytes())
        assert_turned(oracle, out, values, cos, sin, layout)
    cost.check("peak_memory", max(peaks), ideal=x.nbytes)


def test_rotating_pairs_beats_matrices(kata, oracle, cost, seed, one_thread):
    # on the CPU everywhere: on a GPU this size measures nothing but launches
    x = normal(seed, 1, 2, 512, 128)
    cos, sin = table(kata, "cpu", list(range(512)), 128)
    asked, found = [], []
    numbers = torch.Generator()
    numbers.seed()  # by nobody foreseen: neither an answer kept nor one made ahead is right

    def ask_anew():
        asked.append(x.normal_(generator=numbers).clone())

    calls = [
        lambda: oracle.by_matrices(x, cos, sin, "half"),
        lambda: found.append(kata.apply_rope(x, cos, sin, "half")),
        lambda: found.append(kata.apply_rope(x, cos, sin, "interleaved")),
    ]
    HostClock().time_rounds(calls, 1, ask_anew)
    matrices, *mine = HostClock().time_rounds(calls, 9, ask_anew)
    del asked[::3]  # what the matrices were asked
    for then, layout, out in zip(asked, 10 * ["half", "interleaved"], found, strict=True):
        assert_sound(out, {"x": x, "cos": cos, "sin": sin}, writes=())
        assert_turned(oracle, out, then, cos, sin, layout)
    ratios = [
        Samples(tuple(a / b for a, b in zip(matrices, layout, strict=True))) for layout in mine
    ]
    cost.check("speedup", min(ratio.median for ratio in ratios))


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_operators_do_not_grow_with_heads_or_pairs(kata, dispatch, seed, layout):
    called = {}
    for heads, d in ((1, 4), (3, 32)):
        cos, sin = table(kata, "cpu", [0, 1], d)
        with dispatch() as ops:
            kata.apply_rope(normal(seed, 1, heads, 2, d), cos, sin, layout)
        called[heads, d // 2] = sum(ops.calls.values())
    few, many = called.values()
    assert many == few, f"operators of PyTorch for (heads, pairs): expected as many, found {called}"


@pytest.mark.parametrize("d", [7, 0, -2])
def test_channels_that_make_no_pairs_are_refused(kata, device, d):
    with pytest.raises(ValueError, match=r"\bd\b"):
        table(kata, device, [0, 1], d)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("cos", (1, 4)),  # one position would broadcast over all
        ("cos", (3, 1)),  # and so would one angle
        ("cos", (3, 8)),  # as wide as x: a pair has one angle, not two
        ("cos", (3, 4, 1)),  # as many angles, and a further axis
        ("sin", (1, 4)),
        ("sin", (3, 1)),
        ("sin", (4, 3)),  # as many numbers, for other positions
        ("x", (1, 2, 3, 9)),  # half of 9, rounded down, would fit the table
    ],
)
def test_tables_that_do_not_fit_are_refused(kata, device, name, shape):
    given = {"x": (1, 2, 3, 8), "cos": (3, 4), "sin": (3, 4)} | {name: shape}
    if name == "cos":
        given["sin"] = shape
    with pytest.raises(ValueError, match=r"\bsin\b" if name == "sin" else r"\bcos\b"):
        kata.apply_rope(*(torch.ones(one, device=device) for one in given.values()))


def test_unknown_layout_is_refused(kata, device):
    x, cos = torch.ones(1, 1, 1, 4, device=device), torch.ones(1, 2, device=device)
    with pytest.raises(ValueError, match=r"layout.*neox"):
        kata.apply_rope(x, cos, cos, "neox")
