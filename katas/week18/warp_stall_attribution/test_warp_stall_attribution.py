"""Pages of real kernels, and written code whose dataflow is known."""

from fractions import Fraction

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st


@pytest.fixture
def blamed(kata, oracle):
    """Blame of a written page, by number of the instruction."""
    return lambda *code: oracle.at_places(kata.blame(kata.parse_source(oracle.written(code))))


@pytest.fixture(scope="module")
def captured(kata, oracle):
    """Page and blame of a kernel, worked out once."""
    known = {}

    def page_and_blame(name):
        if name not in known:
            page = kata.parse_source(oracle.captured(name))
            known[name] = (page, kata.blame(page))
        return known[name]

    return page_and_blame


@st.composite
def programs(draw):
    count = draw(st.integers(3, 10))
    register = st.sampled_from(["R1", "R2"])
    kind = st.sampled_from(["LDG", "LDG", "@P0 LDG", "MOV", "FADD", "@P0 BRA", "BRA"])
    lines = st.tuples(kind, register, st.integers(0, count - 1))
    return draw(st.lists(lines, min_size=count, max_size=count))


# ---- the page ------------------------------------------------------------------------------


def test_lines_have_address_code_and_samples(kata, oracle):
    page = oracle.written(
        [
            ("LDG.E R4, desc[UR4][R2.64]", {"lg": 3}),
            ("FADD R5, R4, R4", {"long_sb": 1200, "selected": 7}),
            "EXIT",
        ]
    )
    assert kata.parse_source(iter(page)) == [
        kata.Line(oracle.addr(0), "LDG.E R4, desc[UR4][R2.64]", {"lg": 3}),
        kata.Line(oracle.addr(1), "FADD R5, R4, R4", {"long_sb": 1200, "selected": 7}),
        kata.Line(oracle.addr(2), "EXIT", {}),
    ]


def test_pages_of_real_kernels_are_read(kata, captured, oracle):
    found = {name: captured(name)[0] for name in oracle.KERNELS}
    sizes = {"pointer_chase": 120, "exp_heavy": 72, "transpose_smem": 184}
    sizes |= {"layernorm_sync": 552, "triton_64x64": 344, "spilling_dot": 856}
    assert {name: len(page) for name, page in found.items()} == sizes
    assert sum(sum(line.samples.values()) for line in found["exp_heavy"]) == 65735


def test_page_is_csv_whatever_is_quoted(kata):
    page = [
        "Kernel Name,g(int)\n",
        'Address,Source,"stall_wait","# Samples"\n',
        '"0x10"," MOV R1, R2",3,3\n',
        '0x20,EXIT,"0",0\n',
    ]
    expected = [kata.Line(16, "MOV R1, R2", {"wait": 3}), kata.Line(32, "EXIT", {})]
    assert kata.parse_source(page) == expected


def test_page_without_stalls_is_refused(kata):
    page = ['"Kernel Name","f(int)"\n', '"Address","Source","# Samples"\n', '"0x10","EXIT","0"\n']
    for lines in (page, page[:2], page[:1], []):
        with pytest.raises(ValueError, match="^columns: "):
            kata.parse_source(lines)


@pytest.mark.parametrize("branch", ["BRA 9", "@P0 BRA 9", "CALL.REL.NOINC 9"])
def test_branch_to_nowhere_is_refused(kata, oracle, branch):
    with pytest.raises(ValueError, match=f"^target: .*{oracle.addr(9):#x}"):
        kata.parse_source(oracle.written(["NOP", branch, "EXIT"]))


# ---- scoreboards ---------------------------------------------------------------------------


def test_the_load_is_blamed_and_not_its_consumer(blamed):
    found = blamed(
        "LDG.E R4, desc[UR4][R2.64]",
        "MOV R9, R8",
        ("FFMA R6, R4, R9, R9", {"long_sb": 10, "wait": 2}),
    )
    assert found == {0: {"long_sb": 10}, 2: {"wait": 2}}


def test_two_loads_share_evenly(blamed):
    found = blamed(
        "LDG.E R4, desc[UR4][R2.64]",
        "LDG.E R5, desc[UR4][R2.64]",
        "LDG.E R6, desc[UR4][R2.64]",
        ("FFMA R7, R4, R5, R6", {"long_sb": 10}),
    )
    third = Fraction(10, 3)
    assert found == {0: {"long_sb": third}, 1: {"long_sb": third}, 2: {"long_sb": third}}


