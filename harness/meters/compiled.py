"""
Static facts of the kernels that a learner's own launcher would build for a named GPU.

No GPU is needed: a helper process calls the launcher on tensors that have a shape and claim to
be on that GPU, but hold no memory, and keeps what Triton, Gluon or NVRTC compiles on the way.

    facts = compile_kernels(CompileRequest(file=…, oracle=…, function="matmul",
                                           case={"n": 4096, "dtype": "float16"}, target="sm_90"))
    facts[0].registers, facts[0].spills, facts[0].has("wgmma.mma_async")

An autotuned kernel is built with the first configuration that its pruning leaves: nothing is
timed. Kernels only: what a launcher reads back from a tensor on the host has no value here.
A launch inside a custom operator of PyTorch counts like any other.
"""

import atexit
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import Any

from harness.base.errors import HarnessError, SubmissionError, UsageProblem, nearest
from harness.base.files import explained, hash_of, make_folder, write_atomically
from harness.base.pace import pace

TARGETS = ("sm_75", "sm_80", "sm_89", "sm_90", "sm_100", "gfx942")

COMPILED_WITH = ("torch", "triton", "nvidia-cuda-nvrtc")

START_LIMIT_S = 60.0  # importing torch and triton on a slow disk

# where an instruction stands in the texts of cuobjdump and of LLVM, and what only fills a line
SASS_INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?\w+\s+)?([A-Z]\w*)", re.MULTILINE)
AMD_INSTRUCTION = re.compile(r"^\s+([a-z]+_\w+)", re.MULTILINE)
PADDING = ("NOP", "s_code_end")

# interpreters and simulators must not be on where kernels are compiled, and a GPU that happens
# to be there must not be touched; one thread each, so that the helper can fork; a log that
# PyTorch does not know would end it, and the file under test may ask for one
HELPER_ENVIRONMENT = {
    "TRITON_INTERPRET": None,
    "NUMBA_ENABLE_CUDASIM": None,
    "CUDA_VISIBLE_DEVICES": "",
    "HIP_VISIBLE_DEVICES": "",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "TORCH_LOGS": None,
}


class CompileFailed(SubmissionError):
    """The launcher raised, crashed or ran out of time before its kernels were built."""


class StillAStub(CompileFailed):
    """The launcher raised NotImplementedError and said nothing with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileRequest:
    """
    What to build.

    Attributes:
        file: The implementation.
        oracle: The kata's oracle.py, whose make_inputs feeds the launcher.
        function: The launcher's name in `file`.
        case: Arguments of make_inputs; "dtype" is the name of a torch dtype.
        target: One of `TARGETS`.
    """

    file: Path
    oracle: Path
    function: str
    case: Mapping[str, object]
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFacts:
    """
    One launch, as compiled.

    Attributes:
        name: The kernel's name.
        target: The GPU it was built for.
        grid: Programs along each axis, as launched.
        num_warps: Warps of a program, those of specialised partitions included.
        num_stages: Depth of software pipelining asked for; 0 for CUDA C++, which asks for none.
        registers: 32-bit registers of a thread; on AMD vector registers, accumulators included.
        spills: Bytes that the code of a thread stores to and loads from local memory, each
            instruction counted once: 0 when everything stays in registers. On AMD the bytes of
            the vector registers spilled.
        local_bytes: Local (private) memory of a thread.
        shared_bytes: Shared memory (LDS) of a program.
        binary: The cubin or hsaco file; the texts lie beside it.
        tile: Its block sizes and other whole numbers that it was compiled for, by name.
    """

    name: str
    target: str
    grid: tuple[int, ...]
    num_warps: int
    num_stages: int
    registers: int
    spills: int
    local_bytes: int
    shared_bytes: int
    binary: Path
    tile: Mapping[str, int] = field(default_factory=dict)

    @property
    def ttgir(self) -> str:
        """Triton's GPU dialect of MLIR: layouts, pipelining, copies; empty for CUDA C++."""
        return self._text(".ttgir")

    @property
    def product_loops(self) -> int:
        """Loops that multiply matrices, one after the other; a loop within one is part of it."""
        loops, inside = 0, None
        multiplies = False
        for line in self.ttgir.splitlines():
            depth = len(line) - len(line.lstrip())
            if inside is None and "scf.for" in line:
                inside, multiplies = depth, False
            elif inside is not None and depth <= inside:
                loops, inside = loops + multiplies, None
            multiplies = multiplies or "dot" in line
        return loops

    @property
    def ptx(self) -> str:
        """The PTX, without the names of source files, which may say anything; empty for AMD."""
        return re.sub(r"(?m)^\s*\.(?:file|loc)\b.*\n", "", self._text(".ptx"))

    def _text(self, suffix: str) -> str:
        file = self.binary.with_suffix(suffix)
        return file.read_text(encoding="utf-8") if file.is_file() else ""

    @property
    def sass(self) -> str:
        """The machine code as text; for AMD the ISA. Disassembled when first asked for."""
        amd = self.binary.with_suffix(".amdgcn")
        return amd.read_text(encoding="utf-8") if amd.is_file() else disassemble(self.binary)

    @property
    def instructions(self) -> int:
        """Instructions of the machine code, without the padding behind the last one."""
        at = SASS_INSTRUCTION if self.target.startswith("sm_") else AMD_INSTRUCTION
        return sum(name not in PADDING for name in at.findall(self.sass))

    def has(self, instruction: str) -> bool:
        """Whether an instruction of PTX or SASS so begins: ``mma.sync``, ``HMMA``, ``LDL``."""
        pattern = _at_instruction(instruction)
        return bool(pattern.search(self.ptx) or pattern.search(self.sass))

    def count(self, instruction: str) -> int:
        """How many instructions so begin; a loop's body counts once."""
        pattern = _at_instruction(instruction)
        return len(pattern.findall(self.ptx)) + len(pattern.findall(self.sass))


