"""Kata week26/paged_optimizer: Adam's moments in host memory, a budget of pages on the device.

A step goes through all pages once; the memory that is passed in counts the copies.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Memory(Protocol):
    """
    Pages in host memory, and frames for them on the device.

    `load` copies a page into a new frame and returns that, float32 [page_bytes / 4]; `store`
    copies the frame back; `free` gives it up without a copy.
    """

    n_pages: int
    page_bytes: int

    def load(self, page: int) -> Tensor: ...  # noqa: D102
    def store(self, page: int) -> None: ...  # noqa: D102
    def free(self, page: int) -> None: ...  # noqa: D102


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What a page belongs to: elements start to stop - 1 of a flattened parameter."""

    param: int
    start: int
    stop: int


def layout(params: list[Tensor], page_bytes: int) -> list[Piece]:
    """
    The pieces that the parameters are cut into, in order; piece i has page i.

    A page has the piece's first moments from its beginning on, and from its middle the second.

    Raises:
        ValueError: `page_bytes` is not a positive multiple of 8.
    """
    if page_bytes < 8 or page_bytes % 8:
        raise ValueError(f"page_bytes: expected a positive multiple of 8, found {page_bytes}")
    size = page_bytes // 8
    return [
        Piece(param=at, start=start, stop=min(start + size, param.numel()))
        for at, param in enumerate(params)
        for start in range(0, param.numel(), size)
    ]


def adamw_(
    p: Tensor, g: Tensor, m: Tensor, v: Tensor, t: int,
    lr: float, betas: tuple[float, float], eps: float, weight_decay: float,
) -> None:  # fmt: skip
    """Step `t`, from 1 on, of AdamW, in place."""
    p.mul_(1 - lr * weight_decay)
    m.lerp_(g, 1 - betas[0])
    v.mul_(betas[1]).addcmul_(g, g, value=1 - betas[1])
    denominator = (v.sqrt() / (1 - betas[1] ** t) ** 0.5).add_(eps)
    p.addcdiv_(m, denominator, value=-lr / (1 - betas[0] ** t))


class PagePool:
    """
    At most `capacity` pages on the device at a time.

    A page that is in use stays where it is. One that is not may be evicted when room is needed, and
    is written back then if it has been changed, and only then.

    Attributes:
        memory: Where pages are.
        capacity: Frames there may be.

    Raises:
        ValueError: `capacity` is below 1; the message begins with the argument's name, here and
            below.
    """

    def __init__(self, memory: Memory, capacity: int) -> None:
        raise NotImplementedError  # TODO(kata): check (about 9 lines with helpers)

    def acquire(self, page: int) -> Tensor:
        """
        The frame of `page`, which is in use until it is released as often as it was acquired.

        Raises:
            ValueError: there is no such page.
            RuntimeError: it is not on the device, and `capacity` others are in use; nothing has
                changed then.
        """
        # TODO(kata): check, acquire and release, evict (about 20 lines with helpers)
        raise NotImplementedError

    def release(self, page: int, dirty: bool) -> None:
        """
        End one use of `page`; `dirty` says whether it was written to.

        Raises:
            ValueError: the page is not in use.
        """
        raise NotImplementedError  # TODO(kata): check, acquire and release (about 7 lines)

    def resize(self, capacity: int) -> None:
        """
        Change the budget at once: pages are evicted until it is kept.

        Raises:
            ValueError: `capacity` is below 1, or below the number of pages in use; nothing has
                changed then.
        """
        raise NotImplementedError  # TODO(kata): check, evict (about 4 lines)


def prefetch_order(n_pages: int, step: int) -> list[int]:
    """Return the order in which step `step`, from 0 on, goes through pages 0 to n_pages - 1."""
    raise NotImplementedError  # TODO(kata): order of the pages (1 line)


class PagedAdamW:
    """
    AdamW whose moments are in pages.

    Args:
        params: Contiguous float32 parameters, read once.
        pool: Of pages whose moments are 0; nothing else uses it during a step.
        lr: As in torch.optim.AdamW, like the others.
        betas: Likewise.
        eps: Likewise.
        weight_decay: Likewise.

    Raises:
        ValueError: one of `params` is not contiguous float32; the memory of `pool` has fewer pages
            than `layout` takes, or pages of no multiple of 8 bytes (`page_bytes`).
    """

    def __init__(
        self, params: Iterable[Tensor], pool: PagePool, lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 1e-2,
    ) -> None:  # fmt: skip
        raise NotImplementedError  # TODO(kata): check (about 15 lines)

    @torch.no_grad()
    def step(self) -> None:
        """
        Update the parameters that have a gradient, page by page.

        The page that comes next is acquired before the one at hand is released, unless the pool
        has room for one only. Pages of parameters without a gradient stay where they are.
        """
        # TODO(kata): order of the pages, one page ahead (about 30 lines with helpers)
        raise NotImplementedError

    def state_dict(self) -> list[dict[str, int | Tensor]]:
        """
        Copies of the states, a dict for each parameter, wherever its pages are.

        `step` is the number of steps in which it had a gradient, `exp_avg` and `exp_avg_sq` are
        the moments, float32 in its shape.
        """
        raise NotImplementedError  # TODO(kata): copy the states (about 10 lines)
