"""Whose lse it is, masks, rows without keys, shared heads, and the bytes and bits that may be."""

import math
import mmap

import pytest
import torch

from harness.judge import assert_matches

SPEED_CASE = {"b": 4, "hq": 16, "sq": 4096, "sk": 4096, "d": 128, "dtype": "float16"}


def draw(oracle, device, seed, *, hq=1, sq=1, sk=1, d=16, dtype=torch.float16, **more):
    return oracle.make_inputs(
        b=1, hq=hq, sq=sq, sk=sk, d=d, dtype=dtype, device=device, seed=seed, **more
    )


def with_forward(oracle, do, q, k, v, **options):
    """The arguments of a call, `o` and `lse` among them."""
    o, lse = oracle.forward(q=q, k=k, v=v, **options)
    return {"do": do, "q": q, "k": k, "v": v, "o": o, "lse": lse, **options}


def zeros(device, *shape, dtype=torch.float32):
    return torch.zeros(shape, dtype=dtype, device=device)


def far_apart(x, axis):
    """The three float32 values of `x`, the last 2**31 elements behind the first along `axis`."""
    strides = [2**30 if one == axis else 1 for one in range(x.ndim)]
    count = 2**31 + 1
    if x.is_cuda:
        room = x.new_empty(count)
    else:  # a mapping, of which only the pages that are touched take memory
        flags = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
        room = torch.frombuffer(mmap.mmap(-1, 4 * count, flags=flags), dtype=x.dtype)
    return room.as_strided(x.shape, strides).copy_(x)


def assert_right(kata, oracle, inputs):
    want, trusted = oracle.reference(**inputs), oracle.same_precision(**inputs)
    assert_matches(kata.flash_attn_bwd(**inputs), want, same_precision=trusted)


# ---- the softmax's gradient ----------------------------------------------------------------


def test_gradients_by_hand(kata, oracle, device):
    # both scores are 0, p = 1/2; dp = 4, -4 and D = 0, so ds = 2, -2; times sm_scale 1, -1
    q, do = zeros(device, 1, 1, 1, 16), zeros(device, 1, 1, 1, 16)
    k, v = zeros(device, 1, 1, 2, 16), zeros(device, 1, 1, 2, 16)
    q[..., 1], do[..., 0] = 3, 4
    k[0, 0, :, 2] = torch.tensor([5.0, 7.0])
    v[0, 0, :, 0] = torch.tensor([1.0, -1.0])
    dq, dk, dv = kata.flash_attn_bwd(**with_forward(oracle, do, q, k, v, sm_scale=0.5))
    assert dq[0, 0, 0].tolist() == [0, 0, -2] + [0] * 13
    assert dk[0, 0, :, 1].tolist() == [3, -3]
    assert dv[0, 0, :, 0].tolist() == [2, 2]


def test_values_all_alike_leave_no_gradient_to_the_scores(kata, oracle, device, seed):
    # whole numbers, so that do·v and do·o are exact and the same; the last query tile is ragged
    inputs = draw(oracle, device, seed, sq=35, sk=16, dtype=torch.float32)
    do, v = inputs["do"].round(), torch.ones_like(inputs["v"])
    inputs.update(do=do, v=v, o=torch.ones_like(do))
    dq, dk, dv = kata.flash_attn_bwd(**inputs)
    assert dq.abs().max() == 0
    assert dk.abs().max() == 0
    trusted = oracle.same_precision(**inputs)[2]
    assert_matches(dv, oracle.reference(**inputs)[2], same_precision=trusted)


@pytest.mark.parametrize("sign", [1, -1], ids=["positive", "negative"])
def test_scores_far_from_zero(kata, oracle, device, seed, sign):
    # scores of about 400 on either side: exp of them, or of minus lse, is inf
    drawn = draw(oracle, device, seed, sq=3, sk=40)
    drawn["q"][..., 0], drawn["k"][..., 0] = sign * 1600, 1
    given = (drawn[name] for name in ("do", "q", "k", "v"))
    assert_right(kata, oracle, with_forward(oracle, *given))


def test_keys_in_two_calls(kata, oracle, device, seed):
    # as in ring attention: o and lse are of all keys, whichever part of them a call is given
    inputs = draw(oracle, device, seed, sq=7, sk=48, dtype=torch.float32)
    halves = [
        {**inputs, "k": inputs["k"][:, :, part], "v": inputs["v"][:, :, part]}
        for part in (slice(0, 20), slice(20, 48))
    ]
    (dq0, dk0, dv0), (dq1, dk1, dv1) = (kata.flash_attn_bwd(**half) for half in halves)
    found = dq0 + dq1, torch.cat([dk0, dk1], dim=2), torch.cat([dv0, dv1], dim=2)
    trusted = oracle.same_precision(**inputs)
    assert_matches(found, oracle.reference(**inputs), same_precision=trusted)


