"""Slots, masks, positions, labels and gradients, against one token after another."""

import random

import pytest
import torch

FIELDS = ("emb", "mask", "position_ids", "labels", "image_mask")


def assert_merged(kata, oracle, ids, text, feats, labels=None, padding="right"):
    found = kata.image_token_merge(
        ids, text, feats, oracle.IMAGE, oracle.PAD, labels=labels, padding=padding
    )
    expected = oracle.merged(ids, text, feats, labels, padding)
    for name in FIELDS:
        ours, right = getattr(found, name), expected[name]
        if right is None:
            assert ours is None, f"{name}: found {ours}, expected None"
            continue
        told = f"{name}, padding {padding}, ids {ids.tolist()}, features {[len(f) for f in feats]}"
        assert ours.shape == right.shape, (
            f"{told}: {list(ours.shape)}, expected {list(right.shape)}"
        )
        assert ours.dtype == right.dtype, f"{told}: {ours.dtype}, expected {right.dtype}"
        if not torch.equal(bits(ours), bits(right)):
            differ = (bits(ours) != bits(right)).view(*right.shape[:2], -1).any(dim=-1)
            row, slot = differ.nonzero()[0].tolist()
            here, there = ours[row, slot].tolist(), right[row, slot].tolist()
            pytest.fail(f"{told}: row {row}, slot {slot}: found {here}, expected {there}")
    return found


def bits(x):
    return x.detach().contiguous().view(torch.uint8)  # -0 is not 0, and a NaN is itself


@pytest.mark.parametrize("padding", ["right", "left"])
@pytest.mark.parametrize(
    ("rows", "sizes"),
    [
        (["ttIt"], [3]),
        (["Itt"], [4]),
        (["ttI"], [4]),
        (["tIIt"], [2, 5]),
        (["I"], [1]),
        (["ttt", "tIt", "III"], [2, 1, 3, 2]),
        (["tt.....", "tItIttI", "tttt..."], [3, 1, 4]),
        (["..tt", "tItt", "..It"], [1, 6]),
        (["t.It.", "t.t.t"], [2]),
        (["tIt", "ItI"], [0, 0, 2]),
        (["ttt", "t.."], []),
        (["II", "tt"], [0, 0]),
        (["...", "..."], []),
        (["...", "tI."], [2]),
    ],
    ids=[
        "between",
        "first",
        "last",
        "adjacent",
        "nothing else",
        "0 1 3 images",
        "padded right",
        "padded left",
        "padding inside",
        "images without features",
        "text only",
        "an empty row",
        "all padding",
        "a row of padding",
    ],
)
def test_each_token_finds_its_slots(kata, oracle, device, seed, rows, sizes, padding):
    ids, text, feats = oracle.batch(rows, sizes, seed, device=device)
    labels = torch.arange(ids.numel(), device=device).view(ids.shape)
    assert_merged(kata, oracle, ids, text, feats, labels, padding)


def test_positions_begin_at_the_first_token(kata, oracle, device, seed):
    ids, text, feats = oracle.batch(["tIt", "t.."], [3], seed, device=device)
    found = assert_merged(kata, oracle, ids, text, feats, padding="left")
    assert found.position_ids.tolist() == [[0, 1, 2, 3, 4], [0, 0, 0, 0, 0]]
    assert found.mask.tolist() == [[True] * 5, [False] * 4 + [True]]
    ids, text, feats = oracle.batch(["tIt", "tt."], [3], seed, device=device)
    found = assert_merged(kata, oracle, ids, text, feats, padding="left")
    assert found.position_ids.tolist()[1] == [0, 0, 0, 0, 1]


def test_any_batch_is_merged(kata, oracle, device, seed):
    dice = random.Random(seed)
    for _ in range(12):
        width = dice.randint(1, 9)
        rows = ["".join(dice.choices("ttI.", k=width)) for _ in range(dice.randint(1, 5))]
        sizes = [dice.randint(0, 4) for _ in range("".join(rows).count("I"))]
        ids, text, feats = oracle.batch(rows, sizes, dice.randrange(2**31), device=device)
        assert_merged(kata, oracle, ids, text, feats, padding=dice.choice(["right", "left"]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64], ids=["float16", "float64"])
def test_bits_stay(kata, oracle, device, seed, dtype):
    ids, text, feats = oracle.batch(["tIt", "tt."], [2], seed, dtype=dtype, device=device)
    subnormal = torch.finfo(dtype).smallest_normal / 2
    special = [-0.0, torch.inf, -torch.inf, torch.nan, subnormal, -subnormal]
    text[0, 0] = feats[0][1] = torch.tensor(special, dtype=dtype, device=device)
    assert_merged(kata, oracle, ids, text, feats)


def test_nothing_depends_on_which_ids_are_special(kata, oracle, device, seed):
    ids, text, feats = oracle.batch(["tIt", ".It"], [2, 3], seed, device=device)
    other = torch.where(ids == oracle.IMAGE, -200, torch.where(ids == oracle.PAD, 2, ids + 2))
    found = kata.image_token_merge(other, text, feats, -200, 2)
    assert torch.equal(found.emb, oracle.merged(ids, text, feats)["emb"])
    # 0 is a token like any other here
    found = kata.image_token_merge(
        torch.tensor([[0, 7]], device=device), text[:1, :2] * 0, [], 5, 6
    )
    assert found.mask.tolist() == [[True, True]]


