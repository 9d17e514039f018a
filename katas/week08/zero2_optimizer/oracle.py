"""What is right and what to feed: torch.optim.AdamW in one process, on the mean gradient."""

import torch

# 59 elements, which 2, 3 and 4 do not divide; one scalar, one empty
SHAPES = ((7, 5), (), (0, 3), (11,), (3, 4))
# the parameters that belong to either group: a boundary inside a part, for 2, 3 and 4 ranks
GROUPS = (
    ((0, 1, 2), {"lr": 0.02, "betas": (0.8, 0.95), "eps": 1e-2, "weight_decay": 0.3}),
    ((3, 4), {"lr": 0.05}),
)
DEFAULTS = {"lr": 0.01, "betas": (0.9, 0.99), "eps": 3e-2, "weight_decay": 0.1}


def parameters(*, seed, dtype=torch.float32, shapes=SHAPES):
    """Draw weights N(0, 1)."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def gradients(*, world, steps, seed, dtype=torch.float32, shapes=SHAPES):
    """
    Draw the gradients of each step, rank and parameter: N(0.5, 1), or None.

    Parameter 1 has one in even steps alone, on no rank in odd ones; the last rank has no data in
    step 1; rank 0 never reaches the last parameter.
    """
    generator = torch.Generator().manual_seed(seed + 1)

    def one_rank():
        drawn = [0.5 + torch.randn(shape, generator=generator) for shape in shapes]
        if dtype != torch.float32:  # so few digits that sums over ranks are exact
            drawn = [(grad * 16).round() / 16 for grad in drawn]
        return [grad.to(dtype) for grad in drawn]

    drawn = [[one_rank() for _ in range(world)] for _ in range(steps)]
    for at, by_rank in enumerate(drawn):
        for rank, grads in enumerate(by_rank):
            if at % 2:
                grads[1 % len(shapes)] = None
            if rank == world - 1 and at == 1 and world > 1:
                grads[:] = [None] * len(shapes)
            if rank == 0 and world > 1:
                grads[-1] = None
    return drawn


def groups(params):
    """Divide parameters of SHAPES into GROUPS."""
    return [{"params": [params[at] for at in members], **options} for members, options in GROUPS]


class OneProcess:
    """AdamW by the library, in `dtype`; a gradient that is None counts as zeros."""

    def __init__(self, params, *, dtype, grouped=True, **options):
        self.dtype = dtype
        self.params = [param.to(dtype, copy=True) for param in params]
        chosen = groups(self.params) if grouped else self.params
        self.optimizer = torch.optim.AdamW(chosen, **(DEFAULTS | options))

    def step(self, by_rank, max_norm=None):
        """Update by the mean over the ranks; return its norm if it is to be clipped."""
        for at, param in enumerate(self.params):
            present = [grads[at] for grads in by_rank if grads[at] is not None]
            total = sum((grad.to(self.dtype) for grad in present), torch.zeros_like(param))
            param.grad = total / len(by_rank)
        norm = None
        if max_norm is not None:
            norm = torch.nn.utils.clip_grad_norm_(self.params, max_norm).item()
        self.optimizer.step()
        return norm

    def state(self):
        """The flat states, named as in the kata."""
        kept = [self.optimizer.state[param] for param in self.params]
        names = ("exp_avg", "exp_avg_sq")
        moments = {name: torch.cat([one[name].flatten() for one in kept]) for name in names}
        return {"master": torch.cat([param.flatten() for param in self.params])} | moments


def both(params, **options):
    """AdamW in float64, and in the working precision."""
    return OneProcess(params, dtype=torch.float64, **options), OneProcess(
        params, dtype=torch.float32, **options
    )


def part_size(*, n, world):
    return (n + world - 1) // world


def phase_bytes(*, n, world, itemsize):
    """What a rank sends in a reduce-scatter or an all-gather of n elements, padding included."""
    return (world - 1) * part_size(n=n, world=world) * itemsize
