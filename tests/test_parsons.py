"""The last hint: lines of the reference in a wrong order, wrong ones beside some of them."""

import ast
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.base.errors import UsageProblem
from harness.cli import main
from harness.content.catalog import load_curriculum
from harness.content.kata import load_kata
from harness.learner.progress import Progress
from harness.practice.lines import LEAST, MOST, WRONG, learners_parts, puzzle_of
from harness.practice.plain import plain

ROOT = Path(__file__).parents[1]
PARTS = 4  # that the katas are divided into, so that each test takes a second or two
LONGER = '''"""Kata week01/doubled: one read, one write."""

import torch
from jaxtyping import Float
from torch import Tensor


def doubled(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Twice `x`."""
    if not x.is_floating_point():
        raise ValueError(f"x: expected floating point, found {x.dtype}")
    y = torch.empty_like(x)
    low = 0
    high = x.numel()
    if low < high:
        torch.mul(x[low:high], 2, out=y[low:high])
    kept = y
    return kept
'''


@pytest.fixture
def house(mini, tmp_path, monkeypatch):
    """The tiny kata with a longer reference; runs `kata hint` and returns exit code and output."""
    home = tmp_path / "home"
    monkeypatch.setenv("KATA_HOME", str(home))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    kata = load_kata(mini / "katas/week01/doubled")
    kata.solution.write_text(LONGER)
    (kata.wrong / "edits.toml").write_text(
        '[stops_early]\nwhy = "stops early"\nfind = "x.numel()"\nreplace = "x.numel() - 1"\n'
        '[adds]\nwhy = "adds"\nfind = "torch.mul(x"\nreplace = "torch.add(x"\n'
    )

    def run(*arguments, given=None):
        asked = ["--root", str(mini), "hint", "doubled", *arguments]
        done = CliRunner().invoke(main, asked, input=given)
        return done.exit_code, done.output

    run.home, run.kata = home, kata
    run.notes = lambda kind: [
        note.detail for note in Progress(home).notes("doubled") if note.kind == kind
    ]
    run.puzzle = lambda: puzzle_of(kata, str(len(run.notes("lines_shown"))))
    return run


def solved(home):
    progress = Progress(home, clock=lambda: datetime.now(UTC) - timedelta(days=7))
    progress.note("started", "doubled")
    attempt = progress.start("doubled", "yours", "ab" * 32, seed=1, device="cpu", profile="cpu")
    progress.finish(attempt, "passed", "", checks=(), measurements=(), versions={}, duration_s=1.0)


def words(numbers):
    return " ".join(map(str, numbers))


def with_wrong_one(puzzle):
    """The right order but for one line, which is the wrong one of its pair."""
    pair = next(one for one in puzzle.shown if one.pair and one.number in puzzle.right)
    return [pair.pair if one == pair.number else one for one in puzzle.right]


# ---- the lines -----------------------------------------------------------------------------


@pytest.mark.parametrize("part", range(PARTS))
def test_every_kata_has_lines_whose_right_order_is_the_reference(part):
    for kata in list(load_curriculum(ROOT).katas.values())[part::PARTS]:
        puzzle = puzzle_of(kata, looked_at=0)
        assert puzzle is not None, kata.name
        assert LEAST <= len(puzzle.shown) <= MOST, kata.name
        assert puzzle.first_off(puzzle.right) is None, kata.name
        reference = plain(kata.solution.read_text())
        assert ast.dump(ast.parse(puzzle.text(puzzle.right))) == ast.dump(ast.parse(reference)) or (
            "__global__" in reference
        ), kata.name
        assert [one.number for one in puzzle.shown] != list(puzzle.right), kata.name


def test_katas_of_each_backend_have_wrong_lines():
    of_backend = {}
    for kata in load_curriculum(ROOT).katas.values():
        of_backend.setdefault(kata.backend, kata)
    for kata in of_backend.values():
        puzzle = puzzle_of(kata)
        assert 1 <= len(puzzle.shown) - len(puzzle.right) <= WRONG, kata.name
        assert LEAST <= len(puzzle.shown) <= MOST, kata.name


