"""Machine code of the chains, machines with hidden parameters, and the GPU that is there."""

import random

import pytest
import torch

from harness.cuda import launch

# ---- the kernel ----------------------------------------------------------------------------


@pytest.mark.parametrize(("op", "n", "ilp"), [("ffma", 64, 1), ("fadd", 9, 4), ("ex2", 8, 1)])
def test_between_the_clocks_there_are_the_chains_and_nothing_else(kata, oracle, op, n, ilp):
    before, code = oracle.instructions(kata.chain_source(op, n, ilp))
    on_their_way = oracle.on_their_way(before)
    assert not on_their_way, (
        f"{op}, n = {n}, ilp = {ilp}: expected values that are there when the clock is read, "
        f"found that nothing before has used what is loaded into {on_their_way[0]}"
    )
    names = {name for name, _, _ in code}
    assert names == {kata.OPS[op][1]}, (
        f"{op}, n = {n}, ilp = {ilp}: expected {kata.OPS[op][1]} between the clocks and nothing "
        f"else, found {sorted(names)}"
    )
    lengths = oracle.chains(code)
    assert lengths == [n] * ilp, f"{op}: expected {ilp} chains of {n}, found {lengths}"


def test_an_instruction_reads_one_register(kata, oracle):
    _, code = oracle.instructions(kata.chain_source("ffma", 8, 2))
    for name, _, read in code:
        assert len(set(read)) == 1, f"{name} reads {read}: three registers take two cycles"


def test_every_thread_writes_its_clocks_and_what_became_of_its_value(kata, device):
    threads, n, ilp = 40, 8, 3
    x = torch.arange(1.0, 1 + threads, device=device)
    clocks = torch.full((2 * threads,), -1, device=device)
    source = kata.chain_source("fadd", n, ilp)
    launch(source, "chain", (clocks, x), grid=(1,), block=(threads,))
    starts, ends = clocks.cpu().reshape(-1, 2).T
    # without a GPU the clock counts instructions
    assert (starts > 0).all(), f"expected the clock of all {threads} threads, found {starts}"
    assert (ends - starts >= n * ilp).all(), (
        f"expected {n * ilp} cycles or more from clocks[2 * t] to the next, found {ends - starts}"
    )
    assert len(set(x.tolist())) == threads, (
        f"x = 1 to {threads}: expected another result of each, found {x}"
    )


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("op", ("fma", 64, 1)),
        ("op", ("", 64, 1)),
        ("n", ("ffma", 7, 1)),
        ("n", ("ffma", 129, 1)),
        ("ilp", ("ffma", 64, 0)),
        ("ilp", ("ffma", 64, 9)),
    ],
    ids=["fma", "no op", "n of 7", "n of 129", "ilp of 0", "ilp of 9"],
)
def test_kernels_that_cannot_be_are_refused(kata, name, arguments):
    with pytest.raises(ValueError, match=f"^{name}: "):
        kata.chain_source(*arguments)
    for some in (("ffma", 8, 8), ("ffma", 128, 1)):
        assert kata.chain_source(*some)


# ---- latency and throughput ----------------------------------------------------------------


def test_hidden_instructions_are_found(kata, oracle, seed, cost):
    draw, most = random.Random(seed), 0
    for trial in range(30):
        hidden = [(2, 1), (40, 1), (32, 32), (40, 32)]
        pipe = oracle.Pipe(draw, *(hidden[trial] if trial < len(hidden) else ()))
        found = kata.infer_instruction(pipe)
        assert found == pipe.truth, f"hidden {pipe.truth}, found {found}"
        assert [type(one) for one in found] == [int, int]
        most = max(most, pipe.calls)
    cost.check("instruction_measurements", most)


@pytest.mark.parametrize(
    "measure",
    [
        lambda n, ilp, warps: 1000,
        lambda n, ilp, warps: 5000 - 4 * n,
        lambda n, ilp, warps: 300 + (4 * n if warps == 1 else 5000),
        lambda n, ilp, warps: 300 + n * max(9, 2 * warps * ilp) // 2,
        lambda n, ilp, warps: 300 + n * max(47, 10 * -(-warps // 4) * ilp) // 10,
        lambda n, ilp, warps: 300 + n * max(4, -(-warps // 4) * ilp * 3),
        lambda n, ilp, warps: 300 + n * max(4, -(-warps // 8) * ilp),
        lambda n, ilp, warps: 300 + n * max(64, -(-warps // 4) * ilp * 64),
        lambda n, ilp, warps: 300 + n * (0 if warps * ilp == 1 else -(-warps // 4) * ilp),
        lambda n, ilp, warps: 300 + n * max(60, -(-warps // 4) * ilp),
        lambda n, ilp, warps: 300 + n * (8 if warps * ilp == 1 else -(-warps // 4) * ilp * 16),
    ],
    ids=[
        "constant",
        "less for more",
        "constant for many",
        "latency 4.5",
        "latency 4.7",
        "every 3 cycles",
        "8 issue",
        "every 64",
        "no latency",
        "latency 60",
        "a result before the next",
    ],
)
def test_times_of_no_machine_are_refused(kata, oracle, measure):
    assert kata.infer_instruction(oracle.Pipe(random.Random(0), 4, 1)) == (4, 128)
    with pytest.raises(RuntimeError, match="^measure: "):
        kata.infer_instruction(measure)


# ---- banks ---------------------------------------------------------------------------------


def test_hidden_banks_are_found(kata, oracle, seed, cost):
    draw, most = random.Random(seed), 0
    for trial in range(30):
        kind = [(count, width) for count in (16, 32, 64) for width in (4, 8)]
        smem = oracle.Smem(draw, *kind[trial % len(kind)])
        truth = kata.Banks(count=smem.count, width=smem.width, lanes_per_phase=smem.lanes)
        found = kata.infer_banks(smem)
        assert found == truth, f"hidden {truth}, found {found}"
        most = max(most, smem.calls)
    cost.check("bank_measurements", most)


def test_banks_of_hopper(kata, oracle, seed):
    smem = oracle.Smem(random.Random(seed), 32, 4, oracle.HOPPER)
    expected = kata.Banks(count=32, width=4, lanes_per_phase=oracle.HOPPER)
    assert kata.infer_banks(smem) == expected


@pytest.mark.parametrize(
    "kind",
    [
        "8 banks",
        "8 banks of 8 bytes",
        "128 banks",
        "128 banks of 8 bytes",
        "phases of 8 lanes",
        "no banks",
        "a lane at a time",
        "quarters of a phase",
        "every other row moved on by a bank",
    ],
)
def test_memories_of_no_machine_are_refused(kata, oracle, seed, kind):
    some = oracle.Smem(random.Random(0))
    assert kata.infer_banks(some).count == some.count
    with pytest.raises(RuntimeError, match="^measure_smem: "):
        kata.infer_banks(oracle.no_smem(kind, random.Random(seed)))


# ---- the GPU that is there -----------------------------------------------------------------


def test_a_hopper_is_what_is_published(kata, oracle, device):
    if device != "cuda":
        pytest.skip("needs a clock: pytest --device cuda")
    import torch

    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("the published figures are those of sm_90")
    assert kata.infer_instruction(oracle.gpu_pipe(kata, "ffma")) == (4, 128)
    assert kata.infer_instruction(oracle.gpu_pipe(kata, "fadd")) == (4, 128)
