"""Adapted models against dense weights; what is trained, what is left alone, what merging costs."""

import copy
import math
import re

import pytest
import torch
from torch import nn

from harness.meters.dispatch import alive_bytes, flop_meter

SEVEN = r".*_proj"
IA3 = r".*\.(k|v|down)_proj"


def conv1d(kata):
    return lambda inputs, outputs, _device: kata.Conv1D(inputs, outputs)


def kinds(kata, oracle):
    """Ways to adapt: what is built, which adapters, where, and whether a name is used again."""
    lora = kata.LoraCfg(r=3, alpha=5.0)
    stable = kata.LoraCfg(r=4, alpha=2.0, rslora=True)
    ia3 = kata.Ia3Cfg()
    return {
        "lora": ({}, [(lora, oracle.LORA_TARGETS)]),
        "rslora": ({"linear": oracle.without_bias}, [(stable, SEVEN)]),
        "ia3": ({}, [(ia3, IA3)]),
        "ia3-no-bias": ({"linear": oracle.without_bias}, [(ia3, IA3)]),
        "two-loras": ({}, [(lora, oracle.LORA_TARGETS), (stable, r"layers\.1\..*v_proj")]),
        "two-ia3": ({}, [(ia3, IA3), (ia3, r".*\.down_proj|.*\.v_proj")]),
        "lora-conv1d": ({"linear": conv1d(kata)}, [(lora, SEVEN)]),
        "ia3-conv1d": ({"linear": conv1d(kata)}, [(ia3, IA3)]),
    }


KINDS = (
    "lora", "rslora", "ia3", "ia3-no-bias", "two-loras", "two-ia3", "lora-conv1d", "ia3-conv1d",
)  # fmt: skip


def adapted(kata, oracle, kind, seed, device, dtype=torch.float64):
    """A model as it was, the same with trained adapters, and their configurations by name."""
    how, adapters = kinds(kata, oracle)[kind]
    base = oracle.model(seed, device, **how).to(dtype)
    model, cfgs = copy.deepcopy(base), {}
    for name, (cfg, targets) in zip(("first", "second"), adapters, strict=False):
        model = kata.inject(model, cfg, targets, name)
        cfgs[name] = cfg
    oracle.fill(kata.adapter_state_dict(model), seed)
    return base, model, cfgs


def assert_close(found, exact, name="result"):
    """Hold against the truth what was computed in float64, where sums have digits to spare."""
    assert found.shape == exact.shape, f"{name}: expected {exact.shape}, found {found.shape}"
    off, size = (found - exact).abs().max().item(), exact.abs().max().item()
    assert off <= 1e-9 * size, f"{name}: off by {off:.3g}, where the largest is {size:.3g}"


def assert_dense(oracle, found, base, state, cfgs, ids):
    assert_close(found, oracle.dense(base, state, cfgs, torch.float64)(ids))


# ---- adapted -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_adapters_do_what_dense_weights_would(kata, oracle, device, seed, kind):
    base, model, cfgs = adapted(kata, oracle, kind, seed, device)
    ids = oracle.ids(seed, device)
    state = kata.adapter_state_dict(model)
    assert_dense(oracle, model(ids), base, state, cfgs, ids)


@pytest.mark.parametrize("kind", KINDS)
def test_new_adapters_change_nothing(kata, oracle, device, seed, kind):
    how, adapters = kinds(kata, oracle)[kind]
    model, ids = oracle.model(seed, device, **how), oracle.ids(seed, device)
    before = model(ids)
    for name, (cfg, targets) in zip(("first", "second"), adapters, strict=False):
        assert kata.inject(model, cfg, targets, name) is model
    assert torch.equal(model(ids), before)


