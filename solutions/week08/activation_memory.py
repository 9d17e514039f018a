"""Kata week08/activation_memory: what each operator of a layer keeps, as three sums of terms.

Tensors that a tensor-parallel rank holds whole, those it holds a share of, and those that grow
with the square of the sequence.
"""

import torch
from torch import Tensor, nn

RECOMPUTE = ("none", "selective", "full")


def layer_activation_bytes(
    s: int,
    b: int,
    h: int,
    a: int,
    *,
    elt: int = 2,
    dropout: bool = True,
    mask_bytes: int = 1,
    stat_bytes: int = 0,
    flash: bool = False,
    tp: int = 1,
    sp: bool = False,
    recompute: str = "none",
) -> int:
    """
    Bytes that one transformer layer keeps for its backward pass on one rank.

    Sequence `s`, batch `b`, width `h`, `a` heads; an element of an activation has `elt` bytes,
    of a dropout mask `mask_bytes`, and a mean or reciprocal deviation of a norm `stat_bytes`.
    `flash` keeps no s by s matrices, and one fp32 number for each query of each head instead.
    `tp` ranks share heads and hidden units; with `sp` they share the sequence elsewhere. With
    "selective" recomputation what lies between queries, keys, values and the attention's output
    is not kept; with "full" nothing is but the layer's input.

    Raises:
        ValueError: `a` below 1 or no divisor of `h`, `tp` below 1 or no divisor of `a` or, with
            `sp`, of `s`, `sp` where `tp` is 1, `recompute` not in `RECOMPUTE`. The message begins
            with the argument's name.

    Source: Korthikanti et al. 2022, sections 4 and 5.
    """
    # check
    if a < 1 or h % a:
        raise ValueError(f"a: expected a divisor of h = {h}, found {a}")
    if tp < 1 or a % tp:
        raise ValueError(f"tp: expected a divisor of a = {a}, found {tp}")
    if sp and tp == 1:
        raise ValueError("sp: expected tp above 1 where the sequence is divided, found tp = 1")
    if sp and s % tp:
        raise ValueError(f"tp: expected a divisor of s = {s} where sp divides it, found {tp}")
    _check_recompute(recompute)
    # whole on each rank
    tokens = s * b
    between = tp if sp else 1  # how many ranks share what lies between the parallel parts
    if recompute == "full":
        return tokens * h * elt // between
    masks = mask_bytes if dropout else 0
    # both norms' and both column-parallel layers' inputs, two masks, two statistics a norm
    whole = tokens * (h * (4 * elt + 2 * masks) + 4 * stat_bytes)
    # divided over the ranks
    # q, k, v, the output projection's input, GELU's input and output
    shared = tokens * h * (3 + 1 + 4 + 4) * elt
    # attention core
    if recompute == "selective":
        core = 0
    elif flash:
        core = a * tokens * 4
    else:  # the softmax's output; a mask and what it leaves of that
        core = a * s * tokens * (elt + (masks + elt if dropout else 0))
    return whole // between + (shared + core) // tp


def recompute_flops_overhead(s: int, h: int, mode: str) -> float:
    """
    FLOPs of recomputation as a share of a layer's forward and backward pass without it.

    Matrix products alone; a backward pass has twice the FLOPs of the forward pass.

    Raises:
        ValueError: `mode` is not in `RECOMPUTE`. The message begins with "mode".

    Source: Korthikanti et al. 2022, section 5 and appendix A.
    """
    # FLOPs that run twice
    _check_recompute(mode, "mode")
    core = 2 * s  # a token's products with s keys and s values of width h, over 2h FLOPs each
    forward = 12 * h + core  # and with the layer's 12 h² weights
    again = {"none": 0, "selective": core, "full": forward}[mode]
    return again / (3 * forward)


def measured_bytes(layer: nn.Module, x: Tensor) -> int:
    """
    Bytes that autograd keeps for the backward pass of `layer(x)`, which is run once.

    Each distinct storage counts once, whole, however many views of it are saved. What belongs
    to the layer, its parameters and buffers, does not count; its input does, where it is saved.
    """
    # saved storages
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: Tensor) -> Tensor:
        # the storage itself: alive, it shares its address with no other
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        layer(x)
    for own in (*layer.parameters(), *layer.buffers()):
        kept.pop(own.untyped_storage().data_ptr(), None)
    return sum(storage.nbytes() for storage in kept.values())


def _check_recompute(mode: str, name: str = "recompute") -> None:
    if mode not in RECOMPUTE:
        raise ValueError(f"{name}: expected one of {', '.join(RECOMPUTE)}, found {mode!r}")
