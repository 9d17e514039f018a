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
    raise NotImplementedError  # TODO(kata): check, expected numbers (about 7 lines with helpers)


def expected_experts(E: int, k: int, tokens: int) -> float:
    """
    Return how many of `E` experts at least one of `tokens` tokens chooses.

    Raises:
        ValueError: k is not from 1 to E; tokens below 0.
    """
    raise NotImplementedError  # TODO(kata): check, expected numbers (about 4 lines)


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
    # TODO(kata): check, time of the busier port (about 15 lines with helpers)
    raise NotImplementedError


def crossover_tokens(k: int, hidden: int, itemsize: int, P: int, E: int, links: Links) -> float:
    """
    Return the tokens a rank with which `a2a_time` is twice that of no tokens.

    Raises:
        ValueError: as `a2a_time`; P is 1.
    """
    raise NotImplementedError  # TODO(kata): check, twice the latency (about 8 lines)


def moe_decode_step_time(batch: int, ep: int, cfg: Moe, gpu: Gpu) -> dict[str, float]:
    """
    Return the seconds of one step: "attn", "experts", "a2a" and their sum, "total".

    Each of `ep` GPUs decodes `batch` tokens, one of each sequence, and has E / ep experts a layer.

    Raises:
        ValueError: ep is no width for this model and these links; batch below 1.
    """
    raise NotImplementedError  # TODO(kata): check, parts of a step (about 25 lines with helpers)


def memory_bytes(batch: int, ep: int, cfg: Moe) -> float:
    """Return the bytes of weights and cache on each GPU; `ep` divides E."""
    raise NotImplementedError  # TODO(kata): widths that fit (2 lines)


def best_ep(batch: int, cfg: Moe, gpu: Gpu, slo_s: float) -> tuple[int, float] | None:
    """
    Return the width with the most tokens a second and GPU, and these; None if there is none.

    A width has to fit in memory and to step in `slo_s` seconds at most.

    Raises:
        ValueError: batch below 1.
    """
    raise NotImplementedError  # TODO(kata): check, widths that fit (about 15 lines)
