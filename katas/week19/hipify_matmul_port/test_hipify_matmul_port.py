"""What a rewrite must change and leave alone, what it cannot see, and which tiles fit where."""

import pytest
import torch

# ---- names -------------------------------------------------------------------------------------


def test_names_are_those_of_pytorchs_hipify(kata):
    from torch.utils.hipify import cuda_to_hip_mappings

    known = {}
    for mapping in cuda_to_hip_mappings.CUDA_TO_HIP_MAPPINGS:
        known |= {name: to if isinstance(to, str) else to[0] for name, to in mapping.items()}
    for name in kata.NAMES:
        assert kata.hipify(f"x = {name};") == f"x = {known[name]};"
    for header in kata.HEADERS:
        assert kata.hipify(f"#include <{header}>\n") == f"#include <{known[header]}>\n"


UNCHANGED = {
    "a comment": "// cudaMalloc, then k<<<1, 2>>>(x)\n",
    "a comment of several lines": "/* k<<<a,\n b>>> cudaFree */ int x;",
    "a string": 'puts("cudaFree <<<1, 2>>>(x) \\" cudaFree");',
    "a character": "char c = '\"'; char d = ','; // cudaFree",
    "longer names": "int my_cudaFree, cudaFreeList;",
    "cub elsewhere": "int cub = 1; cubs::f(); cub.x = cub + 1;",
    "a header of ours": '#include "cuda_runtime.hpp"\n#include <my/cuda_fp16.h>\n',
    "shifts and comparisons": "a << b; a >> 2; p<q<r>>>::x; a < b; c > d;",
    "white space": "\n\n  int\tx ;\n",
    "nothing": "",
}


@pytest.mark.parametrize("src", UNCHANGED.values(), ids=UNCHANGED)
def test_the_rest_stays_as_it_is(kata, src):
    assert kata.hipify(src) == src


REWRITTEN = {
    "cub": ("cub::Sum s; x.cub::y();", "hipcub::Sum s; x.hipcub::y();"),
    "a quoted header": ('#  include "cuda_fp16.h"', '#  include "hip/hip_fp16.h"'),
    "behind a string": ('f("cudaFree", cudaFree);', 'f("cudaFree", hipFree);'),
}


@pytest.mark.parametrize(("src", "expected"), REWRITTEN.values(), ids=REWRITTEN)
def test_whole_names_are_rewritten(kata, src, expected):
    assert kata.hipify(src) == expected


# ---- launches ----------------------------------------------------------------------------------

