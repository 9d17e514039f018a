"""What is right: counters of an H200, the profiler's own rates, and requests byte by byte."""

import csv
import gzip
from collections import defaultdict
from pathlib import Path

DATA = Path(__file__).with_name("data")

# launches of data/kernels.csv: bytes that lanes ask for, bytes that have to be loaded once, advice
MIB = 1 << 20
LABELS = {
    0: ("copy_vec4", 512 * MIB, 512 * MIB, "none"),
    1: ("copy_strided", 64 * MIB, 64 * MIB, "coalesce"),
    2: ("copy_l2_resident", 320 * MIB, 8 * MIB, "block for L1"),  # 40 times the same 8 MiB
    3: ("copy_low_occupancy", 512 * MIB, 512 * MIB, "none"),
    4: ("pointer_chase", 256_000, 256_000, "coalesce"),
    6: ("small_grid_sum", 32 * MIB, 32 * MIB, "none"),
    7: ("exp_heavy", 128 * MIB, 128 * MIB, "none"),
    8: ("histogram_global_atomics", 256 * MIB, 256 * MIB, "none"),
    9: ("transpose_smem, conflicts", 256 * MIB, 256 * MIB, "swizzle"),
    10: ("transpose_smem, padded", 256 * MIB, 256 * MIB, "none"),
    12: ("layernorm_sync", 1536 * MIB, 512 * MIB, "none"),  # read three times, L1 has the rest
    13: ("layernorm_cp_async", 1536 * MIB, 512 * MIB, "none"),
    14: ("layernorm_sync", 1536 * MIB, 512 * MIB, "none"),
    15: ("cuBLAS", 0, 64 * MIB, "block for L2"),  # loads by TMA alone
    16: ("Triton 64x64x32", 4096 * MIB, 64 * MIB, "block for L2"),
    17: ("Triton 128x256x64", 1536 * MIB, 64 * MIB, "block for L2"),
}

SHORT = {
    "requests": "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    "sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "l1_hits": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld_lookup_hit.sum",
    "l2_sectors": "lts__t_sectors_srcunit_tex_op_read.sum",
    "l2_hits": "lts__t_sectors_srcunit_tex_op_read_lookup_hit.sum",
    "read": "dram__bytes_read.sum",
    "written": "dram__bytes_write.sum",
    "wavefronts": "memory_l1_wavefronts_shared",
    "ideal": "memory_l1_wavefronts_shared_ideal",
}


def captured():
    """The 18 launches of data/kernels.csv: counters as integers, the kernel's name."""
    with (DATA / "kernels.csv").open(encoding="utf-8", newline="") as file:
        return [
            {name: int(cell) if "_" in name else cell for name, cell in row.items()}
            for row in csv.DictReader(file)
        ]


def profiler_rates():
    """(L1, L2) hit rates that the profiler prints for their loads and reads, as fractions."""
    with (DATA / "profiler.csv").open(encoding="utf-8", newline="") as file:
        return [
            tuple(float(row[name]) / 100 for name in row if name.endswith(".pct"))
            for row in csv.DictReader(file)
        ]


def planted(**counters):
    """Counters of a launch: those given under short names, 0 for the others."""
    return {name: counters.get(short, 0) for short, name in SHORT.items()} | {
        "Kernel Name": "planted(float *)",
        # what is no global load
        "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum": 1_000_003,
        "l1tex__t_sectors_pipe_lsu_mem_global_op_red.sum": 1_000_033,
        "lts__t_sectors_srcunit_tex_op_write.sum": 2_000_029,
        "lts__t_sectors.sum": 9_000_011,
    }


def measured():
    """Rows of data/patterns.csv.gz, numbers as integers; cells that were not measured are None."""
    text = gzip.decompress((DATA / "patterns.csv.gz").read_bytes()).decode()
    rows = []
    for row in csv.DictReader(text.splitlines()):
        offsets = tuple(int(word) for word in row.pop("offsets").split())
        numbers = {
            name: int(cell) if cell.isdigit() else (cell or None) for name, cell in row.items()
        }
        rows.append(numbers | {"offsets": offsets})
    return rows


def patterns(kata):
    """Those as `Pattern`."""
    return [
        kata.Pattern(
            id=row["id"],
            space=row["space"],
            op=row["op"],
            width=row["width"],
            offsets=row["offsets"],
            requests=row["requests"],
            count=row["sectors"] if row["space"] == "global" else row["wavefronts"],
        )
        for row in measured()
    ]


def request(offsets, width, space):
    """Sectors, or wavefronts, of one request: byte by byte, a wavefront after the other."""
    if space == "global":
        return len({byte // 32 for start in offsets for byte in range(start, start + width)})
    wavefronts = 0
    lanes = list(offsets)
    while lanes:
        phase, lanes = lanes[: 128 // width], lanes[128 // width :]
        waiting = defaultdict(set)
        for start in phase:
            for byte in range(start, start + width):
                waiting[byte // 4 % 32].add(byte // 4)
        while any(waiting.values()):
            wavefronts += 1
            for words in waiting.values():
                if words:
                    words.pop()
    return wavefronts
