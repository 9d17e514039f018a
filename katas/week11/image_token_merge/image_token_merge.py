"""Kata week11/image_token_merge: one gather moves text and image features to their places."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
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
    # TODO(kata): check, slots of each token, source of each slot, labels of the slots, gather into
    # place (about 30 lines)
    raise NotImplementedError


def project(
    feats: Float[Tensor, "n d_vis"],
    w1: Float[Tensor, "hidden d_vis"],
    b1: Float[Tensor, " hidden"],
    w2: Float[Tensor, "d hidden"],
    b2: Float[Tensor, " d"],
) -> Float[Tensor, "n d"]:
    """LLaVA-1.5's projector: linear, exact GELU, linear."""
    raise NotImplementedError  # TODO(kata): project (1 line)


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
