"""What is right: autograd, of the plain formula in float64."""

import weakref

import torch
from torch.nn import functional as F

ADAPTERS = ("ag", "bg", "au", "bu", "ad", "bd")
# at 16 times everything e is a difference of thousands: what is left near 0 decides silu's slope
SCALES = (2.0, 1 / 128)


def make_inputs(*, t, d, f, r, dtype, device, seed):
    """Draw everything so that each result is about 1; the adapters count as much as the weights."""
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape):
        drawn = torch.randn(shape, generator=draw) * shape[-1] ** -0.5
        return drawn.to(dtype).to(device)

    inputs = {"x": normal(t, d) * d**0.5, "dy": normal(t, d)}
    for name, out, into in (("g", f, d), ("u", f, d), ("d", d, f)):
        inputs |= {f"w{name}": normal(out, into), f"a{name}": normal(r, into)}
        inputs |= {f"b{name}": normal(out, r)}
    return inputs | {"sg": 2.0, "su": 0.5, "sd": 1.5}


def project(x, w, a, b, s):
    w = w if isinstance(w, torch.Tensor) else w.weight
    return x @ w.T + s * ((x @ a.T) @ b.T)


def eager(x, wg, ag, bg, sg, wu, au, bu, su, wd, ad, bd, sd):
    h = F.silu(project(x, wg, ag, bg, sg)) * project(x, wu, au, bu, su)
    return project(h, wd, ad, bd, sd)


def eager_step(*, x, dy, **rest):
    """Forward and backward as autograd does them, in the dtype of the inputs."""
    with torch.enable_grad():
        leaves = {"x": x.detach().requires_grad_()}
        leaves |= {name: rest[name].detach().requires_grad_() for name in ADAPTERS}
        y = eager(**{**rest, **leaves})
        grads = torch.autograd.grad(y, list(leaves.values()), dy)
    return y.detach(), *grads


def reference(**inputs):
    wide = {
        name: one.double() if isinstance(one, torch.Tensor) else one for name, one in inputs.items()
    }
    return eager_step(**wide)


def same_precision(**inputs):
    return eager_step(**inputs)


class Quantized:
    """A weight of few bits that is unpacked on demand; it knows how often, and what is alive."""

    handed_out = ()  # by all of them, as long as it is alive

    def __init__(self, weight):
        self.weight, self.shape, self.dtype = weight, weight.shape, weight.dtype
        self.calls, self.most = 0, 0

    def dequant(self):
        made = self.weight.clone()
        self.calls += 1
        Quantized.handed_out = [*self.alive(), weakref.ref(made)]
        self.most = max(self.most, len(Quantized.handed_out))
        return made

    @staticmethod
    def alive():
        """What was handed out and is there yet."""
        return [one for one in Quantized.handed_out if one() is not None]
