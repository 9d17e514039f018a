"""What is right: every product of a request written down, every weight and key read noted."""

from dataclasses import replace
from fractions import Fraction

BYTES = 2  # of every weight, key and value


def machine(profile, **figures):
    """`profile` with the H100's figures, or others, so that numbers by hand hold on any device."""
    known = {
        "peak": 989.4e12, "bandwidth": 3.35e12, "memory_bytes": 80 * 10**9,
        "sms": 132, "max_clock_hz": 1.98e9, "flops_per_clk_per_sm": {"float16": 4096},
    } | figures  # fmt: skip
    return replace(profile, **known | {"peak": {"float16": known["peak"]}})


class Tape:
    """
    What a stage does: products with weights, products of queries and keys.

    A weight is read once in each pass that uses it, a key once in each pass by its own sequence.
    """

    def __init__(self):
        self.linear_flops = self.attention_flops = 0
        self.weights, self.keys = {}, {}
        self.at = 0

    def next_pass(self):
        self.at += 1

    def multiply(self, name, k, n):
        """One token with the matrix `name`, [k, n]."""
        self.linear_flops += 2 * k * n
        self.weights[self.at, name] = k * n

    def attend(self, where, keys, tower):
        """One query with the keys of `where`, and the scores with its values."""
        d_head = tower.d // tower.heads
        for _ in range(tower.heads):
            self.attention_flops += 2 * d_head * keys + 2 * keys * d_head
        self.keys[self.at, where] = 2 * keys * tower.kv_heads * d_head

    def stage(self, profile):
        weight_bytes = BYTES * sum(self.weights.values())
        key_bytes = BYTES * sum(self.keys.values())
        peak, bandwidth = Fraction(profile.peak["float16"]), Fraction(profile.bandwidth)
        linear_s = max(self.linear_flops / peak, weight_bytes / bandwidth)
        attention_s = max(self.attention_flops / peak, key_bytes / bandwidth)
        return {
            "flops": self.linear_flops + self.attention_flops,
            "bytes": weight_bytes + key_bytes,
            "seconds": float(linear_s + attention_s),
        }


def request(vlm, images, text_tokens, out_tokens, batch, profile):
    """Run `batch` requests token by token; returns the stages, prefill tokens, bytes held."""
    encode, project, prefill, decode = (Tape() for _ in range(4))
    prompts, held = 0, 0
    for request in range(batch):
        features = 0
        for number, (h, w) in enumerate(images):
            if vlm.image_size:
                h = w = vlm.image_size
            grid = [(y, x) for y in range(0, h, vlm.patch) for x in range(0, w, vlm.patch)]
            _encode(encode, vlm, (request, number), len(grid))
            squares = {
                (y // (vlm.patch * vlm.merge), x // (vlm.patch * vlm.merge)) for y, x in grid
            }
            for _ in squares:
                project.multiply("up", vlm.vision.d * vlm.merge * vlm.merge, vlm.text.d)
                project.multiply("down", vlm.text.d, vlm.text.d)
                features += 1
        cache = {}
        tokens = text_tokens + (features if vlm.style == "concat" else 0)
        seen = features if vlm.style == "cross" else 0
        for layer in range(vlm.cross_layers if seen else 0):
            for _ in range(seen):
                _keys(prefill, vlm.text, ("cross", layer), cache, request)
        for _ in range(tokens):
            _token(prefill, vlm, request, cache, seen)
        prefill.multiply("head", vlm.text.d, vlm.text.vocab)
        for step in range(1, out_tokens):
            decode.at = step
            _token(decode, vlm, request, cache, seen)
            decode.multiply("head", vlm.text.d, vlm.text.vocab)
        prompts += tokens
        d_head = vlm.text.d // vlm.text.heads
        held += sum(cache.values()) * 2 * vlm.text.kv_heads * d_head * BYTES
    stages = {"encode": encode, "project": project, "prefill": prefill, "decode": decode}
    return {name: tape.stage(profile) for name, tape in stages.items()}, prompts, held


def _encode(tape, vlm, image, patches):
    tower, tokens = vlm.vision, patches + (1 if vlm.class_token else 0)
    for _ in range(patches):
        tape.multiply("patches", 3 * vlm.patch * vlm.patch, tower.d)
    for layer in range(vlm.vision_layers_run):
        cache = {}
        for _ in range(tokens):
            _keys(tape, tower, layer, cache, image)
        for _ in range(tokens):
            _own(tape, tower, layer)
            tape.attend((layer, image), tokens, tower)


def _token(tape, vlm, request, cache, seen):
    for layer in range(vlm.text.layers):
        _keys(tape, vlm.text, layer, cache, request)
        _own(tape, vlm.text, layer)
        tape.attend((layer, request), cache[layer, request], vlm.text)
    for layer in range(vlm.cross_layers if seen else 0):
        where = ("cross", layer)
        _own(tape, vlm.text, where)
        tape.attend((where, request), cache[where, request], vlm.text)


def _keys(tape, tower, layer, cache, whose):
    """Key and value of one more token."""
    for name in "kv":
        tape.multiply((name, layer), tower.d, tower.kv_heads * (tower.d // tower.heads))
    cache[layer, whose] = cache.get((layer, whose), 0) + 1


def _own(tape, tower, layer):
    """What a token passes in a layer besides keys and values."""
    for name in "qo":
        tape.multiply((name, layer), tower.d, tower.d)
    for name in ("up", "gate") if tower.gated else ("up",):
        tape.multiply((name, layer), tower.d, tower.d_ff)
    tape.multiply(("down", layer), tower.d_ff, tower.d)


def random_request(kata, dice):
    """A small model with every field set, and what it is asked: (model, images, text, out)."""

    def tower(vocab):
        kv_heads = dice.randint(1, 2)
        heads = kv_heads * dice.randint(1, 2)
        return kata.Tower(
            layers=dice.randint(1, 3),
            d=heads * dice.randint(1, 5),
            d_ff=dice.randint(1, 20),
            heads=heads,
            kv_heads=kv_heads,
            gated=dice.random() < 0.5,
            vocab=vocab,
        )

    vision, patch, merge = tower(0), dice.randint(1, 3), dice.randint(1, 2)
    unit = patch * merge
    fixed = dice.random() < 0.4
    vlm = kata.VisionLanguageModel(
        vision=vision,
        vision_layers_run=dice.randint(1, vision.layers),
        class_token=dice.random() < 0.5,
        image_size=unit * dice.randint(1, 3) if fixed else None,
        patch=patch,
        merge=merge,
        text=tower(dice.randint(1, 9)),
        tied=dice.random() < 0.5,
        style=dice.choice(["concat", "cross"]),
        cross_layers=dice.randint(0, 2),
    )
    images = [
        (dice.randint(1, 9), dice.randint(1, 9))
        if fixed
        else (unit * dice.randint(1, 3), unit * dice.randint(1, 3))
        for _ in range(dice.choice([0, 1, 1, 2, 3]))
    ]
    return vlm, images, dice.randint(1, 6), dice.randint(0, 5)
