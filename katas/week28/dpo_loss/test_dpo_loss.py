"""What a preference pulls at, which tokens count, and how often each model runs."""

import math

import pytest
import torch

from harness.meters.dispatch import flop_meter

KINDS = {
    "sigmoid": ("sigmoid", 0.0),
    "smoothed": ("sigmoid", 0.3),
    "hinge": ("hinge", 0.0),
    "ipo": ("ipo", 0.0),
}


def close(expected):
    return pytest.approx(expected, rel=2e-5, abs=1e-6)


def numbers(*values):
    return torch.tensor(values, dtype=torch.float64)


def rounding(logps):
    """Bound the error of a difference of such log-probabilities, sums in float32."""
    return 8 * torch.finfo(torch.float32).eps * max(abs(one) for one in logps)


# ---- the loss of a pair ------------------------------------------------------------------------


def test_by_hand(kata):
    # chosen: -9 where it was -10, rejected: -8 where it was -6, so a margin of 0.5 * 3
    given = [numbers(value) for value in (-9.0, -8.0, -10.0, -6.0)]
    loss, chosen, rejected, margin = kata.dpo_loss(*given, beta=0.5)
    assert (chosen.item(), rejected.item(), margin.item()) == (0.5, -1.0, 1.5)
    assert loss.item() == close(math.log(1 + math.exp(-1.5)))
    assert kata.dpo_loss(*given, beta=0.5, kind="ipo")[0].item() == close(4.0)
    assert kata.dpo_loss(*given, beta=0.25, kind="hinge")[0].item() == close(0.25)


def test_policy_that_is_the_reference_cannot_tell(kata, seed):
    generator = torch.Generator().manual_seed(seed)
    w, l = -50 * torch.rand(2, 6, generator=generator, dtype=torch.float64)  # noqa: E741
    for smoothing in (0.0, 0.3):
        loss, *_, margin = kata.dpo_loss(w, l, w, l, 0.1, smoothing)
        assert loss.item() == close(math.log(2)), f"label_smoothing = {smoothing}"
        assert not margin.any()


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_gradients_are_those_derived_by_hand(kata, oracle, device, seed, kind):
    kind, smoothing = kind
    given = oracle.make_inputs(
        pairs=9, dtype=torch.float64, device=device, seed=seed, kind=kind,
        label_smoothing=smoothing,
    )  # fmt: skip
    leaves = [given[name].requires_grad_() for name in ("pw", "pl", "rw", "rl")]
    loss, chosen, rejected, margin = kata.dpo_loss(**given)
    loss.backward()
    want = oracle.gradients(**given).detach()
    pw, pl, rw, rl = (leaf.grad for leaf in leaves)
    right = [pytest.approx(one.tolist(), rel=1e-9, abs=1e-12) for one in (want, -want)]
    assert pw.tolist() == right[0], f"{kind}: gradient of pw"
    assert pl.tolist() == right[1], f"{kind}: gradient of pl"
    assert rw is None and rl is None, "the reference has a gradient"  # noqa: PT018
    told = [one.requires_grad for one in (chosen, rejected, margin)]
    assert told == [False] * 3, "rewards and margin have gradients"


