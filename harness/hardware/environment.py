"""What is around a judging session: device, hardware profile, folders, versions."""

import hashlib
import os
import platform
import warnings
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable
from functools import cache
from importlib.metadata import PackageNotFoundError, PackagePath, metadata, requires, version
from importlib.metadata import files as files_of
from pathlib import Path
from typing import TypeVar

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from harness.content.catalog import find_root
from harness.content.kata import Kata
from harness.hardware.profiles import Profile, detect_profile, find_profile, load_profiles

T = TypeVar("T")

PROJECT = "gpu-katas"  # its name as a package
# what a verdict depends on
JUDGED_WITH = ("torch", "triton", "numba", "numba-cuda", "numpy")

# device nodes of NVIDIA's driver, of WSL, and of AMD's driver
DEVICE_NODES = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")


def device_present() -> bool:
    """Whether a GPU's driver is there, told without importing torch."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") == ""
    return not hidden and any(Path(node).exists() for node in DEVICE_NODES)


def home_folder(root: Path | None = None) -> Path:
    """Where progress, kept copies and caches live: ``$KATA_HOME`` or ``.kata/`` in the root."""
    asked = os.environ.get("KATA_HOME")
    return Path(asked) if asked else (root or find_root(Path.cwd())) / ".kata"


SEEDS = 2**31  # from 0 on: what --seed takes, and what is drawn without it


def cache_folder() -> Path:
    """What may be deleted at any time: compiled kernels, wrong solutions made from edits."""
    return home_folder() / "cache"


def session_profile(root: Path, asked: str | None, device: str, kata: Kata | None) -> Profile:
    """
    The profile asked for, else the device's, else the one the kata simulates, else the CPU's.

    What `kata profile calibrate` measured on this machine is in it.
    """
    folder, calibrated = root / "hardware_profiles", home_folder(root) / "calibrated"
    if asked:
        return find_profile(folder, asked, calibrated=calibrated)
    if device == "cuda":
        name, arch, sms, memory_bytes = first_gpu()
        return detect_profile(
            load_profiles(folder, calibrated=calibrated),
            name,
            arch=arch,
            sms=sms,
            memory_bytes=memory_bytes,
        )
    simulated = kata.profile if kata and kata.profile else "cpu"
    return find_profile(folder, simulated, calibrated=calibrated)


@cache
def gpu_count() -> int:
    """How many GPUs PyTorch can use."""
    return _in_a_fork(_count_gpus)


@cache
def first_gpu() -> tuple[str, str, int, int]:
    """Name, architecture, SMs and bytes of memory of the first GPU."""
    return _in_a_fork(_first_gpu)


def first_gpu_uuid() -> str:
    """What the first GPU that CUDA may use is called by NVIDIA's tools, which count them all."""
    return _in_a_fork(_first_gpu_uuid)


def _first_gpu_uuid() -> str:
    import torch

    return f"GPU-{torch.cuda.get_device_properties(0).uuid}"


def _count_gpus() -> int:
    import torch

    return torch.cuda.device_count()


def _first_gpu() -> tuple[str, str, int, int]:
    import torch

    properties = torch.cuda.get_device_properties(0)
    amd = getattr(properties, "gcnArchName", "").split(":")[0]
    nvidia = f"sm_{properties.major}{properties.minor}"
    sms, memory_bytes = properties.multi_processor_count, properties.total_memory
    return torch.cuda.get_device_name(0), amd or nvidia, sms, memory_bytes


def _in_a_fork(question: Callable[[], T]) -> T:
    """
    Answer `question`, a function of this module, in a forked process.

    A process that has asked CUDA anything can fork no process that uses it, and ranks are forked.
    """
    # imported where they are needed: most commands ask no GPU
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    import torch

    if torch.cuda.is_initialized():
        return question()  # too late for a fork, and nothing to lose
    with warnings.catch_warnings():
        # threads of this process do not exist in the fork, which needs none of them
        warnings.filterwarnings("ignore", ".*fork", DeprecationWarning)
        with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
            return pool.submit(question).result()


def missing_extra(kata: Kata) -> str | None:
    """What `kata` needs that is not installed, and how to get it; None when nothing is missing."""
    if kata.extra is None:
        return None
    extras = metadata(PROJECT).get_all("Provides-Extra") or []
    if kata.extra not in extras:
        return f"extra: expected one of {', '.join(extras)}, found {kata.extra!r}"
    for line in requires(PROJECT) or ():
        requirement = Requirement(line)
        wanted = requirement.marker is not None and requirement.marker.evaluate(
            {"extra": kata.extra}
        )
        if wanted and not _installed(requirement.name):
            return f"{kata.name} needs {requirement.name}: pip install -e '.[{kata.extra}]'"
    return None


def unmet_requirements() -> dict[str, str]:
    """What the project needs and does not find, extras apart: package to expected and found."""
    if not _installed(PROJECT):
        return {PROJECT: "expected to be installed itself, found none"}
    unmet = {}
    for wanted in _needs(PROJECT):
        if not _installed(wanted.name):
            unmet[wanted.name] = f"expected {wanted.specifier}, found none"
        elif not wanted.specifier.contains(version(wanted.name), prereleases=True):
            unmet[wanted.name] = f"expected {wanted.specifier}, found {version(wanted.name)}"
    return unmet


def installed() -> dict[str, str]:
    """Versions of all that the project needs and of what that needs in turn, where installed."""
    found: dict[str, str] = {}
    asked = [PROJECT]
    while asked:
        name = canonicalize_name(asked.pop())
        if name not in found and _installed(name):
            found[name] = version(name)
            asked += [wanted.name for wanted in _needs(name)]
    return dict(sorted(found.items()))


def altered(packages: Iterable[str] = JUDGED_WITH) -> list[str]:
    """Python files of these packages that are not as they were installed, by their records."""
    files = [file for name in packages if _installed(name) for file in files_of(name) or ()]
    return sorted(
        str(file)
        for file in files
        if file.suffix == ".py" and file.hash is not None and _digest(file) != file.hash.value
    )


def _digest(file: PackagePath) -> str:
    """The SHA-256 of a file as RECORD writes it; "" when the file is gone."""
    try:
        found = hashlib.sha256(file.read_binary()).digest()
    except FileNotFoundError:
        return ""
    return urlsafe_b64encode(found).rstrip(b"=").decode()


def _needs(package: str) -> list[Requirement]:
    """What an installed package needs on this machine, extras apart."""
    wanted = map(Requirement, requires(package) or ())
    return [one for one in wanted if one.marker is None or one.marker.evaluate({"extra": ""})]


def _installed(package: str) -> bool:
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True


def versions() -> dict[str, str]:
    """Versions of what a verdict depends on."""
    found = {package: version(package) for package in JUDGED_WITH if _installed(package)}
    return {"python": platform.python_version(), **found}
