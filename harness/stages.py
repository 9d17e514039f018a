"""The order in which code comes alive: from listed cases over edges to thresholds."""

from enum import Enum

MEMORY = (
    "test_leaves_inputs_alone",
    "test_writes_every_element",
    "test_second_call_sees_new_values",
)


class Stage(Enum):
    """One after another; who fails at one is not asked about the next."""

    CASES = "cases"
    EDGES = "edges and properties"
    MEMORY = "memory"
    COST = "cost"
    SPEED = "speed"


ORDER = list(Stage)


def stage_of(test: str) -> Stage:
    """The stage of a test, from its name."""
    name = test.partition("[")[0]
    if name in MEMORY:
        return Stage.MEMORY
    known = {
        "test_matches_reference": Stage.CASES,
        "test_cost": Stage.COST,
        "test_speed": Stage.SPEED,
    }
    return known.get(name, Stage.EDGES)
