"""What is right: Adam of the steps that count, in one process; losses judged one by one."""

import math

import numpy as np
import torch

BETA1, BETA2, EPS = 0.9, 0.95, 1e-8
# of each rank: what it has, one element, a matrix and no elements, and nothing
SHAPES = (((3, 5), (), (4,)), ((7,), (1,)), ((2, 3), (0, 3)), ())
LR, MAX_NORM = 0.05, 2.0

# what goes wrong at each step, and on which rank
FAULTS = (
    ("a NaN", 1), (None, 0), ("a loss of NaN", 0), (None, 0), ("-inf", 0), (None, 0),
    ("gradients of 1e20", 0), ("an infinite loss", -1), ("both infinities", 1), (None, 0),
)  # fmt: skip


def normal(*shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def start(rank, seed):
    """A rank's parameters; there are zeros of both signs."""
    params = [normal(*shape, seed=seed + 7 * rank + at) for at, shape in enumerate(SHAPES[rank])]
    for param in params:
        param.flatten()[:2] *= -0.0
    return params


def step_of(at, rank, world, seed):
    """The gradients and the loss of a rank at a step, faults among them."""
    fault, where = FAULTS[at]
    seed += 1000 * (at + 1) + 100 * rank
    grads = [normal(*shape, seed=seed + at) for at, shape in enumerate(SHAPES[rank])]
    loss = torch.tensor(3.0 + at + 0.5 * rank)
    if fault == "gradients of 1e20":
        grads = [grad * 1e20 for grad in grads]
    if rank == where % world:
        if fault == "a NaN":
            grads[-1].flatten()[-1] = math.nan
        if fault == "-inf":
            grads[-1].flatten()[0] = -math.inf
        if fault == "both infinities":
            grads[0].flatten()[:2] = torch.tensor([math.inf, -math.inf])[: grads[0].numel()]
        if fault == "a loss of NaN":
            loss = torch.tensor(math.nan)
        if fault == "an infinite loss":
            loss = torch.tensor(math.inf)
    return grads, loss


def healthy(at):
    return FAULTS[at][0] in (None, "gradients of 1e20")


def norm_of(at, world, seed):
    """The norm of all ranks' gradients."""
    grads = [grad for rank in range(world) for grad in step_of(at, rank, world, seed)[0]]
    return math.sqrt(sum(float(grad.double().square().sum()) for grad in grads))


def trajectory(world, seed, dtype):
    """
    What each rank's parameters are after each step, of a run that never saw the bad ones.

    The norm is that of float64 in any case; everything else is computed in `dtype`.
    """
    params = [[param.to(dtype) for param in start(rank, seed)] for rank in range(world)]
    first = [[torch.zeros_like(param) for param in own] for own in params]
    second = [[torch.zeros_like(param) for param in own] for own in params]
    found, taken = [], 0
    for at in range(len(FAULTS)):
        if healthy(at):
            taken += 1
            by = min(1.0, MAX_NORM / norm_of(at, world, seed))
            for rank in range(world):
                grads = [grad.to(dtype) * by for grad in step_of(at, rank, world, seed)[0]]
                for which, grad in enumerate(grads):
                    one, two = first[rank][which], second[rank][which]
                    one.mul_(BETA1).add_(grad, alpha=1 - BETA1)
                    two.mul_(BETA2).addcmul_(grad, grad, value=1 - BETA2)
                    size = (two / (1 - BETA2**taken)).sqrt() + EPS
                    params[rank][which] -= LR * one / (1 - BETA1**taken) / size
        found.append([[param.clone() for param in own] for own in params])
    return found


def verdicts(losses, norms, *, window, k, rise, patience, every, rewind, save_every, skip_batches):
    """List (step, to_step, skip) of a trace that has all steps, those after a rollback as well."""
    good, run, step, since, looked = [], 0, 0, 0, 0
    found = []
    bad = [not (math.isfinite(a) and math.isfinite(b)) for a, b in zip(losses, norms, strict=True)]
    for at in range(len(losses)):
        step, since = step + 1, since + 1
        if since < every:
            continue
        for one in range(looked, at + 1):
            high = bad[one]
            if not high and len(good) >= window:
                last = np.array(good[-window:])
                middle = np.median(last)
                deviation = 1.4826 * np.median(np.abs(last - middle))
                high = losses[one] - middle > max(rise, k * deviation)
            run = run + 1 if high else 0
            if not high:
                good.append(losses[one])
            if run == patience:
                onset = step - 1 - (at - one) - patience + 1
                target = max(0, (onset - rewind) // save_every * save_every)
                found.append((step - 1, target, max(0, skip_batches - (step - target))))
                step, run = target, 0
                break
        since, looked = 0, at + 1
    return found


def trace(seed, steps, *, spike_at=None, height=0.5, drift=True):
    """
    Draw losses: a fall, noise, single steps far too high, and half a nat of slow rise.

    From `spike_at` on all are higher by `height`.
    """
    draw = np.random.default_rng(seed)
    t = np.arange(steps)
    losses = 2.2 + 8 * (1 + t / 20) ** -0.8 + draw.normal(0, draw.uniform(0.02, 0.04), steps)
    losses[draw.random(steps) < 0.005] += draw.uniform(0.3, 3.0)
    if drift:
        losses += 0.5 * np.clip((t - steps // 2) / (steps // 3), 0, 1)
    if spike_at is not None:
        losses[spike_at:] += height
    return losses.tolist()
