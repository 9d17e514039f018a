"""What is right: every choice of experts counted, every message sent, every width tried."""

from fractions import Fraction
from itertools import combinations
from math import exp, log1p


def ranks_by_counting(E, P, k):
    """Mean number of ranks with an expert, over all choices of k of E experts."""
    here = E // P
    counts = [len({e // here for e in chosen}) for chosen in combinations(range(E), k)]
    return Fraction(sum(counts), len(counts))


def experts_by_counting(E, k, tokens):
    """Mean number of experts chosen, token by token: how likely each number is after each."""
    likely = {0: Fraction(1)}
    choices = len([*combinations(range(E), k)])
    for _ in range(tokens):
        after = {}
        for touched, weight in likely.items():
            for chosen in combinations(range(E), k):
                new = touched + sum(e >= touched for e in chosen)
                after[new] = after.get(new, 0) + weight / choices
        likely = after
    return sum(number * weight for number, weight in likely.items())


def chance(E, P, k):
    """That a rank has at least one of k experts: each one in turn misses it."""
    missed = 1.0
    for drawn in range(k):
        missed *= max(0, E - E // P - drawn) / (E - drawn)
    return 1 - missed


def a2a_by_messages(tokens, k, hidden, itemsize, P, E, links):
    """
    Send all messages of all ranks; a port sends one at a time, and receives one at a time.

    In each round every rank sends to the one that is so many nodes and places on.
    """
    nbytes = tokens * chance(E, P, k) * hidden * itemsize
    near = min(P, links.gpus_per_node)
    nodes = P // near
    sends, receives, last = {}, {}, 0.0
    for node_on in range(nodes):
        for place_on in range(near):
            if node_on == place_on == 0:
                continue
            kind, alpha, bw = (
                ("nic", links.inter_alpha, links.inter_bw)
                if node_on
                else ("nvlink", links.intra_alpha, links.intra_bw)
            )
            for rank in range(P):
                node, place = divmod(rank, near)
                to = (node + node_on) % nodes * near + (place + place_on) % near
                start = max(sends.get((rank, kind), 0.0), receives.get((to, kind), 0.0))
                end = start + alpha + nbytes / bw
                sends[rank, kind] = receives[to, kind] = end
                last = max(last, end)
    return last


def a2a(tokens, k, hidden, itemsize, P, E, links):
    """Add up the messages of one rank, port by port."""
    nbytes = tokens * chance(E, P, k) * hidden * itemsize
    near = min(P, links.gpus_per_node)
    nvlink = sum(links.intra_alpha + nbytes / links.intra_bw for _ in range(1, near))
    nic = sum(links.inter_alpha + nbytes / links.inter_bw for _ in range(near, P))
    return max(nvlink, nic)


def step(batch, ep, cfg, gpu):
    """Seconds of a decode step, by part."""
    read = cfg.dense_params * cfg.weight_itemsize + batch * cfg.context * cfg.kv_bytes
    attn = max(read / gpu.bytes_per_s, batch * cfg.dense_params * 2 / gpu.flops_per_s)
    params = cfg.hidden * cfg.inner * 3
    chosen = -exp(batch * ep * log1p(-cfg.k / cfg.E)) + 1 if cfg.k < cfg.E else 1
    rows = batch * ep * cfg.k / ep
    one_layer = max(
        cfg.E / ep * chosen * params * cfg.weight_itemsize / gpu.bytes_per_s,
        rows * params * 2 / gpu.flops_per_s,
    )
    there, back = (
        a2a(batch, cfg.k, cfg.hidden, itemsize, ep, cfg.E, gpu.links)
        for itemsize in (cfg.dispatch_itemsize, cfg.combine_itemsize)
    )
    parts = {
        "attn": attn,
        "experts": one_layer * cfg.layers,
        "a2a": (there + back) * cfg.layers,
    }
    return parts | {"total": sum(parts.values())}


def memory(batch, ep, cfg):
    """Bytes on each GPU."""
    routed = cfg.layers * cfg.E * 3 * cfg.hidden * cfg.inner / ep
    cache = batch * cfg.context * cfg.kv_bytes
    return routed * cfg.weight_itemsize + cfg.dense_params * cfg.weight_itemsize + cache


def widths(cfg, gpu):
    """Divisors of the experts that fill their nodes, or stay in one."""
    per_node = gpu.links.gpus_per_node
    divisors = [ep for ep in range(1, cfg.E + 1) if cfg.E % ep == 0]
    return [ep for ep in divisors if ep <= per_node or ep % per_node == 0]


def possible(batch, cfg, gpu, slo_s):
    """Width to tokens a second and GPU, of all that fit and are fast enough."""
    return {
        ep: batch / step(batch, ep, cfg, gpu)["total"]
        for ep in widths(cfg, gpu)
        if memory(batch, ep, cfg) <= gpu.memory_bytes
        and step(batch, ep, cfg, gpu)["total"] <= slo_s
    }
