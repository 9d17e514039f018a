"""What `cuda` means inside a kernel: indices, memory, atomics, barriers, warp intrinsics."""

import operator
import sys
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, ClassVar

import numpy as np

from harness.simulators.simt.arrays import Array, Buffer, KernelArray, poisoned
from harness.simulators.simt.machine import Dim3, SimtError
from harness.simulators.simt.scheduler import GRID_BARRIER, Launch, Wait
from harness.simulators.simt.sites import Sites

MakeArray = Callable[[Array, Buffer], KernelArray]
AsDtype = Callable[[Any], np.dtype[Any]]


class KernelCuda:
    """
    Stands in for `numba.cuda` while a kernel runs.

    What the machine does is defined here; plain functions (`fma`, `selp`, `fp16`, vector types …)
    are those of Numba's own simulator.

    Args:
        launch: The launch it belongs to.
        stock: Numba's own stand-in.
        make_array: Wraps shared memory.
        as_dtype: Turns a Numba or NumPy type into a dtype.
        dynamic_bytes: Dynamic shared memory of a block.
    """

    def __init__(
        self,
        launch: Launch,
        *,
        stock: object,
        make_array: MakeArray,
        as_dtype: AsDtype,
        dynamic_bytes: int,
    ) -> None:
        self._launch = launch
        self._stock = stock
        self.gridDim = launch.grid_dim
        self.blockDim = launch.block_dim
        self.warpsize = launch.settings.warp_size
        self.shared = Shared(launch, make_array, as_dtype, dynamic_bytes)
        self.local = Local(as_dtype)
        self.atomic = Atomics(launch)
        self.cg = CooperativeGroups(launch)
        self._every_lane = (1 << self.warpsize) - 1

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._stock, name)

    # ---- indices ---------------------------------------------------------------------------

    @property
    def threadIdx(self) -> Dim3:  # noqa: N802 -- CUDA's name
        """Index of the thread in its block."""
        return self._launch.thread.index

    @property
    def blockIdx(self) -> Dim3:  # noqa: N802 -- CUDA's name
        """Index of the block in the grid."""
        return self._launch.thread.block.index

    @property
    def laneid(self) -> int:
        """Index of the thread in its warp."""
        return self._launch.thread.lane

    def grid(self, ndim: int) -> int | tuple[int, ...]:
        """Index of the thread in the grid, along one axis or several."""
        at = zip(self.blockIdx, self.blockDim, self.threadIdx, strict=True)
        return _first_axes([block * size + thread for block, size, thread in at], ndim)

    def gridsize(self, ndim: int) -> int | tuple[int, ...]:
        """Threads of the grid, along one axis or several."""
        sizes = zip(self.gridDim, self.blockDim, strict=True)
        return _first_axes([blocks * threads for blocks, threads in sizes], ndim)

    # ---- the block -------------------------------------------------------------------------

    def syncthreads(self) -> None:
        """Wait for the other threads of the block; those that have returned do not count."""
        thread = self._launch.thread
        thread.block.meet(thread, True)

    def syncthreads_count(self, predicate: object) -> int:
        """Wait, and count the threads whose predicate holds."""
        return sum(self._predicates("syncthreads_count", predicate))

    def syncthreads_and(self, predicate: object) -> int:
        """Wait, and tell whether every predicate holds."""
        return int(all(self._predicates("syncthreads_and", predicate)))

    def syncthreads_or(self, predicate: object) -> int:
        """Wait, and tell whether any predicate holds."""
        return int(any(self._predicates("syncthreads_or", predicate)))

    def _predicates(self, what: str, predicate: object) -> Iterable[bool]:
        if isinstance(predicate, bool) or not isinstance(predicate, int | np.integer):
            raise _uncompiled(
                self._launch,
                what,
                "an integer predicate",
                type(predicate).__name__,
                "Pass int32(x), or int32(x != 0) of a float",
            )
        thread = self._launch.thread
        return thread.block.meet(thread, bool(predicate))

    # ---- the warp --------------------------------------------------------------------------

    def syncwarp(self, mask: int | None = None) -> None:
        """Wait for the lanes of `mask`; without one, for those the block has."""
        if mask is None:
            mask = sum(1 << lane for lane in self._launch.thread.warp.lanes)
        self._meet("syncwarp", mask, None)

    def shfl_sync(self, mask: int, value: Any, src_lane: int) -> Any:  # noqa: ANN401
        """The value of lane `src_lane`, modulo the warp size."""
        return self._shuffle("shfl_sync", mask, value, src_lane % self.warpsize)

    def shfl_up_sync(self, mask: int, value: Any, delta: int) -> Any:  # noqa: ANN401
        """The value `delta` lanes below; the caller's own where there is no such lane."""
        return self._shuffle("shfl_up_sync", mask, value, self.laneid - delta)

    def shfl_down_sync(self, mask: int, value: Any, delta: int) -> Any:  # noqa: ANN401
        """The value `delta` lanes above; the caller's own where there is no such lane."""
        return self._shuffle("shfl_down_sync", mask, value, self.laneid + delta)

    def shfl_xor_sync(self, mask: int, value: Any, lane_mask: int) -> Any:  # noqa: ANN401
        """The value of the lane whose number differs in the bits of `lane_mask`."""
        return self._shuffle("shfl_xor_sync", mask, value, self.laneid ^ lane_mask)

    def ballot_sync(self, mask: int, predicate: object) -> int:
        """A mask of the lanes whose predicate holds."""
        votes = self._vote("ballot_sync", mask, predicate)
        return sum(1 << lane for lane, vote in votes.items() if vote)

    def all_sync(self, mask: int, predicate: object) -> bool:
        """Whether the predicate holds in every lane of `mask`."""
        return all(self._vote("all_sync", mask, predicate).values())

    def any_sync(self, mask: int, predicate: object) -> bool:
        """Whether the predicate holds in any lane of `mask`."""
        return any(self._vote("any_sync", mask, predicate).values())

    def lanemask_lt(self) -> int:
        """A mask of the lanes below the caller."""
        return (1 << self.laneid) - 1

    def activemask(self) -> int:
        """Refuse: which lanes run together is for the hardware to say, and changes."""
        thread = self._launch.thread
        raise SimtError(
            f"{thread.line}: {thread}: expected a mask the kernel worked out, found activemask(), "
            "whose answer depends on how the hardware runs the warp. Vote with ballot_sync before "
            "the lanes part."
        )

    def _meet(self, what: str, mask: int, value: object) -> dict[int, Any]:
        thread = self._launch.thread
        return thread.block.meet_in_warp(thread, Wait(what, int(mask) & self._every_lane), value)

    def _vote(self, what: str, mask: int, predicate: object) -> dict[int, bool]:
        if not isinstance(predicate, int | np.integer | np.bool_):
            raise _uncompiled(
                self._launch,
                what,
                "a predicate that is an integer or a bool",
                type(predicate).__name__,
                "Pass x != 0",
            )
        return self._meet(what, mask, bool(predicate))

    def _shuffle(self, what: str, mask: int, value: Any, source: int) -> Any:  # noqa: ANN401
        # narrow types pass: NumPy keeps them where Numba, in arithmetic, has widened the value
        if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
            raise _uncompiled(
                self._launch, what, "an integer or a float", type(value).__name__, "Pass int32(x)"
            )
        values = self._meet(what, mask, value)
        if not 0 <= source < self.warpsize:
            return value
        return values[source] if source in values else _undefined(value)

    # ---- bits ------------------------------------------------------------------------------

    def popc(self, value: Any) -> int:  # noqa: ANN401
        """Bits that are set."""
        return _bits(value)[0].bit_count()

    def ffs(self, value: Any) -> int:  # noqa: ANN401
        """Position of the lowest set bit, from 1; 0 where there is none."""
        bits, _ = _bits(value)
        return (bits & -bits).bit_length()

    def clz(self, value: Any) -> int:  # noqa: ANN401
        """Zeros above the highest set bit."""
        bits, width = _bits(value)
        return width - bits.bit_length()

    def brev(self, value: Any) -> int:  # noqa: ANN401
        """The bits in reversed order."""
        bits, width = _bits(value)
        return int(f"{bits:0{width}b}"[::-1], 2)

    def nanosleep(self, _ns: int) -> None:
        """Do nothing: threads take turns only at barriers."""


