"""What ranks skip together, what a skipped step leaves alone, and which losses are a spike."""

import math

import pytest
import torch

from harness.judge import assert_matches
from harness.meters.communication import comm_meter
from harness.meters.dispatch import dispatch_meter
from harness.meters.late import LateCollectives
from harness.simulators.ranks import rank_device

LIMIT_S = 10.0  # it takes a tenth of a second; ranks that disagree wait for ever
NAN, INF = math.nan, math.inf


class Alone:
    """The ranks of a job that has one, or several that all have the same."""

    def __init__(self, world=1):
        self.rank, self.world = 0, world

    def all_reduce(self, tensor):
        tensor.mul_(self.world)
        return self

    def wait(self):
        pass


def bits(tensor):
    return tensor.detach().contiguous().view(-1).view(torch.uint8).tolist()


# ---- steps -------------------------------------------------------------------------------------


def everything(params, state):
    """What a step may change, bit by bit."""
    tensors = [*params, state.steps, *state.exp_avg, *state.exp_avg_sq]
    return [bits(tensor) for tensor in tensors]


def take_steps(kata, oracle, seed, rank, world):
    """Walk through all faults; tell what there is after each step, and what it has changed."""
    device = rank_device()
    params = [one.to(device).requires_grad_() for one in oracle.start(rank, seed)]
    frozen, unused = torch.ones(3, device=device), torch.ones(2, device=device).requires_grad_()
    frozen.grad = torch.full_like(frozen, INF)
    everyone = [frozen, *params, unused]
    state = kata.AdamState.of(everyone, device)
    found = []
    for at in range(len(oracle.FAULTS)):
        grads, loss = oracle.step_of(at, rank, world, seed)
        for param, grad in zip(params, grads, strict=True):
            param.grad = grad.to(device)
        before, given = everything(everyone, state), [bits(grad) for grad in grads]
        loss = (loss.to(device).requires_grad_() * 1.0).float()
        with comm_meter() as meter, LateCollectives() as comm, dispatch_meter() as counted:
            health = kata.reduce_step(everyone, loss, comm)
            kata.guarded_step(
                everyone, state, health, lr=oracle.LR, max_norm=oracle.MAX_NORM
            )  # fmt: skip
        found.append({
            "params": [param.detach().clone() for param in params],
            "kept": everything(everyone, state) == before,
            "steps": state.steps.item(),
            "others": frozen.tolist() + unused.tolist() + state.exp_avg[0].tolist(),
            "gradients kept": [bits(param.grad) for param in params] == given,
            "health": (*health, health[0].requires_grad),
            "sent": (meter.bytes_sent, meter.messages, dict(meter.calls)),
            "syncs": counted.host_syncs,
        })  # fmt: skip
    return found


def test_one_rank_s_fault_skips_the_step_on_all(kata, oracle, ranks, cost, seed):
    for world in range(2, ranks.world(4) + 1):
        by_rank = ranks(
            world,
            lambda *who: take_steps(kata, oracle, seed, *who),
            timeout_s=LIMIT_S,
        )
        truth = oracle.trajectory(world, seed, torch.float64)
        trusted = oracle.trajectory(world, seed, torch.float32)
        taken = 0
        for at, (fault, where) in enumerate(oracle.FAULTS):
            taken += oracle.healthy(at)
            for rank, found in enumerate(one[at] for one in by_rank):
                who = f"{world} ranks, step {at}, {fault or 'no fault'}"
                who += f" on rank {where % world}: rank {rank}" if fault else f": rank {rank}"
                if not oracle.healthy(at):
                    assert found["kept"], f"{who}: parameters or state changed, expected every bit"
                assert found["steps"] == taken, (
                    f"{who}: state.steps is {found['steps']}, expected {taken}"
                )
                assert found["others"] == [1.0] * 5 + [0.0] * 3, (
                    f"{who}: a frozen parameter, one without a gradient and the first one's "
                    f"moment are {found['others']}, expected ones and zeros"
                )
                assert found["gradients kept"], f"{who}: gradients were written to"
            # together: a parameter of one element may be near 0
            found, exact, rounded = (
                torch.cat([param.flatten() for params in by for param in params])
                for by in ([one[at]["params"] for one in by_rank], truth[at], trusted[at])
            )
            who = f"{world} ranks, step {at}, {fault or 'no fault'}: all parameters, rank by rank"
            assert_matches(found, exact, same_precision=rounded, name=who)


