"""What half-lives are, what the second moment is when batches change, and what it is good for."""

import copy
import math

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from harness.judge import assert_matches
from harness.meters.dispatch import alive_bytes

NAN, INF = math.nan, math.inf


def normal(*shape, seed, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def walk(optimizer, params, grads, tokens):
    """Take the steps; list the values of each parameter after each."""
    found = []
    for now, count in zip(grads, tokens, strict=True):
        for param, grad in zip(params, now, strict=True):
            param.grad = None if grad is None else grad.to(param)
        optimizer.step(count)
        found.append([param.detach().clone() for param in params])
    return found


# ---- half-lives --------------------------------------------------------------------------------


def test_half_life_of_published_settings(kata):
    assert kata.half_life_tokens(0.95, 512, 1024) == pytest.approx(7_084_917.3, rel=1e-8)
    assert kata.half_life_tokens(0.5, 3, 7) == pytest.approx(21.0, rel=1e-12)
    assert kata.rescale_beta2(0.95, 512, 1) == pytest.approx(0.9998998228, abs=1e-10)
    assert kata.rescale_beta2(0.5, 2, 6) == pytest.approx(0.125, rel=1e-12)
    assert kata.rescale_beta2(0.999, 48, 48) == pytest.approx(0.999, rel=1e-15)


@given(exponent=st.floats(0.0, 13.0), batch=st.integers(1, 4096), seqlen=st.integers(1, 8192))
def test_half_lives_have_all_their_digits(kata, oracle, exponent, batch, seqlen):
    beta2 = 1 - 0.5 * 10**-exponent
    expected = oracle.decimal_half_life(beta2, batch * seqlen)
    assert kata.half_life_tokens(beta2, batch, seqlen) == pytest.approx(expected, rel=1e-13)


@given(
    beta2=st.floats(0.5, 0.9999), b_old=st.integers(1, 4096), b_new=st.integers(1, 4096)
)  # fmt: skip
def test_rescaling_keeps_the_half_life(kata, oracle, beta2, b_old, b_new):
    rescaled = kata.rescale_beta2(beta2, b_old, b_new)
    half_life = oracle.decimal_half_life(beta2, b_old)
    assert rescaled == pytest.approx(2 ** (-b_new / half_life), rel=1e-12)


# ---- Adam --------------------------------------------------------------------------------------


def test_equal_batches_are_adam(kata, device, seed):
    shapes = ((3, 5), (), (7,), (0, 2))
    beta2 = 0.97
    grads = [[normal(*s, seed=seed + 10 * i + j) for j, s in enumerate(shapes)] for i in range(30)]
    start = [normal(*s, seed=seed + 1000 + j) for j, s in enumerate(shapes)]

    def adam(dtype):
        params = [one.to(device, dtype, copy=True).requires_grad_() for one in start]
        optimizer = torch.optim.Adam(params, lr=0.02, betas=(0.8, beta2), eps=1e-3, foreach=False)
        for now in grads:
            for param, grad in zip(params, now, strict=True):
                param.grad = grad.to(param)
            optimizer.step()
        return [param.detach() for param in params]

    def ours(dtype):
        params = [one.to(device, dtype, copy=True).requires_grad_() for one in start]
        half_life = 128 * math.log(0.5) / math.log(beta2)
        optimizer = kata.TokenAdam(params, half_life, lr=0.02, beta1=0.8, eps=1e-3)
        return walk(optimizer, params, grads, [128] * 30)[-1]

    def joined(params):
        return torch.cat([param.flatten() for param in params])

    exact = adam(torch.float64)
    for shape, found, want in zip(shapes, ours(torch.float64), exact, strict=True):
        off = float((found - want).abs().sum())
        assert off <= 1e-12, (
            f"30 steps of 128 tokens, a parameter {shape} in float64: {found.tolist()}, "
            f"expected {want.tolist()}"
        )
    assert_matches(
        joined(ours(torch.float32)),
        joined(exact),
        same_precision=joined(adam(torch.float32)),
        name="30 steps of 128 tokens, all parameters in float32",
    )


# one token of many, thousands of half-lives in a step, and what is between
BATCHES = (1, 4096, 3, 3, 700, 1, 1, 65_536, 12, 1)


def test_moments_are_weighted_means_whatever_the_batches(kata, oracle, device, seed):
    start = normal(2, 9, seed=seed)
    grads = [normal(2, 9, seed=seed + 1 + at) for at in range(len(BATCHES))]
    grads[3].zero_()  # a gradient of zeros is one, too
    for half_life in (3.0, 500.0, 1e12):
        options = {"half_life": half_life, "lr": 0.1, "beta1": 0.9, "eps": 1e-6}
        param = start.to(device, copy=True).requires_grad_()
        found = walk(kata.TokenAdam([param], **options), [param], [[g] for g in grads], BATCHES)
        expected = oracle.trajectory(start, grads, BATCHES, **options)
        for at, (now, want) in enumerate(zip(found, expected, strict=True)):
            off = float((now[0].cpu() - want).abs().max())
            assert off <= 1e-9, (
                f"half-life {half_life:g}, steps of {BATCHES[: at + 1]} tokens: {off:.1e} from "
                "the float64 mean of gradients, expected at most 1e-9"
            )


@given(
    tokens=st.lists(st.integers(1, 10**9), min_size=1, max_size=8),
    half_life=st.sampled_from([10.0, 1e4, 7.085e6, 1e13]),
)
@example(tokens=[2**31 - 1, 1, 2**31], half_life=1e13)  # more than int32 and float32 count
def test_of_a_constant_gradient_every_step_is_the_rate(kata, tokens, half_life):
    # both corrected moments are g and g squared, so that a step is lr in the direction of g
    param = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    optimizer = kata.TokenAdam([param], half_life, lr=1.0, eps=0.0)
    g = torch.tensor([0.3, -7.0, 2e-9], dtype=torch.float64)
    for at, count in enumerate(tokens, 1):
        param.grad = g.clone()
        optimizer.step(count)
        assert param.tolist() == pytest.approx([-at, at, -at], rel=1e-10), (
            f"half-life {half_life:g}, steps of {tokens[:at]} tokens, gradient {g.tolist()}, a "
            f"rate of 1, from 0: {param.tolist()}, expected {[-at, at, -at]}"
        )


# ---- what a step leaves alone ------------------------------------------------------------------


def test_no_tokens_are_no_step(kata, device, seed):
    grads = [[normal(4, seed=seed + at)] for at in range(6)]
    grads[2] = [torch.full((4,), NAN)]
    idle, busy = (torch.ones(4, device=device).requires_grad_() for _ in range(2))
    found = walk(kata.TokenAdam([idle], 50.0), [idle], grads, [8, 3, 0, 9, 0, 2])
    without = [grads[at] for at in (0, 1, 3, 5)]
    expected = walk(kata.TokenAdam([busy], 50.0), [busy], without, [8, 3, 9, 2])
    assert torch.equal(found[2][0], found[1][0]), "step(0) has changed the parameter"
    assert torch.equal(found[-1][0], expected[-1][0]), (
        f"steps of 8, 3, 0, 9, 0, 2 tokens end at {found[-1][0].tolist()}, "
        f"expected what 8, 3, 9, 2 end at, {expected[-1][0].tolist()}"
    )


def test_less_than_no_tokens_are_refused(kata, device):
    param = torch.ones(2, device=device).requires_grad_()
    optimizer = kata.TokenAdam([param], 10.0)
    param.grad = torch.ones_like(param)
    optimizer.step(4)
    before = param.tolist(), copy.deepcopy(optimizer.state_dict())
    with pytest.raises(ValueError, match="^tokens: "):
        optimizer.step(-1)
    assert param.tolist() == before[0]
    kept, found = before[1]["state"][0], optimizer.state_dict()["state"][0]
    for key in kept | found:
        now, then = (str(one.get(key, "not there")) for one in (found, kept))
        assert now == then, f"step(-1) has changed state[{key!r}]: {now}, expected {then} as before"


def test_a_parameter_without_a_gradient_waits(kata, oracle, device, seed):
    """Its moments do not age: the next gradient finds them as the last one left them."""
    tokens = (64, 1, 30, 1, 500, 8)
    start = [normal(5, seed=seed), normal(3, seed=seed + 1)]
    grads = [[normal(5, seed=seed + 10 + at), normal(3, seed=seed + 20 + at)] for at in range(6)]
    for at in (0, 2, 3):
        grads[at][1] = None
    params = [one.to(device, copy=True).requires_grad_() for one in start]
    options = {"half_life": 20.0, "lr": 0.1, "beta1": 0.9, "eps": 1e-6}
    found = walk(kata.TokenAdam(params, **options), params, grads, tokens)
    for which in (0, 1):
        expected = oracle.trajectory(start[which], [g[which] for g in grads], tokens, **options)
        for at, (now, want) in enumerate(zip(found, expected, strict=True)):
            assert now[which].tolist() == pytest.approx(want.tolist(), rel=1e-9, abs=1e-9), (
                f"parameter {which} after step {at} of {tokens} tokens (parameter 1 has no "
                f"gradient in steps 0, 2 and 3): {now[which].tolist()}, expected {want.tolist()}"
            )


def test_gradients_stay_and_parameters_change_in_place(kata, device):
    param = torch.arange(6.0, device=device).view(2, 3).t().contiguous().t().requires_grad_()
    view = param.detach()
    param.grad = grad = torch.full_like(param, 3.0)
    optimizer = kata.TokenAdam([param], 10.0, lr=0.5)
    for _ in range(2):
        assert optimizer.step(7) is None
    assert param.grad is grad
    assert grad.tolist() == [[3.0] * 3] * 2
    assert view.flatten().tolist() == pytest.approx([at - 1.0 for at in range(6)], abs=1e-5)


# ---- what makes it an optimizer ----------------------------------------------------------------


def test_it_goes_on_from_a_state_dict(kata, device, seed):
    grads = [[normal(6, seed=seed + at)] for at in range(7)]
    tokens = (5, 900, 1, 1, 40, 7, 300)
    whole, first, second = (torch.ones(6, device=device).requires_grad_() for _ in range(3))
    expected = walk(kata.TokenAdam([whole], 99.0, lr=0.1), [whole], grads, tokens)[-1][0]
    before = kata.TokenAdam([first], 99.0, lr=0.1)
    walk(before, [first], grads[:4], tokens[:4])
    after = kata.TokenAdam([second], 1.0, lr=7.0)  # the options are part of the state
    second.data.copy_(first.data)
    after.load_state_dict(copy.deepcopy(before.state_dict()))
    found = walk(after, [second], grads[4:], tokens[4:])[-1][0]
    assert torch.equal(found, expected), (
        f"saved after 4 of 7 steps: {found.tolist()}, expected {expected.tolist()} bit for bit"
    )


def test_options_are_those_of_a_group_at_each_step(kata, oracle, device, seed):
    tokens, rates = (3, 50, 2, 2), (0.1, 0.01, 0.2, 0.0)
    own = {"half_life": 4.0, "beta1": 0.5, "eps": 0.1}
    common = {"half_life": 400.0, "beta1": 0.9, "eps": 1e-6}
    start = [normal(4, seed=seed), normal(4, seed=seed + 1)]
    grads = [[normal(4, seed=seed + 10 + at), normal(4, seed=seed + 20 + at)] for at in range(4)]
    params = [one.to(device, copy=True).requires_grad_() for one in start]
    groups = [{"params": params[:1]}, {"params": params[1:], **own}]
    optimizer = kata.TokenAdam(iter(groups), lr=0.1, **common)
    now = start
    for at, rate in enumerate(rates):
        for group in optimizer.param_groups:
            group["lr"] = rate
        (found,) = walk(optimizer, params, grads[at : at + 1], tokens[at : at + 1])
        for which, options in enumerate((common, own)):
            history = [g[which] for g in grads[: at + 1]], tokens[: at + 1]
            # one step's move at this step's rate, from where it was
            path = oracle.trajectory(torch.zeros(4), *history, lr=rate, **options)
            want = now[which] + path[-1] - (path[-2] if at else 0)
            assert found[which].tolist() == pytest.approx(want.tolist(), rel=1e-9, abs=1e-9), (
                f"group {which} ({options}), step {at} at a rate of {rate}: "
                f"{found[which].tolist()}, expected {want.tolist()}"
            )
        now = [one.cpu() for one in found]


# ---- what it takes and what it is for ----------------------------------------------------------


def test_two_moments_and_one_temporary(kata, dispatch, cost):
    params = [torch.ones(64, 64).requires_grad_() for _ in range(4)]
    for param in params:
        param.grad = torch.ones_like(param)
    optimizer = kata.TokenAdam(params, 100.0)
    before = alive_bytes()
    optimizer.step(8)
    cost.check("kept", (alive_bytes() - before) / sum(param.nbytes for param in params))
    with dispatch() as counted:
        optimizer.step(8)
    cost.check("peak", counted.peak_live_bytes / params[0].nbytes)


def test_one_sequence_a_step_learns_as_well_as_sixty_four(kata, oracle, cost, seed, one_thread):
    letters = oracle.Letters(seed)

    def excess(batch, half_life, rate):
        logits = torch.zeros(oracle.LETTERS, oracle.LETTERS)
        return letters.learn(kata.TokenAdam([logits], half_life, lr=rate), logits, batch)

    half_life = kata.half_life_tokens(oracle.BETA2, oracle.BATCH, oracle.SEQLEN)
    large = excess(oracle.BATCH, half_life, oracle.RATE)
    cost.check("small_batch", excess(1, half_life, oracle.SMALL_RATE) / large)


# ---- what is refused ---------------------------------------------------------------------------

REFUSED = {
    "a beta2 of 0": ("beta2", lambda kata: kata.half_life_tokens(0.0, 1, 1)),
    "a beta2 of 1": ("beta2", lambda kata: kata.half_life_tokens(1.0, 1, 1)),
    "no batch": ("batch", lambda kata: kata.half_life_tokens(0.9, 0, 1)),
    "no sequence": ("seqlen", lambda kata: kata.half_life_tokens(0.9, 1, 0)),
    "a beta2 of NaN": ("beta2", lambda kata: kata.half_life_tokens(NAN, 1, 1)),
    "rescaling a beta2 of NaN": ("beta2", lambda kata: kata.rescale_beta2(NAN, 1, 1)),
    "rescaling a beta2 of 0": ("beta2", lambda kata: kata.rescale_beta2(0.0, 1, 1)),
    "rescaling a beta2 of 1": ("beta2", lambda kata: kata.rescale_beta2(1.0, 2, 2)),
    "from no batch": ("b_old", lambda kata: kata.rescale_beta2(0.9, 0, 1)),
    "to no batch": ("b_new", lambda kata: kata.rescale_beta2(0.9, 1, 0)),
    "no half-life": ("half_life", lambda kata: kata.TokenAdam([torch.ones(1)], 0.0)),
    "an endless half-life": ("half_life", lambda kata: kata.TokenAdam([torch.ones(1)], INF)),
    "a NaN": ("half_life", lambda kata: kata.TokenAdam([torch.ones(1)], NAN)),
    "a rate below 0": ("lr", lambda kata: kata.TokenAdam([torch.ones(1)], 1.0, lr=-0.1)),
    "a beta1 of 1": ("beta1", lambda kata: kata.TokenAdam([torch.ones(1)], 1.0, beta1=1.0)),
    "a beta1 below 0": ("beta1", lambda kata: kata.TokenAdam([torch.ones(1)], 1.0, beta1=-0.1)),
    "an eps below 0": ("eps", lambda kata: kata.TokenAdam([torch.ones(1)], 1.0, eps=-1e-8)),
}


@pytest.mark.parametrize(("name", "call"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(kata, name, call):
    with pytest.raises(ValueError, match=f"^{name}: "):
        call(kata)


def test_the_ends_are_allowed(kata):
    param = torch.ones(2).requires_grad_()
    param.grad = torch.ones_like(param)
    kata.TokenAdam([param], 1e-3, lr=0.0, beta1=0.0, eps=0.0).step(1)
    assert param.tolist() == [1.0, 1.0]
