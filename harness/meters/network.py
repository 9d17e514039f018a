"""
The only way out of a rank: what a test hands to the code it tests, and a meter beside it.

    with network() as (comm, meter):                # collectives, at their slowest
        y = kata.forward(x, comm)
    with network(LateRing, group) as (ring, meter): # a ring, over some of the ranks
        y = kata.forward(x, ring)

For what a rank keeps in memory there is `Echo`, a network without threads.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch.distributed as dist
from torch import Tensor

from harness.meters.collectives import Collectives
from harness.meters.communication import CommMeter, comm_meter
from harness.meters.late import LateCollectives
from harness.meters.ring import RingComm

Net = TypeVar("Net", Collectives, RingComm)


@contextmanager
def network(
    kind: type[Net] = LateCollectives,  # type: ignore[assignment]
    group: dist.ProcessGroup | None = None,
) -> Iterator[tuple[Net, CommMeter]]:
    """
    Yield the collectives, or the ring, of `group` and a meter of all that this rank sends.

    Raises:
        AssertionError: something was sent by other ways.
        WaitProblem: something was not waited for.
    """
    with comm_meter() as meter, kind(group) as net:
        yield net, meter
    if isinstance(net, RingComm):
        posted = sum(one.bytes for one in meter.log if one.op == "post")
        assert meter.bytes_sent == posted, (
            f"expected all communication through ring.post, found {dict(meter.calls)}: "
            f"{meter.bytes_sent} bytes sent, {posted} posted"
        )
    else:
        waited = Counter(
            one.op.removeprefix("wait_") for one in meter.log if one.op.startswith("wait_")
        )
        around = ", ".join(op for op, calls in meter.calls.items() if calls != waited[op])
        assert not around, f"expected all communication through comm, found {around} beside it"


class Done:
    """A collective that is over."""

    def wait(self) -> None:
        """Return at once."""


class Echo:
    """
    One of `world` ranks, all in this process, that send the same: it hears what it says.

    Nothing is under way and nothing is kept, while a network's own thread may hold on to what it
    sent for a moment, which a test of memory cannot bear. `calls` counts the collectives.
    """

    def __init__(self, world: int, rank: int = 0, group: dist.ProcessGroup | None = None) -> None:
        self.world, self.rank, self.group = world, rank, group
        self.calls: Counter[str] = Counter()

    def all_reduce(self, tensor: Tensor) -> Done:
        """Multiply `tensor` by the number of ranks."""
        self.calls["all_reduce"] += 1
        tensor.mul_(self.world)
        return Done()

    def reduce_scatter(self, output: Tensor, tensor: Tensor) -> Done:
        """Fill `output` with this rank's part of `tensor`, times the number of ranks."""
        self.calls["reduce_scatter"] += 1
        output.view(-1).copy_(tensor.view(self.world, -1)[self.rank]).mul_(self.world)
        return Done()

    def all_gather(self, output: Tensor, tensor: Tensor) -> Done:
        """Fill every part of `output` with `tensor`."""
        self.calls["all_gather"] += 1
        output.view(self.world, -1).copy_(tensor.view(1, -1))
        return Done()
