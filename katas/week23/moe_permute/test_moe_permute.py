"""Where choices go, bits that stay as they are, sums in float32, and what the map costs."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

# ---- where choices go ----------------------------------------------------------------------


def by_hand(idx, num_experts):
    """Rows filled expert by expert, in the order of tokens and of a token's choices."""
    pos = [[None] * len(choices) for choices in idx]
    counts, row = [], 0
    for expert in range(num_experts):
        before = row
        for token, choices in enumerate(idx):
            for at, choice in enumerate(choices):
                if choice == expert:
                    pos[token][at] = row
                    row += 1
        counts.append(row - before)
    return pos, counts


def assert_mapped(kata, idx, num_experts):
    before = idx.clone()
    pos, counts = kata.permute_map(idx, num_experts)
    assert torch.equal(idx, before), "idx: expected as it was, found other numbers in it"
    assert (pos.dtype, counts.dtype) == (torch.int32, torch.int32), f"{pos.dtype}, {counts.dtype}"
    assert pos.is_contiguous(), f"pos: expected it contiguous, found strides {pos.stride()}"
    want = by_hand(idx.tolist(), num_experts)
    found = (pos.tolist(), counts.tolist())
    assert found == want, f"idx {idx.tolist()}, {num_experts} experts: {found}, expected {want}"


@settings(max_examples=20)
@given(
    tokens=st.integers(0, 12),
    k=st.integers(0, 4),
    experts=st.integers(1, 6),
    dtype=st.sampled_from([torch.int32, torch.int64]),
)
def test_rows_are_grouped_by_expert_in_order(kata, device, tokens, k, experts, dtype):
    idx = torch.randint(experts, (tokens, k), device=device).to(dtype)
    assert_mapped(kata, idx, experts)


def test_experts_without_tokens(kata, device):
    assert_mapped(kata, torch.tensor([[6, 2], [2, 6], [2, 2]], device=device), 9)


def test_long_lists_stay_in_order(kata, device):
    # a sort that is not stable is still so on short lists
    idx = torch.arange(3000, device=device).view(-1, 2) // 7 % 2
    pos, counts = kata.permute_map(idx, 2)
    for expert in range(2):
        rows = pos.flatten()[idx.flatten() == expert].tolist()
        first = expert * int(counts[0])
        assert rows == list(range(first, first + len(rows))), f"expert {expert}: {rows[:20]} …"


def test_choices_in_any_layout(kata, device):
    idx = torch.tensor([[3, 0, 3, 1], [0, 0, 1, 3]], device=device)
    assert_mapped(kata, idx.T, 4)
    assert_mapped(kata, idx[:, ::2], 4)


@pytest.mark.parametrize("bad", [-1, 4, 2**31, 2**32], ids=str)
def test_experts_that_are_not_there_are_refused(kata, device, bad):
    idx = torch.zeros(3, 2, dtype=torch.int64, device=device)
    idx[2, 1] = bad
    with pytest.raises(ValueError, match="^idx: "):
        kata.permute_map(idx, 4)
    assert idx.tolist() == [[0, 0], [0, 0], [0, bad]], "a refused idx: expected it as it was"


@pytest.mark.parametrize(
    "idx",
    [torch.zeros(3, 2), torch.zeros(3, 2, dtype=torch.uint8), torch.zeros(6, dtype=torch.int64)],
    ids=["float32", "uint8", "1-D"],
)
def test_what_is_no_table_of_experts_is_refused(kata, device, idx):
    with pytest.raises(ValueError, match="^idx: "):
        kata.permute_map(idx.to(device), 4)


@pytest.mark.parametrize("num_experts", [0, -1])
def test_no_experts_are_refused(kata, device, num_experts):
    with pytest.raises(ValueError, match="^num_experts: "):
        kata.permute_map(torch.zeros(0, 2, dtype=torch.int64, device=device), num_experts)


def test_a_map_needs_no_table_of_experts(kata, device, dispatch, cost):
    idx = torch.randint(256, (1024, 8), device=device)
    with dispatch() as seen:
        kata.permute_map(idx, 256)
    cost.check("map_bytes", seen.allocated_bytes)


