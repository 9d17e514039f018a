"""What is right: a multiprocessor that runs both warpgroups, and the earliest that tiles can be."""

from collections.abc import Iterator
from fractions import Fraction


class Sm:
    """
    Two warpgroups that share tensor cores, cycle by cycle or less.

    `mainloops[tile]` is (cycles of the tensor cores, cycles at least), `epilogues[tile]` cycles.
    `first` is the warpgroup that is asked first where both could go on. `trace` has
    (kind, tile, wg, start, end), in the order in which things end.
    """

    def __init__(self, mainloops, epilogues, first=0):
        self.mainloops, self.epilogues = list(mainloops), list(epilogues)
        self.first = first
        self.phases = [0, 0]
        self.now = Fraction(0)
        self.trace, self.ordering = [], 0

    def wait(self, slot, parity):
        assert parity in (0, 1), f"wait: expected parity 0 or 1, found {parity!r}"
        return ("wait", slot, parity)

    def arrive(self, slot):
        return ("arrive", slot, None)

    def mainloop(self, tile):
        return ("mainloop", tile, None)

    def epilogue(self, tile):
        return ("epilogue", tile, None)

    def run(self, warpgroup):
        """Run `warpgroup(wg, tiles, sm)` for both until they end; return the cycles that takes."""
        work = [warpgroup(wg, len(self.mainloops), self) for wg in (0, 1)]
        for wg, one in enumerate(work):
            assert isinstance(one, Iterator), (
                f"warpgroup {wg} returns {one!r}, expected a generator"
            )
        doing = [None, None]  # [kind, what, parity, start, tensor cycles left, end at least]
        live = {0, 1}
        while live:
            moved = True
            while moved:
                moved = False
                for wg in (self.first, 1 - self.first):
                    while wg in live and self._over(doing[wg]):
                        moved = True
                        self._close(wg, doing[wg])
                        doing[wg] = self._open(wg, next(work[wg], None))
                        if doing[wg] is None:
                            live.discard(wg)
            if live:
                self._advance(doing)
        return self.now

    def _open(self, wg, asked):
        if asked is None:
            return None
        kind, what, parity = asked
        if kind in ("wait", "arrive"):
            self.ordering += 1
            assert what in (0, 1), f"{kind}: expected slot 0 or 1, found {what!r}"
            if kind == "arrive":
                self.phases[what] += 1
            return [kind, what, parity, self.now, 0, self.now]
        done = [(k, tile, by) for k, tile, by, *_ in self.trace]
        assert 0 <= what < len(self.mainloops), f"{kind}({what}): there is no such tile"
        if kind == "mainloop":
            assert what not in [tile for k, tile, _ in done if k == kind], (
                f"mainloop({what}): again"
            )
            busy, least = self.mainloops[what]
        else:
            assert ("mainloop", what, wg) in done, f"epilogue({what}): nothing to store"
            assert ("epilogue", what, wg) not in done, f"epilogue({what}): again"
            busy, least = 0, self.epilogues[what]
        return [kind, what, None, self.now, Fraction(busy), self.now + least]

    def _over(self, one):
        if one is None:
            return True
        if one[0] == "wait":
            return self.phases[one[1]] & 1 != one[2]
        return one[4] == 0 and self.now >= one[5]

    def _close(self, wg, one):
        if one and one[0] in ("mainloop", "epilogue"):
            self.trace.append((one[0], one[1], wg, _plain(one[3]), _plain(self.now)))

    def _advance(self, doing):
        """Go on to the next moment at which anything can end."""
        running = [one for one in doing if one and one[0] != "wait"]
        assert running, self._deadlock(doing)
        sharing = [one for one in running if one[4]]
        ends = [one[4] * len(sharing) for one in sharing]
        ends += [one[5] - self.now for one in running if one[5] > self.now]
        step = min(ends)
        self.now += step
        for one in sharing:
            one[4] -= step / len(sharing)

    def _deadlock(self, doing):
        said = [
            f"warpgroup {wg} waits for parity {one[2]} of slot {one[1]}, which is in phase "
            f"{self.phases[one[1]]}" if one else f"warpgroup {wg} has ended"
            for wg, one in enumerate(doing)
        ]  # fmt: skip
        tiles = f"{len(self.mainloops)} tiles"
        return f"{tiles}: deadlock after {_plain(self.now)} cycles: {', '.join(said)}"


def _plain(time):
    return int(time) if time == int(time) else float(time)


def taking_turns(wg, tiles, sm):
    """One slot for whose turn it is, odd or even."""
    for tile in range(wg, tiles, 2):
        yield sm.wait(0, 1 - wg)
        yield sm.mainloop(tile)
        yield sm.arrive(0)
        yield sm.epilogue(tile)


def earliest(mainloops, epilogues):
    """(start of each mainloop, cycles in all) where each waits only for what it must."""
    starts, ends, free = [], [0, 0], 0
    for tile, ((busy, least), epilogue) in enumerate(zip(mainloops, epilogues, strict=True)):
        start = max(free, ends[tile % 2])
        free = start + max(busy, least)
        ends[tile % 2] = free + epilogue
        starts.append(start)
    return starts, max(ends)


def steps_one_by_one(gemm):
    """How often `bk` is taken from `k` until nothing is left."""
    left, steps = gemm.k, 0
    while left > 0:
        left, steps = left - gemm.bk, steps + 1
    return steps


def simulated(gemm, mode, warpgroup, tiles):
    """(cycles, busy cycles of the tensor cores) of an even number of tiles in a mode."""
    steps = steps_one_by_one(gemm)
    load = gemm.t_load_pair if mode == "cooperative" else gemm.t_load
    sm = Sm([(steps * gemm.t_mma, steps * load)] * tiles, [gemm.t_epi] * tiles)
    return sm.run(warpgroup), tiles * steps * gemm.t_mma
