"""Bulk copies: linear ones and boxes of tensors (TMA), to one block or several of a cluster."""

import numpy as np

from harness.simulators.ptx.arguments import TensorMap
from harness.simulators.ptx.formats import Array, i64, u64
from harness.simulators.ptx.global_order import GlobalOrder
from harness.simulators.ptx.mbarriers import Object, Transfer, WarpClock, distinct
from harness.simulators.ptx.memory import UNWRITTEN, Buffer
from harness.simulators.ptx.operands import Get, address_in, immediate, vector
from harness.simulators.ptx.program import Instruction, Unsupported
from harness.simulators.ptx.scheduler import Decoded

MULTICAST = "multicast::cluster"
SWIZZLE_BITS = {0: 0, 32: 1, 64: 3, 128: 7}
LINEAR_UNIT = 16  # bytes that a linear copy is a multiple of


def swizzled(offset: Array, mode: int) -> Array:
    """Bytes under a swizzle: the number of 16 bytes, xor that of 128 bytes. Source: PTX ISA."""
    return np.asarray(offset ^ (((offset >> 7) & SWIZZLE_BITS[mode]) << 4))


class Bulk(GlobalOrder):
    """cp.async.bulk."""

    def start_bulk(self) -> None:
        """Begin without a store in flight."""
        self.stores: list[Transfer] = []
        self.store_groups = np.zeros(self.threads, i64)

    def bulk(self, ins: Instruction) -> Decoded:
        """cp.async.bulk with all that follows."""
        words = ins.mods[2:]
        if words[0] == "commit_group":

            def commit() -> None:
                self.store_groups = self.store_groups + self.mask

            return commit, None
        if words[0] == "wait_group":
            left = immediate(ins.args[0])
            return (lambda: self._flush(left)), None
        if words[0].startswith("prefetch"):
            return (lambda: None), None
        spaces = [
            word.split("::")[0] for word in words if word.split("::")[0] in ("global", "shared")
        ]
        odd = any(word.startswith(("im2col", "tile::")) for word in words)
        if odd or len(spaces) != 2 or spaces[0] == spaces[1]:
            raise Unsupported(ins.name)
        return self._transfer(ins, loads=spaces[0] == "shared", tensor=words[0] == "tensor")

    def _transfer(self, ins: Instruction, *, loads: bool, tensor: bool) -> Decoded:
        inner, outer = (ins.args[0], ins.args[1]) if loads else (ins.args[1], ins.args[0])
        place, start = self.address(inner), self.address(outer)
        coordinates = size = None
        if tensor:
            given = vector(address_in(outer).more[0])
            coordinates = [self.source(one, "s32") for one in given]
        else:
            size = self.source(ins.args[2], "u32")
        rest = [arg for arg in ins.args[2:] if isinstance(arg, type(address_in(inner)))]
        barrier = self.address(rest[0]) if loads else None
        ranks = None
        if MULTICAST in ins.mods:
            at = ins.args.index(rest[0]) + 1
            ranks = self.source(ins.args[at], "u16")

        moved = "tma_load_bytes" if loads else "tma_store_bytes"  # what lies in the tensor

        def step() -> None:
            threads, addresses = self.active(), start()
            offsets, places = self.shared.locate(ins, threads, place(), LINEAR_UNIT)
            barriers = self.places(ins, barrier())[1] if barrier is not None else places
            for number, thread in enumerate(threads.tolist()):
                one = addresses[number : number + 1]
                if coordinates is not None:
                    found = self._box(ins, thread, one, coordinates, int(offsets[number]))
                else:
                    assert size is not None
                    found = self._line(ins, thread, one, self.int_of(size(), thread))
                source, inside, within = found
                self.tally(ins, {moved: int(inside.sum()), "tma_ops": 1})
                if not loads:
                    self._store(ins, thread, source, inside, int(places[number]) + within)
                    continue
                for shift in self._targets(ranks, thread):
                    home = int(places[number]) + shift
                    self._load(
                        ins, thread, source, inside, home + within, int(barriers[number]) + shift
                    )

        return step, None

    def _targets(self, ranks: Get | None, thread: int) -> list[int]:
        """How many bytes further on the memory of each block lies that a copy goes to."""
        if ranks is None:
            return [0]
        mask = self.int_of(ranks(), thread)
        own = thread // self.block_threads % self.cluster
        return [(rank - own) * self.shared.size for rank in range(self.cluster) if mask >> rank & 1]

    def _line(
        self, ins: Instruction, thread: int, start: Array, size: int
    ) -> tuple[Array, Array, Array]:
        """The bytes of a linear copy: where they are, which exist, and where they go."""
        memory, who = self.global_memory, np.array([thread])
        if size % LINEAR_UNIT:
            text = f"{self.who(thread)} a bulk copy of {size} bytes, no multiple of {LINEAR_UNIT}"
            self.report("misaligned", ins, text)
        first = int(memory.locate(ins, who, start, LINEAR_UNIT)[0])
        memory.locate(ins, who, start + u64(max(0, size - LINEAR_UNIT)), LINEAR_UNIT)
        return first + np.arange(size), np.ones(size, bool), np.arange(size)

    def _box(
        self,
        ins: Instruction,
        thread: int,
        start: Array,
        coordinates: list[Get],
        offset: int,
    ) -> tuple[Array, Array, Array]:
        """The same for a box of a tensor; `offset` is where it goes in shared memory."""
        memory = self.global_memory
        at = int(memory.locate(ins, np.array([thread]), start, 8)[0])
        number = int(memory.views.by[8][at // 8])
        if not 0 < number <= len(self.tensor_maps):
            raise Unsupported("a tensor map that was made on the device")
        tensor_map, buffer = self.tensor_maps[number - 1]
        corner = [self.int_of(one(), thread) for one in coordinates]
        source, inside = box_places(tensor_map, buffer, corner)
        align = {0: 128, 32: 128, 64: 512, 128: 1024}[tensor_map.swizzle]
        if tensor_map.swizzle and offset % align:
            text = f"a box swizzled over {tensor_map.swizzle} bytes has to start at a multiple of"
            self.report("misaligned", ins, f"{self.who(thread)} {text} {align} bytes")
        within = swizzled(offset + np.arange(len(source)), tensor_map.swizzle) - offset
        return source, inside, within

    def _granules(self, place: Array) -> Array:
        shared = self.shared
        place = np.clip(place, 0, len(shared.views.bytes) - 1)
        return distinct(place // shared.granule, shared.writer.size)

    def _load(
        self,
        ins: Instruction,
        thread: int,
        source: Array,
        inside: Array,
        place: Array,
        barrier: int,
    ) -> None:
        shared, granules = self.shared, self._granules(place)
        if self.checked:
            who = np.full(len(granules), thread)
            shared.on_write(ins, granules, who, proxied=True)
            shared.in_flight[granules] = True
        place = np.clip(place, 0, len(shared.views.bytes) - 1)
        shared.views.bytes[place] = UNWRITTEN
        transfer = Transfer(ins, thread, source, inside, place, granules, 0)
        self.object_at(ins, thread, barrier).transfers.append(transfer)

    def _store(
        self, ins: Instruction, thread: int, source: Array, inside: Array, place: Array
    ) -> None:
        shared, granules = self.shared, self._granules(place)
        if self.checked:
            shared.on_read(ins, granules, np.full(len(granules), thread))
            self.check_fenced(ins, thread, granules)
            shared.being_read[granules] += 1
        group = int(self.store_groups[thread])
        self.stores.append(Transfer(ins, thread, source, inside, place, granules, group))

    def land(self, transfer: Transfer, one: Object) -> None:
        """Let a load land; its bytes count for the barrier."""
        shared, core, size = self.shared, one.core, len(transfer.place)
        content = self.global_memory.views.bytes[transfer.source]
        shared.views.bytes[transfer.place] = np.where(transfer.inside, content, 0)
        if self.checked:
            shared.in_flight[transfer.granules] = False
            who = np.full(len(transfer.granules), transfer.thread)
            shared.on_write(transfer.ins, transfer.granules, who, landing=True, proxied=True)
        known = self.publish(np.array([transfer.thread >> 5]))[0]
        if core.tx < size:
            name = "missing-expect" if not core.expected else "expect-tx-mismatch"
            text = f"{core.label} gets {size} bytes where {max(core.tx, 0)} were still announced"
            self.report(name, transfer.ins, text)
            core.tx = size
        core.land(size, WarpClock(known))

    def _flush(self, left: int) -> None:
        """Let stores of the active threads land, but for their newest `left` groups."""
        kept = []
        for store in self.stores:
            done = self.mask[store.thread] and store.group < self.store_groups[store.thread] - left
            if done:
                self._land_store(store)
            else:
                kept.append(store)
        self.stores = kept

    def _land_store(self, store: Transfer) -> None:
        there = store.inside
        content = self.shared.views.bytes[store.place[there]]
        self.global_memory.views.bytes[store.source[there]] = content
        if self.checked:
            self.shared.being_read[store.granules] -= 1

    def finish_transfers(self) -> None:
        """Report what nobody waited for when all blocks have left."""
        for store in self.stores:
            text = f"{self.who(store.thread)} its bulk store was in flight when the kernel ended"
            self.report("store-not-waited", store.ins, text)
        for one in self.objects.values():
            for transfer in one.transfers:
                text = f"{self.who(transfer.thread)} its copy was in flight when the kernel ended"
                self.report("load-not-waited", transfer.ins, text)


def box_places(tensor_map: TensorMap, buffer: Buffer, corner: list[int]) -> tuple[Array, Array]:
    """
    Where each byte of a box lies, and whether it is part of the tensor.

    Args:
        tensor_map: The tensor and the shape of the box.
        buffer: Its place among the bytes of global memory.
        corner: The first element of the box, the innermost axis first.
    """
    array, box = tensor_map.array, tensor_map.box
    place, inside = np.zeros(box, i64), np.ones(box, bool)
    for axis, (extent, stride) in enumerate(zip(array.shape, array.strides, strict=True)):
        along = [-1 if other == axis else 1 for other in range(array.ndim)]
        index = corner[array.ndim - 1 - axis] + np.arange(box[axis]).reshape(along)
        inside &= (index >= 0) & (index < extent)
        place = place + np.clip(index, 0, extent - 1) * stride
    within = buffer.offset + place.reshape(-1, 1) + np.arange(array.itemsize)
    return within.ravel(), np.repeat(inside.ravel(), array.itemsize)
