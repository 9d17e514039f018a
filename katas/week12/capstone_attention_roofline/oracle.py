"""A virtual GPU whose times are known, work counted tensor by tensor, and rows computed again."""

import math
from fractions import Fraction

EFFICIENCY = {"naive": 0.5, "sdpa": 0.75, "flash": 0.25}  # shares of the roof
WARM = 3.0  # how much faster it goes with everything in the cache
COMPILE_S = 0.2
# shares of the time, no two alike: mostly noise, and one launch in ten that something disturbs
JITTER = (
    1.01, 0.98, 1.0, 1.02, 9.0, 0.99, 1.03, 0.97, 1.04, 0.96,
    1.015, 0.985, 1.005, 1.025, 8.0, 0.995, 1.035, 0.975, 1.045, 0.965,
)  # fmt: skip


class VirtualBench:
    """A GPU with a clock, a cache and a compiler. What its attentions return are labels."""

    def __init__(self, kata, machine, *, wrong=None, clock=1.0, timed=None):
        self.kata, self.machine = kata, machine
        self.wrong, self.clock, self.launches = wrong, clock, timed
        self.shapes = []  # of the inputs made
        self.timed = []  # (impl, shape), in order
        self.asked = []  # repetitions and bytes to flush
        self.compiled = set()
        self.launched = None  # implementation, shape, seconds for its first launch

    def inputs(self, shape):
        self.shapes.append(shape)
        return len(self.shapes) - 1, shape

    def attentions(self):
        """The implementations, by name, and one that nobody asked for."""
        return {name: self._attention(name) for name in ("other", "flash", "sdpa", "naive")}

    def _attention(self, name):
        def launch(inputs, causal):
            number, shape = inputs
            assert causal == shape.causal, f"{name}: causal = {causal} for {shape}"
            new = (name, shape) not in self.compiled
            self.compiled.add((name, shape))
            self.launched = name, shape, COMPILE_S if new else 0.0
            return name, number, name == self.wrong and shape.n > 512

        return launch

    def agree(self, found, expected):
        assert expected[0] == "naive", f"expected to be held against naive, found {expected[0]}"
        return found[1:] == expected[1:]

    def seconds(self, launch, *, repetitions, flush_bytes):
        samples = []
        for i in range(self.launches or repetitions):
            launch()
            name, shape, first = self.launched
            seconds = true_seconds(name, shape, self.machine)
            if flush_bytes < 2 * self.machine.l2_bytes:
                seconds /= WARM
            samples.append((seconds * jitter(i) + first) * self.clock)
        self.timed.append((name, shape))
        self.asked.append((repetitions, flush_bytes))
        return samples


def jitter(launch):
    return JITTER[launch % len(JITTER)] * (1 + 1e-5 * (launch // len(JITTER)))


def true_seconds(impl, shape, machine):
    """With a cold cache, undisturbed."""
    flops, moved, _ = work("naive" if impl == "naive" else "flash", shape)
    return max(flops / machine.peak, moved / machine.bandwidth) / EFFICIENCY.get(impl, 1.0)


def work(impl, shape):
    """FLOPs, bytes moved, bytes stored in between: operand by operand."""
    matrix = [shape.n, shape.d, shape.itemsize]
    square = [shape.n, shape.n, shape.itemsize]
    statistics = [shape.n, 4]
    q = k = v = o = matrix
    if impl == "naive":
        moved, stored = [q, k, square, square, square, square, v, o], [square, square]
    else:
        moved, stored = [q, k, v, o, statistics], [statistics]
    heads = shape.batch * shape.heads
    products = Fraction(2 * shape.n * shape.n * shape.d * 2, 2 if shape.causal else 1)
    total = [heads * sum(math.prod(size) for size in sizes) for sizes in (moved, stored)]
    return int(heads * products), *total


def row(kata, impl, shape, machine, samples):
    """The row that these samples make."""
    p20, p50, p80 = (_percentile(samples, percent) for percent in (20, 50, 80))
    return timed_row(kata, impl, shape, machine, p20, p50, p80, len(samples))


def timed_row(kata, impl, shape, machine, p20, p50, p80, repetitions=20):
    flops, moved, stored = work(impl, shape)
    intensity, speed = flops / moved, flops / p50
    return kata.Row(
        impl=impl, batch=shape.batch, heads=shape.heads, n=shape.n, d=shape.d,
        itemsize=shape.itemsize, causal=shape.causal, repetitions=repetitions,
        p20_s=p20, p50_s=p50, p80_s=p80, flops=flops, bytes=moved, stored_bytes=stored,
        intensity=intensity, flops_per_s=speed, fraction=speed / roof(intensity, machine),
    )  # fmt: skip


def _percentile(samples, percent):
    """The smallest sample that at least so many percent do not exceed."""
    enough = Fraction(percent * len(samples), 100)
    return min(x for x in samples if sum(y <= x for y in samples) >= enough)


def roof(intensity, machine):
    return min(machine.peak, intensity * machine.bandwidth)
