"""Thirteen kernels on the simulator ask memory for what an H200's counters say they ask for."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest

MEASURED = json.loads((Path(__file__).parent / "h200.json").read_text())["cases"]
# what ptxas does not do as the PTX says: it joins neighbouring four-byte loads of shared memory
JOINED = {
    "matmul": {"shared_load_wavefronts"},
    "layernorm_cp_async": {"shared_load_wavefronts", "shared_store_wavefronts"},
    "scan": {"shared_load_wavefronts"},  # loads under a condition, left out where nobody takes part
}


def _floats(rng, *shape):
    return rng.standard_normal(shape, dtype=np.float32)


def _halves(rng, *shape):
    return _floats(rng, *shape).astype(np.float16)


def _bf16(values):
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def _sparse():
    rng = np.random.default_rng(9)
    a, b = ((rng.integers(0, 2**16, 256).astype(np.uint16) & 0x83FF) | 0x3C00 for _ in range(2))
    patterns = np.array([0b0100, 0b1000, 0b1100, 0b1001, 0b1101, 0b1110], np.uint32)
    metadata = np.zeros(32, np.uint32)
    for group in range(8):
        metadata |= patterns[rng.integers(0, 6, 32)] << np.uint32(4 * group)
    return [a.view(np.uint32), b.view(np.uint32), metadata, np.zeros(128, np.float32)]


def _case(name, rng):
    """File, arguments and sizes as they were measured."""
    zeros = lambda *shape, dtype=np.float32: np.zeros(shape, dtype)  # noqa: E731
    square = {"grid": (2, 2), "block": (32, 8)}
    cases = {
        "vadd": ("vadd", lambda: [*_floats(rng, 2, 4096), zeros(4096), 4096],
                 {"grid": 2, "block": 128}),
        "matmul": ("matmul", lambda: [*_floats(rng, 2, 48, 48), zeros(48, 48), 48, 48, 48],
                   {"grid": (3, 3), "block": (16, 16)}),
        **{f"transpose_pad{pad}": ("transpose", lambda: [_floats(rng, 64, 64), zeros(64, 64), 64],
                                   {**square, "PAD": str(pad)}) for pad in range(3)},
        "reduce": ("reduce", lambda: [_floats(rng, 5000), zeros(1), 5000],
                   {"grid": 4, "block": 256}),
        "scan": ("scan", lambda: [rng.integers(0, 100, 512).astype(np.int32),
                                  zeros(512, dtype=np.int32), 512],
                 {"grid": 2, "block": 256, "smem": 1024}),
        "wmma": ("wmma", lambda: [*_halves(rng, 2, 64, 64), zeros(64, 64), 64, 64, 64],
                 {"block": 128}),
        "mma_ldmatrix": ("mma", lambda: [*_halves(rng, 2, 64, 64), zeros(64, 64)], {}),
        "layernorm_cp_async": (
            "layernorm",
            lambda: [_bf16(_floats(rng, 5, 512)), *_bf16(_floats(rng, 2, 512)),
                     zeros(5, 512, dtype=np.uint16), 5, 512, 1e-5],
            {"grid": 2, "block": 128, "smem": 2048}),
        "hist": ("hist", lambda: [rng.integers(0, 256, 4000).astype(np.uint8),
                                  zeros(256, dtype=np.uint32), 4000],
                 {"grid": 2, "block": 256}),
        **{f"mma_sp{selector}": ("mma_sp", _sparse, {"SEL": f'"0x{selector}"'})
           for selector in range(2)},
    }  # fmt: skip
    return cases[name]


@pytest.mark.parametrize("name", MEASURED)
def test_memory_is_asked_for_what_an_h200_counts(run, rng, name):
    file, arguments, given = _case(name, rng)
    found = run(file, arguments(), **given)
    assert found.found == []
    for counter, value in MEASURED[name].items():
        if counter in JOINED.get(name, ()):
            assert found.counters[counter] >= value, counter
        else:
            assert found.counters[counter] == value, counter


def test_a_structure_is_passed_as_its_bytes(run):
    out = np.zeros(33, np.float32)
    given = struct.pack("<f3i d", 2.5, 1, 2, 3, 0.25)
    run("features", [given, out], name="structp")
    table = np.tile([1, 2, 4, 8], 8)
    assert (out == np.r_[2.5 * np.tile([1, 2, 3], 11)[:32] + 0.25 + table, 32]).all()
