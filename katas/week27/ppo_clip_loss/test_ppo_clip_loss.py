"""Which tokens pull and how far, who is passed through and when, and loops that learn."""

import copy
import inspect
import math
from itertools import chain

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

NAN = math.nan
STATS = ("policy_loss", "value_loss", "ratio", "clip_fraction", "approx_kl")


def close(what, found, expected, rel=2e-6):
    found, expected = (
        torch.as_tensor(x, dtype=torch.float64).flatten().tolist() for x in (found, expected)
    )
    wanted = pytest.approx(expected, rel=rel, abs=1e-7)
    assert found == wanted, f"{what}: {found}, expected {expected}"


def one_row(ratios, adv):
    """Arguments of a loss that is the policy's alone, for these ratios."""
    zeros = torch.zeros(1, len(ratios))
    return {
        "logp": torch.tensor([ratios]).log(), "old_logp": zeros, "adv": torch.tensor([adv]),
        "values": zeros, "old_values": zeros, "returns": zeros,
        "mask": torch.ones(1, len(ratios), dtype=torch.bool),
    }  # fmt: skip


# ---- losses --------------------------------------------------------------------------------


def test_losses_by_hand(kata):
    # 1.5 is clipped for a gain and not for a loss, 0.5 the other way round
    given = one_row([1.5, 1.5, 0.5, 0.5], [1.0, -1.0, 1.0, -1.0])
    given["logp"].requires_grad_()
    # moved by 0.5, taken for 0.2: errors 1.5 and 1.8, so the larger is the clipped one's
    given["values"] = torch.full((1, 4), 0.5, requires_grad=True)
    given["returns"] = torch.full((1, 4), 2.0)
    loss, stats = kata.ppo_loss(**given)
    policy, value = (-1.2 + 1.5 - 0.5 + 0.8) / 4, 1.8**2 / 2
    close("policy_loss", stats["policy_loss"].item(), policy)
    close("value_loss", stats["value_loss"].item(), value)
    close("the loss", loss.item(), policy + 0.1 * value)
    close("clip_fraction", stats["clip_fraction"].item(), 0.5)
    close("ratio", stats["ratio"].item(), 1.0)
    expected = ((0.5 - math.log(1.5)) + (-0.5 - math.log(0.5))) / 2
    close("approx_kl", stats["approx_kl"].item(), expected)
    loss.backward()
    found = given["logp"].grad.tolist()
    close("the gradient of logp", found, [[0.0, 1.5 / 4, -0.5 / 4, 0.0]])
    close("the gradient of values", given["values"].grad.tolist(), [[0.0] * 4])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("b", "t"), [(1, 1), (3, 7), (5, 40)])
def test_losses_are_those_of_single_tokens(kata, oracle, seed, b, t, dtype):
    given = oracle.draw(b, t, seed, dtype)
    rel = 1e-9 if dtype == torch.float64 else 2e-4  # differences of log-probabilities
    for clip, vclip, coefficient in ((0.2, 0.2, 0.1), (0.1, 0.5, 0.7)):
        for name in ("logp", "values"):
            given[name] = given[name].detach().requires_grad_()
        loss, stats = kata.ppo_loss(**given, clip=clip, vclip=vclip, vf_coef=coefficient)
        expected, d_logp, d_values = oracle.losses(given, clip, vclip)
        assert sorted(stats) == sorted(STATS)
        for name in STATS:
            close(name, stats[name].item(), expected[name], rel * 10)
            assert not stats[name].requires_grad, f"{name} has a gradient, expected none"
            assert stats[name].dtype == loss.dtype == dtype
        whole = expected["policy_loss"] + coefficient * expected["value_loss"]
        close("the loss", loss.item(), whole, rel * 10)
        loss.backward()
        close("the gradient of logp", given["logp"].grad.tolist(), d_logp.tolist(), rel)
        found = given["values"].grad.tolist()
        close("the gradient of values", found, (d_values * coefficient).tolist(), rel)


