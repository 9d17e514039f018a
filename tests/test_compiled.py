"""What is read off kernels compiled for GPUs that are not there."""

import os
import signal
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from harness.base.errors import HarnessError, UsageProblem
from harness.hardware.profiles import find_profile
from harness.meters import compiled
from harness.meters.compiled import (
    CompileFailed,
    CompileRequest,
    KernelFacts,
    StillAStub,
    compile_kernels,
    stop_worker,
)
from harness.meters.occupancy import occupancy, residency
from harness.running.causes import cause_of, in_one_line

ORACLE = """
import torch


def make_inputs(*, n, dtype=torch.float32, device, seed):
    generator = torch.Generator().manual_seed(seed)
    return {"x": torch.randn(n, n, generator=generator).to(dtype).to(device)}
"""

READING_ORACLE = """
import torch


def make_inputs(*, n, device, seed):
    rows = int(torch.randint(n, n + 1, (1,)))
    x = torch.empty(2 * rows, device=device)[::2]
    return {"x": x, "lengths": [torch.ones(rows, dtype=torch.int32, device=device)], "rows": rows}
"""

HEADER = """
import triton
import triton.language as tl
"""

KERNEL = (
    HEADER
    + """

@triton.jit
def copy_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr = 1024):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < n), mask=i < n)
"""
)

COPY = (
    KERNEL
    + """

def copy(x, out=None):
    out = x.new_empty(x.shape) if out is None else out
    n = x.numel()
    copy_kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, out, n)
    return out
"""
)

MATMUL = (
    HEADER
    + """
from triton.tools.tensor_descriptor import TensorDescriptor


@triton.jit
def matmul_kernel(a_ptr, b_ptr, c_ptr, N, B: tl.constexpr):
    m = tl.program_id(0) * B + tl.arange(0, B)
    n = tl.program_id(1) * B + tl.arange(0, B)
    acc = tl.zeros((B, B), tl.float32)
    for start in range(0, N, B):
        k = start + tl.arange(0, B)
        a = tl.load(a_ptr + m[:, None] * N + k)
        acc = tl.dot(a, tl.load(b_ptr + k[:, None] * N + n), acc)
    tl.store(c_ptr + m[:, None] * N + n, acc.to(tl.float16))


def matmul(x):
    y = x.new_empty(x.shape)
    matmul_kernel[(x.shape[0] // 64, x.shape[1] // 64)](x, x, y, x.shape[0], B=64)
    return y


@triton.jit
def descriptor_kernel(a, b, c, N, B: tl.constexpr):
    m, n = tl.program_id(0) * B, tl.program_id(1) * B
    acc = tl.zeros((B, B), tl.float32)
    for k in range(0, N, B):
        acc = tl.dot(a.load([m, k]), b.load([k, n]), acc)
    c.store([m, n], acc.to(tl.float16))


def descriptor_matmul(x):
    y = x.new_empty(x.shape)
    a, b, c = (TensorDescriptor.from_tensor(tensor, [64, 64]) for tensor in (x, x, y))
    descriptor_kernel[(x.shape[0] // 64, x.shape[1] // 64)](a, b, c, x.shape[0], B=64)
    return y
"""
)


@pytest.fixture(scope="module", autouse=True)
def helper():
    yield
    stop_worker()


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def build(tmp_path, cache_dir):
    def run(source, function, target="sm_90", *, oracle=ORACLE, limit_s=60.0, **case):
        request = write_request(tmp_path, source, function, target, oracle, case or {"n": 1024})
        return compile_kernels(request, cache_dir=cache_dir, limit_s=limit_s)

    return run


def write_request(folder, source, function, target, oracle, case):
    (folder / "submission.py").write_text(source)
    (folder / "oracle.py").write_text(oracle)
    return CompileRequest(
        file=folder / "submission.py",
        oracle=folder / "oracle.py",
        function=function,
        case=case,
        target=target,
    )


def matmul_facts(build, target, function="matmul"):
    (facts,) = build(MATMUL, function, target, n=512, dtype="float16")
    return facts


