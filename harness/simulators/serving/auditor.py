"""The judge of schedules: it carries plans out, or replays a log of steps, by itself."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from harness.simulators.serving.report import Report, RequestTimes
from harness.simulators.serving.step_model import StepModel
from harness.simulators.serving.traces import Request

# How far a logged duration may be from the exact one, as a share of it.
DURATION_TOLERANCE = 1e-9
# How far a logged time may be from the exact one, as a share of it: floats in another order.
CLOCK_TOLERANCE = 1e-11


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a scheduler wants of one step: (id, tokens) to prefill, ids to decode and preempt."""

    prefill: Sequence[tuple[int, int]] = ()
    decode: Sequence[int] = ()
    preempt: Sequence[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """
    One entry of an engine's log; `emitted` holds (request, index of its token from 0).

    The Auditor fills in who finished and the tokens cached, in whole blocks, at the end. A log
    whose engine has an allocator tells in `blocks` which ones each request holds then, when what
    has finished is gone.
    """

    start_s: float
    end_s: float
    plan: Plan
    emitted: Sequence[tuple[int, int]]
    finished: Sequence[int] = ()
    kv_tokens: int = 0
    blocks: Mapping[int, Sequence[int]] | None = None


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
        """Check the next entry of somebody's log: plan, duration, tokens, and blocks if told."""
        done = self.advance(step.plan, step.start_s)
        took_s, found_s = done.end_s - done.start_s, step.end_s - step.start_s
        rounding_s = CLOCK_TOLERANCE * done.end_s
        if not math.isclose(found_s, took_s, rel_tol=DURATION_TOLERANCE, abs_tol=rounding_s):
            self._reject(f"expected to take {took_s:g} s by the step model, found {found_s:g} s")
        claimed, due = Counter(step.emitted), Counter(done.emitted)
        for req_id, index in due - claimed:
            self._reject(f"skips token {index}", req_id)
        for req_id, index in claimed - due:
            known = self._progress.get(req_id)
            again = known is not None and index < len(known.token_s)
            self._reject(f"emits token {index} {'twice' if again else 'too early'}", req_id)
        if step.blocks is not None:
            self._check_blocks(step.blocks)

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
        if not 0 <= start_s < math.inf:
            self._reject("starts at no time")
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

    def _check_blocks(self, tables: Mapping[int, Sequence[int]]) -> None:
        """Each table covers what its request has cached, and no block is in two places."""
        owners: dict[int, int] = {}
        for req_id, table in tables.items():
            if req_id not in self._progress:
                self._reject("holds blocks but is not in the trace", req_id)
            cached = self._progress[req_id].cached
            if table and not cached:
                self._reject(f"keeps {len(table)} blocks but has nothing cached", req_id)
            for block in table:
                if block in owners:
                    self._reject(f"holds block {block}, which request {owners[block]} has", req_id)
                if not 0 <= block * self.block_size <= self.kv_tokens - self.block_size:
                    self._reject(f"holds block {block}, which there is not", req_id)
                owners[block] = req_id
        for req_id, progress in self._progress.items():
            needed, found = self._blocks_of(progress.cached), len(tables.get(req_id, ()))
            if found < needed:
                self._reject(f"expected {needed} blocks or more, found {found}", req_id)

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


def audit_log(
    steps: Iterable[Step],
    trace: Iterable[Request],
    step_model: StepModel,
    *,
    kv_tokens: float = math.inf,
    max_batch: float = math.inf,
    token_budget: float = math.inf,
    block_size: int = 1,
) -> Report:
    """
    Replay a whole log of steps and return what its users saw, from the replay alone.

    The oracle of a schedule: the bounds are an Auditor's, and ScheduleViolation is raised at the
    first step that no engine can do, or at the end where a request has not finished.
    """
    auditor = Auditor(
        trace,
        step_model,
        kv_tokens=kv_tokens,
        max_batch=max_batch,
        token_budget=token_budget,
        block_size=block_size,
    )
    for step in steps:
        auditor.audit(step)
    return auditor.report()
