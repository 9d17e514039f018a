"""What is right: a block whose agents run in any order, and what nothing orders is a hazard."""

import sys
from collections.abc import Iterator
from fractions import Fraction

from harness.simulators.hazards import Clock, Hazard, Mbarrier, Place

ENGINE = 64  # bytes a cycle


def place(depth=2):
    """The line that called."""
    frame = sys._getframe(depth)
    return Place(file=frame.f_code.co_filename, line=frame.f_lineno)


def model(count):
    """An mbarrier as the simulators of the harness have it."""
    return Mbarrier(label="model", count=count, start=Clock())


class Barrier:
    """An mbarrier of a block; who arrives is the agent whose turn it is."""

    def __init__(self, block, label, count):
        self.block, self.label = block, label
        self.state = Mbarrier(label=label, count=count, start=Clock())
        self.announced = self.asked = 0  # bytes

    def arrive(self, n=1):
        agent, before = self.block.agent(f"{self.label}.arrive({n})"), self.state.pending
        if surplus := self.state.arrive(n, agent.clock):
            text = f"{self.label}: {n} arrivals of {agent.name}, but only {before} were missing, "
            raise Hazard("too-many-arrivals", text + f"{surplus} too many", place())

    def expect_tx(self, nbytes):
        self.announced += nbytes
        self.state.expect(nbytes)

    def wait(self, parity):
        if parity not in (0, 1):
            raise Hazard("wrong-phase", f"waits for parity {parity} of {self.label}", place())
        return ("wait", self, parity)


class Agent:
    def __init__(self, name, work):
        assert isinstance(work, Iterator), f"{name}: returns {work!r}, expected a generator"
        self.name, self.work = name, work
        self.clock = Clock()
        self.doing = None  # ("wait", barrier, parity) or ("mma", stage, end)
        self.alive = True
        self.multiplied, self.waits = [], 0


class Load:
    def __init__(self, number, operand, stage, tile, barrier, nbytes, clock, lands, here):
        self.number, self.operand, self.stage, self.tile = number, operand, stage, tile
        self.barrier, self.nbytes, self.clock, self.lands = barrier, nbytes, clock, lands
        self.place = here