def test_each_producer_counts_once(blamed):
    """Four registers of one load, two of another."""
    found = blamed(
        "LDG.E.128 R4, desc[UR4][R2.64]",
        "LDG.E R8, desc[UR4][R2.64]",
        ("HFMA2 R9, R4, R8, R5", {"long_sb": 10}),
    )
    assert found == {0: {"long_sb": 5}, 1: {"long_sb": 5}}


@pytest.mark.parametrize(
    ("producer", "register", "reason"),
    [
        ("LDG.E.128.CONSTANT R4, desc[UR4][R2.64]", "R7", "long_sb"),
        ("LDG.E.64 R4, desc[UR4][R2.64]", "R5", "long_sb"),
        ("LDL.LU.64 R4, [R1+0x138]", "R5", "long_sb"),
        ("LDS.128 R4, [R9]", "R6", "short_sb"),
        ("LDSM.16.M88.4 R4, [R0+UR7]", "R7", "short_sb"),
        ("LDSM.16.M88.2 R4, [R0+UR7]", "R5", "short_sb"),
        ("LDSM.16.M88 R4, [R0+UR7]", "R4", "short_sb"),
        ("LDC.64 R4, c[0x0][0x210]", "R5", "short_sb"),
        ("MUFU.EX2 R4, R3", "R4", "short_sb"),
        ("S2R R4, SR_TID.X", "R4", "short_sb"),
        ("S2UR UR4, SR_CTAID.X", "UR4", "short_sb"),
        ("SHFL.BFLY PT, R4, R15, 0x10, 0x1f", "R4", "short_sb"),
        ("ATOMG.E.ADD.STRONG.GPU PT, R4, desc[UR4][R2.64], R8", "R4", "long_sb"),
        ("F2I.FTZ.U32.TRUNC.NTZ R4, R2", "R4", "short_sb"),
    ],
    ids=[
        "128",
        "64",
        "local 64",
        "shared 128",
        "matrix of 4",
        "matrix of 2",
        "a matrix",
        "constant 64",
    ]
    + ["MUFU", "S2R", "uniform", "shuffle", "atomic", "conversion"],
)
def test_producers_of_a_register(blamed, producer, register, reason):
    found = blamed("NOP", producer, "NOP", (f"MOV R20, {register}", {reason: 6}))
    assert found == {1: {reason: 6}}


def test_register_past_the_result_is_somebody_elses(blamed):
    found = blamed(
        "LDG.E.64 R10, desc[UR4][R2.64]",
        "LDG.E R8, desc[UR4][R2.64]",
        "LDG.E.128 R4, desc[UR4][R2.64]",
        ("MOV R20, R8", {"long_sb": 1}),
        ("MOV R20, R12", {"long_sb": 2}),
    )
    assert found == {1: {"long_sb": 1}, 4: {"long_sb": 2}}


def test_a_product_has_half_as_many_registers_as_columns(blamed):
    found = blamed(
        "LDG.E R87, desc[UR4][R2.64]",
        "LDG.E R88, desc[UR4][R2.64]",
        "HGMMA.64x128x16.F32.BF16 R24, gdesc[UR12].tnspB, R24",
        ("FFMA R2, R87, R88, R2", {"long_sb": 5}),
    )
    assert found == {1: {"long_sb": 5}}


def test_a_predicate_is_never_wide(blamed):
    found = blamed(
        "SHFL.BFLY P1, R9, R15, 0x10, 0x1f",
        "ATOMG.E.EXCH.64.STRONG.GPU P0, R4, desc[UR4][R2.64], R6",
        ("@P1 MOV R20, R21", {"short_sb": 5}),
    )
    assert found == {0: {"short_sb": 5}}


@pytest.mark.parametrize(
    ("between", "register"),
    [
        ("IMAD.WIDE R6, R20, 0x4, R22", "R7"),
        ("CS2R R6, SRZ", "R7"),
        ("HGMMA.64x64x16.F32.BF16 R4, gdesc[UR12].tnspB, R4", "R7"),
        ("MOV R7, R20", "R7"),
    ],
    ids=["WIDE", "CS2R", "HGMMA", "one"],
)
def test_what_is_overwritten_is_not_waited_for(blamed, between, register):
    """A wide result of another instruction; the same register of the load is gone."""
    found = blamed(
        "LDG.E.128 R4, desc[UR4][R2.64]", between, (f"MOV R30, {register}", {"long_sb": 5})
    )
    assert found == {2: {"long_sb": 5}}


