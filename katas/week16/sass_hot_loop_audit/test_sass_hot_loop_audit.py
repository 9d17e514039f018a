"""Listings of real kernels, and loops against reachability on graphs of any form."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

TENSOR = "HMMA.16816.F32 R8, R12, R18, R8"


@st.composite
def programs(draw):
    count = draw(st.integers(2, 12))
    targets = st.integers(0, count - 1)
    lines = st.one_of(
        st.just("NOP"),
        st.sampled_from(["EXIT", "@P0 EXIT"]),
        st.builds("{} {}".format, st.sampled_from(["BRA", "@P0 BRA", "@!P1 BRA"]), targets),
    )
    return draw(st.lists(lines, min_size=count, max_size=count))


def as_tuples(loops):
    return [(loop.header, loop.latches, loop.body) for loop in loops]


# ---- parsing -------------------------------------------------------------------------------


def test_an_instruction_has_its_parts(kata, oracle):
    lines = [
        "LDC R1, c[0x0][0x28]",
        "@!P0 BRA 3",
        "@UP2 SYNCS.EXCH.64 URZ, [UR8+0x2c000], UR28",
        "EXIT",
    ]
    found = kata.parse_sass(oracle.written(lines))
    assert [(i.addr, i.pred, i.op, i.operands, i.target) for i in found] == [
        (0, "", "LDC", "R1, c[0x0][0x28]", None),
        (16, "!P0", "BRA", "0x30", 48),
        (32, "UP2", "SYNCS.EXCH.64", "URZ, [UR8+0x2c000], UR28", None),
        (48, "", "EXIT", "", None),
    ]


@pytest.mark.parametrize("count", [("wgmma_gemm", 1720), ("mma_gemm", 576), ("attention", 1816)])
def test_every_instruction_is_read(kata, oracle, count):
    """With the bytes of the code beside it, or without."""
    found = kata.parse_sass(oracle.listing(count[0]))
    assert len(found) == count[1]
    assert [instr.addr for instr in found] == list(range(0, 16 * count[1], 16))


@pytest.mark.parametrize("text", ["", "\tFunction : empty\n", "BRA 0x10 ;"], ids=repr)
def test_text_without_instructions_is_refused(kata, text):
    with pytest.raises(ValueError, match="^text: "):
        kata.parse_sass(text)


@pytest.mark.parametrize("op", ["BRA", "@P0 BRA", "BRA P1,", "CALL.REL.NOINC"])
def test_branches_to_nowhere_are_refused(kata, oracle, op):
    with pytest.raises(ValueError, match=r"^text: .*0x70\b"):
        kata.parse_sass(oracle.written(["NOP", f"{op} 7", "EXIT"]))


def test_only_branches_have_a_target(kata, oracle):
    """An offset or a constant in hexadecimal is no address of code."""
    lines = ["MOV R1, 0x70", "BRANCHLIKE 0x70", "CALL.ABS.NOINC 0x70", "EXIT"]
    text = oracle.written(lines).replace("BRANCHLIKE", "BRXU")
    assert [instr.target for instr in kata.parse_sass(text)] == [None] * 4


# ---- loops ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["wgmma_gemm", "mma_gemm", "attention"])
def test_loops_of_real_kernels(kata, oracle, name):
    found = kata.natural_loops(kata.parse_sass(oracle.listing(name)))
    assert [(loop.header, loop.latches) for loop in found] == oracle.LOOPS[name]


def test_cold_block_belongs_to_the_loop_it_returns_to(kata, oracle):
    """The wait at 0x6a80 lies behind the last EXIT, and goes back into the loop at 0x30e0."""
    found = kata.natural_loops(kata.parse_sass(oracle.listing("wgmma_gemm")))
    (body,) = [loop.body for loop in found if loop.header == 0x2A90]
    assert body == {*range(0x2A90, 0x69C0, 16), 0x6A80, 0x6A90, 0x6AA0}


@given(lines=programs())
@example(lines=["@P0 BRA 2", "NOP", "NOP", "@P1 BRA 1", "EXIT"])  # entered at 1 and at 2: no loop
@example(lines=["NOP", "NOP", "@P0 BRA 1", "NOP", "@P1 BRA 1", "EXIT"])  # two ways back to 1
@example(lines=["NOP", "NOP", "NOP", "@P0 BRA 2", "@P1 BRA 1", "EXIT"])  # one in the other
@example(lines=["NOP", "@P0 BRA 1", "EXIT", "BRA 3"])  # to itself; and what nothing reaches
@example(lines=["BRA 3", "NOP", "EXIT", "NOP", "@P0 BRA 1", "BRA 3"])  # from behind
@example(lines=["NOP", "@P0 BRA 4", "NOP", "BRA 1", "NOP", "@P0 BRA 1", "EXIT"])  # two arms
@example(lines=["NOP", "BRA 5", "NOP", "NOP", "@P0 BRA 5", "BRA 2"])  # 4 goes to 5 either way
@example(lines=["@P0 BRA 4", "@P0 BRA 3", "@P0 BRA 1", "@P0 BRA 1", "BRA 3"])  # entered twice
@example(lines=["BRA 2", "EXIT", "BRA 1"])  # backwards, and no loop
@example(lines=["NOP", "@P0 EXIT", "BRA 0"])
@example(lines=["NOP", "EXIT", "BRA 0", "@P0 BRA 1"])  # a way back that nothing reaches
@example(lines=["@P0 BRA 3", "NOP", "BRA 4", "NOP", "NOP", "@P1 BRA 0", "EXIT"])
@example(lines=["BRA 3", "NOP", "NOP", "NOP", "@P0 BRA 1", "EXIT"])  # 2 runs on into its header
@example(lines=["NOP", "NOP", "@P0 BRA 0", "EXIT", "BRA 1"])  # a way in that nothing reaches
@example(lines=["NOP", "BRA 4", "NOP", "BRA 1", "@P0 BRA 2", "@P1 BRA 4", "EXIT"])
@example(lines=["@P0 BRA 2", "@P1 BRA 3", "NOP", "@P2 BRA 1", "EXIT"])  # 3 from 1, and past it
def test_loops_by_reachability(kata, oracle, lines):
    found = kata.natural_loops(kata.parse_sass(oracle.written(lines)))
    assert as_tuples(found) == oracle.loops(lines)


@pytest.mark.parametrize("line", ["BRA P1, 0", "BRA.U !UP0, 0", "@P0 BRA 0", "CALL.REL.NOINC 0"])
def test_branches_that_go_on_as_well(kata, oracle, line):
    lines = ["NOP", line, "@P1 BRA 1", "EXIT"]
    found = kata.natural_loops(kata.parse_sass(oracle.written(lines)))
    assert [loop.header for loop in found] == [0, 16]


@pytest.mark.parametrize(
    "line", ["EXIT", "EXIT.KEEPREFCOUNT", "RET.REL.NODEC R2 0x0", "BRA 4", "BRA.U 4"]
)
def test_nothing_comes_after_the_end(kata, oracle, line):
    lines = ["NOP", line, "NOP", "@P0 BRA 2", "EXIT"]
    assert kata.natural_loops(kata.parse_sass(oracle.written(lines))) == []


def test_the_next_one_is_that_of_the_text(kata):
    """Instructions of 8 bytes, as on older GPUs, and a gap where one is left out."""
    text = """
        /*0008*/                   MOV R1, R2 ;
        /*0010*/                   IADD R1, R1, -0x1 ;
        /*0028*/                   ISETP.NE.AND P0, PT, R1, RZ, PT ;
        /*0030*/               @P0 BRA 0x10 ;
        /*0038*/                   EXIT ;
    """
    found = kata.natural_loops(kata.parse_sass(text))
    assert as_tuples(found) == [(0x10, (0x30,), {0x10, 0x28, 0x30})]


# ---- the hot loop --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "header", "counts"),
    [
        (  # counted with grep from the header to the latch
            "wgmma_gemm",
            0x2A90,
            {"tensor": 4, "tma": 2, "mbarrier": 2, "barrier": 6, "spill": 82, "shared": 32}
            | {"global": 16, "mufu": 2},
        ),
        (
            "mma_gemm",
            0x1910,
            {"tensor": 1, "tma": 2, "mbarrier": 2, "barrier": 4, "shared": 5}
            | {"global": 1, "mufu": 2},
        ),
    ],
)
def test_hot_loop_of_real_kernels(kata, oracle, name, header, counts):
    found = kata.audit(oracle.listing(name))
    assert (found.loop.header, found.counts) == (header, counts)


def test_a_loop_without_tensor_cores_is_not_hot(kata, oracle):
    """HFMA2.MMA is none of theirs, whatever its name; and what is outside does not count."""
    with pytest.raises(ValueError, match="^text: "):
        kata.audit(oracle.listing("attention"))
    with pytest.raises(ValueError, match="^text: "):
        kata.audit(oracle.written([TENSOR, "HFMA2.MMA R1, -RZ, RZ, 0, 0", "@P0 BRA 1", "EXIT"]))


def test_own_instructions_only(kata, oracle):
    """
    The outer loop has three of its own, the inner one two; together they would be five.

    LDGDEPBAR closes a group of cp.async, and loads nothing.
    """
    lines = ["NOP", TENSOR, TENSOR, "LDS R1, [R2]", TENSOR, "LDL R1, [R1]", TENSOR, "STS [R2], R1"]
    lines += ["@P0 BRA 3", TENSOR, "LDGSTS.E [R1], [R2]", "LDGDEPBAR", "@P1 BRA 1", "EXIT"]
    found = kata.audit(oracle.written(lines))
    assert found.loop.header == 0x10
    assert found.counts == {"tensor": 3, "cp.async": 1}


def test_a_loop_within_may_stand_before(kata, oracle):
    """The header of the outer loop is at 0x50, that of the inner one at 0x10."""
    lines = ["BRA 5", TENSOR, TENSOR, "@P0 BRA 1", "BRA 7", TENSOR, "BRA 1", "@P1 BRA 5", "EXIT"]
    found = kata.audit(oracle.written(lines))
    assert (found.loop.header, found.counts) == (0x10, {"tensor": 2})


def test_the_most_and_not_the_densest(kata, oracle):
    """One of two instructions in the first loop, two of five in the second."""
    lines = [TENSOR, "@P0 BRA 0", TENSOR, TENSOR, "NOP", "NOP", "@P0 BRA 2", "EXIT"]
    found = kata.audit(oracle.written(lines))
    assert (found.loop.header, found.counts) == (0x20, {"tensor": 2})


def test_of_equals_the_first(kata, oracle):
    lines = [TENSOR, "LDG.E R1, [R2]", "@P0 BRA 0", TENSOR, "MUFU.EX2 R1, R1", "@P0 BRA 3", "EXIT"]
    found = kata.audit(oracle.written(lines))
    assert (found.loop.header, found.counts) == (0, {"tensor": 1, "global": 1})


def test_a_long_listing_takes_no_search(kata, oracle, lines, cost):
    """12,000 instructions in 1000 loops, one after the other, and one around them."""
    block = ["NOP"] * 4 + ["@P1 BRA {0}", "NOP", "NOP", TENSOR, "NOP", "NOP", "NOP", "@P0 BRA {1}"]
    program = [line.format(12 * loop + 6, 12 * loop) for loop in range(1000) for line in block] + [
        "@P2 BRA 0",
        "EXIT",
    ]
    instrs = kata.parse_sass(oracle.written(program))
    with lines(limit=4_000_000) as counted:
        found = kata.natural_loops(instrs)
    assert [loop.header for loop in found] == [192 * loop for loop in range(1000)]
    assert found[0].latches == (11 * 16, 12_000 * 16)
    cost.check("lines", counted.lines)
