"""
The ceilings of one machine: copy, triad, matmuls and an empty launch, timed as katas are.

``kata profile calibrate`` runs this module in a process of its own. What is found is kept beside
the learner's history and read together with the hardware profile; thresholds stay set against the
datasheet, and verdicts tell the share of these ceilings as well.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import click
import torch

from harness.base.errors import DeviceError
from harness.base.files import make_folder, write_atomically
from harness.hardware.environment import gpu_count, session_profile
from harness.hardware.profiles import Profile, calibrated_file, profile_mismatch
from harness.judge.timing.device_state import settled_state, smi_probe, unfit
from harness.judge.timing.measure import Call, EventClock, cache_flush, measure

# m, n, k; the best of them counts: small, large, a long sum
SHAPES = ((4096, 4096, 4096), (8192, 8192, 8192), (4096, 4096, 16384))
# a buffer must be far larger than the last-level cache, and three must fit beside other work
CACHES, LEAST_BUFFER, MEMORY_SHARE = 16, 2**30, 0.1
MOST_S = 2.0  # for each workload: a matmul at the power limit never settles to 1 %


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """
    A call whose speed is a ceiling.

    `work` is in bytes where `ceiling` is "bandwidth", in FLOP where it is a dtype.
    """

    name: str
    ceiling: str
    work: float
    call: Call


def workloads(
    profile: Profile, device: str, nbytes: int, shapes: Iterable[tuple[int, int, int]] = SHAPES
) -> Iterator[Workload]:
    """Every workload that the device supports; its memory is taken when it is asked for."""
    yield from _streams(device, nbytes)
    for dtype in ("float32", "tf32", "float16", "bfloat16", "float8"):
        if dtype in profile.peak and not (dtype == "float8" and profile.vendor != "nvidia"):
            for shape in shapes:
                yield _matmul(dtype, shape, device)


def _streams(device: str, nbytes: int) -> Iterator[Workload]:
    a, b, c = (torch.randn(nbytes // 4, device=device) for _ in range(3))
    yield Workload(name="copy", ceiling="bandwidth", work=2.0 * a.nbytes, call=lambda: a.copy_(b))
    yield Workload(
        name="triad",
        ceiling="bandwidth",
        work=3.0 * a.nbytes,
        call=lambda: torch.add(b, c, alpha=3.0, out=a),
    )


def _matmul(dtype: str, shape: tuple[int, int, int], device: str) -> Workload:
    m, n, k = shape
    a, b = torch.randn(m, k, device=device), torch.randn(n, k, device=device)
    return Workload(
        name=f"{dtype} matmul {m} x {n} x {k}",
        ceiling=dtype,
        work=2.0 * m * n * k,
        call=_scaled(a, b) if dtype == "float8" else _plain(dtype, a, b),
    )


def _plain(dtype: str, a: torch.Tensor, b: torch.Tensor) -> Call:
    """`a` times `b` transposed, in `dtype`."""
    torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
    kind = torch.float32 if dtype == "tf32" else getattr(torch, dtype)
    a, b = a.to(kind), b.to(kind)
    out = torch.empty(a.shape[0], b.shape[0], dtype=kind, device=a.device)
    return lambda: torch.mm(a, b.t(), out=out)


def _scaled(a: torch.Tensor, b: torch.Tensor) -> Call:
    """The same in float8 with one scale, the only form that PyTorch has."""
    a, b = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)
    one = torch.ones((), device=a.device)
    return lambda: torch._scaled_mm(
        a, b.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True
    )


def best_rates(
    found: Iterable[Workload],
    seconds: Callable[[Call], float],
    tell: Callable[[str], None] = click.echo,
) -> dict[str, float]:
    """The highest rate of each ceiling, by what `seconds` says a call takes."""
    rates: dict[str, float] = {}
    for one in found:
        rate = one.work / seconds(one.call)
        unit = "B/s" if one.ceiling == "bandwidth" else "FLOP/s"
        tell(f"{one.name:36} {rate / 1e12:8.2f} T{unit}")
        rates[one.ceiling] = max(rate, rates.get(one.ceiling, 0.0))
    return rates


def checked(profile: Profile, measured: dict[str, float]) -> dict[str, float]:
    """
    `measured`, once it is known to fit the profile.

    Raises:
        DeviceError: a ceiling is not this device's; the message lists every such one.
    """
    problems = profile_mismatch(profile, measured)
    if problems:
        listed = "\n".join(
            f"  {key}: expected {expected}, found {figure}" for key, expected, figure in problems
        )
        raise DeviceError(
            f"{profile.id}: profile mismatch, nothing was kept:\n{listed}\n"
            "Try again when the device is idle and cool; if it stays, this is another device's "
            "profile (kata profile detect)."
        )
    return measured


def as_toml(profile_id: str, device: str, measured: dict[str, float], moment: datetime) -> str:
    """The file in which ceilings are kept; `find_profile` and `load_profiles` read it."""
    peaks = {name: rate for name, rate in measured.items() if name not in ("bandwidth", "launch")}
    return "\n".join(
        [
            "# Measured on this machine by: kata profile calibrate",
            f'profile = "{profile_id}"',
            f'device = "{device}"',
            f'measured_at = "{moment.isoformat(timespec="seconds")}"',
            f"bandwidth_bytes_per_s = {measured['bandwidth']:.4e}",
            f"launch_floor_s = {measured['launch']:.3e}",
            "",
            "[peak_flops_per_s]",
            *(f"{name} = {rate:.4e}" for name, rate in peaks.items()),
            "",
        ]
    )


def calibrate(root: Path, folder: Path) -> Path:
    """
    Measure the current CUDA device and keep its ceilings in `folder`.

    Args:
        root: The project, for its hardware profiles.
        folder: Made where it is missing.

    Returns:
        The file written.

    Raises:
        DeviceError: no device, an unknown one, one at work, or one that its profile does not fit.
    """
    if not gpu_count():
        raise DeviceError(
            "calibrate: expected a GPU that PyTorch can use, found none. Run it on a machine with "
            "one, or install the build of PyTorch for its driver."
        )
    profile = session_profile(root, None, "cuda", None)
    probe = smi_probe()
    if why := unfit(settled_state(probe) if probe else None, None, profile):
        raise DeviceError(f"calibrate: expected an idle device, found: {why}.")
    flush = cache_flush(2 * profile.llc_bytes)

    def seconds(call: Call) -> float:
        return measure(call, EventClock(), before=flush, most_s=MOST_S).mine.median

    free_bytes, _ = torch.cuda.mem_get_info()
    nbytes = int(min(max(CACHES * profile.llc_bytes, LEAST_BUFFER), MEMORY_SHARE * free_bytes))
    one = torch.zeros(1, device="cuda")
    measured = {
        "launch": seconds(lambda: one.add_(1)),
        **best_rates(workloads(profile, "cuda", nbytes), seconds),
    }
    name = torch.cuda.get_device_name()
    path = calibrated_file(make_folder(folder), profile.id)
    text = as_toml(profile.id, name, checked(profile, measured), datetime.now(UTC))
    write_atomically(path, text.encode())
    return path


@click.command()
@click.argument("root", type=click.Path(path_type=Path))
@click.argument("folder", type=click.Path(path_type=Path))
def main(root: Path, folder: Path) -> None:
    """Measure this machine's GPU; FOLDER keeps what is found."""
    click.echo(f"kept in {calibrate(root, folder)}")


if __name__ == "__main__":
    main()
