"""Products on the tensor core (wgmma, mma), and partitions that specialise."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from harness.simulators.gluon.agents import Product
from harness.simulators.gluon.context import fault, site
from harness.simulators.gluon.layouts import (
    Box,
    DotOperandLayout,
    Layout,
    LayoutError,
    NVMMADistributedLayout,
    NVMMASharedLayout,
    boxes,
    copies,
    equal,
)
from harness.simulators.gluon.mbarriers import HOPPER
from harness.simulators.gluon.shared_memory import SharedMemory
from harness.simulators.gluon.tensors import (
    GL,
    Accumulator,
    Table,
    Tensor,
    export,
    running,
    truth,
)
from harness.simulators.gluon.values import Array, KernelValue, numpy_dtype, poison, unwrap
from harness.simulators.triton_semantics import TF32_BITS

WARPGROUP = 4  # warps
INSTRUCTION_BITS = 256  # along k
AMPERE: Table = {}


def _product(a: Array, b: Array) -> Array:
    """Matrix product with exact products, summed in float32."""
    result: Array = np.asarray(a, np.float32) @ np.asarray(b, np.float32)
    return result


def _on_tensor_core(a: Array, b: Array) -> Array:
    """The same with operands of float32 cut to tf32, which is what a tensor core takes."""
    return _product(_as_tf32(a), _as_tf32(b))


def _as_tf32(operand: Array) -> Array:
    if operand.dtype != np.float32:
        return operand
    cut = (np.ascontiguousarray(operand).view(np.uint32) & TF32_BITS).view(np.float32)
    # what is cut off an infinity or a NaN would turn one into the other
    return np.where(np.isfinite(operand), cut, operand)


@export(AMPERE, "mma_v2")
@export(HOPPER, "mma_v2")
def _mma(a: Tensor, b: Tensor, acc: Tensor, input_precision: KernelValue = None) -> Tensor:
    exact = getattr(unwrap(input_precision), "name", unwrap(input_precision)) in ("ieee", "IEEE")
    return _in_registers(a, b, acc, _product if exact else _on_tensor_core)


@export(GL)
def _dot_fma(a: Tensor, b: Tensor, acc: Tensor) -> Tensor:
    return _in_registers(a, b, acc, _product)


def _in_registers(
    a: Tensor, b: Tensor, acc: Tensor, multiply: Callable[[Array, Array], Array]
) -> Tensor:
    for index, operand in enumerate((a, b)):
        _check_operand(operand, acc.layout, index)
    program = running()
    program.step()
    many = program.num_ctas
    program.count("flops", 2 * a.numel * b.shape[1] * copies(acc.layout, many))
    total = (multiply(a.values, b.values) + acc.values).astype(numpy_dtype(acc.dtype))
    return Tensor(total, acc.dtype, acc.layout)


def _check_operand(operand: Tensor, parent: Layout, index: int) -> None:
    """
    Check the layout of a product's operand in registers.

    Raises:
        LayoutError: It is not made for that operand of a product with such an accumulator.
    """
    layout = operand.layout
    if (
        not isinstance(layout, DotOperandLayout)
        or not equal(layout.parent, parent)
        or layout.operand_index != index
    ):
        raise fault(
            LayoutError,
            f"operand {index} takes a DotOperandLayout({index}, <layout of the accumulator>), "
            f"found {layout}",
        )


@export(HOPPER)
def _warpgroup_mma_init(value: KernelValue) -> KernelValue:
    return value


def _check(a: KernelValue, b: KernelValue, acc: KernelValue, num_warps: int) -> None:
    """Raise where the compiler would: layouts, shapes, dtypes, whole warpgroups."""
    layout = acc.layout
    if not isinstance(layout, NVMMADistributedLayout) or list(layout.version) != [3, 0]:
        raise fault(
            LayoutError,
            f"the accumulator takes an NVMMADistributedLayout of version [3, 0], found {layout}",
        )
    if not isinstance(b, SharedMemory) or not isinstance(b.layout, NVMMASharedLayout):
        raise fault(LayoutError, "operand b lies in shared memory, with an NVMMASharedLayout")
    if isinstance(a, Tensor):
        _check_operand(a, layout, 0)
    elif not isinstance(a, SharedMemory) or not isinstance(a.layout, NVMMASharedLayout):
        raise fault(
            LayoutError, "operand a lies in registers, or in shared memory with NVMMASharedLayout"
        )
    if num_warps % WARPGROUP:
        raise fault(ValueError, f"wgmma takes whole warpgroups of 4, found {num_warps} warps")
    bits = a.dtype.primitive_bitwidth
    if layout.instr_shape[2] * bits != INSTRUCTION_BITS:
        raise fault(
            LayoutError,
            f"a wgmma takes {INSTRUCTION_BITS // bits} of {a.dtype} along k, found "
            f"{layout.instr_shape}",
        )
    (m, k), (k_too, n) = a.shape, b.shape
    if k != k_too or [m, n] != list(acc.shape) or a.dtype != b.dtype:
        raise fault(
            ValueError,
            f"wgmma cannot multiply {a.dtype}{list(a.shape)} by {b.dtype}{b.shape} into "
            f"{list(acc.shape)}",
        )


@export(HOPPER)
def _warpgroup_mma(
    a: KernelValue,
    b: KernelValue,
    acc: KernelValue,
    *,
    use_acc: KernelValue = True,
    precision: KernelValue = None,
    max_num_imprecise_acc: KernelValue = None,
    is_async: KernelValue = False,
) -> Tensor | Accumulator:
    program = running()
    program.step()
    _check(a, b, acc, program.current.num_warps)
    many, numpys = program.num_ctas, numpy_dtype(acc.dtype)
    keeps = truth(use_acc)
    # chained accumulators stay in flight
    chained = acc.product if keeps else None
    start: Any = chained.result if chained else acc.values if keeps else None
    left = a.values if isinstance(a, Tensor) else a.view
    result = np.full((a.shape[0], b.shape[1]), poison(acc.dtype), numpys)
    for what in ("flops", "wgmma"):
        program.count(what, 2 * result.size * a.shape[1] * copies(acc.layout, many))
    product = Product(operations=[], result=result, site=site())
    for partition, box in zip(program.each(), _parts(a, b, acc), strict=True):
        (rows, columns), before = box, None if start is None else start[box]
        compute = _computing(left[rows], b.view[:, columns], result[box], before)
        operation = program.issue("wgmma", compute, label=b.label)
        product.operations.append(operation)
        for operand in (a, b):
            if isinstance(operand, SharedMemory):
                operand.part(partition.cta).access(write=False, operation=operation)
        partition.products.append(operation)
    if unwrap(is_async):
        return Accumulator(product, acc.dtype, acc.layout)
    for partition in program.each():
        program.retire(partition.products, 0)
    return Tensor(result, acc.dtype, acc.layout)


def _computing(a: Array, b: Array, result: Array, start: Array | None) -> Callable[[], None]:
    """What one CTA does once its operands are read: views, all of them."""

    def run() -> None:
        found = _on_tensor_core(a, b)
        result[...] = found if start is None else found + start

    return run


def _parts(a: KernelValue, b: SharedMemory, acc: KernelValue) -> Sequence[Box]:
    """
    Which rows and columns of the product each CTA of a cluster computes.

    Raises:
        LayoutError: A CTA lacks part of the operands that it needs for them.
    """
    many = running().num_ctas
    mine = boxes(acc.layout, acc.shape, many)
    assert mine
    for operand, axis in ((a, 0), (b, 1)):
        has = boxes(operand.layout, operand.shape, many)
        for cta, box in enumerate(mine):
            part = [slice(0, size) for size in operand.shape]
            part[axis] = box[axis]
            if has and not _within(part, has[cta]):
                raise fault(
                    LayoutError,
                    f"wgmma: CTA {cta} of the cluster lacks part of what it multiplies: the "
                    f"accumulator has {acc.layout}, an operand {operand.layout}",
                )
    return mine


def _within(inner: Sequence[slice], outer: Sequence[slice]) -> bool:
    """Whether a box lies in another."""
    pairs = zip(inner, outer, strict=True)
    return all(one.start >= other.start and one.stop <= other.stop for one, other in pairs)


@export(HOPPER)
def _warpgroup_mma_wait(num_outstanding: KernelValue = 0, deps: KernelValue = None) -> Any:  # noqa: ANN401
    if deps is None:
        raise fault(ValueError, "warpgroup_mma_wait takes deps=, the accumulators it waits for")
    program = running()
    for partition in program.each():
        program.retire(partition.products, int(unwrap(num_outstanding)))
    # their values may still be in flight
    found = tuple(
        Tensor(None, one.dtype, one.layout, product=one.product)
        if isinstance(one, Accumulator)
        else one
        for one in deps
    )
    return found[0] if len(found) == 1 else found


def _told_apart(functions: Sequence[Callable[..., Any]]) -> list[str]:
    """Names of partitions: that of the function, and its number where it has several."""
    names = [one.__name__ for one in functions]
    return [
        f"{name} {names[:at].count(name)}" if names.count(name) > 1 else name
        for at, name in enumerate(names)
    ]


@export(GL)
def _warp_specialize(
    functions_and_args: Sequence[tuple[Callable[..., Any], Sequence[Any]]],
    worker_num_warps: Sequence[KernelValue],
    worker_num_regs: KernelValue = None,
) -> Any:  # noqa: ANN401 -- what the default partition returns
    (first, first_args), *workers = functions_and_args
    program = running()
    main = program.current
    if len(workers) != len(worker_num_warps):
        raise fault(
            ValueError,
            f"warp_specialize: {len(workers)} workers, {len(worker_num_warps)} numbers of warps",
        )
    names = _told_apart([first, *(work for work, _ in workers)])
    for one in main.peers:
        one.name = names[0]
    program.cluster.check_workers()
    counts = [int(unwrap(one)) for one in worker_num_warps]
    if any(one < 1 or one & (one - 1) for one in counts):
        raise fault(
            ValueError, f"warp_specialize: numbers of warps are powers of two, found {counts}"
        )
    for index, (work, args) in enumerate(workers, start=1):
        if any(isinstance(one, Tensor) and one.shape for one in args):
            raise fault(ValueError, "warp_specialize: a worker cannot be given a register tensor")
        if index == len(program.partitions):
            program.add_partition("", 0)
        partition = program.partitions[index]
        for one, other in zip(partition.peers, main.peers, strict=True):
            one.name, one.num_warps = names[index], counts[index - 1]
            one.clock.join(other.clock)
        program.spawn(partition, work, args)
    program.step()
    result = first(*first_args)
    mine = program.partitions[1 : len(workers) + 1]
    program.wait(
        lambda: all(one.greenlet.dead for one in mine), "waits for the other partitions to finish"
    )
    for one in mine:
        for theirs, ours in zip(one.peers, main.peers, strict=True):
            ours.clock.join(theirs.clock)
    return result
