"""What is right and what to feed: the whole sequence on one process, in float64."""

import torch


def numbers(*shape, seed, dtype=torch.float32):
    """Draw N(0, 1)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(dtype)


def sequence(*, b, rows, h, kv, d, seed, dtype=torch.float32):
    """Draw q, k, v of a whole sequence; of q and k sixteenths, whose dot products are exact."""
    q, k, v = (numbers(b, rows, heads, d, seed=seed + at) for at, heads in enumerate((h, kv, kv)))
    q, k = (one.mul(16).round().div(16) for one in (q, k))
    return q.to(dtype), k.to(dtype), v.to(dtype)


def far_apart(*, rows, h, d, seed):
    """Draw q, k, v with scores of up to +-10,000 that are exact, and each of a row's far apart."""
    generator = torch.Generator().manual_seed(seed)
    step = 10_000 // (rows * d)
    order = torch.stack([torch.randperm(rows, generator=generator) for _ in range(h)], 1)
    k = (step * (order + 1.0))[None, :, :, None].expand(1, rows, h, d)
    signs = torch.randint(0, 2, (1, rows, h, 1), generator=generator) * 2.0 - 1
    q = signs.expand(1, rows, h, d)
    return q.contiguous(), k.contiguous(), numbers(1, rows, h, d, seed=seed)


def attention(q, k, v, *, causal, scale=None, dtype=torch.float64):
    """Whole attention, head by head: the result and the lse; q, k, v lie as [b, rows, heads, d]."""
    q, k, v = (one.to(dtype) for one in (q, k, v))
    scale = q.shape[3] ** -0.5 if scale is None else scale
    group = q.shape[2] // k.shape[2]
    places = torch.arange(q.shape[1], device=q.device)
    later = places[None, :] > places[:, None]
    outs, sums = [], []
    for head in range(q.shape[2]):
        keys, values = k[:, :, head // group], v[:, :, head // group]
        scores = q[:, :, head] @ keys.transpose(1, 2) * scale
        if causal:
            scores = scores.masked_fill(later, -torch.inf)
        sums.append(torch.logsumexp(scores, -1))
        outs.append(torch.softmax(scores, -1) @ values)
    return torch.stack(outs, 2), torch.stack(sums, 1)


def part(whole, rank, world, dim=1):
    """Take the rows of one rank."""
    return whole.chunk(world, dim=dim)[rank].clone()


def block_weights(*, d, seed):
    """Draw the weights of a transformer block of width `d`, an MLP of 2 d: qkv, out, up, down."""
    shapes = ((3 * d, d), (d, d), (2 * d, d), (d, 2 * d))
    return [numbers(*shape, seed=seed + at) / shape[1] ** 0.5 for at, shape in enumerate(shapes)]


def block(x, weights, heads, attend):
    """Run a transformer block without biases on [b, rows, d]; `attend` maps q, k, v to one."""
    wqkv, wo, up, down = (one.to(x.dtype) for one in weights)
    qkv = (norm(x) @ wqkv.T).unflatten(-1, (3, heads, -1))
    x = x + attend(*qkv.unbind(2)).flatten(2) @ wo.T
    return x + torch.relu(norm(x) @ up.T) @ down.T


def norm(x):
    """Divide by the root mean square."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