def test_a_map_is_as_many_operators_for_any_size(kata, device, dispatch):
    used = []
    for tokens, experts in ((4, 2), (100, 50)):
        idx = torch.randint(experts, (tokens, 2), device=device)
        with dispatch() as seen:
            kata.permute_map(idx, experts)
        used.append(sum(seen.calls.values()))
    assert used[0] == used[1], f"4 tokens, 2 experts: {used[0]}; 100 and 50: {used[1]} operators"


# ---- rows ----------------------------------------------------------------------------------


def test_rows_keep_their_bits(kata, oracle, device, seed):
    x = torch.randint(-(2**15), 2**15, (9, 33), device=device).to(torch.int16).view(torch.float16)
    pos = oracle.places(torch.randint(4, (9, 3))).to(device)
    found = kata.moe_permute(x, pos).view(torch.int16)[pos.flatten().long()]
    assert torch.equal(found, x.view(torch.int16).repeat_interleave(3, dim=0))


def test_columns_may_lie_past_31_bits(kata, device):
    # as of a transposed matrix; what lies between is never touched, and takes no memory on a CPU
    room = torch.empty(2**31 + 10, dtype=torch.float16, device=device)
    far = room.as_strided((2, 3), (1, 2**30 + 1))
    far.copy_(torch.tensor([[1.0, 2.0, 4.0], [8.0, 16.0, 32.0]]))
    pos = torch.tensor([[1], [0]], dtype=torch.int32, device=device)
    want = [[8.0, 16.0, 32.0], [1.0, 2.0, 4.0]]
    assert kata.moe_permute(far, pos).tolist() == want
    assert kata.moe_unpermute(far, pos, torch.ones(2, 1, device=device)).tolist() == want


def test_rows_longer_than_a_tile_may_be(kata, device):
    x = torch.arange(2**20 + 1, device=device)[None].float()
    pos = torch.zeros(1, 1, dtype=torch.int32, device=device)
    assert torch.equal(kata.moe_permute(x, pos), x), "2^20 + 1 columns: expected the row"
    found = kata.moe_unpermute(x, pos, torch.ones(1, 1, device=device))
    assert torch.equal(found, x), "2^20 + 1 columns, a gate of 1: expected the row"


def test_there_and_back(kata, oracle, device, seed):
    x = torch.randn(11, 50, generator=torch.Generator().manual_seed(seed)).to(device)
    pos = oracle.places(torch.randint(4, (11, 4))).to(device)
    gates = torch.full((11, 4), 0.25, device=device)
    found = kata.moe_unpermute(kata.moe_permute(x, pos), pos, gates)
    assert torch.equal(found, x), "four times a quarter of each row: expected the row"


def test_weighted_rows_are_summed_in_float32(kata, device):
    # 2048 + 1 is not in float16, 2048 + 1 + 1 is; nor is 70000 · 0.5
    y = torch.tensor([[2048.0], [1.0], [1.0], [60000.0], [60000.0], [0.0]])
    pos = torch.tensor([[0, 1, 2], [3, 4, 5]], dtype=torch.int32, device=device)
    gates = torch.tensor([[1.0, 1.0, 1.0], [1.0, -0.5, 1.0]], device=device)
    found = kata.moe_unpermute(y.half().to(device), pos, gates)
    assert found.flatten().tolist() == [2050.0, 30000.0]


def test_gates_are_not_rounded(kata, device):
    # 1 + 2^-12 in float16 is 1
    y = torch.full((2, 4), 1024.0, device=device).half()
    pos = torch.tensor([[0, 1]], dtype=torch.int32, device=device)
    gates = torch.tensor([[1 + 2.0**-12, -1.0]], device=device)
    assert kata.moe_unpermute(y, pos, gates).tolist() == [[0.25] * 4]


def test_choices_are_added_in_their_order(kata, device):
    # 1 + 2^25 - 2^25 is 0 in float32; from the other end it is 1
    y = torch.tensor([[-(2.0**25)], [2.0**25], [1.0]], device=device)
    pos = torch.tensor([[2, 1, 0]], dtype=torch.int32, device=device)
    found = kata.moe_unpermute(y, pos, torch.ones(1, 3, device=device))
    assert found.item() == 0.0, f"1 + 2^25 - 2^25 from the left: expected 0, found {found.item()}"
