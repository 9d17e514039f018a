"""What each stage trains and against what, and what a kill at any moment costs."""

from collections import Counter
from dataclasses import asdict
from functools import cache

import pytest
import torch
import torch._dynamo  # by an optimizer, else in each fork anew

from harness.meters.dispatch import dispatch_meter
from harness.simulators.deaths import Moment

SHORT = {"sft": 9, "dpo": 7, "grpo": 6, "every": 3}


def close(expected):
    return pytest.approx(expected, rel=1e-4, abs=1e-5)


def trained(kata, oracle, model, data, cfg, store=None, stages=None):
    """A run with the meter of its model; of all stages, unless some are named."""
    some = () if stages is None else (stages,)
    return kata.run(model, data, cfg, store or oracle.Store(model), oracle.Meter(model), *some)


@cache
def full(kata, oracle):
    """One run of all stages, and what it left behind."""
    model, data = oracle.Model(0), oracle.Data(0)
    store = oracle.Store(model)
    return model, data, store, trained(kata, oracle, model, data, kata.Config(), store)


def adapters(model):
    return {slot: [one.tolist() for one in model.adapter(slot)] for slot in model.slots}


# ---- what is killed, and goes on: first, since ranks are forked before anything is trained ----


def begun(kata, oracle, ranks, moments, folder, stages=None):
    """Run once for each moment, and die there; say how each ended."""

    def begin(rank, _world):
        model, cfg = oracle.Model(2), kata.Config(**SHORT)
        disk = oracle.Disk(model, folder / f"{rank}.pt")
        report = trained(kata, oracle, model, oracle.Data(2), cfg, disk, stages)
        return asdict(report), adapters(model), [graph for *_, graph in model.passes]

    return ranks.ends(len(moments), begin, dies=dict(enumerate(moments)), joined=False)


def resumed(kata, oracle, ranks, places, folder, dies=None):
    """Go on with the runs that began there; say how each ended."""

    def go_on(rank, _world):
        model, cfg = oracle.Model(2), kata.Config(**SHORT)
        disk = oracle.Disk(model, folder / f"{places[rank]}.pt")
        model.seconds = 12345  # another process, another clock
        report = kata.resume(model, oracle.Data(2), cfg, disk, oracle.Meter(model))
        return asdict(report), adapters(model), [graph for *_, graph in model.passes]

    return ranks.ends(len(places), go_on, dies=dies or {}, joined=False)


def value(end):
    if end.error is not None:
        raise end.error
    assert not end.killed, "a run that was to end was killed"
    return end.value


NEVER = Moment("never")
# 9 passes of sft, 2 for each of 13 later steps; 9 checkpoints; 6 samples of grpo, 4 of eval
KILLS = [
    Moment("pass", 9), Moment("pass", 10), Moment("pass", 25), Moment("wait", 4),
    Moment("sample", 9), Moment("commit", 9),
]  # fmt: skip


def test_killed_anywhere_it_ends_as_if_it_had_not_been(kata, oracle, ranks, cost, tmp_path):
    *ends, whole = begun(kata, oracle, ranks, [*KILLS, NEVER], tmp_path)
    want, slots, graphs = value(whole)
    again = []
    later = resumed(kata, oracle, ranks, range(len(KILLS)), tmp_path)
    for moment, first, end in zip(KILLS, ends, later, strict=True):
        told = f"killed at {moment.name} {moment.nth}"
        if first.error is not None:
            raise first.error
        assert first.killed, f"{told}: expected it to come to that, it ended before"
        report, found, more = value(end)
        for slot, values in slots.items():
            assert found[slot] == values, f"{told}: adapter {slot}"
        assert report == want, f"{told}: report"
        if moment.name == "pass":
            # the step that was killed is not in the way: it had not ended
            steps = sum(graphs[: moment.nth - 1]) + sum(more) - sum(graphs)
            again.append(steps / SHORT["every"])
    cost.check("steps_again", max(again))


