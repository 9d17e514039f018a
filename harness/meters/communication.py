"""
What a rank sends: bytes, messages and their order, point-to-point and collective.

    with CountingP2P() as p2p: ...  # isend, irecv, send, recv over torch.distributed
    with comm_meter() as c: ...     # c.bytes_sent c.messages c.calls c.log
    with comm_meter(gradients_of=parameters) as c: ...  # c.overlapped_bytes, gradients in c.log

Bytes follow one convention whatever the backend does. On P ranks, per rank:

    all_reduce       2 (P - 1) / P of its n bytes
    reduce_scatter   (P - 1) / P of its input, the gradient of every rank's shard
    all_gather       P - 1 times its input, that is (P - 1) / P of the output
    all_to_all       the splits addressed to other ranks
    send, broadcast  n at the sender or root, 0 elsewhere
    reduce, gather   n at all but the root
    scatter          all but its own part at the root
    barrier, recv    0

rounded down to whole bytes per call. Messages are those of the ring: 2 (P - 1) for all_reduce,
P - 1 for reduce_scatter and all_gather. Object collectives send their pickles as tensors, and
those are what is counted.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, Self

import torch.distributed as dist
from torch import Tensor
from torch.autograd.graph import Node, get_gradient_edge

from harness.base.errors import HarnessError
from harness.meters.collective_rules import (
    NAMESPACES,
    RULES,
    Call,
    group_of,
    named_arguments,
    rule_name,
)
from harness.meters.dispatch import OperatorWatch

# torch 2.13 renames both and warns about the old names; 2.11 has only those
reduce_scatter_tensor: Callable[..., dist.Work | None] = (
    getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
)
all_gather_into_tensor: Callable[..., dist.Work | None] = (
    getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
)


class Transfer(NamedTuple):
    """
    One entry of a log: what was called, the peer or root where there is one, and its bytes.

    In a CommMeter's log the peer is a rank of the call's group, in a CountingP2P's a global one.
    """

    op: str
    peer: int | None
    bytes: int


class WaitProblem(HarnessError):
    """A transfer was waited for twice, or never."""


class Exchange:
    """
    Transfers posted one after the other and started together, by the first wait for one of them.

    NCCL runs what is posted alone in order, one after the other: with its receive first on every
    rank, a ring would stand still.
    """

    def __init__(self) -> None:
        self.started = False
        self._posted: list[dist.P2POp] = []
        self._works: list[dist.Work] = []

    def add(
        self,
        op: Callable[..., dist.Work | None],
        tensor: Tensor,
        peer: int,
        group: dist.ProcessGroup | None = None,
    ) -> Self:
        """Post one more transfer; `peer` is a rank of the job, all are of one group."""
        self._posted.append(dist.P2POp(op, tensor, peer, group))
        return self

    def start(self) -> Self:
        """Start all transfers, unless that has been done."""
        if not self.started:
            self.started = True
            self._works = dist.batch_isend_irecv(self._posted)
        return self

    def wait(self) -> None:
        """Start all transfers, and wait for all, unless that has been done."""
        self.start()
        works, self._works = self._works, []
        for work in works:
            work.wait()

    def is_completed(self) -> bool:
        """Say whether all transfers have been started and are done."""
        return self.started and all(work.is_completed() for work in self._works)


def exchanges() -> bool:
    """Whether this rank's transfers have to be started together."""
    return bool(dist.get_backend() == "nccl")


class Log(Protocol):
    """Where transfers are noted: a list, or every meter that runs."""

    def append(self, transfer: Transfer, /) -> None:
        """Note one more."""


class Pending:
    """A transfer under way; waiting for it, once, is an entry of the log too."""

    def __init__(self, work: dist.Work | Exchange, transfer: Transfer, log: Log) -> None:
        self.transfer = transfer
        self._work: dist.Work | Exchange | None = work
        self._log = log

    def wait(self) -> None:
        """
        Block until the tensor may be read (after irecv) or written (after isend).

        Raises:
            WaitProblem: it has been waited for before; the backend would wait for ever.
        """
        if self._work is None:
            raise WaitProblem(
                f"{_told(self.transfer)}: expected one wait(), found a second. "
                "Wait for every transfer once."
            )
        self._log.append(self.transfer._replace(op=f"wait_{self.transfer.op}"))
        self._work.wait()
        self._work = None  # and the tensors that it holds on to

    @property
    def waited(self) -> bool:
        """Whether it has been waited for."""
        return self._work is None

    def is_completed(self) -> bool:
        """Say whether `wait` would return at once, or has returned."""
        return self._work is None or bool(self._work.is_completed())


def _told(transfer: Transfer) -> str:
    told = f"{transfer.op} of {transfer.bytes} bytes"
    if transfer.peer is None:
        return told
    return f"{told} {'to' if transfer.op == 'isend' else 'from'} rank {transfer.peer}"


def assert_waited(posted: Sequence[Pending], who: str) -> None:
    """WaitProblem unless each of `posted` has been waited for."""
    forgotten = Counter(_told(one.transfer) for one in posted if not one.waited)
    if forgotten:
        raise WaitProblem(
            f"{who}: expected a wait() for each of {len(posted)} transfers, found none "
            f"for {', '.join(f'{count} x {told}' for told, count in forgotten.items())}. "
            "Wait for every transfer once."
        )


