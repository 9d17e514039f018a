"""Blocks that lie anywhere, places that are never read, and tokens that are written and found."""

import mmap

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.judge import assert_matches

SPEED_CASE = {"b": 4, "hq": 32, "hkv": 8, "s": 512, "d": 128, "dtype": "float16"}


def draw(oracle, device, seed, *, b=1, hq=1, s=1, d=16, dtype=torch.float16, **more):
    return oracle.make_inputs(b=b, hq=hq, s=s, d=d, dtype=dtype, device=device, seed=seed, **more)


def assert_right(kata, oracle, inputs):
    want, trusted = oracle.reference(**inputs), oracle.same_precision(**inputs)
    assert_matches(kata.paged_attention(**inputs), want, same_precision=trusted)


def one_block(k, v):
    """Arguments for a sequence whose keys and values [s, d] fill the only block, q = 0."""
    return {
        "q": torch.zeros(1, 1, k.shape[1], dtype=k.dtype, device=k.device),
        "k_cache": k[None, :, None],
        "v_cache": v[None, :, None],
        "block_tables": torch.zeros(1, 1, dtype=torch.int32, device=k.device),
        "seq_lens": torch.tensor([len(k)], dtype=torch.int32, device=k.device),
        "scale": 1.0,
    }


def far_apart(x, axis):
    """The same values, 2**30 elements from one index of an axis of three to the next."""
    shape = [x.shape[axis], *x.shape[:axis], *x.shape[axis + 1 :]]
    count = 2**31 + x.numel()
    if x.is_cuda:
        room = torch.empty(count, dtype=x.dtype, device=x.device)
    else:  # what is not touched takes no memory
        flags = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
        room = torch.frombuffer(mmap.mmap(-1, count * x.itemsize, flags=flags), dtype=x.dtype)
    inner = torch.empty(shape[1:], device="meta").stride()
    return room.as_strided(shape, (2**30, *inner)).movedim(0, axis).copy_(x)


# ---- where tokens lie ----------------------------------------------------------------------


@settings(max_examples=8)
@given(order=st.permutations(range(10)), seed=st.integers(0, 9))
def test_where_blocks_lie_does_not_change_the_bits(kata, oracle, device, order, seed):
    made = draw(oracle, device, seed, b=2, hq=2, hkv=1, s=33, lens="33 29", block_size=8)
    moved = {**made}
    for name in ("k_cache", "v_cache"):
        moved[name] = torch.full_like(made[name], torch.nan)[:1].repeat(len(order) + 1, 1, 1, 1)
        moved[name][order] = made[name][: len(order)]
    moved["block_tables"] = torch.tensor(order, device=device)[made["block_tables"].long()].int()
    here, there = kata.paged_attention(**made), kata.paged_attention(**moved)
    assert torch.equal(here, there), f"block i moved to {order}[i]: other bits"


@pytest.mark.parametrize("entry", [-1, 2**31 - 1, 0], ids=["minus_one", "huge", "a_block_of_nan"])
def test_table_entries_past_the_end_may_be_anything(kata, oracle, device, seed, entry):
    # 33 tokens end in the first place of block 2 of 6, in the second tile of 32; 5 in the first
    inputs = draw(oracle, device, seed, b=2, s=33, lens="33 5", spare=3)
    tables = inputs["block_tables"]
    tables[0, 3:] = entry
    tables[1, 1:] = entry
    assert_right(kata, oracle, inputs)


def test_only_places_that_hold_tokens_are_read_and_once(kata, oracle, device, seed, traffic):
    inputs = draw(oracle, device, seed, b=2, hq=4, hkv=2, s=70, lens="33 50", spare=1)
    with traffic() as moved:
        kata.paged_attention(**inputs)
    exist = 2 * (33 + 50) * 16 * 2  # two heads of 16 float16
    for name in ("k_cache", "v_cache"):
        loaded = moved.of(inputs[name]).loaded_bytes
        assert loaded == exist, f"{name}, 33 and 50 tokens: expected {exist} bytes, loaded {loaded}"


def test_table_entries_are_read_as_tokens_need_them(kata, oracle, device, seed, traffic):
    # no more than one entry for each token of each key head: a table is wider than its sequence
    inputs = draw(oracle, device, seed, b=2, hq=2, hkv=2, s=20, lens="20 5", spare=100)
    with traffic() as moved:
        kata.paged_attention(**inputs)
    loaded = moved.of(inputs["block_tables"]).loaded_bytes // 4
    assert loaded <= 2 * 25, (
        f"20 and 5 tokens, 2 key heads: expected <= 50 entries, loaded {loaded}"
    )


def test_heads_of_the_caches_may_lie_far_apart(kata, oracle, device, seed):
    # caches kept head by head: the third of three begins 2**31 elements behind the first
    inputs = draw(oracle, device, seed, hq=3, hkv=3, s=5)
    for name in ("k_cache", "v_cache"):
        inputs[name] = far_apart(inputs[name], axis=2)
    assert_right(kata, oracle, inputs)


