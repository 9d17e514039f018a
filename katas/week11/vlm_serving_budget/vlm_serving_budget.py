"""Kata week11/vlm_serving_budget: four stages of a request with images, each on its roofline."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.hardware import Profile

# Everything is in 16 bits: weights, activations, keys and values.
DTYPE = "float16"
ITEMSIZE = 2
STYLES = ("concat", "cross")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tower:
    """
    The sizes of a transformer.

    Heads are d / heads wide; `kv_heads` of them have keys and values. `gated` MLPs have three
    matrices instead of two. An encoder has a `vocab` of 0.
    """

    layers: int
    d: int
    d_ff: int
    heads: int
    kv_heads: int
    gated: bool = False
    vocab: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionLanguageModel:
    """
    A vision encoder, a projector and a language model.

    Images are resized to `image_size` x `image_size` pixels, or taken as they are where that is
    None. Of the `vision.layers` only the first `vision_layers_run` run. `merge` x `merge`
    patches become one image token. `style` is "concat" (image tokens are part of the prompt) or
    "cross" (`cross_layers` further layers of the text model read them).
    """

    vision: Tower
    vision_layers_run: int
    class_token: bool
    image_size: int | None
    patch: int
    merge: int
    text: Tower
    tied: bool = False  # the token table is the head, too
    style: str = "concat"
    cross_layers: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """FLOPs of matrix products, bytes read, and seconds at the speed of light."""

    flops: int
    bytes: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCost:
    """
    What a batch of requests costs.

    `prefill_tokens` is the length of all prompts together, `kv_bytes` what the cache holds when
    the last token is out.
    """

    encode: Stage
    project: Stage
    prefill: Stage
    decode: Stage
    prefill_tokens: int
    kv_bytes: int


LLAVA_15_7B = VisionLanguageModel(
    vision=Tower(layers=24, d=1024, d_ff=4096, heads=16, kv_heads=16),  # CLIP ViT-L/14
    vision_layers_run=23,
    class_token=True,
    image_size=336,
    patch=14,
    merge=1,
    text=Tower(
        layers=32, d=4096, d_ff=11008, heads=32, kv_heads=32, gated=True, vocab=32_000
    ),  # Vicuna
)
LLAVA_15_672 = replace(LLAVA_15_7B, image_size=672)  # nobody trained it: what if?
NATIVE_1B = VisionLanguageModel(  # resolution as Qwen2-VL has it, LLaMA-3.2-1B behind it
    vision=Tower(layers=24, d=1024, d_ff=4096, heads=16, kv_heads=16),
    vision_layers_run=24,
    class_token=False,
    image_size=None,
    patch=14,
    merge=2,
    text=Tower(layers=16, d=2048, d_ff=8192, heads=32, kv_heads=8, gated=True, vocab=128_256),
    tied=True,
)
CROSS_7B = replace(LLAVA_15_7B, style="cross", cross_layers=8)  # as many as LLaMA-3.2-Vision


def request_cost(
    vlm: VisionLanguageModel,
    images: Sequence[tuple[int, int]],
    text_tokens: int,
    out_tokens: int,
    batch: int,
    profile: Profile,
) -> RequestCost:
    """
    Split `batch` equal requests into encode, project, prefill and decode.

    Args:
        vlm: The model.
        images: Height and width of the images of each request.
        text_tokens: Of each prompt, besides its images.
        out_tokens: How many each request writes; the first comes out of the prefill.
        batch: Requests that go through each stage together.
        profile: Whose peak and bandwidth count.

    Raises:
        ValueError: an unknown style, an image that is empty or not a whole number of image tokens,
            no text, a negative answer, no request; the message begins with "style", "images",
            "text_tokens", "out_tokens" or "batch".
    """
    # TODO(kata): check, patches and tokens, work of each stage, seconds of a stage (about 95 lines
    # with helpers)
    raise NotImplementedError


def regime(cost: RequestCost) -> str:
    """Which takes longest, ties in this order: "encoder" (and projector), "prefill", "decode"."""
    raise NotImplementedError  # TODO(kata): compare the stages (about 6 lines)


def cache_hit_gain(cost: RequestCost, hit_rate: float) -> float:
    """
    How many times as fast requests are when a share of their images was encoded before.

    What the cache holds is the projector's output.

    Raises:
        ValueError: `hit_rate` is not from 0 to 1; the message begins with its name.
    """
    raise NotImplementedError  # TODO(kata): check, compare the stages (about 5 lines)


def max_users(
    vlm: VisionLanguageModel,
    images: Sequence[tuple[int, int]],
    text_tokens: int,
    out_tokens: int,
    profile: Profile,
) -> int:
    """
    Count the requests whose caches fit beside all weights of the model until the last token.

    Calls `request_cost` at most 40 times.

    Raises:
        ValueError: not even one fits (the message begins with "memory"), or what `request_cost`
            refuses.
    """
    raise NotImplementedError  # TODO(kata): requests that fit (about 20 lines with helpers)
