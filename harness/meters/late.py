"""
Networks at their slowest, to test what is read or written too early.

Nothing has arrived, and nothing has left, before it is waited for: outputs are full of NaN (of
integers, -77) until then, and what was being sent has to be what it was.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from harness.base.errors import UsageProblem
from harness.meters.collectives import Collectives
from harness.meters.communication import Pending
from harness.meters.ring import Arriving, RingComm


class Late(Pending):
    """A collective under way, which has something done when it has been waited for."""

    def __init__(self, pending: Pending, then: Callable[[], None]) -> None:
        self._pending = pending
        self._then: Callable[[], None] | None = then

    def wait(self) -> None:
        """Wait, and let the results appear."""
        self._pending.wait()
        if self._then is not None:
            self._then()
        self._then = None  # and what it holds on to

    @property
    def waited(self) -> bool:
        """Whether it has been waited for."""
        return self._pending.waited

    def is_completed(self) -> bool:
        """Say whether `wait` would return at once."""
        return self._pending.is_completed()


class LateCollectives(Collectives):
    """Collectives whose results appear when they are waited for."""

    def all_reduce(self, tensor: Tensor) -> Pending:
        """Sum `tensor`, which holds nothing useful before the wait."""
        travelling = tensor.detach().clone()
        hide(tensor)
        return Late(super().all_reduce(travelling), lambda: show(tensor, travelling))

    def reduce_scatter(self, output: Tensor, tensor: Tensor) -> Pending:
        """Sum and scatter; `tensor` must not change before the wait."""
        sent, arriving = _apart(output, tensor)
        return Late(
            super().reduce_scatter(arriving, sent), _arrival(output, arriving, tensor, sent)
        )

    def all_gather(self, output: Tensor, tensor: Tensor) -> Pending:
        """Gather; `tensor` must not change before the wait."""
        sent, arriving = _apart(output, tensor)
        return Late(super().all_gather(arriving, sent), _arrival(output, arriving, tensor, sent))

    def all_to_all(
        self,
        output: Tensor,
        tensor: Tensor,
        output_sizes: Sequence[int] | None = None,
        input_sizes: Sequence[int] | None = None,
    ) -> Pending:
        """Exchange; `tensor` must not change before the wait."""
        sent, arriving = _apart(output, tensor)
        return Late(
            super().all_to_all(arriving, sent, output_sizes, input_sizes),
            _arrival(output, arriving, tensor, sent),
        )


class LateRing(RingComm):
    """A ring that sees whether what is being sent stays what it was."""

    def post(self, *tensors: Tensor) -> Arriving:
        """Start a round; no tensor may change before the wait."""
        sent = [tensor.detach().clone() for tensor in tensors]

        def check() -> None:
            for tensor, copy in zip(tensors, sent, strict=True):
                assert_unchanged(tensor, copy)

        if all(tensor.is_contiguous() for tensor in tensors):
            return self._post(sent, check)
        return super().post(*tensors)


def _apart(output: Tensor, tensor: Tensor) -> tuple[Tensor, Tensor]:
    """Copy what is sent, make room for what arrives, and hide the output."""
    if not (output.is_contiguous() and tensor.is_contiguous()):
        raise UsageProblem(  # NCCL refuses it; gloo may take it
            "comm: expected contiguous tensors, found a strided one. Call contiguous()."
        )
    sent, arriving = tensor.detach().clone(), torch.empty_like(output, requires_grad=False)
    # an output that is a part of the input, which is allowed, arrives as late as any other
    if output.untyped_storage()._cdata != tensor.untyped_storage()._cdata:
        hide(output)
    return sent, arriving


def _arrival(output: Tensor, arriving: Tensor, tensor: Tensor, sent: Tensor) -> Callable[[], None]:
    def arrive() -> None:
        assert_unchanged(tensor, sent)
        show(output, arriving)

    return arrive


def hide(tensor: Tensor) -> None:
    """Fill a tensor with what nobody can take for a result."""
    tensor.detach().fill_(math.nan if tensor.is_floating_point() else -77)


def show(tensor: Tensor, value: Tensor) -> None:
    """Put a result into its tensor."""
    tensor.detach().copy_(value)


def assert_unchanged(tensor: Tensor, sent: Tensor) -> None:
    """AssertionError unless what was being sent is still there, to the bit: NaN and -0.0, too."""
    same = torch.equal(_bits(tensor), _bits(sent))
    assert same, "what was being sent changed before the wait"


def _bits(tensor: Tensor) -> Tensor:
    return tensor.detach().flatten().view(torch.uint8)
