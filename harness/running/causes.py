"""Why a test failed, in one line: the causes that need naming, and a compiler's own words."""

import re
from itertools import pairwise

DEVICE_FAULT = "device fault"
NOT_MODELLED = "not modelled"
_TYPE = r"^(?:\S+ does not import: )?(?:\w+\.)*"  # what an exception's line may open with
_PATTERNS = {
    "device out of memory": re.compile(
        _TYPE + r"\w*Error: .*(?:CUDA_ERROR_OUT_OF_MEMORY|(?:CUDA|HIP)\b.* out of memory)"
    ),
    DEVICE_FAULT: re.compile(
        _TYPE + r"\w*Error: .*(?:illegal memory access|misaligned address|illegal instruction"
        r"|unspecified launch failure|device-side assert|memory access fault"
        r"|CUDA_ERROR_(?:ILLEGAL_ADDRESS|MISALIGNED_ADDRESS|LAUNCH_FAILED|ASSERT))"
    ),
    NOT_MODELLED: re.compile(r"^\S+: expected (?:PTX|code) that the simulator models, found "),
    # one that a learner raises says why; the interpreter's own does not
    "host out of memory": re.compile(
        _TYPE + r"(?:MemoryError:?\s*(?:\(line|$)|_ArrayMemoryError\b"
        r"|\w*Error: .*(?:can't allocate memory|Cannot allocate memory|std::bad_alloc))"
    ),
    "compile error": re.compile(
        _TYPE + r"(?:CompilationError|NVRTCError|PTXASError|TypingError|LoweringError)\b"
        r"|^[^:]+: expected \w+ to build its kernels for "
    ),
}
# what an ordinary error's words leave out
_HINTS = {
    "0 active drivers": "Triton asked for a GPU, and there is none. On the CPU its interpreter "
    "runs the kernels: the file must not switch it off (TRITON_INTERPRET=0), and it can tune "
    "nothing (give @triton.autotune one configuration)",
    "@jit functions should be defined in a Python file": "Triton cannot read the kernel's file: it "
    "is not text in UTF-8, or the kernel was made by exec",
}
_TELLING = re.compile(r"error|cannot|invalid|undefined|untyped", re.I)
_DIAGNOSIS = re.compile(r"likely cause: |.* between two runs: ")
_HAZARD = re.compile(r"^(?:\w+\.)*Hazard: ")  # what an exception that names both lines opens with
_MOST = 400  # characters of a compiler's words


def cause_of(text: str) -> str | None:
    """The cause that the first line of an error stands for; None for an ordinary failure."""
    first = text.partition("\n")[0]
    return next((name for name, pattern in _PATTERNS.items() if pattern.search(first)), None)


def in_one_line(text: str) -> str:
    """An error's first line behind its cause, if it has one, and the lines that explain it."""
    lines = [line.strip() for line in text.splitlines()] or [""]
    if _HAZARD.match(lines[0]):
        return " | ".join([_HAZARD.sub("", lines[0]), *lines[1:]])
    cause = cause_of(text)
    if cause is None:
        hints = [f"likely cause: {hint}" for words, hint in _HINTS.items() if words in lines[0]]
        return " | ".join([lines[0], *filter(_DIAGNOSIS.match, lines[1:]), *hints])
    words = " | ".join(_compiler_lines(lines)) if cause == "compile error" else lines[0]
    return f"{cause}: {words[:_MOST]}"


def stated_cause(message: str) -> str | None:
    """The cause that a line made by `in_one_line` opens with."""
    return next((name for name in _PATTERNS if message.startswith(f"{name}: ")), None)


def _compiler_lines(lines: list[str]) -> list[str]:
    """The first line, each one that a caret points at and each that speaks of an error."""
    pointed_at = {above for above, below in pairwise(lines) if below and not below.strip("^~")}
    kept = [line for line in lines[1:] if line in pointed_at or _TELLING.search(line)]
    return list(dict.fromkeys(lines[:1] + kept))
