"""What is installed, in which version, and what is missing."""

import hashlib
import platform
import subprocess
import sys
from base64 import urlsafe_b64encode
from collections.abc import Iterable
from importlib import invalidate_caches
from importlib.metadata import PackageNotFoundError, PackagePath, metadata, requires, version
from importlib.metadata import files as files_of
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from harness.base.errors import HarnessError
from harness.content.course import is_placed, setting_of
from harness.content.kata import Kata

PROJECT = "gpu-katas"  # its name as a package
# backends: Triton runs their kernels, or reads their compiled code, CUDA's as well
NEEDS_TRITON = ("triton", "gluon", "cuda")
# what a verdict depends on
JUDGED_WITH = (
    *("torch", "triton", "numba", "numba-cuda", "numpy", "nvidia-cuda-nvrtc"),
    *("jax", "jaxlib", "nvidia-cutlass", "onnx", "onnxruntime", "xdsl"),
)


def missing_for(kata: Kata) -> str | None:
    """What `kata` needs that is not here, and the way out; None when nothing is missing."""
    if kata.backend not in NEEDS_TRITON or _installed("triton"):
        return missing_extra(kata)
    if sys.platform == "linux":
        return f"{kata.name} needs triton: {by_hand(kata.root)}"
    return (
        f"{kata.name} needs Triton, which runs on Linux: judge it in WSL2, in the container of "
        f".devcontainer/, in Colab, or with kata run {kata.name} --on USER@HOST"
    )


def missing_extra(kata: Kata) -> str | None:
    """What of its extra `kata` lacks, and how to install it; None when nothing is missing."""
    if kata.extra is None:
        return None
    extras = metadata(PROJECT).get_all("Provides-Extra") or []
    if kata.extra not in extras:
        return f"extra: expected one of {', '.join(extras)}, found {kata.extra!r}"
    for wanted in _of_extra(kata.extra):
        if not _installed(wanted.name):
            return f"{kata.name} needs {wanted.name}: {by_hand(kata.root, kata.extra)}"
    return None


def by_hand(root: Path, extra: str = "") -> str:
    """What to type to install the project, or its `extra`: a clone is installed as it lies."""
    project = PROJECT if is_placed(root) else "."
    wanted = f"'{project}[{extra}]'" if extra else project
    return f"pip install {wanted}" if is_placed(root) else f"pip install -e {wanted}"


def install_extra(kata: Kata) -> None:
    """
    Install what `kata` needs beside the project's own requirements, as constraints.txt has it.

    Raises:
        HarnessError: the project has no such extra, or pip fails, with pip's last words.
    """
    wanted = _of_extra(kata.extra) if kata.extra else []
    if not wanted:
        raise HarnessError(f"{kata.name}: {missing_extra(kata)}")
    constraints = setting_of(kata.root, "constraints.txt")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["-c", str(constraints)] if constraints.is_file() else []
    for one in wanted:
        one.marker = None  # it was looked at here: pip knows of no extra
    done = subprocess.run(
        [*command, *map(str, wanted)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        last = (done.stderr.strip() or f"exit {done.returncode}").splitlines()[-1]
        raise HarnessError(
            f"{kata.name}: expected pip to install the extra {kata.extra}, found: {last}. "
            f"Try it by hand: {by_hand(kata.root, kata.extra or '')}"
        )
    invalidate_caches()  # what was looked for in vain is there now


def _of_extra(extra: str) -> list[Requirement]:
    """What the project needs for `extra` alone, on this machine."""
    wanted = map(Requirement, requires(PROJECT) or ())
    return [
        one
        for one in wanted
        if one.marker is not None
        and one.marker.evaluate({"extra": extra})
        and not one.marker.evaluate({"extra": ""})
    ]


def unmet_requirements() -> dict[str, str]:
    """What the project needs and does not find, extras apart: package to expected and found."""
    if not _installed(PROJECT):
        return {PROJECT: "expected to be installed, found that it is not"}
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
