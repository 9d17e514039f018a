"""Prove katas: the contract holds, the reference passes, each wrong solution dies."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

from harness.authoring.broad import broad_raises
from harness.authoring.contract import can_be_run, contract_problems
from harness.authoring.matrix import (
    SHARED,
    WRONG,
    Kills,
    cheapest_kills,
    function_name,
    remember,
    remembered_kills,
)
from harness.authoring.mutate import mark_problems
from harness.authoring.session import Event, Heard, Judged, judge
from harness.base.errors import UsageProblem
from harness.base.pace import cpu_pace
from harness.content.kata import Kata
from harness.content.reached import keep_reached
from harness.content.submission import ANOTHER_WAY, approaches, resolve_all
from harness.hardware.environment import SEEDS
from harness.running.causes import NOT_MODELLED, stated_cause
from harness.running.limits import TEST_LIMIT_S

SLOW_S = 5.0  # CPU seconds of a reference on its own tests that are worth a note
DRAWN_CASES = 2  # besides those that a kata lists
EVERY_CASE = 1_000_000  # more than there are
MATCHES = "test_matches_reference"
BATCH = 8  # katas judged by one process: one import of torch for all of them
NO_SPEED = ("-k", "not test_speed")


@dataclass(kw_only=True)
class Report:
    """What was found about one kata; without problems it is proven."""

    kata: Kata
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    killed_by: dict[str, list[str]] = field(default_factory=dict)
    tests: int = 0
    solution_s: float = 0.0
    total_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of a kill matrix: wrong solutions and tests by name; none stands for all."""

    wrong: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.wrong or self.tests)