def test_health_is_that_of_all_ranks(kata, oracle, ranks, cost, seed):
    world = ranks.world(4)
    by_rank = ranks(world, lambda *who: take_steps(kata, oracle, seed, *who), timeout_s=LIMIT_S)
    for at, (fault, _) in enumerate(oracle.FAULTS):
        losses = [float(oracle.step_of(at, rank, world, seed)[1]) for rank in range(world)]
        want = sum(losses) / world, oracle.norm_of(at, world, seed)
        for rank, found in enumerate(one[at] for one in by_rank):
            who = f"{world} ranks, step {at} ({fault or 'no fault'}), rank {rank}"
            loss, norm, has_graph = found["health"]
            assert (loss.dtype, norm.dtype, loss.shape, norm.shape) == (
                torch.float64, torch.float64, (), (),
            ), f"{who}: {loss!r}, {norm!r}, expected two 0-d float64 tensors"  # fmt: skip
            for name, got, expected in zip(("loss", "norm"), (loss, norm), want, strict=True):
                same = (
                    got.item() == pytest.approx(expected, rel=1e-6)
                    if math.isfinite(expected)
                    else not got.isfinite()
                )
                assert same, f"{who}: {name} {got.item()}, expected {expected}"
            assert bits(loss) == bits(by_rank[0][at]["health"][0]), f"{who}: not rank 0's bits"
            assert not has_graph, f"{who}: the loss holds on to its graph"
            sent, messages, calls = found["sent"]
            assert calls == {"all_reduce": 1}, f"{who}: sent {calls}, expected one all_reduce"
            cost.check("step_syncs", found["syncs"])
            if world == 4:
                cost.check("comm_bytes", sent)
                cost.check("comm_steps", messages)


def test_by_hand(kata):
    param = torch.tensor([1.0, -1.0]).requires_grad_()
    param.grad = torch.tensor([3.0, 4.0])
    state = kata.AdamState.of([param], param.device)
    health = kata.reduce_step([param], torch.tensor(2.5), Alone())
    assert (health.loss.item(), health.norm.item()) == (2.5, 5.0)
    # clipped to (0.6, 0.8), of which the first step of Adam leaves the signs
    kata.guarded_step([param], state, health, lr=0.25, max_norm=1.0)
    assert param.tolist() == pytest.approx([0.75, -1.25], abs=1e-6)
    assert state.exp_avg[0].tolist() == pytest.approx([0.06, 0.08], rel=1e-6)
    assert state.exp_avg_sq[0].tolist() == pytest.approx([0.018, 0.032], rel=1e-6)
    # a norm below the limit clips nothing
    kata.guarded_step([param], state, health, lr=0.25, max_norm=10.0)
    assert state.exp_avg[0].tolist() == pytest.approx([0.354, 0.472], rel=1e-6)


def test_small_gradients_by_hand(kata):
    param = torch.zeros(2).requires_grad_()
    param.grad = torch.tensor([3e-8, 4e-8])
    state = kata.AdamState.of([param], param.device)
    health = kata.reduce_step([param], torch.tensor(2.5), Alone())
    # clipped to (0.6e-8, 0.8e-8), beside which the epsilon of 1e-8 is not small
    result = kata.guarded_step([param], state, health, lr=-1.0, max_norm=1e-8)
    assert param.tolist() == pytest.approx([0.6 / 1.6, 0.8 / 1.8], rel=1e-5)
    assert result is None


def test_the_mean_of_losses_is_that_of_float64(kata):
    loss = torch.tensor(0.1)  # in float32 a third of it is rounded
    torch.use_deterministic_algorithms(True)  # so that memory nobody has written to holds NaN
    try:
        health = kata.reduce_step([], loss, Alone(3))
    finally:
        torch.use_deterministic_algorithms(False)
    assert health.loss.item() == pytest.approx(loss.item(), rel=1e-14)
    assert health.norm.item() == 0.0


def test_a_skipped_step_keeps_the_sign_of_zero(kata):
    param = torch.tensor([-0.0, 0.0, 1.0]).requires_grad_()
    param.grad = torch.full((3,), NAN)
    state = kata.AdamState.of([param], param.device)
    for one in (*state.exp_avg, *state.exp_avg_sq):
        one.copy_(param.detach())
    health = kata.reduce_step([param], torch.tensor(1.0), Alone())
    kata.guarded_step([param], state, health, lr=1.0, max_norm=1.0)
    kept = {"param": param, "exp_avg": state.exp_avg[0], "exp_avg_sq": state.exp_avg_sq[0]}
    for name, one in kept.items():
        found = str(one.tolist())
        assert found == "[-0.0, 0.0, 1.0]", f"{name} after a skipped step: {found}"


