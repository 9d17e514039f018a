"""
One direction of a ring: tensors go to the next rank while those of the previous one arrive.

    with RingComm() as ring:
        arriving = ring.post(k, v)    # under way while other work is done
        k, v = arriving.wait()        # once: what the previous rank has posted

A `comm_meter` around it counts bytes and messages; its log has `post` and `wait_post` besides.
"""

from collections.abc import Callable, Sequence
from typing import Self

import torch
import torch.distributed as dist
from torch import Tensor

from harness.base.errors import UsageProblem
from harness.meters.communication import RUNNING, Exchange, Pending, Transfer, assert_waited


class Arriving:
    """Tensors on their way round a ring."""

    def __init__(
        self, pending: Pending, tensors: Sequence[Tensor], check: Callable[[], None] | None = None
    ) -> None:
        self._pending = pending
        self._tensors = (*tensors,)
        self._check = check

    def wait(self) -> tuple[Tensor, ...]:
        """
        Return the previous rank's tensors; what was posted along with this may be written again.

        Raises:
            WaitProblem: it has been waited for before.
        """
        self._pending.wait()
        if self._check is not None:
            self._check()
        arrived, self._tensors, self._check = self._tensors, (), None
        return arrived


class RingComm:
    """
    The ring of one group: rank r sends to rank r + 1 and receives from rank r - 1, modulo world.

    All ranks post equally often, tensors of the same shapes and dtypes. As a context manager it
    raises WaitProblem at the end of a block that left a post without a wait.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.group = group
        # kept, so that one nobody waits for still goes through instead of hanging the others
        self._posted: list[Pending] = []

    @property
    def rank(self) -> int:
        """This rank's place in the ring."""
        return dist.get_rank(self.group)

    @property
    def world(self) -> int:
        """How many ranks the ring has."""
        return dist.get_world_size(self.group)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            assert_waited(self._posted, "ring")

    def post(self, *tensors: Tensor) -> Arriving:
        """
        Start to send contiguous tensors to the next rank, and to receive as many alike.

        None of them may change before the wait.
        """
        return self._post(tensors, None)

    def _post(self, tensors: Sequence[Tensor], check: Callable[[], None] | None) -> Arriving:
        if self.world == 1:
            raise UsageProblem("ring.post: expected another rank to send to, found a ring of one.")
        if not tensors or not all(tensor.is_contiguous() for tensor in tensors):
            raise UsageProblem(
                f"ring.post: expected contiguous tensors, found {len(tensors)}, some of them "
                "strided. Call contiguous()."
            )
        following = self._global((self.rank + 1) % self.world)
        preceding = self._global((self.rank - 1) % self.world)
        arriving = [torch.empty_like(tensor, requires_grad=False) for tensor in tensors]
        posted = Transfer("post", following, sum(tensor.nbytes for tensor in tensors))
        RUNNING.append(posted)
        exchange = Exchange()
        for tensor in tensors:
            exchange.add(dist.isend, tensor.detach(), following, self.group)
        for tensor in arriving:
            exchange.add(dist.irecv, tensor, preceding, self.group)
        self._posted.append(Pending(exchange.start(), posted, RUNNING))
        return Arriving(self._posted[-1], arriving, check)

    def _global(self, rank: int) -> int:
        return rank if self.group is None else dist.get_global_rank(self.group, rank)
