"""Questions about a case's least work: bytes, FLOP, intensity, what bounds it and how long."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from harness.content.cases import varied_cases
from harness.content.functions import arguments_in, function_of
from harness.content.kata import Case, Kata
from harness.hardware.roofline import Cost, Profile, bound_by, speed_of_light
from harness.practice.facts import Facts, Work
from harness.practice.questions import NEAR, Question, figure

DEVICES = ("a100_sxm_80gb", "h100_sxm", "h200_sxm", "b200_sxm", "l40s", "rtx_4090", "t4", "mi300x")
DRAWN = 3  # cases of other sizes, and as many of [vary]
SCALED = 64  # sizes from here on may be halved or doubled
ARITHMETIC = 4.0  # FLOP per byte from which they are counted, not agreed upon
CLEAR = 1.3  # how many times longer the limit takes than the next
SHORTEST_S = 5e-6
LEAST_BYTES = 256  # less is counted on fingers
NEAR_INTENSITY, NEAR_TIME = 0.1, 0.1
WORDS = {
    "memory": "memory bandwidth",
    "compute": "arithmetic",
    "special": "special functions (exp, log, rsqrt)",
    "launch": "the launch itself",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """A case that was drawn, what it takes, and how it is called."""

    kata: Kata
    case: Case
    work: Work

    @property
    def call(self) -> str:
        """The function and what it is given, in a line or two."""
        return called(self.kata, self.case, self.work)

    @property
    def dtype(self) -> str:
        """The peak that counts: the threshold's where it is of a case of this dtype."""
        own = str(self.case.get("dtype", "float32"))
        for one in self.kata.speed:
            if one.dtype and function_of(one.case) == function_of(self.case):
                return one.dtype if str(one.case.get("dtype", own)) == own else own
        return own


def called(kata: Kata, case: Case, work: Work) -> str:
    """The function of a case and its arguments in words."""
    name = function_of(case) or kata.functions[0]
    shown = {key: words for key, words in work.given.items() if words not in ("", "None")}
    told = ", ".join(f"{key}: {words}" for key, words in shown.items())
    if all(work.given.values()):
        return f"{name} is called with {told}."
    sizes = ", ".join(f"{key} = {value}" for key, value in arguments_in(case).items())
    return f"{name} is called with {told or 'the inputs'} of the case {sizes}."


def drawn_cases(kata: Kata, seed: str, facts: Facts) -> list[Drawn]:
    """Cases of `kata`, as listed and of other sizes, whose work the oracle tells; same by seed."""
    if not re.search(r"^def cost\w*\(", kata.oracle.read_text(encoding="utf-8"), re.M):
        return []
    dice = Random(f"{seed}:{kata.name}:cases")
    timed = [one.case for one in kata.speed if one.kind == "roofline"]
    counted = [one.case for one in kata.cost if one.case is not None]
    listed = [one for one in kata.cases if one.get("only") is None]
    base = [*timed, *dice.sample(listed, min(2, len(listed))), *counted[:1]]
    fresh = [_scaled(dice.choice(base), dice) for _ in range(DRAWN)] if base else []
    varied = varied_cases(kata, "cpu", DRAWN, dice.randrange(1 << 30))
    cases: list[Mapping[str, Any]] = []
    for case in (*base, *fresh, *varied):
        if case not in cases:
            cases.append(dict(case))
    works = facts.works(kata, cases)
    return [
        Drawn(kata=kata, case=case, work=work)
        for case, work in zip(cases, works, strict=True)
        if work is not None and (work.cost.bytes or work.cost.flops)
    ]


