"""What is special about 8-bit moments: the nearest code, blocks apart, and where it leads."""

import pytest
import torch

from harness.judge import assert_matches

NAN, INF = float("nan"), float("inf")
STATES = ("m_code", "v_code", "m_abs", "v_abs")


def filled(oracle, device, g, m_code=127, v_code=0, m_abs=0.0, v_abs=0.0, **numbers):
    """Weights of 1 and a list of gradients; states are numbers or lists."""
    n = len(g)
    given = oracle.make_inputs(n=n, dtype=torch.float32, device=device, seed=0, lr=0.5, wd=0.0)
    given["p"].fill_(1.0)
    given["g"].copy_(torch.tensor(g))
    for name, value in zip(STATES, (m_code, v_code, m_abs, v_abs), strict=True):
        given[name].copy_(torch.tensor(value))
    return given | {"step": 1} | numbers


def test_the_first_step_by_hand(kata, oracle, device):
    # m = 0.1 g and v = 0.001 g²: corrected they are g and g², so that a step has the length lr
    given = filled(oracle, device, [2.0, -1.0, 0.0, 2e-4], eps=1e-12)
    p = kata.adam8bit_blockwise(**given)
    assert p is given["p"]
    assert_matches(p, torch.tensor([0.5, 1.5, 1.0, 0.5], dtype=torch.float64))
    assert_matches(given["m_abs"], torch.tensor([0.2], dtype=torch.float64))
    assert_matches(given["v_abs"], torch.tensor([0.004], dtype=torch.float64))
    # of the largest moments these are 1, -0.5, 0, 1e-4 and 1, 0.25, 0, 1e-8
    assert given["m_code"].tolist()[::2] == [255, 127]
    assert given["v_code"].tolist() == [255, oracle.nearest_code(0.25, signed=False), 0, 0]


def test_weights_decay_apart_from_the_gradient(kata, oracle, device):
    given = filled(oracle, device, [0.0] * 300, wd=0.25)
    assert_matches(kata.adam8bit_blockwise(**given), torch.full((300,), 0.875))
    assert [given[name].unique().tolist() for name in STATES] == [[127], [0], [0.0], [0.0]]


def test_half_precision_weights_decay_in_single(kata, oracle, device):
    # 1 - 3 · 2⁻¹² is halfway between two numbers of float16; in float32 it and products are exact
    given = oracle.make_inputs(
        n=512, dtype=torch.float16, device=device, seed=0, kind="first", lr=0.5, wd=3 * 2**-11
    )
    given["p"].copy_(torch.arange(1024, 2048, 2))
    given["g"].zero_()
    want = (given["p"].double() * (1 - 3 * 2**-12)).half().tolist()
    p = kata.adam8bit_blockwise(**given).tolist()
    wrong = [i for i in range(512) if p[i] != want[i]][:3]
    assert not wrong, (
        f"weights {[1024 + 2 * i for i in wrong]}, decayed by 3 · 2⁻¹²: expected "
        f"{[want[i] for i in wrong]}, found {[p[i] for i in wrong]}"
    )


@pytest.mark.parametrize("sign", [1, -1], ids=["positive", "negative"])
def test_every_code_is_decoded_and_encoded(kata, oracle, device, sign):
    # both moments are halved and their scales too, so that codes stay
    codes = list(range(256))
    given = filled(
        oracle, device, [0.0] * 256, codes[::sign], codes[::sign], 3.0, 5.0, b1=0.5, b2=0.5
    )
    kata.adam8bit_blockwise(**given)
    assert given["m_abs"].tolist() == [1.5]
    assert given["v_abs"].tolist() == [2.5]
    assert given["m_code"].tolist() == codes[::sign]
    assert given["v_code"].tolist() == codes[::sign]


