"""Kata week27/rollout_scheduler: which rollouts run, under which policy, and what is trained on."""

from collections import Counter
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple


class Request(NamedTuple):
    """One completion of a prompt; `group` are those of the same prompt, `hint` a guessed length."""

    id: int
    group: int
    hint: int | None = None


class RolloutScheduler:
    """
    Decides which rollouts start, and which groups of them are trained on.

    Args:
        slots: Rollouts that the engine runs at a time.
        max_staleness: Versions by which a token may be older than the policy it trains.
        group_size: Completions of a prompt.
        batch_groups: Groups in a training step, which makes the next version of the policy.

    Raises:
        ValueError: `max_staleness` is below 0 or another one below 1; the message begins with the
            argument's name.
    """

    def __init__(self, slots: int, max_staleness: int, group_size: int, batch_groups: int) -> None:
        # check
        for name, given, least in (
            ("slots", slots, 1), ("max_staleness", max_staleness, 0),
            ("group_size", group_size, 1), ("batch_groups", batch_groups, 1),
        ):  # fmt: skip
            if given < least:
                raise ValueError(f"{name}: expected {least} or more, found {given}")
        # state of rollouts and groups
        self._free = slots
        self._max_staleness = max_staleness
        self._group_size = group_size
        self._batch_groups = batch_groups
        self._places = count()  # of requests, in order of being added
        self._arrived: dict[int, int] = {}  # of groups: how many had come before
        self._added: Counter[int] = Counter()  # of groups: requests so far
        self._finished: Counter[int] = Counter()  # of groups: those that have ended
        self._oldest: dict[int, int] = {}  # of groups begun and not yet trained on: version
        self._group_of: dict[int, int] = {}  # of requests that wait or run
        self._running: set[int] = set()
        self._waiting: list[tuple[int, int, int, Request]] = []  # batch, -hint, arrival

    def add(self, request: Request) -> None:
        """
        Take in a request; the requests of a group come one after another, or mixed with others.

        Raises:
            ValueError: Its id waits or runs already (`id`), or its group has all its requests
                (`group`). The message begins with that name; nothing is changed.
        """
        # check
        if request.id in self._group_of:
            raise ValueError(f"id: expected a new one, found {request.id}, which has not finished")
        group = request.group
        if self._added[group] == self._group_size:
            raise ValueError(f"group: expected one that is not complete, found {group}")
        # queue by batch and hint
        arrival = self._arrived.setdefault(group, len(self._arrived))
        self._added[group] += 1
        self._group_of[request.id] = group
        place = next(self._places)
        entry = arrival // self._batch_groups, -(request.hint or 0), place, request
        heappush(self._waiting, entry)

    def on_tick(self, policy_version: int) -> list[int]:
        """Choose what starts now, under this version of the policy, the first one first."""
        # fill the free slots
        started = []
        newest = policy_version + self._max_staleness
        while self._free and self._waiting and self._waiting[0][0] <= newest:
            *_, request = heappop(self._waiting)
            self._oldest.setdefault(request.group, policy_version)
            self._running.add(request.id)
            self._free -= 1
            started.append(request.id)
        return started

    def on_finish(self, req_id: int) -> None:
        """
        Hear that a rollout has ended; its slot is free.

        Raises:
            ValueError: It does not run; the message begins with `req_id`.
        """
        # check
        if req_id not in self._running:
            raise ValueError(f"req_id: expected one that runs, found {req_id}")
        # state of rollouts and groups
        self._running.remove(req_id)
        self._free += 1
        group = self._group_of.pop(req_id)
        self._finished[group] += 1

    def on_train_ready(self, policy_version: int) -> list[int]:
        """Choose the groups to train this version on, oldest first; none if it has to wait."""
        # oldest complete groups
        by_age = sorted(self._oldest, key=lambda group: (self._oldest[group], self._arrived[group]))
        done = [group for group in by_age if self._finished[group] == self._group_size]
        batch = done[: self._batch_groups]
        # wait if others get too old
        limit = policy_version - self._max_staleness  # what is as old is too old after this step
        left = [self._oldest[group] for group in by_age if group not in batch]
        late = any(
            sum(version <= limit + steps for version in left) > steps * self._batch_groups
            for steps in range(min(self._max_staleness, len(left)) + 1)
        )
        if len(batch) < self._batch_groups or late:
            return []
        for group in batch:
            del self._oldest[group]
        return batch
