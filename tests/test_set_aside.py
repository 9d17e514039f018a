"""What is set aside of the L2 cache, told by a driver of our own; tests/cheats asks a GPU's."""

import pytest

from harness.base.errors import SubmissionError
from harness.judge.timing import set_aside
from harness.judge.timing.set_aside import nothing_set_aside


class Driver:
    """What the CUDA driver answers, for a device with this many bytes to set aside."""

    def __init__(self, most):
        self.most = most
        self.bytes = 0
        self.resets = 0

    def cuCtxSetLimit(self, limit, size):
        assert limit == 6
        if not self.most:
            return 215  # CUDA_ERROR_UNSUPPORTED_LIMIT
        self.bytes = min(size.value, self.most)
        return 0

    def cuCtxGetLimit(self, pointer, limit):
        assert limit == 6
        if not self.most:
            return 215
        pointer._obj.value = self.bytes
        return 0

    def cuCtxResetPersistingL2Cache(self):
        self.resets += 1
        return 0


@pytest.fixture
def driver(monkeypatch):
    driver = Driver(most=1 << 24)
    monkeypatch.setattr(set_aside, "_driver", lambda: driver)
    return driver


def test_what_was_set_aside_before_is_given_back(driver):
    driver.bytes = 1 << 20
    with nothing_set_aside():
        assert (driver.bytes, driver.resets) == (0, 1)


def test_what_is_set_aside_within_is_refused(driver):
    words = "found 4,096 bytes of it set aside"
    with pytest.raises(SubmissionError, match=words), nothing_set_aside():
        driver.bytes = 4096


def test_a_device_without_such_a_part_is_left_alone(driver):
    driver.most = 0
    with nothing_set_aside():
        driver.bytes = 4096


def test_without_a_driver_nothing_is_asked(monkeypatch):
    monkeypatch.setattr(set_aside, "DRIVER", "libnone.so.1")
    with nothing_set_aside():
        pass
