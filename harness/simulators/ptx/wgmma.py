"""
wgmma: products of a warpgroup that read shared memory and write registers when waited for.

Until then the accumulators hold NaN. Source: PTX ISA 9.0, Asynchronous Warpgroup Level Matrix
Instructions: matrix descriptors, and the canonical layouts of the four swizzles.
"""

import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from harness.simulators.ptx.bulk import Bulk, swizzled
from harness.simulators.ptx.formats import FP8, SIZE, Array, f16, f32, i32, i64, u32, u64
from harness.simulators.ptx.fragments import fragment_a, fragment_c
from harness.simulators.ptx.mbarriers import distinct
from harness.simulators.ptx.operands import immediate, registers
from harness.simulators.ptx.program import Immediate, Instruction, PtxError, Unsupported, Vector
from harness.simulators.ptx.scheduler import Decoded
from harness.simulators.ptx.tensor import numbers_of

SWIZZLES = {0: 0, 1: 128, 2: 64, 3: 32}  # bytes, by the upper bits of a descriptor
IN_FLIGHT = u32(0xFFFFFFFF)  # NaN


@dataclass(frozen=True, slots=True)
class Form:
    """
    A wgmma instruction, decoded.

    Attributes:
        n: Columns of the result, of 64 rows.
        k: Elements of a product.
        result: The accumulator's type.
        kind: The operands' type.
        signs: 1 or -1 for A and for B.
        turned: Whether A, and B, lie along their other axis.
    """

    n: int
    k: int
    result: str
    kind: str
    signs: tuple[int, int]
    turned: tuple[bool, bool]


@dataclass(slots=True, eq=False)
class Product:
    """
    A product in flight.

    Attributes:
        ins: What issued it.
        form: What it computes.
        warps: Of which warps.
        accumulator: Its registers.
        before: What they held, or None where `after` brings it.
        after: The product in flight that it adds to.
        adds: Whether it adds to anything.
        left: Places of A's elements in shared memory, or A itself out of registers.
        right: Places of B's elements: [warpgroup, n, k].
        group: Of the warpgroup's products.
        read: What it reads: the thread it reads for, and granules.
        result: What its registers will hold, once it has landed.
    """

    ins: Instruction
    form: Form
    warps: Array
    accumulator: tuple[int, ...]
    before: Array
    after: "Product | None"
    adds: bool
    left: Array
    held: bool
    right: Array
    group: int
    read: list[tuple[int, Array]] = field(default_factory=list)
    result: Array | None = None


