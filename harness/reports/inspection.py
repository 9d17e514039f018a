"""What the compiler made of a kata's kernels: every build that its cases lead to, read off."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from harness.base.errors import SubmissionError, UsageProblem
from harness.content.functions import arguments_in, function_of
from harness.content.kata import Case
from harness.content.submission import Submission
from harness.hardware.profiles import Profile
from harness.meters.compiled import (
    CompileFailed,
    CompileRequest,
    KernelFacts,
    StillAStub,
    compile_kernels,
)
from harness.meters.occupancy import Residency, residency

COMPILED_BACKENDS = ("triton", "cuda", "gluon")
# what a kernel is worth telling for, and how such instructions begin in PTX or AMD's ISA
INSTRUCTIONS = {
    "mma.sync": ("mma.sync",),
    "wgmma": ("wgmma.mma_async",),
    "tcgen05.mma": ("tcgen05.mma",),
    "mfma": ("v_mfma",),
    "ldmatrix": ("ldmatrix",),
    "stmatrix": ("stmatrix",),
    "cp.async": ("cp.async.ca", "cp.async.cg"),
    "TMA": ("cp.async.bulk.tensor",),
    "shuffle": ("shfl.sync", "ds_bpermute", "ds_swizzle"),
    "barrier": ("bar.sync", "barrier.sync", "s_barrier"),
    "atomic": ("atom", "red", "global_atomic", "buffer_atomic"),
    "ex2": ("ex2.approx", "v_exp"),
}
# an access to global memory in SASS (LDG.E.128.CONSTANT) or AMD's ISA (global_load_dwordx4)
NVIDIA_ACCESS = re.compile(r"\b(LDG|LDGSTS|STG)\b((?:\.\w+)*)")
AMD_ACCESS = re.compile(r"\b(?:global|buffer|flat)_(load|store)_(\w+)")
WIDTHS = {"U8": 8, "S8": 8, "U16": 16, "S16": 16, "64": 64, "128": 128, "256": 256}
AMD_WIDTHS = re.compile(r"dword(?:x(\d))?|[bui](\d+)|[us]?(short|byte)")
AMD_NAMED_WIDTHS = {"short": 16, "byte": 8}


@dataclass(frozen=True, slots=True, kw_only=True)
class Instructions:
    """
    Counts over the code of one kernel; the body of a loop counts once.

    Attributes:
        named: Those of `INSTRUCTIONS` that occur.
        loads: Bits that a lane loads from global memory at once, to instructions.
        stores: The same for stores.
    """

    named: Mapping[str, int]
    loads: Mapping[int, int]
    stores: Mapping[int, int]


@dataclass(kw_only=True)
class Build:
    """
    One kernel as built for one target.

    `launches` holds the cases that lead to this code, and the grid of each.
    """

    facts: KernelFacts
    instructions: Instructions
    residency: Residency
    launches: dict[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(kw_only=True)
class Inspection:
    """All builds, and for each target what was said where launcher or compiler gave up."""

    builds: list[Build] = field(default_factory=list)
    failures: dict[str, list[str]] = field(default_factory=dict)


def inspect_kernels(
    submission: Submission,
    targets: Iterable[str],
    profiles: Iterable[Profile],
    *,
    cache_dir: Path | None = None,
) -> Inspection:
    """
    Build the kernels of the kata's first function for each target and each of its cases.

    Args:
        submission: Whose launcher.
        targets: GPUs, as `compile_kernels` names them.
        profiles: One of each target's is used for occupancy.
        cache_dir: Where builds are kept.

    Raises:
        UsageProblem: its kernels are not compiled, it has no cases, or a target is unknown.
        SubmissionError: it is still a stub, or launches no kernel in any case.
    """
    _assert_inspectable(submission)
    found = Inspection()
    by_arch = {profile.arch: profile for profile in profiles}
    for target in targets:
        known: dict[str, Build] = {}
        for case in _cases(submission):
            try:
                kernels = compile_kernels(_request(submission, case, target), cache_dir=cache_dir)
            except StillAStub:
                raise SubmissionError(submission.stub_message()) from None
            except CompileFailed as error:
                found.failures.setdefault(target, []).append(error.message)
                continue
            for facts in kernels:
                build = known.setdefault(facts.binary.name, _read(facts, by_arch[target]))
                build.launches[case_words(case)] = facts.grid
        found.builds += known.values()
    if not found.builds and not found.failures:
        raise SubmissionError(
            f"{submission.path.name}: expected {submission.kata.functions[0]} to launch a kernel, "
            "found that it launches none in any case of kata.toml."
        )
    return found


def _assert_inspectable(submission: Submission) -> None:
    kata = submission.kata
    if kata.backend not in COMPILED_BACKENDS:
        raise UsageProblem(
            f"inspect {kata.name}: expected a kata whose kernels are compiled "
            f"({', '.join(COMPILED_BACKENDS)}), found backend {kata.backend}. "
            "`kata list --backend triton` shows them."
        )
    if not _cases(submission):
        raise UsageProblem(
            f"inspect {kata.name}: expected [[cases]] in kata.toml to build for, found none."
        )


def _cases(submission: Submission) -> list[Case]:
    """Every case of kata.toml once: those of the checks and those of thresholds."""
    kata = submission.kata
    counted = [one.case for one in kata.cost if one.case is not None]
    named = [*kata.cases, *counted, *(one.case for one in kata.speed)]
    plain = [{key: value for key, value in case.items() if key != "only"} for case in named]
    return [case for at, case in enumerate(plain) if case not in plain[:at]]


def case_words(case: Case) -> str:
    """A case in one line: ``rows=7 cols=1000 dtype=float16``."""
    return " ".join(f"{name}={value}" for name, value in case.items())


def _request(submission: Submission, case: Case, target: str) -> CompileRequest:
    kata = submission.kata
    return CompileRequest(
        file=submission.path,
        oracle=kata.oracle,
        function=function_of(case) or kata.functions[0],
        case=arguments_in(case),
        target=target,
    )


def _read(facts: KernelFacts, profile: Profile) -> Build:
    return Build(facts=facts, instructions=instructions(facts), residency=residency(facts, profile))


# ---- instructions --------------------------------------------------------------------------


def instructions(facts: KernelFacts) -> Instructions:
    """Count what is worth telling in the code of one kernel."""
    counts = {
        name: sum(facts.count(start) for start in starts) for name, starts in INSTRUCTIONS.items()
    }
    amd = facts.target.startswith("gfx")
    accesses = list(_amd_accesses(facts.sass) if amd else _nvidia_accesses(facts.sass))
    return Instructions(
        named={name: count for name, count in counts.items() if count},
        loads=Counter(bits for loads, bits in accesses if loads),
        stores=Counter(bits for loads, bits in accesses if not loads),
    )


def _nvidia_accesses(sass: str) -> Iterator[tuple[bool, int]]:
    """Whether it loads, and the bits of a lane, for each access to global memory."""
    for kind, modifiers in NVIDIA_ACCESS.findall(sass):
        parts = modifiers.split(".")
        yield kind != "STG", next((WIDTHS[part] for part in parts if part in WIDTHS), 32)


def _amd_accesses(isa: str) -> Iterator[tuple[bool, int]]:
    for kind, width in AMD_ACCESS.findall(isa):
        if found := AMD_WIDTHS.match(width):
            times, bits, named = found.groups()
            plain = int(bits) if bits else 32 * int(times or 1)
            yield kind == "load", AMD_NAMED_WIDTHS.get(named, plain)
