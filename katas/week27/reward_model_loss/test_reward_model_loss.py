"""What pairs cost, whose pairs count, where rewards are read, and a utility that is found again."""

import math

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from harness.judge import assert_matches

NAN = math.nan


def close(what, found, expected):
    wanted = pytest.approx(expected, rel=2e-6, abs=1e-7)
    assert found == wanted, f"{what}: {found}, expected {expected}"


# ---- pairs -------------------------------------------------------------------------------------


def test_pairs_by_hand(kata):
    ones, zeros = torch.ones(2), torch.zeros(2)
    loss, accuracy = kata.bt_loss(ones, zeros)
    close("bt_loss of 1 and 0", loss.item(), 0.3132617)  # log(1 + e^-1)
    close("accuracy of 1 and 0", accuracy.item(), 1.0)
    loss, accuracy = kata.bt_loss(ones, zeros, ones)
    close("bt_loss of 1 and 0, margin 1", loss.item(), math.log(2))
    close("accuracy of 1 and 0, margin 1", accuracy.item(), 1.0)
    loss, _ = kata.bt_loss(ones, zeros, None, 0.1)
    close("bt_loss of 1 and 0, centered by 0.1", loss.item(), 0.4132617)


def test_equal_rewards_are_half_right(kata):
    chosen = torch.tensor([2.0, -1.0, 3.0], requires_grad=True)
    loss, accuracy = kata.bt_loss(chosen, torch.tensor([2.0, 0.0, 1.0]))
    close("accuracy of a tie, a loss, a win", accuracy.item(), 0.5)
    assert not accuracy.requires_grad, "the accuracy has a gradient, expected none"
    assert loss.shape == accuracy.shape == ()


def test_rewards_far_apart_keep_their_gradient(kata):
    gaps = [-1000.0, -200.0, -1.0, 0.0, 1.0, 200.0, 1000.0]
    chosen = torch.tensor(gaps, requires_grad=True)
    rejected = torch.zeros(7, requires_grad=True)
    loss, _ = kata.bt_loss(chosen, rejected)
    loss.backward()
    close("the loss", loss.item(), (1200 + 1.3132617 + math.log(2) + 0.3132617) / 7)
    expected = [-1 / (1 + math.exp(min(gap, 700))) / 7 for gap in gaps]
    close("the gradient of the chosen", chosen.grad.tolist(), expected)
    close("the gradient of the rejected", rejected.grad.tolist(), [-x for x in expected])


def test_only_centering_sees_a_shift(kata, oracle, seed):
    given = oracle.make_inputs(b=20, dtype=torch.float64, device="cpu", seed=seed)
    chosen, rejected = given["r_chosen"], given["r_rejected"]
    middle = (chosen + rejected).mean() / 2
    found = {}
    for coefficient in (0.0, 0.3):
        found[coefficient] = [
            kata.bt_loss(chosen - middle + shift, rejected - middle + shift, None, coefficient)[0]
            for shift in (0.0, 2.0, -2.0)
        ]
    close("shifted by 2", found[0.0][1].item(), found[0.0][0].item())
    # the mean of the sums is 0: of (sum + 4)² and (sum - 4)² it grows by 16
    for at in (1, 2):
        close("centered", (found[0.3][at] - found[0.3][0]).item(), 0.3 * 16)


def test_half_precision_is_widened_before_anything_is_computed(kata):
    # float16 has steps of 1 there, and no 2 * 40,000
    chosen, rejected = (
        torch.tensor([x], dtype=torch.float16) for x in (2048.0 + 2, 2048.0)
    )  # fmt: skip
    loss, _ = kata.bt_loss(chosen, rejected, torch.tensor([2.25], dtype=torch.float16))
    assert loss.dtype == torch.float32
    close("bt_loss(2050, 2048, 2.25)", loss.item(), math.log(1 + math.exp(0.25)))
    loss, _ = kata.bt_loss(*(torch.tensor([x], dtype=torch.float16) for x in (6e4, -6e4)))
    close("bt_loss(60000, -60000)", loss.item(), 0.0)


# ---- rankings ----------------------------------------------------------------------------------


def test_rankings_by_hand(kata):
    # prompt 5: ranks 0 < 1 = 1, two pairs with gaps 1 and 2; prompt 9: one with gap -1
    rewards = torch.tensor([3.0, 1.0, 2.0, 0.0, 1.0])
    ranks = torch.tensor([0, 1, 1, 0, 1])
    prompt_id = torch.tensor([5, 9, 5, 9, 5])
    expected = ((0.3132617 + 0.1269280) / 2 + 1.3132617) / 2
    told = f"kwise_loss({rewards.tolist()}, {ranks.tolist()}, {prompt_id.tolist()})"
    close(told, kata.kwise_loss(rewards, ranks, prompt_id).item(), expected)


