"""Products against NumPy's, permutes counted in the jaxpr and in XLA's program, waits simulated."""

import re

import numpy as np
import pytest

GATHERS = ("gather_matmul", "gather_matmul_bidirectional")
N = 8


@pytest.fixture(scope="module")
def built(kata, oracle):
    """`built(name, n)`: (operands, XLA's program); of each there is one."""
    made = {}

    def build(name, n, seed=0, **how):
        key = name, n, *how.items()
        if key not in made:
            scatter = "scatter" in name
            a, b = oracle.draw(seed, n, scatter=scatter)
            made[key] = (
                (a, b),
                oracle.compiled(getattr(kata, name), n, a, b, scatter=scatter, **how),
            )
        return made[key]

    return build


@pytest.fixture
def of_eight(kata, oracle):
    """`of_eight(name)`: what one of eight devices asks for; blocks are 3 x 5, sums 3 x 2."""

    def read(name):
        scatter = "scatter" in name
        operands = oracle.draw(0, N, scatter=scatter)
        return oracle.program(getattr(kata, name), N, *operands, scatter=scatter)

    return read


def assert_product(found, a, b):
    expected = a @ b
    wrong = np.argwhere(np.asarray(found) != expected)
    assert not len(wrong), (
        f"rows {sorted({int(row) for row, _ in wrong})} of {len(a)} are wrong: expected\n"
        f"{expected}, found\n{found}"
    )


# ---- products ------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 3, 8], ids="n{}".format)
@pytest.mark.parametrize("name", GATHERS)
def test_gathered_rows_are_multiplied(built, name, n):
    (a, b), program = built(name, n)
    assert_product(program(a, b), a, b)


@pytest.mark.parametrize("n", [1, 3, 4], ids="n{}".format)
def test_partial_products_are_summed_and_scattered(built, n):
    (a, b), program = built("matmul_scatter", n)
    assert_product(program(a, b), a, b)


@pytest.mark.parametrize("name", [*GATHERS, "matmul_scatter"])
def test_one_axis_of_two_is_the_ring(built, name):
    (a, b), program = built(name, 3, axis="model", copies=2)
    assert_product(program(a, b), a, b)


@pytest.mark.parametrize("name", [*GATHERS, "matmul_scatter"])
def test_a_nan_stays_in_its_row(built, name):
    (a, b), program = built(name, 3)
    expected, spoiled, row = a @ b, a.copy(), 4
    spoiled[row, 2] = expected[row] = np.nan
    found = np.asarray(program(spoiled, b))
    wrong = [at for at in range(len(a)) if not np.array_equal(found[at], expected[at], True)]
    assert not wrong, f"a NaN in row {row} of a: rows {wrong} are wrong, found\n{found}"


@pytest.mark.parametrize("name", [*GATHERS, "matmul_scatter"])
def test_the_result_has_the_dtype_of_the_product(kata, oracle, name):
    import jax
    import jax.numpy as jnp

    scatter = "scatter" in name
    a, b = (jnp.asarray(x, jnp.bfloat16) for x in oracle.draw(0, 2, scatter=scatter))
    result = jax.eval_shape(oracle.placed(getattr(kata, name), 2, scatter=scatter), a, b)
    assert result.dtype == jnp.bfloat16


@pytest.mark.parametrize(
    ("name", "size"), [*((name, 15) for name in GATHERS), ("matmul_scatter", 6)]
)
def test_what_travels_has_the_dtype_of_the_arguments(kata, oracle, name, size):
    import jax.numpy as jnp

    scatter = "scatter" in name
    a, b = (jnp.asarray(x, jnp.bfloat16) for x in oracle.draw(0, 2, scatter=scatter))
    sent = oracle.program(getattr(kata, name), 2, a, b, scatter=scatter).bytes_sent
    assert sent == 2 * size, f"{size} numbers of bfloat16: bytes sent"


# ---- what is sent --------------------------------------------------------------------------


def test_blocks_travel_once(of_eight, cost):
    program = of_eight("gather_matmul")
    assert not program.others
    cost.check("permutes", len(program.permutes))
    cost.check("bytes_sent", program.bytes_sent)


def test_blocks_travel_half_as_far_both_ways(of_eight, cost):
    program = of_eight("gather_matmul_bidirectional")
    assert not program.others
    assert (len(program.permutes), program.bytes_sent) == (N - 1, (N - 1) * 60)
    cost.check("longest_chain", program.chain)


