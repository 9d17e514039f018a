"""TMA from CUDA C++: boxes at the edges, swizzled, for a cluster; and what goes wrong with it."""

import numpy as np
import pytest
import torch

from harness import cuda
from harness.simulators.ptx import TensorMap, host
from tests.ptx.conftest import text_of
from tests.ptx.test_values import floats


def boxes(run, x, **changes):
    """The kernel on a matrix, and what it makes of it."""
    y = np.zeros_like(x)
    maps = [TensorMap(one, (8, 32), 128) for one in (x, y)]
    grid = (-(-x.shape[1] // 32), -(-x.shape[0] // 8))
    return run("tma", maps, name="boxes", arch="sm_90", grid=grid, **changes), y


@pytest.mark.parametrize("schedule", [None, 0], ids=["lockstep", "warp by warp"])
def test_boxes_at_the_edges_are_cut_off(run, rng, schedule):
    x = floats(rng, 20, 72)
    found, y = boxes(run, x, schedule=schedule)
    assert found.found == []
    assert (y == x + 1).all()
    assert found.counters["tma_load_bytes"] == 20 * 72 * 4


def test_rows_may_have_gaps(run, rng):
    home = floats(rng, 16, 96)
    found, y = boxes(run, home[:, 32:64])
    assert found.found == []
    assert (y == home[:, 32:64] + 1).all()


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"LANDED": ""}, "missing-wait"),
        ({"FENCE": ""}, "missing-fence"),
        ({"EXPECTED": "512"}, "expect-tx-mismatch"),
        ({"EXPECTED": "2048"}, "deadlock"),
    ],
    ids=["no wait", "no fence", "too few bytes", "too many bytes"],
)
def test_what_is_missing_is_named(run, rng, changes, name):
    found, _ = boxes(run, floats(rng, 8, 32), **changes)
    assert name in found.names


def test_a_box_for_two_blocks(run, rng):
    x, y = floats(rng, 8, 32), np.zeros((16, 32), np.float32)
    maps = [TensorMap(x, (8, 32)), y]
    found = run("tma", maps, name="multicast", arch="sm_90", grid=2)
    assert found.found == []
    assert (y == np.concatenate([x, x])).all()


@pytest.mark.parametrize(
    ("shape", "box", "swizzle", "words"),
    [
        ((8, 32), (8,), 0, "box: expected a size for each"),
        ((8, 32), (8, 512), 0, "box: expected sizes from 1 to 256"),
        ((8, 33), (8, 32), 0, "tensor: expected strides of 16 bytes, found"),
        ((8, 32), (8, 32), 48, "swizzle: expected one of"),
        ((8, 64), (8, 64), 128, "box: expected rows of a multiple of 16 bytes, 128 at most"),
        ((8, 32), (8, 3), 0, "box: expected rows of a multiple of 16 bytes, found 12"),
    ],
    ids=["rank", "long", "pitch", "swizzle", "wide", "narrow"],
)
def test_what_no_tensor_map_describes_is_refused(shape, box, swizzle, words):
    with pytest.raises(ValueError, match=words):
        cuda.TensorMap(torch.zeros(shape), box, swizzle)


def test_a_launch_takes_tensor_maps_of_tensors(tmp_path, monkeypatch):
    monkeypatch.setenv("KATA_HOME", str(tmp_path))
    x = torch.randn(20, 72, generator=torch.Generator().manual_seed(0))
    y = torch.empty_like(x)
    maps = [cuda.TensorMap(one, (8, 32), 128) for one in (x, y)]
    with host.launching():
        cuda.launch(text_of("tma"), "boxes", maps, grid=(3, 3), block=(32,))
    cuda.simulator = None
    assert torch.equal(y, x + 1)
