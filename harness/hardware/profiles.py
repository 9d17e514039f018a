"""
What a GPU can do at best, read from files and found for a device.

One TOML file in ``hardware_profiles/`` describes one device. Units are part of each key's name
there; a `Profile` has every figure in base units: bytes, FLOP, seconds, hertz. What was measured
on one machine lies apart from it, in a folder of calibrated ceilings.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.base.errors import DeviceError, MetadataError, UsageProblem, nearest
from harness.base.schema import Problems, Table, read_toml
from harness.hardware.roofline import (
    Cost,
    Profile,
    bound_by,
    physical_limit,
    speed_of_light,
    too_small,
)

__all__ = [
    "DTYPES",
    "Cost",
    "Profile",
    "bound_by",
    "calibrated_file",
    "detect_profile",
    "find_profile",
    "load_profiles",
    "physical_limit",
    "profile_mismatch",
    "speed_of_light",
    "too_small",
]

VENDORS = ("nvidia", "amd", "cpu")
DTYPES = ("float64", "float32", "tf32", "float16", "bfloat16", "float8", "int8", "fp4")

# a datasheet rounds, and may mix clocks: the formula need not agree better than this
FORMULA_TOLERANCE = 0.03
# a measured ceiling outside this share of what is possible belongs to another device
MEASURED_RANGE = (0.5, 1.02)
# drivers and error correction keep some of the memory for themselves
MEMORY_TOLERANCE = 0.1


def load_profiles(folder: Path, *, calibrated: Path | None = None) -> dict[str, Profile]:
    """
    Read every profile of `folder`, by id; ceilings found in the folder `calibrated` go with them.

    Raises:
        MetadataError: the folder holds none, or a file is wrong: each problem with its key.
    """
    paths = sorted(folder.glob("*.toml"))
    if not paths:
        raise MetadataError(f"{folder}: expected hardware profiles (*.toml), found none.")
    return {path.stem: _with_calibrated(_read_profile(path), calibrated) for path in paths}


def find_profile(folder: Path, profile_id: str, *, calibrated: Path | None = None) -> Profile:
    """
    Read the one profile called `profile_id`, and its ceilings in the folder `calibrated`, if any.

    Raises:
        UsageProblem: there is none of that name; the message offers the nearest.
        MetadataError: its file is wrong.
    """
    paths = {path.stem: path for path in sorted(folder.glob("*.toml"))}
    if profile_id not in paths:
        raise UsageProblem(
            f"{folder}: expected a profile, found no {profile_id}.toml."
            f"{nearest(profile_id, paths)} There are: {', '.join(paths)}."
        )
    return _with_calibrated(_read_profile(paths[profile_id]), calibrated)


def calibrated_file(folder: Path, profile_id: str) -> Path:
    """Where a machine's own ceilings for a profile are kept."""
    return folder / f"{profile_id}.toml"


def _with_calibrated(profile: Profile, folder: Path | None) -> Profile:
    """`profile` with the ceilings measured on this machine in place of those in its file."""
    if folder is None or not calibrated_file(folder, profile.id).is_file():
        return profile
    path = calibrated_file(folder, profile.id)
    try:
        return replace(profile, measured={**profile.measured, **_read_calibrated(path, profile)})
    except MetadataError as error:
        raise MetadataError(
            f"{error.message}\nDelete the file, then: kata profile calibrate"
        ) from None


def _read_calibrated(path: Path, profile: Profile) -> dict[str, float]:
    data = read_toml(path)
    with Problems(path) as problems:
        _check_positive(data, problems)
        table = Table(data, problems)
        table.choice("profile", [profile.id])
        table.take("device", str)
        table.take("measured_at", str)
        found = {
            "bandwidth": table.take("bandwidth_bytes_per_s", float),
            "launch": table.take("launch_floor_s", float),
            **_per_dtype(table, "peak_flops_per_s"),
        }
        table.done()
        for key, expected, figure in profile_mismatch(profile, found):
            problems.add(key, expected, figure)
    return found


def profile_mismatch(profile: Profile, measured: Mapping[str, float]) -> list[tuple[str, str, str]]:
    """
    Measured ceilings that this device cannot have: for each its key, what was expected, the figure.

    A ceiling lies between 0.5 of the datasheet's figure and 1.02 of what the maximum clock allows.
    """
    problems = []
    for name, figure in measured.items():
        if name == "launch":
            continue  # the profile's own figure is modelled
        key = "bandwidth_bytes_per_s" if name == "bandwidth" else f"peak_flops_per_s.{name}"
        low, high = _measured_range(profile, name)
        if not low <= figure <= high:
            shares = "{} of the datasheet to {} of what is possible".format(*MEASURED_RANGE)
            problems.append((key, f"{low:.4g} to {high:.4g}, {shares}", f"{figure:.4g}"))
    return problems


