"""
What a kata in Gluon imports besides Gluon: names that Triton's versions spell differently.

    from harness.gluon import cp_async_load, descriptor, tma_load, tma_store

Inside a kernel `tma_load(desc, coord, barrier, smem, pred=…)`, `tma_store(desc, coord, smem)` and
`cp_async_load(smem, pointers, mask=…)` are Triton's own functions, called `async_load` and
`async_store` by 3.9, `async_copy_global_to_shared` and `async_copy_shared_to_global` by 3.6 and
3.7. `descriptor` makes, on the host, what the TMA functions are given.
"""

from collections.abc import Sequence
from typing import Any

import torch
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

tma_load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
tma_store = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global
cp_async_load = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared

DTYPES = {
    torch.float16: gl.float16,
    torch.bfloat16: gl.bfloat16,
    torch.float32: gl.float32,
    torch.float8_e4m3fn: gl.float8e4nv,
    torch.float8_e5m2: gl.float8e5,
    torch.int8: gl.int8,
    torch.int16: gl.int16,
    torch.int32: gl.int32,
    torch.uint8: gl.uint8,
}
ALIGNMENT = 16  # bytes, of a tensor's first element and of each stride


def descriptor(
    tensor: torch.Tensor,
    block: Sequence[int],
    *,
    padding: str = "zero",
    bases: Sequence[Sequence[int]] = (),
) -> Any:  # noqa: ANN401
    """
    A tensor map that moves boxes of `block` elements of `tensor`.

    In shared memory a box has the layout with the widest swizzle that fits its innermost axis.

    Args:
        tensor: Rank 1 to 5, the innermost axis without gaps.
        block: The sizes of a box, powers of two.
        padding: What is read out of bounds: "zero" or "nan".
        bases: How the CTAs of a cluster (`num_ctas`) share a box: a basis for each bit of a CTA's
            rank says where that moves its part, in parts along each axis; zeros give it a copy.

    Raises:
        ValueError: A tensor map cannot describe the tensor; the message says why.
    """
    if tensor.dtype not in DTYPES:
        raise ValueError(f"dtype: expected one of {', '.join(map(str, DTYPES))}")
    if not 1 <= tensor.ndim <= 5 or len(block) != tensor.ndim:
        raise ValueError(
            f"block: expected a size for each of 1 to 5 axes, found {list(block)} for "
            f"{tensor.ndim} axes"
        )
    if not tensor.numel():
        raise ValueError(f"shape: expected elements, found {list(tensor.shape)}")
    if tensor.data_ptr() % ALIGNMENT:
        raise ValueError(f"address: expected a multiple of {ALIGNMENT} bytes for the first element")
    if tensor.stride(-1) != 1:
        raise ValueError(f"stride: expected 1 along the last axis, found {tensor.stride(-1)}")
    pitches = [stride * tensor.element_size() for stride in tensor.stride()[:-1]]
    if any(pitch % ALIGNMENT for pitch in pitches):
        raise ValueError(f"stride: expected multiples of {ALIGNMENT} bytes, found {pitches}")
    layout = gl.NVMMASharedLayout.get_default_for(
        list(block), DTYPES[tensor.dtype], cga_layout=[list(basis) for basis in bases] or None
    )
    return TensorDescriptor.from_tensor(tensor, list(block), layout, padding)
