"""What is special about patches: their order, what pixels become, the class token, bytes read."""

import pytest
import torch

NAN = float("nan")


def plain(img, w, **changes):
    """Arguments under which nothing is added and nothing normalised."""
    d, _, p, _ = w.shape
    tokens = (img.shape[2] // p) * (img.shape[3] // p) + 1
    made = {
        "pos": torch.zeros(tokens, d, dtype=torch.float16),
        "cls": torch.zeros(d, dtype=torch.float16),
        "mean": torch.zeros(3),
        "std": torch.ones(3),
    }
    arguments = {"img": img, "w": w, **made, **changes}
    return {name: x.to(img.device) for name, x in arguments.items()}


def one_hot(p, device):
    """Weights that hand on the pixels of a patch, one a channel."""
    return torch.eye(3 * p * p, dtype=torch.float16, device=device).view(-1, 3, p, p)


# ---- patches -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.uint8], ids=str)
def test_patches_go_row_by_row_and_pixels_channel_by_channel(kata, device, dtype):
    img = torch.arange(144, device=device).view(2, 3, 4, 6).to(dtype)
    mean, std = torch.zeros(3), torch.full((3,), 1 / 255 if dtype == torch.uint8 else 1.0)
    out = kata.vit_patch_embed(**plain(img, one_hot(2, device), mean=mean, std=std))
    # rows of the grid, columns of it, then (c, i, j)
    want = img.view(2, 3, 2, 2, 3, 2).permute(0, 2, 4, 1, 3, 5).reshape(2, 6, 12)
    assert out[:, 1:].tolist() == want.half().tolist()


def test_class_token_is_added_to_the_first_position(kata, device):
    img = torch.full((3, 3, 4, 4), 200, dtype=torch.uint8, device=device)
    w = torch.ones(5, 3, 2, 2, dtype=torch.float16, device=device)
    cls, pos = torch.arange(5).half(), torch.arange(25).view(5, 5).half() * 8
    inputs = plain(img, w, cls=cls, pos=pos, mean=torch.tensor([0.5, 0.4, 0.3]))
    out = kata.vit_patch_embed(**inputs)
    assert out[:, 0].tolist() == [[0, 9, 18, 27, 36]] * 3


def test_class_token_knows_nothing_of_pixels_and_weights(kata, device):
    img = torch.full((2, 3, 4, 4), NAN, dtype=torch.float16, device=device)
    w = torch.full((5, 3, 2, 2), NAN, dtype=torch.float16, device=device)
    inputs = plain(img, w, mean=torch.full((3,), NAN), cls=torch.ones(5).half())
    out = kata.vit_patch_embed(**inputs)
    assert out[:, 0].tolist() == [[1.0] * 5] * 2


def test_every_image_has_the_same_positions(kata, device):
    img = torch.zeros(3, 3, 4, 4, dtype=torch.uint8, device=device)
    w = torch.ones(2, 3, 2, 2, dtype=torch.float16, device=device)
    pos = torch.arange(10).view(5, 2).half()
    out = kata.vit_patch_embed(**plain(img, w, pos=pos))
    assert out.tolist() == [pos.tolist()] * 3


def test_nan_stays_in_its_patch(kata, device):
    img = torch.ones(2, 3, 4, 6, dtype=torch.float16, device=device)
    img[1, 2, 1, 3] = NAN  # row 0, column 1 of the grid
    w = torch.ones(4, 3, 2, 2, dtype=torch.float16, device=device)
    bad = kata.vit_patch_embed(**plain(img, w)).isnan()
    want = torch.zeros_like(bad)
    want[1, 2] = True
    assert torch.equal(bad, want)


def test_what_lies_past_the_weights_adds_nothing(kata, device):
    # 12 pixels a patch: a tile of k reaches past the last channel
    room = torch.full((2 * 12 + 64,), NAN, dtype=torch.float16, device=device)
    w = room[:24].view(2, 3, 2, 2).fill_(1.0)
    img = torch.ones(1, 3, 2, 2, dtype=torch.float16, device=device)
    assert kata.vit_patch_embed(**plain(img, w)).tolist() == [[[0.0] * 2, [12.0] * 2]]


# ---- arithmetic ----------------------------------------------------------------------------


def test_channels_have_their_own_mean_and_deviation(kata, device):
    img = torch.full((1, 3, 1, 1), 255, dtype=torch.uint8, device=device)
    mean, std = torch.tensor([0.0, 0.5, 3.0]), torch.tensor([0.5, 0.25, 2.0])
    out = kata.vit_patch_embed(**plain(img, one_hot(1, device), mean=mean, std=std))
    assert out[0, 1].tolist() == [2.0, 2.0, -1.0]


# 0.4999 is 0.5 in float16, 200 / 255 is off by more than 1e-4
@pytest.mark.parametrize(
    ("dtype", "pixel", "value"),
    [(torch.float16, 0.5, 0.5), (torch.uint8, 200, 200 / 255)],
    ids=["float16", "uint8"],
)
def test_pixels_are_normalised_in_float32(kata, device, dtype, pixel, value):
    img = torch.full((1, 3, 1, 1), pixel, dtype=dtype, device=device)
    mean, std = torch.full((3,), value - 1e-4), torch.full((3,), 1e-4)
    out = kata.vit_patch_embed(**plain(img, one_hot(1, device), mean=mean, std=std))
    # a float32 near 1 is off by 6e-8, which the deviation makes 6e-4
    assert out[0, 1].tolist() == pytest.approx([1.0] * 3, abs=5e-3)


def test_products_are_summed_in_float32(kata, device):
    # 384 terms of 10^4, then 384 of -9900: far past float16 on the way, 38400 in the end
    img = torch.full((1, 3, 16, 16), 100.0, dtype=torch.float16, device=device)
    w = torch.full((4, 3, 16, 16), 100.0, dtype=torch.float16, device=device)
    w.view(4, 768)[:, 384:] = -99
    assert kata.vit_patch_embed(**plain(img, w))[0, 1].tolist() == [38400.0] * 4


def test_positions_are_added_before_rounding(kata, device):
    # 2049 is not in float16, 2049 + 1 is
    img = torch.tensor([2048.0, 1, 0], dtype=torch.float16, device=device).view(1, 3, 1, 1)
    w = torch.ones(1, 3, 1, 1, dtype=torch.float16, device=device)
    cls, one = torch.full((1,), 2048.0).half(), torch.ones(2, 1).half()
    assert kata.vit_patch_embed(**plain(img, w, cls=cls, pos=one)).tolist() == [[[2048], [2050]]]


# ---- memory --------------------------------------------------------------------------------

CLIP = {"b": 2, "h": 28, "w": 42, "p": 14, "d": 40, "dtype": torch.uint8, "device": "cpu"}


def test_each_pixel_is_read_once_for_each_column_of_tiles(kata, oracle, traffic, cost, seed):
    inputs = oracle.make_inputs(**CLIP, seed=seed)
    with traffic() as moved:
        kata.vit_patch_embed(**inputs)
    cost.check("image_bytes", moved.of(inputs["img"]).loaded_bytes)


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_nothing_is_allocated_but_the_result(kata, oracle, device, dispatch, cost, seed, layout):
    inputs = oracle.make_inputs(**CLIP | {"device": device}, layout=layout, seed=seed)
    with dispatch() as seen:
        kata.vit_patch_embed(**inputs)
    cost.check("allocated_bytes", seen.allocated_bytes)


@pytest.mark.parametrize(
    "strides",
    [(2**30 + 3, 1, 9, 3), (9, 1, 2**30 + 1, 3), (9, 1, 3, 2**30 + 1), (9, 2**30 + 5, 3, 1),
     (2**31 + 3, 1, 9, 3)],
    ids=["images", "rows", "columns", "channels", "two images"],
)  # fmt: skip
def test_pixels_may_lie_past_31_bits(kata, device, strides):
    # each stride fits into 32 bits and twice the stride does not; the last one is itself too long
    b = 2 if strides[0] > 2**31 else 3
    # what lies between is never touched, and takes no memory on a CPU
    room = torch.empty(2**31 + 100, dtype=torch.uint8, device=device)
    img = room.as_strided((b, 3, 3, 3), strides)
    pixels = torch.arange(b * 27)
    img.copy_(pixels.view(b, 3, 3, 3))
    std = torch.full((3,), 1 / 255)
    whole = kata.vit_patch_embed(**plain(img, one_hot(3, device), std=std))
    assert whole[:, 1].tolist() == pixels.view(b, 27).tolist()
    single = kata.vit_patch_embed(**plain(img, one_hot(1, device), std=std))
    assert single[:, 1:].tolist() == pixels.view(b, 3, 9).mT.tolist()


# ---- what the compiler makes of it ---------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "instruction"),
    [("sm_90", "wgmma.mma_async"), ("sm_80", "mma.sync")],
    ids=["sm_90", "sm_80"],
)
def test_products_run_on_tensor_cores(compiled, target, instruction):
    big = {"b": 64, "h": 336, "w": 336, "p": 14, "d": 1024, "dtype": "uint8"}
    (kernel,) = compiled(target=target, **big)
    assert kernel.has(instruction)
