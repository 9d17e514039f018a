"""What is right: row by row, token by token, lists of what goes where."""

import torch

IMAGE, PAD = 32_000, 0


def merged(
    input_ids, text_emb, image_feats, labels=None, padding="right", image_id=IMAGE, pad_id=PAD
):
    """The fields of Merged, and for each row a list of its tokens to compare with."""
    images, d = iter(image_feats), text_emb.shape[-1]
    rows = []
    for ids, embeddings, wanted in zip(
        input_ids.tolist(), text_emb, labels if labels is not None else input_ids, strict=True
    ):
        row = []
        for token, embedding, label in zip(ids, embeddings, wanted.tolist(), strict=True):
            if token == image_id:
                row += [(feature, -100, True) for feature in next(images)]
            elif token != pad_id:
                row.append((embedding, label, False))
        rows.append(row)
    longest = max(len(row) for row in rows)
    empty = (torch.zeros(d, dtype=text_emb.dtype, device=text_emb.device), -100, False)
    padded, mask, positions = [], [], []
    for row in rows:
        gap, own = longest - len(row), list(range(len(row)))
        left = padding == "left"
        padded.append([empty] * gap + row if left else row + [empty] * gap)
        mask.append(
            [False] * gap + [True] * len(row) if left else [True] * len(row) + [False] * gap
        )
        positions.append([0] * gap + own if left else own + [0] * gap)
    where = {"device": input_ids.device}
    flat = [entry[0] for row in padded for entry in row]
    return {
        "emb": torch.stack(flat).view(len(rows), longest, d)
        if flat
        else text_emb.new_zeros(len(rows), 0, d),
        "mask": torch.tensor(mask, dtype=torch.bool, **where).view(len(rows), longest),
        "position_ids": torch.tensor(positions, dtype=torch.int64, **where).view(
            len(rows), longest
        ),
        "labels": None
        if labels is None
        else torch.tensor([[e[1] for e in row] for row in padded], dtype=torch.int64, **where).view(
            len(rows), longest
        ),
        "image_mask": torch.tensor(
            [[e[2] for e in row] for row in padded], dtype=torch.bool, **where
        ).view(len(rows), longest),
    }


def batch(rows, sizes, seed, *, d=6, dtype=torch.float32, device="cpu"):
    """
    A batch out of strings: t text, I a placeholder, . padding.

    Where no text stands the embedding is NaN and the label a number: nothing may come of them.
    """
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, IMAGE, (len(rows), len(rows[0])), generator=draw)
    for at, row in enumerate(rows):
        for column, kind in enumerate(row):
            if kind != "t":
                ids[at, column] = IMAGE if kind == "I" else PAD
    # drawn in float64, so that a detour through float32 loses bits of it
    text = torch.randn(*ids.shape, d, generator=draw, dtype=torch.float64).to(dtype)
    text[(ids == IMAGE) | (ids == PAD)] = torch.nan
    feats = [torch.randn(n, d, generator=draw, dtype=torch.float64).to(dtype) for n in sizes]
    return ids.to(device), text.to(device), [f.to(device) for f in feats]
