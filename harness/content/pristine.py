"""The stub as the project ships it, whatever the learner has made of the file since."""

import subprocess

from harness.content.course import is_placed, shipped
from harness.content.kata import Kata


def pristine_stub(kata: Kata) -> bytes | None:
    """
    The blank stub of `kata`.

    A file that still raises NotImplementedError is taken as the stub itself, so that an author
    sees the edits under way; otherwise the version in git's HEAD counts. None when git has none.
    """
    current = kata.file.read_bytes() if kata.file.is_file() else b""
    if b"raise NotImplementedError" in current:
        return current
    return committed_stub(kata)


def committed_stub(kata: Kata) -> bytes | None:
    """
    The stub in git's HEAD; None without git, or when it was never committed.

    A folder made by ``kata init`` may be in a git of the learner's own, with their answers: there
    it is the package's.
    """
    inside = kata.file.relative_to(kata.root).as_posix()
    if is_placed(kata.root) and (packaged := shipped() / inside).is_file():
        return packaged.read_bytes()
    try:
        shown = subprocess.run(
            ["git", "show", f"HEAD:./{inside}"], cwd=kata.root, capture_output=True, check=False
        )
    except FileNotFoundError:
        return None
    return shown.stdout if shown.returncode == 0 else None