def test_inputs_may_be_strided_and_stay_as_they_are(kata, oracle, device, seed):
    ids, text, feats = oracle.batch(["tIt.", "ttII"], [2, 3, 1], seed, device=device)
    labels = torch.arange(8, device=device).view(2, 4)
    strided = (
        ids.t().contiguous().t(),
        text.transpose(0, 2).contiguous().transpose(0, 2),
        [f.t().contiguous().t() for f in feats],
        labels.t().contiguous().t(),
    )
    before = [strided[0].clone(), strided[1].clone(), *(f.clone() for f in feats), labels.clone()]
    assert_merged(kata, oracle, *strided)
    after = [strided[0], strided[1], *strided[2], strided[3]]
    for old, new in zip(before, after, strict=True):
        assert torch.equal(old.nan_to_num(9), new.nan_to_num(9)), f"found {new}, expected {old}"


def test_gradients_reach_text_and_features(kata, oracle, device, seed):
    ids, text, feats = oracle.batch(["tIt.", "tIIt"], [2, 3, 1], seed, device=device)
    text.requires_grad_()
    feats = [f.requires_grad_() for f in feats]
    emb = kata.image_token_merge(ids, text, feats, oracle.IMAGE, oracle.PAD).emb
    weights = torch.arange(emb.numel(), device=device, dtype=emb.dtype).view(emb.shape)
    (emb * weights).sum().backward()
    expected = torch.autograd.grad(
        (oracle.merged(ids, text, feats)["emb"] * weights).sum(), [text, *feats]
    )
    for name, ours, right in zip(["text", "0", "1", "2"], [text, *feats], expected, strict=True):
        assert torch.equal(ours.grad, right), f"{name}: found {ours.grad}, expected {right}"


def test_operators_do_not_grow_with_the_batch(kata, oracle, cost, dispatch, seed):
    for rows in (["tIt"], ["tIItIttI", "tIt.....", "tttttttt", "IIIIII.."] * 16):
        sizes = [at % 5 for at in range("".join(rows).count("I"))]
        ids, text, feats = oracle.batch(rows, sizes, seed)
        labels = ids.clone()
        with dispatch() as ops:
            kata.image_token_merge(ids, text, feats, oracle.IMAGE, oracle.PAD, labels, "left")
    cost.check("operators", sum(ops.calls.values()))


def test_features_are_moved_and_not_multiplied_out(kata, oracle, cost, dispatch, seed):
    rows = ["t" * 20 + "I" + "t" * 28 + "I" + "t" * 2] * 16
    ids, text, feats = oracle.batch(rows, [575] * 32, seed, d=128)
    with dispatch() as ops:
        emb = kata.image_token_merge(ids, text, feats, oracle.IMAGE, oracle.PAD).emb
    assert list(emb.shape) == [16, 1200, 128]  # 9.8 MB
    cost.check("allocated_bytes", ops.allocated_bytes)


def test_projector_is_two_layers_with_exact_gelu(kata, seed):
    draw = torch.Generator().manual_seed(seed)
    x, w1, b1, w2, b2 = (
        torch.randn(*shape, generator=draw, dtype=torch.float64)
        for shape in [(5, 3), (7, 3), (7,), (4, 7), (4,)]
    )
    hidden = x @ w1.T + b1
    expected = (hidden * 0.5 * (1 + torch.erf(hidden / 2**0.5))) @ w2.T + b2
    found = kata.project(x, w1, b1, w2, b2)
    assert (found - expected).abs().max() < 1e-12, f"found {found}, expected {expected}"
    assert kata.project(x[:0], w1, b1, w2, b2).shape == (0, 4)


# ---- bad input -----------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [[2], [2, 2, 0], []], ids=["too few", "too many", "none"])
def test_as_many_images_as_placeholders(kata, oracle, seed, sizes):
    ids, text, feats = oracle.batch(["tIt", "It."], sizes, seed)
    with pytest.raises(ValueError, match=rf"^image_feats: .*\b2\b.*\b{len(sizes)}\b"):
        kata.image_token_merge(ids, text, feats, oracle.IMAGE, oracle.PAD)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"pad_id": 32_000}, "^pad_id: "),
        ({"padding": "top"}, "^padding: "),
        ({"labels": torch.zeros(2, 4, dtype=torch.int64)}, "^labels: "),
        ({"text_emb": torch.zeros(2, 4, 6)}, "^text_emb: "),
        ({"image_feats": [torch.zeros(2, 6), torch.zeros(2, 5)]}, "^image_feats: "),
        ({"image_feats": [torch.zeros(2, 6).half()] * 2}, "^image_feats: "),
    ],
    ids=["one id for both", "side", "labels", "embeddings", "width", "dtype"],
)
def test_what_does_not_fit_is_refused(kata, oracle, seed, changes, named):
    ids, text, feats = oracle.batch(["tIt", "It."], [2, 2], seed)
    given = {"text_emb": text, "image_feats": feats, "pad_id": oracle.PAD, **changes}
    with pytest.raises(ValueError, match=named):
        kata.image_token_merge(ids, image_id=oracle.IMAGE, **given)
