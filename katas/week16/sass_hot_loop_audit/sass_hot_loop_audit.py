"""Kata week16/sass_hot_loop_audit: find the hot loop of a kernel in its machine code.

A control-flow graph, its dominators and natural loops; then the instructions of one loop.
"""

from dataclasses import dataclass

CLASSES = {  # by the whole opcode up to its first dot
    "HMMA": "tensor", "IMMA": "tensor", "DMMA": "tensor", "QMMA": "tensor",
    "HGMMA": "tensor", "IGMMA": "tensor", "QGMMA": "tensor",
    "UTMALDG": "tma", "UTMASTG": "tma", "LDGSTS": "cp.async", "SYNCS": "mbarrier", "BAR": "barrier",
    "LDG": "global", "STG": "global", "LDL": "spill", "STL": "spill", "MUFU": "mufu",
    "LDS": "shared", "LDSM": "shared", "STS": "shared", "STSM": "shared",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Instr:
    """
    One instruction of a listing.

    `pred` is what stands before the opcode without its @, as in "!P0", or ""; `op` the whole
    opcode with its dots, `operands` what follows up to the semicolon; `target` the address that
    BRA and CALL.REL go to, None for all else.
    """

    addr: int
    pred: str
    op: str
    operands: str
    target: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """
    A natural loop: the addresses of its header, of the latches and of all its instructions.

    The latches, in rising order, are the instructions that go back to the header.
    """

    header: int
    latches: tuple[int, ...]
    body: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """The hot loop, and how many of its own instructions are of each class of `CLASSES`."""

    loop: Loop
    counts: dict[str, int]


def parse_sass(text: str) -> list[Instr]:
    """
    The instructions of a listing of one kernel, as `cuobjdump -sass` writes it.

    Raises:
        ValueError: there is no instruction, or one branches to an address that has none; the
            message begins with `text: ` and names that address in hexadecimal.
    """
    raise NotImplementedError  # TODO(kata): match the lines, check the targets (about 25 lines)


def natural_loops(instrs: list[Instr]) -> list[Loop]:
    """
    The natural loops of a kernel, by rising address of their headers; each header has one.

    An instruction is a latch if it may go on to a header that dominates it: every way from the
    first instruction to the latch leads through the header. The body is what reaches a latch
    without passing the header. Code that the first instruction does not reach is in no loop.
    """
    # TODO(kata): control-flow graph, dominators, latches and bodies (about 70 lines with helpers)
    raise NotImplementedError


def audit(text: str) -> Audit:
    """
    The loop with the most tensor instructions of its own, and what else is in it.

    A loop's own instructions are those that are in no loop within it. Of equals the one with the
    lowest header.

    Raises:
        ValueError: as `parse_sass`, or no loop has a tensor instruction.
    """
    raise NotImplementedError  # TODO(kata): count own instructions (about 10 lines)
