"""The kill matrix as it grows: what has already died, and which tests have already killed."""

from collections import defaultdict

import pytest


class MatrixState:
    """
    Skips what can add nothing to a kill matrix.

    A test that has killed a wrong solution is proven, a wrong solution that some test killed is
    dead. Running a proven test against a dead solution would say nothing new. One kata's items
    must run in one process for this to work; the plugin groups them.
    """

    def __init__(self) -> None:
        self.dead: dict[str, set[str]] = defaultdict(set)
        self.proven: dict[str, set[str]] = defaultdict(set)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Skip a proven test on a dead solution."""
        kata, impl, test = names_of(item.user_properties)
        if not impl.startswith("wrong:"):
            return
        if impl in self.dead[kata] and function_name(test) in self.proven[kata]:
            pytest.skip(KNOWN)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a kill."""
        kata, impl, test = names_of(report.user_properties)
        if report.failed and impl.startswith("wrong:"):
            self.dead[kata].add(impl)
            self.proven[kata].add(function_name(test))


KNOWN = "nothing new: this solution is dead and this test has killed"


def names_of(properties: list[tuple[str, object]]) -> tuple[str, str, str]:
    """The kata, implementation and test that the plugin noted on an item; empty for others."""
    found = dict(properties)
    return str(found.get("kata", "")), str(found.get("impl", "")), str(found.get("test", ""))


def function_name(test: str) -> str:
    """A test's name without its parameters."""
    return test.partition("[")[0]
