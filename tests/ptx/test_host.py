"""`harness.cuda.launch` without a GPU: tensors in, tensors out, hazards raised, work counted."""

import pytest
import torch

from harness import cuda
from harness.base.errors import HarnessError, SubmissionError, UsageProblem
from harness.meters.ptx import ptx_meter
from harness.simulators.hazards import Hazard
from harness.simulators.ptx import host
from harness.simulators.ptx.sources import parameter_names

SOURCE = r"""
extern "C" __global__ void doubled(const float* x, float* y, int n) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < n) y[at] = 2 * x[at];
}

extern "C" __global__ void past_the_end(const float* x, float* y) {
    y[threadIdx.x] = x[threadIdx.x + 1];
}

extern "C" __global__ void columns(const float* x, float* y, int n, int stride) {
    y[threadIdx.x] = x[threadIdx.x * stride];
}

extern "C" __global__ void gathered(const char* x, char* y, long long stride) {
    y[threadIdx.x] = x[threadIdx.x / 8 * stride + threadIdx.x % 8];
}

extern "C" __global__ void reversed(float* x) {
    __shared__ float tile[64];
    tile[threadIdx.x] = x[threadIdx.x];
    x[threadIdx.x] = tile[63 - threadIdx.x];
}

extern "C" __global__ void cluster_of_one(const float* x, float* y) {
    __shared__ float held[64];
    held[threadIdx.x] = x[threadIdx.x];
    unsigned at = (unsigned)__cvta_generic_to_shared(held + threadIdx.x);
    asm volatile("mapa.shared::cluster.u32 %0, %0, 0;" : "+r"(at));
    asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(y[threadIdx.x]) : "r"(at) : "memory");
}

extern "C" __global__ void endless(volatile int* x) { while (*x == 0) ; }

extern "C" __global__ void said(int n) { printf("n is %d\n", n); }
"""


@pytest.fixture(autouse=True)
def _simulated(tmp_path, monkeypatch):
    monkeypatch.setenv("KATA_HOME", str(tmp_path))
    with host.launching():
        yield
    cuda.simulator = None


def launch(name, *arguments, grid=1, block=64, **given):
    cuda.launch(SOURCE, name, arguments, grid=(grid,), block=(block,), **given)


def test_a_kernel_writes_into_its_tensors():
    x, y = torch.arange(1000.0), torch.empty(1000)
    launch("doubled", x, y, 1000, grid=16)
    assert torch.equal(y, 2 * x)


def test_a_block_by_itself_is_a_cluster_of_one():
    x, y = torch.arange(64.0), torch.empty(64)
    launch("cluster_of_one", x, y)
    assert torch.equal(y, x)


def test_views_keep_their_place_in_their_storage():
    home = torch.arange(12.0).reshape(3, 4)
    y = torch.zeros(3)
    with ptx_meter() as p:
        launch("columns", home[:, 1], y, 3, 4, block=3)
    assert y.tolist() == [1, 5, 9]
    assert p.counters["global_load_sectors"] == 2  # bytes 4, 20 and 36 of the allocation


def test_rows_may_lie_further_apart_than_31_bits_count():
    home = torch.empty(2**31 + 8, dtype=torch.uint8)  # of which two pages are touched
    rows = home.as_strided((2, 8), (2**31, 1))
    rows.copy_(torch.arange(16).reshape(2, 8))
    y = torch.zeros(2, 8, dtype=torch.uint8)
    launch("gathered", rows, y, rows.stride(0), block=16)
    assert torch.equal(y, rows)


def test_arguments_that_overlap_are_one_memory():
    x = torch.arange(65.0)
    launch("doubled", x[:64], x[1:], 64)
    assert torch.equal(x, torch.cat([torch.zeros(1), 2 * torch.arange(64.0)]))


def test_zero_is_a_number_beside_an_empty_tensor():
    # whose address is 0, too
    y = torch.zeros(64)
    launch("doubled", torch.empty(0), y, 0)
    assert not y.any()


