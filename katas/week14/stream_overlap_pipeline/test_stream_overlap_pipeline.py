"""What is ordered and what is not, how long it takes, and what is on the device meanwhile."""

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st


def tripled_and_one(x):
    x.mul_(3).add_(1)


def numbers(n, dtype=torch.int64):
    """A different one for each element, which a smaller dtype would not hold."""
    if dtype == torch.int64:
        return torch.arange(n).mul(7).add(2**60 + 1)
    if dtype == torch.float64:
        return torch.arange(n, dtype=dtype).div(3)
    return torch.arange(n).mul(7).to(dtype)


def mapped(kata, dev, n, chunks, dtype=torch.int64, **options):
    """Run it, and fail unless `dst` is right, and all of it is there when the call returns."""
    src, dst = numbers(n, dtype), torch.zeros(n, dtype=dtype)
    dev.pin(src, dst)
    shown = ", ".join(f"{name} = {value}" for name, value in options.items())
    shown = f"{n} elements, chunks = {chunks}" + (f", {shown}" if shown else "")
    found = kata.stream_overlap_pipeline(dev, src, dst, tripled_and_one, chunks, **options)
    assert found is dst, f"{shown}: expected dst itself"
    expected = numbers(n, dtype).mul_(3).add_(1)
    wrong = (dst != expected).nonzero().flatten().tolist()
    assert not wrong, (
        f"{shown}: element {wrong[0]}: expected {expected[wrong[0]]}, found {dst[wrong[0]]}"
    )
    assert torch.equal(src, numbers(n, dtype)), f"{shown}: expected src unchanged"
    dev.assert_done(dst)


# one chunk; two; no divisor; fewer than there are buffers; one element each; more than elements
@pytest.mark.parametrize(
    ("n", "chunks"), [(12, 1), (12, 2), (40, 7), (9, 3), (11, 11), (5, 8), (1, 1)], ids=str
)
def test_every_element_goes_through(kata, oracle, n, chunks):
    mapped(kata, oracle.SimDevice(), n, chunks)


@given(n=st.integers(0, 60), chunks=st.integers(1, 25), buffers=st.integers(2, 6))
@example(n=60, chunks=20, buffers=2)
@example(n=60, chunks=20, buffers=5)
def test_nothing_races_whatever_the_sizes(kata, oracle, n, chunks, buffers):
    mapped(kata, oracle.SimDevice(), n, chunks, buffers=buffers)


@given(n=st.integers(1, 60), chunks=st.integers(1, 70))
@example(n=59, chunks=7)
@example(n=5, chunks=9)
def test_lengths_of_chunks_differ_by_one_at_most(kata, oracle, n, chunks):
    dev = oracle.SimDevice()
    mapped(kata, dev, n, chunks)
    for engine, lengths in dev.lengths.items():
        shown = f"{n} elements, chunks = {chunks}: {engine} of {lengths}"
        assert len(lengths) == min(n, chunks), f"{shown}: expected {min(n, chunks)} of them"
        assert max(lengths) - min(lengths) <= 1, f"{shown}: expected lengths that differ by 1"
        assert sum(lengths) == n, f"{shown}: expected {n} elements in all, found {sum(lengths)}"


def test_nothing_to_do(kata, oracle):
    dev, nothing = oracle.SimDevice(), torch.zeros(0)
    dev.pin(nothing)
    assert kata.stream_overlap_pipeline(dev, nothing, nothing, tripled_and_one, 4) is nothing
    assert dev.lengths == {"copy in": [], "kernel": [], "copy out": []}
    assert dev.device_bytes == 0, f"no elements: expected no memory, found {dev.device_bytes} bytes"


def test_src_is_copied_in_from_where_it_is(kata, oracle):
    class Watched(oracle.SimDevice):
        def h2d(self, to, source, stream):
            sources.append(source.untyped_storage().data_ptr())
            super().h2d(to, source, stream)

    src, dst, sources, dev = numbers(30), torch.zeros(30, dtype=torch.int64), [], Watched()
    dev.pin(src, dst)
    kata.stream_overlap_pipeline(dev, src, dst, tripled_and_one, 10)
    elsewhere = sum(source != src.untyped_storage().data_ptr() for source in sources)
    assert elsewhere == 0, f"copies in: expected all from src, found {elsewhere} from elsewhere"


def test_dst_may_be_src(kata, oracle):
    x, dev = numbers(30), oracle.SimDevice()
    dev.pin(x)
    kata.stream_overlap_pipeline(dev, x, x, tripled_and_one, 10)
    assert x.tolist() == numbers(30).mul_(3).add_(1).tolist()
    dev.assert_done(x)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int16, torch.uint8], ids=str)
def test_any_dtype(kata, oracle, dtype):
    mapped(kata, oracle.SimDevice(), 20, 6, dtype)


def test_a_slice_of_the_host_may_lie_anywhere(kata, oracle):
    dev, whole = oracle.SimDevice(), numbers(50)
    dst = torch.zeros(50, dtype=torch.int64)
    dev.pin(whole, dst)
    kata.stream_overlap_pipeline(dev, whole[10:40], dst[5:35], tripled_and_one, 8)
    assert dst[5:35].tolist() == numbers(50)[10:40].mul_(3).add_(1).tolist()
    assert dst[:5].tolist() + dst[35:].tolist() == [0] * 20
    dev.assert_done(dst)


def test_two_calls_on_one_device(kata, oracle):
    dev = oracle.SimDevice()
    for n in (30, 12):
        mapped(kata, dev, n, 6)


