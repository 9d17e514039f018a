"""Kata week16/sass_hot_loop_audit: find the hot loop of a kernel in its machine code.

A control-flow graph, its dominators and natural loops; then the instructions of one loop.
"""

import re
from collections import Counter
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
    # match the lines
    instrs = []
    for line in text.splitlines():
        found = re.match(r"\s*/\*([0-9a-f]+)\*/\s+(?:@(\S+)\s+)?([^\s;]+)([^;]*);", line)
        if found is None:
            continue
        addr, pred, op, operands = found.groups()
        branches = re.match(r"BRA\b|CALL\.REL\b", op)
        target = re.search(r"0x([0-9a-f]+)\s*$", operands) if branches else None
        instrs.append(
            Instr(
                addr=int(addr, 16),
                pred=pred or "",
                op=op,
                operands=operands.strip(),
                target=int(target[1], 16) if target else None,
            )
        )
    # check the targets
    if not instrs:
        raise ValueError("text: expected instructions, found none")
    known = {instr.addr for instr in instrs}
    for instr in instrs:
        if instr.target is not None and instr.target not in known:
            raise ValueError(f"text: no instruction at {instr.target:#x}, where one branches to")
    return instrs


def natural_loops(instrs: list[Instr]) -> list[Loop]:
    """
    The natural loops of a kernel, by rising address of their headers; each header has one.

    An instruction is a latch if it may go on to a header that dominates it: every way from the
    first instruction to the latch leads through the header. The body is what reaches a latch
    without passing the header. Code that the first instruction does not reach is in no loop.
    """
    # control-flow graph
    after = _successors(instrs)
    before: list[list[int]] = [[] for _ in instrs]
    order = _reverse_postorder(after)
    for at in order:
        for to in after[at]:
            before[to].append(at)
    # dominators
    rank = {at: place for place, at in enumerate(order)}
    dominator = _dominators(order, rank, before)
    # latches and bodies
    latches: dict[int, list[int]] = {}
    for at in order:
        for to in after[at]:
            if _dominates(to, at, dominator, rank):
                latches.setdefault(to, []).append(at)
    return [
        Loop(
            header=instrs[header].addr,
            latches=tuple(instrs[at].addr for at in sorted(latches[header])),
            body=frozenset(instrs[at].addr for at in _body(header, latches[header], before)),
        )
        for header in sorted(latches)
    ]


def audit(text: str) -> Audit:
    """
    The loop with the most tensor instructions of its own, and what else is in it.

    A loop's own instructions are those that are in no loop within it. Of equals the one with the
    lowest header.

    Raises:
        ValueError: as `parse_sass`, or no loop has a tensor instruction.
    """
    # count own instructions
    instrs = parse_sass(text)
    best, most = None, 0
    loops = natural_loops(instrs)
    for loop in loops:
        own = loop.body.difference(*(other.body for other in loops if other.body < loop.body))
        kinds = (CLASSES.get(instr.op.split(".")[0]) for instr in instrs if instr.addr in own)
        counts = Counter(kind for kind in kinds if kind)
        if counts["tensor"] > most:
            best, most = Audit(loop=loop, counts=counts), counts["tensor"]
    if best is None:
        raise ValueError("text: expected a loop with tensor instructions, found none")
    return best


def _successors(instrs: list[Instr]) -> list[set[int]]:
    # control-flow graph
    place = {instr.addr: at for at, instr in enumerate(instrs)}
    after = []
    for at, instr in enumerate(instrs):
        name = instr.op.split(".")[0]
        # BRA P1, 0x40 and BRA.U !UP0, 0x40 have their condition among the operands
        sure = not instr.pred and "," not in instr.operands
        following = set() if instr.target is None else {place[instr.target]}
        ends = name in ("BRA", "EXIT", "RET") and sure
        if not ends and at + 1 < len(instrs):
            following.add(at + 1)
        after.append(following)
    return after


def _reverse_postorder(after: list[set[int]]) -> list[int]:
    """Of what can be reached from the first; without recursion, for listings are long."""
    # control-flow graph
    done, seen, path = [], {0}, [0]
    while path:
        for to in after[path[-1]]:  # two at most
            if to not in seen:
                seen.add(to)
                path.append(to)
                break
        else:
            done.append(path.pop())
    return done[::-1]


def _dominators(order: list[int], rank: dict[int, int], before: list[list[int]]) -> dict[int, int]:
    """The nearest dominator of each, by Cooper, Harvey and Kennedy."""
    # dominators
    dominator = {order[0]: order[0]}
    changed = True
    while changed:
        changed = False
        for at in order[1:]:
            nearest, *others = (other for other in before[at] if other in dominator)
            for other in others:
                while nearest != other:
                    if rank[nearest] > rank[other]:
                        nearest = dominator[nearest]
                    else:
                        other = dominator[other]
            if dominator.get(at) != nearest:
                dominator[at], changed = nearest, True
    return dominator


def _dominates(one: int, other: int, dominator: dict[int, int], rank: dict[int, int]) -> bool:
    while rank[other] > rank[one]:
        other = dominator[other]
    return other == one


def _body(header: int, latches: list[int], before: list[list[int]]) -> set[int]:
    """What reaches a latch without passing the header."""
    # latches and bodies
    body, todo = {header}, [*latches]
    while todo:
        at = todo.pop()
        if at not in body:
            body.add(at)
            todo += before[at]
    return body