# ---- masks and heads -----------------------------------------------------------------------


def test_causal_mask_is_aligned_bottom_right(kata, oracle, device):
    # scores are 0: three queries see 3, 4 and 5 of 5 keys, each of which gets that share of do
    q, k = zeros(device, 1, 1, 3, 16), zeros(device, 1, 1, 5, 16)
    do = torch.full_like(q, 60)
    _, _, dv = kata.flash_attn_bwd(**with_forward(oracle, do, q, k, k, causal=True))
    want = torch.tensor([47, 47, 47, 27, 12], dtype=torch.float64)
    assert_matches(dv[0, 0, :, 0], want)


def test_a_query_that_sees_no_key_has_no_part(kata, oracle, device):
    # the first 35 of 37: a whole tile of 32 and a part of the next
    q, k = torch.ones(1, 1, 37, 16, device=device), torch.ones(1, 1, 2, 16, device=device)
    do = torch.full_like(q, 4)
    inputs = with_forward(oracle, do, q, k, k * 3, causal=True)
    inputs["v"][0, 0, 1] = 1  # the last query sees both, with weights of 1/2: o = 2
    inputs["o"][0, 0, 36] = 2
    dq, dk, dv = kata.flash_attn_bwd(**inputs)
    assert dq.abs().max() == 0  # of the last query since its two keys are the same
    # dp = 192, 64 and D = 128, so ds = 32, -32, times 1/4
    assert_matches(dk[0, 0, :, 0], torch.tensor([8, -8], dtype=torch.float64))
    assert_matches(dv[0, 0, :, 0], torch.tensor([6, 2], dtype=torch.float64))


def test_neighbouring_heads_add_up(kata, oracle, device):
    # four keys of weight 1/4; do is 4, 8, 16, 32 for the heads in turn, two of which share keys
    q, k = zeros(device, 1, 4, 1, 16), zeros(device, 1, 2, 4, 16)
    do = (4 * 2 ** torch.arange(4.0, device=device)).reshape(1, 4, 1, 1) + q
    _, _, dv = kata.flash_attn_bwd(**with_forward(oracle, do, q, k, k))
    assert dv[0, :, 0, 0].tolist() == [1 + 2, 4 + 8]