def test_tensor_cores_of_each_generation_are_told_apart(build):
    ampere, hopper = matmul_facts(build, "sm_80"), matmul_facts(build, "sm_90")
    assert ampere.has("mma.sync")
    assert ampere.has("HMMA")
    assert not ampere.has("wgmma.mma_async")
    assert hopper.has("wgmma.mma_async")
    assert hopper.has("HGMMA")
    assert not hopper.has("mma.sync")
    assert ampere.target == "sm_80"
    assert "ttg.num-warps" in ampere.ttgir


def test_facts_of_a_matmul(build):
    facts = matmul_facts(build, "sm_80")
    assert (facts.name, facts.grid) == ("matmul_kernel", (8, 8))
    assert (facts.num_warps, facts.num_stages) == (4, 3)
    # two tiles of 64 x 64 float16, in stages - 1 = 2 buffers
    assert facts.shared_bytes == 2 * 2 * 64 * 64 * 2
    assert 32 < facts.registers <= 255
    assert facts.spills == facts.local_bytes == 0
    assert not facts.has("STL")


def test_host_descriptors_become_tma_on_hopper(build):
    facts = matmul_facts(build, "sm_90", "descriptor_matmul")
    assert facts.has("cp.async.bulk.tensor")
    assert facts.has("wgmma.mma_async")
    # a file called tf32.py is no use of tf32
    assert ".py" in facts.binary.with_suffix(".ptx").read_text()
    assert ".py" not in facts.ptx


def test_amd_facts_come_from_the_isa(build):
    facts = matmul_facts(build, "gfx942")
    assert facts.has("v_mfma")
    assert facts.ptx == ""
    assert facts.sass.count(".amdgcn_target") == 1
    assert 32 < facts.registers <= 512
    assert facts.shared_bytes > 0
    assert facts.spills == facts.local_bytes == 0


SPILL = (
    HEADER
    + """

@triton.jit
def normalize_kernel(x_ptr, y_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i)
    tl.store(y_ptr + i, x / tl.sum(x))


def normalize(x, registers):
    y = x.new_empty(x.shape)
    normalize_kernel[(1,)](x, y, BLOCK=4096, num_warps=1, maxnreg=registers)
    return y
"""
)


def test_values_that_do_not_fit_in_registers_spill(build):
    # each of 32 threads holds 128 values from the sum to the division
    source = SPILL.replace("(x, registers)", "(x, registers=64)")
    (tight,) = build(source, "normalize")
    assert tight.registers <= 64
    assert tight.spills >= 2 * 4 * (128 - 64)
    assert tight.local_bytes >= 4 * (128 - 64)
    assert tight.has("STL")
    assert tight.has("LDL")
    (roomy,) = build(source.replace("=64", "=255"), "normalize")
    assert roomy.registers > 128
    assert roomy.spills == roomy.local_bytes == 0


def test_spilled_bytes_are_those_of_local_stores_and_loads():
    from harness.meters.kernel_facts import spilled_bytes

    assert spilled_bytes("STG.E.64 [R2], R4 ; LDS R1, [R2] ; LDG.E R2, [R4]") == 0
    sass = "STL [R1], R2 ; STL.64 [R1+4], R4 ; @P0 LDL.LU.128 R4, [R1] ; LDL.U8 R3, [R1]"
    assert spilled_bytes(sass) == 4 + 8 + 16 + 1


@pytest.mark.parametrize(
    ("target", "profile_id"),
    [
        ("sm_75", "t4"),
        ("sm_80", "a100_sxm_80gb"),
        ("sm_89", "rtx_4090"),
        ("sm_90", "h100_sxm"),
        ("sm_100", "b200_sxm"),
        ("gfx942", "mi300x"),
    ],
)
def test_a_pretended_gpu_is_the_one_of_its_profile(target, profile_id):
    from harness.meters.compile_worker import GPUS

    gpu, known = GPUS[target], profile(profile_id)
    assert known.arch == target
    assert gpu.sms == known.sms
    assert gpu.shared_bytes_per_block == known.smem_per_block_bytes
    assert gpu.warp_size == known.warp_size


