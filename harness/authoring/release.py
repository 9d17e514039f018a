"""The course as learners get it: without solutions, wrong solutions and hints not opened yet."""

import io
import re
import shutil
import subprocess
import tarfile
import tomllib
from importlib import resources
from pathlib import Path, PurePosixPath

from harness.base.errors import HarnessError, UsageProblem
from harness.content.course import is_placed
from harness.content.syllabus import MOST_HINTS, Syllabus

KEPT_BACK = ("solutions", "tests", ".ci")
UNANSWERED = "The answer is your teacher's to give: this course was released without its solutions."
UNOPENED = "This hint has not been opened yet."
WORKFLOW = Path(".github") / "workflows" / "grade.yml"
MARKER = ".kata-release"  # in a folder that a release was written to, and may be again
ANSWER = re.compile(r"^\[why\]$.*?^(?=answer\s*=)", re.MULTILINE | re.DOTALL)
HINTS = re.compile(r"^hints\s*=\s*\[", re.MULTILINE)


def release(root: Path, folder: Path, course: Path, syllabus: Syllabus) -> int:
    """
    Write the last commit of the clone at `root` to `folder`, as learners get it.

    ``course.toml`` and a workflow of GitHub Actions that grades with it lie in it, too. What an
    earlier release left is gone, but for ``.git``.

    Returns:
        How many files it has.

    Raises:
        UsageProblem: the folder holds something else.
        HarnessError: `root` is no clone.
    """
    archive = _committed(root)
    _clear(folder)
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar:
            if member.isfile() and PurePosixPath(member.name).parts[0] not in KEPT_BACK:
                tar.extract(member, folder, filter="data")
    for file in folder.glob("katas/week*/*/kata.toml"):
        text = file.read_text(encoding="utf-8")
        kept = without_answer(without_hints(text, syllabus.hints))
        file.write_text(kept, encoding="utf-8")
    shutil.copyfile(course, folder / "course.toml")
    workflow = resources.files("harness.authoring").joinpath("grade.yml").read_text("utf-8")
    (folder / WORKFLOW).parent.mkdir(parents=True)
    (folder / WORKFLOW).write_text(workflow, encoding="utf-8")
    (folder / MARKER).touch()
    return sum(file.is_file() for file in folder.rglob("*") if ".git" not in file.parts)


def _committed(root: Path) -> bytes:
    """Everything in git's HEAD, as a tar archive; what a teacher tried out is left behind."""
    if is_placed(root):
        raise HarnessError(
            f"release: expected a clone, found {root}, a folder made by `kata init`, which holds "
            "your own answers. Clone the project and release from there."
        )
    try:
        done = subprocess.run(
            ["git", "archive", "--format=tar", "HEAD"], cwd=root, capture_output=True, check=False
        )
    except FileNotFoundError:
        raise HarnessError("release: expected git, found none. Install it.") from None
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip()
        raise HarnessError(f"release: expected a clone at {root}, found none: {said}")
    return done.stdout


def _clear(folder: Path) -> None:
    there = [one for one in folder.iterdir() if one.name != ".git"] if folder.exists() else []
    if there and not (folder / MARKER).is_file():
        raise UsageProblem(
            f"{folder}: expected an empty folder or an earlier release, found other files. "
            "Name another folder."
        )
    for one in there:
        if one.is_dir() and not one.is_symlink():
            shutil.rmtree(one)
        else:
            one.unlink()
    folder.mkdir(parents=True, exist_ok=True)


def without_hints(text: str, opened: int) -> str:
    """The text of a ``kata.toml`` with only the first `opened` of its hints."""
    found = HINTS.search(text)
    if found is None or opened >= MOST_HINTS:
        return text
    for end in (one.end() for one in re.finditer(r"\]", text[found.start() :])):
        array = text[found.start() : found.start() + end]
        try:
            hints = tomllib.loads(array)["hints"]
        except tomllib.TOMLDecodeError:
            continue  # this bracket is part of a hint
        break
    else:
        raise HarnessError(f"release: expected an array of hints, found {text[found.start() :]!r}")
    kept = [_quoted(hint) for hint in hints[:opened]]
    unopened = [_quoted(UNOPENED)] * (len(hints) - opened)
    lines = "".join(f"  {one},\n" for one in kept + unopened)
    return text.replace(array, f"hints      = [\n{lines}]", 1)


def without_answer(text: str) -> str:
    """The text of a ``kata.toml`` without the answer to its question."""
    found = ANSWER.search(text)
    if found is None:
        return text
    rest = text[found.end() :]
    for end in (one.end() for one in re.finditer(r"\n|\Z", rest)):
        try:
            tomllib.loads(rest[:end])
        except tomllib.TOMLDecodeError:
            continue  # this line is part of the answer
        return f"{text[: found.end()]}answer   = {_quoted(UNANSWERED)}\n{rest[end:]}"
    raise HarnessError(f"release: expected an answer, found {rest!r}")


def _quoted(text: str) -> str:
    """A string of TOML."""
    escapes = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}
    return '"' + "".join(escapes.get(one, one) for one in text) + '"'
