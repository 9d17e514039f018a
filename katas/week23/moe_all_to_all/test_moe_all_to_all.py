"""What is special about experts elsewhere: who goes where, how often, and what comes back."""

from collections import Counter

import pytest
import torch

from harness.judge import assert_matches
from harness.meters.collectives import Collectives
from harness.meters.network import network
from harness.simulators.ranks import own

LIMIT_S = 5.0  # it takes a tenth of a second; what hangs hangs for ever
GROUP_LIMIT_S = 20.0  # GPUs take seconds to join another group


# name: tokens of each rank of four, experts, k, how experts are chosen
CASES = {
    "one expert each": ((5, 5, 5, 5), 12, 1, None),
    "uneven, none on one": ((7, 0, 1, 4), 12, 3, None),
    "many of few": ((3, 6, 2, 5), 12, 8, None),
    "all to the last rank": ((4, 0, 6, 3), 12, 2, lambda draw, _: draw.sample([10, 11], 2)),
    "all at home": ((4, 2, 6, 3), 12, 2, "home"),
    "one token": ((0, 1, 0, 0), 12, 2, lambda *_: [11, 0]),
    "nothing at all": ((0, 0, 0, 0), 12, 2, None),
}  # fmt: skip


def draw(oracle, case, world, seed, hidden=5, dtype=torch.float32):
    sizes, experts, k, choose = CASES[case]
    if choose == "home":

        def choose(draw, rank):
            here = experts // world
            return draw.sample(range(rank * here, (rank + 1) * here), k)

    return oracle.tokens(
        sizes=sizes[:world],
        experts=experts,
        k=k,
        hidden=hidden,
        seed=seed,
        choose=choose,
        dtype=dtype,
    )