def test_there_is_a_gpu_behind_every_target():
    from harness.meters.compile_worker import GPUS

    assert tuple(GPUS) == compiled.TARGETS
    assert GPUS["sm_100"].capability == (10, 0)
    assert GPUS["sm_89"].target.arch == 89
    assert GPUS["gfx942"].target.backend == "hip"


def test_amd_usage_counts_spilled_registers_in_bytes():
    from harness.meters.kernel_facts import amd_usage

    isa = """
    .amdhsa_next_free_vgpr 512
    .private_segment_fixed_size: 188
    .vgpr_count:     512
    .vgpr_spill_count: 62
"""
    assert amd_usage(isa) == {"registers": 512, "local_bytes": 188, "spills": 248}


def test_accesses_are_vectorised_unless_the_view_is_misaligned(build):
    (whole,) = build(COPY, "copy")
    (view,) = build(COPY + "\n\ndef shifted(x):\n    return copy(x.view(-1)[1:])\n", "shifted")
    assert whole.has("ld.global.v4")
    assert not view.has("ld.global.v4")
    assert whole.count("ld.global.v4") == 2  # 1024 floats, 128 threads, 4 in each load
    assert view.count("ld.global") == 8
    assert not whole.has("red")
    assert not whole.has("ld.global.v")


def test_launches_are_listed_in_order_with_their_grids(build):
    source = COPY + (
        "\n\ndef twice(x):\n"
        "    copy(x.t().contiguous()[:, ::2])\n"
        "    return copy(x[0], out=x.new_empty(x.shape[1]).half())\n"
    )
    first, second = build(source, "twice", n=100)
    assert (first.grid, second.grid) == ((5,), (1,))
    assert first.binary != second.binary


def test_launcher_without_launches_builds_nothing(build):
    assert build("def nothing(x):\n    return x\n", "nothing") == ()


AUTOTUNED = (
    HEADER
    + """

def prune(configs, arguments, **kwargs):
    return [config for config in configs if config.kwargs["BLOCK"] > 256]


@triton.autotune(
    [triton.Config({"BLOCK": block}, num_warps=block // 128) for block in (256, 512, 1024)],
    key=["n"],
    prune_configs_by={"early_config_prune": prune},
    restore_value=["x_ptr"],
)
@triton.jit
def scale_kernel(x_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + i, 2 * tl.load(x_ptr + i, mask=i < n), mask=i < n)


def scale_(x):
    scale_kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, x.numel())
    return x
"""
)


def test_autotuned_kernel_is_built_with_the_first_config_left(build):
    (facts,) = build(AUTOTUNED, "scale_", n=64)
    assert facts.num_warps == 4
    assert facts.grid == (8,)


GLUON = """
from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def copy_kernel(x_ptr, y_ptr, BLOCK: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([4], [32], [8], [0])
    i = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout=layout)
    gl.store(y_ptr + i, gl.load(x_ptr + i))


def copy(x):
    y = x.new_empty(x.shape)
    copy_kernel[(x.numel() // 1024,)](x, y, BLOCK=1024, num_warps=8)
    return y
"""


def test_gluon_kernels_are_kernels(build):
    (facts,) = build(GLUON, "copy")
    assert (facts.num_warps, facts.grid) == (8, (1024,))
    assert facts.count("ld.global.v4") == 1


def test_launcher_sees_the_gpu_it_is_built_for(build):
    source = HEADER + (
        "\nimport torch\n"
        "\n\n@triton.jit\ndef fill_kernel(x_ptr, value):\n"
        "    tl.store(x_ptr + tl.program_id(0), value)\n"
        "\n\ndef fill(x):\n"
        "    assert x.is_cuda and x.dtype is torch.float16 and x.stride() == (64, 1)\n"
        "    with torch.cuda.device(x.device):\n"
        "        sms = torch.cuda.get_device_properties(x.device).multi_processor_count\n"
        "        major, minor = torch.cuda.get_device_capability()\n"
        "        fill_kernel[(sms, major, minor)](x, 0.0)\n"
    )
    (hopper,) = build(source, "fill", "sm_90", n=64, dtype="float16")
    (instinct,) = build(source, "fill", "gfx942", n=64, dtype="float16")
    assert hopper.grid == (132, 9, 0)
    assert instinct.grid == (304, 9, 4)


