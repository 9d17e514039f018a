"""NVRTC: CUDA C++ into PTX and machine code, for a GPU that need not be there."""

import re
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

# wgmma, setmaxnreg and the like are there only for who builds for exactly this architecture
ARCHITECTURE_SPECIFIC = ("sm_90", "sm_100")
INSTALL = "Install the extra cuda: pip install 'gpu-katas[cuda]', or in a clone -e '.[cuda]'"


class BuildFailed(RuntimeError):
    """NVRTC refused the source; the message is what it said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """
    One kernel, built for one GPU.

    Attributes:
        name: What it is called in the source.
        symbol: What it is called in `ptx` and `cubin`: the same for ``extern "C"``.
        arch: What it was built for, as in "sm_90".
        ptx: The PTX.
        cubin: The machine code; empty where only the PTX was asked for.
    """

    name: str
    symbol: str
    arch: str
    ptx: str
    cubin: bytes


@cache
def build(source: str, name: str, *, arch: str, options: tuple[str, ...] = ()) -> Kernel:
    """
    Build one kernel of `source` for a GPU that need not be there.

    Args:
        source: CUDA C++ (C++17).
        name: The kernel, as C++ calls it: ``doubled``, or ``doubled<float>`` for a template.
        arch: A GPU, as in "sm_90".
        options: More options of NVRTC, as in ``("-DBLOCK=128",)``.

    Raises:
        BuildFailed: with what NVRTC said of the source.
        RuntimeError: NVRTC or CUDA's headers are not installed.
    """
    program = _built(source, name, arch=_exact(arch), options=options)
    nvrtc = _nvrtc()
    try:
        cubin = _read(nvrtc.nvrtcGetCUBIN, program, asked(nvrtc.nvrtcGetCUBINSize(program)))
        return _kernel(program, name, arch, cubin)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def build_ptx(source: str, name: str, *, arch: str, options: tuple[str, ...] = ()) -> Kernel:
    """As `build`, without machine code, which takes half of the time."""
    virtual = _exact(arch).replace("sm_", "compute_")
    program = _built(source, name, arch=virtual, options=options)
    try:
        return _kernel(program, name, arch, b"")
    finally:
        _nvrtc().nvrtcDestroyProgram(program)


def _exact(arch: str) -> str:
    return f"{arch}a" if arch in ARCHITECTURE_SPECIFIC else arch


def _built(source: str, name: str, *, arch: str, options: tuple[str, ...]) -> Any:  # noqa: ANN401
    """A program of NVRTC's, compiled."""
    if wrong := [one for one in options if re.match(r"-DT(=|$)", one)]:
        raise ValueError(
            f"options: expected another name than T, which CUDA's own headers use, found "
            f"{wrong[0]!r}: call it ELEMENT"
        )
    nvrtc = _nvrtc()
    flags = [f"--gpu-architecture={arch}", "--std=c++17", "--generate-line-info"]
    flags += [f"--include-path={folder}" for folder in _include_folders()]
    program = asked(nvrtc.nvrtcCreateProgram(source.encode(), f"{name}.cu".encode(), 0, [], []))
    try:
        asked(nvrtc.nvrtcAddNameExpression(program, name.encode()))
        encoded = [flag.encode() for flag in (*flags, *options)]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(encoded), encoded)
        if int(status):
            size = asked(nvrtc.nvrtcGetProgramLogSize(program))
            raise BuildFailed(_words(_read(nvrtc.nvrtcGetProgramLog, program, size)))
    except BaseException:
        nvrtc.nvrtcDestroyProgram(program)
        raise
    return program


def _kernel(program: Any, name: str, arch: str, cubin: bytes) -> Kernel:  # noqa: ANN401
    nvrtc = _nvrtc()
    symbol = asked(nvrtc.nvrtcGetLoweredName(program, name.encode())).decode()
    ptx = _read(nvrtc.nvrtcGetPTX, program, asked(nvrtc.nvrtcGetPTXSize(program)))
    return Kernel(name=name, symbol=symbol, arch=arch, ptx=_text(ptx), cubin=cubin)


@cache
def _nvrtc() -> ModuleType:
    """NVRTC's bindings, once its library is known to be there: a call would only say 'no'."""
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError) as error:
        raise RuntimeError(f"CUDA C++: expected NVRTC, found none ({error}). {INSTALL}") from None
    return nvrtc  # type: ignore[no-any-return]


@cache
def _include_folders() -> tuple[str, ...]:
    from cuda.pathfinder import find_nvidia_header_directory

    folders = {part: find_nvidia_header_directory(part) for part in ("cudart", "cccl")}
    if missing := [part for part, folder in folders.items() if folder is None]:
        raise RuntimeError(
            f"CUDA C++: expected the headers of {' and '.join(missing)}, found none. {INSTALL}"
        )
    return tuple(str(folder) for folder in folders.values())


def asked(answer: tuple[Any, ...]) -> Any:  # noqa: ANN401 -- a status, and what was asked for
    """What a function of CUDA's gave back beside its status; RuntimeError for a bad status."""
    status, *rest = answer
    if int(status):
        raise RuntimeError(f"CUDA: expected success, found {status.name} ({int(status)})")
    return rest[0] if rest else None


def _read(getter: Any, program: Any, size: int) -> bytes:  # noqa: ANN401 -- NVRTC's own
    buffer = b" " * size
    asked(getter(program, buffer))
    return buffer


def _text(content: bytes) -> str:
    return content.decode(errors="replace").rstrip("\0 \n")


def _words(log: bytes) -> str:
    """What NVRTC said of the source; that it lacks the kernel only where nothing else is wrong."""
    said = _text(log).split("\n\n")
    own = [one for one in said if not one.startswith("__nv_name_map")]
    return "\n\n".join(own if len(own) > 1 else said)  # the last one only counts
