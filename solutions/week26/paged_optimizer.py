"""Kata week26/paged_optimizer: Adam's moments in host memory, a budget of pages on the device.

A step goes through all pages once. It begins with those that the step before has left on the
device.
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
        # check
        _check_capacity(capacity, 1)
        self.memory = memory
        self.capacity = capacity
        self._frames: dict[int, Tensor] = {}  # the one acquired longest ago first
        self._users: dict[int, int] = {}
        self._dirty: set[int] = set()

    def acquire(self, page: int) -> Tensor:
        """
        The frame of `page`, which is in use until it is released as often as it was acquired.

        Raises:
            ValueError: there is no such page.
            RuntimeError: it is not on the device, and `capacity` others are in use; nothing has
                changed then.
        """
        # check
        if not 0 <= page < self.memory.n_pages:
            raise ValueError(f"page: expected 0 to {self.memory.n_pages - 1}, found {page}")
        # acquire and release
        if page in self._frames:
            frame = self._frames.pop(page)
        else:
            if len(self._frames) == self.capacity:
                self._evict()
            frame = self.memory.load(page)
        self._frames[page] = frame
        self._users[page] = self._users.get(page, 0) + 1
        return frame

    def release(self, page: int, dirty: bool) -> None:
        """
        End one use of `page`; `dirty` says whether it was written to.

        Raises:
            ValueError: the page is not in use.
        """
        # check
        if page not in self._users:
            raise ValueError(f"page: expected one in use, found {page}")
        # acquire and release
        self._users[page] -= 1
        if not self._users[page]:
            del self._users[page]
        if dirty:
            self._dirty.add(page)

    def resize(self, capacity: int) -> None:
        """
        Change the budget at once: pages are evicted until it is kept.

        Raises:
            ValueError: `capacity` is below 1, or below the number of pages in use; nothing has
                changed then.
        """
        # check
        _check_capacity(capacity, max(1, len(self._users)))
        # evict
        while len(self._frames) > capacity:
            self._evict()
        self.capacity = capacity

    def _evict(self) -> None:
        # evict
        page = next((page for page in self._frames if page not in self._users), None)
        if page is None:
            raise RuntimeError(f"all {len(self._frames)} pages on the device are in use")
        if page in self._dirty:
            self.memory.store(page)
            self._dirty.remove(page)
        self.memory.free(page)
        del self._frames[page]


def _check_capacity(capacity: int, least: int) -> None:
    if capacity < least:
        raise ValueError(f"capacity: expected at least {least}, found {capacity}")


def prefetch_order(n_pages: int, step: int) -> list[int]:
    """Return the order in which step `step`, from 0 on, goes through pages 0 to n_pages - 1."""
    # order of the pages
    # a step ends where the next one begins: the least recently used page is the last one needed
    return list(range(n_pages)) if step % 2 == 0 else list(range(n_pages - 1, -1, -1))


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
        # check
        self._params = list(params)
        for param in self._params:
            if param.dtype != torch.float32 or not param.is_contiguous():
                raise ValueError(
                    f"params: expected contiguous float32, found {param.dtype} {param.stride()}"
                )
        self._pieces = layout(self._params, pool.memory.page_bytes)
        if pool.memory.n_pages < len(self._pieces):
            raise ValueError(
                f"pool: expected {len(self._pieces)} pages, found {pool.memory.n_pages}"
            )
        self._pool = pool
        self._settings = lr, betas, eps, weight_decay
        self._t = [0] * len(self._params)
        self._steps = 0

    @torch.no_grad()
    def step(self) -> None:
        """
        Update the parameters that have a gradient, page by page.

        The page that comes next is acquired before the one at hand is released, unless the pool
        has room for one only. Pages of parameters without a gradient stay where they are.
        """
        # order of the pages
        grads = [param.grad for param in self._params]
        scan = prefetch_order(len(self._pieces), self._steps)
        order = [page for page in scan if grads[self._pieces[page].param] is not None]
        if not order:
            return
        self._steps += 1
        self._t = [t + (grad is not None) for t, grad in zip(self._t, grads, strict=True)]
        # one page ahead
        ahead = self._pool.capacity > 1
        at, flat = -1, None
        frame = self._pool.acquire(order[0])
        for page, following in zip(order, [*order[1:], None], strict=True):
            coming = self._pool.acquire(following) if ahead and following is not None else None
            if self._pieces[page].param != at:  # once for all its pages: it may be a copy
                at = self._pieces[page].param
                flat = grads[at].reshape(-1)
            self._update(self._pieces[page], frame, flat)
            self._pool.release(page, dirty=True)
            if coming is None and following is not None:
                coming = self._pool.acquire(following)
            frame = coming

    def _update(self, piece: Piece, frame: Tensor, grad: Tensor) -> None:
        m, v = _moments(piece, frame)
        params = self._params[piece.param].view(-1)
        p, g = (x[piece.start : piece.stop] for x in (params, grad))
        adamw_(p, g, m, v, self._t[piece.param], *self._settings)

    def state_dict(self) -> list[dict[str, int | Tensor]]:
        """
        Copies of the states, a dict for each parameter, wherever its pages are.

        `step` is the number of steps in which it had a gradient, `exp_avg` and `exp_avg_sq` are
        the moments, float32 in its shape.
        """
        # copy the states
        states = []
        for param, t in zip(self._params, self._t, strict=True):
            m, v = torch.zeros_like(param), torch.zeros_like(param)
            states.append({"step": t, "exp_avg": m.detach(), "exp_avg_sq": v.detach()})
        for page, piece in enumerate(self._pieces):
            frame = self._pool.acquire(page)
            state = states[piece.param]
            for name, moment in zip(("exp_avg", "exp_avg_sq"), _moments(piece, frame), strict=True):
                state[name].view(-1)[piece.start : piece.stop] = moment
            self._pool.release(page, dirty=False)
        return states


def _moments(piece: Piece, frame: Tensor) -> tuple[Tensor, Tensor]:
    size, middle = piece.stop - piece.start, len(frame) // 2
    return frame[:size], frame[middle : middle + size]
