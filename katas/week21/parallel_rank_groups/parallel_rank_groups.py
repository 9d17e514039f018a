"""Kata week21/parallel_rank_groups: ranks as mixed-radix numbers, and groups as their digits."""


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
    # TODO(kata): check, lay out the ranks, form groups (about 20 lines with helpers)
    raise NotImplementedError


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
    raise NotImplementedError  # TODO(kata): check, fold the experts (about 20 lines)


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
    # TODO(kata): check, count the traffic, choose the order (about 15 lines)
    raise NotImplementedError
