"""The memory that counts its copies, what a step needs at least, and AdamW without pages."""

import torch


class Memory:
    """
    Host pages and device frames, both on the CPU; what is freed turns into NaN.

    `limit` is how many frames there may be; `log` has every copy and every release, in order.
    """

    def __init__(self, n_pages, page_bytes, limit=None):
        self.n_pages, self.page_bytes, self.limit = n_pages, page_bytes, limit
        self.host = torch.zeros(n_pages, page_bytes // 4)
        self.frames = {}
        self.log = []

    def load(self, page):
        assert 0 <= page < self.n_pages, f"load({page}): there are {self.n_pages} pages"
        assert page not in self.frames, f"load({page}): it has a frame already"
        self.frames[page] = self.host[page].clone()
        self.log.append(("load", page))
        held = len(self.frames)
        assert self.limit is None or held <= self.limit, f"{held} frames, budget {self.limit}"
        return self.frames[page]

    def store(self, page):
        assert page in self.frames, f"store({page}): it has no frame"
        self.host[page] = self.frames[page]
        self.log.append(("store", page))

    def free(self, page):
        assert page in self.frames, f"free({page}): it has no frame"
        self.frames.pop(page).fill_(torch.nan)
        self.log.append(("free", page))

    def count(self, what):
        return sum(kind == what for kind, _ in self.log)


def least_loads(trace, capacity):
    """Loads of Belady's algorithm: the page that is needed last goes."""
    held, loads = set(), 0
    for at, page in enumerate(trace):
        if page in held:
            continue
        loads += 1
        if len(held) == capacity:
            rest = trace[at:]
            held.remove(max(held, key=lambda one: rest.index(one) if one in rest else len(rest)))
        held.add(page)
    return loads


def draw(shapes, steps, seed):
    """Parameters N(0, 1), and for each step a gradient for each of them."""
    generator = torch.Generator().manual_seed(seed)
    params = [torch.randn(shape, generator=generator) for shape in shapes]
    grads = [[torch.randn(shape, generator=generator) for shape in shapes] for _ in range(steps)]
    return params, grads


def adamw(params, grads, dtype, **settings):
    """Parameters and states after steps of torch.optim.AdamW."""
    own = [torch.nn.Parameter(param.to(dtype)) for param in params]
    optimizer = torch.optim.AdamW(own, **settings)
    for step in grads:
        for param, grad in zip(own, step, strict=True):
            param.grad = None if grad is None else grad.to(dtype)
        optimizer.step()
    return [param.detach() for param in own], [optimizer.state[param] for param in own]
