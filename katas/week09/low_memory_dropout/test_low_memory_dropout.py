"""What is special about a mask that is made twice: the same bits, from numbers alone."""

import pytest
import torch

from harness.judge import assert_follows, assert_matches
from harness.meters.dispatch import alive_bytes


def ones(n, device, dtype=torch.float32):
    return torch.ones(n, dtype=dtype, device=device)


# ---- the mask ------------------------------------------------------------------------------


def test_the_first_words_of_the_published_generator(kata, device):
    # key 0, counter 0: 6627e8d5 e169c58d bc57ac4c 9b00dbd8 (known answers of Random123)
    first = 0x6627E8D5 / 2**32  # a word that equals the threshold is kept
    masks = {first: [1, 1, 1, 1], first + 2**-32: [0, 1, 1, 1], 0.61: [0, 1, 1, 0]}
    masks[first + 0.75 * 2**-32] = [1, 1, 1, 1]  # int() cuts off
    seeds = torch.zeros(1, dtype=torch.int64, device=device)
    for p, mask in masks.items():
        y = kata.low_memory_dropout(ones(4, device), p, seed=0)
        assert (y != 0).int().tolist() == mask, f"kept of 4 at p = {p!r}"
        y = kata.dropout_rows(ones(4, device)[None], p, seeds)[0]
        assert (y != 0).int().tolist() == mask, f"kept of a row of 4 at p = {p!r}"


def test_kept_pairs_are_as_frequent_as_independent_ones(kata, device):
    for p, seed in ((0.1, 1), (0.5, 2), (0.9, 3)):
        kept = (kata.low_memory_dropout(ones(20_000, device), p, seed) != 0).int()
        pairs = torch.bincount(2 * kept[::2] + kept[1::2], minlength=4)
        assert_follows(pairs, [p * p, p * (1 - p), (1 - p) * p, (1 - p) ** 2], what=f"p = {p}")


def test_a_tensor_in_parts_has_the_mask_of_the_whole(kata, device):
    x = torch.randn(3001, device=device)
    whole = kata.low_memory_dropout(x, 0.5, 7)
    parts = [kata.low_memory_dropout(x[at : at + 1000], 0.5, 7, at) for at in range(0, 3001, 1000)]
    assert torch.equal(torch.cat(parts), whole)


def test_dropped_is_plus_zero_whatever_it_was(kata, oracle, device):
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), -1.0] * 16, device=device)
    dropped = ~oracle.kept(64, 0.5, 5).to(device)
    seeds = torch.tensor([5], device=device)
    for y in (kata.low_memory_dropout(x, 0.5, 5), kata.dropout_rows(x[None], 0.5, seeds)[0]):
        assert y[dropped].tolist() == [0.0] * int(dropped.sum())
        assert not torch.signbit(y[dropped]).any(), "expected +0 where dropped, found -0"
        assert_matches(y[~dropped], x[~dropped].double() * 2)


def test_float16_is_scaled_in_float32(kata, oracle, device):
    x = torch.linspace(-4, 4, 3000, device=device).to(torch.float16)
    kept = oracle.kept(3000, 0.3, 9).to(device)
    seeds = torch.tensor([9], device=device)
    for y in (kata.low_memory_dropout(x, 0.3, 9), kata.dropout_rows(x[None], 0.3, seeds)[0]):
        assert_matches(y[kept], x[kept].double() / 0.7)


@pytest.mark.parametrize("shape", [(), (2, 3, 5), (3, 0)], ids=["no axis", "three", "empty"])
def test_any_shape_is_kept(kata, oracle, device, shape):
    x = torch.randn(shape, device=device, requires_grad=True)
    y = kata.low_memory_dropout(x, 0.5, 4)
    assert y.shape == shape
    assert_matches(y, oracle.reference(x=x.detach(), p=0.5, seed=4))
    y.backward(torch.ones_like(x))
    assert_matches(x.grad, oracle.reference(x=torch.ones_like(x), p=0.5, seed=4))


# ---- the backward pass ---------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=["float16", "float32"])
def test_the_gradient_has_the_mask_of_the_forward_pass(kata, oracle, device, dtype):
    x = torch.randn(21, 100, device=device).to(dtype).requires_grad_()
    # the largest seed, and an offset of more than 32 bits: a number cut short on the way shows
    mask = {"p": 0.4, "seed": 2**63 - 1, "offset": 2**35 + 8}
    dy = torch.randn(21, 100, device=device).to(dtype)
    kata.low_memory_dropout(x, **mask).backward(dy)
    want = oracle.reference(x=dy, **mask)
    assert_matches(x.grad, want, same_precision=oracle.same_precision(x=dy, **mask))


def test_a_gradient_that_is_not_contiguous(kata, oracle, device):
    x = torch.randn(30, 40, device=device, requires_grad=True)
    weights = torch.randn(40, 30, device=device)
    (kata.low_memory_dropout(x, 0.5, 3).T * weights).sum().backward()
    assert_matches(x.grad, oracle.reference(x=weights.T.contiguous(), p=0.5, seed=3))
    x.grad = None
    kata.low_memory_dropout(x, 0.5, 3).sum().backward()  # dy is one number, expanded
    assert_matches(x.grad, oracle.reference(x=torch.ones_like(x), p=0.5, seed=3))


