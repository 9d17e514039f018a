"""How one run looks: each kind of failure once, the thresholds, and what to do next."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from harness.cli.draw import MARKS, console
from harness.cli.screen import folded
from harness.content.kata import Kata
from harness.content.reached import ON_THE_CLOCK, Reached, beside
from harness.running.verdict import is_stub, waiting

if TYPE_CHECKING:
    from harness.learner.advice import Advice
    from harness.learner.progress import Check, Measurement
    from harness.running.runner import Outcome

NOTHING: Reached = {}
MOST_OUTPUT = 3000  # characters of what a process printed
MOST_FAILURES = 5  # kinds that are shown before one asks for all
MOST_CASES = 4  # cases of a test that are named beside the first
# the parts of a message that get a line of their own
PARTS = re.compile(
    r" \| (?=likely cause: |input: |expected |(?:now|before|also|fix): "
    r"|[\w ]+: (?:waits |runs|finished)|at \S+:\d+|it has seen )"
)
PLACE = re.compile(r"\(line \d+, in [^)]*\)$")  # in the code under test
NUMBER = re.compile(r"[-+]?\d[\d.,e+-]*|\b(?:nan|inf)\b")


@dataclass(frozen=True, slots=True)
class Failure:
    """Checks that failed alike, in order."""

    checks: tuple["Check", ...]

    @property
    def names(self) -> str:
        """The first by its name, the others by what tells them from it."""
        first, *others = (check.name for check in self.checks)
        if not others:
            return first
        test = first.partition("[")[0]
        cases = [
            name.removeprefix(test).strip("[]") if name.startswith(f"{test}[") else name
            for name in others
        ]
        shown = ", ".join(cases[:MOST_CASES]) + (", …" if len(cases) > MOST_CASES else "")
        return f"{first} and {len(others)} more like it ({shown})"


def failures(checks: Iterable["Check"]) -> list[Failure]:
    """
    Failed checks, those that say the same together, in order of the first.

    Cases of one test say the same when only their numbers differ; so do different tests that
    name the same line of the code.
    """
    groups: dict[tuple[str, str], list[Check]] = {}
    for check in checks:
        said = PARTS.split(check.message)[0]
        place = PLACE.search(said)
        alike = (place[0] if place else check.name.partition("[")[0], NUMBER.sub("#", said))
        # the very same words are the same whichever test says them
        told = (key for key, found in groups.items() if found[0].message == check.message)
        groups.setdefault(next(told, alike), []).append(check)
    return [Failure(tuple(found)) for found in groups.values()]


def outcome(
    kata: Kata, result: "Outcome", impl: str, *, verbose: bool = False, reached: Reached = NOTHING
) -> None:
    """
    One run: what is red and the thresholds; `verbose` hides nothing.

    `reached` is what the reference and the naive version come to, by threshold.
    """
    from rich.markup import escape

    out = console()
    for mark, line in _lines(result, reached, verbose=verbose):
        head, *more = PARTS.split(line)
        sign = MARKS[mark]
        out.print(escape(folded(f"? {head}")).replace("?", sign, 1))
        for part in more:
            out.print(folded(f"    {part}", indent=6), markup=False)
    if result.device == "cpu" and any(one.on == "cuda" for one in kata.speed):
        out.print("[dim]speed: not judged without a GPU; work was counted instead[/]")
    colour = "green" if result.status == "passed" else "red"
    verdict = (
        f"{result.status.replace('_', ' ')}: {kata.name} ({impl}, {result.device}): "
        f"{result.reason} · {result.duration_s:.1f} s · --seed {result.seed}"
    )
    status, _, rest = escape(folded(verdict)).partition(":")
    out.print(f"[{colour}]{status}[/]:{rest}")
    if result.status in ("crashed", "timed_out", "error"):
        out.print(_last_part(result.output), markup=False)


def next_step(
    kata: Kata, result: "Outcome", impl: str, shown: str, then: "Advice | None" = None
) -> None:
    """What to do after a run; `then` is what comes after this kata."""
    click.echo(folded(f"next: {_next_step(kata, result, impl, shown, then)}"))


def total(passed: int, count: int, untouched: Sequence[str]) -> None:
    """What several katas came to, in a line or two."""
    if untouched:
        click.echo(folded(f"· {len(untouched)} not begun: {', '.join(untouched)}"))
    click.echo(f"{passed} of {count} katas passed")


def as_row(kata: Kata, impl: str, result: "Outcome") -> dict[str, Any]:
    """One run as plain data for ``--json``."""
    row = asdict(result)
    del row["output"], row["unkept"]
    row["measurements"] = [{**one, "detail": dict(one["detail"])} for one in row["measurements"]]
    return {"kata": kata.name, "impl": impl, **row}


def _lines(result: "Outcome", reached: Reached, *, verbose: bool) -> Iterator[tuple[str, str]]:
    """A mark and a line for each thing that is to be said of the checks and thresholds."""
    measured = {found.name for found in result.measurements}
    judged = [check for check in result.checks if not _is_threshold(check, measured)]
    red = [check for check in judged if check.outcome == "failed"]
    if stubs := [check.message for check in red if is_stub(check)]:
        yield "failed", waiting(stubs)
    kinds = failures(check for check in red if not is_stub(check))
    kept = kinds if verbose else kinds[:MOST_FAILURES]
    for kind in kept:
        yield "failed", f"{kind.names}: {kind.checks[0].message}"
    if left := sum(len(kind.checks) for kind in kinds[len(kept) :]):
        yield "failed", f"{left} more checks failed in other ways: add -v"
    for check in judged:
        if check.outcome in ("ambiguous", "not_graded") or (check.outcome == "passed" and verbose):
            yield check.outcome, f"{check.name}: {check.message}" if check.message else check.name
    passed = sum(check.outcome == "passed" for check in result.checks)
    brief = result.status != "passed" and not verbose  # of what is green the number will do
    if passed and brief:
        yield "passed", f"{passed} check{'s' if passed > 1 else ''} passed"
    if skipped := [check for check in result.checks if check.outcome == "skipped"]:
        yield "skipped", f"{len(skipped)} skipped: {skipped[0].message}"
    for found in _told_once(result.measurements, red):
        mark = str(found.detail.get("outcome", "passed"))
        if mark == "passed" and brief:
            continue
        aside = beside(reached.get(found.name, {}), timed=found.meter in ON_THE_CLOCK)
        yield mark, f"threshold {found.detail.get('message', found.name)}{aside}"


def _is_threshold(check: "Check", measured: Iterable[str]) -> bool:
    """Whether a check only judges a threshold, which has a line of its own."""
    found = re.fullmatch(r"test_(?:cost|speed)\[(.*)\]", check.name)
    return found is not None and found[1] in measured


def _told_once(found: Sequence["Measurement"], red: Sequence["Check"]) -> list["Measurement"]:
    """One measurement a threshold, the worst, where no failed check has told it already."""
    worst: dict[str, Measurement] = {}
    for one in found:
        known = worst.get(one.name)
        if known is None or (known.passed, _distance(known)) > (one.passed, _distance(one)):
            worst[one.name] = one
    told = [check.message for check in red]
    return [
        one
        for one in worst.values()
        if not any(str(one.detail.get("message", one.name)) in message for message in told)
    ]


def _distance(found: "Measurement") -> float:
    """How far inside its limit a measurement is."""
    if found.limit is None:
        return 0.0
    return found.value - found.limit if found.relation == ">=" else found.limit - found.value


def _last_part(output: str) -> str:
    """What a process printed last; of an interpreter that died the innermost frames."""
    _, died, stack = output.strip().rpartition("Fatal Python error")
    return f"{died}{stack}"[:MOST_OUTPUT] if died else output.strip()[-MOST_OUTPUT:]


def _next_step(kata: Kata, result: "Outcome", impl: str, shown: str, then: "Advice | None") -> str:
    again = kata.run_command
    if impl != "yours":
        return f"your own: edit {shown}, then {again}"
    if result.status == "passed":
        after = then.command if then else ""
        return f"kata explain {kata.name}, then {after or 'kata next'}"
    if any(map(is_stub, result.checks)):
        return f"edit {shown}, then {again}   (stuck? kata hint {kata.name})"
    red = any(check.outcome == "failed" for check in result.checks)
    first = "fix the first ✗" if red else "read the message above"
    return f"{first}, then {again}   (stuck? kata hint {kata.name})"
