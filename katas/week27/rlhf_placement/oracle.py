"""What is right: a GPU's bytes at every moment of an iteration, and events on groups of GPUs."""

import zlib
from functools import cache


def moments(cfg, placement, group):
    """Yield what a GPU of a group holds while each role of it works, in turn."""
    resident = 0.0
    for role in group.roles:
        if role != "generator" and role not in placement.offload:
            resident += kept(cfg, role, group.gpus)
    yield resident
    for role in group.roles:
        if role == "generator":
            replicas = group.gpus // placement.tp
            for replica in range(replicas):
                own = cfg.lengths[replica::replicas]
                for step in range(max(own, default=0) + 1):
                    running = sum(length >= step for length in own)
                    tokens = running * (cfg.prompt + step)
                    cache_bytes = tokens * kv_bytes(cfg.actor)
                    yield resident + (2 * cfg.actor.params + cache_bytes) / placement.tp
        if role in placement.offload:
            yield resident + kept(cfg, role, group.gpus)
        if role in ("actor", "critic"):
            model = getattr(cfg, role)
            yield resident + cfg.micro_tokens * model.layers * model.hidden * 2


def kv_bytes(model):
    return model.layers * 2 * model.kv_heads * (model.hidden // model.heads) * 2


def kept(cfg, role, gpus):
    """Add up a role's tensors on a GPU: whole, or a share of it, from which stage of ZeRO on."""
    if role == "reference" and cfg.shared_reference:
        return 0.0
    params = getattr(cfg, role).params
    tensors = [(2, 3)]  # weights: bytes, and the stage that shards them
    if role in ("actor", "critic"):
        tensors += [(2, 2), (4, 1), (4, 1), (4, 1)]
    return sum(size * params / (gpus if cfg.zero >= stage else 1) for size, stage in tensors)


@cache
def generation(cfg, machine, gpus, tp):
    """Decode step by step on each replica, until the last one is done."""
    replicas, ends = gpus // tp, []
    for replica in range(replicas):
        own = cfg.lengths[replica::replicas]
        now = 2 * cfg.actor.params * cfg.prompt * len(own) / (tp * machine.flops * machine.mfu)
        for step in range(1, max(own, default=0) + 1):
            running = sum(length >= step for length in own)
            read = 2 * cfg.actor.params + running * (cfg.prompt + step) * kv_bytes(cfg.actor)
            now += max(
                read / tp / machine.bandwidth,
                2 * cfg.actor.params * running / tp / machine.flops,
                machine.decode_floor_s,
            )
        ends.append(now)
    return max(ends)


def group_of(placement, role):
    (found,) = [at for at, group in enumerate(placement.groups) if role in group.roles]
    return found


def simulate(cfg, placement, machine):
    """
    Run jobs as events: each begins when those before it have ended and its groups are free.

    Returns when each job ended, and the end of all.
    """
    tokens = sum(cfg.prompt + length for length in cfg.lengths)
    free, ended = [0.0] * len(placement.groups), {}

    def run(job, groups, after, seconds):
        start = max([ended[one] for one in after] + [free[at] for at in groups])
        ended[job] = start + seconds
        for at in groups:
            free[at] = ended[job]

    def passes(role):
        model = cfg.actor if role == "reference" and cfg.shared_reference else getattr(cfg, role)
        gpus = placement.groups[group_of(placement, role)].gpus
        return 2 * model.params * tokens / (gpus * machine.flops * machine.mfu)

    writer, actors = group_of(placement, "generator"), group_of(placement, "actor")
    gpus = placement.groups[writer].gpus
    run("generate", [writer], [], generation(cfg, machine, gpus, placement.tp))
    scorers = [role for role in ("reward", "reference", "critic") if role in cfg.roles]
    for role in scorers:
        at = group_of(placement, role)
        load = kept(cfg, role, placement.groups[at].gpus) if role in placement.offload else 0
        run(f"{role} scores", [at], ["generate"], passes(role) + load / machine.pcie_bytes_per_s)
    scored = [f"{role} scores" for role in scorers] or ["generate"]
    trained = [role for role in ("actor", "critic") if role in cfg.roles]
    for role in trained:
        run(f"{role} trains", [group_of(placement, role)], scored, 4 * passes(role))
    near = writer == actors
    rate = machine.within_bytes_per_s if near else machine.between_bytes_per_s
    sync = 2 * cfg.actor.params / placement.tp / rate
    run("sync", [writer, actors], ["actor trains"], sync)
    begins = max(ended[one] for one in scored)
    return {
        "generate": ended["generate"],
        "score": begins - ended["generate"],
        "train": max(ended[f"{role} trains"] for role in trained) - begins,
        "sync": sync,
        "total": max(ended.values()),
    }


def measured(cfg, placement, machine):
    """Measure as on a real cluster: off by up to 4 %, always by as much for a placement."""
    told = [(group.gpus, sorted(group.roles)) for group in placement.groups]
    told = repr((sorted(told), placement.tp, sorted(placement.offload)))
    off = zlib.crc32(told.encode()) % 8001 / 100_000 - 0.04
    return simulate(cfg, placement, machine)["total"] * (1 + off)
