"""What is right: the profiler's own shares, labels of 18 kernels, and a profiler that selects."""

import argparse
import csv
import re
from dataclasses import replace
from pathlib import Path

DATA = Path(__file__).with_name("data")

# what each captured kernel was written to show, in the order of the file
LABELS = [
    ("copy_vec4", "bandwidth", "dram"),
    ("copy_strided", "bandwidth", "dram"),  # most of what it moves is unused
    ("copy_l2_resident", "bandwidth", "l2"),
    ("copy_low_occupancy", "latency", None),
    ("pointer_chase", "latency", None),
    ("tiny_add", "launch", None),
    ("small_grid_sum", "latency", None),  # 8 blocks
    ("exp_heavy", "compute", "xu"),
    ("histogram_global_atomics", "latency", None),
    ("transpose_smem, conflicts", "bandwidth", "l1"),
    ("transpose_smem, padded", "bandwidth", "dram"),
    ("spilling_dot", "bandwidth", "l2"),
    ("layernorm_sync, one block an SM", "latency", None),
    ("layernorm_cp_async, one block an SM", "latency", None),
    ("layernorm_sync, all blocks that fit", "compute", "issue"),  # 70 %, memory at 63 %
    ("cuBLAS", "compute", "tensor"),
    ("Triton 64x64x32", "bandwidth", "l2"),
    ("Triton 128x256x64", "compute", "tensor"),
]


def h200(profile, launch_s=2e-6):
    """`profile` with the launch floor of the GPU on which the captures were made."""
    return replace(profile, launch_s=launch_s)


def captured():
    """The 18 launches in data/kernels.csv, in base units, percentages as fractions."""
    with (DATA / "kernels.csv").open(encoding="utf-8", newline="") as file:
        header, units, *rows = csv.reader(file)
    scale = {"%": 0.01}
    return [
        {
            name: float(cell.replace(",", "")) * scale.get(unit, 1.0) if "__" in name else cell
            for name, unit, cell in zip(header, units, row, strict=True)
        }
        for row in rows
    ]


def profiler_shares():
    """What the profiler itself says of them: fractions by unit, a dictionary a launch."""
    with (DATA / "profiler.csv").open(encoding="utf-8", newline="") as file:
        return [
            {unit: float(cell) / 100 for unit, cell in row.items() if unit != "ID"}
            for row in csv.DictReader(file)
        ]


def planted(time_ns=1e6, launch_awake=1.0, **shares):
    """A launch that reaches these shares of the peaks, of SMs awake for `launch_awake` of it."""
    shares = {"sm": 0.0, "memory": 0.0} | shares

    def share(unit):
        return shares.get(unit, 0.0)

    sm_cycles = 2.0 * time_ns  # at 2 GHz
    dram_bytes = share("dram") * 1000 * 3 * time_ns
    return {
        "Kernel Name": "planted(float *, int)",
        "gpu__time_duration.sum": time_ns,
        "sm__throughput.avg.pct_of_peak_sustained_elapsed": share("sm"),
        "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed": share("memory"),
        "dram__bytes_read.sum": 0.25 * dram_bytes,
        "dram__bytes_write.sum": 0.75 * dram_bytes,
        "dram__bytes.sum.peak_sustained": 1000.0,
        "dram__cycles_elapsed.avg.per_second": 3e9,
        "lts__throughput.avg.pct_of_peak_sustained_elapsed": share("l2"),
        "l1tex__throughput.avg.pct_of_peak_sustained_active": share("l1") / (launch_awake / 2),
        "l1tex__cycles_active.avg": launch_awake / 2 * sm_cycles,
        "l1tex__cycles_elapsed.avg": sm_cycles,
        "smsp__inst_issued.sum": share("issue") * 400 * sm_cycles,
        "smsp__cycles_elapsed.sum": 400 * sm_cycles,
        "sm__pipe_alu_cycles_active.avg.pct_of_peak_sustained_active": share("alu") / launch_awake,
        "sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_active": share("fma") / launch_awake,
        "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active": share("tensor")
        / launch_awake,
        "sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active": share("xu") / launch_awake,
        "sm__cycles_active.avg": launch_awake * sm_cycles,
        "sm__cycles_elapsed.avg": sm_cycles,
    }


def profiled(argv, launches):
    """
    What the command line profiles of kernels launched in this order, as their numbers, and
    its other options. As in the profiler, only launches with a matching name are counted.
    """
    parser = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
    for option in ("kernel-name", "clock-control", "export"):
        parser.add_argument(f"--{option}")
    parser.add_argument("--launch-skip", type=int, default=0)
    parser.add_argument("--launch-count", type=int, default=len(launches))
    parser.add_argument("--section", action="append")
    options, unknown = parser.parse_known_args(argv[1:])
    assert argv[0] == "ncu", f"expected ncu first, found {argv}"
    joined = [word for word in argv if re.match("--[a-z-]+=", word)]
    assert not joined, f"expected each value as a word of its own, found {joined}"
    assert not unknown, f"expected long options and their values, found {unknown}"
    kind, _, pattern = options.kernel_name.partition(":")
    assert kind == "regex", f"expected --kernel-name regex:…, found {options.kernel_name}"
    matching = [at for at, name in enumerate(launches) if re.search(pattern, name)]
    first = options.launch_skip
    return matching[first : first + options.launch_count], options
