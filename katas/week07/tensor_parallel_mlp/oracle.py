"""What is right and what to feed: whole layers on one process, and the parts that a rank has."""

import torch


def numbers(*shape, seed):
    """Draw whole numbers from -2 to 2: sums and products of them are exact in any order."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-2, 3, shape, generator=generator).double()


def normal(*shape, seed):
    """Draw N(0, 1), in float32: the truth is what float64 makes of the same values."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator)


def weight(d_out, d_in, seed):
    """Draw a weight that keeps the size of what it is applied to."""
    return normal(d_out, d_in, seed=seed) / d_in**0.5


def part(whole, axis, rank, world):
    """Take part `rank` of `world` equal ones along an axis."""
    size = whole.shape[axis] // world
    return whole.narrow(axis, rank * size, size).clone()


def mlp(x, w1, b1, w2, b2, act):
    """Two layers on one process."""
    return act(x @ w1.T + b1) @ w2.T + b2


def swiglu(x, wg, wu, wd):
    """SwiGLU on one process, by its formula."""
    gate = x @ wg.T
    return (gate * torch.sigmoid(gate) * (x @ wu.T)) @ wd.T


def attention(x, wq, wk, wv, wo, heads, kv_heads):
    """Causal attention on one process, head by head."""
    width = wq.shape[0] // heads
    future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
    outputs = []
    for head in range(heads):
        own = slice(head * width, (head + 1) * width)
        at = head // (heads // kv_heads)
        shared = slice(at * width, (at + 1) * width)
        q, k, v = x @ wq[own].T, x @ wk[shared].T, x @ wv[shared].T
        scores = (q @ k.transpose(1, 2) / width**0.5).masked_fill(future, -torch.inf)
        outputs.append(scores.softmax(-1) @ v)
    return torch.cat(outputs, -1) @ wo.T


def library_attention(x, wq, wk, wv, wo, heads, kv_heads):
    """The same by PyTorch's own kernel, which adds up in another order."""
    counts = (heads, kv_heads, kv_heads)
    q, k, v = (
        (x @ weight.T).unflatten(-1, (count, -1)).transpose(1, 2)
        for weight, count in zip((wq, wk, wv), counts, strict=True)
    )
    y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return y.transpose(1, 2).flatten(2) @ wo.T


def backwards(block):
    """The same block on channels in reverse order, which rounds otherwise."""

    def reordered(x, *weights):
        *ins, out = weights
        return block(x.flip(-1), *[one.flip(-1) for one in ins], out.flip(0)).flip(-1)

    return reordered


def least_exact(truth, *answers):
    """Of answers in the working precision, by tensor, the one with the larger worst error."""
    return tuple(
        max(similar, key=lambda one: (one - exact).abs().max().item())
        for exact, *similar in zip(truth, *answers, strict=True)
    )


def pull(function, tensors, dy):
    """One process: the result, and the gradient of each tensor, for a gradient of the result."""
    leaves = [tensor.detach().clone().requires_grad_() for tensor in tensors]
    y = function(*leaves)
    # a gradient given to autograd would have every rank load the symbolic shapes of torch
    return (y.detach(), *torch.autograd.grad((y * dy).sum(), leaves))


def all_reduce_bytes(elements, itemsize, world):
    """What a ring all-reduce makes each rank send."""
    return 2 * (world - 1) * elements * itemsize // world
