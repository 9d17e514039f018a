"""Against the elimination by hand, where nothing can be passed on, and what it costs."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.judge import assert_matches
from harness.meters.dispatch import OperatorWatch, tensors_in


def draw(oracle, device, seed, **changes):
    sizes = {"n": 4, "k": 24, "s": 40, "bits": 4, "group_size": 8, "dtype": torch.float32}
    return oracle.make_inputs(**{**sizes, **changes}, device=device, seed=seed)


def assert_right(kata, oracle, inputs):
    trusted = oracle.same_precision(**inputs)
    assert_matches(kata.gptq(**inputs), oracle.reference(**inputs), same_precision=trusted)


def quantized(kata, device, codes, scale, zero):
    """A `Quantized` of these numbers, in the dtypes that it has."""
    codes, zero = (torch.tensor(v, dtype=torch.uint8, device=device) for v in (codes, zero))
    return kata.Quantized(codes, torch.tensor(scale, device=device), zero)


# ---- codes ---------------------------------------------------------------------------------


@given(
    n=st.integers(1, 4),
    groups=st.integers(1, 4),
    group_size=st.integers(1, 9),
    s=st.integers(1, 40),
    bits=st.integers(2, 8),
    block=st.integers(1, 40),
    damp=st.sampled_from([0.01, 0.03, 0.3]),
    seed=st.integers(0, 2**31),
)
def test_any_sizes(kata, oracle, device, n, groups, group_size, s, bits, block, damp, seed):
    sizes = {"n": n, "k": groups * group_size, "s": s, "group_size": group_size, "bits": bits}
    inputs = draw(oracle, device, seed, **sizes, block=block, damp=damp)
    assert_right(kata, oracle, inputs)


def test_one_error_passed_on_by_hand(kata, device):
    # H⁻¹ begins with [2, -1]: half of the first error, 0.4, is added to the second weight. With
    # steps of 1 from 0 to 3, 1.4 becomes 1, and 1.4 + 0.2 becomes 2
    x = torch.tensor([[1.0, 1.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]], device=device)
    q = kata.gptq(torch.tensor([[1.4, 1.4, 3.0]], device=device), x, 2, group_size=3, damp=0.0)
    assert q.scale.tolist() == [[1.0]]
    assert q.codes.tolist() == [[1, 2, 3]]


def test_inputs_that_do_not_hang_together_leave_plain_rounding(kata, device, seed):
    # H = 4 I: no column can make up for another
    w = torch.randn(6, 24, generator=torch.Generator().manual_seed(seed)).to(device)
    q = kata.gptq(w, 2.0 * torch.eye(24, device=device), bits=3, group_size=8, block=5)
    want = kata.rtn(w, bits=3, group_size=8)
    assert q.codes.tolist() == want.codes.tolist()
    assert q.zero.tolist() == want.zero.tolist()
    assert_matches(q.scale, want.scale.double())


@pytest.mark.parametrize("group_size", [8, 48])
def test_blocks_change_nothing(kata, oracle, device, seed, group_size):
    inputs = draw(oracle, device, seed, k=48, s=60, group_size=group_size)
    want = oracle.reference(**inputs)[0].tolist()
    for block in (1, 5, 16, 48, 1000):
        found = kata.gptq(**{**inputs, "block": block}).codes.tolist()
        assert found == want, f"block = {block}: found {found}, expected {want}"


def test_defaults(kata, oracle, device, seed):
    inputs = draw(oracle, device, seed, n=3, k=256, s=64, group_size=128, bits=4, damp=0.01)
    found = kata.gptq(inputs["w"], inputs["x"])
    assert found.codes.tolist() == oracle.reference(**inputs)[0].tolist()


def test_damping_may_be_zero(kata, oracle, device, seed):
    # x of 24 independent rows and more: H has an inverse as it is
    inputs = draw(oracle, device, seed, s=400, damp=0.0, dead=[3])
    assert_right(kata, oracle, inputs)


# ---- dead columns, zeros, large numbers ----------------------------------------------------


def test_dead_columns_do_not_widen_the_grid(kata, oracle, device, seed):
    inputs = draw(oracle, device, seed, dead=[2, 9])
    want = oracle.reference(**inputs)
    inputs["w"][:, 2], inputs["w"][:, 9] = 1000.0, torch.nan
    q = kata.gptq(**inputs)
    assert_matches(tuple(q), want, same_precision=oracle.same_precision(**inputs))
    assert kata.dequantize(q)[:, [2, 9]].tolist() == [[0.0, 0.0]] * 4


def test_columns_that_add_up_to_nothing_are_not_dead(kata, oracle, device, seed):
    # pairs of opposite inputs, and zeros among them, as behind a ReLU
    inputs = draw(oracle, device, seed)
    x = inputs["x"]
    x[::3, ::2] = 0.0
    x = torch.cat([x, -x])
    spare = torch.randn(48, 24, generator=torch.Generator().manual_seed(seed))
    w = oracle.settled(spare, x.cpu(), 4, 8, 0.01, 4).to(device)
    assert_right(kata, oracle, {**inputs, "x": x, "w": w})


def test_small_inputs_are_not_dead(kata, oracle, device, seed):
    inputs = draw(oracle, device, seed)
    inputs["x"] = inputs["x"] * 2.0**-30
    assert_right(kata, oracle, inputs)


def test_a_quiet_column_is_not_dead(kata, oracle, device, seed):
    # a millionth of the others: its squares are 10^-12 of theirs
    inputs = draw(oracle, device, seed)
    x = inputs["x"].clone()
    x[:, 5] *= 2.0**-20
    spare = torch.randn(48, 24, generator=torch.Generator().manual_seed(seed))
    w = oracle.settled(spare, x.cpu(), 4, 8, 0.01, 4).to(device)
    assert_right(kata, oracle, {**inputs, "x": x, "w": w})


def test_inputs_of_zeros_leave_no_weights(kata, device):
    w = torch.arange(1.0, 13, device=device).reshape(2, 6)
    for damp in (0.0, 0.01):
        q = kata.gptq(w, torch.zeros(5, 6, device=device), group_size=3, damp=damp)
        assert kata.dequantize(q).tolist() == [[0.0] * 6] * 2


def test_weights_may_be_parameters(kata, device, seed):
    w = torch.randn(3, 8, generator=torch.Generator().manual_seed(seed)).to(device)
    x = torch.eye(8, device=device).requires_grad_()
    q = kata.gptq(torch.nn.Parameter(w), x, group_size=4)
    assert not q.scale.requires_grad, "expected a scale without gradient"


def test_sums_of_squares_past_half_precision(kata, oracle, device, seed):
    # inputs of some hundreds: their squares are more than float16 holds
    inputs = draw(oracle, device, seed, dtype=torch.float16, s=64)
    inputs["x"] = inputs["x"] * 256
    assert_right(kata, oracle, inputs)


# ---- back to weights -----------------------------------------------------------------------


def test_dequantize_by_hand(kata, device):
    # codes below the zero point are weights below 0; two groups of two
    q = quantized(kata, device, [[0, 15, 3, 255]], [[0.5, 2.0]], [[4, 255]])
    out = kata.dequantize(q)
    assert out.dtype == torch.float32
    assert out.tolist() == [[-2.0, 5.5, -504.0, 0.0]]


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_first_column_is_within_half_a_step(kata, oracle, device, seed, bits):
    # nothing was passed on to it
    inputs = draw(oracle, device, seed, bits=bits)
    q = kata.gptq(**inputs)
    away = (kata.dequantize(q)[:, 0] - inputs["w"][:, 0]).abs()
    steps = (away / q.scale[:, 0]).tolist()
    assert all(step <= 0.51 for step in steps), f"{bits} bits: expected half a step, found {steps}"


# ---- what it is worth ----------------------------------------------------------------------


def test_half_the_error_of_plain_rounding(kata, oracle, cost, seed):
    generator = torch.Generator().manual_seed(seed)
    w, x = torch.randn(64, 128, generator=generator), oracle.correlated(256, 128, generator)
    ours = kata.dequantize(kata.gptq(w, x, bits=4, group_size=64))
    plain = kata.dequantize(kata.rtn(w, bits=4, group_size=64))
    cost.check("output_error", oracle.output_error(w, ours, x) / oracle.output_error(w, plain, x))


def test_trained_layers_are_nearer_on_inputs_not_seen(kata, oracle, cost, seed):
    shares = []
    for w, calibration, held_out in oracle.tinylm_layers(seed):
        ours = kata.dequantize(kata.gptq(w, calibration, bits=3, group_size=32))
        plain = kata.dequantize(kata.rtn(w, bits=3, group_size=32))
        error = oracle.output_error(w, ours, held_out)
        shares.append(error / oracle.output_error(w, plain, held_out))
    cost.check("tinylm_error", sum(shares) / len(shares))


# ---- what it costs -------------------------------------------------------------------------

FACTORIZES = {"cholesky", "inverse", "inv", "lu", "ldl", "solve", "qr", "eig", "eigh", "svd"}


class Work(OperatorWatch):
    """Counts factorizations, and the elements of all results that operators write."""

    def __init__(self):
        super().__init__()
        self.factorizations = self.elements = 0

    def run(self, func, args, kwargs):
        result = func(*args, **kwargs)
        self.factorizations += not FACTORIZES.isdisjoint(func.overloadpacket.__name__.split("_"))
        given = {tensor.untyped_storage().data_ptr() for tensor in tensors_in((args, kwargs))}
        for tensor in tensors_in(result):
            if func._schema.is_mutable or tensor.untyped_storage().data_ptr() not in given:
                self.elements += tensor.numel()
        return result


def work_of(kata, oracle, seed):
    """Of 256 x 256 weights; counted on the CPU in every session."""
    generator = torch.Generator().manual_seed(seed)
    w, x = torch.randn(256, 256, generator=generator), oracle.correlated(512, 256, generator)
    with Work() as work:
        q = kata.gptq(w, x, group_size=256, block=16)
    error = oracle.output_error(w, kata.dequantize(q), x)
    plain = oracle.output_error(w, kata.dequantize(kata.rtn(w, group_size=256)), x)
    assert error <= 0.5 * plain, f"expected half the error of rtn, {plain:g}, found {error:g}"
    return work


def test_one_factor_serves_all_columns(kata, oracle, cost, seed):
    cost.check("factorizations", work_of(kata, oracle, seed).factorizations)


def test_later_blocks_are_corrected_once_a_block(kata, oracle, cost, seed):
    cost.check("elements_written", work_of(kata, oracle, seed).elements)