def _uncompiled(launch: Launch, what: str, expected: str, found: str, mend: str) -> SimtError:
    """What Numba's compiler refuses when it types a call, so that nothing runs on a GPU."""
    thread = launch.thread
    return SimtError(
        f"{thread.line}: {thread}: {what}: expected {expected}, found {found}: on a GPU this "
        f"does not compile (TypingError). {mend}."
    )


def _first_axes(values: list[int], ndim: int) -> int | tuple[int, ...]:
    if ndim not in (1, 2, 3):
        raise ValueError(f"ndim: expected 1, 2 or 3, found {ndim}")
    return values[0] if ndim == 1 else tuple(values[:ndim])


def _bits(value: Any) -> tuple[int, int]:  # noqa: ANN401
    """`value` without sign and its width in bits: 32, or 64 where 32 do not hold it."""
    wide = value.dtype.itemsize == 8 if isinstance(value, np.integer) else value.bit_length() > 32
    width = 64 if wide else 32
    return int(value) & ((1 << width) - 1), width


def _undefined(value: Any) -> Any:  # noqa: ANN401
    """What a shuffle from a lane outside the mask gives: nothing to build on."""
    dtype = np.asarray(value).dtype
    return (
        poisoned((1,), dtype)[0] if isinstance(value, np.generic) else poisoned((1,), dtype).item()
    )


