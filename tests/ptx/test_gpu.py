"""On a GPU the same sources do what they do on the simulator."""

import pytest
import torch

from harness import cuda
from harness.hardware.environment import device_present
from harness.simulators.ptx import host
from tests.ptx.conftest import RIGHT, text_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not device_present(), reason="needs a GPU"),
]


of_hopper = pytest.mark.skipif(
    device_present() and torch.cuda.get_device_capability() < (9, 0), reason="TMA came with sm_90"
)


def floats(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def both(file, name, arguments, **sizes):
    """What the last argument holds afterwards, on the simulator and on the GPU."""
    options = tuple(f"-D{macro}={text}" for macro, text in RIGHT.items())
    found = []
    for device in ("cpu", "cuda"):
        given = [moved(one, device) for one in arguments]
        if device == "cpu":
            with host.launching():
                cuda.launch(text_of(file), name, given, options=options, **sizes)
            cuda.simulator = None
        else:
            cuda.launch(text_of(file), name, given, options=options, **sizes)
        last = given[-1].tensor if isinstance(given[-1], cuda.TensorMap) else given[-1]
        found.append(last.cpu())
    return found


def moved(value, device):
    if isinstance(value, cuda.TensorMap):
        return cuda.TensorMap(value.tensor.to(device), value.box, value.swizzle)
    return value.to(device) if isinstance(value, torch.Tensor) else value


def test_a_product_on_tensor_cores_is_the_same():
    a, b = floats(64, 64).half(), floats(64, 64, seed=1).half()
    simulated, real = both("mma", "mma_gemm", [a, b, torch.zeros(64, 64)], grid=(1,), block=(32,))
    assert (simulated - real).abs().max() < 1e-4  # sums are ordered otherwise


@of_hopper
def test_boxes_by_tma_are_the_same():
    x = floats(20, 72)
    maps = [cuda.TensorMap(one, (8, 32), 128) for one in (x, torch.zeros_like(x))]
    simulated, real = both("tma", "boxes", maps, grid=(3, 3), block=(32,))
    assert torch.equal(simulated, x + 1)
    assert torch.equal(real, simulated)


@of_hopper
def test_a_box_for_a_cluster_is_the_same():
    x = floats(8, 32)
    arguments = [cuda.TensorMap(x, (8, 32)), torch.zeros(16, 32)]
    simulated, real = both("tma", "multicast", arguments, grid=(2,), block=(32,), cluster=2)
    assert torch.equal(simulated, torch.cat([x, x]))
    assert torch.equal(real, simulated)