def test_inputs_may_depend_on_what_was_drawn(build):
    source = COPY + (
        "\n\ndef strided(x, lengths, rows):\n"
        "    assert x.is_cuda and lengths[0].is_cuda and x.stride() == (2,)\n"
        "    assert x.shape == lengths[0].shape == (rows,)\n"
        "    copy(x)\n"
    )
    (facts,) = build(source, "strided", oracle=READING_ORACLE, n=3000)
    assert facts.grid == (3,)


def test_huge_inputs_need_no_memory(build):
    (facts,) = build(COPY, "copy", n=1 << 20)
    assert facts.grid == (1 << 30,)


@pytest.mark.parametrize(
    "wish",
    [
        'os.environ["TRITON_INTERPRET"] = "1"',
        'os.environ.setdefault("TRITON_INTERPRET", "1")',
        'os.environ["TRITON_INTERPRET"] = "0"',
        "triton.knobs.runtime.interpret = True",
    ],
)
def test_a_file_that_asks_for_the_interpreter_is_compiled(build, wish):
    (facts,) = build(f"import os, triton\n{wish}\n{COPY}", "copy")
    assert facts.has("ld.global.v4")


def test_a_file_that_makes_errors_of_warnings_is_compiled(build):
    strict = 'import warnings\nwarnings.simplefilter("error")\n'
    assert len(build(strict + COPY, "copy")) == 1


OPERATOR = """

@torch.library.{kind}("pretended::{kind}", mutates_args=())
def operator(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    n = x.numel()
    {kernel}[(triton.cdiv(n, 1024),)](x, y, n)
    return y


def twice(x):
    return torch.ops.pretended.{kind}(operator(x))
"""


@pytest.mark.parametrize(
    ("kind", "kernel", "substitute"),
    [
        ("custom_op", "copy_kernel", "operator.register_fake(torch.empty_like)"),
        ("custom_op", "copy_kernel", ""),
        ("triton_op", "torch.library.wrap_triton(copy_kernel)", ""),
    ],
)
def test_launches_inside_custom_operators_are_followed(build, kind, kernel, substitute):
    operator = OPERATOR.format(kind=kind, kernel=kernel)
    source = f"import torch\n{COPY}{operator}\n\n{substitute}\n"
    facts = build(source, "twice", n=64)
    assert [(one.name, one.grid) for one in facts] == [("copy_kernel", (4,))] * 2


# ---- what goes wrong -----------------------------------------------------------------------


def test_unknown_target_is_refused_before_anything_starts(build):
    with pytest.raises(UsageProblem, match=r"found 'sm_9'\. Did you mean sm_90"):
        build(COPY, "copy", "sm_9")


def test_stub_is_reported_by_the_name_of_its_exception(build):
    source = "def stub(x):\n    raise NotImplementedError\n"
    with pytest.raises(StillAStub, match=r"submission\.py: expected stub .* NotImplementedErr"):
        build(source, "stub")


def test_what_a_written_solution_does_not_do_is_no_stub(build):
    source = "def picky(x):\n    raise NotImplementedError('half precision')\n"
    with pytest.raises(CompileFailed, match="found NotImplementedError: half precision") as caught:
        build(source, "picky")
    assert not isinstance(caught.value, StillAStub)


