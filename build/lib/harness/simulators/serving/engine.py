"""Carrying out a scheduler's plans, and judging logs of steps."""

import math
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NoReturn, Protocol

from harness.simulators.serving.report import Report, RequestTimes
from harness.simulators.serving.step_model import StepModel
from harness.simulators.serving.traces import Request

# How far a logged time may be from the exact one: sums of floats in another order.
CLOCK_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a scheduler wants of one step: (id, tokens) to prefill, ids to decode and preempt."""

    prefill: Sequence[tuple[int, int]] = ()
    decode: Sequence[int] = ()
    preempt: Sequence[int] = ()


class Scheduler(Protocol):
    """What `simulate` drives; the plan may be of any class with `Plan`'s attributes."""

    def add(self, req_id: int, prompt_len: int) -> None:
        """Take in a request that has arrived."""

    def plan(self) -> Plan:
        """Decide the next step."""

    def finished(self, req_id: int) -> None:
        """Hear that a request has emitted its last token; its cache is free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """
    One entry of an engine's log; `emitted` holds (request, index of its token from 0).

    The Auditor fills in who finished and the tokens cached, in whole blocks, at the end.
    """

    start_s: float
    end_s: float
    plan: Plan
    emitted: Sequence[tuple[int, int]]
    finished: Sequence[int] = ()
    kv_tokens: int = 0


class ScheduleViolation(AssertionError):
    """A schedule did what no engine can do; the message names step and request."""


class _Progress:
    """How far one request has come."""

    __slots__ = ("cached", "decoding", "request", "token_s")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.cached = 0
        self.decoding = False
        self.token_s: list[float] = []

    @property
    def to_prefill(self) -> int:
        """Tokens that a prefill has to cache before the next one can be emitted."""
        return self.request.prompt_tokens + len(self.token_s)


class Auditor:
    """
    Carries out plans, or checks a log of steps, and rejects what no engine can do.

    `kv_tokens` bounds the tokens cached at the end of a step, each request's rounded up to blocks
    of `block_size`; `max_batch` the requests that hold any; `token_budget` the tokens a step puts
    through the model. Every complaint is a ScheduleViolation.
    """

    def __init__(
        self,
        trace: Iterable[Request],
        step_model: StepModel,
        *,
        kv_tokens: float = math.inf,
        max_batch: float = math.inf,
        token_budget: float = math.inf,
        block_size: int = 1,
    ) -> None:
        self.step_model = step_model
        self.kv_tokens = kv_tokens
        self.max_batch = max_batch
        self.token_budget = token_budget
        self.block_size = block_size
        self.steps: list[Step] = []
        self._progress = {request.id: _Progress(request) for request in trace}
        self.unfinished = len(self._progress)
        self._holding = 0
        self._blocks = 0
        self._where = ""

    @property
    def requests(self) -> list[Request]:
        """The requests of the trace."""
        return [progress.request for progress in self._progress.values()]

    def advance(self, plan: Plan, start_s: float) -> Step:
        """Carry out `plan` from `start_s` on and return what the engine did."""
        # a scheduler may go on using its lists
        plan = Plan(
            prefill=tuple(plan.prefill), decode=tuple(plan.decode), preempt=tuple(plan.preempt)
        )
        self._where = f"step {len(self.steps)} at {start_s:g} s"
        self._check_start(start_s)
        self._check_mentions(plan, start_s)
        for req_id in plan.preempt:
            self._preempt(req_id)
        chunks = [(tokens, self._prefill(req_id, tokens)) for req_id, tokens in plan.prefill]
        contexts = [self._decode(req_id) for req_id in plan.decode]
        self._check_bounds(sum(tokens for tokens, _ in chunks) + len(contexts))
        step = self._emit(plan, start_s, start_s + self.step_model.time(chunks, contexts))
        self.steps.append(step)
        return step

    def audit(self, step: Step) -> None:
        """Check the next entry of somebody's log: its plan, its duration and its tokens."""
        done = self.advance(step.plan, step.start_s)
        if not math.isclose(step.end_s, done.end_s, rel_tol=CLOCK_TOLERANCE):
            took_s, found_s = done.end_s - done.start_s, step.end_s - step.start_s
            self._reject(f"expected to take {took_s:g} s by the step model, found {found_s:g} s")
        claimed, due = Counter(step.emitted), Counter(done.emitted)
        for req_id, index in due - claimed:
            self._reject(f"skips token {index}", req_id)
        for req_id, index in claimed - due:
            known = self._progress.get(req_id)
            again = known is not None and index < len(known.token_s)
            self._reject(f"emits token {index} {'twice' if again else 'too early'}", req_id)

    def report(self) -> Report:
        """Sum up what users saw, once every request has finished."""
        for req_id, progress in self._progress.items():
            emitted, expected = len(progress.token_s), progress.request.output_tokens
            if emitted < expected:
                self._reject(f"never finished: {emitted} of {expected} tokens", req_id)
        return Report(
            requests=[
                RequestTimes(request=progress.request, token_s=progress.token_s)
                for progress in self._progress.values()
            ]
        )

    def _reject(self, complaint: str, req_id: int | None = None) -> NoReturn:
        who = "" if req_id is None else f", request {req_id}"
        raise ScheduleViolation(f"{self._where}{who}: {complaint}.")

    def _check_start(self, start_s: float) -> None:
        if self.steps and start_s < self.steps[-1].end_s * (1 - CLOCK_TOLERANCE):
            self._reject(f"starts before the last step ended, at {self.steps[-1].end_s:g} s")

    def _check_mentions(self, plan: Plan, start_s: float) -> None:
        """Each request of a plan has arrived, is not finished, and is named once."""
        mentioned = [*plan.preempt, *(req_id for req_id, _ in plan.prefill), *plan.decode]
        for req_id in mentioned:
            progress = self._progress.get(req_id)
            if progress is None:
                self._reject("is not in the trace", req_id)
            if progress.request.arrival_s > start_s:
                self._reject(f"runs before it arrives at {progress.request.arrival_s:g} s", req_id)
            if len(progress.token_s) == progress.request.output_tokens:
                self._reject(f"runs on after its {len(progress.token_s)} tokens", req_id)
        if len(set(mentioned)) < len(mentioned):
            twice = Counter(mentioned).most_common(1)[0][0]
            self._reject("is in the plan more than once", twice)

    def _preempt(self, req_id: int) -> None:
        progress = self._progress[req_id]
        if not progress.cached:
            self._reject("is preempted but holds no cache", req_id)
        self._release(progress)

    def _prefill(self, req_id: int, tokens: int) -> int:
        """Cache one chunk and return how many tokens were cached before."""
        progress = self._progress[req_id]
        past, missing = progress.cached, progress.to_prefill - progress.cached
        if progress.decoding:
            self._reject("is prefilled although its prefill is complete: decode it", req_id)
        if not 1 <= tokens <= missing:
            self._reject(f"expected a chunk of 1 to {missing} tokens, found {tokens}", req_id)
        self._holding += not past
        self._blocks += self._blocks_of(past + tokens) - self._blocks_of(past)
        progress.cached += tokens
        return past

    def _decode(self, req_id: int) -> int:
        """Cache the newest token and return how many are cached with it."""
        progress = self._progress[req_id]
        if not progress.decoding:
            self._reject(
                "is decoded before its prefill is complete: "
                f"{progress.cached} of {progress.to_prefill} tokens are cached",
                req_id,
            )
        self._blocks += progress.cached % self.block_size == 0
        progress.cached += 1
        return progress.cached

    def _check_bounds(self, tokens: int) -> None:
        for what, found, bound in (
            ("cached tokens", self._blocks * self.block_size, self.kv_tokens),
            ("requests holding cache", self._holding, self.max_batch),
            ("tokens in the step", tokens, self.token_budget),
        ):
            if found > bound:
                self._reject(f"expected at most {bound} {what}, found {found}")

    def _emit(self, plan: Plan, start_s: float, end_s: float) -> Step:
        """Emit a token for each decode and each prefill that is complete; let the done leave."""
        kv_tokens = self._blocks * self.block_size
        prefilled = [req_id for req_id, _ in plan.prefill]
        emitted, finished = [], []
        for req_id in [*prefilled, *plan.decode]:
            progress = self._progress[req_id]
            if progress.cached < progress.to_prefill:
                continue
            emitted.append((req_id, len(progress.token_s)))
            progress.token_s.append(end_s)
            progress.decoding = True
            if len(progress.token_s) == progress.request.output_tokens:
                finished.append(req_id)
                self._release(progress)
        self.unfinished -= len(finished)
        return Step(
            start_s=start_s,
            end_s=end_s,
            plan=plan,
            emitted=emitted,
            finished=finished,
            kv_tokens=kv_tokens,
        )

    def _release(self, progress: _Progress) -> None:
        self._holding -= 1
        self._blocks -= self._blocks_of(progress.cached)
        progress.cached = 0
        progress.decoding = False

    def _blocks_of(self, tokens: int) -> int:
        return -(-tokens // self.block_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationResult:
    """The log of a simulated engine and what users saw of it."""

    steps: Sequence[Step]
    report: Report


def simulate(
    scheduler: Scheduler,
    trace: Iterable[Request],
    step_model: StepModel,
    *,
    kv_tokens: float = math.inf,
    max_batch: float = math.inf,
    token_budget: float = math.inf,
    block_size: int = 1,
    patience: int = 10_000,
) -> SimulationResult:
    """
    Drive `scheduler` through `trace`, every step judged by an Auditor with the same bounds.

    The scheduler hears of arrivals at the first step boundary after them, is never told an output
    length, and may answer with an empty plan to wait for the next arrival. ScheduleViolation when
    it breaks a rule, or when `patience` plans in a row emit no token although requests wait.
    """
    auditor = Auditor(
        trace,
        step_model,
        kv_tokens=kv_tokens,
        max_batch=max_batch,
        token_budget=token_budget,
        block_size=block_size,
    )
    arrivals = deque(sorted(auditor.requests, key=lambda request: request.arrival_s))
    now_s, fruitless = 0.0, 0
    while auditor.unfinished:
        while arrivals and arrivals[0].arrival_s <= now_s:
            request = arrivals.popleft()
            scheduler.add(request.id, request.prompt_tokens)
        plan = scheduler.plan()
        fruitless += 1
        if plan.prefill or plan.decode or plan.preempt:
            step = auditor.advance(plan, now_s)
            now_s = step.end_s
            for req_id in step.finished:
                scheduler.finished(req_id)
            fruitless = 0 if step.emitted else fruitless
        elif arrivals:
            now_s = arrivals[0].arrival_s
            fruitless = 0
        if fruitless >= patience:
            raise ScheduleViolation(
                f"stalled at {now_s:g} s: no token in {patience} plans, "
                f"{auditor.unfinished} requests unfinished."
            )
    return SimulationResult(steps=auditor.steps, report=auditor.report())
