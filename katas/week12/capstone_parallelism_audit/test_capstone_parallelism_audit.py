"""Same losses under each sharding; what was sent, held and waited for, and who checks that."""

import json
import math
import random
import re
from dataclasses import replace

import pytest
import torch

from harness.judge import assert_matches
from harness.meters.collectives import Collectives
from harness.meters.communication import comm_meter
from harness.meters.dispatch import dispatch_meter
from harness.simulators.ranks import rank_device

MODES = ("ddp", "zero2", "zero3")
EACH_MODE = pytest.mark.parametrize("mode", MODES)
SAME = 1e-9  # relative: numbers added up in another order
UNEVEN = (1003, 17, 2050, 400)  # parameters of units, which 2, 3 and 4 do not all divide


@pytest.fixture
def node(profile):
    """A GPU whose time of compute is easy to compare with that of a link."""
    return replace(profile, peak={**profile.peak, "float16": 200e12})


# ---- training ------------------------------------------------------------------------------


def mine(kata, oracle, seed, rank, world, steps, layers=4, rows=6):
    """Make the units of a rank and its batches, where they belong."""
    units = [
        kata.Unit(parameters=tuple(one.to(rank_device()) for one in parameters), call=call)
        for parameters, call in oracle.model(seed, layers)
    ]
    drawn = oracle.batches(seed, world, steps, rows)[rank]
    return units, [(x.to(rank_device()), target.to(rank_device())) for x, target in drawn]


def both(oracle, seed, by_rank, options):
    """Train in one process, in float64 and in the working precision."""
    return [
        oracle.losses(oracle.model(seed, layers=1), by_rank, dtype=dtype, **options)
        for dtype in (torch.float64, torch.float32)
    ]


# the learning rate by default, and another; sizes that do not divide; parts without a parameter
@pytest.mark.parametrize(
    ("world", "options"), [(2, {}), (3, {"lr": 0.03}), (4, {})], ids=["two", "three", "four"]
)
def test_losses_are_those_of_one_process(kata, oracle, ranks, seed, world, options):
    def run(rank, world):
        units, batches = mine(kata, oracle, seed, rank, world, steps=5, layers=1)
        with Collectives() as comm:
            return {
                mode: kata.train(mode, units, oracle.loss_fn, batches, comm, **options).losses
                for mode in MODES
            }

    found = ranks(world, run)
    by_rank = oracle.batches(seed, world, 5)
    exact, working = ranks.alone(both, oracle, seed, by_rank, options)
    for rank, modes in enumerate(found):
        for mode, losses in modes.items():
            assert_matches(
                torch.tensor(losses),
                torch.tensor(exact[rank]),
                same_precision=torch.tensor(working[rank]),
                name=f"losses of rank {rank} under {mode}",
            )


def test_units_and_batches_stay_as_they_are(kata, oracle, ranks):
    def run(rank, world):
        units, batches = mine(kata, oracle, 3, rank, world, steps=1)
        again, others = mine(kata, oracle, 3, rank, world, steps=1)
        for mode in MODES:
            with Collectives() as comm:
                kata.train(mode, units, oracle.loss_fn, batches, comm)
            for found, made in zip(units, again, strict=True):
                for one, other in zip(found.parameters, made.parameters, strict=True):
                    assert torch.equal(one, other), f"{mode}: a parameter of a unit has changed"
                    assert not one.requires_grad, f"{mode}: a parameter requires a gradient now"
            for pair, other in zip(batches, others, strict=True):
                assert torch.equal(pair[0], other[0]), f"{mode}: an input has changed"
                assert torch.equal(pair[1], other[1]), f"{mode}: a target has changed"
                assert not pair[0].requires_grad, f"{mode}: an input requires a gradient now"

    ranks(2, run)


def test_a_run_knows_nothing_of_the_one_before(kata, oracle, ranks):
    def run(rank, world):
        units, batches = mine(kata, oracle, 4, rank, world, steps=3, layers=1)
        for mode in MODES:
            with Collectives() as comm:
                first, again = (
                    kata.train(mode, units, oracle.loss_fn, batches, comm).losses for _ in range(2)
                )
            assert again == pytest.approx(first, rel=1e-5), f"{mode}: losses of a second run"

    ranks(2, run)


