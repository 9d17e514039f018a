"""What is counted of JAX's programs, and how functions of JAX are judged."""

import pytest

from harness.authoring.scaffold import scaffold

pytest.importorskip("jax", reason="needs the extra jax")
import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from harness.meters.hlo import compiled_program, saved_bytes


def test_instructions_are_counted_by_opcode():
    program = compiled_program(lambda x: jnp.exp(x @ x) @ x, jnp.ones((64, 64)))
    assert program.count("dot") == 2
    assert program.count("while") == 0
    assert program.count("exponential") == 1
    assert program.transcendentals == 64 * 64
    assert 2 * (2 * 64**3) <= program.flops <= 2 * (2 * 64**3) + 10 * 64**2


def test_equations_of_loops_and_calls_are_counted():
    def body(total, x):
        return total + jnp.sin(x), total  # 2

    def looped(x):
        total, _ = jax.lax.scan(body, jnp.float32(0), x)  # 1
        return jax.jit(lambda y: y * 2)(total)  # 2

    assert compiled_program(looped, jnp.ones(5)).equations == 5
    assert compiled_program(looped, jnp.ones(500)).equations == 5
    assert compiled_program(looped, jnp.ones(5)).count("while") == 1


def test_collectives_of_a_divided_program_are_seen():
    mesh = jax.make_mesh((8,), ("i",), axis_types=(AxisType.Auto,))
    columns = NamedSharding(mesh, PartitionSpec(None, "i"))
    rows = NamedSharding(mesh, PartitionSpec("i", None))
    whole = NamedSharding(mesh, PartitionSpec())
    product = jax.jit(jnp.matmul, in_shardings=(columns, rows), out_shardings=whole)
    program = compiled_program(product, jnp.ones((16, 64)), jnp.ones((64, 16)))
    assert program.count("all-reduce") + program.count("all-reduce-start") == 1
    assert program.count("all-gather") == 0


def test_each_saved_array_is_counted_once():
    _, pullback = jax.vjp(lambda x: jnp.exp(x) * jnp.exp(x), jnp.ones((8, 4)))
    twice = saved_bytes(pullback)
    _, pullback = jax.vjp(jnp.exp, jnp.ones((8, 4)))
    assert saved_bytes(pullback) == 8 * 4 * 4
    assert twice in (8 * 4 * 4, 2 * 8 * 4 * 4)


WRONG = {
    "scaled": ("2.01 * x", "test_matches_reference[1000-float32]"),
    "half_precision": (
        "(2.1 * x.astype(jnp.bfloat16) - 0.1 * x).astype(x.dtype)",
        "test_matches_reference[1000-float32]",
    ),
    "remembers": (
        "KEPT.setdefault(x.shape, 2 * x)",
        "test_second_call_sees_new_values[1-float32]",
    ),
    "calls_the_oracle": (
        "jnp.array(__import__('sys').modules[next(n for n in __import__('sys').modules "
        "if 'oracle' in n)].reference(x=x), x.dtype)",
        "test_matches_reference[1000-float32]",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_function_is_caught(mini, judged, tmp_path, name):
    scaffold(mini, "week02/fresh", "jax")
    answer, test = WRONG[name]
    file = tmp_path / f"{name}.py"
    source = (mini / "solutions/week02/fresh.py").read_text()
    assert source.count("y = 2 * x") == 1
    file.write_text(source.replace("y = 2 * x", f"y = {answer}") + "\n\nKEPT = {}\n")
    (mini / "katas/week01/doubled/kata.toml").rename(tmp_path / "away")  # `file` is none of it
    outcomes = {one["name"]: one["outcome"] for one in judged(f"--impl={file}", "-k", "kata.toml")}
    assert outcomes[test] == "failed"


def test_a_replaced_function_of_jax_is_noticed(mini, judged, tmp_path):
    scaffold(mini, "week02/fresh", "jax")
    file = tmp_path / "patched.py"
    source = (mini / "solutions/week02/fresh.py").read_text()
    file.write_text(source + "\n\njnp.sum = lambda *_, **__: 0.0\n")
    (mini / "katas/week01/doubled/kata.toml").rename(tmp_path / "away")
    messages = [one["message"] for one in judged(f"--impl={file}") if one["outcome"] == "failed"]
    assert any("found replaced: jax.numpy.sum" in message for message in messages)
