"""What is special about crops: where they lie, how they are mirrored, what is read and stored."""

import pytest
import torch


def plain(x, crop, pos=(0.0, 0.0), flip=False, **changes):
    """Arguments under which pixels stay what they are."""
    n, c = len(x), x.shape[3]
    made = {
        "x": x,
        "crop": crop,
        "crop_pos": torch.tensor([pos] * n, dtype=torch.float32, device=x.device),
        "mirror": torch.full((n,), flip, device=x.device),
        "mean": torch.zeros(c, device=x.device),
        "std": torch.ones(c, device=x.device),
    }
    return made | changes


@pytest.mark.parametrize(
    ("pos", "top", "left"),
    [
        ((0.0, 0.0), 0, 0),
        ((1.0, 1.0), 4, 5),
        ((0.5, 0.5), 2, 3),
        ((0.125, 0.1), 1, 1),
        ((0.12, 0.72), 0, 4),
    ],
    ids=["top left", "bottom right", "halves", "a half and less", "less and more"],
)
def test_anchors_are_rounded_halves_up(kata, device, pos, top, left):
    # 4 rows and 5 columns of room
    x = torch.arange(7 * 9, dtype=torch.uint8, device=device).view(1, 7, 9, 1)
    found = kata.crop_mirror_normalize(**plain(x, (3, 4), pos)).int()[0, 0]
    want = x[0, top : top + 3, left : left + 4, 0].int()
    assert found.tolist() == want.tolist()


def test_the_crop_is_mirrored_and_not_the_image(kata, device):
    x = torch.arange(8, dtype=torch.uint8, device=device).view(1, 1, 8, 1)
    found = kata.crop_mirror_normalize(**plain(x, (1, 3), (0.0, 0.2), flip=True))
    assert found.tolist() == [[[[3, 2, 1]]]]


def test_every_image_has_its_own_crop(kata, device):
    x = torch.arange(16, dtype=torch.uint8, device=device).view(2, 1, 8, 1)
    pos = torch.tensor([[0.0, 0.0], [0.0, 1.0]], device=device)
    mirror = torch.tensor([False, True], device=device)
    found = kata.crop_mirror_normalize(**plain(x, (1, 3), crop_pos=pos, mirror=mirror))
    assert found.tolist() == [[[[0, 1, 2]]], [[[15, 14, 13]]]]


def test_padding_is_zero_and_not_shifted(kata, device):
    x = torch.full((2, 2, 2, 3), 7, dtype=torch.uint8, device=device)
    found = kata.crop_mirror_normalize(**plain(x, (2, 2), shift=5.0, pad_output=True))
    assert found[:, :, 0, 0].tolist() == [[12, 12, 12, 0]] * 2


def test_a_byte_is_not_signed_and_may_pass_float16_on_the_way(kata, device):
    x = torch.tensor([0, 127, 128, 255], dtype=torch.uint8, device=device).view(1, 1, 4, 1)
    found = kata.crop_mirror_normalize(**plain(x, (1, 4), scale=512.0, shift=-65536.0))
    assert found.tolist() == [[[[float("-inf"), -512, 0, 65024]]]]
    found = kata.crop_mirror_normalize(**plain(x, (1, 4), scale=512.0))
    assert found.tolist() == [[[[0, 65024, float("inf"), float("inf")]]]]


FAR = 2**30 + 27  # fits into 32 bits, and twice as much does not


@pytest.mark.parametrize(
    "strides",
    [(FAR, 9, 3, 1), (9, FAR, 3, 1), (9, 3, FAR, 1), (9, 3, 1, FAR), (2**31 + 3, 9, 3, 1)],
    ids=["images", "rows", "columns", "channels", "two images"],
)
def test_pixels_may_lie_past_31_bits(kata, device, strides):
    # what lies between is never touched, and takes no memory on a CPU
    room = torch.empty(2**31 + 100, dtype=torch.uint8, device=device)
    x = room.as_strided((2 if strides[0] > 2**31 else 3, 3, 3, 3), strides)
    pixels = torch.arange(x.numel(), device=device).view(x.shape)
    x.copy_(pixels)
    found = kata.crop_mirror_normalize(**plain(x, (3, 3)))
    assert found.tolist() == pixels.permute(0, 3, 1, 2).tolist()


CASE = {"n": 2, "size": (40, 45), "crop": (16, 32), "c": 3, "dtype": torch.uint8, "device": "cpu"}


@pytest.mark.parametrize("layout", ["nhwc", "nchw", "room"])
def test_only_cropped_bytes_are_read(kata, oracle, traffic, cost, seed, layout):
    inputs = oracle.make_inputs(**CASE, layout=layout, seed=seed)
    with traffic() as moved:
        kata.crop_mirror_normalize(**inputs)
    cost.check("image_bytes", moved.of(inputs["x"]).loaded_bytes)


def test_nothing_is_allocated_but_the_result(kata, oracle, device, dispatch, cost, seed):
    inputs = oracle.make_inputs(**CASE | {"device": device}, layout="room", seed=seed)
    with dispatch() as seen:
        kata.crop_mirror_normalize(**inputs)
    cost.check("allocated_bytes", seen.allocated_bytes)
