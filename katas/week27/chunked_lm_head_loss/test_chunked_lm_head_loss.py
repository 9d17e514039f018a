"""Gradients of any loss against all logits at once, tokens that do not count, and bytes alive."""

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from harness.judge import assert_matches
from harness.meters.dispatch import flop_meter

LOSSES = ("cross_entropy", "smoothed", "focal", "weighted", "clipped")
NAN = float("nan")


def gradients(loss_of, inputs, pull=1.0, dtype=None):
    """Gradients of hidden and weight, for an upstream gradient of `pull`."""
    leaves = {
        name: inputs[name].detach().to(dtype or inputs[name].dtype, copy=True).requires_grad_()
        for name in ("hidden", "weight")
    }
    (loss_of(**{**inputs, **leaves}) * pull).backward()
    return tuple(leaf.grad for leaf in leaves.values())


def assert_gradients(kata, oracle, inputs, pull=1.0):
    got = gradients(kata.chunked_lm_loss, inputs, pull)
    want = gradients(oracle.reference, inputs, pull, torch.float64)
    assert_matches(got, want, same_precision=gradients(oracle.same_precision, inputs, pull))


# ---- loss and gradients --------------------------------------------------------------------


@example(n=7, v=5, ignored=2, chunk=5, loss="focal", seed=0)  # one chunk, exactly
@example(n=8, v=5, ignored=7, chunk=3, loss="clipped", seed=0)  # one token
@example(n=9, v=5, ignored=0, chunk=4, loss="weighted", seed=1)  # the last chunk is one token
@example(n=9, v=5, ignored=3, chunk=4, loss="cross_entropy", seed=1)
@given(
    n=st.integers(1, 20),
    v=st.integers(2, 20),
    ignored=st.integers(0, 5),
    chunk=st.just("auto") | st.integers(1, 20),
    loss=st.sampled_from(LOSSES),
    seed=st.integers(0, 2**31),
)
def test_any_loss_and_chunk_give_the_same_gradients(
    kata, oracle, device, n, v, ignored, chunk, loss, seed
):
    inputs = oracle.make_inputs(
        n=n, v=v, d=16, ignored=min(ignored, n - 1), chunk=chunk, loss=loss, device=device,
        dtype=torch.float64, seed=seed,
    )  # fmt: skip
    found = kata.chunked_lm_loss(**inputs).item()
    assert found == pytest.approx(oracle.reference(**inputs).item(), rel=1e-12, abs=1e-13)
    got, want = (gradients(f, inputs, -2.5) for f in (kata.chunked_lm_loss, oracle.reference))
    for name, ours, truth in zip(("hidden", "weight"), got, want, strict=True):
        assert (ours - truth).abs().max() < 1e-12, f"the gradient of {name}"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_gradients_have_the_digits_of_their_dtype(kata, oracle, device, seed, dtype):
    inputs = oracle.make_inputs(
        n=50, v=30, d=16, ignored=7, chunk=8, loss="focal", dtype=dtype, device=device, seed=seed
    )
    loss = kata.chunked_lm_loss(**inputs)
    assert loss.dtype == torch.float32
    # logits are rounded to the dtype of the inputs, in any order of their sums
    truth, plain = oracle.reference(**inputs), oracle.same_precision(**inputs)
    assert_matches(loss.to(dtype), truth, same_precision=plain.to(dtype))
    assert_gradients(kata, oracle, inputs, pull=64.0)


def test_sums_over_chunks_are_wide(kata, oracle, device):
    # 256 chunks that add 16 / 3 each: from 1024 on float16 goes by steps of 1
    hidden = torch.ones(4096, 1, dtype=torch.float16, device=device)
    weight = torch.zeros(3, 1, dtype=torch.float16, device=device, requires_grad=True)
    labels = torch.zeros(4096, dtype=torch.int64, device=device)
    loss = kata.chunked_lm_loss(hidden, weight, labels, oracle.cross_entropy, 16)
    loss.backward()
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(1.0986123, rel=1e-5)
    assert weight.grad.flatten().tolist() == pytest.approx([-2 / 3, 1 / 3, 1 / 3], rel=2e-3)


@pytest.mark.parametrize(("value", "pull"), [(0.003, 2.0**14), (100.0, 2.0**-8)], ids=str)
def test_gradients_are_divided_and_scaled_at_once(kata, device, value, pull):
    # 0.003 / 3000 is 16.8 of float16's smallest steps, 2**-8 / 3000 is 21.8 of them
    hidden = torch.ones(3000, 1, dtype=torch.float16, device=device, requires_grad=True)
    weight = torch.tensor([[value], [0]], dtype=torch.float16, device=device, requires_grad=True)
    labels = torch.zeros(3000, dtype=torch.int64, device=device)

    def first(logits, _labels):
        return logits[:, 0].sum()

    (kata.chunked_lm_loss(hidden, weight, labels, first, 1000) * pull).backward()
    found = hidden.grad[0].item()
    assert found == pytest.approx(weight[0].item() * pull / 3000, rel=1e-3)
    assert weight.grad.flatten().tolist() == pytest.approx([pull, 0.0], rel=1e-3)


