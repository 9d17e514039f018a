"""Kata week26/qlora_finetune_pipeline: stream, finetune, checkpoint, merge, evaluate, in one run.

A run that is killed anywhere resumes from its last whole checkpoint, and ends with the same bits.
"""

import copy
import math
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

METHODS = ("full", "lora", "qlora")
LEVELS = torch.tensor([
    -1.0, -0.6961928, -0.52507305, -0.39491749, -0.28444138, -0.18477343, -0.09105004, 0.0,
    0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0,
])  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """What a run does: `steps` steps on `b` rows each, a checkpoint every `every` steps."""

    method: str = "qlora"
    r: int = 4
    alpha: float = 8.0
    dropout: float = 0.1
    lr: float = 2e-2
    steps: int = 40
    b: int = 8
    every: int = 10
    seed: int = 0


@dataclass(slots=True)
class Stage:
    """Seconds spent in a stage, and the tokens that it predicted."""

    seconds: float = 0.0
    tokens: int = 0


@dataclass(slots=True)
class Report:
    """Losses by model, stages by name, and the steps of this call, without those resumed from."""

    losses: dict[str, float] = field(default_factory=dict)
    stages: dict[str, Stage] = field(default_factory=dict)
    steps_run: int = 0


class Attention(nn.Module):
    """One causal head, residual."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return [rows, s, d] of the same."""
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        return x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True))