def test_a_wrong_line_stands_beside_the_right_one(house):
    puzzle = puzzle_of(house.kata)
    wrong = [one for one in puzzle.shown if one.number not in puzzle.right]
    assert {one.text.strip() for one in wrong} >= {"high = x.numel() - 1"}
    for one in wrong:
        right = puzzle.shown[one.pair - 1]
        assert abs(right.number - one.number) == 1
        assert right.number in puzzle.right
        assert right.pair == one.number


def test_checks_of_arguments_are_given(house):
    puzzle = puzzle_of(house.kata)
    assert [line.split()[0] for line in puzzle.above] == ["if", "raise"]
    assert not any("raise" in one.text for one in puzzle.shown)


def test_all_branches_of_a_check_are_given(house):
    text = LONGER.replace(
        "    y = torch.empty_like(x)\n",
        "    elif x.is_sparse:\n        told = x.layout\n"
        '        raise ValueError(f"x: expected it dense, found {told}")\n'
        "    y = torch.empty_like(x)\n",
    )
    house.kata.solution.write_text(text)
    puzzle = puzzle_of(house.kata)
    assert [line.split()[0] for line in puzzle.above] == ["if", "raise", "elif", "told", "raise"]
    assert not any("raise" in one.text for one in puzzle.shown)


def test_what_raises_after_work_is_no_check(house):
    text = LONGER.replace("    return kept\n", "    raise RuntimeError(str(kept))\n")
    house.kata.solution.write_text(text)
    (part,) = learners_parts(plain(text), house.kata)
    refusing = [one.text.split()[0] for at, one in enumerate(part.pieces) if part.refuses(at)]
    assert refusing == ["if", "raise", "raise"]


def test_a_kernel_comes_before_a_wrapper_of_checks():
    assert puzzle_of(load_curriculum(ROOT).kata("transpose_tiled")).function == "transpose"


def test_another_draw_is_another_order(house):
    first, second = (puzzle_of(house.kata, draw) for draw in "12")
    assert first == puzzle_of(house.kata, "1")
    assert first.shown != second.shown


def test_what_the_stub_gives_is_not_asked(mini):
    kata = load_kata(mini / "katas/week01/doubled")
    kata.solution.write_text(LONGER + "\n\ndef given(x):\n    y = x\n    return y\n")
    kata.file.write_text(kata.file.read_text() + "\n\ndef given(x):\n    y = x\n    return y\n")
    parts = learners_parts(plain(kata.solution.read_text()), kata)
    assert [one.name for one in parts] == ["doubled"]


def test_too_little_is_not_shuffled(mini):
    assert puzzle_of(load_kata(mini / "katas/week01/doubled")) is None


def test_a_kernel_in_cuda_is_shuffled_by_statements():
    kata = load_curriculum(ROOT).kata("mma_sync_fragments")
    parts = learners_parts(plain(kata.solution.read_text()), kata)
    (kernel,) = (one for one in parts if one.is_kernel)
    assert kernel.name == "mma_gemm"
    for piece in kernel.pieces:
        assert piece.text.count("(") == piece.text.count(")"), piece.text
        assert not piece.text.lstrip().startswith("}")


@pytest.mark.parametrize(
    ("order", "said"),
    [("1 2", "expected"), ("1 1 2 3 4 5", "more than once"), ("0 1 x", "found x, 0")],
)
def test_what_is_no_order_is_refused(house, order, said):
    with pytest.raises(UsageProblem, match=said):
        puzzle_of(house.kata).ordered(order)


# ---- from the terminal ---------------------------------------------------------------------


def test_lines_come_after_the_written_hints_and_count_as_one(house):
    assert house("--lines")[0] == 2
    assert house("--order", "1")[0] == 2
    outputs = [house()[1] for _ in range(5)]
    assert [one.split(" ")[0] for one in outputs] == ["Hint", "Hint", "Hint", "Lines", "Lines"]
    assert Progress(house.home).hints_seen("doubled") == 4
    assert house.notes("lines_shown") == ["1"]  # the same ones until they are in order