# ---- the softmax ---------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["rising", "falling"])
def test_scores_that_grow_from_block_to_block(kata, oracle, device, seed, order):
    # scores of j / 4 for token j: each block outweighs the others, within it none counts alone
    inputs = draw(oracle, device, seed, s=400)
    steps = torch.arange(400, device=device)
    at = oracle.slots(inputs["block_tables"][0], steps, 16)
    inputs["q"].zero_()[..., 0] = 1
    inputs["k_cache"][at // 16, at % 16, 0, 0] = (
        steps if order == "rising" else 399 - steps
    ).half()
    assert_right(kata, oracle, inputs)


@pytest.mark.parametrize("sign", [1, -1], ids=["positive", "negative"])
def test_scores_far_from_zero(kata, oracle, device, seed, sign):
    # scores of at least 16 · 100 / 4: exp of them is inf, of their negatives 0
    inputs = draw(oracle, device, seed, hq=2, s=40)
    inputs["q"].fill_(sign * 100)
    inputs["k_cache"] = 1 + inputs["k_cache"].abs() / 50
    assert_right(kata, oracle, inputs)


@pytest.mark.parametrize("scale", [0.0, -0.5, 0.1], ids=["zero", "negative", "small"])
def test_scores_are_multiplied_by_the_given_scale(kata, oracle, device, seed, scale):
    inputs = draw(oracle, device, seed, hq=2, s=40)
    assert_right(kata, oracle, {**inputs, "scale": scale})


def test_the_result_is_contiguous_whatever_the_queries_are(kata, oracle, device, seed):
    inputs = draw(oracle, device, seed, b=2, hq=2, s=5)
    inputs["q"] = inputs["q"].transpose(0, 1).contiguous().transpose(0, 1)
    assert kata.paged_attention(**inputs).stride() == (32, 16, 1)


def test_a_sequence_without_tokens_gets_zero(kata, oracle, device, seed):
    inputs = draw(oracle, device, seed, b=3, s=40, lens="0 40 0")
    o = kata.paged_attention(**inputs)
    assert o[0].flatten().tolist() == [0.0] * 16
    assert o[2].flatten().tolist() == [0.0] * 16


def test_sums_are_kept_in_float32(kata, device):
    # the sum of 512 times 0.1 is 51.2, where float16 has steps of 1/32
    v = torch.full((512, 16), 0.1, dtype=torch.float16, device=device)
    o = kata.paged_attention(**one_block(torch.zeros_like(v), v))
    assert o.flatten().tolist() == v[0].tolist()


# ---- writing -------------------------------------------------------------------------------