class Block(nn.Module):
    """A residual MLP."""

    def __init__(self, d: int, ffn: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.up, self.down = nn.Linear(d, ffn, bias=False), nn.Linear(ffn, d, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return [rows, s, d] of the same."""
        return x + self.down(F.silu(self.up(self.norm(x))))


class Tiny(nn.Module):
    """A language model; only `up` and `down` of each block get adapters."""

    def __init__(self, vocab: int = 32, d: int = 32, ffn: int = 96, blocks: int = 2) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(vocab, d), nn.Linear(d, vocab, bias=False)
        self.attention = Attention(d)
        self.blocks = nn.ModuleList(Block(d, ffn) for _ in range(blocks))

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits [rows, s, vocab]."""
        x = self.attention(self.embed(ids))
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Packed:
    """A matrix in NF4: two elements a byte, a scale for each 64 of them. It has no gradient."""

    def __init__(self, weight: Tensor) -> None:
        flat = F.pad(weight.detach().flatten(), (0, -weight.numel() % 64)).view(-1, 64)
        self.shape, self.scales = weight.shape, flat.abs().amax(dim=1)
        levels = LEVELS.to(weight.device)
        near = flat / self.scales.clamp_min(1e-30)[:, None]
        codes = torch.bucketize(near, (levels[1:] + levels[:-1]) / 2).to(torch.uint8).flatten()
        self.packed = codes[::2] << 4 | codes[1::2]

    def dequant(self) -> Tensor:
        """Make the matrix that it stands for, float32."""
        codes = torch.stack((self.packed >> 4, self.packed & 15), dim=1).view(-1, 64)
        values = LEVELS.to(codes.device)[codes.int()] * self.scales[:, None]
        return values.flatten()[: math.prod(self.shape)].view(self.shape)


class _Unpacked(torch.autograd.Function):
    """x wᵀ with a packed w, which is unpacked again for backward."""

    @staticmethod
    def forward(ctx: object, x: Tensor, packed: Packed) -> Tensor:
        ctx.packed = packed
        return x @ packed.dequant().t()

    @staticmethod
    def backward(ctx: object, dy: Tensor) -> tuple[Tensor, None]:
        return dy @ ctx.packed.dequant(), None


class LoraLinear(nn.Module):
    """x wᵀ + s (drop(x) aᵀ) bᵀ, w frozen: a tensor, or `Packed`. Draws a; b is 0."""

    def __init__(self, weight: Tensor | Packed, r: int, alpha: float, dropout: float) -> None:
        super().__init__()
        out, into = weight.shape
        self.weight, self.s, self.drop = weight, alpha / r, nn.Dropout(dropout)
        self.a = nn.Parameter((torch.rand(r, into) * 2 - 1) / math.sqrt(into))
        self.b = nn.Parameter(torch.zeros(out, r))

    def forward(self, x: Tensor) -> Tensor:
        """Return [..., out] of [..., in]."""
        packed = isinstance(self.weight, Packed)
        y = _Unpacked.apply(x, self.weight) if packed else x @ self.weight.t()
        return y + self.drop(x) @ self.a.t() @ self.b.t() * self.s


def loss_of(model: nn.Module, rows: Tensor) -> Tensor:
    """Mean loss of predicting each token of `rows` [b, s + 1] but the first from the one before."""
    logits = model(rows[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())


def batches(
    data: Path, b: int, seed: int, position: tuple[int, int] = (0, 0)
) -> Iterator[tuple[Tensor, tuple[int, int]]]:
    """
    Yield batches of `b` rows without end, each with the position from which the next one begins.

    A position is an epoch and the rows of it that were read. An epoch reads the files of `data`
    (*.npy, [rows, s + 1], by name) in the order of `torch.randperm` with a generator seeded with
    seed + epoch, rows in order. A batch takes what is missing from the next epoch.

    Raises:
        ValueError: data: there are no rows. b: below 1. The message begins with the name.
    """
    # batch and position
    files = sorted(data.glob("*.npy"))
    if not sum(len(np.load(file, mmap_mode="r")) for file in files):
        raise ValueError(f"data: expected rows in {data}, found none")
    if b < 1:
        raise ValueError(f"b: expected 1 or more, found {b}")
    epoch, skipped = position
    batch: list[np.ndarray] = []
    while True:
        order = torch.randperm(len(files), generator=torch.Generator().manual_seed(seed + epoch))
        row = 0
        for at in order.tolist():
            rows = np.load(files[at], mmap_mode="r")
            first = min(max(skipped - row, 0), len(rows))
            for index in range(first, len(rows)):
                batch.append(rows[index])
                if len(batch) == b:
                    ids = torch.from_numpy(np.stack(batch).astype(np.int64))
                    yield ids, (epoch, row + index + 1)
                    batch = []
            row += len(rows)
        epoch, skipped = epoch + 1, 0


def prepare(model: Tiny, cfg: Config) -> Tiny:
    """
    Make `model` ready for training, in place: for "full" everything is trained.

    Otherwise all of it is frozen, for "qlora" each `up` and `down` is packed, and each of them
    becomes a `LoraLinear`, in the order of the blocks, `up` before `down`.

    Raises:
        ValueError: method: not in `METHODS`.
    """
    # freeze and wrap
    if cfg.method not in METHODS:
        raise ValueError(f"method: expected one of {', '.join(METHODS)}, found {cfg.method!r}")
    model.requires_grad_(cfg.method == "full")
    if cfg.method == "full":
        return model
    for block in model.blocks:
        for name in ("up", "down"):
            weight = getattr(block, name).weight.detach()
            kept = Packed(weight) if cfg.method == "qlora" else weight
            setattr(block, name, LoraLinear(kept, cfg.r, cfg.alpha, cfg.dropout))
    return model


@torch.no_grad()
def merge(model: Tiny, requantise: bool = False) -> Tiny:
    """
    Fold the adapters into the matrices, in place, in float32: plain `nn.Linear` modules again.

    With `requantise` they hold what remains of the sums in NF4.

    Raises:
        ValueError: model: it has no adapters.
    """
    # fold and requantise
    if not any(isinstance(one, LoraLinear) for one in model.modules()):
        raise ValueError("model: expected adapters, found none")
    for block in model.blocks:
        for name in ("up", "down"):
            layer = getattr(block, name)
            packed = isinstance(layer.weight, Packed)
            weight = layer.weight.dequant() if packed else layer.weight
            weight = weight + layer.s * layer.b @ layer.a
            merged = nn.Linear(*reversed(weight.shape), bias=False, device="meta")
            merged.weight = nn.Parameter(
                Packed(weight).dequant() if requantise else weight, requires_grad=False
            )
            setattr(block, name, merged)
    return model


@torch.no_grad()
def evaluate(model: nn.Module, rows: Tensor, b: int) -> float:
    """Mean loss of a token of `rows`, `b` rows at a time, without dropout; modes stay."""
    # mean loss
    modes = [(one, one.training) for one in model.modules()]
    model.eval()
    total = sum(loss_of(model, part).item() * len(part) for part in rows.split(b))
    for one, training in modes:
        one.training = training
    return total / len(rows)


class Checkpoints:
    """Checkpoints in a folder, written by one thread in the background, published by a rename."""

    def __init__(self, folder: Path, write: Callable[[object, Path], None] = torch.save) -> None:
        """Make the folder; what a killed run left unfinished there is removed."""
        # publish a checkpoint
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob("*.tmp"):
            left.unlink(missing_ok=True)
        self._folder, self._write = folder, write
        self._pool = ThreadPoolExecutor(1)
        self._pending: Future[None] | None = None

    def save(self, step: int, state: object) -> None:
        """
        Copy `state` and return; write it once what came before is written.

        Raises:
            Exception: what the write before raised.
        """
        self.wait()
        self._pending = self._pool.submit(self._publish, step, copy.deepcopy(state))

    def wait(self) -> None:
        """
        Return when everything is published.

        Raises:
            Exception: what the last write raised; once.
        """
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def latest(self) -> object | None:
        """Load what was published with the highest step; None, if nothing was."""
        found = sorted(self._folder.glob("step-*.pt"))
        return torch.load(found[-1], weights_only=True) if found else None

    def _publish(self, step: int, state: object) -> None:
        # publish a checkpoint
        path = self._folder / f"step-{step:012}.pt"
        unfinished = path.with_suffix(".tmp")
        self._write(state, unfinished)
        unfinished.replace(path)
        for older in self._folder.glob("step-*.pt"):
            if older < path:
                older.unlink(missing_ok=True)


def run(
    cfg: Config,
    load: Callable[[], Tiny],
    data: Path,
    held_out: Tensor,
    folder: Path,
    *,
    clock: Callable[[], float],
    on_step: Callable[[int, float], None] = lambda step, loss: None,
) -> Report:
    """
    Finetune what `load()` makes on `data`, resuming from `folder`, and evaluate on `held_out`.

    `on_step` is called after each step with its number, from 1 on, and its loss. Everything
    random follows from `cfg`.

    Raises:
        ValueError: method: not in `METHODS`. config: `folder` has a checkpoint of another one.
    """
    # resume and train
    timer = _Timer(clock)
    checkpoints = Checkpoints(folder)
    found = checkpoints.latest()
    if found is not None and found["config"] != asdict(cfg):
        raise ValueError(f"config: expected {found['config']}, found {asdict(cfg)}")
    model = load()
    losses = {"base": timer.evaluate(model, held_out, cfg.b)}
    torch.manual_seed(cfg.seed)
    model = prepare(model, cfg).train()
    trained = {name: one for name, one in model.named_parameters() if one.requires_grad}
    optimizer = torch.optim.Adam(trained.values(), lr=cfg.lr)
    step, position = 0, (0, 0)
    if found is not None:
        step, position = found["step"], found["position"]
        for name, one in trained.items():
            one.data.copy_(found["trained"][name])
        optimizer.load_state_dict(found["optimizer"])
        torch.set_rng_state(found["rng"])
    report = Report(losses, timer.stages, cfg.steps - step)
    stream = batches(data, cfg.b, cfg.seed, position)
    while step < cfg.steps:
        with timer("stream"):
            rows, position = next(stream)
        with timer("train", rows[:, 1:].numel()):
            optimizer.zero_grad()
            loss = loss_of(model, rows)
            loss.backward()
            optimizer.step()
        step += 1
        # publish a checkpoint
        if step % cfg.every == 0 or step == cfg.steps:
            with timer("checkpoint"):
                state = {"config": asdict(cfg), "step": step, "position": position}
                state["trained"] = {name: one.detach() for name, one in trained.items()}
                state |= {"optimizer": optimizer.state_dict(), "rng": torch.get_rng_state()}
                checkpoints.save(step, state)
        on_step(step, loss.item())
    with timer("checkpoint"):
        checkpoints.wait()
    # mean loss
    losses["adapter"] = timer.evaluate(model, held_out, cfg.b)
    # fold and requantise
    if cfg.method != "full":
        for name, requantise in (("merged", False), ("requantised", True)):
            with timer("merge"):
                merged = merge(copy.deepcopy(model), requantise)
            losses[name] = timer.evaluate(merged, held_out, cfg.b)
    return report


class _Timer:
    """Adds up seconds and tokens by stage."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        names = ("stream", "train", "checkpoint", "merge", "evaluate")
        self.stages = {name: Stage() for name in names}

    @contextmanager
    def __call__(self, name: str, tokens: int = 0) -> Iterator[None]:
        start = self._clock()
        yield
        self.stages[name].seconds += self._clock() - start
        self.stages[name].tokens += tokens

    def evaluate(self, model: nn.Module, rows: Tensor, b: int) -> float:
        with self("evaluate", rows[:, 1:].numel()):
            return evaluate(model, rows, b)
