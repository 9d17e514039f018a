"""What is right: every matrix product of a model written down and counted, forward and backward."""


def decoder(layers, d, heads, *, kv_heads=None, d_ff=None, vocab, gated=False, tied=False):
    return {
        "layers": layers, "d": d, "heads": heads, "kv_heads": kv_heads or heads,
        "d_ff": d_ff or 4 * d, "vocab": vocab, "gated": gated, "tied": tied,
    }  # fmt: skip


def encoder(layers, d, heads):
    return decoder(layers, d, heads, vocab=30522) | {"encoder": True}


LLAMA2_7B = decoder(32, 4096, 32, d_ff=11008, vocab=32000, gated=True)
LLAMA3_8B = decoder(32, 4096, 32, kv_heads=8, d_ff=14336, vocab=128256, gated=True)
GPT2 = decoder(12, 768, 12, vocab=50257, tied=True)
GPT3_SMALL = GPT2
GPT3_175B = decoder(96, 12288, 96, vocab=50257, tied=True)
BERT_BASE = encoder(12, 768, 12)
ROBERTA_LARGE = encoder(24, 1024, 16)


class Tape:
    """Matrix products of shapes, each with the part of the model that it belongs to."""

    def __init__(self):
        self.products = []

    def matmul(self, a, b, part="linear"):
        """[m, k] times [k, n]."""
        (m, k), (rows, n) = a, b
        assert k == rows
        self.products.append((part, m, k, n))
        return m, n

    def backward(self):
        """Take the gradient of both operands of every product, from the last one back."""
        for part, m, k, n in reversed(list(self.products)):
            assert self.matmul((m, n), (n, k), part) == (m, k)
            assert self.matmul((k, m), (m, n), part) == (k, n)

    @property
    def flops(self):
        """FLOPs of each part: a product of n channels is n multiplications and n additions."""
        counts = dict.fromkeys(("linear", "attention", "head"), 0)
        for part, m, k, n in self.products:
            counts[part] += 2 * m * k * n
        return counts


def forward(cfg, batch, q_len, kv_len, causal):
    """Run a model on shapes: sequence by sequence, head by head, query by query."""
    tape, d_head = Tape(), cfg.d // cfg.heads
    for _ in range(batch * cfg.layers):
        x = q_len, cfg.d
        tape.matmul(x, (cfg.d, cfg.heads * d_head))  # q; of the past, k and v are kept
        tape.matmul(x, (cfg.d, cfg.kv_heads * d_head))
        tape.matmul(x, (cfg.d, cfg.kv_heads * d_head))
        for _ in range(cfg.heads):
            _attend(tape, d_head, q_len, kv_len, causal)
        tape.matmul((q_len, cfg.heads * d_head), (cfg.d, cfg.d))
        for _ in range(2 if cfg.gated else 1):
            tape.matmul(x, (cfg.d, cfg.d_ff))
        tape.matmul((q_len, cfg.d_ff), (cfg.d_ff, cfg.d))
    if not cfg.encoder:
        for _ in range(batch):
            tape.matmul((q_len, cfg.d), (cfg.d, cfg.vocab), "head")
    return tape


def _attend(tape, d_head, q_len, kv_len, causal):
    for position in range(kv_len - q_len, kv_len):
        keys = position + 1 if causal else kv_len
        scores = tape.matmul((1, d_head), (d_head, keys), "attention")
        tape.matmul(scores, (keys, d_head), "attention")


def random_config(random):
    """A small model with sizes that no two dimensions share for long."""
    kv_heads, group = random.randint(1, 3), random.randint(1, 3)
    heads = kv_heads * group
    return {
        "layers": random.randint(1, 3),
        "d": heads * random.randint(1, 7),
        "heads": heads,
        "kv_heads": kv_heads,
        "d_ff": random.randint(1, 30),
        "vocab": random.randint(1, 40),
        "gated": random.random() < 0.5,
        "tied": random.random() < 0.5,
        "encoder": random.random() < 0.3,
    }
