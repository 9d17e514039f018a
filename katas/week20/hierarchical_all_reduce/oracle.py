"""What is right: exact sums, every message of an all-to-all routed, every step of a ring timed."""

from collections import Counter
from fractions import Fraction

import torch


def tensors(*, world, shape, dtype, seed):
    """Draw one tensor a rank: N(0, 1), or integers; int64 ones need more than float64 has."""
    generator = torch.Generator().manual_seed(seed)
    drawn = (world, *shape)
    if dtype.is_floating_point:
        return list(torch.randn(drawn, generator=generator, dtype=torch.float64).to(dtype))
    integers = torch.randint(-(2**28), 2**28, drawn, generator=generator).to(dtype)
    return list(integers + 2**59 if dtype == torch.int64 else integers)


def total(tensors):
    """Add up: integers as Python does, floats in float64."""
    if tensors[0].is_floating_point():
        return torch.stack(tensors).double().sum(dim=0)
    columns = zip(*(one.flatten().tolist() for one in tensors), strict=True)
    return torch.tensor([*map(sum, columns)], dtype=torch.int64).view(tensors[0].shape)


def places(nodes, g):
    """The ranks of each node."""
    return [[node * g + i for i in range(g)] for node in range(nodes)]


def cube_mesh_loads(links):
    """Messages on each link and direction when each of eight GPUs sends one to each other."""
    around = {(a, b) for a, b in links} | {(b, a) for a, b in links}
    loads = Counter()
    for src in range(8):
        for dst in range(8):
            if src == dst:
                continue
            # without a link: to the GPU of the own square that has one
            middle = src // 4 * 4 + dst % 4
            route = [(src, dst)] if (src, dst) in around else [(src, middle), (middle, dst)]
            assert around.issuperset(route)
            loads.update(route)
    return loads


def ring_seconds(costs, steps):
    """
    Let a ring take its steps: link i leads from rank i to the next, and a message takes costs[i].

    A rank sends in step k what it received in step k - 1, and each link carries one at a time.
    """
    n = len(costs)
    done = [Fraction(0)] * n  # by link
    for _ in range(steps):
        done = [max(done[i], done[i - 1]) + costs[i] for i in range(n)]
    return max(done, default=Fraction(0))


def predictions(nbytes, nodes, g, intra_bw, nic_bw, intra_alpha, nic_alpha):
    """Both all-reduces, step by step."""
    size = Fraction(nbytes)

    def message(part, *, leaves_the_node):
        alpha, bw = (nic_alpha, nic_bw) if leaves_the_node else (intra_alpha, intra_bw)
        return Fraction(alpha) + part / Fraction(bw)

    n = nodes * g
    flat = [
        message(size / n, leaves_the_node=rank // g != (rank + 1) % n // g) for rank in range(n)
    ]
    inside = [message(size / g, leaves_the_node=False)] * g
    between = [message(size / g / nodes, leaves_the_node=True)] * nodes
    scatter = gather = ring_seconds(inside, g - 1)
    return {
        "flat_ring": float(ring_seconds(flat, 2 * (n - 1))),
        "hierarchical": float(scatter + ring_seconds(between, 2 * (nodes - 1)) + gather),
    }