def to_write(device, seed, *, slots, hkv=2, n_blocks=5, block_size=4, dtype=torch.float16):
    """Arguments of `write_kv`, none of which lies in memory as another does, all with gaps."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape):
        return torch.randn(shape, generator=generator).to(dtype).to(device)

    twice = torch.tensor(slots, dtype=torch.int64, device=device).repeat_interleave(2)
    return {
        "k": drawn(len(slots), 3, hkv, 16)[:, 1],
        "v": drawn(len(slots), hkv, 16, 2)[..., 0],
        "k_cache": drawn(n_blocks, 2, block_size, hkv, 16)[:, 0],
        "v_cache": drawn(n_blocks, hkv, block_size, 32).transpose(1, 2)[..., ::2],
        "slot_mapping": twice[::2],
    }


def written(inputs):
    """What the caches hold when each token is put in its place, one after the other."""
    caches = {name: inputs[name].clone() for name in ("k_cache", "v_cache")}
    for token, slot in enumerate(inputs["slot_mapping"].tolist()):
        if slot >= 0:
            caches["k_cache"][slot // 4, slot % 4] = inputs["k"][token]
            caches["v_cache"][slot // 4, slot % 4] = inputs["v"][token]
    return caches


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=["float16", "float32"])
@pytest.mark.parametrize("hkv", [1, 17])
@pytest.mark.parametrize(
    "slots",
    [[0, 15, 4, 3, 7, 8], [5, -1, 2, -1], [-(2**40)], []],
    ids=["anywhere", "some_skipped", "all_skipped", "no_tokens"],
)
def test_tokens_are_written_to_their_slots_and_nowhere_else(kata, device, seed, slots, hkv, dtype):
    inputs = to_write(device, seed, slots=slots, hkv=hkv, dtype=dtype)
    want = written(inputs)
    kata.write_kv(**inputs)
    for name, expected in want.items():
        found = inputs[name]
        assert torch.equal(found, expected), f"{name}, slots {slots}: expected {expected}"


def test_bits_are_copied(kata, device, seed):
    # -0.0, both infinities, the least and the largest number, a NaN with a sign and more bits
    bits = [-(2**15), 0x7C00, 0x7C00 - 2**15, 1, 0x7BFF, 0x7E2A - 2**15]
    inputs = to_write(device, seed, slots=[9])
    special = torch.tensor(bits, dtype=torch.int16, device=device).view(torch.float16)
    inputs["k"][0, 0, :6] = inputs["v"][0, 1, 10:] = special
    kata.write_kv(**inputs)
    for name in "kv":
        found, given = inputs[f"{name}_cache"][2, 1], inputs[name][0]
        same = torch.equal(found.contiguous().view(torch.int16), given.view(torch.int16))
        assert same, f"{name}: expected the bits of {given.tolist()}, found {found.tolist()}"


def test_writing_moves_only_the_new_tokens(kata, device, seed, traffic):
    inputs = to_write(device, seed, slots=[5, -1, 2, 11], hkv=3)
    with traffic() as moved, moved.operators:
        kata.write_kv(**inputs)
    each = 3 * 3 * 16 * 2  # three tokens of three heads of 16 float16
    found = moved.loaded_bytes, moved.stored_bytes, moved.launches
    expected = f"expected ({2 * each + 4 * 8}, {2 * each}, 1)"
    assert found == (2 * each + 4 * 8, 2 * each, 1), (
        f"3 of 4 tokens: {expected} bytes loaded, stored, and launches, found {found}"
    )


@pytest.mark.parametrize(("given", "caches"), [(0, 0), (1, 2)], ids=["tokens_and_blocks", "heads"])
def test_what_is_written_may_lie_far_apart(kata, device, seed, given, caches):
    inputs = to_write(device, seed, slots=[11, 0, 6], hkv=3, n_blocks=3)
    for name, axis in {"k": given, "v": given, "k_cache": caches, "v_cache": caches}.items():
        inputs[name] = far_apart(inputs[name], axis)
    want = written(inputs)
    kata.write_kv(**inputs)
    for name, expected in want.items():
        assert torch.equal(inputs[name], expected), f"{name}: expected {expected}"


def test_written_tokens_are_attended_to(kata, oracle, device, seed):
    # two sequences grow by a token at a time from 2 and 3 tokens, past the end of a block of 4
    made = draw(oracle, device, seed, b=2, hq=4, hkv=2, s=6, lens="6 5", block_size=4)
    caches = {name: torch.full_like(made[name], torch.nan) for name in ("k_cache", "v_cache")}
    for tokens in ([0, 1], [2], [3], [4], [5]):
        at = torch.tensor(tokens, device=device)
        slots = torch.cat([oracle.slots(table, at, 4) for table in made["block_tables"]])
        slots[-1] = -1 if tokens == [5] else slots[-1]  # the second sequence has ended
        kept = slots.clamp(min=0)
        k, v = (made[name][kept // 4, kept % 4] for name in caches)
        kata.write_kv(k, v, **caches, slot_mapping=slots)
        now = torch.tensor([tokens[-1] + 1, min(tokens[-1] + 1, 5)], dtype=torch.int32)
        inputs = {**made, **caches, "seq_lens": now.to(device)}
        assert_right(kata, oracle, inputs)


# ---- bad input -----------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [33, -1])
def test_lengths_that_cannot_be_are_refused(kata, oracle, seed, wrong):
    inputs = draw(oracle, "cpu", seed, b=2, s=32)
    inputs["seq_lens"] = torch.tensor([5, wrong], dtype=torch.int32)
    with pytest.raises(ValueError, match="^seq_lens: "):
        kata.paged_attention(**inputs)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("slot_mapping", torch.tensor([20])),
        ("slot_mapping", torch.tensor([0], dtype=torch.int32)),
        ("k_cache", torch.zeros(5, 4, 1, 16, dtype=torch.float16)),
        ("k", torch.zeros(1, 2, 24, dtype=torch.float16)),
        ("v", torch.zeros(1, 2, 16)),
        ("v_cache", torch.zeros(5, 4, 2, 16)),
    ],
    ids=["past_the_caches", "int32_slots", "fewer_heads", "no_head_size", "v", "v_cache"],
)
def test_what_cannot_be_written_is_refused(kata, seed, name, wrong):
    inputs = {**to_write("cpu", seed, slots=[3]), name: wrong}
    if name == "k_cache":
        inputs["v_cache"] = wrong
    with pytest.raises(ValueError, match=f"^{name}: "):
        kata.write_kv(**inputs)


# ---- the build -----------------------------------------------------------------------------


@pytest.mark.parametrize(("target", "dtype"), [("sm_90", "float16"), ("sm_80", "bfloat16")])
def test_products_run_on_tensor_cores(compiled, target, dtype):
    kernels = compiled(target=target, **{**SPEED_CASE, "dtype": dtype})
    used = [k.has("mma.sync") or k.has("wgmma.mma_async") for k in kernels]
    assert any(used), "expected the kernel to multiply with tl.dot"


def test_float32_is_not_rounded_to_tf32(compiled):
    kernels = compiled(target="sm_80", dtype="float32", b=1, hq=8, hkv=1, s=512, d=64)
    for kernel in kernels:
        assert "tf32" not in kernel.ptx, 'expected input_precision="ieee" in both products'