def _measured_range(profile: Profile, name: str) -> tuple[float, float]:
    low, high = MEASURED_RANGE
    if name == "bandwidth":
        return low * profile.bandwidth, high * profile.bandwidth
    datasheet = profile.peak.get(name, 0.0)
    per_clock = profile.sms * profile.flops_per_clk_per_sm.get(name, 0.0)
    return low * datasheet, high * max(datasheet, per_clock * profile.max_clock_hz)


def _read_profile(path: Path) -> Profile:
    data = read_toml(path)
    with Problems(path) as problems:
        _check_positive(data, problems)
        table = Table(data, problems)
        memory, limits, clock, special, launch, link, measured = (
            _section(table, key)
            for key in ("memory", "limits", "clock", "special", "launch", "link", "measured")
        )
        peak_clocks = _per_dtype(clock, "peak_hz_of")
        measured_bandwidth = measured.optional("bandwidth_bytes_per_s", float)
        no_link = None if link.data else 0.0
        l2_bytes = memory.take("l2_bytes", int)
        if table.take("sparse", bool):
            problems.add("sparse", "false: dense figures only", "true")
        profile = Profile(
            id=path.stem,
            name=table.take("name", str),
            vendor=table.choice("vendor", VENDORS),
            arch=table.take("arch", str),
            device_names=table.texts("device_names"),
            sms=limits.take("sms", int),
            memory_bytes=memory.take("size_bytes", int),
            bandwidth=memory.take("bandwidth_bytes_per_s", float),
            l2_bytes=l2_bytes,
            llc_bytes=memory.take("llc_bytes", int, l2_bytes),
            smem_per_sm_bytes=limits.take("smem_per_sm_bytes", int),
            smem_per_block_bytes=limits.take("smem_per_block_bytes", int),
            registers_per_sm=limits.take("registers_per_sm", int),
            warps_per_sm=limits.take("warps_per_sm", int),
            blocks_per_sm=limits.take("blocks_per_sm", int),
            warp_size=limits.take("warp_size", int),
            clock_hz=clock.take("peak_hz", float),
            max_clock_hz=clock.take("max_hz", float),
            flops_per_clk_per_sm=_per_dtype(table, "flops_per_clk_per_sm"),
            peak=_per_dtype(table, "peak_flops_per_s"),
            sfu_per_clk_per_sm=special.take("results_per_clk_per_sm", float),
            launch_s=launch.take("floor_s", float),
            link_bandwidth=link.take("bandwidth_bytes_per_s", float, no_link),
            link_latency_s=link.take("latency_s", float, no_link),
            sources=table.texts("sources"),
            unverified=table.texts("unverified", default=()),
            measured=_per_dtype(measured, "peak_flops_per_s")
            | ({"bandwidth": measured_bandwidth} if measured_bandwidth else {}),
        )
        for part in (table, memory, limits, clock, special, launch, link, measured):
            part.done()
        if not profile.sources:
            problems.add("sources", "at least one", "none")
        _check_formula(profile, peak_clocks, problems)
        _check_max_clock(profile, peak_clocks, problems)
        for key, expected, figure in profile_mismatch(profile, profile.measured):
            problems.add(f"measured.{key}", expected, figure)
        _check_unverified(profile, data, problems)
    return profile


def _section(table: Table, key: str) -> Table:
    """Take a table of the table; the keys an absent one should have had are asked for later."""
    return Table(table.take(key, dict, {}), table.problems, f"{table.where}{key}.")


def _per_dtype(table: Table, key: str) -> dict[str, float]:
    section = _section(table, key)
    figures = {dtype: section.optional(dtype, float) for dtype in DTYPES}
    section.done()
    return {dtype: figure for dtype, figure in figures.items() if figure is not None}


def _check_positive(data: Mapping[str, Any], problems: Problems, where: str = "") -> None:
    """Every number of a profile is a positive quantity, so one rule serves all keys."""
    for key, value in data.items():
        if isinstance(value, dict):
            _check_positive(value, problems, f"{where}{key}.")
        elif type(value) in (int, float) and not 0 < value < math.inf:
            problems.add(where + key, "more than 0", value)


