"""Kata week26/lora_mlp_backward: a SwiGLU MLP and three projections with LoRA, backward by hand.

Frozen weights get no gradient, every product of an adapter is thin, and what is cheap is
recomputed instead of kept.
"""

from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


class Quantized(Protocol):
    """A frozen weight that is kept in fewer bits."""

    shape: torch.Size
    dtype: torch.dtype

    def dequant(self) -> Tensor:
        """Return the whole weight, a new tensor each time."""


class Lora(NamedTuple):
    """x wᵀ + s (x aᵀ) bᵀ: w is [out, in] and frozen, a [r, in], b [out, r]."""

    w: Tensor | Quantized
    a: Tensor
    b: Tensor
    s: float


class _LoraMlp(torch.autograd.Function):
    """Keeps x and what gate and up make of it; `frozen` has w and s of gate, up, down."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        x: Tensor,
        frozen: tuple[tuple[Tensor | Quantized, float], ...],
        *adapters: Tensor,
    ) -> Tensor:
        # project and keep
        gate, up, down = _loras(frozen, adapters)
        e, g = _project(x, gate), _project(x, up)
        ctx.frozen = frozen
        ctx.save_for_backward(x, e, g, *adapters)
        return _project(F.silu(e).mul_(g), down)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        # what is wanted
        x, e, g, *adapters = ctx.saved_tensors
        gate, up, down = _loras(ctx.frozen, adapters)
        for_x, _, *wanted = ctx.needs_input_grad
        for_gate, for_up, for_down = wanted[::2]  # a and b alike
        deeper = for_x or for_gate or for_up
        # back through down
        h = F.silu(e).mul_(g) if for_down else None
        dh, *of_down = _backward(h, dy, down, for_down, deeper)
        del h
        if not deeper:
            return (None, None, None, None, None, None, *of_down)
        # back through up and gate
        # two buffers as large as e for all that follows; e and g may be read again
        buffer = F.silu(e).mul_(dh)
        dx, *of_up = _backward(x, buffer, up, for_up, for_x)
        if for_x or for_gate:
            torch.sigmoid(e, out=buffer)
            dh.mul_(g).mul_(buffer)
            torch.addcmul(e, e, buffer, value=-1, out=buffer)
            dh.addcmul_(dh, buffer)
        dx, *of_gate = _backward(x, dh, gate, for_gate, for_x, dx)
        return (dx, None, *of_gate, *of_up, *of_down)


class _LoraQkv(torch.autograd.Function):
    """Keeps x alone; `frozen` has w and s of three projections."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        x: Tensor,
        frozen: tuple[tuple[Tensor | Quantized, float], ...],
        *adapters: Tensor,
    ) -> tuple[Tensor, ...]:
        # project and keep
        ctx.frozen = frozen
        ctx.save_for_backward(x, *adapters)
        ctx.set_materialize_grads(False)
        return tuple(_project(x, lora) for lora in _loras(frozen, adapters))

    @staticmethod
    def backward(ctx: Any, *douts: Tensor | None) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        # what is wanted
        x, *adapters = ctx.saved_tensors
        for_x, _, *wanted = ctx.needs_input_grad
        dx, grads = None, []
        loras = _loras(ctx.frozen, adapters)
        # thin gradients
        for lora, dy, for_lora in zip(loras, douts, wanted[::2], strict=True):
            if dy is None:  # this output was not used
                grads += [None, None]
                continue
            dx, *own = _backward(x, dy, lora, for_lora, for_x, dx)
            grads += own
        return (dx, None, *grads)


def lora_mlp(x: Float[Tensor, "t d"], gate: Lora, up: Lora, down: Lora) -> Float[Tensor, "t n"]:
    """
    down(silu(gate(x)) * up(x)), differentiable in x and in each a and b.

    For backward x, gate(x) and up(x) are kept; the weights are in place or quantised.

    Raises:
        ValueError: of `gate`, `up` or `down` w requires a gradient, or w, a, b and what it is
            applied to do not fit in shape or dtype. The message begins with the name.

    Source: Unsloth, kernels/fast_lora.py.
    """
    # check
    _check("gate", gate, x.shape[1], x.dtype)
    _check("up", up, x.shape[1], x.dtype, out=gate.w.shape[0])
    _check("down", down, gate.w.shape[0], x.dtype)
    # project and keep
    return _apply(_LoraMlp, x, (gate, up, down))


