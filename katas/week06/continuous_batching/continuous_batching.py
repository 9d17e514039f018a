"""Kata week06/continuous_batching: who runs in the next step, and what users saw of it all."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from harness.simulators.serving import Latency, Plan, Slo


class Event(NamedTuple):
    """A line of an engine's log: a request arrived, or emitted its next token."""

    at_s: float
    req_id: int
    kind: Literal["arrival", "token"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """
    What users saw of an engine: per request by id, and from first arrival to last token.

    `ttft_s` is the time to the first token, `tpot_s` the mean time per token after it, None where
    there is no other. `throughput` counts tokens per second of `makespan_s`.
    """

    ttft_s: Mapping[int, float]
    tpot_s: Mapping[int, float | None]
    makespan_s: float
    throughput: float

    @property
    def ttft(self) -> Latency:
        """Times to first token of all requests: `.p50`, `.p99`."""
        return Latency([*self.ttft_s.values()])

    @property
    def tpot(self) -> Latency:
        """Times per later token of the requests that have one: `.p50`, `.p99`."""
        return Latency([tpot_s for tpot_s in self.tpot_s.values() if tpot_s is not None])

    def goodput(self, slo: Slo) -> float:
        """Requests per second that met both promises; without a TPOT only one was made."""
        raise NotImplementedError  # TODO(kata): count, divide (about 5 lines)


class Scheduler:
    """
    Decides, before every step of an engine, which requests it works on.

    Args:
        kv_tokens: Tokens that the KV cache holds.
        max_batch: Requests that may hold some of it at a time.
        token_budget: Tokens that one step may put through the model, at least `max_batch`.

    Raises:
        ValueError: `token_budget` is below `max_batch`, so not everyone could decode.
    """

    def __init__(self, kv_tokens: int, max_batch: int, token_budget: int) -> None:
        raise NotImplementedError  # TODO(kata): check, queue (about 25 lines with helpers)

    def add(self, req_id: int, prompt_len: int) -> None:
        """
        Take in a request that has arrived.

        Raises:
            ValueError: `req_id` is waiting or running already, or `prompt_len` is below 1 or
                more than the cache holds; the message names which. The request is not taken in.
        """
        raise NotImplementedError  # TODO(kata): check, queue (about 6 lines)

    def plan(self) -> Plan:
        """Decide the next step, and count on the engine to carry it out."""
        # TODO(kata): make room, decode, spend the budget (about 40 lines with helpers)
        raise NotImplementedError

    def finished(self, req_id: int) -> None:
        """Hear that a request has emitted its last token; its cache is free."""
        raise NotImplementedError  # TODO(kata): (2 lines)


def metrics(events: Iterable[Event]) -> Metrics:
    """
    Sum up the log of an engine in which every request arrives and then emits all its tokens.

    `events` are in order of time; those of several requests are mixed.
    """
    raise NotImplementedError  # TODO(kata): latencies (about 15 lines with helpers)
