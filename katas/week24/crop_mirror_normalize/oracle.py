"""What is right, what to feed and what it costs: crop by crop, in float64."""

import torch

from harness.hardware import Cost


def make_inputs(
    *, n, size, crop, c, dtype, device, seed, layout="nhwc", pad_output=False, scale=1.0, shift=0.0
):  # fmt: skip
    """
    Random pixels; positions in steps of 1/64, so that halves are exact; some images mirrored.

    Layouts: "nhwc" is contiguous, "nchw" has its channels first in memory, "room" is cut out of
    larger images.
    """
    draw = torch.Generator().manual_seed(seed)
    height, width = size
    x = torch.randint(0, 256, (n, height, width, c), generator=draw, dtype=dtype).to(device)
    if layout == "nchw":
        x = x.permute(0, 3, 1, 2).contiguous().permute(0, 2, 3, 1)
    elif layout == "room":
        room = torch.full((n, height + 3, width + 2, c + 1), 99, dtype=dtype, device=device)
        room[:, 1:-2, 1:-1, 1:] = x
        x = room[:, 1:-2, 1:-1, 1:]
    pos = torch.randint(0, 65, (n, 2), generator=draw) / 64
    pos[:3] = torch.tensor([[0.5, 0.5], [0.0, 1.0], [1.0, 0.0]])[:n]
    return {
        "x": x,
        "crop": tuple(crop),
        "crop_pos": pos.float().to(device),
        "mirror": (torch.arange(n) % 2 == 0).to(device),
        "mean": (100 + 60 * torch.rand(c, generator=draw)).to(device),
        "std": (40 + 40 * torch.rand(c, generator=draw)).to(device),
        "scale": scale,
        "shift": shift,
        "pad_output": pad_output,
    }


STRUCTURED = ("crop_pos",)


def _crops(x, crop, crop_pos, mirror):
    (h, w), (_, height, width, _) = crop, x.shape
    crops = []
    for image, (y, left), flip in zip(x, crop_pos.tolist(), mirror.tolist(), strict=True):
        # halves away from zero
        y, left = int((height - h) * y + 0.5), int((width - w) * left + 0.5)
        cut = image[y : y + h, left : left + w].permute(2, 0, 1)
        crops.append(cut.flip(2) if flip else cut)
    return torch.stack(crops) if crops else x.new_empty(0, x.shape[3], h, w)


def _padded(out, pad_output):
    c = out.shape[1]
    more = (1 << (c - 1).bit_length()) - c if pad_output else 0
    return torch.cat([out, out.new_zeros(len(out), more, *out.shape[2:])], dim=1)


def reference(*, x, crop, crop_pos, mirror, mean, std, scale=1.0, shift=0.0, pad_output=False):
    crops = _crops(x, crop, crop_pos, mirror).double()
    mean, std = (table.double()[:, None, None] for table in (mean, std))
    return _padded(scale * (crops - mean) / std + shift, pad_output)


def same_precision(*, x, crop, crop_pos, mirror, mean, std, scale=1.0, shift=0.0, pad_output=False):
    """One factor and one offset a channel, in float32."""
    factor = scale / std
    offset = shift - mean * factor
    crops = _crops(x, crop, crop_pos, mirror).float()
    out = crops * factor[:, None, None] + offset[:, None, None]
    return _padded(out, pad_output).half()


def cost(*, x, crop, crop_pos, mirror, mean, std, scale=1.0, shift=0.0, pad_output=False):
    """Every cropped byte and every table once, every result once."""
    n, c, pixels = len(x), x.shape[3], crop[0] * crop[1]
    c_out = 1 << (c - 1).bit_length() if pad_output else c
    read = n * c * pixels + sum(table.nbytes for table in (crop_pos, mirror, mean, std))
    return Cost(flops=2 * n * c * pixels, bytes=read + 2 * n * c_out * pixels)


def eager(*, x, crop, crop_pos, mirror, mean, std, scale=1.0, shift=0.0, pad_output=False):
    """Gather the crops, mirror, convert, normalise, transpose: a pass over memory each."""
    (h, w), (n, height, width, _) = crop, x.shape
    room = torch.tensor([height - h, width - w], device=x.device)
    top, left = (room * crop_pos + 0.5).long().unbind(1)
    rows = top[:, None] + torch.arange(h, device=x.device)
    cols = left[:, None] + torch.arange(w, device=x.device)
    image = torch.arange(n, device=x.device)[:, None, None]
    crops = x[image, rows[:, :, None], cols[:, None, :]]
    crops = torch.where(mirror[:, None, None, None], crops.flip(2), crops).float()
    out = ((crops - mean) / std * scale + shift).half()
    return out.permute(0, 3, 1, 2).contiguous()