def test_an_unchanged_policy_has_ratio_one(kata, oracle, seed):
    given = oracle.draw(4, 9, seed, torch.float32)
    logp = given["logp"].requires_grad_()
    given["old_logp"] = logp  # not only equal: the same tensor
    given["old_values"] = given["values"]
    loss, stats = kata.ppo_loss(**given, vf_coef=0.0)
    real = given["adv"][given["mask"]]
    close("the loss", loss.item(), -real.mean().item())
    found = [stats[name].item() for name in ("ratio", "clip_fraction", "approx_kl")]
    close("ratio, clip_fraction, approx_kl", found, [1.0, 0.0, 0.0])
    loss.backward()
    expected = (-given["adv"] * given["mask"] / len(real)).tolist()
    close("the gradient of logp", logp.grad.tolist(), expected)


def test_only_what_is_learnt_has_a_gradient(kata, oracle, seed):
    given = oracle.draw(3, 5, seed, torch.float32)
    tensors = [name for name in given if name != "mask"]
    for name in tensors:
        given[name].requires_grad_()
    kata.ppo_loss(**given)[0].backward()
    found = {name for name in tensors if given[name].grad is not None and given[name].grad.any()}
    assert found <= {"logp", "values"}, f"gradients went to {found}, expected logp and values"


@given(st.integers(1, 4), st.integers(1, 6), st.integers(0, 3), st.integers(0, 999))
def test_padding_changes_nothing(kata, oracle, b, t, more, draw):
    given = oracle.draw(b, t, draw, torch.float32)
    padded = {"mask": torch.cat([given["mask"], torch.zeros(b, more).bool()], dim=1)}
    for name, x in given.items():
        if name != "mask":
            wide = torch.cat([x, torch.zeros(b, more)], dim=1)
            padded[name] = torch.where(padded["mask"], wide, NAN)
    for name in ("logp", "values"):
        given[name].requires_grad_()
        padded[name].requires_grad_()
    told = f"{b} rows of {t} tokens, {more} more"
    loss, stats = kata.ppo_loss(**given)
    with_padding, other_stats = kata.ppo_loss(**padded)
    close(f"the loss of {told}", with_padding.item(), loss.item())
    for name in STATS:
        close(f"{name} of {told}", other_stats[name].item(), stats[name].item())
    loss.backward()
    with_padding.backward()
    for name in ("logp", "values"):
        found = padded[name].grad
        close(f"the gradient of {name}", found[:, :t].tolist(), given[name].grad.tolist())
        assert not found[~padded["mask"]].any(), f"{name}: padding has a gradient, expected 0"


def test_ratios_out_of_all_proportion_stay_finite(kata):
    given = one_row([1.0] * 4, [1.0, -1.0, 1.0, -1.0])
    given["logp"] = torch.tensor([[120.0, 120.0, -120.0, -120.0]], requires_grad=True)
    loss, stats = kata.ppo_loss(**given)
    large = math.exp(20)
    small = math.exp(-20)
    close("the loss", loss.item(), (-1.2 + large - small + 0.8) / 4)
    kl = (2 * (large - 1 - 20) + 2 * (small - 1 + 20)) / 4
    close("approx_kl", stats["approx_kl"].item(), kl)
    loss.backward()
    close("the gradient of logp", given["logp"].grad, torch.zeros(1, 4))  # flat beyond the limit
    given["logp"] = torch.full((1, 4), -120.0)
    _, stats = kata.ppo_loss(**given)
    close("approx_kl of improbable tokens", stats["approx_kl"], small - 1 + 20)


def test_half_precision_is_widened(kata):
    # the second difference is no float16: it has more digits than either of the two
    given = one_row([1.0, 1.0], [1.0, -3.0])
    given = {name: x.half() if name != "mask" else x for name, x in given.items()}
    given["logp"] = torch.tensor([[-100.0625, -0.12347]], dtype=torch.float16)
    given["old_logp"] = torch.tensor([[-100.0, -2.002]], dtype=torch.float16)
    loss, _ = kata.ppo_loss(**given)
    assert loss.dtype == torch.float32
    ratios = (given["logp"].double() - given["old_logp"].double()).exp()[0].tolist()
    close("the loss", loss.item(), (-ratios[0] + 3 * ratios[1]) / 2)


