"""
Functions of a kata after its first one: what kata.toml and oracle.py say about them.

A case with the key `function` is one of theirs; an argument of theirs is ``function.argument``
where kata.toml lists arguments. Without either the first function is meant, here None.
"""

from collections.abc import Iterable, Mapping
from typing import Any

RESERVED = ("only", "function")  # keys of a case that are no arguments
ANSWERS = ("reference", "same_precision")  # what gives the answer away


def function_of(case: Mapping[str, Any]) -> str | None:
    """The function that a case is for; None for the kata's first."""
    return case.get("function")


def arguments_in(case: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of make_inputs in a case."""
    return {name: value for name, value in case.items() if name not in RESERVED}


def split(name: str) -> tuple[str | None, str]:
    """The function and the argument of a name in kata.toml: ``swiglu_backward.dy``, or ``x``."""
    function, dot, argument = name.rpartition(".")
    return (function if dot else None), argument


def arguments_of(names: Iterable[str], function: str | None) -> tuple[str, ...]:
    """The arguments among `names` that are those of `function`."""
    return tuple(argument for own, argument in map(split, names) if own == function)


def by_function(names: Iterable[str]) -> list[tuple[str, ...]]:
    """The names that belong together, as they are: those of one function."""
    found: dict[str | None, list[str]] = {}
    for name in names:
        found.setdefault(split(name)[0], []).append(name)
    return list(map(tuple, found.values()))


def in_oracle(oracle: object, name: str, function: str | None) -> Any:  # noqa: ANN401
    """
    The oracle's function `name` for a function of the kata, or None.

    That of a later one is called ``name_function``. Without ``make_inputs_function`` it has the
    inputs of the first; without ``reference_function`` the first's answer, and all that goes
    with it.
    """
    own = getattr(oracle, f"{name}_{function}", None) if function else None
    if own is not None or (
        function and name != "make_inputs" and hasattr(oracle, f"reference_{function}")
    ):
        return own
    return getattr(oracle, name, None)


def answers_of(functions: Iterable[str]) -> tuple[str, ...]:
    """The oracle's names that give an answer away, where these functions come after the first."""
    return (*ANSWERS, *(f"{name}_{one}" for one in functions for name in ANSWERS))
