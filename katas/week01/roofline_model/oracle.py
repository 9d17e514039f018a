"""What is right: every batch tried in exact fractions, algebra, and ops of known cost."""

from collections.abc import Callable
from fractions import Fraction

CostFn = Callable[[int], tuple[float, float]]


def linear(k: int, n: int, itemsize: int) -> CostFn:
    """[batch, k] @ [k, n]: the weight is read once, the activations come and go with the batch."""
    return lambda batch: (2 * batch * k * n, itemsize * (batch * k + k * n + batch * n))


def square_matmul(itemsize: int) -> CostFn:
    """[n, n] @ [n, n] for n = batch."""
    return lambda n: (2 * n**3, 3 * itemsize * n**2)


def decode_attention(length: int, width: int, itemsize: int) -> CostFn:
    """One new token per sequence against its own cache of K and V: nothing is shared."""
    return lambda batch: (4 * batch * length * width, itemsize * 2 * batch * length * width)


def step(threshold: int, ridge: int) -> CostFn:
    """Half the ridge's intensity below `threshold`, twice the ridge's from there on."""
    return lambda batch: (float(ridge * (4 if batch >= threshold else 1)), 2.0)


def first_compute_bound(cost_fn: CostFn, peak: float, bandwidth: float, hi: int) -> int | None:
    """Try every batch, in exact arithmetic."""
    ridge = Fraction(peak) / Fraction(bandwidth)
    for batch in range(1, hi + 1):
        flops, moved = cost_fn(batch)
        if Fraction(flops) >= ridge * Fraction(moved):
            return batch
    return None


def linear_crossover(k: int, n: int, itemsize: int, ridge: Fraction) -> int | None:
    """Solve 2·B·k·n ≥ ridge·s·(B·k + k·n + B·n) for the smallest integer B."""
    gain = 2 * k * n - itemsize * ridge * (k + n)
    if gain <= 0:
        return None
    return -((-itemsize * ridge * k * n) // gain)
