"""
What a rank sends: bytes, messages and their order, point-to-point and collective.

    with CountingP2P() as p2p: ...  # isend, irecv, send, recv over torch.distributed
    with comm_meter() as c: ...     # c.bytes_sent c.messages c.calls c.log

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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import _resolve_process_group

from harness.base.errors import HarnessError, UsageProblem
from harness.meters.dispatch import OperatorWatch, tensors_in

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

    def add(self, op: Callable[..., dist.Work | None], tensor: Tensor, peer: int) -> Self:
        """Post one more transfer."""
        self._posted.append(dist.P2POp(op, tensor, peer))
        return self

    def wait(self) -> None:
        """Start all transfers, and wait for all, unless that has been done."""
        if not self.started:
            self.started = True
            self._works = dist.batch_isend_irecv(self._posted)
            for work in self._works:
                work.wait()

    def is_completed(self) -> bool:
        """Say whether all transfers have been started and are done."""
        return self.started and all(work.is_completed() for work in self._works)


def exchanges() -> bool:
    """Whether this rank's transfers have to be started together."""
    return bool(dist.get_backend() == "nccl")


class Pending:
    """A transfer under way; waiting for it, once, is an entry of the log too."""

    def __init__(self, work: dist.Work | Exchange, transfer: Transfer, log: list[Transfer]) -> None:
        self.transfer = transfer
        self.waited = False
        self._work = work
        self._log = log

    def wait(self) -> None:
        """
        Block until the tensor may be read (after irecv) or written (after isend).

        Raises:
            WaitProblem: it has been waited for before; the backend would wait for ever.
        """
        if self.waited:
            raise WaitProblem(
                f"{_told(self.transfer)}: expected one wait(), found a second. "
                "Wait for every transfer once."
            )
        self.waited = True
        self._log.append(self.transfer._replace(op=f"wait_{self.transfer.op}"))
        self._work.wait()

    def is_completed(self) -> bool:
        """Say whether `wait` would return at once."""
        return bool(self._work.is_completed())


def _told(transfer: Transfer) -> str:
    towards = "to" if transfer.op == "isend" else "from"
    return f"{transfer.op} of {transfer.bytes} bytes {towards} rank {transfer.peer}"


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
        forgotten = Counter(_told(one.transfer) for one in self._posted if not one.waited)
        if kind is None and forgotten:
            raise WaitProblem(
                f"p2p: expected a wait() for each of {len(self._posted)} transfers, found none "
                f"for {', '.join(f'{count} x {told}' for told, count in forgotten.items())}. "
                "Wait for every transfer once."
            )

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


class _Sent(NamedTuple):
    """What one call makes this rank send, and the peer it names."""

    bytes: int
    messages: int
    peer: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """One communication operator: its arguments by name, and this rank's place in the group."""

    arguments: Mapping[str, Any]
    world: int
    rank: int

    @property
    def payload(self) -> Any:  # noqa: ANN401
        """The tensors this rank puts in."""
        names = ("tensors", "input_tensors", "input_tensor", "input_list", "inputs", "input")
        return next(self.arguments[name] for name in names if name in self.arguments)

    @property
    def payload_bytes(self) -> int:
        """Bytes of the payload."""
        return _bytes_of(self.payload)


def _bytes_of(tree: object) -> int:
    return sum(tensor.nbytes for tensor in tensors_in(tree))


