"""What to feed: a model that knows one language, data of another, rows that nobody trained on."""

import functools

import numpy as np
import torch
from torch.nn import functional as F

VOCAB, S = 32, 16


def language(seed):
    """Which token follows which: two choices for each, one of them three times in four."""
    draw = torch.Generator().manual_seed(seed)
    return torch.stack([torch.randperm(VOCAB, generator=draw) for _ in range(2)], dim=1)


def rows_of(follows, n, seed):
    draw = torch.Generator().manual_seed(seed)
    rows = [torch.randint(VOCAB, (n,), generator=draw)]
    for _ in range(S):
        rare = (torch.rand(n, generator=draw) < 0.25).long()
        rows.append(follows[rows[-1], rare])
    return torch.stack(rows, dim=1)


def new_language():
    """The pre-training's, for half of the tokens; another for the other half."""
    follows = language(0).clone()
    follows[::2] = language(1)[::2]
    return follows


@functools.cache
def kept(_kata):
    """What `pretrained` has made, for the rest of the session."""
    return {}


def pretrained(kata):
    """Weights after training on the first language; trained once."""
    if kept(kata):
        return kept(kata)
    torch.manual_seed(0)
    model = kata.Tiny()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    rows = rows_of(language(0), 64, 3)
    for _ in range(60):
        optimizer.zero_grad()
        logits = model(rows[:, :-1])
        F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()).backward()
        optimizer.step()
    kept(kata).update({name: one.clone() for name, one in model.state_dict().items()})
    return kept(kata)


def loader(kata):
    """A function that makes the pre-trained model anew."""

    def load():
        model = kata.Tiny()
        model.load_state_dict(pretrained(kata))
        return model

    return load


def write_data(folder, sizes=(50, 7, 0, 31, 40), dtype=np.uint16):
    """
    Write shards of so many rows of the new language, one of them empty.

    Their numbers have one digit or two, so that the order of names is not that of the numbers.
    """
    folder.mkdir(parents=True)
    rows = rows_of(new_language(), sum(sizes), 5).split(list(sizes))
    for at, part in enumerate(rows):
        np.save(folder / f"shard-{at * 7}.npy", part.numpy().astype(dtype))
    return folder


def held_out(n=37):
    return rows_of(new_language(), n, 7)


def order(data, b, seed, count, skip=0):
    """The first batches, from a list of all rows of enough epochs."""
    files = sorted(data.glob("*.npy"))
    rows, epoch = [], 0
    while len(rows) < (count + 1) * b + skip:
        draw = torch.Generator().manual_seed(seed + epoch)
        for at in torch.randperm(len(files), generator=draw).tolist():
            rows += list(np.load(files[at]).astype(np.int64))
        epoch += 1
    return [torch.from_numpy(np.stack(rows[at * b : (at + 1) * b])) for at in range(count)]


def loss(model, rows):
    """Mean over all tokens at once."""
    with torch.no_grad():
        logits = model(rows[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1).double(), rows[:, 1:].flatten()).item()
