"""Blocks sent from chip to chip, step by step, and every number of chips tried, in fractions."""

from fractions import Fraction
from itertools import count, product

LLAMA_2_70B = 68_976_648_192  # parameters
KV_PER_TOKEN = 327_680  # bytes in bfloat16: 80 layers, 8 heads of 128, keys and values


def gather_steps(n, wrap):
    """
    Steps of an all-gather on a line or a ring; one block of a direction per link and step.

    On a ring one half of each block travels to the right and one to the left; on a line whole
    blocks travel both ways, as far as there are chips that lack them.
    """
    held = [{chip} for chip in range(n)]  # of the blocks, or of their halves travelling right
    steps = 0
    while any(len(blocks) < n for blocks in held):
        steps += 1
        sent = [set() for _ in range(n)]
        for chip in range(n):
            for to in (chip + 1,) if wrap else (chip - 1, chip + 1):
                if wrap or 0 <= to < n:
                    lacking = held[chip] - held[to % n]
                    sent[to % n] |= set(sorted(lacking, key=lambda b: _age(chip, b, n, wrap))[:1])
        for chip in range(n):
            held[chip] |= sent[chip]
    return steps


def _age(chip, block, n, wrap):
    """How many links a block has come; those that came last are sent on last."""
    return (chip - block) % n if wrap else abs(chip - block)


def gather_s(nbytes, axes, link_bw, hop_s):
    """Parts of the payload, each on an axis of its own in every phase."""
    sizes = [n for n, _ in axes]
    used = [at for at, n in enumerate(sizes) if n > 1]
    chips = list(product(*(range(n) for n in sizes)))
    seconds = Fraction(0)
    for phase in range(len(used)):
        times = []
        for part in range(len(used)):
            order = used[part:] + used[:part]
            # shards on one chip are those of all chips that differ from it in earlier axes alone
            done = set(order[:phase])
            shards = sum(all(at in done or chip[at] == 0 for at in used) for chip in chips)
            n, wrap = axes[order[phase]]
            block = Fraction(nbytes) * shards / (len(used) * len(chips)) / (2 if wrap else 1)
            times.append(gather_steps(n, wrap) * (block / Fraction(link_bw) + Fraction(hop_s)))
        seconds += max(times)
    return seconds


def cheapest(table, params, itemsize, kv_bytes, batch, target_tok_s, fits):
    """Try 1, 2, 3 … chips of every machine."""

    def enough(acc, chips):
        memory = Fraction(params * itemsize + kv_bytes) / Fraction(acc.bandwidth)
        compute = Fraction(2 * params * batch) / Fraction(acc.flops)
        in_time = max(memory, compute) * Fraction(target_tok_s) <= chips
        return in_time and fits(params * itemsize, kv_bytes, acc) <= chips

    every = ((name, chips) for chips in count(1) for name in table)
    return next((name, chips) for name, chips in every if enough(table[name], chips))
