"""Who touches what in Triton's interpreter."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch

from harness.meters.triton_traffic import IntArray, Kind, traffic_meter
from harness.reports.pictures.ledger import Ledger, units_per_row
from harness.reports.pictures.recording import SECTOR_BYTES, LaunchStart, Recording
from harness.simulators.triton_guards import install_bf16_guard, install_bounds_guard
from harness.simulators.triton_hooks import operands
from harness.simulators.triton_semantics import install_compiled_semantics


class TritonRecorder:
    """Notes every instruction of every program; the lines are those of `file`."""

    def __init__(self, file: Path) -> None:
        self.ledger = Ledger()
        self._file = str(file)
        self._launches: list[LaunchStart] = []
        self._programs: list[tuple[int, ...]] = []  # launch, z, y, x

    def launched(self, kernel: str, arguments: Mapping[str, object]) -> None:
        """Learn the tensors of a launch by the names that the kernel gives them."""
        start = LaunchStart(kernel=kernel, first=len(self._programs), per_block=1)
        self._launches.append(start)
        for name, argument in arguments.items():
            for operand in operands(argument):
                if isinstance(operand, torch.Tensor):
                    self._learn(name, operand)

    def program(self, index: tuple[int, ...]) -> None:
        """Begin a row."""
        self._programs.append((len(self._launches), *reversed(index)))

    def accessed(self, kind: Kind, addresses: IntArray, size: int) -> None:
        """Note one instruction."""
        line = self._line()
        sectors = np.unique(addresses // SECTOR_BYTES).size
        least = -(-np.unique(addresses).size * size // SECTOR_BYTES)
        place = (self._file, line)
        asked = addresses.size * size
        self.ledger.request(place, kind, requests=1, sectors=sectors, least=least, size=asked)
        for base, region in self.ledger.regions.items():
            offsets = addresses - base
            inside = offsets[(offsets >= region.start) & (offsets < region.end)]
            if inside.size:
                region.touch(len(self._programs) - 1, kind, np.unique(inside // SECTOR_BYTES))

    def recording(self) -> Recording:
        """Everything so far; the programs of a launch in the order in which a GPU starts them."""
        count = len(self._programs)
        order = [0] * count
        for place, unit in enumerate(sorted(range(count), key=self._programs.__getitem__)):
            order[unit] = place
        return Recording(
            unit="program",
            units=count,
            per_row=units_per_row(count),
            launches=tuple(self._launches),
            maps=self.ledger.maps(order),
            lines=self.ledger.lines(),
            banks=(),
        )

    def _learn(self, name: str, tensor: torch.Tensor) -> None:
        if not tensor.numel():
            return
        storage = tensor.untyped_storage().data_ptr()
        base = storage - storage % SECTOR_BYTES
        start = tensor.data_ptr() - base
        steps = zip(tensor.shape, tensor.stride(), strict=True)
        last = sum((length - 1) * stride for length, stride in steps)
        self.ledger.region(base, name, start, start + (last + 1) * tensor.itemsize)

    def _line(self) -> int:
        """Where in the file the instruction that runs stands; 0 when it is in another file."""
        frame = sys._getframe(1)
        while frame.f_back is not None:
            if frame.f_code.co_filename == self._file:
                return frame.f_lineno
            frame = frame.f_back
        return 0


def record_triton(call: Callable[[], object], file: Path) -> Recording:
    """Run `call`, and note what the kernels of `file` that it launches do."""
    install_compiled_semantics()
    install_bf16_guard()
    install_bounds_guard()
    recorder = TritonRecorder(file)
    with traffic_meter(listener=recorder):
        call()
    return recorder.recording()
