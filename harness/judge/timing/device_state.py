"""
Whether a device is fit to be timed: not at work for somebody else, and not slowed down.

A probe reads the device's state. On NVIDIA it is one call of ``nvidia-smi``; elsewhere nothing is
known, and nothing is held against anybody.
"""

import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from subprocess import DEVNULL, PIPE, Popen, TimeoutExpired
from typing import Protocol

from harness.hardware.profiles import Profile

# an idle desktop draws its windows: a share below this is nobody's work
BUSY = 0.2
# a clock below this share of the profile's is a throttled one
SLOW = 0.75
# utilisation looks back up to a second (NVML: 1/6 s to 1 s), so our own work shows for a while
READINGS, PAUSE_S = 5, 0.4
READ_LIMIT_S = 10.0

# NVML, NvmlClocksEventReasons: the bits that lower a clock under load
REASONS = {
    0x02: "a clock set by hand",
    0x04: "the power limit",
    0x08: "the hardware",
    0x20: "heat",
    0x40: "heat",
    0x80: "the power brake",
}
FIELDS = ("clocks.sm", "utilization.gpu", "temperature.gpu", "clocks_throttle_reasons.active")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceState:
    """
    What a device says of itself at one moment; None where it does not say.

    `utilization` is the share of the last second, or less, in which any kernel ran; `slowed_by`
    are the reasons the driver gives for a clock below the maximum.
    """

    sm_clock_hz: float | None = None
    utilization: float | None = None
    temperature_c: float | None = None
    slowed_by: tuple[str, ...] = ()

    @property
    def busy(self) -> bool:
        """Whether somebody's kernels are running."""
        return self.utilization is not None and self.utilization > BUSY


class Reading(Protocol):
    """A state being read."""

    def done(self) -> bool:
        """Whether `state` would return at once."""

    def state(self) -> DeviceState | None:
        """Wait for the state; None when the device does not tell."""


Probe = Callable[[], Reading]


class SmiReading:
    """One call of ``nvidia-smi``, running beside whatever is being timed."""

    def __init__(self, tool: str, device: str) -> None:
        query = f"--query-gpu={','.join(FIELDS)}"
        self.child = Popen(
            [tool, query, "--format=csv,noheader,nounits", "-i", device],
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=DEVNULL,
            text=True,
        )

    def done(self) -> bool:
        """Whether the tool has ended."""
        return self.child.poll() is not None

    def state(self) -> DeviceState | None:
        """What the tool printed; None when it failed or hung."""
        try:
            printed, _ = self.child.communicate(timeout=READ_LIMIT_S)
        except TimeoutExpired:
            self.child.kill()
            self.child.communicate()
            return None
        return parse_smi(printed) if self.child.returncode == 0 else None


def parse_smi(line: str) -> DeviceState | None:
    """The state in one line of CSV without units, its columns `FIELDS`; None for anything else."""
    cells = [cell.strip() for cell in line.strip().split(",")]
    if len(cells) != len(FIELDS):
        return None
    clock_mhz, percent, celsius = (_number(cell) for cell in cells[:3])
    reasons = int(cells[3], 16) if cells[3].startswith("0x") else 0
    return DeviceState(
        sm_clock_hz=None if clock_mhz is None else clock_mhz * 1e6,
        utilization=None if percent is None else percent / 100,
        temperature_c=celsius,
        slowed_by=tuple(dict.fromkeys(why for bit, why in REASONS.items() if reasons & bit)),
    )


def _number(cell: str) -> float | None:
    """A figure; None for ``[N/A]``, ``[Not Supported]`` and their like."""
    try:
        return float(cell)
    except ValueError:
        return None


def smi_probe() -> Probe | None:
    """A probe of the current CUDA device; None on AMD and where there is no ``nvidia-smi``."""
    import torch

    tool = shutil.which("nvidia-smi")
    if tool is None or torch.version.hip:
        return None
    # the tool counts every device of the machine, CUDA those that it may see
    uuid = torch.cuda.get_device_properties(torch.cuda.current_device()).uuid
    return lambda: SmiReading(tool, f"GPU-{uuid}")


def settled_state(probe: Probe, pause: Callable[[float], None] = time.sleep) -> DeviceState | None:
    """The state ahead of any work of ours; looked at again while it still seems busy."""
    state = probe().state()
    for _ in range(READINGS - 1):
        if state is None or not state.busy:
            break
        pause(PAUSE_S)
        state = probe().state()
    return state


def unfit(before: DeviceState | None, during: DeviceState | None, profile: Profile) -> str | None:
    """
    Why what was timed between these states is not to be judged; None when it may be.

    A state or a figure that is not known speaks for the device.
    """
    if before is not None and before.busy:
        return (
            f"the device was {before.utilization:.0%} busy with other work before timing began; "
            "try again when it is idle"
        )
    clock_hz = None if during is None else during.sm_clock_hz
    if during is None or clock_hz is None or clock_hz >= SLOW * profile.clock_hz:
        return None
    why = f" by {' and '.join(during.slowed_by)}" if during.slowed_by else ""
    return (
        f"the SM clock was held at {clock_hz / 1e6:.0f} MHz{why} while timing, under {SLOW:.0%} of "
        f"{profile.id}'s {profile.clock_hz / 1e6:.0f} MHz; try again when nothing slows it"
    )


def as_detail(state: DeviceState | None) -> Mapping[str, float]:
    """The figures known of a state taken while timing, for the record."""
    if state is None:
        return {}
    figures = {"sm_clock_hz": state.sm_clock_hz, "temperature_c": state.temperature_c}
    return {name: figure for name, figure in figures.items() if figure is not None}
