"""The order in which code comes alive: from shapes over a tiny case and edges to thresholds."""

import ast
import math
import re
from collections.abc import Collection
from enum import Enum

MEMORY = (
    "test_leaves_inputs_alone",
    "test_writes_every_element",
    "test_second_call_sees_new_values",
)
TINY = 1000  # the numbers in a case's name make at most this when multiplied
# how the comparison with the reference, and the annotations, speak of what is not the values
WRONG_SHAPE = re.compile(r"expected (shape|dtype|a dtype|a tuple|\d+ values)\b|TypeCheckError")


class Stage(Enum):
    """One after another; who fails at one is not asked about the next."""

    SHAPES = "shapes"
    TINY = "tiny case"
    CASES = "cases"
    EDGES = "edges"
    PROPERTIES = "properties"
    MEMORY = "memory"
    COST = "cost"
    SPEED = "speed"


ORDER = list(Stage)


def stage_of(test: str, *, said: str = "", properties: Collection[str] = ()) -> Stage:
    """
    The stage of a test.

    Args:
        test: Its name, with its case in brackets.
        said: How it failed: each case is compared in shape and dtype before it is in value.
        properties: What `properties_in` found; without it a property is among the edges.
    """
    name, _, case = test.partition("[")
    if name == "test_matches_reference":
        if WRONG_SHAPE.search(said):
            return Stage.SHAPES
        return Stage.TINY if _size(case.rstrip("]")) <= TINY else Stage.CASES
    if name in MEMORY:
        return Stage.MEMORY
    known = {"test_cost": Stage.COST, "test_speed": Stage.SPEED}
    return known.get(name, Stage.PROPERTIES if name in properties else Stage.EDGES)


def properties_in(source: str) -> frozenset[str]:
    """Names of the tests in a test file that hypothesis feeds."""
    return frozenset(
        node.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef) and "given" in map(_called, node.decorator_list)
    )


def _called(decorator: ast.expr) -> str:
    """The bare name of what decorates: ``given`` of ``@hypothesis.given(...)``."""
    return ast.unparse(decorator).partition("(")[0].rpartition(".")[2]


def _size(case: str) -> int:
    """About how much work a case is: its whole numbers multiplied."""
    return math.prod(int(word) for word in case.split("-") if word.isdigit())
