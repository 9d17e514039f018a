"""
Makes docs/gallery.md: what the judge says about typical mistakes, word for word.

    python -m tests.gallery

Each answer is that of a real wrong solution, judged on fixed inputs. The test beside this file
makes the gallery anew and compares.
"""

import difflib
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.content.catalog import Curriculum, load_curriculum
from harness.content.subgoals import without_marks
from harness.content.submission import resolve
from harness.running.runner import pytest_command, read_record, run_group

ROOT = Path(__file__).resolve().parents[1]
GALLERY = ROOT / "docs" / "gallery.md"
SEED = 1
LIMIT_S = 300.0
Event = dict[str, Any]
OPENING = """# A gallery of wrong kernels

Typical mistakes: for each, the lines that make a reference wrong, and what the judge says about it.
`kata run` prints the first line and the likely cause; the map of errors is in pytest's own output
(`pytest katas/weekNN/NAME --impl yours`). A cause is named only if the answer shows its signature;
where the errors are, and how large, is always reported.

Made by `python -m tests.gallery` from `tests/wrong/`, on seed 1, and held to by a test. The
signatures are in `harness/judge/correctness/signatures.py`.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exhibit:
    """
    One mistake.

    Attributes:
        title: What was forgotten, for the heading.
        kata: Whose wrong solution shows it.
        wrong: The name of that wrong solution.
        check: The test whose words are shown.
        case: What the id of its case contains; with "" the first case that fails.
    """

    title: str
    kata: str
    wrong: str
    check: str = "test_writes_every_element"
    case: str = ""


MATCHES = "test_matches_reference"
EXHIBITS = (
    Exhibit(title="The store has no tail mask", kata="fused_silu", wrong="no_tail_mask"),
    Exhibit(
        title="The load of the last tile is not masked",
        kata="matmul",
        wrong="k_tail_of_a_not_masked",
    ),
    Exhibit(
        title="The loop forgets the remainder", kata="cuda_vector_add", wrong="whole_steps_only"
    ),
    Exhibit(
        title="Only the first block is done", kata="cuda_vector_add", wrong="guard_without_loop"
    ),
    Exhibit(
        title="A product leaves out the tail of its sums",
        kata="smem_matmul",
        wrong="whole_tiles_only",
        check=MATCHES,
        case="10-17-12",
    ),
    Exhibit(
        title="The guard of the wrong axis", kata="transpose_tiled", wrong="guards_of_the_load"
    ),
    Exhibit(title="A barrier is missing", kata="transpose_tiled", wrong="no_barrier"),
    Exhibit(
        title="A stride is ignored",
        kata="vector_add",
        wrong="ignores_a_stride",
        check=MATCHES,
        case="700-2-3",
    ),
    Exhibit(
        title="The result lies in memory in another order",
        kata="flash_attn_fwd",
        wrong="output_strided_like_q",
        check=MATCHES,
        case="1-4-2-5-33-64",
    ),
    Exhibit(
        title="Heads read the keys of another group",
        kata="flash_attn_fwd",
        wrong="heads_interleaved",
        check=MATCHES,
        case="1-4-2-5-33-64",
    ),
    Exhibit(title="A factor is forgotten", kata="flash_attn_fwd", wrong="lse_in_bits"),
    Exhibit(
        title="The sum is not rescaled when the maximum moves",
        kata="fused_softmax",
        wrong="sum_not_mended",
        check=MATCHES,
        case="3-300-128-64",
    ),
    Exhibit(
        title="Padding takes part in the sum",
        kata="flash_attn_fwd",
        wrong="tail_not_masked",
        check=MATCHES,
        case="2-3-1-1-16",
    ),
    Exhibit(title="Rows that see nothing", kata="flash_attn_fwd", wrong="nan_before_the_first_key"),
    Exhibit(
        title="Rows that are partly masked",
        kata="fused_softmax",
        wrong="masked_lanes_make_nan",
        check=MATCHES,
        case="4-300-320-True-128",
    ),
    Exhibit(
        title="The maximum starts at zero", kata="flash_attn_fwd", wrong="maximum_starts_at_zero"
    ),
    Exhibit(
        title="The mask is aligned to another corner",
        kata="flash_attn_fwd",
        wrong="aligned_top_left",
    ),
    Exhibit(
        title="Sums are kept in half precision",
        kata="flash_attn_fwd",
        wrong="output_summed_in_float16",
        check=MATCHES,
        case="1-1-35-100-16",
    ),
    Exhibit(
        title="Integers pass through a float",
        kata="transpose_tiled",
        wrong="float32_tile",
        check=MATCHES,
        case="130-35",
    ),
)


def gallery(exhibits: Sequence[Exhibit] = EXHIBITS) -> str:
    """Judge the exhibits and write them up."""
    with tempfile.TemporaryDirectory(prefix="kata-gallery-") as folder:
        curriculum = load_curriculum(ROOT)
        events = _judged(exhibits, curriculum, Path(folder))
        parts = [_written(one, curriculum, events, Path(folder)) for one in exhibits]
    return "\n".join([OPENING, *parts])


def _judged(exhibits: Sequence[Exhibit], curriculum: Curriculum, home: Path) -> list[Event]:
    """Every failed check of one session over the exhibits."""
    record = home / "record.jsonl"
    chosen = {
        f"({' and '.join(filter(None, (one.kata, one.wrong, one.check, one.case)))})": one.kata
        for one in exhibits
    }
    command = pytest_command(
        [curriculum.kata(name) for name in dict.fromkeys(chosen.values())],
        impls=["wrong"],
        device="cpu",
        record=record,
        seed=SEED,
        extra=["-k", " or ".join(chosen)],
    )
    _, output = run_group(command, LIMIT_S, {"KATA_HOME": str(home)}, cwd=ROOT)
    events = read_record(record)
    assert any(event["event"] == "end" for event in events), output
    return [event for event in events if event.get("outcome") == "failed"]


def _written(one: Exhibit, curriculum: Curriculum, events: Sequence[Event], home: Path) -> str:
    kata = curriculum.kata(one.kata)
    wrong = resolve(kata, f"wrong:{one.wrong}", home / "cache")
    event = next(
        event
        for event in events
        if (event["kata"], event["impl"]) == (kata.id, wrong.label)
        and event["name"].startswith(one.check)
        and one.case in event["name"]
    )
    files = (kata.solution, wrong.path)  # a wrong solution need not name the steps
    sides = (without_marks(file.read_text(), kata.subgoals) for file in files)
    return "\n".join(
        [
            f"## {one.title}\n",
            f"`{kata.id}`, wrong solution `{one.wrong}`, in `{event['name']}`:\n",
            "```diff",
            *_changed_lines(*sides),
            "```\n",
            "```text",
            *_words(event["details"]),
            "```\n",
        ]
    )


def _changed_lines(right: str, wrong: str) -> Iterator[str]:
    """The lines of the reference that were replaced, and those in their place."""
    changes = difflib.unified_diff(_code(right), _code(wrong), n=0, lineterm="")
    return (line for line in list(changes)[2:] if not line.startswith("@@"))


def _code(source: str) -> list[str]:
    """The lines below the docstring, in which a wrong solution says what it is."""
    _, _, rest = source.partition('"""')
    return rest.partition('"""')[2].splitlines()


def _words(details: str) -> Iterator[str]:
    """What pytest prints of the error itself."""
    for line in details.splitlines():
        if line.startswith("E "):
            yield line.removeprefix("E ").removeprefix("  ").removeprefix("AssertionError: ")


if __name__ == "__main__":
    GALLERY.write_text(gallery())