def test_uniform_registers_are_wide_as_well(blamed):
    found = blamed(
        "S2UR UR5, SR_CTAID.X", "ULDC.64 UR4, c[0x0][0x208]", ("MOV R6, UR5", {"short_sb": 4})
    )
    assert found == {2: {"short_sb": 4}}


def test_wide_results_end_where_they_end(blamed):
    for between in ("CS2R.32 R6, SR_CLOCKLO", "SHF.L.U64.HI R6, R2, 0x4, R3", "MOV R6, R20"):
        found = blamed("LDG.E.128 R4, desc[UR4][R2.64]", between, ("MOV R30, R7", {"long_sb": 5}))
        assert found == {0: {"long_sb": 5}}, f"behind {between}: expected 0, found {found}"
    found = blamed(
        "LDG.E R88, desc[UR4][R2.64]",
        "HGMMA.64x128x16.F32.BF16 R24, gdesc[UR12].tnspB, R24",
        ("MOV R20, R88", {"long_sb": 5}),
    )
    assert found == {0: {"long_sb": 5}}


def test_two_matrices_are_in_two_registers(blamed):
    found = blamed("LDS R6, [R9]", "LDSM.16.M88.2 R4, [R0+UR7]", ("MOV R30, R6", {"short_sb": 5}))
    assert found == {0: {"short_sb": 5}}


def test_load_of_the_iteration_before_is_found(blamed):
    """R4 is loaded at the end of the loop, behind its consumer."""
    found = blamed(
        "LDG.E R4, desc[UR4][R2.64]",
        ("FADD R5, R4, R5", {"long_sb": 8}),
        "LDG.E R4, desc[UR4][R6.64]",
        "@P0 BRA 1",
        "EXIT",
    )
    assert found == {0: {"long_sb": 4}, 2: {"long_sb": 4}}


def test_instruction_may_wait_for_itself(blamed):
    """From the second iteration on."""
    found = blamed(
        "LDG.E R4, desc[UR4][R2.64]",
        ("LDG.E R4, desc[UR4][R4.64]", {"long_sb": 8}),
        "@P0 BRA 1",
        "EXIT",
    )
    assert found == {0: {"long_sb": 4}, 1: {"long_sb": 4}}
    found = blamed("LDG.E R4, desc[UR4][R2.64]", ("LDG.E R4, desc[UR4][R4.64]", {"long_sb": 8}))
    assert found == {0: {"long_sb": 8}}


def test_both_arms_are_searched(blamed):
    found = blamed(
        "LDG.E R4, desc[UR4][R2.64]",
        "@P0 BRA 4",
        "LDG.E R4, desc[UR4][R6.64]",
        "BRA 4",
        ("FADD R5, R4, R5", {"long_sb": 8}),
    )
    assert found == {0: {"long_sb": 4}, 2: {"long_sb": 4}}


@pytest.mark.parametrize(
    ("guard", "expected"),
    [("@P0 ", {0: 4, 1: 4}), ("@!UP1 ", {0: 4, 1: 4}), ("@PT ", {1: 8}), ("", {1: 8})],
    ids=["if", "unless", "always", "plain"],
)
def test_write_that_may_not_happen_keeps_the_older_one(blamed, guard, expected):
    found = blamed(
        "LDG.E R4, desc[UR4][R2.64]",
        f"{guard}LDG.E R4, desc[UR4][R6.64]",
        ("FADD R5, R4, R5", {"long_sb": 8}),
    )
    assert found == {at: {"long_sb": count} for at, count in expected.items()}


def test_predicates_are_waited_for(blamed):
    found = blamed(
        "FCHK P0, R23, R24", "S2R R2, SR_TID.X", ("@!P0 BRA 4", {"short_sb": 3}), "NOP", "EXIT"
    )
    assert found == {0: {"short_sb": 3}}


def test_other_producers_are_not_blamed(blamed):
    """Of a load and a shuffle, the one that this reason can be due to."""
    code = ("LDG.E R4, desc[UR4][R2.64]", "SHFL.BFLY PT, R5, R9, 0x1, 0x1f", "FADD R6, R7, R8")
    assert blamed(*code, ("FFMA R9, R4, R5, R6", {"long_sb": 3, "short_sb": 5})) == {
        0: {"long_sb": 3},
        1: {"short_sb": 5},
    }


