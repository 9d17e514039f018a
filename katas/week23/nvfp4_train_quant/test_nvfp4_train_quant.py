"""Scales and codes one by one, rounding that is right on average, a transform that cancels."""

import pytest
import torch

from harness.judge import assert_matches, assert_nearest
from harness.simulators.block_scaled import E2M1, E4M3

SHAPES = pytest.mark.parametrize("square", [False, True], ids=["1 x 16", "16 x 16"])


def block_of(square):
    return (16, 16) if square else (1, 16)


def hard(seed, device, rows=32, k=48):
    """Zero blocks, an outlier, blocks too small for their scale, ties; by columns in memory."""
    x = torch.randn(k, rows, generator=torch.Generator().manual_seed(seed)).to(device).T
    x[:16, :16] = 0
    x[3, 20] = 900.0
    x[16:, 16:32] *= 1e-9
    x[16:, 32:] = torch.arange(16, device=device) / 4
    x[20, 40] = -9.0
    return x


# ---- scales and codes ----------------------------------------------------------------------


@SHAPES
@pytest.mark.parametrize("size", [1.0, 1e-30, 1e30])
def test_scales_and_codes_are_the_nearest(kata, oracle, device, seed, square, size):
    x = hard(seed, device) * size
    before = x.clone()
    packed, scales, tensor_scale = kata.nvfp4_train_quant(x, square)
    assert torch.equal(x, before), "x: expected as it was, found other numbers in it"
    dtypes = (torch.uint8, torch.float8_e4m3fn, torch.float32)
    assert (packed.dtype, scales.dtype, tensor_scale.dtype) == dtypes
    assert packed.is_contiguous(), f"packed: expected contiguous, found {packed.stride()}"
    assert scales.is_contiguous(), f"scales: expected contiguous, found {scales.stride()}"
    of_blocks, of_tensor = oracle.scales_of(x, block_of(square))
    assert abs(tensor_scale / of_tensor - 1) < 2**-22, f"{tensor_scale}, expected {of_tensor}"
    assert scales.shape == of_blocks.shape, f"scales: {scales.shape}, expected {of_blocks.shape}"
    ones = torch.ones_like(of_blocks)
    assert_nearest(scales.float(), ones, of_blocks, E4M3, (1, 1))
    numbers, used = oracle.unpacked(packed), scales.double() * tensor_scale.double()
    inside = x.double().clamp(*(6 * s for s in _each(used, square, x.shape)))
    assert_nearest(numbers, used, inside, E2M1, block_of(square))


def _each(scales, square, shape):
    """Minus and plus the scale of each number."""
    rows, cols = block_of(square)
    wide = scales.repeat_interleave(rows, dim=0).repeat_interleave(cols, dim=1)
    return -wide, wide


@SHAPES
def test_nothing_but_zeros(kata, device, square):
    packed, scales, tensor_scale = kata.nvfp4_train_quant(
        torch.zeros(16, 32, device=device), square
    )
    assert (packed.unique().tolist(), scales.float().unique().tolist()) == ([0], [2.0**-9])
    assert tensor_scale.item() == torch.finfo(torch.float32).tiny


def test_no_rows(kata, device):
    packed, scales, tensor_scale = kata.nvfp4_train_quant(torch.zeros(0, 32, device=device))
    assert (packed.shape, scales.shape, tensor_scale.shape) == ((0, 16), (0, 2), ())
    assert tensor_scale.item() == torch.finfo(torch.float32).tiny


def test_signs_of_small_numbers_stay(kata, device):
    # -0.1 becomes -0, which is code 8, and so does -0
    x = torch.full((1, 16), -0.1, device=device)
    x[0, 0], x[0, 8:] = 6.0, -0.0
    packed, _, _ = kata.nvfp4_train_quant(x)
    assert packed[0, 1:].tolist() == [0x88] * 7, "-0.1 and -0: expected code 8"


def test_ties_go_to_the_code_without_the_last_bit(kata, device):
    x = torch.tensor([[0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0] * 2], device=device)
    x = torch.cat([x, torch.tensor([[2688.0] + [0.0] * 15], device=device)])  # 6 · 448
    packed, scales, tensor_scale = kata.nvfp4_train_quant(x)
    assert (tensor_scale.item(), scales.float().tolist()) == (1.0, [[1.0], [448.0]])
    codes = torch.stack([packed[0] & 15, packed[0] >> 4], dim=1).flatten().tolist()
    assert codes == [0, 2, 2, 4, 4, 6, 6, 7] * 2, f"halfway between codes: found {codes}"


def test_weights_transposed_have_the_transposed_codes(kata, oracle, device, seed):
    w = torch.randn(48, 64, generator=torch.Generator().manual_seed(seed)).to(device)
    there, back = kata.nvfp4_train_quant(w, square=True), kata.nvfp4_train_quant(w.T, square=True)
    assert torch.equal(oracle.unpacked(there[0]), oracle.unpacked(back[0]).T)
    assert torch.equal(there[1].float(), back[1].float().T)


