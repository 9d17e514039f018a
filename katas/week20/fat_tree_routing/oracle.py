"""What is right: every pair of nodes asked whether a cable joins them, and the largest flow."""

from collections import Counter, deque
from itertools import combinations


def fat_tree_links(k, oversubscription):
    """Both directions of every cable, by the brief's rules for two nodes."""
    half = k // 2
    up = half // oversubscription
    nodes = [("host", n) for n in range(k * half * half)]
    nodes += [(level, pod, i) for level in ("edge", "agg") for pod in range(k) for i in range(half)]
    nodes += [("core", c) for c in range(half * up)]

    def joined(one, other):
        match one, other:
            case ("host", n), ("edge", pod, i):
                return (n // half**2, n // half % half) == (pod, i)
            case ("edge", pod, _), ("agg", other_pod, _):
                return pod == other_pod
            case ("agg", _, j), ("core", c):
                return c // up == j
        return False

    return _links(nodes, joined)


def dragonfly_links(p, a, h):
    """Both directions of every cable, by the brief's rules for two nodes."""
    groups = a * h + 1
    nodes = [("host", n) for n in range(groups * a * p)]
    nodes += [("router", group, i) for group in range(groups) for i in range(a)]

    def joined(one, other):
        match one, other:
            case ("host", n), ("router", group, i):
                return (n // (a * p), n // p % a) == (group, i)
            case ("router", group, i), ("router", other_group, j):
                if group == other_group:
                    return True
                return other_group in _reach(group, i) and group in _reach(other_group, j)
        return False

    def _reach(group, i):
        return {(group + port + 1) % groups for port in range(i * h, (i + 1) * h)}

    return _links(nodes, joined)


def _links(nodes, joined):
    links = set()
    for one, other in combinations(nodes, 2):
        if joined(one, other):
            links |= {(one, other), (other, one)}
    return links


def largest_flow(links, sources, sinks):
    """How many units can go from the sources to the sinks at once, one over each link."""
    room, ahead, flow = Counter(links), {}, 0
    for one, other in links:
        ahead.setdefault(one, []).append(other)
    while path := _path(room, ahead, sources, set(sinks)):
        for one, other in path:
            room[one, other] -= 1
            room[other, one] += 1  # a unit may be taken back
        flow += 1
    return flow


def _path(room, ahead, sources, sinks):
    came = dict.fromkeys(sources)
    queue = deque(sources)
    while queue:
        node = queue.popleft()
        if node in sinks:
            path = []
            while came[node] is not None:
                path.append((came[node], node))
                node = came[node]
            return path
        for other in ahead[node]:
            if other not in came and room[node, other]:
                came[other] = node
                queue.append(other)
    return None
