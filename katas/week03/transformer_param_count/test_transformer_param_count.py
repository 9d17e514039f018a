"""Every parameter: published totals, checkpoints of random models part by part, hand numbers."""

import math
from dataclasses import asdict

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

PUBLISHED = [
    "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "llama2-7b", "llama2-13b", "llama2-70b",
    "llama3-8b", "llama3-70b", "llama3.1-405b", "llama3.2-1b", "mistral-7b", "bert-base",
    "bert-large", "clip-vit-l14-336",
]  # fmt: skip

SIZE = st.integers(1, 9)


@st.composite
def fields(draw):
    """A small model, with every field set, as on no real model card."""
    kv_heads, group, d_head = draw(SIZE), draw(st.integers(1, 4)), draw(SIZE)
    sizes = ("layers", "d_ff", "vocab", "max_pos", "type_vocab", "patch")
    return {
        "heads": kv_heads * group,
        "kv_heads": kv_heads,
        "d": kv_heads * group * d_head,
        **{name: draw(SIZE) for name in sizes},
        **{name: draw(st.booleans()) for name in ("bias", "gated", "tied", "pooler")},
    }


# everything that a model may have
FULL = {
    "heads": 6, "kv_heads": 2, "d": 30, "layers": 3, "d_ff": 7, "vocab": 5, "max_pos": 4,
    "type_vocab": 2, "patch": 3, "bias": True, "gated": True, "tied": True, "pooler": True,
}  # fmt: skip


def count(kata, fields, **changes):
    return kata.param_count(kata.ModelConfig(**{**fields, **changes}))


@pytest.mark.parametrize("name", PUBLISHED)
def test_total_is_the_published_one(kata, oracle, name):
    fields, published = oracle.PUBLISHED[name]
    assert count(kata, fields).total == published


def test_no_published_parameter_is_unaccounted_for(kata, oracle, cost):
    gaps = [count(kata, fields).total - total for fields, total in oracle.PUBLISHED.values()]
    cost.check("unaccounted_parameters", sum(map(abs, gaps)))


@pytest.mark.parametrize("family", ["gpt2", "llama", "bert", "vit"])
@example(fields=FULL)
@example(fields={**FULL, "tied": False})
@given(fields=fields())
def test_each_part_holds_its_tensors_of_the_checkpoint(kata, oracle, family, fields):
    cfg = kata.ModelConfig(family=family, **fields)
    expected, found = oracle.parts(cfg), asdict(kata.param_count(cfg))
    for part in ("embedding", "position", "attention", "mlp", "norm", "head"):
        params = found[part]
        assert isinstance(params, int), f"{part}: expected an int, found {params!r}"
        assert params == expected[part], f"{part}: expected {expected[part]}, found {params}"


@pytest.mark.parametrize(
    ("kv_heads", "attention"),
    [
        (64, 80 * 4 * 8192**2),  # multi-head: four square matrices
        (8, 80 * (2 * 8192**2 + 2 * 8192 * 1024)),  # as released: 9.4 G fewer
        (1, 80 * (2 * 8192**2 + 2 * 8192 * 128)),  # multi-query
    ],
    ids=["mha", "gqa", "mqa"],
)
def test_fewer_kv_heads_shrink_k_and_v_alone(kata, oracle, kv_heads, attention):
    parts = count(kata, oracle.LLAMA2_70B, kv_heads=kv_heads)
    assert parts.attention == attention
    assert parts.mlp == 80 * 3 * 8192 * 28672


def test_rule_of_thumb_holds_for_gpt3(kata, oracle):
    parts = count(kata, oracle.GPT3_175B)
    blocks = parts.total - parts.embedding - parts.position
    assert math.isclose(12 * 96 * 12288**2, blocks, rel_tol=0.02)  # 12 L d², as papers use it


def test_weights_of_llama2_7b_take_12_55_gib(kata, oracle):
    cfg = kata.ModelConfig(**oracle.LLAMA2_7B)
    in_bf16 = kata.weight_bytes(cfg, "bfloat16")
    assert in_bf16 == 13_476_831_232
    assert isinstance(in_bf16, int)
    assert round(kata.weight_bytes(cfg, "float16") / 2**30, 2) == 12.55
    assert kata.weight_bytes(cfg, "float32") == 26_953_662_464
    assert kata.weight_bytes(cfg, "float8_e4m3fn") == 6_738_415_616


def test_nothing_is_allocated(kata, oracle, cost, host_memory):
    fields, published = oracle.PUBLISHED["gpt2"]
    with host_memory() as held:
        found = count(kata, fields)
    assert found.total == published
    cost.check("peak_memory", held.peak_bytes)


HEADS_ALONE = r"^(?!.*kv_heads).*\bheads\b"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"family": "mamba"}, "mamba"),
        ({"heads": 30, "kv_heads": 30}, HEADS_ALONE),  # 4096 / 30
        ({"heads": 0, "kv_heads": 1}, HEADS_ALONE),
        ({"heads": -32, "kv_heads": 1}, HEADS_ALONE),
        ({"kv_heads": 5}, "kv_heads"),  # 32 / 5
        ({"kv_heads": 64}, "kv_heads"),  # more than there are query heads
        ({"kv_heads": 0}, "kv_heads"),
        ({"kv_heads": -8}, "kv_heads"),
    ],
    ids=[
        "family",
        "heads",
        "no heads",
        "negative heads",
        "kv_heads",
        "more kv_heads",
        "no kv_heads",
        "negative kv_heads",
    ],
)
def test_impossible_model_is_refused(kata, oracle, changes, named):
    with pytest.raises(ValueError, match=named):
        count(kata, oracle.LLAMA2_7B, **changes)


def test_unknown_dtype_is_refused(kata, oracle):
    with pytest.raises(ValueError, match="fp16"):
        kata.weight_bytes(kata.ModelConfig(**oracle.LLAMA2_7B), "fp16")
