"""What is right and what to feed: the block on one process, and the parts of a rank."""

import torch


def numbers(*shape, seed):
    """Draw whole numbers from -2 to 2: sums and products of them are exact in any order."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-2, 3, shape, generator=generator).double()


def normal(*shape, seed):
    """Draw N(0, 1)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator)


def weights(h, seed):
    """Draw gain, bias, and the two matrices of an MLP of 4 h."""
    gain, bias = 1 + normal(h, seed=seed) / 4, normal(h, seed=seed + 1) / 4
    w1 = normal(4 * h, h, seed=seed + 2) / h**0.5
    return [gain, bias, w1, normal(h, 4 * h, seed=seed + 3) / (4 * h) ** 0.5]


def part(whole, axis, rank, world):
    """Take part `rank` of `world` equal ones along an axis."""
    return whole.chunk(world, axis)[rank].clone()


def block(x, gain, bias, w1, w2, parts=1):
    """The block on one process, its MLP as the sum of so many parts of the hidden layer."""
    centred = x - x.mean(-1, keepdim=True)
    normed = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + 1e-5) * gain + bias
    y = 0
    for first, last in zip(w1.chunk(parts), w2.chunk(parts, 1), strict=True):
        hidden = normed @ first.T
        y = y + hidden * (1 + torch.erf(hidden / 2**0.5)) / 2 @ last.T
    return x + y


def pull(x, *given, dtype, parts=1):
    """Both passes of the block: y, and the gradients of x, gain, bias, w1, w2."""
    *params, dy = given
    leaves = [one.to(dtype, copy=True).requires_grad_() for one in (x, *params)]
    y = block(*leaves, parts=parts)
    # a gradient given to autograd would have every rank load the symbolic shapes of torch
    return [y.detach(), *torch.autograd.grad((y * dy.to(dtype)).sum(), leaves)]


def answers(x, gain, bias, w1, w2, dy):
    """The truth, and in float32 of several answers the one with the larger error, by tensor."""
    truth = pull(x, gain, bias, w1, w2, dy, dtype=torch.float64)
    similar = []
    for parts in (1, 2, 3, 4):
        similar.append(pull(x, gain, bias, w1, w2, dy, dtype=torch.float32, parts=parts))
        turned = pull(
            *(one.flip(-1) for one in (x, gain, bias, w1)), w2.flip(0), dy.flip(-1),
            dtype=torch.float32, parts=parts,
        )  # fmt: skip
        *others, last = turned
        similar.append([*(one.flip(-1) for one in others), last.flip(0)])
    trusted = [
        max(ones, key=lambda one: (one - exact).abs().max().item())
        for exact, *ones in zip(truth, *similar, strict=True)
    ]
    return truth, trusted
