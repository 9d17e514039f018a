"""What is special about FlashAttention-3: softmax corner cases, and what runs behind what."""

import math
import re

import pytest
import torch

from harness.judge import assert_matches

# cases of kata.toml: built once
BUILDS = [
    {"b": 2, "h": 16, "s": 8192, "causal": causal, "dtype": "float16"} for causal in (False, True)
]


@pytest.fixture(params=BUILDS, ids=["full", "causal"])
def build(request):
    return request.param


def zeros(device, *, rows, heads=1):
    return torch.zeros(1, heads, rows, 128, dtype=torch.float16, device=device)


def assert_right(kata, oracle, **inputs):
    want, trusted = oracle.reference(**inputs), oracle.same_precision(**inputs)
    assert_matches(kata.fa3_wgmma_fwd(**inputs), want, same_precision=trusted)


# ---- softmax -------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["rising", "falling"])
def test_the_maximum_moves_from_block_to_block(kata, oracle, device, seed, order):
    # scores of j / 16 for key j: each block outweighs those on its one side
    inputs = oracle.make_inputs(b=1, h=1, s=70, keys=400, dtype=torch.float16, device=device,
                                seed=seed)  # fmt: skip
    steps = torch.arange(400, device=device)
    inputs["q"].zero_()[..., 0] = 128**0.5
    inputs["k"][..., 0] = (steps if order == "rising" else 399 - steps) / 16
    assert_right(kata, oracle, **inputs)


@pytest.mark.parametrize("sign", [1, -1], ids=["positive", "negative"])
def test_scores_far_from_zero(kata, oracle, device, seed, sign):
    # all scores near ±1000: exp of them is inf or 0
    inputs = oracle.make_inputs(b=1, h=1, s=70, keys=300, dtype=torch.float16, device=device,
                                seed=seed)  # fmt: skip
    inputs["q"].zero_()[..., :1] = sign * 1024
    inputs["k"][..., 0] = 11 + inputs["k"][..., 0].clamp(-3, 3) / 64
    assert_right(kata, oracle, **inputs)


def test_equal_scores_weigh_the_values_alike(kata, device):
    # weights of 1 / 384; values of 1, 2 and 6, block by block, average 3
    q, k, v = (zeros(device, rows=rows) for rows in (3, 384, 384))
    for block, value in enumerate((1, 2, 6)):
        v[:, :, 128 * block : 128 * (block + 1)] = value
    o, lse = kata.fa3_wgmma_fwd(q, k, v)
    assert o.unique().tolist() == [3.0]
    assert_matches(lse, torch.full((1, 1, 3), math.log(384), dtype=torch.float64, device=device))


def test_later_keys_are_hidden(kata, oracle, device, seed):
    # what query i sees does not depend on later keys, in its own tile or behind it
    inputs = oracle.make_inputs(b=1, h=1, s=300, causal=True, dtype=torch.float16, device=device,
                                seed=seed)  # fmt: skip
    before = [x[:, :, :150].clone() for x in kata.fa3_wgmma_fwd(**inputs)]
    inputs["k"][:, :, 150:] = 50
    inputs["v"][:, :, 150:] = -1000
    after = [x[:, :, :150] for x in kata.fa3_wgmma_fwd(**inputs)]
    assert [torch.equal(*pair) for pair in zip(after, before, strict=True)] == [True, True]


def test_sums_are_kept_in_float32(kata, device):
    # 2048 weights of 1 are summed, then one more for each value of the last block
    q, k = zeros(device, rows=1), zeros(device, rows=4096)
    v = torch.full_like(k, 0.1)
    o, lse = kata.fa3_wgmma_fwd(q, k, v)
    assert o.unique().tolist() == [v[0, 0, 0, 0].item()]
    assert_matches(lse, torch.full((1, 1, 1), math.log(4096), dtype=torch.float64, device=device))


# ---- memory --------------------------------------------------------------------------------


@pytest.mark.parametrize("of", ["q", "k", "v"])
def test_address_that_tma_cannot_take_is_refused(kata, device, of):
    room = torch.zeros(129 * 128, dtype=torch.float16, device=device)
    shifted = room[4 : 4 + 128 * 128].view(1, 1, 128, 128)
    operands = {**dict.fromkeys("qkv", room[: 128 * 128].view(1, 1, 128, 128)), of: shifted}
    with pytest.raises(ValueError, match=f"^{of}: "):
        kata.fa3_wgmma_fwd(**operands)


