"""Seeded bugs are named with both of their lines, in whatever order threads run."""

import numpy as np
import pytest

from tests.ptx.test_values import cluster_softmax, floats, layernorm


def places(run, name):
    """Both lines of each hazard of this name."""
    return {(one.line, one.before) for one in run.found if one.name == name}


def test_a_barrier_missing_before_a_tile_is_refilled(run, rng, line):
    a, b, c = *floats(rng, 2, 48, 48), np.zeros((48, 48), np.float32)
    sizes = {"grid": (3, 3), "block": (16, 16), "SYNC2": ""}
    found = run("matmul", [a, b, c, 48, 48, 48], **sizes)
    refill, use = line("matmul", "Bs[ty][tx] ="), line("matmul", "acc += As")
    assert (refill, use) in places(found, "race")
    run("matmul", [a, b, c, 48, 48, 48], schedule=0, **sizes)
    assert np.abs(c - a @ b).max() > 1  # an unlucky order shows in the values as well


def test_a_barrier_missing_within_a_scan(run, rng, line):
    x, y = rng.integers(0, 100, 256).astype(np.int32), np.zeros(256, np.int32)
    found = run("scan", [x, y, 256], block=256, smem=1024, SYNC1="")
    assert (line("scan", "s[t] += v"), line("scan", "s[t - d]")) in places(found, "race")


@pytest.mark.parametrize("wait", ["", "__pipeline_wait_prior(2);"], ids=["none", "too lax"])
def test_a_copy_that_is_not_waited_for(run, rng, line, wait):
    found, error = layernorm(run, rng, WAIT=wait)
    copy, use = line("layernorm", "__pipeline_memcpy_async"), line("layernorm", "s += v")
    assert np.isnan(error)
    assert (use, copy) in places(found, "missing-wait")


def test_a_buffer_refilled_while_others_read_it(run, rng, line):
    found, _ = layernorm(run, rng, SYNC_END="")
    refill = line("layernorm", "__pipeline_memcpy_async", 1)
    assert (refill, line("layernorm", "__float2bfloat16")) in places(found, "race")


def test_an_access_past_the_end_of_an_argument(run, rng, line):
    x, y = floats(rng, 64), np.zeros(64, np.float32)
    (hazard,) = run("oob", [x, y, 64], grid=3).found
    assert (hazard.name, hazard.line) == ("global-out-of-bounds", line("oob", "y[i] = "))
    assert "byte 256 of argument" in hazard.text
    assert hazard.count == 2
    assert (y == 2 * x).all()


def test_shared_memory_that_the_launch_did_not_ask_for(run):
    x, y = np.ones(256, np.int32), np.zeros(256, np.int32)
    found = run("scan", [x, y, 256], block=256, smem=1000)
    assert found.names == {"smem-out-of-bounds"}


def test_a_barrier_that_only_some_threads_come_to(run, rng, line):
    arguments = [floats(rng, 64), np.zeros(64, np.float32)]
    assert run("divergent", [*arguments, 64], block=64).found == []
    found = run("divergent", [*arguments, 40], block=64)
    lines = {one for one, _ in places(found, "divergent-barrier")}
    assert line("divergent", "__syncthreads") in lines


def test_an_increment_that_is_not_atomic(run, rng):
    x, out = rng.integers(0, 256, 4000).astype(np.uint8), np.zeros(256, np.uint32)
    found = run("hist", [x, out, 4000], grid=2, block=256, BUMP="h[x[i]] += 1;")
    assert "race" in found.names
    assert out.sum() < 4000


@pytest.mark.parametrize(
    ("kernel", "arguments", "block", "name"),
    [
        ("partial_shuffle", [np.ones(32, np.float32)], 32, "lane-missing"),
        ("two_barriers", [np.ones(64, np.float32)], 64, "divergent-barrier"),
        ("early_exit", [np.ones(64, np.float32), 40], 64, "divergent-barrier"),
        ("uninit", [np.zeros(64, np.float32)], 64, "uninitialised-smem"),
        ("misaligned", [np.zeros(256, np.uint8)], 64, "misaligned"),
        ("stuck", [np.zeros(4, np.float32)], 64, "deadlock"),
        ("endless", [np.zeros(4, np.int32)], 32, "endless"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_wrong_is_called_by_its_name(run, kernel, arguments, block, name):
    found = run("small", [one.copy() if isinstance(one, np.ndarray) else one for one in arguments],
                name=kernel, block=block, most_steps=5000)  # fmt: skip
    assert name in found.names
    assert found.ended == (name not in ("deadlock", "endless"))


def test_lanes_that_only_look_synchronised(run):
    found = run("features", [np.arange(64, dtype=np.int32)], name="legacy", block=64)
    assert "race-in-warp" in found.names


def test_an_exchange_within_a_warp_is_no_hazard(run, rng):
    x = rng.integers(0, 50, 32).astype(np.int32)
    y = x.copy()
    found = run("small", [y], name="warp_tail")
    v = x[::-1]
    assert (y == (v * 2)[np.arange(32) ^ 1] + (v & 1).sum() + v.sum()).all()
    assert found.found == []


def test_a_cluster_without_its_last_barrier(run, rng):
    assert "exit-before-remote-read" in cluster_softmax(run, rng, last="")[0].names
    assert "dsmem-after-exit" in cluster_softmax(run, rng, last="", schedule=0)[0].names


def test_a_cluster_without_its_first_barrier(run, rng):
    assert "race" in cluster_softmax(run, rng, first="__syncthreads()")[0].names
