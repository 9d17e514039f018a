"""What each communication operator makes this rank send, by the convention of communication.py."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import _resolve_process_group

from harness.base.errors import UsageProblem
from harness.meters.dispatch import tensors_in


class Sent(NamedTuple):
    """What one call makes this rank send, and the peer it names."""

    bytes: int
    messages: int
    peer: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
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


def _all_reduce(call: Call) -> Sent:
    return Sent(2 * (call.world - 1) * call.payload_bytes // call.world, 2 * (call.world - 1))


def _reduce_scatter(call: Call) -> Sent:
    return Sent((call.world - 1) * call.payload_bytes // call.world, call.world - 1)


def _all_gather(call: Call) -> Sent:
    return Sent((call.world - 1) * call.payload_bytes, call.world - 1)


def _all_to_all(call: Call) -> Sent:
    sizes = _split_bytes(call)
    abroad = [size for rank, size in enumerate(sizes) if rank != call.rank and size]
    return Sent(sum(abroad), len(abroad))


def _split_bytes(call: Call) -> list[int]:
    """Bytes this rank addresses to each rank."""
    payload = call.payload
    if not isinstance(payload, Tensor):
        return [tensor.nbytes for tensor in tensors_in(payload)]
    rows = call.arguments.get("input_split_sizes")
    if not rows:
        return [payload.nbytes // call.world] * call.world
    row_bytes = payload.nbytes // max(1, payload.shape[0])
    return [count * row_bytes for count in rows]


def _from_root(call: Call) -> Sent:
    root = call.arguments.get("root_rank", call.arguments.get("src"))
    return Sent(call.payload_bytes, 1, root) if call.rank == root else Sent(0, 0, root)


def _to_root(call: Call) -> Sent:
    root = call.arguments["root_rank"]
    return Sent(0, 0, root) if call.rank == root else Sent(call.payload_bytes, 1, root)


def _scatter(call: Call) -> Sent:
    root = call.arguments["root_rank"]
    if call.rank != root:
        return Sent(0, 0, root)
    return Sent(*_all_to_all(call)[:2], root)


def _send(call: Call) -> Sent:
    return Sent(_bytes_of(call.arguments), 1, call.arguments["dst"])


def _receive(call: Call) -> Sent:
    return Sent(0, 0, call.arguments.get("src"))


def _batch(call: Call) -> Sent:
    kinds = zip(call.arguments["op_list"], call.payload, strict=True)
    sizes = [tensor.nbytes for kind, tensor in kinds if kind == "isend"]
    return Sent(sum(sizes), len(sizes))


NAMESPACES = frozenset({"c10d", "_c10d_functional", "_dtensor"})

# The name an operator is logged under: the first whose letters occur in the operator's.
RULES: dict[str, Callable[[Call], Sent]] = {
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


def rule_name(operator: str) -> str:
    """Find the one name of `c10d._allgather_base_`, `c10d.allgather_` and the like."""
    letters = operator.replace("_", "")
    for name in RULES:
        if name.replace("_", "") in letters:
            return name
    raise UsageProblem(
        f"comm_meter: expected one of {', '.join(RULES)}, found the operator {operator}. "
        "Add its rule to harness/meters/collective_rules.py."
    )


def named_arguments(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ANN401
    """Name the arguments that an operator was called with."""
    names = [argument.name for argument in func._schema.arguments]
    return dict(zip(names, args, strict=False)) | dict(kwargs)


def group_of(arguments: Mapping[str, Any]) -> dist.ProcessGroup | None:
    """Find the group among the arguments: boxed for c10d, usually named for functional ops."""
    group = arguments.get("process_group", arguments.get("group_name"))
    if isinstance(group, str):
        return _resolve_process_group(group)  # type: ignore[arg-type]
    if group is None or isinstance(group, dist.ProcessGroup):
        return group
    return dist.ProcessGroup.unbox(group)
