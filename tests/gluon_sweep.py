"""
Every synchronisation line of the kernels in fixtures/gluon, changed in every mechanical way.

    python -m tests.gluon_sweep           # a minute or two; no part of the suite

A mutant is named as a hazard in every schedule tried, or fails in another way, or is right. One
that gives a wrong result in silence, or that only some schedules tell, is what must not be. The
kernels as they are come first: in none of many schedules may they be found wrong.
"""

import os
import re
import sys
import tempfile
from collections import Counter
from pathlib import Path

os.environ.setdefault("TRITON_INTERPRET", "1")

import click
import torch

from harness.simulators.gluon import simulating
from harness.simulators.hazards import Hazard
from tests.gluon_cases import CASES, CLUSTERS, FILES, load

EVERY = {**CASES, **CLUSTERS}

# the functions that a case runs, beside its kernel
FUNCTIONS = {
    "layernorm": ("layernorm_kernel",),
    "tma": ("tma_scale_kernel",),
    "gemm": ("wgmma_gemm_kernel", "issue_loads"),
    "ws": ("ws_gemm_kernel", "consumer", "producer"),
    "fa3": ("fa3_kernel", "fetch"),
    "pair": ("pair_gemm_kernel", "half_consumer", "one_producer"),
    "relay": ("relay_kernel", "compute_part", "store_part"),
    "pingpong": ("pingpong_kernel", "turn_consumer", "turn_producer"),
    "scan": ("scan_rows_kernel",),
    "spread": ("softmax_kernel",),
    "staged": ("staged_kernel",),
    "multicast": ("multicast_kernel",),
    "shared": ("shared_kernel", "issue"),
    "split": ("split_kernel", "split_consumer", "split_producer"),
}
SIZES = {
    "tma": {"cols": 448},
    "gemm": {"m": 200, "k": 264},
    "ws": {"m": 200, "k": 264},
    "fa3": {"length": 320},
}
SYNCHRONISES = re.compile(
    r"^\s*(\w+ = )?(mbarrier\.\w+|async_copy\.(commit_group|wait_group|mbarrier_arrive)|"
    r"tma\.store_wait|fence_async_shared|warpgroup_mma_wait|gl\.barrier|cluster\.\w+)\(.*\)"
    r"(  #.*)?$"
)
CHANGES = (
    ("another parity", r"& 1\)", "& 1 ^ 1)"),
    ("another parity", r"& 1\) \^ 1", "& 1)"),
    ("one more", r"(wait_group|store_wait|warpgroup_mma_wait)\((pendings=)?(\d)", None),
    ("of the CTA alone", r"barrier\(cluster=True\)", "barrier()"),
    ("an arrival more", r"count=(\d)", None),
    ("half the bytes", r"(nbytes\w*)(?!.*nbytes)", r"\1 // 2"),
    ("a parity of the step", r"// STAGES\) & 1", "% 2) & 1"),
    ("always", r"pred=\w+( > 0)?", "pred=True"),
)
SEEDS = 20
SCHEDULES = ((0, "late"), (1, "late"), (2, "random"), (3, "early"))


def mutants(lines, first, last):
    """What changes a line among these, which line it is, and what it is then."""
    for at in range(first, last):
        line = lines[at]
        if SYNCHRONISES.match(line):
            yield "gone", at, re.match(r"\s*", line)[0] + "pass"
        for what, pattern, into in CHANGES:
            if into is None:
                new = re.sub(pattern, lambda found: _raised(found[0]), line, count=1)
            else:
                new = re.sub(pattern, into, line, count=1)
            if new != line and not line.strip().startswith("#"):
                yield what, at, new


def _raised(text):
    """The last digit of `text`, one more."""
    return text[:-1] + str(int(text[-1]) + 1)


def extent(lines, name):
    """The first and the last line of a function."""
    first = next(at for at, line in enumerate(lines) if line.startswith(f"def {name}("))
    rest = range(first + 1, len(lines))
    return first, next((at for at in rest if re.match(r"(def|@|class|# )", lines[at])), len(lines))


def verdict(case, module, seed, policy):
    """What one run of a mutant comes to."""
    try:
        with simulating(seed=seed, policy=policy, most_steps=20_000):
            got, want, tolerance = EVERY[case](module, **SIZES.get(case, {}))
    except Hazard as found:
        return found.name
    except Exception as error:  # noqa: BLE001 -- whatever a mutant raises ends it
        return type(error).__name__
    return "right" if (got.double() - want.double()).abs().max() <= tolerance else "WRONG"


def false_alarms():
    """How many runs of right kernels are found wrong, and how many there were."""
    found = Counter()
    modules = {path: load(path) for path in set(FILES.values())}
    for case in EVERY:
        for seed in range(SEEDS):
            for policy in ("late", "random", "early"):
                found[verdict(case, modules[FILES[case]], seed, policy)] += 1
    return found.total() - found["right"], found.total()


def main():
    """Print a line for each mutant and the sum of them; return how many should not be."""
    torch.set_num_threads(1)
    alarms, runs = false_alarms()
    click.echo(f"{alarms} false alarms in {runs} runs of right kernels")
    total, folder = Counter(partly=alarms), Path(tempfile.mkdtemp())
    for case, functions in FUNCTIONS.items():
        if case not in EVERY:
            continue
        lines = FILES[case].read_text(encoding="utf-8").split("\n")
        for name in functions:
            for number, (what, at, new) in enumerate(mutants(lines, *extent(lines, name))):
                path = folder / f"{case}_{name}_{number}.py"
                path.write_text("\n".join([*lines[:at], new, *lines[at + 1 :]]), encoding="utf-8")
                module = load(path)
                found = {verdict(case, module, *schedule) for schedule in SCHEDULES}
                silent = found & {"right", "WRONG"}
                outcome = "told" if not silent else "partly" if len(found) > 1 else silent.pop()
                total[outcome] += 1
                click.echo(f"{outcome:6} {case:9} {what:20} {at + 1:4}: {lines[at].strip()[:60]}  "
                      f"{', '.join(sorted(found))}")  # fmt: skip
    click.echo(dict(total))
    return total["WRONG"] + total["partly"]


if __name__ == "__main__":
    sys.exit(main() > 0)
