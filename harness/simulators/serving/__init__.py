"""
An LLM serving engine on paper: request traces, a roofline step time, and a judge of schedules.

    step_model = StepModel(profile, llama2_7b)
    trace = chat_trace(400, rate=0.7 * step_model.capacity(chat_trace(400)))
    result = simulate(scheduler, trace, step_model, kv_tokens=60_000, max_batch=64)
    result.report.ttft.p99, result.report.throughput, result.steps

    report = audit_log(steps, trace, step_model, kv_tokens=60_000)     # somebody else's engine

What a step means, here and in every kata that schedules:

* A plan preempts, prefills and decodes; each request appears in it at most once.
* The KV cache of a request holds the tokens that have been through the model: those prefilled so
  far, then one more for each decode. The newest token is emitted but not yet cached.
* The chunk that completes a prefill emits the request's next token in that same step.
* A preempted request loses its cache: prompt and tokens emitted so far are prefilled again.
* A step takes `StepModel.time`; its tokens appear, and finished requests leave, at its end.
"""

from harness.simulators.serving.auditor import (
    Auditor,
    Plan,
    ScheduleViolation,
    Step,
    audit_log,
)
from harness.simulators.serving.engine import Scheduler, SimulationResult, simulate
from harness.simulators.serving.report import Latency, Report, RequestTimes, Slo
from harness.simulators.serving.step_model import ModelSpec, StepModel, llama2_7b, llama3_8b
from harness.simulators.serving.traces import (
    PrefixGroups,
    Request,
    Trace,
    bursty_trace,
    chat_trace,
    long_prompt_trace,
    make_trace,
)

__all__ = [
    "Auditor",
    "Latency",
    "ModelSpec",
    "Plan",
    "PrefixGroups",
    "Report",
    "Request",
    "RequestTimes",
    "ScheduleViolation",
    "Scheduler",
    "SimulationResult",
    "Slo",
    "Step",
    "StepModel",
    "Trace",
    "audit_log",
    "bursty_trace",
    "chat_trace",
    "llama2_7b",
    "llama3_8b",
    "long_prompt_trace",
    "make_trace",
    "simulate",
]
