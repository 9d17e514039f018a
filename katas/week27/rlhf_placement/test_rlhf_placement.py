"""Bytes at every moment, an iteration as events, and placements found by few measurements."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

ALL = ("generator", "actor", "critic", "reward", "reference")


def close(what, found, expected, rel=1e-9):
    assert found == pytest.approx(expected, rel=rel), f"{what}: {found}, expected {expected}"


def seven(kata, **changes):
    """Take 7 billion parameters, and 32 heads of 128 with 8 of keys and values."""
    return replace(kata.MISTRAL_7B, params=7 * 10**9, **changes)


def cfg_of(kata, lengths, **changes):
    model = seven(kata)
    given = {"actor": model, "critic": model, "reward": model, "reference": model}
    return kata.RlhfCfg(lengths=tuple(lengths), **given | changes)


def placed(kata, *groups, tp=1, offload=()):
    """Place by pairs of GPUs and roles."""
    made = tuple(kata.Group(gpus, frozenset(roles)) for gpus, roles in groups)
    return kata.Placement(groups=made, tp=tp, offload=frozenset(offload))


def configurations(kata):
    small = seven(kata, layers=16, hidden=2048, heads=16)
    lengths = (7, 3, 90, 1, 12, 12, 40)
    return {
        "ppo": cfg_of(kata, lengths),
        "ppo, zero 0": cfg_of(kata, lengths, zero=0, critic=small),
        "ppo, zero 1": cfg_of(kata, lengths, zero=1, micro_tokens=300_000),
        "ppo, zero 2": cfg_of(kata, lengths, zero=2, reward=small, critic=small),
        "grpo": cfg_of(kata, lengths, critic=None),
        "grpo, no models": cfg_of(kata, lengths, critic=None, reward=None, reference=None),
        "lora": cfg_of(kata, lengths, reference=None, shared_reference=True),
        "nothing to write": cfg_of(kata, ()),
    }


# ---- memory --------------------------------------------------------------------------------


def test_seven_billion_everywhere(kata):
    cfg = cfg_of(kata, [1000] * 8)
    # 14 + 14 of actor and critic, 1.75 + 1.75 of reward and reference
    states = 31_500_000_000
    cached = 131_072 * 1256
    for tp, generator in ((1, 14e9 + cached), (2, 7e9 + cached), (8, (14e9 + 8 * cached) / 8)):
        found = kata.rlhf_memory(cfg, placed(kata, (8, ALL), tp=tp))
        # activations take 2,147,483,648 while the generator sleeps
        close(f"tp {tp}", found, [states + max(generator, 2_147_483_648)])
    apart = placed(kata, (2, ["generator"]), (2, ["reward", "reference"]), (4, ["actor", "critic"]))
    found = kata.rlhf_memory(cfg, apart)
    close("three groups", found, [14e9 + 4 * cached, 14e9, 56e9 + 2_147_483_648])


@given(st.sampled_from(range(8)), st.sampled_from([2, 4, 8, 16]), st.integers(0, 10**6))
def test_a_gpu_holds_most_at_its_fullest_moment(kata, oracle, which, n_gpus, pick):
    name, cfg = list(configurations(kata).items())[which]
    candidates = list(kata.placements(cfg, n_gpus))
    placement = candidates[pick % len(candidates)]
    expected = [max(oracle.moments(cfg, placement, group)) for group in placement.groups]
    found = kata.rlhf_memory(cfg, placement)
    close(f"{name}, {placement}", found, expected, rel=1e-12)  # to the byte


def test_activations_are_those_of_the_model_that_trains(kata):
    small = seven(kata, layers=16, hidden=2048, heads=16)
    cfg = cfg_of(kata, [100] * 8, critic=small, reward=None, reference=None)
    found = kata.rlhf_memory(cfg, placed(kata, (2, ["generator", "actor"]), (2, ["critic"])))
    close("a critic of 16 layers of 2048", found[1], 56e9 + 2 * 8192 * 16 * 2048, rel=1e-12)


def test_what_is_lent_to_the_host_takes_time_and_no_room(kata):
    cfg = cfg_of(kata, [100] * 8)
    roles = ["reward", "reference"]
    before = placed(kata, (4, ["generator"]), (2, roles), (2, ["actor", "critic"]))
    after = replace(before, offload=frozenset(roles))
    _, kept, _ = kata.rlhf_memory(cfg, before)
    _, lent, _ = kata.rlhf_memory(cfg, after)
    # one of them at a time is there all the same
    close("bytes", (kept, lent), (14e9, 7e9))
    times = [kata.ppo_iteration_time(cfg, one, kata.H100)["score"] for one in (before, after)]
    close("seconds more", times[1] - times[0], 14e9 / 50e9)


def test_a_shared_reference_takes_time_and_no_room(kata):
    lengths = [100] * 8
    own, shared = (
        cfg_of(kata, lengths),
        cfg_of(kata, lengths, reference=None, shared_reference=True),
    )
    placement = placed(kata, (8, ALL))
    difference = kata.rlhf_memory(own, placement)[0] - kata.rlhf_memory(shared, placement)[0]
    close("bytes less", difference, 2 * 7e9 / 8)
    times = [kata.ppo_iteration_time(cfg, placement, kata.H100) for cfg in (own, shared)]
    close("seconds", times[1]["score"], times[0]["score"])


# ---- time ----------------------------------------------------------------------------------


def test_an_iteration_by_hand(kata):
    # decoding reads 14 GB in 1 s, passes of 7 billion parameters take 1 ms a token and GPU
    machine = kata.Machine(
        hbm_bytes=80e9, bandwidth=14e9, flops=28e12, mfu=0.5, pcie_bytes_per_s=7e9,
        within_bytes_per_s=14e9, between_bytes_per_s=7e9, decode_floor_s=2.0,
    )  # fmt: skip
    cfg = cfg_of(kata, [3, 1, 1, 2], prompt=100)
    tokens = 407
    apart = placed(
        kata, (2, ["generator", "reference"]), (1, ["actor", "reward"]), (4, ["critic"]),
        offload=["reference"],
    )  # fmt: skip
    found = kata.ppo_iteration_time(cfg, apart, machine)
    expected = {
        "generate": 2 * 0.1 + 3 * 2.0,  # two prompts of 100, and three steps at the floor
        "score": tokens / 2 * 1e-3 + 7e9 / 7e9,  # the reference, on two GPUs, and its way there
        "train": 4 * tokens * 1e-3,
        "sync": 14e9 / 7e9,
    }
    expected["score"] = max(expected["score"], tokens * 1e-3)
    for name, seconds in expected.items():
        close(name, found[name], seconds)
    close("total", found["total"], sum(expected.values()))
    assert sorted(found) == ["generate", "score", "sync", "total", "train"]
    # a critic of one GPU beside an actor of four: its training hides the weights' way
    apart = placed(kata, (2, ["generator", "reward", "reference"]), (4, ["actor"]), (1, ["critic"]))
    found = kata.ppo_iteration_time(cfg, apart, machine)
    close("train", found["train"], 4 * tokens * 1e-3)
    hidden = 3 * tokens * 1e-3
    expected = found["generate"] + found["score"] + found["train"] + found["sync"] - hidden
    close("total, sync partly hidden", found["total"], expected)
    # a critic on the generator's GPU keeps the weights waiting
    apart = placed(kata, (1, ["generator", "critic"]), (4, ["actor", "reward", "reference"]))
    found = kata.ppo_iteration_time(cfg, apart, machine)
    expected = found["generate"] + found["score"] + 4 * tokens * 1e-3 + 2.0
    close("total, sync late", found["total"], expected)


@given(st.sampled_from(range(8)), st.sampled_from([2, 4, 8, 16]), st.integers(0, 10**6))
def test_an_iteration_is_that_of_its_events(kata, oracle, which, n_gpus, pick):
    name, cfg = list(configurations(kata).items())[which]
    candidates = list(kata.placements(cfg, n_gpus))
    placement = candidates[pick % len(candidates)]
    floors = (0.0, 0.02)
    slow = {"between_bytes_per_s": 1e9, "within_bytes_per_s": 3e9, "flops": (1e14, 1e12)[pick % 2]}
    machine = replace(kata.H100, decode_floor_s=floors[pick % 2], **slow)
    expected = oracle.simulate(cfg, placement, machine)
    found = kata.ppo_iteration_time(cfg, placement, machine)
    for key, seconds in expected.items():
        told = f"{key} of {name}, {placement}"
        assert found[key] == pytest.approx(seconds, rel=1e-9, abs=1e-9), (
            f"{told}: {found[key]}, expected {seconds}"
        )


def test_other_lengths_take_other_times(kata, oracle):
    """As many responses of as many tokens, in a call after the other."""
    placement = placed(kata, (2, ALL), tp=2)
    for lengths, prompt in (((9, 9, 9), 256), ((1, 1, 25), 256), ((1, 1, 25), 8)):
        cfg = cfg_of(kata, lengths, prompt=prompt)
        expected = oracle.simulate(cfg, placement, kata.H100)["total"]
        found = kata.ppo_iteration_time(cfg, placement, kata.H100)["total"]
        close(f"responses of {lengths} after {prompt}", found, expected)


def heavy_tailed(n, cap=4096):
    drawn = np.random.default_rng(0).lognormal(6, 1, n)
    return (cap, *(int(length) for length in np.clip(drawn, 1, cap)[1:]))


def test_generation_dominates_where_steps_have_a_floor(kata):
    cfg = cfg_of(kata, heavy_tailed(512))
    placement = placed(kata, (8, ALL))
    shares = {}
    for floor in (0.04, 0.0):
        found = kata.ppo_iteration_time(cfg, placement, replace(kata.H100, decode_floor_s=floor))
        shares[floor] = found["generate"] / found["total"]
    assert shares[0.04] >= 0.8, f"{shares[0.04]:.2f} of the time at 40 ms a step, expected 0.8"
    assert shares[0.0] < 0.6, f"{shares[0.0]:.2f} of the time at the roofline, expected < 0.6"


def test_every_replica_gets_the_weights(kata):
    cfg = cfg_of(kata, [5], critic=None)
    roles = ["actor", "reward", "reference"]
    for gpus, tp, replicas in ((8, 1, 8), (8, 2, 4), (4, 4, 1)):
        apart = placed(kata, (gpus, ["generator"]), (2, roles), tp=tp)
        found = kata.sync_bytes(cfg, apart)
        expected = 14 * 10**9 * replicas
        assert found == expected, f"{replicas} replicas: {found} bytes, expected {expected}"
    odd = cfg_of(kata, [5], actor=replace(seven(kata), params=2**60 + 1), critic=None)
    found = kata.sync_bytes(odd, placed(kata, (1, ["generator"]), (2, roles)))
    assert found == 2**61 + 2, f"2**60 + 1 parameters: {found} bytes, expected {2**61 + 2}"


# ---- the search ----------------------------------------------------------------------------

LENGTHS = (160, 20, 35, 60, 90, 15, 20, 44, 31, 8, 70, 12)
SEARCHES = {
    "ppo on 8": (8, {}, {}),
    "ppo on 8, a floor": (8, {}, {"decode_floor_s": 0.03, "hbm_bytes": 96e9}),
    "ppo on 16, a floor": (16, {}, {"decode_floor_s": 0.03, "hbm_bytes": 96e9}),
    "ppo on 16, whole optimizers": (16, {"zero": 0}, {"hbm_bytes": 300e9}),
    "ppo on 8, gradients whole": (8, {"zero": 1}, {"hbm_bytes": 96e9}),
    "slow host, little memory": (4, {}, {"pcie_bytes_per_s": 1e9, "hbm_bytes": 88e9}),
    "grpo on 4, gradients whole": (4, {"critic": None, "zero": 1}, {}),  # three of 164 fit
    "grpo on 4, a floor": (4, {"critic": None}, {"decode_floor_s": 0.03}),
    "lora on 8": (8, {"reference": None, "shared_reference": True, "zero": 2},
                  {"hbm_bytes": 100e9}),
}  # fmt: skip


@pytest.mark.parametrize("name", SEARCHES)
def test_the_best_is_found_by_few_measurements(kata, oracle, cost, name):
    n_gpus, changes, of_machine = SEARCHES[name]
    cfg, machine = cfg_of(kata, LENGTHS, **changes), replace(kata.H100, **of_machine)
    fitting = [
        placement
        for placement in kata.placements(cfg, n_gpus)
        if max(
            max(oracle.moments(cfg, placement, group)) for group in placement.groups
        ) <= 0.9 * machine.hbm_bytes
    ]  # fmt: skip
    assert fitting, "nothing fits: the test itself is wrong"
    least = min(oracle.measured(cfg, placement, machine) for placement in fitting)
    asked = []

    def evaluate(placement):
        asked.append(placement)
        return oracle.measured(cfg, placement, machine)

    found = kata.best_placement(cfg, n_gpus, machine, evaluate)
    assert found in fitting, f"{name}: {found} does not fit, or is no candidate"
    cost.check("optimum", oracle.measured(cfg, found, machine) / least)
    cost.check("evaluations", len(asked))


def test_a_tenth_of_the_memory_stays_free(kata):
    # 1 GPU: 112 + 14 GB, which are nine tenths of 140
    cfg = cfg_of(kata, (), critic=None, reward=None, reference=None)
    fits = replace(kata.H100, hbm_bytes=140e9)
    found = kata.best_placement(cfg, 1, fits, lambda placement: 1.0)
    assert found == placed(kata, (1, ["generator", "actor"])), f"140 GB: {found}"
    asked = []
    found = kata.best_placement(cfg, 1, replace(kata.H100, hbm_bytes=140e9 - 1), asked.append)
    assert (found, asked) == (None, []), f"a byte less: {found}, {asked} measured, expected nothing"


# ---- bad input -----------------------------------------------------------------------------

REFUSED = {
    "a role twice": ([(4, ALL), (4, ["reward"])], {}, "groups"),
    "a role missing": ([(8, ALL[1:])], {}, "groups"),
    "no GPUs": ([(8, ALL[1:]), (0, ALL[:1])], {}, "groups"),
    "nobody": ([(4, ALL), (4, [])], {}, "groups"),
    "tp and GPUs": ([(6, ALL)], {"tp": 4}, "tp"),
    "tp and heads": ([(64, ALL)], {"tp": 64}, "tp"),
    "the actor lent": ([(8, ALL)], {"offload": ["actor"]}, "offload"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_cannot_be_placed_is_refused(kata, why):
    groups, options, named = REFUSED[why]
    cfg, placement = cfg_of(kata, [5]), placed(kata, *groups, **options)
    for call in (
        lambda: kata.rlhf_memory(cfg, placement),
        lambda: kata.sync_bytes(cfg, placement),
        lambda: kata.ppo_iteration_time(cfg, placement, kata.H100),
    ):
        with pytest.raises(ValueError, match=f"^{named}: "):
            call()
