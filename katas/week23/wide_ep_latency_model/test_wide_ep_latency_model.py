"""Expectations by counting, times by messages, widths by trying all of them."""

from dataclasses import replace

import pytest


def models(kata):
    return {"DeepSeek-V3": kata.DEEPSEEK_V3, "Mixtral 8x7B": kata.MIXTRAL_8X7B}


def gpus(kata):
    return {"H100": kata.H100, "H200": kata.H200, "GB200": kata.GB200}


def fabric(kata, **changed):
    """Two nodes or more of 4, on which every number matters."""
    links = {
        "gpus_per_node": 4,
        "intra_alpha": 2e-6,
        "intra_bw": 400e9,
        "inter_alpha": 3e-6,
        "inter_bw": 50e9,
    }
    return kata.Links(**links | changed)


def test_a_token_has_experts_on_so_many_ranks(kata, oracle):
    # one expert a rank, all on one, k so large that no rank is missed, one choice
    for E, P, k in ((8, 8, 2), (8, 1, 3), (8, 2, 5), (8, 4, 1), (12, 3, 4), (12, 4, 3), (6, 3, 6)):
        want = float(oracle.ranks_by_counting(E, P, k))
        found = kata.expected_ranks(E, P, k)
        assert found == pytest.approx(want, rel=1e-12), (
            f"expected_ranks(E={E}, P={P}, k={k}): {found}, counted {want}"
        )
    assert kata.expected_ranks(256, 8, 8) == pytest.approx(8 * oracle.chance(256, 8, 8), rel=1e-9)


def test_so_many_experts_are_chosen_by_someone(kata, oracle):
    for E, k, tokens in (
        (4, 1, 4),
        (5, 2, 3),
        (6, 3, 4),
        (3, 3, 1),
        (3, 3, 0),
        (7, 2, 1),
        (4, 2, 9),
    ):
        want = float(oracle.experts_by_counting(E, k, tokens))
        found = kata.expected_experts(E, k, tokens)
        assert found == pytest.approx(want, rel=1e-12), (
            f"expected_experts(E={E}, k={k}, tokens={tokens}): {found}, counted {want}"
        )


def test_an_all_to_all_takes_as_long_as_its_messages(kata, oracle, cost):
    worst = 0.0
    quick_nic = fabric(kata, inter_bw=1e13, inter_alpha=0.1e-6)
    for links in (fabric(kata), quick_nic, fabric(kata, gpus_per_node=72), kata.HGX):
        for P in (1, 2, 4, 8, 16, 64):
            for tokens, k, hidden, itemsize in ((128, 8, 7168, 1), (0, 2, 64, 2), (1.5, 1, 64, 2)):
                if links.gpus_per_node < P and P % links.gpus_per_node:
                    continue
                args = (tokens, k, hidden, itemsize, P, 64, links)
                want = oracle.a2a_by_messages(*args)
                found = kata.a2a_time(*args)
                assert found == pytest.approx(want, rel=1e-3), (
                    f"a2a_time{args}: {found}, the messages take {want}"
                )
                if want:
                    worst = max(worst, abs(found / want - 1))
    cost.check("a2a_error", worst)


def test_the_unit_of_bandwidth_does_not_matter(kata):
    """Less than 1 is a bandwidth, too: messages of 64 bytes at a quarter of one in a second."""
    for P, links in (
        (4, fabric(kata, intra_bw=0.25, intra_alpha=0.0)),
        (8, fabric(kata, inter_bw=0.25, inter_alpha=0.0)),
    ):
        args = (1, 64, 32, 2, P, 64, links)  # all experts: a row to each rank
        seconds = kata.a2a_time(*args)
        want = (P - 1 if P == 4 else P - 4) * 64 / 0.25
        assert seconds == pytest.approx(want), f"a2a_time{args}: {seconds}, expected {want}"


