"""Kata week24/mds_elastic_sampler: one order of samples, whoever reads it and wherever it stops.

The order is fixed for canonical nodes, which are only a number; then it is dealt to real ones.
"""

from collections.abc import Sequence

import numpy as np

PADDING = -1


def generator(seed: int, epoch: int, node: int) -> np.random.Generator:
    """Return the generator of a canonical node in an epoch, the same on every machine."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, epoch, node])))


def py1e_shuffle(
    shard_sizes: Sequence[int], canonical_nodes: int, block: float, seed: int, epoch: int
) -> list[np.ndarray]:
    """
    Return the samples of each canonical node in the order of this epoch, int64.

    A node shuffles the shards of its span, then displaces each sample by at most `block` places.

    Args:
        shard_sizes: Samples of each shard, 0 or more; samples are numbered from shard to shard.
        canonical_nodes: Equal spans of the samples, give or take one.
        block: How far samples are moved, at most.
        seed: Not negative.
        epoch: Not negative.

    Raises:
        ValueError: a shard size, `block` or `epoch` is negative; canonical_nodes below 1, or more
            than there are samples. The message begins with the name and a colon.
    """
    # TODO(kata): check, cut the span at shard ends, shuffle and move (about 25 lines with helpers)
    raise NotImplementedError


class ElasticSampler:
    """
    Says which samples each worker reads, for any number of nodes, ranks and workers.

    Args:
        shard_sizes: Samples of each shard.
        canonical_nodes: Nodes for which the order is made.
        block: Of `py1e_shuffle`.
        seed: Not negative.
        global_batch: Samples of all ranks together in a step.

    Raises:
        ValueError: as `py1e_shuffle`; global_batch below 1.
    """

    def __init__(
        self,
        shard_sizes: Sequence[int],
        canonical_nodes: int,
        block: float,
        seed: int,
        global_batch: int,
    ) -> None:
        raise NotImplementedError  # TODO(kata): check, interleave the nodes (about 7 lines)

    def epoch_order(self, epoch: int) -> np.ndarray:
        """
        Return all samples in the order of this epoch, int64: one of each canonical node in turn.

        Raises:
            ValueError: epoch is negative.
        """
        raise NotImplementedError  # TODO(kata): interleave the nodes (3 lines)

    def ids(
        self, epoch: int, nodes: int, ranks_per_node: int, workers: int, skip: int = 0
    ) -> np.ndarray:
        """
        Deal what is left of the order: int64 [nodes, ranks, workers, batches, batch].

        Args:
            epoch: Whose order it is.
            nodes: Physical nodes, a divisor or a multiple of the canonical ones.
            ranks_per_node: All ranks together divide the global batch.
            workers: Of each rank.
            skip: Samples at the beginning of the order that have been trained on.

        Raises:
            ValueError: a number is too small or too large, or does not divide as it should.
        """
        # TODO(kata): check, deal what is left (about 20 lines with helpers)
        raise NotImplementedError

    def state_dict(self, epoch: int, batches: int, skip: int = 0) -> dict[str, int | str]:
        """
        Return where a run stands after `batches` global batches of `ids(epoch, …, skip)`, for JSON.

        Raises:
            ValueError: there is no such place.
        """
        # TODO(kata): check, where the run stands (about 15 lines with helpers)
        raise NotImplementedError

    def resume(
        self, state: dict[str, int | str], nodes: int, ranks_per_node: int, workers: int
    ) -> tuple[int, np.ndarray]:
        """
        Return the epoch of `state` and the `ids` of what is left, perhaps for other nodes.

        Raises:
            ValueError: the state is that of another order, ``state: ``; or as `ids`.
        """
        raise NotImplementedError  # TODO(kata): check, deal what is left (about 4 lines)