def test_names_and_shapes_are_the_ones_promised(kata, oracle, device, seed):
    _, model, _ = adapted(kata, oracle, "two-ia3", seed, device)
    ia3 = {name: tuple(one.shape) for name, one in kata.adapter_state_dict(model).items()}
    want = {}
    for at in range(2):
        want |= {f"layers.{at}.self_attn.{one}_proj.ia3.first": (8,) for one in "kv"}
        want[f"layers.{at}.self_attn.v_proj.ia3.second"] = (8,)
        want |= {f"layers.{at}.mlp.down_proj.ia3.{one}": (24,) for one in ("first", "second")}
    assert ia3 == want
    model = kata.inject(oracle.model(seed, device), kata.LoraCfg(r=3), r"layers\.0\..*(q|k)_proj")
    lora = {name: tuple(one.shape) for name, one in kata.adapter_state_dict(model).items()}
    assert lora == {
        "layers.0.self_attn.q_proj.lora_A.default": (3, 16),
        "layers.0.self_attn.q_proj.lora_B.default": (16, 3),
        "layers.0.self_attn.k_proj.lora_A.default": (3, 16),
        "layers.0.self_attn.k_proj.lora_B.default": (8, 3),
    }
    # a part of the path is no match: factors of the outputs
    ia3 = kata.Ia3Cfg(feedforward="down_proj")
    model = kata.inject(oracle.model(seed, device), ia3, r"layers\.0\.mlp\.down_proj")
    found = {name: tuple(one.shape) for name, one in kata.adapter_state_dict(model).items()}
    assert found == {"layers.0.mlp.down_proj.ia3.default": (16,)}


@pytest.mark.parametrize("linear", [nn.Linear, "Conv1D"], ids=["linear", "conv1d"])
def test_adapters_begin_as_in_peft(kata, device, linear):
    build = kata.Conv1D if linear == "Conv1D" else linear
    model = nn.Sequential(build(400, 100)).to(device=device, dtype=torch.bfloat16)
    state = kata.adapter_state_dict(kata.inject(model, kata.LoraCfg(r=50), "0"))
    a, b = state["0.lora_A.default"], state["0.lora_B.default"]
    assert a.dtype == b.dtype == torch.bfloat16
    assert a.device.type == b.device.type == device
    assert not b.any()
    # uniform up to 1 / sqrt(400): 20,000 of them
    assert 0.049 < a.abs().max().item() <= 0.0501
    assert a.float().std().item() == pytest.approx(0.05 / 3**0.5, rel=0.05)
    model = kata.inject(nn.Sequential(build(9, 9), build(9, 9)), kata.LoraCfg(r=9), ".")
    first, _, second, _ = kata.adapter_state_dict(model).values()
    assert not torch.equal(first, second), "two layers begin with the same A"


@pytest.mark.parametrize(
    ("targets", "count"),
    [
        (r"layers\.1\.mlp\.up_proj", 1),
        (r".*\.(q|v)_proj", 4),
        (r"head|.*up_proj|.*k", 3),
        (r".*", 15),
    ],
    ids=["one", "two-a-layer", "head", "all"],
)
def test_whole_names_match(kata, oracle, device, seed, targets, count):
    model = kata.inject(oracle.model(seed, device), kata.LoraCfg(r=1), targets)
    found = {name.rsplit(".", 2)[0] for name in kata.adapter_state_dict(model)}
    assert len(found) == count
    assert all(re.fullmatch(targets, name) for name in found)


def test_a_second_adapter_finds_the_same_layers(kata, oracle, device, seed):
    model = oracle.model(seed, device)
    for name in ("first", "second"):
        kata.inject(model, kata.LoraCfg(r=1), r".*", name)
    assert len(kata.adapter_state_dict(model)) == 2 * 2 * 15


