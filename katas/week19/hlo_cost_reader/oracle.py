"""What is right: XLA's own cost analysis, shipped with the text of eight functions, and live."""

import json
from pathlib import Path

DATA = Path(__file__).parent / "data"
XLA = json.loads((DATA / "xla.json").read_text())  # name: [bytes accessed, FLOPs]


def text(name: str) -> str:
    return (DATA / f"{name}.hlo").read_text()


def module(*lines: str, above: str = "") -> str:
    """A module whose entry consists of these lines, on lines 3 and on where nothing is above."""
    return "\n".join(["HloModule m", *above.splitlines(), "ENTRY %main {", *lines, "}", ""])


def chain(length: int) -> str:
    """Additions, each of the two values before it."""
    lines = ["  %v0 = f32[8]{0} parameter(0)", "  %v1 = f32[8]{0} parameter(1)"]
    lines += [f"  %v{at} = f32[8]{{0}} add(%v{at - 1}, %v{at - 2})" for at in range(2, length)]
    return module(*lines)


def lowered(fn, *arguments):
    """The text of `fn` before optimisation, and XLA's bytes and FLOPs for it."""
    import jax

    made = jax.jit(fn).lower(*arguments)
    counted = made.cost_analysis()
    program = made.compiler_ir("hlo").as_hlo_text()
    return program, int(counted["bytes accessed"]), int(counted["flops"])
