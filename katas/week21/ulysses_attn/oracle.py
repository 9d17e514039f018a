"""What is right and what to feed: whole tensors on one process, and the parts of a rank."""

import torch


def numbers(*shape, seed):
    """Draw N(0, 1)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator)


def told_apart(*shape):
    """Number the elements; a few are what a sum or a product would change."""
    x = torch.arange(1.0, 1.0 + torch.Size(shape).numel())
    for at, special in enumerate((torch.nan, torch.inf, -torch.inf, -0.0)):
        x[at * 7 % len(x)] = special
    return x.view(shape)


def part(whole, axis, rank, world):
    """Take part `rank` of `world` equal ones along an axis."""
    return whole.chunk(world, axis)[rank].clone()


def sequence(*, b, rows, h, kv, d, seed, dtype=torch.float32):
    """Draw q, k, v of a whole sequence, and the gradient of the result."""
    heads = (h, kv, kv, h)
    return [numbers(b, rows, n, d, seed=seed + at).to(dtype) for at, n in enumerate(heads)]


def attention(q, k, v, causal):
    """Attend head by head; q, k, v lie as [b, rows, heads, d]."""
    group = q.shape[2] // k.shape[2]
    later = torch.ones(q.shape[1], q.shape[1], dtype=torch.bool).triu(1)
    outs = []
    for head in range(q.shape[2]):
        keys, values = k[:, :, head // group], v[:, :, head // group]
        scores = q[:, :, head] @ keys.transpose(1, 2) / q.shape[3] ** 0.5
        if causal:
            scores = scores.masked_fill(later, -torch.inf)
        outs.append(scores.softmax(-1) @ values)
    return torch.stack(outs, 2)


def library(q, k, v, causal):
    """The same by PyTorch's own kernel, which adds up in another order."""
    q, k, v = (one.transpose(1, 2) for one in (q, k, v))
    attend = torch.nn.functional.scaled_dot_product_attention
    return attend(q, k, v, is_causal=causal, enable_gqa=True).transpose(1, 2)


def pull(formula, q, k, v, dout, causal, dtype):
    """Both passes of the whole in `dtype`: out, dq, dk, dv."""
    leaves = [one.to(dtype, copy=True).requires_grad_() for one in (q, k, v)]
    out = formula(*leaves, causal)
    # a gradient given to autograd would have every rank load the symbolic shapes of torch
    return [out.detach(), *torch.autograd.grad((out * dout.to(dtype)).sum(), leaves)]


def answers(q, k, v, dout, causal):
    """The truth, and in the dtype of `q` of several answers the one with the larger error."""
    whole = (q, k, v, dout)
    truth = pull(attention, *whole, causal, torch.float64)
    similar = []
    for formula in (attention, library):
        similar.append(pull(formula, *whole, causal, q.dtype))
        flipped = pull(formula, *(one.flip(-1) for one in whole), causal, q.dtype)
        similar.append([one.flip(-1) for one in flipped])
    trusted = [
        max(ones, key=lambda one: (one - exact).abs().max().item())
        for exact, *ones in zip(truth, *similar, strict=True)
    ]
    return truth, trusted


def gathered_attn(q, k, v, comm, *, causal):
    """Attend with the keys and values of all ranks, gathered: right, and grows with the ranks."""
    rows = q.shape[1]
    keys, values = (_gathered(one, comm) for one in (k, v))
    places = torch.arange(rows * comm.world, device=q.device)
    mask = places[comm.rank * rows : (comm.rank + 1) * rows, None] >= places if causal else None
    q, keys, values = (one.transpose(1, 2) for one in (q, keys, values))
    attend = torch.nn.functional.scaled_dot_product_attention
    return attend(q, keys, values, attn_mask=mask, enable_gqa=True).transpose(1, 2)


def _gathered(x, comm):
    whole = x.new_empty(comm.world * x.numel())
    comm.all_gather(whole, x.reshape(-1).contiguous()).wait()
    return whole.view(comm.world, *x.shape).movedim(0, 1).flatten(1, 2)


def forward_bytes(*, b, s, h, kv, d, world, itemsize=4):
    """What a rank sends for q, k, v and the result."""
    return (world - 1) * b * s * d * itemsize * (2 * h + 2 * max(kv, world)) // world
