"""Kata week19/accelerator_roofline: memory, bandwidth and links of nine machines, held to a model.

All figures are published ones for one chip, in bytes, bytes per second and dense FLOP/s of 16 bits.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """What one chip has; a wafer counts as a chip."""

    memory_bytes: int
    bandwidth: float  # of that memory, bytes per second
    flops: float  # dense, per second, 16-bit operands
    host_link: float | None  # bytes per second from host memory; None: the host shares this memory


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of a mesh of chips: `n` chips in a row, with `wrap` closed to a ring."""

    n: int
    wrap: bool


GB, TB, TFLOP = 10**9, 1e12, 1e12
# Host links are one direction of a slot: PCIe 5.0 x16 is 64 GB/s, 4.0 x16 (Groq) 32 GB/s. Those of
# TPUs are of a chip, as the JAX scaling book has them; that of WSE-3 is the 1.2 Tb/s of Ethernet
# into a CS-3 system.
ACCELERATORS = {
    "H100": Accelerator(
        memory_bytes=80 * GB, bandwidth=3.35 * TB, flops=989.4 * TFLOP, host_link=64e9
    ),
    "H200": Accelerator(
        memory_bytes=141 * GB, bandwidth=4.8 * TB, flops=989.4 * TFLOP, host_link=64e9
    ),
    "MI300X": Accelerator(
        memory_bytes=192 * GB, bandwidth=5.3 * TB, flops=1307.4 * TFLOP, host_link=64e9
    ),
    "MI300A": Accelerator(
        memory_bytes=128 * GB, bandwidth=5.3 * TB, flops=980.6 * TFLOP, host_link=None
    ),
    "TPU v5e": Accelerator(
        memory_bytes=16 * GB, bandwidth=0.819 * TB, flops=197 * TFLOP, host_link=16e9
    ),
    "TPU v5p": Accelerator(
        memory_bytes=95 * GB, bandwidth=2.765 * TB, flops=459 * TFLOP, host_link=16e9
    ),
    "Gaudi 3": Accelerator(  # of its matrix engines, in bfloat16; in FP8 it is no more
        memory_bytes=128 * GB, bandwidth=3.7 * TB, flops=1835 * TFLOP, host_link=64e9
    ),
    "Groq LPU": Accelerator(  # float16; with INT8 it is 750 TOP/s
        memory_bytes=230 * 10**6, bandwidth=80 * TB, flops=188 * TFLOP, host_link=32e9
    ),
    "WSE-3": Accelerator(  # its maker does not say whether 125 PFLOP/s are dense
        memory_bytes=44 * GB, bandwidth=21_000 * TB, flops=125_000 * TFLOP, host_link=150e9
    ),
}


def chips_needed(weight_bytes: int, kv_bytes: int, acc: Accelerator, usable: float = 0.9) -> int:
    """
    Fewest chips whose usable memory together holds weights and KV cache; at least 1.

    Args:
        weight_bytes: Of the whole model.
        kv_bytes: Of all sequences.
        acc: The chip.
        usable: Share of a chip's memory that may be filled; the rest of a byte is dropped.

    Raises:
        ValueError: `usable` is not above 0 and at most 1; the message begins with its name.
    """
    # check
    if not 0 < usable <= 1:
        raise ValueError(f"usable: expected more than 0 and at most 1, found {usable}")
    # capacity
    return max(1, -(-(weight_bytes + kv_bytes) // int(usable * acc.memory_bytes)))


def decode_step_s(
    params: int, itemsize: int, kv_bytes: int, batch: int, chips: int, acc: Accelerator
) -> tuple[float, str]:
    """
    Seconds of one decode step, and whether "memory" or "compute" bounds it ("memory" at a tie).

    Args:
        params: Of the model; each is read once and costs a multiply-add per sequence.
        itemsize: Bytes of a parameter.
        kv_bytes: Of all sequences of the batch, read once.
        batch: Sequences.
        chips: They share bytes and FLOPs evenly.
        acc: The chip.

    Raises:
        ValueError: `batch` or `chips` below 1; the message begins with its name.
    """
    # check
    _check_positive(batch=batch, chips=chips)
    # memory against compute
    memory_s = (params * itemsize + kv_bytes) / (chips * acc.bandwidth)
    compute_s = 2 * params * batch / (chips * acc.flops)
    if memory_s >= compute_s:
        return memory_s, "memory"
    return compute_s, "compute"


def batch_ridge(acc: Accelerator, itemsize: int) -> float:
    """Sequences in a batch at which, without a KV cache, memory and compute take equally long."""
    return acc.flops * itemsize / (2 * acc.bandwidth)


def torus_all_gather_s(nbytes: int, axes: Sequence[Axis], link_bw: float, hop_s: float) -> float:
    """
    Seconds of an all-gather over all axes of a mesh.

    Args:
        nbytes: Of the gathered result, which begins in equal shards, one on each chip.
        axes: Of the mesh.
        link_bw: Bytes per second of a link in one of its two directions.
        hop_s: Latency of each step, on top of its bytes.

    Raises:
        ValueError: no axes, or one with n below 1; the message begins with `axes`.
    """
    # check
    if not axes:
        raise ValueError("axes: expected at least one, found none")
    if min(axis.n for axis in axes) < 1:
        raise ValueError(f"axes: expected n of 1 or more, found {axes}")
    # shards of the parts
    axes = [axis for axis in axes if axis.n > 1]
    held = [nbytes / len(axes) / math.prod(axis.n for axis in axes) for _ in axes]
    seconds = 0.0
    # slowest part of each phase
    for phase in range(len(axes)):
        slowest = 0.0
        for part in range(len(axes)):
            axis = axes[(part + phase) % len(axes)]
            block = held[part] / 2 if axis.wrap else held[part]
            slowest = max(slowest, (axis.n - 1) * (block / link_bw + hop_s))
            held[part] *= axis.n
        seconds += slowest
    return seconds


def host_weight_stream_s(nbytes: int, acc: Accelerator) -> float:
    """Seconds to read `nbytes` of weights once that lie in the host's memory."""
    return nbytes / (acc.bandwidth if acc.host_link is None else acc.host_link)


def cheapest(
    table: Mapping[str, Accelerator],
    params: int,
    itemsize: int,
    kv_bytes: int,
    batch: int,
    target_tok_s: float,
) -> tuple[str, int]:
    """
    The machine that needs the fewest chips, and how many; the first of `table` at a tie.

    The chips hold model and cache with 0.9 of their memory, and each sequence of the batch gets at
    least `target_tok_s` tokens per second.

    Raises:
        ValueError: an empty `table`, or a `target_tok_s` that is not above 0; the message begins
            with the name.
    """
    # check
    if not table:
        raise ValueError("table: expected at least one machine, found none")
    if not target_tok_s > 0:
        raise ValueError(f"target_tok_s: expected more than 0, found {target_tok_s}")

    # fewest chips
    def fewest(name: str) -> int:
        alone, _ = decode_step_s(params, itemsize, kv_bytes, batch, 1, table[name])
        fitting = chips_needed(params * itemsize, kv_bytes, table[name])
        return max(fitting, math.ceil(alone * target_tok_s))

    chips = {name: fewest(name) for name in table}
    best = min(chips, key=chips.__getitem__)
    return best, chips[best]


def _check_positive(**numbers: int) -> None:
    for name, number in numbers.items():
        if number < 1:
            raise ValueError(f"{name}: expected 1 or more, found {number}")
