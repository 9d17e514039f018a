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
    # check
    if vlm.style not in STYLES:
        raise ValueError(f"style: expected one of {', '.join(STYLES)}, found {vlm.style!r}")
    _check_at_least(1, "text_tokens", text_tokens)
    _check_at_least(0, "out_tokens", out_tokens)
    _check_at_least(1, "batch", batch)
    # patches and tokens
    patches = [_patches(vlm, h, w) for h, w in images]
    image_tokens = sum(patches) // vlm.merge**2
    crossing = vlm.style == "cross"
    prompt = text_tokens if crossing else text_tokens + image_tokens
    read = image_tokens if crossing else 0  # by the cross layers
    cross_layers = vlm.cross_layers if read else 0
    steps = max(0, out_tokens - 1)

    # work of each stage
    # images do not see each other
    vision, run = vlm.vision, vlm.vision_layers_run
    seen = [count + vlm.class_token for count in patches]
    layer = _own_weights(vision) + _kv_weights(vision)
    encode = _stage(
        profile,
        macs=batch * (run * layer * sum(seen) + _patch_weights(vlm) * sum(patches)),
        weights=run * layer + _patch_weights(vlm) if patches else 0,
        pairs=batch * run * sum(count * count for count in seen),
        keys=batch * run * sum(seen),
        tower=vision,
    )
    project = _stage(
        profile,
        macs=batch * image_tokens * _projector_weights(vlm),
        weights=_projector_weights(vlm) if patches else 0,
    )

    text = vlm.text
    own, kv, head = _own_weights(text), _kv_weights(text), text.d * text.vocab
    layers = text.layers + cross_layers
    prefill = _stage(
        profile,
        macs=batch * (prompt * (layers * own + text.layers * kv) + read * cross_layers * kv + head),
        weights=layers * (own + kv) + head,
        pairs=batch * (text.layers * prompt * (prompt + 1) // 2 + cross_layers * prompt * read),
        keys=batch * (text.layers * prompt + cross_layers * read),
        tower=text,
    )
    # keys that step after step sees, prompt + 1 the first; all of them are read for one query
    past = steps * prompt + steps * (steps + 1) // 2
    keys = batch * (text.layers * past + cross_layers * steps * read)
    step = layers * own + text.layers * kv + head
    decode = _stage(
        profile, macs=batch * steps * step, weights=steps * step, pairs=keys, keys=keys, tower=text
    )
    held = text.layers * (prompt + steps) + cross_layers * read
    return RequestCost(
        encode=encode,
        project=project,
        prefill=prefill,
        decode=decode,
        prefill_tokens=batch * prompt,
        kv_bytes=batch * held * _kv_bytes(text),
    )


def regime(cost: RequestCost) -> str:
    """Which takes longest, ties in this order: "encoder" (and projector), "prefill", "decode"."""
    seconds = {
        "encoder": cost.encode.seconds + cost.project.seconds,
        "prefill": cost.prefill.seconds,
        "decode": cost.decode.seconds,
    }
    return max(seconds, key=seconds.__getitem__)


def cache_hit_gain(cost: RequestCost, hit_rate: float) -> float:
    """
    How many times as fast requests are when a share of their images was encoded before.

    What the cache holds is the projector's output.

    Raises:
        ValueError: `hit_rate` is not from 0 to 1; the message begins with its name.
    """
    # check
    if not 0 <= hit_rate <= 1:
        raise ValueError(f"hit_rate: expected from 0 to 1, found {hit_rate}")
    # compare the stages
    encoder = cost.encode.seconds + cost.project.seconds
    rest = cost.prefill.seconds + cost.decode.seconds
    return (encoder + rest) / ((1 - hit_rate) * encoder + rest)


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
    each = request_cost(vlm, images, text_tokens, out_tokens, 1, profile).kv_bytes
    users = (profile.memory_bytes - ITEMSIZE * _all_weights(vlm)) // each
    if users < 1:
        raise ValueError(
            f"memory: expected room for {each} bytes of cache beside the weights, "
            f"found {profile.memory_bytes} bytes for both"
        )
    return users


def _patches(vlm: VisionLanguageModel, h: int, w: int) -> int:
    """Patches of an image, at the resolution at which it is encoded."""
    # check
    if h < 1 or w < 1:
        raise ValueError(f"images: expected sides of 1 or more, found {h} x {w}")
    # patches and tokens
    if vlm.image_size is not None:
        h = w = vlm.image_size
    unit = vlm.patch * vlm.merge
    if h % unit or w % unit:
        raise ValueError(f"images: expected multiples of {unit}, found {h} x {w}")
    return (h // vlm.patch) * (w // vlm.patch)


def _own_weights(tower: Tower) -> int:
    """Of a layer, what its own tokens pass: queries, output and MLP."""
    return 2 * tower.d * tower.d + (3 if tower.gated else 2) * tower.d * tower.d_ff


def _kv_weights(tower: Tower) -> int:
    """Of a layer, what makes keys and values."""
    return 2 * tower.d * _kv_width(tower)


def _patch_weights(vlm: VisionLanguageModel) -> int:
    return 3 * vlm.patch**2 * vlm.vision.d


def _projector_weights(vlm: VisionLanguageModel) -> int:
    return vlm.merge**2 * vlm.vision.d * vlm.text.d + vlm.text.d**2


def _all_weights(vlm: VisionLanguageModel) -> int:
    """Those that do not run, too."""
    # requests that fit
    vision, text = vlm.vision, vlm.text
    text_layers = text.layers + (vlm.cross_layers if vlm.style == "cross" else 0)
    return (
        _patch_weights(vlm)
        + vision.layers * (_own_weights(vision) + _kv_weights(vision))
        + _projector_weights(vlm)
        + text_layers * (_own_weights(text) + _kv_weights(text))
        + (1 if vlm.tied else 2) * text.d * text.vocab
    )


def _kv_width(tower: Tower) -> int:
    return tower.kv_heads * (tower.d // tower.heads)


def _kv_bytes(tower: Tower) -> int:
    """Bytes of the key and the value of one token in one layer."""
    return 2 * _kv_width(tower) * ITEMSIZE


def _stage(
    profile: Profile,
    *,
    macs: int,
    weights: int,
    pairs: int = 0,
    keys: int = 0,
    tower: Tower | None = None,
) -> Stage:
    """
    Two rooflines, one after the other.

    `macs` are the multiplications with weights; `pairs` and `keys` count queries with the keys
    they see, and keys read, over all layers of `tower`.
    """
    # seconds of a stage
    linear = 2 * macs, ITEMSIZE * weights
    attention = (4 * tower.d * pairs, _kv_bytes(tower) * keys) if tower else (0, 0)
    peak = profile.peak_of(DTYPE)
    return Stage(
        flops=linear[0] + attention[0],
        bytes=linear[1] + attention[1],
        seconds=sum(
            max(flops / peak, moved / profile.bandwidth) for flops, moved in (linear, attention)
        ),
    )


def _check_at_least(least: int, name: str, value: int) -> None:
    if value < least:
        raise ValueError(f"{name}: expected {least} or more, found {value}")