def test_two_completions_are_a_pair(kata, oracle, seed):
    given = oracle.make_inputs(b=9, dtype=torch.float32, device="cpu", seed=seed)
    loss, _ = kata.bt_loss(given["r_chosen"], given["r_rejected"])
    rewards = torch.cat([given["r_rejected"], given["r_chosen"]])
    found = kata.kwise_loss(rewards, torch.tensor([1] * 9 + [0] * 9), torch.arange(9).repeat(2))
    close("kwise_loss for K = 2", found.item(), loss.item())


@given(
    st.lists(st.tuples(st.integers(-2, 2), st.integers(0, 3)), min_size=2, max_size=12),
    st.integers(0, 99),
)
@example([(0, 0), (1, 0), (0, 1)], 0)  # prompt 1 has one completion
@example([(0, 0), (1, 0), (1, 1), (1, 1)], 0)  # prompt 1 has a tie and nothing else
@example([(2, 3), (1, 3), (0, 3), (0, 1), (2, 1)], 0)
def test_all_pairs_of_a_prompt_count(kata, oracle, drawn, draw):
    ranks, prompt_id = torch.tensor(drawn).T.contiguous()
    rewards = torch.randn(len(drawn), generator=torch.Generator().manual_seed(draw))
    told = f"ranks {ranks.tolist()}, prompt_id {prompt_id.tolist()}"
    if not any(p == q and i < j for i, p in drawn for j, q in drawn):
        with pytest.raises(ValueError, match="^ranks: "):
            kata.kwise_loss(rewards, ranks, prompt_id)
        return
    found, gradients = [], []
    for loss_of in (kata.kwise_loss, oracle.kwise):
        x = rewards.clone().requires_grad_()
        loss = loss_of(x, ranks, prompt_id)
        gradients.append(torch.autograd.grad(loss, x)[0].tolist())
        found.append(loss.item())
    close(f"kwise_loss of {told}", *found)
    close(f"the gradient of {told}", *gradients)


def test_large_ids_stay_apart(kata):
    # neighbours that float64 cannot tell apart, a difference that int64 cannot hold, and a prompt
    # of one completion whose id is another's in 32 bits
    prompt_id = torch.tensor([2**53, 2**53 + 1, 2**53, 2**53 + 1, 2**53 + 2**32])
    ranks = torch.tensor([-(2**63), 0, 2**63 - 1, 2**62, 1])
    found = kata.kwise_loss(torch.tensor([1.0, 5.0, 0.0, 5.0, 9.0]), ranks, prompt_id)
    close("kwise_loss of two prompts", found.item(), (0.3132617 + math.log(2)) / 2)


def test_pairs_are_not_looped_over(kata, oracle, dispatch, cost, seed):
    found = []
    for prompts, k in ((3, 2), (64, 8)):
        given = oracle.make_inputs_kwise_loss(
            prompts=prompts, k=k, dtype=torch.float32, device="cpu", seed=seed
        )
        given["rewards"].requires_grad_()
        with dispatch() as counted:
            kata.kwise_loss(**given).backward()
        found.append(sum(counted.calls.values()))
    assert found[0] == found[1], f"operators for 3 pairs, for 1792: {found}, expected as many"
    cost.check("operations", found[1])


# ---- where rewards are read --------------------------------------------------------------------


@pytest.mark.parametrize("side", ["right", "left", "holes"])
def test_no_other_position_has_a_part_in_it(kata, oracle, device, seed, side):
    given = oracle.make_inputs_last_token_reward(
        b=5, t=6, d=4, side=side, dtype=torch.float32, device=device, seed=seed
    )
    hidden, head, mask = given["hidden"], given["head"], given["mask"]
    ends = [max(at for at, held in enumerate(row) if held) for row in mask.tolist()]
    rows = list(range(5))
    only = torch.full_like(hidden, NAN)
    only[rows, ends] = hidden[rows, ends]
    only.requires_grad_()
    head = head.clone().requires_grad_()
    found = kata.last_token_reward(only, head, mask)
    wanted = oracle.reference_last_token_reward(**given)
    same = oracle.same_precision_last_token_reward(**given)
    assert_matches(found.detach(), wanted, same_precision=same)
    found.sum().backward()
    expected = torch.zeros_like(hidden)
    expected[rows, ends] = head.detach()
    assert torch.equal(only.grad, expected), f"the gradient of hidden, padding on the {side}"
    close("the gradient of head", head.grad.tolist(), hidden[rows, ends].sum(0).tolist())


def test_an_empty_row_has_no_reward(kata):
    none = kata.last_token_reward(torch.ones(0, 2, 3), torch.ones(3), torch.ones(0, 2).bool())
    assert none.shape == (0,)
    mask = torch.tensor([[True, False], [False, False]])
    with pytest.raises(ValueError, match="^mask: "):
        kata.last_token_reward(torch.ones(2, 2, 3), torch.ones(3), mask)
    with pytest.raises(ValueError, match="^step_mask: "):
        kata.prm_score(torch.ones(2, 2), mask, "min")


