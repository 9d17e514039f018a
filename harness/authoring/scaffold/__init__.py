"""A new kata from templates: complete and provable, with the author's parts marked."""

import keyword
import re
from importlib.util import find_spec
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from harness.authoring.stub import cut_stub
from harness.base.errors import UsageProblem
from harness.base.files import make_folder, write_atomically
from harness.content.kata import load_kata

TEMPLATES = ("python", "torch", "triton", "numba", "distributed")  # the backends that have some


def scaffold(root: Path, slug: str, backend: str) -> list[Path]:
    """
    Write the files of a new kata that doubles its input; the author makes it another.

    Args:
        root: The project's root.
        slug: ``weekNN/name``.
        backend: One of `TEMPLATES`.

    Returns:
        The files written.

    Raises:
        UsageProblem: a malformed slug, a week that the curriculum does not have, a name that is
            taken or that Python could not import, or a backend without templates.
    """
    match = re.fullmatch(r"week(\d\d)/([a-z][a-z0-9_]*)", slug)
    if match is None:
        raise UsageProblem(f"new: expected weekNN/snake_case_name, found {slug!r}.")
    if backend not in TEMPLATES:
        raise UsageProblem(
            f"--backend: expected one of {', '.join(TEMPLATES)}, found {backend!r}. For a backend "
            "without templates begin with the nearest of these and change kata.toml."
        )
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
    templates = Environment(
        loader=PackageLoader("harness.authoring.scaffold"),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    folder = root / "katas" / f"week{week}" / name
    plan = {
        "common/kata.toml": folder / "kata.toml",
        "common/README.md": folder / "README.md",
        f"{backend}/oracle.py": folder / "oracle.py",
        f"{backend}/test.py": folder / f"test_{name}.py",
        f"{backend}/solution.py": root / "solutions" / f"week{week}" / f"{name}.py",
        f"{backend}/edits.toml": root / "tests" / "wrong" / f"week{week}" / name / "edits.toml",
    }
    title = name.replace("_", " ").capitalize()
    texts = {
        path: templates.get_template(f"{template}.jinja").render(
            name=name, week=week, backend=backend, title=title
        )
        for template, path in plan.items()
    }
    for path, text in texts.items():
        make_folder(path.parent)
        write_atomically(path, text.encode())
    kata = load_kata(folder)
    write_atomically(kata.file, cut_stub(kata).encode())
    return [*texts, kata.file]
