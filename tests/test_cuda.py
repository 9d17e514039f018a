"""CUDA C++ in a kata: built without a GPU, read off, its arguments packed, launched on one."""

import re
import struct
import textwrap
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from harness.hardware.environment import device_present

pytest.importorskip("cuda.bindings.nvrtc", reason="needs the extra cuda")
from harness import cuda
from harness.hardware.profiles import find_profile
from harness.meters.compiled import (
    CompileFailed,
    CompileRequest,
    compile_kernels,
    stop_worker,
)

try:
    cuda.build('extern "C" __global__ void nothing() {}', "nothing", arch="sm_80")
except RuntimeError as missing:
    pytest.skip(str(missing), allow_module_level=True)

SOURCE = r"""
#include <cuda_fp16.h>

extern "C" __global__ void doubled(const float* x, float* y, long long n) {
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) y[i] = 2 * x[i];
}

extern "C" __global__ void reversed(const float* x, float* y) {
    __shared__ float tile[256];
    extern __shared__ float more[];
    tile[threadIdx.x] = x[threadIdx.x];
    more[threadIdx.x] = 1;
    __syncthreads();
    y[threadIdx.x] = tile[255 - threadIdx.x] + more[threadIdx.x ^ 1];
}

template <typename T>
__global__ void scaled(T* x, T factor) { x[threadIdx.x] *= factor; }

extern "C" __global__ void mixed(
    float* x, int a, unsigned char b, long long c, float d, double e, __half f) {
    *x = a + b + c + d + e + (float)f;
}
"""
FILE = f"""
from harness.cuda import launch

SOURCE = r'''{SOURCE}'''


def doubled(x):
    y = x.new_empty(x.shape)
    launch(SOURCE, "doubled", (x, y, x.numel()), grid=(-(-x.numel() // 256),), block=(256,))
    return y


def reversed(x):
    y = x.new_empty(x.shape)
    for _ in range(2):
        launch(SOURCE, "reversed", (x, y), grid=(1,), block=(256,), shared_bytes=2048)
    return y
"""
ORACLE = """
import torch


def make_inputs(*, n, device, seed):
    return {"x": torch.randn(n, generator=torch.Generator().manual_seed(seed)).to(device)}
"""


@pytest.fixture
def compile_file(tmp_path):
    """The facts of a launcher's kernels."""

    def build(text, function, target="sm_90"):
        (tmp_path / "file.py").write_text(textwrap.dedent(text))
        (tmp_path / "oracle.py").write_text(ORACLE)
        request = CompileRequest(
            file=tmp_path / "file.py",
            oracle=tmp_path / "oracle.py",
            function=function,
            case={"n": 1000},
            target=target,
        )
        return compile_kernels(request, cache_dir=tmp_path / "cache")

    return build


@pytest.fixture(scope="module", autouse=True)
def _no_helper_stays():
    yield
    stop_worker()


# ---- building ------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_89", "sm_90", "sm_100"])
def test_a_source_is_built_for_a_gpu_that_is_not_there(arch):
    kernel = cuda.build(SOURCE, "doubled", arch=arch)
    assert f".target {arch}" in kernel.ptx
    assert kernel.cubin.startswith(b"\x7fELF")


def test_a_template_is_built_for_the_type_it_is_named_with():
    kernel = cuda.build(SOURCE, "scaled<double>", arch="sm_80")
    assert kernel.symbol != kernel.name
    assert cuda.packed(kernel, (0, 2)) == [bytes(8), struct.pack("<d", 2.0)]


def test_options_reach_the_compiler():
    source = 'extern "C" __global__ void fill(int* x) { *x = VALUE; }'
    assert "4711" in cuda.build(source, "fill", arch="sm_80", options=("-DVALUE=4711",)).ptx


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (SOURCE + "\nfloat oops(", r"^doubled\.cu\(\d+\): error: "),
        ("#include <nowhere.h>\n" + SOURCE, r'^doubled\.cu\(1\): .*error: .*"nowhere\.h"'),
        ("", 'identifier "doubled" is undefined'),
    ],
    ids=["syntax", "include", "no such kernel"],
)
def test_what_the_compiler_refuses_is_told_in_its_words(source, expected):
    with pytest.raises(cuda.BuildFailed, match=expected):
        cuda.build(source, "doubled", arch="sm_80")


