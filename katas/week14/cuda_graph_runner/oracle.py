"""What is right: steps without graphs; graphs that record operators and addresses, and a GPU's."""

import ctypes
import math
import weakref
from copy import deepcopy
from dataclasses import dataclass

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

from harness.meters.dispatch import BLOCKING_READS

PAD = -1


# ---- graphs without a GPU ------------------------------------------------------------------------


class FakePool:
    """
    Memory of captures, by the segment: a new one where no stretch that is free is long enough.

    What a capture lets go of is free, and joins what is free beside it in its own segment. `bytes`
    is what all segments have; none is given back.
    """

    def __init__(self):
        self.bytes = 0
        self._segments = []
        self._free = []  # stretches: number of the segment, first byte, last byte + 1

    def take(self, nbytes):
        """So many bytes, until nobody has them any more."""
        rounded = max(16, -(-nbytes // 16) * 16)
        fitting = [one for one in self._free if one[2] - one[1] >= rounded]
        if not fitting:
            fitting = [(len(self._segments), 0, rounded)]
            self._segments.append(np.empty(rounded, np.uint8))
            self.bytes += rounded
            self._free += fitting
        best = min(fitting, key=lambda one: one[2] - one[1])
        self._free.remove(best)
        number, low, high = best
        if low + rounded < high:
            self._free.append((number, low + rounded, high))
        handed = self._segments[number][low : low + nbytes]
        handed[:] = 0xFF  # NaN, or -1
        weakref.finalize(handed, self._give_back, number, low, low + rounded)
        return torch.from_numpy(handed)

    def _give_back(self, number, low, high):
        for one in [one for one in self._free if one[0] == number and one[2] == low]:
            self._free.remove(one)
            low = one[1]
        for one in [one for one in self._free if one[0] == number and one[1] == high]:
            self._free.remove(one)
            high = one[2]
        self._free.append((number, low, high))


class FakeGraph:
    """Operators and the addresses that they had; run again, whatever lies there now."""

    def __init__(self, graphs, capturing, rows):
        self._graphs, self._rows = graphs, rows
        self._recorded, self._storages = capturing.recorded, capturing.storages

    def replay(self):
        if any(storage.expired() for storage in self._storages):
            raise RuntimeError("replay: a tensor that the graph reads or writes is gone: keep it")
        self._graphs.replayed.append(self._rows)
        with _disable_current_modes():
            for func, args, kwargs, outs in self._recorded:
                results = tree_leaves(func(*args, **kwargs))
                for out, result in zip(outs, results, strict=True) if outs else ():
                    out.copy_(result)


class FakeGraphs:
    """
    CUDA graphs on the host.

    A capture runs nothing: what is allocated in it is NaN or -1 until the first replay, what is
    written in place stays as it is. It is an error where it is one on a GPU.
    """

    device = "cpu"

    def __init__(self):
        self.pools = []
        self.captured, self.replayed = [], []  # how many rows each graph has
        self._warm = set()

    @property
    def pool_bytes(self):
        return sum(pool.bytes for pool in self.pools)

    def pool(self):
        self.pools.append(FakePool())
        return self.pools[-1]

    def warm_up(self, fn):
        with _Noting(self._warm):
            return fn()

    def capture(self, fn, pool):
        with _Capturing(self._warm, pool) as capturing:
            result = fn()
        self.captured.append(len(result))
        return FakeGraph(self, capturing, len(result)), result


class _Mode(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls):
        return False  # or the first operator imports torch._dynamo

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return self.run(func, args, kwargs or {})


class Launches(_Mode):
    """Counts the operators that are more than a view of a tensor."""

    def __init__(self):
        super().__init__()
        self.names = []

    def run(self, func, args, kwargs):
        if not _is_view(func):
            self.names.append(str(func.overloadpacket))
        return func(*args, **kwargs)


class _Noting(_Mode):
    def __init__(self, warm):
        super().__init__()
        self._warm = warm

    def run(self, func, args, kwargs):
        self._warm.add(func)
        return func(*args, **kwargs)


class _Capturing(_Mode):
    def __init__(self, warm, pool):
        super().__init__()
        self.recorded, self.storages = [], []
        self._warm, self._pool = warm, pool
        self._own = []  # addresses of what was allocated: it may be gone by the replay

    def run(self, func, args, kwargs):
        name = str(func.overloadpacket)
        if name in BLOCKING_READS or name == "aten.lift_fresh":
            raise RuntimeError(f"capture: {name}: no value is there yet, nor one of the host's")
        if _is_view(func):
            return func(*args, **kwargs)
        if func not in self._warm:
            raise RuntimeError(f"capture: {name} runs for the first time: warm it up before")
        written = [
            value
            for argument, value in zip(func._schema.arguments, args, strict=False)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        outs = [] if written else self._allocated(func, args, kwargs)
        fixed = [tree_map_only(torch.Tensor, self._at_its_address, one) for one in (args, kwargs)]
        self.recorded.append((func, *fixed, [_same_memory(out) for out in outs]))
        result = written or outs
        return result[0] if len(func._schema.returns) == 1 else tuple(result)

    def _allocated(self, func, args, kwargs):
        """Results of the right shapes, in memory of the pool; what they hold is not kept."""
        made = []
        for one in tree_leaves(func(*args, **kwargs)):
            reach = sum((n - 1) * step for n, step in zip(one.shape, one.stride(), strict=True))
            room = self._pool.take((reach + 1) * one.itemsize)
            made.append(room.view(one.dtype).as_strided(one.shape, one.stride()))
            self._own.append(made[-1].untyped_storage().data_ptr())
        return made

    def _at_its_address(self, tensor):
        if tensor.untyped_storage().data_ptr() not in self._own:
            self.storages.append(StorageWeakRef(tensor.untyped_storage()))
        return _same_memory(tensor)


def _is_view(func):
    """Whether results share memory with arguments, and nothing is written."""
    results = [one.alias_info for one in func._schema.returns]
    return any(one is not None and not one.is_write for one in results)


def _same_memory(tensor):
    """The same elements by their address, which keeps nothing alive."""
    storage = tensor.untyped_storage()
    raw = (ctypes.c_uint8 * storage.nbytes()).from_address(storage.data_ptr())
    whole = torch.frombuffer(raw, dtype=torch.uint8)
    offset = tensor.storage_offset() * tensor.itemsize
    rest = whole[offset : offset + (len(whole) - offset) // tensor.itemsize * tensor.itemsize]
    return rest.view(tensor.dtype).as_strided(tensor.shape, tensor.stride())


# ---- graphs of a GPU -----------------------------------------------------------------------------


class CudaGraphs:
    """Those of PyTorch."""

    device = "cuda"

    def pool(self):
        return torch.cuda.graph_pool_handle()

    def warm_up(self, fn):
        aside, here = torch.cuda.Stream(), torch.cuda.current_stream()
        aside.wait_stream(here)
        with torch.cuda.stream(aside):
            result = fn()
        here.wait_stream(aside)
        return result

    def capture(self, fn, pool):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            result = fn()
        return graph, result


# ---- steps ---------------------------------------------------------------------------------------


@dataclass(eq=False)
class State:
    """Keys and values of the last tokens of every sequence, and how many it has had."""

    keys: torch.Tensor  # layers, sequences, window, channels
    values: torch.Tensor
    lengths: torch.Tensor
    runner: object = None

    def twin(self):
        return deepcopy(self)


class Decoder:
    """A step of a small decoder: each layer attends to the window behind its sequence."""

    def __init__(self, layers=4, channels=16, vocab=24, *, device, seed):
        generator = torch.Generator().manual_seed(seed)

        def draw(*shape):
            return torch.randn(shape, generator=generator, dtype=torch.float64).to(device)

        self.embedding = draw(vocab, channels)
        self.weights = [draw(channels, 3 * channels) / math.sqrt(channels) for _ in range(layers)]
        self.runs = 0

    def __call__(self, tokens, state):
        self.runs += 1
        if tokens.dtype != torch.int64:
            raise TypeError(f"tokens: expected int64, found {tokens.dtype}")
        rows = torch.arange(len(tokens), device=tokens.device)
        live, lengths = tokens >= 0, state.lengths[: len(tokens)]
        window = state.keys.shape[2]
        place = lengths % window
        seen = torch.arange(window, device=tokens.device) <= lengths[:, None]
        x = self.embedding[tokens.clamp(min=0)]
        for weight, keys, values in zip(self.weights, state.keys, state.values, strict=True):
            query, key, value = (x @ weight).chunk(3, dim=1)
            for cache, new in ((keys, key), (values, value)):
                cache[rows, place] = torch.where(live[:, None], new, cache[rows, place])
            scores = (keys[: len(tokens)] * query[:, None]).sum(dim=2) / math.sqrt(x.shape[1])
            shares = torch.softmax(scores.masked_fill(~seen, -math.inf), dim=1)
            x = x + (values[: len(tokens)] * shares[:, :, None]).sum(dim=1)
        lengths += live
        return x @ self.embedding.T


def make_state(*, sequences, device, seed, layers=4, window=6, channels=16):
    """Sequences in the middle of things: some in their first window, some beyond it."""
    generator = torch.Generator().manual_seed(seed)
    shape = (layers, sequences, window, channels)
    keys, values = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    lengths = torch.randint(0, 3 * window, (sequences,), generator=generator)
    return State(keys=keys.to(device), values=values.to(device), lengths=lengths.to(device))


def captured_bytes(step, batch):
    """What a pool takes for one capture of this batch."""
    graphs = FakeGraphs()
    pool, tokens = graphs.pool(), torch.full((batch,), PAD)
    state = make_state(sequences=batch, device="cpu", seed=0)
    graphs.warm_up(lambda: step(tokens, state))
    kept = graphs.capture(lambda: step(tokens, state), pool)
    assert kept
    return pool.bytes


def eager_time(n, kernel_us, launch_us):
    """Launch by launch: a kernel starts when it has been launched and the last one is done."""
    launched = done = 0.0
    for _ in range(n):
        launched += launch_us
        done = max(done, launched) + kernel_us
    return done


def graph_time(n, kernel_us, node_gap_us):
    """One launch for all, then node by node."""
    done = 2.5
    for _ in range(n):
        done += 0.001 + node_gap_us + kernel_us
    return done


# ---- the timed step ------------------------------------------------------------------------------


class Chain:
    """Many small kernels, one behind the other, and a state that stays as it is."""

    def __init__(self, kernels, *, device, seed):
        generator = torch.Generator().manual_seed(seed)
        self.embedding = torch.randn(128, 1024, generator=generator).to(device)
        self.kernels = kernels

    def __call__(self, tokens, state):
        x = self.embedding[tokens.clamp(min=0)]
        for _ in range(self.kernels // 2):
            x = torch.sin(x) + x
        return x


def make_inputs_decode(*, batch, kernels, device, seed, buckets=None):
    tokens = torch.randint(0, 128, (batch,), generator=torch.Generator().manual_seed(seed))
    return {
        "step": Chain(kernels, device=device, seed=seed),
        "state": make_state(sequences=8, device=device, seed=seed),
        "tokens": tokens.to(device),
        "buckets": buckets or [batch],
        "graphs": CudaGraphs() if device == "cuda" else FakeGraphs(),
    }


def reference_decode(*, step, state, tokens, buckets, graphs):
    return step(tokens, state)


def eager(*, step, state, tokens, buckets, graphs):
    """The same step, each kernel launched by itself."""
    return step(tokens, state)