def test_learners_exception_comes_with_its_place(build):
    source = "def crooked(x):\n    return x.reshape(3, -1)\n"
    with pytest.raises(CompileFailed) as caught:
        build(source, "crooked", n=64)
    assert "for sm_90, found RuntimeError: shape '[3, -1]' is invalid" in caught.value.message
    assert "raised at submission.py line 2. It was given make_inputs(n=64)" in caught.value.message
    assert "return x.reshape(3, -1)" in caught.value.message
    assert "compile_worker" not in caught.value.message


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("missing(x)", "NameError: name 'missing' is not defined, raised at submission.py line 13"),
        ("assert x is None", "AssertionError, raised at submission.py line 13"),
        ("f(x)", "RecursionError: maximum recursion depth exceeded, raised at submission.py line"),
        ("copy_kernel[(1,)](x, x)", "TypeError: dynamic_func() missing 1 required positional"),
    ],
)
def test_what_a_launcher_raises_is_no_compile_error(build, body, words):
    with pytest.raises(CompileFailed) as caught:
        build(f"{KERNEL}\n\ndef f(x):\n    {body}\n", "f")
    line = in_one_line(caught.value.message)
    assert line.startswith("submission.py: expected f to launch its kernels for sm_90, found ")
    assert words in line


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        ("tl.store(x_ptr + missing, 0)", "missing is not defined"),
        ("tl.static_assert(False, 'too big')", "too big"),
        ("tl.arange(0, 3)", "power of 2"),
        (
            "tl.inline_asm_elementwise('bogus.op $0, $1;', '=r,r', [tl.arange(0, 32)], "
            "dtype=tl.int32, is_pure=False, pack=1)",
            "bogus",
        ),
    ],
)
def test_what_the_compiler_refuses_is_a_compile_error(build, kernel, words):
    source = f"{HEADER}\n@triton.jit\ndef k(x_ptr):\n    {kernel}\n\ndef f(x):\n    k[(1,)](x)\n"
    with pytest.raises(CompileFailed) as caught:
        build(source, "f")
    line = in_one_line(caught.value.message)
    assert line.startswith(
        "compile error: submission.py: expected f to build its kernels for sm_90"
    )
    assert words in caught.value.message


def test_a_file_that_is_no_python_says_so(build, tmp_path):
    with pytest.raises(CompileFailed, match=r"found SyntaxError: .* \(submission\.py, line 2\)"):
        build("def f(x):\n    return x +\n", "f")
    with pytest.raises(CompileFailed, match="found SyntaxError: .*null bytes"):
        build("# \0\ndef f(x):\n    return x\n", "f")
    request = write_request(tmp_path, COPY, "copy", "sm_90", ORACLE, {"n": 64})
    request.file.write_bytes(COPY.encode() + b"# caf\xe9\n")
    with pytest.raises(CompileFailed, match="'utf-8' codec can't decode byte 0xe9"):
        compile_kernels(request)


def test_triton_without_a_gpu_or_a_file_is_told_why():
    line = in_one_line("RuntimeError: 0 active drivers ([]). There should only be one.")
    assert "| likely cause: Triton asked for a GPU" in line
    assert "TRITON_INTERPRET=0" in line
    assert "one configuration" in line
    line = in_one_line("mine.py does not import: ValueError: @jit functions should be defined in a "
                       "Python file (line 9)")  # fmt: skip
    assert "| likely cause: " in line
    assert "UTF-8" in line
    assert cause_of(line) is None


def test_kernel_that_does_not_compile_shows_the_line(build):
    source = COPY.replace("tl.load(x_ptr + i,", "tl.load(x_ptr + missing,")
    with pytest.raises(CompileFailed, match="missing is not defined"):
        build(source, "copy")


def test_reading_a_value_on_the_host_is_named(build):
    with pytest.raises(CompileFailed, match="a tensor's value read on the host"):
        build("def peek(x):\n    return x.sum().item()\n", "peek")


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("sys.exit(3)", "found SystemExit: 3"),
        ("os._exit(3)", "found an exit with code 3"),
        ("os.kill(os.getpid(), 11)", r"(?s)found a crash with SIGSEGV.*line 5 in crash"),
        ("print('last words', flush=True); os.abort()", "(?s)SIGABRT.*last words"),
    ],
)
def test_crash_ends_its_own_request_only(build, statement, words):
    source = f"import os, sys\n\n\ndef crash(x):\n    {statement}\n"
    with pytest.raises(CompileFailed, match=words):
        build(source, "crash")
    assert len(build(COPY, "copy")) == 1


def test_noise_on_the_standard_streams_does_no_harm(build):
    noise = "import os\n\nos.write(1, b'{' * 100_000)\nos.write(2, b'}')\nprint('{}')\n"
    assert len(build(noise + COPY, "copy")) == 1


