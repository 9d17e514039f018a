"""Gradients against all logits at once, ignored tokens, extremes, shards, and the bytes alive."""

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from harness.judge import assert_matches

INF = float("inf")


def gradients(loss_of, inputs, pull=1.0, dtype=None):
    """Gradients of x and w, for an upstream gradient of `pull`."""
    leaves = {
        name: inputs[name].detach().to(dtype or inputs[name].dtype, copy=True).requires_grad_()
        for name in "xw"
    }
    (loss_of(**{**inputs, **leaves}) * pull).backward()
    return tuple(leaf.grad for leaf in leaves.values())


def assert_gradients(kata, oracle, inputs, pull=1.0):
    got = gradients(kata.linear_cross_entropy, inputs, pull)
    want = gradients(oracle.reference, inputs, pull, torch.float64)
    assert_matches(got, want, same_precision=gradients(oracle.same_precision, inputs, pull))


# ---- loss and gradients --------------------------------------------------------------------


@example(t=7, v=5, ignored=2, chunk=7, reduction="mean", seed=0)  # one chunk, exactly
@example(t=8, v=5, ignored=7, chunk=3, reduction="mean", seed=0)  # a chunk where nothing counts
@example(t=9, v=5, ignored=4, chunk=4, reduction="sum", seed=1)  # the last chunk is one token
@example(t=3, v=1, ignored=1, chunk=1, reduction="mean", seed=0)  # no label but 0
@given(
    t=st.integers(1, 20),
    v=st.integers(1, 20),
    ignored=st.integers(0, 5),
    chunk=st.none() | st.integers(1, 20),
    reduction=st.sampled_from(("mean", "sum")),
    seed=st.integers(0, 2**31),
)
def test_any_chunk_gives_the_same_gradients(
    kata, oracle, device, t, v, ignored, chunk, reduction, seed
):
    inputs = oracle.make_inputs(
        t=t, v=v, d=16, ignored=min(ignored, t - 1), chunk=chunk, reduction=reduction,
        dtype=torch.float32, device=device, seed=seed,
    )  # fmt: skip
    loss = kata.linear_cross_entropy(**inputs)
    assert_matches(loss, oracle.reference(**inputs), same_precision=oracle.same_precision(**inputs))
    assert_gradients(kata, oracle, inputs, pull=-2.5)


def test_gradients_of_half_precision_are_summed_in_single(kata, oracle, device, seed):
    # 600 chunks of one token: each adds a little to dw
    inputs = oracle.make_inputs(
        t=600, v=8, d=8, chunk=1, dtype=torch.float16, device=device, seed=seed
    )
    inputs["x"] = inputs["x"].abs() + 1  # all on one side, so that the sums grow
    assert_gradients(kata, oracle, inputs, pull=64.0)
    loss = kata.linear_cross_entropy(**inputs)
    assert loss.dtype == torch.float16
    # logits are off by half a unit in the last place, and so is the loss
    largest = (inputs["x"].double() @ inputs["w"].double().T).abs().max()
    want = oracle.reference(**inputs).item()
    assert abs(loss.item() - want) <= 2**-10 * largest.item() + 2**-11 * want


def test_losses_of_half_precision_are_summed_in_single(kata, device):
    # 4000 times log 2: float16 gets no further than 2048, where its steps are 2
    x, w = (torch.zeros(rows, 1, dtype=torch.float16, device=device) for rows in (4000, 2))
    target = torch.zeros(4000, dtype=torch.int64, device=device)
    loss = kata.linear_cross_entropy(x, w, target, chunk_bytes=8)
    assert loss.item() == pytest.approx(0.6931, abs=2**-11)


def test_small_gradients_do_not_vanish_in_half_precision(kata, device):
    # the gradient of a logit is 2^-16, and over 4096 tokens nothing that float16 holds
    x = torch.ones(4096, 1, dtype=torch.float16, device=device)
    w = torch.tensor([[11.09375], [0.0]], dtype=torch.float16, device=device, requires_grad=True)
    target = torch.zeros(4096, dtype=torch.int64, device=device)
    kata.linear_cross_entropy(x, w, target, chunk_bytes=8 * 512).backward()
    p = float(torch.tensor(-11.09375, dtype=torch.float64).sigmoid())
    assert w.grad.flatten().tolist() == pytest.approx([-p, p], rel=0.01)


