"""Kata week21/parallel_rank_groups: ranks as mixed-radix numbers, and groups as their digits."""

from itertools import permutations
from math import prod

from numpy import arange, intp, roll
from numpy.typing import NDArray


def rank_groups(world: int, sizes: dict[str, int], order: str, axes: str) -> list[list[int]]:
    """
    All groups of ranks that differ in nothing but their places on `axes`.

    `order` names all axes of `sizes`, joined by "-", the one first that varies fastest from rank
    to rank; `axes` names one or more of them. Ranks of a group ascend; groups are in the order of
    their first ranks.

    Raises:
        ValueError: `sizes` has a size below 1, or their product is not `world`; `order` does not
            name each axis of `sizes` once; `axes` names an unknown axis or one twice, or none. The
            message begins with the argument's name.
    """
    # check
    if any(size < 1 for size in sizes.values()) or prod(sizes.values()) != world:
        raise ValueError(f"sizes: expected positive ones of product {world}, found {sizes}")
    names = order.split("-")
    if sorted(names) != sorted(sizes):
        raise ValueError(f"order: expected each of {', '.join(sizes)} once, found {order!r}")
    wanted = axes.split("-")
    if len(set(wanted)) != len(wanted) or not set(wanted) <= set(names):
        raise ValueError(f"axes: expected some of {', '.join(sizes)}, found {axes!r}")
    # form groups
    return _groups(sizes, names, wanted).tolist()


def moe_groups(
    world: int, tp: int, cp: int, pp: int, ep: int, etp: int, order: str
) -> dict[str, list[list[int]]]:
    """
    Groups of a model whose attention and whose experts divide the same ranks differently.

    Attention has the axes tp, cp, dp, pp, the experts etp, ep, edp, pp; dp and edp are what is
    left of `world`. `order` names tp, cp, ep, dp, pp; the experts' etp and edp are in the places
    of tp and dp. The result has a key for each of the seven, with groups as of `rank_groups`.

    Raises:
        ValueError: `world`, `tp`, `cp`, `pp`, `ep` or `etp` is below 1; `world` is not divisible
            by tp * cp * pp, or by etp * ep * pp; `order` does not name the five axes once each,
            or attention and experts would have different pp groups. The message begins with the
            argument's name.

    Source: Megatron-Core, parallel_state.
    """
    # check
    given = {"world": world, "tp": tp, "cp": cp, "pp": pp, "ep": ep, "etp": etp}
    for name, size in given.items():
        if size < 1:
            raise ValueError(f"{name}: expected 1 or more, found {size}")
    for ranks in (tp * cp * pp, etp * ep * pp):
        if world % ranks:
            raise ValueError(f"world: expected a multiple of {ranks}, found {world}")
    names = order.split("-")
    if sorted(names) != ["cp", "dp", "ep", "pp", "tp"]:
        raise ValueError(f"order: expected tp, cp, ep, dp, pp once each, found {order!r}")
    # fold the experts
    dense = {"tp": tp, "cp": cp, "ep": 1, "dp": world // (tp * cp * pp), "pp": pp}
    expert = {"tp": etp, "cp": 1, "ep": ep, "dp": world // (etp * ep * pp), "pp": pp}
    groups = {name: _groups(dense, names, [name]).tolist() for name in ("tp", "cp", "dp", "pp")}
    for key, name in (("etp", "tp"), ("ep", "ep"), ("edp", "dp")):
        groups[key] = _groups(expert, names, [name]).tolist()
    if _groups(expert, names, ["pp"]).tolist() != groups["pp"]:
        raise ValueError(f"order: with {order!r} the experts' pipelines are not those of attention")
    return groups


def place(sizes: dict[str, int], gpus_per_node: int, bytes_per_axis: dict[str, float]) -> str:
    """
    An order of all axes for which the fewest bytes leave a node.

    Node k has the ranks from k * gpus_per_node on. In each group of each axis every rank sends
    the axis' bytes to the next rank of the group, the last to the first; a group of one sends
    nothing.

    Raises:
        ValueError: A size or `gpus_per_node` is below 1, or there is no axis; `bytes_per_axis`
            has other axes than `sizes`. The message begins with the argument's name.
    """
    # check
    if not sizes or any(size < 1 for size in sizes.values()):
        raise ValueError(f"sizes: expected one or more, all positive, found {sizes}")
    if gpus_per_node < 1:
        raise ValueError(f"gpus_per_node: expected 1 or more, found {gpus_per_node}")
    if set(bytes_per_axis) != set(sizes):
        raise ValueError(f"bytes_per_axis: expected {', '.join(sizes)}, found {bytes_per_axis}")

    # count the traffic
    def leaving(names: tuple[str, ...]) -> float:
        nodes = {axis: _groups(sizes, names, [axis]) // gpus_per_node for axis in names}
        return sum(
            (own != roll(own, 1, axis=1)).sum() * bytes_per_axis[axis]
            for axis, own in nodes.items()
        )

    # choose the order
    return "-".join(min(permutations(sizes), key=leaving))


def _groups(
    sizes: dict[str, int], names: list[str] | tuple[str, ...], wanted: list[str]
) -> NDArray[intp]:
    """Groups as rows."""
    # lay out the ranks
    # the last axis of an array varies fastest, the first name of an order
    slowest_first = list(reversed(names))
    ranks = arange(prod(sizes.values())).reshape([sizes[name] for name in slowest_first])
    # form groups
    others = [at for at, name in enumerate(slowest_first) if name not in wanted]
    own = [at for at, name in enumerate(slowest_first) if name in wanted]
    members = prod(sizes[name] for name in wanted)
    return ranks.transpose(others + own).reshape(ranks.size // members, members)
