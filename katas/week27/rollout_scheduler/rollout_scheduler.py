"""Kata week27/rollout_scheduler: which rollouts run, under which policy, and what is trained on."""

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
        # TODO(kata): check, state of rollouts and groups (about 20 lines)
        raise NotImplementedError

    def add(self, request: Request) -> None:
        """
        Take in a request; the requests of a group come one after another, or mixed with others.

        Raises:
            ValueError: Its id waits or runs already (`id`), or its group has all its requests
                (`group`). The message begins with that name; nothing is changed.
        """
        raise NotImplementedError  # TODO(kata): check, queue by batch and hint (about 10 lines)

    def on_tick(self, policy_version: int) -> list[int]:
        """Choose what starts now, under this version of the policy, the first one first."""
        raise NotImplementedError  # TODO(kata): fill the free slots (about 9 lines)

    def on_finish(self, req_id: int) -> None:
        """
        Hear that a rollout has ended; its slot is free.

        Raises:
            ValueError: It does not run; the message begins with `req_id`.
        """
        raise NotImplementedError  # TODO(kata): check, state of rollouts and groups (about 6 lines)

    def on_train_ready(self, policy_version: int) -> list[int]:
        """Choose the groups to train this version on, oldest first; none if it has to wait."""
        # TODO(kata): oldest complete groups, wait if others get too old (about 15 lines)
        raise NotImplementedError
