"""The three exchanges on a fabric that delivers in any order; in time, and in messages."""

import random

import numpy as np
import pytest

TRIALS = 6  # random schedules, besides those that keep somebody back


def nothing(n, size):
    return [np.full(size, np.nan) for _ in range(n)]


def gather(kata, oracle, x, choose=None):
    n, count = len(x), len(x[0])
    buffers = {"x": x, "out": nothing(n, n * count)}

    def gather_and_read(pe):
        yield from kata.ring_all_gather(pe)
        pe.load("out", 0, n * count)

    return oracle.Fabric(n, gather_and_read, buffers, ["ring"]).run(choose)


def exchange(kata, oracle, u, width, steps, choose=None):
    n = len(u)
    buffers = {"u": u, "from_left": nothing(n, 2 * width), "from_right": nothing(n, 2 * width)}
    fabric = oracle.Fabric(n, lambda pe: kata.halo_exchange(pe, steps), buffers, ["left", "right"])
    return fabric.run(choose)


def multiply(kata, oracle, n, tiles, choose=None, size=3, **times):
    held = nothing(n, n * tiles * size)
    for rank, own in enumerate(held):
        own.reshape(n, -1)[rank] = np.arange(tiles * size) + 100 * rank
    signals = [f"tile {slot}" for slot in range(n * tiles)]
    fabric = oracle.Fabric(
        n, lambda pe: kata.tiled_matmul_all_gather(pe, tiles), {"tiles": held}, signals,
        slots=n * tiles, **times,
    )  # fmt: skip
    return fabric.run(choose)


def orders(oracle, seed, n, trials=TRIALS):
    return oracle.schedules(random.Random(seed), n, trials)


# ---- all-gather ----------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 3, 8])
@pytest.mark.parametrize("count", [1, 3])
def test_blocks_go_around_the_ring_in_any_order(kata, oracle, n, count, seed):
    x = [np.arange(count) + 10.0 * rank + 1 for rank in range(n)]
    for choose in orders(oracle, seed, n):
        fabric = gather(kata, oracle, x, choose)
        for rank, (found, kept) in enumerate(zip(*map(fabric.buffer, ("out", "x")), strict=True)):
            expected = np.concatenate(x)
            assert (found == expected).all(), (
                f"{n} PEs, PE {rank}: out {found}, expected {expected}"
            )
            assert (kept == x[rank]).all(), f"{n} PEs, PE {rank}: x was {x[rank]}, is {kept}"
        away = sorted(way for way in fabric.ways if way[1] != (way[0] + 1) % n)
        assert not away, f"{n} PEs: messages {away}, expected only to the right neighbour"


def test_a_gather_takes_a_message_a_block(kata, oracle, cost):
    fabric = gather(kata, oracle, [np.ones(2)] * 8)
    cost.check("gather_messages", fabric.count("messages") / 7)


# ---- halos ---------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 3, 8])
@pytest.mark.parametrize("shape", [(5, 2), (3, 3), (2, 0)], ids=["edges", "all cells", "none"])
def test_halos_arrive_in_any_order(kata, oracle, n, shape, seed):
    cells, width = shape
    draw = np.random.default_rng(seed)
    u = [draw.random(cells) for _ in range(n)]
    for at, choose in enumerate(orders(oracle, seed, n)):
        steps = at % 6
        found = exchange(kata, oracle, u, width, steps, choose).buffer("u")
        expected = oracle.after_steps(u, width, steps)
        for rank in range(n):
            assert np.allclose(found[rank], expected[rank], rtol=1e-12), (
                f"{n} PEs, width {width}, {steps} steps, PE {rank}: "
                f"{found[rank]}, expected {expected[rank]}"
            )


def test_many_steps_in_any_order(kata, oracle, seed):
    u = [np.array([1.0, 2.0]), np.array([0.5, 4.0]), np.array([3.0, 1.0])]
    for choose in orders(oracle, seed, 3, trials=2):
        found = exchange(kata, oracle, u, 1, 40, choose).buffer("u")
        expected = oracle.after_steps(u, 1, 40)
        assert np.allclose(found, expected, rtol=1e-12), f"{found}, expected {expected}"


def test_a_step_takes_a_message_a_neighbour(kata, oracle, cost):
    fabric = exchange(kata, oracle, [np.ones(4)] * 4, 2, 50)
    cost.check("halo_messages", fabric.count("messages") / 50)


# ---- products ------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 3), (2, 1), (3, 2), (8, 1)], ids=str)
def test_each_tile_is_multiplied_once_when_it_is_there(kata, oracle, shape, seed):
    n, tiles = shape
    for choose in orders(oracle, seed, n, trials=3):
        for rank, found in enumerate(multiply(kata, oracle, n, tiles, choose).computed()):
            expected = [
                (slot, [100.0 * (slot // tiles) + slot % tiles * 3 + i for i in range(3)])
                for slot in range(n * tiles)
            ]
            assert sorted(found) == expected, (
                f"{n} PEs, {tiles} tiles each, PE {rank} multiplied {sorted(found)}, "
                f"expected {expected}"
            )


def test_products_hide_the_exchange(kata, oracle, cost):
    worst = 0
    for n, tiles, cycles, latency in (
        (4, 8, 4, 30), (4, 8, 1, 30), (4, 8, 2, 10), (8, 4, 8, 5), (3, 16, 9, 90),
    ):  # fmt: skip
        fabric = multiply(kata, oracle, n, tiles, size=4, cycles=cycles, latency=latency)
        compute, transfer = n * tiles * cycles, (n - 1) * tiles * 4 + latency
        worst = max(worst, fabric.now / (max(compute, transfer) + cycles))
    cost.check("makespan", worst)


# ---- all three -----------------------------------------------------------------------------


def test_nobody_waits_for_everybody(kata, oracle, cost):
    runs = (
        gather(kata, oracle, [np.ones(1)] * 3),
        exchange(kata, oracle, [np.ones(2)] * 3, 1, 4),
        multiply(kata, oracle, 3, 2),
    )
    cost.check("barriers", max(fabric.count("barriers") for fabric in runs))
