"""An engine that does what a scheduler plans, step by step, judged by the Auditor."""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from harness.simulators.serving.auditor import Auditor, Plan, ScheduleViolation, Step
from harness.simulators.serving.report import Report
from harness.simulators.serving.step_model import StepModel
from harness.simulators.serving.traces import Request


class Scheduler(Protocol):
    """What `simulate` drives; the plan may be of any class with `Plan`'s attributes."""

    def add(self, req_id: int, prompt_len: int) -> None:
        """Take in a request that has arrived."""

    def plan(self) -> Plan:
        """Decide the next step."""

    def finished(self, req_id: int) -> None:
        """Hear that a request has emitted its last token; its cache is free."""


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
