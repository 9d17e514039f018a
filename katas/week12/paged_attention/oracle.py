"""What is right, what to feed and what it costs: tokens gathered one by one, scores written out."""

import torch
import torch.nn.functional as F

from harness.hardware import Cost

SCALES = (2.0, 1 / 128)  # scores grow with the square of the inputs
STRUCTURED = ("block_tables", "seq_lens")


def make_inputs(
    *, b, hq, s, d, dtype, device, seed,
    hkv=None, lens=None, block_size=16, shared=0, spare=0, caches="apart",
):  # fmt: skip
    """
    Everything N(0, 1), but NaN in each place of the caches that no token is in.

    `lens` are the lengths of the sequences, as in "33 70 5", all s by default and s at most. They
    share their first `shared` blocks; their tables have `spare` columns more than s tokens need.
    Entries not in use name block 0, which is all NaN. `caches` are "apart", or "joint": halves of
    one tensor, which alternate block by block.
    """
    generator = torch.Generator().manual_seed(seed)
    hkv = hkv or hq
    lengths = [min(int(one), s) for one in lens.split()] if lens else [s] * b
    width = -(-s // block_size) + spare
    # the same blocks for every seed: who times puts other contents into the same caches
    tables, n_blocks = block_tables(lengths, width, block_size, shared)
    empty = torch.ones(n_blocks * block_size, dtype=torch.bool)
    for table, length in zip(tables, lengths, strict=True):
        empty[slots(table, torch.arange(length), block_size)] = False

    cache = torch.randn((n_blocks, 2, block_size, hkv, d), generator=generator).to(dtype)
    cache.masked_fill_(empty.reshape(n_blocks, 1, block_size, 1, 1), torch.nan)
    k_cache, v_cache = cache.to(device).unbind(1)
    if caches == "apart":
        k_cache, v_cache = k_cache.contiguous(), v_cache.contiguous()
    return {
        "q": torch.randn((b, hq, d), generator=generator).to(dtype).to(device),
        "k_cache": k_cache,
        "v_cache": v_cache,
        "block_tables": tables.to(device),
        "seq_lens": torch.tensor(lengths, dtype=torch.int32, device=device),
        "scale": d**-0.5,
    }


def block_tables(lengths, width, block_size, shared=0, seed=0):
    """
    Tables of `width` columns for sequences of these lengths, and how many blocks there are.

    Blocks in use are shuffled, and block 0 is not in use.
    """
    counts = [-(-length // block_size) for length in lengths]
    n_used = shared + sum(max(0, count - shared) for count in counts)
    order = torch.randperm(n_used, generator=torch.Generator().manual_seed(seed)) + 1
    common, free = order[:shared].tolist(), iter(order[shared:].tolist())
    tables = torch.zeros(len(lengths), width, dtype=torch.int32)
    for table, count in zip(tables, counts, strict=True):
        own = [next(free) for _ in range(count - shared)]
        table[:count] = torch.tensor([*common[:count], *own], dtype=torch.int32)
    return tables, n_used + 1


def slots(table, tokens, block_size):
    """The slot of each of these tokens of the sequence that has this table."""
    return table[tokens // block_size].long() * block_size + tokens % block_size


def reference(*, q, k_cache, v_cache, block_tables, seq_lens, scale):
    return _attention(q.double(), k_cache, v_cache, block_tables, seq_lens, scale)


def same_precision(*, q, k_cache, v_cache, block_tables, seq_lens, scale):
    """Eager attention in the dtype of the inputs."""
    return _attention(q, k_cache, v_cache, block_tables, seq_lens, scale)


def _attention(q, k_cache, v_cache, block_tables, seq_lens, scale):
    block_size, hkv = k_cache.shape[1:3]
    o, group = torch.zeros_like(q), q.shape[1] // hkv
    for i, length in enumerate(seq_lens.tolist()):
        at = slots(block_tables[i], torch.arange(length, device=q.device), block_size)
        blocks, places = at // block_size, at % block_size
        for h in range(q.shape[1] if length else 0):
            keys, values = (x[blocks, places, h // group].to(q.dtype) for x in (k_cache, v_cache))
            o[i, h] = torch.softmax(keys @ q[i, h] * scale, dim=0) @ values
    return o


def cost(*, q, k_cache, v_cache, block_tables, seq_lens, scale):
    """Each key, value and table entry in use is read once; sequences share nothing."""
    block_size, hkv, d = k_cache.shape[1:]
    tokens = int(seq_lens.sum())
    entries = int(((seq_lens + block_size - 1) // block_size).sum())
    return Cost(
        flops=4 * tokens * q.shape[1] * d,
        bytes=2 * (tokens * hkv * d + q.numel()) * q.element_size() + 4 * entries + seq_lens.nbytes,
    )


def gathered(*, q, k_cache, v_cache, block_tables, seq_lens, scale):
    """PyTorch's attention on blocks copied into place first; no sequence is short."""
    k, v = (x[block_tables].flatten(1, 2).transpose(1, 2) for x in (k_cache, v_cache))
    o = F.scaled_dot_product_attention(q[:, :, None], k, v, scale=scale, enable_gqa=True)
    return o[:, :, 0]
