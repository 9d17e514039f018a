"""Splits that agree, ends that are kept to, bits that no batch changes, and the bytes moved."""

import math
import mmap

import pytest
import torch

from harness.judge import assert_matches

SPEED_CASE = {"b": 4, "hq": 32, "hkv": 8, "s": 512, "d": 128, "dtype": "float16"}


def draw(oracle, device, seed, *, b=1, hq=1, s=1, d=16, dtype=torch.float16, **more):
    return oracle.make_inputs(b=b, hq=hq, s=s, d=d, dtype=dtype, device=device, seed=seed, **more)


def scattered(x):
    """The same values, in memory with the first two axes swapped and a gap after each element."""
    return x.transpose(0, 1).repeat_interleave(2, dim=-1).transpose(0, 1)[..., ::2]


def assert_right(kata, oracle, inputs):
    want, trusted = oracle.reference(**inputs), oracle.same_precision(**inputs)
    assert_matches(kata.flash_decode(**inputs), want, same_precision=trusted)


# ---- splits and how they are merged --------------------------------------------------------


@pytest.mark.parametrize("split_size", [1, 33, 99, 100, 2**31 - 1])
def test_any_split_size_gives_the_same_answer(kata, oracle, device, seed, split_size):
    inputs = draw(oracle, device, seed, hq=8, s=100, hkv=1, dtype=torch.float32)
    assert_right(kata, oracle, {**inputs, "split_size": split_size})


@pytest.mark.parametrize("order", ["rising", "falling"])
def test_scores_that_grow_from_split_to_split(kata, oracle, device, seed, order):
    # scores of j / 4 for key j: each split outweighs the others by far, within it none counts alone
    inputs = draw(oracle, device, seed, s=400, split_size=16)
    inputs["q"].zero_()[..., 0] = 1
    steps = torch.arange(400)
    inputs["k"][..., 0] = steps if order == "rising" else steps.flip(0)
    assert_right(kata, oracle, inputs)


@pytest.mark.parametrize("sign", [1, -1], ids=["positive", "negative"])
def test_scores_far_from_zero(kata, oracle, device, seed, sign):
    # scores of at least 16 · 100 / 4: exp of them is inf, of their negatives 0
    inputs = draw(oracle, device, seed, hq=2, s=40, split_size=16)
    inputs["q"].fill_(sign * 100)
    inputs["k"] = 1 + inputs["k"].abs() / 50
    assert_right(kata, oracle, inputs)


def test_splits_count_by_the_keys_they_hold(kata, device):
    # all scores are 0: 16 values of 1 and 4 of 6 have the mean 2, the two splits' means have 3.5
    q, k = torch.zeros(1, 1, 16, device=device), torch.zeros(1, 1, 20, 16, device=device)
    v = torch.ones_like(k)
    v[:, :, 16:] = 6
    lens = torch.tensor([20], dtype=torch.int32, device=device)
    o = kata.flash_decode(q, k, v, lens, split_size=16)
    assert_matches(o, torch.full((1, 1, 16), 2.0, dtype=torch.float64))


def test_queries_are_scaled_in_float32(kata, device):
    # 3 · 128 and 1 · 384 are the same score; 3 and 1, scaled and rounded to float16, make two
    q = torch.zeros(1, 1, 32, dtype=torch.float16, device=device)
    k = torch.zeros(1, 1, 2, 32, dtype=torch.float16, device=device)
    q[..., 0], q[..., 1] = 3, 1
    k[:, :, 0, 0], k[:, :, 1, 1] = 128, 384
    v = torch.zeros_like(k)
    v[:, :, 1] = 1
    lens = torch.tensor([2], dtype=torch.int32, device=device)
    assert kata.flash_decode(q, k, v, lens).flatten().tolist() == [0.5] * 32


def test_sums_are_kept_in_float32(kata, device):
    # the sum of 512 times 0.1 is 51.2, where float16 has steps of 1/32
    q = torch.zeros(1, 1, 16, dtype=torch.float16, device=device)
    v = torch.full((1, 1, 512, 16), 0.1, dtype=torch.float16, device=device)
    lens = torch.tensor([512], dtype=torch.int32, device=device)
    o = kata.flash_decode(q, torch.zeros_like(v), v, lens, split_size=512)
    assert o.flatten().tolist() == v[0, 0, 0].tolist()


