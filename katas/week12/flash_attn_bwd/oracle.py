"""What is right, what to feed and what it costs: attention's gradients by differentiation."""

import torch

from harness.hardware import Cost

STRUCTURED = ("q", "k", "v", "o", "lse")  # o and lse are those of q, k and v
LAYOUTS = {"bhsd": (), "bshd": ("do", "q", "k", "v"), "cache": ("q", "k", "o", "lse")}
CACHE_ROOM = 7  # rows that a cache keeps free behind each head's keys


def make_inputs(
    *, b, hq, sq, sk, d, dtype, device, seed,
    hkv=None, causal=False, sm_scale=None, layout="bhsd",
):  # fmt: skip
    """
    All N(0, 1) but `o` and `lse`, which are what a forward pass makes of the others.

    `layout` is how they lie in memory: "bhsd" contiguous, "bshd" as a projection leaves them, and
    `o` and `lse` as a kernel does, "cache" some of them the first rows of something longer.
    """
    generator = torch.Generator().manual_seed(seed)
    hkv = hkv or hq

    def draw(heads, length):
        return torch.randn(b, heads, length, d, generator=generator).to(dtype).to(device)

    do, q, k, v = draw(hq, sq), draw(hq, sq), draw(hkv, sk), draw(hkv, sk)
    o, lse = forward(q=q, k=k, v=v, causal=causal, sm_scale=sm_scale)
    tensors = {"do": do, "q": q, "k": k, "v": v, "o": o, "lse": lse}
    for name in LAYOUTS[layout]:
        tensors[name] = _laid_out(tensors[name], layout)
    return {**tensors, "causal": causal, "sm_scale": sm_scale}


def _laid_out(x, layout):
    """The values of `x`, whose third axis is the sequence, in other places."""
    if layout == "bshd":
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    roomy = x.new_zeros(*x.shape[:2], x.shape[2] + CACHE_ROOM, *x.shape[3:])
    roomy[:, :, : x.shape[2]] = x
    return roomy[:, :, : x.shape[2]]


def forward(*, q, k, v, causal=False, sm_scale=None):
    """`o` in the dtype of `q`, and `lse` in float32, both computed in float64."""
    visible = _visible(q, k, causal)
    o, lse = q.new_empty(q.shape), q.new_empty(q.shape[:3], dtype=torch.float32)
    for at, key_head in _heads(q, k):
        scores = _scores(q[at].double(), k[key_head].double(), sm_scale)
        scores = scores.masked_fill(~visible, -torch.inf)
        lse[at] = torch.logsumexp(scores, dim=-1)
        p = torch.softmax(scores, dim=-1).masked_fill(~visible, 0.0)  # not NaN without keys
        o[at] = p @ v[key_head].double()
    return o, lse


def reference(*, do, q, k, v, causal=False, sm_scale=None, **_):
    """Automatic differentiation in float64, whatever `o` and `lse` are."""
    do, q, k, v = (x.double() for x in (do, q, k, v))
    visible = _visible(q, k, causal)
    dq, dk, dv = (torch.zeros(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
    for at, key_head in _heads(q, k):
        leaves = [x.detach().requires_grad_() for x in (q[at], k[key_head], v[key_head])]
        with torch.enable_grad():
            # finite, so that a row that sees nothing has a gradient that is 0, not NaN
            lowest = torch.finfo(q.dtype).min
            scores = _scores(leaves[0], leaves[1], sm_scale).masked_fill(~visible, lowest)
            o = torch.softmax(scores, dim=-1).masked_fill(~visible, 0.0) @ leaves[2]
            found = torch.autograd.grad(o, leaves, do[at])
        dq[at] = found[0]
        dk[key_head] += found[1]
        dv[key_head] += found[2]
    return dq, dk, dv


def same_precision(*, do, q, k, v, o, lse, causal=False, sm_scale=None):
    """The formulas of the brief on whole matrices, each step in the dtype of the inputs."""
    visible = _visible(q, k, causal)
    scale = q.shape[-1] ** -0.5 if sm_scale is None else sm_scale
    dq, dk, dv = (torch.zeros(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
    for at, key_head in _heads(q, k):
        p = torch.exp(_scores(q[at], k[key_head], sm_scale) - lse[at][:, None]).to(q.dtype)
        p = p.masked_fill(~visible, 0.0)
        dp = do[at] @ v[key_head].T
        ds = p * (dp - (do[at] * o[at]).sum(dim=-1, keepdim=True))
        dq[at] = ds @ k[key_head] * scale
        dk[key_head] += ds.T @ q[at] * scale
        dv[key_head] += p.T @ do[at]
    return dq, dk, dv


def _heads(q, k):
    """Where each head of queries is, and where its keys are."""
    group = q.shape[1] // k.shape[1]
    return [((i, h), (i, h // group)) for i in range(q.shape[0]) for h in range(q.shape[1])]


def _visible(q, k, causal):
    sq, sk = q.shape[2], k.shape[2]
    every = torch.ones(sq, sk, dtype=torch.bool, device=q.device)
    return every.tril(sk - sq) if causal else every


def _scores(q, k, sm_scale):
    return q @ k.T * (q.shape[-1] ** -0.5 if sm_scale is None else sm_scale)


def cost(*, q, k, v, causal=False, **_):
    """Five products and one exponential for each score that is visible."""
    b, hq, sq, d = q.shape
    scores = b * hq * _visible_pairs(sq, k.shape[2], causal)
    tensors = 4 * q.numel() + 2 * k.numel() + 2 * v.numel()  # do, o and dq are as large as q
    return Cost(
        flops=10 * d * scores,
        bytes=tensors * q.element_size() + 4 * b * hq * sq,
        special=scores,
    )


def _visible_pairs(sq, sk, causal):
    """Pairs of a query and a key that it sees; the last query sees all."""
    if not causal:
        return sq * sk
    rows = min(sq, sk)  # that see anything: sk - rows + 1 keys, then one more each
    return rows * (2 * sk - rows + 1) // 2


def library(*, do, q, k, v, o, lse, causal=False, sm_scale=None):
    """PyTorch's fastest: cuDNN from Hopper on, FlashAttention-2 before; causal only if square."""
    if torch.cuda.get_device_capability(q.device) < (9, 0):
        return flash2(do=do, q=q, k=k, v=v, o=o, lse=lse, causal=causal, sm_scale=sm_scale)
    return torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
        do, q, k, v, o, lse[..., None], *_no_dropout(q), None, None, None,
        q.shape[2], k.shape[2], 0.0, causal, scale=sm_scale,
    )  # fmt: skip


def flash2(*, do, q, k, v, o, lse, causal=False, sm_scale=None):
    """PyTorch's FlashAttention-2, which adds up dq in atomics."""
    return torch.ops.aten._scaled_dot_product_flash_attention_backward(
        do, q, k, v, o, lse, None, None, q.shape[2], k.shape[2], 0.0, causal, *_no_dropout(q),
        scale=sm_scale,
    )  # fmt: skip


def _no_dropout(x):
    """Seed and offset that nobody reads."""
    return torch.empty(2, dtype=torch.int64, device=x.device).unbind()
