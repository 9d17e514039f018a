"""What is around a judging session: device, hardware profile, folders, versions."""

import os
import platform
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from packaging.requirements import Requirement

from harness.catalog import find_root
from harness.hardware import Profile, detect_profile, find_profile, load_profiles
from harness.kata import Kata

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
        import torch

        properties = torch.cuda.get_device_properties(0)
        amd = getattr(properties, "gcnArchName", "").split(":")[0]
        nvidia = f"sm_{properties.major}{properties.minor}"
        return detect_profile(
            load_profiles(folder, calibrated=calibrated),
            torch.cuda.get_device_name(0),
            arch=amd or nvidia,
            sms=properties.multi_processor_count,
            memory_bytes=properties.total_memory,
        )
    simulated = kata.profile if kata and kata.profile else "cpu"
    return find_profile(folder, simulated, calibrated=calibrated)


def missing_extra(kata: Kata) -> str | None:
    """How to install the optional packages `kata` needs; None when they are there, or none are."""
    if kata.extra is None:
        return None
    for line in requires("gpu-katas") or ():
        requirement = Requirement(line)
        wanted = requirement.marker is not None and requirement.marker.evaluate(
            {"extra": kata.extra}
        )
        if wanted and not _installed(requirement.name):
            return f"{kata.name} needs {requirement.name}: pip install -e '.[{kata.extra}]'"
    return None


def _installed(package: str) -> bool:
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True


def versions() -> dict[str, str]:
    """Versions of what a verdict depends on."""
    packages = ("torch", "triton", "numba", "numba-cuda", "numpy")
    found = {package: version(package) for package in packages if _installed(package)}
    return {"python": platform.python_version(), **found}
