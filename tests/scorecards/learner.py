"""A year of a learner who does not exist: seeded, on a curriculum of the real one's size."""

import random
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from harness.content.catalog import Curriculum, Part, Topic, Week
from harness.content.kata import CostThreshold, Kata
from harness.learner.mastery import standing
from harness.learner.progress import Attempt, Check, Measurement, Note, Outline

START = datetime(2025, 1, 6, 18, 0, tzinfo=UTC)
WEEKS, KATAS_A_WEEK, CONCEPTS_A_WEEK = 52, 7, 6
GPU = "h200_sxm"


def curriculum():
    """52 weeks of seven katas, six concepts, a hands-on and a milestone, in six parts."""
    bounds = [(1, 12), (13, 20), (21, 28), (29, 36), (37, 44), (45, 52)]
    parts = tuple(
        Part(id=at, name=f"Part {at}", goal="", weeks=range(first, last + 1))
        for at, (first, last) in enumerate(bounds, start=1)
    )
    topics = tuple(
        Topic(
            id=f"t{part.id}",
            name=f"Topic {part.id}",
            part=part.id,
            weeks=tuple(part.weeks),
            needs=(f"t{part.id - 1}",) if part.id > 1 else (),
        )
        for part in parts
    )
    found = Curriculum(root=Path("/nowhere"), parts=parts, topics=topics)
    weeks = {number: _week(number) for number in range(1, WEEKS + 1)}
    katas = {kata.name: kata for number in weeks for kata in _katas(number)}
    # in place of what would be read from files
    found.__dict__.update(weeks=weeks, katas=katas)
    return found


def _week(number):
    key = f"{number:02d}"
    return Week(
        number=number,
        title=f"Week {number}",
        goal="",
        concepts={f"{key}.{at}": f"Concept {at}" for at in range(1, CONCEPTS_A_WEEK + 1)},
        hands_on={f"{key}.H": "Hands-on"},
        milestone={f"{key}.M": "Milestone"},
        deliverables={},
        reading=(),
        corrections=(),
    )


def _katas(number):
    for at in range(1, KATAS_A_WEEK + 1):
        item = f"{number:02d}.{at}" if at <= CONCEPTS_A_WEEK else f"{number:02d}.H"
        also = (f"{number:02d}.M",) if at == 1 else ()
        yield Kata(
            root=Path("/nowhere"), week=number, name=f"kata_{number:02d}_{at}", title=f"Kata {at}",
            teaches="", covers=(item, *also), backend="python", functions=("f",),
            difficulty=at % 5 + 1, minutes=30, requires=(), hints=("a", "b", "c"), sources=(),
            forbidden=(), writes=(), repeats=False,
            profile=None, extra=None, timeout_s=60, cases=(), vary={}, edges=(),
            cost=(CostThreshold(name="evaluations", meter="evaluations", bound=None, at_most=9.0,
                                at_least=None, exactly=None, case=None, target=None),),
            speed=(),
        )  # fmt: skip


def text(moment):
    return moment.isoformat(timespec="microseconds")


@dataclass
class Learner:
    """Practises by the scheduler's dates: reviews first, then something new."""

    katas: dict[str, Kata]
    seed: int
    records: list = field(default_factory=list)

    def __post_init__(self):
        self.random = random.Random(self.seed)
        self.outlines = defaultdict(list)
        self.notes = defaultdict(list)
        self.due = {}
        self.new = list(self.katas)

    def live(self, days):
        for day in range(days):
            if self.random.random() < 0.3:
                continue  # a day off
            now = START + timedelta(days=day)
            todo = [name for name, due in sorted(self.due.items(), key=lambda one: one[1])
                    if due <= now][:8]  # fmt: skip
            if len(todo) < 8 and self.new and self.random.random() < 0.7:
                todo.append(self.new.pop(0))
            for name in todo:
                now = self.practise(name, now)

    def practise(self, name, now):
        """One round from the blank stub; returns when it ended."""
        seen = len(self.outlines[name]) > 0
        self.note("started", name, now)
        hints = 0
        for _ in range(self.random.choice([0, 0, 1, 2] if seen else [1, 2, 3, 5])):
            now += timedelta(minutes=self.random.randint(2, 9))
            if self.random.random() < 0.15:
                hints += 1
                self.note("hint_shown", name, now, str(hints))
            self.attempt(name, now, "failed", hints, peeked=False)
        peeked = self.random.random() < (0.02 if seen else 0.08)
        if peeked:
            self.note("solution_seen", name, now, "swap")
        now += timedelta(minutes=self.random.randint(3, 15))
        self.attempt(name, now, "passed", hints, peeked=peeked)
        if self.random.random() < 0.3:
            now += timedelta(minutes=1)
            self.attempt(name, now, "passed", hints, peeked=peeked, on_gpu=True)
        found = standing(self.katas[name], self.outlines[name], self.notes[name], (), now)
        self.due[name] = found.due
        return now + timedelta(minutes=5)

    def note(self, kind, name, at, detail=""):
        self.notes[name].append(
            Note(id=self.key(), at=text(at), kind=kind, kata=name, detail=detail)
        )
        self.records.append(self.notes[name][-1])

    def attempt(self, name, at, status, hints, *, peeked, on_gpu=False):
        key, code = self.key(), f"{self.random.getrandbits(256):064x}"
        device, profile = ("cuda", GPU) if on_gpu else ("cpu", "cpu")
        share = round(self.random.uniform(0.7, 0.95), 3)
        timed = Measurement(name="roofline", meter="roofline", value=share, limit=0.7,
                            relation=">=", passed=True)  # fmt: skip
        counted = Measurement(name="evaluations", meter="evaluations", value=9.0, limit=9.0,
                              passed=True)  # fmt: skip
        failed = status == "failed"
        checks = [Check(name=f"test_{at}", outcome="passed") for at in range(5)]
        checks.append(Check(name="test_edge", outcome="failed" if failed else "passed"))
        end = text(at + timedelta(seconds=4))
        measured = (timed if on_gpu else counted,)
        self.records.append(
            Attempt(id=key, kata=name, impl="yours", code_hash=code, started_at=text(at),
                    finished_at=end, status=status, reason="", seed=7, device=device,
                    profile=profile, versions={"torch": "2.13.0"}, duration_s=4.0,
                    hints_seen=hints, solution_seen=peeked, checks=tuple(checks),
                    measurements=measured)
        )  # fmt: skip
        self.outlines[name].append(
            Outline(key, name, text(at), end, status, device, hints, peeked, False)
        )

    def key(self):
        return f"{self.random.getrandbits(128):032x}"


def year(seed=2025, days=365):
    """The curriculum, and what a learner did in a year."""
    known = curriculum()
    learner = Learner(known.katas, seed)
    learner.live(days)
    return known, learner.records