def test_gradients_too_small_for_half_precision_add_up(kata, device):
    # the gradient of a logit is 2^-26, half of what float16 has left; the sum is 2^-14
    x = torch.ones(4096, 1, dtype=torch.float16, device=device)
    w = torch.tensor([[18.03125], [0.0]], dtype=torch.float16, device=device, requires_grad=True)
    target = torch.zeros(4096, dtype=torch.int64, device=device)
    kata.linear_cross_entropy(x, w, target, reduction="sum", chunk_bytes=8 * 512).backward()
    p = float(torch.tensor(-18.03125, dtype=torch.float64).sigmoid())
    assert w.grad[1].item() == pytest.approx(4096 * p, rel=0.01)


def test_sums_of_a_chunk_may_be_too_large_for_half_precision(kata, device):
    # 4096 times 16 is over 65504, and the mean 16
    x = torch.full((4096, 1), 32.0, dtype=torch.float16, device=device)
    w = torch.zeros(2, 1, dtype=torch.float16, device=device, requires_grad=True)
    target = torch.zeros(4096, dtype=torch.int64, device=device)
    kata.linear_cross_entropy(x, w, target, chunk_bytes=8 * 4096).backward()
    assert w.grad.flatten().tolist() == [-16.0, 16.0]


@pytest.mark.parametrize("ignore_index", [-100, 2, -1, 1000])
def test_ignored_tokens_count_for_nothing(kata, oracle, device, seed, ignore_index):
    inputs = oracle.make_inputs(t=12, v=5, d=8, dtype=torch.float32, device=device, seed=seed)
    inputs["target"] = torch.tensor([0, 1, 2, 3, 4, 2, 2, 1, 0, 2, 4, 3], device=device)
    inputs["target"][inputs["target"] == 2] = ignore_index
    inputs.update(ignore_index=ignore_index, chunk_bytes=3 * 5 * 4)
    loss = kata.linear_cross_entropy(**inputs)
    assert_matches(loss, oracle.reference(**inputs), same_precision=oracle.same_precision(**inputs))
    assert_gradients(kata, oracle, inputs)


@pytest.mark.parametrize("value", [INF, float("nan")], ids=["inf", "nan"])
def test_what_is_ignored_may_be_anything(kata, device, value):
    x = torch.tensor([[1.0], [value], [3.0]], device=device, requires_grad=True)
    w = torch.zeros(2, 1, device=device, requires_grad=True)
    target = torch.tensor([0, -100, 0], device=device)
    loss = kata.linear_cross_entropy(x, w, target)
    loss.backward()
    assert loss.item() == pytest.approx(0.693147, abs=1e-6)
    assert x.grad.tolist() == [[0.0]] * 3
    assert w.grad.tolist() == [[-1.0], [1.0]]  # the mean of 1/2 and 3/2


def test_ignored_tokens_count_for_nothing_whatever_w_is(kata, device):
    # a word that is never to be chosen; 0 times its row would be NaN
    x = torch.ones(2, 1, device=device, requires_grad=True)
    w = torch.tensor([[-INF], [0.0]], device=device, requires_grad=True)
    loss = kata.linear_cross_entropy(x, w, torch.tensor([1, -100], device=device))
    loss.backward()
    assert loss.item() == 0.0
    assert x.grad[1].tolist() == [0.0]
    assert w.grad.tolist() == [[0.0], [0.0]]


@pytest.mark.parametrize("tokens", [0, 3], ids=["no tokens", "all ignored"])
def test_mean_of_nothing_is_nan_and_has_no_gradient(kata, device, tokens):
    x = torch.ones(tokens, 4, device=device, requires_grad=True)
    w = torch.ones(5, 4, device=device, requires_grad=True)
    target = torch.full((tokens,), -100, device=device)
    loss = kata.linear_cross_entropy(x, w, target)
    loss.backward()
    assert loss.isnan()
    assert (x.grad.tolist(), w.grad.tolist()) == ([[0.0] * 4] * tokens, [[0.0] * 4] * 5)
    assert kata.linear_cross_entropy(x, w, target, reduction="sum").item() == 0.0