# ---- what it takes -------------------------------------------------------------------------------

RATES = {
    "as long as each other": (1.0, 1.0, 1.0),
    "slow copies in": (3.0, 1.0, 2.0),
    "slow kernels": (1.0, 4.0, 1.0),
    "slow copies out": (1.0, 0.5, 2.0),
}


def test_chunks_overlap_as_far_as_buffers_allow(kata, oracle, cost):
    worst = 0.0
    for rates in RATES.values():
        for n, chunks, buffers in ((120, 12, 3), (120, 12, 2), (120, 15, 5), (61, 9, 4)):
            dev = oracle.SimDevice(rates)
            mapped(kata, dev, n, chunks, buffers=buffers)
            least = oracle.best_makespan(dev.lengths["copy in"], rates, buffers)
            worst = max(worst, dev.makespan / least)
    cost.check("makespan", worst)


def test_twelve_equal_chunks_take_fourteen_steps(kata, oracle):
    dev = oracle.SimDevice()
    mapped(kata, dev, 120, 12)
    assert dev.makespan == 140, (
        f"12 chunks of 10 elements, 3 buffers: expected 140, found {dev.makespan}"
    )


def test_no_more_than_the_buffers_is_on_the_device(kata, oracle, cost):
    shares = []
    for n, chunks, buffers in ((120, 12, 3), (61, 9, 2), (40, 20, 5)):
        dev = oracle.SimDevice()
        mapped(kata, dev, n, chunks, buffers=buffers)
        shares.append(dev.device_bytes / (buffers * -(-n // chunks) * 8))
    cost.check("device_bytes", max(shares))


def test_the_host_waits_once(kata, oracle, cost):
    dev = oracle.SimDevice()
    mapped(kata, dev, 100, 10)
    cost.check("host_waits", dev.host_waits)


def test_three_streams_do(kata, oracle, cost):
    dev = oracle.SimDevice()
    mapped(kata, dev, 100, 10, buffers=5)
    cost.check("streams", dev.streams)


# ---- what is refused -----------------------------------------------------------------------------

REFUSED = {
    "no chunks": ({"chunks": 0}, "chunks"),
    "chunks below zero": ({"chunks": -1}, "chunks"),
    "one buffer": ({"buffers": 1}, "buffers"),
    "chunks before buffers": ({"chunks": 0, "buffers": 1}, "chunks"),
    "buffers before src": ({"buffers": 1, "src": torch.zeros(4, 5)}, "buffers"),
    "src before dst": ({"src": torch.zeros(4, 5)}, "src"),
    "src with rows": ({"src": torch.zeros(4, 5), "dst": torch.zeros(4, 5)}, "src"),
    "dst too short": ({"dst": torch.zeros(19)}, "dst"),
    "dst of another shape": ({"dst": torch.zeros(4, 5)}, "dst"),
    "dst with rows": ({"dst": torch.zeros(20, 1)}, "dst"),
    "dst of another dtype": ({"dst": torch.zeros(20, dtype=torch.float64)}, "dst"),
    "no chunks of nothing": ({"chunks": 0, "src": torch.zeros(0), "dst": torch.zeros(0)}, "chunks"),
}


@pytest.mark.parametrize(("changed", "name"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_is_refused(kata, oracle, changed, name):
    dev = oracle.SimDevice()
    asked = {"src": torch.zeros(20), "dst": torch.zeros(20), "chunks": 4, "buffers": 3} | changed
    dev.pin(asked["src"], asked["dst"])
    with pytest.raises(ValueError, match=f"^{name}: "):
        kata.stream_overlap_pipeline(dev, kernel=tripled_and_one, **asked)
    assert dev.lengths == {"copy in": [], "kernel": [], "copy out": []}


@pytest.mark.parametrize("name", ["src", "dst"])
def test_pageable_memory_is_refused(kata, oracle, name):
    host, dev = {"src": torch.zeros(20), "dst": torch.zeros(20)}, oracle.SimDevice()
    dev.pin(*(tensor for one, tensor in host.items() if one != name))
    with pytest.raises(ValueError, match=f"^{name}: .*pinned"):
        kata.stream_overlap_pipeline(dev, **host, kernel=tripled_and_one, chunks=4)


def test_shapes_are_looked_at_before_pages(kata, oracle):
    src, dst, dev = torch.zeros(20), torch.zeros(19), oracle.SimDevice()
    with pytest.raises(ValueError, match="^dst: "):
        kata.stream_overlap_pipeline(dev, src, dst, tripled_and_one, 4)
    with pytest.raises(ValueError, match="^src: "):
        kata.stream_overlap_pipeline(dev, src, src, tripled_and_one, 4)


# ---- a GPU ---------------------------------------------------------------------------------------


def test_a_gpu_computes_the_same(kata, oracle, device, seed):
    if device != "cuda":
        pytest.skip("streams of a GPU")
    for n, chunks, buffers in ((1_000_003, 11, 3), (1 << 20, 64, 2), (5, 9, 3)):
        inputs = oracle.make_inputs(n=n, chunks=chunks, device=device, seed=seed)
        expected = oracle.reference(**inputs | {"src": inputs["src"].cuda()}).cpu()
        found = kata.stream_overlap_pipeline(**inputs, buffers=buffers)
        wrong = (found != expected).nonzero().flatten().tolist()
        assert not wrong, f"{n} elements, chunks = {chunks}: wrong from element {wrong[0]} on"
