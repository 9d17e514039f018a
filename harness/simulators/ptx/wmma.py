"""wmma: the fragments of nvcuda::wmma, for whatever shape of a product."""

import numpy as np

from harness.simulators.ptx.banks import wavefronts
from harness.simulators.ptx.formats import SIZE, UINT, Array, i64, u32, u64
from harness.simulators.ptx.fragments import wmma_fragment
from harness.simulators.ptx.operands import Space, registers
from harness.simulators.ptx.program import Instruction
from harness.simulators.ptx.scheduler import Decoded
from harness.simulators.ptx.tensor import TensorCores, shape_of

ALIGNMENT = 32  # bytes, of a fragment's pointer
STORES = 4  # requests of a warp that store a fragment, as an H200 counts them


class Wmma(TensorCores):
    """Loads, products and stores of fragments."""

    def op_wmma(self, ins: Instruction) -> Decoded:
        """wmma.load, wmma.store and wmma.mma."""
        m, n, k = shape_of(ins)
        shapes = {"a": (m, k), "b": (k, n), "c": (m, n), "d": (m, n)}
        if ins.mods[0] == "mma":
            return self._product(ins, shapes)
        loads = ins.mods[0] == "load"
        what, kind, by_rows = ins.mods[1], ins.mods[-1], "row" in ins.mods
        held = registers(ins.args[0 if loads else 1])
        row, column = wmma_fragment(what, kind, shapes[what], len(held))
        addresses = self.address(ins.args[1 if loads else 0])
        given = self.source(ins.args[2], "u32") if len(ins.args) > 2 else None
        lines, width = shapes[what] if by_rows else reversed(shapes[what])
        space, size = self.space_of(ins), SIZE[kind]

        def body() -> None:
            stride = width
            if given is not None:
                stride = self.int_of(given(), int(self.active()[0]))
            if stride * size % 16:
                text = f"a leading dimension of {stride} elements is not a multiple of 16 bytes"
                self.report("misaligned", ins, text)
            offsets = (row * stride + column if by_rows else column * stride + row) * size

            def act(memory: Space, threads: Array, where: Array) -> None:
                base = np.zeros(self.threads, u64)
                base[threads] = where
                base = base.reshape(-1, 32)[self.warps_here]
                if (base & u64(ALIGNMENT - 1)).any():
                    text = f"the pointer of a fragment has to be a multiple of {ALIGNMENT} bytes"
                    self.report("misaligned", ins, text)
                places = base[:, None, :, None] + offsets.astype(u64)
                whose = self.thread.reshape(-1, 32)[self.warps_here][:, None, :, None]
                whose = np.broadcast_to(whose, places.shape).ravel()
                if loads:
                    self._fill(ins, memory, whose, places, held, size)
                else:
                    raw = np.stack([self.by_warp(index) for index in held], 1)
                    values = np.ascontiguousarray(raw).view(UINT[size]).ravel()
                    memory.store(ins, whose, places.ravel(), size, [values])
                    if memory is self.global_memory:  # a pair of elements at a time
                        more = (STORES - 1) * self.active_warps
                        self.tally(ins, {"global_store_requests": more})
                if loads and memory is self.shared:
                    self._count_fragment(ins, base, lines, stride * size, width * size)

            self.in_spaces(space, addresses(), act)
            self.tally(ins, {f"wmma_{ins.mods[0]}": self.active_warps})

        return self.rendezvous(ins, body)

    def _fill(
        self,
        ins: Instruction,
        memory: Space,
        threads: Array,
        places: Array,
        held: list[int],
        size: int,
    ) -> None:
        if memory is self.shared:
            (raw,) = self.shared.load(ins, threads, places.ravel(), size, 1, counted=False)
        else:
            (raw,) = memory.load(ins, threads, places.ravel(), size, 1)
        found = np.ascontiguousarray(raw.reshape(places.shape))
        words = found.view(u32)[..., 0] if places.shape[3] > 1 else found[..., 0]
        for number, index in enumerate(held):
            self.put_by_warp(index, words[:, number])

    def _count_fragment(
        self, ins: Instruction, base: Array, lines: int, stride: int, width: int
    ) -> None:
        """Lines are read 16 bytes at a time, eight lines together, as by ldmatrix."""
        rows = (np.arange(lines)[:, None] * stride + np.arange(0, width, 16)).T.reshape(-1)
        start = base[:, 0].astype(i64) & 0xFFFFFFFF
        where = (start[:, None] + rows).ravel()
        key = (ins.pc, (where - where[0]).tobytes())
        cost = self.remembered.get(key)
        if cost is None:
            warps = np.flatnonzero(self.warps_here)[:, None] * 1024
            threads = (warps + np.arange(len(rows))).ravel()
            cost = self.remembered[key] = wavefronts(threads, where, 16, 8)
        self.tally(
            ins,
            {
                "shared_load_requests": self.active_warps,
                "shared_load_wavefronts": cost.wavefronts,
                "shared_load_ideal": cost.ideal,
                "shared_bytes": len(where) * 16,
            },
        )

    def _product(self, ins: Instruction, shapes: dict[str, tuple[int, int]]) -> Decoded:
        kinds = [mod for mod in ins.mods if mod in SIZE]
        vectors = [registers(arg) for arg in ins.args]
        result, third = kinds[0], kinds[-1]
        factor = kinds[1] if len(kinds) == 4 else "f16"
        put = self.fragment_put(vectors[0], result)
        gets = [
            self.fragment(held, kind)
            for held, kind in zip(vectors[1:], (factor, factor, third), strict=True)
        ]
        maps = [
            wmma_fragment(what, kind, shapes[what], len(held))
            for what, kind, held in zip("abc", (factor, factor, third), vectors[1:], strict=True)
        ]
        flops = 2 * shapes["d"][0] * shapes["d"][1] * shapes["a"][1]
        row, column = wmma_fragment("d", result, shapes["d"], len(vectors[0]))

        def body() -> None:
            warps = self.active_warps
            first, second, sums = (np.zeros((warps, *shapes[what])) for what in "abc")
            for matrix, (rows, columns), get in zip((first, second, sums), maps, gets, strict=True):
                matrix[:, rows, columns] = get()
            put((np.matmul(first, second) + sums)[:, row, column])
            self.tally(ins, {"wmma_ops": warps, "tensor_flops": warps * flops})

        return self.rendezvous(ins, body)