class Shared:
    """
    Shared memory of the running block.

    A call site is one allocation, however often it runs, as in compiled code.
    """

    def __init__(
        self, launch: Launch, make_array: MakeArray, as_dtype: AsDtype, dynamic_bytes: int
    ) -> None:
        self._launch = launch
        self._make_array = make_array
        self._as_dtype = as_dtype
        self._dynamic_bytes = dynamic_bytes
        self._sites = Sites()

    def array(self, shape: Any, dtype: Any, alignment: int | None = None) -> KernelArray:  # noqa: ANN401
        """Uninitialised shared memory; shape 0 is the dynamic part, the same for every caller."""
        dtype = self._as_dtype(dtype)
        if shape in (0, (0,)):
            whole = self._once("dynamic", (self._dynamic_bytes,), np.dtype(np.uint8))
            count = self._dynamic_bytes // dtype.itemsize
            return whole.view_of(whole.raw[: count * dtype.itemsize].view(dtype))
        return self._once(self._sites.number(sys._getframe(1)), shape, dtype)

    def _once(self, site: object, shape: Any, dtype: np.dtype[Any]) -> KernelArray:  # noqa: ANN401
        block = self._launch.thread.block
        if site not in block.shared:
            raw = poisoned(shape, dtype)
            block.shared[site] = self._make_array(raw, Buffer(space="shared", array=raw))
            block.shared_bytes += raw.nbytes
        found: KernelArray = block.shared[site]
        return found


class Local:
    """Memory of one thread; its accesses are not counted."""

    def __init__(self, as_dtype: AsDtype) -> None:
        self._as_dtype = as_dtype

    def array(self, shape: Any, dtype: Any, alignment: int | None = None) -> Array:  # noqa: ANN401
        """Uninitialised local memory."""
        return poisoned(shape, self._as_dtype(dtype))


class CooperativeGroups:
    """Groups larger than a block."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch

    def this_grid(self) -> "CooperativeGroups":
        """All threads of the launch."""
        return self

    def sync(self) -> None:
        """Wait for every thread of the grid."""
        self._launch.thread.suspend(GRID_BARRIER)


def _increment(old: Any, limit: Any) -> Any:  # noqa: ANN401
    return 0 if old >= limit else old + 1


def _decrement(old: Any, limit: Any) -> Any:  # noqa: ANN401
    return limit if old == 0 or old > limit else old - 1


UNSIGNED = tuple(map(np.dtype, ("uint32", "uint64")))
INTEGERS = tuple(map(np.dtype, ("int32", "int64"))) + UNSIGNED
NUMBERS = tuple(map(np.dtype, ("float32", "float64"))) + INTEGERS


class Atomics:
    """
    Read-modify-write operations; each returns the old value.

    Which dtypes each of them takes is what Numba's compiler knows (`numba.cuda.cudadecl`).
    """

    updates: ClassVar[dict[str, Callable[[Any, Any], Any]]] = {
        "add": operator.add,
        "sub": operator.sub,
        "and_": operator.and_,
        "or_": operator.or_,
        "xor": operator.xor,
        "inc": _increment,
        "dec": _decrement,
        "exch": lambda _, value: value,
        "max": max,
        "min": min,
        "nanmax": np.fmax,
        "nanmin": np.fmin,
    }

    dtypes: ClassVar[dict[str, tuple[np.dtype[Any], ...]]] = {
        **dict.fromkeys(("and_", "or_", "xor", "exch", "cas", "compare_and_swap"), INTEGERS),
        **dict.fromkeys(("inc", "dec"), UNSIGNED),
    }

    def __init__(self, launch: Launch) -> None:
        self._launch = launch

    def __getattr__(self, name: str) -> Callable[[KernelArray, Any, Any], Any]:
        if name not in self.updates:
            raise AttributeError(f"cuda.atomic has no {name}")
        return partial(self._update, name, self.updates[name])

    def cas(self, array: KernelArray, index: Any, old: Any, value: Any) -> Any:  # noqa: ANN401
        """Store `value` where `old` is found."""
        return self._swap("cas", array, index, old, value)

    def compare_and_swap(self, array: KernelArray, old: Any, value: Any) -> Any:  # noqa: ANN401
        """The same on the first element of an array of one axis."""
        if array.ndim != 1:
            raise self._uncompiled(
                "compare_and_swap", "an array of one axis", f"{array.ndim} axes", "Use cas"
            )
        return self._swap("compare_and_swap", array, 0, old, value)

    def _swap(self, name: str, array: KernelArray, index: Any, old: Any, value: Any) -> Any:  # noqa: ANN401
        return self._update(
            name, lambda found, new: new if found == old else found, array, index, value
        )

    def _update(
        self,
        name: str,
        change: Callable[[Any, Any], Any],
        array: KernelArray,
        index: Any,  # noqa: ANN401
        value: Any,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        if not isinstance(array, KernelArray):
            raise TypeError("atomics: expected a global or shared array, found a local one")
        if array.raw.dtype not in (takes := self.dtypes.get(name, NUMBERS)):
            raise self._uncompiled(
                name,
                f"an array of {', '.join(map(str, takes))}",
                str(array.raw.dtype),
                "Give the array one of those dtypes",
            )
        old = array.raw[index]
        array.raw[index] = change(old, value)
        array.buffer.atomics += 1
        self._launch.tally.atomics[array.buffer.space] += 1
        return old

    def _uncompiled(self, name: str, expected: str, found: str, mend: str) -> SimtError:
        return _uncompiled(self._launch, f"atomic.{name}", expected, found, mend)