def test_everything_changes_in_place(kata):
    param = torch.ones(3).requires_grad_()
    param.grad = torch.ones(3)
    state = kata.AdamState.of([param], param.device)
    steps, first, second = state.steps, state.exp_avg[0], state.exp_avg_sq[0]
    health = kata.reduce_step([param], torch.tensor(1.0), Alone())
    kata.guarded_step([param], state, health, lr=1.0, max_norm=9.0)
    found = steps.item(), *first.tolist(), *second.tolist()
    expected = pytest.approx([1, *[0.1] * 3, *[0.05] * 3])
    assert found == expected, "steps and moments, in the tensors that the state had before"


def test_gradients_of_zero_move_nothing(kata):
    param = torch.ones(3).requires_grad_()
    param.grad = torch.zeros(3)
    state = kata.AdamState.of([param], param.device)
    health = kata.reduce_step([param], torch.tensor(1.0), Alone())
    kata.guarded_step([param], state, health, lr=1.0, max_norm=1.0)
    assert (param.tolist(), state.steps.item()) == ([1.0] * 3, 1)


def test_the_check_is_not_made_parameter_by_parameter(kata):
    found = []
    for count in (2, 40):
        params = [torch.ones(2, 3).requires_grad_() for _ in range(count)]
        for param in params:
            param.grad = torch.ones_like(param)
        with dispatch_meter() as counted:
            kata.reduce_step(params, torch.tensor(1.0), Alone())
        found.append(sum(counted.calls.values()))
    assert found[0] == found[1], (
        f"reduce_step launches {found[0]} operators, views included, for 2 matrices, and "
        f"{found[1]} for 40, expected as many"
    )


# ---- losses ------------------------------------------------------------------------------------

# looks at each step, compares with 8, goes back 4 steps
SMALL = {
    "window": 8, "k": 4.0, "rise": 0.25, "patience": 3, "every": 1, "rewind": 4, "save_every": 5,
    "skip_batches": 20,
}  # fmt: skip
FLAT = [2.0, 2.25] * 10  # a median of 2.125 and deviations of 0.125: 4 · 1.4826 · 0.125 = 0.7413


def health(kata, loss, norm=1.0):
    return kata.Health(*(torch.tensor(one, dtype=torch.float64) for one in (loss, norm)))


def feed(kata, guard, losses, norms=None, step=0):
    """Update with each, going back where it says so; list (step, to_step, skip)."""
    found = []
    for at, loss in enumerate(losses):
        back = guard.update(step, health(kata, loss, norms[at] if norms else 1.0))
        if back is not None:
            found.append((step, *back))
        step = step + 1 if back is None else back.to_step
    return found


def judged(kata, losses, norms=None, **options):
    return feed(kata, kata.SpikeGuard(**SMALL | options), losses, norms)


def test_a_spike_is_as_many_high_losses_as_patience_asks_for(kata):
    # onset at step 20: back by 4 to 16, whose checkpoint is that of 15; of 20 batches 8 are read
    found = judged(kata, FLAT + [3.0, 3.0, 3.0])
    assert found == [(22, 15, 12)]
    found = judged(kata, FLAT + [3.0, 3.0, 2.0, 3.0, 3.0, 2.0, 3.0, 3.0])
    assert found == [], f"two high losses, one good one, twice: {found}, expected none"
    found = judged(kata, FLAT + [3.0, 3.0, 3.0], patience=1)
    assert found == [(20, 15, 14), (15, 10, 14), (10, 5, 14)], f"a patience of 1: {found}"


def shown(loss, before, found, high):
    want = "a rollback" if high else "none"
    return f"a loss of {loss} after {before}: (step, to_step, skip) {found}, expected {want}"


def test_what_is_high(kata):
    for loss, high in ((2.86, False), (2.87, True)):  # 2.125 + 0.7413
        found = judged(kata, [*FLAT, loss], patience=1)
        assert bool(found) == high, shown(loss, "losses of 2 and 2.25, k = 4", found, high)
    # equal losses have no deviation: what counts is the rise, and to be as much above is not high
    for loss, high in ((2.25, False), (2.25 + 2**-20, True), (-9.0, False)):
        found = judged(kata, [2.0] * 12 + [loss], patience=1)
        assert bool(found) == high, shown(loss, "losses of 2, rise = 0.25", found, high)
    # a median of 1.5, and a deviation of 1.4826 · 0.5
    for loss, high in ((2.2, False), (2.3, True)):
        found = judged(kata, [1.0] * 4 + [2.0] * 4 + [loss], patience=1, k=1.0)
        assert bool(found) == high, shown(loss, "four losses of 1, four of 2, k = 1", found, high)
    # a median of 4.5; the distances in the middle are 1.5 and 2.5, so that 4.5 + 1.4826 · 2 counts
    for loss, high in ((7.4, False), (7.5, True)):
        found = judged(kata, [*map(float, range(1, 9)), loss], patience=1, k=1.0)
        assert bool(found) == high, shown(loss, "1, 2 … 8, k = 1", found, high)