def test_who_overwrites_waits_for_the_readers(blamed):
    """The store has not read R4 yet; R5 is read by nobody that is late."""
    found = blamed(
        "STS [R9], R4",
        "FADD R6, R4, R4",
        ("MOV R4, R5", {"short_sb": 6}),
    )
    assert found == {0: {"short_sb": 6}}
    found = blamed("STG.E.128 desc[UR4][R2.64], R4", ("MOV R7, R5", {"long_sb": 6}))
    assert found == {0: {"long_sb": 6}}
    # of a wide result every register
    found = blamed("STS [R9], R5", ("CS2R R4, SRZ", {"short_sb": 6}))
    assert found == {0: {"short_sb": 6}}


def test_what_is_read_comes_before_what_is_overwritten(blamed):
    found = blamed(
        "STG.E desc[UR4][R2.64], R4",
        "LDG.E R5, desc[UR4][R2.64]",
        ("MOV R4, R5", {"long_sb": 6}),
        "LDG.E R8, desc[UR4][R2.64]",
        ("MOV R8, R9", {"long_sb": 2}),
    )
    assert found == {1: {"long_sb": 6}, 3: {"long_sb": 2}}


def test_readers_before_an_older_write_are_done(blamed):
    found = blamed("STS [R9], R4", "MOV R4, R8", ("MOV R4, R5", {"short_sb": 6}))
    assert found == {2: {"short_sb": 6}}


def test_copies_are_waited_for_behind_depbar(blamed):
    """Each adds to the group; what waits is shown at the instruction behind DEPBAR."""
    found = blamed(
        "LDGSTS.E.BYPASS.128 [R61], desc[UR16][R22.64]",
        "LDGSTS.E.BYPASS.128 [R61+0x800], desc[UR16][R24.64]",
        "LDGDEPBAR",
        "NOP",
        "DEPBAR.LE SB0, 0x0",
        ("BAR.SYNC.DEFER_BLOCKING 0x0", {"long_sb": 8, "wait": 1}),
        ("NOP", {"long_sb": 2}),
    )
    assert found == {0: {"long_sb": 4}, 1: {"long_sb": 4}, 5: {"wait": 1}, 6: {"long_sb": 2}}


def test_behind_depbar_a_register_may_be_late_as_well(blamed):
    found = blamed(
        "LDG.E R4, desc[UR4][R2.64]",
        "LDGSTS.E.BYPASS.128 [R61], desc[UR16][R22.64]",
        "DEPBAR.LE SB0, 0x0",
        ("FADD R5, R4, R4", {"long_sb": 8}),
    )
    assert found == {0: {"long_sb": 4}, 1: {"long_sb": 4}}


def test_first_line_is_behind_no_depbar(blamed):
    found = blamed(
        ("NOP", {"long_sb": 3}),
        "LDGSTS.E.BYPASS.128 [R61], desc[UR16][R22.64]",
        "@P0 BRA 0",
        "DEPBAR.LE SB0, 0x0",
    )
    assert found == {0: {"long_sb": 3}}


@pytest.mark.parametrize("branch", ["@P0 BRA 1", "BRA 1"], ids=["if", "always"])
def test_branch_waits_for_what_its_block_has_under_way(blamed, branch):
    found = blamed(
        "LDG.E R4, desc[UR4][R2.64]",
        "NOP",
        "LDG.E R5, desc[UR4][R2.64]",
        "S2R R6, SR_TID.X",
        "LDG.E R7, desc[UR4][R2.64]",
        (branch, {"long_sb": 8}),
        "LDG.E R9, desc[UR4][R2.64]",
        "EXIT",
    )
    assert found == {2: {"long_sb": 4}, 4: {"long_sb": 4}}


def test_nothing_found_stays_in_place(blamed):
    found = blamed("MOV R4, R5", ("FADD R6, R4, R4", {"long_sb": 3, "short_sb": 2}))
    assert found == {1: {"long_sb": 3, "short_sb": 2}}


