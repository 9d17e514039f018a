"""Collectives on ranks: what DTensor and FSDP2 send, peak bytes, and launches against backward."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

from harness.meters.collective_rules import NAMESPACES, RULES, Call, rule_name
from harness.meters.collectives import Collectives
from harness.meters.communication import WaitProblem, comm_meter
from harness.meters.dispatch import dispatch_meter
from harness.simulators.ranks import run_ranks

# --- what the libraries issue ---


def redistributions(rank, world):
    """Bytes and collective of each change of placement of a [12, world] float32 DTensor."""
    mesh = init_device_mesh("cpu", (world,))
    x = torch.arange(12.0 * world).view(12, world)
    with comm_meter() as meter:
        rows = distribute_tensor(x, mesh, [Shard(0)])
    found = {"distribute": (meter.bytes_sent, dict(meter.calls))}
    partial = DTensor.from_local(x, mesh, [Partial()])
    for name, source, placement in (
        ("shard to replicate", rows, Replicate()),
        ("partial to shard", partial, Shard(0)),
        ("partial to replicate", partial, Replicate()),
    ):
        with comm_meter() as meter:
            local = source.redistribute(mesh, [placement]).to_local() + 0
        found[name] = (meter.bytes_sent, dict(meter.calls))
    assert torch.equal(local, world * x)
    return found


@pytest.mark.parametrize("world", [2, 3])
def test_what_dtensor_issues_counts_by_the_convention(world):
    size = 12 * world * 4
    share = (world - 1) * size // world
    for rank, found in enumerate(run_ranks(world, redistributions)):
        assert found["distribute"] == (share if rank == 0 else 0, {"scatter": 1})
        assert found["shard to replicate"] == (share, {"all_gather": 1})
        assert found["partial to shard"] == (share, {"reduce_scatter": 1})
        assert found["partial to replicate"] == (2 * share, {"all_reduce": 1})


def test_what_fsdp2_issues_counts_by_the_convention():
    def step(rank, world):
        mesh = init_device_mesh("cpu", (world,))
        net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
        for layer in (net[0], net[2], net):
            fully_shard(layer, mesh=mesh)
        with comm_meter() as meter:
            net(torch.ones(2, 8)).sum().backward()
        return meter.bytes_sent, [op for op, *_ in meter.log]

    # two units of 72 float32: gathered in both passes, their gradients scattered in one
    for sent, ops in run_ranks(2, step):
        assert sent == 3 * (2 * 72 * 4) // 2
        assert ops == ["all_gather"] * 4 + ["reduce_scatter"] * 2


def coalesced(rank, world):
    """Bytes and collective of functional operators on tensors of 8 and 4 float32."""
    ops, pair = torch.ops._c10d_functional, [torch.ones(8), torch.ones(4)]
    group = dist.group.WORLD.group_name
    runs = {
        "all_reduce": lambda: ops.all_reduce_coalesced(pair, "sum", group),
        "all_gather": lambda: ops.all_gather_into_tensor_coalesced(pair, world, group),
        "reduce_scatter": lambda: ops.reduce_scatter_tensor_coalesced(pair, "sum", world, group),
        "broadcast": lambda: [ops.broadcast(pair[0], 1, group)],
    }
    found = {}
    for name, run in runs.items():
        with comm_meter() as meter:
            for result in run():
                ops.wait_tensor(result)
        found[name] = (meter.bytes_sent, dict(meter.calls))
    return found


def test_coalesced_operators_count_all_their_tensors():
    for rank, found in enumerate(run_ranks(2, coalesced)):
        assert found == {
            "all_reduce": (48, {"all_reduce": 1}),
            "all_gather": (48, {"all_gather": 1}),
            "reduce_scatter": (24, {"reduce_scatter": 1}),
            "broadcast": (32 if rank == 1 else 0, {"broadcast": 1}),
        }


def test_a_change_of_the_sharded_axis_keeps_its_own_part():
    # gloo does it by an all-gather; NCCL by this operator
    name = rule_name("_dtensor.shard_dim_alltoall")
    call = Call(arguments={"input": torch.ones(6, 4)}, world=3, rank=1)
    assert name == "all_to_all"
    assert RULES[name](call) == (64, 2, None)


def test_every_operator_of_torch_that_communicates_has_a_rule():
    names = {
        schema.name
        for schema in torch._C._jit_get_all_schemas()
        if schema.name.split("::")[0] in NAMESPACES
        and any(one.name in ("process_group", "group_name") for one in schema.arguments)
    }
    assert len(names) >= 25
    rules = {name: rule_name(name.replace("::", ".")) for name in names}
    assert rules["c10d::_allgather_base_"] == "all_gather"
    assert rules["c10d::reduce_"] == "reduce"
    assert rules["c10d::gather_"] == "gather"
    assert rules["c10d::scatter_"] == "scatter"
    assert rules["_c10d_functional::all_to_all_single"] == "all_to_all"


# --- launches against the backward pass ---


def layers():
    """Three layers of 4 x 4 without bias: a backward pass from the last to the first."""
    return nn.Sequential(*[nn.Linear(4, 4, bias=False) for _ in range(3)])


def reduced_step(rank, world, when):
    """One step that reduces each gradient as it comes, waits at once, or does it all at the end."""
    net, comm, under_way = layers(), Collectives(), []

    def reduce(parameter):
        under_way.append(comm.all_reduce(parameter.grad))
        if when == "waits at once":
            under_way[-1].wait()

    if when != "at the end":
        for parameter in net.parameters():
            parameter.register_post_accumulate_grad_hook(reduce)
    with comm_meter(gradients_of=net.parameters()) as meter:
        net(torch.ones(2, 4)).sum().backward()
        if when == "at the end":
            for parameter in net.parameters():
                reduce(parameter)
        for pending in under_way:
            if not pending.waited:
                pending.wait()
    events = [f"{op} {peer}" if op == "gradient" else op for op, peer, _ in meter.log]
    return events, meter.overlapped_bytes, meter.bytes_sent


def test_launches_waits_and_gradients_are_in_one_order():
    events, overlapped, sent = run_ranks(2, reduced_step, "as they come")[0]
    assert events == [
        *("gradient 2", "all_reduce", "gradient 1", "all_reduce", "gradient 0", "all_reduce"),
        *["wait_all_reduce"] * 3,
    ]
    # each is 64 bytes, of which a rank of two sends as many; the last has nothing to hide behind
    assert (overlapped, sent) == (128, 192)


def test_what_is_launched_after_backward_overlaps_nothing():
    events, overlapped, sent = run_ranks(2, reduced_step, "at the end")[0]
    assert events[:3] == ["gradient 2", "gradient 1", "gradient 0"]
    assert (overlapped, sent) == (0, 192)


def test_a_wait_at_once_shows_in_the_log():
    events, *_ = run_ranks(2, reduced_step, "waits at once")[0]
    assert events[:4] == ["gradient 2", "all_reduce", "wait_all_reduce", "gradient 1"]


def test_a_parameter_used_twice_has_one_gradient_and_an_unused_one_none():
    def step(rank, world):
        shared, unused, frozen = torch.ones(3), torch.ones(3), torch.ones(3)
        leaves = [shared.requires_grad_(), unused.requires_grad_()]
        with comm_meter(gradients_of=leaves) as meter:
            (shared * shared.exp() * frozen).sum().backward()
        (shared * 2).sum().backward()  # after the block nobody listens
        return meter.log

    assert run_ranks(1, step) == [[("gradient", 0, 12)]]


def test_what_needs_no_gradient_is_passed_over():
    weight, frozen = torch.ones(3, requires_grad=True), torch.ones(3)
    with comm_meter(gradients_of=[frozen, weight]) as meter:
        (weight * frozen).sum().backward()
    assert meter.log == [("gradient", 1, 12)]


# --- collectives that are waited for ---


def every_collective(rank, world):
    with comm_meter() as meter, Collectives() as comm:
        x = torch.arange(6.0) + rank
        total, part = x.clone(), torch.empty(6 // world)
        everyone, turned, spread = torch.empty(6 * world), torch.empty(6), x.clone()
        pending = [
            comm.all_reduce(total),
            comm.reduce_scatter(part, x),
            comm.all_gather(everyone, x),
            comm.all_to_all(turned, x),
            comm.broadcast(spread, src=1),
        ]
        for one in pending:
            one.wait()
        # rank r is sent r + 1 rows by each
        uneven, rows = torch.empty(world * (rank + 1)), [other + 1 for other in range(world)]
        given = torch.arange(float(sum(rows)))
        comm.all_to_all(uneven, given, [rank + 1] * world, rows).wait()
    return [total, part, everyone, turned, spread, uneven], meter.bytes_sent, dict(meter.calls)


def test_each_collective_gives_what_it_says():
    world = 3
    ramp = torch.arange(6.0)
    inputs = [ramp + rank for rank in range(world)]
    for rank, (results, sent, calls) in enumerate(run_ranks(world, every_collective)):
        total, part, everyone, turned, spread, uneven = results
        assert torch.equal(total, sum(inputs))
        assert torch.equal(part, sum(inputs)[2 * rank : 2 * rank + 2])
        assert torch.equal(everyone, torch.cat(inputs))
        assert torch.equal(turned, torch.cat([x[2 * rank : 2 * rank + 2] for x in inputs]))
        assert torch.equal(spread, inputs[1])
        start = rank * (rank + 1) // 2
        assert torch.equal(uneven, torch.arange(start, start + rank + 1.0).repeat(world))
        assert calls == {
            "all_reduce": 1,
            "reduce_scatter": 1,
            "all_gather": 1,
            "all_to_all": 2,
            "broadcast": 1,
        }
        # 32 + 16 + 48 + 16 bytes, 24 from the root, and the rows that stay at home left out
        assert sent == 112 + (24 if rank == 1 else 0) + 4 * (6 - (rank + 1))


def test_a_group_of_some_ranks_counts_its_own_size():
    def pairs(rank, world):
        groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        comm = Collectives(groups[rank // 2])
        x = torch.full((4,), float(rank))
        with comm_meter() as meter:
            comm.all_reduce(x).wait()
        return comm.rank, comm.world, x[0].item(), meter.bytes_sent

    assert run_ranks(4, pairs) == [(0, 2, 1, 16), (1, 2, 1, 16), (0, 2, 5, 16), (1, 2, 5, 16)]


@pytest.mark.parametrize(
    ("waits", "told"),
    [
        (
            0,
            r"collectives: expected a wait\(\) for each of 1 transfers, found none for 1 x all_red",
        ),
        (2, r"all_reduce of 12 bytes: expected one wait\(\), found a second"),
    ],
)
def test_a_collective_is_waited_for_once(waits, told):
    def step(rank, world):
        with Collectives() as comm:
            pending = comm.all_reduce(torch.ones(3))
            for _ in range(waits):
                pending.wait()

    with pytest.raises(WaitProblem, match=told):
        run_ranks(2, step, timeout_s=5)


# --- peak bytes of a rank ---


def test_a_unit_that_is_gathered_and_freed_shows_in_the_peak():
    def units(rank, world):
        shards = [torch.ones(100) for _ in range(3)]
        full = [torch.empty(100 * world) for _ in shards]
        for one in full:
            one.untyped_storage().resize_(0)
        comm, peaks = Collectives(), []
        for keeps in (1, 2):  # how many units are whole at a time
            with dispatch_meter(held=[*shards, *full]) as meter:
                for at, shard in enumerate(shards):
                    full[at].untyped_storage().resize_(400 * world)
                    comm.all_gather(full[at], shard).wait()
                    if at >= keeps - 1:
                        full[at - keeps + 1].untyped_storage().resize_(0)
            for one in full:
                one.untyped_storage().resize_(0)
            peaks.append(meter.peak_live_bytes)
        return peaks

    for peaks in run_ranks(2, units):
        assert peaks == [3 * 400 + 800, 3 * 400 + 2 * 800]


def test_what_is_held_is_no_allocation_of_the_block():
    held = [torch.ones(10), torch.ones(10)]
    with dispatch_meter(held=[*held, held[0].view(5, 2)]) as meter:
        held[0].add_(1)
        assert meter.peak_live_bytes == 80
        held[0] + held[1]
    assert (meter.allocated_bytes, meter.peak_live_bytes) == (40, 120)
