"""Ranks where there is no fork: each a fresh interpreter, and otherwise the same."""

import sys
from threading import Lock

import pytest
import torch
import torch.distributed as dist

from harness.judge.loading import load_module
from harness.meters.communication import comm_meter
from harness.simulators import ranks
from harness.simulators.ranks import RankFailed, run_ranks


@pytest.fixture(autouse=True)
def _no_fork(monkeypatch):
    monkeypatch.setattr(ranks, "FORKS", False)


def test_spawned_ranks_get_what_forked_ones_inherit(tmp_path):
    file = tmp_path / "written.py"
    file.write_text("import torch\n\nclass Box:\n    size = 7\n\ndef f(x):\n    return x + 1\n")
    kata = load_module(file)  # under a name that no search path leads to
    offset = torch.arange(1 << 18)  # 2 MiB: many times what a pipe holds
    box = kata.Box()
    torch.manual_seed(3)

    def work(rank, world):
        with comm_meter() as sent:
            total = kata.f(offset) + rank
            dist.all_reduce(total)
        assert rank < world, "rewritten by pytest, as in the parent"
        return total, sent.bytes_sent, box.size, torch.rand(1).item(), sys.stdin.read()

    first, second = run_ranks(2, work)
    drawn = torch.rand(1).item()  # as each rank drew it
    assert torch.equal(first[0], 2 * offset + 3)
    assert torch.equal(second[0], first[0])
    assert first[1:] == second[1:] == (offset.nbytes, 7, drawn, "")


def test_what_a_spawned_rank_raises_is_raised_here():
    def fails(rank, world):
        assert rank + 40 == 2, f"rank {rank}"

    with pytest.raises(AssertionError, match="rank 0") as caught:
        run_ranks(1, fails)
    assert "raised on rank 0 of 1:\nTraceback" in caught.value.__notes__[0]


def test_a_spawned_rank_that_leaves_is_told():
    def leaves(rank, world):
        sys.exit(3)

    with pytest.raises(RankFailed, match=r"raised on rank 0 of 1:(.|\n)*SystemExit: 3"):
        run_ranks(1, leaves)


def test_what_cannot_be_sent_is_told():
    lock = Lock()
    with pytest.raises(TypeError, match="cannot pickle"):
        run_ranks(1, lambda *_: lock)