def test_the_optimum_is_the_closed_form(kata, oracle):
    """On five arms: π_ref · exp(r / β) / Z, where labels follow Bradley and Terry."""
    beta, reward = 0.5, numbers(1.0, 0.6, 0.2, -0.1, -0.7)
    before = numbers(0.3, -0.2, 0.5, 0.0, 1.0).log_softmax(0)
    logits = before.clone().requires_grad_()
    optimizer = torch.optim.LBFGS([logits], max_iter=60, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        now, total = logits.log_softmax(0), 0
        for w in range(5):
            for l in range(w + 1, 5):  # noqa: E741 -- the worse arm, which wins so often:
                wrong = torch.sigmoid(reward[l] - reward[w]).item()
                pair = (now[w : w + 1], now[l : l + 1], before[w : w + 1], before[l : l + 1])
                total = total + kata.dpo_loss(*pair, beta, wrong)[0]
        total.backward()
        return total

    optimizer.step(closure)
    found = logits.detach().softmax(0).tolist()
    want = (before + reward / beta).softmax(0).tolist()
    assert found == pytest.approx(want, abs=1e-3)


# ---- which tokens count ------------------------------------------------------------------------


def test_what_the_mask_leaves_out_may_be_anything(kata, device):
    mask = torch.tensor([[False, True, True, False], [True, False, False, False]], device=device)
    logp = torch.tensor([[math.nan, -1.0, -2.0, -math.inf], [-3.0, 9.0, math.inf, math.nan]])
    logp = logp.to(device).requires_grad_()
    found = kata.sequence_logp(logp, mask)
    assert found.tolist() == [-3.0, -3.0]
    found.sum().backward()
    assert logp.grad.tolist() == mask.float().tolist()


def test_a_row_without_tokens_is_refused(kata):
    mask = torch.tensor([[True, False], [False, False]])
    with pytest.raises(ValueError, match="^mask: "):
        kata.sequence_logp(torch.zeros(2, 2), mask)


def test_a_longer_response_weighs_more(kata, oracle):
    """Sums, not means: twice the tokens, each as much likelier, are twice the reward."""
    logp, before = torch.full((2, 4), -1.0), torch.full((2, 4), -1.5)
    mask = torch.tensor([[True, True, True, True], [True, True, False, False]])
    now, then = (kata.sequence_logp(one, mask) for one in (logp, before))
    _, chosen, rejected, _ = kata.dpo_loss(now[:1], now[1:], then[:1], then[1:], 0.5)
    assert (chosen.item(), rejected.item()) == (1.0, 0.5)


# ---- the reference -----------------------------------------------------------------------------


def test_the_cache_knows_responses_by_content(kata, oracle, device, seed):
    pairs = oracle.pairs_of(kata.Pair, 9, seed)
    # the same text, cut elsewhere; and a pair turned round
    pairs += [kata.Pair((1, 2), (3, 4), (5,)), kata.Pair((1, 2, 3), (4,), (5,))]
    pairs += [kata.Pair((1, 2), (5,), (3, 4))]
    reference = oracle.rested(oracle.Policy(seed).double().to(device))
    cache = kata.RefCache()
    cache.precompute(reference, iter(pairs), rows=4)
    some = [pairs[at] for at in (11, 3, 9, 10, 0, 3)]
    for name, found in zip(("chosen", "rejected"), cache.get(some), strict=True):
        want = [oracle.response_logp(reference, one.prompt, getattr(one, name)) for one in some]
        assert found.dtype == torch.float64
        assert found.tolist() == pytest.approx(want, rel=1e-10), f"the {name} of {some}"
    unknown = kata.Pair(pairs[0].prompt, pairs[0].chosen, (7,) * 9)
    with pytest.raises(ValueError, match="^pairs: "):
        cache.get([pairs[0], unknown])


def test_each_response_is_run_once(kata, oracle, cost):
    # two prompts with responses of their own; of each all pairs but one are labelled
    pairs = []
    for prompt in ((1,), (1, 2), (3,)):
        answers = [(4,), (5, 6), (7,), (8, 9, 10), (prompt[0], 11)]
        pairs += [kata.Pair(prompt, answers[0], one) for one in answers[1:]]
    reference = oracle.rested(oracle.Policy(0))
    kata.RefCache().precompute(reference, iter(pairs), rows=7)
    cost.check("reference_sequences", reference.sequences)
    assert reference.calls == 3, f"forward passes for {reference.sequences} responses, 7 at a time"


def test_later_values_replace_the_earlier(kata, oracle, device):
    pairs = [kata.Pair((1,), (2, 3), (4,)), kata.Pair((5,), (6,), (7,))]
    one, other = (oracle.rested(oracle.Policy(at).to(device)) for at in (0, 1))
    cache = kata.RefCache()
    cache.precompute(one, pairs)
    cache.precompute(other, pairs[:1])
    found = [each.tolist() for each in cache.get(pairs)]
    want = [
        [oracle.response_logp(model, pair.prompt, getattr(pair, name))
         for model, pair in zip((other, one), pairs, strict=True)]
        for name in ("chosen", "rejected")
    ]  # fmt: skip
    assert found == [close(each) for each in want]
    assert kata.RefCache().get([])[0].shape == (0,), "an empty cache, asked for nothing"
    with pytest.raises(ValueError, match="^pairs: "):
        kata.RefCache().get(pairs)  # another cache, which knows nothing


def test_the_reference_runs_without_dropout_and_gradients(kata, oracle, device, seed):
    pairs = [kata.Pair((at,), (at + 1, at + 2), (at + 3,)) for at in range(8)]
    reference = oracle.Policy(seed, dropout=0.5).to(device)
    reference.train()
    reference.inner.eval()  # as somebody left it
    before = {name: module.training for name, module in reference.named_modules()}
    cache = kata.RefCache()
    cache.precompute(reference, pairs)
    assert reference.graphs == 0, "forward passes that autograd followed"
    found = reference.calls, reference.largest
    assert found == (2, 8), "16 responses by default: forward passes, and the most in one"
    after = {name: module.training for name, module in reference.named_modules()}
    assert after == before, "training mode of the modules"
    learning = {weight.requires_grad for weight in reference.parameters()}
    assert learning == {True}, "requires_grad of the reference's parameters"
    still = oracle.rested(reference)
    want = [oracle.response_logp(still, one.prompt, one.chosen) for one in pairs]
    assert cache.get(pairs)[0].tolist() == close(want)


def test_a_reference_that_raises_gets_its_modes_back(kata, oracle):
    reference = oracle.Policy(0).train()
    reference.inner.eval()
    reference.outer.register_forward_hook(lambda *_: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        kata.RefCache().precompute(reference, [kata.Pair((1,), (2,), (3,))])
    found = {name: module.training for name, module in reference.named_modules()}
    assert found == {name: name != "inner" for name in found}, "training mode of the modules"


def test_adapters_are_no_part_of_the_reference(kata, oracle, device, seed):
    pairs = oracle.pairs_of(kata.Pair, 5, seed)
    policy = oracle.Adapted(oracle.Policy(seed).to(device), seed + 1).to(device)
    cache = kata.RefCache()
    cache.precompute(policy, pairs)
    assert policy.enabled, "the adapter: expected to be on again"
    base = oracle.rested(policy.base)
    want = [oracle.response_logp(base, one.prompt, one.rejected) for one in pairs]
    assert cache.get(pairs)[1].tolist() == close(want)


# ---- a step ------------------------------------------------------------------------------------


def test_a_step_is_one_forward_pass(kata, oracle, device, cost, seed):
    pairs = oracle.pairs_of(kata.Pair, 5, seed)
    pairs.append(pairs[1])  # which counts twice
    policy, reference = (oracle.Policy(seed + at).to(device) for at in range(2))
    cache = kata.RefCache()
    cache.precompute(reference, pairs)
    longest = max(len(one.prompt) + max(len(one.chosen), len(one.rejected)) for one in pairs)
    tokens = torch.zeros(12, longest, dtype=torch.int64, device=device)
    with flop_meter() as forward:
        policy(tokens)
    policy, reference = oracle.rested(policy).train(), oracle.rested(reference)
    with flop_meter() as both:
        loss, chosen, rejected, margin = kata.dpo_step(policy, pairs[::-1], cache, 0.1)
        loss.backward()
    assert policy.training, "the policy: expected to be in training mode still"
    dtypes = [one.dtype for one in (loss, chosen, rejected, margin)]
    assert dtypes == [torch.float32] * 4, "dtypes of what a step returns"
    cost.check("policy_forwards", policy.calls)
    cost.check("reference_forwards", reference.calls)
    cost.check("flops", both.flops / (3 * forward.flops))

    now, before = (
        numbers(*[
            [oracle.response_logp(model, one.prompt, answer)
             for answer in (one.chosen, one.rejected)]
            for one in pairs[::-1]
        ])
        for model in (policy, reference)
    )  # fmt: skip
    error = 0.1 * rounding(now.flatten().tolist() + before.flatten().tolist())
    rewards = 0.1 * (now - before)
    assert chosen.tolist() == pytest.approx(rewards[:, 0].tolist(), rel=0, abs=error)
    assert rejected.tolist() == pytest.approx(rewards[:, 1].tolist(), rel=0, abs=error)
    want = (rewards[:, 0] - rewards[:, 1]).tolist()
    assert margin.tolist() == pytest.approx(want, rel=0, abs=2 * error)
    mean = sum(math.log1p(math.exp(-one)) for one in want) / 6
    assert loss.item() == pytest.approx(mean, rel=1e-6, abs=2 * error)


def test_half_precision_logits_are_widened(kata, oracle, seed):
    class Half(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = oracle.Policy(seed)

        def forward(self, tokens):
            return (100 * self.inner(tokens)).half()  # probabilities that are no float32

    pairs, model = oracle.pairs_of(kata.Pair, 8, seed), Half()
    cache = kata.RefCache()
    cache.precompute(model, pairs)
    want = [oracle.response_logp(model, one.prompt, one.chosen) for one in pairs]
    assert cache.get(pairs)[0].tolist() == close(want)


def test_training_prefers_what_was_chosen(kata, oracle, one_thread):
    pairs, held_out = (oracle.pairs_of(kata.Pair, count, at) for at, count in ((1, 24), (2, 16)))
    reference, policy = oracle.Policy(5), oracle.Policy(5)
    cache = kata.RefCache()
    cache.precompute(reference, [*pairs, *held_out])
    optimizer, margins = torch.optim.Adam(policy.parameters(), lr=0.02), []
    for step in range(25):
        batch = [pairs[(step * 8 + at) % 24] for at in range(8)]
        optimizer.zero_grad()
        loss, *_, margin = kata.dpo_step(policy, batch, cache, 0.2)
        loss.backward()
        optimizer.step()
        margins.append(margin.mean().item())
    error = 0.2 * 2 * rounding(torch.cat(cache.get(pairs)).tolist())
    assert margins[0] == pytest.approx(0.0, abs=error), "the mean margin of the first step"
    with torch.no_grad():
        *_, margin = kata.dpo_step(policy, held_out, cache, 0.2)
    accuracy = (margin > 0).double().mean().item()
    assert accuracy >= 0.9, f"margins of held-out pairs: {margin.tolist()}"
    assert margins[-1] > 1, f"mean margins over training: {margins}"


def test_a_step_refuses(kata, oracle):
    policy, cache = oracle.Policy(0), kata.RefCache()
    whole = kata.Pair((3,), (1,), (2,))
    for empty in (kata.Pair((), (1,), (2,)), kata.Pair((3,), (), (2,)), kata.Pair((3,), (1,), ())):
        with pytest.raises(ValueError, match="^dataset: "):
            cache.precompute(policy, [whole, empty])
        with pytest.raises(ValueError, match="^pairs: "):
            kata.dpo_step(policy, [empty], cache, 0.1)
    for pairs in ([], [whole]):  # nobody has run the reference
        with pytest.raises(ValueError, match="^pairs: "):
            kata.dpo_step(policy, pairs, cache, 0.1)
    assert policy.calls == 0, "forward passes for what is refused"
    cache.precompute(oracle.Policy(1), [whole])
    with pytest.raises(ValueError, match="^beta: "):
        kata.dpo_step(policy, [whole], cache, 0.0)
    assert policy.calls == 0, "forward passes for what is refused"
