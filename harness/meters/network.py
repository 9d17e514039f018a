"""
The only way out of a rank: what a test hands to the code it tests, and a meter beside it.

    with network() as (comm, meter):                # collectives, at their slowest
        y = kata.forward(x, comm)
    with network(LateRing, group) as (ring, meter): # a ring, over some of the ranks
        y = kata.forward(x, ring)
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch.distributed as dist

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
