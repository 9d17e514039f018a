"""
The kill matrix: which test fails on which wrong solution, as far as it must be known.

A wrong solution is *dead* once a test has failed on it. A test is *proven* once it has failed on
a wrong solution. Running a proven test on a dead solution would say nothing new, so it is left
out. ``kills.toml`` beside the wrong solutions remembers pairs that once did both cheaply: they
are tried first. It is a memory, not evidence: a pair that no longer kills only costs time.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from harness.base.errors import MetadataError
from harness.base.files import write_atomically
from harness.base.schema import read_toml
from harness.content.kata import STATIC_METERS, Kata, kata_of

# collected for every kata and proven in the harness's own tests: no kata need prove them again
SHARED = frozenset(
    {
        "test_matches_reference",
        "test_any_scale_matches",
        "test_tile_edges",
        "test_any_schedule",
        "test_leaves_inputs_alone",
        "test_writes_every_element",
        "test_second_call_sees_new_values",
        "test_repeats",
        "test_keeps_nothing",
        "test_writes_into",
        "test_not_finite",
        "test_refuses",
        "test_reads_in_place",
        "test_rows_past_31_bits",
        "test_cost",
        "test_speed",
    }
)
HEADING = "# Tried first: these tests once failed on these wrong solutions."
Kills = dict[str, list[str]]


class FailFast:
    """
    Runs the tests of each implementation until one fails: those that were cheap first.

    What was cheap because a compiler's answer was kept comes last all the same.

    Args:
        order: Names of tests, the cheapest first; unknown ones come after them.
    """

    def __init__(self, order: Sequence[str]) -> None:
        self.order = {name: at for at, name in enumerate(order)}
        self.dead: set[str] = set()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """One implementation after the other."""
        impls = list(dict.fromkeys(names_of(item.user_properties)[1] for item in items))
        position = {impl: at for at, impl in enumerate(impls)}

        def turn(item: pytest.Item) -> tuple[int, bool, int]:
            _, impl, test = names_of(item.user_properties)
            return position[impl], _compiles(item), self.order.get(test, len(self.order))

        items.sort(key=turn)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> bool | None:
        """Pass over the tests of an implementation that has failed one."""
        _, impl, _ = names_of(item.user_properties)
        return _pass_over(item, nextitem) if impl in self.dead else None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note who failed."""
        if report.failed:
            self.dead.add(names_of(report.user_properties)[1])


class MatrixState:
    """
    Runs what can still add something to a kill matrix, and leaves out the rest.

    Args:
        whole: Leave nothing out.
        remembered: Run the remembered kills, their tests on the reference, and nothing else.
    """

    def __init__(self, *, whole: bool = False, remembered: bool = False) -> None:
        self.whole = whole
        self.remembered = remembered
        self.dead: dict[str, set[str]] = defaultdict(set)
        self.proven: dict[str, set[str]] = defaultdict(lambda: set(SHARED))

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Kata by kata: the stub, the reference, the remembered kills, then everything else."""
        folders = list(dict.fromkeys(item.path.parent for item in items))
        position = {folder: at for at, folder in enumerate(folders)}
        kills = {folder: _remembered_in(folder) for folder in folders}

        def turn(item: pytest.Item) -> tuple[int, int]:
            folder = item.path.parent
            _, impl, test = names_of(item.user_properties)
            if not impl.startswith(WRONG):
                return position[folder], 0
            first = test in kills[folder].get(impl.removeprefix(WRONG), ())
            return position[folder], 1 if first else 2

        def is_asked(item: pytest.Item) -> bool:
            _, impl, test = names_of(item.user_properties)
            known = kills[item.path.parent]
            if impl.startswith(WRONG):
                return test in known.get(impl.removeprefix(WRONG), ())
            return any(test in tests for tests in known.values())

        items.sort(key=turn)
        if self.remembered:
            items[:] = filter(is_asked, items)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> bool | None:
        """Pass over a proven test of a dead solution, as if it had not been collected."""
        kata, impl, test = names_of(item.user_properties)
        known = impl in self.dead[kata] and function_name(test) in self.proven[kata]
        if self.whole or self.remembered or not known:
            return None  # pytest runs it
        return _pass_over(item, nextitem)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a kill."""
        kata, impl, test = names_of(report.user_properties)
        if report.failed and impl.startswith(WRONG):
            self.dead[kata].add(impl)
            self.proven[kata].add(function_name(test))