def test_endless_launcher_is_killed_with_what_it_started(build, tmp_path):
    source = (
        "import pathlib, subprocess\n\n\ndef hang(x):\n"
        "    child = subprocess.Popen(['sleep', '300'])\n"
        f"    pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(child.pid))\n"
        "    while True:\n        pass\n"
    )
    with pytest.raises(CompileFailed, match=r"found no end after [\d.]+ s") as caught:
        build(source, "hang", limit_s=1.0)
    assert cause_of(caught.value.message) is None
    assert not running((tmp_path / "pid").read_text())


def running(pid):
    status = Path(f"/proc/{pid}/status")
    return status.exists() and "State:\tZ" not in status.read_text()


def test_lost_helper_is_replaced(build, monkeypatch):
    build(COPY, "copy")
    build("def nothing(x):\n    return None\n", "nothing")
    os.kill(compiled._helper().process.pid, signal.SIGKILL)
    with pytest.raises(HarnessError, match="compile_worker: expected an answer"):
        build("def nothing(x):\n    return 1\n", "nothing")
    # what a file under test may have set meanwhile is no concern of the new one
    monkeypatch.setenv("TORCH_LOGS", "no_such_log")
    assert build("def nothing(x):\n    return 1\n", "nothing") == ()


class Interruption(Exception):
    pass


def test_interrupted_request_leaves_no_answer_behind(build):
    def interrupt(*_):
        raise Interruption

    before = signal.signal(signal.SIGUSR1, interrupt)
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGUSR1))
    timer.start()
    try:
        with pytest.raises(Interruption):
            build("import time\n\n\ndef slow(x):\n    time.sleep(30)\n", "slow")
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)
    assert [facts.name for facts in build(GLUON, "copy")] == ["copy_kernel"]


# ---- the cache -----------------------------------------------------------------------------


def test_known_result_needs_no_helper(build):
    first = build(COPY, "copy")
    stop_worker()
    assert build(COPY, "copy") == first
    assert stop_worker() == ""
    assert compiled._helper.cache_info().currsize == 0


def test_every_part_of_a_request_is_part_of_its_key(tmp_path):
    request = write_request(tmp_path, COPY, "copy", "sm_90", ORACLE, {"n": 64})
    keys = {
        compiled._cache_key(one)
        for one in (
            request,
            replace(request, function="other"),
            replace(request, case={"n": 65}),
            replace(request, target="sm_80"),
            replace(request, file=request.oracle),
            replace(request, oracle=request.file),
        )
    }
    assert len(keys) == 6
    assert compiled._cache_key(replace(request, case={"n": 64})) in keys


@pytest.mark.parametrize(
    "importing",
    [
        "import sys\nsys.path.insert(0, {folder!r})\nfrom beside import copy",
        "from importlib.util import module_from_spec, spec_from_file_location\n"
        "spec = spec_from_file_location('beside', {folder!r} + '/beside.py')\n"
        "module = module_from_spec(spec)\nspec.loader.exec_module(module)\ncopy = module.copy",
        "exec(open({folder!r} + '/beside.py').read())",
    ],
)
def test_a_change_in_a_file_beside_it_is_seen(build, tmp_path, importing):
    beside = tmp_path / "beside.py"
    beside.write_text("def copy(x):\n    return 1\n")
    source = importing.format(folder=str(tmp_path))
    assert build(source, "copy") == ()
    beside.write_text("def copy(x):\n    return y\n")
    with pytest.raises(CompileFailed, match="name 'y' is not defined"):
        build(source, "copy")
    assert not (tmp_path / "__pycache__").exists()


def test_a_library_beside_it_changes_nothing(build):
    source = f"import triton.testing, difflib, jaxtyping\nimport harness.hardware.profiles\n{COPY}"
    build(source, "copy", n=64)
    stop_worker()
    assert len(build(source, "copy", n=64)) == 1
    assert compiled._helper.cache_info().currsize == 0


