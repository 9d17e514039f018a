"""Needs against tables, bytes and seconds against scripts run operation by operation."""

from dataclasses import replace

import pytest

METHODS = ("ppo", "grpo", "rloo", "dpo", "kto", "orpo")


def models(kata):
    tiny = kata.Model(layers=2, hidden=12, heads=6, kv_heads=2, ffn=20, vocab=50)
    return {"tiny": tiny, "odd": replace(tiny, layers=3, kv_heads=6, ffn=7, vocab=1000)}


def gpus(kata):
    """Bound by arithmetic, bound by memory, and first the one, then the other in one response."""
    return {
        name: kata.Gpu(flops_per_s=flops, bytes_per_s=nbytes, memory_bytes=1e9)
        for name, flops, nbytes in (
            ("compute", 1e9, 1e12), ("memory", 1e12, 1e9), ("balanced", 2e10, 4e9),
        )
    }  # fmt: skip


# ---- what is needed ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "options", "resident", "forwards"),
    [
        ("ppo", {}, "policy critic reference reward", (2, 2, 1, 1)),
        ("ppo", {"beta": 0}, "policy critic reward", (2, 2, 0, 1)),
        ("ppo", {"lora": True}, "policy critic reward", (2, 2, 1, 1)),
        ("grpo", {}, "policy reference reward", (2, 0, 1, 1)),
        ("grpo", {"ref_cached": True}, "policy reference reward", (2, 0, 1, 1)),
        ("rloo", {"beta": 0}, "policy reward", (2, 0, 0, 1)),
        ("rloo", {"lora": True, "beta": 0.5}, "policy reward", (2, 0, 1, 1)),
        ("dpo", {}, "policy reference", (1, 0, 1, 0)),
        ("dpo", {"beta": 0}, "policy reference", (1, 0, 1, 0)),
        ("dpo", {"ref_cached": True}, "policy", (1, 0, 0, 0)),
        ("dpo", {"lora": True}, "policy", (1, 0, 1, 0)),
        ("kto", {}, "policy reference", (2, 0, 2, 0)),
        ("kto", {"lora": True}, "policy", (2, 0, 2, 0)),
        ("kto", {"ref_cached": True, "lora": True}, "policy", (2, 0, 0, 0)),
        ("orpo", {"lora": True}, "policy", (1, 0, 0, 0)),
    ],
    ids=str,
)
def test_what_each_method_needs(kata, method, options, resident, forwards):
    found = kata.inventory(method, **options)
    names = ("policy", "critic", "reference", "reward")
    trained = ("policy", "critic") if method == "ppo" else ("policy",)
    expected = {
        "resident": tuple(resident.split()),
        "trained": trained,
        "forwards": {name: n for name, n in zip(names, forwards, strict=True) if n},
        "backwards": dict.fromkeys(trained, 1),
        "generates": method in ("ppo", "grpo", "rloo"),
    }
    assert found == expected, f"inventory({method!r}, {options}): expected {expected}, {found}"


def test_sequences_of_a_step(kata):
    job = kata.Job(b=3, prompt=5, resp=7, group=4)
    found = {method: kata.sequences(method, job) for method in METHODS}
    expected = {"ppo": 12, "grpo": 12, "rloo": 12, "dpo": 6, "kto": 3, "orpo": 6}
    assert found == expected, f"{job}: expected {expected}, found {found}"


# ---- bytes and seconds ---------------------------------------------------------------------


def test_the_example_by_hand(kata):
    cfg = kata.Model(layers=1, hidden=2, heads=1, kv_heads=1, ffn=3, vocab=5)
    gpu = kata.Gpu(flops_per_s=100.0, bytes_per_s=1000.0, memory_bytes=1e9)
    job = kata.Job(b=1, prompt=2, resp=2)
    assert kata.step_memory("grpo", cfg, job) == 1432
    assert kata.step_time("grpo", cfg, job, gpu) == pytest.approx(
        {"generate": 3.12, "forward": 17.28, "backward": 8.64, "update": 1.512, "total": 30.552}
    )


@pytest.mark.parametrize("method", METHODS)
def test_steps_take_what_their_operations_take(kata, oracle, method, cost):
    worst_time = worst_memory = 0.0
    for model, cfg in models(kata).items():
        for name, gpu in gpus(kata).items():
            for changes in oracle.JOBS:
                job = kata.Job(**changes)
                given = f"{method}, {model} on {name}, {changes}"
                seconds, held = oracle.simulate(method, cfg, job, gpu)
                found = kata.step_time(method, cfg, job, gpu)
                assert set(found) == set(seconds), f"{given}: {set(found)}"
                for part, expected in seconds.items():
                    off = abs(found[part] - expected) / (expected or 1)
                    assert off <= 0.03, f"{given}: {part} {found[part]} s, simulated {expected}"
                    worst_time = max(worst_time, off)
                found = kata.step_memory(method, cfg, job)
                assert abs(found - held) <= 0.02 * held, f"{given}: {found} bytes, simulated {held}"
                worst_memory = max(worst_memory, abs(found - held) / held)
    cost.check("time_error", worst_time)
    cost.check("memory_error", worst_memory)


