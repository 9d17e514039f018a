"""Gates, masks and the cache of the media, against one token after another in float64."""

import pytest
import torch

from harness.judge import assert_matches
from harness.meters.dispatch import alive_bytes, flop_meter


def judged(kata, oracle, block, x, media, media_id):
    dtype = x.dtype
    with torch.no_grad():
        assert_matches(
            kata.gated_cross_attention(block, x, media, media_id),
            oracle.attended(block, x, media, media_id).to(dtype),
            same_precision=oracle.attended(block, x, media, media_id, dtype),
        )


@pytest.mark.parametrize(
    ("media_id", "images"),
    [
        ([[1, 1, 1]], 1),
        ([[1, 1, 2, 2, 3]], 3),
        ([[0, 0, 1, 2], [1, 1, 1, 1]], 2),
        ([[0, 1, 1], [0, 0, 0], [0, 0, 2]], 2),
        ([[2]], 2),
    ],
    ids=["one image", "three images", "text before", "a row without images", "one token"],
)
def test_each_token_sees_its_latest_image(kata, oracle, device, seed, media_id, images):
    block = oracle.make_block(kata, seed, device=device)
    judged(kata, oracle, block, *oracle.make_inputs(seed, media_id, images, device=device))


def test_half_precision(kata, oracle, device, seed):
    block = oracle.make_block(kata, seed, device=device).half()
    x, media, ids = oracle.make_inputs(seed, [[0, 1, 2], [1, 1, 1]], 2, device=device)
    judged(kata, oracle, block, x.half(), media.half(), ids)
    cache = kata.MediaCache()
    with torch.no_grad():
        kata.gated_cross_attention(block, x.half(), media.half(), ids, cache)
    assert [cache.k.dtype, cache.v.dtype] == [torch.float16] * 2


def test_large_scores_stay_finite(kata, oracle, device, seed):
    block = oracle.make_block(kata, seed, device=device)
    x, media, ids = oracle.make_inputs(seed, [[0, *[1, 2] * 6]], 2, device=device)
    # many of them negative; alike for an image, so that no digit matters
    judged(kata, oracle, block, x, 1e12 * media[:, :, :1].expand(media.shape), ids)


def test_one_head_and_other_widths(kata, oracle, device, seed):
    block = oracle.make_block(kata, seed, d=8, heads=1, d_vis=20, device=device)
    judged(
        kata,
        oracle,
        block,
        *oracle.make_inputs(seed, [[0, 1]], 1, latents=3, d=8, d_vis=20, device=device),
    )


def test_closed_gates_leave_the_model_as_it_was(kata, oracle, device, seed):
    block = oracle.make_block(kata, seed, gates=(0, 0), device=device)
    x, media, ids = oracle.make_inputs(seed, [[0, 0, 1, 2]], 2, device=device)
    out = kata.gated_cross_attention(block, x, media, ids)
    assert torch.equal(out, x), f"gates 0: found {out}, expected x = {x}"
    out.square().sum().backward()
    for name in ("alpha", "beta"):
        grad = getattr(block, name).grad
        assert grad is not None, f"gradient of {name}: none, expected a number"
        assert grad.isfinite().logical_and(grad != 0), f"gradient of {name}: found {grad}"


def test_text_before_any_image_gets_nothing_from_attention(kata, oracle, device, seed):
    block = oracle.make_block(kata, seed, gates=(0.7, 0), device=device)
    x, media, ids = oracle.make_inputs(seed, [[0, 0, 1]], 1, device=device)
    x.requires_grad_()
    media.requires_grad_()
    out = kata.gated_cross_attention(block, x, media, ids)
    assert torch.equal(out[:, :2], x[:, :2]), f"found {out[:, :2]}, expected {x[:, :2]}"
    out[:, :2].sum().backward(retain_graph=True)
    assert torch.equal(x.grad[:, :2], torch.ones_like(x[:, :2])), f"gradient of x: {x.grad}"
    assert not media.grad.any(), f"gradient of media: {media.grad}, expected 0"
    out.square().sum().backward()
    for name, weight in block.named_parameters():
        assert weight.grad is None or weight.grad.isfinite().all(), f"gradient of {name}"
    assert media.grad.any(), "gradient of media: found 0"


def test_without_images_only_the_feed_forward_is_left(kata, oracle, device, seed):
    block = oracle.make_block(kata, seed, device=device)
    x, media, ids = oracle.make_inputs(seed, [[0, 0], [0, 0]], 0, device=device)
    expected = x + block.beta.tanh() * block.ff(x)
    found = kata.gated_cross_attention(block, x, media, ids)
    assert torch.equal(found, expected), f"found {found}, expected {expected}"


def test_decoding_with_the_cache_is_the_full_pass(kata, oracle, device, seed):
    block = oracle.make_block(kata, seed, device=device)
    x, media, ids = oracle.make_inputs(seed, [[0, 1, 1, 2], [1, 1, 2, 2]], 2, device=device)
    full = oracle.attended(block, x, media, ids)
    cache = kata.MediaCache()
    with torch.no_grad():
        parts = [kata.gated_cross_attention(block, x[:, :1], media, ids[:, :1], cache)]
        assert list(cache.k.shape) == list(cache.v.shape) == [2, 4, 2, 5, 4]
        for at, ignored in ((1, None), (2, media[:, :1, :, :3]), (3, -media)):
            own = slice(at, at + 1)
            parts.append(kata.gated_cross_attention(block, x[:, own], ignored, ids[:, own], cache))
    assert_matches(
        torch.cat(parts, dim=1),
        full.to(x.dtype),
        same_precision=oracle.attended(block, x, media, ids, x.dtype),
    )


