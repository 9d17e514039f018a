"""The six originals as they ran eagerly, what to feed them, and logs with what is in them."""

import re
from pathlib import Path

import numpy as np
import torch

# ---- the originals -------------------------------------------------------------------------


def clip_norm(x, limit):
    norm = x.norm()
    if norm.item() > limit:
        return x * (limit / norm)
    return x


def mean_of_positive(x):
    positive = x[x > 0]
    return positive.sum() / max(len(positive), 1)


def reported(x):
    print("energy", x.square().sum())  # noqa: T201 -- the side effect to be rid of
    return torch.nn.functional.silu(x)


def binned(x, edges, table):
    bins = np.digitize(x.detach().cpu().numpy(), edges.cpu().numpy())
    return x * table[torch.from_numpy(bins).to(x.device)]


def sorted_rows(x):
    rows = sorted(x, key=lambda row: row[0])
    return torch.stack(rows) if rows else x


def smoothed(x, decay):
    now, out = torch.zeros_like(x[:1]), []
    for t in range(x.shape[0]):
        now = decay * now + x[t : t + 1]
        out.append(now)
    return torch.cat(out) if out else x


# ---- what to feed --------------------------------------------------------------------------

NAMES = ["clip_norm", "mean_of_positive", "reported", "binned", "sorted_rows", "smoothed"]
LENGTHS = [7, 64, 2, 33, 3, 50, 5, 12, 63, 4, 21, 8, 16, 40, 31, 6, 57, 10, 28, 45]  # 20 of them


def arguments(name, x):
    """All arguments of a function, for these rows."""
    if name == "clip_norm":
        return x, 2.0
    if name == "binned":
        edges = torch.tensor([-0.5, 0.0, 0.25, 1.0]).to(x)
        return x, edges, torch.tensor([3.0, -1.0, 0.5, 2.0, 7.0]).to(x)
    return (x, 0.9) if name == "smoothed" else (x,)


def rows_of(length, seed, device="cpu", dtype=torch.float32, cols=3):
    generator = torch.Generator().manual_seed(seed * 100 + length)
    return torch.randn(length, cols, generator=generator).to(device, dtype)


def inputs(name, seed, device):
    """Inputs of every kind: what they are, and the arguments."""
    made = {f"{n} rows": rows_of(n, seed, device) for n in (1, 2, 3, 5, 8, 13, 40)}
    some = made["5 rows"]
    made |= {
        "no rows": some[:0],
        "only zeros": some * 0,
        "only negative": -some.abs() - 0.1,
        "only positive": some.abs() + 0.1,
        "one positive": torch.tensor([[-1.0, 3, 0], [-2, -0.5, 0]], device=device),
        "small": some * 1e-3,
        "large": some * 1e3,
        "strided": rows_of(4, seed, device, cols=8)[:, ::2],
        "transposed": rows_of(4, seed, device).t(),
        "rows alike": some[:1].expand(4, -1).clone(),
        "float64": rows_of(9, seed, device, torch.float64),
        "one column": rows_of(6, seed, device, cols=1),
        "halves": (rows_of(12, seed, device) * 2).round() / 2,  # ties, and values on edges
        "signed zeros": torch.tensor([[0.0, 1], [-1, 2], [-0.0, 3], [0.0, -4]], device=device),
    }
    return [(what, arguments(name, x)) for what, x in made.items()]


# ---- logs ----------------------------------------------------------------------------------

DATA = Path(__file__).parent / "data"
OWN = "/home/ada/gpt/layers.py"
# cause and line of every graph break in graph_breaks.log; None where it is told again
GRAPH_BREAKS = [
    ("scalar", 15),
    ("branch", 21),
    ("shape", 27),
    ("side effect", 37),
    ("numpy", 48),
    ("builtin", 53),
    ("scalar", 57),
    ("scalar", 61),
    ("other", 61),  # in statistics.py
    ("other", 70),  # torch.compiler.disable
    ("scalar", 15),  # two calls down
    None,
    None,
]
# causes and line of every recompilation in recompiles.log
RECOMPILES = [
    (["size"], 87),
    (["size"], 87),
    (["dtype"], 95),
    (["dtype", "size"], 95),
    (["requires_grad", "dtype"], 95),
    (["dtype"], 95),
    (["dtype", "requires_grad", "size"], 95),
    (["value"], 99),
    (["global", "value"], 99),
    (["size"], 103),
    (["size"], 103),
    (["size"], 103),
    (["other"], 109),
    (["other"], 109),
    (["other", "size"], 109),
    (["size", "other"], 109),
]


def text(name):
    return (DATA / f"{name}.log").read_text()


def records():
    """Each record of both logs as text, and the (cause, line) that are in it."""
    parts = re.split(r"(?m)^(?=.*\] Graph break .*in user code at )", text("graph_breaks"))
    breaks = [
        (part, [] if told is None else [told])
        for part, told in zip(parts[1:], GRAPH_BREAKS, strict=True)
    ]
    parts = re.split(r"(?m)^(?=.*\] Recompiling function )", text("recompiles"))
    return breaks + [
        (part, [(cause, line) for cause in causes])
        for part, (causes, line) in zip(parts[1:], RECOMPILES, strict=True)
    ]
