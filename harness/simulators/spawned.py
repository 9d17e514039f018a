"""
Ranks without fork: a fresh interpreter for each, which is sent what a forked one would inherit.

That is what the job calls, closures included (cloudpickle, as Numba ships it), the files that were
loaded from katas, the search path and the state of the random generators. Loading PyTorch takes
each rank seconds. What watches over the code under test does not come along.
"""

import os
import pickle
import random
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

# what a rank runs; it is told the rest by its arguments and by a file
CHILD = """
import sys
from harness.simulators.ranks import be_rank
from harness.simulators.spawned import unpack
rank, file, pipe = sys.argv[1:]
be_rank(int(rank), lambda: unpack(file), int(pipe))
"""
LOADED = "_kata_"  # how the names of modules begin that `harness.judge.loading` has loaded


def pack(job: object, fn: Callable[..., object], file: Path) -> None:
    """
    Write `job`, which calls `fn`, to `file` for `unpack` to read in another process.

    Raises:
        Exception: whatever pickling raises for what cannot be sent, as a lock.
    """
    from numba import cloudpickle

    modules = [own for module in [*sys.modules.values()] if (own := _own(module))]
    torch_state: Any = torch.get_rng_state()
    states = (random.getstate(), np.random.get_state(), torch_state)
    test = sys.modules.get(fn.__module__)
    # a test's module is rewritten by pytest and found under no name: its functions go by value
    by_value = test is not None and not fn.__module__.startswith(("harness.", LOADED))
    if by_value:
        cloudpickle.register_pickle_by_value(test)
    try:
        body = cloudpickle.dumps(job)
    finally:
        if by_value:
            cloudpickle.unregister_pickle_by_value(test)
    file.write_bytes(pickle.dumps((modules, states, body)))


def spawn(rank: int, file: Path, pipe: int) -> int:
    """Start rank `rank` of the job in `file`, which replies on `pipe`; return its process id."""
    folders = os.pathsep.join(folder for folder in sys.path if folder)
    command = [sys.executable, "-P", "-c", CHILD, str(rank), str(file), str(pipe)]
    os.set_inheritable(pipe, True)
    try:
        return os.posix_spawn(sys.executable, command, {**os.environ, "PYTHONPATH": folders})
    finally:
        os.set_inheritable(pipe, False)


def unpack(file: str) -> Any:  # noqa: ANN401 -- the caller's own
    """Read what `pack` wrote, with what it needs in place: the job."""
    modules, states, body = pickle.loads(Path(file).read_bytes())
    for name, path in modules:
        _load(name, Path(path))
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])
    return pickle.loads(body)


def _own(module: ModuleType) -> tuple[str, str] | None:
    """Name and file of a module that was loaded from a kata; None for any other."""
    name, file = getattr(module, "__name__", ""), getattr(module, "__file__", None)
    return (name, file) if file and str(name).startswith(LOADED) else None


def _load(name: str, path: Path) -> None:
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(module)
