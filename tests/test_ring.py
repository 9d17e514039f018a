"""The ring that katas share, and networks at their slowest: values, counts, misuse."""

import math

import pytest
import torch
import torch.distributed as dist

from harness.base.errors import UsageProblem
from harness.meters.communication import WaitProblem, comm_meter
from harness.meters.late import LateCollectives, LateRing, assert_unchanged
from harness.meters.network import Echo, network
from harness.meters.ring import RingComm
from harness.simulators.ranks import run_ranks


@pytest.mark.parametrize("kind", [RingComm, LateRing])
@pytest.mark.parametrize("world", [2, 3])
def test_tensors_go_to_the_next_rank(kind, world):
    def turn(rank, world):
        with comm_meter() as meter, kind() as ring:
            x, y = torch.full((3,), float(rank)), torch.full((2, 2), 10 * rank)
            for _ in range(2):
                x, y = ring.post(x, y).wait()
        told = [one for one in meter.log if one.op.endswith("post")]
        return x.tolist(), y.tolist(), told, meter.bytes_sent, meter.messages

    for rank, (x, y, told, sent, messages) in enumerate(run_ranks(world, turn)):
        origin = (rank - 2) % world
        assert x == 3 * [float(origin)]
        assert y == 2 * [2 * [10 * origin]]
        assert [one.op for one in told] == 2 * ["post", "wait_post"]
        assert {(one.peer, one.bytes) for one in told} == {((rank + 1) % world, 44)}
        assert (sent, messages) == (88, 4)


def test_a_ring_joins_the_ranks_of_its_group():
    def turn(rank, world):
        group = dist.new_group([0, 2])
        if rank == 1:
            return None
        with RingComm(group) as ring:
            (x,) = ring.post(torch.tensor([rank])).wait()
            return ring.rank, ring.world, x.item()

    assert run_ranks(3, turn) == [(0, 2, 2), None, (1, 2, 0)]


def test_posts_under_way_together_arrive_in_order():
    def turn(rank, world):
        with RingComm() as ring:
            first, second = ring.post(torch.tensor([rank])), ring.post(torch.tensor([rank + 10]))
            return second.wait()[0].item(), first.wait()[0].item()

    assert run_ranks(2, turn) == [(11, 1), (10, 0)]


def test_each_post_is_waited_for_once():
    def forgets(rank, world):
        with RingComm() as ring:
            ring.post(torch.ones(2))

    def repeats(rank, world):
        with RingComm() as ring:
            arriving = ring.post(torch.ones(2))
            arriving.wait()
            arriving.wait()

    for wrong, says in ((forgets, "expected a wait"), (repeats, "found a second")):
        with pytest.raises(WaitProblem, match=says):
            run_ranks(2, wrong)


def test_what_cannot_be_sent_is_refused():
    def gathered(output, tensor):
        LateCollectives().all_gather(output, tensor)

    def strided(rank, world):
        LateRing().post(torch.ones(2, 3).t())

    for world, turn, says in (
        (1, lambda rank, world: RingComm().post(torch.ones(2)), "ring of one"),
        (2, strided, "contiguous"),
        (1, lambda rank, world: gathered(torch.ones(6), torch.ones(2, 3).t()), "contiguous"),
        (1, lambda rank, world: gathered(torch.ones(12)[::2], torch.ones(6)), "contiguous"),
    ):
        with pytest.raises(UsageProblem, match=says):
            run_ranks(world, turn)


def test_a_late_network_sees_what_changes_under_way():
    def ring(rank, world):
        x = torch.ones(2)
        arriving = LateRing().post(x)
        x += 1
        arriving.wait()

    def gather(rank, world):
        x = torch.ones(2)
        pending = LateCollectives().all_gather(torch.empty(4), x)
        x += 1
        pending.wait()

    for wrong in (ring, gather):
        with pytest.raises(AssertionError, match="changed before the wait"):
            run_ranks(2, wrong)


@pytest.mark.parametrize(("sent", "found"), [(math.nan, 0.0), (0.0, -0.0)])
def test_what_is_sent_stays_to_the_bit(sent, found):
    assert_unchanged(torch.tensor([1.0, sent]), torch.tensor([1.0, sent]))
    with pytest.raises(AssertionError, match="changed before the wait"):
        assert_unchanged(torch.tensor([1.0, found]), torch.tensor([1.0, sent]))


def test_late_results_appear_with_the_wait():
    def collect(rank, world):
        found = {}
        x = torch.arange(4.0) + rank
        calls = {
            "all_reduce": lambda comm, out: comm.all_reduce(out),
            "reduce_scatter": lambda comm, out: comm.reduce_scatter(out, x),
            "all_gather": lambda comm, out: comm.all_gather(out, x),
            "all_to_all": lambda comm, out: comm.all_to_all(out, x),
        }
        sizes = {"all_reduce": 4, "reduce_scatter": 2, "all_gather": 8, "all_to_all": 4}
        for name, call in calls.items():
            out = x.clone() if name == "all_reduce" else torch.zeros(sizes[name])
            with LateCollectives() as comm:
                pending = call(comm, out)
                early = out.isnan().all().item()
                pending.wait()
            found[name] = early, out.tolist()
        with LateCollectives() as comm:
            count = torch.tensor([rank])
            pending = comm.all_reduce(count)
            early = count.item()
            pending.wait()
        return found, early, count.item()

    for rank, (found, early, count) in enumerate(run_ranks(2, collect)):
        assert (early, count) == (-77, 1)
        assert found["all_reduce"] == (True, [1.0, 3.0, 5.0, 7.0])
        assert found["reduce_scatter"] == (True, [[1.0, 3.0], [5.0, 7.0]][rank])
        assert found["all_gather"] == (True, [0.0, 1.0, 2.0, 3.0, 1.0, 2.0, 3.0, 4.0])
        assert found["all_to_all"] == (True, [[0.0, 1.0, 1.0, 2.0], [2.0, 3.0, 3.0, 4.0]][rank])


@pytest.mark.parametrize("kind", [LateCollectives, LateRing])
def test_a_network_is_the_only_way_out(kind):
    def send(rank, world, beside):
        x = torch.full((4,), float(rank))
        with network(kind) as (net, meter):
            if kind is LateRing:
                (x,) = net.post(x).wait()
            else:
                net.all_reduce(x).wait()
            if beside:
                dist.all_reduce(x)
        return x.tolist(), meter.bytes_sent

    for rank, (x, sent) in enumerate(run_ranks(2, send, False)):
        assert x == 4 * [1.0 if kind is LateCollectives else 1.0 - rank]
        assert sent == 16
    with pytest.raises(AssertionError, match="expected all communication through"):
        run_ranks(2, send, True)


def test_a_network_has_everything_waited_for():
    def forget(rank, world):
        with network() as (comm, _):
            comm.all_reduce(torch.ones(4))

    with pytest.raises(WaitProblem, match="expected a wait"):
        run_ranks(2, forget)


def test_an_echo_hears_what_it_says():
    x, part, whole = torch.arange(6.0), torch.empty(2), torch.empty(6)
    echo = Echo(3, rank=1)
    echo.reduce_scatter(part, x).wait()
    echo.all_gather(whole, part).wait()
    echo.all_reduce(x).wait()
    assert part.tolist() == [6, 9]  # three times this rank's part
    assert whole.tolist() == 3 * [6, 9]
    assert x.tolist() == [0, 3, 6, 9, 12, 15]
    assert echo.calls == {"reduce_scatter": 1, "all_gather": 1, "all_reduce": 1}