@SHAPES
def test_bits_for_a_number(kata, device, seed, square, cost):
    x = torch.randn(64, 256, generator=torch.Generator().manual_seed(seed)).to(device)
    packed, scales, tensor_scale = kata.nvfp4_train_quant(x, square)
    size = packed.nbytes + scales.nbytes + tensor_scale.nbytes
    cost.check("bits_square" if square else "bits", 8 * size / x.numel())


def test_as_many_operators_for_any_size(kata, device, dispatch):
    used = []
    for rows, k in ((16, 16), (64, 320)):
        x = torch.randn(rows, k, device=device)
        with dispatch() as seen:
            kata.nvfp4_train_quant(x, square=True)
        used.append(sum(seen.calls.values()))
    assert used[0] == used[1], f"16 x 16: {used[0]}, 64 x 320: {used[1]} operators of PyTorch"


@pytest.mark.parametrize(
    ("shape", "square"),
    [((4, 24), False), ((16, 40), True), ((24, 32), True)],
    ids=["24 columns", "40 columns", "24 rows"],
)
def test_what_fills_no_blocks_is_refused(kata, device, shape, square):
    with pytest.raises(ValueError, match="^x: "):
        kata.nvfp4_train_quant(torch.ones(shape, device=device), square)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")], ids=str)
def test_what_is_not_finite_is_refused(kata, device, bad):
    x = torch.ones(16, 32, device=device)
    x[9, 17] = bad
    with pytest.raises(ValueError, match="^x: "):
        kata.nvfp4_train_quant(x)
    for name in ("x", "dy"):
        operands = {"x": torch.ones(16, 4, device=device), "dy": torch.ones(16, 4, device=device)}
        operands[name][5, 2] = bad
        with pytest.raises(ValueError, match=f"^{name}: "):
            kata.wgrad_nvfp4(
                **operands, signs=torch.ones(16, device=device), generator=_draws(device)
            )


# ---- rounding at random --------------------------------------------------------------------


def _draws(device, seed=0):
    return torch.Generator(device=device).manual_seed(seed)


def test_rounding_is_right_on_average(kata, oracle, device):
    # scales of 1: from 0.2 up to 0.5 two times of five, from 4.4 up to 6 one of five
    sizes = torch.tensor([0.2, 0.7, 1.05, 1.9, 2.1, 3.6, 4.4, 5.9], device=device)
    x = torch.cat([sizes, -sizes]).repeat(4096, 1)
    x = torch.cat([x, x.new_tensor([[2688.0] + [0.0] * 15])])
    x[:-1, 15] = 6.0
    packed, scales, tensor_scale = kata.nvfp4_train_quant(x, generator=_draws(device))
    assert (tensor_scale.item(), scales[0].float().item()) == (1.0, 1.0)
    found = oracle.unpacked(packed)[:-1]
    for at, size in enumerate(sizes.tolist()):
        low = max(value for value in oracle.E2M1_VALUES if value <= size)
        high = min(value for value in oracle.E2M1_VALUES if value > size)
        rounded = found[:, at]
        assert set(rounded.unique().tolist()) == {low, high}, f"{size}: {rounded.unique()}"
        deviation = ((size - low) * (high - size) / 4096) ** 0.5
        off = (rounded.mean().item() - size) / deviation
        assert abs(off) < 4, f"{size}: {rounded.mean():.4f} on average, {off:.1f} sigmas off"
    assert torch.equal(found[:, 15].unique(), found.new_tensor([6.0])), "6 stays 6"


def test_neighbours_are_rounded_apart(kata, oracle, device):
    x = torch.full((64, 64), 0.25, device=device)
    x[:, ::16] = 6.0
    packed, _, _ = kata.nvfp4_train_quant(x, generator=_draws(device))
    up = (oracle.unpacked(packed) > 0).double()[:, torch.arange(64) % 16 > 0]
    assert up.mean(dim=0).min() > 0.15, "a column of 0.25: expected half of it up, in each"
    assert up.mean(dim=1).min() > 0.15, "a row of 0.25: expected half of it up, in each"


def test_values_of_the_grid_stay(kata, oracle, device):
    x = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.5, -1, -1.5, -2, -3, -4, -6, 0])
    x = torch.cat([x[None].to(device), torch.full((1, 16), 2688.0, device=device)])
    for seed in range(20):
        packed, _, _ = kata.nvfp4_train_quant(x, generator=_draws(device, seed))
        found = oracle.unpacked(packed)[0]
        assert torch.equal(found, x[0].double()), f"seed {seed}: {found.tolist()}"


