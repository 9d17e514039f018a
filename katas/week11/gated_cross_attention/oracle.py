"""What is right: one token and one head after another, each with the latents it may see alone."""

import copy
import math

import torch

IMAGE = 999


def make_block(kata, seed, *, d=16, heads=4, d_vis=12, gates=(0.7, -0.4), device="cpu"):
    """Weights of a drawn block, gates open unless told otherwise."""
    block = kata.GatedBlock(d, heads, d_vis)
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in block.parameters():
            if weight.ndim == 2:
                weight.copy_(torch.randn(weight.shape, generator=draw) * weight.shape[1] ** -0.5)
        block.norm.bias.copy_(torch.randn(d, generator=draw))
        block.alpha.fill_(gates[0])
        block.beta.fill_(gates[1])
    return block.to(device)


def make_inputs(seed, media_id, images, *, latents=5, d=16, d_vis=12, device="cpu"):
    draw = torch.Generator().manual_seed(seed + 1)
    ids = torch.tensor(media_id)
    x = torch.randn(*ids.shape, d, generator=draw)
    media = torch.randn(len(ids), images, latents, d_vis, generator=draw)
    return x.to(device), media.to(device), ids.to(device)


def attended(block, x, media, media_id, dtype=torch.float64):
    """The whole block, the modules of the block themselves in `dtype`."""
    block = copy.deepcopy(block).to(dtype)
    x, media, heads = x.detach().to(dtype), media.detach().to(dtype), block.heads
    q, size = block.to_q(block.norm(x)), block.d // heads
    rows = []
    for b, ids in enumerate(media_id.tolist()):
        for s, image in enumerate(ids):
            parts = []
            for h in range(heads):
                own = slice(h * size, (h + 1) * size)
                if image == 0:
                    parts.append(torch.zeros(size, dtype=dtype, device=x.device))
                    continue
                latents = media[b, image - 1]
                k = latents @ block.to_kv.weight[: block.d][own].T
                v = latents @ block.to_kv.weight[block.d :][own].T
                weights = torch.softmax(k @ q[b, s, own] / math.sqrt(size), dim=0)
                parts.append(weights @ v)
            rows.append(torch.cat(parts))
    out = torch.stack(rows).view(x.shape)
    x = x + torch.tanh(block.alpha) * (out @ block.to_out.weight.T)
    return (x + torch.tanh(block.beta) * block.ff(x)).detach()