def test_killed_twice(kata, oracle, ranks, tmp_path):
    ends = begun(kata, oracle, ranks, [Moment("pass", 9), NEVER], tmp_path, ("sft", "grpo"))
    want, slots, _ = value(ends[1])
    assert list(slots) == ["sft", "grpo"]
    (end,) = resumed(kata, oracle, ranks, [0], tmp_path, {0: Moment("pass", 8)})
    assert end.killed, f"expected it to come to its 8th pass, it ended before: {end}"
    once_more, done = resumed(kata, oracle, ranks, [0, 1], tmp_path)
    assert value(once_more)[:2] == (want, slots)
    # and all is said and done: nothing is left to be run
    assert value(done) == (want, slots, []), "report, adapters, passes where all had ended"


# ---- how instructions are packed ---------------------------------------------------------------


def examples_of(*lengths):
    return [(torch.full((n,), at + 1), torch.arange(n) >= 1) for at, n in enumerate(lengths)]


def test_examples_go_where_there_is_room(kata):
    tokens, mask, documents = kata.pack(examples_of(3, 4, 2, 5, 1, 1), 6)
    assert tokens.tolist() == [[1, 1, 1, 3, 3, 5], [2, 2, 2, 2, 6, 0], [4, 4, 4, 4, 4, 0]]
    assert documents.tolist() == [[0, 0, 0, 2, 2, 4], [1, 1, 1, 1, 5, -1], [3, 3, 3, 3, 3, -1]]
    assert mask.int().tolist() == [[0, 1, 1, 0, 1, 0], [0, 1, 1, 1, 0, 0], [0, 1, 1, 1, 1, 0]]
    assert (tokens.dtype, mask.dtype, documents.dtype) == (torch.int64, torch.bool, torch.int64)
    tokens, *_ = kata.pack(examples_of(6, 6), 6)
    assert tokens.tolist() == [[1] * 6, [2] * 6], "rows that are full"


def test_an_example_longer_than_a_row_is_refused(kata):
    with pytest.raises(ValueError, match="^row: "):
        kata.pack(examples_of(2, 7), 6)


# ---- what each stage learns --------------------------------------------------------------------


def ragged(oracle, seed, device):
    """Data whose pairs have a few shorter answers: chosen and rejected differ in their masks."""

    class Ragged(oracle.Data):
        def pairs(self, step, rows=8):
            tokens, mask = super().pairs(step, rows)
            mask = mask.clone()
            mask[::3, -1] = False
            return tokens, mask

    return Ragged(seed, device)


@pytest.mark.parametrize("stage", ["sft", "dpo", "grpo"])
def test_first_steps_are_those_of_the_plain_loop(kata, oracle, device, seed, stage):
    # a heavy divergence: Adam alone would not mind a loss that is a multiple of the right one
    cfg = kata.Config(sft=5, dpo=4, grpo=4, kl=2.0, seed=seed % 99)
    data = ragged(oracle, seed % 1000, device)
    one, other = (oracle.Model(seed % 1000, device) for _ in range(2))
    stages = ["sft"] if stage == "sft" else ["sft", stage]
    report = trained(kata, oracle, one, data, cfg, stages=stages)
    other.add("sft")
    if stage != "sft":
        oracle.first_steps("sft", other, data, cfg, steps=5)
        other.add(stage, like="sft")
    want = oracle.first_steps(stage, other, data, cfg)
    assert list(report.losses) == stages
    notes = {"sft": [], "dpo": [report.margins, report.accuracies]}
    notes["grpo"] = [report.rewards, report.divergences]
    found = [one[:4] for one in (report.losses[stage], *notes[stage])]
    names = {"sft": [], "dpo": ["margins", "accuracies"], "grpo": ["rewards", "divergences"]}
    for name, values, right in zip(["losses", *names[stage]], found, want, strict=True):
        assert values == close(right), f"{name} of the first steps of {stage}"


def test_instructions_are_learned(kata, oracle):
    model, _, _, report = full(kata, oracle)
    losses = report.losses["sft"]
    assert len(losses) == kata.Config().sft
    last = sum(losses[-5:]) / 5
    assert last < 0.5 * losses[0], f"losses of sft: {losses[0]}, the last five {last}"
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
    assert sum(report.accuracies[-5:]) / 5 >= 0.8, f"accuracies: {report.accuracies}"