def test_the_log_has_what_a_rank_sends(kata, oracle, ranks):
    sizes = oracle.sizes(oracle.model(0))

    def run(rank, world):
        units, batches = mine(kata, oracle, 0, rank, world, steps=2)
        logs = {}
        for mode in MODES:
            with comm_meter() as meter, Collectives() as comm:
                log = kata.train(mode, units, oracle.loss_fn, batches, comm)
            assert isinstance(log.events, tuple), f"{mode}: expected a tuple of events"
            assert isinstance(log.losses, tuple), f"{mode}: expected a tuple of losses"
            in_order = [one.bytes for one in meter.log if one.op in meter.calls]
            logs[mode] = [(one.op, one.unit, one.bytes) for one in log.events], in_order
        return logs

    for logs in ranks(4, run):
        for mode, (events, metered) in logs.items():
            expected = [
                (op, unit, oracle.sent(op, size, 4, 4))
                for unit, size in enumerate(sizes)
                for op in oracle.DUE[mode]
            ]
            assert sorted(events) == sorted(2 * expected), mode
            assert [one[2] for one in events] == metered, f"{mode}: bytes, in the order of sending"


def test_what_a_rank_holds_is_what_was_predicted(kata, oracle, ranks, cost):
    sizes = oracle.sizes(oracle.model(0))

    def run(rank, world):
        units, batches = mine(kata, oracle, 0, rank, world, steps=2, rows=2)
        peaks = {}
        for mode in MODES:
            with Collectives() as comm, dispatch_meter() as held:
                kata.train(mode, units, oracle.loss_fn, batches, comm)
            peaks[mode] = held.peak_live_bytes
        return peaks

    for peaks in ranks(4, run):
        assert peaks["zero3"] < peaks["zero2"] < peaks["ddp"]
        for mode, peak in peaks.items():
            expected = oracle.held(mode, sizes, 4, 4, 4, 8)
            assert peak == pytest.approx(expected, rel=0.1), f"{mode}: bytes at most"
        cost.check("memory", peaks["zero3"] / peaks["ddp"])


def arguments(kata, oracle, rank, world):
    """What `train` is asked to do, were it to accept."""
    units, batches = mine(kata, oracle, 0, rank, world, steps=1, layers=1)
    return units, oracle.loss_fn, batches


def test_an_unknown_mode_is_refused(kata, oracle, ranks):
    def run(rank, world):
        with Collectives() as comm, pytest.raises(ValueError, match="^mode: "):
            kata.train("zero1", *arguments(kata, oracle, rank, world), comm)

    ranks(2, run)


def test_one_rank_has_nothing_to_shard(kata, oracle, ranks):
    def run(rank, world):
        for mode in MODES:
            with Collectives() as comm, pytest.raises(ValueError, match="^comm: .*to shard"):
                kata.train(mode, *arguments(kata, oracle, rank, world), comm)

    ranks(1, run)


# ---- the audit of a log --------------------------------------------------------------------


def honest(kata, oracle, mode, world=3, steps=2):
    """An honest log of units of UNEVEN sizes, in no particular order."""
    events = [
        kata.Event(op=op, unit=unit, bytes=oracle.sent(op, size, world, 4))
        for unit, size in enumerate(UNEVEN)
        for op in oracle.DUE[mode]
    ]
    return tuple(random.Random(0).sample(steps * events, k=steps * len(events)))


@EACH_MODE
def test_an_honest_log_is_summed_up(kata, oracle, mode):
    found = kata.audit(mode, honest(kata, oracle, mode), UNEVEN, 3, 2)
    assert found == {op: 2 * sent for op, sent in oracle.step_bytes(mode, UNEVEN, 3).items()}
    assert kata.audit(mode, (), UNEVEN, 3, 0) == dict.fromkeys(oracle.DUE[mode], 0)


@EACH_MODE
def test_every_missing_collective_is_noticed(kata, oracle, mode):
    events = honest(kata, oracle, mode)
    for at, gone in enumerate(events):
        with pytest.raises(ValueError, match=f"^unit {gone.unit}: .*{gone.op}"):
            kata.audit(mode, events[:at] + events[at + 1 :], UNEVEN, 3, 2)


@EACH_MODE
def test_a_collective_too_many_is_noticed(kata, oracle, mode):
    events = honest(kata, oracle, mode)
    for more in (events[0], replace(events[0], unit=9), replace(events[0], unit=-1)):
        with pytest.raises(ValueError, match=f"^unit {more.unit}: .*{more.op}"):
            kata.audit(mode, [*events, more], UNEVEN, 3, 2)


