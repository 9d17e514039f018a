"""What is right: a list of tensors, a schedule walked through, parameters dealt out; every plan."""

from itertools import product
from math import lcm, prod


def kept_tensors(m, p):
    """Name, bytes an element, and shape on one GPU of what one layer keeps of a micro-batch."""
    tokens = p.s // p.cp
    whole = [tokens // p.tp if p.sp else tokens, p.b, m.h]
    kept = [("input of norm 1", 2, whole)]
    if p.recompute == "full":
        return kept
    kept += [
        ("input of the projection to q, k, v", 2, whole),
        ("mask after attention", 1, whole),
        ("input of norm 2", 2, whole),
        ("input of the MLP", 2, whole),
        ("mask after the MLP", 1, whole),
    ]
    kept += [(name, 2, [tokens, p.b, m.h // p.tp]) for name in ("q", "k", "v", "attended")]
    kept += [(f"hidden, {side} GELU", 2, [tokens, p.b, 4 * m.h // p.tp]) for side in ("to", "of")]
    if p.attn == "math" and p.recompute == "none":
        scores = [p.b, m.a // p.tp, tokens, p.s]
        kept += [("softmax", 2, scores), ("its mask", 1, scores), ("dropped", 2, scores)]
    return kept


def fullest(p):
    """Walk through the first stage's schedule: the most micro-batches of a chunk alive at once."""
    units = p.microbatches * p.vpp
    warmup = p.pp - 1 if p.vpp == 1 else 2 * (p.pp - 1) + (p.vpp - 1) * p.pp
    warmup = min(warmup, units)
    schedule = ["F"] * warmup + ["F", "B"] * (units - warmup) + ["B"] * warmup
    alive = most = 0
    for step in schedule:
        alive += 1 if step == "F" else -1
        most = max(most, alive)
    assert alive == 0
    return most


def activations(m, p):
    layer = sum(size * prod(shape) for _, size, shape in kept_tensors(m, p))
    return layer * (m.layers // (p.pp * p.vpp)) * fullest(p)


def states(m, p):
    """Add up what each matrix leaves on the GPU; then each ZeRO group divides what it has."""
    dense = [(m.h, -(-m.vocab // p.tp))]
    experts = []
    for _ in range(m.layers // p.pp):
        kv = m.kv * m.h // m.a
        dense += [(m.h, m.h), (m.h, kv), (m.h, kv), (m.h, m.h)]
        dense[-4:] = [(rows, cols / p.tp) for rows, cols in dense[-4:]]
        dense += [(m.h, 1), (m.h, 1)]
        if m.experts > 1:
            dense.append((m.h, m.experts))
            experts += [(m.h, m.ffn // p.etp)] * m.mlp * (m.experts // p.ep)
        else:
            dense += [(m.h, m.ffn // p.tp)] * m.mlp
    held = [sum(rows * cols for rows, cols in part) for part in (dense, experts)]
    assert all(one == int(one) for one in held)
    world = p.dp * p.cp * p.tp * p.pp
    copies = p.dp * p.cp, world // (p.etp * p.ep * p.pp)
    found = {}
    for part, size, stage in (("params", 2, 3), ("grads", 2, 2), ("optim", 12, 1)):
        found[part] = 0
        for own, ranks in zip(held, copies, strict=True):
            ranks = ranks if p.zero >= stage else 1
            found[part] += size * ((int(own) + ranks - 1) // ranks)
    return found


def total(m, p):
    return activations(m, p) + sum(states(m, p).values())


def longest(replace, m, p, hbm_bytes, multiple):
    """Step by step, until it does not fit."""
    step = lcm(multiple, p.cp * (p.tp if p.sp else 1))
    s = 0
    while total(m, replace(p, s=s + step)) <= hbm_bytes:
        s += step
    return s


def plans(Plan, m, world, batch, s):
    """Every plan that best_plan may choose from, whether or not it fits."""
    divisors = [size for size in range(1, world + 1) if world % size == 0]
    for dp, tp, pp, cp in product(divisors, repeat=4):
        divides = m.a % tp == 0 and m.layers % pp == 0 and batch % dp == 0 and tp <= 8
        if dp * tp * pp * cp != world or not divides or s % (cp * tp):
            continue
        for ep in range(1, m.experts + 1):
            if m.experts % ep == 0 and dp * tp * cp % ep == 0:
                yield Plan(
                    dp=dp, tp=tp, sp=tp > 1, pp=pp, cp=cp, ep=ep, microbatches=batch // dp, s=s
                )  # fmt: skip
