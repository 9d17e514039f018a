"""Cables against the brief's rules, paths link by link, and loads under shifts and random pairs."""

import random
from collections import Counter
from itertools import pairwise

import pytest

TREES = [(2, 1), (4, 1), (4, 2), (6, 3), (8, 2)]
# p, a, h: one of everything; one router a group; one cable a router; nothing alike; hosts many
DRAGONFLIES = [(1, 1, 1), (2, 1, 3), (1, 3, 1), (2, 4, 3), (3, 2, 1)]
HEIGHT = {"host": 0, "edge": 1, "agg": 2, "core": 3}


def checked(call, topo, path, src, dst):
    """The path, if it leads from src to dst over links that there are."""
    assert isinstance(path, list), f"{call}: found {path}, expected a list"
    if src == dst:
        assert path == [], f"{call}: found {path}, expected no links"
        return path
    assert path, f"{call}: found no links"
    for link in path:
        assert link in topo.links, f"{call}: there is no link {link}, in {path}"
    for (_, there), (here, _) in pairwise(path):
        assert there == here, f"{call}: arrives at {there} and leaves from {here}, in {path}"
    ends = path[0][0], path[-1][1]
    assert ends == (("host", src), ("host", dst)), f"{call}: leads from {ends[0]} to {ends[1]}"
    return path


def diff(found, expected):
    missing, extra = sorted(expected - found)[:3], sorted(found - expected)[:3]
    return f"{len(found)} links, expected {len(expected)}; missing {missing}, not expected {extra}"


def shift(n, by):
    return [(src, (src + by) % n) for src in range(n)]


