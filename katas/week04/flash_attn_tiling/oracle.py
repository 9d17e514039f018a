"""The machine to compute on, and what is right: attention with its scores written out."""

import math
from collections import Counter
from weakref import WeakValueDictionary

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

DIVISIONS = (np.divide, np.reciprocal)
POWERS = (np.power, np.float_power, np.logaddexp, np.logaddexp2)
EXPONENTIALS = (np.exp, np.exp2, np.expm1, *POWERS)
FUNCTIONS = (np.where, np.max, np.sum, np.zeros_like, np.full_like)  # besides ufuncs

# A result is a sum of products with float64 roundings of 1.1e-16 each, one for each key and each
# rescaling, and exponents under 100 in size: a few thousand of them. The scores of tests with
# larger ones are whole numbers, which are exact.
RELATIVE = 1e-12


class SramOverflow(MemoryError):
    """More is on the chip than fits."""


class Hbm:
    """
    Slow memory with the arrays Q, K, V, O and L in it, and the chip that works on it.

    All is counted in elements: `loads` and `stores` of slow memory, `multiplications`,
    `divisions` and `exponentials` of the chip outside products of matrices, `sram_peak`, the most
    that tiles held at a load. There is room for `sram` elements. O and L are NaN at first; `result`
    shows them. What is counted can be read, not set.
    """

    loads = property(lambda self: self.__counts["loads"])
    stores = property(lambda self: self.__counts["stores"])
    multiplications = property(lambda self: self.__counts["multiplications"])
    divisions = property(lambda self: self.__counts["divisions"])
    exponentials = property(lambda self: self.__counts["exponentials"])
    sram_peak = property(lambda self: self.__counts["sram_peak"])

    def __init__(self, Q, K, V, sram=math.inf):
        arrays = {"Q": Q, "K": K, "V": V}
        self._arrays = {name: np.array(x, dtype=np.float64) for name, x in arrays.items()}
        self._arrays["O"] = np.full(Q.shape, np.nan)
        self._arrays["L"] = np.full(Q.shape[:3], np.nan)
        self._held = WeakValueDictionary()
        self.__sram = sram
        self.__counts = Counter()

    def shape(self, name):
        """Shape of an array: [batch, heads, length, d], or of L [batch, heads, queries]."""
        return self._arrays[name].shape

    def load(self, name, index):
        """Copy a part of an array into a new tile; a slice may reach past the end, as in NumPy."""
        tile = Tile(self._arrays[name][index].copy(), self)
        self.__counts["loads"] += tile.size
        self._check_room(f"{name}{list(tile.shape)}")
        return tile

    def store(self, name, index, tile):
        """Write a tile (or array) to a part of an array that has its shape."""
        part = self._arrays[name][index]
        if part.shape != tile.shape:
            raise ValueError(f"{name}: expected a tile {part.shape}, found {tile.shape}")
        part[...] = _plain(tile)
        self.__counts["stores"] += part.size

    def _hold(self, values):
        """Keep account of a tile's memory for as long as something refers to it."""
        owner = values if values.base is None else values.base
        self._held[id(owner)] = owner

    def _count(self, ufunc, elements):
        """Note what the chip computed."""
        self.__counts["multiplications"] += elements * (ufunc is np.multiply)
        self.__counts["divisions"] += elements * (ufunc in DIVISIONS)
        self.__counts["exponentials"] += elements * (ufunc in EXPONENTIALS)

    def _check_room(self, loaded):
        tiles = list(self._held.values())
        held = sum(tile.size for tile in tiles)
        self.__counts["sram_peak"] = max(self.sram_peak, held)
        if held > self.__sram:
            shapes = " ".join(str(list(tile.shape)) for tile in tiles)
            raise SramOverflow(
                f"sram: expected at most {self.__sram} elements alive, found {held} with the load "
                f"of {loaded}: {shapes}. "
                "Let go of tiles, or bind their names anew, before you load."
            )


