"""An engine, a trainer and their clock; traces; the baseline; and the least time there can be."""

from dataclasses import dataclass, field

import numpy as np

WEIGHTS = 13.5e9  # bytes: 7 billion parameters
CACHED = 524_288  # bytes of a token: 32 layers of 32 heads for keys and values
BANDWIDTH, FLOPS = 3.35e12, 989e12  # an H100
PROMPT = 256


def lengths(n, seed, cap=4096):
    """Draw lengths of responses: half are below 400 tokens, one in a hundred is at the cap."""
    drawn = np.random.default_rng(seed).lognormal(6, 1, n)
    return [int(length) for length in np.clip(drawn, 1, cap)]


def step_s(running, tokens):
    read = (WEIGHTS + CACHED * tokens) / BANDWIDTH
    return np.maximum(read, WEIGHTS * running / FLOPS)


def least_s(lengths_, slots, group_size=1):
    """All tokens in full batches, each cache read once a token; or the longest one alone."""
    n = len(lengths_)
    steps = -(-sum(lengths_) // min(slots, n))
    own = sum(length * (length + 1) // 2 for length in lengths_)
    prompts = sum(lengths_) / group_size * PROMPT
    together = (WEIGHTS * steps + CACHED * (own + prompts)) / BANDWIDTH
    longest = max(lengths_)
    alone = float(step_s(1, PROMPT + np.arange(1, longest + 1)).sum())
    return max(together, alone)


@dataclass
class Result:
    """What came of a simulation."""

    ended: float = 0.0
    generated: float = 0.0
    batches: list = field(default_factory=list)
    overlapped: int = 0


class Engine:
    """
    Runs what a scheduler starts, trains on what it chooses, and judges both.

    A step gives each running rollout a token. New weights are there at the first step's end after
    the training step's. The scheduler is asked when something has ended.
    """

    def __init__(self, scheduler, requests, lengths_, slots, staleness, group_size, batch, train_s):
        self.scheduler, self.slots, self.staleness = scheduler, slots, staleness
        self.group_size, self.batch, self.train_s = group_size, batch, train_s
        self.waiting = {request.id: request for request in requests}
        self.lengths = {
            request.id: length for request, length in zip(requests, lengths_, strict=True)
        }
        self.groups = [*dict.fromkeys(request.group for request in requests)]
        self.turn = {group: at // batch for at, group in enumerate(self.groups)}
        self.steps, self.cached = 0, 0
        self.left, self.group_of = {}, {}  # of those that run: at which step they end, and whose
        self.oldest, self.ends, self.trained = {}, {}, set()
        self.now, self.version, self.training_until = 0.0, 0, None
        self.result, self.strict = Result(), False
        for request in requests:
            scheduler.add(request)

    def run(self):
        while True:
            self._start(self.scheduler.on_tick(self.version))
            if self.training_until is None:
                self._train(self.scheduler.on_train_ready(self.version))
            if not self.left and self.training_until is None:
                break
            self._advance()
        assert not self.waiting, f"{len(self.waiting)} rollouts were never started"
        left = {*self.groups} - self.trained
        assert not left, f"never trained on: {left}"
        self.result.ended = self.now
        return self.result

    def _finish(self, one):
        del self.left[one]
        self.cached -= self.lengths[one]
        group = self.group_of.pop(one)
        self.ends[group] = self.ends.get(group, 0) + 1
        self.scheduler.on_finish(one)

    def _start(self, ids):
        for one in ids:
            assert one in self.waiting, f"on_tick started {one}, which does not wait"
            request = self.waiting.pop(one)
            self.left[one], self.group_of[one] = self.steps + self.lengths[one], request.group
            self.oldest.setdefault(request.group, self.version)
        told = f"after on_tick({self.version}) {len(self.left)} run in {self.slots} slots"
        assert len(self.left) <= self.slots, told
        newest = self.version + self.staleness
        late = [one for one in self.waiting.values() if self.turn[one.group] <= newest]
        idle = self.strict and late and len(self.left) < self.slots
        assert not idle, f"{told}, though {late[:1]} might start"

    def _train(self, batch):
        if not batch:
            self._may_wait()
            return
        told = f"on_train_ready({self.version}) chose {batch}"
        assert len({*batch}) == len(batch) == self.batch, f"{told}, expected {self.batch} groups"
        for group in batch:
            assert group not in self.trained, f"{told}: {group} was trained on already"
            assert self.ends.get(group, 0) == self.group_size, f"{told}: {group} is not complete"
            age = self.version - self.oldest[group]
            assert age <= self.staleness, (
                f"{told}: {group} has tokens {age} versions old, expected at most {self.staleness}"
            )
        self.trained.update(batch)
        self.result.batches.append(batch)
        self.training_until = self.now + self.train_s

    def _may_wait(self):
        if not self.strict:
            return
        done = [group for group in self.oldest if self.ends.get(group, 0) == self.group_size]
        done = [group for group in done if group not in self.trained]
        oldest = sorted(done, key=lambda group: (self.oldest[group], self.turn[group]))
        chosen = {*oldest[: self.batch], *self.trained}
        left = sorted(age for group, age in self.oldest.items() if group not in chosen)
        # the n-th of those left is trained on after as many steps at the earliest
        ages = [self.version + 1 + at // self.batch - age for at, age in enumerate(left)]
        assert len(done) < self.batch or max(ages, default=0) > self.staleness, (
            f"on_train_ready({self.version}) waits, though {done} are complete and none else "
            "would get too old"
        )

    def _advance(self):
        end = self.training_until
        if not self.left:
            self.now = end
        else:
            running, first = len(self.left), min(self.left.values())
            steps = np.arange(1, first - self.steps + 1)
            known = self.cached + PROMPT * len({*self.group_of.values()})
            clock = self.now + np.cumsum(step_s(running, known + running * steps))
            n = len(steps)
            if end is not None:
                n = min(n, int(np.searchsorted(clock, end)) + 1)
                self.result.overlapped += n * running
            self.result.generated += float(clock[n - 1]) - self.now
            self.now = float(clock[n - 1])
            self.steps += n
            self.cached += n * running
            if self.steps == first:
                for one in [one for one, last in self.left.items() if last == first]:
                    self._finish(one)
        if end is not None and self.now >= end:
            self.version += 1
            self.training_until = None


class Static:
    """Fills all slots, waits for the last of them, and trains when a batch is complete."""

    def __init__(self, slots, max_staleness, group_size, batch_groups):
        self.slots, self.batch, self.size = slots, batch_groups, batch_groups * group_size
        self.waiting, self.running, self.groups = [], set(), []
        self.started = 0

    def add(self, request):
        self.waiting.append(request)
        if request.group not in self.groups:
            self.groups.append(request.group)

    def on_tick(self, version):
        if self.running:
            return []
        n = min(self.slots, (version + 1) * self.size - self.started)
        wave, self.waiting = self.waiting[:n], self.waiting[n:]
        self.started += len(wave)
        self.running = {request.id for request in wave}
        return [request.id for request in wave]

    def on_finish(self, req_id):
        self.running.remove(req_id)

    def on_train_ready(self, version):
        if self.running or self.started < (version + 1) * self.size:
            return []
        return self.groups[version * self.batch : (version + 1) * self.batch]


def serve(
    kata,
    make,
    drawn,
    *,
    slots,
    staleness,
    group_size=1,
    batch,
    train_s=0.0,
    hints=False,
    strict=False,
):
    """Run rollouts whose ids are in no order; `strict` wants every slot and trainer busy."""
    requests = [
        kata.Request(7 * at % 1_000_003, 1000 - at // group_size, length if hints else None)
        for at, length in enumerate(drawn)
    ]
    scheduler = make(slots, staleness, group_size, batch)
    engine = Engine(scheduler, requests, drawn, slots, staleness, group_size, batch, train_s)
    engine.strict = strict
    return engine.run()