# alone, one other, experts that 3 ranks share, and four
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_each_token_arrives_once_where_it_has_experts(kata, oracle, ranks, seed, world):
    drawn = {case: draw(oracle, case, world, seed + at) for at, case in enumerate(CASES)}
    for tokens in drawn.values():
        for rank, one in enumerate(tokens):  # each row says whose it is
            one.x[:, 0], one.x[:, 1] = rank, torch.arange(len(one.x))
            one.gates[:1, :1] = float("inf")  # infinity times 0 is no 0

    def send(rank, world):
        found = []
        for tokens in drawn.values():
            one = oracle.strided(tokens[rank])
            inputs = [own(t) for t in (one.x, one.idx, one.gates)]
            before = [t.clone() for t in inputs]
            with network() as (comm, _):
                xr, idx_local, gates_r, ctx = kata.dispatch(*inputs, 12, comm)
                rows = xr.clone()
                wide = torch.stack([xr * (rank + 1), xr], dim=2)
                back = kata.combine(wide[:, :, 0], ctx)
            for one, other in zip(inputs, before, strict=True):
                assert torch.equal(one, other), "an input has changed"
            assert xr.dtype == inputs[0].dtype, f"xr: {xr.dtype}"
            assert gates_r.dtype == inputs[2].dtype, f"gates_r: {gates_r.dtype}"
            found.append([t.tolist() for t in (rows, idx_local, gates_r, back)])
        return found

    by_rank = ranks(world, send, timeout_s=LIMIT_S)
    for rank, found in enumerate(by_rank):
        for (case, tokens), (rows, idx_local, gates_r, back) in zip(
            drawn.items(), found, strict=True
        ):
            who = f"{case}, rank {rank} of {world}"
            wanted = oracle.routed(tokens, 12)[rank]
            names = [(int(row[0]), int(row[1])) for row in rows]
            want = [(sender, token) for sender, token, *_ in wanted]
            assert names == want, f"{who}: rows of (sender, token) {names}, expected {want}"
            for at, (sender, token, local, gates) in enumerate(wanted):
                row = tokens[sender].x[token].tolist()
                got = (rows[at], idx_local[at], gates_r[at])
                assert got == (row, local, gates), (
                    f"{who}, token {token} of rank {sender}, (x, idx_local, gates_r): {got}, "
                    f"expected {(row, local, gates)}"
                )
            for token, row in enumerate(back):
                homes = {e // (12 // world) for e in tokens[rank].idx[token].tolist()}
                scale = sum(home + 1 for home in homes)
                expected = (tokens[rank].x[token] * scale).tolist()
                assert row == pytest.approx(expected, rel=1e-5), (
                    f"{who}: token {token} comes back as {row}, expected {scale} times "
                    f"{tokens[rank].x[token].tolist()}"
                )


def test_rows_arrive_bit_for_bit(kata, oracle, ranks, seed):
    world = ranks.world(2)
    special = torch.tensor([-0.0, float("nan"), float("inf"), 1e-45, 3.0])
    dtypes = (torch.float16, torch.float64, torch.float32, torch.bfloat16)
    drawn = [draw(oracle, "one expert each", world, seed, dtype=dtype) for dtype in dtypes]
    for tokens in drawn:
        for one in tokens:
            one.x[0] = special.to(one.x.dtype)

    def send(rank, world):
        found = []
        for tokens in drawn:
            one = tokens[rank]
            with network() as (comm, _):
                xr, _, _, ctx = kata.dispatch(own(one.x), own(one.idx), own(one.gates), 12, comm)
                ones = kata.combine(torch.ones_like(xr, dtype=torch.float64), ctx)
            assert ones.dtype == torch.float64, f"combine of float64, x {xr.dtype}: {ones.dtype}"
            assert bool((ones == 1).all()), f"k = 1, one row a token: sums of ones are {ones}"
            found.append((xr.dtype, xr.cpu().view(torch.uint8).tolist()))
        return found

    for rank, found in enumerate(ranks(world, send, timeout_s=LIMIT_S)):
        for (dtype, rows), tokens in zip(found, drawn, strict=True):
            wanted = [
                tokens[sender].x[token] for sender, token, *_ in oracle.routed(tokens, 12)[rank]
            ]
            assert dtype == tokens[0].x.dtype, f"xr: {dtype}, expected {tokens[0].x.dtype}"
            want = torch.stack(wanted).view(torch.uint8).tolist() if wanted else []
            assert rows == want, f"{dtype}, rank {rank}: other bytes arrived than were sent"


def test_calls_may_be_under_way_together(kata, oracle, ranks, seed):
    first, second = (
        oracle.tokens(sizes=(size,), experts=1, k=1, hidden=3, seed=seed + size) for size in (3, 2)
    )

    def send(rank, world):
        with network() as (comm, _):
            under_way = [
                kata.dispatch(own(one.x), own(one.idx), own(one.gates), 1, comm)
                for one in (first[0], second[0])
            ]
            return [kata.combine(xr, ctx) for xr, _, _, ctx in reversed(under_way)]

    (found,) = ranks(1, send, timeout_s=LIMIT_S)
    for name, got, (one,) in zip(("second", "first"), found, (second, first), strict=True):
        assert torch.equal(got.cpu(), one.x), (
            f"two dispatches of one expert, then combine, last first: the {name} call's rows "
            f"came back as {got.tolist()}, expected {one.x.tolist()}"
        )


def test_a_gate_has_its_gradient_from_the_rank_of_its_expert(kata, oracle, ranks, seed):
    world = ranks.world(2)
    drawn = draw(oracle, "many of few", world, seed)
    here = 12 // world

    def train(rank, world):
        one = drawn[rank]
        x, gates = own(one.x).clone().requires_grad_(), own(one.gates).clone().requires_grad_()
        with network() as (comm, _):
            xr, _, gates_r, _ = kata.dispatch(x, own(one.idx), gates, 12, comm)
            ((rank + 1) * (xr.sum() + gates_r.sum())).backward()
        return x.grad.tolist(), gates.grad.tolist()

    for rank, (of_x, of_gates) in enumerate(ranks(world, train, timeout_s=LIMIT_S)):
        homes = (drawn[rank].idx // here).tolist()
        want = [[float(home + 1) for home in row] for row in homes]
        what = f"rank {rank} of {world}, experts at {homes}, loss (rank + 1) * (xr + gates_r)"
        assert of_gates == want, f"{what}: gradient of gates {of_gates}, expected {want}"
        want = [[float(sum(home + 1 for home in {*row}))] * 5 for row in homes]
        assert of_x == want, f"{what}: gradient of x {of_x}, expected {want}"


def test_each_expert_runs_once_in_the_dtype_of_x(kata, oracle, ranks, seed):
    world = ranks.world(2)
    here = 12 // world
    dtypes = (torch.float16, torch.float64)
    drawn = [draw(oracle, "uneven, none on one", world, seed, dtype=dtype) for dtype in dtypes]
    weights = oracle.weights(experts=12, hidden=5, inner=4, seed=seed)

    def run(rank, world):
        given, found = kata.expert, []
        for dtype, tokens in zip(dtypes, drawn, strict=True):
            one, runs = tokens[rank], []

            def counted(x, w_in, w_out, runs=runs):
                runs.append(len(x))
                return given(x, w_in, w_out)

            kata.expert = counted
            mine = [own(w[rank * here : (rank + 1) * here].to(dtype)) for w in weights]
            with network() as (comm, _):
                y = kata.moe_ep_forward(own(one.x), own(one.idx), own(one.gates), *mine, comm)
            found.append((y, sorted(n for n in runs if n)))
        kata.expert = given
        return found

    by_rank = ranks(world, run, timeout_s=LIMIT_S)
    for at, (dtype, tokens) in enumerate(zip(dtypes, drawn, strict=True)):
        rounded = [w.to(dtype) for w in weights]
        exact, similar = ranks.alone(
            lambda tokens=tokens, rounded=rounded, dtype=dtype: [
                oracle.layer(tokens, *rounded, seed, working)[0]
                for working in (torch.float64, dtype)
            ]
        )
        rows = Counter(e for one in tokens for e in one.idx.flatten().tolist())
        for rank, found in enumerate(by_rank):
            y, runs = found[at]
            who = f"{dtype}, rank {rank} of {world}"
            assert y.dtype == dtype, f"{who}: y is {y.dtype}, expected {dtype}"
            assert_matches(y, exact[rank][0], same_precision=similar[rank][0], name=f"{who}: y")
            want = sorted(rows[e] for e in range(rank * here, (rank + 1) * here) if rows[e])
            assert runs == want, f"{who}: experts ran on {runs} rows, expected one run each: {want}"


# alone, one other, and four: experts' gradients gather from all
@pytest.mark.parametrize("world", [1, 2, 4])
def test_the_layer_and_its_gradients_are_those_of_one_process(kata, oracle, ranks, seed, world):
    drawn = {case: draw(oracle, case, world, seed + at) for at, case in enumerate(CASES)}
    weights = oracle.weights(experts=12, hidden=5, inner=4, seed=seed)
    here = 12 // world

    def train(rank, world):
        found = []
        for tokens in drawn.values():
            one = tokens[rank]
            x, gates = own(one.x).clone().requires_grad_(), own(one.gates).clone().requires_grad_()
            w_in, w_out = (
                own(w[rank * here : (rank + 1) * here]).clone().requires_grad_() for w in weights
            )
            with network() as (comm, _):
                y = kata.moe_ep_forward(x, own(one.idx), gates, w_in, w_out, comm)
                factors = oracle.weights_of_loss(tokens, seed)[rank]
                (y * own(factors)).sum().backward()
            found.append((y.detach(), x.grad, gates.grad, w_in.grad, w_out.grad))
        return found

    by_rank = ranks(world, train, timeout_s=LIMIT_S)
    both = ranks.alone(
        lambda: [
            [oracle.layer(tokens, *weights, seed, dtype) for tokens in drawn.values()]
            for dtype in (torch.float64, torch.float32)
        ]
    )
    names = ("y", "gradient of x", "gradient of gates", "gradient of w_in", "gradient of w_out")
    for rank, found in enumerate(by_rank):
        for case, got, exact, similar in zip(drawn, found, *both, strict=True):
            part = slice(rank * here, (rank + 1) * here)
            truth, working = ((*o[rank], *(w[part] for w in ws)) for o, ws in (exact, similar))
            for name, one, want, like in zip(names, got, truth, working, strict=True):
                who = f"{case}, rank {rank} of {world}: {name}"
                assert one is not None, f"{who}: None, expected {want.tolist()}"
                assert_matches(one, want, same_precision=like, name=who)


def test_rows_are_sent_once_to_each_rank(kata, oracle, ranks, cost, seed):
    hidden, k, experts = 24, 8, 16
    drawn = oracle.tokens(sizes=(20, 31, 0, 26), experts=experts, k=k, hidden=hidden, seed=0)
    weights = oracle.weights(experts=experts, hidden=hidden, inner=4, seed=seed)

    def count(rank, world):
        one = drawn[rank]
        x, gates = own(one.x).clone().requires_grad_(), own(one.gates).clone().requires_grad_()
        w_in, w_out = (own(w[rank * 4 : (rank + 1) * 4]).clone().requires_grad_() for w in weights)
        with network() as (comm, forward):
            y = kata.moe_ep_forward(x, own(one.idx), gates, w_in, w_out, comm)
            sent, messages, calls = forward.bytes_sent, forward.messages, dict(forward.calls)
            y.sum().backward()
            later = forward.bytes_sent - sent
        return sent, messages, calls, later, dict(forward.calls)

    found = ranks(4, count, timeout_s=LIMIT_S)
    forward, backward = [], []
    for rank, (sent, _, calls, later, all_calls) in enumerate(found):
        assert calls == {"all_to_all": 3}, f"rank {rank}, forward: {calls}, expected 3 all_to_all"
        assert all_calls == {"all_to_all": 5}, (
            f"rank {rank}, forward and backward: {all_calls}, expected 5 all_to_all"
        )
        out, back = oracle.pairs(drawn, experts, rank)
        forward.append(sent / (out * (4 * hidden + 12 * k) + back * 4 * hidden + 8 * 4))
        backward.append(later / (out * 4 * hidden + back * (4 * hidden + 4 * k) + 1))
    cost.check("sent", max(forward))
    cost.check("sent_backward", max(backward))
    cost.check("comm_steps", max(messages for _, messages, *_ in found))


def test_a_group_of_some_ranks_has_experts_of_its_own(kata, oracle, ranks, seed):
    world = ranks.world(3)
    members = [*range(1, world)]
    drawn = draw(oracle, "uneven, none on one", len(members), seed)

    def send(rank, world):
        group = torch.distributed.new_group(members)
        if rank not in members:
            return None
        one, comm = drawn[members.index(rank)], Collectives(group)
        xr, idx_local, _, ctx = kata.dispatch(own(one.x), own(one.idx), own(one.gates), 12, comm)
        return xr, idx_local.tolist(), kata.combine(xr, ctx)

    found = ranks(world, send, timeout_s=GROUP_LIMIT_S)
    for at, rank in enumerate(members):
        xr, idx_local, _ = found[rank]
        wanted = oracle.routed(drawn, 12)[at]
        want = [drawn[sender].x[token].tolist() for sender, token, *_ in wanted]
        assert xr.tolist() == want, f"rank {rank}, {at} of its group: xr {xr.tolist()}"
        assert idx_local == [local for _, _, local, _ in wanted], f"rank {rank}: {idx_local}"


class Closed:
    """A network of three ranks on which nothing may be sent."""

    rank, world, group = 0, 3, None

    def all_to_all(self, *_):
        raise AssertionError("expected a ValueError before anything is sent")

    all_reduce = all_gather = reduce_scatter = broadcast = all_to_all


def test_what_makes_no_sense_is_refused(kata):
    x, ones = torch.ones(2, 4), torch.ones(2, 3)
    good = torch.tensor([[0, 1, 5], [2, 3, 4]])
    for name, idx, gates, experts in (
        ("E", good, ones, 7), ("E", good, ones, 0), ("E", -good, ones[:1], -3),
        ("idx", good, ones, 3), ("idx", good - 1, ones[:1], 6), ("idx", good + 1, ones, 6),
        ("gates", good, ones[:, :2], 6), ("gates", good, ones[:1], 6),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"^{name}: "):
            kata.dispatch(x, idx, gates, experts, Closed())
    with pytest.raises(ValueError, match="^idx: "):
        kata.moe_ep_forward(x, good, ones, torch.ones(1, 4, 2), torch.ones(1, 2, 4), Closed())
