"""What is right: published totals, and the tensors of the published checkpoints, name by name."""

import math
from collections import Counter


def gpt2(layers, d, heads, *, max_pos=1024):
    return {
        "family": "gpt2", "layers": layers, "d": d, "heads": heads, "kv_heads": heads,
        "d_ff": 4 * d, "vocab": 50257, "max_pos": max_pos, "bias": True, "tied": True,
    }  # fmt: skip


def llama(layers, d, heads, kv_heads, d_ff, *, vocab, max_pos, tied=False):
    return {
        "family": "llama", "layers": layers, "d": d, "heads": heads, "kv_heads": kv_heads,
        "d_ff": d_ff, "vocab": vocab, "max_pos": max_pos, "gated": True, "tied": tied,
    }  # fmt: skip


def bert(layers, d, heads):
    return {
        "family": "bert", "layers": layers, "d": d, "heads": heads, "kv_heads": heads,
        "d_ff": 4 * d, "vocab": 30522, "max_pos": 512, "type_vocab": 2, "bias": True,
        "pooler": True,
    }  # fmt: skip


LLAMA2_7B = llama(32, 4096, 32, 32, 11008, vocab=32000, max_pos=4096)
LLAMA2_70B = llama(80, 8192, 64, 8, 28672, vocab=32000, max_pos=4096)
GPT3_175B = gpt2(96, 12288, 96, max_pos=2048)
CLIP_L14_336 = {
    "family": "vit", "layers": 24, "d": 1024, "heads": 16, "kv_heads": 16, "d_ff": 4096,
    "max_pos": 577, "patch": 14, "bias": True,
}  # fmt: skip

PUBLISHED = {
    "gpt2": (gpt2(12, 768, 12), 124_439_808),
    "gpt2-medium": (gpt2(24, 1024, 16), 354_823_168),
    "gpt2-large": (gpt2(36, 1280, 20), 774_030_080),
    "gpt2-xl": (gpt2(48, 1600, 25), 1_557_611_200),
    "llama2-7b": (LLAMA2_7B, 6_738_415_616),
    "llama2-13b": (llama(40, 5120, 40, 40, 13824, vocab=32000, max_pos=4096), 13_015_864_320),
    "llama2-70b": (LLAMA2_70B, 68_976_648_192),
    "llama3-8b": (llama(32, 4096, 32, 8, 14336, vocab=128256, max_pos=8192), 8_030_261_248),
    "llama3-70b": (llama(80, 8192, 64, 8, 28672, vocab=128256, max_pos=8192), 70_553_706_496),
    "llama3.1-405b": (
        llama(126, 16384, 128, 8, 53248, vocab=128256, max_pos=131072), 405_853_388_800,
    ),
    "llama3.2-1b": (
        llama(16, 2048, 32, 8, 8192, vocab=128256, max_pos=131072, tied=True), 1_235_814_400,
    ),
    "mistral-7b": (llama(32, 4096, 32, 8, 14336, vocab=32000, max_pos=32768), 7_241_732_096),
    "bert-base": (bert(12, 768, 12), 109_482_240),
    "bert-large": (bert(24, 1024, 16), 335_141_888),
    "clip-vit-l14-336": (CLIP_L14_336, 303_507_456),
}  # fmt: skip


def parts(cfg):
    """Parameters of each part, from the shape of every tensor of the checkpoint."""
    counts = Counter()
    for name, shape in _tensors(cfg):
        counts[name.partition(".")[0]] += math.prod(shape)
    return counts


def _tensors(cfg):
    """Yield (name, shape) of every tensor, the name beginning with its part."""
    yield from _ends(cfg)
    for layer in range(cfg.layers):
        yield from _layer(cfg, layer)


def _ends(cfg):
    """Everything before the first layer and after the last."""
    match cfg.family:
        case "gpt2":
            yield "embedding.wte.weight", (cfg.vocab, cfg.d)
            yield "position.wpe.weight", (cfg.max_pos, cfg.d)
            yield from _norm(cfg, "ln_f")
        case "llama":
            yield "embedding.embed_tokens.weight", (cfg.vocab, cfg.d)
            yield from _norm(cfg, "norm")
        case "bert":
            yield "embedding.word_embeddings.weight", (cfg.vocab, cfg.d)
            yield "embedding.token_type_embeddings.weight", (cfg.type_vocab, cfg.d)
            yield "position.position_embeddings.weight", (cfg.max_pos, cfg.d)
            yield from _norm(cfg, "embeddings.LayerNorm")
        case "vit":
            yield "embedding.class_embedding", (cfg.d,)
            yield "embedding.patch_embedding.weight", (cfg.d, 3, cfg.patch, cfg.patch)
            yield "position.position_embedding.weight", (cfg.max_pos, cfg.d)
            yield from _norm(cfg, "pre_layrnorm")
            yield from _norm(cfg, "post_layernorm")
    if cfg.family in ("gpt2", "llama") and not cfg.tied:
        yield "head.lm_head.weight", (cfg.vocab, cfg.d)
    if cfg.family == "bert" and cfg.pooler:
        yield from _projection(cfg, "head.pooler.dense", cfg.d, cfg.d)


def _layer(cfg, layer):
    d_head = cfg.d // cfg.heads
    for name, heads in (("q_proj", cfg.heads), ("k_proj", cfg.kv_heads), ("v_proj", cfg.kv_heads)):
        yield from _projection(cfg, f"attention.{layer}.{name}", heads * d_head, cfg.d)
    yield from _projection(cfg, f"attention.{layer}.o_proj", cfg.d, cfg.heads * d_head)
    for name in ["gate_proj", "up_proj"] if cfg.gated else ["up_proj"]:
        yield from _projection(cfg, f"mlp.{layer}.{name}", cfg.d_ff, cfg.d)
    yield from _projection(cfg, f"mlp.{layer}.down_proj", cfg.d, cfg.d_ff)
    yield from _norm(cfg, f"{layer}.attention")
    yield from _norm(cfg, f"{layer}.mlp")


def _projection(cfg, name, n_out, n_in):
    yield f"{name}.weight", (n_out, n_in)
    if cfg.bias:
        yield f"{name}.bias", (n_out,)


def _norm(cfg, name):
    yield f"norm.{name}.weight", (cfg.d,)
    if cfg.family != "llama":
        yield f"norm.{name}.bias", (cfg.d,)
