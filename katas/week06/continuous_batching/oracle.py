"""What to serve, on what, the baseline to beat, and the least time that the work can take."""

from collections import deque
from operator import itemgetter

from harness.simulators.serving import (
    Plan,
    StepModel,
    bursty_trace,
    chat_trace,
    llama2_7b,
    long_prompt_trace,
    simulate,
)
from harness.simulators.serving.traces import OUTPUT_LIMITS

# The same on every profile: 12.9 GB of cache for LLaMA-2-7B in float16, whatever the GPU holds.
BOUNDS = {"kv_tokens": 24_576, "max_batch": 64, "token_budget": 512}

# Requests, and their rate as a share of what the engine could serve at best.
TRACES = {
    "chat": (chat_trace, 300, 2.0),
    "long-prompt": (long_prompt_trace, 150, 0.7),
    "bursty": (bursty_trace, 300, 2.0),
}


def step_model(profile):
    return StepModel(profile, llama2_7b)


def trace(name, profile):
    draw, count, load = TRACES[name]
    capacity = step_model(profile).capacity(draw(count), BOUNDS["max_batch"])
    return draw(count, rate=load * capacity)


def serve(make_scheduler, name, profile):
    return simulate(make_scheduler(**BOUNDS), trace(name, profile), step_model(profile), **BOUNDS)


def least_time_s(name, profile):
    """Work conservation: all bytes and FLOPs at a full batch, arithmetic hidden behind memory."""
    return step_model(profile).least_time(trace(name, profile), BOUNDS["max_batch"])


def full_step_s(profile):
    """A step that spends its whole budget on a prompt of which 2048 tokens are cached."""
    return step_model(profile).time(prefill=[(BOUNDS["token_budget"], 2048)])


def batching_pays(profile):
    """Weights are what a full batch of decodes waits for; on a Pascal it is arithmetic."""
    return profile.peak_of("float16") > BOUNDS["max_batch"] * profile.bandwidth


def events(make_event, result):
    """Write the log of a simulation as a learner's `metrics` reads it."""
    requests = [times.request for times in result.report.requests]
    log = [(request.arrival_s, request.id, "arrival") for request in requests]
    log += [(step.end_s, req_id, "token") for step in result.steps for req_id, _ in step.emitted]
    return [make_event(*entry) for entry in sorted(log, key=itemgetter(0))]


def replay(result):
    """Yield each step, with who held cache and who was decoding before it."""
    holding, decoding = set(), set()
    for step in result.steps:
        yield step, set(holding), set(decoding)
        holding = holding - set(step.plan.preempt) | {req_id for req_id, _ in step.plan.prefill}
        decoding = decoding - set(step.plan.preempt) | {req_id for req_id, _ in step.emitted}
        holding -= set(step.finished)
        decoding -= set(step.finished)


class StaticBatching:
    """
    Serves a batch until its last request is done, and only then looks at the queue.

    Knowing no output length, it sets aside cache for the longest answer of each. It is no straw
    man otherwise: chunks ride along with decodes.
    """

    def __init__(self, kv_tokens, max_batch, token_budget):
        self.kv_tokens, self.max_batch, self.token_budget = kv_tokens, max_batch, token_budget
        self.waiting = deque()
        self.missing = {}  # of the batch: prompt tokens that still have to be prefilled

    def add(self, req_id, prompt_len):
        self.waiting.append((req_id, prompt_len))

    def finished(self, req_id):
        del self.missing[req_id]

    def plan(self):
        if not self.missing:
            self._next_batch()
        decode = [req_id for req_id, missing in self.missing.items() if not missing]
        budget = self.token_budget - len(decode)
        prefill = []
        for req_id, missing in self.missing.items():
            if missing and budget:
                prefill.append((req_id, min(missing, budget)))
                self.missing[req_id] -= prefill[-1][1]
                budget -= prefill[-1][1]
        return Plan(prefill=prefill, decode=decode)

    def _next_batch(self):
        free = self.kv_tokens
        while self.waiting and len(self.missing) < self.max_batch:
            req_id, prompt_len = self.waiting[0]
            free -= prompt_len + OUTPUT_LIMITS[1]
            if free < 0:
                return
            self.missing[req_id] = prompt_len
            self.waiting.popleft()
