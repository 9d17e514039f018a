"""
The least time a cost can take on a device, from plain figures: the roofline.

Every figure is in base units: bytes, FLOP, seconds, hertz.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from harness.base.errors import DeviceError

# a launch must vanish in what is timed, and what is moved must not fit the cache
SMALLEST_S, SMALLEST_LAUNCHES, SMALLEST_CACHES = 100e-6, 20, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """
    The least work a correct implementation must do.

    `flops` counts a fused multiply-add as two; `bytes` is the compulsory traffic to device
    memory; `special` counts the results of special functions (exp, log, rsqrt and so on).
    """

    flops: float = 0.0
    bytes: float = 0.0
    special: float = 0.0

    @property
    def intensity(self) -> float:
        """FLOP per byte; infinite where nothing is moved."""
        return self.flops / self.bytes if self.bytes else math.inf


GENERATIONS = {
    "sm_60": "pascal", "sm_70": "volta", "sm_75": "turing", "sm_80": "ampere", "sm_86": "ampere",
    "sm_89": "ada", "sm_90": "hopper", "sm_100": "blackwell", "sm_120": "blackwell",
    "gfx90a": "cdna2", "gfx942": "cdna3",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """
    One device: its ceilings and its limits, for dense operands and float32 accumulation.

    `peak` is in FLOP/s at `clock_hz`; a dtype that is absent is not supported. `max_clock_hz`
    is what the chip can reach. `link_*` are per direction, 0 without a link. `measured` holds
    calibrated ceilings: "bandwidth" in bytes per second, "launch" in seconds, a dtype in FLOP/s.
    `unverified` are the TOML keys whose figure was modelled or not checked against a second source.
    """

    id: str
    name: str
    vendor: str
    arch: str
    device_names: tuple[str, ...]
    sms: int
    memory_bytes: int
    bandwidth: float
    l2_bytes: int
    llc_bytes: int
    smem_per_sm_bytes: int
    smem_per_block_bytes: int
    registers_per_sm: int
    warps_per_sm: int
    blocks_per_sm: int
    warp_size: int
    clock_hz: float
    max_clock_hz: float
    flops_per_clk_per_sm: Mapping[str, float]
    peak: Mapping[str, float]
    sfu_per_clk_per_sm: float
    launch_s: float
    link_bandwidth: float
    link_latency_s: float
    sources: tuple[str, ...]
    unverified: tuple[str, ...]
    measured: Mapping[str, float]

    @property
    def names(self) -> tuple[str, ...]:
        """What thresholds may call it: its id, its architecture, its generation."""
        return self.id, self.arch, GENERATIONS.get(self.arch, self.arch)

    def peak_of(self, dtype: str) -> float:
        """
        FLOP/s for `dtype`, under the name PyTorch or this module gives it.

        Raises:
            DeviceError: the device does not support it; the message names what it does.
        """
        key = _peak_key(dtype)
        if key not in self.peak:
            raise DeviceError(
                f"{self.id}: expected a peak for {dtype}, found {', '.join(self.peak)}. "
                "Use one of these, or a device that has it."
            )
        return self.peak[key]

    def supports(self, dtype: str) -> bool:
        """Whether there is arithmetic in `dtype`."""
        return _peak_key(dtype) in self.peak

    def hard_peak_of(self, dtype: str) -> float:
        """
        FLOP/s for `dtype` at the maximum clock: the rate that nothing can exceed.

        Raises:
            DeviceError: as `peak_of`.
        """
        datasheet = self.peak_of(dtype)
        per_clock = self.sms * self.flops_per_clk_per_sm[_peak_key(dtype)]
        return max(datasheet, per_clock * self.max_clock_hz)

    def special_rate(self) -> float:
        """Special-function results per second."""
        return self.sms * self.sfu_per_clk_per_sm * self.clock_hz


def _peak_key(dtype: str) -> str:
    """Both float8 formats of PyTorch run at one rate, and so do the variants of float4."""
    for prefix, key in (("float8", "float8"), ("float4", "fp4")):
        if dtype.startswith(prefix):
            return key
    return dtype


def speed_of_light(cost: Cost, dtype: str, profile: Profile, *, calibrated: bool = False) -> float:
    """
    Seconds that `cost` takes at the very least.

    The slowest of memory, arithmetic, special functions and launch, each as if the others
    were free. With `calibrated`, measured ceilings replace the datasheet's where there are any.

    Raises:
        DeviceError: there is arithmetic in a dtype that the device lacks.
    """
    return max(_least_times(cost, dtype, profile, calibrated=calibrated).values())


def bound_by(cost: Cost, dtype: str, profile: Profile) -> str:
    """Which limit sets the speed of light: "memory", "compute", "special" or "launch"."""
    times = _least_times(cost, dtype, profile, calibrated=False)
    return max(times, key=times.__getitem__)


def _least_times(cost: Cost, dtype: str, profile: Profile, *, calibrated: bool) -> dict[str, float]:
    ceilings = profile.measured if calibrated else {}
    times = {
        "memory": cost.bytes / ceilings.get("bandwidth", profile.bandwidth),
        "special": cost.special / profile.special_rate(),
        "launch": ceilings.get("launch", profile.launch_s),
    }
    if cost.flops:  # a pure copy may be of any dtype
        peak = profile.peak_of(dtype)
        times["compute"] = cost.flops / ceilings.get(_peak_key(dtype), peak)
    return times


def physical_limit(cost: Cost, dtype: str, profile: Profile) -> float:
    """
    Seconds that `cost` cannot be done in, whatever the kernel.

    Arithmetic runs at the maximum clock here. Special functions are left out, since a polynomial
    can stand in for them, and so is the launch, whose floor is modelled.

    Raises:
        DeviceError: there is arithmetic in a dtype that the device lacks.
    """
    memory_s = cost.bytes / profile.bandwidth
    return max(memory_s, cost.flops / profile.hard_peak_of(dtype)) if cost.flops else memory_s


def too_small(cost: Cost, dtype: str, profile: Profile) -> str | None:
    """
    Why `cost` is too little work for a clock to judge on this device; None when it is enough.

    100 µs and 20 launches at the speed of light make the launch negligible. Where memory is the
    limit, 4 last-level caches make sure that it is memory, and not the cache, that is timed.

    Raises:
        DeviceError: there is arithmetic in a dtype that the device lacks.
    """
    ideal_s = speed_of_light(cost, dtype, profile)
    least_s = max(SMALLEST_S, SMALLEST_LAUNCHES * profile.launch_s)
    if ideal_s < least_s:
        return f"small for this device: {ideal_s * 1e6:.3g} µs of work, {least_s * 1e6:.3g} wanted"
    moved_mb, least_mb = cost.bytes / 1e6, SMALLEST_CACHES * profile.llc_bytes / 1e6
    if moved_mb < least_mb and bound_by(cost, dtype, profile) == "memory":
        return f"small for this device: {moved_mb:.4g} MB moved, {least_mb:.4g} wanted"
    return None
