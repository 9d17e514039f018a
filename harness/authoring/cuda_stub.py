"""The stub of a source in CUDA C++: kernels keep their signatures, their bodies go."""

import re
from collections.abc import Sequence

from harness.content.subgoals import marked_lines

KERNEL = re.compile(r"__global__[^{;]*\{")


def blank_kernels(source: str, todo: str = "", subgoals: Sequence[str] = ()) -> str:
    """
    `source`, a text with CUDA C++ in it, with a TODO for each kernel's body.

    It names those of `subgoals` that comments in that body name, or says what `todo` does.
    """
    found, end = "", 0
    for kernel in KERNEL.finditer(source):
        if kernel.start() < end:
            continue
        found += source[end : kernel.end()]
        end = closing_brace(source, kernel.end())
        lines = [line for line in source[kernel.end() : end].splitlines() if line.strip()]
        code = [line for line in lines if not line.strip().startswith("//")]
        named = set(marked_lines("\n".join(lines), subgoals).values())
        steps = ", ".join(name for name in subgoals if name in named)
        words = " ".join(filter(None, ["TODO(kata):", steps or todo, f"(about {len(code)} lines)"]))
        found += f"\n    // {words}\n"
    return found + source[end:]


def closing_brace(source: str, start: int) -> int:
    """Where the brace stands that closes the one before `start`; the end where none does."""
    depth = 1
    for brace in re.finditer(r"[{}]", source[start:]):
        depth += 1 if brace[0] == "{" else -1
        if not depth:
            return start + brace.start()
    return len(source)
