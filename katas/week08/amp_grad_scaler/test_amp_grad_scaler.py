"""The path of the scale, who is skipped, what is unscaled when, and updates that are too small."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

INF, NAN = math.inf, math.nan


def sgd(parameters, lr=1.0):
    return torch.optim.SGD(parameters, lr=lr)


def iterate(scaler, oracle, parameters, optimizer, gradients):
    """One iteration on scaled `gradients`; whether the optimizer stepped."""
    scaler.scale(torch.ones(()))
    oracle.give(parameters, gradients)
    stepped = scaler.step(optimizer)
    scaler.update()
    return stepped


def scales(kata, oracle, outcomes, **settings):
    """The scale after each update."""
    parameters = oracle.parameters([(1,)])
    optimizer = sgd(parameters, lr=0.0)
    scaler = kata.GradScaler(**settings)
    found = []
    for finite in outcomes:
        iterate(scaler, oracle, parameters, optimizer, [torch.tensor([1.0 if finite else INF])])
        found.append(scaler.current_scale)
    return found


# ---- the path of the scale -----------------------------------------------------------------


@example(outcomes=[True] * 5 + [False] * 5, interval=1, growth=1.1, backoff=0.7)
@given(
    outcomes=st.lists(st.booleans(), max_size=40),
    interval=st.integers(1, 4),
    growth=st.sampled_from([2.0, 4.0, 1.1]),  # the last is no power of two: float32 rounds
    backoff=st.sampled_from([0.5, 0.125, 0.7]),
)
def test_scale_goes_the_way_of_the_library(kata, oracle, outcomes, interval, growth, backoff):
    settings = {"init": 1024.0, "growth": growth, "backoff": backoff, "interval": interval}
    assert scales(kata, oracle, outcomes, **settings) == oracle.library_scales(outcomes, **settings)


def test_defaults_are_those_of_the_library(kata, oracle):
    outcomes = [False] + [True] * 2001 + [False]
    assert scales(kata, oracle, outcomes) == oracle.library_scales(outcomes)


def test_scale_stays_within_float32(kata, oracle):
    outcomes, settings = [True] * 4, {"init": 2.0**126, "interval": 1}
    assert scales(kata, oracle, outcomes, **settings) == oracle.library_scales(outcomes, **settings)


@pytest.mark.parametrize("bad", [INF, -INF, NAN], ids=["inf", "-inf", "nan"])
def test_any_value_that_is_not_finite_backs_off(kata, oracle, bad):
    parameters = oracle.parameters([(2,), (3,)])
    scaler = kata.GradScaler(init=8.0)
    gradients = [torch.ones(2), torch.tensor([1.0, 1.0, bad])]
    assert iterate(scaler, oracle, parameters, sgd(parameters), gradients) is False
    assert scaler.current_scale == 4.0


def test_sum_that_overflows_is_no_gradient_that_does(kata, oracle):
    # each is finite, their sum is not
    parameters = oracle.parameters([(2,)])
    scaler = kata.GradScaler(init=2.0)
    gradients = [torch.full((2,), 3e38)]
    assert iterate(scaler, oracle, parameters, sgd(parameters), gradients) is True


def test_state_goes_on_where_it_was(kata, oracle):
    settings = {"init": 64.0, "growth": 4.0, "backoff": 0.25, "interval": 3}
    parameters = oracle.parameters([(1,)])
    optimizer, one, found = sgd(parameters, lr=0.0), kata.GradScaler(**settings), []
    outcomes = [True, True, False, True, True, True, True, True, False, True]
    for finite in outcomes:
        other = kata.GradScaler()  # another at each iteration
        other.load_state_dict(json.loads(json.dumps(one.state_dict())))
        one = other
        iterate(one, oracle, parameters, optimizer, [torch.tensor([1.0 if finite else INF])])
        found.append(one.current_scale)
    assert found == oracle.library_scales(outcomes, **settings)


def test_a_scale_may_sink_to_zero(kata, oracle):
    outcomes, settings = [False] * 4 + [True], {"init": 2.0**-146}  # three above the smallest
    found = scales(kata, oracle, outcomes, **settings)
    assert found == [2.0**-147, 2.0**-148, 2.0**-149, 0.0, 0.0]


def test_loading_forgets_what_was_begun(kata, oracle):
    parameters, scaler = oracle.parameters([(2,)]), kata.GradScaler(init=8.0)
    optimizer, state = sgd(parameters), scaler.state_dict()
    scaler.scale(torch.ones(()))
    oracle.give(parameters, [torch.full((2,), INF)])
    scaler.unscale_(optimizer)
    scaler.load_state_dict(state)
    with pytest.raises(RuntimeError, match=r"scale\(loss\)"):
        scaler.step(optimizer)
    assert iterate(scaler, oracle, parameters, optimizer, [torch.ones(2)]) is True
    assert scaler.current_scale == 8.0


# ---- one step ------------------------------------------------------------------------------


def test_loss_and_its_gradients_are_scaled(kata):
    weight = torch.nn.Parameter(torch.tensor([3.0]))
    scaler = kata.GradScaler(init=1024.0)
    scaled = scaler.scale((2 * weight).sum())
    scaled.backward()
    assert scaled.item() == 6144.0
    assert weight.grad.item() == 2048.0


def test_float16_loss_is_scaled_in_float32(kata):
    # 8 · 65536 is far over the largest float16, 65504
    assert kata.GradScaler().scale(torch.tensor(8.0, dtype=torch.float16)).item() == 524288.0
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        assert kata.GradScaler().scale(torch.ones((), dtype=dtype)).dtype == torch.float32


def test_step_takes_the_true_gradients(kata, oracle):
    parameters = oracle.parameters([(2, 3), (4,)])
    before = [one.detach().clone() for one in parameters]
    scaler = kata.GradScaler(init=2.0**20)
    gradients = [torch.full_like(one, 2.0**18) for one in parameters]
    assert iterate(scaler, oracle, parameters, sgd(parameters), gradients) is True
    for one, old in zip(parameters, before, strict=True):
        assert torch.equal(one.detach(), old - 0.25)


def test_skipped_step_leaves_everything_as_it_was(kata, oracle):
    parameters = oracle.parameters([(5,), (6,)])
    optimizer = torch.optim.AdamW(parameters, lr=0.1)
    scaler = kata.GradScaler(init=4.0)
    ones = [torch.ones_like(one) for one in parameters]
    iterate(scaler, oracle, parameters, optimizer, ones)
    weights = [one.detach().clone() for one in parameters]
    state = [{k: v.clone() for k, v in optimizer.state[one].items()} for one in parameters]
    assert iterate(scaler, oracle, parameters, optimizer, [ones[0], ones[1] * NAN]) is False
    for one, old, kept in zip(parameters, weights, state, strict=True):
        assert torch.equal(one.detach(), old)
        assert all(torch.equal(optimizer.state[one][name], value) for name, value in kept.items())


def test_gradients_unscaled_before_are_not_unscaled_again(kata, oracle):
    parameters = oracle.parameters([(4,)])
    before = parameters[0].detach().clone()
    optimizer, scaler = sgd(parameters), kata.GradScaler(init=16.0)
    scaler.scale(torch.ones(()))
    oracle.give(parameters, [torch.full((4,), 16.0)])
    scaler.unscale_(optimizer)
    assert parameters[0].grad.tolist() == [1.0] * 4
    scaler.step(optimizer)
    assert torch.equal(parameters[0].detach(), before - 1.0)


def test_parameters_without_gradients_are_passed_over(kata, oracle):
    parameters = oracle.parameters([(2,), (3,)])
    before = parameters[0].detach().clone()
    scaler = kata.GradScaler(init=2.0, interval=1)
    assert iterate(scaler, oracle, parameters, sgd(parameters), [None, torch.ones(3)]) is True
    assert iterate(scaler, oracle, parameters, sgd(parameters), [None, None]) is True
    assert torch.equal(parameters[0].detach(), before)
    assert scaler.current_scale == 8.0


def test_one_optimizer_s_overflow_is_not_the_other_s(kata, oracle):
    parameters = oracle.parameters([(2,), (2,)])
    before = [one.detach().clone() for one in parameters]
    first, second = sgd(parameters[:1]), sgd(parameters[1:])
    scaler = kata.GradScaler(init=8.0)
    scaler.scale(torch.ones(()))
    oracle.give(parameters, [torch.tensor([INF, 8.0]), torch.tensor([8.0, 8.0])])
    assert [scaler.step(first), scaler.step(second)] == [False, True]
    scaler.update()
    assert torch.equal(parameters[0].detach(), before[0])
    assert torch.equal(parameters[1].detach(), before[1] - 1.0)
    assert scaler.current_scale == 4.0  # once, for both


def test_two_optimizers_make_one_good_update(kata, oracle):
    parameters = oracle.parameters([(2,), (2,)])
    first, second = sgd(parameters[:1]), sgd(parameters[1:])
    scaler, found = kata.GradScaler(init=8.0, interval=2), []
    for _ in range(4):
        scaler.scale(torch.ones(()))
        oracle.give(parameters, [torch.ones(2), torch.ones(2)])
        assert [scaler.step(first), scaler.step(second)] == [True, True]
        scaler.update()
        found.append(scaler.current_scale)
    assert found == [8.0, 16.0, 16.0, 32.0]


def test_overflow_of_who_never_stepped_counts(kata, oracle):
    # a discriminator whose gradients were looked at, and whose step was left out
    parameters = oracle.parameters([(2,), (2,)])
    first, second = sgd(parameters[:1]), sgd(parameters[1:])
    scaler = kata.GradScaler(init=8.0)
    scaler.scale(torch.ones(()))
    oracle.give(parameters, [torch.tensor([NAN, 8.0]), torch.tensor([8.0, 8.0])])
    scaler.unscale_(first)
    scaler.step(second)
    scaler.update()
    assert scaler.current_scale == 4.0


def test_gradients_of_several_dtypes_are_unscaled(kata, oracle):
    parameters = [
        torch.nn.Parameter(torch.zeros(2, dtype=dtype))
        for dtype in (torch.float32, torch.float64, torch.bfloat16)
    ]
    scaler = kata.GradScaler(init=4.0)
    scaler.scale(torch.ones(()))
    oracle.give(parameters, [torch.full_like(one, 6.0) for one in parameters])
    held = [one.grad for one in parameters]
    scaler.unscale_(sgd(parameters))
    assert [one.grad.tolist() for one in parameters] == [[1.5, 1.5]] * 3
    assert [one.tolist() for one in held] == [[1.5, 1.5]] * 3, "not the same tensors"


def test_clipping_sees_the_true_norm(kata, oracle):
    parameters = oracle.parameters([(2,)])
    before = parameters[0].detach().clone()
    scaler = kata.GradScaler(init=1024.0, interval=1)
    scaler.scale(torch.ones(()))
    oracle.give(parameters, [torch.tensor([3.0, 4.0]) * 1024])
    norm = kata.clipped_step(scaler, sgd(parameters), max_norm=2.5)
    assert norm.item() == 5.0
    moved = before - parameters[0].detach()
    # 2.5 of 5, less the 1e-6 that PyTorch adds to the norm; and roundings of the subtraction
    assert torch.allclose(moved, torch.tensor([1.5, 2.0]), rtol=1e-5), moved
    assert scaler.current_scale == 2048.0


def test_clipping_leaves_short_gradients_alone(kata, oracle):
    parameters = oracle.parameters([(2,)])
    scaler = kata.GradScaler(init=1024.0)
    scaler.scale(torch.ones(()))
    oracle.give(parameters, [torch.tensor([3.0, 4.0]) * 1024])
    kata.clipped_step(scaler, sgd(parameters), max_norm=100.0)
    assert parameters[0].grad.tolist() == [3.0, 4.0]


def test_clipping_takes_all_groups(kata, oracle):
    parameters = oracle.parameters([(1,), (1,)])
    optimizer = sgd([{"params": [one]} for one in parameters])
    scaler = kata.GradScaler(init=1024.0)
    scaler.scale(torch.ones(()))
    oracle.give(parameters, [torch.tensor([3.0 * 1024]), torch.tensor([4.0 * 1024])])
    assert kata.clipped_step(scaler, optimizer, max_norm=2.5).item() == 5.0
    found = [one.grad.item() for one in parameters]
    assert found == pytest.approx([1.5, 2.0], rel=1e-5)


# ---- cost ----------------------------------------------------------------------------------


def test_one_wait_for_a_step_however_many_parameters(kata, oracle, dispatch, cost):
    calls = {}
    for count in (3, 300):
        parameters = oracle.parameters([(4,)] * count)
        optimizer, scaler = sgd(parameters), kata.GradScaler()
        scaler.scale(torch.ones(()))
        oracle.give(parameters, [torch.ones(4)] * count)
        with dispatch() as ops:
            scaler.unscale_(optimizer)
        calls[count] = sum(ops.calls.values())
        assert ops.host_syncs == 0, "unscale_ waits for the device"
        with dispatch() as ops:
            scaler.step(optimizer)
            scaler.update()
        cost.check("waits", ops.host_syncs)
    assert calls[300] == calls[3], f"calls of ops for 3 and 300 parameters: {calls}"


# ---- what 16 bits lose ---------------------------------------------------------------------


def test_scaling_saves_what_float16_loses(kata, oracle, seed):
    grad = oracle.small_gradients(seed)
    # half of the smallest subnormal of float16 is 2**-25: a quarter of the exponents lies below
    assert abs(kata.underflow_fraction(grad, torch.float16, 1.0) - 0.25) < 0.02
    assert kata.underflow_fraction(grad, torch.float16, 2.0**16) == 0.0
    assert kata.underflow_fraction(grad, torch.bfloat16, 1.0) == 0.0
    assert kata.underflow_fraction(torch.tensor([2.0**-30, 0.0]), torch.float16, 1.0) == 1.0


@given(
    exponents=st.lists(st.integers(-40, 10) | st.none(), max_size=30),
    scale=st.integers(0, 16).map(lambda power: 2.0**power),
)
def test_underflow_agrees_with_numpy(kata, exponents, scale):
    values = np.array([0.0 if one is None else 1.5 * 2.0**one for one in exponents], np.float32)
    with np.errstate(over="ignore"):
        half = (values * np.float32(scale)).astype(np.float16)
    there = values != 0
    want = float((half[there] == 0).mean()) if there.any() else 0.0
    found = kata.underflow_fraction(torch.from_numpy(values), torch.float16, scale)
    assert math.isclose(found, want, abs_tol=1e-12)


def test_product_has_the_dtype_of_the_gradient(kata):
    # 2**-24 / 16 is nothing in float16, whatever it is rounded to afterwards
    grad = torch.tensor([2.0**-24], dtype=torch.float16)
    assert kata.underflow_fraction(grad, torch.float32, 2.0**-4) == 1.0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
def test_masters_take_updates_that_the_weights_swallow(kata, dtype):
    # 1 - 1e-4 rounds to 1 in either; after 100 of them the weight is 0.99
    weight = torch.nn.Parameter(torch.ones(3, dtype=dtype))
    plain = torch.nn.Parameter(torch.ones(3, dtype=dtype))
    kept = kata.MasterWeights([weight])
    optimizer, naive = sgd(kept.masters, lr=1e-4), sgd([plain], lr=1e-4)
    for _ in range(100):
        weight.grad = plain.grad = torch.ones(3, dtype=dtype)
        kept.collect()
        optimizer.step()
        naive.step()
        kept.publish()
    assert plain.tolist() == [1.0] * 3
    assert torch.equal(weight.detach(), torch.full((3,), 0.99).to(dtype))
    assert weight.dtype == dtype


def test_masters_are_copies_and_parameters_stay_where_they_are(kata):
    weight = torch.nn.Parameter(torch.ones(2))  # float32 already: still a copy
    where = weight.data_ptr()
    kept = kata.MasterWeights(iter([weight]))
    (master,) = kept.masters
    assert isinstance(master, torch.nn.Parameter)
    with torch.no_grad():
        master.add_(1.0)
    assert weight.tolist() == [1.0, 1.0]
    kept.publish()
    assert weight.tolist() == [2.0, 2.0]
    assert (weight.data_ptr(), master.data_ptr() == where) == (where, False)
    weight.grad = torch.ones(2)
    kept.collect()
    master.grad.mul_(0.5)
    assert weight.grad.tolist() == [1.0, 1.0], "a master's gradient shares memory with the model's"


def test_small_gradients_reach_the_masters_scaled(kata):
    # 2**-26 is lost in float16; times 2**16 it is not, and the masters divide in float32
    weight, idle = (torch.nn.Parameter(torch.zeros(1, dtype=torch.float16)) for _ in range(2))
    kept = kata.MasterWeights([weight, idle])
    optimizer, scaler = sgd(kept.masters), kata.GradScaler(init=2.0**16)
    scaler.scale(torch.ones(()))
    weight.grad = torch.tensor([2.0**-26 * 2.0**16], dtype=torch.float16)
    kept.collect()
    assert weight.grad.item() == 2.0**-10, "collect changed a gradient of the model"
    assert kept.masters[1].grad is None
    scaler.step(optimizer)
    assert weight.grad.item() == 2.0**-10, "the gradient of the model was unscaled"
    assert kept.masters[0].item() == -(2.0**-26)
    weight.grad = None
    kept.collect()
    assert kept.masters[0].grad is None


# ---- bad input -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        *[("init", value) for value in (0.0, -1.0, NAN)],
        *[("growth", value) for value in (1.0, 0.5, NAN)],
        *[("backoff", value) for value in (0.0, 1.0, -0.5, NAN)],
        *[("interval", value) for value in (0, -1)],
    ],
)
def test_settings_that_lead_nowhere_are_refused(kata, argument, value):
    with pytest.raises(ValueError, match=f"^{argument}: "):
        kata.GradScaler(**{argument: value})


def test_a_scale_below_one_is_one_too(kata, oracle):
    outcomes, settings = [True, False, True], {"init": 0.5, "interval": 1}
    assert scales(kata, oracle, outcomes, **settings) == oracle.library_scales(outcomes, **settings)


def test_float16_gradients_are_refused(kata, oracle):
    dtypes = (torch.float32, torch.float16)  # one of them is enough
    parameters = [torch.nn.Parameter(torch.zeros(2, dtype=dtype)) for dtype in dtypes]
    optimizer, scaler = sgd(parameters), kata.GradScaler()
    scaler.scale(torch.ones(()))
    oracle.give(parameters, [torch.ones_like(one) for one in parameters])
    for refused in (scaler.unscale_, scaler.unscale_, scaler.step):  # the first notes nothing
        with pytest.raises(ValueError, match="^optimizer: "):
            refused(optimizer)
    for one in parameters:
        assert one.grad.tolist() == [1.0, 1.0], "a refused gradient was changed"
    with pytest.raises(RuntimeError, match="^update: "):
        scaler.update()


def test_calls_out_of_order_are_refused(kata, oracle):
    parameters = oracle.parameters([(2,)])
    optimizer, scaler = sgd(parameters), kata.GradScaler(init=4.0, interval=1)
    oracle.give(parameters, [torch.ones(2)])
    for _ in range(2):  # the second time after an update
        with pytest.raises(RuntimeError, match=r"scale\(loss\)"):
            scaler.unscale_(optimizer)
        with pytest.raises(RuntimeError, match=r"scale\(loss\)"):
            scaler.step(optimizer)
        with pytest.raises(RuntimeError, match="^update: "):
            scaler.update()
        scaler.scale(torch.ones(()))
        scaler.unscale_(optimizer)
        with pytest.raises(RuntimeError, match="^unscale_: "):
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        with pytest.raises(RuntimeError, match="^step: "):
            scaler.step(optimizer)
        with pytest.raises(RuntimeError, match="^unscale_: "):
            scaler.unscale_(optimizer)
        scaler.update()
    assert scaler.current_scale == 16.0
