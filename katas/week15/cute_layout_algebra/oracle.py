"""What is right, by going through the offsets one by one; a layout is a pair (shape, stride)."""

from itertools import product
from math import prod

BASE = 10**6  # above every coordinate: a digit for each mode


def leaves(tree):
    return [tree] if isinstance(tree, int) else [leaf for branch in tree for leaf in leaves(branch)]


def coordinates(shape):
    """All coordinates of a shape, the leftmost leaf fastest; each of the shape's form."""
    if isinstance(shape, int):
        return list(range(shape))
    backwards = product(*(coordinates(mode) for mode in reversed(shape)))
    return [crd[::-1] for crd in backwards]


def offsets(shape, stride):
    steps = leaves(stride)
    return [
        sum(at * step for at, step in zip(leaves(crd), steps, strict=True))
        for crd in coordinates(shape)
    ]


def modes_of(values):
    """
    The modes (size, stride), none of them mergeable, of the only such layout with these offsets.

    A mode ends at the first offset that is not a multiple of the first step; the next begins
    there. None where there is no such layout.
    """
    if len(values) == 1:
        return []
    step = values[1]
    count = next((i for i, value in enumerate(values) if value != i * step), len(values))
    inner = [i * step for i in range(count)]
    outer = values[::count]
    if len(values) % count or values != [start + at for start in outer for at in inner]:
        return None
    rest = modes_of(outer)
    return None if rest is None else [(count, step), *rest]


def as_pair(modes):
    if len(modes) < 2:
        return modes[0] if modes else (1, 0)
    return tuple(zip(*modes, strict=True))


def coalesced(shape, stride):
    return as_pair(modes_of(offsets(shape, stride)))


def composed(a, b):
    """The pair of a after b, or None where it is to be refused."""
    modes = modes_of(offsets(*a)) or [(1, 0)]
    if isinstance(b[0], tuple):
        parts = [composed(a, mode) for mode in zip(*b, strict=True)]
        return None if None in parts else tuple(zip(*parts, strict=True))
    places = [coordinate(i * b[1], modes) for i in range(b[0])]
    digits = [sum(at * BASE**k for k, at in enumerate(place)) for place in places]
    walks = modes_of(digits)
    if walks is None or any(several_digits(step) for _, step in walks):
        return None
    values = [
        sum(at * stride for at, (_, stride) in zip(place, modes, strict=True)) for place in places
    ]
    return as_pair(modes_of(values))


def coordinate(index, modes):
    """Of an int, which may be beyond the last mode."""
    found = []
    for count, _ in modes[:-1]:
        found.append(index % count)
        index //= count
    return [*found, index]


def several_digits(number):
    return sum(number // BASE**k % BASE > 0 for k in range(8)) > 1


def complemented(shape, stride, bound):
    """Translate after translate, each at the first free place; None where they leave a hole."""
    modes = [
        (count, step)
        for count, step in zip(leaves(shape), leaves(stride), strict=True)
        if count > 1 and step
    ]
    tile = offsets(*zip(*modes, strict=True)) if modes else [0]
    period = max((count * step for count, step in modes), default=1)
    end = -(-bound // period) * period
    covered, starts = [], []
    for start in range(end):
        if start not in covered:
            starts.append(start)
            covered += [start + at for at in tile]
    return as_pair(modes_of(starts)) if sorted(covered) == list(range(end)) else None


def joined(first, second):
    return tuple(zip(first, second, strict=True))


def divided(a, b):
    rest = complemented(*b, prod(leaves(a[0])))
    return rest and composed(a, joined(b, rest))


def multiplied(a, b):
    rest = complemented(*a, prod(leaves(a[0])) * (1 + max(offsets(*b))))
    copies = rest and composed(rest, b)
    return copies and joined(a, copies)
