"""Kata week15/cute_layout_algebra: layouts as functions, composed, complemented and divided.

A layout maps a coordinate to an offset; its integer coordinates count colexicographically.
"""

from dataclasses import dataclass

IntTuple = int | tuple  # an int, or a tuple of these, nested as deep as you like


def flatten(tree: IntTuple) -> tuple[int, ...]:
    """The leaves of an `IntTuple` from left to right: ((2, 3), 4) gives (2, 3, 4)."""
    if isinstance(tree, int):
        return (tree,)
    return tuple(leaf for branch in tree for leaf in flatten(branch))


def size(shape: IntTuple) -> int:
    """How many elements a shape has: the product of its leaves."""
    count = 1
    for leaf in flatten(shape):
        count *= leaf
    return count


@dataclass(frozen=True, slots=True)
class Layout:
    """
    Shape and stride, two trees of the same form, as in ((2, 2), 3):((24, 2), 8).

    Raises:
        ValueError: the trees differ, a size is below 1, a stride below 0, or a tuple is empty.
    """

    shape: IntTuple
    stride: IntTuple

    def __post_init__(self) -> None:
        if not _alike(self.shape, self.stride):
            raise ValueError(f"stride: expected the form of {self.shape}, found {self.stride}")
        if min(flatten(self.shape)) < 1:
            raise ValueError(f"shape: expected sizes from 1, found {self.shape}")
        if min(flatten(self.stride)) < 0:
            raise ValueError(f"stride: expected strides from 0, found {self.stride}")

    def __call__(self, crd: IntTuple) -> int:
        """The offset of a coordinate."""
        return crd2idx(crd, self)

    def __str__(self) -> str:
        return f"{self.shape}:{self.stride}".replace(" ", "")


def _alike(one: IntTuple, other: IntTuple) -> bool:
    """Whether both are ints, or both tuples of the same form, not empty."""
    if type(one) is tuple and type(other) is tuple:
        return 0 < len(one) == len(other) and all(map(_alike, one, other))
    return type(one) is int and type(other) is int


def cosize(layout: Layout) -> int:
    """One more than the largest offset."""
    modes = zip(flatten(layout.shape), flatten(layout.stride), strict=True)
    return 1 + sum((count - 1) * stride for count, stride in modes)


def crd2idx(crd: IntTuple, layout: Layout) -> int:
    """
    The offset of a coordinate.

    Args:
        crd: An int for the whole layout, or a tuple with a coordinate for each mode, which may
            again be an int for the whole mode.
        layout: Any.

    Raises:
        ValueError: `crd` is not of a form that fits the shape, or beyond it.
    """
    return _offset(crd, layout.shape, layout.stride)


def idx2crd(i: int, shape: IntTuple) -> IntTuple:
    """
    The `i`-th coordinate of a shape, of the shape's own form; the leftmost leaf runs fastest.

    Raises:
        ValueError: `i` is not in 0 .. size(shape) - 1.
    """
    # check
    if not 0 <= i < size(shape):
        raise ValueError(f"i: expected 0 to {size(shape) - 1}, found {i}")
    if isinstance(shape, int):
        return i
    # coordinates and offsets
    crd = []
    for mode in shape:
        crd.append(idx2crd(i % size(mode), mode))
        i //= size(mode)
    return tuple(crd)


def coalesce(layout: Layout) -> Layout:
    """
    The same function of an int with the fewest modes, not nested.

    A single mode is returned as int:int, a layout of one element as 1:0.
    """
    # merge the modes
    modes: list[tuple[int, int]] = []
    for count, stride in zip(flatten(layout.shape), flatten(layout.stride), strict=True):
        if count == 1:
            continue
        if modes and modes[-1][0] * modes[-1][1] == stride:
            modes[-1] = (modes[-1][0] * count, modes[-1][1])
        else:
            modes.append((count, stride))
    return _of_modes(modes)


