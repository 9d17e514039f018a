"""What is right: best fit by looking at every bin, batches token by token, a model's loss."""

import math

import numpy as np


def lognormal(n, seed, capacity):
    """Draw lengths of documents: most are short, a few as long as allowed."""
    drawn = np.random.default_rng(seed).lognormal(6.2, 0.9, n)
    return np.clip(drawn.astype(np.int64), 1, capacity)


def best_fit(lengths, capacity):
    """Look at every open bin for every document, longest first."""
    bins, rooms = [], []
    for index in sorted(range(len(lengths)), key=lambda index: (-int(lengths[index]), index)):
        size = int(lengths[index])
        if size == 0:
            continue
        fitting = [(room, number) for number, room in enumerate(rooms) if room >= size]
        if fitting:
            number = min(fitting)[1]
        else:
            number = len(bins)
            bins.append([])
            rooms.append(capacity)
        bins[number].append(index)
        rooms[number] -= size
    return bins


def least_bins(lengths, capacity):
    return -(-sum(map(int, lengths)) // capacity)


def rows(bins, samples, capacity, ignore):
    """List (token, label, position, segment) of each position, document by document."""
    batch = []
    for held in bins:
        row = []
        for index in held:
            tokens = [int(token) for token in samples[index].tokens]
            for position, token in enumerate(tokens):
                after = position + 1
                predicts = samples[index].prompt <= after < len(tokens)
                row.append((token, tokens[after] if predicts else ignore, position, index))
        row += [(0, ignore, position, -1) for position in range(capacity - len(row))]
        batch.append(row)
    return batch


class Model:
    """One layer of attention between two embeddings, in float64."""

    def __init__(self, vocab, positions, seed):
        draw = np.random.default_rng(seed)
        self.tokens = draw.standard_normal((vocab, 8))
        self.places = draw.standard_normal((positions, 8))

    def losses(self, ids, places, visible):
        """Compute -log p of every token at every position: [t, vocab]."""
        x = self.tokens[ids] + self.places[places]
        scores = np.where(visible, x @ x.T / math.sqrt(8), -np.inf)
        weights = np.exp(scores - scores.max(1, keepdims=True))
        logits = (weights / weights.sum(1, keepdims=True)) @ x @ self.tokens.T
        top = logits.max(1, keepdims=True)
        return top + np.log(np.exp(logits - top).sum(1, keepdims=True)) - logits

    def alone(self, sample):
        """Sum the losses of a document that has a row for itself, and count its targets."""
        ids = np.array([int(token) for token in sample.tokens])
        visible = np.tri(len(ids), dtype=bool)
        losses = self.losses(ids, np.arange(len(ids)), visible)
        targets = range(max(sample.prompt, 1), len(ids))
        return sum(losses[at - 1, ids[at]] for at in targets), len(targets)