@EACH_MODE
@pytest.mark.parametrize("share", [3, 0.5], ids=["of all ranks", "too few"])
def test_other_bytes_are_noticed(kata, oracle, mode, share):
    events = [*honest(kata, oracle, mode)]
    events[4] = replace(events[4], bytes=int(share * events[4].bytes))
    with pytest.raises(ValueError, match=f"^unit {events[4].unit}: .*{events[4].op}"):
        kata.audit(mode, events, UNEVEN, 3, 2)


def test_a_collective_of_another_mode_is_noticed(kata, oracle):
    events = honest(kata, oracle, "zero2")
    with pytest.raises(ValueError, match="^unit [0-3]: "):
        kata.audit("ddp", events, UNEVEN, 3, 2)
    with pytest.raises(ValueError, match="^unit [0-3]: .*all_gather"):
        kata.audit("zero3", events, UNEVEN, 3, 2)


# ---- projections ---------------------------------------------------------------------------


@EACH_MODE
@pytest.mark.parametrize("world", [2, 3, 8])
def test_memory_is_what_a_rank_holds_at_most(kata, oracle, mode, world):
    for precision in (kata.FP32, kata.MIXED):
        parts = (precision.weight, precision.gradient, precision.states)
        found = kata.state_bytes(mode, UNEVEN, world, precision)
        assert found == oracle.held(mode, UNEVEN, world, *parts)


def as_pieces(spans):
    """Starts and ends by (op, unit, nth), which says nothing about the order of the list."""
    pieces, count = {}, {}
    for span in sorted(spans, key=lambda span: span.start_s):
        key = (span.op, span.unit)
        nth = count[key] = count.get(key, -1) + 1
        pieces[(*key, nth)] = (span.start_s, span.end_s)
        stream = "comm" if "_" in span.op else "compute"
        assert span.stream == stream, f"{span.op}: expected stream {stream}, found {span.stream}"
    return pieces


# bytes a second of a link, at 64 tokens on 200 TFLOP/s: all hidden, some of it, next to none
LINKS = pytest.mark.parametrize("bandwidth", [100e12, 3e12, 0.1e12], ids=["fast", "even", "slow"])


@EACH_MODE
@LINKS
@pytest.mark.parametrize("prefetch", [True, False], ids=["prefetch", "late"])
def test_a_step_goes_as_its_streams_do(kata, oracle, node, mode, bandwidth, prefetch):
    link = kata.Link(bandwidth=bandwidth, latency_s=1e-10)
    for sizes, world in ((UNEVEN, 4), (UNEVEN, 3), ((500,), 2), ((10, 3000, 10), 2)):
        spans = kata.timeline(mode, sizes, 64, world, node, link, prefetch=prefetch)
        expected = oracle.schedule(mode, sizes, 64, world, node, link, prefetch)
        found = as_pieces(spans)
        assert found.keys() == expected.keys()
        for piece, times in expected.items():
            assert found[piece] == pytest.approx(times, rel=SAME), f"{piece}, sizes {sizes}"


def test_a_step_gathers_ahead_unless_told_otherwise(kata, oracle, node):
    link = kata.Link(bandwidth=3e12, latency_s=0.0)
    found = as_pieces(kata.timeline("zero3", UNEVEN, 64, 4, node, link))
    for piece, times in oracle.schedule("zero3", UNEVEN, 64, 4, node, link).items():
        assert found[piece] == pytest.approx(times, rel=SAME), piece


@EACH_MODE
@LINKS
def test_a_step_is_split_at_every_edge(kata, oracle, node, mode, bandwidth):
    link = kata.Link(bandwidth=bandwidth, latency_s=1e-10)
    spans = kata.timeline(mode, UNEVEN, 64, 4, node, link)
    times = oracle.schedule(mode, UNEVEN, 64, 4, node, link)
    step_s, compute_s, exposed_s = oracle.split(times)
    found = kata.breakdown(tuple(random.Random(1).sample(spans, k=len(spans))))
    assert found.step_s == pytest.approx(step_s, rel=SAME)
    assert found.compute_s == pytest.approx(compute_s, rel=SAME)
    assert found.exposed_s == pytest.approx(exposed_s, rel=SAME, abs=SAME * step_s)
    for op in exposed_s:
        total = sum(end - start for piece, (start, end) in times.items() if piece[0] == op)
        assert found.comm_s[op] == pytest.approx(total, rel=SAME), op
    parts = found.compute_s + sum(found.exposed_s.values()) + found.idle_s
    assert parts == pytest.approx(found.step_s, rel=SAME)
    waits = {"compute": compute_s, **exposed_s}
    assert found.bottleneck == max(waits, key=waits.get), waits