@pytest.mark.parametrize("kind", ["two-loras", "two-ia3"])
def test_only_adapters_are_trained(kata, oracle, device, seed, kind):
    base, model, cfgs = adapted(kata, oracle, kind, seed, device)
    ids = oracle.ids(seed, device)
    model(ids).square().sum().backward()
    state = kata.adapter_state_dict(model)
    trained = [param for param in model.parameters() if param.requires_grad]
    ours = {one.data_ptr(): name for name, one in state.items()}
    strangers = [
        name
        for name, one in model.named_parameters()
        if one.requires_grad and one.data_ptr() not in ours
    ]
    assert strangers == [], "these are trained, and are not the memory of adapter_state_dict"
    assert {ours[one.data_ptr()] for one in trained} == set(state), "adapters that are trained"
    assert [ours[one.data_ptr()] for one in trained if one.grad is None] == [], "no gradient"
    assert all(param.grad is None for param in model.parameters() if not param.requires_grad)
    grads = {param.data_ptr(): param.grad for param in trained}

    def of_dense():
        leaves = {name: one.clone().requires_grad_() for name, one in state.items()}
        dense = copy.deepcopy(base).requires_grad_(False)
        weights = dict(dense.named_parameters())
        for name, one in leaves.items():
            path, what, by = name.rsplit(".", 2)
            key = f"{path}.weight"
            if what == "lora_A":
                scale = cfgs[by].alpha / (cfgs[by].r ** (0.5 if cfgs[by].rslora else 1))
                weights[key] = weights[key] + scale * leaves[f"{path}.lora_B.{by}"] @ one
            elif what == "ia3" and path.endswith("down_proj"):
                weights[key] = weights[key] * one
            elif what == "ia3":
                weights[key] = weights[key] * one[:, None]
                weights[f"{path}.bias"] = weights[f"{path}.bias"] * one
        torch.func.functional_call(dense, weights, (ids,)).square().sum().backward()
        return {name: one.grad for name, one in leaves.items()}

    exact = of_dense()
    for name, one in state.items():
        assert_close(grads[one.data_ptr()], exact[name], name)


# ---- dropout and modes ---------------------------------------------------------------------


def test_dropout_is_for_the_adapter_in_training(kata, oracle, device, seed):
    base = oracle.model(seed, device).double().eval()
    model, ids = copy.deepcopy(base), oracle.ids(seed, device)
    cfg = kata.LoraCfg(r=3, dropout=0.9)
    kata.inject(model, cfg, SEVEN)
    state = kata.adapter_state_dict(model)
    model.train()
    # with B = 0 a dropped input shows only where it was the layer's own
    assert torch.equal(model(ids), base(ids))
    oracle.fill(state, seed)
    assert not torch.equal(model(ids), model(ids))
    model.eval()
    assert_dense(oracle, model(ids), base, state, {"default": cfg}, ids)


def test_a_layer_in_eval_mode_stays_there(kata, oracle, device, seed):
    base = oracle.model(seed, device).double().eval()
    model, ids, cfg = copy.deepcopy(base), oracle.ids(seed, device), kata.LoraCfg(dropout=0.5)
    kata.inject(model, cfg, SEVEN)
    state = kata.adapter_state_dict(model)
    oracle.fill(state, seed)
    assert_dense(oracle, model(ids), base, state, {"default": cfg}, ids)


def test_dropped_inputs_are_scaled_up(kata, device):
    layer = nn.Linear(1, 1, bias=False, device=device)
    model = nn.Sequential(layer)
    kata.inject(model, kata.LoraCfg(r=1, alpha=1.0, dropout=0.75), "0")
    with torch.no_grad():
        layer.weight.fill_(0.0)
        for one in kata.adapter_state_dict(model).values():
            one.fill_(1.0)
    ones = torch.ones(200, 1, device=device)
    assert set(model(ones).flatten().tolist()) == {0.0, 4.0}
    # the next adapter drops nothing, and gets what the layer gets
    kata.inject(model, kata.LoraCfg(r=1, alpha=1.0), "0", "next")
    with torch.no_grad():
        for one in kata.adapter_state_dict(model).values():
            one.fill_(1.0)
    assert set(model(ones).flatten().tolist()) == {1.0, 5.0}


# ---- merged --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_merged_weights_do_the_same(kata, oracle, device, seed, kind):
    base, model, cfgs = adapted(kata, oracle, kind, seed, device)
    ids = oracle.ids(seed, device)
    state = {name: one.clone() for name, one in kata.adapter_state_dict(model).items()}
    kata.merge(model)
    assert_dense(oracle, model(ids), base, state, cfgs, ids)
    kept = kata.adapter_state_dict(model)
    assert kept.keys() == state.keys()
    assert all(torch.equal(kept[name], one) for name, one in state.items())
    kata.unmerge(model)
    assert_dense(oracle, model(ids), base, state, cfgs, ids)
    merged = kata.merge_and_unload(model)
    assert merged is model
    assert_dense(oracle, model(ids), base, state, cfgs, ids)
    assert kata.adapter_state_dict(model) == {}