class Block:
    """
    A producer, consumers, a ring of stages and a barrier pair for each.

    `run` takes a rule of who goes next: a function of the actions that are possible, or none for
    the earliest in time. An action is a load that lands or an agent that goes on.
    """

    def __init__(
        self, kata, tiles, stages, consumers, operand_bytes=(512, 256), latency=100, mma=9
    ):
        self.stages, self.operand_bytes = stages, tuple(operand_bytes)
        self.tiles, self.latency, self.mma_cycles = tiles, latency, mma
        self.full = [Barrier(self, f"full[{i}]", 1) for i in range(stages)]
        self.empty = [Barrier(self, f"empty[{i}]", consumers) for i in range(stages)]
        self.now = self.engine = Fraction(0)
        self.held, self.reads = {}, {}  # (operand, stage): its last load; stage: who read it when
        self.flying, self.loads = [], 0
        self.current = None
        self.agents = [Agent("producer", kata.producer(self, tiles))]
        for wid in range(consumers):
            self.agents.append(Agent(f"consumer {wid}", kata.consumer(self, wid, tiles)))

    # what agents ask for

    def agent(self, call):
        """Whose turn it is."""
        assert self.current, f"{call}: comes as a plain call, expected a generator, with yield"
        return self.current

    def tma_load(self, operand, stage, tile, barrier):
        call, here = f"tma_load({operand}, {stage}, {tile})", place()
        assert 0 <= operand < len(self.operand_bytes), f"{call}: there is no such operand"
        if not 0 <= stage < self.stages:
            raise Hazard("smem-out-of-bounds", f"{call}: there are {self.stages} stages", here)
        if not 0 <= tile < self.tiles:
            raise Hazard("global-out-of-bounds", f"{call}: there are {self.tiles} tiles", here)
        clock, before = self.agent(call).clock, self.held.get((operand, stage))
        if before and not clock.knows_complete(before.number):
            text = f"{call}: the load of tile {before.tile} may still be on its way there"
            raise Hazard("reused-too-early", text, here, before.place)
        for name, (epoch, where) in self.reads.get(stage, {}).items():
            if not clock.knows(name, epoch):
                raise Hazard("reused-too-early", f"{call}: {name} may still read it", here, where)
        nbytes = self.operand_bytes[operand]
        self.engine = max(self.engine, self.now) + Fraction(nbytes, ENGINE)
        lands = self.engine + self.latency
        one = Load(self.loads, operand, stage, tile, barrier, nbytes, clock.copy(), lands, here)
        barrier.asked += nbytes
        self.loads += 1
        self.held[operand, stage] = one
        self.flying.append(one)

    def mma(self, stage):
        return ("mma", stage, place())

    def _multiply(self, agent, stage, here):
        call = f"{agent.name}, mma({stage})"
        if not 0 <= stage < self.stages:
            raise Hazard("smem-out-of-bounds", f"{call}: there are {self.stages} stages", here)
        held = [self.held.get((operand, stage)) for operand in range(len(self.operand_bytes))]
        for operand, one in enumerate(held):
            if one is None:
                text = f"{call}: operand {operand} was never loaded there"
                raise Hazard("uninitialised-smem", text, here)
            if not agent.clock.knows_complete(one.number):
                announced, asked = one.barrier.announced, one.barrier.asked
                name = "missing-wait" if announced == asked else "expect-tx-mismatch"
                name = name if announced else "missing-expect"
                text = f"{call}: nothing says that operand {operand} of tile {one.tile} has landed"
                text += f"; {announced} bytes announced, {asked} asked for on {one.barrier.state}"
                raise Hazard(name, text, here, one.place)
        tiles = {one.tile for one in held}
        assert len(tiles) == 1, f"{call}: operands of different tiles, {sorted(tiles)}"
        self.reads.setdefault(stage, {})[agent.name] = (agent.clock.tick(agent.name), here)
        agent.multiplied.append(tiles.pop())

    # who goes next

    def run(self, choose=None):
        while any(agent.alive for agent in self.agents):
            actions = [agent for agent in self.agents if agent.alive and self._ready(agent, choose)]
            if choose is None:
                actions = actions or self._next_in_time()
                action = actions[0] if actions else None
            else:
                actions += self.flying
                action = choose(actions) if actions else None
            if action is None:
                raise Hazard("deadlock", self._who_waits())
            if isinstance(action, Load):
                self._land(action)
            else:
                self._go_on(action)
        unseen = [one for one in self.held.values() if not self._seen(one)]
        if unseen:
            text = f"nobody waited for operand {unseen[0].operand} of tile {unseen[0].tile}"
            raise Hazard("load-not-waited", text, unseen[0].place)
        return self

    def _ready(self, agent, choose):
        if agent.doing is None:
            return True
        kind, what, detail = agent.doing
        if kind == "wait":
            return what.state.passes(detail)
        return choose is not None or self.now >= detail

    def _next_in_time(self):
        """Go to the next moment at which a load lands or a product is done."""
        ends = [agent.doing[2] for agent in self.agents if agent.doing and agent.doing[0] == "mma"]
        times = ends + [one.lands for one in self.flying]
        if not times:
            return []
        self.now = max(self.now, min(times))
        landed = [one for one in self.flying if one.lands <= self.now]
        return landed or [agent for agent in self.agents if self._ready(agent, None)]

    def _land(self, one):
        self.flying.remove(one)
        one.clock.complete(one.number)
        one.barrier.state.land(one.nbytes, one.clock)

    def _go_on(self, agent):
        if agent.doing and agent.doing[0] == "wait":
            agent.clock.join(agent.doing[1].state.released)
        self.current, agent.doing = agent, None
        asked = next(agent.work, "end")
        if asked == "end":
            agent.alive = False
            return
        assert isinstance(asked, tuple), f"{agent.name} yields {asked!r}, expected a wait or an mma"
        if asked[0] == "wait":
            agent.waits += 1
            agent.doing = asked
        else:
            self._multiply(agent, *asked[1:])
            agent.doing = ("mma", asked[1], self.now + self.mma_cycles)

    def _seen(self, one):
        return any(agent.clock.knows_complete(one.number) for agent in self.agents[1:])

    def _who_waits(self):
        lines = [f"{self.tiles} tiles, {self.stages} stages, {len(self.agents) - 1} consumers"]
        for agent in self.agents:
            if agent.alive:
                _, barrier, parity = agent.doing
                lines.append(f"    {agent.name} waits for parity {parity} of {barrier.state}")
        return "\n".join(lines)


def starving(name):
    """Whoever has this name goes on only when nobody else can; "loads" land only then."""

    def choose(actions):
        others = [one for one in actions if getattr(one, "name", "loads") != name]
        return (others or actions)[0]

    return choose


def closed_form(tiles, stages, load, latency, mma):
    """Cycles, where a stage is loaded again as soon as it was multiplied."""
    slowest = max(load, mma, Fraction(latency + load + mma, stages))
    return latency + load + (tiles - 1) * slowest + mma
