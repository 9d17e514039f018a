"""`kata inspect` from outside, on a kernel whose code is known; and what is read off code."""

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest

from harness.meters.compiled import KernelFacts
from harness.reports.inspection import instructions

CHEATS = Path(__file__).parent / "cheats" / "fixtures"

NVIDIA = """
        /*0010*/                   LDG.E.128.CONSTANT R4, [R2.64] ;
        /*0020*/              @!P0 LDG.E.U16 R5, [R2.64] ;
        /*0030*/                   LDGSTS.E.BYPASS.128 [R8], [R2.64] ;
        /*0040*/                   LDS.128 R8, [R9] ;
        /*0050*/                   STG.E R2, R3 ;
"""
PTX = """
        @%p1 cp.async.cg.shared.global [ %r1 + 0 ], [ %rd1 + 0 ], 0x10, %r2;
        cp.async.commit_group;
        wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {%f1}, %rd1, %rd2, 0, 1, 1, 0, 0;
        cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier [%r1], [%rd1, {%r2, %r3}], [%r4];
        red.async.relaxed; st.shared.b32 [%r1], %r2;
"""
AMD = """
        global_load_dwordx4 v[0:3], v[4:5], off
        buffer_load_ushort v0, v1, s[0:3], 0 offen
        global_store_dword v[0:1], v2, off
        buffer_store_byte v0, v1, s[0:3], 0
        v_mfma_f32_32x32x8f16 v[0:15], v[16:17], v[18:19], v[0:15]
        ds_read_b128 v[0:3], v4
"""


@pytest.fixture
def scaled(mini):
    """The tiny curriculum with a Triton kata in it."""
    shutil.copytree(CHEATS, mini, dirs_exist_ok=True)
    return mini


def facts(folder, **texts):
    binary = folder / ("kernel.hsaco" if "amdgcn" in texts else "kernel.cubin")
    for kind, text in texts.items():
        binary.with_suffix(f".{kind}").write_text(text)
    return KernelFacts(
        name="kernel",
        target="gfx942" if "amdgcn" in texts else "sm_90",
        grid=(1,),
        num_warps=4,
        num_stages=1,
        registers=32,
        spills=0,
        local_bytes=0,
        shared_bytes=0,
        binary=binary,
    )


def test_widths_of_global_accesses_are_read_off_sass(tmp_path):
    found = instructions(facts(tmp_path, sass=NVIDIA, ptx=PTX))
    assert found.loads == {128: 2, 16: 1}
    assert found.stores == {32: 1}


def test_instructions_are_named_as_one_speaks_of_them(tmp_path):
    found = instructions(facts(tmp_path, sass=NVIDIA, ptx=PTX))
    assert found.named == {"wgmma": 1, "cp.async": 1, "TMA": 1, "atomic": 1}


def test_amds_code_is_read_as_well(tmp_path):
    found = instructions(facts(tmp_path, amdgcn=AMD))
    assert (found.loads, found.stores) == (Counter({128: 1, 16: 1}), Counter({32: 1, 8: 1}))
    assert found.named == {"mfma": 1}


def test_each_build_comes_with_its_cases(kata_command, scaled):
    done = kata_command("inspect", "scaled", "--impl", "solution", "--json", "--target", "sm_80",
                        "--target", "gfx942")  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["failures"] == {}
    nvidia, amd = found["builds"]  # the case n = 0 launches nothing
    assert nvidia["kernel"] == "_scaled_kernel"
    assert nvidia["launches"] == [{"case": "n=100 dtype=float32", "grid": [2]}]
    assert (nvidia["target"], amd["target"]) == ("sm_80", "gfx942")
    assert (nvidia["num_warps"], nvidia["spills_bytes"], nvidia["shared_bytes"]) == (4, 0, 0)
    # 128 lanes for 64 elements: one each
    assert nvidia["load_bits"] == nvidia["store_bits"] == {"32": 1}
    # 16 blocks of 4 warps fill an SM of sm_80
    assert (nvidia["occupancy"], nvidia["programs_per_sm"]) == (1.0, 16)
    assert "warps" in nvidia["limited_by"]


def test_the_table_shows_what_matters(kata_command, scaled):
    done = kata_command("inspect", "scaled", "--impl", "solution")
    assert done.returncode == 0, done.stderr
    for words in ("_scaled_kernel for sm_90", "n=100 dtype=float32: grid 2", "spills", "none",
                  "16 programs an SM", "32 bits x 1"):  # fmt: skip
        assert words in done.stdout


def test_a_stub_is_one_clear_line(kata_command, scaled):
    done = kata_command("inspect", "scaled")
    assert done.returncode == 1
    expected = "Error: scaled is still a stub: edit katas/week01/scaled/scaled.py\n"
    assert (done.stdout, done.stderr) == ("", expected)


def test_a_kernel_that_does_not_compile_is_told_once(kata_command, scaled, tmp_path):
    file = tmp_path / "mine.py"
    text = (scaled / "solutions" / "week01" / "scaled.py").read_text()
    file.write_text(text.replace("3 * x", "3 * y"))
    done = kata_command("inspect", "scaled", "--impl", str(file))
    assert done.returncode == 1
    assert done.stdout.count("y is not defined") == 1


def test_a_launcher_without_a_kernel_is_told(kata_command, scaled, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def scaled(x):\n    return x + x + x\n")
    done = kata_command("inspect", "scaled", "--impl", str(file))
    assert done.returncode == 1
    assert "expected scaled to launch a kernel, found that it launches none" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["inspect", "doubled"], "found backend torch"),
        (["inspect", "scaled", "--impl", "solution", "--target", "sm_91"], "Did you mean sm_90"),
    ],
)
def test_what_cannot_be_inspected_is_a_usage_error(kata_command, scaled, arguments, words):
    done = kata_command(*arguments)
    assert done.returncode == 2
    assert words in done.stderr
