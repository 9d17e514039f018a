"""What is right: a list of every tensor, and a small LLaMA that is really finetuned."""

import math

import torch
from torch import nn
from torch.nn import functional as F

# ---- every tensor by itself ----------------------------------------------------------------


def tensors(cfg, plan):
    """Yield of every parameter its elements, whether it is trained, and whether it is in NF4."""
    full = plan.method == "full"
    for _layer in range(cfg.layers):
        for name, (out, into) in cfg.projections.items():
            yield out * into, full, plan.method == "qlora"
            if not full and name in plan.targets:
                yield plan.r * into, True, False
                yield out * plan.r, True, False
        for _norm in range(2):
            yield cfg.d, full, False
    yield cfg.d, full, False
    for _table in range(1 if cfg.tied else 2):
        yield cfg.vocab * cfg.d, full, False


def packed_bytes(n, double=True):
    """Count the bytes of NF4 block by block."""
    blocks = len(range(0, n, 64))
    if not double:
        return len(range(0, n, 2)) + 4 * blocks
    return len(range(0, n, 2)) + blocks + 4 * len(range(0, blocks, 256)) + 4


def states(cfg, plan):
    found = dict.fromkeys(("weights", "grads", "master", "optim"), 0)
    trained = 0
    for n, trains, nf4 in tensors(cfg, plan):
        found["weights"] += packed_bytes(n) if nf4 else 2 * n
        trained += n * trains
    found["grads"] = 2 * trained
    found["master"] = 4 * trained * plan.master
    found["optim"] = {
        "adamw": 8 * trained,
        "adam8bit": 2 * (trained + 4 * math.ceil(trained / 256)),
    }[plan.optim]
    return {name: (size + plan.fsdp - 1) // plan.fsdp for name, size in found.items()}


def kept(cfg, plan, b, s):
    """Yield shape and bytes an element of everything that is kept for backward."""
    full = plan.method == "full"
    trained = set(cfg.projections) if full else set(plan.targets)
    for _layer in range(cfg.layers):
        yield (b, s, cfg.d), 2  # the layer's input: its norm's, or all there is
        if plan.recompute:
            continue
        yield (b, s), 4  # reciprocal root mean square
        if trained & {"q", "k", "v"}:
            yield (b, s, cfg.d), 2
        yield (b, s, cfg.d), 2  # queries
        yield (b, s, cfg.kv), 2
        yield (b, s, cfg.kv), 2
        yield (b, s, cfg.d), 2  # the attention's output, which the matrix o shares
        yield (b, cfg.heads, s), 4  # log-sum-exp
        yield (b, s, cfg.d), 2  # the second norm's input
        yield (b, s), 4
        if trained & {"gate", "up"}:
            yield (b, s, cfg.d), 2
        yield (b, s, cfg.ffn), 2
        yield (b, s, cfg.ffn), 2
        if "down" in trained:
            yield (b, s, cfg.ffn), 2
        for _adapter in [] if full else plan.targets:
            yield (b, s, plan.r), 2
    yield (b, s, cfg.d), 2
    yield (b, s), 4
    if full:
        yield (b, s, cfg.d), 2  # the head's input


def activations(cfg, plan, b, s):
    return sum(math.prod(shape) * size for shape, size in kept(cfg, plan, b, s))


def peak(cfg, plan, b, s):
    every = states(cfg, plan)
    total = sum(every.values())
    # logits in 16 bits; their log-softmax and two gradients in 32
    at_loss = total - every["grads"] + activations(cfg, plan, b, s) + b * s * cfg.vocab * 14
    sizes = [n for n, trains, _ in tensors(cfg, plan) if trains]
    spike = 0
    if plan.optim == "adamw":
        spike = 8 * (sum(sizes) if plan.foreach else max(sizes))
    return max(at_loss, total + (spike + plan.fsdp - 1) // plan.fsdp)


def batch(cfg, plan, s, memory_bytes):
    """Try one more until it does not fit."""
    found = 0
    while peak(cfg, plan, found + 1, s) <= memory_bytes:
        found += 1
    return found


# ---- a real one ----------------------------------------------------------------------------

NORMAL = torch.tensor([-1.0, -0.7, -0.53, -0.39, -0.28, -0.18, -0.09, 0.0])
CODES = torch.cat((NORMAL, -NORMAL[:-1].flip(0), torch.tensor([0.08])))


class Packed:
    """A matrix in 4 bits: nibbles, scales of one byte, their scales, an offset."""

    def __init__(self, weight):
        self.shape = weight.shape
        flat = F.pad(weight.detach().float().flatten(), (0, -weight.numel() % 64)).view(-1, 64)
        scale = flat.abs().amax(1)
        codes = (flat[..., None] / scale[:, None, None] - CODES).abs().argmin(-1)
        codes = codes.flatten()[: weight.numel() + weight.numel() % 2].to(torch.uint8)
        self.nibbles = codes[::2] * 16 + codes[1::2]
        self.scale2 = torch.full((-(-len(scale) // 256),), scale.max() / 255)
        self.codes = (scale / self.scale2[0]).round().to(torch.uint8)
        self.offset = torch.zeros(1)

    def tensors(self):
        return [self.nibbles, self.codes, self.scale2, self.offset]

    def dequantised(self):
        scale = self.codes * self.scale2.repeat_interleave(256)[: len(self.codes)] + self.offset
        codes = torch.stack((self.nibbles >> 4, self.nibbles & 15), 1).flatten()
        values = F.pad(CODES[codes.int()], (0, 64 * len(scale) - len(codes))).view(-1, 64)
        flat = (values * scale[:, None]).flatten()[: math.prod(self.shape)]
        return flat.view(self.shape).bfloat16()


class FromPacked(torch.autograd.Function):
    """A product with a frozen matrix in 4 bits, which is unpacked anew by backward."""

    @staticmethod
    def forward(ctx, x, packed):
        ctx.packed = packed
        return x @ packed.dequantised().t()

    @staticmethod
    def backward(ctx, dy):
        return dy @ ctx.packed.dequantised(), None


class Norm(torch.autograd.Function):
    """RMSNorm: keeps its input and one number a token."""

    @staticmethod
    def forward(ctx, x, weight):
        rstd = (x.float().square().mean(1, keepdim=True) + 1e-5).rsqrt()
        ctx.save_for_backward(x, weight, rstd)
        return (x * rstd).bfloat16() * weight

    @staticmethod
    def backward(ctx, dy):
        x, weight, rstd = ctx.saved_tensors
        unit = x * rstd
        dunit = (dy * weight).float()
        dx = (dunit - unit * (dunit * unit).mean(1, keepdim=True)) * rstd
        dweight = (dy * unit).sum(0).bfloat16() if ctx.needs_input_grad[1] else None
        return dx.bfloat16(), dweight


class Gate(torch.autograd.Function):
    """SwiGLU: keeps both inputs."""

    @staticmethod
    def forward(ctx, gate, up):
        ctx.save_for_backward(gate, up)
        return F.silu(gate) * up

    @staticmethod
    def backward(ctx, dy):
        gate, up = ctx.saved_tensors
        share = gate.sigmoid()
        return dy * up * share * (1 + gate * (1 - share)), dy * gate * share


class Attend(torch.autograd.Function):
    """Causal attention: keeps q, k, v and its output by tokens, and the log-sum-exp."""

    @staticmethod
    def forward(ctx, q, k, v, s, heads):
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            *Attend.split(q, k, v, s, heads), 0.0, True
        )
        out = out.transpose(1, 2).reshape(q.shape)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.s, ctx.heads = s, heads
        return out

    @staticmethod
    def backward(ctx, dout):
        q, k, v, out, lse = ctx.saved_tensors
        s, heads = ctx.s, ctx.heads
        split = Attend.split(q, k, v, s, heads)
        dout, out = (one.view(-1, s, heads, q.shape[1] // heads) for one in (dout, out))
        grads = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            dout.transpose(1, 2), *split, out.transpose(1, 2), lse, 0.0, True
        )
        dq, dk, dv = (one.transpose(1, 2) for one in grads)  # [b, s, heads, channels]
        kv = k.shape[1] * heads // q.shape[1]
        own = (*dk.shape[:2], kv, heads // kv, dk.shape[3])
        dk, dv = (one.reshape(own).sum(3).reshape(k.shape) for one in (dk, dv))
        return dq.reshape(q.shape), dk, dv, None, None

    @staticmethod
    def split(q, k, v, s, heads):
        d = q.shape[1] // heads
        parts = [one.view(-1, s, one.shape[1] // d, d).transpose(1, 2) for one in (q, k, v)]
        return [one.repeat_interleave(heads // one.shape[1], 1) for one in parts]


class Again(torch.autograd.Function):
    """A layer that keeps its input and runs again."""

    @staticmethod
    def forward(ctx, layer, s, x, *_trained):
        ctx.layer, ctx.s = layer, s
        ctx.save_for_backward(x)
        return layer(x, s)

    @staticmethod
    def backward(ctx, dy):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.layer(x, ctx.s)
        trained = [one for one in ctx.layer.parameters() if one.requires_grad]
        return None, None, *torch.autograd.grad(y, (x, *trained), dy)


class Layer(nn.Module):
    def __init__(self, cfg, plan, weight):
        super().__init__()
        full = plan.method == "full"
        self.cfg, self.scale, self.packed = cfg, 2.0, {}
        self.norm1, self.norm2 = (weight(cfg.d, trains=full) for _ in range(2))
        self.base, self.a, self.b = (nn.ParameterDict() for _ in range(3))
        for name, (out, into) in cfg.projections.items():
            one = weight(out, into, trains=full)
            if plan.method == "qlora":
                self.packed[name] = Packed(one)
            else:
                self.base[name] = one
            if not full and name in plan.targets:
                self.a[name] = weight(plan.r, into)
                self.b[name] = weight(out, plan.r)

    def project(self, name, x):
        if name in self.packed:
            y = FromPacked.apply(x, self.packed[name])
        else:
            y = x @ self.base[name].t()
        if name in self.a:
            y = y + x @ self.a[name].t() @ self.b[name].t() * self.scale
        return y

    def forward(self, x, s):
        y = Norm.apply(x, self.norm1)
        q, k, v = (self.project(name, y) for name in "qkv")
        x = x + self.project("o", Attend.apply(q, k, v, s, self.cfg.heads))
        y = Norm.apply(x, self.norm2)
        return x + self.project("down", Gate.apply(self.project("gate", y), self.project("up", y)))


class Model(nn.Module):
    """A LLaMA in bfloat16, without rotations, which would keep nothing."""

    def __init__(self, cfg, plan, seed=0):
        super().__init__()
        draw = torch.Generator().manual_seed(seed)

        def weight(*shape, trains=True):
            drawn = torch.randn(shape, generator=draw) * shape[-1] ** -0.5
            return nn.Parameter(drawn.bfloat16(), requires_grad=trains)

        full = plan.method == "full"
        self.plan = plan
        self.table = weight(cfg.vocab, cfg.d, trains=full)
        self.layers = nn.ModuleList(Layer(cfg, plan, weight) for _ in range(cfg.layers))
        self.norm = weight(cfg.d, trains=full)
        self.head = self.table if cfg.tied else weight(cfg.vocab, cfg.d, trains=full)

    def forward(self, ids):
        x = self.table[ids.flatten()]
        if not x.requires_grad:
            x.requires_grad_()  # as peft has it: the first layer is like the others
        for layer in self.layers:
            if self.plan.recompute:
                trained = [one for one in layer.parameters() if one.requires_grad]
                x = Again.apply(layer, ids.shape[1], x, *trained)
            else:
                x = layer(x, ids.shape[1])
        return Norm.apply(x, self.norm) @ self.head.t()

    def held(self):
        packed = [
            one for layer in self.layers for p in layer.packed.values() for one in p.tensors()
        ]
        return [*self.parameters(), *packed]


def adamw(weights, masters, m, v):
    """One step on lists of tensors: makes float32 gradients and denominators of all of them."""
    grads = [one.grad.float() for one in weights]
    torch._foreach_lerp_(m, grads, 0.1)
    torch._foreach_mul_(v, 0.99)
    torch._foreach_addcmul_(v, grads, grads, 0.01)
    step = torch._foreach_sqrt(v)
    torch._foreach_add_(step, 1e-8)
    for one, into in zip(m, step, strict=True):
        torch.div(one, into, out=into)
    torch._foreach_mul_(step, 1e-3)
    for weight, master, by in zip(weights, masters or weights, step, strict=True):
        master.sub_(by)
        if masters:
            weight.copy_(master)


class Finetuning:
    """A model and its states; `step` is the second step of a training, say."""

    def __init__(self, cfg, plan):
        self.plan, self.model = plan, Model(cfg, plan)
        self.trained = [one for one in self.model.parameters() if one.requires_grad]
        self.master = [one.detach().float() for one in self.trained] if plan.master else []
        self.m, self.v = ([torch.zeros(one.shape) for one in self.trained] for _ in range(2))

    def held(self):
        return [*self.model.held(), *self.master, *self.m, *self.v]

    def step(self, ids, targets):
        logits = self.model(ids)
        F.cross_entropy(logits.float(), targets.flatten()).backward()
        del logits
        with torch.no_grad():
            lists = self.trained, self.master, self.m, self.v
            if self.plan.foreach:
                adamw(*lists)
            else:
                for at in range(len(self.trained)):
                    adamw(*([one[at]] if one else [] for one in lists))
        for one in self.trained:
            one.grad = None