GGL = "hipLaunchKernelGGL"
LAUNCHES = {
    "two values": ("k<<<g, b>>>(x, y);", f"{GGL}(k, dim3(g), dim3(b), 0, 0, x, y);"),
    "three": ("k<<<g, b, 4*n>>>(x)", f"{GGL}(k, dim3(g), dim3(b), 4*n, 0, x)"),
    "commas inside": (
        "k<<<dim3(a,b), f(c,d), 0, s>>>(x)",
        f"{GGL}(k, dim3(dim3(a,b)), dim3(f(c,d)), 0, s, x)",
    ),
    "no arguments": ("k<<<g, b>>>( );", f"{GGL}(k, dim3(g), dim3(b), 0, 0);"),
    "arguments with brackets": (
        "k<<<g, b>>>(p[i, j], f(x, y), T{1, 2});",
        f"{GGL}(k, dim3(g), dim3(b), 0, 0, p[i, j], f(x, y), T{{1, 2}});",
    ),
    "a template": (
        "k<float, 2><<<g, b>>>(x)",
        f"{GGL}(HIP_KERNEL_NAME(k<float, 2>), dim3(g), dim3(b), 0, 0, x)",
    ),
    "templates in templates": (
        "a::k<Op<Pair<int>>><<<g, b>>>(x)",
        f"{GGL}(HIP_KERNEL_NAME(a::k<Op<Pair<int>>>), dim3(g), dim3(b), 0, 0, x)",
    ),
    "a comparison in a template": (
        "y = 1; k<(n > 4)> <<<g, b>>>(x)",
        f"y = 1; {GGL}(HIP_KERNEL_NAME(k<(n > 4)>), dim3(g), dim3(b), 0, 0, x)",
    ),
    "a namespace": (
        "return my::own::k<<<g, b>>>(x);",
        f"return {GGL}(my::own::k, dim3(g), dim3(b), 0, 0, x);",
    ),
    "shifts": ("k<<<n >> 8, 1 << 8>>>(x)", f"{GGL}(k, dim3(n >> 8), dim3(1 << 8), 0, 0, x)"),
    "white space": ("k <<<g, b>>> (x);", f"{GGL}(k, dim3(g), dim3(b), 0, 0, x);"),
    "several lines": (
        "k<<<g,\n    b>>>\n    (x,\n     y)",
        f"{GGL}(k, dim3(g), dim3(b), 0, 0, x, y)",
    ),
    "a comment inside": (
        "k<<<g, b /* not c, d */>>>(x)",
        f"{GGL}(k, dim3(g), dim3(b /* not c, d */), 0, 0, x)",
    ),
    "a bracket in a string": (
        "k<<<g, b>>>(\"),\", ')');",
        f"{GGL}(k, dim3(g), dim3(b), 0, 0, \"),\", ')');",
    ),
    "names inside": (
        "k<<<g, cudaSuccess>>>(cudaFree, cub::x)",
        f"{GGL}(k, dim3(g), dim3(hipSuccess), 0, 0, hipFree, hipcub::x)",
    ),
    "two of them": (
        "a<<<g, b>>>(x); c<<<g, b>>>(y);",
        f"{GGL}(a, dim3(g), dim3(b), 0, 0, x); {GGL}(c, dim3(g), dim3(b), 0, 0, y);",
    ),
}


@pytest.mark.parametrize(("src", "expected"), LAUNCHES.values(), ids=LAUNCHES)
def test_launches_are_found_by_their_brackets(kata, src, expected):
    assert kata.hipify(src) == expected


BROKEN = {
    "no end": ("\nk<<<g, b>>(x);\n", 2),
    "brackets cross": ("k<<<(g], b>>>(x);", 1),
    "a bracket that nothing opens": ("k<<<g), b>>>(x);", 1),
    "one value": ("\n\nk<<<g>>>(x);", 3),
    "five values": ("k<<<g, b, 0, s, 1>>>(x);", 1),
    "no arguments": ("k<<<g, b>>>;", 1),
    "arguments without an end": ("/*\n*/ k<<<\ng, b>>>(x;\n", 2),
    "the source ends": ("k<<<g, b>>>", 1),
    "no name": ("x = <<<g, b>>>(x);", 1),
    "nothing in front": ("<<<g, b>>>(x);", 1),
    "a template that nothing opens": ("k><<<g, b>>>(x);", 1),
}


@pytest.mark.parametrize(("src", "line"), BROKEN.values(), ids=BROKEN)
def test_a_broken_launch_names_its_line(kata, src, line):
    with pytest.raises(ValueError, match=rf"^line {line}\b"):
        kata.hipify(src)


def test_twice_is_once(kata, oracle):
    for name, src in oracle.SNIPPETS.items():
        once = kata.hipify(src)
        assert once != src or name == "assembly", f"{name}: expected HIP, found no change"
        assert kata.hipify(once) == once, f"{name}: expected no change by a second pass"


# ---- what a rewrite does not see ---------------------------------------------------------------