def test_what_is_not_finite_is_high_from_the_first_step_on(kata):
    for loss, norm in ((NAN, 1.0), (INF, 1.0), (-INF, 1.0), (2.0, NAN), (2.0, INF)):
        losses, norms = [2.0, loss, loss, loss], [1.0, norm, norm, norm]
        found = judged(kata, losses, norms)
        assert found == [(3, 0, 16)], f"losses {losses}, norms {norms}: {found}"
        # and is nothing to compare with later
        losses, norms = [loss, *[2.0] * 8, 2.5], [norm, *[1.0] * 9]
        found = judged(kata, losses, norms, patience=1)[1:]
        assert found == [(8, 0, 11)], f"losses {losses}, norms {norms}: after the first {found}"


def test_norms_beyond_float32_are_finite(kata):
    assert judged(kata, [2.0] * 20, [1e39] * 20) == []
    # and so are differences that float32 does not have
    assert judged(kata, [2.0] * 12 + [2.25 + 2**-40], patience=1) == [(12, 5, 12)]


def test_fewer_losses_than_the_window_are_no_measure(kata):
    assert judged(kata, [2.0] * 7 + [9.0] * 3) == []
    assert judged(kata, [2.0] * 8 + [9.0] * 3) == [(10, 0, 9)]


def test_high_losses_do_not_become_the_measure(kata):
    # a high one in three: patience is never at its end, and what is high stays so
    losses = FLAT + [3.0, 2.0, 2.25] * 20
    assert judged(kata, losses) == []
    assert judged(kata, losses + [3.0] * 3) == [(82, 75, 12)]


def test_only_the_last_losses_are_the_measure(kata):
    slow = [2.0 + at / 64 for at in range(300)]
    found = judged(kata, slow)
    assert found == [], f"losses that rise by 1/64 each step: {found}, expected none"
    falling = [9.0, 9.5] * 10 + [4.0, 4.25] * 4
    found = judged(kata, falling + [5.0] * 3)
    assert found == [(30, 20, 9)], f"{falling[-8:]} and three of 5: {found}, expected (30, 20, 9)"


def test_looks_are_as_far_apart_as_every_says(kata):
    # looks after steps 3, 7, 11 …; high are 18 to 20
    found = judged(kata, FLAT[:18] + [3.0] * 3 + [2.0] * 9, every=4)
    assert found == [(23, 10, 6)], "a spike in two looks, though the loss is good again by then"
    # of four high ones the last is not judged any more, and counts for no later spike
    found = judged(kata, FLAT + [3.0] * 4 + [3.0] * 2 + FLAT + [3.0] * 10, every=8)
    assert found == [(23, 15, 11), (46, 30, 3)]


def test_after_a_rollback_steps_and_spikes_begin_again(kata):
    guard = kata.SpikeGuard(**SMALL)
    assert feed(kata, guard, FLAT + [3.0] * 3) == [(22, 15, 12)]
    # what was usual is still known
    assert feed(kata, guard, [2.0, 3.0, 3.0, 2.0, 3.0, 3.0, 3.0], step=15) == [(21, 15, 13)]
    assert feed(kata, guard, [3.0, 3.0, 3.0], step=15) == [(17, 10, 12)]


def test_what_is_forgotten_is_no_measure(kata):
    guard = kata.SpikeGuard(**SMALL | {"every": 4})
    assert feed(kata, guard, FLAT + [3.0] * 3) == [], "23 steps: three of them have not been seen"
    guard.forget()
    assert feed(kata, guard, [3.0, 3.25] * 4, step=23) == []
    # looks are after steps 26 and 30 now
    assert feed(kata, guard, [9.0] * 4, step=31) == [(34, 25, 10)]
    guard = kata.SpikeGuard(**SMALL)
    feed(kata, guard, FLAT + [3.0] * 2)
    guard.forget()
    assert feed(kata, guard, [NAN] * 2, step=22) == [], "two high ones before, two after"
    assert feed(kata, guard, [NAN], step=24) == [(24, 15, 10)], "the third since then"
    # but not at which step the run is
    guard.forget()
    with pytest.raises(ValueError, match="^step: "):
        guard.update(25, health(kata, 2.0))
    assert guard.update(15, health(kata, 2.0)) is None


