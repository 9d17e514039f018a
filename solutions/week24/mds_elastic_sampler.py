"""Kata week24/mds_elastic_sampler: one order of samples, whoever reads it and wherever it stops.

The order is fixed for canonical nodes, which are only a number; then it is dealt to real ones.
"""

import hashlib
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
    # check
    ends = _checked_ends(shard_sizes, canonical_nodes, block)
    _check_epoch(epoch)
    # cut the span at shard ends
    n, rows = ends[-1], []
    for node in range(canonical_nodes):
        start, stop = node * n // canonical_nodes, (node + 1) * n // canonical_nodes
        inside = ends[(ends > start) & (ends < stop)]
        parts = np.split(np.arange(start, stop), np.unique(inside) - start)
        # shuffle and move
        rng = generator(seed, epoch, node)
        row = np.concatenate([parts[i] for i in rng.permutation(len(parts))])
        moved = np.arange(len(row)) + rng.uniform(0, block, len(row))
        rows.append(row[np.argsort(moved)])
    return rows


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
        # check
        ends = _checked_ends(shard_sizes, canonical_nodes, block)
        if global_batch < 1:
            raise ValueError(f"global_batch: expected at least 1, found {global_batch}.")
        # interleave the nodes
        self._canonical_nodes = canonical_nodes
        self._global_batch = global_batch
        self._length = -(-ends[-1] // canonical_nodes) * canonical_nodes
        self._shuffle = (np.array(shard_sizes, np.int64), canonical_nodes, block, seed)

    def epoch_order(self, epoch: int) -> np.ndarray:
        """
        Return all samples in the order of this epoch, int64: one of each canonical node in turn.

        Raises:
            ValueError: epoch is negative.
        """
        # interleave the nodes
        rows = py1e_shuffle(*self._shuffle, epoch)
        longest = max(map(len, rows))
        return np.stack([np.append(row, row[-1:])[:longest] for row in rows], axis=1).ravel()

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
        # check
        _check_epoch(epoch)
        if nodes < 1 or (self._canonical_nodes % nodes and nodes % self._canonical_nodes):
            raise ValueError(
                f"nodes: expected a divisor or multiple of {self._canonical_nodes}, found {nodes}."
            )
        if ranks_per_node < 1 or self._global_batch % (nodes * ranks_per_node):
            raise ValueError(
                f"ranks_per_node: expected all ranks to divide {self._global_batch}, found "
                f"{ranks_per_node} on each of {nodes} nodes."
            )
        if workers < 1:
            raise ValueError(f"workers: expected at least 1, found {workers}.")
        self._check_skip(skip)
        # deal what is left
        left = self.epoch_order(epoch)[skip:]
        batches = -(-len(left) // (self._global_batch * workers))
        batch = self._global_batch // (nodes * ranks_per_node)
        dealt = np.full((batches, workers, batch, ranks_per_node, nodes), PADDING)
        dealt.flat[: len(left)] = left
        return dealt.transpose(4, 3, 1, 0, 2)

    def state_dict(self, epoch: int, batches: int, skip: int = 0) -> dict[str, int | str]:
        """
        Return where a run stands after `batches` global batches of `ids(epoch, …, skip)`, for JSON.

        Raises:
            ValueError: there is no such place.
        """
        # check
        _check_epoch(epoch)
        self._check_skip(skip)
        last = -(-(self._length - skip) // self._global_batch)
        if not 0 <= batches <= last:
            raise ValueError(f"batches: expected 0 to {last}, found {batches}.")
        # where the run stands
        state = {"epoch": epoch, "skip": skip + batches * self._global_batch}
        if batches == last:
            state = {"epoch": epoch + 1, "skip": 0}
        return state | {"order": self._fingerprint()}

    def resume(
        self, state: dict[str, int | str], nodes: int, ranks_per_node: int, workers: int
    ) -> tuple[int, np.ndarray]:
        """
        Return the epoch of `state` and the `ids` of what is left, perhaps for other nodes.

        Raises:
            ValueError: the state is that of another order, ``state: ``; or as `ids`.
        """
        # check
        if state["order"] != self._fingerprint():
            raise ValueError("state: expected one of the same shards, canonical nodes and shuffle.")
        # deal what is left
        epoch = state["epoch"]
        return epoch, self.ids(epoch, nodes, ranks_per_node, workers, state["skip"])

    def _check_skip(self, skip: int) -> None:
        if not 0 <= skip < self._length:
            raise ValueError(f"skip: expected 0 to {self._length - 1}, found {skip}.")

    def _fingerprint(self) -> str:
        # where the run stands
        sizes, canonical_nodes, block, seed = self._shuffle
        described = f"{sizes.tolist()} {canonical_nodes} {float(block)} {seed}"
        return hashlib.sha256(described.encode()).hexdigest()


def _checked_ends(shard_sizes: Sequence[int], canonical_nodes: int, block: float) -> np.ndarray:
    """Return how many samples there are up to the end of each shard."""
    # check
    sizes = np.array(shard_sizes, np.int64)
    if (sizes < 0).any():
        raise ValueError(f"shard_sizes: expected at least 0 each, found {sizes.min()}.")
    if not 1 <= canonical_nodes <= sizes.sum():
        raise ValueError(f"canonical_nodes: expected 1 to {sizes.sum()}, found {canonical_nodes}.")
    if block < 0:
        raise ValueError(f"block: expected at least 0, found {block}.")
    return np.cumsum(sizes)


def _check_epoch(epoch: int) -> None:
    if epoch < 0:
        raise ValueError(f"epoch: expected at least 0, found {epoch}.")
