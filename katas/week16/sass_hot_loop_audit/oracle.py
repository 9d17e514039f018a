"""What is right: loops by reachability alone, listings labelled by hand, listings written here."""

import gzip
from pathlib import Path

# compiled from Triton by ptxas: a GEMM for sm_90a with TMA and WGMMA, the same with small tiles
# (mma.sync), attention in float32 for sm_80
DATA = Path(__file__).parent / "data"

# (header, latches) of each natural loop, read from the listings by hand; the
# BRA to itself after the last EXIT is padding that nothing reaches
LOOPS = {
    "wgmma_gemm": [(0x380, (0x1370,)), (0x2A90, (0x69B0,)), (0x6A80, (0x6A90,))],
    "mma_gemm": [(0x2D0, (0x6D0,)), (0x1910, (0x2290,)), (0x2330, (0x2350,))],
    "attention": [(0xB20, (0x5F50,))],
}


def listing(name):
    return gzip.decompress((DATA / f"{name}.sass.gz").read_bytes()).decode()


def written(lines):
    """A listing of instructions such as "@P0 BRA 3", where 3 is the number of an instruction."""
    text = ["\t\tFunction : written"]
    for at, line in enumerate(lines):
        words = line.split()
        if words[-1].isdigit() and ("BRA" in line or "CALL" in line):
            words[-1] = hex(16 * int(words[-1]))
        text.append(f"        /*{16 * at:04x}*/  {' '.join(words)} ;   /* 0x0000000000007918 */")
        text.append("                            /* 0x000fc00000000000 */")
    return "\n".join(text)


def edges(lines):
    """By number: where each of those lines may go on."""
    found = {}
    for at, line in enumerate(lines):
        goes = {int(line.split()[-1])} if "BRA" in line or "CALL" in line else set()
        stops = line.startswith(("EXIT", "RET")) or (line.startswith("BRA") and "," not in line)
        found[at] = goes if stops or at + 1 == len(lines) else goes | {at + 1}
    return found


def reached(after, start, without=None):
    found, todo = set(), [start]
    while todo:
        at = todo.pop()
        if at not in found and at != without:
            found.add(at)
            todo += after[at]
    return found


def loops(lines):
    """(header, latches, body) in bytes: a header is on every way to its latches."""
    after = edges(lines)
    live = reached(after, 0)
    found = []
    for header in sorted(live):
        others = reached(after, 0, without=header)
        latches = [at for at in sorted(live - others) if header in after[at]]
        if latches:
            body = {
                at
                for at in live
                if at == header or set(latches) & reached(after, at, without=header)
            }
            found.append((header, latches, body))
    return [
        (16 * header, tuple(16 * at for at in latches), frozenset(16 * at for at in body))
        for header, latches, body in found
    ]