def test_huge_logits_stay_finite(kata, device):
    x = torch.tensor([[1e4], [-1e4]], device=device, requires_grad=True)
    w = torch.tensor([[1.0], [-1.0], [0.0]], device=device, requires_grad=True)
    target = torch.tensor([1, 1], device=device)  # the worst, and the best
    loss = kata.linear_cross_entropy(x, w, target)
    loss.backward()
    assert loss.item() == 1e4
    assert x.grad.tolist() == [[1.0], [0.0]]
    assert w.grad.tolist() == [[5e3], [-5e3], [0.0]]


def test_large_logits_keep_their_digits(kata, device):
    # seven alike: to subtract log-sum-exp, 10001.9459, leaves 3 digits
    x = torch.tensor([[1e4], [1.0]], device=device)  # not both in one chunk's maximum
    w = torch.ones(7, 1, device=device, requires_grad=True)
    target = torch.tensor([0, 0], device=device)
    loss = kata.linear_cross_entropy(x, w, target, chunk_bytes=2 * 7 * 4)
    loss.backward()
    assert loss.item() == pytest.approx(1.9459101, rel=1e-5)
    assert w.grad.flatten().tolist() == pytest.approx([-30003 / 7] + [10001 / 14] * 6, rel=1e-5)


def test_double_precision_stays_double(kata, oracle, device, seed):
    inputs = oracle.make_inputs(
        t=9, v=7, d=5, chunk=2, dtype=torch.float64, device=device, seed=seed
    )
    loss = kata.linear_cross_entropy(**inputs)
    assert loss.dtype == torch.float64
    assert loss.item() == pytest.approx(oracle.reference(**inputs).item(), rel=1e-13)
    got, want = (gradients(f, inputs) for f in (kata.linear_cross_entropy, oracle.reference))
    for name, ours, truth in zip("xw", got, want, strict=True):
        assert (ours - truth).abs().max() < 1e-14, f"the gradient of {name} has fewer digits"
    lse, label = kata.shard_stats(inputs["x"], inputs["w"], inputs["target"], 0)
    assert lse.dtype == label.dtype == torch.float64
    logits = inputs["x"] @ inputs["w"].T
    assert (lse - logits.logsumexp(1)).abs().max() < 1e-13
    assert (label - logits.gather(1, inputs["target"][:, None])[:, 0]).abs().max() < 1e-13


def test_backward_again_gives_the_same(kata, oracle, device, seed):
    inputs = oracle.make_inputs(
        t=9, v=7, d=5, dtype=torch.float32, device=device, seed=seed, needs_grad=True
    )
    before = [inputs[name].detach().clone() for name in "xw"]
    loss = kata.linear_cross_entropy(**inputs) * 3
    first = torch.autograd.grad(loss, (inputs["x"], inputs["w"]), retain_graph=True)
    first = [grad.clone() for grad in first]
    again = torch.autograd.grad(loss, (inputs["x"], inputs["w"]))
    assert all(map(torch.equal, again, first))
    for name, old in zip("xw", before, strict=True):
        assert torch.equal(inputs[name], old), f"{name} has been written to"


@pytest.mark.parametrize(
    ("wanted", "of_a_chunk"),
    [("", 1), ("x", 2), ("w", 2), ("xw", 3)],
    ids=["none", "x", "w", "both"],
)
def test_what_needs_no_gradient_costs_nothing(kata, oracle, dispatch, wanted, of_a_chunk):
    inputs = oracle.make_inputs(t=10, v=6, d=4, chunk=4, dtype=torch.float32, device="cpu", seed=0)
    for name in wanted:
        inputs[name].requires_grad_()
    with dispatch() as ops:
        loss = kata.linear_cross_entropy(**inputs)
        if wanted:
            loss.backward()
    assert products(ops) == 3 * of_a_chunk  # 10 tokens by 4 are 3 chunks
    assert [name for name in "xw" if inputs[name].grad is not None] == list(wanted)


