"""Kata week11/image_token_merge: one gather moves text and image features to their places."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

IGNORED = -100


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """
    A padded batch whose images have taken their places.

    `mask` is True where there is a token, `image_mask` where it came from an image. Padding has
    zeros in `emb` and `position_ids`, and IGNORED in `labels`, as images have.
    """

    emb: Float[Tensor, "b l d"]
    mask: Tensor
    position_ids: Tensor
    labels: Tensor | None
    image_mask: Tensor


def image_token_merge(
    input_ids: Int[Tensor, "b s"],
    text_emb: Float[Tensor, "_ _ d"],
    image_feats: Sequence[Tensor],
    image_id: int,
    pad_id: int,
    labels: Tensor | None = None,
    padding: str = "right",
) -> Merged:
    """
    Put the features of image i in place of the i-th placeholder, counted row by row.

    Padding of the input is dropped, and that of the result is on the side `padding` names.

    Raises:
        ValueError: `text_emb` or `labels` does not fit `input_ids`; a member of `image_feats` is
            not [n, d] in the dtype of `text_emb`, or there are more or fewer than placeholders;
            `pad_id` is `image_id`; `padding` is neither side. The message begins with the name.
    """
    # check
    _check(input_ids, text_emb, image_feats, image_id, pad_id, labels, padding)
    device, (batch, seq), d = input_ids.device, input_ids.shape, text_emb.shape[-1]
    is_image = input_ids == image_id
    sizes = torch.tensor([len(feats) for feats in image_feats], device=device, dtype=torch.int64)
    if (placeholders := int(is_image.sum())) != len(sizes):
        raise ValueError(
            f"image_feats: expected {placeholders}, one for each placeholder, found {len(sizes)}"
        )

    # slots of each token
    counts = (input_ids != pad_id).long().masked_scatter(is_image, sizes)
    lengths = counts.sum(dim=1, keepdim=True)
    longest = int(lengths.max())
    column = torch.arange(longest, device=device)
    mask = column < lengths if padding == "right" else column >= longest - lengths  # [b, l]

    # source of each slot
    # in row-major order, the slots are those of the tokens, each repeated as often as it counts
    token = torch.repeat_interleave(counts.reshape(-1))
    from_image = is_image.reshape(-1)[token]
    source = torch.where(from_image, batch * seq - 1 + from_image.cumsum(0), token)
    nowhere = batch * seq + sum(len(feats) for feats in image_feats)
    where = torch.full((batch, longest), nowhere, device=device).masked_scatter(mask, source)
    rows = torch.cat((text_emb.reshape(-1, d), *image_feats, text_emb.new_zeros(1, d)))
    # labels of the slots
    if labels is not None:
        kept = labels.masked_fill(is_image, IGNORED).reshape(-1)[token]
        labels = labels.new_full((batch, longest), IGNORED).masked_scatter(mask, kept)
    # gather into place
    return Merged(
        emb=rows[where],
        mask=mask,
        position_ids=(mask.cumsum(dim=1) - 1).masked_fill(~mask, 0),
        labels=labels,
        image_mask=mask.masked_scatter(mask, from_image),
    )


def project(
    feats: Float[Tensor, "n d_vis"],
    w1: Float[Tensor, "hidden d_vis"],
    b1: Float[Tensor, " hidden"],
    w2: Float[Tensor, "d hidden"],
    b2: Float[Tensor, " d"],
) -> Float[Tensor, "n d"]:
    """LLaVA-1.5's projector: linear, exact GELU, linear."""
    return F.linear(F.gelu(F.linear(feats, w1, b1)), w2, b2)


def _check(
    input_ids: Tensor,
    text_emb: Tensor,
    image_feats: Sequence[Tensor],
    image_id: int,
    pad_id: int,
    labels: Tensor | None,
    padding: str,
) -> None:
    shape, d = list(input_ids.shape), text_emb.shape[-1]
    if text_emb.shape[:-1] != input_ids.shape:
        raise ValueError(f"text_emb: expected [*{shape}, d], found {list(text_emb.shape)}")
    if labels is not None and labels.shape != input_ids.shape:
        raise ValueError(f"labels: expected {shape}, found {list(labels.shape)}")
    for at, feats in enumerate(image_feats):
        if feats.ndim != 2 or feats.shape[-1] != d or feats.dtype != text_emb.dtype:
            raise ValueError(
                f"image_feats: expected [n, {d}] in {text_emb.dtype}, "
                f"found {list(feats.shape)} in {feats.dtype} for image {at}"
            )
    if pad_id == image_id:
        raise ValueError(f"pad_id: expected another than image_id, found {pad_id} for both")
    if padding not in ("right", "left"):
        raise ValueError(f"padding: expected 'right' or 'left', found {padding!r}")