FOUND = {
    "a mask": ("f(0xffffffff, x); y = 0xFFFF'FFFFu; z = 4294967295;", ["mask"] * 3),
    "no mask of 32 bits": ("f(0xffffffffffffffff); x = 0xfffffffe; y = 0xffff;", []),
    "a lane": ("a = t & 31; b = t % 32; c &= 0x1f; d = 31u & t;", ["width"] * 4),
    "a warp": ("a = t / 32; b = t >> 5; c >>= 5; d /= 32u; e %= 32;", ["width"] * 5),
    "no width": ("a & 15; b && 31; 31 && c; d / 64; e / 32.0f; f << 5; g * 32; h > 5; i + 31;", []),
    "steps": ("for (int d = 16; d; d /= 2) for (d = 16; d; ) for (unsigned int k = 16; k;)", 3),
    "no steps": (
        "int d = 16; for (int d = 8; d;) for (; i < 16; i++) if (int d = 16; d) f(d = 16);",
        [],
    ),
    "a ballot in 32 bits": (
        "unsigned a = __ballot(p); int b = __ballot_sync(m, p); const uint32_t c = __activemask();",
        ["ballot"] * 3,
    ),
    "a ballot in 64": (
        "unsigned long long a = __ballot(p); uint64_t b = __ballot(p); auto c = __ballot(p);"
        " d = __ballot(p);",
        [],
    ),
    "a count of 32 bits": ("n = __popc(__ballot(p)); f = __ffs(__activemask());", ["ballot"] * 2),
    "a count of 64": ("n = __popcll(__ballot(p)); int k = __popc(x) + f(__ballot(p));", []),
    "assembly": ('asm volatile("x"); __asm__("y"); int asm_ = 1;', ["asm"] * 2),
    "the width asked for": ("w = blockDim.x / warpSize; l = threadIdx.x % warpSize;", []),
    "comments and strings": ('// t & 31\n/* asm 0xffffffff */ puts("t / 32");', []),
}


@pytest.mark.parametrize(("src", "expected"), FOUND.values(), ids=FOUND)
def test_kinds_of_findings(kata, src, expected):
    expected = ["steps"] * expected if isinstance(expected, int) else expected
    assert [kind for _, kind in kata.wave_lint(src)] == expected


PLANTED = {
    "reduce": [(4, "steps"), (5, "mask"), (11, "width"), (11, "width"), (18, "width")],
    "compact": [(6, "ballot"), (6, "mask"), (7, "width"), (9, "width"), (10, "mask")],
    "libraries": [],
    "assembly": [(3, "asm"), (6, "ballot"), (6, "mask")],
}


@pytest.mark.parametrize("name", PLANTED)
def test_planted_findings_have_their_lines(kata, oracle, name):
    assert kata.wave_lint(oracle.SNIPPETS[name]) == PLANTED[name]


def test_renaming_mends_nothing(kata, oracle):
    for name, src in oracle.SNIPPETS.items():
        found = kata.wave_lint(kata.hipify(src))
        assert [kind for _, kind in found] == [kind for _, kind in PLANTED[name]], name


def test_a_long_file_takes_no_longer_for_each_line(kata, oracle, lines):
    src = oracle.REDUCE + oracle.LIBRARIES
    with lines(limit=2_000_000) as counted:
        kata.hipify(src)
        kata.wave_lint(src)
    once = counted.lines
    with lines(limit=30 * once) as counted:
        kata.hipify(4 * src)
        kata.wave_lint(4 * src)
    assert counted.lines < 6 * once, "four times the source: expected about four times the lines"


# ---- tiles -------------------------------------------------------------------------------------


def test_a_pipeline_has_buffers_for_its_stages(kata):
    big = kata.Config(m=128, n=256, k=64, warps=8, stages=3)
    small = kata.Config(m=64, n=32, k=16, warps=4, stages=2)
    assert kata.buffer_bytes(big, 2, "sm_90") == 3 * (128 * 64 + 64 * 256) * 2
    assert kata.buffer_bytes(big, 2, "gfx942") == 2 * (128 * 64 + 64 * 256) * 2
    assert kata.buffer_bytes(small, 4, "sm_80") == (64 * 16 + 16 * 32) * 4
    with pytest.raises(ValueError, match="^target: "):
        kata.buffer_bytes(small, 4, "gfx90a")