class Tile(NDArrayOperatorsMixin):
    """
    An array on the chip. What is computed from a tile is a tile again.

    It takes operators, NumPy's ufuncs, `FUNCTIONS` and indices, and leaves the chip by `Hbm.store`
    only.
    """

    def __init__(self, values, hbm):
        self._values = np.asarray(values)
        self._hbm = hbm
        hbm._hold(self._values)

    @property
    def shape(self):
        return self._values.shape

    @property
    def size(self):
        return self._values.size

    @property
    def T(self):  # noqa: N802 -- as NumPy calls it
        return Tile(self._values.T, self._hbm)

    def __getitem__(self, index):
        return Tile(self._values[index], self._hbm)

    def __setitem__(self, index, values):
        self._values[_plain(index)] = _plain(values)

    def max(self, axis=None, keepdims=False):
        return np.maximum.reduce(self, axis=axis, keepdims=keepdims)

    def sum(self, axis=None, keepdims=False):
        return np.add.reduce(self, axis=axis, keepdims=keepdims)

    def _leave(self, *args, **kwargs):
        raise TypeError("a tile stays on the chip: compute with tiles, then hbm.store")

    __array__ = __bool__ = __float__ = __int__ = _leave

    def __array_ufunc__(self, ufunc, method, *inputs, out=None, **kwargs):
        kwargs = {name: _plain(value) for name, value in kwargs.items()}
        if out is not None:
            if not isinstance(out[0], Tile):
                raise TypeError("a tile stays on the chip: write x = x + tile where x is an array")
            kwargs["out"] = (out[0]._values,)
        values = getattr(ufunc, method)(*map(_plain, inputs), **kwargs)
        self._hbm._count(ufunc, np.size(values))
        return Tile(values, self._hbm) if out is None else out[0]

    def __array_function__(self, func, types, args, kwargs):
        if func not in FUNCTIONS:
            known = ", ".join(known.__name__ for known in FUNCTIONS)
            raise TypeError(f"{func.__name__}: the chip has operators, NumPy's ufuncs and {known}")
        values = func(*map(_plain, args), **{name: _plain(x) for name, x in kwargs.items()})
        return Tile(values, self._hbm)


def _plain(x):
    """The array behind a tile, also behind each of several."""
    if isinstance(x, (list, tuple)):
        return type(x)(map(_plain, x))
    return x._values if isinstance(x, Tile) else x


def result(hbm):
    """(O, L) as stored, for whoever judges."""
    return hbm._arrays["O"], hbm._arrays["L"]


def room(Br, Bc, d):
    """A tile of Q, three of K or V, one of scores, the output, eight numbers for each query."""
    return Br * d + 3 * Bc * d + Br * Bc + Br * d + 8 * Br


def inputs(seed, queries, keys, d, batch=1, heads=1):
    """Draw Q, K and V from N(0, 1)."""
    random = np.random.default_rng(seed)
    return [random.normal(size=(batch, heads, length, d)) for length in (queries, keys, keys)]


def attention(Q, K, V, causal=False, sm_scale=None):
    """(O, L) by the textbook; a query that sees no key has O = 0 and L = -inf."""
    queries, keys, d = Q.shape[2], K.shape[2], Q.shape[3]
    scores = Q @ K.swapaxes(2, 3) * (d**-0.5 if sm_scale is None else sm_scale)
    if causal:
        scores[..., ~np.tri(queries, keys, keys - queries, dtype=bool)] = -np.inf
    largest = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    largest[largest == -np.inf] = 0.0
    weights = np.exp(scores - largest)
    total = weights.sum(axis=-1, keepdims=True)
    with np.errstate(divide="ignore"):
        L = (largest + np.log(total))[..., 0]
    return (weights / np.where(total, total, 1.0)) @ V, L


def assert_close(got, want):
    """Fail unless every value is right within `RELATIVE` of the largest finite one."""
    largest = np.abs(want, where=np.isfinite(want), out=np.zeros(want.shape)).max(initial=0.0)
    wrong = np.argwhere(~np.isclose(got, want, rtol=0, atol=RELATIVE * largest))
    if len(wrong):
        at = tuple(wrong[0].tolist())
        raise AssertionError(
            f"{'O' if want.ndim == 4 else 'L'}{list(at)}: expected {want[at]}, found {got[at]}; "
            f"{len(wrong)} of {want.size} are wrong"
        )