def test_an_address_may_be_a_number():
    x, y = torch.arange(64.0), torch.zeros(64)
    with ptx_meter(raising=False):
        launch("doubled", x, y, 32)
        launch("doubled", x, y.data_ptr() + 4 * 32, 32)
    assert torch.equal(y[:32], 2 * x[:32])
    assert not y[32:].any()  # what no tensor among the arguments holds is out of bounds


def test_a_hazard_is_raised_with_the_lines_of_this_file():
    x = torch.arange(64.0)
    with pytest.raises(Hazard) as raised:
        launch("reversed", x)
    told = str(raised.value).splitlines()
    assert told[0].startswith("race: thread ")
    assert told[1].startswith("  now:    test_host.py:")
    assert told[1].endswith("x[threadIdx.x] = tile[63 - threadIdx.x];")
    assert told[2].endswith("tile[threadIdx.x] = x[threadIdx.x];")
    assert told[3].startswith("  fix:    order the two accesses")


def test_what_lies_past_a_view_is_out_of_bounds():
    home, y = torch.arange(128.0), torch.zeros(64)
    with pytest.raises(Hazard, match=r"byte 256 of x, a 64 float32 tensor \(256 bytes\)"):
        launch("past_the_end", home[:64], y)


@pytest.mark.parametrize(
    ("text", "kernel", "names"),
    [
        ("__global__ void f(const float* __restrict__ x, int n) {", "f", ["x", "n"]),
        ("template <typename T>\n__global__ void __launch_bounds__(256)\nf(T (*x)[4], T y[N])\n{",
         "f<float>", ["x", "y"]),
        ("__global__ void g(int a) { }\n__global__ void f(int b, int c) {", "f", ["b", "c"]),
        ("#define ALL int a, int b\n__global__ void f(ALL) {", "f", ["argument 0", "argument 1"]),
    ],
    ids=["plain", "an array", "the second", "a macro"],
)  # fmt: skip
def test_arguments_are_called_what_the_source_calls_them(text, kernel, names):
    assert parameter_names(text, kernel, 2) == names


def test_a_loop_without_an_end_is_named():
    with host.launching(most_steps=2000), pytest.raises(Hazard, match=r"^endless: "):
        launch("endless", torch.zeros(1, dtype=torch.int32), block=1)


def test_hazards_can_be_collected_instead():
    with ptx_meter(raising=False) as p:
        launch("reversed", torch.arange(64.0))
        launch("doubled", torch.ones(64), torch.ones(64), 64)
    assert p.hazard_names == {"race"}
    assert p.kernels == ["reversed", "doubled"]


def test_an_instruction_that_is_not_modelled_is_no_fault_of_the_learner(monkeypatch):
    kernel = cuda.build_ptx(SOURCE, "said", arch="sm_90")
    ptx = kernel.ptx.replace("call.uni", "frobnicate.b32 %r1, 1;\n\tcall.uni", 1)
    broken = cuda.Kernel(name="said", symbol="said", arch="sm_90", ptx=ptx, cubin=b"")
    monkeypatch.setattr(host, "_built", lambda *_: broken)
    with pytest.raises(HarnessError, match=r"frobnicate\.b32") as raised:
        launch("said", 3, block=1)
    assert raised.value.exit_code == 3


def test_printf_is_heard(capsys):
    launch("said", 3, block=2)
    assert capsys.readouterr().out == "n is 3\nn is 3\n"


def test_ptx_is_built_once(monkeypatch):
    host._built.cache_clear()
    launch("doubled", torch.ones(1), torch.ones(1), 1)
    host._built.cache_clear()
    monkeypatch.setattr(cuda, "build_ptx", None)
    launch("doubled", torch.ones(1), torch.ones(1), 1)


def test_one_meter_at_a_time():
    with ptx_meter(), pytest.raises(UsageProblem, match="one meter at a time"), ptx_meter():
        pass


def test_another_simulator_is_refused():
    with pytest.raises(SubmissionError, match="found it replaced"), host.launching():
        cuda.simulator = None
