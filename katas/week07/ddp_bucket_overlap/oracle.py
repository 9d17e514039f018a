"""What is right and what to feed: models, one process's gradients, the schedule, and its clock."""

import torch
from torch import nn

BATCH_ON_PAR = 8  # at this batch a gradient takes as long to compute as to reduce


class Mixed(nn.Module):
    """
    Every kind of parameter: tied, with gaps, a scalar, frozen, alone in its bucket; and buffers.

    All are whole numbers, as are the inputs and the gradients, so sums are exact in any order.
    `forward` leaves out the parts named in `without`.
    """

    def __init__(self, seed):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)

        def draw(*shape):
            return torch.randint(-2, 3, shape, generator=generator).double()

        self.lift = nn.Parameter(draw(3, 7))
        self.frozen = nn.Parameter(draw(7), requires_grad=False)
        self.tied = nn.Parameter(draw(7, 7))
        self.alias = self.tied
        self.strided = nn.Parameter(draw(5, 14)[:, ::2].t())
        self.gain = nn.Parameter(draw() + 3)
        self.shift = nn.Parameter(draw(5))
        self.register_buffer("seen", torch.tensor(2**53 + 1 + seed))
        signs = torch.full((3,), 0.0 if seed else -0.0)
        self.register_buffer("signs", signs, persistent=False)

    def state(self):
        """Every parameter and buffer once, by name."""
        return dict(self.named_parameters()) | dict(self.named_buffers())

    def forward(self, x, without=()):
        hidden = torch.relu(x @ self.lift + self.frozen)
        if "tied" not in without:
            hidden = torch.relu(hidden @ self.tied) @ self.alias
        if "gain" not in without:
            hidden = hidden * self.gain
        y = hidden @ self.strided
        return y if "shift" in without else y + self.shift


def stack(layers, width, seed, dtype=torch.float32):
    """Square layers without bias: a backward pass that produces one gradient after the other."""
    generator = torch.Generator().manual_seed(seed)
    net = nn.Sequential(*[nn.Linear(width, width, bias=False, dtype=dtype) for _ in range(layers)])
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.randn(width, width, generator=generator) / width**0.5)
    return net


def batches(*, world, rows, cols, seed, dtype=torch.float64):
    """Draw one batch a rank, of whole numbers."""
    generator = torch.Generator().manual_seed(seed)
    return list(torch.randint(-3, 4, (world, rows, cols), generator=generator).to(dtype))


def loss(y):
    """Curved, so that gradients depend on all weights; 36 divides by 2, 3 and 4 ranks, 3 twice."""
    return 36 * (y**2).sum() + 36 * y.sum()


def averages(net, losses):
    """One process: the gradients of the mean of `losses`, zeros where it does not depend."""
    trainable = [parameter for parameter in net.parameters() if parameter.requires_grad]
    mean = sum(losses) / len(losses)
    return torch.autograd.grad(
        mean, trainable, allow_unused=True, materialize_grads=True, retain_graph=True
    )


def buckets(sizes, bucket_bytes):
    """Indices of the parameters in each bucket: the brief's order, for sizes in bytes by index."""
    found, open_bucket = [], []
    for at in sorted(sizes, reverse=True):
        open_bucket = [*open_bucket, at]
        if sum(sizes[one] for one in open_bucket) >= bucket_bytes:
            found, open_bucket = [*found, open_bucket], []
    return found + [open_bucket] * bool(open_bucket)


def schedule(arrivals, buckets):
    """Events of a step: gradients in the order given, each bucket as early as it may go."""
    events, seen, left = [], set(), list(enumerate(buckets))
    for at in arrivals:
        events.append(("gradient", at))
        seen.add(at)
        while left and seen.issuperset(left[0][1]):
            events.append(("all_reduce", left.pop(0)[0]))
    return events + [("all_reduce", number) for number, _ in left]


def exposed_share(log, batch):
    """
    What of the communication a step waits for, by a clock on which nothing depends on luck.

    Computing a gradient takes as many seconds as its bytes, times batch / BATCH_ON_PAR. The link
    carries one all-reduce at a time, and all of them in as many seconds as there are bytes.
    """
    kinds = ("gradient", "all_reduce")
    compute, sent = (sum(one.bytes for one in log if one.op == kind) for kind in kinds)
    now = link_free = 0.0
    arrives = []
    for op, _, size in log:
        if op == "gradient":
            now += size * batch / BATCH_ON_PAR
        elif op == "all_reduce":
            link_free = max(now, link_free) + size * compute / sent
            arrives.append(link_free)
        elif op == "wait_all_reduce":
            now = max(now, arrives.pop(0))
    return (now - compute * batch / BATCH_ON_PAR) / compute
