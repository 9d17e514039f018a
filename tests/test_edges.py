"""The tiles of whatever was written are found, and the sizes at their edges tried."""

import os
from types import SimpleNamespace

import pytest

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("kernels are interpreted in CPU sessions only", allow_module_level=True)

import numpy as np
import torch
import triton
import triton.language as tl
from numba import cuda

from harness.base.errors import MetadataError
from harness.content.cases import edge_cases
from harness.content.kata import load_kata
from harness.judge.edges import MOST_WORK, edges_of, least_launched, tiles_of
from harness.judge.guarded import GuardedCall
from harness.judge.shared_checks import test_tile_edges as tile_edges
from harness.judge.trial import Trial
from harness.simulators.simt import install

CASE = {"n": 100, "dtype": "float32"}


def a_trial(entry, *, edges=("n",), backend="triton"):
    kata = SimpleNamespace(
        backend=backend, forbidden=(), writes=(), edges=edges, oracle="oracle.py", speed=()
    )
    arrays = backend == "numba"
    oracle = SimpleNamespace(
        make_inputs=lambda *, n, dtype, device, seed, rows=1: {
            "x": np.ones(n * rows, np.float32) if arrays else torch.ones(n * rows)
        },
        reference=lambda x: x + x,
    )
    return Trial(
        submission=SimpleNamespace(kata=kata, entry=entry), oracle=oracle, device="cpu", seed=0,
        profile=None, record=None, compile=None,
    )  # fmt: skip


@triton.jit
def doubled_kernel(x_ptr, y_ptr, n, PARTS: tl.constexpr, SPARED: tl.constexpr):
    # 24 elements a part, of which nothing tells but the grid
    for part in range(PARTS):
        at = (tl.program_id(0) * PARTS + part) * 24 + tl.arange(0, 32)
        mask = (at < n) & (tl.arange(0, 32) < 24) & (at != SPARED)
        tl.store(y_ptr + at, 2 * tl.load(x_ptr + at, mask=mask), mask=mask)


def doubler(parts=1, spared=-1):
    def doubled(x):
        y = torch.empty_like(x)
        grid = (triton.cdiv(x.numel(), 24 * parts),)
        doubled_kernel[grid](x, y, x.numel(), PARTS=parts, SPARED=spared)
        return y

    return doubled


def seen_by(trial, case):
    call = trial.prepare(case, seed_offset=0)
    call.run(pattern="nan")
    return call.meter.extents


def test_the_grid_tells_how_far_a_block_reaches():
    for parts in (1, 5):
        trial = a_trial(doubler(parts))
        (extents,) = tiles_of(trial, CASE, ()).values()
        assert extents == (24 * parts,)


def test_numbers_compiled_in_are_seen_beside_the_grid():
    trial = a_trial(doubler(5))
    assert seen_by(trial, CASE) == {5, -1, 32}
    assert tiles_of(trial, CASE, seen_by(trial, CASE))["n"] == (120, 32, 5)


