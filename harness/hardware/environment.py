"""What is around a judging session: device, hardware profile, folders."""

import os
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from harness.base.files import PROC
from harness.content.catalog import find_root
from harness.content.kata import Kata

if TYPE_CHECKING:
    from harness.hardware.profiles import Profile

T = TypeVar("T")

# a container's own control group, as its processes see it: limit, use, and what of it can be freed
CONTROL_GROUP = Path("/sys/fs/cgroup")
GROUP_MEMORY = ("memory.max", "memory.current", "memory.stat inactive_file")
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


def free_memory_bytes() -> int:
    """
    What the host can still give without swapping: all of the machine's where it does not tell.

    Linux estimates it (MemAvailable, proc(5)); a control group (memory.max, cgroups v2) may allow
    less.
    """
    free = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    if (meminfo := PROC / "meminfo").is_file():
        told = dict(line.split(":") for line in meminfo.read_text().splitlines())
        free.append(int(told["MemAvailable"].split()[0]) * 1024)
    limit, used, cache = (_group_memory(name) for name in GROUP_MEMORY)
    if limit is not None and used is not None:
        free.append(limit - used + (cache or 0))
    return max(0, min(free))


def _group_memory(entry: str) -> int | None:
    """A figure of this machine's, or container's, control group; None where it has none."""
    name, _, key = entry.partition(" ")
    try:
        text = (CONTROL_GROUP / name).read_text()
    except OSError:
        return None
    found = dict(line.split() for line in text.splitlines()).get(key) if key else text.strip()
    return int(found) if found and found.isdecimal() else None


SEEDS = 2**31  # from 0 on: what --seed takes, and what is drawn without it


def cache_folder() -> Path:
    """What may be deleted at any time: compiled kernels, wrong solutions made from edits."""
    return home_folder() / "cache"


def session_profile(root: Path, asked: str | None, device: str, kata: Kata | None) -> "Profile":
    """
    The profile asked for, else the device's, else the one the kata simulates, else the CPU's.

    What `kata profile calibrate` measured on this machine is in it.
    """
    from harness.hardware.profiles import detect_profile, find_profile, load_profiles

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
