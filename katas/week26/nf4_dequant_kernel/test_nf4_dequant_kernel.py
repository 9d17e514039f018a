"""What is special about this kernel: every byte in its place, one rounding, nothing in between."""

import pytest
import torch


def blocks_of(device, packed, codes, table, absmax2, offset=0.0, dtype=torch.float32, levels=None):
    """The arguments of a call, the tables made from lists."""

    def on(values, kind):
        return torch.tensor(values, dtype=kind, device=device)

    levels = torch.arange(16, dtype=torch.float32) if levels is None else levels
    return {
        "packed": on(packed, torch.uint8),
        "levels": levels.to(device),
        "codes": on(codes, torch.uint8),
        "table": on(table, torch.float32),
        "absmax2": on(absmax2, torch.float32),
        "offset": offset,
        "shape": (len(codes), 64),
        "dtype": dtype,
    }


def test_every_byte_is_two_weights_in_order(kata, device):
    # level i is i and every scale is 1, so that weights are their codes
    inputs = blocks_of(device, list(range(256)), [3] * 8, [1.0] * 256, [1.0])
    w = kata.nf4_dequant_kernel(**inputs)
    want = [code for byte in range(256) for code in (byte // 16, byte % 16)]
    found = w.flatten().tolist()
    wrong = [i for i in range(512) if found[i] != want[i]][:8]
    assert not wrong, (
        f"bytes 0, 1, 2 …, level i is i, weights {wrong}: expected {[want[i] for i in wrong]}, "
        f"found {[found[i] for i in wrong]}"
    )


def test_a_scale_by_hand(kata, device):
    # block 0: 5 · 2 + 0.5; block 1: -1 · 2 + 0.5; byte 0x21 is levels 2 and 1
    table = [0.0] * 256
    table[200], table[7] = 5.0, -1.0
    inputs = blocks_of(device, [0x21] * 64, [200, 7], table, [2.0], offset=0.5)
    w = kata.nf4_dequant_kernel(**inputs)
    assert w[:, :3].tolist() == [[21.0, 10.5, 21.0], [-3.0, -1.5, -3.0]]
    assert w[:, -1].tolist() == [10.5, -1.5]


def test_each_scale_has_the_scale_of_its_group(kata, device):
    # 513 scales in groups of 256: two whole ones and one of a single scale
    packed = [0x11] * (32 * 513)
    inputs = blocks_of(device, packed, [9] * 513, [1.0] * 256, [1.0, 2.0, 4.0])
    w = kata.nf4_dequant_kernel(**inputs)
    assert w[:, 0].tolist() == [1.0] * 256 + [2.0] * 256 + [4.0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_the_product_is_rounded_once(kata, oracle, device, dtype):
    # thirds: neither levels nor scale are exact in half precision
    levels = torch.tensor(oracle.LEVELS)
    inputs = blocks_of(
        device, list(range(256)), [0] * 8, [1 / 3] * 256, [1.0], dtype=dtype, levels=levels
    )
    w = kata.nf4_dequant_kernel(**inputs).flatten()
    codes = torch.tensor([code for byte in range(256) for code in (byte // 16, byte % 16)])
    want = (levels[codes] * torch.tensor(1 / 3)).to(dtype)
    wrong = (w.cpu() != want).nonzero().flatten().tolist()
    assert not wrong, (
        f"codes {codes[wrong[:4]].tolist()} at the scale 1/3: expected "
        f"{want[wrong[:4]].tolist()}, found {w[wrong[:4]].tolist()}"
    )


def test_codes_are_loaded_once_and_weights_stored_once(kata, oracle, traffic, cost, seed):
    inputs = oracle.make_inputs(blocks=64, dtype=torch.float16, device="cpu", seed=seed)
    with traffic() as moved:
        w = kata.nf4_dequant_kernel(**inputs)
    loads = [moved.of(inputs[name]).loads_per_element for name in ("packed", "codes")]
    assert moved.stored_bytes == w.nbytes
    assert min(loads) == 1
    cost.check("reads", max(loads))


def test_nothing_but_the_weights_is_allocated(kata, oracle, device, dispatch, cost, seed):
    inputs = oracle.make_inputs(blocks=64, dtype=torch.float16, device=device, seed=seed)
    with dispatch() as ops:
        w = kata.nf4_dequant_kernel(**inputs)
    cost.check("memory", ops.allocated_bytes / w.nbytes)


def test_bfloat16_on_the_cpu_is_refused(kata):
    inputs = blocks_of("cpu", [0] * 32, [0], [1.0] * 256, [1.0], dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="^dtype: "):
        kata.nf4_dequant_kernel(**inputs)


def test_codes_that_begin_anywhere_are_refused(kata, device):
    inputs = blocks_of(device, [0] * 32, [0], [1.0] * 256, [1.0])
    inputs["packed"] = torch.zeros(64, dtype=torch.uint8, device=device)[4:36]
    with pytest.raises(ValueError, match="^packed: "):
        kata.nf4_dequant_kernel(**inputs)


def test_weights_are_stored_16_bytes_at_a_time(compiled):
    (kernel,) = compiled(target="sm_90", shape=[4096, 4096], dtype="float16")
    assert kernel.has("st.global.v4"), "sm_90: expected stores of four words, found narrower ones"
