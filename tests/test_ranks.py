"""Forked ranks: results, failures and hangs; and what the communication meters count on them."""

import contextlib
import os
import re
import signal
import sys
import threading
import time
import weakref
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from harness.base.errors import SubmissionError, UsageProblem
from harness.hardware import environment
from harness.judge.honesty.tools import toolbox
from harness.meters import communication
from harness.meters.collectives import Collectives
from harness.meters.communication import (
    CommMeter,
    CountingP2P,
    WaitProblem,
    all_gather_into_tensor,
    comm_meter,
    reduce_scatter_tensor,
)
from harness.plugin.cpu_limit import CpuLimit, Seconds
from harness.plugin.fixtures import Ranks
from harness.simulators import ranks
from harness.simulators.ranks import (
    RankFailed,
    RanksUnavailable,
    no_training_here,
    rank_device,
    run_ranks,
)

ROOT = Path(__file__).parents[1]


before: set[int] = set()  # children that another test file has left, as a compiler that stays is


@pytest.fixture(autouse=True)
def _children_before():
    before.clear()
    before.update(children())


def children() -> set[int]:
    """Processes whose parent is this one, ended ones that nobody has waited for among them."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            pid, _, rest = stat.read_text().partition(" ")
            if int(rest.rpartition(")")[2].split()[1]) == os.getpid():
                found.add(int(pid))
    return found


def assert_no_child_left():
    if not before:
        with pytest.raises(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)
        return
    left = children() - before
    assert not left, f"expected no process left over, found {left}"


def sum_of_ranks(rank, world, scale):
    total = torch.tensor([float(rank)])
    dist.all_reduce(total)
    return rank, world, scale * total.item()


@pytest.mark.parametrize("world", [1, 2, 4])
def test_results_come_back_in_rank_order(world):
    total = sum(range(world))
    expected = [(rank, world, 10.0 * total) for rank in range(world)]
    assert run_ranks(world, sum_of_ranks, 10.0) == expected
    assert_no_child_left()


def test_closures_and_large_tensors_pass():
    offset = torch.arange(1 << 18)  # 2 MiB: many times what a pipe holds

    def shifted(rank, world):
        return offset + rank

    first, second = run_ranks(2, shifted)
    assert torch.equal(first, offset)
    assert torch.equal(second, offset + 1)


def test_ranks_compute_after_the_parent_has_used_its_threads():
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        big = torch.ones(700, 700, requires_grad=True)
        (big @ big).sum().backward()

        def again(rank, world):
            x = torch.ones(700, 700, requires_grad=True)
            (x @ x).sum().backward()
            return torch.get_num_threads(), x.grad[0, 0].item()

        assert run_ranks(2, again, timeout_s=10) == [(1, 1400.0)] * 2
    finally:
        torch.set_num_threads(threads)


def test_a_rank_that_fails_is_raised_here_with_its_traceback():
    def third_rank_fails(rank, world):
        if rank == 2:
            assert rank == 0, "only rank 0 may pass"
        dist.barrier()  # the others wait for rank 2

    with pytest.raises(AssertionError, match="only rank 0 may pass") as caught:
        run_ranks(4, third_rank_fails)
    (note,) = caught.value.__notes__
    assert note.startswith("raised on rank 2 of 4:\nTraceback")
    assert "in third_rank_fails" in note
    assert "in _work" not in note
    assert_no_child_left()


@pytest.mark.parametrize("kind", [NotImplementedError, ZeroDivisionError, UnicodeDecodeError])
def test_exceptions_keep_their_type(kind):
    arguments = ("utf-8", b"x", 0, 1, "why") if kind is UnicodeDecodeError else ("why",)

    def fail(rank, world):
        raise kind(*arguments)

    with pytest.raises(kind, match="why"):
        run_ranks(1, fail)


class NeedsTwoError(Exception):
    """Pickles, but cannot be made again from its message alone."""

    def __init__(self, rank, reason):
        super().__init__(f"{rank}: {reason}")


@pytest.mark.parametrize("error", [NeedsTwoError(1, "because"), SystemExit("because")])
def test_what_cannot_be_raised_again_is_told(error):
    def fail(rank, world):
        raise error

    with pytest.raises(RankFailed, match=r"raised on rank 0 of 1:(.|\n)*because"):
        run_ranks(1, fail)


def test_a_result_that_does_not_pickle_is_an_error():
    with pytest.raises(AttributeError, match="pickle"):
        run_ranks(1, lambda rank, world: lambda: None)


@pytest.mark.parametrize(
    ("death", "cause"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "rank 1 of 2 died: killed by SIGKILL"),
        (lambda: os._exit(3), "rank 1 of 2 died: it left with exit code 3"),
    ],
)
def test_a_rank_that_dies_is_named(death, cause):
    def die(rank, world):
        if rank == 1:
            death()
        dist.barrier()

    with pytest.raises(RankFailed, match=cause):
        run_ranks(2, die)
    assert_no_child_left()


def test_a_death_is_told_rather_than_the_error_it_gave_another_rank():
    def die(rank, world):
        if rank == 0:
            raise RuntimeError("connection reset by peer")
        time.sleep(0.05)
        os._exit(3)

    with pytest.raises(RankFailed, match="rank 1 of 2 died: it left with exit code 3"):
        run_ranks(2, die)
    assert_no_child_left()


def test_a_deadlock_is_killed_in_time_and_located():
    def deadlock(rank, world):
        if rank == 1:
            dist.recv(torch.empty(1), 0)
        if rank == 2:
            while True:
                pass

    started = time.perf_counter()
    with pytest.raises(RankFailed) as caught:
        run_ranks(3, deadlock, timeout_s=0.5)
    assert time.perf_counter() - started >= 0.5
    message = str(caught.value)
    assert "expected 3 ranks to finish in 0.5 s, found ranks [1, 2] still running" in message
    for rank in (1, 2):
        where = message.split(f"rank {rank}:\n")[1]
        assert "in deadlock" in where
    assert "in recv" in message
    assert_no_child_left()


def test_a_limit_too_short_to_start_in_is_a_hang():
    with pytest.raises(RankFailed, match=r"found ranks \[0, 1\] still running"):
        run_ranks(2, lambda *_: time.sleep(300), timeout_s=0.001)
    assert_no_child_left()


def test_a_rank_reads_nothing_and_its_output_passes_through(capfd):
    def speak(rank, world):
        print("rank", rank, "says", repr(sys.stdin.read()), end="|")  # noqa: T201
        print("trouble", file=sys.stderr)  # noqa: T201

    run_ranks(2, speak)
    out, err = capfd.readouterr()
    assert sorted(out.split("|")) == ["", "rank 0 says ''", "rank 1 says ''"]
    assert err.splitlines() == ["trouble"] * 2


def test_ranks_forget_the_signal_handlers_and_keep_the_parents():
    heard = []
    previous = signal.signal(signal.SIGTERM, lambda *_: heard.append("parent"))
    try:
        handlers = run_ranks(1, lambda rank, world: signal.getsignal(signal.SIGTERM))
        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, previous)
    assert handlers == [signal.SIG_DFL]
    assert heard == ["parent"]


def test_forking_beside_other_threads_does_not_warn():
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        assert run_ranks(1, lambda rank, world: rank) == [0]
    finally:
        stop.set()
        thread.join()


def test_an_empty_world_is_refused():
    with pytest.raises(UsageProblem, match="at least 1, found 0"):
        run_ranks(0, sum_of_ranks, 1.0)


# --- communication.py ---


def collectives(rank, world):
    """Run each collective on 12 float32 elements (48 bytes) and return its bytes and messages."""
    x = torch.ones(12)
    parts = list(x.chunk(world))
    rotated = [1, 2, 3, 4][rank:] + [1, 2, 3, 4][:rank]
    runs = {
        "all_reduce": lambda: dist.all_reduce(x),
        "all_gather": lambda: dist.all_gather([torch.empty(12) for _ in parts], x),
        "all_gather_into": lambda: all_gather_into_tensor(torch.empty(48), x),
        "reduce_scatter": lambda: reduce_scatter_tensor(torch.empty(3), x),
        "all_to_all": lambda: dist.all_to_all_single(torch.empty(12), x),
        "all_to_all_uneven": lambda: dist.all_to_all_single(
            torch.empty(10), torch.ones(10), rotated, rotated
        ),
        "broadcast": lambda: dist.broadcast(x, src=1),
        "reduce": lambda: dist.reduce(x, dst=1),
        "gather": lambda: dist.gather(
            x, [torch.empty(12) for _ in parts] if rank == 1 else None, 1
        ),
        "scatter": lambda: dist.scatter(torch.empty(3), parts if rank == 1 else None, 1),
        "barrier": dist.barrier,
    }
    counts = {}
    for name, run in runs.items():
        with comm_meter() as meter:
            run()
        counts[name] = (meter.bytes_sent, meter.messages)
    return counts


def test_collectives_count_by_the_convention():
    ranks = run_ranks(4, collectives)
    everywhere = {
        "all_reduce": (72, 6),  # 2 * 3/4 * 48
        "all_gather": (144, 3),  # 3/4 * 192
        "all_gather_into": (144, 3),
        "reduce_scatter": (36, 3),  # 3/4 * 48
        "all_to_all": (36, 3),
        "barrier": (0, 0),
    }
    for rank, counts in enumerate(ranks):
        assert {name: counts[name] for name in everywhere} == everywhere
        assert counts["broadcast"] == ((48, 1) if rank == 1 else (0, 0))
        assert counts["reduce"] == counts["gather"] == ((0, 0) if rank == 1 else (48, 1))
        assert counts["scatter"] == ((36, 3) if rank == 1 else (0, 0))
        to_itself = [1, 2, 3, 4][(2 * rank) % 4]
        assert counts["all_to_all_uneven"] == ((10 - to_itself) * 4, 3)


def test_meter_logs_in_order_and_sees_groups_backward_and_objects():
    def mixed(rank, world):
        pair = dist.new_group([0, 1])
        x = torch.ones(2, requires_grad=True)
        x.register_hook(lambda grad: dist.all_reduce(grad, group=pair))
        with comm_meter() as meter:
            if rank == 0:
                dist.send(torch.ones(5), 1)
            if rank == 1:
                dist.recv(torch.empty(5), 0)
            if rank < 2:
                (3 * x).sum().backward()
            dist.broadcast_object_list(["x" * 1000], src=0)
        return meter.bytes_sent, [(entry.op, entry.peer) for entry in meter.log], meter.calls

    sender, receiver, bystander = run_ranks(3, mixed)
    rest = [("all_reduce", None), ("broadcast", 0), ("broadcast", 0)]
    assert sender[1] == [("send", 1), *rest]
    assert receiver[1] == [("recv", 0), *rest]
    assert bystander[1] == rest[1:]
    assert sender[2] == {"send": 1, "all_reduce": 1, "broadcast": 2}
    assert receiver[0] == 8  # 2 (2 - 1) / 2 of 8 bytes, in the group of two
    assert 1000 < sender[0] - 20 - 8 < 1100  # the pickle and its length


def test_functional_collectives_count_once():
    def reduce_lazily(rank, world):
        with comm_meter() as meter:
            total = functional.all_reduce(torch.ones(8), "sum", dist.group.WORLD) + 1
        return total[0].item(), meter.bytes_sent, dict(meter.calls)

    assert run_ranks(2, reduce_lazily) == [(3.0, 32, {"all_reduce": 1})] * 2


@pytest.mark.skipif(
    not hasattr(torch.ops._c10d_functional, "batch_p2p_ops"),
    reason="this torch has no operator for a batch of transfers",
)
def test_of_a_batch_what_is_sent_counts():
    def exchange(rank, world):
        arriving, leaving = torch.empty(4), torch.full((4,), float(rank))
        ops, peers = ["irecv", "isend"], [1 - rank] * 2
        with comm_meter() as meter:
            for tensor in torch.ops._c10d_functional.batch_p2p_ops(
                ops, peers, [0, 0], [arriving, leaving], dist.group.WORLD.group_name
            ):
                torch.ops._c10d_functional.wait_tensor(tensor)
        return arriving[0].item(), meter.bytes_sent, meter.messages

    assert run_ranks(2, exchange) == [(1.0, 16, 1), (0.0, 16, 1)]


@pytest.mark.parametrize("counter", ["bytes_sent", "bytes_received", "messages", "log"])
def test_who_is_counted_cannot_set_the_counters(counter):
    p2p = CountingP2P()
    with pytest.raises(AttributeError):
        setattr(p2p, counter, 1)
    assert not getattr(p2p, counter)
    assert p2p.log == ()


def test_p2p_counts_bytes_messages_and_order():
    def ring(rank, world):
        p2p = CountingP2P()
        right, left = (rank + 1) % world, (rank - 1) % world
        incoming = torch.empty(6)
        receiving = p2p.irecv(incoming, left)
        sending = p2p.isend(torch.full((6,), float(rank)), right)
        receiving.wait()
        sending.wait()
        empty = p2p.isend(torch.empty(0), right)
        p2p.recv(torch.empty(0), left)
        empty.wait()
        log = [(entry.op, entry.peer - rank, entry.bytes) for entry in p2p.log]
        return incoming[0].item(), p2p.bytes_sent, p2p.bytes_received, p2p.messages, log

    middle = run_ranks(3, ring)[1]
    assert middle[:4] == (0.0, 24, 24, 2)
    assert middle[4] == [
        ("irecv", -1, 24),
        ("isend", 1, 24),
        ("wait_irecv", -1, 24),
        ("wait_isend", 1, 24),
        ("isend", 1, 0),
        ("recv", -1, 0),
        ("wait_isend", 1, 0),
    ]


def test_a_second_wait_is_refused_at_once():
    def waits_twice(rank, world):
        p2p = CountingP2P()
        receiving = p2p.irecv(torch.empty(6), 1 - rank)
        sending = p2p.isend(torch.ones(6), 1 - rank)
        receiving.wait()
        sending.wait()
        sending.wait()

    told = "isend of 24 bytes to rank [01]: expected one wait"
    with pytest.raises(WaitProblem, match=told):
        run_ranks(2, waits_twice)


def test_what_was_waited_for_holds_on_to_no_tensor():
    def on_rank(rank, world):
        with Collectives() as comm:
            x = torch.ones(6)
            alive = weakref.ref(x)
            pending = comm.all_reduce(x)
            pending.wait()
            del x
            while alive() is not None:  # gloo's thread may be about to let go
                time.sleep(0.01)
            return pending.is_completed()

    assert run_ranks(2, on_rank) == [True, True]


@pytest.mark.parametrize(
    ("forgotten", "told"),
    [
        ("send", r"each of 2 transfers, found none for 1 x isend of 24 bytes to rank [01]\."),
        ("receive", r"each of 2 transfers, found none for 1 x irecv of 24 bytes from rank [01]\."),
        ("both", r"found none for 2 x irecv of 24 bytes from rank [01], 1 x isend of 24"),
    ],
)
def test_transfers_never_waited_for_are_named(forgotten, told):
    def forgets(rank, world):
        with CountingP2P() as p2p:
            if forgotten == "receive":
                p2p.irecv(torch.empty(6), 1 - rank)
                p2p.isend(torch.ones(6), 1 - rank).wait()
            elif forgotten == "send":
                receiving = p2p.irecv(torch.empty(6), 1 - rank)
                p2p.isend(torch.ones(6), 1 - rank)
                receiving.wait()  # arrives although nobody holds on to the sends
            else:
                p2p.irecv(torch.empty(6), 1 - rank)
                p2p.irecv(torch.empty(6), 1 - rank)
                p2p.isend(torch.ones(6), 1 - rank)

    with pytest.raises(WaitProblem, match=told):
        run_ranks(2, forgets, timeout_s=5)


def test_what_the_block_raises_comes_before_forgotten_waits():
    def fails_on_the_way(rank, world):
        with CountingP2P() as p2p:
            p2p.isend(torch.ones(6), 1 - rank)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_ranks(2, fails_on_the_way)


def test_blocking_sends_in_a_ring_deadlock_and_are_found():
    def everyone_sends_first(rank, world):
        p2p = CountingP2P()
        p2p.send(torch.ones(1 << 18), (rank + 1) % world)
        p2p.recv(torch.empty(1 << 18), (rank - 1) % world)

    with pytest.raises(RankFailed, match=r"ranks \[0, 1\] still running(.|\n)*in send"):
        run_ranks(2, everyone_sends_first, timeout_s=0.5)


# ---- transfers that start together, as NCCL needs it ---------------------------------------


@pytest.fixture
def started_together(monkeypatch):
    """What CountingP2P does under NCCL, over gloo."""
    monkeypatch.setattr(communication, "exchanges", lambda: True)


def test_what_is_posted_before_a_wait_starts_together(started_together):
    def around(rank, world):
        arriving = torch.empty(2)
        with CountingP2P() as p2p:
            for step in range(2):
                receiving = p2p.irecv(arriving, (rank - 1) % world)
                sending = p2p.isend(torch.full((2,), 10.0 * rank + step), (rank + 1) % world)
                assert not sending.is_completed()
                receiving.wait()
                assert sending.is_completed()
                sending.wait()
        return arriving.tolist(), p2p.bytes_sent, [op for op, *_ in p2p.log]

    step = ["irecv", "isend", "wait_irecv", "wait_isend"]
    for rank, found in enumerate(run_ranks(3, around, timeout_s=5)):
        assert found == ([10.0 * ((rank - 1) % 3) + 1] * 2, 16, 2 * step)


def test_a_transfer_of_an_exchange_is_waited_for_once_as_well(started_together):
    def twice(rank, world):
        with CountingP2P() as p2p:
            sending = p2p.isend(torch.ones(1), 1 - rank)
            p2p.irecv(torch.empty(1), 1 - rank).wait()
            sending.wait()
            sending.wait()

    with pytest.raises(WaitProblem, match="expected one wait"):
        run_ranks(2, twice, timeout_s=5)


def test_a_transfer_of_an_exchange_is_not_forgotten(started_together):
    def never(rank, world):
        with CountingP2P() as p2p:
            p2p.isend(torch.ones(1), 1 - rank)

    with pytest.raises(WaitProblem, match="expected a wait"):
        run_ranks(2, never, timeout_s=5)


# ---- ranks on GPUs, as far as that shows without one ---------------------------------------


def test_the_device_of_a_rank_under_gloo_is_the_cpu():
    assert run_ranks(2, lambda rank, world: rank_device()) == [torch.device("cpu")] * 2


def test_without_a_gpu_for_each_rank_nothing_starts(monkeypatch):
    monkeypatch.setattr(ranks, "gpu_count", lambda: 3)
    with pytest.raises(RanksUnavailable, match="expected 4 GPUs, one for each rank, found 3"):
        run_ranks(4, sum_of_ranks, 1.0, device="cuda")
    assert_no_child_left()


def test_a_parent_that_has_used_cuda_is_told_the_way_out(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.raises(RanksUnavailable, match="kata run NAME --device cuda"):
        run_ranks(2, sum_of_ranks, 1.0, device="cuda")


@pytest.fixture
def slow_to_join(monkeypatch):
    """Ranks that say they have a GPU, take a second to join, and are joined by gloo."""
    join = ranks._join_group

    def join_late(rank, job):
        time.sleep(1.0)
        join(rank, replace(job, device="cpu"))

    monkeypatch.setattr(ranks, "gpu_count", lambda: 4)
    monkeypatch.setattr(ranks, "_join_group", join_late)


def test_the_limit_begins_when_all_ranks_have_joined(slow_to_join):
    expected = [(rank, 2, 1.0) for rank in range(2)]
    assert run_ranks(2, sum_of_ranks, 1.0, timeout_s=0.9, device="cuda") == expected


def test_a_hang_ends_at_the_limit_of_the_test_and_is_noted():
    limit = CpuLimit(30.0)
    limit.now, limit.whose = Seconds(cpu=1.0, wall=0.5), ("week01/one", "wrong:hangs")
    with pytest.raises(RankFailed, match="expected 2 ranks to finish in 0.5 s"):
        Ranks("cpu", limit)(2, lambda rank, world: time.sleep(60))
    assert limit.has_stopped("week01/one", "wrong:hangs")


def test_a_test_names_a_shorter_limit_for_its_ranks_the_one_that_is_alone_as_well():
    short = Ranks("cpu", None, 0.5)
    with pytest.raises(RankFailed, match="expected 2 ranks to finish in 0.5 s"):
        short.ends(2, lambda rank, world: time.sleep(60), dies={}, joined=False)
    with pytest.raises(RankFailed, match="expected 1 ranks to finish in 0.5 s"):
        short.alone(time.sleep, 60)


def test_a_rank_is_told_who_it_is_as_by_torchrun():
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    told = run_ranks(2, lambda rank, world: [os.environ[name] for name in names])
    assert told == [["0", "0", "2", "2"], ["1", "1", "2", "2"]]
    assert not set(names) & os.environ.keys()


def test_a_hang_on_gpus_ends_at_its_own_limit(slow_to_join):
    def hang(rank, world):
        time.sleep(30)

    started = time.perf_counter()
    with pytest.raises(RankFailed, match="expected 2 ranks to finish in 0.5 s"):
        run_ranks(2, hang, timeout_s=0.5, device="cuda")
    assert time.perf_counter() - started > 1.5
    assert_no_child_left()


def test_a_rank_that_cannot_join_is_raised_here(slow_to_join, monkeypatch):
    def refuse(rank, job):
        raise RuntimeError("no such GPU")

    monkeypatch.setattr(ranks, "_join_group", refuse)
    with pytest.raises(RuntimeError, match="no such GPU"):
        run_ranks(2, sum_of_ranks, 1.0, device="cuda")


def test_the_fixture_skips_what_needs_more_gpus_than_there_are(monkeypatch):
    monkeypatch.setattr(ranks, "gpu_count", lambda: 2)
    with pytest.raises(pytest.skip.Exception, match="expected 4 GPUs, one for each rank, found 2"):
        Ranks("cuda")(4, sum_of_ranks, 1.0)


@pytest.mark.parametrize(("gpus", "world"), [(1, 2), (2, 2), (4, 4), (8, 5)])
def test_the_fixture_makes_do_with_the_gpus_there_are(monkeypatch, gpus, world):
    monkeypatch.setattr(environment, "gpu_count", lambda: gpus)
    assert Ranks("cuda").world(5) == world
    assert Ranks("cpu").world(5) == 5


def test_gpus_are_counted_in_another_process(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", os.getpid)
    environment.gpu_count.cache_clear()
    try:
        assert environment.gpu_count() not in (0, os.getpid())
    finally:
        environment.gpu_count.cache_clear()


def test_the_profile_is_told_by_a_fork_so_that_the_session_stays_free_of_cuda(monkeypatch):
    seen = []
    h200 = SimpleNamespace(
        major=9, minor=0, multi_processor_count=132, total_memory=150_754_820_096
    )
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda at: seen.append(at) or h200)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda at: "NVIDIA H200")
    environment.first_gpu.cache_clear()
    try:
        profile = environment.session_profile(ROOT, None, "cuda", None)
    finally:
        environment.first_gpu.cache_clear()
    assert profile.id == "h200_sxm"
    assert seen == []


def test_a_session_that_uses_cuda_already_is_asked_itself(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", os.getpid)
    environment.gpu_count.cache_clear()
    try:
        assert environment.gpu_count() == os.getpid()
    finally:
        environment.gpu_count.cache_clear()


def test_a_tool_that_is_replaced_on_a_rank_is_named():
    toolbox.take_in()

    def counts_nothing(rank, world):
        CommMeter._note = lambda *_: None
        return rank

    with pytest.raises(SubmissionError, match=r"found replaced: .*CommMeter\._note"):
        Ranks("cpu")(2, counts_nothing)
    assert Ranks("cpu")(2, lambda rank, world: rank) == [0, 1]


def sgd_step():
    param = torch.ones(2, requires_grad=True)
    param.grad = torch.ones(2)
    torch.optim.SGD([param], lr=0.5).step()
    return param.detach()


def two_backward_passes():
    x = torch.ones(2, requires_grad=True)
    (x * x).sum().backward()
    return x.grad + torch.autograd.grad((3 * x).sum(), x)[0]


@pytest.mark.parametrize(
    ("train", "name", "found"),
    [(sgd_step, "SGD.step", [0.5, 0.5]), (two_backward_passes, "torch.autograd.backward", [5, 5])],
)
def test_what_would_keep_ranks_from_a_gpu_is_refused_on_a_cpu_too(train, name, found):
    with no_training_here():
        with pytest.raises(UsageProblem, match=re.escape(f"{name}: expected it on a rank")):
            train()
        assert Ranks("cpu").alone(train).tolist() == found
        assert Ranks("cpu")(2, lambda *_: train().tolist()) == [found, found]
    assert train().tolist() == found
