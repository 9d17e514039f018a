"""A kata as plain data: what ``kata.toml`` says, read and checked whole."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from harness.base.errors import nearest
from harness.base.schema import Problems, Table, read_toml
from harness.content.course import is_placed, part_of
from harness.content.functions import function_of, split
from harness.content.promises import Refusal, take_in_place, take_refusals
from harness.content.subgoals import Why, check_words, take_why

BACKENDS = (
    "python", "torch", "triton", "numba", "cuda", "gluon", "cute", "distributed", "jax", "xdsl",
    "onnx",
)  # fmt: skip
# backends by what becomes of their kernels where there is no GPU
SIMULATED = ("triton", "numba", "cuda", "gluon")
ASYNCHRONOUS = ("gluon",)  # simulated, with operations that land at a time that can be chosen
SCHEDULED = ("numba", "cuda", *ASYNCHRONOUS)  # simulated, in an order that can be chosen
ON_THE_HOST = ("python", "cute", "jax", "xdsl", "onnx")  # and where there is one, as well
EXTRAS = ("cuda", "cute", "jax", "xdsl", "onnx")  # backends that need the extra of their name

# meters the harness can read by itself on a `case`; the others are reported by a kata's tests
CASE_METERS = (
    "bytes_moved", "bytes_loaded", "bytes_stored", "sectors", "launches",
    "bytes_in_flight", "registers", "spills", "shared_memory", "occupancy",
)  # fmt: skip
STATIC_METERS = ("registers", "spills", "shared_memory", "occupancy")
REPORTED_METERS = (
    "sectors_per_request", "bank_conflicts", "barriers", "atomics", "shuffles",
    "comm_bytes", "comm_steps", "flops", "peak_memory", "allocated_bytes", "copied_bytes",
    "saved_bytes", "evaluations", "host_syncs", "programs", "instructions", "simulated_time",
    "accesses", "error", "ratio", "operations", "overlap", "tensor_ops",
)  # fmt: skip
METERS = CASE_METERS + REPORTED_METERS
# of these the harness reads, where kernels are executed as PTX, on a `case` as well
PTX_METERS = ("bank_conflicts", "barriers", "atomics", "shuffles", "tensor_ops")

Case = Mapping[str, Any]
Read = Callable[[Path], dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CostThreshold:
    """
    A counted limit.

    Exactly one of `bound` (times the least possible, from the oracle's `cost`), `at_most`,
    `at_least` and `exactly` is set. With a `case` the harness measures; without, a test of the
    kata reports.
    """

    name: str
    meter: str
    bound: float | None
    at_most: float | None
    at_least: float | None
    exactly: float | None
    case: Case | None
    target: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedThreshold:
    """
    A limit on the clock: a `fraction` of the speed of light, or a `ratio` to a baseline.

    `on` is "cuda" or "any"; `clock` is "device" for the kernels alone, or "wall" for what launches
    cost the host as well, against a baseline; `profiles` replaces `fraction` (or `ratio`) on the
    hardware profiles, architectures ("sm_80") and generations ("ampere") that it names.
    """

    name: str
    kind: str
    fraction: float | None
    ratio: float | None
    against: str | None
    dtype: str | None
    on: str
    clock: str = "device"
    case: Case
    profiles: Mapping[str, float]

    def required(self, names: Iterable[str]) -> float:
        """The fraction or ratio that counts on a profile of these names, closest name first."""
        default = self.fraction if self.kind == "roofline" else self.ratio
        named = [self.profiles[name] for name in names if name in self.profiles]
        return named[0] if named else default if default is not None else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StubMarks:
    """
    How the stub is cut out of the reference, where the rule of `authoring.stub` does not fit.

    `give` names what is given word for word, `leave_out` what the learner does not see; `todo`
    says in words what is to be written. A method is ``Class.method``. `docstring` stands in
    place of the reference's, where that gives the answer away.
    """

    give: tuple[str, ...] = ()
    leave_out: tuple[str, ...] = ()
    todo: Mapping[str, str] = field(default_factory=dict)
    docstring: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Kata:
    """
    One exercise and where its files are.

    `forbidden` are aten ops that may not be called, `writes` the arguments that the function is
    meant to change, `vary` values that arguments of a case may take, in any combination, `edges`
    sizes that are tried at the edges of tiles; one that `repeats` gives the same bits in every run.
    What it `refuses`, reads `in_place`, and takes with rows further apart than 31 bits count, are
    promises that the harness tests; so is that it writes `into` what it is given, that it is
    `stateless`, and that what is `not_finite` goes where it belongs. Of an answer that is
    `unordered` only the values count. Cases with the key `function` are those of a later one.
    `subgoals` are the names of the steps to its solution, `why` is asked of who has solved it.
    """

    root: Path
    week: int
    name: str
    title: str
    teaches: str
    covers: tuple[str, ...]
    backend: str
    functions: tuple[str, ...]
    difficulty: int
    minutes: int
    requires: tuple[str, ...]
    hints: tuple[str, ...]
    sources: tuple[str, ...]
    forbidden: tuple[str, ...]
    writes: tuple[str, ...]
    edges: tuple[str, ...]
    refuses: tuple[Refusal, ...] = ()
    in_place: Mapping[str, str] = field(default_factory=dict)
    int64_rows: tuple[str, ...] = ()
    into: tuple[str, ...] = ()
    not_finite: tuple[str, ...] = ()
    stateless: bool = False
    unordered: bool = False
    repeats: bool
    profile: str | None
    extra: str | None
    timeout_s: int
    cases: tuple[Case, ...]
    vary: Mapping[str, Sequence[Any]]
    cost: tuple[CostThreshold, ...]
    speed: tuple[SpeedThreshold, ...]
    stub: StubMarks = field(default_factory=StubMarks)
    subgoals: tuple[str, ...] = ()
    why: Why | None = None

    @property
    def id(self) -> str:
        """Week and name, as in ``week09/fused_silu``."""
        return f"week{self.week:02d}/{self.name}"

    @property
    def folder(self) -> Path:
        """Where the learner works."""
        return self.root / "katas" / self.id

    @property
    def file(self) -> Path:
        """The file the learner edits."""
        return self.folder / f"{self.name}.py"

    @property
    def solution(self) -> Path:
        """The reference solution."""
        return part_of(self.root, f"solutions/{self.id}.py")

    @property
    def tests(self) -> Path:
        """What is special about it, as tests."""
        return self.folder / f"test_{self.name}.py"

    @property
    def oracle(self) -> Path:
        """What is right, what to feed, what it costs."""
        return self.folder / "oracle.py"

    @property
    def wrong(self) -> Path:
        """The folder of the wrong solutions that must die."""
        return part_of(self.root, f"tests/wrong/{self.id}")

    @property
    def run_command(self) -> str:
        """What to type to have it judged; in a clone `make`, which needs no active environment."""
        return f"kata run {self.name}" if is_placed(self.root) else f"make kata name={self.name}"


def load_kata(folder: Path, read: Read = read_toml) -> Kata:
    """
    Read ``<folder>/kata.toml``; `read` parses it.

    Raises:
        MetadataError: listing every unknown key, missing key and wrong value of the file.
    """
    path = folder / "kata.toml"
    data = read(path)
    with Problems(path) as problems:
        table = Table(data, problems)
        week = week_number(folder, problems)
        backend = table.choice("backend", BACKENDS)
        kata = Kata(
            root=folder.parents[2],
            week=week,
            name=folder.name,
            title=table.take("title", str),
            teaches=table.take("teaches", str),
            covers=table.texts("covers"),
            backend=backend,
            functions=table.texts("functions"),
            difficulty=table.take("difficulty", int),
            minutes=table.take("minutes", int),
            requires=table.texts("requires", default=()),
            hints=table.texts("hints"),
            sources=table.texts("sources"),
            forbidden=table.texts("forbidden", default=()),
            writes=table.texts("writes", default=()),
            edges=table.texts("edges", default=()),
            refuses=take_refusals(table),
            in_place=take_in_place(table),
            int64_rows=table.texts("int64_rows", default=()),
            into=table.texts("into", default=()),
            not_finite=table.texts("not_finite", default=()),
            stateless=table.take("stateless", bool, False),
            unordered=table.take("unordered", bool, False),
            repeats=table.take("repeats", bool, False),
            profile=table.optional("profile", str),
            extra=table.optional("extra", str) or (backend if backend in EXTRAS else None),
            timeout_s=table.take("timeout_s", int, 120),
            cases=tuple(row.data for row in table.tables("cases")),
            vary=table.take("vary", dict, {}),
            cost=tuple(_cost(row, backend) for row in table.tables("cost")),
            speed=tuple(_speed(row) for row in table.tables("speed")),
            stub=_stub(Table(table.take("stub", dict, {}), problems, "stub.")),
            subgoals=table.texts("subgoals", default=()),
            why=take_why(table),
        )
        table.done()
        _check_values(kata, problems)
    return kata


def week_number(folder: Path, problems: Problems) -> int:
    """The number in the name of the week folder that `folder` (or file) lies in."""
    week = folder.parent.name
    if week.startswith("week") and week[4:].isdigit():
        return int(week[4:])
    problems.add("folder", "katas/weekNN/<kata>", str(folder))
    return 0


def _threshold_name(row: Table, default: str) -> str:
    function = row.data.get("function")
    return row.take("name", str, f"{function}: {default}" if function else default)


def _of_function(row: Table, case: Case | None) -> Case | None:
    """The `case` of a threshold, for the function that the threshold names."""
    function = row.optional("function", str)
    if function is None:
        return case
    if case is None:
        row.problems.add(f"{row.where}function", "a `case` beside it", "none")
        return None
    return {"function": function, **case}


def _cost(row: Table, backend: str) -> CostThreshold:
    meter = row.choice("meter", METERS)
    target = row.optional("target", str)
    threshold = CostThreshold(
        name=_threshold_name(row, f"{meter}@{target}" if target else meter),
        meter=meter,
        bound=row.optional("bound", float),
        at_most=row.optional("at_most", float),
        at_least=row.optional("at_least", float),
        exactly=row.optional("exactly", float),
        case=_of_function(row, row.optional("case", dict)),
        target=target,
    )
    limits = (threshold.bound, threshold.at_most, threshold.at_least, threshold.exactly)
    given = [limit for limit in limits if limit is not None]
    if len(given) != 1:
        expected = "exactly one of bound, at_most, at_least, exactly"
        row.problems.add(row.where, expected, len(given))
    reported = meter in REPORTED_METERS and not (backend == "cuda" and meter in PTX_METERS)
    if threshold.case is not None and reported:
        row.problems.add(f"{row.where}case", f"none: `{meter}` is reported by a test", "a case")
    if meter in STATIC_METERS and (target is None or threshold.case is None):
        row.problems.add(row.where, f"`target` and `case` for the static meter {meter}", "less")
    row.done()
    return threshold


def _speed(row: Table) -> SpeedThreshold:
    kind = row.choice("kind", ("roofline", "baseline"))
    against = row.optional("against", str)
    threshold = SpeedThreshold(
        name=_threshold_name(row, f"vs {against}" if against else kind),
        kind=kind,
        fraction=row.optional("fraction", float),
        ratio=row.optional("ratio", float),
        against=against,
        dtype=row.optional("dtype", str),
        on=row.choice("on", ("cuda", "any"), "cuda"),
        clock=row.choice("clock", ("device", "wall"), "device"),
        case=_of_function(row, row.take("case", dict)) or {},
        profiles=row.take("profiles", dict, {}),
    )
    if kind == "roofline" and threshold.fraction is None:
        row.problems.add(row.where + "fraction", "a number in (0, 1]", "nothing")
    if kind == "baseline" and (threshold.ratio is None or against is None):
        row.problems.add(row.where, "`ratio` and `against` for a baseline", "less")
    if kind == "roofline" and threshold.clock == "wall":
        row.problems.add(row.where + "clock", '"device" for a roofline', '"wall"')
    row.done()
    return threshold


def _stub(row: Table) -> StubMarks:
    todo = row.take("todo", dict, {})
    for name, text in todo.items():
        if not isinstance(text, str):
            row.problems.add(f"{row.where}todo.{name}", "text", repr(text))
    marks = StubMarks(
        give=row.texts("give", default=()),
        leave_out=row.texts("leave_out", default=()),
        todo=todo,
        docstring=row.optional("docstring", str),
    )
    row.done()
    return marks


def _check_values(kata: Kata, problems: Problems) -> None:
    if kata.functions and kata.functions[0] == "":
        problems.add("functions", "names", kata.functions)
    if not kata.functions:
        problems.add("functions", "at least one name", "none")
    if not 1 <= kata.difficulty <= 5:
        problems.add("difficulty", "1 to 5", kata.difficulty)
    if kata.minutes <= 0:
        problems.add("minutes", "more than 0", kata.minutes)
    if len(kata.hints) != 3:
        problems.add("hints", "three, from nudge to nearly the answer", len(kata.hints))
    for name, values in kata.vary.items():
        if not isinstance(values, list) or len(values) < 2:
            problems.add(f"vary.{name}", "a list of two or more values", values)
        if not any(name in case for case in kata.cases):
            known = {key for case in kata.cases for key in case}
            problems.add(f"vary.{name}", "an argument of a case", repr(name) + nearest(name, known))
    for name in kata.edges:
        function, size = split(name)
        cases = [case for case in kata.cases if function_of(case) == function]
        if not any(type(case.get(size)) is int for case in cases):
            known = {key for case in cases for key, value in case.items() if type(value) is int}
            expected = "arguments of a case that are whole numbers"
            problems.add("edges", expected, repr(name) + nearest(size, known))
    if kata.edges and kata.backend not in SIMULATED:
        problems.add("edges", f"a backend among {', '.join(SIMULATED)}", repr(kata.backend))
    if kata.int64_rows and kata.backend == "numba":
        problems.add("int64_rows", "a backend whose arrays are tensors", repr(kata.backend))
    check_words(kata.subgoals, kata.why, kata.hints, problems)
    _check_functions(kata, problems)
    for kind, thresholds in (("cost", kata.cost), ("speed", kata.speed)):
        names = [threshold.name for threshold in thresholds]
        for name in {name for name in names if names.count(name) > 1}:
            problems.add(kind, "a `name` for each of several alike", f"{name!r} twice")
    if not kata.cost and not any(threshold.on == "any" for threshold in kata.speed):
        problems.add("cost", "at least one threshold that needs no GPU", "none")


def _check_functions(kata: Kata, problems: Problems) -> None:
    """A case, threshold, promise or argument of a later function names one that there is."""
    of_thresholds = [one.case for one in kata.cost] + [one.case for one in kata.speed]
    named = {
        "cases.function": [function_of(case) for case in kata.cases],
        "case.function": [function_of(case) for case in of_thresholds if case],
        "refuses.function": [one.function for one in kata.refuses],
        "edges": [split(name)[0] for name in kata.edges],
        "in_place": [split(name)[0] for name in kata.in_place],
        "int64_rows": [split(name)[0] for name in kata.int64_rows],
        "into": [split(name)[0] for name in kata.into],
        "not_finite": [split(name)[0] for name in kata.not_finite],
    }
    later = kata.functions[1:]
    for key, functions in named.items():
        for function in functions:
            if function is not None and function not in later:
                expected = "a function after the first, which needs no name"
                problems.add(key, expected, repr(function) + nearest(function, later))


@cache
def _load_once(folder: Path) -> Kata:
    return load_kata(folder)


def kata_of(path: Path) -> Kata | None:
    """The kata whose folder the file `path` lies in, if it lies in one."""
    folder = path.parent
    if folder.parent.parent.name == "katas" and (folder / "kata.toml").is_file():
        return _load_once(folder)
    return None
