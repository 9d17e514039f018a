"""Kata week02/occupancy_calculator: how many warps an SM can hold, and what holds it back.

Registers, shared memory, warps and blocks are handed out in portions: round up, then divide.
"""

from collections.abc import Callable
from dataclasses import dataclass

WARP = 32
MAX_THREADS = 1024  # of a block
MAX_REGISTERS = 255  # of a thread


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one SM of an architecture has, and in which portions it is allocated."""

    warps: int  # places for warps
    blocks: int  # places for blocks
    registers: int  # of 4 bytes, all partitions together
    partitions: int  # each with an equal share of the registers and its own warps
    register_unit: int  # a warp gets a multiple of this many registers
    smem_bytes: int  # of shared memory, for all resident blocks
    smem_block_bytes: int  # of shared memory, the most that one block may ask for
    smem_unit: int  # a block gets a multiple of this many bytes
    smem_reserved: int  # bytes that each block takes on top of what it asks for


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
    """
    What is resident on one SM.

    `fraction` is `warps` over the places for warps; `limiter` is "warps", "blocks", "registers"
    or "smem".
    """

    blocks: int
    warps: int
    fraction: float
    limiter: str


KIB = 1024
LIMITS = {
    "sm_75": Limits(
        warps=32, blocks=16, registers=65536, partitions=4, register_unit=256,
        smem_bytes=64 * KIB, smem_block_bytes=64 * KIB, smem_unit=256, smem_reserved=0,
    ),
    "sm_80": Limits(
        warps=64, blocks=32, registers=65536, partitions=4, register_unit=256,
        smem_bytes=164 * KIB, smem_block_bytes=163 * KIB, smem_unit=128, smem_reserved=KIB,
    ),
    "sm_89": Limits(
        warps=48, blocks=24, registers=65536, partitions=4, register_unit=256,
        smem_bytes=100 * KIB, smem_block_bytes=99 * KIB, smem_unit=128, smem_reserved=KIB,
    ),
    "sm_90": Limits(
        warps=64, blocks=32, registers=65536, partitions=4, register_unit=256,
        smem_bytes=228 * KIB, smem_block_bytes=227 * KIB, smem_unit=128, smem_reserved=KIB,
    ),
}  # fmt: skip


def occupancy(threads: int, regs_per_thread: int, smem_bytes: int, limits: Limits) -> Occupancy:
    """
    Blocks and warps of a kernel that are resident on one SM at a time.

    Args:
        threads: Threads of a block, 1 to 1024.
        regs_per_thread: Registers of a thread as the compiler reports them, 1 to 255.
        smem_bytes: Shared memory that a block asks for, static and dynamic together.
        limits: Of the architecture.

    Raises:
        ValueError: an argument that no block may have; the message names it.
    """
    # check
    if not 1 <= threads <= MAX_THREADS:
        raise ValueError(f"threads: expected 1 to {MAX_THREADS}, found {threads}")
    if not 1 <= regs_per_thread <= MAX_REGISTERS:
        raise ValueError(f"regs_per_thread: expected 1 to {MAX_REGISTERS}, found {regs_per_thread}")
    if not 0 <= smem_bytes <= limits.smem_block_bytes:
        raise ValueError(f"smem_bytes: expected 0 to {limits.smem_block_bytes}, found {smem_bytes}")
    # warps of a block
    warps = -(-threads // WARP)
    # warps of a partition
    of_a_warp = _rounded_up(regs_per_thread * WARP, limits.register_unit)
    # what is left of a partition is lost: no warp straddles two of them
    in_a_partition = limits.registers // limits.partitions // of_a_warp
    # shared memory of a block
    of_a_block = _rounded_up(smem_bytes + limits.smem_reserved, limits.smem_unit)
    # resource that allows the fewest
    allowed = {
        "warps": limits.warps // warps,
        "blocks": limits.blocks,
        "registers": limits.partitions * in_a_partition // warps,
    }
    if of_a_block:
        allowed["smem"] = limits.smem_bytes // of_a_block
    limiter = min(allowed, key=allowed.__getitem__)  # the first of equals
    resident = allowed[limiter] * warps
    return Occupancy(
        blocks=allowed[limiter],
        warps=resident,
        fraction=resident / limits.warps,
        limiter=limiter,
    )


def best_block_size(regs_per_thread: int, smem_fn: Callable[[int], int], limits: Limits) -> int:
    """
    Threads per block, a multiple of 32, with the highest occupancy; at a tie the most threads.

    Args:
        regs_per_thread: Registers of a thread, whatever the block size.
        smem_fn: Threads of a block to the bytes of shared memory that it asks for. May be slow:
            call it at most 32 times.
        limits: Of the architecture.

    Raises:
        ValueError: no block size can be launched, the message names `smem_fn`; or
            `regs_per_thread` is out of range, then it names that.
    """
    # search the block sizes
    found = {}
    for threads in range(WARP, MAX_THREADS + 1, WARP):
        smem_bytes = smem_fn(threads)
        if smem_bytes <= limits.smem_block_bytes:
            found[threads] = occupancy(threads, regs_per_thread, smem_bytes, limits).warps
    best = max(found, key=lambda threads: (found[threads], threads), default=0)
    if not best or not found[best]:
        raise ValueError("smem_fn: expected a block size that can be launched, found none")
    return best


def _rounded_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
