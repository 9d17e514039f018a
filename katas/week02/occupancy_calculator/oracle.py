"""What is right: what a profiler and the driver said on a real GPU, and warps placed one by one."""

# (threads, registers per thread, bytes of shared memory) -> resident warps, in per cent of 64.
# Nsight Compute 2025.3 on one H200 (sm__maximum_warps_per_active_cycle_pct): a GEMM of cuBLAS,
# two Triton GEMMs, LayerNorm, a transpose, a reduction, a dot product that spills.
PROFILED = {
    (384, 168, 213_188): 18.75,
    (128, 64, 16_384): 50.0,
    (256, 198, 147_456): 12.5,
    (256, 38, 123_008): 12.5,
    (256, 32, 8_320): 100.0,
    (256, 24, 4_224): 100.0,
    (256, 19, 0): 100.0,
    (1024, 64, 0): 50.0,
    (32, 22, 0): 50.0,
}

# bytes of dynamic shared memory -> blocks of 128 threads, by the CUDA driver's occupancy call
# on the same H200; the kernel has few registers
DRIVER = {
    232_448: 1, 115_712: 2, 76_800: 3, 57_344: 4, 45_056: 5, 37_888: 6, 31_744: 7, 27_648: 8,
    21_504: 10, 18_432: 12, 15_360: 14, 13_312: 16,
}  # fmt: skip


def resident_blocks(threads, regs_per_thread, smem_bytes, limits):
    """Place one block after the other, warp by warp, until one finds no room."""
    free_registers = [limits.registers // limits.partitions] * limits.partitions
    free_warps, free_smem = limits.warps, limits.smem_bytes
    wanted = portions(regs_per_thread * 32, limits.register_unit)
    for block in range(limits.blocks):
        free_smem -= portions(smem_bytes + limits.smem_reserved, limits.smem_unit)
        for _ in range(0, threads, 32):
            partition = max(range(limits.partitions), key=free_registers.__getitem__)
            free_registers[partition] -= wanted
            free_warps -= 1
        if min(*free_registers, free_warps, free_smem) < 0:
            return block
    return limits.blocks


def portions(value, unit):
    """Hand out `unit` after `unit` until it is enough."""
    return sum(unit for _ in range(0, value, unit))


def warps_by_size(occupancy, sizes, regs_per_thread, smem_fn, limits):
    """Resident warps of each block size that can be launched."""
    return {
        threads: occupancy(threads, regs_per_thread, smem_fn(threads), limits).warps
        for threads in sizes
        if smem_fn(threads) <= limits.smem_block_bytes
    }
