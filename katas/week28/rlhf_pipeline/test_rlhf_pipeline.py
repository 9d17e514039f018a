"""What each stage trains and against what, and what a kill at any moment costs."""

from functools import cache

import pytest
import torch

SHORT = {"sft": 9, "dpo": 7, "grpo": 6, "every": 3}


def close(expected):
    return pytest.approx(expected, rel=1e-4, abs=1e-5)


@cache
def full(kata, oracle):
    """One run of all stages, and what it left behind."""
    model, data = oracle.Model(0), oracle.Data(0)
    store = oracle.Store(model)
    return model, data, store, kata.run(model, data, kata.Config(), store)


def adapters(model):
    return {slot: [one.detach().clone() for one in model.adapter(slot)] for slot in model.slots}


# ---- what each stage learns --------------------------------------------------------------------


@pytest.mark.parametrize("stage", ["sft", "dpo", "grpo"])
def test_first_steps_are_those_of_the_plain_loop(kata, oracle, device, seed, stage):
    # a heavy divergence: Adam alone would not mind a loss that is a multiple of the right one
    cfg = kata.Config(sft=5, dpo=4, grpo=4, kl=2.0, seed=seed % 99)
    data = oracle.Data(seed % 1000, device)
    one, other = (oracle.Model(seed % 1000, device) for _ in range(2))
    stages = ["sft"] if stage == "sft" else ["sft", stage]
    report = kata.run(one, data, cfg, oracle.Store(one), stages)
    other.add("sft")
    if stage != "sft":
        oracle.first_steps("sft", other, data, cfg, steps=5)
        other.add(stage, like="sft")
    want = oracle.first_steps(stage, other, data, cfg)
    assert list(report.losses) == stages
    notes = {"sft": [], "dpo": [report.margins], "grpo": [report.rewards, report.divergences]}
    found = [one[:4] for one in (report.losses[stage], *notes[stage])]
    names = {"sft": [], "dpo": ["margins"], "grpo": ["rewards", "divergences"]}
    for name, values, right in zip(["losses", *names[stage]], found, want, strict=True):
        assert values == close(right), f"{name} of the first steps of {stage}"


def test_instructions_are_learned(kata, oracle):
    model, _, _, report = full(kata, oracle)
    losses = report.losses["sft"]
    assert len(losses) == kata.Config().sft
    assert losses[-1] < 0.8 * losses[0], f"losses of sft: {losses[0]} to {losses[-1]}"
    assert model.fingerprint() == oracle.Model(0).fingerprint(), "the base was written to"


def test_preferences_are_learned(kata, oracle):
    model, data, _, report = full(kata, oracle)
    assert report.margins[0] == 0.0, "the first margin: the policy is the reference still"
    assert len(report.margins) == kata.Config().dpo
    tokens, mask = data.pairs(500, 48)
    logps = []
    for slot in ("dpo", "sft"):
        model.use(slot)
        with torch.no_grad():
            logps.append((model(tokens) * mask).sum(1))
    chosen, rejected = (logps[0] - logps[1]).chunk(2)
    assert (chosen > rejected).double().mean().item() >= 0.8, "held-out pairs told apart"
    won = kata.win_rate(model, data, data.prompts(900, 64), "dpo", seed=5)
    assert won >= 0.65, "win rate of dpo over sft on held-out prompts"


def test_rewards_are_learned(kata, oracle):
    model, data, _, report = full(kata, oracle)
    told = f"mean rewards: {report.rewards}"
    assert len(report.rewards) == len(report.divergences) == kata.Config().grpo
    assert sum(report.rewards[-5:]) / 5 >= 0.8, told
    assert report.divergences[0] == 0.0, "the first divergence: the policy is the reference still"
    assert report.divergences[-1] > 0
    assert kata.win_rate(model, data, data.prompts(901, 64), "grpo", seed=6) >= 0.65


def test_the_reference_stays(kata, oracle):
    """Later stages leave "sft" as it was, to the bit."""
    data, cfg = oracle.Data(3), kata.Config(**SHORT)
    one, other = oracle.Model(3), oracle.Model(3)
    kata.run(one, data, cfg, oracle.Store(one), ["sft"])
    store = oracle.Store(other)
    kata.run(other, data, cfg, store)
    # every 3 steps of 9, of 7 and of 6, and after the last
    assert store.places == [3, 6, 9, 12, 15, 16, 19, 22], "steps before each checkpoint"
    for first, later in zip(one.adapter("sft"), other.adapter("sft"), strict=True):
        assert torch.equal(first, later), "sft after dpo and grpo"
    assert set(other.slots) == {"sft", "dpo", "grpo"}


def test_reference_logps_are_those_of_sft(kata, oracle, device):
    model, data = oracle.Model(1, device), oracle.Data(1, device)
    for at, slot in enumerate(("sft", "dpo")):
        model.add(slot)
        with torch.no_grad():
            for one in model.adapter(slot):
                one.add_(0.1 * (at + 1))
    tokens, mask = data.pairs(0)
    for active in (None, "dpo", "sft"):
        model.use("sft")
        want = model(tokens).detach().masked_fill(~mask, 0)
        model.use(active)
        found = kata.reference_logps(model, tokens, mask)
        assert torch.equal(found, want), f"active: {active}"
        assert model.active == active, "the adapter that is active afterwards"
        assert model.passes[-1] == ("sft", len(tokens), False), "adapter, rows, autograd"


# ---- who wins ----------------------------------------------------------------------------------


class Duel:
    """Two adapters that answer as they are told, and note the state of their generators."""

    def __init__(self, answers):
        self.answers, self.active, self.drawn = answers, "dpo", []

    def use(self, slot):
        self.active = slot

    def sample(self, prompts, generator):
        self.drawn.append(torch.rand(1, generator=generator).item())
        return torch.tensor(self.answers[self.active])[:, None]


