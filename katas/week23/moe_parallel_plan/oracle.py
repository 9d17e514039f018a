"""What is right: parameters dealt out rank by rank, and every choice of experts there is."""

from fractions import Fraction
from itertools import combinations


def matrices(cfg):
    """Where, (rows, cols), and what divides it, of every tensor of a model."""
    kv = cfg.kv * cfg.h // cfg.heads
    yield "first", (cfg.vocab, cfg.h), "tp rows"
    for layer in range(cfg.layers):
        for cols in (cfg.h, kv, kv, cfg.h):
            yield layer, (cfg.h, cols), "tp"
        yield layer, (2, cfg.h), "norms"
        if cfg.experts > 1:
            yield layer, (cfg.experts, cfg.h), "router"
        for expert in range(cfg.experts):
            yield layer, (3 * cfg.h, cfg.ffn), expert
    yield "last", (1, cfg.h), "norm"
    yield "last", (cfg.vocab, cfg.h), "tp rows"


def whole(cfg):
    return sum(rows * cols for _, (rows, cols), _ in matrices(cfg))


def met(cfg):
    """What a token uses: of the experts the first top_k, as good as any others."""
    return sum(
        rows * cols
        for _, (rows, cols), how in matrices(cfg)
        if not isinstance(how, int) or how < cfg.top_k
    )


def by_rank(cfg, plan):
    """Parameters of each rank; the stage varies slowest, tp and etp fastest."""
    stage_size = plan.dp * plan.tp
    held = []
    for rank in range(stage_size * plan.pp):
        stage, place = divmod(rank, stage_size)
        ep_i = place // plan.etp % plan.ep
        own = 0
        for where, (rows, cols), how in matrices(cfg):
            layer = {"first": 0, "last": cfg.layers - 1}.get(where, where)
            if layer * plan.pp // cfg.layers != stage:
                continue
            if how == "tp rows":
                own += -(-rows // plan.tp) * cols
            elif how == "tp":
                own += rows * cols // plan.tp
            elif isinstance(how, int):
                if how * plan.ep // cfg.experts == ep_i:
                    own += rows * cols // plan.etp
            else:
                own += rows * cols
        held.append(own)
    return held


def rows_sent(cfg, plan, dedup):
    """Rows that a GPU sends for one token of its own in one layer, on average over all choices."""
    choices = list(combinations(range(cfg.experts), cfg.top_k))
    held_by = [expert * plan.ep // cfg.experts for expert in range(cfg.experts)]
    sent = came = Fraction(0)
    for me in range(plan.ep):
        for chosen in choices:
            to = [held_by[expert] for expert in chosen]
            to = sorted(set(to)) if dedup else to
            sent += sum(1 for other in to if other != me)
            came += len(to)
    sent, came = (one / (plan.ep * len(choices)) for one in (sent, came))
    # there and back; what came is gathered by those who share an expert, and its result scattered
    return 2 * sent + 2 * came * (plan.etp - 1)


def a2a(cfg, plan, tokens, itemsize, dedup):
    layers = cfg.layers // plan.pp
    return float(rows_sent(cfg, plan, dedup) * layers * cfg.h * itemsize) * tokens


def plans(Plan, cfg, n_gpus):
    sizes = [size for size in range(1, n_gpus + 1) if n_gpus % size == 0]
    for pp in sizes:
        for tp in sizes:
            if n_gpus % (pp * tp) or cfg.heads % tp or cfg.layers % pp:
                continue
            stage = n_gpus // pp
            for ep in sizes:
                for etp in sizes:
                    if stage % (ep * etp) == 0 and cfg.experts % ep == 0 and cfg.ffn % etp == 0:
                        yield Plan(dp=stage // tp, tp=tp, pp=pp, ep=ep, etp=etp)


def fullest(cfg, plan):
    """`by_rank` of a large model: a layer, and both ends, by their shapes."""
    kv = cfg.kv * cfg.h // cfg.heads
    layer = (2 * cfg.h * cfg.h + 2 * cfg.h * kv) // plan.tp + 2 * cfg.h
    layer += cfg.h * cfg.experts if cfg.experts > 1 else 0
    layer += cfg.experts // plan.ep * (3 * cfg.h * cfg.ffn // plan.etp)
    ends = (1 if plan.pp > 1 else 2) * -(-cfg.vocab // plan.tp) * cfg.h + cfg.h
    return cfg.layers // plan.pp * layer + ends