def test_entropy_is_rewarded(kata, oracle, seed):
    given = oracle.draw(3, 5, seed, torch.float32)
    entropy = torch.where(given["mask"], torch.rand(3, 5), NAN).requires_grad_()
    plain, _ = kata.ppo_loss(**given)
    found, _ = kata.ppo_loss(**given, entropy=entropy, ent_coef=0.3)
    mean = entropy[given["mask"]].mean().item()
    close("the bonus", (plain - found).item(), 0.3 * mean, 1e-4)
    close(
        "the bonus", (plain - kata.ppo_loss(**given, entropy=entropy)[0]).item(), 0.01 * mean, 1e-2
    )
    found.backward()
    expected = (-0.3 / given["mask"].sum() * given["mask"]).tolist()
    close("the gradient of entropy", entropy.grad.tolist(), expected)


# ---- one batch -----------------------------------------------------------------------------


def written(kata, oracle, policy, n, seed):
    """Write a batch with gains drawn at random."""
    generator = torch.Generator().manual_seed(seed)
    tokens, mask = policy.sample(n, generator)
    with torch.no_grad():
        logp, values = policy.eval()(tokens)
    policy.seen.clear()
    gains = torch.randn(n, oracle.LENGTH, generator=generator)
    return kata.Batch(
        tokens=tokens, mask=mask, old_logp=logp, old_values=values, adv=gains, returns=gains
    )


def adam(policy, lr=0.01):
    return torch.optim.Adam(policy.parameters(), lr=lr)


def order_of(seen, batch):
    """Say which rows of a batch the passes have seen."""
    places = {tuple(row): at for at, row in enumerate(batch.tokens.tolist())}
    return [[places[tuple(row)] for row in tokens.tolist()] for tokens in seen]


def test_an_epoch_is_all_rows_in_a_new_order(kata, oracle, one_thread, seed):
    policy = oracle.Stateless()
    batch = written(kata, oracle, policy, 10, seed)
    generator = torch.Generator().manual_seed(seed)
    found = kata.ppo_update(policy, adam(policy), batch, 3, 4, generator=generator)
    parts = order_of(policy.seen, batch)
    sizes = [len(part) for part in parts]
    assert sizes == [4, 4, 2] * 3, f"rows of each pass: {sizes}, expected {[4, 4, 2] * 3}"
    epochs = [[*chain(*parts[at : at + 3])] for at in (0, 3, 6)]
    for order in epochs:
        assert sorted(order) == list(range(10)), f"rows of an epoch: {order}, expected each once"
    assert len({tuple(order) for order in [*epochs, range(10)]}) == 4, f"orders: {epochs}"
    assert found["steps"] == 9
    assert sorted(found) == ["approx_kl", "clip_fraction", "first_ratio", "steps"]


