"""Reading facts off a compiled kernel: what `harness.meters.compiled.KernelFacts` holds."""

import hashlib
import re
import subprocess
from pathlib import Path
from typing import Any

from harness.cuda import Config, Kernel
from harness.meters.compiled import cuda_tool, disassemble

Facts = dict[str, Any]
WARP = 32
# the driver's own share of a block's shared memory, which cuobjdump counts from sm_90 on
RESERVED_SHARED_BYTES = 1024


def triton_facts(kernel: Any, folder: Path) -> Facts:  # noqa: ANN401 -- triton's CompiledKernel
    """Write the texts and the binary of a kernel of Triton or Gluon to `folder`; tell of it."""
    stem = f"{kernel.name[:60]}-{kernel.hash[:12]}"
    for kind in ("ttgir", "ptx", "amdgcn"):
        if kind in kernel.asm:
            (folder / f"{stem}.{kind}").write_text(kernel.asm[kind], encoding="utf-8")
    amd = "amdgcn" in kernel.asm
    binary = folder / f"{stem}.{'hsaco' if amd else 'cubin'}"
    binary.write_bytes(kernel.kernel)
    return {
        "name": kernel.name,
        "num_warps": kernel.metadata.num_warps,
        "num_stages": kernel.metadata.num_stages,
        "shared_bytes": kernel.metadata.shared,
        "tile": tile_of(kernel),
        "binary": binary.name,
        **(amd_usage(kernel.asm["amdgcn"]) if amd else nvidia_usage(binary, kernel.name)),
    }


def tile_of(kernel: Any) -> dict[str, int]:  # noqa: ANN401 -- triton's CompiledKernel
    """The whole numbers among the kernel's `tl.constexpr` arguments, such as its block sizes."""
    names = kernel.src.fn.arg_names
    found = {names[place]: value for (place, *_), value in kernel.src.constants.items()}
    return {
        name: value
        for name, value in found.items()
        if isinstance(value, int) and not isinstance(value, bool) and name.isupper()
    }


def cuda_facts(kernel: Kernel, config: Config, folder: Path) -> Facts:
    """Write the PTX and the cubin of a kernel in CUDA C++ to `folder`; tell of it."""
    digest = hashlib.sha256(kernel.cubin).hexdigest()
    stem = re.sub(r"\W", "_", kernel.name)[:60]  # of a template it has angle brackets
    binary = folder / f"{stem}-{digest[:12]}.cubin"
    binary.write_bytes(kernel.cubin)
    binary.with_suffix(".ptx").write_text(own_ptx(kernel), encoding="utf-8")
    disassemble(binary, symbol=kernel.symbol)
    shared = resource_usage(binary, kernel.symbol)["SHARED"]
    if shared and int(kernel.arch.removeprefix("sm_")) >= 90:
        shared -= RESERVED_SHARED_BYTES
    threads = config.block[0] * config.block[1] * config.block[2]
    return {
        "name": kernel.name,
        "num_warps": -(-threads // WARP),
        "num_stages": 0,  # nobody asked a compiler for any
        "shared_bytes": shared + config.shared_bytes,
        "tile": {"threads": threads},
        "binary": binary.name,
        **nvidia_usage(binary, kernel.symbol),
    }


def own_ptx(kernel: Kernel) -> str:
    """The PTX without the other kernels of the same source."""
    head, *entries = re.split(r"(?m)^(?=(?:\.visible )?\.entry )", kernel.ptx)
    own = re.compile(rf"(?:\.visible )?\.entry {re.escape(kernel.symbol)}\b")
    return head + "".join(filter(own.match, entries))


def resource_usage(cubin: Path, symbol: str) -> dict[str, int]:
    """What cuobjdump reports of one kernel: REG, STACK, SHARED, LOCAL."""
    command = [cuda_tool("cuobjdump"), "-res-usage", str(cubin)]
    report = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = re.search(rf"Function {re.escape(symbol)}:\s+(.*)", report)
    if found is None:
        raise ValueError(f"cuobjdump: expected the usage of {symbol}, found {report!r}")
    return {name: int(value) for name, value in re.findall(r"(\w+):(\d+)", found[1])}


def nvidia_usage(cubin: Path, symbol: str) -> dict[str, int]:
    """Registers and local memory of a thread, and what of it is spilled."""
    used = resource_usage(cubin, symbol)
    # a kernel that calls itself has a stack of unknown size, which cuobjdump tells in a word
    registers, stack, local = used["REG"], used.get("STACK"), used["LOCAL"]
    held = (stack or 0) + local
    spills = spilled_bytes(disassemble(cubin)) if held or stack is None else 0
    return {"registers": registers, "local_bytes": held, "spills": spills}


def spilled_bytes(sass: str) -> int:
    """
    Bytes of all local stores and loads in the code: what ptxas -v calls spill stores and loads.

    Its report is gone once the cubin is there, and cuobjdump's LOCAL stays 0: spills are STACK.
    """
    widths = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16}
    total = 0
    for modifiers in re.findall(r"\b(?:STL|LDL)((?:\.\w+)*)", sass):
        total += next((widths[part] for part in modifiers.split(".") if part in widths), 4)
    return total


def amd_usage(isa: str) -> dict[str, int]:
    """Vector registers and private memory of a lane, from the metadata at the end of the ISA."""
    usage = {key: int(value) for key, value in re.findall(r"\.(\w+):\s+(\d+)$", isa, re.MULTILINE)}
    return {
        "registers": usage["vgpr_count"],
        "local_bytes": usage["private_segment_fixed_size"],
        "spills": 4 * usage["vgpr_spill_count"],
    }