def test_numbers_come_from_the_generator_alone(kata, device, seed):
    x = torch.randn(32, 64, generator=torch.Generator().manual_seed(seed)).to(device)
    before = torch.get_rng_state()
    first, again, other = (
        kata.nvfp4_train_quant(x, generator=_draws(device, at))[0] for at in (1, 1, 2)
    )
    assert torch.equal(first, again), "the same generator: expected the same codes"
    assert not torch.equal(first, other), "another generator: expected other codes"
    assert torch.equal(torch.get_rng_state(), before), "PyTorch's own generator was drawn from"


# ---- the transform and the gradient --------------------------------------------------------


def test_the_transform_by_its_matrix(kata, oracle, device, seed):
    draw = torch.Generator().manual_seed(seed)
    x, signs = torch.randn(48, 5, generator=draw).to(device).T, oracle.random_signs(seed, device)
    before = x.clone()
    found = kata.hadamard16(x, signs)
    trusted = (before.unflatten(1, (-1, 16)) @ oracle.matrix(signs).float()).flatten(1)
    assert_matches(found, oracle.transformed(before, signs), same_precision=trusted)
    assert torch.equal(x, before), "x: expected as it was, found other numbers in it"


def test_a_spike_is_spread_over_its_block(kata, device):
    x = torch.zeros(1, 32, device=device)
    x[0, 21] = 8.0
    found = kata.hadamard16(x, torch.ones(16, device=device)).abs()
    assert found.tolist() == [[0.0] * 16 + [2.0] * 16]


def test_what_cannot_be_transformed_is_refused(kata, device):
    signs = torch.ones(16, device=device)
    with pytest.raises(ValueError, match="^x: "):
        kata.hadamard16(torch.ones(2, 24, device=device), signs)
    one_zero = torch.cat([signs[:15], 0 * signs[:1]])
    for bad in (signs[:8], 0 * signs, one_zero, 2 * signs, signs.repeat(2)):
        with pytest.raises(ValueError, match="^signs: "):
            kata.hadamard16(torch.ones(2, 32, device=device), bad)


def on_grid(oracle, device, seed, tokens=64, n=24):
    """A dy whose transform is on the grid of E2M1, so that nothing is left to chance; and signs."""
    draw = torch.Generator().manual_seed(seed)
    signs = oracle.random_signs(seed, device)
    grid = torch.tensor(oracle.E2M1_VALUES)[torch.randint(8, (n, tokens), generator=draw)]
    grid *= 2.0 * torch.randint(2, grid.shape, generator=draw) - 1
    grid[:, ::16] = 6.0
    blocks = grid.to(device).double().unflatten(1, (-1, 16)) @ oracle.matrix(signs).T
    return (448 * blocks).flatten(1).T.float().contiguous(), signs


def test_activations_are_rounded_to_nearest_along_tokens(kata, oracle, device, seed):
    dy, signs = on_grid(oracle, device, seed)
    x = torch.randn(64, 20, generator=torch.Generator().manual_seed(seed)).to(device)
    x *= 10 ** torch.linspace(-1, 1, 64, device=device)[:, None]
    want = dy.double().T @ x.double()
    rounded = oracle.quantised_nearest(oracle.transformed(x.T, signs).float())
    right = oracle.transformed(dy.T, signs) @ rounded.T
    found = kata.wgrad_nvfp4(x, dy, signs, _draws(device))
    assert found.shape == want.shape, f"expected {tuple(want.shape)}, found {tuple(found.shape)}"
    # a tie of float32 may go the other way
    off = ((found - right).norm() / (right - want).norm()).item()
    assert off < 0.05, f"off by {off:.3f} of the rounding of x, nearest, along transformed tokens"


def test_gradients_are_right_on_average(kata, oracle, device, seed, cost):
    draw = torch.Generator().manual_seed(seed)
    x, dy = (torch.randn(1024, 32, generator=draw).to(device) for _ in range(2))
    signs = oracle.random_signs(seed, device)
    generator = _draws(device, seed)
    mean = sum(kata.wgrad_nvfp4(x, dy, signs, generator).double() for _ in range(64)) / 64
    # what x is rounded to does not change
    want = oracle.transformed(dy.T, signs) @ oracle.quantised_nearest(
        oracle.transformed(x.T, signs).float()
    ).T  # fmt: skip
    cost.check("mean_error", ((mean - want).norm() / want.norm()).item())


def test_operands_of_other_tokens_are_refused(kata, device):
    signs = torch.ones(16, device=device)
    x = torch.ones(32, 4, device=device)
    for rows, others in ((x, x[:16]), (x[:16], x)):
        with pytest.raises(ValueError, match="^dy: "):
            kata.wgrad_nvfp4(rows, others, signs, _draws(device))
    with pytest.raises(ValueError, match="^x: "):
        kata.wgrad_nvfp4(x[:24], x[:24], signs, _draws(device))
