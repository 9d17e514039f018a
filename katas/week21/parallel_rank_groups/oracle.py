"""What is right: examples that Megatron prints, and coordinates rank by rank."""

from itertools import permutations

# Megatron-Core, parallel_state, initialize_model_parallel: 16 GPUs, tensor 2, pipeline 4
MEGATRON = {
    "tp": [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11], [12, 13], [14, 15]],
    "pp": [[0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15]],
    "dp": [[0, 2], [1, 3], [4, 6], [5, 7], [8, 10], [9, 11], [12, 14], [13, 15]],
    "tp-pp": [[0, 1, 4, 5, 8, 9, 12, 13], [2, 3, 6, 7, 10, 11, 14, 15]],
}


def coordinates(rank, sizes, order):
    """The place of a rank on each axis, digit by digit."""
    place = {}
    for name in order.split("-"):
        rank, place[name] = divmod(rank, sizes[name])
    return place


def groups(world, sizes, order, axes):
    """Put each rank to those that are in the same place on all other axes."""
    found = {}
    for rank in range(world):
        place = coordinates(rank, sizes, order)
        key = tuple(at for name, at in place.items() if name not in axes.split("-"))
        found.setdefault(key, []).append(rank)
    return sorted(found.values())


def leaving(sizes, order, gpus_per_node, bytes_per_axis):
    """Bytes that leave a node, hop by hop."""
    world = 1
    for size in sizes.values():
        world *= size
    total = 0
    for axis, size in sizes.items():
        for group in groups(world, sizes, order, axis):
            for at in range(size):
                here, there = group[at], group[(at + 1) % size]
                if here // gpus_per_node != there // gpus_per_node:
                    total += bytes_per_axis[axis]
    return total


def least_leaving(sizes, gpus_per_node, bytes_per_axis):
    return min(
        leaving(sizes, "-".join(order), gpus_per_node, bytes_per_axis)
        for order in permutations(sizes)
    )
