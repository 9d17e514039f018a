"""Kata week11/gated_cross_attention: text looks at the latents of its latest image, by a gate."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn


@dataclass(frozen=True, slots=True, kw_only=True)
class VLMConfig:
    """
    What the K/V cache of a vision-language model depends on.

    Style "self": an image is `image_tokens` tokens of the prompt. Style "cross": it is `latents`
    vectors, which a cross-attention block before every `every`-th layer attends to.
    """

    layers: int
    d: int
    image_tokens: int
    latents: int = 64
    every: int = 4
    itemsize: int = 2


LLAVA15_7B = VLMConfig(layers=32, d=4096, image_tokens=576)
STYLES = ("self", "cross")


@dataclass(slots=True)
class MediaCache:
    """Keys and values of the media of a prompt; None until the first call fills them in."""

    k: Float[Tensor, "b h i m d_head"] | None = None
    v: Float[Tensor, "b h i m d_head"] | None = None


class GatedBlock(nn.Module):
    """The weights of one block. Gates begin at 0; no projection has a bias."""

    def __init__(self, d: int, heads: int, d_vis: int) -> None:
        super().__init__()
        self.d, self.heads, self.d_vis = d, heads, d_vis
        self.norm = nn.LayerNorm(d)
        self.to_q = nn.Linear(d, d, bias=False)
        self.to_kv = nn.Linear(d_vis, 2 * d, bias=False)  # first all keys, then all values
        self.to_out = nn.Linear(d, d, bias=False)
        self.ff = nn.Sequential(
            nn.LayerNorm(d),
            nn.Linear(d, 4 * d, bias=False),
            nn.GELU(),
            nn.Linear(4 * d, d, bias=False),
        )
        self.alpha = nn.Parameter(torch.zeros(()))
        self.beta = nn.Parameter(torch.zeros(()))


def gated_cross_attention(
    block: GatedBlock,
    x: Float[Tensor, "b s _"],
    media: Float[Tensor, "b i m _"] | None,
    media_id: Int[Tensor, "b s"],
    cache: MediaCache | None = None,
) -> Float[Tensor, "b s _"]:
    """
    Let each token attend to the latents of image `media_id`, counted from 1, or to none if 0.

    An empty `cache` is filled from `media`, unless the call is refused; from a filled one keys and
    values are taken as they are, and `media` is ignored.

    Raises:
        ValueError: the width of `x` or `media` is not the block's, there is neither `media` nor a
            filled cache, or a `media_id` is negative or above the number of images. The message
            begins with the argument.

    Source: Alayrac et al. 2022, section 3.1 and listing 1.
    """
    # check
    if x.shape[-1] != block.d:
        raise ValueError(f"x: expected width {block.d}, found {x.shape[-1]}")
    # keys and values
    k, v = _keys_and_values(block, media, cache)
    images, latents = k.shape[2:4]
    # check
    if ((media_id < 0) | (media_id > images)).any():
        raise ValueError(f"media_id: expected 0 to {images}, the images there are")
    if cache is not None:  # not before the last check: a refused call leaves it empty
        cache.k, cache.v = k, v
    # scores
    q = block.to_q(block.norm(x)).unflatten(-1, (block.heads, -1)).transpose(1, 2)  # [b, h, s, dh]
    scores = q @ k.flatten(2, 3).mT * q.shape[-1] ** -0.5
    # mask the other images
    owner = torch.arange(images * latents, device=x.device) // latents + 1
    seen = (media_id[..., None] == owner)[:, None]  # [b, 1, s, i·m]
    # a softmax over -inf alone is NaN, so a row that sees nothing is masked with a finite number
    weights = scores.masked_fill(~seen, torch.finfo(x.dtype).min).softmax(-1).masked_fill(~seen, 0)
    # two gates
    attended = (weights @ v.flatten(2, 3)).transpose(1, 2).flatten(2)
    x = x + block.alpha.tanh() * block.to_out(attended)
    return x + block.beta.tanh() * block.ff(x)


def media_index(input_ids: Int[Tensor, "b s"], image_id: int) -> Int[Tensor, "b s"]:
    """Number of the latest image at or before each token, from 1; 0 where there is none."""
    return (input_ids == image_id).cumsum(dim=1)


def kv_per_image(cfg: VLMConfig, style: str) -> int:
    """
    Bytes of keys and values that one image adds to the cache.

    Raises:
        ValueError: `style` is not one of STYLES.
    """
    if style == "self":
        return 2 * cfg.image_tokens * cfg.layers * cfg.d * cfg.itemsize
    if style == "cross":
        return 2 * cfg.latents * (cfg.layers // cfg.every) * cfg.d * cfg.itemsize
    raise ValueError(f"style: expected one of {', '.join(STYLES)}, found {style!r}")


def _keys_and_values(
    block: GatedBlock, media: Tensor | None, cache: MediaCache | None
) -> tuple[Tensor, Tensor]:
    # keys and values
    if cache is not None and cache.k is not None and cache.v is not None:
        return cache.k, cache.v
    if media is None:
        raise ValueError("media: expected the latents of the images, or a cache that was filled")
    if media.shape[-1] != block.d_vis:
        raise ValueError(f"media: expected width {block.d_vis}, found {media.shape[-1]}")
    both = block.to_kv(media).unflatten(-1, (2, block.heads, block.d // block.heads))
    k, v = both.movedim((3, 4), (0, 2))  # each [b, h, i, m, d_head]
    return k, v