def _check_formula(profile: Profile, clocks: Mapping[str, float], problems: Problems) -> None:
    """A peak is SMs x FLOP per clock and SM x clock; a sparse or half-rate figure is not."""
    rates, peaks = profile.flops_per_clk_per_sm, profile.peak
    if not peaks:
        problems.add("peak_flops_per_s", "at least one dtype", "none")
    for dtype in sorted(rates.keys() ^ peaks.keys()):
        expected = "a figure both in flops_per_clk_per_sm and in peak_flops_per_s"
        problems.add(dtype, expected, "only one of them")
    for dtype in sorted(rates.keys() & peaks.keys()):
        clock_hz = clocks.get(dtype, profile.clock_hz)
        product = profile.sms * rates[dtype] * clock_hz
        if min(product, peaks[dtype]) <= 0:
            continue  # a factor is missing, and was reported as such
        if abs(product / peaks[dtype] - 1) > FORMULA_TOLERANCE:
            problems.add(
                f"peak_flops_per_s.{dtype}",
                f"{profile.sms} SMs x {rates[dtype]:g} FLOP/clk x {clock_hz:g} Hz = {product:.4g}"
                f" within {FORMULA_TOLERANCE:.0%}",
                f"{peaks[dtype]:.4g}",
            )


def _check_max_clock(profile: Profile, clocks: Mapping[str, float], problems: Problems) -> None:
    fastest_hz = max(profile.clock_hz, *clocks.values(), 0.0)
    if 0 < profile.max_clock_hz < fastest_hz:
        problems.add("clock.max_hz", f"at least {fastest_hz:g}", f"{profile.max_clock_hz:g}")


def _check_unverified(profile: Profile, data: Mapping[str, Any], problems: Problems) -> None:
    known = set(_leaves(data))
    for key in profile.unverified:
        if key not in known:
            problems.add("unverified", "keys of this file", repr(key) + nearest(key, known))


def _leaves(data: Mapping[str, Any], where: str = "") -> Iterable[str]:
    for key, value in data.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{where}{key}.")
        else:
            yield where + key


def detect_profile(
    profiles: Mapping[str, Profile],
    device_name: str,
    *,
    arch: str | None = None,
    sms: int | None = None,
    memory_bytes: int | None = None,
) -> Profile:
    """
    The profile of a device that calls itself `device_name`.

    The exact name decides, unless the memory read says it is another variant of that name.
    An unknown name is matched by `arch`, `sms` and `memory_bytes` where exactly one fits.

    Raises:
        DeviceError: none fits, or several do; the message holds a profile to fill in.
    """
    named = [
        profile
        for profile in profiles.values()
        if device_name in profile.device_names
        and (memory_bytes is None or _holds(profile, memory_bytes))
    ]
    alike = [
        profile
        for profile in profiles.values()
        if memory_bytes is not None
        and _holds(profile, memory_bytes)
        and profile.sms == sms
        and profile.arch == _plain_arch(arch)
    ]
    for candidates in (named, alike):
        if len(candidates) == 1:
            return candidates[0]
    ids = [profile.id for profile in named or alike]
    raise DeviceError(_how_to_add(device_name, _plain_arch(arch), sms, memory_bytes, ids))


def _holds(profile: Profile, memory_bytes: int) -> bool:
    return abs(memory_bytes - profile.memory_bytes) <= MEMORY_TOLERANCE * profile.memory_bytes


def _plain_arch(arch: str | None) -> str:
    """ROCm appends features, as in ``gfx90a:sramecc+:xnack-``."""
    return (arch or "").split(":")[0]


def _how_to_add(
    device_name: str, arch: str, sms: int | None, memory_bytes: int | None, alike: list[str]
) -> str:
    file = re.sub(r"\W+", "_", device_name.lower()).strip("_")
    amd = arch.startswith("gfx")
    filled = SKELETON.format(
        name=device_name,
        vendor="amd" if amd else "nvidia",
        arch=arch,
        sms=sms or 0,
        memory_bytes=memory_bytes or 0,
        warp_size=64 if amd else 32,
    )
    found = f"{len(alike)} that fit it ({', '.join(alike)})" if alike else "none"
    known = "Add its name to `device_names` of the right one, or save" if alike else "Save"
    return (
        f"{device_name}: expected one hardware profile, found {found}. {known} this as "
        f"hardware_profiles/{file}.toml, with the vendor's dense figures for the zeros:\n\n{filled}"
    )


SKELETON = """\
name = "{name}"
vendor = "{vendor}"
arch = "{arch}"
device_names = ["{name}"]
sparse = false
sources = []  # where the figures come from, at least one
unverified = []  # figures that none of the sources has, such as "launch.floor_s"

[memory]
size_bytes = {memory_bytes}
bandwidth_bytes_per_s = 0
l2_bytes = 0

[limits]
sms = {sms}
warp_size = {warp_size}
warps_per_sm = 0
blocks_per_sm = 0
registers_per_sm = 65536
smem_per_sm_bytes = 0
smem_per_block_bytes = 0

[clock]
peak_hz = 0
max_hz = 0

[flops_per_clk_per_sm]  # one FMA counts two; one line for each dtype, as below
float32 = 0

[peak_flops_per_s]
float32 = 0

[special]
results_per_clk_per_sm = 16

[launch]
floor_s = 3e-6
"""