def test_the_order_of_the_reference_is_right_without_a_run(house, monkeypatch):
    for _ in range(4):
        house()
    monkeypatch.setattr("harness.practice.judging.run_kata", None)
    code, output = house("--order", words(house.puzzle().right))
    assert (code, output[0]) == (0, "✓")
    assert house.notes("short_review") == []  # a hint, not a review
    assert "review" not in output
    house()
    assert house.notes("lines_shown") == ["1", "2"]


def test_any_other_order_is_judged_by_the_tests(house):
    for _ in range(4):
        house()
    puzzle = house.puzzle()
    at = {puzzle.shown[number - 1].text.strip(): number for number in puzzle.right}
    early, late = at["y = torch.empty_like(x)"], at["low = 0"]
    swapped = [{early: late, late: early}.get(one, one) for one in puzzle.right]
    code, output = house("--order", words(swapped))
    assert code == 0, output
    assert "another order than the reference's" in output
    code, output = house("--order", words(with_wrong_one(puzzle)))
    assert code == 1, output
    assert "test_" in output
    assert "is the first that does not belong there" in output


def test_lines_of_a_solved_kata_are_a_review(house, monkeypatch):
    solved(house.home)
    verdicts = iter([(False, "wrong"), (True, "right"), (True, "right")])
    monkeypatch.setattr("harness.cli.hint._judged", lambda *_: next(verdicts))
    row = json.loads(house("--lines", "--json")[1])
    assert row["wanted"] == len(house.puzzle().right)
    assert not {"right", "order"} & row.keys()
    assert house.notes("hint_shown") == []
    assert "Kept as a short review" in house("--lines")[1]
    order = words(house.puzzle().right)
    code, output = house("--order", order)
    assert (code, "review" in output) == (1, False)
    assert house.notes("short_review") == []  # one slip is free
    code, output = house("--order", order)
    assert (code, output.count("review")) == (0, 1)
    assert "doubled: counts as a review; due again " in output
    assert "review" not in house("--order", order)[1]  # once is enough
    (review,) = map(json.loads, house.notes("short_review"))
    assert review == {"form": "lines", "passed": True, "wrong": 1}


def test_in_a_terminal_an_order_is_asked_for_until_it_is_right(house, monkeypatch):
    solved(house.home)
    monkeypatch.setattr("harness.cli.hint._is_terminal", lambda: True)
    puzzle = puzzle_of(house.kata, "1")
    typed = ["1 1", words(with_wrong_one(puzzle)), words(puzzle.right)]
    code, output = house("--lines", given="\n".join([*typed, ""]))
    assert code == 0, output
    assert "different lines, one of each pair, found 2, 1 more than once" in output
    assert "is the first that does not belong there" in output
    assert "✓ in the order of the reference" in output
    assert "doubled: counts as a review; due again" in output
    assert "write it yourself" not in output  # it was, once
    (review,) = map(json.loads, house.notes("short_review"))
    assert review == {"form": "lines", "passed": True, "wrong": 1}


def test_two_wrong_orders_are_a_review_that_failed(house, monkeypatch):
    solved(house.home)
    monkeypatch.setattr("harness.cli.hint._judged", lambda *_: (False, "wrong"))
    house("--lines")
    order = words(house.puzzle().right)
    assert json.loads(house("--order", order, "--json")[1])["reviewed"] is None
    assert json.loads(house("--order", order, "--json")[1])["reviewed"] is False
    assert "review" not in house("--order", order)[1]
    (review,) = map(json.loads, house.notes("short_review"))
    assert (review["form"], review["passed"]) == ("lines", False)


def test_a_new_round_shows_its_own_lines(house):
    for _ in range(4):
        house()
    Progress(house.home).note("started", "doubled")
    code, output = house("--order", "1")
    assert code == 2
    assert "to be shown first" in output
