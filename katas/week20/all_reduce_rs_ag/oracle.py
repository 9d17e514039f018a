"""What is right and what to feed: sums that the test forms itself, the fit by normal equations."""

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


def padded(size, world, chunks):
    """Elements of all parts, filled up so that the ranks can share each evenly."""
    share = world * chunks
    return (size + share - 1) // share * share


def half_bandwidth_size(points):
    """Latency times bandwidth of the line with the least squared relative errors, exactly."""
    exact = [(Fraction(size), Fraction(seconds)) for size, seconds in points]
    ones, mixed, squares, right, right_size = (
        sum(term(s, t) for s, t in exact)
        for term in (
            lambda _, t: 1 / t**2,
            lambda s, t: s / t**2,
            lambda s, t: s**2 / t**2,
            lambda _, t: 1 / t,
            lambda s, t: s / t,
        )
    )
    alpha = right * squares - right_size * mixed
    slope = ones * right_size - mixed * right
    return float(alpha / slope)
