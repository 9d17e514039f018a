"""What is right and what to feed: the keys and values of every head and token, written out."""

import torch

SHAPES = {
    "w_dq": ("d_cq", "d_model"),
    "w_uq": ("n_h", "d_h", "d_cq"),
    "w_qr": ("n_h", "d_r", "d_cq"),
    "w_dkv": ("d_c", "d_model"),
    "w_uk": ("n_h", "d_h", "d_c"),
    "w_uv": ("n_h", "d_v", "d_c"),
    "w_kr": ("d_r", "d_model"),
    "w_o": ("d_model", "n_h", "d_v"),
}


def draw(*, b, s, dims, device, seed, dtype=torch.float32):
    """x [b, s, d_model] from N(0, 1), and weights by name that keep that size."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    x = normal(b, s, dims["d_model"])
    weights = {}
    for name, axes in SHAPES.items():
        shape = [dims[axis] for axis in axes]
        fan_in = shape[-1] if name != "w_o" else shape[-1] * shape[-2]
        # queries and keys twice as large: a softmax that is nearly flat hides its scale
        gain = 2.0 if name in ("w_uq", "w_qr", "w_uk", "w_kr") else 1.0
        weights[name] = normal(*shape) * gain / fan_in**0.5
    move = {"dtype": dtype, "device": device}
    return x.to(**move), {name: weight.to(**move) for name, weight in weights.items()}


def attention(x, w, first=0):
    """Causal attention of tokens `first` on, in the dtype of x: DeepSeek-V2's equations 9 to 19."""
    q_nope = torch.einsum("bsm,cm,hdc->bhsd", x, w["w_dq"], w["w_uq"])[:, :, first:]
    q_rope = turned(torch.einsum("bsm,cm,hrc->bhsr", x, w["w_dq"], w["w_qr"]))[:, :, first:]
    c_kv, k_rope = latents(x, w)
    k_nope = torch.einsum("btc,hdc->bhtd", c_kv, w["w_uk"])
    v = torch.einsum("btc,hvc->bhtv", c_kv, w["w_uv"])
    scores = q_nope @ k_nope.mT + q_rope @ k_rope[:, None].mT
    scores = scores / (q_nope.shape[-1] + q_rope.shape[-1]) ** 0.5
    future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=x.device).triu(1 + first)
    p = scores.masked_fill(future, -torch.inf).softmax(-1)
    return torch.einsum("bhsv,mhv->bsm", p @ v, w["w_o"])


def latents(x, w):
    return x @ w["w_dkv"].mT, turned(x @ w["w_kr"].mT)


def turned(x):
    """Neighbouring channels as complex numbers, times exp(i · position · theta)."""
    s, d = x.shape[-2:]
    pairs = torch.view_as_complex(x.double().unflatten(-1, (-1, 2)).contiguous())
    theta = torch.tensor([10_000.0 ** (-2 * i / d) for i in range(d // 2)], dtype=torch.float64)
    angles = torch.outer(torch.arange(s, dtype=torch.float64), theta).to(x.device)
    return torch.view_as_real(pairs * torch.exp(1j * angles)).flatten(-2).to(x.dtype)


def truth(x, w, first=0):
    """Of tokens `first` on: in float64, and what an honest float32 may make of it."""
    exact = attention(x.double(), {name: weight.double() for name, weight in w.items()}, first)
    # another order of products rounds differently: leave room for twice the error of this one
    return exact, (exact + 2 * (attention(x, w, first) - exact)).to(x.dtype)


def decode_flops(dims, tokens, batch):
    """Of one step over `tokens` tokens, its own included: projections, scores, the sum."""
    n_h, d_c, d_r = dims["n_h"], dims["d_c"], dims["d_r"]
    projections = sum(
        2 * size(dims[axis] for axis in axes) for axes in SHAPES.values()
    )  # W_UK and W_UV once each, on one vector per head
    return batch * (projections + 2 * n_h * tokens * (d_c + d_r) + 2 * n_h * tokens * d_c)


def size(axes):
    product = 1
    for axis in axes:
        product *= axis
    return product