def test_at_the_crossover_it_takes_twice_the_latency(kata, oracle):
    slow_nic_start = fabric(kata, inter_alpha=40e-6, intra_bw=1e9)
    for links in (fabric(kata), fabric(kata, gpus_per_node=64), slow_nic_start, kata.HGX):
        for P in (2, 8, 64):
            if links.gpus_per_node < P and P % links.gpus_per_node:
                continue
            args = (2, 64, 2, P, 64, links)
            tokens = kata.crossover_tokens(*args)
            latency, then = oracle.a2a(0, *args), oracle.a2a(tokens, *args)
            assert then == pytest.approx(2 * latency, rel=1e-9), (
                f"crossover_tokens{args}: {tokens}, at which it takes {then}; at 0 it is {latency}"
            )
    free = fabric(kata, intra_alpha=0, inter_alpha=0)
    assert kata.crossover_tokens(2, 64, 2, 8, 64, free) == 0.0


# alone, within a node, over several; one token, where weights matter, where arithmetic does
@pytest.mark.parametrize("batch", [1, 24, 700])
def test_a_step_is_made_of_its_parts(kata, oracle, batch):
    for model, cfg in models(kata).items():
        for name, gpu in gpus(kata).items():
            for ep in oracle.widths(cfg, gpu):
                want = oracle.step(batch, ep, cfg, gpu)
                found = kata.moe_decode_step_time(batch, ep, cfg, gpu)
                assert found == pytest.approx(want, rel=1e-9), (
                    f"{model} on {name}, batch {batch}, ep {ep}: {found}, expected {want}"
                )


def test_what_a_number_changes(kata, oracle):
    base = kata.Moe(
        layers=3, hidden=100, inner=30, E=12, k=3, dense_params=5e4, kv_bytes=10, context=7,
        weight_itemsize=1, dispatch_itemsize=1, combine_itemsize=2,
    )  # fmt: skip
    gpu = kata.Gpu(flops_per_s=1e9, bytes_per_s=1e8, memory_bytes=1e9, links=fabric(kata))
    for changed in (
        {}, {"layers": 0}, {"weight_itemsize": 2}, {"combine_itemsize": 4}, {"context": 9999},
        {"dispatch_itemsize": 8}, {"k": 12}, {"dense_params": 0}, {"kv_bytes": 0}, {"inner": 31},
    ):  # fmt: skip
        cfg = replace(base, **changed)
        for batch, ep in ((1, 1), (3, 2), (40, 4), (2, 12)):
            want = oracle.step(batch, ep, cfg, gpu)
            found = kata.moe_decode_step_time(batch, ep, cfg, gpu)
            assert found == pytest.approx(want, rel=1e-9), f"{cfg}, batch {batch}, ep {ep}: {found}"
            want = oracle.memory(batch, ep, cfg)
            found = kata.memory_bytes(batch, ep, cfg)
            assert found == pytest.approx(want, rel=1e-12), (
                f"memory_bytes({batch}, {ep}, {cfg}): {found}, expected {want}"
            )


def test_the_width_chosen_is_the_best_there_is(kata, oracle, cost):
    worst = 1.0
    some = replace(kata.DEEPSEEK_V3, layers=15, E=48)
    for model, cfg in {**models(kata), "15 layers of 48 experts": some}.items():
        for name, gpu in gpus(kata).items():
            for batch in (1, 16, 64, 100, 300):
                for slo_s in (0.025, 1.0):
                    rates = oracle.possible(batch, cfg, gpu, slo_s)
                    who = f"best_ep({batch}, {model}, {name}, {slo_s})"
                    found = kata.best_ep(batch, cfg, gpu, slo_s)
                    if not rates:
                        assert found is None, f"{who}: {found}, expected None: no width will do"
                        continue
                    assert found is not None, f"{who}: None, expected one of {rates}"
                    ep, rate = found
                    assert ep in rates, f"{who}: width {ep}, expected one of {[*rates]}"
                    assert rate == pytest.approx(rates[ep], rel=1e-9), (
                        f"{who}: {rate} tokens/s and GPU at width {ep}, expected {rates[ep]}"
                    )
                    worst = min(worst, rates[ep] / max(rates.values()))
    cost.check("throughput", worst)


