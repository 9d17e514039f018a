"""Every token scored once, codes and bytes as they should be, and what it does to a model."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from harness.simulators.tinylm import token_nll

FORMATS = ("fp16", "int8", "int4-g32", "int4")


# ---- perplexity ----------------------------------------------------------------------------


def stream(seed, length, vocab=11):
    return torch.randint(vocab, (length,), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("length", "window", "stride"),
    [
        (2, 2, 1),  # a single target
        (9, 8, 8),  # the one window has as many targets as there are
        (9, 9, 4),
        (9, 30, 4),  # a window wider than the text
        (10, 8, 8),  # a last window of one target
        (17, 8, 8),  # windows that fit exactly
        (14, 8, 3),  # and ones that overlap and fit: 8 + 3 + 2
        (15, 8, 3),
        (12, 4, 1),
        (21, 8, 5),
    ],
)
def test_every_token_is_scored_once(kata, oracle, seed, length, window, stride):
    tokens, model = stream(seed, length), oracle.Counting(11, seed)
    want = oracle.perplexity(oracle.Counting(11, seed), tokens, window, stride)
    assert kata.perplexity(model, tokens, window, stride) == pytest.approx(want, rel=1e-4)
    assert model.widest <= window, "more tokens than a window were seen at once"


@given(
    length=st.integers(2, 40), window=st.integers(2, 20), data=st.data(), seed=st.integers(0, 999)
)
def test_any_window_and_stride(kata, oracle, length, window, data, seed):
    stride = data.draw(st.integers(1, window))
    tokens, model = stream(seed, length), oracle.Counting(11, seed)
    want = oracle.perplexity(oracle.Counting(11, seed), tokens, window, stride)
    assert kata.perplexity(model, tokens, window, stride) == pytest.approx(want, rel=1e-4)


def test_a_uniform_guess_has_the_perplexity_of_its_vocabulary(kata):
    def uniform(tokens):
        return torch.zeros(len(tokens), 50)

    assert kata.perplexity(uniform, stream(0, 40), 16, 4) == pytest.approx(50.0, rel=1e-6)


def test_half_precision_logits_lose_nothing_more(kata):
    # ln 37 is 4e-4 away from the nearest number of float16
    def uniform(tokens):
        return torch.zeros(len(tokens), 37, dtype=torch.float16)

    assert kata.perplexity(uniform, stream(0, 40), 16, 4) == pytest.approx(37.0, rel=1e-5)


def test_windows_are_added_up_in_double(kata):
    # one NLL of 2^22, and 655 windows of 0.2 behind it, each less than float32 can add to that
    small, length = 0.2 / 64, 41_985

    def logits(tokens):
        rows = torch.zeros(len(tokens), 2)
        rows[:, 1] = math.log(math.expm1(small))
        rows[tokens == 1] = torch.tensor([-(2.0**22), 0.0])
        return rows

    tokens = torch.zeros(length, dtype=torch.int64)
    tokens[0] = 1
    want = math.exp((2**22 + small * (length - 2)) / (length - 1))
    assert kata.perplexity(logits, tokens, 64, 64) == pytest.approx(want, rel=1e-4)


def test_no_token_is_pushed_in_vain(kata, oracle, cost, seed):
    tokens, model = stream(seed, 1000), oracle.Counting(11, seed)
    kata.perplexity(model, tokens, 64, 24)
    cost.check("tokens_pushed", model.tokens)


# ---- packed weights ------------------------------------------------------------------------


def test_the_earlier_code_is_the_low_half(kata, device):
    codes = torch.tensor([[1, 2, 3, 4], [15, 0, 0, 15]], dtype=torch.uint8, device=device)
    packed = kata.pack_nibbles(codes)
    assert packed.tolist() == [[0x21, 0x43], [0x0F, 0xF0]]
    assert packed.dtype == torch.uint8


def test_an_odd_row_ends_in_zero(kata, device):
    codes = torch.tensor([[1, 2, 3], [4, 5, 6]], dtype=torch.uint8, device=device)
    assert kata.pack_nibbles(codes).tolist() == [[0x21, 0x03], [0x54, 0x06]]


@given(rows=st.integers(0, 4), cols=st.integers(1, 9), seed=st.integers(0, 999))
def test_unpacking_gives_back_what_was_packed(kata, device, rows, cols, seed):
    codes = torch.randint(16, (rows, cols), generator=torch.Generator().manual_seed(seed))
    codes = codes.to(device, torch.uint8)
    assert kata.unpack_nibbles(kata.pack_nibbles(codes), cols).tolist() == codes.tolist()


def layer(weight):
    """A model of one linear layer."""
    linear = nn.Linear(*reversed(weight.shape), bias=False)
    linear.weight.data = weight.clone()
    return nn.Sequential(linear)


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("shape", [(3, 64), (2, 33), (5, 40), (1, 1), (4, 31)], ids=str)
def test_what_a_layer_holds_is_the_format_and_no_more(kata, oracle, seed, fmt, shape):
    model = layer(torch.randn(shape, generator=torch.Generator().manual_seed(seed)))
    kata.quantize_(model, fmt)
    assert kata.weight_bytes(model) == oracle.bytes_of(*shape, fmt)
    out = model(torch.ones(2, shape[1]))  # of which nothing stays behind
    assert not out.requires_grad
    assert oracle.held_bytes(model) == oracle.bytes_of(*shape, fmt)


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("shape", [(3, 64), (2, 33), (5, 40), (1, 1)], ids=str)
def test_a_layer_computes_with_the_rounded_weight(kata, oracle, seed, fmt, shape):
    # an identity in, the weight out
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    weight[-1, -1] = 9.0  # the largest, in a group that may be short
    model = layer(weight)
    kata.quantize_(model, fmt)
    found, want = model(torch.eye(shape[1])).T, oracle.rounded(weight, fmt)
    off = int(((found - want).abs() > 1e-5 * want.abs()).sum())
    assert off <= shape[0] * shape[1] // 60, f"{off} weights differ from the rounded ones"


@pytest.mark.parametrize("fmt", FORMATS)
def test_rows_of_zeros_stay_zeros(kata, fmt):
    weight = torch.zeros(3, 40)
    weight[0, 0], weight[2, 39] = 889.0, -889.0  # 7 · 127
    model = layer(weight)
    kata.quantize_(model, fmt)
    assert model(torch.eye(40)).T.tolist() == weight.tolist()


@pytest.mark.parametrize(("fmt", "qmax"), [("int8", 127), ("int4", 7), ("int4-g32", 7)])
def test_codes_are_clamped_where_the_scale_was_rounded_down(kata, fmt, qmax):
    # a scale of 1.4 of the smallest step of float16 becomes one step, a code of 1.4 · qmax too much
    step = 2.0**-24
    weight = torch.tensor([[1.4 * qmax, -1.4 * qmax, 3.0, 0.0]]) * step
    model = layer(weight)
    kata.quantize_(model, fmt)
    found = (model(torch.eye(4)).T / step).tolist()
    assert found == [[qmax, -qmax, 3.0, 0.0]]


@pytest.mark.parametrize("fmt", FORMATS)
def test_weights_in_half_precision_are_rounded_as_in_single(kata, fmt):
    # quotients around 100 go by sixteenths in float16
    weight = torch.randn(8, 64, generator=torch.Generator().manual_seed(3)).half()
    half, single = layer(weight), layer(weight.float())
    for model in (half, single):
        kata.quantize_(model, fmt)
    found, want = (model(torch.eye(64)).T for model in (half, single))
    off = int((found != want).sum())
    assert off == 0, f"{off} of 512 weights differ from those of the same layer in float32"


def test_a_layer_answers_in_the_dtype_it_is_asked_in(kata):
    model = layer(torch.ones(2, 32))
    kata.quantize_(model, "int4-g32")
    for dtype in (torch.float32, torch.float64, torch.float16):
        out = model(torch.ones(3, 32, dtype=dtype))
        assert out.dtype == dtype
        assert (out - 32).abs().max() < 0.05


@pytest.mark.parametrize("fmt", FORMATS)
def test_a_layer_computes_in_the_dtype_it_is_asked_in(kata, seed, fmt):
    generator = torch.Generator().manual_seed(seed)
    model = layer(torch.randn(3, 40, generator=generator))
    kata.quantize_(model, fmt)
    x = torch.rand(5, 40, dtype=torch.float64, generator=generator)
    want = x @ model(torch.eye(40)).double()
    off = float((model(x) - want).abs().max())
    assert off < 1e-12, f"expected float64 accuracy, found an error of {off}"


@pytest.mark.parametrize("fmt", FORMATS)
def test_inputs_have_any_leading_dimensions_and_strides(kata, seed, fmt):
    generator = torch.Generator().manual_seed(seed)
    model = layer(torch.randn(3, 40, generator=generator))
    kata.quantize_(model, fmt)
    weight = model(torch.eye(40))
    x = torch.randn(4, 2, 40, generator=generator)
    for one in (x.transpose(0, 1), x[1, 1], x[:0], x[:, :, None]):
        out = model(one)
        assert out.shape == (*one.shape[:-1], 3)
        off = (out - one @ weight).abs().sum()
        assert float(off) < 1e-3, f"{list(one.shape)}, strides {one.stride()}: off by {off}"


@pytest.mark.parametrize("fmt", FORMATS)
def test_a_layer_in_two_places_stays_one(kata, oracle, fmt):
    # beside itself, and in another module
    model = layer(torch.ones(4, 4))
    model.append(model[0])
    model.append(nn.Sequential(model[0]))
    kata.quantize_(model, fmt)
    assert model[0] is model[1]
    assert model[0] is model[2][0]
    assert oracle.held_bytes(model) == oracle.bytes_of(4, 4, fmt)


def test_shared_memory_counts_once(kata):
    model = nn.ModuleDict({"embedding": nn.Embedding(10, 4), "head": nn.Linear(4, 10, bias=False)})
    model["head"].weight = model["embedding"].weight
    model.register_buffer("table", torch.zeros(5), persistent=False)
    model.register_buffer("end_of_the_table", model.table[2:], persistent=False)
    assert kata.weight_bytes(model) == 10 * 4 * 4 + 5 * 4
    assert kata.weight_bytes(nn.Identity()) == 0


# ---- a language model ----------------------------------------------------------------------


@pytest.mark.parametrize("fmt", FORMATS)
def test_a_model_does_what_its_rounded_weights_do(kata, oracle, seed, fmt, one_thread):
    model, packed = oracle.model_with_outliers(), oracle.model_with_outliers()
    weights = oracle.linear_weights(model)
    kata.quantize_(packed, fmt)
    tokens = oracle.tokens_of(seed, length=40, batch=4)
    want = model(tokens, weights={name: oracle.rounded(w, fmt) for name, w in weights.items()})
    # a tie or two may go the other way, of 82,000
    gap = (packed(tokens) - want).abs().mean()
    assert gap <= 0.01, "the logits are not those of the rounded weights"
    linear = sum(oracle.bytes_of(*w.shape, fmt) for w in weights.values())
    rest = 4 * (32 * 64 + 5 * 64)  # the embedding and five norms, in float32 as they were
    assert kata.weight_bytes(packed) == linear + rest


def test_fewer_bits_and_larger_groups_cost_more(kata, oracle, seed, one_thread):
    model, tokens = oracle.model_with_outliers(), oracle.tokens_of(seed, length=64)
    gaps = []
    for fmt in FORMATS:
        packed = oracle.model_with_outliers()
        kata.quantize_(packed, fmt)
        gaps.append(oracle.divergence(model, packed(tokens), tokens))
    assert gaps == sorted(gaps), f"nats a token by {', '.join(FORMATS)}: {gaps}"
    assert gaps[1] < 0.002 < 0.05 < gaps[2] < 0.75 * gaps[3]


def test_groups_of_32_hold_outliers_in(kata, oracle, cost, seed, one_thread):
    model, packed = oracle.model_with_outliers(), oracle.model_with_outliers()
    kata.quantize_(packed, "int4-g32")
    tokens = oracle.tokens_of(seed)

    def nll(any_model):
        return float(token_nll(any_model(tokens[:, :-1]), tokens[:, 1:]).mean())

    cost.check("int4_g32_perplexity", math.exp(nll(packed) - nll(model)))


# ---- latency -------------------------------------------------------------------------------


@pytest.fixture
def a100(profile):
    """An A100 of 80 GB, whatever is here."""
    return replace(
        profile, bandwidth=2.039e12, peak={**profile.peak, "float16": 312e12}, measured={}
    )


def test_decoding_with_llama3_8b_by_hand(kata, a100):
    # 6.979e9 weights in layers, 525e6 in the head, 128 KiB of cache a token
    times = [kata.decode_latency(kata.LLAMA3_8B, fmt, 1, 1024, a100) for fmt in FORMATS]
    assert [1e3 * t for t in times] == pytest.approx([7.4269, 4.0054, 2.5065, 2.2939], rel=1e-4)


def test_four_bits_are_three_times_as_fast(kata, a100):
    fp16, int4 = (kata.decode_latency(kata.LLAMA3_8B, f, 1, 1024, a100) for f in FORMATS[::2])
    assert fp16 / int4 == pytest.approx(2.963, rel=1e-3)


def test_a_long_prompt_is_bound_by_arithmetic(kata, a100):
    for fmt in FORMATS:
        seconds = kata.decode_latency(kata.LLAMA3_8B, fmt, 1, 0, a100, new_tokens=2048)
        assert seconds == pytest.approx(0.098523, rel=1e-4)
        seconds = kata.decode_latency(kata.LLAMA3_8B, fmt, 3, 0, a100, new_tokens=2048)
        assert seconds == pytest.approx(3 * 0.0985227, rel=1e-5)


def test_the_cache_grows_with_batch_and_context(kata, a100):
    def seconds(batch, ctx):
        return kata.decode_latency(kata.LLAMA3_8B, "int4", batch, ctx, a100)

    token = 131_072 / 2.039e12
    assert seconds(1, 0) == pytest.approx(2.2939e-3 - 1024 * token, rel=1e-4)
    assert seconds(16, 4096) - seconds(1, 0) == pytest.approx(16 * 4096 * token, rel=1e-6)


def test_latency_follows_the_profile(kata, a100):
    faster = replace(a100, bandwidth=4.8e12)
    seconds = kata.decode_latency(kata.LLAMA3_8B, "int8", 2, 100, faster)
    assert seconds == pytest.approx(
        kata.decode_latency(kata.LLAMA3_8B, "int8", 2, 100, a100) * 2.039 / 4.8, rel=1e-9
    )


@pytest.mark.parametrize("fmt", FORMATS)
def test_predicted_bytes_are_those_held(kata, oracle, a100, fmt):
    # sizes that no group and no byte divides
    cfg = kata.ModelConfig(
        layers=3, d_model=33, heads=5, kv_heads=1, head_dim=7, hidden=51, vocab=100
    )
    shapes = [(35, 33), (7, 33), (7, 33), (33, 35), (51, 33), (51, 33), (33, 51)]
    held = 3 * sum(oracle.bytes_of(*shape, fmt) for shape in shapes) + 2 * 100 * 33
    slow = replace(a100, bandwidth=1.0, peak={**a100.peak, "float16": 1e30})
    assert kata.decode_latency(cfg, fmt, 1, 0, slow) == held


# ---- bad input -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "length", "window", "stride"),
    [
        ("tokens", 1, 4, 2),
        ("tokens", 0, 4, 2),
        ("window", 9, 1, 1),
        ("window", 9, 0, 0),
        ("stride", 9, 4, 5),
        ("stride", 9, 4, 0),
        ("stride", 9, 4, -1),
    ],
)
def test_windows_that_score_nothing_are_refused(kata, oracle, name, length, window, stride):
    with pytest.raises(ValueError, match=f"^{name}: "):
        kata.perplexity(oracle.Counting(11, 0), stream(0, length), window, stride)


@pytest.mark.parametrize("fmt", ["int5", "INT8", ""])
def test_unknown_formats_are_refused(kata, a100, fmt):
    model = layer(torch.ones(2, 4))
    for one in (model, nn.Sequential()):  # whether or not there is something to replace
        with pytest.raises(ValueError, match="^fmt: "):
            kata.quantize_(one, fmt)
    assert isinstance(model[0], nn.Linear)
    with pytest.raises(ValueError, match="^fmt: "):
        kata.decode_latency(kata.LLAMA3_8B, fmt, 1, 1, a100)
