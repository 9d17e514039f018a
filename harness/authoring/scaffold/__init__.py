"""
A new kata, complete and provable or nearly, with the author's parts marked.

Its files come from the templates of a backend, or from a kata that it is to be like; what they say
comes from an entry of a catalogue, where there is one.
"""

import json
import keyword
import re
import textwrap
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from harness.authoring.brief import brief_with_steps
from harness.authoring.entry import Entry
from harness.authoring.scaffold.likeness import Likeness
from harness.authoring.stub import WIDTH, cut_stub
from harness.base.errors import UsageProblem
from harness.base.files import make_folder, write_atomically
from harness.content.kata import Kata, load_kata

# the backends that have some
TEMPLATES = (
    *("python", "torch", "triton", "numba", "distributed"),
    *("cuda", "gluon", "cute", "jax", "onnx", "xdsl"),
)
STEPS = ("check", "compute", "hand back")  # of the templates


def scaffold(
    root: Path,
    slug: str,
    backend: str | None = None,
    *,
    entry: Entry | None = None,
    like: Kata | None = None,
) -> list[Path]:
    """
    Write the files of a new kata; the author makes it another.

    Args:
        root: The project's root.
        slug: ``weekNN/name``.
        backend: One of `TEMPLATES`; default: that of `like`, or of `entry`.
        entry: Fills kata.toml and the brief, and names a test for each item of its list.
        like: Its files serve instead of the templates, which double their input.

    Returns:
        The files written.

    Raises:
        UsageProblem: a malformed slug, a week that the curriculum does not have, a name that is
            taken or that Python could not import, or a backend without templates.
    """
    week, name = _free_name(root, slug)
    backend = backend or (like.backend if like else entry.backend if entry else "triton")
    if like is None and backend not in TEMPLATES:
        raise UsageProblem(
            f"--backend: expected one of {', '.join(TEMPLATES)}, found {backend!r}. For a backend "
            "without templates name a kata that has it: --like KATA."
        )
    folder = root / "katas" / f"week{week}" / name
    paths = {
        "oracle.py": folder / "oracle.py",
        "test.py": folder / f"test_{name}.py",
        "solution.py": root / "solutions" / f"week{week}" / f"{name}.py",
        "edits.toml": root / "tests" / "wrong" / f"week{week}" / name / "edits.toml",
    }
    likeness = Likeness(like, week, name) if like else None
    words = _words(week, name, backend, entry, likeness)
    texts = {
        folder / "kata.toml": _rendered("common/kata.toml", words),
        folder / "README.md": _rendered("common/README.md", words),
    }
    for file, path in paths.items():
        texts[path] = likeness.text(file) if likeness else _rendered(f"{backend}/{file}", words)
    if entry:
        texts[paths["test.py"]] += _rendered("common/tests.py", words)
        texts[paths["edits.toml"]] += _rendered("common/traps.toml", words)
    for path, text in texts.items():
        make_folder(path.parent)
        write_atomically(path, text.encode())
    kata = load_kata(folder)
    write_atomically(kata.file, cut_stub(kata).encode())
    if kata.subgoals:
        brief = folder / "README.md"
        write_atomically(brief, brief_with_steps(kata, texts[brief]).encode())
    return [*texts, kata.file]


def _free_name(root: Path, slug: str) -> tuple[str, str]:
    """The week and the name of `slug`, that a new kata may have."""
    match = re.fullmatch(r"week(\d\d)/([a-z][a-z0-9_]*)", slug)
    if match is None:
        raise UsageProblem(f"new: expected weekNN/snake_case_name, found {slug!r}.")
    week, name = match.groups()
    if not (root / "katas" / f"week{week}" / "week.toml").is_file():
        raise UsageProblem(f"new: expected a week of the curriculum, found week{week}.")
    if list((root / "katas").glob(f"week*/{name}")):
        raise UsageProblem(f"new: expected a name that is free, found a kata called {name!r}.")
    if keyword.iskeyword(name) or find_spec(name) is not None:
        raise UsageProblem(
            f"new: expected a name that means nothing to Python yet, found {name!r}, a "
            f"{'keyword' if keyword.iskeyword(name) else 'module'}."
        )
    return week, name


def _words(
    week: str, name: str, backend: str, entry: Entry | None, likeness: Likeness | None
) -> dict[str, Any]:
    """What the templates are filled with; the author's to write where the entry is silent."""
    steps = list(likeness.kata.subgoals if likeness else STEPS)
    hints = ["A nudge.", "A bigger nudge.", "Nearly the answer."]
    words: dict[str, Any] = {
        "week": week,
        "name": name,
        "backend": backend,
        "entry": entry,
        "title": name.replace("_", " ").capitalize(),
        "teaches": "One sentence: the mechanism, and why it matters.",
        "covers": [f"{week}.1"],
        "functions": likeness.functions if likeness else [name],
        "todo": likeness.todo if likeness else name,
        "asked": list(entry.functions) if entry else [],
        "difficulty": 2,
        "minutes": 30,
        "requires": [],
        "hints": hints,
        "subgoals": steps,
        "sources": ["Where this comes from."],
        "tables": likeness.tables if likeness else None,
        "likeness": likeness.name if likeness else None,
    }
    if entry:
        words |= {
            "title": entry.title,
            "teaches": _sentence(entry.teaches) or words["teaches"],
            "covers": list(entry.covers) or words["covers"],
            "difficulty": entry.difficulty,
            "minutes": entry.minutes,
            "requires": list(entry.requires),
            "hints": [*map(_sentence, entry.hints), *hints[len(entry.hints) :]],
            "sources": list(entry.sources) or words["sources"],
            "tests": _named(entry.tests, "test_"),
            "traps": _named(entry.traps, ""),
        }
    if steps:
        words["hints"][-1] = f"{steps[-1]}: {words['hints'][-1]}"
    return words


def _sentence(text: str) -> str:
    """`text` with a capital letter, unless it begins with code, and a full stop."""
    first = text[:1] if re.match(r"[a-z]+[_(=\[.]\S|[b-z]\b", text) else text[:1].upper()
    return f"{first}{text[1:].rstrip('.')}." if text else ""


def _named(items: Iterable[str], prefix: str) -> dict[str, str]:
    """Each item by a name that its first words make."""
    found: dict[str, str] = {}
    for at, item in enumerate(items, start=1):
        plain = re.sub(r"\([^)]*\)|\*", "", item.partition(":")[0] if ":" in item[4:] else item)
        words = re.findall(r"[a-z0-9]+", plain.lower())[:8]
        name = prefix + ("_".join(words) or f"item_{at}")
        found[name if name not in found else f"{name}_{at}"] = item
    return found


def _rendered(template: str, words: dict[str, Any]) -> str:
    templates = Environment(
        loader=PackageLoader("harness.authoring.scaffold"),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    templates.filters["toml"] = lambda value: json.dumps(value, ensure_ascii=False)
    templates.filters["wrapped"] = _wrapped
    return templates.get_template(f"{template}.jinja").render(words)


def _wrapped(text: str, indent: int) -> str:
    """`text` as the lines of a comment that begins where it stands."""
    lines = textwrap.wrap(f"TODO(author): {text}", WIDTH - indent - 2, break_on_hyphens=False)
    return f"\n{' ' * indent}# ".join(lines).removeprefix("TODO(author): ")