WRONG = "wrong:"


def _compiles(item: pytest.Item) -> bool:
    """Whether a test asks a compiler, which takes long for a file that it has not seen."""
    callspec = getattr(item, "callspec", None)
    threshold = callspec.params.get("cost_threshold") if callspec else None
    return "compiled" in getattr(item, "fixturenames", ()) or (
        getattr(threshold, "meter", "") in STATIC_METERS
    )


def _pass_over(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    """Leave `item` out, and what no later test needs."""
    item.session._setupstate.teardown_exact(nextitem)
    return True


def names_of(properties: Iterable[tuple[str, object]]) -> tuple[str, str, str]:
    """The kata, implementation and test that the plugin noted on an item; empty for others."""
    found = dict(properties)
    return str(found.get("kata", "")), str(found.get("impl", "")), str(found.get("test", ""))


def function_name(test: str) -> str:
    """A test's name without its parameters."""
    return test.partition("[")[0]


# ---- kills.toml ----------------------------------------------------------------------------


def remembered_kills(kata: Kata) -> Kills:
    """
    What ``kills.toml`` says: a wrong solution's name to tests that failed on it once.

    Raises:
        MetadataError: not lists of test names.
    """
    path = _memory(kata)
    if not path.is_file():
        return {}
    found = read_toml(path)
    for name, tests in found.items():
        if not isinstance(tests, list) or not all(isinstance(test, str) for test in tests):
            raise MetadataError(
                f"{path}: {name}: expected a list of test names, found {tests!r}. "
                f"Write it anew: kata check {kata.name} --remember"
            )
    return found


def remember(kata: Kata, kills: Kills) -> None:
    """Write ``kills.toml``."""
    lines = [f"{json.dumps(name)} = {json.dumps(sorted(kills[name]))}" for name in sorted(kills)]
    write_atomically(_memory(kata), "\n".join([HEADING, *lines, ""]).encode())


def cheapest_kills(failures: Sequence[tuple[str, str, float]], known: Kills | None = None) -> Kills:
    """
    Few cheap pairs that kill every wrong solution and prove every test.

    Args:
        failures: Wrong solution's name, test, seconds it took to fail.
        known: Pairs that are kept where they kill, so that a file changes no more than it has to.
    """
    chosen: Kills = defaultdict(list)
    pairs = {(name, test) for name, test, _ in failures}
    for name, tests in (known or {}).items():
        if held := [test for test in tests if (name, test) in pairs]:
            chosen[name] = held
    proven = {function_name(test) for tests in chosen.values() for test in tests}
    by_test: dict[str, list[tuple[float, str, str]]] = defaultdict(list)
    for name, test, seconds in failures:
        by_test[function_name(test)].append((seconds, name, test))
    # tests with the fewest victims choose first; each prefers a victim that nobody has yet
    for function in sorted(by_test, key=lambda one: (len(by_test[one]), one)):
        if function not in SHARED | proven:
            _, name, test = min(by_test[function], key=lambda one: (one[1] in chosen, one))
            chosen[name].append(test)
    for name in sorted({name for name, _, _ in failures} - set(chosen)):
        _, test = min((seconds, test) for victim, test, seconds in failures if victim == name)
        chosen[name].append(test)
    return dict(chosen)


def _remembered_in(folder: Path) -> Kills:
    kata = kata_of(folder / "kata.toml")
    try:
        return remembered_kills(kata) if kata else {}
    except MetadataError as error:
        raise pytest.UsageError(error.message) from None


def _memory(kata: Kata) -> Path:
    return kata.wrong / "kills.toml"
