"""The trace picture of a kata for everybody to see: who touches what, or what is in flight when."""

from dataclasses import replace
from pathlib import Path

from harness.base.errors import SubmissionError
from harness.base.files import hash_of, make_folder
from harness.content.kata import Kata
from harness.content.submission import resolve
from harness.reports.pictures.recording import Recording
from harness.reports.pictures.timeline import Timeline
from harness.reports.pictures.trace import RECORDED, TIMED, case_words, recorded, timeline

VERSION = 1  # of the pictures: another one draws what is kept anew


def trace_picture(kata: Kata, cache: Path) -> Path | None:
    """
    The reference on the first case that launches a kernel, as an SVG in `cache`; it is drawn once.

    Returns:
        None where no simulator runs the kata, it launches nothing, or there is no reference here.
    """
    cases = [at for at, case in enumerate(kata.cases, 1) if case.get("only") != "cuda"]
    drawn = kata.backend in (*RECORDED, *TIMED)
    if not drawn or not cases or not kata.solution.is_file():
        return None
    parts = [kata.solution, kata.folder / "oracle.py", kata.folder / "kata.toml"]
    key = hash_of(b"\0".join(part.read_bytes() for part in parts) + bytes([VERSION]))
    file = make_folder(cache / "traces") / f"{kata.name}-{key[:16]}.svg"
    nothing = file.with_suffix(".none")
    if not file.is_file() and not nothing.is_file():
        found = _first_recording(kata, cases, cache)
        if found is None:
            nothing.touch()
        else:
            recording, case = found
            title = f"{kata.name}, {case_words(kata, case)}"
            _draw(recording, title, file)
    return file if file.is_file() else None


def _draw(found: Recording | Timeline, title: str, file: Path) -> None:
    if isinstance(found, Timeline):
        from harness.reports.pictures.draw_timeline import draw_timeline

        draw_timeline(without_lines(found), title, file)
    else:
        from harness.reports.pictures.draw_trace import draw_trace

        draw_trace(without_code(found), title, file)


def _first_recording(
    kata: Kata, cases: list[int], cache: Path
) -> tuple[Recording | Timeline, int] | None:
    submission = resolve(kata, "solution", cache)
    for case in cases:
        try:
            if kata.backend in TIMED:
                return timeline(submission, case), case
            return recorded(submission, case), case
        except SubmissionError:
            continue  # a case of size 0 launches nothing
    return None


def without_code(found: Recording) -> Recording:
    """The same with a number in place of each line of the source."""
    return replace(
        found,
        lines=tuple(
            replace(line, where=f"access {at}", source="") for at, line in enumerate(found.lines, 1)
        ),
        banks=tuple(
            replace(bank, where=f"shared access {at}", source="")
            for at, bank in enumerate(found.banks, 1)
        ),
    )


def without_lines(found: Timeline) -> Timeline:
    """The same without a line of the source."""
    spans = tuple(replace(span, where="", source="") for span in found.spans)
    return replace(found, spans=spans)
