"""A new kata from templates: complete and provable, with the author's parts marked."""

import re
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from harness.errors import UsageProblem
from harness.files import write_atomically
from harness.kata import BACKENDS
from harness.scaffold.stub import cut_stub as cut_stub
from harness.scaffold.stub import stub_of

# which templates stand for a backend that has none of its own
FAMILIES = {"triton": "triton", "gluon": "triton", "numba": "numba", "torch": "torch",
            "distributed": "torch"}  # fmt: skip


def scaffold(root: Path, slug: str, backend: str) -> list[Path]:
    """
    Write the files of a new kata that doubles its input; the author makes it another.

    Args:
        root: The project's root.
        slug: ``weekNN/name``.
        backend: One of `harness.kata.BACKENDS`.

    Returns:
        The files written.

    Raises:
        UsageProblem: a malformed slug, an unknown backend, or a kata of that name.
    """
    match = re.fullmatch(r"week(\d\d)/([a-z][a-z0-9_]*)", slug)
    if match is None:
        raise UsageProblem(f"new: expected weekNN/snake_case_name, found {slug!r}.")
    if backend not in BACKENDS:
        raise UsageProblem(f"--backend: expected one of {', '.join(BACKENDS)}, found {backend!r}.")
    week, name = match.groups()
    if list((root / "katas").glob(f"week*/{name}")):
        raise UsageProblem(f"new: expected a name that is free, found a kata called {name!r}.")
    family = FAMILIES.get(backend, "python")
    templates = Environment(
        loader=PackageLoader("harness.scaffold"),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    folder = root / "katas" / f"week{week}" / name
    plan = {
        "common/kata.toml": folder / "kata.toml",
        "common/README.md": folder / "README.md",
        f"{family}/oracle.py": folder / "oracle.py",
        f"{family}/test.py": folder / f"test_{name}.py",
        f"{family}/solution.py": root / "solutions" / f"week{week}" / f"{name}.py",
        f"{family}/edits.toml": root / "tests" / "wrong" / f"week{week}" / name / "edits.toml",
    }
    title = name.replace("_", " ").capitalize()
    texts = {
        path: templates.get_template(f"{template}.jinja").render(
            name=name, week=week, backend=backend, family=family, title=title
        )
        for template, path in plan.items()
    }
    solution = texts[root / "solutions" / f"week{week}" / f"{name}.py"]
    texts[folder / f"{name}.py"] = stub_of(solution, [name])
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text.encode())
    return list(texts)
