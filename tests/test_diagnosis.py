"""A gallery of wrong results: each has its cause named, and nothing is named that does not fit."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from harness.judge import assert_matches
from harness.judge.correctness.diagnosis import error_map
from harness.judge.correctness.matching import diagnose_runs
from harness.judge.correctness.memory import LARGE, NAN, poisoned, poisoned_allocations
from harness.judge.correctness.signatures import factor_name


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def message_for(found, want, **options):
    with pytest.raises(AssertionError) as caught:
        assert_matches(found, want, **options)
    return str(caught.value)


def cause_of(found, want, **options):
    lines = message_for(found, want, **options).splitlines()
    return "; ".join(
        line.removeprefix("likely cause: ") for line in lines if line.startswith("likely cause: ")
    )


def changed(right, place, value):
    wrong = right.clone()
    wrong[place] = value
    return wrong


def softmax(x, scale=1.0):
    return torch.softmax(x * scale, dim=-1)


def rounded(x, dtype):
    return x.to(dtype).to(x.dtype)


def tf32(x):
    """The ten mantissa bits that a tensor core keeps of a float32."""
    return (x.view(torch.int32) + 0x1000 & ~0x1FFF).view(torch.float32)


@dataclass(frozen=True, kw_only=True)
class Wrong:
    """One mistake: the right answer in float64, a wrong one, and words of the cause."""

    right: torch.Tensor
    found: torch.Tensor
    cause: str


X = numbers(60, 300)
TALL = numbers(2, 3, 64, 80)
A, B = numbers(64, 512), numbers(512, 48, seed=1)
PRODUCT = A.double() @ B.double()
# the first four rows see themselves alone, every other one what comes before it
SEEN = torch.cat([torch.eye(64)[:4], torch.ones(64, 64).tril()[4:]]).bool()
CAUSAL = torch.where(SEEN, numbers(64, 64, seed=2).double(), -math.inf)
MASKED = torch.where(torch.arange(8)[:, None] < 3, float("-inf"), numbers(8, 16).double())
NAN_POISON = poisoned(1, torch.float32, torch.device("cpu"), NAN)[0]
LARGE_POISON = poisoned(1, torch.float32, torch.device("cpu"), LARGE)[0]

GALLERY = {
    # 300 columns in blocks of 128: the third is not whole
    "no tail mask": Wrong(
        right=X.double(),
        found=changed(X, np.s_[:, 256:], 7.0),
        cause="only the last 44 of 300 along axis 1 are wrong: the tail",
    ),
    "last rows": Wrong(
        right=X.double(),
        found=changed(X, np.s_[56:], 7.0),
        cause="only the last 4 of 60 along axis 0 are wrong: the tail",
    ),
    "last element of a vector": Wrong(
        right=X[0].double(),
        found=changed(X[0], -1, 7.0),
        cause="only the last 1 of 300 along axis 0 are wrong",
    ),
    "tail of the flattened matrix": Wrong(
        right=X.double(),
        found=changed(X.flatten(), np.s_[17_920:], 7.0).view_as(X),
        cause="only the last 80 of 18000 in memory order are wrong",
    ),
    "only the first block": Wrong(
        right=X.double(),
        found=changed(X, np.s_[:, 64:], 7.0),
        cause="only the first 64 of 300 along axis 1 are right: only the first block was computed",
    ),
    "only the first program": Wrong(
        right=X.flatten().double(),
        found=changed(X.flatten(), np.s_[1024:], 0.0),
        cause="only the first 1024 of 18000 along axis 0 are right",
    ),
    "unwritten tail": Wrong(
        right=X.double(),
        found=changed(X, np.s_[:, 256:], NAN_POISON),
        cause="never written, or computed from memory outside the input (past its end, or "
        "between its rows): it is the NaN that unused memory was filled with; only the "
        "last 44 of 300 along axis 1 are wrong",
    ),
    "unwritten, other pattern": Wrong(
        right=X.double(),
        found=changed(X, np.s_[3, 5], LARGE_POISON),
        cause="never written: it still holds what uninitialised memory was filled with",
    ),
    "nothing written": Wrong(
        right=X.double(), found=torch.full_like(X, float(LARGE_POISON)), cause="never written"
    ),
    "all zeros": Wrong(right=X.double(), found=torch.zeros_like(X), cause="all zeros"),
    "transposed": Wrong(
        right=X[:, :60].double(), found=X[:, :60].T.contiguous(), cause="transposed"
    ),
    "written in column order": Wrong(
        right=X.double(), found=X.T.reshape(X.shape), cause="transposed"
    ),
    "heads transposed": Wrong(
        right=TALL[..., :64].double(), found=TALL[..., :64].mT.contiguous(), cause="transposed"
    ),
    "heads and rows transposed": Wrong(
        right=TALL.double(),
        found=TALL.transpose(1, 2).reshape(TALL.shape),
        cause="transposed: axes 1 and 2 are swapped",
    ),
    "written in another layout": Wrong(
        right=TALL.double(),
        found=TALL.reshape(2, 64, 3, 80).transpose(1, 2),
        cause="transposed: axes 1 and 2 are swapped",
    ),
    "stored over the next row": Wrong(
        right=X.double(),
        found=changed(X, np.s_[1:, :84], 0.0),  # 300 columns in blocks of 128
        cause="only the first 84 of 300 along axis 1 are wrong, and none in the very first slice",
    ),
    "stored over the next head": Wrong(
        right=TALL.double(),
        found=changed(TALL.view(6, 64, 80), np.s_[1:, :48], 0.0).view_as(TALL),
        cause="only the first 48 of 64 along axis 2 are wrong, and none in the very first slice",
    ),
    "another head's keys": Wrong(
        right=TALL.double(),
        found=changed(TALL, np.s_[:, 1], numbers(64, 80, seed=5)),
        cause="wrong only at 1 of 3 along axis 1",
    ),
    "sum not rescaled": Wrong(
        right=softmax(X.double()),
        found=softmax(X) * torch.linspace(0.25, 1, 60)[:, None],
        cause="59 of 60 rows are each off by a factor of their own (0.25 to 0.987)",
    ),
    "one row, padding counted": Wrong(
        right=softmax(X[:1].double()),
        found=softmax(X[:1]) * 0.77,
        cause="1 of 1 rows are each off by a factor of their own (0.77 to 0.77)",
    ),
    "one row, padding counted in float16": Wrong(
        right=softmax(X[:2, :127].double()),
        found=(softmax(X[:2, :127]) * torch.tensor([[0.994], [0.996]])).half(),
        cause="2 of 2 rows are each off by a factor of their own (0.994 to 0.996)",
    ),
    "one key too many, in float16": Wrong(
        right=TALL[0, 0].double(),
        found=(TALL[0, 0] * torch.linspace(0.96, 0.99, 64)[:, None]).half(),
        cause="64 of 64 rows are each off by a factor of their own (0.96 to 0.99)",
    ),
    "scale forgotten": Wrong(
        right=TALL.double() / math.sqrt(80), found=TALL, cause="constant factor 8.9443 = sqrt(80)"
    ),
    "scaled twice": Wrong(
        right=TALL.double(),
        found=TALL / math.sqrt(128),
        cause="constant factor 0.088388 = 1/sqrt(128)",
    ),
    "exp2 for exp": Wrong(
        right=X.double(), found=X * math.log2(math.e), cause="constant factor 1.4427 = log2(e)"
    ),
    "sum for mean": Wrong(
        right=X.double() / 300, found=X, cause="constant factor 300 = 300, the size of an axis"
    ),
    "biased variance": Wrong(
        right=TALL.double() * 80 / 79, found=TALL, cause="constant factor 0.9875 = 79/80"
    ),
    "wrong sign": Wrong(right=X.double(), found=-X, cause="-1, the sign"),
    "twice": Wrong(right=X.double(), found=2 * X, cause="constant factor 2"),
    "half precision, factor": Wrong(
        right=X.half().double(), found=X.half() * 8, cause="constant factor 8"
    ),
    "shifted along columns": Wrong(
        right=X.double(),
        found=X.roll(1, dims=1),
        cause="shifted by one along axis 1: element i holds the value of i - 1",
    ),
    "shifted along rows": Wrong(
        right=X.double(),
        found=X.roll(-1, dims=0),
        cause="shifted by one along axis 0: element i holds the value of i + 1",
    ),
    "masked rows": Wrong(
        right=torch.softmax(MASKED, dim=1).nan_to_num(0.0),
        found=torch.softmax(MASKED, dim=1).float(),
        cause="NaN in 3 whole rows and nowhere else, first in row (0,): a row in which",
    ),
    "masked rows, all of them": Wrong(
        right=torch.zeros(4, 16).double(),
        found=torch.full((4, 16), float("nan")),
        cause="a row in which everything is masked is 0 / 0",
    ),
    "-inf less -inf": Wrong(
        right=softmax(torch.cat([MASKED[3:], MASKED[3:] + MASKED[:1]], dim=1)).nan_to_num(0.0),
        found=changed(
            softmax(torch.cat([MASKED[3:], MASKED[3:] + MASKED[:1]], dim=1)).float(), 1, math.nan
        ),
        cause="first in row (1,): each is partly masked",
    ),
    "NaN covered up": Wrong(
        right=torch.softmax(MASKED, dim=1),
        found=torch.softmax(MASKED, dim=1).nan_to_num(0.0).float(),
        cause="a finite number where NaN is right",
    ),
    "-inf covered up": Wrong(
        right=torch.logsumexp(MASKED, dim=1),
        found=torch.logsumexp(MASKED, dim=1).clamp_min(0).float(),
        cause="a finite number where infinity is right",
    ),
    "mask of another corner": Wrong(
        right=changed(X, np.s_[:5], 0.0).double(),
        found=changed(X, np.s_[5:, :3], 9.0),
        cause="5 whole rows should be zero and are not, first row (0,)",
    ),
    "hides too much": Wrong(
        right=X.double(),
        found=changed(X + numbers(60, 300, seed=3), 7, 0.0),
        cause="1 whole rows are zero and should not be, first row (7,)",
    ),
    "exp overflows": Wrong(
        right=softmax(torch.stack([X[0], X[1] + 200, X[2]]).double()),
        found=changed(softmax(X[:3]), 1, float("nan")),
        cause="NaN in 1 whole row and nowhere else, first in row (1,): an exponential overflows",
    ),
    "exp overflows in part": Wrong(
        right=softmax(torch.stack([X[0], X[1] * 50, X[2]]).double()),
        found=changed(
            changed(softmax(X[:3]), 1, 0.0), (1, (X[1] * 50 > 88).nonzero().flatten()), math.nan
        ),
        cause="NaN and otherwise only zeros in 1 rows, first in row (1,): an exponential overflows",
    ),
    "exp overflows where one weight is all": Wrong(
        right=softmax(1000 * X[:4].double()),
        found=changed(torch.zeros(4, 300), (torch.arange(4), X[:4].argmax(dim=1)), math.nan),
        cause="NaN and otherwise only zeros in 4 rows, first in row (0,)",
    ),
    "a term of each sum is missing": Wrong(
        right=PRODUCT,
        found=A[:, 1:] @ B[1:],
        cause="rank 1, as when a matrix product omits 1 term of each",
    ),
    "the tail of k, in float16": Wrong(
        right=PRODUCT,
        found=(A[:, :-5] @ B[:-5]).half(),
        cause="rank 5, as when a matrix product omits 5 terms of each",
    ),
    "result through bfloat16": Wrong(
        right=X.double(), found=rounded(X, torch.bfloat16), cause="every value is a bfloat16"
    ),
    "result through float16": Wrong(
        right=X.double(), found=rounded(X, torch.float16), cause="every value is a float16"
    ),
    # too small for a float16
    "result through tf32": Wrong(
        right=(X * 1e-6).double(), found=tf32(X * 1e-6), cause="every value is a tf32"
    ),
    "result through float8": Wrong(
        right=X.half().double(),
        found=rounded(X.half(), torch.float8_e4m3fn),
        cause="every value is a float8_e4m3fn",
    ),
    "float32 in a float64 kata": Wrong(
        right=X.double() / 3, found=(X / 3).double(), cause="every value is a float32"
    ),
    "bfloat16 inputs": Wrong(
        right=PRODUCT,
        found=rounded(A, torch.bfloat16) @ rounded(B, torch.bfloat16),
        cause="everywhere (norm 2.",
    ),
    "bfloat16 inputs, named": Wrong(
        right=PRODUCT,
        found=rounded(A, torch.bfloat16) @ rounded(B, torch.bfloat16),
        cause="rounded to bfloat16",
    ),
    "tf32 inputs": Wrong(
        right=PRODUCT, found=tf32(A) @ tf32(B), cause="rounded to float16 or tf32"
    ),
    "float16 inputs": Wrong(
        right=PRODUCT, found=A.half().float() @ B.half().float(), cause="float16 or tf32"
    ),
}


@pytest.mark.parametrize("name", GALLERY)
def test_the_cause_is_named(name):
    wrong = GALLERY[name]
    assert wrong.cause in cause_of(wrong.found, wrong.right)


UNEXPLAINED = {
    "noise": (X + numbers(60, 300, seed=9), X.double()),
    "one element": (changed(X, np.s_[17, 33], 7.0), X.double()),
    "one tile in the middle": (changed(X, np.s_[16:32, 64:128], 7.0), X.double()),
    "every other column": (changed(X, np.s_[:, ::2], 7.0), X.double()),
    "wrong from an odd place on": (changed(X, np.s_[:, 37:], 7.0), X.double()),
    "more than a block at the end": (changed(X, np.s_[:, 200:], 7.0), X.double()),
    # a sharper softmax: its first rows see one key, and are right by chance
    "right by chance at first": (
        softmax(1.4 * CAUSAL).float() @ TALL[0, 0],
        softmax(CAUSAL) @ TALL[0, 0].double(),
    ),
    "a constant was added": (X + 1, X.double()),
    "another softmax": (softmax(X, 0.5), softmax(X.double())),
    "the last of eight": (changed(X[0, :8], -1, 7.0), X[0, :8].double()),
    "the last one, rounded": (changed(X[0], -1, X[0, -1] * 1.001), X[0].double()),
    "a row of numbers was added": (X + X[:1], X.double()),
    "zeros and ones": (softmax(30 * X[:, :8]).round(), softmax(30 * X[:, :8].double())),
    "some NaN": (changed(X, np.s_[::7, ::11], float("nan")), X.double()),
    "a number for a number": (torch.tensor(2.5), torch.tensor(2.0, dtype=torch.float64)),
    "integers": (torch.arange(40) * 3, torch.arange(40) ** 2),
    # a quantised result saturates at its largest value, which is also a poison
    "int8 saturated": (torch.full((9,), 127, dtype=torch.int8), torch.zeros(9, dtype=torch.int8)),
}


@pytest.mark.parametrize("name", UNEXPLAINED)
def test_no_cause_is_named_when_none_fits(name):
    assert cause_of(*UNEXPLAINED[name]) == ""


def test_integers_have_causes_too():
    right = torch.arange(4096).view(64, 64)
    assert cause_of(right.T, right) == "transposed: rows and columns are swapped"
    assert "never written" in cause_of(changed(right, 5, torch.iinfo(torch.int64).max), right)


def test_integers_that_went_through_a_float_are_told():
    right = torch.arange(1, 300) * 0x1234567890
    assert "every value is a float32" in cause_of(right.float().to(right.dtype), right)
    assert cause_of(right + 1, right) == ""
    small = torch.arange(300)
    assert "float32" not in cause_of(changed(small, 7, 8), small)


def test_a_transposed_shape_is_explained():
    assert message_for(X.T, X.double()) == (
        "result: expected shape (60, 300), found (300, 60)\n"
        "likely cause: transposed: the last two axes are swapped"
    )
    assert "likely" not in message_for(X[:1], X.double())


def test_the_place_and_the_size_stay_on_the_first_line():
    first, *rest = message_for(GALLERY["no tail mask"].found, X.double()).splitlines()
    assert first.startswith("result: 2640 of 18000 values off; worst at (")
    assert first.endswith("all of them within [0:60, 256:300] of (60, 300)")
    assert rest[0] == "where it is wrong (each character 8 x 19; . nowhere, + partly, # all):"
    # columns 247 to 265 lie on both sides of 256
    assert rest[1:9] == ["    .............+##"] * 8
    assert len(rest) == 10


def test_the_map_has_at_most_8_lines_of_16():
    for shape in ((1,), (7,), (1000,), (3, 5), (8, 16), (9, 17), (2, 3, 500, 700)):
        lines = error_map(torch.ones(shape, dtype=torch.bool))[1:]
        assert len(lines) <= 8
        assert {line.strip() for line in lines} == {"#" * len(lines[0].strip())}
        assert len(lines[0].strip()) <= 16


def test_leading_axes_lie_on_top_of_each_other():
    wrong = torch.zeros(2, 4, 4, dtype=torch.bool)
    wrong[0, 1, 2] = wrong[:, 3, 3] = True
    assert error_map(wrong)[1:] == ["    ....", "    ..+.", "    ....", "    ...#"]


def test_no_map_is_drawn_of_what_is_wrong_everywhere():
    assert "each character" not in message_for(torch.zeros_like(X), X.double())


def test_constants_are_called_by_their_names():
    assert factor_name(math.sqrt(64), (10, 64)) == "sqrt(64)"
    assert factor_name(math.log(2), (10, 64)) == "1/log2(e)"
    assert factor_name(1 / math.sqrt(96), (10, 7)) == "1/sqrt(96)"
    assert factor_name(0.1, (10, 7)) == "1/10"
    assert factor_name(3.3, (10, 7)) == ""


# ---- two runs ------------------------------------------------------------------------------


def test_equal_runs_need_no_explanation():
    with_nan = changed(X, 3, float("nan"))
    assert diagnose_runs(with_nan, with_nan.clone()) == ""
    assert diagnose_runs((X, 3), (X.clone(), 3)) == ""
    assert diagnose_runs((None, "fast"), (None, "slow")) == ""


def test_another_order_of_additions_is_told_from_a_race():
    sums = X.sum(dim=1)
    other = torch.stack([row.sum() for row in X.flip(1)])
    assert "rounding only" in diagnose_runs(sums, other)
    racing = diagnose_runs(X, changed(X, np.s_[3, :32], 0.0))
    assert racing.startswith("32 of 18000 values differ between two runs: a race")


def test_uninitialised_memory_is_told_by_its_poison():
    answers = []
    for pattern in (NAN, LARGE):
        with poisoned_allocations(pattern):
            y = torch.empty(100)
            y[:90] = 1.0
        answers.append(y)
    assert diagnose_runs(*answers) == (
        "10 of 100 values differ between two runs: they were never written, or come from "
        "uninitialised memory"
    )


def test_runs_of_another_shape_are_told():
    assert diagnose_runs((X, X), (X,)) == "two runs gave 2 and 1 values"
    assert "1 of 1 values differ" in diagnose_runs((X, 3.0), (X, 4.0))
    assert diagnose_runs(X, X[:1]) == (
        "two runs gave shape (60, 300) of torch.float32 and shape (1, 300) of torch.float32"
    )
