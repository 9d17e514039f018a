"""Tensor maps: what TMA, the copy engine of Hopper and later, copies boxes of."""

import ctypes
from dataclasses import dataclass
from typing import Any

from harness.nvrtc import asked

TENSOR_MAP_BYTES = 128
SWIZZLES = (0, 32, 64, 128)  # bytes
LONGEST_BOX = 256  # elements along each axis
BOX_UNIT = 16  # bytes that addresses, strides and the rows of a box are multiples of
# how the driver calls PyTorch's dtypes
TENSOR_MAP_TYPES = {
    "float16": "FLOAT16",
    "bfloat16": "BFLOAT16",
    "float32": "FLOAT32",
    "float64": "FLOAT64",
    "int32": "INT32",
    "int64": "INT64",
    "int8": "UINT8",  # what is copied is not looked at
    "uint8": "UINT8",
    "int16": "UINT16",
    "float8_e4m3fn": "UINT8",
    "float8_e5m2": "UINT8",
}


@dataclass(frozen=True, slots=True)
class TensorMap:
    """
    What TMA copies boxes of: for a parameter ``const __grid_constant__ CUtensorMap``.

    The 128 bytes need no header: ``struct alignas(64) Map { char held[128]; };`` will do.

    Attributes:
        tensor: Rank 1 to 5, the last axis without gaps.
        box: Elements of a box along each axis, in the tensor's order. Coordinates in a kernel
            begin with the last axis.
        swizzle: 0, or the 32, 64 or 128 bytes within which 16-byte pieces of a box change places.

    Raises:
        ValueError: A tensor map cannot describe it; the message says why.
    """

    tensor: Any
    box: tuple[int, ...]
    swizzle: int = 0

    def __post_init__(self) -> None:
        """Check what the driver would refuse without saying why."""
        tensor, size = self.tensor, self.tensor.element_size()
        if not 1 <= tensor.ndim <= 5 or len(self.box) != tensor.ndim:
            raise ValueError(f"box: expected a size for each of 1 to 5 axes, found {self.box}")
        if not all(1 <= one <= LONGEST_BOX for one in self.box):
            raise ValueError(f"box: expected sizes from 1 to {LONGEST_BOX}, found {self.box}")
        if self._dtype not in TENSOR_MAP_TYPES:
            raise ValueError(f"tensor: expected one of {', '.join(TENSOR_MAP_TYPES)}")
        if tensor.stride(-1) != 1:
            raise ValueError(f"tensor: expected stride 1 along the last axis: {tensor.stride()}")
        pitches = [stride * size for stride in tensor.stride()[:-1]]
        if any(pitch % BOX_UNIT for pitch in pitches):
            raise ValueError(f"tensor: expected strides of {BOX_UNIT} bytes, found {pitches}")
        if self.swizzle not in SWIZZLES:
            raise ValueError(f"swizzle: expected one of {SWIZZLES}, found {self.swizzle}")
        row = self.box[-1] * size
        if row % BOX_UNIT or (self.swizzle and row > self.swizzle):
            most = f", {self.swizzle} at most" if self.swizzle else ""
            raise ValueError(
                f"box: expected rows of a multiple of {BOX_UNIT} bytes{most}, found {row}"
            )

    @property
    def _dtype(self) -> str:
        return str(self.tensor.dtype).removeprefix("torch.")

    def encoded(self) -> bytes:
        """The 128 bytes that the driver makes of it."""
        from cuda.bindings import driver

        words = driver.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{self._type}"
        swizzle = f"{self.swizzle}B" if self.swizzle else "NONE"
        sizes, rank = self.tensor.shape, self.tensor.ndim
        pitches = [stride * self.tensor.element_size() for stride in self.tensor.stride()[:-1]]
        made = asked(
            driver.cuTensorMapEncodeTiled(
                getattr(*words),
                rank,
                self.tensor.data_ptr(),
                [driver.cuuint64_t(size) for size in reversed(sizes)],
                [driver.cuuint64_t(pitch) for pitch in reversed(pitches)],
                [driver.cuuint32_t(one) for one in reversed(self.box)],
                [driver.cuuint32_t(1)] * rank,
                driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
                getattr(driver.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{swizzle}"),
                driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        )
        return ctypes.string_at(made.getPtr(), TENSOR_MAP_BYTES)

    @property
    def _type(self) -> str:
        return TENSOR_MAP_TYPES[self._dtype]
