"""What is right: the tables of the PTX ISA, and the best tile of all that could be."""

# (shape, factors, accumulators): the first of ARCHS that has it, or None
WMMA = {
    "half": [
        ((16, 16, 16), "f16", "f32", "sm_75"),
        ((8, 32, 16), "f16", "f16", "sm_75"),
        ((32, 8, 16), "f16", "f32", "sm_75"),
        ((16, 16, 8), "f16", "f32", None),
        ((16, 8, 16), "f16", "f32", None),
    ],
    "other types": [
        ((16, 16, 16), "bf16", "f32", "sm_80"),
        ((16, 16, 16), "bf16", "f16", None),
        ((16, 16, 8), "tf32", "f32", "sm_80"),
        ((16, 16, 16), "tf32", "f32", None),
        ((8, 8, 4), "f64", "f64", "sm_80"),
        ((32, 8, 16), "s8", "s32", "sm_75"),
    ],
    "no fp8": [
        ((16, 16, 16), "e4m3", "f32", None),
        ((16, 16, 32), "e5m2", "f32", None),
    ],
}
MMA_SYNC = {
    "16 bits": [
        ((16, 8, 8), "f16", "f16", "sm_75"),
        ((16, 8, 16), "f16", "f32", "sm_80"),
        ((16, 16, 16), "f16", "f32", None),
        ((16, 8, 16), "bf16", "f32", "sm_80"),
        ((16, 8, 16), "bf16", "f16", None),
    ],
    "32 and 64 bits": [
        ((16, 8, 4), "tf32", "f32", "sm_80"),
        ((16, 8, 16), "tf32", "f32", None),
        ((8, 8, 4), "f64", "f64", "sm_80"),
        ((16, 8, 16), "f64", "f64", "sm_90"),
    ],
    "integers": [
        ((8, 8, 16), "s8", "s32", "sm_75"),
        ((16, 8, 32), "s8", "s32", "sm_80"),
        ((16, 8, 32), "s8", "f32", None),
    ],
    "fp8": [
        ((16, 8, 32), "e4m3", "f32", "sm_89"),
        ((16, 8, 32), "e5m2", "f16", "sm_89"),
    ],
}
AROUND = {  # where the answer may change: on this architecture, and on the one before
    "sm_75": ["sm_75", "sm_120"],
    "sm_80": ["sm_75", "sm_80"],
    "sm_89": ["sm_80", "sm_89"],
    "sm_90": ["sm_89", "sm_90"],
    None: ["sm_80", "sm_120"],
}


def questions(rows, archs):
    """Each question of these rows where its answer may change, and the answer."""
    for shape, ab, acc, first in rows:
        for arch in AROUND[first]:
            exists = first is not None and archs.index(arch) >= archs.index(first)
            yield (shape, ab, acc, arch), exists


def best_tile(flops_per_clk, ab_bytes, most=512):
    """The best of all tiles with sides up to `most`."""
    fed = [
        (m * n, m + n, m, n)
        for m in range(16, most + 1, 16)
        for n in range(8, most + 1, 8)
        # of one column of A and one row of B: bytes read at 128 a cycle, FLOPs made
        if (m + n) * ab_bytes * flops_per_clk <= 128 * 2 * m * n
    ]
    return min(fed)[2:]