def span(kata, op, start_s, end_s):
    stream = "comm" if "_" in op else "compute"
    return kata.Span(stream=stream, op=op, unit=0, start_s=start_s, end_s=end_s)


def test_a_breakdown_by_hand(kata):
    # compute  ..11111....222...
    # comm     gggg.rrrrrrr...gg
    spans = [
        span(kata, "all_gather", 15.0, 17.0),
        span(kata, "backward", 11.0, 14.0),
        span(kata, "all_gather", 0.0, 4.0),
        span(kata, "reduce_scatter", 5.0, 12.0),
        span(kata, "forward", 2.0, 7.0),
    ]
    found = kata.breakdown(spans)
    assert (found.step_s, found.compute_s, found.idle_s) == (17.0, 8.0, 1.0)
    assert found.comm_s == {"all_gather": 6.0, "reduce_scatter": 7.0}
    assert found.exposed_s == {"all_gather": 4.0, "reduce_scatter": 4.0}
    assert found.bottleneck == "compute"
    found = kata.breakdown([replace(one, end_s=19.5) if one is spans[0] else one for one in spans])
    assert found.exposed_s == {"all_gather": 6.5, "reduce_scatter": 4.0}
    assert found.bottleneck == "compute"
    found = kata.breakdown([replace(one, end_s=22.0) if one is spans[0] else one for one in spans])
    assert found.bottleneck == "all_gather"


def test_a_collective_that_is_hidden_has_nothing_exposed(kata):
    found = kata.breakdown([span(kata, "forward", 0.0, 8.0), span(kata, "all_gather", 2.0, 7.0)])
    assert (found.comm_s, found.exposed_s) == ({"all_gather": 5.0}, {"all_gather": 0.0})


def test_a_step_without_communication_is_compute(kata):
    found = kata.breakdown([span(kata, "forward", 0.0, 2.0), span(kata, "backward", 3.0, 7.0)])
    assert (found.step_s, found.compute_s, found.idle_s) == (7.0, 6.0, 1.0)
    assert (found.comm_s, found.exposed_s, found.bottleneck) == ({}, {}, "compute")


# ---- the report ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made(kata):
    """Where the report of an implementation lies, once it is made."""
    return []


@pytest.fixture
def reported(kata, oracle, ranks, profile, tmp_path_factory, made):
    """Make a report of two ranks when first asked for; the folder of rank 0."""

    def make():
        if made:
            return made[0]
        folder = tmp_path_factory.mktemp("audit")

        def run(rank, world):
            outdir = folder / str(rank)
            outdir.mkdir()
            units, batches = mine(kata, oracle, 5, rank, world, steps=3)
            with Collectives() as comm:
                kata.report(outdir, units, oracle.loss_fn, batches, comm, profile)

        ranks(2, run)
        assert [*(folder / "1").iterdir()] == [], "expected rank 0 alone to write"
        made.append(folder / "0")
        return made[0]

    return make


def results(reported):
    return json.loads((reported() / "audit.json").read_text())


def test_runs_are_reported_as_they_were(oracle, ranks, reported):
    found = results(reported)
    sizes = oracle.sizes(oracle.model(5))
    assert (found["world"], found["sizes"]) == (2, sizes)
    exact = ranks.alone(lambda: oracle.losses(oracle.model(5), oracle.batches(5, 2, 3)))[0]
    assert [*found["runs"]] == [*MODES]
    for mode, run in found["runs"].items():
        assert run["losses"] == pytest.approx(exact, rel=1e-4), mode
        sent = {op: 3 * sent for op, sent in oracle.step_bytes(mode, sizes, 2).items()}
        assert run["bytes"] == sent, mode


