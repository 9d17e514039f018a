"""How many blocks of a compiled kernel an SM holds at once, and what keeps it from more."""

from dataclasses import dataclass

from harness.base.errors import UsageProblem
from harness.hardware.profiles import Profile
from harness.meters.compiled import KernelFacts

SUBPARTITIONS = 4  # of an SM or a CU: each holds its share of warps and registers


@dataclass(frozen=True, slots=True, kw_only=True)
class Residency:
    """
    What an SM holds of one kernel.

    Attributes:
        blocks: Blocks (programs) at a time.
        share: Their warps over the most there can be.
        limits: What runs out first: "blocks", "registers", "shared memory", "warps".
    """

    blocks: int
    share: float
    limits: tuple[str, ...]


def residency(facts: KernelFacts, profile: Profile) -> Residency:
    """
    Count the blocks that fit on an SM of `profile`.

    Registers are given to each warp in units of 256 (AMD: 8 vector registers of 64 lanes) and
    from one of four partitions; shared memory to each block in units of 128 bytes, with 1 KiB
    reserved from sm_80 on (256 and nothing before; AMD: 512 and nothing).
    Source: cuda_occupancy.h; the AMD units from LLVM's AMDGPU usage guide.

    Raises:
        UsageProblem: `profile` is not of the GPU that the kernel was built for.
    """
    if profile.arch != facts.target:
        raise UsageProblem(
            f"occupancy of {facts.name}: expected a profile of {facts.target}, found {profile.id} "
            f"({profile.arch or 'no GPU'}). Name one in kata.toml `profile` or with --profile."
        )
    fitting = {
        "blocks": profile.blocks_per_sm,
        "registers": _warps_by_registers(facts, profile) // facts.num_warps,
        "shared memory": _blocks_by_shared_memory(facts, profile),
        "warps": profile.warps_per_sm // facts.num_warps,
    }
    blocks = min(fitting.values())
    return Residency(
        blocks=blocks,
        share=blocks * facts.num_warps / profile.warps_per_sm,
        limits=tuple(name for name, most in fitting.items() if most == blocks),
    )


def occupancy(facts: KernelFacts, profile: Profile) -> float:
    """Resident warps over the most there can be on an SM of `profile`: the share alone."""
    return residency(facts, profile).share


def _warps_by_registers(facts: KernelFacts, profile: Profile) -> int:
    unit = 512 if profile.vendor == "amd" else 256
    of_a_warp = _rounded_up(facts.registers * profile.warp_size, unit)
    return SUBPARTITIONS * (profile.registers_per_sm // SUBPARTITIONS // max(of_a_warp, unit))


def _blocks_by_shared_memory(facts: KernelFacts, profile: Profile) -> int:
    if profile.vendor == "amd":
        unit, reserved = 512, 0
    elif facts.target == "sm_75":
        unit, reserved = 256, 0
    else:
        unit, reserved = 128, 1024
    of_a_block = _rounded_up(facts.shared_bytes + reserved, unit)
    return profile.smem_per_sm_bytes // of_a_block if of_a_block else profile.blocks_per_sm


def _rounded_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
