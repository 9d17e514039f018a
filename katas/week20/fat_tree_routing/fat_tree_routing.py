"""Kata week20/fat_tree_routing: a fat-tree and a dragonfly, and routes that spread the traffic."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Node = tuple[
    str | int, ...
]  # ("host", 3), ("edge", 0, 1), ("agg", 0, 1), ("core", 2), ("router", …)
Link = tuple[Node, Node]  # one direction of a cable: from, to


@dataclass(frozen=True, slots=True)
class FatTree:
    """Three levels of switches with k ports each; `links` has both directions of every cable."""

    k: int
    oversubscription: int
    hosts: int
    links: frozenset[Link]


@dataclass(frozen=True, slots=True)
class Dragonfly:
    """Groups of `a` routers, each with `p` hosts and `h` cables to other groups."""

    p: int
    a: int
    h: int
    groups: int
    hosts: int
    links: frozenset[Link]


def port_gbps(generation: str) -> int:
    """
    Gb/s of an InfiniBand port of four lanes, in each direction: "EDR", "HDR", "NDR" or "XDR".

    Raises:
        ValueError: another generation; the message begins with `generation: `.

    Source: InfiniBand Trade Association, roadmap.
    """
    raise NotImplementedError  # TODO(kata): (about 4 lines)


def fat_tree(k: int, oversubscription: int = 1) -> FatTree:
    """
    Build a fat-tree of switches with `k` ports: k pods, k ** 3 / 4 hosts.

    Raises:
        ValueError: `k` is odd or below 2, or `oversubscription` is no divisor of k / 2; the
            message begins with the name.

    Source: Al-Fares et al. 2008.
    """
    raise NotImplementedError  # TODO(kata): check, cables (about 20 lines with helpers)


def route(topo: FatTree, src: int, dst: int) -> list[Link]:
    """
    Route by destination: the links from host `src` to host `dst`; none from a host to itself.

    Raises:
        ValueError: `src` or `dst` is no host; the message begins with the name.

    Source: Zahavi, D-Mod-K routing.
    """
    # TODO(kata): check, way up by destination, nodes of the path (about 20 lines with helpers)
    raise NotImplementedError


def bisection_gbps(topo: FatTree, generation: str) -> int:
    """
    Gb/s that the first half of the pods can send to the other half, all cables being alike.

    Raises:
        ValueError: what `port_gbps` refuses.
    """
    raise NotImplementedError  # TODO(kata): flow between the halves (1 line)


def dragonfly(p: int, a: int, h: int) -> Dragonfly:
    """
    Build the largest dragonfly: a * h + 1 groups, with one cable between any two.

    Raises:
        ValueError: `p`, `a` or `h` is below 1; the message begins with the name.

    Source: Kim et al. 2008.
    """
    raise NotImplementedError  # TODO(kata): check, cables (about 15 lines with helpers)


def route_minimal(topo: Dragonfly, src: int, dst: int) -> list[Link]:
    """
    Shortest way from host `src` to host `dst`: over one cable between groups at most.

    Raises:
        ValueError: `src` or `dst` is no host; the message begins with the name.
    """
    raise NotImplementedError  # TODO(kata): detour by a third group (1 line)


def route_valiant(topo: Dragonfly, src: int, dst: int, key: int) -> list[Link]:
    """
    Go to group `key` mod groups first, and on from where that is entered.

    Raises:
        ValueError: `src` or `dst` is no host; the message begins with the name.

    Source: Kim et al. 2008, section 4.
    """
    raise NotImplementedError  # TODO(kata): check, detour by a third group (about 10 lines)


def link_loads(paths: Iterable[Sequence[Link]]) -> dict[Link, int]:
    """How many of the paths use each link; links that nobody uses are left out."""
    raise NotImplementedError  # TODO(kata): (1 line)