def test_the_cache_may_be_more_than_the_activations(kata, oracle):
    cfg = kata.Model(layers=2, hidden=8, heads=8, kv_heads=8, ffn=4, vocab=1)
    wide = replace(cfg, vocab=3)
    for model in (cfg, wide):
        for changes in ({"group": 1}, {"group": 16}):
            job = kata.Job(b=2, prompt=50, resp=9, recompute=True, **changes)
            huge = replace(model, layers=200)
            for method in ("grpo", "dpo"):  # which has none
                _, held = oracle.simulate(method, huge, job, gpus(kata)["compute"])
                found = kata.step_memory(method, huge, job)
                told = f"{method}, {huge}, {job}"
                assert found == pytest.approx(held, rel=1e-9), f"{told}: {found}, expected {held}"


def test_a_large_model(kata, oracle):
    h100 = kata.Gpu(flops_per_s=989e12, bytes_per_s=3.35e12, memory_bytes=80e9)
    job = kata.Job(b=2, prompt=128, resp=64, group=4, tp=8)
    for method in METHODS:
        seconds, held = oracle.simulate(method, kata.LLAMA3_8B, job, h100)
        found = kata.step_time(method, kata.LLAMA3_8B, job, h100)
        assert found == pytest.approx(seconds, rel=1e-9), f"{method}: {found}, expected {seconds}"
        found = kata.step_memory(method, kata.LLAMA3_8B, job)
        assert found == pytest.approx(held, rel=1e-9), f"{method}: {found}, expected {held}"


def test_longer_responses_make_generation_the_most_of_it(kata):
    h100 = kata.Gpu(flops_per_s=989e12, bytes_per_s=3.35e12, memory_bytes=80e9)
    shares = []
    for resp in (1, 16, 256, 2048):
        found = kata.step_time("grpo", kata.LLAMA3_8B, kata.Job(b=4, prompt=64, resp=resp), h100)
        shares.append(found["generate"] / found["total"])
    assert shares == sorted(shares), f"responses of 1, 16, 256, 2048 tokens: shares {shares}"
    assert shares[-1] > 0.8, f"responses of 2048 tokens: generation is {shares[-1]:.3f} of it"


# ---- which one -----------------------------------------------------------------------------


def test_the_cheapest_of_those_that_can(kata, oracle):
    kinds = set()
    for cfg in models(kata).values():
        for name, gpu in gpus(kata).items():
            for changes in oracle.JOBS:
                job = kata.Job(**changes)
                for data in ("pairs", "binary", "reward"):
                    for share in (1.0, 1.4, 2.0, 9.0):
                        _, least = oracle.simulate("orpo", cfg, job, gpu)
                        some = replace(gpu, memory_bytes=least * share)
                        for methods in (METHODS, METHODS[::-1], ("rloo", "dpo"), ()):
                            found = kata.cheapest(methods, cfg, job, some, data)
                            expected = oracle.cheapest(methods, cfg, job, some, data)
                            assert found == expected, (
                                f"cheapest({methods}, {changes}, {name}, {data!r}), memory for "
                                f"{share} times ORPO: expected {expected}, found {found}"
                            )
                            kinds.add(found)
    assert kinds >= {"dpo", "kto", "orpo", "grpo", "rloo", None}, f"{kinds}"


def test_memory_may_be_filled_exactly(kata):
    cfg, gpu = models(kata)["tiny"], gpus(kata)["compute"]
    job = kata.Job(b=2, prompt=4, resp=4)
    for method, data in (("dpo", "pairs"), ("ppo", "reward"), ("kto", "binary")):
        full = replace(gpu, memory_bytes=kata.step_memory(method, cfg, job))
        assert kata.cheapest([method], cfg, job, full, data) == method
        less = replace(gpu, memory_bytes=full.memory_bytes - 1)
        assert kata.cheapest([method], cfg, job, less, data) is None


# ---- what makes no sense -------------------------------------------------------------------


def test_what_makes_no_sense_is_refused(kata):
    cfg, gpu = models(kata)["tiny"], gpus(kata)["compute"]
    job = kata.Job(b=1, prompt=1, resp=1)
    for call in (
        kata.sequences,
        lambda method, job: kata.step_memory(method, cfg, job),
        lambda method, job: kata.step_time(method, cfg, job, gpu),
        lambda method, job: kata.cheapest([method], cfg, job, gpu, "binary"),
    ):
        for name, method, changes in (
            ("method", "sft", {"beta": -1, "b": 0}), ("beta", "orpo", {"beta": -0.1, "b": 0}),
            ("b", "dpo", {"b": 0, "prompt": 0}), ("prompt", "dpo", {"prompt": 0, "resp": 0}),
            ("resp", "ppo", {"resp": 0, "group": 0}), ("group", "kto", {"group": 0, "tp": 0}),
            ("tp", "kto", {"tp": 0}), ("method", "", {}), ("method", "DPO", {}),
        ):  # fmt: skip
            with pytest.raises(ValueError, match=f"^{name}: "):
                call(method, replace(job, **changes))
    for name, call in (
        ("method", lambda: kata.inventory("sft", beta=-1)),
        ("beta", lambda: kata.inventory("kto", beta=-1)),
        ("data", lambda: kata.cheapest(["sft"], cfg, job, gpu, "text")),
        ("data", lambda: kata.cheapest([], cfg, job, gpu, "")),
    ):
        with pytest.raises(ValueError, match=f"^{name}: "):
            call()
