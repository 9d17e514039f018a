"""What the memories see of the kernel that uses them."""

from typing import Any, Protocol

from harness.simulators.ptx.formats import Array
from harness.simulators.ptx.program import Instruction


class View(Protocol):
    """
    A launch, as its memories see it; what each attribute is, `State` says.

    Threads are numbered within the wave of blocks, clocks are [cluster, warp, warp].
    """

    threads: int
    blocks: int
    block_threads: int
    warps: int
    cluster: int
    clock_warps: int
    checked: bool
    granule: int
    shared_size: int
    shared_bytes: int
    shared_valid: Array
    block_ids: Array
    exited: Array
    clocks: Array
    warp_syncs: Array
    remembered: dict[Any, Any]

    def who(self, thread: int) -> str:
        """A thread of the wave in words."""

    def line_of(self, pc: int) -> int | None:
        """The source line of an instruction."""

    def mask_key(self) -> bytes | None:
        """What tells this mask from others."""

    def report(
        self, name: str, ins: Instruction, text: str, count: int = 1, before: int | None = None
    ) -> None:
        """Note a hazard."""

    def tally(self, ins: Instruction, counts: dict[str, int]) -> None:
        """Add to what the instruction has done."""

    def global_race(
        self,
        ins: Instruction,
        threads: Array,
        at: Array,
        size: int,
        what: str,
        same: Array | None = None,
    ) -> None:
        """Look for accesses of other blocks to the same bytes of global memory."""
