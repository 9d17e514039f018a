"""
Every kata's hunts, tried: what can be handed out, and whether the kata's tests tell it from right.

    python -m tests.hunts                     # all katas, 8 s of CPU each; no part of the suite
    python -m tests.hunts vector_add gemv     # some
    python -m tests.hunts --count             # nothing is run: how many there are, a minute

For each kata the reference as hunts lay it out has to pass, and the fault that `kata hunt` would
hand out has to fail and to pass again once its lines are put back.
"""

import sys
import tempfile
from collections import Counter
from pathlib import Path
from random import Random

import click

from harness.content.catalog import load_curriculum
from harness.content.kata import Kata
from harness.practice.bugs import Bug, bugs_of, drawn_bugs
from harness.practice.hunt import TRIES
from harness.practice.judging import dies_of, first_failure, judged_text

ROOT = Path(__file__).parents[1]
SEED = 1
BINS = ("0", "1", "2 to 5", "more")


@click.command()
@click.argument("names", nargs=-1)
@click.option("--count", is_flag=True, help="Only count what could be handed out.")
@click.option("--seed", default=SEED, show_default=True, help="What faults and inputs come from.")
def sweep(names: tuple[str, ...], count: bool, seed: int) -> None:
    """Try the hunts of NAMES, all by default."""
    course = load_curriculum(ROOT)
    katas = [course.kata(name) for name in names] or list(course.katas.values())
    if count:
        found = {kata.name: sum(1 for _ in bugs_of(kata)) for kata in katas}
        bins = Counter(BINS[0 if n == 0 else 1 if n == 1 else 2 if n <= 5 else 3]
                       for n in found.values())  # fmt: skip
        click.echo(f"{sum(found.values())} wrong solutions to hunt; katas that have")
        for one in BINS:
            click.echo(f"  {one:>6}: {bins[one]}")
        return
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="kata-hunts-") as folder:
        for kata in katas:
            told = _told(kata, Path(folder), seed)
            wrong += told.startswith("✗")
            click.echo(f"{told[0]} {kata.name} ({kata.backend}): {told[2:]}")
    click.echo(f"{len(katas) - wrong} of {len(katas)} katas can be hunted")
    sys.exit(1 if wrong else 0)


def _told(kata: Kata, cache: Path, seed: int) -> str:
    """What became of one kata: a mark and words."""
    tried = []
    for bug, _ in zip(drawn_bugs(kata, Random(f"{kata.name} {seed}")), range(TRIES), strict=False):
        if found := dies_of(kata, bug, cache, seed):
            break
        tried.append(bug.key)
    else:
        return f"✗ nothing that dies here within the time: {', '.join(tried)}"
    right = judged_text(kata, _mended(bug), cache, seed=seed)
    if right.status != "passed":
        red = first_failure(right)
        return f"✗ mended it fails: {f'{red.name}: {red.message}' if red else right.reason}"
    passed_over = f", after {', '.join(tried)}" if tried else ""
    return f"✓ {bug.key} dies of {found.name}{passed_over}"


def _mended(bug: Bug) -> str:
    """The fault's file with the reference's lines put back: the reference, laid out anew."""
    lines, right = bug.text.splitlines(), bug.reference.splitlines()
    for old, new in reversed(bug.changes):
        lines[new.start : new.stop] = right[old.start : old.stop]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    sweep()
