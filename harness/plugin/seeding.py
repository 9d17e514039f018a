"""
Where random numbers come from: the session's seed and the name of the test, and nothing else.

Every implementation of a test meets the same draw, in whatever order and company it is judged, so
that a failure on one of them and a pass on another speak of the two, and ``--seed`` replays both.
"""

import hashlib
import random
import sys
import zlib

import pytest

from harness.running.record import SEED


def seed_of(item: pytest.Item) -> int:
    """What the fixture ``seed`` gives to `item`: fresh each run, different for each test."""
    return zlib.crc32(_draw(item).encode()) % 2**31


def seed_generators(item: pytest.Item) -> None:
    """
    Seed Python's, NumPy's and PyTorch's generators, and hypothesis', for `item`.

    A module that is not loaded is passed over: call it once more when fixtures may have loaded it.
    """
    # hashed, for generators tell their seed: from this one the seed of the inputs cannot be made
    hidden = int.from_bytes(hashlib.sha256(f"generators/{_draw(item)}".encode()).digest()[:7])
    random.seed(hidden)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(hidden % 2**32)
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(hidden)
    by_hypothesis = getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
    if by_hypothesis and item.config.option.hypothesis_seed is None:
        import hypothesis

        assert isinstance(item, pytest.Function)
        hypothesis.seed(hidden)(item.obj)


def forget_local_constants() -> None:
    """
    Keep hypothesis from drawing constants that it finds in the source of loaded modules.

    Which are loaded depends on what was judged before. There is no setting for it.
    """
    from hypothesis.internal.conjecture import providers
    from hypothesis.internal.constants_ast import Constants

    none = Constants()
    providers._get_local_constants = lambda: none


def _draw(item: pytest.Item) -> str:
    name = dict(item.user_properties).get("test", item.name)
    return f"{item.config.stash[SEED]}/{name}"
