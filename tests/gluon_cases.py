"""Calls of the kernels in fixtures/gluon, what they must give, and changes of their source."""

import importlib.util
import tomllib
from pathlib import Path

import torch
from triton.experimental.gluon.language.nvidia import hopper

FOLDER = Path(__file__).parent / "fixtures" / "gluon"
FILES = {
    **dict.fromkeys(("transpose", "layernorm", "tma", "gemm", "ws"), FOLDER / "kernels.py"),
    **dict.fromkeys(("fa3", "pair", "relay", "pingpong", "scan"), FOLDER / "pipelines.py"),
    **dict.fromkeys(("spread", "staged", "multicast", "shared", "split"), FOLDER / "clusters.py"),
}
FILES["grouped"] = FOLDER / "aggregates.py"
BUGS = tomllib.loads((FOLDER / "bugs.toml").read_text(encoding="utf-8"))
VARIANTS = tomllib.loads((FOLDER / "variants.toml").read_text(encoding="utf-8"))


def load(path):
    """A file of kernels as a module of its own."""
    spec = importlib.util.spec_from_file_location(f"gluon_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def changed(kernel, edits, folder):
    """The file of a kernel with some text replaced, as a module."""
    text = FILES[kernel].read_text(encoding="utf-8")
    for edit in edits:
        assert edit["find"] in text, edit["find"]
        text = text.replace(edit["find"], edit["replace"])
    path = folder / "changed.py"
    path.write_text(text, encoding="utf-8")
    return load(path)


def numbers(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def integers(*shape, seed=0):
    """Small ones: every product and sum is exact, so that results are compared for equality."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-3, 4, shape, generator=generator).half()


# each returns what it got, what is right, and how far apart they may be


def transpose(module, rows=37, cols=70):
    x, y = numbers(rows, cols), numbers(cols, seed=1)
    return module.transpose_add(x, y), (x + y).T, 0


def layernorm(module, rows=7, programs=2):
    x, scale, shift = numbers(rows, 1024).half(), numbers(1024).half(), numbers(1024).half()
    wide = (one.double() for one in (x, scale, shift))
    want = torch.nn.functional.layer_norm(next(wide), (1024,), *wide, 1e-5)
    return module.layernorm(x, scale, shift, programs=programs), want, 1e-2


def tma(module, rows=40, cols=320, stages=3):
    x = numbers(rows, cols).half()
    return module.tma_scale(x, 2.0, STAGES=stages), x * 2, 0


def _product(multiply, m, n, k, **sizes):
    a, b = integers(m, k), integers(k, n, seed=1)
    return multiply(a, b, **sizes), a.double() @ b.double(), 0


def gemm(module, m=130, n=136, k=200, stages=3):
    return _product(module.wgmma_gemm, m, n, k, STAGES=stages)


def ws(module, m=130, n=136, k=200, stages=3, programs=3):
    return _product(module.ws_gemm, m, n, k, STAGES=stages, programs=programs)


def pair(module, m=200, n=136, k=264):
    return _product(module.pair_gemm, m, n, k)


def pingpong(module, m=200, n=136, k=264):
    return _product(module.pingpong, m, n, k)


def grouped(module, m=300, n=520, k=136):
    return _product(module.grouped_gemm, m, n, k)


def fa3(module, length=200, causal=False):
    q, k, v = (numbers(length, 64, seed=seed).half() for seed in range(3))
    scores = q.double() @ k.double().T / 8
    if causal:
        seen = torch.ones(length, length, dtype=torch.bool).tril()
        scores = scores.masked_fill(~seen, float("-inf"))
    out, lse = module.fa3(q, k, v, causal)
    assert (lse.double() - scores.logsumexp(-1)).abs().max() < 1e-4
    return out, scores.softmax(-1) @ v.double(), 2e-3


def relay(module):
    x = numbers(40, 320).half()
    return module.relay(x), x * x, 0


def scan(module):
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(-9, 9, (5, 512), generator=generator).float()
    return module.scan_rows(x), x.double().cumsum(1), 0


def spread(module, num_ctas=2, rows=7):
    x = numbers(rows, 512)
    return module.softmax(x, num_ctas=num_ctas), x.double().softmax(1), 1e-6


def staged(module, rows=7, columns=512, **sizes):
    x = numbers(rows, columns)
    return module.staged(x, **sizes), x * 2, 0


def multicast(module, bases=((0, 0),), rows=40, columns=200, stages=2):
    x = numbers(rows, columns).half()
    return module.multicast(x, bases, STAGES=stages), x, 0


def shared(module, m=136, n=72, k=264, **sizes):
    return _product(module.shared_gemm, m, n, k, **sizes)


def split(module, m=136, n=72, k=264, **sizes):
    return _product(module.split_gemm, m, n, k, **sizes)


CASES = {
    one.__name__: one
    for one in (*(transpose, layernorm, tma, gemm, ws, fa3, pair, relay, pingpong, scan, grouped),)
}
# programs that are clusters, which Triton 3.6 lacks the barrier of
CLUSTERS = {one.__name__: one for one in (spread, staged, multicast, shared, split)}
if not hasattr(hopper, "cluster"):
    CLUSTERS.clear()
EDGES = {
    "one row": ("layernorm", {"rows": 1}),
    "a program for each row": ("layernorm", {"rows": 5, "programs": 5}),
    "one box": ("tma", {"rows": 16, "cols": 64}),
    "part of a box": ("tma", {"rows": 17, "cols": 72, "stages": 2}),
    "more boxes than stages": ("tma", {"rows": 16, "cols": 640, "stages": 4}),
    "one tile": ("gemm", {"m": 64, "n": 64, "k": 64}),
    "less than a tile": ("gemm", {"m": 8, "n": 8, "k": 72, "stages": 2}),
    "many tiles along K": ("gemm", {"m": 64, "n": 64, "k": 448, "stages": 4}),
    "one block of keys": ("fa3", {"length": 64}),
    "many blocks of keys": ("fa3", {"length": 320}),
    "a causal mask": ("fa3", {"length": 300, "causal": True}),
    "a pair of which half is out of bounds": ("pair", {"m": 100, "n": 64, "k": 64}),
    "narrow": ("pair", {"m": 130, "n": 8, "k": 72}),
    "one tile, three programs": ("ws", {"m": 64, "n": 64, "k": 64}),
    "more programs than tiles": ("ws", {"m": 200, "n": 200, "k": 136, "stages": 4, "programs": 16}),
}
