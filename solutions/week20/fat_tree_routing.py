"""Kata week20/fat_tree_routing: a fat-tree and a dragonfly, and routes that spread the traffic."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

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
    rates = {"EDR": 100, "HDR": 200, "NDR": 400, "XDR": 800}
    if generation not in rates:
        raise ValueError(f"generation: expected one of {', '.join(rates)}, found {generation!r}")
    return rates[generation]


def fat_tree(k: int, oversubscription: int = 1) -> FatTree:
    """
    Build a fat-tree of switches with `k` ports: k pods, k ** 3 / 4 hosts.

    Raises:
        ValueError: `k` is odd or below 2, or `oversubscription` is no divisor of k / 2; the
            message begins with the name.

    Source: Al-Fares et al. 2008.
    """
    # check
    if k < 2 or k % 2:
        raise ValueError(f"k: expected an even number of ports, found {k}")
    half = k // 2
    if oversubscription < 1 or half % oversubscription:
        raise ValueError(
            f"oversubscription: expected a divisor of {half}, found {oversubscription}"
        )
    # cables
    up = half // oversubscription
    cables: list[Link] = []
    for pod in range(k):
        for i in range(half):
            edge, agg = ("edge", pod, i), ("agg", pod, i)
            first = (pod * half + i) * half
            cables += [(("host", first + port), edge) for port in range(half)]
            cables += [(edge, ("agg", pod, port)) for port in range(half)]
            cables += [(agg, ("core", i * up + port)) for port in range(up)]
    return FatTree(k, oversubscription, k * half * half, _both_ways(cables))


def route(topo: FatTree, src: int, dst: int) -> list[Link]:
    """
    Route by destination: the links from host `src` to host `dst`; none from a host to itself.

    Raises:
        ValueError: `src` or `dst` is no host; the message begins with the name.

    Source: Zahavi, D-Mod-K routing.
    """
    # check
    _check_hosts(topo, src, dst)
    if src == dst:
        return []
    # way up by destination
    half = topo.k // 2
    up = half // topo.oversubscription
    src_pod, src_edge = divmod(src // half, half)
    dst_pod, dst_edge = divmod(dst // half, half)
    # neighbours in the numbering part at the edge, neighbouring edges at the aggregation level
    agg = dst % half
    core = agg * up + dst_edge % up
    # nodes of the path
    nodes = [("host", src), ("edge", src_pod, src_edge)]
    if src_pod != dst_pod:
        nodes += [("agg", src_pod, agg), ("core", core), ("agg", dst_pod, agg)]
    elif src_edge != dst_edge:
        nodes += [("agg", dst_pod, agg)]
    return _links([*nodes, ("edge", dst_pod, dst_edge), ("host", dst)])


def bisection_gbps(topo: FatTree, generation: str) -> int:
    """
    Gb/s that the first half of the pods can send to the other half, all cables being alike.

    Raises:
        ValueError: what `port_gbps` refuses.
    """
    return topo.hosts // 2 // topo.oversubscription * port_gbps(generation)


def dragonfly(p: int, a: int, h: int) -> Dragonfly:
    """
    Build the largest dragonfly: a * h + 1 groups, with one cable between any two.

    Raises:
        ValueError: `p`, `a` or `h` is below 1; the message begins with the name.

    Source: Kim et al. 2008.
    """
    # check
    for name, value in {"p": p, "a": a, "h": h}.items():
        if value < 1:
            raise ValueError(f"{name}: expected 1 or more, found {value}")
    # cables
    groups = a * h + 1
    cables: list[Link] = []
    for group in range(groups):
        for index in range(a):
            router = ("router", group, index)
            first = (group * a + index) * p
            cables += [(("host", first + i), router) for i in range(p)]
            cables += [(router, ("router", group, other)) for other in range(index)]
            for port in range(index * h, index * h + h):
                other = (group + port + 1) % groups
                cables.append((router, ("router", other, _exit(groups, h, other, group))))
    return Dragonfly(p, a, h, groups, groups * a * p, _both_ways(cables))


def route_minimal(topo: Dragonfly, src: int, dst: int) -> list[Link]:
    """
    Shortest way from host `src` to host `dst`: over one cable between groups at most.

    Raises:
        ValueError: `src` or `dst` is no host; the message begins with the name.
    """
    return route_valiant(topo, src, dst, dst // (topo.a * topo.p))


def route_valiant(topo: Dragonfly, src: int, dst: int, key: int) -> list[Link]:
    """
    Go to group `key` mod groups first, and on from where that is entered.

    Raises:
        ValueError: `src` or `dst` is no host; the message begins with the name.

    Source: Kim et al. 2008, section 4.
    """
    # check
    _check_hosts(topo, src, dst)
    if src == dst:
        return []
    # detour by a third group
    start, end = (("router", *divmod(host // topo.p, topo.a)) for host in (src, dst))
    nodes = [("host", src), start]
    if start[1] != end[1]:
        for group in (key % topo.groups, end[1]):
            here = nodes[-1][1]
            if here != group:
                nodes.append(("router", here, _exit(topo.groups, topo.h, here, group)))
                nodes.append(("router", group, _exit(topo.groups, topo.h, group, here)))
    return _links([*nodes, end, ("host", dst)])


def link_loads(paths: Iterable[Sequence[Link]]) -> dict[Link, int]:
    """How many of the paths use each link; links that nobody uses are left out."""
    return dict(Counter(link for path in paths for link in path))


def _check_hosts(topo: FatTree | Dragonfly, src: int, dst: int) -> None:
    for name, host in {"src": src, "dst": dst}.items():
        if not 0 <= host < topo.hosts:
            raise ValueError(f"{name}: expected a host below {topo.hosts}, found {host}")


def _both_ways(cables: Iterable[Link]) -> frozenset[Link]:
    return frozenset(link for one, other in cables for link in ((one, other), (other, one)))


def _exit(groups: int, h: int, here: int, there: int) -> int:
    """Which router of group `here` has the cable to group `there`."""
    return (there - here - 1) % groups // h


def _links(nodes: Sequence[Node]) -> list[Link]:
    """What joins the nodes one after the other; a node named twice in a row is one."""
    return [(one, other) for one, other in pairwise(nodes) if one != other]