class Wgmma(Bulk):
    """wgmma instructions."""

    def start_wgmma(self) -> None:
        """Begin without a product in flight."""
        self.products: list[Product] = []
        self.product_groups = np.zeros(self.warps, i64)

    def op_wgmma(self, ins: Instruction) -> Decoded:
        """wgmma with all that follows."""
        if ins.mods[0] == "fence":
            return (lambda: None), None
        if ins.mods[0] == "commit_group":

            def commit() -> None:
                self.product_groups[self.warps_here] += 1

            return commit, None
        if ins.mods[0] == "wait_group":
            left = immediate(ins.args[0])
            return (lambda: self._land_products(ins, left)), None
        if "sp" in ins.mods:
            raise Unsupported(ins.name)
        return self._issue(ins)

    @staticmethod
    def _form(ins: Instruction) -> Form:
        shape = next((mod for mod in ins.mods if re.match(r"m64n\d+k\d+$", mod)), None)
        if shape is None:
            raise Unsupported(ins.name)
        _, n, k = map(int, re.findall(r"\d+", shape))
        result, kind, _ = [mod for mod in ins.mods if mod in SIZE or mod in FP8][-3:]
        numbers = [arg.bits for arg in ins.args[4:] if isinstance(arg, Immediate)]
        left, right = ([*numbers, 1, 1])[:2]
        turned = numbers[2:] if kind in ("f16", "bf16") else []
        turned_left = bool(turned[0]) if len(turned) == 2 else False
        turned_right = bool(turned[-1]) if turned else False
        return Form(n, k, result, kind, (left, right), (turned_left, turned_right))

    def _issue(self, ins: Instruction) -> Decoded:
        form, held = self._form(ins), isinstance(ins.args[1], Vector)
        accumulator = tuple(registers(ins.args[0]))
        if held:
            left = self.fragment(registers(ins.args[1]), form.kind)
        else:
            left = self.source(ins.args[1], "u64")
        right, scale = self.source(ins.args[2], "u64"), ins.args[3]
        adds = self.source(scale, "pred")
        _, size = numbers_of(form.kind)

        def body() -> None:
            warps = np.flatnonzero(self.warps_here)
            if len(warps) % 4 or (warps.reshape(-1, 4)[:, 0] % 4).any():
                text = "wgmma needs the four warps of an aligned warpgroup"
                self.report("incomplete-warpgroup", ins, text)
                raise PtxError(text)
            lead = warps[::4] * 32
            before = np.stack([self.by_warp(index) for index in accumulator], 1)
            places = self._places(ins, self.each(right())[lead], lead, form, size, right=True)
            if held:
                first = left()
            else:
                given = self.each(left())[lead]
                first = self._places(ins, given, lead, form, size, right=False)
            product = Product(
                ins, form, warps, accumulator, before, self._chained(accumulator, warps),
                bool(self.int_of(adds(), int(lead[0]))), first, held, places,
                int(self.product_groups[warps[0]]),
            )  # fmt: skip
            self._note_reads(product, lead)
            for index in accumulator:
                self.put_by_warp(index, np.broadcast_to(IN_FLIGHT, (len(warps), 32)))
            self.products.append(product)
            flops = len(lead) * 2 * 64 * form.n * form.k
            self.tally(ins, {"wgmma_ops": len(lead), "tensor_flops": flops})

        return self.rendezvous(ins, body)

    def _chained(self, accumulator: tuple[int, ...], warps: Array) -> Product | None:
        """The newest product in flight that writes the same registers."""
        for one in reversed(self.products):
            if one.accumulator == accumulator and np.array_equal(one.warps, warps):
                return one
        return None

    def _note_reads(self, product: Product, lead: Array) -> None:
        shared = self.shared
        operands = [product.right] if product.held else [product.left, product.right]
        for places in operands:
            for number, thread in enumerate(lead.tolist()):
                granules = distinct(places[number].ravel() // shared.granule, shared.writer.size)
                product.read.append((thread, granules))
        for thread, granules in product.read:
            if self.checked:
                shared.on_read(product.ins, granules, np.full(len(granules), thread))
                self.check_fenced(product.ins, thread, granules)
            shared.being_read[granules] += 1

    def _places(
        self,
        ins: Instruction,
        descriptors: Array,
        lead: Array,
        form: Form,
        size: int,
        *,
        right: bool,
    ) -> Array:
        """Where each element of an operand lies, [warpgroup, m or n, k], by its descriptor."""
        shared = self.shared

        def bits(shift: int) -> Array:
            field_ = (descriptors >> u64(shift)) & u64(0x3FFF)
            return (field_ << u64(4)).astype(i64)[:, None, None]

        start, leading, stride = bits(0), bits(16), bits(32)
        swizzle = SWIZZLES[int(descriptors[0] >> u64(62))]
        extent = form.n if right else 64
        row, k = np.arange(extent)[:, None], np.arange(form.k)[None, :]
        if not form.turned[right]:
            if swizzle:
                offset = start + row // 8 * stride + row % 8 * swizzle + k * size
            else:
                within = k * size // 16 * leading + k * size % 16
                offset = start + row // 8 * stride + row % 8 * 16 + within
        elif swizzle:
            span = swizzle // size
            offset = start + row // span * leading + row % span * size
            offset = offset + k // 8 * stride + k % 8 * swizzle
        else:
            offset = start + row // 8 * stride + row % 8 * size
            offset = offset + k // 8 * leading + k % 8 * 16
        offset = swizzled(offset, swizzle)
        threads = np.repeat(lead, extent * form.k)
        shared.locate(ins, threads, offset.ravel().astype(u64), size)
        home = (lead // self.block_threads)[:, None, None] * shared.size
        return np.asarray(np.clip(offset, 0, shared.size - 16) + home)

    # ---- results ---------------------------------------------------------------------------

    def _land_products(self, ins: Instruction, left: int) -> None:
        kept: list[Product] = []
        landed: list[Product] = []
        for one in self.products:
            warp = one.warps[0]
            done = self.warps_here[warp] and one.group < self.product_groups[warp] - left
            (landed if done else kept).append(one)
        self.products = kept
        flying = sum(1 for one in kept if self.warps_here[one.warps[0]])
        self.tally(ins, {"wgmma_waits": self.active_warps, "wgmma_kept_in_flight": flying})
        for one in landed:
            one.result = self._computed(one)
            one.after = None
            for _, granules in one.read:
                self.shared.being_read[granules] -= 1
            if not any(other.after is one for other in landed + kept):
                self._write(one)
            if self.checked:
                self._read_until_now(one)

    def _write(self, one: Product) -> None:
        assert one.result is not None
        for number, index in enumerate(one.accumulator):
            new = self.registers[index].copy().reshape(-1, 32)
            new[one.warps] = one.result[:, number]
            self.registers[index] = new.reshape(-1)

    def _read_until_now(self, one: Product) -> None:
        """The operands were read as late as this: what is not ordered after it is a race."""
        shared, many = self.shared, self.clock_warps
        for thread, granules in one.read:
            cluster, warp = thread // 32 // many, thread // 32 % many
            epoch = int(self.clocks[cluster, warp, warp])
            syncs = int(self.warp_syncs[thread // 32])
            shared.read_stamp[warp, granules] = epoch << 32 | syncs << 8 | 1
            shared.read_pc[warp, granules] = one.ins.pc

    def _operand(self, places: Array, form: Form) -> Array:
        read, size = numbers_of(form.kind)
        view = self.shared.views.by[size]
        flat = np.ascontiguousarray(view[places // size]).reshape(-1)
        return np.asarray(read(flat)).reshape(places.shape)

    def _computed(self, one: Product) -> Array:
        """The registers of the result: [warp, register, lane]."""
        form, groups = one.form, len(one.warps) // 4
        _, size = numbers_of(form.kind)
        if one.held:
            parts = np.zeros((4 * groups, 16, form.k))
            row, column = fragment_a(8 * size, form.k)
            parts[:, row, column] = one.left
            left = parts.reshape(groups, 64, form.k)
        else:
            left = self._operand(one.left, form)
        right = self._operand(one.right, form).transpose(0, 2, 1)
        product = np.matmul(left * form.signs[0], right * form.signs[1])
        row, column = fragment_c(16 if form.result == "f16" else 32)
        tiles = product.reshape(4 * groups, 16, form.n // 8, 8).transpose(0, 2, 1, 3)
        count = form.n // 8 * row.shape[0]
        sums = tiles[:, :, row, column].reshape(4 * groups, count, 32, -1)
        if one.adds:
            before = one.before
            if one.after is not None and one.after.result is not None:
                before = one.after.result
            sums = sums + np.ascontiguousarray(before).view(_raw(form.result)).reshape(sums.shape)
        if form.result == "f16":
            return np.ascontiguousarray(sums.astype(f16)).view(u32)[..., 0]
        return np.ascontiguousarray(sums[..., 0]).astype(_raw(form.result)).view(u32)


def _raw(kind: str) -> Any:  # noqa: ANN401 -- a NumPy scalar type
    return {"f16": f16, "s32": i32}.get(kind, f32)