def _all_reduce(call: _Call) -> _Sent:
    return _Sent(2 * (call.world - 1) * call.payload_bytes // call.world, 2 * (call.world - 1))


def _reduce_scatter(call: _Call) -> _Sent:
    return _Sent((call.world - 1) * call.payload_bytes // call.world, call.world - 1)


def _all_gather(call: _Call) -> _Sent:
    return _Sent((call.world - 1) * call.payload_bytes, call.world - 1)


def _all_to_all(call: _Call) -> _Sent:
    sizes = _split_bytes(call)
    abroad = [size for rank, size in enumerate(sizes) if rank != call.rank and size]
    return _Sent(sum(abroad), len(abroad))


def _split_bytes(call: _Call) -> list[int]:
    """Bytes this rank addresses to each rank."""
    payload = call.payload
    if not isinstance(payload, Tensor):
        return [tensor.nbytes for tensor in tensors_in(payload)]
    rows = call.arguments.get("input_split_sizes")
    if not rows:
        return [payload.nbytes // call.world] * call.world
    row_bytes = payload.nbytes // max(1, payload.shape[0])
    return [count * row_bytes for count in rows]


def _from_root(call: _Call) -> _Sent:
    root = call.arguments.get("root_rank", call.arguments.get("src"))
    return _Sent(call.payload_bytes, 1, root) if call.rank == root else _Sent(0, 0, root)


def _to_root(call: _Call) -> _Sent:
    root = call.arguments["root_rank"]
    return _Sent(0, 0, root) if call.rank == root else _Sent(call.payload_bytes, 1, root)


def _scatter(call: _Call) -> _Sent:
    root = call.arguments["root_rank"]
    if call.rank != root:
        return _Sent(0, 0, root)
    return _Sent(*_all_to_all(call)[:2], root)


def _send(call: _Call) -> _Sent:
    return _Sent(_bytes_of(call.arguments), 1, call.arguments["dst"])


def _receive(call: _Call) -> _Sent:
    return _Sent(0, 0, call.arguments.get("src"))


def _batch(call: _Call) -> _Sent:
    kinds = zip(call.arguments["op_list"], call.payload, strict=True)
    sizes = [tensor.nbytes for kind, tensor in kinds if kind == "isend"]
    return _Sent(sum(sizes), len(sizes))


NAMESPACES = frozenset({"c10d", "_c10d_functional", "_dtensor"})

# The name an operator is logged under: the first whose letters occur in the operator's.
RULES: dict[str, Callable[[_Call], _Sent]] = {
    "all_reduce": _all_reduce,
    "reduce_scatter": _reduce_scatter,
    "all_gather": _all_gather,
    "all_to_all": _all_to_all,
    "broadcast": _from_root,
    "barrier": _receive,
    "reduce": _to_root,
    "gather": _to_root,
    "scatter": _scatter,
    "send": _send,
    "recv": _receive,
    "batch_p2p": _batch,
}


def _rule_name(operator: str) -> str:
    """Find the one name of `c10d._allgather_base_`, `c10d.allgather_` and the like."""
    letters = operator.replace("_", "")
    for name in RULES:
        if name.replace("_", "") in letters:
            return name
    raise UsageProblem(
        f"comm_meter: expected one of {', '.join(RULES)}, found the operator {operator}. "
        "Add its rule to harness/meters/communication.py."
    )


class CommMeter(OperatorWatch):
    """
    Counts the communication this rank starts inside its `with` block.

    bytes_sent, messages   by the convention at the top of this module
    calls                  how often each collective ran, `"all_reduce"` …
    log                    the same, in order: (op, peer or root, bytes sent)
    """

    def __init__(self) -> None:
        super().__init__()
        self.bytes_sent = 0
        self.messages = 0
        self.calls: Counter[str] = Counter()
        self.log: list[Transfer] = []

    def run(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """Count `func` if it communicates, then run it."""
        if func.namespace in NAMESPACES:
            self._note(str(func.overloadpacket), _named(func, args, kwargs))
        return func(*args, **kwargs)

    def _note(self, operator: str, arguments: Mapping[str, Any]) -> None:
        group = _group(arguments)
        if group is None:  # wait_tensor and the like: nothing is sent
            return
        name = _rule_name(operator)
        sent = RULES[name](_Call(arguments=arguments, world=group.size(), rank=group.rank()))
        self.bytes_sent += sent.bytes
        self.messages += sent.messages
        self.calls[name] += 1
        self.log.append(Transfer(name, sent.peer, sent.bytes))


def _named(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ANN401
    names = [argument.name for argument in func._schema.arguments]
    return dict(zip(names, args, strict=False)) | dict(kwargs)


def _group(arguments: Mapping[str, Any]) -> dist.ProcessGroup | None:
    """Find the group among the arguments: boxed for c10d, usually named for functional ops."""
    group = arguments.get("process_group", arguments.get("group_name"))
    if isinstance(group, str):
        return _resolve_process_group(group)  # type: ignore[arg-type]
    if group is None or isinstance(group, dist.ProcessGroup):
        return group
    return dist.ProcessGroup.unbox(group)


def comm_meter() -> CommMeter:
    """Return a meter of communication, to be used in a `with` statement on each rank."""
    return CommMeter()
