"""Kata week10/graph_break_idioms: read why Dynamo stopped tracing, and write what it can trace."""

import re
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

# phrases in the order in which they are looked for, and the causes they stand for
BREAKS = {
    "Tensor.item()": "scalar",
    "Tensor.tolist()": "scalar",
    "Data dependent operator": "scalar",
    "Data-dependent branching": "branch",
    "Dynamic shape operator": "shape",
    "numpy function": "numpy",
    "`print`": "side effect",
    "builtin operator": "builtin",
}
RECOMPILES = {
    "size mismatch": "size",
    "rank mismatch": "size",
    ".size()[": "size",
    "dtype mismatch": "dtype",
    "requires_grad mismatch": "requires_grad",
    "G[": "global",
    " == ": "value",
}
LIBRARY = "/lib/python3."  # in the path of a file that is not one's own


@dataclass(frozen=True)
class Break:
    """Why the graph ended, or did not fit again, and where in the user's code."""

    cause: str
    file: str
    line: int


def classify(log: str) -> list[Break]:
    """
    The graph breaks and recompilations of a log of TORCH_LOGS=graph_breaks,recompiles, in order.

    A cause is the first of `BREAKS` or `RECOMPILES` whose phrase is found, or "other".

    Raises:
        ValueError: the log has neither; the message begins with "log".
    """
    # records of the log
    found, seen = [], False
    for record in _records(log):
        seen = True
        # cause and place
        head = record[0]
        if head.startswith("Recompiling"):
            found += _recompile(record)
        elif "suppressed due to duplicate" not in head:
            found.append(_graph_break(record))
    if not seen:
        raise ValueError("log: expected a graph break or a recompilation, found none")
    return found


def clip_norm(x: Float[Tensor, "rows cols"], limit: float) -> Float[Tensor, "rows cols"]:
    """`oracle.clip_norm` without asking for the norm: scaled down to `limit`, if it is above."""
    norm = x.norm()
    above = norm > limit
    # divides by 1 where nothing is clipped, for a gradient of 0 / 0 is no number
    return x * torch.where(above, limit / torch.where(above, norm, 1.0), 1.0)


def mean_of_positive(x: Float[Tensor, "rows cols"]) -> Float[Tensor, ""]:
    """`oracle.mean_of_positive` without gathering them; 0 where there are none."""
    positive = x > 0
    return torch.where(positive, x, 0.0).sum() / positive.sum().clamp(min=1)


def reported(
    x: Float[Tensor, "rows cols"],
) -> tuple[Float[Tensor, "rows cols"], Float[Tensor, ""]]:
    """`oracle.reported`, which returns what that prints, as a tensor without gradient."""
    return torch.nn.functional.silu(x), x.detach().square().sum()


def binned(
    x: Float[Tensor, "rows cols"], edges: Float[Tensor, " edges"], table: Float[Tensor, " bins"]
) -> Float[Tensor, "rows cols"]:
    """`oracle.binned` without NumPy: each element times the entry of its bin."""
    return x * table[torch.bucketize(x, edges, right=True)]


def sorted_rows(x: Float[Tensor, "rows cols"]) -> Float[Tensor, "rows cols"]:
    """`oracle.sorted_rows` without comparing tensors in Python: by the first column, stable."""
    return x[x[:, 0].argsort(stable=True)]


def smoothed(x: Float[Tensor, "rows cols"], decay: float) -> Float[Tensor, "rows cols"]:
    """`oracle.smoothed` without a loop: row t is the sum of decay^(t - s) · row s up to t."""
    at = torch.arange(x.shape[0], device=x.device)
    lag = at[:, None] - at
    # above the diagonal the powers are negative, and may be infinite: left out, not times 0
    weights = decay ** lag.to(x.dtype)
    return torch.where(lag >= 0, weights, 0.0) @ x


def _records(log: str) -> list[list[str]]:
    # records of the log
    records: list[list[str]] = []
    for line in log.splitlines():
        tagged = re.search(r"\[__(?:graph_breaks|recompiles)\] (.*)", line)
        if not tagged:
            continue
        if re.match(r"Graph break .*in user code at |Recompiling function ", tagged[1]):
            records.append([])
        if records:
            records[-1].append(tagged[1])
    return records


def _graph_break(record: list[str]) -> Break:
    # cause and place
    lines = [line for line in record if line.strip()]
    why = next(at for at, line in enumerate(lines) if line.startswith("Graph Break Reason: "))
    if lines[why].endswith(":"):  # says only while doing what
        why += 1
    explained = "\n".join(lines[why : why + 2])
    frames = [
        re.fullmatch(r'  File "(.*)", line (\d+), in .*', line)
        for line in lines[lines.index("User code traceback:") :]
    ]
    own = [frame for frame in frames if frame and LIBRARY not in frame[1]]
    return Break(_cause(explained, BREAKS), own[-1][1], int(own[-1][2]))


def _recompile(record: list[str]) -> list[Break]:
    # cause and place
    file, line = record[0].split(" in ", 1)[1].rsplit(":", 1)
    failures = [re.match(r"    - \d+/\d+: ([^#]*)", failure) for failure in record]
    causes = [_cause(failure[1], RECOMPILES) for failure in failures if failure]
    return [Break(cause, file, int(line)) for cause in dict.fromkeys(causes)]


def _cause(text: str, causes: dict[str, str]) -> str:
    return next((cause for phrase, cause in causes.items() if phrase in text), "other")
