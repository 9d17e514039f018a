"""What JAX makes of a function: its jaxpr, and the program that XLA compiles; nothing is run."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

# an instruction of HLO's text: `%name = type opcode(operands)`; the type may be a tuple
INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?[\w.-]+ = .*? ([a-z][\w-]*)\(", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class HloProgram:
    """
    One function as XLA compiles it for this machine.

    Attributes:
        text: The optimised HLO; fused instructions stand in computations of their own.
        equations: Equations of the jaxpr, those of inner ones included.
        flops: Floating-point operations, by XLA's own count.
        transcendentals: Elements that an exponential, a logarithm or the like is taken of.
        bytes_accessed: Bytes that its instructions read and write, by XLA's own count.
        temporary_bytes: Memory for what is neither an argument nor a result.
    """

    text: str
    equations: int
    flops: float
    transcendentals: float
    bytes_accessed: float
    temporary_bytes: int

    def count(self, opcode: str) -> int:
        """How many instructions have this opcode: ``dot``, ``while``, ``all-reduce``."""
        return INSTRUCTION.findall(self.text).count(opcode)


def compiled_program(fn: Callable[..., Any], *arguments: object, **named: object) -> HloProgram:
    """
    Trace `fn` for these arguments and compile it.

    One that `jax.jit` made keeps what it was made with, such as shardings.
    """
    import jax

    jitted = fn if hasattr(fn, "lower") else jax.jit(fn)
    built = jitted.lower(*arguments, **named).compile()
    counted = built.cost_analysis() or {}
    return HloProgram(
        text=built.as_text(),
        equations=sum(1 for _ in _equations(jax.make_jaxpr(fn)(*arguments, **named).jaxpr)),
        flops=counted.get("flops", 0.0),
        transcendentals=counted.get("transcendentals", 0.0),
        bytes_accessed=counted.get("bytes accessed", 0.0),
        temporary_bytes=built.memory_analysis().temp_size_in_bytes,
    )


def _equations(jaxpr: Any) -> Iterator[Any]:  # noqa: ANN401 -- jax has no public type for it
    """Every equation, and those of the jaxprs in their parameters: of a loop, a branch, a call."""
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            for inner in value if isinstance(value, (tuple, list)) else (value,):
                inner = getattr(inner, "jaxpr", inner)  # one with its constants
                if hasattr(inner, "eqns"):
                    yield from _equations(inner)


def saved_bytes(pullback: object) -> int:
    """Bytes that the second result of `jax.vjp` keeps for the backward pass, each array once."""
    import jax

    arrays = {id(leaf): leaf for leaf in jax.tree_util.tree_leaves(pullback)}
    return sum(getattr(leaf, "nbytes", 0) for leaf in arrays.values())
