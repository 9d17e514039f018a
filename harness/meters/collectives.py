"""
Collectives that are started now and waited for later, so that a test sees what overlaps.

    with Collectives() as comm:
        pending = comm.all_reduce(flat)     # under way while other work is done
        pending.wait()                      # once, before `flat` is read or written

A `comm_meter` around them counts their bytes, and its log has their starts and waits in order.
"""

from collections.abc import Callable, Sequence
from typing import Self

import torch.distributed as dist
from torch import Tensor

from harness.meters.communication import (
    RUNNING,
    Pending,
    Transfer,
    all_gather_into_tensor,
    assert_waited,
    reduce_scatter_tensor,
)


class Collectives:
    """
    The collectives of one group, each started by its call and waited for by what that returns.

    Operands are contiguous and have one size on every rank, uneven splits of `all_to_all` apart.
    Every rank makes the same calls in the same order. As a context manager it raises WaitProblem
    at the end of a block that left one without a wait.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.group = group
        # kept, so that one nobody waits for still goes through instead of hanging the others
        self._posted: list[Pending] = []

    @property
    def rank(self) -> int:
        """This rank's place in the group."""
        return dist.get_rank(self.group)

    @property
    def world(self) -> int:
        """How many ranks the group has."""
        return dist.get_world_size(self.group)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            assert_waited(self._posted, "collectives")

    def all_reduce(self, tensor: Tensor) -> Pending:
        """Start to sum `tensor` over the ranks, in place."""
        return self._start("all_reduce", dist.all_reduce, tensor)

    def reduce_scatter(self, output: Tensor, tensor: Tensor) -> Pending:
        """Start to sum `tensor` over the ranks; `output` is this rank's part, 1 / world of it."""
        return self._start("reduce_scatter", reduce_scatter_tensor, output, tensor)

    def all_gather(self, output: Tensor, tensor: Tensor) -> Pending:
        """Start to collect `tensor` of every rank, one after the other, in `output`."""
        return self._start("all_gather", all_gather_into_tensor, output, tensor)

    def all_to_all(
        self,
        output: Tensor,
        tensor: Tensor,
        output_sizes: Sequence[int] | None = None,
        input_sizes: Sequence[int] | None = None,
    ) -> Pending:
        """Start to send part r of `tensor` to rank r; the sizes are rows, equal unless given."""
        return self._start(
            "all_to_all",
            dist.all_to_all_single,
            output,
            tensor,
            None if output_sizes is None else [*output_sizes],
            None if input_sizes is None else [*input_sizes],
        )

    def broadcast(self, tensor: Tensor, src: int) -> Pending:
        """Start to copy `tensor` from rank `src` of the job into that of every rank."""
        return self._start("broadcast", dist.broadcast, tensor, src)

    def _start(self, name: str, call: Callable[..., dist.Work | None], *args: object) -> Pending:
        operand = next(arg for arg in reversed(args) if isinstance(arg, Tensor))
        work = call(*args, group=self.group, async_op=True)
        assert work is not None, "this rank is a member of the group"
        self._posted.append(Pending(work, Transfer(name, None, operand.nbytes), RUNNING))
        return self._posted[-1]