def test_without_autograd_nothing_needs_a_gradient(kata, oracle, dispatch):
    inputs = oracle.make_inputs(
        t=10, v=6, d=4, chunk=4, dtype=torch.float32, device="cpu", seed=0, needs_grad=True
    )
    with torch.no_grad(), dispatch() as ops:
        kata.linear_cross_entropy(**inputs)
    assert products(ops) == 3


# ---- bytes ---------------------------------------------------------------------------------

LARGE = {"t": 2048, "v": 4096, "d": 64, "dtype": torch.float32, "device": "cpu", "needs_grad": True}


def products(ops):
    """Matrix products among `ops`, also those that add to what is there."""
    names = ("mv", "mm", "addmv", "addmv_", "addmm", "addmm_", "bmm", "baddbmm", "baddbmm_")
    return sum(ops.count(f"aten.{name}") for name in names)


def peak_of(loss_of, oracle, dispatch, seed, chunk_bytes=None, **smaller):
    inputs = oracle.make_inputs(**{**LARGE, **smaller}, seed=seed)
    inputs["chunk_bytes"] = chunk_bytes
    with dispatch() as ops:
        loss_of(**inputs).backward()
    return ops.peak_live_bytes


def test_logits_never_exist(kata, oracle, dispatch, cost, seed):
    plain = peak_of(oracle.same_precision, oracle, dispatch, seed)
    found = peak_of(kata.linear_cross_entropy, oracle, dispatch, seed)
    cost.check("peak_of_plain", found / plain)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("chunk_bytes", [1, 95, 96, 2400], ids=["one", "odd", "three", "all"])
