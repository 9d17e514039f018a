"""What is right: a script of each method, run operation by operation, tensor by tensor."""

# g: generate, s: score without gradient, f: forward and b: backward of training, u: update
SCRIPTS = {
    "ppo": "g:policy s:policy s:critic s:reference s:reward f:policy f:critic b:policy b:critic "
    "u:policy u:critic",
    "grpo": "g:policy s:policy s:reference s:reward f:policy b:policy u:policy",
    "rloo": "g:policy s:policy s:reference s:reward f:policy b:policy u:policy",
    "dpo": "s:reference f:policy b:policy u:policy",
    "kto": "s:policy s:reference s:reference f:policy b:policy u:policy",
    "orpo": "f:policy b:policy u:policy",
}
USES = {"ppo": "reward", "grpo": "reward", "rloo": "reward", "kto": "pairs binary"}


def uses(method, data):
    return data in USES.get(method, "pairs").split()


def script(method, job):
    """What is done in a step, in order, as pairs of an operation and a model."""
    steps = [tuple(one.split(":")) for one in SCRIPTS[method].split()]
    online = steps[0][0] == "g"
    needless = job.beta == 0 if online else job.ref_cached
    return [one for one in steps if one != ("s", "reference") or not needless]


def rows(method, job):
    """Prompt and response lengths of all sequences."""
    each = {"dpo": 2, "orpo": 2, "kto": 1}.get(method, job.group)
    return [(job.prompt, job.resp)] * (job.b * each)


def gemms(cfg):
    """Shapes of the matrices of a layer, and of the head."""
    small = cfg.hidden // cfg.heads * cfg.kv_heads
    attention = [(cfg.hidden, small)] * 2 + [(cfg.hidden, cfg.hidden)] * 2
    layer = [*attention, (cfg.hidden, cfg.ffn), (cfg.hidden, cfg.ffn), (cfg.ffn, cfg.hidden)]
    return layer, (cfg.hidden, cfg.vocab)


def parameters(cfg):
    """Elements of all matrices, the embedding included."""
    layer, head = gemms(cfg)
    return cfg.layers * sum(m * n for m, n in layer) + 2 * head[0] * head[1]


def pass_time(cfg, gpu, job, spans, cached=0.0):
    """Seconds of one pass over tokens, given as (number of sequences, context of the token)."""
    layer, head = gemms(cfg)
    flops = nbytes = 0
    for m, n in [*layer * cfg.layers, head]:
        nbytes += 2 * m * n
        flops += sum(number for number, _ in spans) * 2 * m * n
    for number, context in spans:
        head_dim = cfg.hidden // cfg.heads
        flops += cfg.layers * number * cfg.heads * (2 * head_dim * context + 2 * context * head_dim)
    nbytes += cached
    return max(flops / gpu.flops_per_s, nbytes / gpu.bytes_per_s) / job.tp


def generate_time(cfg, gpu, job, number):
    """A prefill of every prompt, then token by token of all sequences."""
    total = pass_time(cfg, gpu, job, [(job.b, position) for position in range(1, job.prompt + 1)])
    cached = job.prompt
    for _ in range(job.resp - 1):
        cached += 1
        token = 2 * 2 * cfg.layers * cfg.kv_heads * (cfg.hidden // cfg.heads)
        total += pass_time(cfg, gpu, job, [(number, cached)], number * cached * token)
    return total


def simulate(method, cfg, job, gpu):
    """Seconds by part, and the most bytes held at a time."""
    steps, sequences = script(method, job), rows(method, job)
    params = parameters(cfg)
    number, length = len(sequences), job.prompt + job.resp
    once = pass_time(cfg, gpu, job, [(number, at) for at in range(1, length + 1)])
    trained = [model for kind, model in steps if kind == "u"]
    live = {}
    for _, model in steps:
        if model == "reference" and job.lora_params:
            continue
        live["weights", model] = 2 * params
    for model in trained:
        if job.lora_params:
            live["adapter", model] = 2 * job.lora_params
        for what, size in (("gradient", 2), ("master", 4), ("first", 4), ("second", 4)):
            live[what, model] = size * (job.lora_params or params)
    seconds = dict.fromkeys(("generate", "forward", "backward", "update"), 0.0)
    most = sum(live.values())
    for kind, model in steps:
        if kind == "g":
            seconds["generate"] += generate_time(cfg, gpu, job, number)
            kv = 4 * cfg.layers * cfg.kv_heads * (cfg.hidden // cfg.heads)
            live["cache", model] = kv * job.b * job.prompt + kv * sum(resp for _, resp in sequences)
            most = max(most, sum(live.values()))
            del live["cache", model]
        elif kind == "s":
            seconds["forward"] += once
        elif kind == "f":
            seconds["forward"] += once
            kept = [2 if job.recompute else 34] * cfg.layers
            if job.recompute:
                live["one layer", model] = number * length * cfg.hidden * 34
            for at, size in enumerate(kept):
                live[at, model] = number * length * cfg.hidden * size
            if model == "policy":
                live["logits", model] = number * length * cfg.vocab * 4
            most = max(most, sum(live.values()))
        elif kind == "b":
            inputs = weights = once
            seconds["backward"] += inputs + (0 if job.lora_params else weights)
            seconds["backward"] += once if job.recompute else 0
        else:
            moved = 2 + 2 + 2 * (4 + 4 + 4)  # gradient read, weight written, the rest both
            size = job.lora_params or params
            seconds["update"] += moved * size / gpu.bytes_per_s / job.tp
    seconds["total"] = sum(seconds.values())
    return seconds, most / job.tp


def cheapest(methods, cfg, job, gpu, data):
    """Try all of them."""
    best = None
    for method in methods:
        seconds, held = simulate(method, cfg, job, gpu)
        each = seconds["total"] / len(rows(method, job))
        if uses(method, data) and held <= gpu.memory_bytes and (best is None or each < best[0]):
            best = (each, method)
    return best and best[1]


# beside the plain one: groups, no KL, adapters, a cached reference, recomputation, several GPUs
JOBS = [
    {"b": 1, "prompt": 3, "resp": 1},
    {"b": 2, "prompt": 20, "resp": 30},
    {"b": 3, "prompt": 40, "resp": 9, "group": 4},
    {"b": 1, "prompt": 2, "resp": 60, "group": 8, "beta": 0.0},
    {"b": 4, "prompt": 7, "resp": 13, "lora_params": 1000, "group": 2},
    {"b": 4, "prompt": 7, "resp": 13, "lora_params": 1000, "recompute": True, "ref_cached": True},
    {"b": 2, "prompt": 11, "resp": 5, "ref_cached": True, "tp": 4},
    {"b": 5, "prompt": 16, "resp": 16, "recompute": True, "tp": 2},
]
