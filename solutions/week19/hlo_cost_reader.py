"""Kata week19/hlo_cost_reader: read HLO's text, then count the bytes and FLOPs of a program."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

ITEMSIZE = {
    **dict.fromkeys(("pred", "s8", "u8", "f8e4m3fn", "f8e5m2"), 1),
    **dict.fromkeys(("s16", "u16", "f16", "bf16"), 2),
    **dict.fromkeys(("s32", "u32", "f32"), 4),
    **dict.fromkeys(("s64", "u64", "f64", "c64"), 8),
    "c128": 16,
}

# neither read nor write anything
FREE = frozenset({"parameter", "constant", "get-tuple-element", "bitcast"})

# one FLOP per element of the result; XLA counts exponential, tanh, rsqrt and their like apart
ARITHMETIC = frozenset(
    {
        "abs",
        "add",
        "and",
        "clamp",
        "compare",
        "convert",
        "divide",
        "maximum",
        "minimum",
        "multiply",
        "negate",
        "not",
        "or",
        "remainder",
        "select",
        "subtract",
        "xor",
    }
)


@dataclass(frozen=True, slots=True)
class Shape:
    """An array: `layout` lists its dimensions from the fastest to the slowest in memory."""

    dtype: str
    dims: tuple[int, ...]
    layout: tuple[int, ...]

    @property
    def elements(self) -> int:
        """How many elements it has."""
        return prod(self.dims)

    @property
    def bytes(self) -> int:
        """What it takes in memory."""
        return self.elements * ITEMSIZE[self.dtype]


@dataclass(frozen=True, slots=True)
class Instruction:
    """
    One line of HLO.

    `shapes` has one entry for an array and all leaves, in order, for a tuple. `operands` are
    names without %; a parameter and a constant have none. `attributes` are those behind the
    operands, each as text without blanks around it: ``{"dimensions": "{1}", "to_apply": "%sum"}``.
    """

    name: str
    opcode: str
    shapes: tuple[Shape, ...]
    operands: tuple[str, ...]
    attributes: dict[str, str]

    def called(self) -> str | None:
        """The computation that it calls or applies, without %."""
        callee = self.attributes.get("calls", self.attributes.get("to_apply"))
        return callee and callee.removeprefix("%")


@dataclass(frozen=True, slots=True)
class Module:
    """Computations by name, each its instructions by name, in order; and which one is the entry."""

    computations: dict[str, dict[str, Instruction]]
    entry: str


SKIPPED = re.compile(r'"(?:[^"\\]|\\.)*"|/\*.*?\*/')  # strings and comments
HEADER = re.compile(r"^(ENTRY )?%?([\w.-]+) (?:\(.*\) -> .* )?\{$")
ARRAY = re.compile(r"(\w+)\[([\d,]*)\](?:\{([\d,]*)[^}]*\})?")
OPENS = {"(": ")", "[": "]", "{": "}"}
ASSIGNED = re.compile(r"(?:ROOT )?%?([\w.-]+) = ")
OPCODE = re.compile(r" ([\w-]+)\(")


def parse(text: str) -> Module:
    """
    Read a module as XLA prints it, before or after optimisation, in one pass.

    Raises:
        ValueError: brackets do not match, a statement is no instruction, a dtype is unknown, an
            operand or a called computation was not defined before, there is no entry; the message
            begins with the line, as in "line 12: ".
    """
    # statements
    computations: dict[str, dict[str, Instruction]] = {}
    body: dict[str, Instruction] | None = None
    entry, number = "", 1
    statement: list[str] = []
    awaited: list[tuple[str, int]] = []
    for number, raw in enumerate(text.removesuffix("\n").split("\n"), 1):
        line = " ".join(SKIPPED.sub(" ", raw).split())
        if body is None:
            if header := HEADER.match(line):
                body, name = {}, header[2]
                entry = name if header[1] else entry
                opened = number
            continue
        if line == "}" and not awaited:
            computations[name] = body  # from here on it can be called, not before
            body = None
            continue
        if not line:
            continue
        if not statement:
            began = number
        statement.append(line)
        _balance(line, awaited, number)
        if not awaited:
            instruction = _instruction(" ".join(statement), body, computations, began)
            body[instruction.name] = instruction
            statement = []
    if body is not None:
        at = awaited[-1][1] if awaited else opened
        raise ValueError(f"line {at}: expected a closing bracket for what opens here")
    if not entry:
        raise ValueError(f"line {number}: expected an ENTRY computation before the end")
    return Module(computations, entry)


def _balance(line: str, awaited: list[tuple[str, int]], number: int) -> None:
    """Keep in `awaited` the closing brackets that are still to come, each with its opening line."""
    # statements
    for bracket in re.findall(r"[()\[\]{}]", line):
        if bracket in OPENS:
            awaited.append((OPENS[bracket], number))
            continue
        wanted, at = awaited.pop() if awaited else ("no bracket", number)
        if bracket != wanted:
            raise ValueError(f"line {at}: expected {wanted} in the end, found {bracket}")


def _instruction(
    line: str,
    body: dict[str, Instruction],
    computations: dict[str, dict[str, Instruction]],
    number: int,
) -> Instruction:
    # parts of an instruction
    assigned = ASSIGNED.match(line)
    type_end = assigned and _end(line, assigned.end())
    opcode = assigned and OPCODE.match(line, type_end)
    if not opcode:
        raise ValueError(f"line {number}: expected an instruction, found {line[:60]!r}")
    shapes = tuple(_shapes(line[assigned.end() : type_end], number))
    close = _end(line, opcode.end() - 1)
    operands: tuple[str, ...] = ()
    if opcode[1] not in ("parameter", "constant"):
        listed = _split(line[opcode.end() : close - 1])
        operands = tuple(one.split()[-1].removeprefix("%") for one in listed)
    pairs = (one.partition("=") for one in _split(line[close:]))
    attributes = {key: value for key, _, value in pairs}
    instruction = Instruction(assigned[1], opcode[1], shapes, operands, attributes)
    for operand in operands:
        if operand not in body:
            raise ValueError(f"line {number}: expected an operand defined above, found {operand}")
    callee = instruction.called()
    if callee is not None and callee not in computations:
        raise ValueError(f"line {number}: expected a computation defined above, found {callee}")
    return instruction


def _end(line: str, start: int) -> int:
    """Where what begins at `start` ends: a bracketed group, or text up to the next blank."""
    # parts of an instruction
    if line[start] != "(":
        return start + len(line[start:].partition(" ")[0])
    depth = 0
    for at in re.finditer(r"[()]", line[start:]):
        depth += 1 if at[0] == "(" else -1
        if not depth:
            break
    return start + at.end()


def _split(text: str) -> list[str]:
    """At the commas that stand in no bracket."""
    # parts of an instruction
    parts, depth, start = [], 0, 0
    for at in re.finditer(r"[()\[\]{},]", text):
        if at[0] in OPENS:
            depth += 1
        elif at[0] != ",":
            depth -= 1
        elif not depth:
            parts.append(text[start : at.start()])
            start = at.end()
    parts.append(text[start:])
    return [part.strip() for part in parts if part.strip()]


def _shapes(text: str, number: int) -> Iterator[Shape]:
    """An array's shape, or those of a tuple's leaves."""
    # parts of an instruction
    if text.startswith("("):
        for part in _split(text[1:-1]):
            yield from _shapes(part, number)
        return
    array = ARRAY.fullmatch(text)
    if not array or array[1] not in ITEMSIZE:
        raise ValueError(f"line {number}: expected an array of a known dtype, found {text}")
    dims = _numbers(array[2])
    yield Shape(array[1], dims, _numbers(array[3] or "") or tuple(reversed(range(len(dims)))))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(one) for one in re.findall(r"\d+", text))


def bytes_accessed(m: Module) -> int:
    """Bytes that the instructions of the entry, and of what it calls, read and write."""
    return _bytes(m, m.entry)


def _bytes(m: Module, computation: str) -> int:
    # bytes moved
    body = m.computations[computation]
    total = 0
    for instruction in body.values():
        if instruction.opcode == "tuple":
            total += 8 * len(instruction.operands)
        elif instruction.opcode == "call":
            total += _bytes(m, instruction.called())
        elif instruction.opcode not in FREE and not _moves_nothing(instruction, body):
            total += _moved(instruction, body)
    return total


def _operand(instruction: Instruction, body: dict[str, Instruction]) -> Shape:
    return body[instruction.operands[0]].shapes[0]


def _moves_nothing(instruction: Instruction, body: dict[str, Instruction]) -> bool:
    """Whether it is a transpose whose result lies in memory as its operand does."""
    if instruction.opcode != "transpose":
        return False
    source = _numbers(instruction.attributes["dimensions"])
    layout = tuple(source[at] for at in instruction.shapes[0].layout)
    return layout == _operand(instruction, body).layout


def _moved(instruction: Instruction, body: dict[str, Instruction]) -> int:
    parts = [body[name].shapes for name in instruction.operands] + [instruction.shapes]
    return sum(shape.bytes for shapes in parts for shape in shapes)


def flops(m: Module) -> int:
    """FLOPs of the entry, those inside its fusions, calls and reductions included."""
    return _flops(m, m.entry)


def _flops(m: Module, computation: str) -> int:
    # FLOPs
    body = m.computations[computation]
    total = 0
    for instruction in body.values():
        result = sum(shape.elements for shape in instruction.shapes)
        if instruction.opcode in ARITHMETIC:
            total += result
        elif instruction.opcode == "dot":
            lhs = _operand(instruction, body)
            contracted = _numbers(instruction.attributes.get("lhs_contracting_dims", ""))
            total += 2 * result * prod(lhs.dims[at] for at in contracted)
        elif instruction.opcode == "reduce":
            steps = _operand(instruction, body).elements - result
            total += steps * _flops(m, instruction.called())
        elif instruction.opcode in ("fusion", "call"):
            total += _flops(m, instruction.called())
    return total


def fusion_report(m: Module) -> dict[str, list[str]]:
    """What each fusion of the entry fused: opcodes, in order, without parameters and constants."""
    return {
        name: list(_fused(m, instruction.called()))
        for name, instruction in m.computations[m.entry].items()
        if instruction.opcode == "fusion"
    }


def _fused(m: Module, computation: str) -> Iterator[str]:
    for instruction in m.computations[computation].values():
        if instruction.opcode in ("fusion", "call"):
            yield from _fused(m, instruction.called())
        elif instruction.opcode not in ("parameter", "constant"):
            yield instruction.opcode


def layout_copies(m: Module) -> list[tuple[str, int]]:
    """Copies that change the layout, also inside fusions and calls, with their array's bytes."""
    return list(_layout_copies(m, m.entry))


def _layout_copies(m: Module, computation: str) -> Iterator[tuple[str, int]]:
    # layout copies
    body = m.computations[computation]
    for one in body.values():
        if one.opcode in ("fusion", "call"):
            yield from _layout_copies(m, one.called())
        elif one.opcode == "copy" and _operand(one, body).layout != one.shapes[0].layout:
            yield one.name, one.shapes[0].bytes