def test_an_update_is_made_of_its_minibatches(kata, oracle, one_thread, seed):
    policies = [oracle.Bigram(seed=seed) for _ in range(2)]
    batch = written(kata, oracle, policies[0], 6, seed)
    for weight in policies[0].parameters():
        weight.grad = torch.ones_like(weight)  # of something else
    found = kata.ppo_update(policies[0], adam(policies[0]), batch, epochs=2, minibatch=6)
    optimizer = adam(policies[1])
    for _ in range(2):
        logp, values = policies[1](batch.tokens)
        loss, stats = kata.ppo_loss(
            logp, batch.old_logp, batch.adv, values, batch.old_values, batch.returns, batch.mask
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for name in ("approx_kl", "clip_fraction"):
        close(f"{name} of the second pass", found[name], stats[name].item(), 1e-4)
    for ours, theirs in zip(policies[0].parameters(), policies[1].parameters(), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5), "parameters after two steps differ"


def test_dropout_is_off_while_learning(kata, oracle, one_thread, seed):
    policy = oracle.Bigram(dropout=0.5, seed=seed)
    batch = written(kata, oracle, policy, 8, seed)
    policy.train()
    found = kata.ppo_update(policy, adam(policy), batch, epochs=1, minibatch=8)
    close("first_ratio", found["first_ratio"], 1.0, 1e-5)


@pytest.mark.parametrize("target_kl", [1e-4, 0.0], ids=str)
def test_a_policy_that_has_moved_too_far_stops(kata, oracle, one_thread, seed, target_kl):
    policy = oracle.Stateless()
    batch = written(kata, oracle, policy, 12, seed)
    optimizer = adam(policy, lr=0.5)
    before = policy.logits.detach().clone()
    found = kata.ppo_update(policy, optimizer, batch, 2, 4, target_kl=target_kl)
    # the second pass sees what the first step has done
    assert (found["steps"], len(policy.seen)) == (1, 2), "steps and passes, expected 1 and 2"
    assert found["approx_kl"] > target_kl
    moved = (policy.logits - before).abs().max().item()
    close("the first step of Adam", moved, 0.5, 1e-3)
    close("first_ratio", found["first_ratio"], 1.0, 1e-5)


# ---- loops that learn ----------------------------------------------------------------------


def train(kata, oracle, policy, steps, lr=0.01, ref=None, score=None, **options):
    ref = copy.deepcopy(policy) if ref is None else ref
    score = oracle.share_of_liked if score is None else score
    return kata.ppo_train(policy, ref, score, adam(policy, lr), steps, **options)


def test_a_step_learns_from_what_was_written(kata, oracle, monkeypatch, one_thread, seed):
    policy, ref = oracle.Bigram(seed=seed), oracle.Bigram(seed=seed + 1).eval()
    learnt, scored, drawn = [], [], []
    signature, update = inspect.signature(kata.ppo_update), kata.ppo_update
    write = policy.sample

    def sample(n, generator):
        drawn.append(generator)
        return write(n, generator)

    def spy(*args, **kwargs):
        arguments = signature.bind(*args, **kwargs).arguments
        learnt.append(arguments["batch"])
        drawn.append(arguments.get("generator"))
        return update(*args, **kwargs)

    def score(tokens, mask):
        scored.append((tokens, mask))
        return (tokens * mask).sum(1) / 10

    monkeypatch.setattr(kata, "ppo_update", spy)
    before = copy.deepcopy(policy)
    policy.sample = sample
    (found,) = train(
        kata, oracle, policy, 1, ref=ref, score=score, batch=80, beta=0.3, lam=1.0, seed=seed
    )
    ((tokens, mask),) = scored
    (batch,) = learnt
    assert drawn[0] is drawn[1], "generators: ppo_update got another one than sample"
    kept = [name for name in kata.Batch.__slots__ if getattr(batch, name).requires_grad]
    assert kept == [], f"with a gradient in the batch: {kept}, expected none"
    with torch.no_grad():
        logp, ref_logp = before(tokens)[0], ref(tokens)[0]
    log_ratio = (logp - ref_logp).double()
    close("kl", found["kl"], log_ratio[mask].mean().item(), 1e-4)
    scores = (tokens * mask).sum(1) / 10
    close("score", found["score"], scores.mean().item())
    gains = []
    for row in range(80):
        length = int(mask[row].sum())
        for at in range(length):
            # without discounts: the score, and the penalties still to come
            expected = scores[row].item() - 0.3 * log_ratio[row, at:length].sum().item()
            told = f"the return at {at} of {length} tokens"
            close(told, batch.returns[row, at].item(), expected, 1e-4)
            gains.append(expected - batch.old_values[row, at].item())
    real = batch.adv[mask]
    gains = torch.tensor(gains, dtype=torch.float64)
    gains = (gains - gains.mean()) / gains.std(correction=0)
    assert torch.allclose(real.double(), gains, atol=1e-3), "advantages, expected whitened ones"
    assert torch.allclose(batch.old_logp[mask], logp[mask], atol=1e-5), "old_logp"
    assert mask.sum() < mask.numel(), "expected sequences that end early"


def test_advantages_that_are_all_equal_are_0(kata, oracle, one_thread):
    policy = oracle.Stateless()
    mask = torch.arange(oracle.LENGTH).expand(1, -1) == 0  # one token, and no spread
    policy.sample = lambda n, generator: (torch.zeros(1, oracle.LENGTH, dtype=torch.int64), mask)
    train(kata, oracle, policy, 1, ref=oracle.Stateless().eval(), batch=1)
    found = policy.logits.tolist()
    assert found == [0.0] * len(found), f"logits after a step without advantages: {found}"


def test_ratios_begin_at_one_in_every_step(kata, oracle, one_thread):
    policy = oracle.Bigram(dropout=0.5).train()
    ref = oracle.Bigram(seed=1).eval()
    before = copy.deepcopy(ref.state_dict())
    history = train(kata, oracle, policy, 3, ref=ref, batch=12, epochs=2, minibatch=5, seed=4)
    found = [entry["first_ratio"] for entry in history]
    close("first_ratio", found, [1.0] * 3, 1e-5)
    assert policy.sequences == 36
    assert len(policy.seen) == 3 * (1 + 2 * 3), f"{len(policy.seen)} passes, expected 21"
    assert len(ref.seen) == 3, f"{len(ref.seen)} passes of the reference, expected 3"
    assert all(torch.equal(old, ref.state_dict()[name]) for name, old in before.items())
    assert all(weight.grad is None for weight in ref.parameters()), "ref has gradients"


def test_the_same_seed_learns_the_same(kata, oracle, one_thread):
    found = []
    for seed in (5, 5, 6):
        torch.manual_seed(len(found))  # which is nobody's to use
        found.append(train(kata, oracle, oracle.Bigram(), 2, batch=16, minibatch=8, seed=seed))
    assert found[0] == found[1], "histories of one seed differ"
    assert found[0] != found[2], "histories of two seeds are the same"
    policy = oracle.Stateless()
    train(kata, oracle, policy, 2, lr=0.0, batch=16, epochs=1, minibatch=16)
    first, _, second, _ = policy.seen
    assert not torch.equal(first, second), "two steps of an unchanged policy wrote the same"


def test_tokens_are_liked_as_much_as_theory_says(kata, oracle, cost, one_thread):
    policy = oracle.Stateless()
    train(kata, oracle, policy, 60, lr=0.03, epochs=2, minibatch=64, lam=1.0)
    p = policy.logits.detach().softmax(0)
    # the best for r = 1/8 a token and beta = 0.05: exp(2.5) / (exp(2.5) + 15)
    expected = math.exp(2.5) / (math.exp(2.5) + 15)
    found = p[oracle.LIKED].item()
    assert abs(found - expected) < 0.05, f"p(liked) is {found:.3f}, expected {expected:.3f} ± 0.05"


def test_few_sequences_are_enough(kata, oracle, cost, one_thread):
    policy = oracle.Bigram()
    history = train(kata, oracle, policy, 16, beta=0.0)
    scores = [entry["score"] for entry in history]
    good = [at for at, score in enumerate(scores) if score >= 0.9]
    # what is scored at a step was learnt from those before it
    cost.check("sequences", 128 * (good[0] if good else len(scores) + 1))
    passes = 16 * (1 + 4 * 4)
    cost.check("passes", len(policy.seen) / passes)


# ---- bad input -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["old_logp", "adv", "values", "old_values", "returns", "mask"])
def test_shapes_are_those_of_logp(kata, oracle, name):
    given = oracle.draw(3, 4, 0, torch.float32)
    for wrong in (given[name][:, :3], given[name].T, given[name][:1]):
        with pytest.raises(ValueError, match=f"^{name}: "):
            kata.ppo_loss(**{**given, name: wrong})


def test_what_else_is_refused(kata, oracle):
    given = oracle.draw(3, 4, 0, torch.float32)
    for name, value in (
        ("mask", given["mask"] & False), ("clip", 0.0), ("clip", -0.2), ("vclip", 0.0),
        ("vclip", NAN), ("entropy", torch.zeros(3, 5)),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"^{name}: "):
            kata.ppo_loss(**{**given, name: value})