@pytest.mark.parametrize("kind", KINDS)
def test_an_unloaded_model_is_made_like_the_original(kata, oracle, device, seed, kind):
    base, model, _ = adapted(kata, oracle, kind, seed, device)
    kata.merge(model)
    ids = oracle.ids(seed, device)
    before = model(ids)
    kata.merge_and_unload(model)
    assert torch.equal(model(ids), before), "merged once more"
    want = [(name, type(one)) for name, one in base.named_modules()]
    assert [(name, type(one)) for name, one in model.named_modules()] == want
    shapes = {name: one.shape for name, one in base.state_dict().items()}
    assert {name: one.shape for name, one in model.state_dict().items()} == shapes


def test_layers_and_weights_are_the_same_objects(kata, oracle, device, seed):
    model = oracle.model(seed, device, tied=True)
    modules, params = dict(model.named_modules()), dict(model.named_parameters())
    memory = {name: one.data_ptr() for name, one in params.items()}
    kata.inject(model, kata.LoraCfg(), r".*")
    kata.merge_and_unload(model)
    assert [name for name, one in model.named_modules() if one is not modules[name]] == []
    assert [name for name, one in model.named_parameters() if one is not params[name]] == []
    assert [name for name, one in params.items() if one.data_ptr() != memory[name]] == []


def projections(model):
    """Weights and biases of what may be adapted, by name: they stay the same objects."""
    return {name: one for name, one in model.named_parameters() if "_proj" in name}


def assert_rounded_once(name, found, exact):
    """Half a unit in the last of the 8 bits of a bfloat16, and the dust of sums in float32."""
    half = torch.ldexp(torch.ones_like(exact), torch.frexp(exact).exponent - 9)
    off = ((found.double() - exact).abs() - 1e-6) / half
    most = off.max().item()
    assert most <= 1, f"{name}: off by {most:.3g} times half a unit in the last place, expected 1"


@pytest.mark.parametrize("kind", KINDS)
def test_narrow_weights_are_rounded_once(kata, oracle, device, seed, kind):
    how, adapters = kinds(kata, oracle)[kind]
    base = oracle.model(seed, device, **how).to(torch.bfloat16)
    model, cfgs = copy.deepcopy(base), {}
    stored = projections(model)
    for name, (cfg, targets) in zip(("first", "second"), adapters, strict=False):
        kata.inject(model, cfg, targets, name)
        cfgs[name] = cfg
    state = kata.adapter_state_dict(model)
    oracle.fill(state, seed)
    kata.merge(model)
    merged = projections(oracle.dense(base, state, cfgs, torch.float64))
    for name, one in stored.items():
        assert one.dtype == torch.bfloat16
        assert_rounded_once(f"{name}, merged", one, merged[name])
    with torch.no_grad():
        for name, one in projections(base).items():
            one.copy_(stored[name])
    kata.unmerge(model)
    back = projections(oracle.dense(base, state, cfgs, torch.float64, back=True))
    for name, one in stored.items():
        assert_rounded_once(f"{name}, unmerged", one, back[name])


def test_merging_keeps_no_copy(kata, oracle, device, seed):
    for cfg in (kata.LoraCfg(r=1), kata.Ia3Cfg()):
        model = oracle.model(seed, device, d=64, ffn=64, kv=64)
        kata.inject(model, cfg, SEVEN)
        before = alive_bytes()
        kata.merge(model)
        kept = alive_bytes() - before
        assert kept <= 0, f"expected nothing to be kept by merge, found {kept} bytes of {cfg}"


# ---- what it costs -------------------------------------------------------------------------


def test_an_adapter_costs_two_thin_products(kata, oracle, device, cost):
    model, ids = oracle.model(0, device), oracle.ids(0, device)
    kata.inject(model, kata.LoraCfg(r=3), SEVEN)
    with flop_meter() as counted:
        model(ids)
    cost.check("flops", counted.flops)


