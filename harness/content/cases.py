"""Cases of a kata beside those it lists, and those that its edges are swept from."""

from itertools import product

from harness.content.functions import arguments_of, function_of, split
from harness.content.kata import Case, Kata


def varied_cases(kata: Kata, device: str, count: int, seed: int) -> list[Case]:
    """
    Cases that `kata` does not list, for who solves it again.

    Args:
        kata: One without ``[vary]`` has none.
        device: Where they are to run.
        count: How many at most; fewer where there are not as many.
        seed: The same seed gives the same cases.
    """
    from random import Random

    bases = [case for case in kata.cases if case.get("only", device) == device]
    fresh: list[Case] = []
    for base in bases:
        names = [name for name in base if name in kata.vary]
        for values in product(*(kata.vary[name] for name in names)):
            case = {**base, **dict(zip(names, values, strict=True))}
            if case not in bases and case not in fresh:
                fresh.append(case)
    return Random(seed).sample(fresh, min(count, len(fresh)))


def edge_cases(kata: Kata, device: str) -> dict[str, list[Case]]:
    """
    Cases from which the sizes that `kata` names as `edges` may be swept, by the flags they set.

    Arguments that are true or false choose what is computed. Only floating-point cases are
    taken where there are some; none without `edges`.
    """
    found: dict[str, list[Case]] = {}
    for function in dict.fromkeys(split(name)[0] for name in kata.edges):
        axes = arguments_of(kata.edges, function)
        cases = [
            case
            for case in kata.cases
            if function_of(case) == function
            and case.get("only", device) == device
            and all(axis in case for axis in axes)
        ]
        floats = [case for case in cases if "float" in str(case.get("dtype"))]
        for case in floats or cases:
            flags = "-".join(name for name, value in case.items() if value is True) or "plain"
            found.setdefault(f"{function}-{flags}" if function else flags, []).append(case)
    return found
