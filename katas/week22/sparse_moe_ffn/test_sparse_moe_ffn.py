"""Against every expert on every token; FLOPs and operators counted; trained with a bad router."""

from copy import deepcopy

import pytest
import torch

from harness.judge import assert_matches

SIZES = {  # tokens, d, f, experts, k, renormalize
    "top 2 of 5": (37, 6, 10, 5, 2, True),
    "probabilities as they are": (24, 5, 7, 6, 3, False),
    "one token, one expert": (1, 4, 3, 3, 1, False),
    "all experts": (12, 4, 5, 4, 4, True),
    "more experts than tokens": (3, 4, 2, 16, 2, True),
}


@pytest.fixture
def made(kata, oracle, device):
    """`made(size)`: a layer and tokens for it, drawn by `seed`."""

    def make(size, seed=0):
        many, d, f, experts, k, renormalize = size
        torch.manual_seed(seed)
        moe = kata.SparseMoE(d, f, experts, k, renormalize)
        x = oracle.tokens(moe, many, torch.Generator().manual_seed(seed))
        return moe.to(device), x.to(device)

    return make


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_is_the_mixture_with_zeros_as_gates(oracle, made, seed, size):
    moe, x = made(size, seed)
    y, aux = moe(x)
    expected, balance, counts, _ = oracle.dense(moe, x, torch.float64)
    close, balance_close, *_ = oracle.dense(moe, x, torch.float32)
    assert_matches(y, expected, same_precision=close)
    assert_matches(aux["lb_loss"], balance, same_precision=balance_close)
    assert aux["counts"].tolist() == counts.tolist()
    assert aux["counts"].dtype == torch.int64


@pytest.mark.parametrize("part", ["result", "balancing loss"])
@pytest.mark.parametrize("size", list(SIZES.values())[:2], ids=list(SIZES)[:2])
def test_gradients_are_those_of_the_mixture(oracle, made, seed, size, part):
    moe, x = made(size, seed)
    weight = torch.rand(x.shape, generator=torch.Generator().manual_seed(seed)).to(x)
    x.requires_grad_()
    y, aux = moe(x)
    (aux["lb_loss"] if part == "balancing loss" else (y * weight).sum()).backward()
    answers = []
    for dtype in (torch.float64, torch.float32):
        expected, balance, _, leaves = oracle.dense(moe, x, dtype)
        (balance if part == "balancing loss" else (expected * weight).sum()).backward()
        answers.append({name: leaf.grad for name, leaf in leaves.items()})
    for name, leaf in {"x": x, **dict(moe.named_parameters())}.items():
        want, close = (grads[name] for grads in answers)
        if want is not None:
            assert leaf.grad is not None, f"expected a gradient of {name}, found None"
            assert_matches(leaf.grad, want, same_precision=close, name=f"the gradient of {name}")


def test_an_expert_that_nobody_asks_has_a_gradient_of_zero(made, device):
    moe, _ = made((1, 4, 3, 3, 2, True))
    with torch.no_grad():
        moe.router.copy_(torch.tensor([[3.0], [-9.0], [2.0]]).expand(3, 4))
    y, aux = moe(torch.ones(5, 4, device=device))
    y.square().sum().backward()
    assert aux["counts"].tolist() == [5, 0, 5]
    for name in ("w_gate", "w_up", "w_down"):
        grad = getattr(moe, name).grad
        assert grad[1].abs().max() == 0, f"{name}: {grad[1]}"
        assert grad[0].abs().max() > 0


def test_of_equal_experts_the_first_are_asked(kata, device):
    moe = kata.SparseMoE(4, 3, 40, 3).to(device)
    with torch.no_grad():
        moe.router.zero_()
    _, aux = moe(torch.ones(20, 4, device=device))
    assert aux["counts"].tolist() == [20, 20, 20] + [0] * 37


def test_large_logits_overflow_nothing(kata, device):
    moe = kata.SparseMoE(4, 3, 5, 1).to(device)
    with torch.no_grad():
        moe.router.copy_(torch.tensor([[-250.0], [250.0], [0.0], [90.0], [-90.0]]).expand(5, 4))
    y, aux = moe(torch.ones(7, 4, device=device))
    assert aux["counts"].tolist() == [0, 7, 0, 0, 0]
    assert y.isfinite().all()
    assert aux["lb_loss"].item() == 5.0  # all choices, at probability 1


def test_no_tokens(kata, device):
    moe = kata.SparseMoE(4, 3, 5, 2).to(device)
    y, aux = moe(torch.ones(0, 4, device=device))
    assert (tuple(y.shape), aux["counts"].tolist()) == ((0, 4), [0] * 5)
    assert aux["lb_loss"].item() == 0.0
    (y.sum() + aux["lb_loss"]).backward()
    for name, parameter in moe.named_parameters():
        assert parameter.grad is not None, f"no tokens: {name}.grad is None, expected zeros"
        assert (parameter.grad == 0).all(), f"no tokens: {name}.grad is {parameter.grad}"


