"""The layer against a loop over slots; collectives of XLA's program, forward and backward."""

import numpy as np
import pytest

SHAPES = {  # devices, groups, experts
    "1 device": (1, 2, 3),
    "2 devices": (2, 2, 4),
    "4 devices": (4, 4, 4),
    "two of each on a device": (4, 8, 8),
}
EIGHT = (4, 4, 8)


@pytest.fixture(scope="module")
def built(kata, oracle):
    """`built(shape)`: (size, arguments, XLA's program); of each there is one."""
    made = {}

    def build(shape, *, gradients=False):
        key = shape, gradients
        if key not in made:
            size = oracle.Size(**dict(zip(("devices", "g", "e"), shape, strict=True)))
            inputs = oracle.draw(0, size)
            arguments = [*inputs.values()]
            if gradients:
                arguments.insert(0, np.random.default_rng(1).integers(-3, 4, inputs["x"].shape))
                arguments[0] = arguments[0].astype(np.float32)
            fn = oracle.jitted(kata.moe_layer, size, gradients=gradients)
            made[key] = size, arguments, fn.lower(*arguments).compile()
        return made[key]

    return build


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_every_token_gets_what_its_slots_give(oracle, built, shape):
    size, arguments, program = built(shape)
    x, dispatch, combine, wi, wo = arguments
    expected, *_ = oracle.by_slot(x, x=x, dispatch=dispatch, combine=combine, wi=wi, wo=wo)
    found = np.asarray(program(*arguments))
    wrong = np.argwhere((found != expected).any(-1))
    assert not len(wrong), (
        f"(group, token) {wrong[0]} of {size}, with slots {np.argwhere(dispatch[*wrong[0]])}: "
        f"expected {expected[*wrong[0]]}, found {found[*wrong[0]]}"
    )


def test_gradients_are_those_of_the_loop(oracle, built):
    _, arguments, program = built(EIGHT, gradients=True)
    weight, x, dispatch, combine, wi, wo = arguments
    expected = oracle.by_slot(weight, x=x, dispatch=dispatch, combine=combine, wi=wi, wo=wo)
    found = program(*arguments)
    for name, ours, theirs in zip(("y", "dx", "dwi", "dwo"), found, expected, strict=True):
        off = np.abs(np.asarray(ours) - theirs).max()
        assert off == 0, f"{name}: expected the loop's, found it up to {off} away"


def assert_tokens_alone(found):
    """That slots are exchanged, and no weights are gathered or added up."""
    assert {opcode for opcode, _ in found} == {"all-to-all"}, (
        f"collectives of XLA's program and the bytes that a device sends: {found}, expected "
        "all-to-alls of slots alone"
    )


def test_forward_sends_tokens_twice_and_no_weights(oracle, built, cost):
    size, _, program = built(EIGHT)
    found = oracle.collectives(program, size.devices)
    assert_tokens_alone(found)
    cost.check("forward_collectives", len(found))
    cost.check("forward_bytes", sum(sent for _, sent in found))


def test_backward_sends_tokens_twice_and_no_weights(oracle, built, cost):
    size, _, program = built(EIGHT, gradients=True)
    found = oracle.collectives(program, size.devices)
    assert_tokens_alone(found)
    cost.check("step_collectives", len(found))
    cost.check("step_bytes", sum(sent for _, sent in found))


def test_any_dtype_on_a_mesh_of_any_name(kata, oracle):
    import jax.numpy as jnp

    size = oracle.Size(devices=2, g=2, e=2)
    inputs = {name: jnp.asarray(one) for name, one in oracle.draw(0, size).items()}
    halves = [x if x.dtype == bool else x.astype(jnp.bfloat16) for x in inputs.values()]
    lowered = oracle.jitted(kata.moe_layer, size, axis="data").lower(*halves)
    assert lowered.out_info.dtype == jnp.bfloat16


def test_sent_bytes_are_those_of_the_two_programs(kata, oracle, built):
    size, arguments, ours = built(EIGHT)
    naive = oracle.jitted(oracle.unannotated, size).lower(*arguments).compile()
    sent = [sum(one for _, one in oracle.collectives(p, size.devices)) for p in (ours, naive)]
    found = kata.sent_bytes(size.g, size.e, size.c, size.m, size.h, size.devices, 4)
    assert found == tuple(sent)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((64, 128, 4, 1024, 4096, 64, 2), (2 * 63 * 2 * 4 * 1024 * 2, 2 * 63 * 2 * 2**22 * 2)),
        ((4, 4, 1, 3, 5, 1, 4), (0, 0)),
        ((6, 3, 5, 7, 11, 3, 2), (2 * 2 * 10 * 7 * 2, 2 * 2 * 77 * 2)),
        # past what a float64 has digits for
        ((3, 3, 2**54 + 1, 1, 2**53 + 1, 3, 1), (2 * 2 * (2**54 + 1), 2 * 2 * (2**53 + 1))),
    ],
    ids=["64 devices", "one device", "odd sizes", "past 53 bits"],
)
def test_sent_bytes_by_hand(kata, arguments, expected):
    assert kata.sent_bytes(*arguments) == expected
    assert [type(sent) for sent in kata.sent_bytes(*arguments)] == [int, int]


@pytest.mark.parametrize(
    ("name", "groups", "experts"),
    [("x", 3, 4), ("wi", 4, 6), ("x", 2, 2)],
    ids=["groups", "experts", "both"],
)
def test_devices_divide_groups_and_experts(kata, oracle, name, groups, experts):
    inputs = oracle.draw(0, oracle.Size(devices=1, g=groups, e=experts))
    whole = oracle.Size(devices=4, g=4, e=4)
    with pytest.raises(ValueError, match=f"^{name}: "):
        oracle.jitted(kata.moe_layer, whole, placed=False).lower(**inputs)
