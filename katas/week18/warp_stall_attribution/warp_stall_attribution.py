"""Kata week18/warp_stall_attribution: from the instruction that waits to the one it waits for."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

# opcodes, up to the first dot, that a stall of this reason can be due to
L1TEX = frozenset(["LD", "LDG", "LDL", "LDGSTS", "ATOM", "ATOMG", "RED", "ST", "STG", "STL", "TEX"])
MIO = frozenset(
    ["LDS", "LDSM", "STS", "STSM", "ATOMS", "MUFU", "SHFL", "S2R", "S2UR", "R2UR", "LDC"]
    + ["I2F", "F2I", "F2F", "FCHK", "POPC", "FLO"]
)
SCOREBOARD = {"long_sb": L1TEX, "short_sb": MIO}  # the result of one of these is not there yet
QUEUE = {"lg": L1TEX, "mio": MIO}  # too many of these are waiting to be issued to their unit
ISSUABLE = ("selected", "not_selected")  # no stalls: the warp was ready


@dataclass(frozen=True)
class Line:
    """One instruction of the source page: `samples` by reason, "long_sb" and so on, above 0."""

    addr: int
    sass: str
    samples: dict[str, int]


@dataclass(frozen=True)
class Instr:
    """An instruction as `decode` reads it; registers are those of `REGISTER`, predicates too."""

    op: str  # with all its dots
    conditional: bool  # does not always write: it has a predicate, or only adds to SB0
    ends: bool  # never goes on to the next instruction
    target: int | None  # where it may go as well
    dests: tuple[str, ...]  # the first register of each destination
    reads: frozenset[str]


@dataclass(frozen=True)
class Cause:
    """What to change: an opcode up to its first dot, the reason, and where it costs samples."""

    op: str
    reason: str
    share: float  # of all samples of warps that could not issue
    addrs: tuple[int, ...]  # rising


REGISTER = re.compile(r"\b(U?R\d+|U?P\d|SB\d)\b")
_PAIR = re.compile(r"\b(U?R)(\d+)\.64\b")  # an address of 64 bits in an operand
_WIDE_DATA = {".64": 2, ".128": 4}


@cache
def decode(sass: str) -> Instr:
    """Predicate, opcode, destinations and all registers read of one instruction."""
    guard, op, text = re.fullmatch(r"\s*(@!?\w+)?\s*([\w.]+)\s*(.*?)\s*;?\s*", sass).groups()
    operands = [operand.strip() for operand in text.split(",")] if text else []
    name = op.split(".")[0]
    dests: list[str] = []
    if name in ("LDGSTS", "DEPBAR"):  # copies that land in shared memory are counted in SB0
        first = 0
        if name == "LDGSTS":
            dests = ["SB0"]
    elif name in ("ST", "STG", "STL", "STS", "STSM", "RED", "BRA", "EXIT", "BAR", "CALL", "RET"):
        first = 0
    else:
        first = _destinations(name, operands)
        dests = [match[0] for operand in operands[:first] for match in REGISTER.finditer(operand)]
    reads = {
        match[0] for part in (guard or "", *operands[first:]) for match in REGISTER.finditer(part)
    }
    for kind, number in _PAIR.findall(" ".join(operands[first:])):
        reads.add(f"{kind}{int(number) + 1}")
    if name in ("STG", "STL", "STS") and (data := re.fullmatch(r"R(\d+)", operands[-1])):
        count = next((n for part, n in _WIDE_DATA.items() if part in op), 1)
        reads |= {f"R{int(data[1]) + at}" for at in range(count)}
    branches = name in ("BRA", "CALL")
    sure = guard in (None, "@PT") and not (branches and len(operands) > 1)
    target = re.search(r"0x([0-9a-f]+)$", text) if branches else None
    return Instr(
        op=op,
        conditional=guard not in (None, "@PT") or name == "LDGSTS",
        ends=name in ("BRA", "EXIT", "RET") and sure,
        target=int(target[1], 16) if target else None,
        dests=tuple(dests),
        reads=frozenset(reads),
    )


def _destinations(name: str, operands: list[str]) -> int:
    """How many of the first operands are written: a register, and predicates around it."""
    predicate = re.compile(r"U?P[T\d]")
    at = 0
    while at < min(2, len(operands)) and predicate.fullmatch(operands[at]):
        at += 1
    if at and name not in ("LOP3", "ULOP3", "SHFL", "ATOM", "ATOMG", "ATOMS"):
        return at
    at += 1
    while at < min(3, len(operands)) and predicate.fullmatch(operands[at]):
        at += 1
    return at


def parse_source(lines: Iterable[str]) -> list[Line]:
    """
    Instructions of a page by `ncu --csv --page source --print-source sass`.

    Args:
        lines: An open file, or anything else that yields its lines; read once.

    Raises:
        ValueError: there are no columns of stalls, or a branch leads to no instruction.
    """
    raise NotImplementedError  # TODO(kata): read the page (about 25 lines)


def blame(lines: Sequence[Line]) -> dict[int, dict[str, Fraction]]:
    """
    Samples by the address and the reason of what is waited for; all of them, and nothing else.

    Scoreboard stalls go to the producers of what is read, barriers to the nearest BAR, full
    queues to all that is in them; shares are equal. The rest stays where it is.
    """
    # TODO(kata): control flow and writes, walk back, causes by reason, share the samples (about 100
    # lines with helpers)
    raise NotImplementedError


def top_causes(lines: Sequence[Line], n: int) -> list[Cause]:
    """
    The `n` opcodes and reasons with the largest shares, at most.

    Of samples of warps that could not issue: all but "selected" and "not_selected". Equal shares
    go by opcode, then reason.
    """
    raise NotImplementedError  # TODO(kata): rank the causes (about 15 lines)