def test_merged_models_cost_what_the_original_did(kata, oracle, device, dispatch, cost):
    more = 0
    for kind in KINDS:
        base, model, _ = adapted(kata, oracle, kind, 0, device)
        ids = oracle.ids(0, device)
        for make in (kata.merge, kata.merge_and_unload):
            make(model)
            with dispatch() as plain:
                base(ids)
            with dispatch() as merged:
                model(ids)
            more += sum((merged.calls - plain.calls).values())
    cost.check("operations_more", more)


# ---- counts --------------------------------------------------------------------------------


def test_llama3_8b_has_as_many_adapters_as_published(kata, oracle):
    sizes = {"layers": 32, "d": 4096, "kv": 1024, "ffn": 14336, "vocab": 128256}
    for cfg, targets, count in (
        (kata.LoraCfg(r=8), oracle.LORA_TARGETS, 3_407_872),
        (kata.Ia3Cfg(), IA3, 524_288),
    ):
        model = oracle.Llama(**sizes, linear=oracle.without_bias, device="meta")
        base = sum(one.numel() for one in model.parameters())
        kata.inject(model, cfg, targets)
        assert kata.trainable_report(model) == (count, base + count)


def test_tied_weights_are_counted_once(kata, oracle, device, seed):
    model = oracle.model(seed, device, tied=True)
    n = sum(one.numel() for one in model.parameters())
    assert kata.trainable_report(model) == (n, n)
    kata.inject(model, kata.Ia3Cfg(feedforward="none"), r".*\.mlp\.down_proj")
    assert kata.trainable_report(model) == (32, n + 32)
    kata.merge_and_unload(model)
    assert kata.trainable_report(model) == (0, n)


# ---- bad input -----------------------------------------------------------------------------


def test_impossible_adapters_are_refused(kata, oracle, device, seed):
    model = oracle.model(seed, device)
    lora = kata.LoraCfg
    for cfg, targets, named in (
        (lora(r=0, dropout=1.0), "none", "r"),
        (lora(r=-1), SEVEN, "r"),
        (lora(dropout=1.0), "none", "dropout"),
        (lora(dropout=-0.1), SEVEN, "dropout"),
        (lora(dropout=math.nan), SEVEN, "dropout"),
        (lora(), "q_proj", "targets"),  # a part of a name
        (lora(), r"layers\.0|embed|.*norm.", "targets"),  # no linear layers
        (lora(), "", "targets"),
    ):
        with pytest.raises(ValueError, match=f"^{named}: "):
            kata.inject(model, cfg, targets)
    assert all(one.requires_grad for one in model.parameters()), "the model was changed"
    assert kata.adapter_state_dict(model) == {}


def test_a_name_or_a_kind_that_is_taken_is_refused(kata, oracle, device, seed):
    model = oracle.model(seed, device)
    kata.inject(model, kata.LoraCfg(), r"layers\.1\..*v_proj")
    before = kata.adapter_state_dict(model)
    with pytest.raises(ValueError, match="^name: "):
        kata.inject(model, kata.LoraCfg(), r".*v_proj")
    with pytest.raises(ValueError, match="^name: "):
        kata.inject(model, kata.Ia3Cfg(), r".*v_proj")
    with pytest.raises(ValueError, match="^adapter: "):
        kata.inject(model, kata.Ia3Cfg(), r".*v_proj", "other")
    assert kata.adapter_state_dict(model).keys() == before.keys()
    kata.inject(model, kata.Ia3Cfg(), r".*k_proj")  # elsewhere


def test_merging_twice_is_refused(kata, oracle, device, seed):
    model = nn.Sequential(nn.Linear(2, 2)).to(device)  # one layer is enough for all that follows
    for call in (kata.merge, kata.unmerge, kata.merge_and_unload):
        with pytest.raises(ValueError, match="^model: "):
            call(model)
    kata.inject(model, kata.LoraCfg(), "0")
    with pytest.raises(ValueError, match="^model: "):
        kata.unmerge(model)
    kata.merge(model)
    with pytest.raises(ValueError, match="^model: "):
        kata.merge(model)
    with pytest.raises(ValueError, match="^model: "):
        kata.inject(model, kata.LoraCfg(), "none", "other")
    kata.merge_and_unload(model)
    with pytest.raises(ValueError, match="^model: "):
        kata.merge_and_unload(model)
    kata.inject(model, kata.LoraCfg(), "0")  # a model like any other