def _at_instruction(instruction: str) -> re.Pattern[str]:
    """Match where an instruction may start, so that ``red`` is not found in ``ld.shared``."""
    start = r"(?:^|[;{]|\*/)\s*(?:@!?%?\w+\s+)?"
    return re.compile(rf"{start}{re.escape(instruction)}(?![A-Za-z0-9])", re.MULTILINE)


def disassemble(cubin: Path, *, symbol: str | None = None) -> str:
    """
    Return the SASS of `cubin`, kept beside it; cuobjdump comes with Triton.

    The first call says which kernel's, where there are several.
    """
    file = cubin.with_suffix(".sass")
    if not file.is_file():
        of_one = [] if symbol is None else ["-fun", symbol]
        command = [cuda_tool("cuobjdump"), "-sass", *of_one, str(cubin)]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        write_atomically(file, text.encode())
    return file.read_text(encoding="utf-8")


def cuda_tool(name: str) -> str:
    """Path of a CUDA binary utility in Triton's wheel; Triton itself is not imported."""
    spec = importlib.util.find_spec("triton")
    folder = Path(spec.origin).parent if spec and spec.origin else Path()
    tool = folder / "backends/nvidia/bin" / name
    if not tool.is_file():
        raise HarnessError(f"{tool}: expected a tool of Triton's wheel, found none. Reinstall it.")
    return str(tool)


# ---- compiling -----------------------------------------------------------------------------


def compile_kernels(
    request: CompileRequest, *, cache_dir: Path | None = None, limit_s: float = 60.0
) -> tuple[KernelFacts, ...]:
    """
    Build the kernels that the launcher launches, one entry a launch, in order.

    Args:
        request: What to build.
        cache_dir: Where results and Triton's own cache are kept; nothing is reused without. The
            result of a file that reads others beside it is not kept.
        limit_s: Time for the launcher and all its kernels.

    Raises:
        UsageProblem: the target is unknown.
        CompileFailed: the launcher or a compiler raised, it crashed or took longer; the message
            has its words, and "to build" for a compiler, "to launch" for all else.
    """
    if request.target not in TARGETS:
        raise UsageProblem(
            f"{request.file.name}: expected a target among {', '.join(TARGETS)}, found "
            f"{request.target!r}.{nearest(request.target, TARGETS)}"
        )
    base = Path(tempfile.mkdtemp(dir=_scratch_folder())) if cache_dir is None else cache_dir
    folder = base.resolve() / "facts" / _cache_key(request)
    if not (folder / "facts.json").is_file():
        folder = _build(request, folder, triton_cache=base.resolve() / "triton", limit_s=limit_s)
    facts = json.loads((folder / "facts.json").read_text(encoding="utf-8"))
    return tuple(_facts_from(row, request.target, folder) for row in facts)


def _facts_from(row: dict[str, Any], target: str, folder: Path) -> KernelFacts:
    changed = {"grid": tuple(row["grid"]), "binary": folder / row["binary"]}
    return KernelFacts(**{**row, **changed, "target": target})


