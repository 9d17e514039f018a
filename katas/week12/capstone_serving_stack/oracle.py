"""The models and what they are asked, and a cost model and a judge of logs that stand alone."""

import math

import numpy as np
import torch
from torch import nn
from torch.nn import functional

VOCAB, WIDTH, LONGEST, EOS = 64, 64, 128, 0

# LLaMA-2-7B, and a Llama of 1.1B parameters with four heads for keys and values
TARGET = {"params": 6_738_415_616, "layers": 32, "heads": 32, "kv_heads": 32, "head_dim": 128}
DRAFT = {"params": 1_100_048_384, "layers": 22, "heads": 32, "kv_heads": 4, "head_dim": 64}
WEIGHT_BYTES = (2, 4.5 / 8, 4.5 / 8, 4.5 / 8)


class SmallLM(nn.Module):
    """A seeded model of the last two tokens and their place: float64, so that no order matters."""

    def __init__(self, seed):
        super().__init__()
        random = torch.Generator().manual_seed(seed)

        def draw(*shape):
            return torch.randn(*shape, generator=random, dtype=torch.float64)

        self.newest, self.older, self.place = (
            nn.Parameter(draw(rows, WIDTH)) for rows in (VOCAB, VOCAB, LONGEST)
        )
        self.mix = nn.Linear(WIDTH, WIDTH, bias=False, dtype=torch.float64)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False, dtype=torch.float64)
        self.mix.weight.data = draw(WIDTH, WIDTH) / WIDTH**0.5
        self.head.weight.data = draw(VOCAB, WIDTH) * (1.5 / WIDTH**0.5)

    def forward(self, tokens):
        older = functional.pad(self.older[tokens[:-1]], (0, 0, 1, 0))
        hidden = (self.newest[tokens] + older + self.place[: len(tokens)]) / 3**0.5
        return self.head(self.mix(hidden).relu())


class CountedLM(SmallLM):
    """Counts how often any of its kind is called, copies too."""

    calls = 0

    def forward(self, tokens):
        CountedLM.calls += 1
        return super().forward(tokens)


def models(seed, noise=0.08):
    """Return a target, and a draft that mostly agrees with it."""
    model, draft = SmallLM(seed), SmallLM(seed)
    random = torch.Generator().manual_seed(seed + 1)
    for weight in (draft.mix.weight, draft.head.weight):
        spread = weight.data.std() * noise
        weight.data += spread * torch.randn(weight.shape, generator=random, dtype=torch.float64)
    return model, draft


