"""The learner's source with what each of its lines cost beside it: `kata lines`."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from harness.base.errors import SubmissionError, UsageProblem
from harness.content.kata import Kata
from harness.content.submission import Submission
from harness.reports.pictures.recording import Recording
from harness.reports.pictures.trace import case_words, recorded, written_by

EXECUTED = ("cuda", "triton", "gluon")  # by their PTX
LISTED = (*EXECUTED, "numba")
COLUMNS = ("instructions", "requests", "sectors", "bytes_moved", "wavefronts", "conflicts")
ENVIRONMENT = {"TRITON_INTERPRET": "0", "NUMBA_ENABLE_CUDASIM": "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """
    A line of the source and what it did.

    Attributes:
        line: In its file, from 1.
        text: The line.
        counts: By the name of a counter; empty where nothing was counted.
    """

    line: int
    text: str
    counts: Mapping[str, int]

    def total(self, *names: str) -> int:
        """The sum of these counters."""
        return sum(self.counts.get(name, 0) for name in names)

    @property
    def instructions(self) -> int:
        """Instructions, once for each warp."""
        return self.total("warp_instructions")

    @property
    def requests(self) -> int:
        """Requests of warps to global memory."""
        return self.total(*(f"global_{what}_requests" for what in ("load", "store", "atomic")))

    @property
    def sectors(self) -> int:
        """Sectors of those."""
        return self.total(*(f"global_{what}_sectors" for what in ("load", "store", "atomic")))

    @property
    def bytes_moved(self) -> int:
        """Bytes between global memory and the kernel, by whatever means."""
        kinds = ("global_load", "global_store", "global_atomic", "tma_load", "tma_store")
        return self.total(*(f"{kind}_bytes" for kind in kinds))

    @property
    def wavefronts(self) -> int:
        """Wavefronts of shared memory."""
        return self.total("shared_load_wavefronts", "shared_store_wavefronts")

    @property
    def conflicts(self) -> int:
        """Those that bank conflicts cost."""
        return self.wavefronts - self.total("shared_load_ideal", "shared_store_ideal")


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """
    What the kernels of one file did.

    Attributes:
        file: Its name.
        kernels: Each kernel with how often it was launched.
        rows: The lines from the first one that did something to the last.
        hazards: What was wrong, in words.
        how: What was executed.
    """

    file: str
    kernels: Mapping[str, int]
    rows: tuple[Row, ...]
    hazards: tuple[str, ...] = ()
    how: str = ""

    @classmethod
    def of(
        cls,
        file: str,
        text: Mapping[int, str],
        counts: Mapping[int, Mapping[str, int]],
        **rest: Any,  # noqa: ANN401 -- the other attributes
    ) -> "Listing":
        """Join counts with the lines they belong to."""
        known = [line for line in counts if line in text]
        span = range(min(known, default=1), max(known, default=0) + 1)
        rows = tuple(
            Row(line=one, text=text[one], counts=dict(counts.get(one, {}))) for one in span
        )
        return cls(file=file, rows=rows, **rest)

    @property
    def columns(self) -> list[str]:
        """Which of `COLUMNS` anything was counted in."""
        return [name for name in COLUMNS if any(getattr(row, name) for row in self.rows)]

    @property
    def indent(self) -> int:
        """The spaces that all lines begin with."""
        written = [row.text for row in self.rows if row.text.strip()]
        return min((len(text) - len(text.lstrip()) for text in written), default=0)

    def as_json(self) -> str:
        """All of it, to be read by `from_json`."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Listing":
        """The way back."""
        data = json.loads(text)
        rows = tuple(Row(**row) for row in data.pop("rows"))
        return cls(rows=rows, hazards=tuple(data.pop("hazards")), **data)


def listed(submission: Submission, case: int, target: str) -> Listing:
    """
    Run a submission on a case of its kata, counted from 1, and count by line.

    Kernels in CUDA C++, Triton and Gluon are executed as the PTX of `target`, in a process of
    their own; those in Numba run on their simulator.

    Raises:
        UsageProblem: the kata has no kernels, or no such case.
        SubmissionError: it is still a stub, launches no kernel, or does not return.
    """
    kata = submission.kata
    _check(kata, case)
    if kata.backend not in EXECUTED:
        return _of_recording(recorded(submission, case), submission)
    written = written_by(
        "harness.reports.list_lines", "lines", submission, case, target, environment=ENVIRONMENT
    )
    found = Listing.from_json(written)
    if not found.kernels:
        raise SubmissionError(
            f"lines: expected {kata.functions[0]} to launch a kernel on case {case}, found none. "
            "Another --case may have more to do."
        )
    return found


def _check(kata: Kata, case: int) -> None:
    if kata.backend not in LISTED:
        raise UsageProblem(
            f"lines: expected a kata with kernels ({', '.join(LISTED)}), found {kata.name}, "
            f"whose backend is {kata.backend}. `kata list` shows the others."
        )
    on_the_cpu = [
        number
        for number, one in enumerate(kata.cases, 1)
        if one.get("only") != "cuda"
    ]  # fmt: skip
    if case not in on_the_cpu:
        known = "; ".join(f"{number}: {case_words(kata, number)}" for number in on_the_cpu)
        raise UsageProblem(
            f"lines: expected a case of {kata.name} that runs on the CPU, found --case {case}. "
            f"There are {known or 'none'}."
        )


def _of_recording(found: Recording, submission: Submission) -> Listing:
    """What a simulator has recorded, line by line, in the counters' names."""
    text = dict(enumerate(submission.path.read_text(encoding="utf-8").splitlines(), 1))
    counts: dict[int, Counter[str]] = {}
    for one in found.lines:
        counts.setdefault(_line_of(one.where), Counter()).update(
            {
                f"global_{one.kind}_requests": one.requests,
                f"global_{one.kind}_sectors": one.sectors,
                f"global_{one.kind}_bytes": one.bytes,
            }
        )
    for bank in found.banks:
        counts.setdefault(_line_of(bank.where), Counter()).update(
            {
                f"shared_{bank.kind}_wavefronts": bank.wavefronts,
                f"shared_{bank.kind}_ideal": bank.requests,
            }
        )
    kernels = dict(Counter(one.kernel for one in found.launches))
    return Listing.of(submission.path.name, text, counts, kernels=kernels, how="on its simulator")


def _line_of(where: str) -> int:
    return int(where.rpartition(":")[2])