@pytest.mark.parametrize(("heads", "rows"), [(3, 1), (1, 65)], ids=["heads", "tiles"])
def test_sums_over_queries_are_float32(kata, oracle, device, heads, rows):
    # of three queries, far apart; in float16 a 1 is lost beside 2048
    q = zeros(device, 1, heads, rows, 16, dtype=torch.float16)
    k, do = zeros(device, 1, 1, 4, 16, dtype=torch.float16), torch.zeros_like(q)
    do.reshape(-1, 16)[:: max(rows // 2, 1)] = torch.tensor([[8192], [4], [-8192]]).to(do)
    _, _, dv = kata.flash_attn_bwd(**with_forward(oracle, do, q, k, k))
    assert dv[0, 0, :, 0].tolist() == [1.0] * 4


@pytest.mark.parametrize(("heads", "rows"), [(3, 1), (1, 65)], ids=["heads", "tiles"])
def test_sums_of_dk_are_float32(kata, oracle, device, heads, rows):
    # two keys of weight 1/2, dp = 2, -2 and D = 0: ds = 1, -1; in float16 a 4 is lost beside 8192
    q = zeros(device, 1, heads, rows, 16, dtype=torch.float16)
    k, v = (zeros(device, 1, 1, 2, 16, dtype=torch.float16) for _ in range(2))
    do, v[0, 0, :, 0] = torch.zeros_like(q), torch.tensor([1.0, -1.0])
    at = slice(None, None, max(rows // 2, 1))
    do.view(-1, 16)[at, 0] = 2
    q.view(-1, 16)[at, 0] = torch.tensor([8192.0, 4.0, -8192.0]).to(q)
    _, dk, _ = kata.flash_attn_bwd(**with_forward(oracle, do, q, k, v, sm_scale=1.0))
    assert dk[0, 0, :, 0].tolist() == [4, -4]


def test_sums_over_keys_are_float32(kata, oracle, device):
    # 128 keys of weight 1/128, dp = 128 for three of them, far apart, and D = 0: their ds are 1
    q, do = (zeros(device, 1, 1, 1, 16, dtype=torch.float16) for _ in range(2))
    k, v = (zeros(device, 1, 1, 128, 16, dtype=torch.float16) for _ in range(2))
    do[..., 0] = 128
    v[0, 0, ::40, 0] = torch.tensor([1.0, 1.0, 1.0, -3.0]).to(v)
    k[0, 0, ::40, 0] = torch.tensor([8192.0, 4.0, -8192.0, 0.0]).to(k)
    dq, _, _ = kata.flash_attn_bwd(**with_forward(oracle, do, q, k, v, sm_scale=1.0))
    assert dq[0, 0, 0].tolist() == [4] + [0] * 15


# ---- memory --------------------------------------------------------------------------------


def test_hidden_tiles_are_not_loaded(kata, oracle, device, seed, traffic, cost):
    inputs = draw(oracle, device, seed, sq=128, sk=128, causal=True)
    with traffic() as moved:
        kata.flash_attn_bwd(**inputs)
    # 4 passes without a mask by tiles of 32, and one where the tile stays on chip
    passes = [moved.of(inputs[name]).loads_per_element - 1 for name in "qkv"]
    cost.check("causal_share", max(passes) / 4)


def test_memory_is_two_numbers_a_query(kata, oracle, device, seed, dispatch):
    inputs = draw(oracle, device, seed, hq=2, hkv=1, sq=40, sk=64, layout="cache")
    with dispatch() as counted:
        results = kata.flash_attn_bwd(**inputs)
    least = sum(x.numel() * x.element_size() for x in results)
    at_most = least + 2 * 4 * 2 * 40
    assert counted.allocated_bytes <= at_most, (
        f"sq = 40, sk = 64, strided: expected at most {at_most} bytes to be allocated, for the "
        f"gradients and two float32 a query, found {counted.allocated_bytes}"
    )


@pytest.mark.parametrize("axis", [0, 1, 2], ids=["b", "hq", "sq"])
def test_offsets_of_lse_may_pass_31_bits(kata, device, axis):
    # all scores are 0: three queries, whose lse gives the one key weights of 1, 1/2 and 1/4
    sizes = [3 if one == axis else 1 for one in range(3)]
    q, k = (zeros(device, *of, 16, dtype=torch.float16) for of in (sizes, [*sizes[:2], 1]))
    lse = far_apart(torch.tensor([1.0, 2.0, 4.0], device=device).log().reshape(sizes), axis)
    _, _, dv = kata.flash_attn_bwd(torch.full_like(q, 4), q, k, k, q, lse)
    assert dv[..., 0].flatten().tolist() == ([7] if axis == 2 else [4, 2, 1])


# ---- bad input -----------------------------------------------------------------------------


def test_nothing_is_allocated_for_a_call_that_is_refused(kata, oracle, device, seed, dispatch):
    inputs = draw(oracle, device, seed, sq=30, sk=5)
    inputs["lse"] = inputs["lse"].half()
    with dispatch() as ops, pytest.raises(ValueError, match="^lse: "):
        kata.flash_attn_bwd(**inputs)
    assert ops.allocated_bytes == 0, "expected the check before the results are allocated"


def test_bfloat16_on_the_cpu_is_refused(kata):
    x, lse = torch.zeros(1, 1, 3, 16, dtype=torch.bfloat16), torch.full((1, 1, 3), math.log(3))
    with pytest.raises(ValueError, match="^q: "):
        kata.flash_attn_bwd(x, x, x, x, x, lse)


# ---- the build -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "instruction", "dtype"),
    [("sm_90", "wgmma.mma_async", "float16"), ("sm_80", "mma.sync", "bfloat16")],
)
def test_products_run_on_tensor_cores(compiled, target, instruction, dtype):
    kernels = compiled(target=target, **{**SPEED_CASE, "dtype": dtype, "causal": True})
    found = [kernel.name for kernel in kernels if kernel.has(instruction)]
    assert len(found) >= 2, f"{target}: expected two passes with {instruction}, found {found}"


def test_float32_is_not_rounded_to_tf32(compiled):
    shape = {"b": 1, "hq": 1, "sq": 128, "sk": 128, "d": 32}
    kernels = compiled(target="sm_80", dtype="float32", **shape)
    found = [kernel.name for kernel in kernels if ".tf32." in kernel.ptx]
    assert not found, f'expected input_precision="ieee" in every product, found tf32 in {found}'