def test_two_passes_are_in_flight(kata, oracle, device):
    x = torch.ones(500, device=device, requires_grad=True)
    first, second = kata.low_memory_dropout(x, 0.5, 3), kata.low_memory_dropout(x, 0.25, 4, 8)
    for _ in range(2):  # the graph is kept: one forward pass, two backward
        (gradient,) = torch.autograd.grad(first.sum(), x, retain_graph=True)
        assert_matches(gradient, oracle.reference(x=x.detach(), p=0.5, seed=3))
    (gradient,) = torch.autograd.grad(second.sum(), x)
    assert_matches(gradient, oracle.reference(x=x.detach(), p=0.25, seed=4, offset=8))


def test_nothing_is_kept(kata, device, cost):
    leaf = torch.randn(4000, device=device, requires_grad=True)
    before = alive_bytes()
    y = kata.low_memory_dropout(leaf * 2, 0.5, 1)
    cost.check("saved_bytes", alive_bytes() - before - y.nbytes)


def test_the_backward_pass_reads_dy_and_writes_dx(kata, traffic):
    x = torch.randn(3000, requires_grad=True)
    y = kata.low_memory_dropout(x, 0.5, 1)
    dy = torch.randn(3000)
    with traffic() as moved:
        y.backward(dy)
    assert moved.loaded_bytes == dy.nbytes
    assert moved.stored_bytes == dy.nbytes


# ---- rows ----------------------------------------------------------------------------------


def rows_reference(oracle, x, p, seeds):
    rows = [oracle.reference(x=x[r], p=p, seed=int(seeds[r])) for r in range(len(x))]
    return torch.stack(rows)


@pytest.mark.parametrize("cols", [1, 129, 1030], ids=["one", "a tail", "two blocks"])
def test_every_row_has_its_seed(kata, oracle, device, cols):
    x = torch.randn(4, cols + 3, device=device)[:, :cols]
    seeds = torch.tensor([5, 2**40 + 1, 5, -6], device=device)
    y = kata.dropout_rows(x, 0.4, seeds)
    assert y.is_contiguous()
    assert_matches(y, rows_reference(oracle, x, 0.4, seeds))


def test_rows_are_read_in_place(kata, oracle, device, dispatch):
    x = torch.randn(3, 200, device=device).to(torch.float16)[:, :150]
    seeds = torch.arange(6, device=device)[::2]
    with dispatch() as ops:
        y = kata.dropout_rows(x, 0.5, seeds)
    assert ops.allocated_bytes == y.nbytes, "more was allocated than the result"
    assert y.dtype == torch.float16
    assert_matches(y, rows_reference(oracle, x, 0.5, seeds))


def test_rows_may_pass_2_31_elements(kata, oracle, device):
    # the stride alone fits in 31 bits
    wide = torch.empty(2**31 + 100, dtype=torch.float16, device=device)
    x = wide.as_strided((3, 100), (2**30, 1)).normal_()
    seeds = torch.tensor([1, 2, 3], device=device)
    assert_matches(kata.dropout_rows(x, 0.5, seeds), rows_reference(oracle, x, 0.5, seeds))


def test_a_single_column_has_any_stride(kata, oracle, device):
    x, seeds = torch.randn(5, 3, device=device)[:, ::3], torch.arange(5, device=device)
    assert_matches(kata.dropout_rows(x, 0.5, seeds), rows_reference(oracle, x, 0.5, seeds))


@pytest.mark.parametrize("shape", [(0, 4), (3, 0)], ids=["no rows", "no columns"])
def test_no_rows_and_no_columns(kata, device, shape):
    seeds = torch.zeros(shape[0], dtype=torch.int64, device=device)
    assert kata.dropout_rows(torch.empty(shape, device=device), 0.5, seeds).shape == shape


@pytest.mark.parametrize(
    ("says", "change"),
    [
        ("seeds: ", {"seeds": torch.zeros(3, dtype=torch.int64)}),
        ("seeds: ", {"seeds": torch.zeros(2, 1, dtype=torch.int64)}),
        ("seeds: ", {"seeds": torch.zeros(2, dtype=torch.int32)}),
        ("p: ", {"p": 1.0}),
        ("x: .*contiguous", {"x": torch.ones(2, 4)[:, ::2]}),
        ("x: ", {"x": torch.ones(2, 4, dtype=torch.float64)}),
        ("x: ", {"x": torch.ones(2)}),
    ],
    ids=[
        *("three seeds", "a column of seeds", "int32 seeds", "p of 1", "strided columns"),
        *("float64", "one axis"),
    ],
)
def test_rows_are_checked(kata, says, change):
    given = {"x": torch.ones(2, 4), "p": 0.5, "seeds": torch.zeros(2, dtype=torch.int64)}
    with pytest.raises(ValueError, match=f"^{says}"):
        kata.dropout_rows(**given | change)
