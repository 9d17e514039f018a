"""
The helper process of `harness.meters.compiled`: torch and triton loaded once, a fork per request.

    python -m harness.meters.compile_worker FD

Requests and answers are JSON messages over the inherited connection FD; the standard streams
belong to the learner's code. Each request runs in a child of its own process group, so that a
crash, an endless loop or `sys.exit` ends that request only.
"""

import ctypes
import faulthandler
import json
import os
import signal
import sys
import sysconfig
import tempfile
import tokenize
import traceback
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import IO, Any, NoReturn

import torch
import triton
from torch._library.custom_ops import OPDEFS
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.utils._pytree import tree_map_only
from triton.backends.compiler import GPUTarget
from triton.compiler import CompiledKernel
from triton.runtime.autotuner import Autotuner
from triton.runtime.cache import triton_key
from triton.runtime.jit import JITFunction

from harness import cuda
from harness.content.course import PACKAGED
from harness.content.functions import in_oracle
from harness.meters.kernel_facts import cuda_facts, triton_facts

DEVICE = "cuda:0"  # with its index: a build of PyTorch without CUDA cannot look it up
LOG_CHARACTERS = 2000
COMPILER = Path(triton.compiler.__file__).parent
# Python files that facts may depend on without saying so: their versions are known
LIBRARIES = (Path(sysconfig.get_path("stdlib")), Path(__file__).parents[1])
PACKAGES = {"site-packages", "dist-packages"}
PYTORCHS_OPERATORS = frozenset(OPDEFS)
Answer = dict[str, Any]
# which kernel, what tells of it (its files go to a folder), and the grid
Launch = tuple[Hashable, Callable[[Path], Answer], list[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """The device that a target stands for, as far as launchers ask."""

    name: str
    arch: int | str
    sms: int
    shared_bytes_per_block: int
    warp_size: int = 32

    @property
    def target(self) -> GPUTarget:
        """What Triton compiles for."""
        backend = "hip" if isinstance(self.arch, str) else "cuda"
        return GPUTarget(backend, self.arch, self.warp_size)

    @property
    def capability(self) -> tuple[int, int]:
        """Compute capability; ROCm's PyTorch gives the digits of gfx942 as (9, 4)."""
        return (9, 4) if isinstance(self.arch, str) else divmod(self.arch, 10)


GPUS = {
    "sm_75": Gpu(name="Tesla T4", arch=75, sms=40, shared_bytes_per_block=65_536),
    "sm_80": Gpu(name="NVIDIA A100", arch=80, sms=108, shared_bytes_per_block=166_912),
    "sm_89": Gpu(name="NVIDIA RTX 4090", arch=89, sms=128, shared_bytes_per_block=101_376),
    "sm_90": Gpu(name="NVIDIA H100", arch=90, sms=132, shared_bytes_per_block=232_448),
    "sm_100": Gpu(name="NVIDIA B200", arch=100, sms=148, shared_bytes_per_block=232_448),
    "gfx942": Gpu(
        name="MI300X", arch="gfx942", sms=304, shared_bytes_per_block=65_536, warp_size=64
    ),
}


# ---- a GPU that is not there ---------------------------------------------------------------


class PretendDriver:
    """As much of a Triton driver as compiling asks for."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.utils = self

    def get_current_device(self) -> int:
        """Return the only device there is."""
        return 0

    def get_current_stream(self, device: int | None = None) -> int:
        """Return the default stream."""
        return 0

    def get_current_target(self) -> GPUTarget:
        """Return what to compile for."""
        return self.gpu.target

    def get_active_torch_device(self) -> torch.device:
        """Return where the pretended tensors are."""
        return torch.device(DEVICE)

    def get_device_properties(self, device: int) -> dict[str, int]:
        """Return what tile-size heuristics look up."""
        return {
            "multiprocessor_count": self.gpu.sms,
            "max_shared_mem": self.gpu.shared_bytes_per_block,
            "warpSize": self.gpu.warp_size,
        }


def pretend(gpu: Gpu) -> None:
    """Make all who ask answer as if `gpu` were there, for the rest of this process."""
    cuda.current_gpu = lambda name: (f"sm_{gpu.arch}", gpu.shared_bytes_per_block)
    triton.runtime.driver.set_active(PretendDriver(gpu))
    major, minor = gpu.capability
    properties = SimpleNamespace(
        name=gpu.name,
        major=major,
        minor=minor,
        multi_processor_count=gpu.sms,
        shared_memory_per_block_optin=gpu.shared_bytes_per_block,
        warp_size=gpu.warp_size,
        gcnArchName=gpu.arch if isinstance(gpu.arch, str) else "",
    )
    answers = {
        "get_device_properties": properties,
        "get_device_capability": gpu.capability,
        "get_device_name": gpu.name,
        "current_device": 0,
        "device": nullcontext(),
        "synchronize": None,
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, lambda *_, answer=answer, **__: answer)
    # for good: a file may ask for the interpreter, whose kernels are not compiled
    type(triton.knobs.runtime).interpret = property(lambda _: False, lambda *_: None)
    if not torch.backends.cuda.is_built():
        allow_views_of_pretended_tensors()


def allow_views_of_pretended_tensors() -> None:
    """
    Let a build of PyTorch without CUDA slice tensors that claim to be on a GPU.

    Indexing and `contiguous` look up the guard of a tensor's device in a C++ table that has no
    entry for CUDA there; the CPU's guard, which does nothing, serves as well. A build with CUDA
    has an entry, and does the like by itself where there is no GPU. Source: PyTorch,
    c10/core/impl/DeviceGuardImplInterface.h, ensureCUDADeviceGuardSet.
    """
    cpu, cuda = 0, 1  # c10::DeviceType
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    guards = (ctypes.c_void_p * 2).in_dll(library, "_ZN3c104impl26device_guard_impl_registryE")
    guards[cuda] = guards[cpu]


# ---- one request, in its own process -------------------------------------------------------


def inspect(request: Mapping[str, Any]) -> Answer:
    """Call the launcher on pretended tensors; return the facts of each launch."""
    os.environ["TRITON_CACHE_DIR"] = request["triton_cache"]
    pretend(GPUS[request["target"]])
    launched = record_launches()
    opened = watch_sources()
    oracle = load(Path(request["oracle"]), "_oracle")
    submission = load(Path(request["file"]), "_submission")
    enter_custom_operators()
    case = dict(request["case"])
    if "dtype" in case:
        case["dtype"] = getattr(torch, case["dtype"])
    # inputs that come from NumPy are real until they are moved
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    make_inputs = in_oracle(oracle, "make_inputs", request["function"])
    inputs = pretended_inputs(make_inputs, case, mode)
    # after the file was loaded, which may have made errors of all warnings
    warnings.filterwarnings("ignore", message="Accessing the data pointer of FakeTensor")
    with mode:
        getattr(submission, request["function"])(**inputs)
    folder = Path(request["folder"])
    facts = {kernel: tell(folder) for kernel, tell, _ in launched}
    return {
        "kernels": [{**facts[kernel], "grid": grid} for kernel, _, grid in launched],
        "alone": not own_sources(opened) - {request["file"], request["oracle"]},
    }


def load(path: Path, name: str) -> ModuleType:
    """Import a file under a private name, never from bytecode of an earlier version."""
    spec = spec_from_file_location(name, path)
    assert spec is not None
    module = sys.modules[name] = module_from_spec(spec)
    with tokenize.open(path) as file:  # as Triton reads it: what is no text ends here
        source = file.read()
    exec(compile(source, path, "exec"), vars(module))
    return module


def watch_sources() -> set[str]:
    """Collect the Python files that are opened in this process from now on."""
    opened: set[str] = set()

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and str(arguments[0]).endswith((".py", ".pyc")):
            opened.add(str(Path(arguments[0]).absolute()))

    sys.addaudithook(note)
    return opened


def own_sources(opened: set[str]) -> set[str]:
    """Those of the files that belong to no library."""
    return {
        name
        for name in opened
        if (PACKAGES.isdisjoint(Path(name).parts) or Path(name).is_relative_to(PACKAGED))
        and not any(Path(name).is_relative_to(folder) for folder in LIBRARIES)
    }


def enter_custom_operators() -> None:
    """
    Make a pretended call of a file's custom operator run its body, with the launches in it.

    Otherwise it would run the substitute for tensors without memory that `register_fake` gives.
    """
    for name, operator in OPDEFS.items():
        if name not in PYTORCHS_OPERATORS:
            bodies = operator._backend_fns
            operator._abstract_fn = bodies.get("cuda", bodies.get(None))


def pretended_inputs(
    make_inputs: Callable[..., Answer], case: Answer, mode: FakeTensorMode
) -> Answer:
    """Make the launcher's arguments, their tensors on the pretended GPU and without memory."""
    try:
        with mode:
            return make_inputs(**case, device=DEVICE, seed=0)
    except RuntimeError:  # it reads values of what it draws: draw for real, then forget them
        real = make_inputs(**case, device="cpu", seed=0)
    with mode:
        return tree_map_only(torch.Tensor, like_on_device, real)  # type: ignore[no-any-return]


def like_on_device(tensor: torch.Tensor) -> torch.Tensor:
    """Return an empty tensor of the same shape, strides and dtype on the pretended GPU."""
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=DEVICE)


def record_launches() -> list[Launch]:
    """Make every launch compile and be noted with its grid instead, from now on."""
    launched: list[Launch] = []
    original = JITFunction.run

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> CompiledKernel:  # noqa: ANN401
        kernel = original(self, *args, grid=grid, warmup=True, **kwargs)
        programs = launch_grid(self, grid, args, kwargs)
        launched.append((kernel.hash, partial(triton_facts, kernel), programs))
        return kernel

    def start(kernel: cuda.Kernel, config: cuda.Config, arguments: Sequence[object]) -> None:
        # what does not fit is refused as on a GPU; tensor maps are the driver's to make
        cuda.packed(kernel, arguments, encode=lambda _: bytes(cuda.TENSOR_MAP_BYTES))
        tell = partial(cuda_facts, kernel, config)
        launched.append(((kernel, config), tell, list(config.grid)))

    JITFunction.run = run
    cuda.start = start
    # all configurations take as long, so the tuner settles on the first
    Autotuner._bench = lambda *_, **__: [0.0, 0.0, 0.0]
    return launched


def launch_grid(kernel: Any, grid: Any, args: tuple[Any, ...], kwargs: Answer) -> list[int]:  # noqa: ANN401
    """Evaluate a grid as Triton does: a function of it gets all arguments by name."""
    if callable(grid):
        defaults = {
            parameter.name: parameter.default
            for parameter in kernel.params
            if parameter.has_default
        }
        named = zip(kernel.arg_names, args, strict=False)
        grid = grid({**defaults, **dict(named), **kwargs})
    return [int(programs) for programs in grid]


# ---- the process ---------------------------------------------------------------------------


def serve(caller: Connection) -> None:
    """Answer requests one by one until the caller hangs up."""
    with suppress(EOFError, BrokenPipeError):
        while True:
            request = json.loads(caller.recv_bytes())
            caller.send_bytes(json.dumps(attend(request, caller)).encode())


def attend(request: Mapping[str, Any], caller: Connection) -> Answer:
    """Answer one request in a child; whatever it started is gone afterwards."""
    ours, theirs = Pipe(duplex=False)
    with tempfile.TemporaryFile() as log:
        child = os.fork()
        if child == 0:
            caller.close()
            run_child(request, theirs, log)
        os.setpgid(child, child)  # the child does so too: whoever comes first
        theirs.close()
        answer = received(ours, caller, request["limit_s"])
        os.killpg(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        log.seek(0)
        said = log.read().decode(errors="replace")[-LOG_CHARACTERS:]
    ours.close()
    return {"detail": said, **(answer or {"problem": death(os.waitstatus_to_exitcode(status))})}


def received(child: Connection, caller: Connection, limit_s: float) -> Answer:
    """Wait for a child's answer; it is empty when the child died without one."""
    # only its end can come from the caller meanwhile, and then nobody waits any more
    if child not in wait([child, caller], limit_s):
        return {"problem": f"no end after {limit_s:g} s"}
    try:
        return json.loads(child.recv_bytes())  # type: ignore[no-any-return]
    except EOFError:
        return {}


def run_child(request: Mapping[str, Any], answers: Connection, log: IO[bytes]) -> NoReturn:
    """Work on a request and end the process, with the standard streams going to `log`."""
    os.setpgid(0, 0)
    sys.dont_write_bytecode = True  # beside the learner's files
    for stream in (sys.stdout, sys.stderr):
        os.dup2(log.fileno(), stream.fileno())
    faulthandler.enable(log, all_threads=False)  # a crash says where
    try:
        answer = inspect(request)
    except BaseException as error:  # noqa: BLE001 -- whatever the learner's code raises is the answer
        answer = complaint(error, request)
    answers.send_bytes(json.dumps(answer).encode())
    os._exit(0)


def complaint(error: BaseException, request: Mapping[str, Any]) -> Answer:
    """Put an exception in words: its type and message, and the learner's lines on the way to it."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [one for one in frames if one.filename in (request["file"], request["oracle"])]
    first, _, rest = in_words(error).partition("\n")
    compiler = isinstance(error, cuda.BuildFailed) or any(
        Path(one.filename).is_relative_to(COMPILER) for one in frames
    )
    if theirs and not compiler:
        first += f", raised at {Path(theirs[-1].filename).name} line {theirs[-1].lineno}"
    return {
        "problem": first,
        "compiler": compiler,
        "stub": isinstance(error, NotImplementedError) and not error.args,
        "detail": "".join(traceback.format_list(theirs)) + rest,
    }


def in_words(error: BaseException) -> str:
    """The type and message of an exception; the first line tells by itself."""
    message = "".join(traceback.format_exception_only(error)).strip()
    if isinstance(error, DataDependentOutputException):
        return f"a tensor's value read on the host, where it has none ({message})"
    if isinstance(error, SyntaxError):  # the message opens with the place
        return f"{type(error).__name__}: {error}\n{message}"
    return message


def death(code: int) -> str:
    """Put the exit code of a child that gave no answer in words."""
    return f"a crash with {signal.Signals(-code).name}" if code < 0 else f"an exit with code {code}"


def warm_up() -> None:
    """
    Load what every child needs, once; Triton compiles nothing, for its threads survive no fork.

    NVRTC, on the other hand, has to have compiled something: on a machine with a GPU's driver its
    first compilation in a forked process ends in SIGSEGV.
    """
    triton_key()
    with suppress(RuntimeError):  # it is an extra
        cuda.build('extern "C" __global__ void nothing() {}', "nothing", arch="sm_90")
    with FakeTensorMode():
        torch.ones(2).half().to(DEVICE)


if __name__ == "__main__":
    with Connection(int(sys.argv[1])) as connection:
        warm_up()
        serve(connection)
    os._exit(0)  # nothing is left to tidy, and taking torch down takes a second
