"""What is right: the error of every candidate on all tokens, in float64; inputs without ties."""

import torch

GAP = 2e-3  # by how much the error of the best candidate is below that of every other


def make_inputs(
    *,
    n,
    k,
    s,
    bits,
    group_size,
    dtype,
    device,
    seed,
    grid=20,
    loud=(),
    quiet=(),
    dead=(),
    transposed=False,
):
    """
    Channels `loud` of x are 30 times as large as the others, `quiet` ones 2¹⁶ times smaller, and
    channels `dead` are zeros.

    Drawn again until no weight is near a tie with any of the scales tried, and one candidate is
    clearly the best. Transposed ones lie in memory column by column.
    """
    generator = torch.Generator().manual_seed(seed)
    volume = 0.5 + torch.rand(k, generator=generator)
    volume[list(loud)] *= 30.0
    volume[list(quiet)] *= 2.0**-16
    volume[list(dead)] = 0.0
    for _ in range(1000):
        w = (torch.randn(n, k, generator=generator)).to(dtype)
        x = (torch.randn(s, k, generator=generator) * volume).to(dtype)
        if not w.numel() or not bool(x.any()) or is_clear(w, x, bits, group_size, grid):
            break
    else:
        raise AssertionError("expected inputs without ties among 1000")
    if transposed:
        x, w = x.mT.contiguous().mT, w.mT.contiguous().mT
    sizes = {"bits": bits, "group_size": group_size, "grid": grid}
    return {"w": w.to(device), "x": x.to(device), **sizes}


def is_clear(w, x, bits, group_size, grid):
    """There is a gap to the second best, and float32 is enough to tell."""
    first, *others = sorted(parts[0] for parts in measured(w, x, bits, group_size, grid))
    gap = not others or first * (1 + GAP) ** 2 < others[0]
    return gap and has_digits(w, x, bits, group_size, grid)


def has_digits(w, x, bits, group_size, grid):
    """
    No ties, no errors that cancel over the channels of a token.

    Nor errors so small beside the weights that float32 has lost their fifth digit.
    """
    errors, apart, margins = zip(*measured(w, x, bits, group_size, grid), strict=True)
    sums = all(error > 0.3 * parts for error, parts in zip(errors, apart, strict=True))
    large = min(errors) ** 0.5 * 2**bits > 0.2 * float((x.double() @ w.double().mT).norm())
    return sums and large and min(margins) > 1e-6 * 2**bits


def measured(w, x, bits, group_size, grid):
    """Of each candidate: its squared error, that of its channels apart, and the nearest tie."""
    w, x = w.double(), x.double()
    for at in range(grid):
        s = scales(x, at / grid)
        w_hat, margin = rounded(w * s, bits, group_size)
        delta = w - w_hat / s
        error = float((x @ delta.mT).square().sum())
        yield error, float((delta.square() * x.square().sum(0)).sum()), margin


def reference(*, w, x, bits=4, group_size=128, grid=20):
    """Quantize w · s, multiply x / s with it, compare: for each candidate."""
    w, x = w.double(), x.double()
    want = x @ w.mT
    best = None
    for at in range(grid):
        s = scales(x, at / grid)
        w_hat, _ = rounded(w * s, bits, group_size)
        error = ((x / s) @ w_hat.mT - want).norm()
        if best is None or error < best[2]:
            best = s, at / grid, error
    s, alpha, error = best
    size = want.norm()
    return s, alpha, error / size if size > 0 else size


def same_precision(*, w, x, bits=4, group_size=128, grid=20):
    """
    The float32 answer whose inputs are off by k units of rounding, as sums may be: worst of 8.

    alpha is that of the truth: inputs are such that no rounding decides it.
    """
    s, alpha, share = reference(w=w, x=x, bits=bits, group_size=group_size, grid=grid)
    far_s, far_share, k = s.float(), share.float(), w.shape[1]
    w, x = w.float(), x.float()
    h = x.mT @ x
    for seed in range(8):
        noise = torch.randn(k, k, generator=torch.Generator().manual_seed(seed)).to(x.device)
        noise = torch.finfo(torch.float32).eps * noise
        other = scales(x, alpha) * (1 + 8 * noise[0])
        delta = w - rounded(w * other, bits, group_size)[0] / other
        error = (delta @ (h * (1 + k * noise)) * delta).sum()
        size = (w @ h * w).sum()
        other_share = (error / size).sqrt() if size > 0 else size
        far_s = torch.where((other - s).abs() > (far_s - s).abs(), other, far_s)
        if (other_share - share).abs() > (far_share - share).abs():
            far_share = other_share
    return far_s, alpha, far_share


def scales(x, alpha):
    """mean|x|^alpha in the dtype of `x`, its largest and smallest as far above 1 as below."""
    used = (x != 0).any(0)
    s = torch.ones_like(x[0]) if len(x) else torch.ones(x.shape[1], dtype=x.dtype, device=x.device)
    if used.any():
        logs = alpha * x[:, used].abs().mean(0).log()
        s[used] = (logs - (logs.max() + logs.min()) / 2).exp()
    return s


def rounded(w, bits, group_size):
    """Round group by group, in the dtype of `w`; and how near a weight came to a tie, in steps."""
    top, parts, steps = 2**bits - 1, [], [torch.zeros_like(w[:, :0])]
    for group in w.split(group_size, dim=1):
        low, high = torch.nn.functional.pad(group, (0, 1)).aminmax(dim=1, keepdim=True)
        step = (high - low) / top
        step = torch.where(step == 0, torch.ones_like(step), step)
        zero = (-low / step).round()
        code = ((group / step).round() + zero).clamp(0, top)
        parts.append((code - zero) * step)
        steps += [group / step, low / step]
    away = torch.cat(steps, dim=1).flatten()
    from_a_tie = (away - away.floor() - 0.5).abs()
    return torch.cat(parts, dim=1), float(from_a_tie.min()) if away.numel() else 0.5


def close_call(*, k, s, ahead, device, seed):
    """
    Two rows of weights, 4 bits in one group, of which one wants alpha = 0 and the other 1/2.

    The second is enlarged until the squared error at alpha = 1/2 is `ahead` below that at 0, of
    which it is a share.
    """
    generator = torch.Generator().manual_seed(seed)
    for _ in range(100):
        w = torch.randn(48, k, generator=generator)
        x = torch.randn(s, k, generator=generator)
        x[:, 1] *= 4.0
        errors = [row_errors(w, x, alpha) for alpha in (0.0, 0.5)]
        gain = errors[0] - errors[1] / (1 - ahead)  # above 0 where 1/2 is good enough by itself
        loser, winner = int(gain.argmin()), int(gain.argmax())
        if gain[loser] < 0 < gain[winner]:
            w[winner] *= (-gain[loser] / gain[winner]).sqrt().float()
            w = w[[loser, winner]]
            if has_digits(w, x, bits=4, group_size=k, grid=2):
                return {"w": w.to(device), "x": x.to(device), "bits": 4, "group_size": k, "grid": 2}
    raise AssertionError("expected a close call among 100")


def row_errors(w, x, alpha):
    """Squared errors of the outputs of each row, in one group of 4 bits."""
    w, x = w.double(), x.double()
    s = scales(x, alpha)
    return (x @ (w - rounded(w * s, 4, w.shape[1])[0] / s).mT).square().sum(0)


def output_error(w, other, x):
    """‖x (w - other)ᵀ‖, in float64."""
    return float((x.double() @ (w.double() - other.double()).mT).norm())