def test_caches_are_told_apart(kata, oracle, device, seed):
    block = oracle.make_block(kata, seed, device=device)
    x, media, ids = oracle.make_inputs(seed, [[1, 1]], 1, device=device)
    with torch.no_grad():
        first = kata.gated_cross_attention(block, x, media, ids, kata.MediaCache())
        other = kata.gated_cross_attention(block, x, -media, ids, kata.MediaCache())
        plain = kata.gated_cross_attention(block, x, -media, ids)
    assert torch.equal(other, plain), f"found {other}, expected {plain}"
    assert not torch.equal(first, other), (
        "the second request was answered from the first one's media"
    )


def test_without_a_cache_nothing_is_kept(kata, oracle, device, seed):
    block = oracle.make_block(kata, seed, device=device)
    x, media, ids = oracle.make_inputs(seed, [[0, 1, 2]], 2, device=device)
    before = alive_bytes()
    with torch.no_grad():
        kata.gated_cross_attention(block, x, media, ids)
    assert alive_bytes() - before == 0


def test_media_are_projected_once(kata, oracle, cost, seed):
    block = oracle.make_block(kata, seed, d=32, heads=4, d_vis=48)
    x, media, ids = oracle.make_inputs(
        seed, [[0, 1, 1, 2, 2, 3, 3, 3] + [3] * 32], 3, latents=64, d=32, d_vis=48
    )
    cache = kata.MediaCache()
    with torch.no_grad(), flop_meter() as counted:
        kata.gated_cross_attention(block, x[:, :8], media, ids[:, :8], cache)
        for at in range(8, 40):
            kata.gated_cross_attention(block, x[:, at : at + 1], media, ids[:, at : at + 1], cache)
    cost.check("flops", counted.flops)
    held = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in (cache.k, cache.v)}
    cost.check("cache_bytes", sum(held.values()))


def test_index_counts_the_images_so_far(kata, oracle, device):
    ids = torch.tensor(
        [[5, oracle.IMAGE, 6, oracle.IMAGE, oracle.IMAGE], [1, 2, 3, 4, oracle.IMAGE]]
    )
    for dtype in (torch.int64, torch.int32):
        given = ids.to(device, dtype)
        found = kata.media_index(given, oracle.IMAGE)
        assert found.dtype == torch.int64
        assert found.tolist() == [[0, 1, 1, 2, 3], [0, 0, 0, 0, 1]]
        assert given.tolist() == ids.tolist(), "input_ids were changed"
    # more than float16 can count
    video = torch.full((1, 3001), oracle.IMAGE, device=device)
    assert kata.media_index(video, oracle.IMAGE)[0, -1] == 3001
    assert kata.media_index(ids[:, :0].to(device), oracle.IMAGE).shape == (2, 0)


def test_bytes_of_an_image_in_either_style(kata):
    assert kata.kv_per_image(kata.LLAVA15_7B, "self") == 288 * 2**20
    assert kata.kv_per_image(kata.LLAVA15_7B, "cross") == 8 * 2**20
    odd = kata.VLMConfig(layers=30, d=96, image_tokens=100, latents=32, every=4, itemsize=1)
    assert kata.kv_per_image(odd, "cross") == 2 * 32 * 7 * 96  # before layers 4, 8 … 28
    assert kata.kv_per_image(odd, "self") == 2 * 100 * 30 * 96


# ---- bad input -----------------------------------------------------------------------------


def test_unknown_style_is_refused(kata):
    with pytest.raises(ValueError, match="^style: .*prefix"):
        kata.kv_per_image(kata.LLAVA15_7B, "prefix")


@pytest.mark.parametrize("wrong", [3, -1], ids=["one too many", "negative"])
@pytest.mark.parametrize("cached", [False, True], ids=["media", "cache"])
def test_images_that_are_not_there_are_refused(kata, oracle, seed, wrong, cached):
    block, cache = oracle.make_block(kata, seed), kata.MediaCache()
    x, media, ids = oracle.make_inputs(seed, [[0, 1, 2]], 2)
    if cached:
        kata.gated_cross_attention(block, x, media, ids, cache)
        media = None
    ids[0, 1] = wrong
    with pytest.raises(ValueError, match="^media_id: "):
        kata.gated_cross_attention(block, x, media, ids, cache)
    assert (cache.k is not None) == cached, "the refused call filled the cache"


def test_other_widths_and_missing_media_are_refused(kata, oracle, seed):
    block = oracle.make_block(kata, seed)
    x, media, ids = oracle.make_inputs(seed, [[0, 1, 2]], 2)
    for changed, named in [
        ((x[..., :8], media), "^x: "),
        ((x, media[..., :8]), "^media: "),
        ((x, None), "^media: "),
    ]:
        with pytest.raises(ValueError, match=named):
            kata.gated_cross_attention(block, *changed, ids, kata.MediaCache())
