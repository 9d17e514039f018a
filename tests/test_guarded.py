"""What an entry function may look like, and what is said when it does not keep its annotations."""

from functools import partial

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from harness.judge.guarded import held_to_annotations


def forgets_to_return(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    x * 2


def halves(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    return x[: len(x) // 2]


def wants_a_matrix(x: Float[Tensor, "m n"]) -> Float[Tensor, "m n"]:
    return x


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (forgets_to_return, r"the result: expected Float\[Tensor, 'n'\], found None \(is a return"),
        (halves, r"the result: expected Float\[Tensor, 'n'\], found f32\[3\]\(torch\)"),
        (wants_a_matrix, r"an argument: expected Float\[Tensor, 'm n'\], found f32\[6\]\(torch\)"),
    ],
)
def test_what_does_not_fit_an_annotation_is_told_in_a_line(function, words):
    with pytest.raises(AssertionError, match=words) as caught:
        held_to_annotations(function)(x=torch.ones(6))
    assert "\n" not in str(caught.value)


class Doubler:
    def __call__(self, x):
        return x * 2


def doubled(x):
    return x * 2


@pytest.mark.parametrize("entry", [Doubler(), partial(doubled), lambda x: x * 2, doubled])
def test_anything_that_can_be_called_is_an_entry(entry):
    assert held_to_annotations(entry)(x=torch.ones(2)).tolist() == [2.0, 2.0]
