"""Every implementation of a test meets the same draw, and ``--seed`` replays it."""

import json

import pytest

DRAWS = """
import json
import random
from pathlib import Path

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

TOLD = Path(__file__).with_name("told.jsonl")


def tell(kata, *drawn):
    with TOLD.open("a") as out:
        print(json.dumps([kata.__name__, *drawn]), file=out)


@settings(max_examples=300)
@given(n=st.integers(), text=st.text())
def test_examples(kata, n, text):
    tell(kata, n, text)


def test_generators(kata):
    tell(kata, random.random(), np.random.random(), torch.rand(()).item())


def test_others(kata):
    tell(kata, random.random(), np.random.random(), torch.rand(()).item())
"""


@pytest.fixture
def drawn(judged, mini):
    """What each test of each implementation drew, test by test."""
    folder = mini / "katas/week01/doubled"
    (folder / "test_doubled.py").write_text(DRAWS)

    def run(*options):
        told = folder / "told.jsonl"
        told.unlink(missing_ok=True)
        judged("-k", "test_examples or test_generators or test_others", *options)
        found = {}
        for line in told.read_text().splitlines():
            module, *draw = json.loads(line)
            found.setdefault(module, []).append(draw)
        return list(found.values())

    return run


def test_every_implementation_meets_the_same_draw(drawn, mini):
    # constants of the files that are loaded are what hypothesis likes to try
    numbers = ", ".join(str(7**power) for power in range(3, 60))
    solution = (mini / "solutions/week01/doubled.py").read_text()
    other = mini / "other.py"
    other.write_text(f"{solution}\n\nNUMBERS = [{numbers}]\n")
    (alone,) = drawn("--impl=solution", "--seed=7")
    assert drawn(f"--impl={other}", "--impl=solution", "--seed=7") == [alone, alone]


def test_another_seed_is_another_draw_and_so_is_another_test(drawn):
    (seven,), (eight,) = drawn("--impl=solution", "--seed=7"), drawn("--impl=solution", "--seed=8")
    assert not any(draw in eight for draw in seven[-2:])
    assert seven[:-2] != eight[:-2]
    generators, others = seven[-2:]
    assert generators != others
