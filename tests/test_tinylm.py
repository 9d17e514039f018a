"""The tiny language model: its figures, what can be bent in its forward, and how it was trained."""

import math

import pytest
import torch
import torch.nn.functional as F

from harness.base.errors import UsageProblem
from harness.simulators.tinylm import (
    TinyConfig,
    TinyLM,
    causal_attention,
    load_tinylm,
    periodic_tokens,
    token_nll,
)
from harness.simulators.tinylm.data import NOISE, PERIODS
from harness.simulators.tinylm.train import learning_rate, train
from harness.simulators.tinylm.weights import WEIGHTS, save_weights


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def model():
    return load_tinylm()


def mean_nll(model, length, *, first=0, seed=0, **bent):
    """Mean NLL over the positions from `first` on, of 32 sequences."""
    tokens = periodic_tokens(32, length + 1, seed)
    with torch.no_grad():
        logits = model(tokens[:, :-1], **bent)
    return token_nll(logits, tokens[:, 1:])[:, first:].mean().item()


# --- figures ---


@pytest.mark.parametrize(
    ("length", "figure"), [(64, 1.02), (128, 1.85), (256, 3.07), (512, 3.34)], ids=str
)
def test_the_second_half_costs_what_is_told(model, length, figure):
    found = [mean_nll(model, length, first=length // 2, seed=seed) for seed in range(3)]
    assert sum(found) / 3 == pytest.approx(figure, abs=0.06)


def test_all_positions_cost_what_is_told(model):
    found = [mean_nll(model, 64, seed=seed) for seed in range(3)]
    assert sum(found) / 3 == pytest.approx(1.80, abs=0.06)


def test_the_first_period_cannot_be_known(model):
    tokens = periodic_tokens(32, 65, 0)
    with torch.no_grad():
        nll = token_nll(model(tokens[:, :-1]), tokens[:, 1:])
    assert nll[:, : PERIODS[0] - 1].mean().item() > 0.95 * math.log(32)


def yarn_inv_freq(config, factor):
    """YaRN's ramp between pairs that turn 32 times and once in training (2309.00071, 3.2)."""
    d, base, length = config.head_dim, config.rope_base, config.train_length
    pairs = torch.arange(d // 2, dtype=torch.float64)
    low, high = (
        d * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(base)) for turns in (32, 1)
    )
    low, high = max(math.floor(low), 0), math.ceil(high)
    slow = ((pairs - low) / (high - low)).clamp(0, 1)
    return config.inv_freq() * (1 - slow + slow / factor)


def test_extending_the_context_shows_what_the_papers_say(model):
    config, factor = model.config, 4
    pairs = torch.arange(config.head_dim // 2, dtype=torch.float64)
    ntk_base = config.rope_base * factor ** (config.head_dim / (config.head_dim - 2))
    cost = {
        name: mean_nll(model, 64 * factor, first=32 * factor, **bent)
        for name, bent in {
            "plain": {},
            "interpolated": {"inv_freq": config.inv_freq() / factor},
            "ntk": {"inv_freq": ntk_base ** (-2 * pairs / config.head_dim)},
            "yarn": {"inv_freq": yarn_inv_freq(config, factor)},
            "yarn, warm": {
                "inv_freq": yarn_inv_freq(config, factor),
                "mscale": 0.1 * math.log(factor) + 1,
            },
        }.items()
    }
    assert [*cost] == sorted(cost, key=cost.__getitem__, reverse=True)
    assert cost["yarn, warm"] < 1.2
    assert cost["plain"] > 2.9


def test_rounding_the_weights_costs_the_more_the_fewer_the_bits(model):
    def rounded(weight, bits, group=32):
        grouped = weight.detach().unflatten(1, (-1, group))
        low, high = grouped.amin(-1, keepdim=True), grouped.amax(-1, keepdim=True)
        scale = (high - low) / (2**bits - 1)
        return (((grouped - low) / scale).round() * scale + low).flatten(1)

    linear = {name: w for name, w in model.named_parameters() if w.dim() == 2 and "layers" in name}
    cost = [mean_nll(model, 64)]
    for bits in (4, 3, 2):
        weights = {name: rounded(weight, bits) for name, weight in linear.items()}
        cost.append(mean_nll(model, 64, weights=weights))
    assert cost == sorted(cost)
    assert cost[-1] > cost[0] + 0.3


# --- weights ---


def test_the_weights_are_small_and_of_the_size_told(model):
    assert sum(weight.numel() for weight in model.parameters()) == 84_288
    assert WEIGHTS.stat().st_size < 200_000


def test_each_call_loads_a_model_of_its_own(model):
    other = load_tinylm()
    with torch.no_grad():
        other.layers[0].q.weight.zero_()
    assert load_tinylm().layers[0].q.weight.equal(model.layers[0].q.weight)
    assert not other.layers[0].q.weight.equal(model.layers[0].q.weight)


def test_weights_are_stored_as_halves(model, tmp_path, monkeypatch):
    monkeypatch.setattr("harness.simulators.tinylm.weights.WEIGHTS", tmp_path / "again.npz")
    save_weights(model, tmp_path / "again.npz")
    for name, weight in load_tinylm().named_parameters():
        assert weight.dtype == torch.float32
        assert weight.equal(weight.half().float())
        assert weight.equal(model.get_parameter(name))


# --- the forward ---


def by_hand(model, tokens):
    """The same model in float64 and loops over heads, from its weights alone."""
    weights = {name: weight.detach().double() for name, weight in model.named_parameters()}

    def norm(x, name):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * weights[name]

    length = tokens.shape[1]
    rate = 10_000.0 ** (-torch.arange(0, 32, 2, dtype=torch.float64) / 32)
    turn = torch.polar(
        torch.ones(length, 16, dtype=torch.float64),
        torch.arange(length, dtype=torch.float64)[:, None] * rate,
    )
    x = weights["embedding.weight"][tokens]
    for n in range(2):
        at = f"layers.{n}."
        normed = norm(x, at + "attention_norm.weight")
        heads = []
        for head in range(2):
            rows = slice(32 * head, 32 * head + 32)
            q, k, v = (normed @ weights[f"{at}{part}.weight"][rows].T for part in "qkv")
            q, k = (torch.complex(part[..., :16], part[..., 16:]) * turn for part in (q, k))
            scores = (q[:, :, None] * k[:, None].conj()).sum(-1).real / 32**0.5
            later = torch.ones(length, length).triu(1).bool()
            heads.append(scores.masked_fill(later, -torch.inf).softmax(-1) @ v)
        x = x + torch.cat(heads, -1) @ weights[at + "o.weight"].T
        normed = norm(x, at + "mlp_norm.weight")
        gate, up = (normed @ weights[f"{at}{part}.weight"].T for part in ("gate", "up"))
        x = x + (gate * gate.sigmoid() * up) @ weights[at + "down.weight"].T
    return norm(x, "norm.weight") @ weights["embedding.weight"].T


def test_the_forward_is_the_formula(model):
    tokens = periodic_tokens(3, 40, 0)
    with torch.no_grad():
        torch.testing.assert_close(
            model(tokens).double(), by_hand(model, tokens), rtol=1e-4, atol=1e-4
        )


def test_what_comes_later_changes_nothing(model):
    tokens = periodic_tokens(2, 48, 0)
    with torch.no_grad():
        torch.testing.assert_close(
            model(tokens)[:, :30], model(tokens[:, :30]), rtol=1e-5, atol=1e-5
        )


def test_attention_sees_only_how_far_apart_positions_are(model):
    tokens = periodic_tokens(2, 48, 0)
    with torch.no_grad():
        shifted = model(tokens, positions=torch.arange(48) + 100)
        torch.testing.assert_close(model(tokens), shifted, rtol=1e-3, atol=2e-3)


def test_mscale_multiplies_the_scores_by_its_square(model):
    tokens = periodic_tokens(2, 48, 0)

    def sharper(layer, q, k, v):
        scale = 1.2**2 / q.shape[-1] ** 0.5
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)

    with torch.no_grad():
        torch.testing.assert_close(
            model(tokens, mscale=1.2), model(tokens, attention=sharper), rtol=1e-4, atol=1e-4
        )


def test_an_attention_of_ones_own_is_asked_by_every_layer(model):
    asked = []

    def probe(layer, q, k, v):
        asked.append((layer, tuple(q.shape)))
        return causal_attention(layer, q, k, v)

    tokens = periodic_tokens(2, 9, 0)
    with torch.no_grad():
        assert model(tokens, attention=probe).equal(model(tokens))
    assert asked == [(0, (2, 2, 9, 32)), (1, (2, 2, 9, 32))]


def test_a_cache_of_keys_and_values_decodes_what_a_whole_forward_does(model):
    tokens = periodic_tokens(2, 20, 0)
    cache = {}

    def cached(layer, q, k, v):
        if layer in cache:
            k, v = (torch.cat(pair, 2) for pair in zip(cache[layer], (k, v), strict=True))
        cache[layer] = (k, v)
        return F.scaled_dot_product_attention(q, k, v)

    with torch.no_grad():
        steps = [
            model(tokens[:, at : at + 1], positions=torch.tensor([at]), attention=cached)
            for at in range(20)
        ]
        torch.testing.assert_close(torch.cat(steps, 1), model(tokens), rtol=1e-4, atol=1e-4)


def test_weights_are_replaced_for_one_call(model):
    tokens = periodic_tokens(2, 20, 0)
    zero = {"layers.1.down.weight": torch.zeros(64, 128), "layers.1.o.weight": torch.zeros(64, 64)}
    one_layer = TinyLM(TinyConfig(layers=1))
    kept = {n: w for n, w in model.state_dict().items() if not n.startswith("layers.1.")}
    one_layer.load_state_dict(kept)
    with torch.no_grad():
        before = model(tokens)
        torch.testing.assert_close(model(tokens, weights=zero), one_layer(tokens))
        assert model(tokens).equal(before)


def test_the_head_follows_the_embedding(model):
    tokens = periodic_tokens(2, 20, 0)
    doubled = {"embedding.weight": 2 * model.embedding.weight.detach()}
    turned = {"norm.weight": -model.norm.weight.detach()}
    with torch.no_grad():
        torch.testing.assert_close(model(tokens, weights=turned), -model(tokens))
        head = F.linear(model.hidden(tokens), model.embedding.weight)
        torch.testing.assert_close(model(tokens), head)
        assert not torch.allclose(model(tokens, weights=doubled), 2 * model(tokens))


def test_gradients_reach_replaced_weights_alone():
    model = load_tinylm().requires_grad_(False)
    weight = model.layers[0].up.weight.clone().requires_grad_()
    tokens = periodic_tokens(2, 20, 0)
    logits = model(tokens[:, :-1], weights={"layers.0.up.weight": weight})
    token_nll(logits, tokens[:, 1:]).mean().backward()
    assert weight.grad.abs().max() > 0
    assert model.layers[0].up.weight.grad is None


@pytest.mark.parametrize(
    ("name", "shape"), [("layers.2.q.weight", (64, 64)), ("layers.0.q.weight", (64, 32))]
)
def test_weights_of_another_name_or_shape_are_refused(model, name, shape):
    with pytest.raises(UsageProblem, match=r"found layers\.\d\.q\.weight of shape \(64, \d+\)"):
        model(periodic_tokens(1, 4, 0), weights={name: torch.zeros(shape)})


def test_grouped_heads_are_those_repeated():
    grouped = TinyLM(TinyConfig(heads=4, kv_heads=2, head_dim=16, layers=4))
    repeated = TinyLM(TinyConfig(heads=4, kv_heads=4, head_dim=16, layers=4))
    weights = dict(grouped.state_dict())
    for name in [name for name in weights if name.split(".")[-2] in ("k", "v")]:
        heads = weights[name].unflatten(0, (2, 16))
        weights[name] = heads.repeat_interleave(2, 0).flatten(0, 1)
    repeated.load_state_dict(weights)
    tokens = periodic_tokens(2, 20, 0)
    with torch.no_grad():
        torch.testing.assert_close(grouped(tokens), repeated(tokens), rtol=1e-4, atol=1e-4)


# --- data and training ---


def test_sequences_repeat_with_the_noise_told():
    tokens = periodic_tokens(2000, 96, 0)
    assert tokens.equal(periodic_tokens(2000, 96, 0))
    agreement = torch.stack(
        [
            (tokens[:, period:] == tokens[:, :-period]).float().mean(1)
            for period in range(PERIODS[0], PERIODS[1] + 1)
        ]
    )
    best = agreement.max(0)
    # neither is noise, or noise drew the same again
    expected = (1 - NOISE) ** 2 + (1 - (1 - NOISE) ** 2) / 32
    assert best.values.mean().item() == pytest.approx(expected, abs=0.01)
    assert sorted(set(best.indices.tolist())) == [*range(PERIODS[1] - PERIODS[0] + 1)]


def test_the_rate_warms_up_and_comes_down():
    rates = [learning_rate(step, 2500) for step in range(2500)]
    assert rates[0] < rates[50] < max(rates)
    assert rates[-1] == pytest.approx(0.05 * 5e-3, rel=0.01)
    assert 90 <= rates.index(max(rates)) <= 110


def test_training_repeats_itself_and_leaves_the_callers_random_numbers_alone():
    state = torch.random.get_rng_state()
    one, other = train(steps=8), train(steps=8)
    assert torch.random.get_rng_state().equal(state)
    for name, weight in one.named_parameters():
        assert weight.equal(other.get_parameter(name))


def test_training_learns():
    before, after = train(steps=0), train(steps=40)
    assert mean_nll(after, 64) < mean_nll(before, 64)
    assert mean_nll(after, 64) < math.log(32)