def test_minus_one_is_no_level(kata, oracle, device):
    # the largest first moment is negative: the nearest is the level of code 0
    given = filled(oracle, device, [-4.0, 1.0, -4.0])
    kata.adam8bit_blockwise(**given)
    assert given["m_code"].tolist()[::2] == [0, 0]
    assert given["v_code"].tolist()[::2] == [255, 255]


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        ("normal", torch.float32),
        ("first", torch.float32),
        ("mixed", torch.float32),
        ("tiny", torch.float32),
        ("normal", torch.float16),
    ],
    ids=["normal", "first", "mixed", "tiny", "float16"],
)
def test_codes_are_the_nearest(kata, oracle, device, seed, cost, kind, dtype):
    given = oracle.make_inputs(n=6000, dtype=dtype, device=device, seed=seed, kind=kind)
    want = oracle.new_states(**given)
    kata.adam8bit_blockwise(**given)
    off = 0
    for name, codes in zip(STATES[:2], want[:2], strict=True):
        by = (given[name].cpu().long() - codes).abs()
        at = int(by.argmax())
        assert by.max() <= 1, f"{name}[{at}]: expected {codes[at]}, found {given[name][at]}"
        off += int(by.sum())
    for name, scales in zip(STATES[2:], want[2:], strict=True):
        assert_matches(given[name], scales)
    cost.check("off_by_one", off / 12_000)


def test_codes_next_to_the_middle_of_two_levels(kata, oracle, device):
    # 2e-3 of the way off each middle, on either side, next to zero 0.2; a 1 keeps the scale
    for name, signed in (("m_code", True), ("v_code", False)):
        table = oracle.levels(signed)
        table = table[table >= 0]
        low, high = table[:-1], table[1:]
        off = torch.where(low == 0, 0.2, 0.002)
        x = torch.stack(
            [low + (high - low) * share for share in (0.5 - off, 0.5 + off)]
        ).T.flatten()
        want = oracle.nearest_code(x, signed)
        for start in range(0, len(x), 255):
            part = x[start : start + 255]
            moments = torch.cat([torch.ones(1, dtype=torch.float64), part])
            g = (moments if signed else moments.sqrt()).float().tolist()
            given = filled(oracle, device, g, b1=0.0, b2=0.0)
            kata.adam8bit_blockwise(**given)
            found = given[name].cpu().long()[1:]
            wrong = (found != want[start : start + 255]).nonzero().flatten()
            assert not len(wrong), (
                f"{name}, moments {part[wrong[:3]].tolist()} of the largest: expected "
                f"{want[start:][wrong[:3]].tolist()}, found {found[wrong[:3]].tolist()}"
            )


def test_beside_one_huge_gradient_others_keep_their_sign(kata, oracle, device):
    g = [1e3] + [1.0, -1.0] * 127 + [1.0] + [1.0, -1.0] * 128
    given = filled(oracle, device, g)
    kata.adam8bit_blockwise(**given)
    small = oracle.nearest_code(1e-3, signed=True)
    assert given["m_code"].tolist()[1:256] == [small, 254 - small] * 127 + [small]
    assert given["v_code"].tolist()[1:256] == [oracle.nearest_code(1e-6, signed=False)] * 255
    assert given["m_code"].unique().tolist() == sorted({0, 254 - small, small, 255})
    assert_matches(given["v_abs"], torch.tensor([1e3, 1e-3], dtype=torch.float64))


def test_past_the_last_weight_are_no_moments(kata, oracle, device):
    # three moments at a half of the scale or less, and nothing behind them
    codes = [oracle.nearest_code(x, signed=True) for x in (-0.5, 0.2, 0.1)]
    v_codes = [oracle.nearest_code(x, signed=False) for x in (0.2, 0.5, 0.1)]
    given = filled(oracle, device, [0.0] * 3, codes, v_codes, 1.0, 1.0, b1=0.5, b2=0.5)
    want = -given["m_map"][codes[0]].item() / 2, given["v_map"][v_codes[1]].item() / 2
    kata.adam8bit_blockwise(**given)
    assert (given["m_abs"].item(), given["v_abs"].item()) == want
    # with moments of zero a block's new scales are zero, whatever the old ones were
    given = filled(oracle, device, [0.0] * 3, m_abs=1.0, v_abs=1.0)
    kata.adam8bit_blockwise(**given)
    assert (given["m_abs"].item(), given["v_abs"].item()) == (0.0, 0.0)


