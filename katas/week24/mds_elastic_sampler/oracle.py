"""What is right: the order sample by sample, and each sample dealt by itself."""

import random
from itertools import product

# sizes of shards, canonical nodes, block: a border within a shard, on one, empty shards, fewer
# shards than nodes, rows of different lengths, no window, one that holds everything, one of a place
# and most of another
SHUFFLES = [
    ([7, 5, 9, 3, 8, 4], 4, 3.0),
    ([4, 4, 4, 4], 2, 2),
    ([0, 3, 0, 0, 6, 2, 0], 3, 1.5),
    ([23], 4, 5),
    ([5, 6, 7], 1, 0),
    ([1, 1, 1, 1, 1], 5, 100),
    ([10, 11], 8, 1e6),
    ([3, 3, 3, 3, 3, 3, 3], 2, 0),
    ([40], 1, 1.9),
]


def row(shard_sizes, canonical_nodes, block, rng, node):
    """Samples of one canonical node, whose generator is given."""
    n = sum(shard_sizes)
    start, stop = node * n // canonical_nodes, (node + 1) * n // canonical_nodes
    shard_of = [shard for shard, size in enumerate(shard_sizes) for _ in range(size)]
    shards = sorted({shard_of[sample] for sample in range(start, stop)})
    order = []
    for i in rng.permutation(len(shards)):
        order += [sample for sample in range(start, stop) if shard_of[sample] == shards[i]]
    moves = rng.uniform(0, block, len(order))
    places = sorted(range(len(order)), key=lambda place: (place + moves[place], place))
    return [order[place] for place in places]


def epoch_order(rows):
    """One sample of each row in turn; a row that ends early gives its last once more."""
    longest = max(map(len, rows))
    return [r[min(turn, len(r) - 1)] for turn in range(longest) for r in rows]


def dealt(order, global_batch, nodes, ranks, workers, skip):
    """Batches of each (node, rank, worker), a list of samples each; one sample after the other."""
    batch = global_batch // (nodes * ranks)
    hands = {hand: [] for hand in product(range(nodes), range(ranks), range(workers))}
    left = order[skip:]
    steps = -(-len(left) // global_batch)
    for step in range(-(-steps // workers) * workers):
        for hand in hands:
            if hand[2] == step % workers:
                hands[hand].append([-1] * batch)
    for place, sample in enumerate(left):
        step, within = divmod(place, global_batch)
        node = within % nodes
        rank = within // nodes % ranks
        hands[node, rank, step % workers][step // workers][within // nodes // ranks] = sample
    return hands


def layouts(global_batch, canonical_nodes):
    """(nodes, ranks of each) that may share a global batch."""
    return [
        (nodes, ranks)
        for nodes in range(1, global_batch + 1)
        for ranks in range(1, global_batch + 1)
        if global_batch % (nodes * ranks) == 0
        and (canonical_nodes % nodes == 0 or nodes % canonical_nodes == 0)
    ]


def drawn_sizes(seed, shards, most):
    draw = random.Random(seed)
    return [draw.randint(0, most) for _ in range(shards)] + [most]
