"""The sweep over sizes: what it times, and how it is told. What NCCL logs, against the meter."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from harness.base.processes import child_environment
from harness.hardware.environment import gpu_count
from harness.meters.communication import (
    all_gather_into_tensor,
    comm_meter,
    reduce_scatter_tensor,
)
from harness.reports import sweep
from harness.simulators.ranks import rank_device, run_ranks

ROOT = Path(__file__).resolve().parents[1]
RING = ROOT / "solutions/week07/ring_collectives.py"
# bytes of an element, by the number that NCCL's log gives its type (nccl.h, ncclDataType_t)
ITEM_BYTES = {0: 1, 1: 1, 2: 4, 3: 4, 4: 8, 5: 8, 6: 2, 7: 4, 8: 8, 9: 2}
LOGGED = re.compile(r"NCCL INFO (\w+): opCount .* count (\d+) datatype (\d+) .*root (\d+)")


def test_each_collective_is_timed_at_each_size():
    found = sweep.sweep(3, RING, device="cpu", sizes=[16, 1200])
    assert (found["backend"], found["world"]) == ("gloo", 3)
    # 16 bytes are 4 elements, of which 3 ranks can share 3
    assert {row["nbytes"] for row in found["rows"]} == {12, 1200}
    assert [row["op"] for row in found["rows"]] == 2 * list(sweep.SHARES)
    for row in found["rows"]:
        share = {"all_reduce": 4 / 3, sweep.RING: 4 / 3}.get(row["op"], 2 / 3)
        assert row["seconds"] > 0
        assert row["busbw"] == pytest.approx(share * row["nbytes"] / row["seconds"])
    json.dumps(found)


def test_what_a_call_takes_is_the_slowest_ranks():
    def on_a_rank(rank, world):
        x = torch.zeros(1)

        def call():
            if rank == 1:
                sweep.time.sleep(0.02)

        return sweep._seconds_of(call, x)

    seconds = run_ranks(2, on_a_rank)
    assert seconds[0] == seconds[1] >= 0.02


@pytest.mark.gpu
@pytest.mark.skipif(gpu_count() < 2, reason="needs two GPUs")
def test_the_meter_counts_what_nccl_logs(tmp_path, monkeypatch):
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("NCCL_DEBUG_SUBSYS", "COLL")
    monkeypatch.setenv("NCCL_DEBUG_FILE", str(tmp_path / "%p.log"))
    world = gpu_count()

    def on_a_rank(rank, world):
        device = rank_device()
        x = torch.zeros(60 * world, device=device)
        half = torch.zeros(12, dtype=torch.bfloat16, device=device)
        wide = torch.zeros(5, dtype=torch.int64, device=device)
        with comm_meter() as meter:
            dist.all_reduce(x)
            dist.all_reduce(wide)
            reduce_scatter_tensor(x[:60].clone(), x)
            all_gather_into_tensor(half.repeat(world), half)
            dist.broadcast(half, src=1)
        torch.cuda.synchronize()
        return os.getpid(), [(one.op, one.bytes) for one in meter.log]

    for rank, (process, metered) in enumerate(run_ranks(world, on_a_rank, device="cuda")):
        logged = LOGGED.findall((tmp_path / f"{process}.log").read_text())
        # what joins the group sends single elements
        calls = [(op, int(n), int(kind), int(root)) for op, n, kind, root in logged if int(n) > 1]
        sent = [
            (op, _sent(op, n * ITEM_BYTES[kind], root == rank, world))
            for op, n, kind, root in calls
        ]
        assert [op for op, _ in sent] == [
            "AllReduce", "AllReduce", "ReduceScatter", "AllGather", "Broadcast",
        ]  # fmt: skip
        assert [bytes_sent for _, bytes_sent in sent] == [one for _, one in metered]


def _sent(op, nbytes, is_root, world):
    """Bytes that a rank sends in a ring, of a call that NCCL logs with `nbytes`."""
    return {
        "AllReduce": 2 * (world - 1) * nbytes // world,
        "ReduceScatter": (world - 1) * nbytes,  # it logs what a rank receives
        "AllGather": (world - 1) * nbytes,
        "Broadcast": nbytes if is_root else 0,
    }[op]


def test_the_command_keeps_the_figures_and_shows_them(tmp_path):
    output = tmp_path / "sweep.json"
    done = subprocess.run(
        [sys.executable, "-m", "harness", "--root", str(ROOT), "sweep", "--ranks", "2",
         "--device", "cpu", "--largest", "4096", "-o", str(output)],
        capture_output=True, text=True, env=child_environment({}), check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = json.loads(output.read_text())["rows"]
    assert {row["nbytes"] for row in rows} == {1024, 4096}
    head, *lines = done.stdout.splitlines()
    assert head.split() == ["bytes", *sweep.SHARES, "GB/s"]
    assert [line.split()[0] for line in lines] == ["1024", "4096"]
    assert float(lines[1].split()[1]) == pytest.approx(rows[4]["busbw"] / 1e9, abs=1e-3)
