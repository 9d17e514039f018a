"""Kata week26/qlora_finetune_pipeline: stream, finetune, checkpoint, merge, evaluate, in one run.

A run that is killed anywhere resumes from its last whole checkpoint, and ends with the same bits.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

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
    raise NotImplementedError  # TODO(kata): batch and position (about 20 lines)


def prepare(model: Tiny, cfg: Config) -> Tiny:
    """
    Make `model` ready for training, in place: for "full" everything is trained.

    Otherwise all of it is frozen, for "qlora" each `up` and `down` is packed, and each of them
    becomes a `LoraLinear`, in the order of the blocks, `up` before `down`.

    Raises:
        ValueError: method: not in `METHODS`.
    """
    raise NotImplementedError  # TODO(kata): freeze and wrap (about 10 lines)


@torch.no_grad()
def merge(model: Tiny, requantise: bool = False) -> Tiny:
    """
    Fold the adapters into the matrices, in place, in float32: plain `nn.Linear` modules again.

    With `requantise` they hold what remains of the sums in NF4.

    Raises:
        ValueError: model: it has no adapters.
    """
    raise NotImplementedError  # TODO(kata): fold and requantise (about 15 lines)


@torch.no_grad()
def evaluate(model: nn.Module, rows: Tensor, b: int) -> float:
    """Mean loss of a token of `rows`, `b` rows at a time, without dropout; modes stay."""
    raise NotImplementedError  # TODO(kata): mean loss (about 6 lines)


class Checkpoints:
    """Checkpoints in a folder, written by one thread in the background, published by a rename."""

    def __init__(self, folder: Path, write: Callable[[object, Path], None] = torch.save) -> None:
        """Make the folder; what a killed run left unfinished there is removed."""
        raise NotImplementedError  # TODO(kata): publish a checkpoint (about 6 lines)

    def save(self, step: int, state: object) -> None:
        """
        Copy `state` and return; write it once what came before is written.

        Raises:
            Exception: what the write before raised.
        """
        raise NotImplementedError  # TODO(kata): publish a checkpoint (about 10 lines with helpers)

    def wait(self) -> None:
        """
        Return when everything is published.

        Raises:
            Exception: what the last write raised; once.
        """
        raise NotImplementedError  # TODO(kata): wait, once (3 lines)

    def latest(self) -> object | None:
        """Load what was published with the highest step; None, if nothing was."""
        raise NotImplementedError  # TODO(kata): the highest step that is published (2 lines)


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
    # TODO(kata): resume and train, publish a checkpoint, fold and requantise, mean loss (about 60
    # lines with helpers)
    raise NotImplementedError