def check_katas(
    katas: Sequence[Kata],
    cache: Path,
    *,
    jobs: int,
    seed: int,
    whole: bool = False,
    part: Part = Part(),
    heard: Heard = lambda _: None,
) -> list[Report]:
    """
    Check the contract of each kata, then run their kill matrices.

    Args:
        katas: What to prove.
        cache: For wrong solutions made from edits, and for compiled kernels.
        jobs: Processes at a time.
        seed: What all inputs are drawn from.
        whole: Run every test on every wrong solution, and remember the cheapest kills; run the
            reference on every case that may be drawn.
        part: What of the matrix of one kata is asked for; the rest is neither run nor judged.
        heard: Gets each event of each session as it is recorded.

    Raises:
        UsageProblem: no such wrong solution.
    """
    reports = {
        kata.id: Report(kata=kata, problems=contract_problems(kata, cache) + mark_problems(kata))
        for kata in katas
    }
    runs = _Runs(cache=cache, jobs=jobs, seed=seed, whole=whole, part=part, heard=heard)
    found = runs.matrices([kata for kata in katas if can_be_run(kata, cache)])
    for name, judged in found.items():
        report = reports[name]
        if judged.stopped:
            report.problems.append(judged.stopped)
            continue
        unrelated = len(report.problems)  # to what the tests prove: a long line of the brief
        judge_matrix(report, judged.checks, part)
        if not part:
            report.problems += _approach_problems(report.kata, cache, seed)
        if whole and report.kata.vary:
            report.problems += _vary_problems(report.kata, seed)
        if whole and len(report.problems) == unrelated:
            report.problems += _remember_what_lasts(report, judged.checks, seed)
            keep_reached(report.kata, judged.checks)
    return list(reports.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Runs:
    """How matrices are run."""

    cache: Path
    jobs: int
    seed: int
    whole: bool
    part: Part
    heard: Heard

    def matrices(self, katas: Sequence[Kata]) -> dict[str, Judged]:
        """What came of each kata; clocks are read after everything else, alone."""
        sessions = self._sessions(katas)
        found: dict[str, list[Judged]] = defaultdict(list)
        with ThreadPoolExecutor(self.jobs) as pool:
            for judged in pool.map(lambda one: self._judge(*one), sessions):
                for name, one in judged.items():
                    found[name].append(one)
        together = {
            name: Judged(
                checks=_each_once(event for one in parts for event in one.checks),
                stopped=next((one.stopped for one in parts if one.stopped), ""),
            )
            for name, parts in found.items()
        }
        for kata in katas:
            if any(one.on == "any" for one in kata.speed) and not self.part:
                checks = together[kata.id].checks
                impls = ["solution", *_alive(checks)]
                timed = judge(
                    [kata],
                    impls=impls,
                    cpu_limit_s=TEST_LIMIT_S,
                    seed=self.seed,
                    extra=["-k", "test_speed"],
                )
                checks += timed.checks
        return together

    def _sessions(self, katas: Sequence[Kata]) -> list[tuple[list[Kata], list[str]]]:
        """Which katas and implementations each process judges, so that every core has one."""
        if len(katas) >= self.jobs and not self.part:
            size = max(1, min(BATCH, -(-len(katas) // (2 * self.jobs))))
            batches = [list(katas[at : at + size]) for at in range(0, len(katas), size)]
            return [(batch, ["stub", "solution", "wrong"]) for batch in batches]
        return [
            ([kata], impls)
            for kata in katas
            for impls in self._shares(kata, max(1, self.jobs // len(katas)))
        ]

    def _shares(self, kata: Kata, count: int) -> list[list[str]]:
        """The implementations of a kata, for `count` processes where there is work for them."""
        specs = [f"{WRONG}{name}" for name in self.part.wrong] or ["wrong"]
        known = [one.label for one in resolve_all(kata, specs, self.cache)]
        kills = {f"{WRONG}{name}" for name in remembered_kills(kata)}
        if not (self.whole or self.part) and kills.issuperset(known):
            count = 1  # the remembered kills are less work than a second start
        shares = [known[at::count] for at in range(min(count, len(known)))]
        # the reference comes first everywhere: it tells how long a wrong solution may take
        return [["stub", "solution", *shares[0]], *(["solution", *one] for one in shares[1:])]

    def _judge(self, katas: Sequence[Kata], impls: Iterable[str]) -> dict[str, Judged]:
        """One process; what stops it stops no other kata's judgement."""
        whole = self.whole or bool(self.part)
        # drawn cases would be remembered by names that never come again
        drawn = [] if self.whole else [f"--vary={DRAWN_CASES}"]
        judged = judge(
            katas,
            impls=impls,
            cpu_limit_s=TEST_LIMIT_S,
            seed=self.seed,
            extra=[
                f"--matrix={'whole' if whole else 'lean'}",
                *NO_SPEED,
                *drawn,
                *_only(self.part.tests),
            ],
            heard=self.heard,
        )
        if judged.stopped and len(katas) > 1:
            return {kata.id: self._judge([kata], impls)[kata.id] for kata in katas}
        return {
            kata.id: Judged(
                checks=[event for event in judged.checks if event["kata"] == kata.id],
                stopped=judged.stopped,
            )
            for kata in katas
        }


def draw_katas(
    katas: Sequence[Kata],
    *,
    jobs: int,
    seed: int,
    draws: int,
    tests: Sequence[str] = (),
    heard: Heard = lambda _: None,
) -> Iterator[Report]:
    """
    Judge each reference on `draws` seeds, from `seed` upwards; no other implementation.

    Args:
        katas: Whose references.
        jobs: Katas at a time, each in a process of its own.
        seed: The first.
        draws: How many.
        tests: Only these; all when there are none.
        heard: Gets each event of each session as it is recorded.

    Yields:
        What was found about each kata, in the order in which they end.
    """
    options = [f"--draws={draws}", *_only(tests)]
    runs = {kata.id: [(options, "")] for kata in katas}
    return _references(katas, runs, jobs=jobs, seed=seed, heard=heard)


def profile_katas(
    katas: Sequence[Kata],
    profiles: Sequence[str],
    *,
    jobs: int,
    seed: int,
    heard: Heard = lambda _: None,
) -> Iterator[Report]:
    """
    Judge the reference of each kata that simulates a GPU on each of these hardware profiles.

    Yields:
        What was found about each kata, in the order in which they end.

    Raises:
        UsageProblem: none of them simulates one.
    """
    simulated = [kata for kata in katas if kata.profile]
    if not simulated:
        raise UsageProblem(
            "--profiles: expected a kata that simulates a GPU (`profile` in kata.toml), found none."
        )
    options = [([f"--profile={profile}"], f" on {profile}") for profile in profiles]
    runs = {kata.id: options for kata in simulated}
    return _references(simulated, runs, jobs=jobs, seed=seed, heard=heard)


def _references(
    katas: Sequence[Kata],
    runs: Mapping[str, Sequence[tuple[Sequence[str], str]]],
    *,
    jobs: int,
    seed: int,
    heard: Heard,
) -> Iterator[Report]:
    """Judge references only: each run of a kata has options of pytest, and words for them."""

    def judged(kata: Kata, options: Sequence[str]) -> Judged:
        return judge(
            [kata],
            impls=["solution"],
            cpu_limit_s=TEST_LIMIT_S,
            seed=seed,
            extra=[*options, *NO_SPEED],
            heard=heard,
        )

    left = {kata.id: len(runs[kata.id]) for kata in katas}
    reports = {kata.id: Report(kata=kata) for kata in katas}
    with ThreadPoolExecutor(jobs) as pool:
        asked = {
            pool.submit(judged, kata, options): (kata, where)
            for kata in katas
            for options, where in runs[kata.id]
        }
        for done in as_completed(asked):
            kata, where = asked[done]
            _note_reference(reports[kata.id], done.result(), where, seed)
            left[kata.id] -= 1
            if not left[kata.id]:
                yield reports[kata.id]


def _note_reference(report: Report, judged: Judged, where: str, seed: int) -> None:
    """Read one run of a reference."""
    for event in judged.checks:
        report.tests += 1
        report.solution_s += event["cpu_s"]
        report.total_s = report.solution_s
        if event["outcome"] == "failed":
            drawn = seed if event["seed"] is None else event["seed"]
            report.problems.append(
                f"solution fails {event['name']}{where} on --seed {drawn}: {event['message']}"
            )
    skipped = {event["name"]: event["message"] for event in judged.checks if _skipped(event)}
    if skipped and where:
        found = {one["name"] for event in judged.checks for one in event["measurements"]}
        profile = where.removeprefix(" on ")
        told = "; ".join(why.removeprefix(f"{profile}: ") for why in skipped.values())
        report.notes += [
            f"{one.name} is unmeasured{where}: {told}"
            for one in report.kata.cost
            if one.name not in found
        ]
    if judged.stopped:
        report.problems.append(f"{judged.stopped}{where}")


def _skipped(event: Event) -> bool:
    return bool(event["outcome"] == "skipped")


def _only(tests: Sequence[str]) -> list[str]:
    return [f"--only={name}" for name in tests]


def _each_once(events: Iterable[Event]) -> list[Event]:
    """What every process of a kata has judged, as the first of them found it."""
    found: dict[tuple[str, str], Event] = {}
    for event in events:
        found.setdefault((event["impl"], event["name"]), event)
    return list(found.values())


def _vary_problems(kata: Kata, seed: int) -> list[str]:
    """Cases that a learner may be given one day, and that the reference is not right on."""
    judged = judge(
        [kata],
        impls=["solution"],
        cpu_limit_s=TEST_LIMIT_S,
        seed=seed,
        extra=[f"--vary={EVERY_CASE}", "-k", MATCHES],
    )
    return [
        f"[vary]: expected cases that the reference is right on, found {event['name']}: "
        f"{event['message']}"
        for event in judged.checks
        if event["outcome"] == "failed"
    ] + ([f"[vary]: {judged.stopped}"] if judged.stopped else [])


def _approach_problems(kata: Kata, cache: Path, seed: int) -> list[str]:
    """Approaches beside the reference that are not right, or do not say what they are."""
    found = list(approaches(kata, cache))
    if not found:
        return []
    texts = {one.label: one.path.read_text(encoding="utf-8") for one in found}
    problems = [
        f"{label}: expected a docstring '{ANOTHER_WAY} <why>.' at the top, found another"
        for label, text in texts.items()
        if not text.startswith(f'"""{ANOTHER_WAY}')
    ]
    labels = list(texts)
    judged = judge([kata], impls=labels, cpu_limit_s=TEST_LIMIT_S, seed=seed, extra=list(NO_SPEED))
    return (
        problems
        + [
            f"{event['impl']} fails {event['name']}, which the reference passes: {event['message']}"
            for event in judged.checks
            if event["outcome"] == "failed"
        ]
        + ([f"{', '.join(labels)}: {judged.stopped}"] if judged.stopped else [])
    )


def _alive(events: Sequence[Event]) -> list[str]:
    """Wrong solutions that no test has failed on."""
    labels = dict.fromkeys(event["impl"] for event in events if event["impl"].startswith(WRONG))
    dead = {event["impl"] for event in events if event["outcome"] == "failed"}
    return [label for label in labels if label not in dead]


def _remember_what_lasts(report: Report, events: Sequence[Event], seed: int) -> list[str]:
    """
    Write the cheapest kills that hold on another draw, too.

    Returns:
        Wrong solutions that die, and tests that kill, on one of the two draws only.
    """
    kata, second = report.kata, (seed + 1) % SEEDS
    failures = left = _failures(events)
    held: set[tuple[str, str]] = set()
    known = remembered_kills(kata)
    while asked := _pairs(kills := cheapest_kills(left, known)) - held:
        remember(kata, {name: [one for at, one in asked if at == name] for name, _ in asked})
        names = sorted({name for name, _ in asked})
        judged = judge(
            [kata],
            impls=["solution", *(f"{WRONG}{name}" for name in names)],
            cpu_limit_s=TEST_LIMIT_S,
            seed=second,
            extra=["--matrix=remembered", *NO_SPEED],
        )
        if judged.stopped:
            return [f"on --seed {second}: {judged.stopped}"]
        sound = {
            one["name"]
            for one in judged.checks
            if one["impl"] == "solution" and one["outcome"] == "passed"
        }
        again = {(name, test) for name, test, _ in _failures(judged.checks) if test in sound}
        held |= asked & again
        left = [one for one in left if one[:2] in held or one[:2] not in asked]
    remember(kata, kills)
    lost = {name for name, _, _ in failures} - set(kills)
    lucky = {function_name(test) for _, test, _ in failures} - SHARED
    lucky -= {function_name(test) for _, test in held}
    return [
        f"{WRONG}{name} dies on --seed {seed}, but not on --seed {second} of the same tests"
        for name in sorted(lost)
    ] + [
        f"{test} kills a wrong solution on --seed {seed}, but none of them on --seed {second}"
        for test in sorted(lucky)
    ]


def _pairs(kills: Kills) -> set[tuple[str, str]]:
    return {(name, test) for name, tests in kills.items() for test in tests}


def _failures(events: Sequence[Event]) -> list[tuple[str, str, float]]:
    """Who failed what, and how long it took."""
    return [
        (event["impl"].removeprefix(WRONG), event["name"], event["duration_s"])
        for event in events
        if event["impl"].startswith(WRONG) and event["outcome"] == "failed"
    ]


def judge_matrix(report: Report, events: Sequence[Event], part: Part = Part()) -> None:
    """Read one kata's kill matrix, or the `part` that was run, and note what it fails to prove."""
    by_impl: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        by_impl[event["impl"]].append(event)
    report.total_s = sum(event["cpu_s"] for event in events)
    report.solution_s = sum(event["cpu_s"] for event in by_impl["solution"])
    report.tests = len({event["name"] for event in events})
    report.problems += _stub_problems(report.kata, by_impl["stub"])
    report.problems += _solution_problems(by_impl["solution"])
    # the draw is the same: who fails where the reference fails is not told from it
    sound = {event["name"] for event in by_impl["solution"] if event["outcome"] == "passed"}
    refuted = {event["name"] for event in by_impl["solution"] if event["outcome"] == "failed"}
    kills: dict[str, list[str]] = {
        label: [
            event["name"]
            for event in found
            if event["outcome"] == "failed" and event["name"] in sound and _judged(event)
        ]
        for label, found in by_impl.items()
        if label.startswith(WRONG)
    }
    report.killed_by = kills
    report.problems += [
        f"{event['impl']}: no verdict of {event['name']}: {event['message']}"
        for event in events
        if event["impl"].startswith(WRONG) and not _judged(event)
    ]
    if not part.tests:
        report.problems += _unmeasured(report.kata, by_impl["solution"])
    if not part.tests or part.wrong:
        report.problems += [
            _survival(label, by_impl[label], refuted) for label in kills if not kills[label]
        ]
    # where the reference fails a test, the others had less to kill
    if not part.wrong and not refuted:
        report.problems += _idle_tests(by_impl, kills)
    if report.solution_s > SLOW_S * cpu_pace():
        report.notes.append(f"slow: the reference takes {report.solution_s:.1f} s of tests")


def _survival(label: str, events: Sequence[Event], refuted: set[str]) -> str:
    failed = {event["name"] for event in events if event["outcome"] == "failed"} & refuted
    if failed:
        return f"{label} is not judged: it fails {min(failed)}, as the solution does"
    return f"{label} lives: no test fails on it"


def _judged(event: Event) -> bool:
    """Whether the code was judged: what a simulator does not model kills nobody."""
    return stated_cause(event["message"]) != NOT_MODELLED


def _stub_problems(kata: Kata, events: Sequence[Event]) -> list[str]:
    passed = [event["name"] for event in events if event["outcome"] == "passed"]
    unclear = [
        event["name"]
        for event in events
        if event["outcome"] == "failed" and "is still a stub: edit" not in event["message"]
    ]
    broad = broad_raises(kata.tests) if passed else {}
    problems = [
        f"stub passes {name}: {broad.get(function_name(name), 'the test asserts nothing')}"
        for name in passed
    ]
    return problems + [f"stub fails {name} without the one clear line" for name in unclear]


def _solution_problems(events: Sequence[Event]) -> list[str]:
    problems = [
        f"solution fails {event['name']}: {event['message']}"
        for event in events
        if event["outcome"] == "failed"
    ]
    if not any(event["outcome"] == "passed" for event in events):
        problems.append("solution: no test was run on it")
    return problems


def _unmeasured(kata: Kata, events: Sequence[Event]) -> list[str]:
    judged = {found["name"] for event in events for found in event["measurements"]}
    unmeasured = [one.name for one in kata.cost if one.name not in judged]
    return [f"cost {name}: no test measures it" for name in unmeasured]


def _idle_tests(by_impl: dict[str, list[Event]], kills: dict[str, list[str]]) -> list[str]:
    """A kata's own tests that ran and killed nothing."""
    killers = {function_name(name) for names in kills.values() for name in names}
    ran = {
        function_name(event["name"])
        for event in by_impl["solution"]
        if event["outcome"] == "passed"
    }
    idle = sorted(ran - killers - SHARED)
    return [f"{name} kills no wrong solution" for name in idle]