class Worth:
    def utility(self, tokens):
        return tokens[:, 0].float()


def test_a_tie_is_half_a_win(kata):
    duel = Duel({"dpo": [5, 2, 2, 1], "sft": [1, 2, 2, 4]})
    prompts = torch.zeros(4, 2, dtype=torch.int64)
    assert kata.win_rate(duel, Worth(), prompts, "dpo", seed=3) == 0.5
    assert duel.active == "dpo"
    duel.answers["dpo"][3] = 4
    assert kata.win_rate(duel, Worth(), prompts, "dpo", seed=3) == 0.625
    assert len(set(duel.drawn)) == 1, f"one seed for both, and always: {duel.drawn}"


# ---- what is killed, and goes on ---------------------------------------------------------------


def test_killed_anywhere_it_ends_as_if_it_had_not_been(kata, oracle, cost):
    data, cfg = oracle.Data(2), kata.Config(**SHORT)
    whole = oracle.Model(2)
    want = kata.run(whole, data, cfg, oracle.Store(whole))
    again, places = [], (8, 9, 12, 18, 24, len(whole.passes) - 1)
    for at in places:
        killed = oracle.Model(2)
        killed.dies_at, store = at, oracle.Store(killed)
        with pytest.raises(oracle.Killed):
            kata.run(killed, data, cfg, store)
        model = oracle.Model(2)
        store = store.reopened(model)
        report = kata.resume(model, data, cfg, store)
        told = f"killed at pass {at}"
        for slot, values in adapters(whole).items():
            for one, other in zip(model.adapter(slot), values, strict=True):
                assert torch.equal(one, other), f"{told}: adapter {slot}"
        assert report == want, f"{told}: report"
        trained = sum(graph for *_, graph in killed.passes + model.passes)
        # the step that was killed is not in the way: it had not ended
        again.append((trained - sum(graph for *_, graph in whole.passes)) / cfg.every)
    cost.check("steps_again", max(again))


def test_killed_twice(kata, oracle):
    data, cfg = oracle.Data(4), kata.Config(**SHORT)
    whole = oracle.Model(4)
    want = kata.run(whole, data, cfg, oracle.Store(whole), ("sft", "grpo"))
    model = oracle.Model(4)
    model.dies_at, store = 8, oracle.Store(model)
    with pytest.raises(oracle.Killed):
        kata.run(model, data, cfg, store, ("sft", "grpo"))
    model = oracle.Model(4)
    model.dies_at, store = 14, store.reopened(model)
    with pytest.raises(oracle.Killed):
        kata.resume(model, data, cfg, store)
    model = oracle.Model(4)
    assert kata.resume(model, data, cfg, store.reopened(model)) == want
    assert set(model.slots) == {"sft", "grpo"}
    # and all is said and done: nothing is left to be run
    passes, store = len(model.passes), oracle.Store(model)
    assert passes > 0
    done = oracle.Model(4)
    finished = oracle.Store(done)
    kata.run(done, data, cfg, finished, ("sft", "grpo"))
    last = oracle.Model(4)
    assert kata.resume(last, data, cfg, finished.reopened(last)) == want
    assert last.passes == [], "passes where all stages had ended"


def test_training_goes_on_while_a_checkpoint_is_written(kata, oracle, cost):
    _, _, store, _ = full(kata, oracle)
    cfg = kata.Config()
    due = [-(-steps // cfg.every) for steps in (cfg.sft, cfg.dpo, cfg.grpo)]
    assert store.running is None, "a write that nobody waited for"
    assert len(store.committed) == sum(due), "checkpoints committed"
    # the last of each stage is waited for at once
    cost.check("overlap", sum(store.overlapped) / (sum(due) - 3))
    cost.check("checkpoint_bytes", max(store.bytes))


def test_each_step_costs_what_it_has_to(kata, oracle, cost):
    model, data = oracle.Model(5), oracle.Data(5)
    kata.run(model, data, kata.Config(sft=3, dpo=3, grpo=3), oracle.Store(model))
    cost.check("passes", len(model.passes))
    graphs = [(slot, graph) for slot, _, graph in model.passes if graph]
    want = [(slot, True) for slot in ("sft", "dpo", "grpo") for _ in range(3)]
    assert graphs == want, "adapters of the passes that autograd followed"


# ---- what is refused ---------------------------------------------------------------------------


ORDERS = [(), ("dpo",), ("dpo", "sft"), ("sft", "grpo", "dpo"), ("sft", "sft"), ("sft", "eval")]


@pytest.mark.parametrize("stages", ORDERS, ids=lambda one: "-".join(one) or "none")
def test_stages_in_another_order_are_refused(kata, oracle, stages):
    model = oracle.Model(0)
    with pytest.raises(ValueError, match="^stages: "):
        kata.run(model, oracle.Data(0), kata.Config(), oracle.Store(model), stages)
    assert (model.passes, model.slots) == ([], {}), "passes and adapters for what is refused"


def test_another_configuration_is_refused(kata, oracle):
    model, data = oracle.Model(0), oracle.Data(0)
    with pytest.raises(ValueError, match="^store: "):
        kata.resume(model, data, kata.Config(), oracle.Store(model))
    store = oracle.Store(model)
    kata.run(model, data, kata.Config(sft=2), store, ["sft"])
    model = oracle.Model(0)
    with pytest.raises(ValueError, match="^cfg: "):
        kata.resume(model, data, kata.Config(sft=2, lr=0.01), store.reopened(model))
    assert (model.passes, model.slots) == ([], {}), "passes and adapters for what is refused"
