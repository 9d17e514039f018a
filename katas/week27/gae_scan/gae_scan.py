"""Kata week27/gae_scan: rewards shaped by a KL penalty, advantages by one scan backwards.

One program takes a row, a block of steps at a time from the last to the first. HBM: rewards, values
and ends read, advantages and returns written.
"""

import torch
import triton
import triton.language as tl
from jaxtyping import Bool, Float, Float32
from torch import Tensor

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
KINDS = ("k1", "k2", "k3")


@triton.jit
def _gae_kernel(
    r_ptr, v_ptr, done_ptr, adv_ptr, ret_ptr, r_stride, v_stride, done_stride, T, gamma, decay,
    BLOCK: tl.constexpr, FEW: tl.constexpr,
):  # fmt: skip
    # TODO(kata): each step as a linear function, scan the block, carry to the block before (about
    # 30 lines with helpers)
    pass


def gae_scan(
    rewards: Float[Tensor, "b t"],
    values: Float[Tensor, "b t_plus_1"],
    done: Bool[Tensor, "b t"],
    gamma: float,
    lam: float,
) -> tuple[Float32[Tensor, "b t"], Float32[Tensor, "b t"]]:
    """
    Advantages and returns, float32 and contiguous; all arithmetic is float32.

    delta[t] = rewards[t] + gamma * values[t + 1] - values[t], and
    advantage[t] = delta[t] + gamma * lam * advantage[t + 1]; where `done[t]`, without the terms
    of t + 1. After the last step the advantage is 0. returns = advantages + values[:, :-1].

    Args:
        rewards: Of each step; rows may lie any stride apart.
        values: Of each state, that after the last step included.
        done: Whether the episode ended with this step.
        gamma: Discount, from 0 to 1.
        lam: From 0 (one step) to 1 (all steps).

    Raises:
        ValueError: `rewards` has not two axes, is not one of `DTYPES`, or bfloat16 on the CPU;
            `values` has not one column more than it; `done` has another shape; dtype (of `done`:
            bool) or device differ; a last axis is not contiguous; `gamma` or `lam` is not from 0
            to 1. The message begins with the argument's name.

    Source: Schulman et al. 2016, equation 16.
    """
    raise NotImplementedError  # TODO(kata): launch (about 15 lines with helpers)


def shaped_rewards(
    score: Float[Tensor, " b"],
    logp: Float[Tensor, "b t"],
    ref_logp: Float[Tensor, "b t"],
    mask: Bool[Tensor, "b t"],
    beta: float,
    kl: str,
) -> tuple[Float32[Tensor, "b t"], Float32[Tensor, "b t"]]:
    """
    Rewards and the KL estimate of each token, float32, both 0 where `mask` is false.

    The reward of a token is -beta times its estimate; the last token of a row, the last at which
    `mask` is true, has `score` besides. A row without tokens has no rewards. With
    d = logp - ref_logp the estimate "k1" is d, "k2" is d² / 2, "k3" is exp(-d) - 1 + d. What
    stands at masked positions does not matter, be it NaN.

    Raises:
        ValueError: `kl` is not one of `KINDS`; the message begins with its name.

    Source: Schulman 2020, Approximating KL Divergence.
    """
    raise NotImplementedError  # TODO(kata): shape the rewards (about 10 lines)


def masked_whiten(x: Float[Tensor, "b t"], mask: Bool[Tensor, "b t"]) -> Float32[Tensor, "b t"]:
    """
    `x` less its mean, over its standard deviation, both of what `mask` selects; 0 elsewhere.

    In float32; the variance is the mean of squares of differences, plus 1e-8. What stands at
    masked positions does not matter, be it NaN. Without anything selected all is 0.
    """
    raise NotImplementedError  # TODO(kata): whiten (about 4 lines)


def _check(rewards: Tensor, values: Tensor, done: Tensor, gamma: float, lam: float) -> None:
    if rewards.ndim != 2 or rewards.dtype not in DTYPES:
        raise ValueError(f"rewards: expected [b, t] of {DTYPES}, found {_told(rewards)}")
    if rewards.dtype == torch.bfloat16 and not rewards.is_cuda:
        raise ValueError("rewards: expected bfloat16 on a GPU only")
    b, t = rewards.shape
    for name, one, shape, dtype in (
        ("rewards", rewards, (b, t), rewards.dtype),
        ("values", values, (b, t + 1), rewards.dtype),
        ("done", done, (b, t), torch.bool),
    ):
        if one.shape != shape or one.dtype != dtype or one.device != rewards.device:
            raise ValueError(f"{name}: expected {shape} of {dtype}, found {_told(one)}")
        if one.shape[1] > 1 and one.stride(1) != 1:
            raise ValueError(f"{name}: expected a contiguous last axis, found {_told(one)}")
    for name, number in (("gamma", gamma), ("lam", lam)):
        if not 0 <= number <= 1:
            raise ValueError(f"{name}: expected a number from 0 to 1, found {number}")


def _told(one: Tensor) -> str:
    return f"{tuple(one.shape)} {one.dtype} on {one.device}, strides {one.stride()}"