@pytest.mark.parametrize("of", ["q", "k", "v"])
def test_heads_that_tma_cannot_step_to_are_refused(kata, device, of):
    # rows are fine, but the second head begins 8 bytes off
    room = torch.zeros(3 * 128 * 128, dtype=torch.float16, device=device)
    odd = room.as_strided((1, 2, 128, 128), (2 * 128 * 128, 128 * 128 + 4, 128, 1))
    whole = room[: 2 * 128 * 128].view(1, 2, 128, 128)
    with pytest.raises(ValueError, match=f"^{of}: "):
        kata.fa3_wgmma_fwd(**{**dict.fromkeys("qkv", whole), of: odd})


def test_empty_operands_may_lie_anywhere(kata, device):
    # keys of no elements, at an odd address, 270 elements apart and every other one
    k = torch.zeros(999, dtype=torch.float16, device=device)[1:].as_strided(
        (1, 1, 0, 128), (270, 270, 270, 2)
    )
    o, lse = kata.fa3_wgmma_fwd(zeros(device, rows=3), k, k)
    assert o.unique().tolist() == [0.0]
    assert lse.unique().tolist() == [-math.inf]


@pytest.mark.parametrize(("queries", "keys"), [(0, 5), (5, 0)], ids=["no queries", "no keys"])
def test_arguments_are_checked_where_there_is_nothing_to_compute(kata, device, queries, keys):
    q, k, v = (zeros(device, rows=rows) for rows in (queries, keys, keys + 1))
    with pytest.raises(ValueError, match="^v: "):
        kata.fa3_wgmma_fwd(q, k, v)


def test_output_is_contiguous_whatever_the_queries_are(kata, device):
    q = torch.zeros(1, 9, 2, 128, dtype=torch.float16, device=device).transpose(1, 2)
    o, lse = kata.fa3_wgmma_fwd(q, q, q)
    assert [x.is_contiguous() for x in (o, lse)] == [True, True]


def test_every_operand_travels_by_tma(kata, hazards):
    q, k = torch.zeros(1, 1, 256, 128).half(), torch.zeros(1, 1, 384, 128).half()
    with hazards() as seen:
        o, lse = kata.fa3_wgmma_fwd(q, k, k)
    assert seen.amount("TMA load") == q.nbytes + 2 * 2 * k.nbytes  # two tiles of queries
    assert seen.amount("TMA store") == o.nbytes
    assert seen.bytes_moved == q.nbytes + 2 * 2 * k.nbytes + o.nbytes + lse.nbytes


# ---- what runs behind what -----------------------------------------------------------------


def test_exponentials_are_taken_under_products(kata, hazards, cost):
    with hazards() as seen:
        kata.fa3_wgmma_fwd(*(torch.zeros(1, 1, rows, 128).half() for rows in (128, 1024, 1024)))
    # of its own: that the other consumer's products run meanwhile is another matter
    cost.check("exponentials under products", seen.overlap("exp2", under="wgmma", own=True))


def test_the_next_tile_is_loaded_under_the_store(kata, hazards, cost):
    # six tiles, two for each of three programs
    with hazards() as seen:
        kata.fa3_wgmma_fwd(*(torch.zeros(1, 6, rows, 128).half() for rows in (128, 512, 512)))
    cost.check("store under loads", seen.overlap("TMA store", under="TMA load"))


# ---- what is built for sm_90 ---------------------------------------------------------------


def wgmma_of(ptx):
    """(shape, operand a) of each product: a descriptor, or registers in braces."""
    instruction = r"wgmma\.mma_async\.sync\.aligned\.(\S+)\s*\{[^}]*\},\s*(\{[^}]*\}|%\w+)"
    return re.findall(instruction, ptx)


def test_weights_stay_in_registers_on_sm_90(kata, compiled, build):
    # as operand a of half of the products, all of which sum in float32
    (built,) = compiled(target="sm_90", **build)
    products = wgmma_of(built.ptx)
    assert [shape for shape, _ in products if not shape.endswith("k16.f32.f16.f16")] == []
    operands = [a.startswith("{") for _, a in products]
    assert operands.count(True) == operands.count(False) > 0


def test_a_product_stays_in_flight_on_sm_90(kata, compiled, build):
    (built,) = compiled(target="sm_90", **build)
    assert re.search(r"wgmma\.wait_group\.sync\.aligned\s+[1-7];", built.ptx)


def test_consumers_have_the_registers_on_sm_90(kata, compiled, build):
    (built,) = compiled(target="sm_90", **build)
    kept = re.findall(r"setmaxnreg\.dec\.sync\.aligned\.u32\s+(\d+)", built.ptx)
    assert min(map(int, kept), default=255) <= 40
    assert ".reqntid 384" in built.ptx