def _scaled(case: Case, dice: Random) -> dict[str, Any]:
    """`case` with one of its sizes halved, or twice as large where that is still small."""
    sizes = [
        name
        for name, value in case.items()
        if type(value) is int and value >= SCALED and value % 4 == 0
    ]
    if not sizes:
        return dict(case)
    name = dice.choice(sizes)
    larger = case[name] <= 16 * SCALED and dice.random() < 0.5
    return {**case, name: case[name] * 2 if larger else case[name] // 2}


def bytes_moved(one: Drawn) -> Question | None:
    """The compulsory traffic."""
    cost = one.work.cost
    if cost.bytes < LEAST_BYTES:
        return None
    return _question(
        one,
        "bytes",
        f"{one.call}\nHow many bytes must move to and from device memory at the least?",
        cost.bytes,
        unit="bytes",
        near=NEAR,
        derivation=_terms(one, "bytes"),
    )


def flops(one: Drawn) -> Question | None:
    """The arithmetic, where there is enough of it that nobody has to agree on what counts."""
    cost = one.work.cost
    if cost.flops < ARITHMETIC * cost.bytes:
        return None
    return _question(
        one,
        "FLOP",
        f"{one.call}\nHow many floating-point operations must it do at the least? "
        "A multiply-add is two.",
        cost.flops,
        unit="FLOP",
        near=NEAR,
        derivation=_terms(one, "flops"),
    )


def intensity(one: Drawn) -> Question | None:
    """FLOP per byte."""
    cost = one.work.cost
    if not cost.bytes or cost.flops < ARITHMETIC * cost.bytes:
        return None
    return _question(
        one,
        "intensity",
        f"{one.call}\nHow many FLOP does it do for each byte that must move to or from device "
        "memory? A multiply-add is two.",
        cost.intensity,
        unit="FLOP per byte",
        near=NEAR_INTENSITY,
        derivation=(
            *_terms(one, "flops"),
            *_terms(one, "bytes"),
            f"{figure(cost.flops)} FLOP / {figure(cost.bytes)} bytes = {figure(cost.intensity)}",
        ),
    )


def bound(one: Drawn, profile: Profile) -> Question | None:
    """Which ceiling it meets first on a GPU."""
    times = _times(one, profile)
    if not times:
        return None
    first, second = sorted(times.values(), reverse=True)[:2]
    if first < CLEAR * second:
        return None
    found = bound_by(one.work.cost, one.dtype, profile)
    more = f", {profile.launch_s * 1e6:.3g} µs for an empty launch"
    if one.work.cost.special:
        more = f", {profile.special_rate() / 1e12:.3g} T special functions/s{more}"
    text = f"{one.call}\n{_device(one, profile)}{more}.\n"
    return Question(
        kata=one.kata.name,
        kind="bound",
        text=f"{text}What sets the least time?",
        form="choice",
        answer=WORDS[found],
        choices=tuple(WORDS[name] for name in times),
        derivation=tuple(
            f"{WORDS[name]}: {_amount(one.work.cost, name)}{_microseconds(seconds)}"
            for name, seconds in times.items()
        ),
    )


def time(one: Drawn, profile: Profile) -> Question | None:
    """Microseconds at the speed of light, where memory or arithmetic is the limit."""
    times = _times(one, profile)
    found = bound_by(one.work.cost, one.dtype, profile) if times else ""
    if found not in ("memory", "compute") or times[found] < SHORTEST_S:
        return None
    seconds = speed_of_light(one.work.cost, one.dtype, profile)
    kind, rate, unit = (
        ("bytes", profile.bandwidth, "TB/s")
        if found == "memory"
        else ("flops", profile.peak_of(one.dtype), "TFLOP/s")
    )
    amount = _amount(one.work.cost, found).removesuffix(" take ")
    return _question(
        one,
        "time",
        f"{one.call}\n{_device(one, profile)}.\nHow many µs does it take at the least?",
        seconds * 1e6,
        unit="µs",
        near=NEAR_TIME,
        derivation=(
            *_terms(one, kind),
            f"bound by {WORDS[found]}: {amount} / {rate / 1e12:.4g} {unit} "
            f"= {figure(seconds * 1e6)} µs",
        ),
    )


def _times(one: Drawn, profile: Profile) -> dict[str, float]:
    """Seconds by ceiling; empty where the device has no arithmetic in this dtype."""
    cost = one.work.cost
    if not cost.flops or not cost.bytes or not profile.supports(one.dtype):
        return {}
    times = {
        "memory": cost.bytes / profile.bandwidth,
        "compute": cost.flops / profile.peak_of(one.dtype),
    }
    times["launch"] = profile.launch_s
    if cost.special:
        times["special"] = cost.special / profile.special_rate()
    return times


def _device(one: Drawn, profile: Profile) -> str:
    return (
        f"On {profile.name}: {profile.bandwidth / 1e12:.3g} TB/s, "
        f"{profile.peak_of(one.dtype) / 1e12:.4g} TFLOP/s in {one.dtype}"
    )


def _amount(cost: Cost, name: str) -> str:
    """How much of it there is, and that it takes a while."""
    amounts = {
        "memory": f"{figure(cost.bytes)} bytes take ",
        "compute": f"{figure(cost.flops)} FLOP take ",
        "special": f"{figure(cost.special)} results take ",
    }
    return amounts.get(name, "")


def _microseconds(seconds: float) -> str:
    """A time for people: of what is far below a launch only that it is."""
    least = 0.01
    us = seconds * 1e6
    return f"less than {least} µs" if us < least else f"{figure(us)} µs"


def _terms(one: Drawn, name: str) -> tuple[str, ...]:
    """The oracle's formula with its names, then with the numbers of the case, then the result."""
    value = {"bytes": one.work.cost.bytes, "flops": one.work.cost.flops}[name]
    words = "FLOP" if name == "flops" else name
    if name not in one.work.terms:
        return (f"{words} = {figure(value)}",)
    formula, numbers = one.work.terms[name]
    steps = dict.fromkeys([formula, grouped(numbers), figure(value)])
    return (f"{words} = {' = '.join(steps)}",)


def grouped(text: str) -> str:
    """`text` with its long whole numbers in groups of three."""
    return re.sub(r"(?<![\w.,])\d{4,}(?![\w.,])", lambda found: f"{int(found[0]):,}", text)


def _question(
    one: Drawn,
    kind: str,
    text: str,
    value: float,
    *,
    unit: str,
    near: float,
    derivation: Sequence[str],
) -> Question:
    whole = value == int(value)
    return Question(
        kata=one.kata.name,
        kind=kind,
        text=text,
        form="number",
        answer=repr(int(value) if whole else value),
        unit=unit,
        near=near,
        derivation=tuple(derivation),
    )
