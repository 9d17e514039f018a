"""Seeded request traces: when requests arrive at a serving engine, and how long they are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from harness.base.errors import UsageProblem

PROMPT_LIMITS = (8, 8192)
OUTPUT_LIMITS = (2, 1024)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request of a trace; `output_tokens` is what a scheduler may not know."""

    id: int
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    class_name: str | None = None
    prefix_group: int | None = None
    prefix_tokens: int = 0


Trace = tuple[Request, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixGroups:
    """
    Prompts that begin alike: `count` shared prefixes, the k-th drawn in proportion to 1 / k^zipf.

    Each prefix is `tokens[0]` to `tokens[1]` long and comes on top of the request's own prompt.
    """

    count: int
    tokens: tuple[int, int] = (1024, 4096)
    zipf: float = 1.0


def make_trace(
    n: int,
    rate: float,
    cv: float,
    seed: int,
    in_mu: float,
    in_sigma: float,
    out_mu: float,
    out_sigma: float,
    *,
    classes: Mapping[str, float] | None = None,
    prefix_groups: PrefixGroups | None = None,
) -> Trace:
    """
    Draw `n` requests, `rate` a second, in order of arrival.

    Gaps are Gamma with mean 1 / rate and coefficient of variation `cv` (1 is Poisson); lengths
    log-normal, clipped to PROMPT_LIMITS and OUTPUT_LIMITS; `classes` maps names to their shares.
    Another rate gives the same requests with their gaps scaled; adding `classes` or
    `prefix_groups` changes neither arrivals nor the drawn lengths.
    """
    if n < 1 or rate <= 0 or cv <= 0:
        raise UsageProblem(
            f"make_trace: expected n >= 1, rate > 0 and cv > 0, found {n}, {rate} and {cv}."
        )
    random = np.random.Generator(np.random.PCG64(seed))
    arrivals = np.cumsum(random.standard_gamma(1 / cv**2, n) * cv**2 / rate)
    prompts = _draw_lengths(random, n, in_mu, in_sigma, PROMPT_LIMITS)
    outputs = _draw_lengths(random, n, out_mu, out_sigma, OUTPUT_LIMITS)
    names = _draw_classes(random, n, classes)
    prefixes = _draw_prefixes(random, n, prefix_groups)
    return tuple(
        Request(
            id=at,
            arrival_s=float(arrivals[at]),
            prompt_tokens=prompts[at] + prefix_tokens,
            output_tokens=outputs[at],
            class_name=names[at],
            prefix_group=group,
            prefix_tokens=prefix_tokens,
        )
        for at, (group, prefix_tokens) in enumerate(prefixes)
    )


def _draw_lengths(
    random: np.random.Generator, n: int, mu: float, sigma: float, limits: tuple[int, int]
) -> list[int]:
    drawn = np.rint(random.lognormal(mu, sigma, n))
    return [int(length) for length in np.clip(drawn, *limits)]


def _draw_classes(
    random: np.random.Generator, n: int, classes: Mapping[str, float] | None
) -> Sequence[str | None]:
    if not classes:
        return [None] * n
    names, shares = [*classes], np.array([*classes.values()])
    return [names[at] for at in random.choice(len(names), n, p=shares / shares.sum())]


def _draw_prefixes(
    random: np.random.Generator, n: int, groups: PrefixGroups | None
) -> Sequence[tuple[int | None, int]]:
    """Draw group and prefix length of each request."""
    if groups is None:
        return [(None, 0)] * n
    popularity = np.arange(1.0, groups.count + 1) ** -groups.zipf
    members = random.choice(groups.count, n, p=popularity / popularity.sum())
    tokens = random.integers(*groups.tokens, groups.count, endpoint=True)
    return [(int(group), int(tokens[group])) for group in members]


def chat_trace(n: int, rate: float = 1.0, seed: int = 0) -> Trace:
    """Draw Poisson arrivals of short prompts with long answers, as in ShareGPT."""
    return make_trace(n, rate, 1.0, seed, in_mu=4.5, in_sigma=1.1, out_mu=5.4, out_sigma=0.9)


def long_prompt_trace(n: int, rate: float = 1.0, seed: int = 0) -> Trace:
    """Draw Poisson arrivals of prompts around 2,000 tokens with answers around 100."""
    return make_trace(n, rate, 1.0, seed, in_mu=7.6, in_sigma=0.6, out_mu=4.6, out_sigma=0.7)


def bursty_trace(n: int, rate: float = 1.0, seed: int = 0) -> Trace:
    """Draw the requests of a chat arriving in bursts: gaps with four times their mean as spread."""
    return make_trace(n, rate, 4.0, seed, in_mu=4.5, in_sigma=1.1, out_mu=5.4, out_sigma=0.9)
