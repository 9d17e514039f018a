"""Numbers as a kernel has them: Triton's dtypes in NumPy, how two of them meet, casts."""

import math
from importlib import import_module
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
import triton.language as tl

from harness.simulators.gluon.context import fault, not_modelled
from harness.simulators.triton_semantics import to_integer

ml_dtypes: Any
try:
    ml_dtypes = import_module("ml_dtypes")
except ImportError:  # it comes with JAX and ONNX; without it bfloat16 and fp8 are refused
    ml_dtypes = None

# whatever the code of a kernel hands over: a Tensor, a number, a constexpr, a layout
KernelValue: TypeAlias = Any
Dtype: TypeAlias = Any  # a tl.dtype
Array: TypeAlias = npt.NDArray[Any]

NUMPY: dict[Dtype, Any] = {
    tl.int1: np.bool_,
    tl.int8: np.int8,
    tl.int16: np.int16,
    tl.int32: np.int32,
    tl.int64: np.int64,
    tl.uint8: np.uint8,
    tl.uint16: np.uint16,
    tl.uint32: np.uint32,
    tl.uint64: np.uint64,
    tl.float16: np.float16,
    tl.float32: np.float32,
    tl.float64: np.float64,
}
if ml_dtypes is not None:
    NUMPY |= {
        tl.bfloat16: ml_dtypes.bfloat16,
        tl.float8e4nv: ml_dtypes.float8_e4m3fn,
        tl.float8e5: ml_dtypes.float8_e5m2,
    }
TORCH: dict[torch.dtype, Dtype] = {
    torch.bool: tl.int1,
    torch.int8: tl.int8,
    torch.int16: tl.int16,
    torch.int32: tl.int32,
    torch.int64: tl.int64,
    torch.uint8: tl.uint8,
    torch.uint16: tl.uint16,
    torch.uint32: tl.uint32,
    torch.uint64: tl.uint64,
    torch.float16: tl.float16,
    torch.float32: tl.float32,
    torch.float64: tl.float64,
    torch.bfloat16: tl.bfloat16,
    torch.float8_e4m3fn: tl.float8e4nv,
    torch.float8_e5m2: tl.float8e5,
}
INT32 = range(-(2**31), 2**31)


class Sizes(list[int]):
    """The shape of something; in a kernel lists and tuples are one and the same."""

    def __add__(self, other: Any) -> "Sizes":  # type: ignore[override]  # noqa: ANN401
        return Sizes([*self, *other])

    def __radd__(self, other: Any) -> "Sizes":  # noqa: ANN401
        return Sizes([*other, *self])


def numpy_dtype(dtype: Dtype) -> np.dtype[Any]:
    """
    What NumPy calls a dtype of Triton.

    Raises:
        TypeError: It is none, or that of a pointer.
        NotModelled: It has no name there.
    """
    if not isinstance(dtype, tl.dtype) or dtype.is_ptr():
        raise fault(TypeError, f"expected a dtype of numbers, found {dtype}")
    if dtype not in NUMPY:
        without = " without the package ml_dtypes" if ml_dtypes is None else ""
        raise not_modelled(f"the dtype {dtype}{without}")
    found: np.dtype[Any] = np.dtype(NUMPY[dtype])
    return found


def triton_dtype(dtype: torch.dtype) -> Dtype:
    """
    What Triton calls a dtype of PyTorch.

    Raises:
        TypeError: Kernels cannot be given tensors of it.
    """
    if dtype not in TORCH:
        raise TypeError(f"a kernel cannot be given a tensor of {dtype}")
    return TORCH[dtype]


def unwrap(value: KernelValue) -> KernelValue:
    """The value of a constexpr; anything else as it is."""
    return value.value if isinstance(value, tl.constexpr) else value


def shape_of(shape: KernelValue) -> tuple[int, ...]:
    """
    The sizes of a block, given in any way that Gluon takes.

    Raises:
        TypeError: They are no sizes.
    """
    sizes = unwrap(shape)
    try:
        return tuple(int(unwrap(size)) for size in sizes)
    except TypeError:
        raise fault(TypeError, f"expected the sizes of a block, found {sizes!r}") from None


def poison(dtype: Dtype) -> Any:  # noqa: ANN401 -- a number of that dtype
    """What stands where nothing has arrived yet: NaN, or the smallest integer."""
    if dtype.is_floating():
        return math.nan
    return False if dtype == tl.int1 else np.iinfo(NUMPY[dtype]).min


def number(value: bool | int | float | np.bool_) -> tuple[Any, Dtype]:
    """A Python number as a kernel has it: int32 while it fits, float32."""
    if isinstance(value, (bool, np.bool_)):
        return np.bool_(value), tl.int1
    if isinstance(value, int):
        dtype = tl.int32 if value in INT32 else tl.int64
        return numpy_dtype(dtype).type(value), dtype
    return np.float32(value), tl.float32


def convert(values: Any, source: Dtype, target: Dtype) -> Any:  # noqa: ANN401 -- array or scalar
    """
    Cast as the compiled kernel does.

    What does not fit into an integer or into fp8 is the nearest that does, as the instructions in
    `harness.simulators.triton_semantics` have it.
    """
    numpys = numpy_dtype(target)
    if target == tl.int1:
        return values != 0
    if source.is_floating() and target.is_int():
        return to_integer(np.asarray(values), numpys)[()]
    if target in (tl.float8e4nv, tl.float8e5):
        most = float(ml_dtypes.finfo(numpys).max)
        values = np.clip(np.asarray(values, np.float32), -most, most)
    return np.asarray(values).astype(numpys)[()]