PICKED = {
    # every unit has a tile of 128 x 256; gfx942 with one buffer, for two do not fit
    "large, sm_90": ((4096, 4096, 2, "sm_90"), 0),
    "large, gfx942": ((4096, 4096, 2, "gfx942"), 1),
    "large, sm_75": ((4096, 4096, 2, "sm_75"), 1),
    # just as many tiles as units, and one fewer
    "132 tiles of sm_90": ((12 * 128, 11 * 256, 2, "sm_90"), 0),
    "131 tiles of sm_90": ((131 * 128, 256, 2, "sm_90"), 2),
    # 304 tiles of 128 x 128: three stages fill the LDS to the byte, with four wavefronts
    "128 x 128 on gfx942": ((16 * 128, 19 * 128, 2, "gfx942"), 3),
    "303 tiles on gfx942": ((128, 303 * 128, 2, "gfx942"), 4),
    # four bytes: on gfx942 one program of 64 KiB is too few wavefronts
    "float32, gfx942": ((8192, 8192, 4, "gfx942"), 4),
    "float32, sm_90": ((8192, 8192, 4, "sm_90"), 1),
    # fewer tiles than units, whatever they are: the most
    "small": ((100, 100, 2, "gfx942"), 5),
    "one tile of each": ((20, 20, 2, "gfx942"), 1),
    "one tile of each, sm_90": ((20, 20, 2, "sm_90"), 0),
    "long and narrow": ((1, 2049, 2, "sm_90"), 5),
    "nothing": ((0, 64, 2, "sm_90"), 0),
}


@pytest.mark.parametrize(("asked", "place"), PICKED.values(), ids=PICKED)
def test_the_first_that_fits_and_leaves_no_unit_idle(kata, asked, place):
    assert kata.pick_config(*asked) == kata.CANDIDATES[place]


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        ((64, 64, 8, "gfx942"), "itemsize"),
        ((64, 64, 1, "sm_90"), "itemsize"),
        ((64, 64, 2, "gfx1100"), "target"),
        ((64, 64, 2, ""), "target"),
    ],
    ids=["eight bytes", "one byte", "another GPU", "no GPU"],
)
def test_what_cannot_be_chosen_for(kata, asked, names):
    with pytest.raises(ValueError, match=f"^{names}: "):
        kata.pick_config(*asked)


def test_without_elements_nothing_is_launched(kata, device, traffic):
    a, b = torch.ones(0, 8, device=device), torch.ones(8, 4, device=device)
    with traffic() as counted:
        found = kata.hipify_matmul_port(a, b)
    assert found.shape == (0, 4)
    assert counted.launches == 0


# ---- what came of it ---------------------------------------------------------------------------

SIZE = {"m": 4096, "n": 4096, "k": 4096, "dtype": "float16"}


def test_one_source_uses_both_matrix_units(kata, compiled):
    (amd,) = compiled(target="gfx942", **SIZE)
    (nvidia,) = compiled(target="sm_90", **SIZE)
    assert nvidia.has("wgmma.mma_async"), "the build for sm_90: expected wgmma, found none"
    report = kata.port_report(amd.sass, amd.shared_bytes, amd.num_warps)
    assert [name[:10] for name in report.mma] == ["v_mfma_f32"]
    assert report[1:] == (amd.registers, 0, 64, 16, 2)


def isa(*instructions, vgprs=100, spilled=0, wave=64):
    """Assembly with these instructions, and the metadata that LLVM puts behind them."""
    text = "".join(f"\t{one}\n" for one in instructions)
    metadata = f"    .vgpr_count:     {vgprs}\n    .vgpr_spill_count: {spilled}\n"
    return f"kernel:\n{text}; v_mfma_f32_4x4x4_f16\n{metadata}    .wavefront_size: {wave}\n"


