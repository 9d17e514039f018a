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
    # TODO(kata): check, keys and values, scores, mask the other images, two gates (about 30 lines
    # with helpers)
    raise NotImplementedError


def media_index(input_ids: Int[Tensor, "b s"], image_id: int) -> Int[Tensor, "b s"]:
    """Number of the latest image at or before each token, from 1; 0 where there is none."""
    raise NotImplementedError  # TODO(kata): count the images (1 line)


def kv_per_image(cfg: VLMConfig, style: str) -> int:
    """
    Bytes of keys and values that one image adds to the cache.

    Raises:
        ValueError: `style` is not one of STYLES.
    """
    raise NotImplementedError  # TODO(kata): (about 5 lines)
