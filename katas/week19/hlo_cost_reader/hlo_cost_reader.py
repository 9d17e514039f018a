"""Kata week19/hlo_cost_reader: read HLO's text, then count the bytes and FLOPs of a program."""

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


def parse(text: str) -> Module:
    """
    Read a module as XLA prints it, before or after optimisation, in one pass.

    Raises:
        ValueError: brackets do not match, a statement is no instruction, a dtype is unknown, an
            operand or a called computation was not defined before, there is no entry; the message
            begins with the line, as in "line 12: ".
    """
    # TODO(kata): statements, parts of an instruction (about 105 lines with helpers)
    raise NotImplementedError


def bytes_accessed(m: Module) -> int:
    """Bytes that the instructions of the entry, and of what it calls, read and write."""
    raise NotImplementedError  # TODO(kata): bytes moved (about 25 lines with helpers)


def flops(m: Module) -> int:
    """FLOPs of the entry, those inside its fusions, calls and reductions included."""
    raise NotImplementedError  # TODO(kata): FLOPs (about 20 lines with helpers)


def fusion_report(m: Module) -> dict[str, list[str]]:
    """What each fusion of the entry fused: opcodes, in order, without parameters and constants."""
    raise NotImplementedError  # TODO(kata): what is fused (about 10 lines with helpers)


def layout_copies(m: Module) -> list[tuple[str, int]]:
    """Copies that change the layout, also inside fusions and calls, with their array's bytes."""
    raise NotImplementedError  # TODO(kata): layout copies (about 8 lines with helpers)