# ---- arguments -----------------------------------------------------------------------------


def test_arguments_take_the_width_of_their_parameters():
    kernel = cuda.build(SOURCE, "mixed", arch="sm_80")
    given = (16, -3, True, np.int64(2**40), np.float64(1.5), 2, np.float16(1))
    assert cuda.packed(kernel, given) == [
        struct.pack("<Q", 16),
        struct.pack("<i", -3),
        b"\x01",
        struct.pack("<q", 2**40),
        struct.pack("<f", 1.5),
        struct.pack("<d", 2),
        np.float16(1).tobytes(),
    ]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((0,), "mixed: expected 7 arguments, found 1"),
        ((0, 1.5, 0, 0, 0, 0, bytes(2)), "argument 1: expected an integer of 4 bytes, found 1.5"),
        ((0, 2**32, 0, 0, 0, 0, bytes(2)), "argument 1: expected an integer of 4 bytes"),
        ((0, 0, 0, 0, "a", 0, bytes(2)), "argument 4: expected a number of 4 bytes, found 'a'"),
        ((0, 0, 0, 0, 0, 0, np.float32(1)), "argument 6: expected 2 bytes, found 4"),
        ((torch.ones(1), 0, 0, 0, 0, 0, bytes(2)), "argument 0: expected a tensor on a GPU"),
    ],
    ids=["too few", "float for int", "too large", "text", "wrong structure", "tensor of the host"],
)
def test_arguments_that_do_not_fit_are_refused(given, expected):
    kernel = cuda.build(SOURCE, "mixed", arch="sm_80")
    with pytest.raises(TypeError, match=expected):
        cuda.packed(kernel, given)


# ---- facts ---------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["sm_75", "sm_80", "sm_90", "sm_100"])
def test_facts_are_those_of_the_launch(compile_file, target):
    facts, again = compile_file(FILE, "reversed", target)
    assert facts == again
    assert (facts.name, facts.grid, facts.num_warps) == ("reversed", (1, 1, 1), 8)
    assert facts.shared_bytes == 256 * 4 + 2048  # the static array, and what the launch asked for
    assert 4 <= facts.registers <= 32
    assert facts.spills == facts.local_bytes == 0


def test_only_the_launched_kernel_of_a_source_is_told_of(compile_file):
    (facts,) = compile_file(FILE, "doubled")
    assert facts.grid == (4, 1, 1)
    assert facts.count("bar.sync") == 0
    assert facts.count("BAR.SYNC") == 0
    assert facts.count("LDG") == facts.count("STG") == 1
    assert "reversed" not in facts.sass
    # 16 bytes each; the last one is a jump to itself, behind the end
    addresses = re.findall(r"/\*([0-9a-f]{4})\*/ +BRA ", facts.sass)
    assert facts.instructions == int(addresses[-1], 16) // 16 + 1


def test_spills_of_cuda_are_counted(compile_file):
    source = FILE.replace(
        'extern "C" __global__ void doubled', 'extern "C" __global__ void __maxnreg__(24) doubled'
    ).replace(
        "if (i < n) y[i] = 2 * x[i];",
        """float held[64];
        for (int k = 0; k < 64; k++) held[k] = x[i + k * n];
        __syncthreads();
        float sum = 0;
        for (int k = 0; k < 64; k++) sum += held[k] * held[63 - k] * x[k];
        y[i] = sum;""",
    )
    (facts,) = compile_file(source, "doubled")
    assert facts.registers <= 24
    assert facts.spills > 0


def test_a_kernel_that_calls_itself_has_facts(compile_file):
    source = FILE.replace(
        'extern "C" __global__ void doubled',
        "__device__ __noinline__ int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }\n"
        'extern "C" __global__ void doubled',
    ).replace("y[i] = 2 * x[i]", "y[i] = fib((int)n % 9 + 3) > 1 ? 2 * x[i] : 0")
    (facts,) = compile_file(source, "doubled")
    assert facts.registers > 4