def test_a_transform_sees_chunks_of_the_tokens_that_count(kata):
    seen = []

    def spy(logits, labels, weights, pairs):
        seen.append((labels.tolist(), weights.tolist(), pairs.tolist()))
        assert logits.dtype == torch.float32
        assert logits.shape == (len(labels), 10)
        assert logits.unique().tolist() == [2.0]  # 2 + 2**-12 in float16
        assert pairs.dtype == torch.int64
        return (logits.sum(1) * weights).sum()

    labels = torch.tensor([7, 3, -1, 0, -1, 9, 1, -1])
    weights, pairs = torch.arange(8.0), torch.arange(16).view(8, 2)
    hidden = torch.tensor([[1, 1, 2**-12]], dtype=torch.float16).repeat(8, 1)
    weight = torch.ones(10, 3, dtype=torch.float16)
    found = kata.chunked_lm_loss(hidden, weight, labels, spy, 2, -1, (weights, pairs))
    expected = [
        ([7, 3], [0.0, 1.0], [[0, 1], [2, 3]]),
        ([0, 9], [3.0, 5.0], [[6, 7], [10, 11]]),
        ([1], [6.0], [[12, 13]]),
    ]
    assert seen == expected
    assert found.item() == 20 * (0 + 1 + 3 + 5 + 6) / 5


@pytest.mark.parametrize("value", [NAN, float("inf")], ids=str)
@pytest.mark.parametrize("ignore", [-100, 1, 2], ids=["below", "a column", "above"])
def test_tokens_that_do_not_count_may_be_anything(kata, oracle, device, value, ignore):
    hidden = torch.tensor([[1.0], [value], [3.0]], device=device, requires_grad=True)
    weight = torch.zeros(2, 1, device=device, requires_grad=True)
    labels = torch.tensor([0, ignore, 0], device=device)
    loss = kata.chunked_lm_loss(hidden, weight, labels, oracle.cross_entropy, 3, ignore)
    loss.backward()
    assert loss.item() == pytest.approx(0.6931472, rel=1e-6)
    assert hidden.grad.tolist() == [[0.0]] * 3
    assert weight.grad.tolist() == [[-1.0], [1.0]]  # the mean of 1/2 and 3/2


@pytest.mark.parametrize("tokens", [0, 3], ids=["no tokens", "none that count"])
def test_nothing_costs_nothing(kata, device, tokens):
    def never(logits, labels):
        raise AssertionError("transform was called, expected not to be without tokens")

    hidden = torch.ones(tokens, 4, device=device, requires_grad=True)
    weight = torch.ones(5, 4, device=device, requires_grad=True)
    labels = torch.full((tokens,), -100, device=device)
    loss = kata.chunked_lm_loss(hidden, weight, labels, never, 2)
    loss.backward()
    assert loss.item() == 0.0
    assert (hidden.grad.tolist(), weight.grad.tolist()) == ([[0.0] * 4] * tokens, [[0.0] * 4] * 5)


def test_gradients_accumulate_and_may_be_asked_for_again(kata, oracle, device, seed):
    inputs = oracle.make_inputs(
        n=9, v=7, d=5, chunk=2, dtype=torch.float32, device=device, seed=seed, needs_grad=True
    )
    hidden, weight = inputs["hidden"], inputs["weight"]
    loss = kata.chunked_lm_loss(**inputs) * 3
    first = torch.autograd.grad(loss, (hidden, weight), retain_graph=True)
    first = [grad.clone() for grad in first]
    again = torch.autograd.grad(loss, (hidden, weight))
    assert all(map(torch.equal, again, first)), "the gradient of a second backward differs"
    for _ in range(2):
        (kata.chunked_lm_loss(**inputs) + weight.sum()).backward()
    assert_matches(weight.grad, 2 * (first[1].double() / 3 + 1), same_precision=first[1])


def test_the_weight_may_be_the_embedding(kata, oracle, seed):
    draw = torch.Generator().manual_seed(seed)
    tied = torch.randn(11, 6, generator=draw, dtype=torch.float64, requires_grad=True)
    tokens, labels = torch.randint(11, (2, 13), generator=draw)
    found = []
    for loss_of in (kata.chunked_lm_loss, oracle.reference):
        loss = loss_of(
            hidden=tied[tokens], weight=tied, labels=labels, transform=oracle.focal, chunk=4
        )
        found.append(torch.autograd.grad(loss, tied)[0])
    assert (found[0] - found[1]).abs().max() < 1e-12


# ---- work and bytes ------------------------------------------------------------------------

