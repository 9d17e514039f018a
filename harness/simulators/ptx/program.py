"""What a PTX text says, as data: instructions, their operands, functions and variables."""

from dataclasses import dataclass, field
from typing import TypeAlias


class PtxError(Exception):
    """A kernel that cannot go on: threads that wait for each other, or a loop without an end."""


class Unsupported(Exception):
    """An instruction, or a form of one, that the simulator does not model."""


@dataclass(frozen=True, slots=True)
class Register:
    """A register by its number in the whole kernel."""

    index: int


@dataclass(frozen=True, slots=True)
class Immediate:
    """A number; `kind` is "i" for an integer, "f4" and "f8" for the bits of a float."""

    kind: str
    bits: int


@dataclass(frozen=True, slots=True)
class Special:
    """A register that the machine fills, as ``%tid.x``."""

    name: str


@dataclass(frozen=True, slots=True)
class Symbol:
    """A variable, a parameter, a label or a function."""

    name: str


@dataclass(frozen=True, slots=True)
class Vector:
    """Operands in braces; `called` where they are the arguments or results of a call."""

    items: tuple["Operand", ...]
    called: bool = False


@dataclass(frozen=True, slots=True)
class Address:
    """Operands in brackets: a base, bytes beyond it, and what a copy is given beside them."""

    base: "Operand"
    offset: int
    more: tuple["Operand", ...] = ()


@dataclass(frozen=True, slots=True)
class Pair:
    """Two results, as ``p|q``."""

    first: "Operand"
    second: "Operand"


@dataclass(frozen=True, slots=True)
class Negated:
    """A predicate, turned around."""

    operand: "Operand"


@dataclass(frozen=True, slots=True)
class Sink:
    """A result that nobody wants."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A piece of what is handed to, or back from, a function that was inlined."""

    variable: str
    offset: int


@dataclass(frozen=True, slots=True)
class Table:
    """The labels of an indexed branch."""

    labels: tuple[str, ...]


Operand: TypeAlias = (
    Register
    | Immediate
    | Special
    | Symbol
    | Vector
    | Address
    | Pair
    | Negated
    | Sink
    | Slot
    | Table
)


@dataclass(slots=True)
class Instruction:
    """
    One instruction.

    Attributes:
        op: The opcode up to the first dot.
        mods: What follows it, dot by dot.
        args: The operands.
        guard: The predicate it runs under, and whether that is turned around.
        line: Of the user's source; 0 where the compiler gave none.
        text: As written.
        pc: Where it stands in the kernel, once that is laid out.
    """

    op: str
    mods: list[str]
    args: list[Operand]
    guard: tuple[Register, bool] | None
    line: int
    text: str
    pc: int = -1

    @property
    def name(self) -> str:
        """The opcode with all that follows it."""
        return ".".join([self.op, *self.mods])


@dataclass(frozen=True, slots=True)
class Label:
    """A place in a function's body."""

    name: str


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter or result: its name, type, and size in bytes."""

    name: str
    type: str
    size: int


@dataclass(slots=True)
class Function:
    """A kernel (`entry`), or a function that kernels call; `registers` holds their types."""

    name: str
    parameters: list[Parameter]
    results: list[Parameter]
    entry: bool
    registers: list[str] = field(default_factory=list)
    body: list[Label | Instruction] = field(default_factory=list)
    tables: dict[str, tuple[str, ...]] = field(default_factory=dict)
    block: tuple[int, ...] | None = None
    cluster: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Variable:
    """Memory that has a name; `size` 0 means that the launch says how much."""

    name: str
    space: str
    align: int
    size: int
    contents: bytes | None = None