def test_projections_are_those_of_the_timelines(kata, oracle, profile, reported):
    found = results(reported)["projections"]
    assert found.keys() == kata.LINKS.keys()
    for name, link in kata.LINKS.items():
        assert found[name].keys() == set(MODES)
        for mode, one in found[name].items():
            times = oracle.schedule(mode, kata.ONE_B, 1024, 4, profile, link)
            step_s, compute_s, exposed_s = oracle.split(times)
            assert one["step_s"] == pytest.approx(step_s, rel=SAME), (name, mode)
            assert one["compute_s"] == pytest.approx(compute_s, rel=SAME), (name, mode)
            assert one["exposed_s"] == pytest.approx(exposed_s, abs=SAME * step_s), (name, mode)
            waits = {"compute": compute_s, **exposed_s}
            assert one["bottleneck"] == max(waits, key=waits.get), (name, mode)
            memory = oracle.held(mode, kata.ONE_B, 4, 2, 2, 12)
            assert one["memory_bytes"] == memory, (name, mode)


def test_the_timeline_is_that_of_a_step_over_nvlink(kata, oracle, profile, reported):
    events = json.loads((reported() / "timeline.json").read_text())["traceEvents"]
    for mode in MODES:
        times = oracle.schedule(mode, kata.ONE_B, 1024, 4, profile, kata.LINKS["nvlink"])
        expected = sorted((1e6 * start, 1e6 * (end - start)) for start, end in times.values())
        found = sorted((one["ts"], one["dur"]) for one in events if one["pid"] == mode)
        assert [*map(sum, found)] == pytest.approx([*map(sum, expected)], rel=1e-6), mode


def test_the_baseline_is_a_trace_of_ddp(reported):
    events = json.loads((reported() / "baseline_profile.json").read_text())["traceEvents"]
    runs = [one for one in events if one.get("name") == "ddp" and one.get("ph") == "X"]
    assert len(runs) == 1, f"expected one range named 'ddp', found {len(runs)}"
    assert results(reported)["baseline_us"] == pytest.approx(runs[0]["dur"], rel=0.05)
    names = [one.get("name", "") for one in events]
    # forward and again in backward, four layers and three steps
    assert names.count("aten::relu") == 24
    # gloo reduce-scatters by an all-reduce; what ddp never does is gather
    assert sum("allreduce" in name.lower() or "all_reduce" in name for name in names) >= 15
    assert [name for name in names if "gather" in name.lower()] == []


def test_the_report_shows_the_results(reported):
    text = (reported() / "REPORT.md").read_text()
    titles = [
        "Baseline profile",
        "Same losses, other bytes",
        "A step of 1B parameters on four GPUs",
        "What next",
    ]
    assert re.findall("^## (.*)", text, flags=re.MULTILINE) == titles
    for mode, one in results(reported)["projections"]["pcie"].items():
        row = f"| pcie | {mode} | {1e3 * one['step_s']:.2f} |"
        assert row in text, row


# ---- cost: Llama 3.2 1B on four GPUs of the active profile ---------------------------------


def test_gathering_ahead_hides_what_zero3_sends(kata, oracle, profile, cost):
    def exposed(prefetch):
        args = ("zero3", kata.ONE_B, 1024, 4, profile, kata.LINKS["nvlink"])
        found = as_pieces(kata.timeline(*args, prefetch=prefetch))
        return sum(oracle.split(found)[2].values())

    cost.check("exposed", exposed(True) / exposed(False))


def test_ddp_starts_most_of_it_while_there_is_something_to_hide_it(kata, profile, cost):
    spans = kata.timeline("ddp", kata.ONE_B, 1024, 4, profile, kata.LINKS["nvlink"])
    backward_s = max(one.end_s for one in spans if one.stream == "compute")
    early = sum(
        kata.ONE_B[one.unit]
        for one in spans
        if one.op == "all_reduce" and one.start_s < backward_s * (1 - SAME)
    )
    cost.check("early", early / sum(kata.ONE_B))


def test_fabrics_have_different_bottlenecks(kata, profile):
    if not math.isclose(profile.peak_of("float16"), 312e12, rel_tol=0.5):
        pytest.skip(f"{profile.id}: links and compute are as of an A100")
    found = {
        name: kata.breakdown(kata.timeline("zero3", kata.ONE_B, 1024, 4, profile, link)).bottleneck
        for name, link in kata.LINKS.items()
    }
    assert found == {"nvlink": "compute", "pcie": "all_gather"}