def test_what_a_split_leaves_is_float32(kata, device):
    # in steps of float16 above 1: the splits' means are 3/8, 3/8 and 7/8, so the mean is 13/24,
    # which rounds to 1; of means rounded to 0, 0 and 1 it would be 1/3, which rounds to 0
    q = torch.zeros(1, 1, 16, dtype=torch.float16, device=device)
    v = torch.ones(1, 1, 24, 16, dtype=torch.float16, device=device)
    v[:, :, [0, 1, 2, 8, 9, 10, *range(16, 23)]] += 2**-10
    lens = torch.tensor([24], dtype=torch.int32, device=device)
    o = kata.flash_decode(q, torch.zeros_like(v), v, lens, split_size=8)
    assert o.flatten().tolist() == [1 + 2**-10] * 16


# ---- lengths and heads ---------------------------------------------------------------------


def test_a_sequence_without_keys_gets_zero(kata, oracle, device, seed):
    inputs = draw(oracle, device, seed, b=3, s=40, lens="0 40 0", split_size=16)
    o = kata.flash_decode(**inputs)
    assert o[0].flatten().tolist() == [0.0] * 16
    assert o[2].flatten().tolist() == [0.0] * 16


@pytest.mark.parametrize("hkv", [1, 2, 4])
def test_neighbouring_heads_share_keys(kata, device, hkv):
    q = torch.zeros(1, 4, 16, device=device)
    k = torch.zeros(1, hkv, 3, 16, device=device)
    v = torch.arange(hkv, device=device).float().reshape(1, hkv, 1, 1).expand(1, hkv, 3, 16)
    o = kata.flash_decode(q, k, v, torch.tensor([3], dtype=torch.int32, device=device))
    assert o[0, :, 0].tolist() == [float(h // (4 // hkv)) for h in range(4)]


# ---- the same bits -------------------------------------------------------------------------


def test_a_batch_does_not_change_the_bits(kata, oracle, device, seed):
    lens = "70 1 0 33 16 17 64"
    made = draw(oracle, device, seed, b=7, hq=2, hkv=1, s=70, lens=lens, split_size=16)
    together = kata.flash_decode(**made)
    tensors = {name: x for name, x in made.items() if name != "split_size"}
    order = [6, 2, 0, 5, 1, 4, 3]
    shuffled = kata.flash_decode(**{n: x[order] for n, x in tensors.items()}, split_size=16)
    for i in range(7):
        alone = kata.flash_decode(**{n: x[i : i + 1] for n, x in tensors.items()}, split_size=16)
        told = f"sequence {i} of {made['seq_lens'][i]} keys"
        assert torch.equal(alone[0], together[i]), f"{told}: other bits alone than in a batch"
        assert torch.equal(shuffled[order.index(i)], together[i]), f"{told}: other bits elsewhere"


@pytest.mark.parametrize("size", [4, 64], ids=["many splits", "one split"])
def test_room_for_more_keys_does_not_change_the_bits(kata, oracle, device, seed, size):
    inputs = draw(oracle, device, seed, s=350, lens="40", split_size=size, dtype=torch.float32)
    tight = {**inputs, "k": inputs["k"][:, :, :40], "v": inputs["v"][:, :, :40]}
    roomy, exact = kata.flash_decode(**inputs), kata.flash_decode(**tight)
    assert torch.equal(roomy, exact), "40 keys: other bits with room for 350 than with room for 40"


def test_a_gpu_is_given_the_same_tiles_for_any_batch_and_room(compiled):
    built = set()
    for b, splits in ((5, 3), (1, 11)):
        case = {**SPEED_CASE, "b": b, "s": splits * 256}
        kernels = compiled(target="sm_90", **case)
        # powers of two from 16 on are tiles; b and what s is made of are none
        sizes = [
            sorted(n for n in k.tile.values() if n >= 16 and n.bit_count() == 1) for k in kernels
        ]
        tiles = tuple((k.num_warps, *tile) for k, tile in zip(kernels, sizes, strict=True))
        built.add((math.prod(kernels[0].grid) / (b * splits), tiles))
    assert len(built) == 1, (
        "batches of 5 and 1, with room for 3 and 11 splits: expected the same programs for each "
        f"split, and the same warps and tiles, found {built}"
    )


# ---- memory --------------------------------------------------------------------------------


def test_only_keys_that_exist_are_read_and_once(kata, oracle, device, seed, traffic):
    inputs = draw(oracle, device, seed, b=2, hq=4, hkv=2, s=80, lens="33 50", split_size=16)
    with traffic() as moved:
        kata.flash_decode(**inputs)
    exist = 2 * (33 + 50) * 16 * 2  # two heads of 16 float16
    for name in "kv":
        loaded = moved.of(inputs[name]).loaded_bytes
        assert loaded == exist, f"{name}, 33 and 50 keys: expected {exist} bytes, loaded {loaded}"


def test_keys_may_lie_far_apart(kata, oracle, device, seed):
    # the third one 2³¹ elements behind the first, in memory of which only the keys are touched
    inputs = draw(oracle, device, seed, s=3, split_size=2)
    apart = 2**30 + 8
    if device == "cpu":
        flags = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
        memory = mmap.mmap(-1, 2 * (2 * apart + 32), flags=flags)
        room = torch.frombuffer(memory, dtype=torch.float16)
    else:
        room = torch.empty(2 * apart + 32, dtype=torch.float16, device=device)
    for name, start in (("k", 0), ("v", 16)):
        far = room.as_strided((1, 1, 3, 16), (16, 16, apart, 1), start)
        inputs[name] = far.copy_(inputs[name])
    assert_right(kata, oracle, inputs)


def test_keys_are_split_over_programs(kata, oracle, device, seed, traffic, cost):
    inputs = draw(oracle, device, seed, s=256, split_size=32)
    with traffic() as moved:
        kata.flash_decode(**inputs)
    # whoever merges the splits has a program at least
    cost.check("programs", moved.programs - (moved.launches - 1))


def test_only_what_splits_leave_is_allocated(kata, oracle, device, seed, dispatch):
    made = draw(oracle, device, seed, b=2, hq=4, hkv=2, s=96, lens="96 40", split_size=32)
    for name in "qkv":
        made[name] = scattered(made[name])
    made["seq_lens"] = torch.stack([made["seq_lens"], made["seq_lens"] // 2], dim=1)[:, 0]
    with dispatch() as ops:
        o = kata.flash_decode(**made)
    room = o.nbytes + 2 * 4 * 3 * (16 + 2) * 4  # an output, a maximum and a sum for each split
    assert ops.allocated_bytes <= room, "with gaps in memory: expected nothing to be copied"
    assert o.is_contiguous()
    want, trusted = oracle.reference(**made), oracle.same_precision(**made)
    assert_matches(o, want, same_precision=trusted)


# ---- bad input -----------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [6, -1])
def test_lengths_that_cannot_be_are_refused(kata, wrong):
    q, k = torch.zeros(2, 1, 16), torch.zeros(2, 1, 5, 16)
    with pytest.raises(ValueError, match="^seq_lens: "):
        kata.flash_decode(q, k, k, torch.tensor([5, wrong], dtype=torch.int32))


def test_bfloat16_on_the_cpu_is_refused(kata):
    q, k = (torch.zeros(shape, dtype=torch.bfloat16) for shape in [(1, 1, 16), (1, 1, 3, 16)])
    with pytest.raises(ValueError, match="^q: "):
        kata.flash_decode(q, k, k, torch.ones(1, dtype=torch.int32))


# ---- the build -----------------------------------------------------------------------------


@pytest.mark.parametrize(("target", "dtype"), [("sm_90", "float16"), ("sm_80", "bfloat16")])
def test_products_run_on_tensor_cores(compiled, target, dtype):
    kernels = compiled(target=target, **{**SPEED_CASE, "dtype": dtype})
    used = [k.has("mma.sync") or k.has("wgmma.mma_async") for k in kernels]
    assert any(used), "expected the first kernel to multiply with tl.dot"


def test_both_products_have_operands_of_16_bits(compiled):
    kernels = compiled(target="sm_80", **{**SPEED_CASE, "dtype": "bfloat16"})
    dots = [line for k in kernels for line in k.ttgir.splitlines() if " tt.dot " in line]
    wide = [line for line in dots if "f32" in line.split(" : ")[-1].split("->")[0]]
    assert len(dots) >= 2, f"expected two products by tl.dot, found {len(dots)}"
    assert not wide, f"bfloat16: expected operands of bfloat16 in both products, found {wide[0]}"


def test_float32_is_not_rounded_to_tf32(compiled):
    kernels = compiled(target="sm_80", dtype="float32", b=1, hq=8, hkv=1, s=512, d=64)
    for kernel in kernels:
        assert "tf32" not in kernel.ptx, 'expected input_precision="ieee" in both products'
