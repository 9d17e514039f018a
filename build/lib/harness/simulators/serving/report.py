"""What users see of a serving engine: latencies, throughput and promises kept."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from harness.simulators.serving.traces import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """What a user was promised of one request."""

    ttft_s: float = math.inf
    tpot_s: float = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTimes:
    """When each token of a finished request was emitted."""

    request: Request
    token_s: Sequence[float]

    @property
    def ttft_s(self) -> float:
        """Time to first token: from arrival, so queueing counts."""
        return self.token_s[0] - self.request.arrival_s

    @property
    def tpot_s(self) -> float | None:
        """Mean time per token after the first; None when there is no other."""
        if len(self.token_s) == 1:
            return None
        return (self.token_s[-1] - self.token_s[0]) / (len(self.token_s) - 1)

    @property
    def tbt_s(self) -> list[float]:
        """Time between each token and the next."""
        return [after - before for before, after in pairwise(self.token_s)]

    def meets(self, slo: Slo) -> bool:
        """Say whether both promises were kept; without a second token there is only one."""
        return self.ttft_s <= slo.ttft_s and (self.tpot_s or 0.0) <= slo.tpot_s


@dataclass(frozen=True, slots=True)
class Latency:
    """A sample of durations in seconds; every statistic of an empty one is NaN."""

    values: Sequence[float]

    def quantile(self, q: float) -> float:
        """Interpolate linearly between the nearest values."""
        return float(np.quantile(self.values, q)) if self.values else math.nan

    @property
    def p50(self) -> float:
        """The median."""
        return self.quantile(0.5)

    @property
    def p99(self) -> float:
        """What one in a hundred exceeds."""
        return self.quantile(0.99)

    @property
    def max(self) -> float:
        """The worst."""
        return self.quantile(1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What users saw of a schedule; rates are over the time from first arrival to last token."""

    requests: Sequence[RequestTimes]

    @property
    def ttft(self) -> Latency:
        """Times to first token."""
        return Latency([times.ttft_s for times in self.requests])

    @property
    def tpot(self) -> Latency:
        """Times per later token, of the requests that have one."""
        return Latency([times.tpot_s for times in self.requests if times.tpot_s is not None])

    @property
    def tbt(self) -> Latency:
        """Gaps between tokens, of all requests together."""
        return Latency([gap for times in self.requests for gap in times.tbt_s])

    @property
    def makespan_s(self) -> float:
        """From the first arrival to the last token."""
        first_s = min(times.request.arrival_s for times in self.requests)
        return max(times.token_s[-1] for times in self.requests) - first_s

    @property
    def throughput(self) -> float:
        """Emitted tokens per second."""
        return sum(len(times.token_s) for times in self.requests) / self.makespan_s

    def attainment(self, slo: Slo) -> float:
        """Share of the requests that met `slo`."""
        return sum(times.meets(slo) for times in self.requests) / len(self.requests)

    def goodput(self, slo: Slo) -> float:
        """Requests per second that met `slo`."""
        return self.attainment(slo) * len(self.requests) / self.makespan_s
