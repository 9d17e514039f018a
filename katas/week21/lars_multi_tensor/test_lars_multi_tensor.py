"""What is special about LARS: each tensor's own ratio, when it is 1, and buffers that go far."""

import mmap
from itertools import accumulate, chain

import pytest
import torch

from harness.judge import assert_matches


def blocks(kata, device, offsets, block=16):
    """The arguments that say which element is whose."""
    segment, first_block = kata.segment_blocks(offsets, block)
    return {
        "offsets": torch.tensor(offsets, device=device),
        "segment": segment.to(device),
        "first_block": first_block.to(device),
        "block": block,
    }


def step(kata, device, tensors, *, adapt=None, lr=1.0, momentum=0.0, wd=0.0, eta=1.0, v=0.0):
    """Weights and gradients of each tensor; returns the new weights and momenta of each."""
    sizes = [len(w) for w, _ in tensors]
    parts = blocks(kata, device, list(accumulate(sizes, initial=0)))
    w, g = (torch.tensor([*chain(*part)], device=device) for part in zip(*tensors, strict=True))
    adapt = torch.tensor([True] * len(tensors) if adapt is None else adapt, device=device)
    momenta = torch.full_like(w, v)
    found = kata.lars_multi_tensor(
        w=w, g=g, v=momenta, adapt=adapt, lr=lr, momentum=momentum, wd=wd, eta=eta, **parts
    )
    for name, one, own in zip("wv", found, (w, momenta), strict=True):
        assert one is own, f"expected {name} itself to be returned, updated, found another tensor"
    return [one.split(sizes) for one in found]


def test_a_step_by_hand(kata, device):
    # norms 5 and 10: ratio 0.5 · 5 / (10 + 0.1 · 5) = 0.2380952
    (w,), (v,) = step(
        kata, device, [([3.0, 4.0], [10.0, 0.0])], lr=2.0, momentum=0.5, wd=0.1, eta=0.5, v=1.0
    )
    ratio = 2.5 / 10.5
    want = torch.tensor([0.5 + 2 * ratio * 10.3, 0.5 + 2 * ratio * 0.4], dtype=torch.float64)
    assert_matches(v, want)
    assert_matches(w, torch.tensor([3.0, 4.0], dtype=torch.float64) - want)


def test_each_tensor_has_norms_of_its_own(kata, device):
    # gradients of 1 and 1000, weights of 1 and 10: without decay a step of the weights' own size
    _, v = step(kata, device, [([1.0] * 4, [1.0] * 4), ([10.0] * 9, [1000.0] * 9)])
    assert_matches(v[0], torch.full((4,), 1.0))
    assert_matches(v[1], torch.full((9,), 10.0))


def test_the_scale_of_a_gradient_does_not_matter(kata, device, seed):
    draw = torch.Generator().manual_seed(seed)
    w, g = torch.randn(2, 50, generator=draw)
    found = [step(kata, device, [(w.tolist(), (k * g).tolist())])[1][0] for k in (1, 1024)]
    assert_matches(found[0], found[1].double())


@pytest.mark.parametrize(
    ("w", "g", "adapt"),
    [([0.0, 0.0], [3.0, 4.0], True), ([3.0, 4.0], [3.0, 4.0], False)],
    ids=["no weights", "not adapted"],
)
def test_without_a_ratio_it_is_plain_sgd(kata, device, w, g, adapt):
    _, (v, other) = step(kata, device, [(w, g), ([1.0], [2.0])], adapt=[adapt, True], eta=0.25)
    assert_matches(v, torch.tensor([3.0, 4.0]))
    assert_matches(other, torch.tensor([0.25]))


def test_without_a_gradient_weights_decay(kata, device):
    (w,), _ = step(kata, device, [([3.0, 4.0], [0.0, 0.0])], wd=0.5, eta=1e-3)
    assert_matches(w, torch.tensor([1.5, 2.0]))


def test_squares_are_summed_in_float32(kata, device):
    # 300² is past the largest float16, and 1e-4² below its smallest
    _, v = step(kata, device, [([300.0] * 30, [1e-4] * 30)])
    assert_matches(v[0], torch.full((30,), 300.0))


def test_what_belongs_to_no_tensor_stays(kata, device):
    w, g, v = (torch.full((40,), value, device=device) for value in (2.0, 1.0, 0.5))
    adapt = torch.tensor([True, False], device=device)
    parts = blocks(kata, device, [7, 20, 31])
    kata.lars_multi_tensor(w=w, g=g, v=v, adapt=adapt, lr=0.1, **parts)
    for name, one, value in (("w", w, 2.0), ("v", v, 0.5)):
        changed = (one != value).nonzero().flatten().tolist()
        assert changed == list(range(7, 31)), f"{name}: elements {changed} changed, expected 7..30"


def one_tensor(kata, device, w, g, v, first):
    """Weights of 2 and gradients of 1 from `first` on: a ratio of a half, if eta is."""
    parts = blocks(kata, device, [first, len(w)], 1024)
    adapt = torch.tensor([True], device=device)
    kata.lars_multi_tensor(w=w, g=g, v=v, adapt=adapt, lr=1.0, wd=0.0, eta=0.5, **parts)


def test_no_tensor_is_copied_and_offsets_pass_31_bits(kata, device, dispatch):
    w, g, v = (torch.full((5000,), value, device=device) for value in (2.0, 1.0, 0.0))
    with dispatch() as counted:
        one_tensor(kata, device, w, g, v, 0)
    found = counted.allocated_bytes
    assert found < 4000, f"5000 elements: {found} bytes allocated, expected less than a copy's"
    if device == "cuda":
        return  # 26 GB; the simulator sees the same offsets
    first, size = 2**31 + 5, 1030
    flags = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    held = [mmap.mmap(-1, 4 * (first + size), flags=flags) for _ in range(3)]
    w, g, v = (torch.frombuffer(one, dtype=torch.float32) for one in held)
    w[first:], g[first:] = 2.0, 1.0
    one_tensor(kata, device, w, g, v, first)
    found = w[first:].unique().tolist()
    assert found == [1.0], f"weights of 2, ratio 0.5 · 2 / 1, gradients of 1: {found}, expected 1"