@given(code=programs(), samples=st.integers(1, 9))
@settings(max_examples=25)
@example(code=[("@P0 BRA", "R1", 2), ("LDG", "R1", 0), ("FADD", "R1", 0)], samples=1)
@example(
    code=[("LDG", "R1", 0), ("FADD", "R1", 0), ("@P0 LDG", "R1", 0), ("@P0 BRA", "R1", 1)],
    samples=3,
)
@example(code=[("LDG", "R2", 0), ("BRA", "R1", 0), ("FADD", "R2", 0)], samples=2)
def test_blame_by_dataflow_forwards(kata, oracle, code, samples):
    """FADD reads R1 or R2 and writes R9; whatever write may reach it, if it is a load."""
    text = {
        "LDG": "LDG.E {}, desc[UR4][R6.64]",
        "@P0 LDG": "@P0 LDG.E {}, desc[UR4][R6.64]",
        "MOV": "MOV {}, R7",
        "FADD": "FADD R9, {}, R8",
    }
    page = [
        (f"{kind} {target}", {})
        if "BRA" in kind
        else (text[kind].format(register), {"long_sb": samples} if kind == "FADD" else {})
        for kind, register, target in code
    ]
    expected = {}
    for at, writes in enumerate(oracle.reaching(code)):
        kind, register, _ = code[at]
        if kind == "FADD":
            loads = [i for i, written in writes if written == register and "LDG" in code[i][0]]
            for i in loads or [at]:
                share = Fraction(samples, len(loads or [at]))
                expected[i] = expected.get(i, 0) + share
    found = oracle.at_places(kata.blame(kata.parse_source(oracle.written(page))))
    assert found == {at: {"long_sb": share} for at, share in expected.items()}


# ---- barriers, queues, and what stays ------------------------------------------------------


def test_barrier_is_shown_behind_the_barrier(blamed):
    """On each way back the first BAR, or the instruction itself."""
    found = blamed(
        "BAR.SYNC.DEFER_BLOCKING 0x0",
        "@P0 BRA 4",
        "BAR.SYNC.DEFER_BLOCKING 0x0",
        "NOP",
        ("MOV R4, R5", {"barrier": 6}),
        ("BAR.SYNC.DEFER_BLOCKING 0x0", {"barrier": 5}),
        ("NOP", {"barrier": 1}),
    )
    assert found == {0: {"barrier": 3}, 2: {"barrier": 3}, 5: {"barrier": 6}}


def test_barrier_before_a_loop_is_found_behind_it(blamed):
    found = blamed(
        "BAR.SYNC.DEFER_BLOCKING 0x0",
        "NOP",
        ("MOV R4, R5", {"barrier": 6}),
        "@P0 BRA 1",
        "EXIT",
    )
    assert found == {0: {"barrier": 6}}


def test_full_queue_is_everybodys_in_the_block(blamed):
    found = blamed(
        "LDS R1, [R20]",
        "@P0 BRA 3",
        "LDS R2, [R20]",
        "LDS R3, [R20]",
        ("LDS R4, [R20]", {"mio": 9, "lg": 4}),
        "FADD R5, R6, R7",
        "MUFU.EX2 R8, R9",
        "LDG.E R10, desc[UR4][R2.64]",
        "@P1 EXIT",
        "LDS R11, [R20]",
    )
    assert found == {3: {"mio": 3}, 4: {"mio": 3}, 6: {"mio": 3}, 7: {"lg": 4}}


def test_many_share_evenly_too(blamed):
    loads = [f"LDS R{at}, [R20]" for at in range(6)]
    found = blamed(*loads, ("LDS R6, [R20]", {"mio": 3}))
    assert found == {at: {"mio": Fraction(3, 7)} for at in range(7)}


@pytest.mark.parametrize("end", ["@P0 BRA 5", "CALL.REL.NOINC 5", "@P0 EXIT", "RET.REL.NODEC R20"])
def test_blocks_end_where_something_may_leave(blamed, end):
    found = blamed("LDS R1, [R20]", end, ("LDS R2, [R20]", {"mio": 4}), "NOP", "NOP", "EXIT")
    assert found == {2: {"mio": 4}}


def test_blocks_begin_where_something_may_come_in(blamed):
    found = blamed(
        "LDS R1, [R20]", ("LDS R2, [R20]", {"mio": 4}), "LDS R3, [R20]", "BRA 1", "LDS R4, [R20]"
    )
    assert found == {1: {"mio": 2}, 2: {"mio": 2}}


def test_other_stalls_stay_in_place(blamed):
    reasons = ("wait", "math", "not_selected", "selected", "dispatch", "no_inst", "drain", "tex")
    samples = {reason: at + 1 for at, reason in enumerate(reasons)}
    found = blamed(
        "LDG.E R4, desc[UR4][R2.64]", "BAR.SYNC 0x0", "LDS R6, [R9]", ("FADD R5, R4, R6", samples)
    )
    assert found == {3: samples}