def test_a_chunk_holds_as_many_tokens_as_fit(kata, oracle, dispatch, dtype, chunk_bytes):
    # 8 logits of a token take 32 bytes in float32, and 64 in float64
    inputs = oracle.make_inputs(t=36, v=8, d=4, dtype=dtype, device="cpu", seed=0)
    inputs["chunk_bytes"] = chunk_bytes
    tokens = max(1, chunk_bytes // (64 if dtype is torch.float64 else 32))
    of_stats = {name: inputs[name] for name in ("x", "w", "target", "chunk_bytes")}
    for function in (
        lambda: kata.linear_cross_entropy(**inputs), lambda: kata.shard_stats(**of_stats, first=0)
    ):  # fmt: skip
        with dispatch() as ops:
            function()
        assert products(ops) == -(-36 // tokens), f"expected chunks of {tokens} tokens"


def alive_after_forward(kata, oracle, dispatch, seed, **changes):
    inputs = oracle.make_inputs(**{**LARGE, **changes}, seed=seed)
    with dispatch() as ops:
        loss = kata.linear_cross_entropy(**inputs)
        probe = torch.empty(1 << 28, dtype=torch.uint8)  # so much that now is the peak
    assert loss.requires_grad
    return ops.peak_live_bytes - probe.nbytes


def test_forward_leaves_dx_and_dw(kata, oracle, dispatch, cost, seed):
    cost.check("saved_bytes", alive_after_forward(kata, oracle, dispatch, seed))


def test_half_precision_leaves_half(kata, oracle, dispatch, seed):
    smaller = {"t": 256, "v": 1024, "dtype": torch.float16}
    alive = alive_after_forward(kata, oracle, dispatch, seed, **smaller)
    assert alive <= 2 * 64 * (256 + 1024) + 16 * 1024


# ---- shards --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("chunk", [None, 1, 4, 13], ids=["own", "one", "four", "all"])
def test_shards_of_the_vocabulary_merge_to_the_whole(kata, oracle, device, seed, dtype, chunk):
    inputs = oracle.make_inputs(t=13, v=11, d=8, dtype=dtype, device=device, seed=seed)
    x, w, target = (inputs[name] for name in ("x", "w", "target"))
    target[:4] = torch.tensor([0, 3, 4, 10], device=device)  # where the shards begin and end
    parts, chunk_bytes = [], None if chunk is None else chunk * 4 * 4
    for first, rows in ((0, w[:4]), (4, w[4:])):
        parts.append(kata.shard_stats(x, rows, target, first, chunk_bytes))
    (lse, label), (other_lse, other_label) = parts
    assert lse.dtype == label.dtype == torch.float32
    losses = torch.logaddexp(lse, other_lse) - torch.maximum(label, other_label)
    whole = [
        torch.nn.functional.cross_entropy(logits, target, reduction="none")
        for logits in (x.double() @ w.double().T, (x @ w.T).float())
    ]
    # judged as half precision is, where the logits are
    assert_matches(losses.to(dtype), whole[0], same_precision=whole[1].to(dtype))
    assert (label == -INF).tolist() == (target >= 4).tolist()
    assert (other_label == -INF).tolist() == (target < 4).tolist()


def test_stats_of_half_precision_are_single(kata, device):
    # the logarithm of 3000 ones: float16 goes by steps of 2^-7 there
    x, w = (torch.zeros(rows, 2, dtype=torch.float16, device=device) for rows in (1, 3000))
    lse, _ = kata.shard_stats(x, w, torch.tensor([0], device=device), 0)
    assert lse.tolist() == pytest.approx([8.0063676], rel=1e-6)


def test_a_shard_may_be_one_word(kata, device):
    x, w = torch.ones(3, 2, device=device), torch.ones(1, 2, device=device)
    lse, label = kata.shard_stats(x, w, torch.tensor([4, 5, 6], device=device), 5)
    assert lse.tolist() == [2.0] * 3
    assert label.tolist() == [-INF, 2.0, -INF]


def test_stats_of_huge_logits_stay_finite(kata, device):
    x = torch.tensor([[1e4], [-1e4]], device=device)
    w = torch.tensor([[1.0], [-0.5]], device=device)
    lse, label = kata.shard_stats(x, w, torch.tensor([0, 0], device=device), 0)
    assert lse.tolist() == [1e4, 5e3]
    assert label.tolist() == [1e4, -1e4]


def test_stats_of_ignored_tokens_have_no_label(kata, device):
    x, w = torch.ones(2, 3, device=device), torch.ones(4, 3, device=device, requires_grad=True)
    lse, label = kata.shard_stats(x, w, torch.tensor([-100, 1], device=device), 0)
    assert label.tolist() == [-INF, 3.0]
    assert not lse.requires_grad
    assert lse.tolist() == pytest.approx([3 + 1.386294] * 2, abs=1e-5)


def test_stats_go_by_chunks(kata, oracle, dispatch, seed):
    inputs = oracle.make_inputs(**LARGE, seed=seed)
    with dispatch() as ops:
        kata.shard_stats(inputs["x"], inputs["w"], inputs["target"], 0)
    assert ops.peak_live_bytes <= 4 * 2048 * 4096 // 8


# ---- bad input -----------------------------------------------------------------------------


@pytest.mark.parametrize("target", [5, 1000, -1, -99])
def test_targets_outside_the_vocabulary_are_refused(kata, device, target):
    x, w = torch.ones(2, 3, device=device), torch.ones(5, 3, device=device)
    with pytest.raises(ValueError, match="^target: "):
        kata.linear_cross_entropy(x, w, torch.tensor([0, target], device=device))


@pytest.mark.parametrize(
    ("named", "shape", "targets", "chunk_bytes"),
    [("w", (5, 4), 2, None), ("target", (5, 3), 3, None), ("chunk_bytes", (5, 3), 2, 0)],
)
def test_stats_refuse_the_same(kata, device, named, shape, targets, chunk_bytes):
    x, w = torch.ones(2, 3, device=device), torch.ones(shape, device=device)
    target = torch.zeros(targets, dtype=torch.int64, device=device)
    with pytest.raises(ValueError, match=f"^{named}: "):
        kata.shard_stats(x, w, target, 0, chunk_bytes)