def test_sums_travel_once(of_eight):
    program = of_eight("matmul_scatter")
    assert not program.others
    assert (len(program.permutes), program.bytes_sent) == (N - 1, (N - 1) * 24)


@pytest.mark.parametrize("name", [*GATHERS, "matmul_scatter"])
def test_permutes_are_between_neighbours_of_the_torus(of_eight, name):
    for pairs, *_ in of_eight(name).permutes:
        far = [(a, b) for a, b in pairs if (a - b) % N not in (1, N - 1)]
        assert not far, f"not neighbours on a ring of {N}: {far}"
        assert len({a for a, _ in pairs}) == len({b for _, b in pairs}) == N


@pytest.mark.parametrize(
    ("name", "waits"),
    [
        ("gather_matmul", [0, 1, 2, 3, 4, 5, 6, 7]),
        ("gather_matmul_bidirectional", [0, 1, 1, 2, 2, 3, 3, 4]),
        ("matmul_scatter", [0] * N),
    ],
    ids=[*GATHERS, "matmul_scatter"],
)
def test_each_product_waits_for_its_block_alone(of_eight, name, waits):
    dots = of_eight(name).dots
    assert [rows for rows, _ in dots] == [3] * N, "rows of the left operands"
    assert sorted(hops for _, hops in dots) == waits, "permutes that the products wait for"


@pytest.mark.parametrize("n", [1, 2, 7], ids="n{}".format)
def test_both_ways_are_half_as_long_on_any_ring(kata, oracle, n):
    operands = oracle.draw(0, n, scatter=False)
    program = oracle.program(kata.gather_matmul_bidirectional, n, *operands, scatter=False)
    waits = sorted(hops for _, hops in program.dots)
    assert waits == [(block + 1) // 2 for block in range(n)], f"{n = }: permutes waited for"
    assert len(program.permutes) == n - 1, f"{n = }: permutes"


@pytest.mark.parametrize("name", GATHERS)
def test_xla_gathers_nothing(built, name):
    text = built(name, N)[1].as_text()
    found = re.findall(r" (all-gather|all-reduce|all-to-all|collective-permute)(?:-start)?\(", text)
    assert found == ["collective-permute"] * (N - 1)


def test_the_gathered_operand_never_exists(kata, oracle, cost):
    sizes = []
    for fn in (kata.gather_matmul, kata.naive_gather_matmul):
        operands = oracle.draw(0, N, scatter=False, rows=8, inner=64)
        program = oracle.compiled(fn, N, *operands, scatter=False)
        sizes.append(program.memory_analysis().temp_size_in_bytes)
    cost.check("temporary_bytes_over_naive", sizes[0] / sizes[1])


# ---- time ----------------------------------------------------------------------------------


@pytest.mark.parametrize("both", [False, True], ids=["one way", "both ways"])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 8], ids="n{}".format)
def test_exposed_time_is_that_of_the_simulated_links(kata, oracle, n, both):
    for t_dot, t_hop in ((5, 3), (5, 5), (5, 6), (5, 9), (5, 10), (5, 11), (1, 7), (4, 0), (0, 4)):
        found = kata.exposed_time(n, t_dot, t_hop, both)
        assert found == oracle.waited(n, t_dot, t_hop, both), f"{t_dot = }, {t_hop = }"


# ---- what is refused -----------------------------------------------------------------------


@pytest.mark.parametrize("name", [*GATHERS, "matmul_scatter"])
def test_inner_dimensions_have_to_agree(kata, oracle, name):
    how = {"scatter": "scatter" in name}
    a, b = oracle.draw(0, 2, **how)
    with pytest.raises(ValueError, match="^b_shard: "):
        oracle.program(getattr(kata, name), 2, a, np.vstack([b, b]), **how)


def test_rows_have_to_be_divisible(kata, oracle):
    a, b = oracle.draw(0, 2, scatter=True)
    with pytest.raises(ValueError, match="^a_shard: "):
        oracle.program(kata.matmul_scatter, 2, a[1:], b, scatter=True)


def test_no_devices_take_no_time(kata):
    for n in (0, -1):
        with pytest.raises(ValueError, match="^n: "):
            kata.exposed_time(n, 1, 1, False)
