"""A device's state: what nvidia-smi prints, what it fails at, what is held against a device."""

import stat
from pathlib import Path

import pytest

from harness.hardware.profiles import find_profile
from harness.judge import shared_checks
from harness.judge.timing import device_state
from harness.judge.timing.device_state import (
    FIELDS,
    DeviceState,
    SmiReading,
    parse_smi,
    settled_state,
    unfit,
)
from harness.judge.timing.threshold import Verdict

UNGRADED = """

def test_clock():
    pytest.skip("NOT GRADED: the device was busy")
"""
H200 = find_profile(Path(__file__).parents[1] / "hardware_profiles", "h200_sxm")
IDLE = DeviceState(sm_clock_hz=1.98e9, utilization=0.0)
BUSY = DeviceState(sm_clock_hz=1.98e9, utilization=0.97)


class TestParsing:
    def test_a_line_of_csv(self):
        state = parse_smi("1755, 98, 64, 0x0000000000000004\n")
        assert state == DeviceState(
            sm_clock_hz=1.755e9, utilization=0.98, temperature_c=64, slowed_by=("the power limit",)
        )

    def test_two_kinds_of_heat_are_one_reason(self):
        state = parse_smi("1200, 100, 92, 0x0000000000000068")
        assert state.slowed_by == ("the hardware", "heat")

    def test_being_idle_is_no_reason(self):
        assert parse_smi("345, 0, 30, 0x0000000000000001").slowed_by == ()

    @pytest.mark.parametrize("cell", ["[N/A]", "[Not Supported]", "[Unknown Error]"])
    def test_what_a_device_does_not_tell_is_not_known(self, cell):
        assert parse_smi(f"{cell}, {cell}, {cell}, {cell}") == DeviceState()

    @pytest.mark.parametrize("text", ["", "No devices were found", "1980, 0, 30"])
    def test_anything_else_is_no_state(self, text):
        assert parse_smi(text) is None


@pytest.fixture
def tool(tmp_path):
    """A stand-in for nvidia-smi with this script; returns its path."""

    def make(script):
        path = tmp_path / "nvidia-smi"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return str(path)

    return make


class TestReading:
    def test_one_device_is_asked_for_the_known_fields(self, tool, tmp_path):
        seen = tmp_path / "arguments"
        script = f'echo "$@" > {seen}; echo "1980, 3, 40, 0x0000000000000000"'
        reading = SmiReading(tool(script), "GPU-1234")
        assert reading.state() == DeviceState(
            sm_clock_hz=1.98e9, utilization=0.03, temperature_c=40
        )
        assert reading.done()
        assert seen.read_text().split() == [
            f"--query-gpu={','.join(FIELDS)}",
            "--format=csv,noheader,nounits",
            "-i",
            "GPU-1234",
        ]

    def test_a_tool_that_fails_tells_nothing(self, tool):
        script = 'echo "1980, 3, 40, 0x0000000000000000"; exit 6'
        assert SmiReading(tool(script), "GPU-1234").state() is None

    def test_a_tool_that_hangs_is_ended(self, tool, monkeypatch):
        monkeypatch.setattr(device_state, "READ_LIMIT_S", 0.2)
        reading = SmiReading(tool("exec sleep 60"), "GPU-1234")
        assert not reading.done()
        assert reading.state() is None
        assert reading.done()


class TestSettling:
    """Utilisation looks back, so it is looked at again while it is high."""

    class Read:
        def __init__(self, state):
            self.read = state

        def done(self):
            return True

        def state(self):
            return self.read

    def settle(self, *states):
        following, pauses = iter(states), []
        found = settled_state(lambda: self.Read(next(following)), pauses.append)
        return found, len(pauses)

    def test_an_idle_device_is_read_once(self):
        assert self.settle(IDLE) == (IDLE, 0)

    def test_the_echo_of_our_own_work_dies_down(self):
        assert self.settle(BUSY, BUSY, IDLE) == (IDLE, 2)

    def test_a_device_that_stays_busy_is_busy(self):
        assert self.settle(*[BUSY] * 5) == (BUSY, 4)

    def test_a_device_that_does_not_tell_is_not_waited_for(self):
        assert self.settle(None) == (None, 0)
        assert self.settle(DeviceState()) == (DeviceState(), 0)


class TestFitness:
    @pytest.mark.parametrize(
        ("before", "during"),
        [
            (None, None),  # AMD, or no tool
            (DeviceState(), DeviceState()),  # a device that tells nothing
            (IDLE, DeviceState(sm_clock_hz=1.40e9, slowed_by=("the power limit",))),
            (DeviceState(utilization=0.2), IDLE),  # a desktop that draws its windows
            (IDLE, BUSY),  # that work is ours
        ],
    )
    def test_what_is_unknown_or_as_usual_is_fit(self, before, during):
        assert unfit(before, during, H200) is None

    @pytest.mark.parametrize("share", [0.21, 0.97])
    def test_other_work_is_named(self, share):
        busy = DeviceState(utilization=share)
        assert f"{share:.0%} busy with other work" in unfit(busy, IDLE, H200)

    def test_a_low_clock_is_named_with_its_reason(self):
        """Three quarters of 1830 MHz are 1372.5."""
        slow = DeviceState(sm_clock_hz=1.37e9, slowed_by=("the power limit", "heat"))
        assert unfit(IDLE, slow, H200) == (
            "the SM clock was held at 1370 MHz by the power limit and heat while timing, under 75% "
            "of h200_sxm's 1830 MHz; try again when nothing slows it"
        )


class TestWhatTheLearnerSees:
    def test_a_check_that_was_not_graded_is_neither_passed_nor_failed(self):
        class Trial:
            def judge_speed(self, threshold, publish):
                return Verdict(
                    outcome="not_graded", value=0.4, limit=0.8, relation=">=", message="it was busy"
                )

        with pytest.raises(pytest.skip.Exception, match="^NOT GRADED: it was busy$"):
            shared_checks.test_speed(Trial(), None, None)

    def test_a_run_tells_it_apart_from_what_was_skipped(self, kata_command, mini):
        file = mini / "katas" / "week01" / "doubled" / "test_doubled.py"
        file.write_text(file.read_text() + UNGRADED)
        done = kata_command("run", "doubled", "--impl", "solution", "--device", "cpu")
        assert "? test_clock: NOT GRADED: the device was busy" in done.stdout, done.stdout
        assert "skipped" not in done.stdout
        assert done.returncode == 0
