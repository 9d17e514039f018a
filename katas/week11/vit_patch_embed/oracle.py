"""What is right, what to feed and what it costs: normalised pixels, convolved; rows added."""

import torch
import torch.nn.functional as F

from harness.hardware import Cost


def make_inputs(*, b, h, w, p, d, dtype, device, seed, layout="nchw"):
    """
    Random pixels in `dtype`, weights that keep their scale, CLIP's figures changed a little.

    Layouts: "nchw" is contiguous, "nhwc" has its channels last, "crop" is cut out of an image
    whose other pixels are as large as they can be, or NaN.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    if dtype == torch.uint8:
        img = torch.randint(0, 256, (b, 3, h, w), generator=generator, dtype=dtype)
    else:
        img = torch.rand(b, 3, h, w, generator=generator).to(dtype)
    # on the device first: a copy from one to the other would be contiguous
    img = img.to(device)
    if layout == "nhwc":
        img = img.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    elif layout == "crop":
        fill = 255 if dtype == torch.uint8 else float("nan")
        room = torch.full((b, 3, h + 3, w + 5), fill, dtype=dtype, device=device)
        room[:, :, 2 : h + 2, 1 : w + 1] = img
        img = room[:, :, 2 : h + 2, 1 : w + 1]
    near = torch.tensor([0.48, 0.46, 0.41]), torch.tensor([0.27, 0.26, 0.28])
    mean, std = (x + 0.1 * torch.rand(3, generator=generator) for x in near)
    k = 3 * p * p
    return {
        "img": img,
        "w": (normal(d, 3, p, p) / k**0.5).half().to(device),
        "pos": normal((h // p) * (w // p) + 1, d).half().to(device),
        "cls": normal(d).half().to(device),
        "mean": mean.to(device),
        "std": std.to(device),
    }


def _pixels(img, mean, std, dtype):
    pixels = img.to(dtype) / 255 if img.dtype == torch.uint8 else img.to(dtype)
    return (pixels - mean.to(dtype)[:, None, None]) / std.to(dtype)[:, None, None]


def _tokens(pixels, w, pos, cls):
    """Everything in the dtype of `pixels`."""
    dtype, (d, *_, p) = pixels.dtype, w.shape
    if not d:  # PyTorch convolves with one channel or more
        return torch.empty(len(pixels), len(pos), 0, dtype=dtype, device=pixels.device)
    patches = F.conv2d(pixels, w.to(dtype), stride=p).flatten(2).transpose(1, 2)
    first = cls.to(dtype).expand(len(pixels), 1, d)
    return torch.cat([first, patches], dim=1) + pos.to(dtype)


def reference(*, img, w, pos, cls, mean, std):
    return _tokens(_pixels(img, mean, std, torch.float64), w, pos, cls)


def same_precision(*, img, w, pos, cls, mean, std):
    """Pixels rounded to float16, sums in float32."""
    pixels = _pixels(img, mean, std, torch.float32).half().float()
    return _tokens(pixels, w, pos, cls).half()


def cost(*, img, w, pos, cls, mean, std):
    """Every pixel, weight, position and token once."""
    (b, _, h, width), (d, _, p, _) = img.shape, w.shape
    patches = b * (h // p) * (width // p)
    out_bytes = 2 * (patches + b) * d
    read = sum(x.nbytes for x in (img, w, pos, cls, mean, std))
    return Cost(flops=2 * patches * 3 * p * p * d, bytes=read + out_bytes)


def eager(*, img, w, pos, cls, mean, std):
    """Normalise, unfold, multiply, put the class token in front, add the positions."""
    b, (d, *_, p) = len(img), w.shape
    pixels = img.half() / 255 if img.dtype == torch.uint8 else img
    pixels = (pixels - mean.half()[:, None, None]) / std.half()[:, None, None]
    patches = F.unfold(pixels, p, stride=p).transpose(1, 2)  # [b, t, 3 p p]
    patches = patches @ w.view(d, -1).T
    return torch.cat([cls.expand(b, 1, d), patches], dim=1) + pos
