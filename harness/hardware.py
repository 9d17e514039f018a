"""
What a GPU can do at best, as plain data, and the least time a cost can take on it.

One TOML file in ``hardware_profiles/`` describes one device. Units are part of each key's name
there; here every figure is in base units: bytes, FLOP, seconds, hertz.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import DeviceError, MetadataError, UsageProblem, nearest
from harness.schema import Problems, Table, read_toml

VENDORS = ("nvidia", "amd", "cpu")
DTYPES = ("float64", "float32", "tf32", "float16", "bfloat16", "float8", "int8", "fp4")

# a datasheet rounds, and may mix clocks: the formula need not agree better than this
FORMULA_TOLERANCE = 0.03
# a measured ceiling outside this share of the datasheet belongs to another device
MEASURED_RANGE = (0.5, 1.02)
# drivers and error correction keep some of the memory for themselves
MEMORY_TOLERANCE = 0.1


def load_profiles(folder: Path) -> dict[str, Profile]:
    """
    Read every profile of `folder`, by id.

    Raises:
        MetadataError: the folder holds none, or a file is wrong: each problem with its key.
    """
    paths = sorted(folder.glob("*.toml"))
    if not paths:
        raise MetadataError(f"{folder}: expected hardware profiles (*.toml), found none.")
    return {path.stem: _read_profile(path) for path in paths}


def find_profile(folder: Path, profile_id: str) -> Profile:
    """
    Read the one profile called `profile_id`.

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
    return _read_profile(paths[profile_id])


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
        _check_formula(profile, peak_clocks, problems)
        _check_max_clock(profile, peak_clocks, problems)
        _check_measured(profile, problems)
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


def _check_measured(profile: Profile, problems: Problems) -> None:
    low, high = MEASURED_RANGE
    datasheet = {**profile.peak, "bandwidth": profile.bandwidth}
    for name, figure in profile.measured.items():
        nominal = datasheet.get(name, 0.0)
        if not low * nominal <= figure <= high * nominal:
            key = "bandwidth_bytes_per_s" if name == "bandwidth" else f"peak_flops_per_s.{name}"
            share = f"{low:g} to {high:g} of the datasheet's {nominal:.4g}"
            problems.add(f"measured.{key}", share, f"{figure:.4g}")


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
sources = []

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
