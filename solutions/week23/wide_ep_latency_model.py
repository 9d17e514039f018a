"""Kata week23/wide_ep_latency_model: what a decode step of an MoE costs at each width of EP.

Bytes are bytes, times are seconds, rates are per second; all counts are expectations.
"""

from dataclasses import dataclass
from math import comb


@dataclass(frozen=True, kw_only=True)
class Links:
    """
    What joins GPUs: NVLink within a node, a NIC for each GPU between nodes.

    Attributes:
        gpus_per_node: GPUs that NVLink joins.
        intra_alpha, inter_alpha: Seconds that each message costs, within and between nodes.
        intra_bw, inter_bw: Bytes a second of a GPU's port, in one direction.
    """

    gpus_per_node: int
    intra_alpha: float
    intra_bw: float
    inter_alpha: float
    inter_bw: float


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU at its peaks, and its links."""

    flops_per_s: float
    bytes_per_s: float
    memory_bytes: float
    links: Links


@dataclass(frozen=True, kw_only=True)
class Moe:
    """
    A model as decode sees it.

    Attributes:
        layers: MoE layers.
        inner: Inner width of one expert, which has three matrices of hidden x inner.
        E, k: Experts of a layer, and how many different ones a token chooses.
        dense_params: Everything but the routed experts, of all layers; every GPU has it.
        kv_bytes: Cache of one token, of all layers.
        context: Tokens in the cache of each sequence.
        weight_itemsize, dispatch_itemsize, combine_itemsize: Bytes of an element of the weights,
            and of the rows on their way to the experts and back.
    """

    layers: int
    hidden: int
    inner: int
    E: int
    k: int
    dense_params: float
    kv_bytes: int
    context: int
    weight_itemsize: int
    dispatch_itemsize: int
    combine_itemsize: int


# NVLink 4 and NDR, NVLink 5 and NDR; peaks of FP8; latencies modelled after DeepEP's times
HGX = Links(gpus_per_node=8, intra_alpha=0.2e-6, intra_bw=450e9, inter_alpha=0.2e-6, inter_bw=50e9)
NVL72 = Links(
    gpus_per_node=72, intra_alpha=0.2e-6, intra_bw=900e9, inter_alpha=0.2e-6, inter_bw=50e9
)
H100 = Gpu(flops_per_s=1979e12, bytes_per_s=3.35e12, memory_bytes=80e9, links=HGX)
H200 = Gpu(flops_per_s=1979e12, bytes_per_s=4.8e12, memory_bytes=141e9, links=HGX)
GB200 = Gpu(flops_per_s=5000e12, bytes_per_s=8e12, memory_bytes=186e9, links=NVL72)
DEEPSEEK_V3 = Moe(
    layers=58,
    hidden=7168,
    inner=2048,
    E=256,
    k=8,
    dense_params=17.1e9,
    kv_bytes=61 * 576 * 2,
    context=4096,
    weight_itemsize=1,
    dispatch_itemsize=1,
    combine_itemsize=2,
)
MIXTRAL_8X7B = Moe(
    layers=32,
    hidden=4096,
    inner=14336,
    E=8,
    k=2,
    dense_params=1_605_636_096,
    kv_bytes=32 * 2 * 8 * 128 * 2,
    context=4096,
    weight_itemsize=1,
    dispatch_itemsize=1,
    combine_itemsize=2,
)


def expected_ranks(E: int, P: int, k: int) -> float:
    """
    Return on how many of `P` ranks a token has experts if it chooses `k` of `E` at random.

    Raises:
        ValueError: P does not divide E; k is not from 1 to E.
    """
    # check
    _check_experts(E, P, k)
    # expected numbers
    return P * (1 - comb(E - E // P, k) / comb(E, k))


def expected_experts(E: int, k: int, tokens: int) -> float:
    """
    Return how many of `E` experts at least one of `tokens` tokens chooses.

    Raises:
        ValueError: k is not from 1 to E; tokens below 0.
    """
    # check
    _check_experts(E, 1, k)
    if tokens < 0:
        raise ValueError(f"tokens: expected at least 0, found {tokens}.")
    # expected numbers
    return E * (1 - (1 - k / E) ** tokens)


def a2a_time(
    tokens: float, k: int, hidden: int, itemsize: int, P: int, E: int, links: Links
) -> float:
    """
    Return the seconds in which each of `P` ranks sends its `tokens` to the ranks of their experts.

    Each token goes once to each of these ranks, as one row of `hidden` elements.

    Raises:
        ValueError: P does not divide E, or leaves a node partly used; k is not from 1 to E; tokens
            below 0; a bandwidth of links is not above 0.
    """
    # check
    if tokens < 0:
        raise ValueError(f"tokens: expected at least 0, found {tokens}.")
    # time of the busier port
    nbytes = tokens * _row_bytes(k, hidden, itemsize, P, E)
    ports = _ports(P, links)
    return max(peers * (alpha + nbytes / bw) for peers, alpha, bw in ports)


def crossover_tokens(k: int, hidden: int, itemsize: int, P: int, E: int, links: Links) -> float:
    """
    Return the tokens a rank with which `a2a_time` is twice that of no tokens.

    Raises:
        ValueError: as `a2a_time`; P is 1.
    """
    # check
    nbytes = _row_bytes(k, hidden, itemsize, P, E)
    ports = _ports(P, links)
    if P == 1:
        raise ValueError("P: expected more than 1 rank, found 1.")
    # twice the latency
    latency = max(peers * alpha for peers, alpha, _ in ports)
    return min(
        (2 * latency - peers * alpha) / (peers * nbytes / bw) for peers, alpha, bw in ports if peers
    )


def _row_bytes(k: int, hidden: int, itemsize: int, P: int, E: int) -> float:
    """Return the bytes that one token sends to one rank."""
    return expected_ranks(E, P, k) / P * hidden * itemsize


def _ports(P: int, links: Links) -> list[tuple[int, float, float]]:
    """Return peers, latency and bandwidth of both ports of a GPU."""
    # check
    if not (links.intra_bw > 0 and links.inter_bw > 0):
        raise ValueError(f"links: expected bandwidths above 0, found {links}.")
    # time of the busier port
    near = min(P, links.gpus_per_node)
    if P % near:
        raise ValueError(f"P: expected whole nodes of {near}, found {P}.")
    return [
        (near - 1, links.intra_alpha, links.intra_bw),
        (P - near, links.inter_alpha, links.inter_bw),
    ]


def _check_experts(E: int, P: int, k: int) -> None:
    if P < 1 or E % P:
        raise ValueError(f"P: expected a divisor of {E} experts, found {P}.")
    if not 1 <= k <= E:
        raise ValueError(f"k: expected 1 to {E}, found {k}.")


def moe_decode_step_time(batch: int, ep: int, cfg: Moe, gpu: Gpu) -> dict[str, float]:
    """
    Return the seconds of one step: "attn", "experts", "a2a" and their sum, "total".

    Each of `ep` GPUs decodes `batch` tokens, one of each sequence, and has E / ep experts a layer.

    Raises:
        ValueError: ep is no width for this model and these links; batch below 1.
    """
    # check
    _check_width(batch, ep, cfg, gpu)
    # parts of a step
    dense_bytes = cfg.dense_params * cfg.weight_itemsize
    cache = batch * cfg.context * cfg.kv_bytes
    attn = max(
        2 * cfg.dense_params * batch / gpu.flops_per_s, (dense_bytes + cache) / gpu.bytes_per_s
    )
    weights = 3 * cfg.hidden * cfg.inner
    touched = expected_experts(cfg.E, cfg.k, batch * ep) / ep
    experts = cfg.layers * max(
        2 * weights * batch * cfg.k / gpu.flops_per_s,
        touched * weights * cfg.weight_itemsize / gpu.bytes_per_s,
    )
    a2a = cfg.layers * sum(
        a2a_time(batch, cfg.k, cfg.hidden, itemsize, ep, cfg.E, gpu.links)
        for itemsize in (cfg.dispatch_itemsize, cfg.combine_itemsize)
    )
    return {"attn": attn, "experts": experts, "a2a": a2a, "total": attn + experts + a2a}


def memory_bytes(batch: int, ep: int, cfg: Moe) -> float:
    """Return the bytes of weights and cache on each GPU; `ep` divides E."""
    experts = cfg.layers * (cfg.E // ep) * 3 * cfg.hidden * cfg.inner
    return (cfg.dense_params + experts) * cfg.weight_itemsize + batch * cfg.context * cfg.kv_bytes


def best_ep(batch: int, cfg: Moe, gpu: Gpu, slo_s: float) -> tuple[int, float] | None:
    """
    Return the width with the most tokens a second and GPU, and these; None if there is none.

    A width has to fit in memory and to step in `slo_s` seconds at most.

    Raises:
        ValueError: batch below 1.
    """
    # check
    if batch < 1:
        raise ValueError(f"batch: expected at least 1, found {batch}.")
    # widths that fit
    per_node = gpu.links.gpus_per_node
    found = []
    for ep in range(1, cfg.E + 1):
        if cfg.E % ep or ep % min(ep, per_node):
            continue
        if memory_bytes(batch, ep, cfg) > gpu.memory_bytes:
            continue
        seconds = moe_decode_step_time(batch, ep, cfg, gpu)["total"]
        if seconds <= slo_s:
            found.append((ep, batch / seconds))
    return max(found, key=lambda one: one[1], default=None)


def _check_width(batch: int, ep: int, cfg: Moe, gpu: Gpu) -> None:
    per_node = gpu.links.gpus_per_node
    if ep < 1 or cfg.E % ep or ep % min(ep, per_node):
        raise ValueError(f"ep: expected a divisor of {cfg.E} in whole nodes, found {ep}.")
    if batch < 1:
        raise ValueError(f"batch: expected at least 1, found {batch}.")
