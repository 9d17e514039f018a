"""Who touches what on the SIMT simulator: warps and device memory, warps and banks."""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.lib.array_utils import byte_bounds

from harness.meters.simt import SimtMeter, simt_meter
from harness.reports.pictures.ledger import Integers, Ledger, Region, source_of, units_per_row
from harness.reports.pictures.recording import BANKS, SECTOR_BYTES, BankMap, LaunchStart, Recording
from harness.simulators.simt.arrays import KernelArray
from harness.simulators.simt.memory_model import BANK_BYTES
from harness.simulators.simt.scheduler import Launch
from harness.simulators.simt.sites import Site
from harness.simulators.simt.trace import Accesses, Law, Requests, Trace

WARP = 32


@dataclass(slots=True)
class Banks:
    """Requests of one line to shared memory; `words` as in `BankMap`."""

    requests: int
    wavefronts: int
    words: Integers


class SimtRecorder:
    """Takes in one launch after the other."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self._launches: list[LaunchStart] = []
        self._warps = 0
        self._banks: dict[tuple[str, int, str], Banks] = {}

    def __call__(
        self,
        meter: SimtMeter,
        launch: Launch,
        trace: Trace,
        requests: Requests,
        accesses: Accesses,
    ) -> None:
        """Note what a launch did."""
        kernel, per_block = launch.kernel.__name__, launch.warps_per_block
        start = LaunchStart(kernel=kernel, first=self._warps, per_block=per_block)
        self._launches.append(start)
        self._learn(meter, launch)
        for channel, site, rows in _groups(accesses):
            one = trace.channels[channel]
            cost = requests.cost[np.unique(rows.request)]
            if one.law.space == "shared":
                self._note_banks(launch, one.law, trace.sites.known[site], rows, cost)
            else:
                region = self.ledger.regions[meter.origin(one.buffer)]
                self._note_global(region, one.law, trace.sites.known[site], rows, cost)
        self._warps += launch.blocks * launch.warps_per_block

    def recording(self) -> Recording:
        """Everything so far."""
        return Recording(
            unit="warp",
            units=self._warps,
            per_row=units_per_row(self._warps),
            launches=tuple(self._launches),
            maps=self.ledger.maps(range(self._warps)),
            lines=self.ledger.lines(),
            banks=tuple(
                BankMap(
                    where=f"{Path(file).name}:{line}",
                    source=source_of(file, line),
                    kind=kind,
                    requests=banks.requests,
                    wavefronts=banks.wavefronts,
                    words=tuple(map(tuple, banks.words.tolist())),
                )
                for (file, line, kind), banks in sorted(self._banks.items())
            ),
        )

    def _learn(self, meter: SimtMeter, launch: Launch) -> None:
        """Learn the arrays of a launch by the names that the kernel gives them."""
        names = inspect.signature(launch.kernel).parameters
        for name, argument in zip(names, launch.arguments, strict=False):
            for array in argument if isinstance(argument, tuple) else (argument,):
                if isinstance(array, KernelArray) and array.size:
                    base = array.buffer.start
                    low, high = byte_bounds(array.raw)
                    self.ledger.region(meter.origin(array.buffer), name, low - base, high - base)

    def _note_global(
        self, region: Region, law: Law, site: Site, rows: Accesses, cost: Integers
    ) -> None:
        kind = law.kind.removeprefix("global_")
        asked = np.unique(np.stack([rows.request, rows.offset]), axis=1)[0]
        _, elements = np.unique(asked, return_counts=True)
        self.ledger.request(
            (site.code.co_filename, site.line),
            kind,
            requests=cost.size,
            sectors=int(cost.sum()),
            least=int((-(-elements * law.size // SECTOR_BYTES)).sum()),
            size=rows.offset.size * law.size,
        )
        sectors = rows.offset // SECTOR_BYTES
        warps = rows.thread // WARP
        for warp in np.unique(warps).tolist():
            region.touch(self._warps + warp, kind, np.unique(sectors[warps == warp]))

    def _note_banks(
        self, launch: Launch, law: Law, site: Site, rows: Accesses, cost: Integers
    ) -> None:
        words = rows.offset[:, None] // BANK_BYTES + np.arange(max(1, law.size // BANK_BYTES))
        request = np.broadcast_to(rows.request[:, None], words.shape)
        request, word = np.unique(np.stack([request.ravel(), words.ravel()]), axis=1)
        _, first = np.unique(rows.request, return_index=True)
        _, number = np.unique(request, return_inverse=True)
        load = np.zeros((first.size, BANKS), dtype=np.int64)
        np.add.at(load, (number, word % BANKS), 1)

        key = (site.code.co_filename, site.line, law.kind.removeprefix("shared_"))
        size = launch.warps_per_block
        banks = self._banks.setdefault(key, Banks(0, 0, np.zeros((size, BANKS), dtype=np.int64)))
        if len(banks.words) < size:  # an earlier launch had smaller blocks
            banks.words = np.pad(banks.words, ((0, size - len(banks.words)), (0, 0)))
        np.maximum.at(banks.words, rows.thread[first] // WARP % size, load)
        banks.requests += cost.size
        banks.wavefronts += int(cost.sum())


def _groups(accesses: Accesses) -> Iterator[tuple[int, int, Accesses]]:
    """Accesses by channel and site."""
    pairs = np.stack([accesses.channel, accesses.site])
    known, number = np.unique(pairs, axis=1, return_inverse=True)
    for at, (channel, site) in enumerate(known.T.tolist()):
        yield channel, site, Accesses(*(column[number == at] for column in accesses))


def record_simt(call: Callable[[], object]) -> Recording:
    """Run `call`, and note what the kernels that it launches do."""
    recorder = SimtRecorder()
    with simt_meter(listener=recorder):
        call()
    return recorder.recording()