def test_float64_is_exact_to_its_last_digits(oracle, made):
    moe, x = made(SIZES["top 2 of 5"])
    moe, x = moe.double(), x.double()
    y, aux = moe(x)
    expected, balance, *_ = oracle.dense(moe, x, torch.float64)
    assert y.dtype == aux["lb_loss"].dtype == torch.float64
    off = max((y - expected).abs().max().item(), abs((aux["lb_loss"] - balance).item()))
    assert off < 1e-12, f"computed in a lower precision: off by {off}"


def test_the_same_bits_every_time(made, device):
    moe, x = made((64, 8, 8, 4, 3, True))
    runs = []
    for _ in range(3):
        moe.zero_grad()
        y, aux = moe(x)
        (y.square().sum() + aux["lb_loss"]).backward()
        runs.append([y.detach(), aux["lb_loss"].detach(), *(p.grad for p in moe.parameters())])
    for other in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(runs[0], other, strict=True))


@pytest.mark.parametrize("shape", [(4,), (2, 3, 4), (3, 5)], ids=str)
def test_tokens_are_two_dimensional(kata, device, shape):
    with pytest.raises(ValueError, match="^x: "):
        kata.SparseMoE(4, 3, 5, 2).to(device)(torch.ones(shape, device=device))


# ---- work ----------------------------------------------------------------------------------


def test_only_the_experts_asked_are_computed(kata, dispatch, cost):
    from harness.meters.dispatch import flop_meter

    moe = kata.SparseMoE(16, 24, 8, 2)
    x = torch.randn(64, 16, generator=torch.Generator().manual_seed(0))
    with flop_meter() as f:
        moe(x)
    cost.check("flops", f.flops)
    with dispatch() as d:
        moe(x)
    cost.check("operators", sum(d.calls.values()))


# ---- the load, and training ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([5, 5, 5, 5], 1.0),
        ([0, 9, 0], 0.0),
        ([7, 0, 7, 0], 0.5),
        ([2, 1, 1, 0], 0.75),
        ([1, 2, 3], 0.9206198357143),  # thirds and sixths, which float32 has no exact shares for
        ([3], 1.0),
    ],
    ids=str,
)
def test_load_entropy(kata, device, counts, expected):
    found = kata.load_entropy(torch.tensor(counts, device=device))
    assert found == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("aux_coef", [0.0, 0.7], ids=["task alone", "with balance"])
def test_training_is_adam_on_both_losses(kata, oracle, made, device, aux_coef):
    moe, _ = made((1, 6, 8, 4, 2, True))
    rival = deepcopy(moe)
    batches = [(x.to(device), y.to(device)) for x, y in oracle.toy_batches(32, 6, 16, 1)]
    for parameter in moe.parameters():  # left behind by whoever had the layer before
        parameter.grad = torch.ones_like(parameter)
    errors, entropies = oracle.train(rival, batches, aux_coef, 0.02)
    history = kata.train_toy(moe, iter(batches), aux_coef, 0.02)
    assert history["loss"] == pytest.approx(errors, rel=1e-3)
    assert history["entropy"] == pytest.approx(entropies, abs=0.01)
    assert all(type(one) is float for kind in history.values() for one in kind)


def test_training_leaves_an_expert_alone_that_nobody_asks(made, kata, oracle, device):
    moe, _ = made((1, 6, 8, 4, 2, True))
    with torch.no_grad():
        moe.router[3] = 0
        moe.router[3, 0] = -100  # channel 0 of a toy token is 1
    before = moe.w_up[3].detach().clone()
    batches = [(x.to(device), y.to(device)) for x, y in oracle.toy_batches(32, 6, 3, 1)]
    kata.train_toy(moe, batches, 0.0, 0.02)
    off = (moe.w_up[3] - before).abs().max().item()
    assert off == 0, f"w_up of an expert without tokens is off by {off} after 3 steps, expected 0"


@pytest.fixture(scope="module")
def trained(kata, oracle):
    """`trained(aux_coef)`: what 100 steps give with a router that prefers experts 0 and 1."""
    done = {}

    def train(aux_coef):
        if aux_coef not in done:
            torch.manual_seed(0)
            moe = kata.SparseMoE(16, 16, 8, 2)
            with torch.no_grad():
                moe.router[:2, 0] += 8
            done[aux_coef] = kata.train_toy(
                moe, oracle.toy_batches(128, 16, 100, 0), aux_coef, 0.01
            )
        return done[aux_coef]

    return train


def last(values):
    return sum(values[-10:]) / 10


def test_the_balancing_loss_spreads_the_load(trained, one_thread, cost):
    cost.check("load_with_balancing", last(trained(1.0)["entropy"]))


def test_without_it_the_load_stays_where_it_is(trained, one_thread, cost):
    cost.check("load_without", last(trained(0.0)["entropy"]))


def test_sparse_beats_dense_at_equal_flops(oracle, trained, one_thread, cost):
    torch.manual_seed(0)
    errors, _ = oracle.train(oracle.Dense(16, 32), oracle.toy_batches(128, 16, 100, 0), 0.0, 0.01)
    cost.check("error_over_dense", last(trained(1.0)["loss"]) / last(errors))