def test_without_a_cache_everything_is_built_again(tmp_path):
    request = write_request(tmp_path, COPY, "copy", "sm_90", ORACLE, {"n": 64})
    (first,), (second,) = compile_kernels(request), compile_kernels(request)
    assert first.binary != second.binary
    assert first.sass == second.sass


# ---- occupancy -----------------------------------------------------------------------------


def facts_of(*, target="sm_90", warps, registers, shared_bytes=0):
    return KernelFacts(
        name="kernel",
        target=target,
        grid=(1,),
        num_warps=warps,
        num_stages=1,
        registers=registers,
        spills=0,
        local_bytes=0,
        shared_bytes=shared_bytes,
        binary=Path("kernel.cubin"),
    )


def profile(name):
    return find_profile(Path(__file__).parents[1] / "hardware_profiles", name)


@pytest.mark.parametrize(
    ("warps", "registers", "shared_bytes", "resident"),
    [
        (8, 32, 0, 64),
        (8, 40, 0, 48),  # 1280 a warp, 12 warps in a partition of 16384
        (4, 33, 0, 48),  # 33 registers round up to 40
        (32, 33, 0, 32),  # one block of 32 warps of the 48 that would fit
        (4, 255, 0, 8),
        (1, 16, 0, 32),  # 32 blocks
        (8, 32, 100 * 1024, 16),
        (8, 32, 227 * 1024, 8),
        (8, 32, 227 * 1024 + 1, 0),
        (4, 32, 7 * 1024, 64),  # 8192 bytes with what is reserved: 28 blocks, 16 fill the warps
        (2, 32, 7 * 1024, 56),
        (2, 32, 7 * 1024 + 129, 54),  # 8321 bytes round up to 8448: 27 blocks
    ],
)
def test_occupancy_on_hopper(warps, registers, shared_bytes, resident):
    facts = facts_of(warps=warps, registers=registers, shared_bytes=shared_bytes)
    assert occupancy(facts, profile("h100_sxm")) == resident / 64


@pytest.mark.parametrize(
    ("warps", "registers", "shared_bytes", "blocks", "limits"),
    [
        (8, 32, 0, 8, ("registers", "warps")),
        (8, 40, 0, 6, ("registers",)),
        (1, 16, 0, 32, ("blocks",)),
        (8, 16, 100 * 1024, 2, ("shared memory",)),
        (8, 16, 228 * 1024, 0, ("shared memory",)),
    ],
)
def test_what_limits_occupancy_is_named(warps, registers, shared_bytes, blocks, limits):
    facts = facts_of(warps=warps, registers=registers, shared_bytes=shared_bytes)
    found = residency(facts, profile("h100_sxm"))
    assert (found.blocks, found.limits) == (blocks, limits)
    assert found.share == blocks * warps / 64


def test_occupancy_elsewhere():
    turing = facts_of(target="sm_75", warps=4, registers=64, shared_bytes=16 * 1024)
    assert occupancy(turing, profile("t4")) == 16 / 32  # 4 blocks of 16 KiB in 64 KiB
    # 106 registers round up to 112 of a SIMD's 512: 4 waves, on 4 SIMDs; 5 at 102
    instinct = facts_of(target="gfx942", warps=1, registers=106)
    assert occupancy(instinct, profile("mi300x")) == 16 / 32
    assert occupancy(replace(instinct, registers=96), profile("mi300x")) == 20 / 32
    assert occupancy(replace(instinct, shared_bytes=8193), profile("mi300x")) == 7 / 32


def test_occupancy_on_another_gpu_is_refused():
    with pytest.raises(UsageProblem, match="expected a profile of sm_90, found t4 "):
        occupancy(facts_of(warps=4, registers=32), profile("t4"))


def test_occupancy_of_a_real_kernel(build):
    facts = matmul_facts(build, "sm_90")
    share = occupancy(facts, profile("h100_sxm"))
    assert 0 < share < 1
    blocks = share * 64 / facts.num_warps
    assert blocks == min(
        512 // (8 * -(-facts.registers // 8)) * 4 // facts.num_warps,
        233_472 // (facts.shared_bytes + 1024),
    )