# ---- steps -------------------------------------------------------------------------------------


def test_steps_by_hand(kata):
    logits = torch.tensor([[0.0, NAN, 1.0], [NAN, NAN, -1.0]], requires_grad=True)
    steps = torch.tensor([[True, False, True], [False, False, True]])
    labels = torch.tensor([[0.5, 7.0, 1.0], [NAN, -3.0, 0.25]])
    loss = kata.prm_loss(logits, steps, labels)
    expected = (math.log(2) + 0.3132617 + 0.25 * 1.3132617 + 0.75 * 0.3132617) / 3
    close("prm_loss", loss.item(), expected)
    loss.backward()
    q = 1 / (1 + math.exp(-1))
    wanted = [0.0, 0.0, (q - 1) / 3, 0.0, 0.0, (1 - q - 0.25) / 3]
    close("its gradient", logits.grad.flatten().tolist(), wanted)
    for how, scores in (
        ("min", [-math.log(2), -1.3132617]),
        ("prod", [-math.log(2) - 0.3132617, -1.3132617]),
        ("last", [-0.3132617, -1.3132617]),
    ):
        found = kata.prm_score(logits.detach(), steps, how).tolist()
        close(f"prm_score by {how}", found, scores)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.int64, torch.float16], ids=str)
def test_labels_may_be_hard(kata, dtype):
    logits, steps = torch.tensor([[2.0, -3.0]]), torch.ones(1, 2, dtype=torch.bool)
    found = kata.prm_loss(logits, steps, torch.tensor([[1, 0]]).to(dtype))
    close(f"labels in {dtype}", found.item(), (0.1269280 + 0.0485874) / 2)


def test_many_steps_do_not_underflow(kata):
    logits = torch.full((2, 2000), -3.0)
    logits[1, 5] = -200.0
    steps = torch.ones(2, 2000, dtype=torch.bool)
    close("prod", kata.prm_score(logits, steps, "prod")[0].item(), -2000 * 3.0485874)
    close("min", kata.prm_score(logits, steps, "min").tolist(), [-3.0485874, -200.0])
    labels = torch.ones(2, 2000)
    close("prm_loss", kata.prm_loss(logits, steps, labels).item(), 3.0485874 + 196.9514126 / 4000)


@pytest.mark.parametrize("label", [-0.01, 1.01, NAN], ids=str)
def test_labels_are_probabilities(kata, label):
    steps = torch.tensor([[True, True, False]])
    with pytest.raises(ValueError, match="^labels: "):
        kata.prm_loss(torch.ones(1, 3), steps, torch.tensor([[0.0, label, 9.0]]))
    with pytest.raises(ValueError, match="^step_mask: "):
        kata.prm_loss(torch.ones(1, 3), steps & False, torch.zeros(1, 3))


# ---- training ----------------------------------------------------------------------------------


def test_a_completion_is_encoded_once(kata, oracle, cost, seed):
    encoder, head = oracle.Encoder(seed=seed), torch.linspace(-1, 1, 8, requires_grad=True)
    tokens, mask, ranks, prompt_id = oracle.preferences(5, 6, seed, side="left")
    loss = kata.ranking_loss(encoder, head, tokens, mask, ranks, prompt_id)
    rows = encoder.rows
    hidden = encoder(tokens, mask)
    rewards = oracle.reference_last_token_reward(hidden=hidden, head=head, mask=mask)
    expected = oracle.kwise(rewards, ranks, prompt_id)
    close("ranking_loss", loss.item(), expected.item())
    of = (head, encoder.embed.weight)
    for name, found, wanted in zip(
        ("head", "the embedding"), torch.autograd.grad(loss, of), torch.autograd.grad(expected, of),
        strict=True,
    ):  # fmt: skip
        close(f"the gradient of {name}", found.flatten().tolist(), wanted.flatten().tolist())
    cost.check("evaluations", rows / len(tokens))


def test_a_utility_is_found_again(kata, oracle, cost, one_thread):
    encoder, head = oracle.Encoder(), torch.full((8,), 0.1, requires_grad=True)
    optimizer = torch.optim.Adam([head, *encoder.parameters()], lr=0.05)
    for step in range(60):
        optimizer.zero_grad()
        kata.ranking_loss(encoder, head, *oracle.preferences(8, 4, step)).backward()
        optimizer.step()
    tokens, mask, ranks, prompt_id = oracle.preferences(40, 4, 1000)
    with torch.no_grad():
        rewards = kata.last_token_reward(encoder(tokens, mask), head, mask)
    cost.check("accuracy", oracle.accuracy(rewards, ranks, prompt_id))
