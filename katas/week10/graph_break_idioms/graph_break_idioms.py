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
    # TODO(kata): records of the log, cause and place (about 40 lines with helpers)
    raise NotImplementedError


def clip_norm(x: Float[Tensor, "rows cols"], limit: float) -> Float[Tensor, "rows cols"]:
    """`oracle.clip_norm` without asking for the norm: scaled down to `limit`, if it is above."""
    raise NotImplementedError  # TODO(kata): no values in Python (3 lines)


def mean_of_positive(x: Float[Tensor, "rows cols"]) -> Float[Tensor, ""]:
    """`oracle.mean_of_positive` without gathering them; 0 where there are none."""
    raise NotImplementedError  # TODO(kata): no values in Python (2 lines)


def reported(
    x: Float[Tensor, "rows cols"],
) -> tuple[Float[Tensor, "rows cols"], Float[Tensor, ""]]:
    """`oracle.reported`, which returns what that prints, as a tensor without gradient."""
    raise NotImplementedError  # TODO(kata): no side effect (1 line)


def binned(
    x: Float[Tensor, "rows cols"], edges: Float[Tensor, " edges"], table: Float[Tensor, " bins"]
) -> Float[Tensor, "rows cols"]:
    """`oracle.binned` without NumPy: each element times the entry of its bin."""
    raise NotImplementedError  # TODO(kata): PyTorch operators only (1 line)


def sorted_rows(x: Float[Tensor, "rows cols"]) -> Float[Tensor, "rows cols"]:
    """`oracle.sorted_rows` without comparing tensors in Python: by the first column, stable."""
    raise NotImplementedError  # TODO(kata): PyTorch operators only (1 line)


def smoothed(x: Float[Tensor, "rows cols"], decay: float) -> Float[Tensor, "rows cols"]:
    """`oracle.smoothed` without a loop: row t is the sum of decay^(t - s) · row s up to t."""
    raise NotImplementedError  # TODO(kata): no loop over rows (about 4 lines)
