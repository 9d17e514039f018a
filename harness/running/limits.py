"""What a run may take: as a whole, one of its tests, and in memory."""

from dataclasses import dataclass

from harness.base.processes import FORKS
from harness.content.kata import Kata
from harness.hardware.environment import free_memory_bytes

# until the first test is called: the interpreter, its libraries, collection, the file's own import
STARTUP_S = 60.0
TEST_LIMIT_S = 30.0  # CPU seconds of one test
# kernels are compiled in the first calls, and a device context is made: on top of a kata's limit
COMPILE_S = 60.0
# ranks that are not forked load PyTorch each, a hundred of them in a kata's tests
SPAWN_S = 300.0
EXIT_S = 10.0  # from the last test to the end of the process
SPARE_BYTES = 512 << 20  # of the memory that is free, left to the rest of the machine
LEAST_BYTES = (
    2 << 30
)  # what any kata is given: torch and the stacks of its threads alone map half of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """
    What one run may take; a slow or busy machine is given longer (`harness.base.pace`).

    Attributes:
        startup_s: Until the first test is called; the import of the file under test belongs to it.
        run_s: From there until the last test is through.
        test_s: CPU seconds of one test, which fails by itself; `harness.plugin.run_limit` says
            what else it may not exceed.
        exit_s: From there until the process has ended.
        memory_bytes: The most one process may allocate on the host; 0 is no limit.
    """

    startup_s: float = STARTUP_S
    run_s: float
    test_s: float = TEST_LIMIT_S
    exit_s: float = EXIT_S
    memory_bytes: int = 0


def limits_of(kata: Kata, device: str) -> Limits:
    """
    The limits of an ordinary run.

    Asking for more memory than is free ends in words, not in swapping nor in the death of some
    other process. On a device the driver reserves addresses by the terabyte, so that no such limit
    can be set.
    """
    if device == "cpu":
        memory_bytes = max(LEAST_BYTES, free_memory_bytes() - SPARE_BYTES)
        start_s = 0.0 if FORKS or kata.backend != "distributed" else SPAWN_S
    else:
        memory_bytes, start_s = 0, COMPILE_S
    return Limits(
        run_s=kata.timeout_s + start_s, test_s=TEST_LIMIT_S + start_s, memory_bytes=memory_bytes
    )
