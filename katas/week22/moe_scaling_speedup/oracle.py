"""What is right and what to feed: weights shape by shape, and curves with known answers."""

import math

# training FLOPs and loss, three decades apart: where interpolation matters
DENSE = [(1e18, 4.0), (1e21, 2.8), (1e24, 2.2)]
MOE = [(1e17, 4.4), (2e20, 2.8), (5e23, 2.1)]


def shapes(cfg):
    """List the shapes of all weights as (shape, how many, how many of them a token meets)."""
    a, d, found = cfg.attention, cfg.d, [((cfg.vocab, cfg.d), 1, 1), ((cfg.d,), 1, 1)]
    if not cfg.tied:
        found.append(((cfg.vocab, cfg.d), 1, 1))
    for layer in range(cfg.layers):
        found += [((d,), 2, 2)]
        if hasattr(a, "kv_heads"):
            found += [((d, a.heads * a.head_dim), 2, 2), ((d, a.kv_heads * a.head_dim), 2, 2)]
        else:
            found += [
                ((d, a.q_rank), 1, 1),
                ((a.q_rank,), 1, 1),
                ((a.q_rank, a.heads * (a.nope_dim + a.rope_dim)), 1, 1),
                ((d, a.kv_rank + a.rope_dim), 1, 1),
                ((a.kv_rank,), 1, 1),
                ((a.kv_rank, a.heads * a.nope_dim), 1, 1),
                ((a.kv_rank, a.heads * a.v_dim), 1, 1),
                ((a.heads * a.v_dim, d), 1, 1),
            ]
        if layer < cfg.dense_layers:
            found.append(((d, cfg.dense_ffn), 3, 3))
            continue
        found.append(((d, cfg.experts), 1, 1))
        found.append(((d, cfg.expert_ffn), 3 * cfg.experts, 3 * cfg.k))
        found.append(((d, cfg.expert_ffn), 3 * cfg.shared, 3 * cfg.shared))
        if cfg.router_bias:
            found.append(((cfg.experts,), 1, 1))
    return found


def params(cfg):
    """Add up the elements of all weights, and of those that a token meets."""
    sizes = [(math.prod(shape), count, used) for shape, count, used in shapes(cfg)]
    return sum(s * count for s, count, _ in sizes), sum(s * used for s, _, used in sizes)


def flops(cfg, seqlen, causal):
    """Take two for each weight of a matrix that a token meets, but for the embedding; attention."""
    matrices = sum(math.prod(shape) * used for shape, _, used in shapes(cfg)[2:] if len(shape) == 2)
    if cfg.tied:
        matrices += cfg.vocab * cfg.d
    a = cfg.attention
    query, value = (
        (a.head_dim, a.head_dim) if hasattr(a, "kv_heads") else (a.nope_dim + a.rope_dim, a.v_dim)
    )
    scores = 2 * seqlen * a.heads * (query + value) * cfg.layers
    return 2 * matrices + (scores // 2 if causal else scores)


def power_law(a, exponent, points):
    """Draw a curve with loss a · C^-exponent."""
    return [(c, a * c**-exponent) for c in points]


PATIENCE = 1000  # questions, far more than any search needs that ends


def patient(law):
    """The same law, which does not answer for ever."""
    asked = []

    def answer(compute):
        asked.append(compute)
        assert len(asked) <= PATIENCE, f"asked {PATIENCE} times, last for {compute}, and no end"
        return law(compute)

    return answer


class Law:
    """A loss as a function of training FLOPs, which counts how often it is asked, and for what."""

    def __init__(self, a, exponent, floor=0.0, shared=None):
        self.a, self.exponent, self.floor = a, exponent, floor
        self.asked = [] if shared is None else shared

    def __call__(self, compute):
        self.asked.append(compute)
        assert len(self.asked) <= PATIENCE, f"asked {PATIENCE} times, and no end"
        return self.floor + self.a * compute**-self.exponent