def test_rewards_are_learned(kata, oracle):
    _, _, _, report = full(kata, oracle)
    told = f"mean rewards: {report.rewards}"
    assert len(report.rewards) == len(report.divergences) == kata.Config().grpo
    assert sum(report.rewards[-5:]) / 5 >= 0.8, told
    assert report.divergences[0] == 0.0, "the first divergence: the policy is the reference still"
    assert report.divergences[-1] > 0


def test_what_was_learned_wins(kata, oracle):
    model, data, _, report = full(kata, oracle)
    prompts, seed = data.held_out(), kata.Config().seed
    want = {slot: kata.win_rate(model, data, prompts, slot, seed) for slot in ("dpo", "grpo")}
    assert report.win_rates == want, "win rates over sft on held-out prompts"
    assert min(want.values()) >= 0.65, f"win rates over sft on held-out prompts: {want}"


def test_the_reference_stays(kata, oracle):
    """Later stages leave "sft" as it was, to the bit."""
    data, cfg = oracle.Data(3), kata.Config(**SHORT)
    one, other = oracle.Model(3), oracle.Model(3)
    assert trained(kata, oracle, one, data, cfg, stages=["sft", "eval"]).win_rates == {}
    store = oracle.Store(other)
    trained(kata, oracle, other, data, cfg, store)
    # every 3 steps of 9, of 7 and of 6, and after the last; after eval, which has none
    assert store.places == [3, 6, 9, 12, 15, 16, 19, 22, 22], "steps before each checkpoint"
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
        assert model.passes[-1] == ("sft", tokens.numel(), False), "adapter, tokens, graph"


# ---- who wins ----------------------------------------------------------------------------------


class Duel:
    """Two adapters that answer as they are told, and note the state of their generators."""

    def __init__(self, answers):
        self.answers, self.active, self.drawn = answers, "dpo", []

    def use(self, slot):
        self.active = slot

    def sample(self, prompts, generator):
        self.drawn.append(torch.rand(1, generator=generator).item())
        return torch.cat([prompts, torch.tensor(self.answers[self.active])[:, None]], dim=1)


class Worth:
    def utility(self, tokens):
        return tokens[:, -1].float()


def test_a_tie_is_half_a_win(kata):
    duel = Duel({"dpo": [5, 2, 2, 1], "sft": [1, 2, 2, 4]})
    prompts = torch.zeros(4, 2, dtype=torch.int64)
    assert kata.win_rate(duel, Worth(), prompts, "dpo", seed=3) == 0.5
    assert duel.active == "dpo"
    duel.answers["dpo"][3] = 4
    assert kata.win_rate(duel, Worth(), prompts, "dpo", seed=3) == 0.625
    assert len(set(duel.drawn)) == 1, f"one seed for both, and always: {duel.drawn}"