LARGE = {"n": 512, "v": 4096, "d": 64, "dtype": torch.float32, "device": "cpu", "needs_grad": True}


def products(ops):
    """Matrix products among `ops`, also those that add to what is there."""
    names = ("mv", "mm", "addmv", "addmv_", "addmm", "addmm_", "bmm", "baddbmm", "baddbmm_")
    return sum(ops.count(f"aten.{name}") for name in names)


@pytest.mark.parametrize(
    ("wanted", "of_a_chunk"),
    [((), 1), (("hidden",), 2), (("weight",), 2), (("hidden", "weight"), 3)],
    ids=["none", "hidden", "weight", "both"],
)
def test_what_is_frozen_costs_nothing(kata, oracle, dispatch, wanted, of_a_chunk):
    inputs = oracle.make_inputs(n=10, v=6, d=4, chunk=4, dtype=torch.float32, device="cpu", seed=0)
    for name in wanted:
        inputs[name].requires_grad_()
    with dispatch() as ops:
        loss = kata.chunked_lm_loss(**inputs)
        if wanted:
            loss.backward()
    found = products(ops)  # 10 tokens by 4 are 3 chunks
    assert found == 3 * of_a_chunk, f"{found} products, gradients of {wanted}: {3 * of_a_chunk}"
    assert tuple(name for name in ("hidden", "weight") if inputs[name].grad is not None) == wanted
    for name in wanted:
        inputs[name].grad = None
    with torch.no_grad(), dispatch() as ops:
        assert not kata.chunked_lm_loss(**inputs).requires_grad
    found = products(ops)
    assert found == 3, f"{found} products under no_grad, expected 3"


def peak_of(loss_of, oracle, dispatch, seed, chunk):
    inputs = oracle.make_inputs(**LARGE, chunk=chunk, seed=seed)
    with dispatch() as ops:
        loss_of(**inputs).backward()
    return ops.peak_live_bytes


def test_logits_never_exist_all_at_once(kata, oracle, dispatch, cost, seed):
    plain = peak_of(oracle.same_precision, oracle, dispatch, seed, None)
    found = {chunk: peak_of(kata.chunked_lm_loss, oracle, dispatch, seed, chunk) for chunk in
             (32, "auto")}  # fmt: skip
    cost.check("peak", max(found.values()) / plain)


def test_a_frozen_weight_has_no_buffer(kata, oracle, dispatch, seed):
    inputs = oracle.make_inputs(**LARGE, chunk=8, seed=seed)
    inputs["weight"] = inputs["weight"].detach()
    with dispatch() as ops:
        kata.chunked_lm_loss(**inputs).backward()
    # twice dX, of 128 KiB, and five tensors of the size of a chunk's logits, also 128 KiB
    assert ops.peak_live_bytes <= 7 * 2**17, f"{ops.peak_live_bytes} bytes at a time"


def test_nothing_is_computed_twice(kata, oracle, cost, seed):
    inputs = oracle.make_inputs(**LARGE, chunk=32, seed=seed)
    with flop_meter() as meter:
        kata.chunked_lm_loss(**inputs).backward()
    cost.check("flops", meter.flops / (3 * 2 * 512 * 4096 * 64))


def test_forward_leaves_two_gradients(kata, oracle, dispatch, cost, seed):
    inputs = oracle.make_inputs(**LARGE, chunk=32, seed=seed)
    with dispatch() as ops:
        loss = kata.chunked_lm_loss(**inputs)
        probe = torch.empty(1 << 28, dtype=torch.uint8)  # so much that now is the peak
    assert loss.requires_grad
    cost.check("saved_bytes", ops.peak_live_bytes - probe.nbytes)


# ---- bad input -----------------------------------------------------------------------------


def ones(n, v=5):
    return torch.ones(n, 3), torch.ones(v, 3)


@pytest.mark.parametrize("label", [5, 1000, -1, -99])
def test_labels_outside_the_vocabulary_are_refused(kata, oracle, label):
    with pytest.raises(ValueError, match="^labels: "):
        kata.chunked_lm_loss(*ones(2), torch.tensor([0, label]), oracle.cross_entropy)


@pytest.mark.parametrize(
    "shapes", [[(3,)], [(2,), (1,)], [()]], ids=["more", "the second fewer", "no axis"]
)
def test_extra_has_an_entry_for_each_token(kata, oracle, shapes):
    extra = [torch.ones(shape) for shape in shapes]
    with pytest.raises(ValueError, match="^extra: "):
        kata.chunked_lm_loss(*ones(2), torch.tensor([0, 1]), oracle.clipped, extra=extra)


def test_a_transform_sums(kata):
    for result in (lambda logits, labels: logits.sum(1), lambda logits, labels: logits.sum()[None]):
        with pytest.raises(ValueError, match="^transform: "):
            kata.chunked_lm_loss(*ones(2), torch.tensor([0, 1]), result, 1)
