"""
What launchers in CUDA C++ ask for, whichever kernel they launch: a GPU, aligned rows, C++'s types.

A part of `harness.cuda`, which katas import it from.
"""

from dataclasses import dataclass
from typing import Any

PIECE_BYTES = 16  # what a thread moves at once, at most, and what TMA counts addresses in
CPP_TYPES = {
    "float64": "double",
    "float32": "float",
    "float16": "__half",
    "bfloat16": "__nv_bfloat16",
    "float8_e4m3fn": "__nv_fp8_e4m3",
    "float8_e5m2": "__nv_fp8_e5m2",
    "int64": "long long",
    "int32": "int",
    "int16": "short",
    "int8": "signed char",
    "uint8": "unsigned char",
    "bool": "bool",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """
    What a launch has to know of a GPU.

    Attributes:
        arch: As in "sm_90".
        sms: Multiprocessors.
        smem_per_sm_bytes: Shared memory of a multiprocessor, with what is set aside for blocks.
        smem_per_block_bytes: The most a block can ask for.
        bandwidth: Of its memory, in bytes per second.
    """

    arch: str
    sms: int
    smem_per_sm_bytes: int
    smem_per_block_bytes: int
    bandwidth: float


# one of each architecture, for where there is none: vendor's figures, as in hardware_profiles/
STAND_INS = {
    gpu.arch: gpu
    for gpu in (
        Gpu(  # T4
            arch="sm_75", sms=40, bandwidth=320e9,
            smem_per_sm_bytes=65_536, smem_per_block_bytes=65_536,
        ),
        Gpu(  # A100 SXM, 80 GB
            arch="sm_80", sms=108, bandwidth=2.039e12,
            smem_per_sm_bytes=167_936, smem_per_block_bytes=166_912,
        ),
        Gpu(  # RTX 4090
            arch="sm_89", sms=128, bandwidth=1.008e12,
            smem_per_sm_bytes=102_400, smem_per_block_bytes=101_376,
        ),
        Gpu(  # H200
            arch="sm_90", sms=132, bandwidth=4.8e12,
            smem_per_sm_bytes=233_472, smem_per_block_bytes=232_448,
        ),
        Gpu(  # B200
            arch="sm_100", sms=148, bandwidth=8e12,
            smem_per_sm_bytes=233_472, smem_per_block_bytes=232_448,
        ),
    )
}  # fmt: skip
USUAL = "sm_90"


def gpu_of(arch: str, device: Any) -> Gpu:  # noqa: ANN401 -- PyTorch's properties, or less
    """A GPU by its architecture and what PyTorch knows of it; the rest is a stand-in's."""
    known = STAND_INS.get(arch, STAND_INS[USUAL])
    clock, width = (getattr(device, f"memory_{name}", 0) for name in ("clock_rate", "bus_width"))
    return Gpu(
        arch=arch,
        sms=getattr(device, "multi_processor_count", known.sms),
        smem_per_sm_bytes=getattr(
            device, "shared_memory_per_multiprocessor", known.smem_per_sm_bytes
        ),
        smem_per_block_bytes=getattr(
            device, "shared_memory_per_block_optin", known.smem_per_block_bytes
        ),
        # two transfers a cycle, kHz and bits
        bandwidth=2 * clock * 1e3 * width / 8 or known.bandwidth,
    )


def aligned(tensor: Any, nbytes: int = PIECE_BYTES) -> bool:  # noqa: ANN401 -- a tensor
    """
    Whether rows of neighbouring elements begin at multiples of `nbytes`.

    Rows are those of the last axis. An axis of one index has no stride that counts, and a tensor
    without elements no address.
    """
    if not tensor.numel():
        return True
    *outer, last = zip(tensor.shape, tensor.stride(), strict=True) if tensor.ndim else [(1, 1)]
    pitches = [stride * tensor.element_size() for size, stride in outer if size > 1]
    neighbours = last[1] == 1 or last[0] == 1
    return neighbours and not any(place % nbytes for place in (tensor.data_ptr(), *pitches))


def refuse_unaligned(name: str, tensor: Any, nbytes: int = PIECE_BYTES) -> None:  # noqa: ANN401
    """Raise a ValueError that names the argument, unless it is `aligned`."""
    if not aligned(tensor, nbytes):
        raise ValueError(
            f"{name}: expected rows of neighbouring elements that begin at multiples of {nbytes} "
            f"bytes, found strides {tuple(tensor.stride())} of {tensor.element_size()} bytes from "
            f"address {tensor.data_ptr() % nbytes} modulo {nbytes} on"
        )


def cpp_type(dtype: Any) -> str:  # noqa: ANN401 -- a dtype of PyTorch's
    """What C++ calls a dtype, as in ``f"-DELEMENT={cpp_type(x.dtype)}"``."""
    name = str(dtype).removeprefix("torch.")
    if name not in CPP_TYPES:
        raise ValueError(f"dtype: expected one of {', '.join(CPP_TYPES)}, found {name}")
    return CPP_TYPES[name]
