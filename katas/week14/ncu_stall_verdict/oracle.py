"""What is right: what the profiler says of the same runs, and exports with planted values."""

import csv
import io
from dataclasses import replace
from pathlib import Path

DATA = Path(__file__).with_name("data")
RAW = {"kernels": 15, "gemm": 3}  # launches in each capture
SAMPLES = "smsp__pcsamp_warps_issue_stalled_"
SAMPLED_AS = {"warpgroup_arrive": "gmma", "no_instructions": "no_instruction"}


def h200(profile):
    """`profile` with the bandwidth of the GPU on which the captures were made."""
    return replace(profile, bandwidth=4.8e12)


def lines_of(name):
    return (DATA / f"{name}.csv").read_text(encoding="utf-8").splitlines(keepends=True)


def cells_of(name):
    """Cells of the raw page as they are written: a dictionary a launch."""
    header, _, *rows = csv.reader(lines_of(name))
    return [dict(zip(header, row, strict=True)) for row in rows]


def details(name):
    """(value, unit) of each metric of the details page: a dictionary a launch."""
    found = [{} for _ in range(RAW[name])]
    for row in csv.DictReader(lines_of(f"{name}_details")):
        value = float(row["Metric Value"].replace(",", ""))
        found[int(row["ID"])][row["Metric Name"]] = (value, row["Metric Unit"])
    return found


def sampled_shares(cells):
    """Shares of the stall reasons among the samples of warps, which another unit counts."""
    samples = {
        SAMPLED_AS.get(reason, reason): int(cell)
        for name, cell in cells.items()
        if name.startswith(SAMPLES) and (reason := name.removeprefix(SAMPLES)) != "selected"
    }
    total = sum(samples.values())
    return {reason: count / total for reason, count in samples.items()} if total else {}


def export(units, *rows):
    """Lines of a raw page: `units` of the metrics by name, a dictionary of cells a launch."""
    header = ["ID", "Kernel Name", *units]
    file = io.StringIO()
    writer = csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerow(header)
    writer.writerow(["", "", *units.values()])
    for at, row in enumerate(rows):
        writer.writerow([row.get(name, str(at) if name == "ID" else "") for name in header])
    return file.getvalue().splitlines(keepends=True)


def stall(reason):
    return f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio"


def launch(time_s=1.0, read=0.0, write=0.0, issued=1.0, **stalls):
    """A launch as parsed, with these metrics alone."""
    return {
        "Kernel Name": "planted(int, float *)",
        "gpu__time_duration.sum": time_s,
        "dram__bytes_read.sum": read,
        "dram__bytes_write.sum": write,
        "smsp__inst_executed.sum": issued,
    } | {stall(reason): ratio for reason, ratio in stalls.items()}