@pytest.mark.parametrize(
    ("find", "replace", "expected"),
    [
        ("2 * x[i]", "2 * z[i]", r'to build its kernels for sm_90, found .*"z" is undefined'),
        ("(x, y, x.numel())", "(x, y)", "doubled: expected 3 arguments, found 2"),
        ("block=(256,))", "block=(2048,))", "doubled: expected 1 to 1024 threads"),
        ("block=(256,))", "block=(256,), shared_bytes=10**6)", "expected 0 to 232448 bytes"),
        ("block=(256,))", "block=(256,), cluster=3)", "expected whole clusters of 3, found 4"),
    ],
    ids=["source", "arguments", "threads", "shared memory", "cluster"],
)
def test_what_cannot_be_launched_is_refused_without_a_gpu(compile_file, find, replace, expected):
    with pytest.raises(CompileFailed, match=expected):
        compile_file(FILE.replace(find, replace), "doubled")


def test_amd_has_no_cuda(compile_file):
    with pytest.raises(CompileFailed, match="to build its kernels for gfx942"):
        compile_file(FILE, "doubled", "gfx942")


# ---- on a GPU ------------------------------------------------------------------------------


def test_a_launch_without_a_gpu_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RuntimeError, match="doubled: expected a GPU"):
        cuda.launch(SOURCE, "doubled", (), grid=(1,), block=(1,))


@pytest.mark.parametrize(("cluster", "cooperative"), [(1, False), (2, False), (1, True)])
def test_the_driver_is_given_the_sizes_of_a_launch(monkeypatch, cluster, cooperative):
    from cuda.bindings import driver

    def start(config, function, addresses, extra):
        given.append((config, int(function)))
        return (driver.CUresult.CUDA_SUCCESS,)

    given = []
    monkeypatch.setattr(driver, "cuLaunchKernelEx", start)
    monkeypatch.setattr(cuda, "_loaded", lambda kernel, device: 7)
    monkeypatch.setattr(cuda, "packed", lambda kernel, arguments: [bytes(8)] * len(arguments))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=5))
    kernel = cuda.build(SOURCE, "doubled", arch="sm_90")
    config = cuda.Config(
        grid=(4, 1, 1), block=(32, 1, 1), shared_bytes=16, cluster=cluster, cooperative=cooperative
    )
    cuda.start(kernel, config, (1, 2, 3))
    ((sizes, function),) = given
    assert (sizes.gridDimX, sizes.blockDimX, sizes.sharedMemBytes, function) == (4, 32, 16, 7)
    assert int(sizes.hStream) == 5
    assert sizes.numAttrs == (cluster > 1) + cooperative
    if cluster > 1:
        assert sizes.attrs[0].value.clusterDim.x == cluster


on_a_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not device_present(), reason="needs a GPU"),
]


