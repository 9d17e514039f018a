"""The stub of a source in CUDA C++: kernels keep their signatures, their bodies go."""

import ast
import re
from collections.abc import Sequence

from harness.content.subgoals import marked_lines

KERNEL = re.compile(r"__global__[^{;]*\{")
IN_CUDA = re.compile(r"\b__(?:global|device)__\b")
STRAY = re.compile(
    r"\s*#(?!\s*(?:define|undef|include|if|ifdef|ifndef|elif|else|endif|pragma|error|line)\b)"
)


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


def kernel_names(source: str) -> list[str]:
    """What the kernels in `source` are called."""
    heads = (match[0] for match in KERNEL.finditer(source))
    return [name for head in heads if (name := _name_of(head))]


def _name_of(head: str) -> str:
    """The name in front of the parameters: the first that is no attribute such as bounds."""
    names = (name for name in re.findall(r"(\w+)\s*\(", head) if not name.startswith("__"))
    return next(names, "")


def stray_hashes(source: str) -> list[int]:
    """Numbers of lines in CUDA C++, within `source` in Python, that a # begins, no directive."""
    found: set[int] = set()
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.JoinedStr | ast.Constant):
            continue
        text = _text_of(node)
        if IN_CUDA.search(text) is None:
            continue
        stray = {line.strip() for line in text.splitlines() if STRAY.match(line)}
        numbers = range(node.lineno, (node.end_lineno or node.lineno) + 1)
        found |= {number for number in numbers if lines[number - 1].strip() in stray}
    return sorted(found)


def _text_of(node: ast.JoinedStr | ast.Constant) -> str:
    """The text of a string or an f-string, without what is filled in; "" for other constants."""
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    constants = (one.value for one in parts if isinstance(one, ast.Constant))
    return "".join(one for one in constants if isinstance(one, str))


def closing_brace(source: str, start: int) -> int:
    """Where the brace stands that closes the one before `start`; the end where none does."""
    depth = 1
    for brace in re.finditer(r"[{}]", source[start:]):
        depth += 1 if brace[0] == "{" else -1
        if not depth:
            return start + brace.start()
    return len(source)