def test_each_width_is_timed_once(kata, calls, cost):
    asked = calls("moe_decode_step_time", limit=40)
    roomy = replace(kata.H200, memory_bytes=1e13)
    kata.best_ep(16, kata.DEEPSEEK_V3, roomy, 1.0)
    cost.check("evaluations", asked.calls)


def test_limits_may_be_met_exactly(kata):
    cfg, gpu = kata.DEEPSEEK_V3, kata.H200
    ep, _ = kata.best_ep(32, cfg, gpu, 1.0)
    seconds = kata.moe_decode_step_time(32, ep, cfg, gpu)["total"]
    full = replace(gpu, memory_bytes=kata.memory_bytes(32, ep, cfg))
    found = kata.best_ep(32, cfg, full, seconds)
    assert found is not None, f"{seconds} s and {full.memory_bytes} bytes: None, expected {ep}"
    assert found[0] == ep, f"{seconds} s and {full.memory_bytes} bytes: {found}, expected {ep}"
    tight = replace(gpu, memory_bytes=full.memory_bytes - 1)
    assert kata.best_ep(32, cfg, tight, seconds) is None, "a byte too little"
    dense = replace(cfg, layers=0)  # all widths take as long
    assert kata.best_ep(32, dense, gpu, 1.0)[0] == 1, "of equal widths the smallest"


def test_what_makes_no_sense_is_refused(kata):
    cfg, gpu, links = kata.MIXTRAL_8X7B, kata.H100, fabric(kata)
    dead = fabric(kata, intra_bw=0.0)
    for name, call, args in (
        ("P", kata.expected_ranks, (8, 3, 9)), ("P", kata.expected_ranks, (8, 0, 2)),
        ("P", kata.expected_ranks, (8, -2, 2)), ("k", kata.expected_ranks, (8, 4, 0)),
        ("k", kata.expected_ranks, (8, 4, 9)), ("k", kata.expected_experts, (8, 9, -1)),
        ("k", kata.expected_experts, (8, 0, 1)), ("tokens", kata.expected_experts, (8, 2, -1)),
        ("tokens", kata.a2a_time, (-1, 0, 64, 2, 3, 64, dead)),
        ("tokens", kata.a2a_time, (-0.5, 2, 64, 2, 4, 64, links)),
        ("P", kata.a2a_time, (1, 0, 64, 2, 3, 64, dead)),
        ("k", kata.a2a_time, (1, 65, 64, 2, 2, 64, dead)),
        ("links", kata.a2a_time, (1, 2, 64, 2, 2, 64, dead)),
        ("links", kata.a2a_time, (1, 2, 64, 2, 6, 60, fabric(kata, inter_bw=-1.0))),
        ("links", kata.a2a_time, (1, 2, 64, 2, 2, 64, fabric(kata, inter_bw=0.0))),
        ("P", kata.a2a_time, (1, 2, 64, 2, 6, 60, links)),
        ("P", kata.crossover_tokens, (2, 64, 2, 1, 64, links)),
        ("P", kata.crossover_tokens, (2, 64, 2, 6, 60, links)),
        ("links", kata.crossover_tokens, (2, 64, 2, 1, 64, dead)),
        ("ep", kata.moe_decode_step_time, (0, 3, cfg, gpu)),
        ("ep", kata.moe_decode_step_time, (1, 0, cfg, gpu)),
        ("ep", kata.moe_decode_step_time, (1, 12, replace(cfg, E=24), gpu)),
        ("batch", kata.moe_decode_step_time, (0, 2, cfg, gpu)),
        ("batch", kata.best_ep, (0, cfg, gpu, 1.0)),
        ("batch", kata.best_ep, (0, cfg, replace(gpu, memory_bytes=1.0), 1.0)),  # no width fits
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"^{name}: "):
            call(*args)
