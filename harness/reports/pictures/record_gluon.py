"""What the partitions of a program did on the Gluon simulator, and what was in flight when."""

from collections.abc import Callable, Iterator
from pathlib import Path

from harness.meters.gluon import COUNTED, IN_FLIGHT, GluonMeter
from harness.reports.pictures.timeline import RUNS, WAITS, Span, Timeline
from harness.simulators.gluon import simulating
from harness.simulators.gluon.machine import Program
from harness.simulators.hazards import Place


def record_gluon(call: Callable[[], object]) -> Timeline | None:
    """Run `call`, and note what its largest program does; None where it launches no kernel."""
    with simulating(keep_programs=True, seed=0, order="forward", policy="late") as simulator:
        call()
    if not simulator.programs:
        return None
    program = max(simulator.programs, key=lambda one: len(one.operations))
    meter = GluonMeter(simulator)
    shares = {
        f"{what} under {under}": meter.overlap(what, under=under)
        for what in COUNTED
        for under in IN_FLIGHT
        if what != under
    }
    spans = sorted(_spans(program), key=lambda one: (one.start, one.end))
    flying = dict.fromkeys(span.lane for span in spans if span.kind == span.lane)
    return Timeline(
        kernel=program.kernel,
        index=program.index,
        programs=len(simulator.programs),
        steps=program.steps,
        lanes=(*(one.name for one in program.partitions), *flying),
        spans=tuple(spans),
        overlaps={name: share for name, share in shares.items() if share},
        bytes_in_flight=meter.bytes_in_flight,
    )


def _spans(program: Program) -> Iterator[Span]:
    waited = [(one, wait, end) for one, wait, end in program.waited if end > wait.since]
    for partition in program.partitions:
        at = partition.began
        for other, wait, end in waited:
            if other is partition:
                yield Span(lane=partition.name, kind=RUNS, start=at, end=wait.since)
                at = end
        yield Span(lane=partition.name, kind=RUNS, start=at, end=partition.ended)
    for partition, wait, end in program.waited:
        label = wait.barrier.label if wait.barrier else wait.words
        yield _at(wait.site, partition.name, WAITS, wait.since, end, label)
    for step, partition, what in program.work:
        yield Span(lane=partition.name, kind=what, start=step, end=step + 1, label=what)
    for one in program.operations:
        if one.kind in IN_FLIGHT:
            end = program.steps if one.landed is None else one.landed
            yield _at(one.site, one.kind, one.kind, one.issued, end, one.label)


def _at(place: Place, lane: str, kind: str, start: int, end: int, label: str) -> Span:
    return Span(
        lane=lane,
        kind=kind,
        start=start,
        end=end,
        label=label,
        where=f"{Path(place.file).name}:{place.line}",
        source=place.text,
    )
