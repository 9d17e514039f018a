"""What is right: a machine on which nothing lands before it must, and its time."""

import sys

from harness.simulators.hazards import Hazard, Place

# (latency, copy, compute): bound by latency, by the copies, by the computation, and exact fits
MACHINES = ((600, 50, 100), (600, 150, 100), (600, 100, 800), (0, 70, 70))


class Machine:
    """
    One thread of a block of which all threads do the same.

    A copy is visible to all threads when it was waited for and then a sync came; a slot is free
    again when a sync came after it was computed from. What happens earlier is a hazard, whatever
    the copies' timing. `now` is the time in cycles: copies go one after the other through an
    engine that takes `copy` for each, and land `latency` later; computing takes `compute`.
    """

    def __init__(self, num_tiles, slots, latency=600, copy=100, compute=100):
        self.num_tiles, self.slots = num_tiles, slots
        self.latency, self.copy, self.computing = latency, copy, compute
        self.now = self.engine = 0
        self.open, self.groups = [], []
        self.held = {}  # slot: its last copy
        self.read = {}  # slot: who has computed from it since the last sync
        self.computed, self.copied = [], []
        self.syncs = 0

    def cp_async(self, slot, tile):
        here = self._begin(slot, tile, f"cp_async({slot}, {tile})")
        before = self.held.get(slot)
        if slot in self.read:
            text = f"cp_async({slot}, {tile}): other threads may still compute from slot {slot}"
            raise Hazard("reused-too-early", text, here, self.read[slot])
        if before and before["state"] == "in flight":
            text = f"cp_async({slot}, {tile}): tile {before['tile']} may still be on its way there"
            raise Hazard("reused-too-early", text, here, before["place"])
        self.engine = max(self.now, self.engine) + self.copy
        one = {
            "tile": tile, "lands": self.engine + self.latency, "state": "in flight", "place": here
        }  # fmt: skip
        self.held[slot] = one
        self.open.append(one)
        self.copied.append(tile)

    def commit(self):
        self.groups.append(self.open)
        self.open = []

    def wait_group(self, n):
        assert n >= 0, f"wait_group({n}): expected 0 or more"
        for group in self.groups[: max(0, len(self.groups) - n)]:
            for one in group:
                self.now = max(self.now, one["lands"])
                if one["state"] == "in flight":
                    one["state"] = "waited for"

    def sync(self):
        self.syncs += 1
        for one in self.held.values():
            if one["state"] == "waited for":
                one["state"] = "visible"
        self.read.clear()

    def compute(self, slot, tile):
        here = self._begin(slot, tile, f"compute({slot}, {tile})")
        one = self.held.get(slot)
        if not one:
            text = f"compute({slot}, {tile}): nothing was ever copied into slot {slot}"
            raise Hazard("uninitialised-smem", text, here)
        if one["state"] == "in flight":
            text = f"compute({slot}, {tile}): no wait_group covers the copy of tile {one['tile']}"
            raise Hazard("missing-wait", text, here, one["place"])
        if one["state"] == "waited for":
            text = f"compute({slot}, {tile}): no sync since the wait, so other threads' shares of "
            text += f"tile {one['tile']} may be missing"
            raise Hazard("race", text, here, one["place"])
        assert one["tile"] == tile, (
            f"compute({slot}, {tile}): slot {slot} holds tile {one['tile']}, expected tile {tile}"
        )
        self.now += self.computing
        self.read[slot] = here
        self.computed.append(tile)

    def finish(self):
        """Look for copies that nobody has waited for."""
        for slot, one in self.held.items():
            if one["state"] == "in flight":
                text = f"the copy of tile {one['tile']} into slot {slot} is not waited for"
                raise Hazard("load-not-waited", text, one["place"])

    def _begin(self, slot, tile, call):
        frame = sys._getframe(2)  # who called
        here = Place(file=frame.f_code.co_filename, line=frame.f_lineno)
        if not 0 <= slot < self.slots:
            raise Hazard("smem-out-of-bounds", f"{call}: there are {self.slots} slots", here)
        if not 0 <= tile < self.num_tiles:
            raise Hazard("global-out-of-bounds", f"{call}: there are {self.num_tiles} tiles", here)
        return here


class Untouchable:
    """A machine of which nothing may be asked."""

    def __getattr__(self, name):
        def refuse(*args):
            asked = ", ".join(map(str, args))
            raise AssertionError(f"asked for {name}({asked}), expected nothing before ValueError")

        return refuse


def run(pipeline, num_tiles, stages, *times):
    """The machine after `pipeline` has driven it."""
    machine = Machine(num_tiles, stages, *times)
    pipeline(machine, num_tiles, stages)
    machine.finish()
    return machine


def begins(latency, copy, compute, stages, n):
    """When each of `n` tiles is computed, if it is copied as soon as `stages` slots allow."""
    starts, engine = [], 0
    for tile in range(n):
        issued = starts[tile - stages + 1] if tile >= stages - 1 else 0
        engine = max(engine, issued) + copy
        starts.append(max(engine + latency, starts[-1] + compute if starts else 0))
    return starts


def cycles_of_rounds(latency, copy, compute, stages, rounds=6):
    """(cycles, tiles) of some rounds of `stages` - 1 tiles each."""
    n = rounds * (stages - 1)
    starts = begins(latency, copy, compute, stages, n + 1)
    return starts[n] - starts[0], n


def fewest_stages(latency, copy, compute):
    """The fewest stages that are as fast as very many, by trying them all."""
    stages = 2
    while True:
        cycles, n = cycles_of_rounds(latency, copy, compute, stages)
        if cycles == n * max(copy, compute):
            return stages
        stages += 1