def test_blocks_of_threads_and_shared_arrays_are_seen():
    install()

    @cuda.jit
    def kernel(x, y):
        tile = cuda.shared.array(20, np.float32)
        i = cuda.blockIdx.x * 16 + cuda.threadIdx.x
        if i < x.size:
            tile[cuda.threadIdx.x] = x[i]
            y[i] = tile[cuda.threadIdx.x] * 2

    def doubled(x):
        y = np.empty_like(x)
        kernel[-(-x.size // 16), 16](x, y)
        return y

    trial = a_trial(doubled, backend="numba")
    assert tiles_of(trial, CASE, seen_by(trial, CASE))["n"] == (16, 20)


def test_a_size_of_something_else_comes_last():
    trial = a_trial(doubler(), edges=("n",))
    assert tiles_of(trial, {**CASE, "rows": 32}, {32, 8})["n"][-2:] == (8, 32)


def test_other_arguments_of_a_case_may_be_lists():
    trial = a_trial(doubler())
    made = trial.oracle.make_inputs
    trial.oracle.make_inputs = lambda *, shape, **options: made(**options)
    assert tiles_of(trial, {**CASE, "shape": [24, 32]}, [32])["n"] == (24, 32)


def test_a_launcher_that_needs_its_kernels_still_has_the_tiles_that_were_seen():
    def impatient(x):
        y = doubler()(x)
        assert bool((y == 2 * x).all())
        return y

    assert tiles_of(a_trial(impatient), CASE, {32})["n"] == (32,)


def test_each_axis_stands_one_under_on_and_one_past_each_tile():
    tried = {edge.case["n"] for edge in edges_of(CASE, {"n": (8, 5)})}
    assert tried == {7, 8, 9, 15, 16, 17} | {4, 5, 6, 9, 10, 11}


def test_two_axes_differ_by_tiles_and_what_is_about_them():
    edges = edges_of({"q": 100, "k": 100}, {"q": (8,), "k": (8,)})
    steps = {edge.case["k"] - edge.case["q"] for edge in edges if edge.case["q"] == 16}
    assert steps >= {-10, -9, -8, -7, -2, -1, 0, 1, 6, 7, 8, 9}


def test_the_case_that_launches_least_is_swept():
    cases = [
        {**CASE, "rows": 9 * 24},
        {**CASE, "rows": 0},
        {**CASE, "rows": 2},
        {**CASE, "rows": 1},
    ]
    assert least_launched(a_trial(doubler()), cases) == cases[2]  # as few as the next, and first


@pytest.mark.parametrize(
    ("parts", "spared", "words"),
    [(1, 24, "at n = 25, by a tile of 24: "), (3, 71, "at n = 73, by a tile of 72: ")],
)
def test_an_element_lost_at_an_edge_is_found_and_the_edge_named(parts, spared, words):
    # right on the case itself, which has none of these elements
    trial = a_trial(doubler(parts, spared))
    with pytest.raises(AssertionError, match=words):
        tile_edges(trial, [{**CASE, "n": 20}])
    tile_edges(a_trial(doubler(parts)), [{**CASE, "n": 20}])


def test_the_sweep_ends_at_so_many_programs(monkeypatch):
    done = []
    run = GuardedCall.run

    def counted(self, **options):
        result = run(self, **options)
        done.append(self.work)
        return result

    monkeypatch.setattr(GuardedCall, "run", counted)
    tile_edges(a_trial(doubler()), [{**CASE, "n": 24 * 30}])
    assert sum(done[:-1]) <= MOST_WORK


def test_cases_are_swept_by_their_flags_and_floats_before_others(mini):
    folder = mini / "katas" / "week01" / "doubled"
    toml = (folder / "kata.toml").read_text().replace('"torch"', '"triton"')
    more = '[[cases]]\nn = 3\ndtype = "int8"\n[[cases]]\nn = 4\ncausal = true\ndtype = "float16"\n'
    toml = toml.replace("[[cost]]", more + "[[cost]]", 1)
    (folder / "kata.toml").write_text(toml.replace("forbidden", 'edges = ["n"]\nforbidden'))
    swept = edge_cases(load_kata(folder), "cpu")
    assert {name: [case["n"] for case in cases] for name, cases in swept.items()} == {
        "plain": [7, 0],
        "causal": [4],
    }
    (folder / "kata.toml").write_text(toml)
    assert edge_cases(load_kata(folder), "cpu") == {}


def test_edges_that_no_case_has_are_refused(mini):
    folder = mini / "katas" / "week01" / "doubled"
    toml = (folder / "kata.toml").read_text()
    (folder / "kata.toml").write_text(toml.replace("forbidden", 'edges = ["m"]\nforbidden'))
    with pytest.raises(MetadataError, match="edges: expected arguments of a case that are whole"):
        load_kata(folder)