def test_training_goes_on_while_a_checkpoint_is_written(kata, oracle, cost):
    _, _, store, _ = full(kata, oracle)
    cfg = kata.Config()
    due = [-(-steps // cfg.every) for steps in (cfg.sft, cfg.dpo, cfg.grpo, 1)]
    assert store.running is None, "a write that nobody waited for"
    assert len(store.committed) == sum(due), "checkpoints committed"
    # the last of each stage is waited for at once
    cost.check("overlap", sum(store.overlapped) / (sum(due) - 4))
    cost.check("checkpoint_bytes", max(store.bytes))


def test_each_step_costs_what_it_has_to(kata, oracle, cost):
    model, data = oracle.Model(5), oracle.Data(5)
    report = trained(kata, oracle, model, data, kata.Config(sft=3, dpo=3, grpo=3))
    cost.check("passes", len(model.passes))
    computed = sum(tokens for _, tokens, _ in model.passes[:3])
    cost.check("padded", computed / report.stages["sft"].tokens)
    graphs = [(slot, graph) for slot, _, graph in model.passes if graph]
    want = [(slot, True) for slot in ("sft", "dpo", "grpo") for _ in range(3)]
    assert graphs == want, "adapters of the passes that autograd followed"
    # "grpo" before each of its steps; in the end each policy once, and "sft" against each
    most = Counter(dpo=1, grpo=3 + 1, sft=2)
    assert Counter(model.samples) <= most, f"samples by adapter: at most {most}"


def test_a_stage_reports_what_its_steps_took(kata, oracle):
    model, cfg = oracle.Model(5), kata.Config(sft=5, dpo=4, grpo=3, every=2)

    class Slow(oracle.Data):
        """Each batch takes a quarter of a second, and one of them much memory."""

        def _draw(self, kind, step, rows):
            model.works(0.25, 100_000 if (kind, step) == (3, 1) else 0)
            return super()._draw(kind, step, rows)

    data = Slow(5)
    stages = trained(kata, oracle, model, data, cfg).stages
    # a pass with a graph takes 3 s, one without 1 s, a sample 5 s, a checkpoint 1000 s
    sft = sum(len(tokens) for step in range(5) for tokens, _ in data.sft(step))
    assert list(stages) == ["sft", "dpo", "grpo"]
    types = {stage: type(taken.tokens) for stage, taken in stages.items()}
    assert types == dict.fromkeys(stages, int), "types of the numbers of tokens"
    assert asdict(stages["sft"]) == {
        "steps": 5, "tokens": sft, "seconds": 5 * 3.25, "peak_bytes": 50 * 72,
    }  # fmt: skip
    assert asdict(stages["dpo"]) == {
        "steps": 4, "tokens": 4 * 16 * 6, "seconds": 4 * 4.25, "peak_bytes": 50 * 96,
    }  # fmt: skip
    assert asdict(stages["grpo"]) == {
        "steps": 3, "tokens": 3 * 48 * 6, "seconds": 3 * 9.25, "peak_bytes": 100_000,
    }  # fmt: skip


def test_a_reference_needs_no_second_model(kata, oracle, cost):
    """SFT and DPO on the same tokens, in the same rows, of 16 examples."""
    model = oracle.Model(5)

    class Same(oracle.Data):
        def sft(self, step):
            return list(zip(*self.pairs(step), strict=True))

    class Counted(oracle.Meter):
        def reset_peak(self):
            counted.peak_live_bytes = 0

        def peak_bytes(self):
            return counted.peak_live_bytes

    cfg = kata.Config(sft=3, dpo=3, row=6)
    with dispatch_meter() as counted:
        meter, store = Counted(model), oracle.Store(model)
        report = kata.run(model, Same(5), cfg, store, meter, ["sft", "dpo"])
    peaks = {stage: taken.peak_bytes for stage, taken in report.stages.items()}
    cost.check("dpo_of_sft", peaks["dpo"] / peaks["sft"])


# ---- what is refused ---------------------------------------------------------------------------


ORDERS = [
    (),
    ("dpo",),
    ("dpo", "sft"),
    ("sft", "grpo", "dpo"),
    ("sft", "sft"),
    ("sft", "test"),
    ("sft", "eval", "dpo"),
]


@pytest.mark.parametrize("stages", ORDERS, ids=lambda one: "-".join(one) or "none")
def test_stages_in_another_order_are_refused(kata, oracle, stages):
    model = oracle.Model(0)
    with pytest.raises(ValueError, match="^stages: "):
        trained(kata, oracle, model, oracle.Data(0), kata.Config(), stages=stages)
    assert (model.passes, model.slots) == ([], {}), "passes and adapters for what is refused"


def test_another_configuration_is_refused(kata, oracle):
    model, data = oracle.Model(0), oracle.Data(0)
    with pytest.raises(ValueError, match="^store: "):
        kata.resume(model, data, kata.Config(), oracle.Store(model), oracle.Meter(model))
    store = oracle.Store(model)
    trained(kata, oracle, model, data, kata.Config(sft=2), store, ["sft"])
    model = oracle.Model(0)
    store = store.reopened(model)
    with pytest.raises(ValueError, match="^cfg: "):
        kata.resume(model, data, kata.Config(sft=2, lr=0.01), store, oracle.Meter(model))
    assert (model.passes, model.slots) == ([], {}), "passes and adapters for what is refused"
