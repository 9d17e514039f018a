"""A decoder in LLaMA's style, small enough to train on a laptop core in a minute."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.func import functional_call

from harness.base.errors import UsageProblem

# (layer, q, k, v) -> output: the attention of one layer, after the rotation of q and k.
# q and the output are [batch, heads, positions, head_dim]; k and v have kv_heads heads.
Attention = Callable[[int, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyConfig:
    """The sizes of a TinyLM; the defaults are those of the weights that ship."""

    vocab: int = 32
    layers: int = 2
    d_model: int = 64
    heads: int = 2
    kv_heads: int = 2
    head_dim: int = 32
    hidden: int = 128
    rope_base: float = 10_000.0
    train_length: int = 64

    def inv_freq(self) -> Float[Tensor, " pairs"]:
        """RoPE's angle per position of each pair, `rope_base ** (-2 i / head_dim)`, float32."""
        exponents = torch.arange(0, self.head_dim, 2, dtype=torch.float64) / self.head_dim
        return (self.rope_base**-exponents).float()


def rotate(
    x: Float[Tensor, "b h t d"],
    angles: Float[Tensor, "t pairs"],
    mscale: float = 1.0,
) -> Float[Tensor, "b h t d"]:
    """Turn the pairs (i, i + d / 2) of `x` by `angles` and scale them by `mscale`."""
    cos, sin = mscale * angles.cos(), mscale * angles.sin()
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def causal_attention(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend to the same and earlier positions, as every layer does unless it is told otherwise."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


class Block(nn.Module):
    """Attention, then a SwiGLU MLP, each behind an RMSNorm and beside a residual."""

    def __init__(self, config: TinyConfig) -> None:
        super().__init__()
        q_width, kv_width = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.head_dim = config.head_dim
        self.attention_norm = nn.RMSNorm(config.d_model, eps=1e-5)
        self.q = nn.Linear(config.d_model, q_width, bias=False)
        self.k = nn.Linear(config.d_model, kv_width, bias=False)
        self.v = nn.Linear(config.d_model, kv_width, bias=False)
        self.o = nn.Linear(q_width, config.d_model, bias=False)
        self.mlp_norm = nn.RMSNorm(config.d_model, eps=1e-5)
        self.gate = nn.Linear(config.d_model, config.hidden, bias=False)
        self.up = nn.Linear(config.d_model, config.hidden, bias=False)
        self.down = nn.Linear(config.hidden, config.d_model, bias=False)

    def forward(
        self,
        x: Float[Tensor, "b t d"],
        angles: Float[Tensor, "t pairs"],
        mscale: float,
        attend: Callable[[Tensor, Tensor, Tensor], Tensor],
    ) -> Float[Tensor, "b t d"]:
        """Apply the block; `attend` is given q, k and v of all heads."""
        normed = self.attention_norm(x)
        q, k, v = (self._heads(project(normed)) for project in (self.q, self.k, self.v))
        out = attend(rotate(q, angles, mscale), rotate(k, angles, mscale), v)
        x = x + self.o(out.transpose(1, 2).flatten(2))
        normed = self.mlp_norm(x)
        updated: Tensor = x + self.down(F.silu(self.gate(normed)) * self.up(normed))
        return updated

    def _heads(self, x: Tensor) -> Tensor:
        split: Tensor = x.unflatten(-1, (-1, self.head_dim))
        return split.transpose(1, 2)  # [b, h, t, d]


class TinyLM(nn.Module):
    """
    A language model whose forward can be bent: other angles, other weights, another attention.

    Parameters are `embedding.weight` (also the head), `norm.weight` and, for each layer n,
    `layers.n.{attention_norm,q,k,v,o,mlp_norm,gate,up,down}.weight`; a linear layer's weight is
    [outputs, inputs].
    """

    def __init__(self, config: TinyConfig | None = None) -> None:
        super().__init__()
        self.config = config or TinyConfig()
        self.embedding = nn.Embedding(self.config.vocab, self.config.d_model)
        self.layers = nn.ModuleList(Block(self.config) for _ in range(self.config.layers))
        self.norm = nn.RMSNorm(self.config.d_model, eps=1e-5)

    def forward(
        self,
        tokens: Int[Tensor, "b t"],
        *,
        inv_freq: Float[Tensor, " pairs"] | None = None,
        mscale: float = 1.0,
        positions: Int[Tensor, " t"] | None = None,
        weights: Mapping[str, Tensor] | None = None,
        attention: Attention | None = None,
    ) -> Float[Tensor, "b t vocab"]:
        """
        Return the logits of the token after each position.

        `inv_freq` replaces RoPE's frequencies and `mscale` multiplies cosine and sine, so the
        attention's logits by its square (YaRN, 2309.00071, section 3.4); `positions` are those
        of the tokens, by default 0, 1 …; `weights` replaces parameters by name for this call;
        `attention` replaces each layer's attention: a cache, another mask, a probe. UsageProblem
        when `weights` names no parameter.
        """
        bent = {
            "inv_freq": inv_freq,
            "mscale": mscale,
            "positions": positions,
            "attention": attention,
        }
        if weights:
            self._assert_parameters(weights)
            logits: Tensor = functional_call(self, dict(weights), (tokens,), bent)
            return logits
        return F.linear(self.hidden(tokens, **bent), self.embedding.weight)  # type: ignore[arg-type]

    def hidden(
        self,
        tokens: Int[Tensor, "b t"],
        *,
        inv_freq: Float[Tensor, " pairs"] | None = None,
        mscale: float = 1.0,
        positions: Int[Tensor, " t"] | None = None,
        attention: Attention | None = None,
    ) -> Float[Tensor, "b t d"]:
        """Return what the head reads at each position, after the last norm; as in `forward`."""
        if inv_freq is None:
            inv_freq = self.config.inv_freq()
        if positions is None:
            positions = torch.arange(tokens.shape[1])
        x = self.embedding(tokens)
        angles = torch.outer(positions.to(x.device, torch.float32), inv_freq.to(x.device))
        attend = attention or causal_attention
        for at, layer in enumerate(self.layers):
            x = layer(x, angles.to(x.dtype), mscale, partial(attend, at))
        return self.norm(x)  # type: ignore[no-any-return]

    def _assert_parameters(self, weights: Mapping[str, Tensor]) -> None:
        known = dict(self.named_parameters())
        for name, weight in weights.items():
            if name not in known or weight.shape != known[name].shape:
                found = f"{name} of shape {tuple(weight.shape)}"
                raise UsageProblem(
                    f"TinyLM: expected parameters of {', '.join(known)} in their own shapes, "
                    f"found {found}. See named_parameters()."
                )
