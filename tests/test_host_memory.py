"""What Python and NumPy hold at most, against sizes that are known."""

import tracemalloc

import numpy as np
import pytest

from harness.base.errors import SubmissionError
from harness.meters.host_memory import COUNTS, host_memory_meter

SLACK = 4_000  # bytes of frames and objects around an array


def test_the_most_held_at_once_is_counted_and_not_the_sum():
    with host_memory_meter() as held:
        for _ in range(3):
            np.zeros(100_000, dtype=np.uint8)
    assert 100_000 <= held.peak_bytes < 100_000 + SLACK


def test_a_look_in_between_tells_what_was_held_so_far():
    with host_memory_meter() as held:
        assert held.look() < SLACK
        kept = bytearray(50_000)
        assert 50_000 <= held.look() < 50_000 + SLACK
        del kept
    assert 50_000 <= held.peak_bytes < 50_000 + SLACK


@pytest.mark.parametrize("name", COUNTS)
def test_the_count_cannot_be_taken_back(name):
    with pytest.raises(SubmissionError, match="left alone while it counts"), host_memory_meter():
        getattr(tracemalloc, name)()
    assert not tracemalloc.is_tracing()
    tracemalloc.clear_traces()  # and afterwards it is what it was
