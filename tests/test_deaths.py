"""Ranks that are killed on purpose: where, what they leave, and what the others see of it."""

import os
import threading
import time

import pytest
import torch
import torch.distributed as dist

from harness.base.errors import UsageProblem
from harness.plugin.fixtures import Ranks
from harness.simulators import ranks
from harness.simulators.deaths import Moment, point, run_mortals
from harness.simulators.ranks import RankFailed, RanksHung


def three_lines(rank, world, path):
    with path.open("w") as file:
        for line in "abc":
            file.write(line)
            file.flush()
            point(f"wrote {line}")
            point("line")
        file.write("in a buffer")
        point("buffered")
    return rank


@pytest.mark.parametrize(
    ("moment", "left"),
    [
        (Moment("wrote b"), "ab"),
        (Moment("line", 3), "abc"),
        (Moment(nth=1), "a"),
        (Moment(nth=4), "ab"),
        (Moment("buffered"), "abc"),
    ],
    ids=str,
)
def test_a_rank_is_killed_where_it_was_to_be(tmp_path, moment, left):
    (end,) = run_mortals(1, three_lines, tmp_path / "f", dies={0: moment}, joined=False)
    assert (end.killed, end.value, end.error, end.points) == (True, None, None, ())
    assert (tmp_path / "f").read_text() == left


def test_points_are_listed_and_a_moment_that_never_comes_kills_nobody(tmp_path):
    dies = {0: Moment("line", 4)}
    (end,) = run_mortals(1, three_lines, tmp_path / "f", dies=dies, joined=False)
    points = ("wrote a", "line", "wrote b", "line", "wrote c", "line", "buffered")
    assert (end.killed, end.value, end.error, end.points) == (False, 0, None, points)
    assert (tmp_path / "f").read_text() == "abcin a buffer"


def test_a_stub_on_a_rank_is_no_end_of_it():
    def unwritten(rank, world):
        raise NotImplementedError

    def lacking(rank, world):
        raise NotImplementedError("no kernel for this dtype")

    with pytest.raises(NotImplementedError):
        run_mortals(1, unwritten, dies={}, joined=False)
    (end,) = run_mortals(1, lacking, dies={}, joined=False)
    assert isinstance(end.error, NotImplementedError)


def test_a_point_does_nothing_elsewhere():
    point("here")


def test_others_see_a_closed_connection():
    def together(rank, world):
        if rank == 1:
            point("late")
        dist.all_reduce(torch.ones(1))

    ends = Ranks("cpu").ends(3, together, dies={1: Moment("late")})
    assert [end.killed for end in ends] == [False, True, False]
    for rank in (0, 2):
        assert isinstance(ends[rank].error, RuntimeError)
        assert ends[rank].error.__notes__[0].startswith(f"raised on rank {rank} of 3:")


def test_the_others_end_as_they_would():
    def each(rank, world):
        if rank == 0:
            raise KeyError("mine")
        point("mid")
        return rank

    ends = Ranks("cpu").ends(3, each, dies={2: Moment("mid")}, joined=False)
    assert isinstance(ends[0].error, KeyError)
    assert (ends[1].value, ends[1].points) == (1, ("mid",))
    assert ends[2].killed


def test_the_first_death_can_take_all_along(tmp_path):
    def wait(rank, world):
        if rank == 1:
            point("first")
        time.sleep(60)

    ends = run_mortals(3, wait, dies={1: Moment("first")}, together=True, joined=False)
    assert [end.killed for end in ends] == [True] * 3


def test_a_thread_can_be_where_a_rank_dies():
    def in_background(rank, world):
        thread = threading.Thread(target=point, args=("behind",))
        thread.start()
        thread.join()

    (end,) = run_mortals(1, in_background, dies={0: Moment("behind")}, joined=False)
    assert end.killed


def test_other_deaths_and_hangs_are_failures():
    with pytest.raises(RankFailed, match="rank 1 of 2 died: it left with exit code 3"):
        run_mortals(2, lambda rank, _: rank and os._exit(3), dies={}, joined=False)
    with pytest.raises(RanksHung):
        run_mortals(1, lambda *_: time.sleep(60), dies={}, joined=False, timeout_s=0.2)


@pytest.mark.parametrize("dies", [{2: Moment("a")}, {-1: Moment("a")}, {0: Moment("a", 0)}])
def test_moments_that_cannot_come_are_refused(dies):
    with pytest.raises(UsageProblem, match="^run_mortals: "):
        run_mortals(2, three_lines, dies=dies)


def test_who_dies_at_once_has_kept_nobody_from_joining(monkeypatch):
    join = ranks._join_group

    def late(rank, job):
        time.sleep(0.1 * rank)
        join(rank, job)

    monkeypatch.setattr(ranks, "_join_group", late)
    ends = run_mortals(2, lambda rank, _: rank or point("at once"), dies={0: Moment("at once")})
    assert [end.killed for end in ends] == [True, False]
    assert ends[1].value == 1