def lora_qkv(
    x: Float[Tensor, "t d"], q: Lora, k: Lora, v: Lora
) -> tuple[Float[Tensor, "t n"], Float[Tensor, "t m"], Float[Tensor, "t p"]]:
    """
    q(x), k(x) and v(x), differentiable in x and in each a and b.

    For backward x alone is kept.

    Raises:
        ValueError: as `lora_mlp`, of `q`, `k` or `v`.
    """
    # check
    for name, lora in (("q", q), ("k", k), ("v", v)):
        _check(name, lora, x.shape[1], x.dtype)
    # project and keep
    return _apply(_LoraQkv, x, (q, k, v))


def lora_mlp_backward(
    x: Float[Tensor, "t d"],
    dy: Float[Tensor, "t d"],
    wg: Float[Tensor, "f d"],
    ag: Float[Tensor, "r d"],
    bg: Float[Tensor, "f r"],
    sg: float,
    wu: Float[Tensor, "f d"],
    au: Float[Tensor, "r d"],
    bu: Float[Tensor, "f r"],
    su: float,
    wd: Float[Tensor, "d f"],
    ad: Float[Tensor, "r f"],
    bd: Float[Tensor, "d r"],
    sd: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return y of `lora_mlp` and, for the upstream gradient `dy`, those of x and the adapters."""
    leaves = [one.detach().requires_grad_() for one in (x, ag, bg, au, bu, ad, bd)]
    x, ag, bg, au, bu, ad, bd = leaves
    with torch.enable_grad():
        y = lora_mlp(x, Lora(wg, ag, bg, sg), Lora(wu, au, bu, su), Lora(wd, ad, bd, sd))
        grads = torch.autograd.grad(y, leaves, dy)
    return y.detach(), *grads


def _apply(function: Any, x: Tensor, loras: tuple[Lora, ...]) -> Any:  # noqa: ANN401
    frozen = tuple((lora.w, lora.s) for lora in loras)
    return function.apply(x, frozen, *(one for lora in loras for one in (lora.a, lora.b)))


def _loras(
    frozen: tuple[tuple[Tensor | Quantized, float], ...],
    adapters: Any,  # noqa: ANN401
) -> list[Lora]:
    return [
        Lora(w, a, b, s) for (w, s), a, b in zip(frozen, adapters[::2], adapters[1::2], strict=True)
    ]


def _dense(w: Tensor | Quantized) -> Tensor:
    return w if isinstance(w, Tensor) else w.dequant()


def _project(x: Tensor, lora: Lora) -> Tensor:
    y = x @ _dense(lora.w).t()
    return y.addmm_(x @ lora.a.t(), lora.b.t(), alpha=lora.s)


def _backward(
    x: Tensor | None,
    dy: Tensor,
    lora: Lora,
    for_lora: bool,
    for_x: bool,
    dx: Tensor | None = None,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Add the gradient of x to `dx`, if it is wanted; return it, and those of a and b."""
    # thin gradients
    da = db = None
    p = dy @ lora.b if for_lora or for_x else None  # [t, r]
    if for_lora:
        da = (p.t() @ x).mul_(lora.s)
        db = (dy.t() @ (x @ lora.a.t())).mul_(lora.s)
    if for_x:
        w = _dense(lora.w)
        dx = dy @ w if dx is None else dx.addmm_(dy, w)
        dx.addmm_(p, lora.a, alpha=lora.s)
    return dx, da, db


def _check(name: str, lora: Lora, width: int, dtype: torch.dtype, out: int | None = None) -> None:
    # check
    rows, columns = lora.w.shape
    r = len(lora.a)
    if getattr(lora.w, "requires_grad", False):
        raise ValueError(f"{name}: expected a frozen weight, found one that requires a gradient")
    if columns != width or rows != (rows if out is None else out):
        raise ValueError(f"{name}: expected w [{out or 'out'}, {width}], found {lora.w.shape}")
    if lora.a.shape != (r, width) or lora.b.shape != (rows, r):
        expected = f"a [r, {width}] and b [{rows}, r]"
        raise ValueError(f"{name}: expected {expected}, found {lora.a.shape} and {lora.b.shape}")
    if {lora.w.dtype, lora.a.dtype, lora.b.dtype} != {dtype}:
        raise ValueError(f"{name}: expected all of {dtype}, as x, found others")