def test_instructions_are_told_by_their_names(kata):
    found = kata.port_report(
        isa(
            "v_mfma_f32_32x32x8_f16 v[0:15], v[16:17], v[18:19], 0",
            "v_smfmac_f32_16x16x32_f16 v[0:3], v[4:5], v[6:9], v10",
            "v_mfma_f32_16x16x16_f16 v[0:3], v[4:5], v[6:7], 0",
            "v_mfma_f32_32x32x8_f16 v[0:15], v[16:17], v[18:19], v[0:15]",
            "v_fma_f32 v0, v1, v2, v3 ; v_mfma_i32_4x4x4_i8",
            vgprs=12,
            spilled=3,
        ),
        0,
        4,
    )
    names = ("v_mfma_f32_16x16x16_f16", "v_mfma_f32_32x32x8_f16", "v_smfmac_f32_16x16x32_f16")
    assert found.mma == names
    assert (found.vgprs, found.spills, found.wave, found.load_bytes) == (12, 3, 64, 0)


LOADED = {
    "the narrowest": (["global_load_dwordx4 v[0:3]", "global_load_dwordx2 v[0:1]"], 8),
    "of halves": (["global_load_dword v0", "global_load_short_d16_hi v0"], 2),
    "of bytes": (["buffer_load_ubyte v0", "flat_load_dwordx3 v[0:2]"], 1),
    "straight to LDS": (["buffer_load_dwordx4 v[0:3]", "global_load_lds_dword v0"], 4),
    "others": (
        ["s_load_dword s0", "ds_read_u8 v0", "global_store_byte v0", "scratch_load_dword"],
        0,
    ),
}


@pytest.mark.parametrize(("loads", "expected"), LOADED.values(), ids=LOADED)
def test_the_narrowest_load_counts(kata, loads, expected):
    assert kata.port_report(isa(*loads), 0, 4).load_bytes == expected


RESIDENT = {
    "two by registers": (isa(vgprs=208), 0, 4, 2),
    "256 registers": (isa(vgprs=256), 32_768, 4, 2),
    "one more": (isa(vgprs=257), 0, 4, 1),
    "given by eights": (isa(vgprs=97), 0, 4, 4),
    "104 are 4 as well": (isa(vgprs=104), 0, 4, 4),
    "never more than 8": (isa(vgprs=3), 0, 4, 8),
    "no registers": (isa(vgprs=0), 0, 4, 8),
    "all of the LDS, four wavefronts": (isa(vgprs=100), 65_536, 4, 1),
    "all of the LDS, eight": (isa(vgprs=100), 65_536, 8, 2),
    "a byte more than half of it": (isa(vgprs=64), 32_769, 4, 1),
    "a program and a half": (isa(vgprs=64), 40_000, 8, 2),
    "three programs of two": (isa(vgprs=64), 21_000, 2, 1),
}


@pytest.mark.parametrize(
    ("text", "lds_bytes", "warps", "expected"), RESIDENT.values(), ids=RESIDENT
)
def test_registers_and_lds_limit_the_wavefronts(kata, text, lds_bytes, warps, expected):
    assert kata.port_report(text, lds_bytes, warps).waves_per_simd == expected


def test_what_is_no_report(kata):
    with pytest.raises(ValueError, match="^isa: "):
        kata.port_report("v_mfma_f32_32x32x8_f16 v[0:15]", 0, 4)
    with pytest.raises(ValueError, match="^lds_bytes: "):
        kata.port_report(isa(), 65_537, 4)


def test_tiles_take_the_room_that_was_counted(kata, compiled):
    (tile,) = compiled(target="gfx942", m=2048, n=2432, k=512, dtype="float16")
    assert tile.shared_bytes == kata.buffer_bytes(kata.CANDIDATES[3], 2, "gfx942")
    assert kata.port_report(tile.sass, tile.shared_bytes, tile.num_warps)[4:] == (16, 2)
