"""mma.sync, mma.sp, ldmatrix, stmatrix and movmatrix. Products are summed in float64."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from harness.simulators.ptx.banks import wavefronts
from harness.simulators.ptx.copies import Copies
from harness.simulators.ptx.formats import (
    FP8,
    READ,
    SIZE,
    Array,
    bf16_to_f32,
    f16,
    f32,
    f64,
    i8,
    i32,
    i64,
    u8,
    u16,
    u32,
    u64,
)
from harness.simulators.ptx.fragments import expanded, fragment_a, fragment_b, fragment_c
from harness.simulators.ptx.operands import Get, Put, immediate, registers
from harness.simulators.ptx.program import Instruction, Operand, Unsupported
from harness.simulators.ptx.scheduler import Decoded

BITS = {"f16": 16, "bf16": 16, "tf32": 32, "s8": 8, "u8": 8, "e4m3": 8, "e5m2": 8}
# registers of 32 bits to what is multiplied
PARTS: dict[str, Callable[[Array], Array]] = {
    "f32": lambda bits: bits.view(f32),
    "f64": lambda bits: bits.view(f64),
    "tf32": READ["tf32"],
    "s32": lambda bits: bits.view(i32),
    "u32": lambda bits: bits,
    "f16": lambda bits: bits.view(f16).astype(f32),
    "bf16": lambda bits: bf16_to_f32(bits.view(u16)),
    "s8": lambda bits: bits.view(i8).astype(f32),
    "u8": lambda bits: bits.view(u8).astype(f32),
    "e4m3": lambda bits: FP8["e4m3"][bits.view(u8)],
    "e5m2": lambda bits: FP8["e5m2"][bits.view(u8)],
}


def shape_of(ins: Instruction) -> tuple[int, int, int]:
    """The m, n and k of an instruction."""
    found = next((mod for mod in ins.mods if re.match(r"m\d+n\d+k\d+$", mod)), None)
    if found is None:
        raise Unsupported(ins.name)
    m, n, k = map(int, re.findall(r"\d+", found))
    return m, n, k


class TensorCores(Copies):
    """Products of small matrices that a warp holds."""

    def fragment(self, indices: list[int], kind: str) -> Get:
        """A function that returns registers of the warps here: [warp, register, lane, element]."""
        convert = PARTS[kind]

        def get() -> Array:
            raw = np.stack([self.by_warp(index) for index in indices], 1)
            values = convert(np.ascontiguousarray(raw))
            return values.reshape(raw.shape[0], len(indices), 32, -1)

        return get

    def fragment_put(self, indices: list[int], kind: str) -> Put:
        """A function that writes them."""

        def put(values: Array) -> None:
            if kind == "f16":
                raw = np.ascontiguousarray(values.astype(f16)).view(u32)[..., 0]
            elif kind == "s32":
                raw = values[..., 0].astype(i64).astype(i32).view(u32)
            elif kind == "f64":
                raw = values[..., 0].view(u64)
            else:
                raw = values[..., 0].astype(f32).view(u32)
            for number, index in enumerate(indices):
                self.put_by_warp(index, raw[:, number])

        return put

    def op_mma(self, ins: Instruction) -> Decoded:
        """mma.sync.m16n8 and mma.sp.m16n8k32."""
        sparse = any(mod.startswith("sp") for mod in ins.mods)
        m, n, k = shape_of(ins)
        kinds = [mod for mod in ins.mods if mod in SIZE or mod in FP8][-4:]
        result, left, right, third = kinds
        unknown = (m, n) != (16, 8) or left not in BITS or right not in BITS
        if unknown or (sparse and (left not in ("f16", "bf16") or k != 32)):
            raise Unsupported(ins.name)
        held = k // 2 if sparse else k
        maps = (
            fragment_a(BITS[left], held),
            fragment_b(BITS[right], k),
            fragment_c(16 if result == "f16" else 32),
        )
        vectors = [registers(arg) for arg in ins.args[:4]]
        a, b = self.fragment(vectors[1], left), self.fragment(vectors[2], right)
        c, put = self.fragment(vectors[3], third), self.fragment_put(vectors[0], result)
        metadata = self.fragment(registers(ins.args[4]), "u32") if sparse else None
        selector = immediate(ins.args[5]) if sparse else 0
        name = "mma_sp_ops" if sparse else "mma_ops"

        def body() -> None:
            warps = self.active_warps
            first, second, sums = (
                np.zeros((warps, *size)) for size in ((16, held), (k, 8), (16, 8))
            )
            for matrix, (row, column), get in zip(
                (first, second, sums), maps, (a, b, c), strict=True
            ):
                matrix[:, row, column] = get()
            if metadata is not None:
                first = expanded(first, metadata()[:, 0, :, 0], selector)
            row, column = maps[2]
            product = (np.matmul(first, second) + sums)[:, row, column]
            self.tally(ins, {name: warps, "tensor_flops": warps * 2 * m * n * k})
            put(np.rint(product) if left in ("s8", "u8") else product)

        return self.rendezvous(ins, body)

    # ---- 8 x 8 matrices --------------------------------------------------------------------

    @staticmethod
    def _matrices(ins: Instruction) -> int:
        if "m8n8" not in ins.mods:
            raise Unsupported(ins.name)
        return {"x1": 1, "x2": 2, "x4": 4}[next(mod for mod in ins.mods if mod[0] == "x")]

    def op_ldmatrix(self, ins: Instruction) -> Decoded:
        """Rows from shared memory, 16 bytes each, handed out to lanes."""
        count, turned = self._matrices(ins), "trans" in ins.mods
        out, addresses = registers(ins.args[0]), self.address(ins.args[1])

        def body() -> None:
            threads, where = self.active(), addresses().astype(i64) & 0xFFFFFFFF
            gives = (threads & 31) < 8 * count
            threads, where = threads[gives], where[gives]
            words = self.shared.load(ins, threads, where, 4, 4, counted=False)
            self._count_rows(ins, threads, where)
            raw = np.ascontiguousarray(np.stack(words, 1)).view(u16)
            rows = raw.reshape(self.active_warps, count, 8, 8)
            rows = rows.transpose(0, 1, 3, 2) if turned else rows
            # lane l holds elements 2 * (l % 4) and the next of row l / 4
            flat = np.ascontiguousarray(rows).reshape(self.active_warps, count, 64).view(u32)
            for number, index in enumerate(out):
                self.put_by_warp(index, flat[:, number])

        return self.rendezvous(ins, body)

    def _count_rows(self, ins: Instruction, threads: Array, where: Array) -> None:
        key = (ins.pc, (where - where[0]).tobytes(), self.mask_key())
        cost = self.remembered.get(key)
        if cost is None:
            cost = self.remembered[key] = wavefronts(threads, where, 16, 8)
        self.tally(
            ins,
            {
                "ldmatrix": cost.requests,
                "shared_load_requests": cost.requests,
                "shared_load_wavefronts": cost.wavefronts,
                "shared_load_ideal": cost.ideal,
                "shared_bytes": len(threads) * 16,
            },
        )

    def op_stmatrix(self, ins: Instruction) -> Decoded:
        """The way back."""
        count, turned = self._matrices(ins), "trans" in ins.mods
        addresses, held = self.address(ins.args[0]), registers(ins.args[1])

        def body() -> None:
            threads, where = self.active(), addresses().astype(i64) & 0xFFFFFFFF
            gives = (threads & 31) < 8 * count
            raw = np.stack([self.by_warp(index) for index in held], 1)
            rows = np.ascontiguousarray(raw).view(u16).reshape(self.active_warps, count, 8, 8)
            rows = rows.transpose(0, 1, 3, 2) if turned else rows
            words = np.ascontiguousarray(rows).reshape(-1, 8).view(u32)
            values = [np.ascontiguousarray(words[:, word]) for word in range(4)]
            self.shared.store(ins, threads[gives], where[gives], 4, values)

        return self.rendezvous(ins, body)

    def op_movmatrix(self, ins: Instruction) -> Decoded:
        """A matrix turned around among the lanes."""
        (to,), (source,) = registers(ins.args[0]), registers(ins.args[1])

        def body() -> None:
            rows = np.ascontiguousarray(self.by_warp(source)).view(u16).reshape(-1, 8, 8)
            turned = np.ascontiguousarray(rows.transpose(0, 2, 1)).reshape(-1, 64)
            self.put_by_warp(to, turned.view(u32))

        return self.rendezvous(ins, body)


def numbers_of(kind: str) -> tuple[Any, int]:
    """What reads elements of a shared-memory operand as float64, and their size in bytes."""
    readers: dict[str, tuple[Callable[[Array], Array], int]] = {
        "f16": (lambda bits: bits.view(f16).astype(f64), 2),
        "bf16": (lambda bits: bf16_to_f32(bits).astype(f64), 2),
        "tf32": (lambda bits: READ["tf32"](bits).astype(f64), 4),
        "s8": (lambda bits: bits.view(i8).astype(f64), 1),
        "u8": (lambda bits: bits.astype(f64), 1),
        "e4m3": (lambda bits: FP8["e4m3"][bits].astype(f64), 1),
        "e5m2": (lambda bits: FP8["e5m2"][bits].astype(f64), 1),
    }
    if kind not in readers:
        raise Unsupported(f"operands of {kind} in shared memory")
    return readers[kind]


def only(operand: Operand) -> int:
    """The number of a single register."""
    (index,) = registers(operand)
    return index
