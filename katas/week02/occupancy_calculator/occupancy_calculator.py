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
    # TODO(kata): check, warps of a block, warps of a partition, shared memory of a block, resource
    # that allows the fewest (about 25 lines with helpers)
    raise NotImplementedError


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
    raise NotImplementedError  # TODO(kata): search the block sizes (about 9 lines)
