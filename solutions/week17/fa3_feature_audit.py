"""Kata week17/fa3_feature_audit: name what an attention kernel uses, and prove it.

Features are read from the instructions a compiler emitted, not from what it was asked for.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from harness.hardware import Profile

Where = Literal["ptx", "ttgir"]
FEATURES = (
    "tma_load", "mbarrier_depth", "cp_async", "wgmma_async", "wgmma_wait", "mma_sync", "tcgen05",
    "register_p", "warp_specialized", "mufu_exp2", "swizzle", "fp8",
)  # fmt: skip
ATTAINED = 0.8  # of the tensor cores' rate, by the best matrix products: 794 of 989 on an H100
MMA_SYNC = 0.62  # of what wgmma reaches, by mma.sync on Hopper


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotation:
    """
    A feature of a kernel, and what proves it.

    `feature` is one of `FEATURES`, three of them with a number, as in "wgmma_wait(1)". `lines`
    are the numbers of the lines, from 1 and rising, of the text `where`; `evidence` is what all
    of these lines contain.
    """

    feature: str
    evidence: str
    where: Where
    lines: tuple[int, ...]


def annotate(ttgir: str, ptx: str) -> list[Annotation]:
    """
    The features that a kernel uses, in any order.

    Args:
        ttgir: Triton's own representation of the kernel, after its last pass.
        ptx: The instructions it became.

    Raises:
        ValueError: a text is blank, or the PTX has no entry function.
    """
    # check
    if not ttgir.strip():
        raise ValueError("ttgir: expected a module, found a blank text")
    instructions = dict(_instructions(ptx))
    if not any(re.search(r"\.entry\b", text) for text in instructions.values()):
        raise ValueError("ptx: expected an entry function, found none")
    # features by opcode
    return [
        *_from_instructions(instructions),
        *_waits_in_loops(instructions),
        *_barrier_depth(ttgir),
        *_swizzles(ttgir),
    ]


def impact(feature: str, d: int, dtype: str, profile: Profile) -> float:
    """
    TFLOP/s of a forward pass of attention that has everything but this feature.

    Args:
        feature: What is missing: "wgmma_async", "wgmma_wait", "warp_specialized" or "fp8".
        d: Channels of a head.
        dtype: Of both products, a key of `profile.flops_per_clk_per_sm`.
        profile: Whose rates count.

    Raises:
        ValueError: another feature, or "fp8" where the products are in another dtype; `d` below
            1; a dtype that the profile lacks.
    """
    # check
    if feature not in ("wgmma_async", "wgmma_wait", "warp_specialized", "fp8"):
        raise ValueError(f"feature: expected one whose loss is modelled, found {feature!r}")
    if d < 1:
        raise ValueError(f"d: expected 1 or more, found {d}")
    if dtype not in profile.flops_per_clk_per_sm:
        raise ValueError(f"dtype: expected one that {profile.id} multiplies, found {dtype!r}")
    if feature == "fp8":
        if dtype != "float8":
            raise ValueError(f"feature: expected fp8 of float8 products, found {dtype}")
        dtype = "float16"
    # clocks of a score
    rate = profile.flops_per_clk_per_sm[dtype] * ATTAINED
    if feature == "wgmma_async":
        rate *= MMA_SYNC
    # clocks of an SM for a score
    products, exponential = 4 * d / rate, 1 / profile.sfu_per_clk_per_sm
    clocks = max(products, exponential) if feature == "fp8" else products + exponential
    return 4 * d / clocks * profile.sms * profile.clock_hz / 1e12


# what an instruction begins with, and what makes it evidence
_EVIDENCE = {
    "tma_load": ("cp.async.bulk.tensor", r"cp\.async\.bulk\.tensor\S*\.shared::\S*\.global"),
    "cp_async": ("cp.async.c", r"cp\.async\.c[ag]\."),
    "wgmma_async": ("wgmma.mma_async", r"wgmma\.mma_async\."),
    "mma_sync": ("mma.sync", r"mma\.sync\."),
    "tcgen05": ("tcgen05.mma", r"tcgen05\.mma\."),
    # behind the accumulators a second list of registers, where a descriptor could be
    "register_p": ("wgmma.mma_async", r"wgmma\.mma_async\.\S+\s*\{[^}]*\}\s*,\s*\{"),
    "warp_specialized": ("setmaxnreg", r"setmaxnreg\."),
    "mufu_exp2": ("ex2.approx", r"ex2\.approx\."),
    "fp8": (
        "mma.",
        r"(wgmma\.mma_async|mma\.sync)\.\S*\.e(4m3|5m2)|tcgen05\.mma\.\S*kind::f8f6f4",
    ),
}


def _instructions(ptx: str) -> Iterator[tuple[int, str]]:
    """Number and text of each line, without comments, blanks around it and predicate."""
    # instructions of the PTX
    for number, line in enumerate(ptx.split("\n"), 1):
        yield number, re.sub(r"^@\S+\s+", "", line.split("//")[0].strip())


def _from_instructions(instructions: dict[int, str]) -> Iterator[Annotation]:
    # features by opcode
    for feature, (evidence, pattern) in _EVIDENCE.items():
        lines = tuple(at for at, text in instructions.items() if re.match(pattern, text))
        if lines:
            yield Annotation(feature=feature, evidence=evidence, where="ptx", lines=lines)


def _waits_in_loops(instructions: dict[int, str]) -> Iterator[Annotation]:
    # waits in loops
    above: dict[str, int] = {}
    inside: set[int] = set()
    for at, text in instructions.items():
        if label := re.match(r"([\w$]+):", text):
            above[label[1]] = at
        elif (target := re.match(r"bra\S*\s+([\w$]+)\s*;", text)) and target[1] in above:
            inside.update(range(above[target[1]], at))
    waits: dict[int, list[int]] = {}
    for at, text in instructions.items():
        wait = re.match(r"wgmma\.wait_group\S*\s+(\d+)", text)
        if wait and at in inside:
            waits.setdefault(int(wait[1]), []).append(at)
    if waits:
        most = max(waits)
        yield Annotation(
            feature=f"wgmma_wait({most})",
            evidence="wgmma.wait_group",
            where="ptx",
            lines=tuple(waits[most]),
        )


def _barrier_depth(ttgir: str) -> Iterator[Annotation]:
    # buffers of the TTGIR
    depths: dict[int, list[int]] = {}
    for at, line in enumerate(ttgir.split("\n"), 1):
        if found := re.search(r"ttg\.local_alloc .*-> !ttg\.memdesc<(?:(\d+)x)?1xi64\b", line):
            depths.setdefault(int(found[1] or 1), []).append(at)
    if depths:
        most = max(depths)
        yield Annotation(
            feature=f"mbarrier_depth({most})",
            evidence="ttg.local_alloc",
            where="ttgir",
            lines=tuple(depths[most]),
        )


def _swizzles(ttgir: str) -> Iterator[Annotation]:
    # buffers of the TTGIR
    widths: dict[str, list[int]] = {}
    used = re.findall(r"memdesc<[\w.]+, (#\w+)", ttgir)
    for at, line in enumerate(ttgir.split("\n"), 1):
        found = re.match(r"(#\w+) = #ttg\.nvmma_shared<.*swizzlingByteWidth = (\d+)", line)
        if found and found[1] in used and found[2] != "0":
            widths.setdefault(found[2], []).append(at)
    for width, lines in widths.items():
        yield Annotation(
            feature=f"swizzle({width})",
            evidence="swizzlingByteWidth",
            where="ttgir",
            lines=tuple(lines),
        )
