"""Kata week06/continuous_batching: who runs in the next step, and what users saw of it all."""

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
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
        met = sum(
            ttft_s <= slo.ttft_s and (self.tpot_s[req_id] or 0.0) <= slo.tpot_s
            for req_id, ttft_s in self.ttft_s.items()
        )
        return met / self.makespan_s


@dataclass(slots=True, kw_only=True)
class _Sequence:
    """
    A request that has not finished: its next token comes out once `due` tokens are cached.

    While it prefills, that is the prompt and all it emitted before it was preempted; while it
    decodes, one more than is `cached`. So `due` is also the room it needs until then.
    """

    req_id: int
    due: int
    cached: int = 0
    decoding: bool = False

    def advance(self, tokens: int) -> None:
        """Put `tokens` through the model."""
        self.cached += tokens
        if self.cached == self.due:
            self.due += 1
            self.decoding = True

    def drop(self) -> None:
        """Give up the cache."""
        self.cached = 0
        self.decoding = False


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
        # check
        if token_budget < max_batch:
            raise ValueError(
                f"token_budget: expected max_batch ({max_batch}) or more, found {token_budget}"
            )
        # queue
        self._kv_tokens = kv_tokens
        self._max_batch = max_batch
        self._token_budget = token_budget
        # both in order of arrival, everyone running before everyone waiting
        self._running: dict[int, _Sequence] = {}
        self._waiting: deque[_Sequence] = deque()
        self._unfinished: set[int] = set()

    def add(self, req_id: int, prompt_len: int) -> None:
        """
        Take in a request that has arrived.

        Raises:
            ValueError: `req_id` is waiting or running already, or `prompt_len` is below 1 or
                more than the cache holds; the message names which. The request is not taken in.
        """
        # check
        if req_id in self._unfinished:
            raise ValueError(f"req_id: expected a new one, found {req_id}, which has not finished")
        if not 1 <= prompt_len <= self._kv_tokens:
            raise ValueError(f"prompt_len: expected 1 to {self._kv_tokens}, found {prompt_len}")
        # queue
        self._unfinished.add(req_id)
        self._waiting.append(_Sequence(req_id=req_id, due=prompt_len))

    def plan(self) -> Plan:
        """Decide the next step, and count on the engine to carry it out."""
        # make room
        preempted = self._make_room()
        # decode
        decoding = [sequence for sequence in self._running.values() if sequence.decoding]
        # spend the budget
        chunks = self._chunks(self._token_budget - len(decoding))
        for sequence, tokens in chunks:
            sequence.advance(tokens)
        for sequence in decoding:
            sequence.advance(1)
        return Plan(
            prefill=[(sequence.req_id, tokens) for sequence, tokens in chunks],
            decode=[sequence.req_id for sequence in decoding],
            preempt=preempted,
        )

    def finished(self, req_id: int) -> None:
        """Hear that a request has emitted its last token; its cache is free."""
        del self._running[req_id]
        self._unfinished.remove(req_id)

    def _room(self) -> int:
        """Tokens of the cache that nobody running will need for the next token."""
        return self._kv_tokens - sum(sequence.due for sequence in self._running.values())

    def _make_room(self) -> list[int]:
        """Preempt the newest until everyone left can get the next token."""
        # make room
        preempted = []
        while self._room() < 0:
            req_id, newest = self._running.popitem()
            newest.drop()
            self._waiting.appendleft(newest)
            preempted.append(req_id)
        return preempted

    def _chunks(self, budget: int) -> list[tuple[_Sequence, int]]:
        """Spend `budget` on prefills: first the unfinished ones, then new ones in their order."""
        # spend the budget
        prefilling = [sequence for sequence in self._running.values() if not sequence.decoding]
        chunks = []
        # `_admitted` lets a request in only once it is asked for, so only while there is budget
        for sequence in chain(prefilling, self._admitted()):
            tokens = min(budget, sequence.due - sequence.cached)
            chunks.append((sequence, tokens))
            budget -= tokens
            if budget == 0:
                break
        return chunks

    def _admitted(self) -> Iterator[_Sequence]:
        """
        Let in those at the front of the queue, up to the first that does not fit.

        Never one that was preempted for this very step: it is at the front and lacks room.
        """
        # spend the budget
        while self._waiting and len(self._running) < self._max_batch:
            if self._waiting[0].due > self._room():
                break
            sequence = self._waiting.popleft()
            self._running[sequence.req_id] = sequence
            yield sequence


def metrics(events: Iterable[Event]) -> Metrics:
    """
    Sum up the log of an engine in which every request arrives and then emits all its tokens.

    `events` are in order of time; those of several requests are mixed.
    """
    # latencies
    arrival_s: dict[int, float] = {}
    token_s: defaultdict[int, list[float]] = defaultdict(list)
    for event in events:
        if event.kind == "arrival":
            arrival_s[event.req_id] = event.at_s
        else:
            token_s[event.req_id].append(event.at_s)
    makespan_s = max(times[-1] for times in token_s.values()) - min(arrival_s.values())
    return Metrics(
        ttft_s={req_id: token_s[req_id][0] - start_s for req_id, start_s in arrival_s.items()},
        tpot_s={req_id: _mean_gap_s(token_s[req_id]) for req_id in arrival_s},
        makespan_s=makespan_s,
        throughput=sum(map(len, token_s.values())) / makespan_s,
    )


def _mean_gap_s(times: list[float]) -> float | None:
    gaps = len(times) - 1
    return (times[-1] - times[0]) / gaps if gaps else None