# ---- real kernels --------------------------------------------------------------------------


def test_no_sample_is_lost(captured, oracle, cost):
    lost = 0
    for name in oracle.KERNELS:
        page, blamed = captured(name)
        for reason in sorted({reason for line in page for reason in line.samples}):
            before = sum(line.samples.get(reason, 0) for line in page)
            after = sum(reasons.get(reason, 0) for reasons in blamed.values())
            lost += abs(before - after)
            assert after == before, f"{reason} of {name}: expected {before}, found {after}"
    cost.check("lost", float(lost))


def test_scoreboards_lead_to_producers(kata, captured, oracle, cost):
    worst = 1.0
    for name in oracle.KERNELS:
        page, blamed = captured(name)
        ops = {line.addr: kata.decode(line.sass).op.split(".")[0] for line in page}
        placed, total = 0, 0
        for addr, reasons in blamed.items():
            for reason, names in kata.SCOREBOARD.items():
                total += reasons.get(reason, 0)
                placed += reasons.get(reason, 0) if ops[addr] in names else 0
        worst = min(worst, placed / total)
        assert placed >= 0.95 * total, f"{name}: found {float(placed)} of {float(total)}"
    cost.check("placed", float(worst))


def test_top_causes_of_real_kernels(kata, oracle, cost):
    wrong = []
    for name, expected in oracle.TOP.items():
        (found,) = kata.top_causes(kata.parse_source(oracle.captured(name)), 1)
        if (found.op, found.reason) != expected:
            wrong.append(f"{name}: expected {expected}, found {(found.op, found.reason)}")
    cost.check("wrong_causes", len(wrong))
    assert not wrong, "; ".join(wrong)


def test_causes_have_opcode_share_and_addresses(kata, oracle):
    page = kata.parse_source(
        oracle.written(
            [
                "LDG.E R4, desc[UR4][R2.64]",
                "LDG.E.CONSTANT R5, desc[UR4][R2.64]",
                ("FADD R7, R5, R5", {"long_sb": 1, "wait": 5}),
                ("FADD R6, R4, R5", {"long_sb": 10, "selected": 900, "not_selected": 800}),
                ("MOV R8, R9", {"wait": 4}),
            ]
        )
    )
    loads = kata.Cause("LDG", "long_sb", pytest.approx(0.55), (oracle.addr(0), oracle.addr(1)))
    adds = kata.Cause("FADD", "wait", pytest.approx(0.25), (oracle.addr(2),))
    moves = kata.Cause("MOV", "wait", pytest.approx(0.2), (oracle.addr(4),))
    assert kata.top_causes(page, 9) == [loads, adds, moves]
    assert kata.top_causes(page, 2) == [loads, adds]
    assert kata.top_causes(page, 0) == []


def test_equal_causes_go_by_opcode_then_reason(kata, oracle):
    code = [("MOV R8, R9", {"wait": 4, "math": 4}), ("FADD R7, R5, R5", {"wait": 4})]
    page = kata.parse_source(oracle.written(code))
    found = [(cause.op, cause.reason) for cause in kata.top_causes(page, 3)]
    assert found == [("FADD", "wait"), ("MOV", "math"), ("MOV", "wait")]


def test_no_stalls_have_no_causes(kata, oracle):
    page = kata.parse_source(oracle.written(["NOP", ("EXIT", {"selected": 3})]))
    assert kata.top_causes(page, 5) == []
    assert kata.top_causes([], 5) == []
    assert kata.blame([]) == {}


def test_paths_are_not_walked_one_by_one(kata, oracle, cost, lines):
    """Behind 300 branches there are 2**300 ways back to the load."""
    code = ["LDG.E R4, desc[UR4][R2.64]"]
    for _ in range(300):
        code += [f"@P0 BRA {len(code) + 2}", "MOV R5, R6"]
    code.append(("FADD R7, R4, R4", {"long_sb": 4}))
    page = kata.parse_source(oracle.written(code))
    with lines(limit=400_000) as counted:
        found = kata.blame(page)
    assert oracle.at_places(found) == {0: {"long_sb": 4}}
    cost.check("lines", counted.lines)


def test_page_is_left_alone(kata, oracle):
    page = kata.parse_source(oracle.captured("pointer_chase"))
    before = [(line.addr, line.sass, dict(line.samples)) for line in page]
    kata.top_causes(page, 3)
    assert [(line.addr, line.sass, line.samples) for line in page] == before