def test_any_trace_is_judged_as_the_rules_say(kata, oracle, seed):
    options = {
        "window": 21, "k": 5.0, "rise": 0.1, "patience": 4, "every": 7, "rewind": 30,
        "save_every": 20, "skip_batches": 90,
    }  # fmt: skip
    losses = oracle.trace(seed, 500, drift=False)
    norms = [1.0] * 500
    for at in range(60, 480, 60):  # spikes of 2 to 8 steps
        for step in range(at, at + 2 + (at // 60) % 7):
            losses[step] += 1.0
    for at in (5, 6, 130, 131, 132, 133, 134, 300):
        norms[at] = INF
    found = feed(kata, kata.SpikeGuard(**options), losses, norms)
    assert found == oracle.verdicts(losses, norms, **options)


def test_healthy_runs_are_left_alone(kata, oracle):
    for seed in range(4):
        found = feed(kata, kata.SpikeGuard(), oracle.trace(seed, 1500))
        assert found == [], f"trace {seed}: noise, single high steps, a slow rise of half a nat"


def test_half_a_nat_is_seen_at_once(kata, oracle, cost):
    delays = []
    for seed in range(8):
        at = 400 + 7 * seed
        losses = oracle.trace(seed, at + 30, spike_at=at, drift=False)
        found = feed(kata, kata.SpikeGuard(), losses)
        assert found, f"trace {seed}: half a nat more from step {at} on, and no rollback"
        step, to_step, skip = found[0]
        assert to_step <= at - 100, f"trace {seed}: back to {to_step}, the spike began at {at}"
        assert step + 1 - to_step + skip == 200, f"trace {seed}: {found[0]}, expected 200 skipped"
        delays.append(step - at)
    cost.check("delay", max(delays))


class Watched(torch.Tensor):
    """A tensor that notes when the host reads it."""

    reads = 0
    READING = (
        torch.Tensor.tolist, torch.Tensor.item, torch.Tensor.numpy, torch.Tensor.cpu,
        torch.Tensor.__bool__, torch.Tensor.__float__, torch.Tensor.__int__,
    )  # fmt: skip

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func in cls.READING:
            Watched.reads += 1
            args = (args[0].as_subclass(torch.Tensor), *args[1:])
            return func(*args, **kwargs or {})
        return super().__torch_function__(func, types, args, kwargs)


def test_the_host_reads_once_an_interval(kata, oracle, cost):
    Watched.reads, by_step = 0, []
    guard = kata.SpikeGuard()
    for step, loss in enumerate(oracle.trace(3, 200)):
        told = (one.as_subclass(Watched) for one in health(kata, loss))
        guard.update(step, kata.Health(*told))
        by_step.append(Watched.reads)
    assert by_step[8] == 0, f"reads after each step: {by_step[:20]}, expected none for 9 steps"
    assert by_step[9] >= 1, f"reads after each step: {by_step[:20]}, expected one at the tenth"
    cost.check("reads", Watched.reads / 200)


# ---- what is refused ---------------------------------------------------------------------------

REFUSED = {
    "seven losses": {"window": 7}, "no k": {"k": 0.0}, "a k of NaN": {"k": NAN},
    "a rise below 0": {"rise": -0.1}, "no patience": {"patience": 0}, "no looks": {"every": 0},
    "a look ahead": {"rewind": -1}, "no checkpoints": {"save_every": 0},
    "fewer than no batches": {"skip_batches": -1},
}  # fmt: skip


@pytest.mark.parametrize("given", REFUSED.values(), ids=REFUSED)
def test_what_is_refused(kata, given):
    with pytest.raises(ValueError, match=f"^{next(iter(given))}: "):
        kata.SpikeGuard(**given)


def test_the_least_is_allowed(kata):
    least = {
        "window": 8, "k": 1e-9, "rise": 0.0, "patience": 1, "every": 1, "rewind": 0,
        "save_every": 1, "skip_batches": 0,
    }  # fmt: skip
    assert feed(kata, kata.SpikeGuard(**least), [2.0] * 8 + [2.5]) == [(8, 8, 0)]


def test_steps_follow_each_other(kata):
    guard = kata.SpikeGuard(**SMALL)
    feed(kata, guard, FLAT, step=100)
    for wrong in (119, 121, 0):
        with pytest.raises(ValueError, match="^step: "):
            guard.update(wrong, health(kata, NAN))
    # nothing of it was noted
    assert feed(kata, guard, [3.0] * 3, step=120) == [(122, 115, 12)]
    with pytest.raises(ValueError, match="^step: "):
        guard.update(123, health(kata, 2.0))