def test_blocks_do_not_know_of_each_other(kata, oracle, device, seed):
    given = oracle.make_inputs(n=5 * 256, dtype=torch.float32, device=device, seed=seed)
    order = torch.tensor([3, 0, 4, 2, 1], device=device)
    moved = {
        name: one.view(5, -1)[order].flatten() if name in ("p", "g", *STATES) else one
        for name, one in given.items()
    }
    kata.adam8bit_blockwise(**given)
    kata.adam8bit_blockwise(**moved)
    for name in ("p", *STATES):
        want = given[name].view(5, -1)[order].flatten()
        assert torch.equal(moved[name], want), f"{name}: blocks in another order, other results"


def test_one_minus_b2_has_all_its_digits(kata, oracle, device):
    # in float32 1 - 0.9999999 is 1.19e-7, off by a fifth
    given = filled(oracle, device, [3.0, -3.0], b1=0.0, b2=0.9999999)
    p = kata.adam8bit_blockwise(**given)
    assert_matches(p, torch.tensor([0.5, 1.5], dtype=torch.float64))
    assert_matches(given["v_abs"], torch.tensor([9e-7], dtype=torch.float64))


def test_training_goes_where_float32_takes_it(kata, oracle, device, cost):
    generator = torch.Generator().manual_seed(7)
    goal = torch.randn(512, generator=generator).to(device)
    scale = (10 ** (-2 * torch.rand(512, generator=generator))).to(device)
    given = filled(oracle, device, [0.0] * 512)
    given["p"].zero_()
    weight = torch.zeros_like(goal).requires_grad_()
    adam = torch.optim.AdamW([weight], lr=0.02, weight_decay=0.0)
    for step in range(1, 41):
        noise = 0.05 * torch.randn(512, generator=generator).to(device)
        given["g"].copy_(scale * (given["p"] - goal) + noise * scale)
        kata.adam8bit_blockwise(**given | {"step": step, "lr": 0.02})
        weight.grad = scale * (weight.detach() - goal) + noise * scale
        adam.step()
    losses = [(scale * (one.detach() - goal) ** 2).sum().item() for one in (given["p"], weight)]
    cost.check("loss", losses[0] / losses[1])


@pytest.mark.parametrize("value", [NAN, INF, -INF], ids=str)
def test_in_debug_mode_gradients_are_finite(kata, oracle, device, value):
    given = filled(oracle, device, [1.0] * 300)
    given["g"][299] = value
    with pytest.raises(ValueError, match="^g: "):
        kata.adam8bit_blockwise(**given, debug=True)
    assert given["p"].unique().tolist() == [1.0], "expected the refused step to change no weight"


def test_in_debug_mode_gradients_are_looked_at_last(kata, oracle, device):
    for name, wrong in {
        "p": {"p": torch.ones(300, device=device).double()},
        "b2": {"b2": 1.0},
    }.items():
        given = filled(oracle, device, [1.0] * 300)
        given["g"][0] = NAN
        with pytest.raises(ValueError, match=f"^{name}: "):
            kata.adam8bit_blockwise(**given | wrong, debug=True)


def test_in_debug_mode_the_step_is_the_same(kata, oracle, device, seed):
    plain, debugged = (
        oracle.make_inputs(n=300, dtype=torch.float32, device=device, seed=seed) for _ in range(2)
    )
    kata.adam8bit_blockwise(**plain)
    kata.adam8bit_blockwise(**debugged, debug=True)
    for name in ("p", *STATES):
        assert torch.equal(debugged[name], plain[name]), f"{name}: differs with debug"


def test_nothing_waits_or_is_allocated_without_debug(kata, oracle, device, dispatch, seed):
    given = oracle.make_inputs(n=700, dtype=torch.float32, device=device, seed=seed)
    with dispatch() as ops:
        kata.adam8bit_blockwise(**given)
    assert (ops.allocated_bytes, ops.host_syncs) == (0, 0)


def test_one_pass_over_memory(kata, oracle, traffic, cost, seed):
    given = oracle.make_inputs(n=2048, dtype=torch.float32, device="cpu", seed=seed)
    with traffic() as moved:
        kata.adam8bit_blockwise(**given)
    assert moved.stored_bytes == 2048 * (4 + 1 + 1) + 8 * 4 * 2
    cost.check(
        "reads", max(moved.of(given[name]).loads_per_element for name in ("p", "g", *STATES))
    )
    looked_up = sum(moved.of(given[name]).loads_per_element * 256 for name in ("m_map", "v_map"))
    cost.check("lookups", looked_up / 2048)
