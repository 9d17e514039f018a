"""What is right and what to feed: the whole sequence on one process, in float64."""

import torch


def numbers(*shape, seed):
    """Draw N(0, 1)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator)


def sequence(*, b, rows, h, kv, d, seed, dtype=torch.float32):
    """Draw q, k, v of a whole sequence, and the gradient of the result."""
    heads = (h, kv, kv, h)
    return [numbers(b, rows, n, d, seed=seed + at).to(dtype) for at, n in enumerate(heads)]


def attention(q, k, v, scale):
    """Attend causally, head by head; q, k, v lie as [b, rows, heads, d]."""
    group = q.shape[2] // k.shape[2]
    later = torch.ones(q.shape[1], q.shape[1], dtype=torch.bool).triu(1)
    outs = []
    for head in range(q.shape[2]):
        keys, values = k[:, :, head // group], v[:, :, head // group]
        scores = q[:, :, head] @ keys.transpose(1, 2) * scale
        outs.append(scores.masked_fill(later, -torch.inf).softmax(-1) @ values)
    return torch.stack(outs, 2)


def pull(q, k, v, dout, scale, dtype):
    """Both passes of the whole in `dtype`: out, dq, dk, dv."""
    leaves = [one.to(dtype, copy=True).requires_grad_() for one in (q, k, v)]
    out = attention(*leaves, q.shape[3] ** -0.5 if scale is None else scale)
    # a gradient given to autograd would have every rank load the symbolic shapes of torch
    return [out.detach(), *torch.autograd.grad((out * dout.to(dtype)).sum(), leaves)]


def by_blocks(q, k, v, dout, scale, dtype, size):
    """The same, keys in blocks of `size`, results merged and gradients added up in `dtype`."""
    scale = q.shape[3] ** -0.5 if scale is None else scale
    kv = k.shape[2]
    k, v = (one.to(dtype).repeat_interleave(q.shape[2] // kv, dim=2) for one in (k, v))
    q, dout = q.to(dtype), dout.to(dtype)
    later = torch.ones(q.shape[1], q.shape[1], dtype=torch.bool).triu(1)
    blocks = [slice(at, at + size) for at in range(0, q.shape[1], size)]
    scores = [
        (torch.einsum("bshd,bthd->bhst", q, k[:, at]) * scale).masked_fill(later[:, at], -torch.inf)
        for at in blocks
    ]
    lse = scores[0].logsumexp(-1, keepdim=True)
    out = torch.einsum("bhst,bthd->bhsd", (scores[0] - lse).exp(), v[:, blocks[0]])
    for block, at in zip(scores[1:], blocks[1:], strict=True):
        sums = block.logsumexp(-1, keepdim=True)
        weights = (block - sums).exp().nan_to_num()
        share = torch.sigmoid(sums - lse)
        out = out * (1 - share) + share * torch.einsum("bhst,bthd->bhsd", weights, v[:, at])
        lse = torch.logaddexp(lse, sums)
    out = out.transpose(1, 2)
    mean = (dout * out).sum(-1).transpose(1, 2)[..., None]
    dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    for block, at in zip(scores, blocks, strict=True):
        weights = (block - lse).exp()
        dscores = weights * (torch.einsum("bshd,bthd->bhst", dout, v[:, at]) - mean) * scale
        dq += torch.einsum("bhst,bthd->bshd", dscores, k[:, at])
        for rows in blocks:
            dk[:, at] += torch.einsum("bhst,bshd->bthd", dscores[:, :, rows], q[:, rows])
            dv[:, at] += torch.einsum("bhst,bshd->bthd", weights[:, :, rows], dout[:, rows])
    return [out, dq, *(one.unflatten(2, (kv, -1)).sum(3) for one in (dk, dv))]


def trusted(q, k, v, dout, scale, dtype, chunk):
    """Answers in `dtype` that add up in other orders: in blocks of a chunk, of two, in one."""
    whole = [q, k, v, dout]
    flipped = [one.flip(-1) for one in whole]
    sizes = (chunk, 2 * chunk, q.shape[1])
    return [
        pull(*whole, scale, dtype),
        *(by_blocks(*whole, scale, dtype, size) for size in sizes),
        *([one.flip(-1) for one in by_blocks(*flipped, scale, dtype, size)] for size in sizes),
    ]


def least_exact(truth, *answers):
    """Of answers in the working precision, by tensor, the one with the larger worst error."""
    return [
        max(similar, key=lambda one: (one - exact).abs().max().item())
        for exact, *similar in zip(truth, *answers, strict=True)
    ]


def own_rows(rows, rank, world):
    """List the rows of one rank: its chunk from the front, and the one as far from the end."""
    size = rows // (2 * world)
    front = [rank * size + at for at in range(size)]
    return front + [rows - (rank + 1) * size + at for at in range(size)]


def rotated(x, places):
    """Rotate pairs of channels of [b, rows, heads, d] by their places (RoPE, base 100)."""
    pairs = x.unflatten(-1, (-1, 2))
    speeds = 100.0 ** -torch.linspace(0, 1, pairs.shape[-2], dtype=torch.float64)
    angles = (places[:, None].double() * speeds)[None, :, None].to(x.device)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    left, right = pairs.unbind(-1)
    return torch.stack([left * cos - right * sin, left * sin + right * cos], -1).flatten(-2)


def contiguous_ring(kata, q, k, v, ring):
    """Attend causally where rank r has the r-th part: right, and the last rank does most."""
    so_far = ()
    for step in range(ring.world):
        arriving = ring.post(k, v) if step + 1 < ring.world else None
        if step <= ring.rank:
            part = kata.block_attn(q, k, v, scale=q.shape[3] ** -0.5, causal=step == 0)
            so_far = kata.merge(*so_far, *part) if so_far else part
        if arriving is not None:
            k, v = arriving.wait()
    return so_far[0].to(q.dtype)
