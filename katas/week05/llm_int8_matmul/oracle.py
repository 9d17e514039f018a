"""What is right: codes found in float64, whole numbers multiplied as such; inputs far from ties."""

import torch

from harness.meters.dispatch import OperatorWatch

PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot")
SCALES = (2.0, 1 / 2)  # features below 3 and above 12 stay on their side of the threshold


def make_inputs(
    *, tokens, k, n, outliers, dtype, device, seed,
    threshold=6.0, magnitude=2.9, zeros=False, transposed=False,
):  # fmt: skip
    """
    Tokens and outputs whose codes are at most 0.4 of a step from a whole number.

    A token's largest magnitude is `magnitude` times 0.4 to 1; that of a feature in `outliers`
    passes 12 in one token alone, by either sign.
    """
    generator = torch.Generator().manual_seed(seed)
    x = _near_codes(tokens, k, generator, keep=[at for at in range(k) if at not in outliers])
    x *= magnitude * (0.4 + 0.6 * torch.rand(tokens, 1, generator=generator)) / 127
    for at in outliers if tokens else ():
        token = int(torch.randint(tokens, (), generator=generator))
        sign = 1 if int(torch.randint(2, (), generator=generator)) else -1
        x[token, at] = sign * (14 + 46 * torch.rand((), generator=generator))
    w = _near_codes(n, k, generator, keep=list(range(k)))
    w *= (0.02 + 0.2 * torch.rand(n, 1, generator=generator)) / 127
    if zeros:
        x[-1], w[-1] = 0, 0
    x, w = x.to(dtype).to(device), w.to(dtype).to(device)
    if transposed:
        return {"x": x.T.contiguous().T, "w": w.T, "threshold": threshold}
    return {"x": x, "w": w.T.contiguous(), "threshold": threshold}


def _near_codes(rows, k, generator, keep):
    """Rows of numbers near codes, with +127 or -127 exactly at one of the places in `keep`."""
    codes = torch.randint(-126, 127, (rows, k), generator=generator)
    codes = codes + 0.8 * (torch.rand(rows, k, generator=generator) - 0.5)
    if keep:
        place = torch.randint(len(keep), (rows,), generator=generator)
        sign = 2 * torch.randint(2, (rows,), generator=generator) - 1
        codes[torch.arange(rows), torch.tensor(keep)[place]] = 127.0 * sign
    return codes


def reference(*, x, w, threshold=6.0):
    """The definition: each feature on its way, whole numbers in int64, the rest in float64."""
    outlier = [bool((x[:, at].abs().double() >= threshold).any()) for at in range(x.shape[1])]
    outlier = torch.tensor(outlier, dtype=torch.bool, device=x.device)
    inside = x.double() * ~outlier
    x_codes, x_scale = _codes(inside, 1)
    w_codes, w_scale = _codes(w.double(), 0)
    return x_codes @ w_codes * x_scale * w_scale + x.double()[:, outlier] @ w.double()[outlier]


def same_precision(*, x, w, threshold=6.0):
    """Sums and scales in float32, and a product of the outliers in the dtype of x."""
    outlier = (x.abs().double() >= threshold).any(0)
    x_codes, x_scale = _codes(x.float() * ~outlier, 1)
    w_codes, w_scale = _codes(w.float(), 0)
    product = (x_codes.double() @ w_codes.double()).float() * x_scale * w_scale
    return (product + (x[:, outlier] @ w[outlier])).to(x.dtype)


def _codes(x, dim):
    scale = x.abs().amax(dim, keepdim=True) / 127
    return torch.where(scale > 0, x / scale, 0).round(), scale


def like_a_language_model(seed):
    """Normal features, and six of magnitude 60: two of each sign in all tokens, two in a few."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(32, 512, generator=generator).clamp(-5, 5)
    sign = torch.tensor([1.0, 1.0, -1.0, -1.0, 1.0, -1.0])
    x[:, 40:520:80] = sign * (60 + torch.randn(32, 6, generator=generator))
    x[4:, 360::80] = torch.randn(28, 2, generator=generator).clamp(-5, 5)
    return x, torch.randn(512, 128, generator=generator) / 512**0.5


class FloatProducts(OperatorWatch):
    """Counts `multiplications` in matrix products of floating point, and notes their `dtypes`."""

    def __init__(self):
        super().__init__()
        self.multiplications, self.dtypes = 0, set()

    def run(self, func, args, kwargs):
        result = func(*args, **kwargs)
        name = str(func.overloadpacket).removeprefix("aten.")
        if name in PRODUCTS and result.is_floating_point():
            self.multiplications += result.numel() * args[-2].shape[-1]
            self.dtypes.add(result.dtype)
        return result