@cache
def _scratch_folder() -> Path:
    folder = tempfile.mkdtemp(prefix="kata-compiled-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _cache_key(request: CompileRequest) -> str:
    """Everything the facts of a file on its own depend on, the code that reads them included."""
    here = Path(__file__).parent
    ours = (
        here / "compile_worker.py",
        here / "kernel_facts.py",
        here.with_name("cuda.py"),
        here.with_name("nvrtc.py"),
    )
    parts = [
        request.file.read_bytes(),
        request.oracle.read_bytes(),
        *(path.read_bytes() for path in ours),
        json.dumps([request.function, request.case, request.target], sort_keys=True).encode(),
        " ".join(f"{package} {_version(package)}" for package in COMPILED_WITH).encode(),
        f"python {platform.python_version()}".encode(),
    ]
    return hash_of("".join(map(hash_of, parts)).encode())


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def _build(request: CompileRequest, folder: Path, *, triton_cache: Path, limit_s: float) -> Path:
    """
    Fill `folder`, which appears whole or not at all; return it.

    Where the facts depend on more than the key of `folder` covers, another one is filled, which
    goes when this process ends.
    """
    with explained(make_folder(folder.parent), "a cache that can be written to"):
        draft = Path(tempfile.mkdtemp(prefix="draft-", dir=folder.parent))
    try:
        answer = _ask_helper(
            {
                "file": str(request.file.resolve()),
                "oracle": str(request.oracle.resolve()),
                "function": request.function,
                "case": dict(request.case),
                "target": request.target,
                "folder": str(draft),
                "triton_cache": str(triton_cache),
                "limit_s": limit_s * pace(),
            }
        )
        if "problem" in answer:
            raise _failure(request, answer)
        (draft / "facts.json").write_text(json.dumps(answer["kernels"]), encoding="utf-8")
        if not answer["alone"]:
            folder = Path(tempfile.mkdtemp(dir=_scratch_folder())) / "facts"
            shutil.copytree(draft, folder)
            return folder
        try:
            draft.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another process was faster, with the same
                raise
        return folder
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _failure(request: CompileRequest, answer: Mapping[str, Any]) -> CompileFailed:
    inputs = ", ".join(f"{name}={value!r}" for name, value in request.case.items())
    kind = StillAStub if answer.get("stub") else CompileFailed
    deed = "build" if answer.get("compiler") else "launch"
    return kind(
        f"{request.file.name}: expected {request.function} to {deed} its kernels for "
        f"{request.target}, found {answer['problem']}. It was given "
        f"make_inputs({inputs}).\n{answer['detail']}".rstrip()
    )


# ---- the helper process --------------------------------------------------------------------


class _Helper:
    """The process that compiles: `harness.meters.compile_worker`, over a pipe of its own."""

    def __init__(self) -> None:
        changed = {**os.environ, **HELPER_ENVIRONMENT}
        environment = {name: value for name, value in changed.items() if value is not None}
        self.connection, theirs = Pipe()
        self.log = tempfile.TemporaryFile()  # noqa: SIM115 -- closed by stop()
        # a session of its own: it must outlive a killed caller, to end what it started
        self.process = subprocess.Popen(
            [sys.executable, "-m", "harness.meters.compile_worker", str(theirs.fileno())],
            env=environment,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
            start_new_session=True,
        )
        theirs.close()

    def ask(self, message: Mapping[str, object], limit_s: float) -> dict[str, Any]:
        """Send one request and wait for its answer; EOFError when the helper is gone or stuck."""
        self.connection.send_bytes(json.dumps(message).encode())
        if not self.connection.poll(limit_s):
            raise EOFError
        answer: dict[str, Any] = json.loads(self.connection.recv_bytes())
        return answer

    def stop(self) -> str:
        """End the process and return what it last wrote on its standard streams."""
        self.connection.close()
        try:
            self.process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.seek(0)
        words = self.log.read().decode(errors="replace")
        self.log.close()
        return words[-2000:]


@cache
def _helper() -> _Helper:
    return _Helper()


def _ask_helper(message: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return _helper().ask(message, message["limit_s"] + START_LIMIT_S)
    except (EOFError, OSError) as error:
        words = stop_worker()
        last = "".join(f" ({line})" for line in words.splitlines()[-1:])
        raise HarnessError(
            f"compile_worker: expected an answer, found it gone{last}. Run again.\n{words}"
        ) from error
    except BaseException:  # interrupted: the answer to come must not be taken for the next one's
        stop_worker()
        raise


def stop_worker() -> str:
    """End the helper process, if there is one, and return its last words."""
    if not _helper.cache_info().currsize:
        return ""
    words = _helper().stop()
    _helper.cache_clear()
    return words


atexit.register(stop_worker)