# ---- fat-tree ------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", TREES, ids=str)
def test_a_fat_tree_is_wired_as_described(kata, oracle, shape):
    topo = kata.fat_tree(*shape)
    k, over = shape
    assert (topo.k, topo.oversubscription, topo.hosts) == (k, over, k**3 // 4)
    expected = oracle.fat_tree_links(k, over)
    assert isinstance(topo.links, frozenset), f"links: {type(topo.links)}, expected a frozenset"
    assert topo.links == expected, f"fat_tree{shape}: {diff(topo.links, expected)}"


@pytest.mark.parametrize("shape", TREES, ids=str)
def test_paths_go_up_and_then_down_and_no_higher_than_they_must(kata, shape, seed):
    topo, draw = kata.fat_tree(*shape), random.Random(seed)
    half = topo.k // 2
    hosts = range(topo.hosts)
    pairs = [(0, 0), (0, topo.hosts - 1), (0, 1)]
    pairs += [(src, dst) for src in draw.sample(hosts, min(9, len(hosts))) for dst in hosts]
    for src, dst in pairs:
        call = f"route(fat_tree{shape}, {src}, {dst})"
        path = checked(call, topo, kata.route(topo, src, dst), src, dst)
        if src == dst:
            continue
        same = src // half == dst // half, src // half**2 == dst // half**2
        top = 1 if same[0] else 2 if same[1] else 3
        heights = [HEIGHT[one[0]] for one, _ in path]
        expected = [*range(top + 1), *range(top - 1, 0, -1)]
        assert heights == expected, f"{call}: levels {heights}, expected {expected}, in {path}"


@pytest.mark.parametrize("shape", [(4, 1), (6, 3)], ids=str)
def test_a_switch_looks_at_nothing_but_the_destination(kata, shape):
    topo = kata.fat_tree(*shape)
    table = {}
    for src in range(topo.hosts):
        for dst in range(topo.hosts):
            for here, there in kata.route(topo, src, dst):
                known = table.setdefault((here, dst), there)
                assert there == known, (
                    f"fat_tree{shape}: at {here}, for host {dst}: to {there} from host {src}, "
                    f"expected {known} as from another host"
                )


@pytest.mark.parametrize("shape", [(4, 2), (6, 3), (8, 2)], ids=str)
def test_a_tree_with_fewer_cores_shares_them_evenly(kata, shape):
    topo = kata.fat_tree(*shape)
    n = topo.hosts
    for by in {1, topo.k // 2, n // topo.k, n // topo.k + 1, n // 2, n - 1}:
        loads = kata.link_loads(kata.route(topo, *pair) for pair in shift(n, by))
        most = max(loads.values())
        assert most <= shape[1], f"fat_tree{shape}, shift by {by}: {most} on a link, of {shape[1]}"


def test_shifts_meet_nowhere(kata, cost):
    most, longest = 0, 0
    for k in (4, 6, 8):
        topo = kata.fat_tree(k)
        step = 1 if k < 8 else 3
        for by in range(1, topo.hosts, step):
            paths = [kata.route(topo, src, dst) for src, dst in shift(topo.hosts, by)]
            longest = max(longest, *map(len, paths))
            most = max(most, *kata.link_loads(paths).values())
    cost.check("links", longest)
    cost.check("shift_load", most)


def test_a_path_is_computed_and_not_searched(kata, lines, cost):
    topo = kata.fat_tree(8)
    pairs = shift(topo.hosts, 37)
    with lines(limit=100 * len(pairs)) as counted:
        for pair in pairs:
            kata.route(topo, *pair)
    cost.check("lines", counted.lines / len(pairs))


@pytest.mark.parametrize("shape", TREES, ids=str)
def test_the_bisection_is_what_flows_from_half_of_the_pods(kata, oracle, shape):
    topo = kata.fat_tree(*shape)
    hosts = [("host", n) for n in range(topo.hosts)]
    half = len(hosts) // 2
    flow = oracle.largest_flow(oracle.fat_tree_links(*shape), hosts[:half], hosts[half:])
    for generation, rate in {"HDR": 200, "XDR": 800}.items():
        found = kata.bisection_gbps(topo, generation)
        call = f"bisection_gbps(fat_tree{shape}, {generation!r})"
        assert found == flow * rate, f"{call}: found {found}, expected {flow} x {rate}"
        assert isinstance(found, int), f"{call}: found {found}, expected an int"


# ---- dragonfly -----------------------------------------------------------------------------


@pytest.mark.parametrize("shape", DRAGONFLIES, ids=str)
def test_a_dragonfly_is_wired_as_described(kata, oracle, shape):
    topo = kata.dragonfly(*shape)
    p, a, h = shape
    groups = a * h + 1
    assert (topo.p, topo.a, topo.h, topo.groups, topo.hosts) == (*shape, groups, groups * a * p)
    expected = oracle.dragonfly_links(*shape)
    assert topo.links == expected, f"dragonfly{shape}: {diff(topo.links, expected)}"


def crossings(path):
    """The groups that a path goes through."""
    groups = [node[1] for node in [path[0][1], *(there for _, there in path)] if len(node) == 3]
    return groups[:1] + [there for here, there in pairwise(groups) if here != there]


@pytest.mark.parametrize("shape", DRAGONFLIES, ids=str)
def test_minimal_paths_are_shortest(kata, oracle, shape, seed):
    topo, draw = kata.dragonfly(*shape), random.Random(seed)
    ahead = {}
    for here, there in oracle.dragonfly_links(*shape):
        ahead.setdefault(here, []).append(there)
    a_group = topo.a * topo.p
    for src in {0, topo.hosts - 1, draw.randrange(topo.hosts)}:
        for dst in range(topo.hosts):
            call = f"route_minimal(dragonfly{shape}, {src}, {dst})"
            path = checked(call, topo, kata.route_minimal(topo, src, dst), src, dst)
            if src == dst:
                continue
            found, expected = crossings(path), {src // a_group, dst // a_group}
            assert set(found) == expected, f"{call}: through groups {found}, expected {expected}"
            local = _local_hops(ahead, src, dst, a_group)
            assert len(path) == local, f"{call}: {len(path)} links, expected {local}, in {path}"


def _local_hops(ahead, src, dst, a_group):
    """The fewest links, over at most one cable between groups, by trying all."""
    allowed = {src // a_group, dst // a_group}
    reached, links = {("host", src)}, 0
    while ("host", dst) not in reached:
        reached |= {
            there
            for here in reached
            for there in ahead[here]
            if (there[0] == "host" and there[1] == dst)
            or (there[0] == "router" and there[1] in allowed)
        }
        links += 1
    return links


@pytest.mark.parametrize("shape", DRAGONFLIES, ids=str)
def test_valiant_goes_through_the_group_of_its_key(kata, shape, seed):
    topo, draw = kata.dragonfly(*shape), random.Random(seed)
    a_group = topo.a * topo.p
    for trial in range(150):
        src, dst = draw.randrange(topo.hosts), draw.randrange(topo.hosts)
        key = draw.choice((trial % topo.groups, draw.randrange(2**40)))
        call = f"route_valiant(dragonfly{shape}, {src}, {dst}, {key})"
        path = checked(call, topo, kata.route_valiant(topo, src, dst, key), src, dst)
        if src == dst:
            continue
        start, end, middle = src // a_group, dst // a_group, key % topo.groups
        expected = [start] if start == end else [start, middle, end]
        expected = [one for i, one in enumerate(expected) if i == 0 or one != expected[i - 1]]
        found = crossings(path)
        assert found == expected, f"{call}: through groups {found}, expected {expected}, in {path}"
        nodes = [there for _, there in path]
        assert len({*nodes}) == len(nodes), f"{call}: comes to a node twice, in {path}"
        inside = Counter(
            here[1] for here, there in path if here[0] == there[0] and here[1] == there[1]
        )
        most = max(inside.values(), default=0)
        assert most <= 1, f"{call}: {most} links within a group, expected at most 1, in {path}"


def test_valiant_spreads_what_minimal_routes_pile_up(kata, seed, cost):
    topo, draw = kata.dragonfly(4, 8, 4), random.Random(seed)
    pairs = shift(topo.hosts, topo.a * topo.p)  # each group sends all it has to the next one

    def busiest(paths):
        loads = kata.link_loads(paths)
        return max(
            load for (here, there), load in loads.items()
            if here[0] == there[0] == "router" and here[1] != there[1]
        )  # fmt: skip

    minimal = busiest(kata.route_minimal(topo, *pair) for pair in pairs)
    assert minimal == 32, f"minimal routes: {minimal} flows on a cable, expected a x p = 32"
    keys = [draw.randrange(2**30) for _ in pairs]
    spread = busiest(
        kata.route_valiant(topo, *pair, key) for pair, key in zip(pairs, keys, strict=True)
    )
    cost.check("valiant_load", spread / minimal)


# ---- loads, rates --------------------------------------------------------------------------


def test_each_direction_of_a_cable_has_its_own_load(kata):
    a, b, c = ("host", 0), ("edge", 0, 0), ("host", 1)
    paths = [[(a, b), (b, c)], [(c, b), (b, a)], [], ((a, b), (b, c))]
    expected = {(a, b): 2, (b, c): 2, (c, b): 1, (b, a): 1}
    assert kata.link_loads(iter(paths)) == expected
    assert kata.link_loads([]) == {}


def test_all_to_one_loads_the_last_link_with_everybody(kata):
    topo = kata.fat_tree(4)
    loads = kata.link_loads(kata.route(topo, src, 5) for src in range(16))
    into = {link: n for link, n in loads.items() if link[1] in (("host", 5), ("edge", 1, 0))}
    assert sorted(into.values()) == [1, 14, 15], f"links to host 5 and its switch: {into}"


def test_ports_have_the_rates_of_their_generation(kata):
    rates = {"EDR": 100, "HDR": 200, "NDR": 400, "XDR": 800}
    for generation, rate in rates.items():
        found = kata.port_gbps(generation)
        assert found == rate, f"port_gbps({generation!r}): found {found}, expected {rate}"


# ---- bad input -----------------------------------------------------------------------------


def test_shapes_that_cannot_be_built_are_refused(kata):
    for shape, name in (
        ((5,), "k"), ((0,), "k"), ((-2,), "k"), ((7, 9), "k"),
        ((8, 3), "oversubscription"), ((8, 0), "oversubscription"), ((4, -1), "oversubscription"),
        ((4, 4), "oversubscription"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"^{name}: "):
            kata.fat_tree(*shape)
    for shape, name in (
        ((0, 1, 1), "p"), ((1, 0, 1), "a"), ((1, 1, 0), "h"), ((-2, 1, 1), "p"),
        ((1, -2, 1), "a"), ((1, 1, -2), "h"), ((0, 2, -1), "p"), ((2, 0, -1), "a"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"^{name}: "):
            kata.dragonfly(*shape)


def test_hosts_that_do_not_exist_are_refused(kata):
    tree, fly = kata.fat_tree(4), kata.dragonfly(2, 1, 3)
    for topo, ask in (
        (tree, kata.route),
        (fly, kata.route_minimal),
        (fly, lambda *args: kata.route_valiant(*args, 0)),
    ):
        n = topo.hosts
        for pair, name in (((-1, 0), "src"), ((0, n), "dst"), ((n, n), "src"), ((0, -1), "dst")):
            with pytest.raises(ValueError, match=f"^{name}: "):
                ask(topo, *pair)


def test_rates_of_unknown_generations_are_refused(kata):
    for ask in (kata.port_gbps, lambda name: kata.bisection_gbps(kata.fat_tree(2), name)):
        with pytest.raises(ValueError, match="^generation: "):
            ask("hdr")
