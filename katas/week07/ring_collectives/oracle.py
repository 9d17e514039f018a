"""What is right and what to feed: the sum of vectors that the test itself knows, and its chunks."""

import torch


def vectors(*, world, size, dtype, seed):
    """Draw one vector a rank: N(0, 1), or integers whose sums need more than float32's 24 bits."""
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        return list(torch.randn(world, size, generator=generator, dtype=torch.float64).to(dtype))
    return list(torch.randint(-(2**28), 2**28, (world, size), generator=generator).to(dtype))


def total(vectors):
    """Add up in float64, which is exact for the integers."""
    return torch.stack(vectors).double().sum(dim=0)


def chunk(vector, rank, world):
    """Part `rank` of `vector`, which is filled up with zeros to `world` equal parts."""
    size = chunk_size(vector.numel(), world)
    part = vector[rank * size : (rank + 1) * size]
    return torch.nn.functional.pad(part, (0, size - part.numel()))


def chunk_size(size, world):
    return (size + world - 1) // world


def bytes_a_phase(*, chunk, world, itemsize):
    """What each rank sends in either phase: world - 1 chunks of `chunk` elements."""
    return (world - 1) * chunk * itemsize