def composition(a: Layout, b: Layout) -> Layout:
    """
    The layout r with r(i) = a(b(i)): b's form, with a layout in place of each of its leaves.

    What is in place of a leaf is coalesced. Beyond its size `a` goes on in the last mode of
    coalesce(a).

    Raises:
        ValueError: a mode of the result would have to walk through two modes of coalesce(a) at a
            time; the message begins with `b: `.
    """
    # compose leaf by leaf
    flat = coalesce(a)
    modes = list(zip(flatten(flat.shape), flatten(flat.stride), strict=True))
    return _walk(modes, b.shape, b.stride)


def complement(layout: Layout, bound: int) -> Layout:
    """
    What `layout` leaves out: the offsets at which its translates fill 0 .. bound - 1, in order.

    Coalesced. Modes of `layout` with stride 0 count as one element. The last mode is rounded up
    where `bound` is no multiple of what the others fill.

    Raises:
        ValueError: `bound` is below 1, or the modes of `layout` are not nested in each other; the
            message begins with `bound: ` or `layout: `.
    """
    # check
    if bound < 1:
        raise ValueError(f"bound: expected at least 1, found {bound}")
    # list the gaps
    gaps = []
    filled = 1  # offsets below this are reached, the gaps so far included
    leaves = zip(flatten(layout.stride), flatten(layout.shape), strict=True)
    for stride, count in sorted(leaves):
        if stride == 0 or count == 1:
            continue
        if stride % filled:
            raise ValueError(f"layout: expected nested modes, found {layout}")
        gaps.append((stride // filled, filled))
        filled = stride * count
    gaps.append((-(-bound // filled), filled))
    return coalesce(_of_modes(gaps))


def logical_divide(a: Layout, b: Layout) -> Layout:
    """
    Cuts `a` into tiles of the elements that `b` picks: mode 0 is the tile, mode 1 the tiles.

    Raises:
        ValueError: as `complement` of `b` and `composition`.
    """
    # join tile and rest
    return composition(a, _pair(b, complement(b, size(a.shape))))


def logical_product(a: Layout, b: Layout) -> Layout:
    """
    Repeats `a` as `b` says: mode 0 is `a`, mode 1 where its copies begin.

    Raises:
        ValueError: as `complement` of `a` and `composition`.
    """
    # join tile and rest
    rest = complement(a, size(a.shape) * cosize(b))
    return _pair(a, composition(rest, b))


def _offset(crd: IntTuple, shape: IntTuple, stride: IntTuple) -> int:
    # coordinates and offsets
    if isinstance(crd, int):
        if not 0 <= crd < size(shape):
            raise ValueError(f"crd: expected 0 to {size(shape) - 1}, found {crd}")
        if isinstance(shape, int):
            return crd * stride
        crd = idx2crd(crd, shape)
    if isinstance(shape, int) or len(crd) != len(shape):
        raise ValueError(f"crd: expected the form of {shape}, found {crd}")
    return sum(map(_offset, crd, shape, stride))


def _walk(modes: list[tuple[int, int]], shape: IntTuple, stride: IntTuple) -> Layout:
    """The composition with the modes (size, stride) of a coalesced layout."""
    # compose leaf by leaf
    if isinstance(shape, tuple):
        parts = [_walk(modes, *mode) for mode in zip(shape, stride, strict=True)]
        return Layout(tuple(part.shape for part in parts), tuple(part.stride for part in parts))
    if shape == 1:
        return Layout(1, 0)
    taken = []
    count, step = shape, stride
    for extent, distance in modes[:-1]:
        if step % extent == 0:
            step //= extent
            continue
        fit = -(-extent // step)
        if count <= fit:
            return _of_modes([*taken, (count, step * distance)])
        if extent % step or count % fit:
            raise ValueError(f"b: {shape}:{stride} straddles the modes of {_of_modes(modes)}")
        taken.append((fit, step * distance))
        count, step = count // fit, 1
    return _of_modes([*taken, (count, step * modes[-1][1])])


def _of_modes(modes: list[tuple[int, int]]) -> Layout:
    """From pairs (size, stride); one alone is not wrapped in a tuple."""
    if not modes:
        return Layout(1, 0)
    if len(modes) == 1:
        return Layout(*modes[0])
    shape, stride = zip(*modes, strict=True)
    return Layout(shape, stride)


def _pair(first: Layout, second: Layout) -> Layout:
    return Layout((first.shape, second.shape), (first.stride, second.stride))
