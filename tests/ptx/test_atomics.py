"""Atomic operations on one place happen in a row, however they are worked out."""

import numpy as np
import pytest

from harness.simulators.ptx.atomics import updated
from harness.simulators.ptx.formats import UINT

PYTHONS = {
    "add": lambda old, new, _: old + new,
    "min": lambda old, new, _: min(old, new),
    "max": lambda old, new, _: max(old, new),
    "xor": lambda old, new, _: old ^ new,
    "exch": lambda old, new, _: new,
    "cas": lambda old, wanted, new: new if old == wanted else old,
    "inc": lambda old, top, _: 0 if old >= top else old + 1,
}


@pytest.mark.parametrize("word", PYTHONS)
@pytest.mark.parametrize("places", [1, 3, 40], ids=["one place", "three", "many"])
def test_each_finds_what_the_one_before_left(rng, word, places):
    memory = rng.integers(0, 5, places).astype(np.uint32)
    at = rng.integers(0, places, 64)
    new, other = rng.integers(0, 5, (2, 64)).astype(np.uint32)
    want_memory, want_old = memory.tolist(), []
    for place, first, second in zip(at.tolist(), new.tolist(), other.tolist(), strict=True):
        want_old.append(want_memory[place])
        want_memory[place] = PYTHONS[word](want_memory[place], first, second)
    old = updated(word, "u32", memory, at, new, other if word == "cas" else None)
    assert old.tolist() == want_old
    assert memory.tolist() == want_memory


@pytest.mark.parametrize("kind", ["f32", "f64", "f16"])
def test_sums_of_floats_are_rounded_at_each_step(rng, kind):
    size = {"f16": 2, "f32": 4, "f64": 8}[kind]
    dtype = {2: np.float16, 4: np.float32, 8: np.float64}[size]
    values = rng.standard_normal(64).astype(dtype)
    memory = np.zeros(1, UINT[size])
    updated("add", kind, memory, np.zeros(64, int), values.view(UINT[size]), None)
    total = dtype(0)
    for value in values:
        total = dtype(total + value)
    assert memory.view(dtype)[0] == total
