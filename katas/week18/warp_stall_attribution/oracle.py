"""What is right: pages of real kernels, labelled by hand; written pages, and dataflow forwards."""

import csv
import gzip
import io
from pathlib import Path

DATA = Path(__file__).with_name("data")
KERNELS = (
    *("pointer_chase", "exp_heavy", "transpose_smem"),
    *("layernorm_sync", "triton_64x64", "spilling_dot"),
)
# opcode and reason that cost most, read from the pages by hand; transpose_smem has no single one
TOP = {
    "pointer_chase": ("LDG", "long_sb"),
    "exp_heavy": ("MUFU", "mio"),
    "layernorm_sync": ("LDG", "long_sb"),
    "triton_64x64": ("LDGSTS", "long_sb"),  # the page shows it at a BAR.SYNC behind DEPBAR
    "spilling_dot": ("LDG", "long_sb"),
}

BASE = 0x7F0000000000  # where written pages begin


def captured(name):
    """Lines of the source page of a kernel on an H200."""
    text = gzip.decompress((DATA / f"{name}.csv.gz").read_bytes()).decode()
    return text.splitlines(keepends=True)


def written(code, kernel="planted(int, float *)"):
    """
    A page of (sass, samples) pairs, or of sass alone; "@P0 BRA 3" goes to instruction 3.

    Columns of samples that were not issued have other numbers.
    """
    code = [(one, {}) if isinstance(one, str) else one for one in code]
    reasons = sorted({"wait", "long_sb", *(name for _, samples in code for name in samples)})
    file = io.StringIO()
    writer = csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerow(["Kernel Name", kernel])
    stalls = [f"stall_{reason}" for reason in reasons]
    writer.writerow(
        ["Address", "Source", "# Samples", *stalls, *(f"{name} (Not Issued)" for name in stalls)]
    )
    for at, (sass, samples) in enumerate(code):
        words = sass.split()
        if words[-1].isdigit() and ("BRA" in sass or "CALL" in sass):
            words[-1] = hex(addr(int(words[-1])))
        counts = [samples.get(reason, 0) for reason in reasons]
        writer.writerow(
            [
                hex(addr(at)),
                "      " + " ".join(words) + " ",
                sum(counts),
                *counts,
                *(7 for _ in counts),
            ]
        )
    return file.getvalue().splitlines(keepends=True)


def addr(at):
    return BASE + 16 * at


def at_places(blamed):
    """Blame by number of the instruction, for comparison."""
    return {(where - BASE) // 16: reasons for where, reasons in blamed.items()}


def reaching(code):
    """
    Which writes of each register may reach each instruction: forwards, until nothing changes.

    `code` is a list of (kind, register, target): "LDG" and "MOV" write the register, "@P0 LDG"
    may; "BRA" and "@P0 BRA" go to the target.
    """
    into = [set() for _ in code]
    changed = True
    while changed:
        changed = False
        for at, (kind, register, target) in enumerate(code):
            out = set(into[at])
            if "BRA" not in kind and kind != "FADD":
                if not kind.startswith("@"):
                    out = {write for write in out if write[1] != register}
                out.add((at, register))
            following = [] if kind == "BRA" else [at + 1]
            if "BRA" in kind:
                following.append(target)
            for to in following:
                if to < len(code) and not out <= into[to]:
                    into[to] |= out
                    changed = True
    return into