class CountingP2P:
    """
    Point-to-point transfers of contiguous tensors over the default process group, counted.

    `bytes_sent`, `bytes_received` and `messages` (sent) count what was posted; `log` holds every
    call in order: isend, irecv, wait_isend, wait_irecv, send, recv. All of them can be read only;
    a test holds them against a `comm_meter` of its own. As a context manager it raises WaitProblem
    at the end of a block that left transfers without a wait.
    """

    def __init__(self) -> None:
        self._log: list[Transfer] = []
        # kept, so that one nobody waits for still goes through instead of hanging its peer
        self._posted: list[Pending] = []
        self._exchange = Exchange()

    @property
    def log(self) -> tuple[Transfer, ...]:
        """Every call so far."""
        return tuple(self._log)

    @property
    def bytes_sent(self) -> int:
        """Bytes of the messages sent."""
        return sum(one.bytes for one in self._log if one.op in ("isend", "send"))

    @property
    def bytes_received(self) -> int:
        """Bytes of the messages received."""
        return sum(one.bytes for one in self._log if one.op in ("irecv", "recv"))

    @property
    def messages(self) -> int:
        """How many messages were sent."""
        return sum(one.op in ("isend", "send") for one in self._log)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            assert_waited(self._posted, "p2p")

    def isend(self, tensor: Tensor, dst: int) -> Pending:
        """Start sending `tensor`, which must not change before the wait."""
        transfer = self._logged(Transfer("isend", dst, tensor.nbytes))
        return self._start(dist.isend, tensor, dst, transfer)

    def irecv(self, tensor: Tensor, src: int) -> Pending:
        """Start receiving into `tensor`, which holds nothing of use before the wait."""
        transfer = self._logged(Transfer("irecv", src, tensor.nbytes))
        return self._start(dist.irecv, tensor, src, transfer)

    def send(self, tensor: Tensor, dst: int) -> None:
        """Send `tensor` and wait until it may be written."""
        self._logged(Transfer("send", dst, tensor.nbytes))
        dist.send(tensor, dst)

    def recv(self, tensor: Tensor, src: int) -> None:
        """Wait until `tensor` has been received."""
        self._logged(Transfer("recv", src, tensor.nbytes))
        dist.recv(tensor, src)

    def _logged(self, transfer: Transfer) -> Transfer:
        self._log.append(transfer)
        return transfer

    def _start(
        self,
        op: Callable[..., dist.Work | None],
        tensor: Tensor,
        peer: int,
        transfer: Transfer,
    ) -> Pending:
        if exchanges():
            if self._exchange.started:
                self._exchange = Exchange()
            work: dist.Work | Exchange | None = self._exchange.add(op, tensor, peer)
        else:
            work = op(tensor, peer)
        assert work is not None, "this rank is a member of the default group"
        self._posted.append(Pending(work, transfer, self._log))
        return self._posted[-1]


class CommMeter(OperatorWatch):
    """
    Counts the communication this rank starts inside its `with` block.

    bytes_sent, messages   by the convention at the top of this module
    calls                  how often each collective ran, `"all_reduce"` …
    log                    the same, in order: (op, peer or root, bytes sent)

    Of `gradients_of` the log also tells when the backward pass has produced the gradient of each,
    before any hook of it runs: ("gradient", index, bytes). What `Collectives` waits for is there
    too: ("wait_all_reduce", None, bytes of the operand).
    """

    def __init__(self, gradients_of: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self.bytes_sent = 0
        self.messages = 0
        self.calls: Counter[str] = Counter()
        self.log: list[Transfer] = []
        self._parameters = [*gradients_of]
        # an AccumulateGrad node lives only as long as somebody holds it
        self._nodes: list[Node] = []

    @property
    def overlapped_bytes(self) -> int:
        """Bytes of what was started while a gradient was still to come."""
        last = max((at for at, one in enumerate(self.log) if one.op == "gradient"), default=0)
        return sum(one.bytes for one in self.log[:last] if one.op in self.calls)

    def __enter__(self) -> Self:
        super().__enter__()
        for at, parameter in enumerate(self._parameters):
            if not parameter.requires_grad:
                continue
            node = get_gradient_edge(parameter).node
            node.register_prehook(partial(self._note_gradient, at, parameter.nbytes))
            self._nodes.append(node)
        RUNNING.meters.append(self)
        return self

    def __exit__(self, *exception: object) -> None:
        RUNNING.meters.remove(self)
        self._nodes.clear()
        super().__exit__(*exception)

    def run(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """Count `func` if it communicates, then run it."""
        if func.namespace in NAMESPACES:
            self._note(str(func.overloadpacket), named_arguments(func, args, kwargs))
        return func(*args, **kwargs)

    def _note(self, operator: str, arguments: Mapping[str, Any]) -> None:
        group = group_of(arguments)
        if group is None:  # wait_tensor and the like: nothing is sent
            return
        name = rule_name(operator)
        sent = RULES[name](Call(arguments=arguments, world=group.size(), rank=group.rank()))
        with self.lock:
            self.bytes_sent += sent.bytes
            self.messages += sent.messages
            self.calls[name] += 1
            self.log.append(Transfer(name, sent.peer, sent.bytes))

    def _note_gradient(self, at: int, size: int, _: object) -> None:
        self.log.append(Transfer("gradient", at, size))


class Running:
    """The meters whose blocks this rank is in: what is appended goes into the log of each."""

    def __init__(self) -> None:
        self.meters: list[CommMeter] = []

    def append(self, transfer: Transfer, /) -> None:
        """Note what no operator tells of: a wait."""
        for meter in self.meters:
            meter.log.append(transfer)


RUNNING = Running()


def comm_meter(gradients_of: Iterable[Tensor] = ()) -> CommMeter:
    """
    Return a meter of communication, to be used in a `with` statement on each rank.

    `gradients_of` lists the leaves whose gradients the log tells of as well, a model's parameters.
    """
    return CommMeter(gradients_of)