@pytest.mark.parametrize("n", [pytest.param(n, marks=on_a_gpu) for n in (1, 256, 1000)])
def test_a_kernel_runs(n):
    x = torch.randn(n, device="cuda")
    y = torch.full_like(x, -1)
    for _ in range(2):
        cuda.launch(SOURCE, "doubled", (x, y, n), grid=(-(-n // 256),), block=(256,))
    assert torch.equal(y, 2 * x)


ON_THE_GPU = r"""
#include <cooperative_groups.h>
namespace cg = cooperative_groups;

extern "C" __global__ void large(int* y) {
    extern __shared__ int held[];
    held[threadIdx.x + 20000] = threadIdx.x;
    __syncthreads();
    y[threadIdx.x] = held[20000 + (threadIdx.x ^ 1)];
}

extern "C" __global__ void at_once(int* x, int* y) {
    x[blockIdx.x] = blockIdx.x;
    cg::this_grid().sync();
    y[blockIdx.x] = x[gridDim.x - 1 - blockIdx.x];
}

#if __CUDA_ARCH__ >= 900
extern "C" __global__ void of_a_cluster(unsigned* y) {
    unsigned rank, size;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
    y[blockIdx.x] = 100 * size + rank;
}
#endif
"""


# ---- what launchers ask for ----------------------------------------------------------------


@pytest.mark.parametrize("id", ["t4", "a100_sxm_80gb", "rtx_4090", "h200_sxm", "b200_sxm"])
def test_stand_ins_are_gpus_of_the_profiles(id):
    profile = find_profile(Path(__file__).parents[1] / "hardware_profiles", id)
    gpu = cuda.STAND_INS[profile.arch]
    assert (gpu.sms, gpu.smem_per_sm_bytes) == (profile.sms, profile.smem_per_sm_bytes)
    assert gpu.smem_per_block_bytes == profile.smem_per_block_bytes
    assert gpu.bandwidth == profile.bandwidth


def test_a_gpu_is_the_one_that_is_launched_on(monkeypatch):
    monkeypatch.setattr(cuda, "simulator", SimpleNamespace(gpu=lambda: ("sm_80", 100_000)))
    assert (cuda.gpu().sms, cuda.gpu().smem_per_block_bytes) == (108, 100_000)
    monkeypatch.setattr(cuda, "simulator", None)
    if not device_present():
        assert cuda.gpu() == cuda.STAND_INS["sm_90"]
    # as a GPU that is only pretended for the compiler has it
    known = cuda.gpu_of("sm_89", SimpleNamespace(multi_processor_count=60))
    assert (known.sms, known.bandwidth) == (60, 1.008e12)
    device = SimpleNamespace(
        multi_processor_count=132,
        shared_memory_per_multiprocessor=233_472,
        shared_memory_per_block_optin=232_448,
        memory_clock_rate=2_619_000,
        memory_bus_width=5120,
    )
    assert cuda.gpu_of("sm_90", device).bandwidth == pytest.approx(3.35e12, rel=1e-3)


def test_rows_that_sixteen_bytes_can_be_loaded_from():
    x = torch.zeros(8, 24, dtype=torch.float16)
    for good in (x, x[:, :8], x[:, 8:], x[::2], x[:0], x[:1, :3], x[0], torch.zeros(3, 1)[:1]):
        assert cuda.aligned(good), good.stride()
        cuda.refuse_unaligned("x", good)
    odd = torch.zeros(8, 25, dtype=torch.float16)
    for bad in (x[:, 1:], x[:, ::2], x.T, odd, x[0, 4:]):
        assert not cuda.aligned(bad), bad.stride()
        with pytest.raises(ValueError, match="^x: expected rows of .* multiples of 16 bytes"):
            cuda.refuse_unaligned("x", bad)
    assert cuda.aligned(x[0, 4:], 8)


def test_cpp_has_a_name_for_a_dtype():
    assert cuda.cpp_type(torch.bfloat16) == "__nv_bfloat16"
    with pytest.raises(ValueError, match="dtype: expected one of .* found complex64"):
        cuda.cpp_type(torch.complex64)


def test_a_macro_that_breaks_the_headers_is_refused_by_name():
    with pytest.raises(ValueError, match="call it ELEMENT"):
        cuda.build(SOURCE, "doubled", arch="sm_90", options=("-DT=float",))
    cuda.build(SOURCE, "doubled", arch="sm_90", options=("-DTILE=8",))


@pytest.mark.gpu
@pytest.mark.skipif(not device_present(), reason="needs a GPU")
def test_more_shared_memory_than_is_given_unasked():
    y = torch.empty(32, dtype=torch.int32, device="cuda")
    launched = {"grid": (1,), "block": (32,), "shared_bytes": 4 * 20032}
    cuda.launch(ON_THE_GPU, "large", (y,), **launched)
    assert torch.equal(y.cpu(), torch.arange(32, dtype=torch.int32) ^ 1)


@pytest.mark.gpu
@pytest.mark.skipif(not device_present(), reason="needs a GPU")
def test_a_cooperative_grid_meets_at_a_barrier():
    x, y = (torch.full((16,), -1, dtype=torch.int32, device="cuda") for _ in range(2))
    cuda.launch(ON_THE_GPU, "at_once", (x, y), grid=(16,), block=(1,), cooperative=True)
    assert torch.equal(y.cpu(), torch.arange(16, dtype=torch.int32).flip(0))


@pytest.mark.gpu
@pytest.mark.skipif(not device_present(), reason="needs a GPU")
@pytest.mark.parametrize("cluster", [2, 8, 16])
def test_blocks_form_clusters(cluster):
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("clusters came with sm_90")
    y = torch.zeros(32, dtype=torch.int32, device="cuda")
    cuda.launch(ON_THE_GPU, "of_a_cluster", (y,), grid=(32,), block=(32,), cluster=cluster)
    assert torch.equal(y.cpu(), 100 * cluster + torch.arange(32, dtype=torch.int32) % cluster)