def requests(make, seed, count, gap_s, longest=40):
    """Draw requests, some of which arrive together; neither id nor place says when."""
    random = np.random.default_rng(seed)
    ids = random.permutation(count) + 100
    arrivals = np.cumsum(random.exponential(gap_s, count)).round(3)
    drawn = [
        make(
            id=int(req_id),
            arrival_s=float(arrival_s),
            prompt=tuple(int(token) for token in random.integers(1, VOCAB, random.integers(4, 33))),
            max_new=int(random.integers(longest // 5, longest + 1)),
        )
        for req_id, arrival_s in zip(ids, arrivals, strict=True)
    ]
    return [drawn[at] for at in random.permutation(count)]


def workloads(make, seed):
    """Return lone requests, seldom two at a time, and a burst."""
    return {"lone": requests(make, seed, 4, 10.0), "burst": requests(make, seed + 1, 36, 1e-4)}


def heldout(seed):
    return torch.randint(VOCAB, (LONGEST,), generator=torch.Generator().manual_seed(seed))


def answers(model, asked):
    """Write every answer by itself, one token at a time, whoever else there is."""
    written = {}
    for request in asked:
        tokens, new = [*request.prompt], []
        while len(new) < request.max_new and EOS not in new:
            with torch.no_grad():
                new.append(int(model(torch.tensor(tokens + new))[-1].argmax()))
        written[request.id] = tuple(new)
    return written


def rounded(model, seed):
    """Make the model of stage 1: each weight to one of 15 levels, group by group."""
    copy = SmallLM(seed)
    for layer in (copy.mix, copy.head):
        weight = layer.weight.data
        for row in weight:
            for at in range(0, len(row), 32):
                step = max(abs(float(value)) for value in row[at : at + 32]) / 7
                for column in range(at, at + 32):
                    row[column] = round(float(row[column]) / step) * step
    return copy


def divergence(model, other, tokens):
    with torch.no_grad():
        p, q = (torch.softmax(one(tokens), dim=1) for one in (model, other))
    return float((p * (p / q).log()).sum() / len(tokens))


def one_pass(spec, w_bytes, profile, chunks):
    """Count token by token: FLOPs, bytes of weights, bytes of cache, seconds."""
    if not chunks:
        return np.zeros(4)
    flops = cache = 0
    width = spec["layers"] * spec["heads"] * spec["head_dim"]
    per_token = 2 * 2 * spec["layers"] * spec["kv_heads"] * spec["head_dim"]
    for new, past in chunks:
        flops += sum(2 * spec["params"] + 4 * width * (past + at + 1) for at in range(new))
        cache += per_token * (past + new)
    weights = w_bytes * spec["params"]
    arithmetic_s = flops / (0.6 * profile.peak["float16"])
    memory_s = (weights + cache) / (0.8 * profile.bandwidth)
    return np.array([flops, weights, cache, max(arithmetic_s, memory_s) + 20e-6])


def batching_pays(profile):
    """Two dozen tokens a step still wait for 4-bit weights; on a Pascal, arithmetic is slower."""
    return 0.6 * profile.peak_of("float16") / (0.8 * profile.bandwidth) * 4.5 / 8 / 2 >= 24


def step_s(stage, profile, prompts, pasts, drafted=0):
    chunks = [(tokens, 0) for tokens in prompts] + [(1 + drafted, past) for past in pasts]
    seconds = one_pass(TARGET, WEIGHT_BYTES[stage], profile, chunks)[3]
    for more in range(drafted):
        behind = [(1, past + more) for past in pasts]
        seconds += one_pass(DRAFT, WEIGHT_BYTES[stage], profile, behind)[3]
    return float(seconds)


def timed(make_step, stage, plans, asked, profile):
    """Make a log of `plans`, with the clock right, whatever else may be wrong with them."""
    length = {request.id: len(request.prompt) for request in asked}
    log, now_s = [], min(request.arrival_s for request in asked)
    for plan in plans:
        prompts = [length.get(req_id, 0) for req_id in plan.get("prefill", ())]
        pasts = [length.get(req_id, 1) - 1 for req_id in plan.get("decode", ())]
        took_s = step_s(stage, profile, prompts, pasts, plan.get("drafted", 0))
        log.append(make_step(start_s=now_s, end_s=now_s + took_s, **plan))
        for req_id, tokens in plan["emitted"].items():
            length[req_id] = length.get(req_id, 0) + len(tokens)
        now_s += took_s
    return log


def tally(stage, log, asked, profile):
    """
    Sum up a log that is known to be legal, with lengths and costs recomputed from the requests.

    Returns tokens, drafted, kept and the four sums of `one_pass`.
    """
    length = {request.id: len(request.prompt) for request in asked}
    tokens = drafted = kept = 0
    work = np.zeros(4)
    for step in log:
        chunks = [(length[req_id], 0) for req_id in step.prefill]
        chunks += [(1 + step.drafted, length[req_id] - 1) for req_id in step.decode]
        work += one_pass(TARGET, WEIGHT_BYTES[stage], profile, chunks)
        for more in range(step.drafted):
            behind = [(1, length[req_id] - 1 + more) for req_id in step.decode]
            work += one_pass(DRAFT, WEIGHT_BYTES[stage], profile, behind)
        drafted += step.drafted * len(step.decode)
        for req_id, new in step.emitted.items():
            tokens += len(new)
            kept += len(new) - 1
            length[req_id] += len(new)
    return tokens, drafted, kept, work


def faults(stage, log, asked, profile, limits):
    """Return what no engine of this stage can do in `log`, in words; nothing where all is well."""
    request = {one.id: one for one in asked}
    answer = {one.id: [] for one in asked}
    holding, found, now_s = {}, [], 0.0

    def done(req_id):
        new = answer[req_id]
        return len(new) == request[req_id].max_new or EOS in new

    for number, step in enumerate(log):
        open_ids = [req_id for req_id in request if not done(req_id)]
        due_s = max([now_s, min(request[req_id].arrival_s for req_id in open_ids)])
        if not math.isclose(step.start_s, due_s, rel_tol=1e-9):
            found.append(f"step {number} starts at {step.start_s}, expected {due_s}")
        served = (*step.prefill, *step.decode)
        if any(done(req_id) or request[req_id].arrival_s > step.start_s for req_id in served):
            found.append(f"step {number} serves one of {served} that is done or not there yet")
        if stage < 2 and (step.preempt or (holding and step.prefill)):
            found.append(f"step {number} opens a static batch")
        if not 0 <= step.drafted <= (limits.k_max if stage == 3 else 0):
            found.append(f"step {number} drafts {step.drafted}")
        for req_id in step.preempt:
            del holding[req_id]
        if {*step.decode} - {*holding} or {*step.prefill} & {*holding}:
            found.append(f"step {number} decodes without a cache, or prefills with one")
        pasts = [holding[req_id] for req_id in step.decode]
        for req_id in step.prefill:
            holding[req_id] = len(request[req_id].prompt) + len(answer[req_id])
        prompts = [holding[req_id] for req_id in step.prefill]
        for req_id in step.decode:
            holding[req_id] += 1 + step.drafted
        blocks = sum(math.ceil(tokens / limits.block_size) for tokens in holding.values())
        slots = blocks * limits.block_size if stage >= 2 else limits.room * len(holding)
        if slots > limits.kv_tokens or len(holding) > limits.max_batch:
            found.append(f"step {number} holds {slots} slots for {len(holding)} requests")
        seconds = step_s(stage, profile, prompts, pasts, step.drafted)
        if not math.isclose(step.end_s - step.start_s, seconds, rel_tol=1e-8, abs_tol=1e-10):
            found.append(f"step {number} took {step.end_s - step.start_s} s, expected {seconds}")
        if sorted(step.emitted) != sorted(served):
            found.append(f"step {number} emits for {sorted(step.emitted)}")
        for req_id, new in step.emitted.items():
            if not 1 <= len(new) <= 1 + step.drafted * (req_id in step.decode):
                found.append(f"step {number} emits {len(new)} tokens of {req_id}")
            answer[req_id] += new
            # what was rejected leaves the cache; the newest token is not in it yet
            holding[req_id] = len(request[req_id].prompt) + len(answer[req_id]) - 1
            if done(req_id):
                del holding[req_id]
        now_s = step.end_s
    return found
