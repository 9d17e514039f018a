"""Kata week18/warp_stall_attribution: from the instruction that waits to the one it waits for."""

import csv
import re
from collections import defaultdict
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
    # read the page
    table = csv.reader(lines)
    next(table, [])
    header = next(table, [])
    reasons = {
        at: name.removeprefix("stall_")
        for at, name in enumerate(header)
        if name.startswith("stall_") and " " not in name
    }
    if not reasons:
        raise ValueError("columns: expected some that begin with stall_, found none")
    page = [
        Line(
            addr=int(row[0], 16),
            sass=row[1].strip(),
            samples={reason: int(row[at]) for at, reason in reasons.items() if int(row[at])},
        )
        for row in table
        if row
    ]
    known = {line.addr for line in page}
    for line in page:
        target = decode(line.sass).target
        if target is not None and target not in known:
            raise ValueError(f"target: expected an instruction at {target:#x}, found none")
    return page


def blame(lines: Sequence[Line]) -> dict[int, dict[str, Fraction]]:
    """
    Samples by the address and the reason of what is waited for; all of them, and nothing else.

    Scoreboard stalls go to the producers of what is read, barriers to the nearest BAR, full
    queues to all that is in them; shares are equal. The rest stays where it is.
    """
    # share the samples
    code = _Code(lines)
    found: dict[int, dict[str, Fraction]] = defaultdict(lambda: defaultdict(Fraction))
    for at, line in enumerate(lines):
        for reason, count in line.samples.items():
            causes = code.causes(at, reason) or {at}
            for cause in causes:
                found[lines[cause].addr][reason] += Fraction(count, len(causes))
    return {addr: dict(reasons) for addr, reasons in found.items()}


def top_causes(lines: Sequence[Line], n: int) -> list[Cause]:
    """
    The `n` opcodes and reasons with the largest shares, at most.

    Of samples of warps that could not issue: all but "selected" and "not_selected". Equal shares
    go by opcode, then reason.
    """
    # rank the causes
    names = {line.addr: _name(decode(line.sass)) for line in lines}
    counts: dict[tuple[str, str], Fraction] = defaultdict(Fraction)
    addrs = defaultdict(list)
    for addr, reasons in sorted(blame(lines).items()):
        for reason, count in reasons.items():
            if reason not in ISSUABLE:
                counts[names[addr], reason] += count
                addrs[names[addr], reason].append(addr)
    total = sum(counts.values())
    largest = sorted(counts, key=lambda cause: (-counts[cause], cause))[:n]
    return [
        Cause(*cause, share=float(counts[cause] / total), addrs=tuple(addrs[cause]))
        for cause in largest
    ]


class _Code:
    """A page with its control-flow graph, and what each instruction reads and writes."""

    def __init__(self, lines: Sequence[Line]) -> None:
        # control flow and writes
        self.instrs = [decode(line.sass) for line in lines]
        self.names = [_name(instr) for instr in self.instrs]
        self.writes = [_written(instr) for instr in self.instrs]
        place = {line.addr: at for at, line in enumerate(lines)}
        self.before: list[set[int]] = [set() for _ in lines]
        for at, instr in enumerate(self.instrs):
            if not instr.ends and at + 1 < len(lines):
                self.before[at + 1].add(at)
            if instr.target is not None:
                self.before[place[instr.target]].add(at)

    def causes(self, at: int, reason: str) -> set[int]:
        # causes by reason
        if reason in SCOREBOARD:
            return self._producers(at, SCOREBOARD[reason])
        if reason in QUEUE:
            return self._of_block(at, QUEUE[reason])
        if reason == "barrier":
            return self._barriers(at)
        return set()

    def _producers(self, at: int, names: frozenset[str]) -> set[int]:
        # causes by reason
        reads = self.instrs[at].reads
        if at and self.names[at - 1] == "DEPBAR":  # which issues, and stops the one behind it
            reads |= self.instrs[at - 1].reads
        found = {
            writer
            for register in reads
            for writer in self._back(at, register)
            if register in self.writes[writer] and self.names[writer] in names
        }
        if not found:  # then it overwrites what has not been read, or written, yet
            found = {
                user
                for register in self.writes[at]
                for user in self._back(at, register)
                if register in self.instrs[user].reads | self.writes[user]
                and self.names[user] in names
            }
        if not found and self.names[at] == "BRA":  # waits for what the block has under way
            found = self._of_block(at, names)
        return found

    def _back(self, at: int, register: str) -> set[int]:
        """All that comes before, on every path back to a sure write of the register."""
        # walk back
        seen: set[int] = set()
        todo = list(self.before[at])
        while todo:
            here = todo.pop()
            if here not in seen:
                seen.add(here)
                if register not in self.writes[here] or self.instrs[here].conditional:
                    todo += self.before[here]
        return seen

    def _barriers(self, at: int) -> set[int]:
        # walk back
        found, seen, todo = set(), set(), [at]
        while todo:
            here = todo.pop()
            if here in seen:
                continue
            seen.add(here)
            if self.names[here] == "BAR":
                found.add(here)
            else:
                todo += self.before[here]
        return found

    def _of_block(self, at: int, names: frozenset[str]) -> set[int]:
        """Instructions of these names in the basic block: nothing comes in or leaves within."""
        # causes by reason
        first = last = at
        while self._runs_on(first - 1, first):
            first -= 1
        while self._runs_on(last, last + 1):
            last += 1
        return {i for i in range(first, last + 1) if self.names[i] in names}

    def _runs_on(self, at: int, following: int) -> bool:
        """Whether one always goes on to the other, and is the only one that does."""
        if following == len(self.instrs):
            return False
        return self.before[following] == {at} and self.names[at] not in ("BRA", "CALL", "EXIT")


def _name(instr: Instr) -> str:
    return instr.op.split(".")[0]


def _written(instr: Instr) -> set[str]:
    """All registers of the destinations: wide results are in registers that follow."""
    # control flow and writes
    parts = instr.op.split(".")
    count = 1
    if "64" in parts or "WIDE" in parts or instr.op == "CS2R":
        count = 2
    elif "128" in parts:
        count = 4
    elif parts[0] == "LDSM" and parts[-1].isdigit():
        count = int(parts[-1])
    elif parts[0] == "HGMMA":
        count = int(parts[1].split("x")[1]) // 2
    registers = set()
    for dest in instr.dests:
        kind, number = re.fullmatch(r"([A-Z]+)(\d+)", dest).groups()
        wide = count if kind.endswith("R") else 1
        registers |= {f"{kind}{int(number) + at}" for at in range(wide)}
    return registers
