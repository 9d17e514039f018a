"""
Katas judged on another machine, over ssh: the working tree goes there, the history comes back.

One call of ssh does it all. What it is given is a gzipped tar of a clone's files, whether they lie
in a clone or in an installed package; what it prints is what `kata` prints there, then a line that
says so, then the history. The other machine needs a POSIX shell, tar and Python with venv. It keeps
an environment of its own and its history in ``~/.cache/gpu-katas/on/``, a folder for each machine
and folder that sent something.
"""

import io
import json
import os
import shlex
import subprocess
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from platform import node
from threading import Thread

from harness.base.errors import HarnessError
from harness.base.files import hash_of, read_file
from harness.content.course import BESIDE_HARNESS, PLACED, part_of, setting_of

# what a clone needs to be installed and to judge; measured results are not sent
PARTS = ("katas", "solutions", "tests/wrong", "hardware_profiles")
SETTINGS = ("pyproject.toml", "constraints.txt", "README.md", "LICENSE")
LEFT_OUT = {"__pycache__", "measured", "sweeps", PLACED.name}
HISTORY = "history.jsonl"  # what came along
STAMP = ".venv/.ready"  # what the environment there was installed from
NOT_REACHED = 255  # ssh's own exit code

SCRIPT = """
set -e
umask 077
folder=$HOME/.cache/gpu-katas/on/{place}
mkdir -p "$folder"
cd "$folder"
rm -rf harness katas solutions tests hardware_profiles sent .kata/stash/swaps
tar xzf -
if [ "$(cat {stamp} 2>/dev/null)" != {key} ]; then
  echo "setting up $folder (once; torch is most of it, several minutes) ..."
  python=python3
  for one in python3.13 python3.12 python3.11; do
    if command -v $one >/dev/null; then python=$one; break; fi
  done
  $python -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if v >= (3, 11) else
    "expected Python 3.11 or newer, found %d.%d" % v)'
  $python -m venv .venv
  .venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
  printf %s {key} > {stamp}
fi
export KATA_ROOT=$folder KATA_HOME=$folder/.kata PYTHONUNBUFFERED=1
.venv/bin/python -m harness import {history} >/dev/null
set +e
.venv/bin/python -m harness run {arguments}
code=$?
echo {end}
.venv/bin/python -m harness export 2>/dev/null
exit $code
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Returned:
    """What came back: the exit code of ``kata run`` there, and that machine's history."""

    exit_code: int
    history: str

    def passed(self) -> set[str]:
        """Hashes of the files that passed."""
        records = (json.loads(line) for line in self.history.splitlines()[1:])
        attempts = [record["attempt"] for record in records if "attempt" in record]
        return {one["code_hash"] for one in attempts if one["status"] == "passed"}


def run_there(
    box: str,
    root: Path,
    arguments: Sequence[str],
    *,
    history: str,
    more: Mapping[str, Path],
    hear: Callable[[str], None],
) -> Returned:
    """
    Judge on `box` what lies in `root`, with these arguments of ``kata run``.

    Args:
        box: What ssh takes: ``user@host``, a Host of ~/.ssh/config, ``ssh://user@host:port``.
            KATA_SSH replaces the command ``ssh``, options and all.
        root: A clone, or a folder made by ``kata init``.
        arguments: Of ``kata run``; a path among them is one of `more`.
        history: The history here, as ``kata export`` writes it.
        more: Files that go along: path there, below the tree, to the file.
        hear: Is given each line that is printed there, as it comes.

    Raises:
        HarnessError: ssh is missing or does not get there, or the environment there cannot be
            installed.
    """
    end = f"end-{os.urandom(8).hex()}"
    setup = b"".join(read_file(setting_of(root, name)) for name in SETTINGS[:2])
    script = SCRIPT.format(
        place=shlex.quote(_place(root)),
        stamp=STAMP,
        key=hash_of(setup),
        history=f"sent/{HISTORY}",
        arguments=shlex.join(arguments),
        end=end,
    )
    sent = packed(root, {**more}, {f"sent/{HISTORY}": history.encode()})
    command = [*shlex.split(os.environ.get("KATA_SSH", "ssh")), box, f"sh -c {shlex.quote(script)}"]
    try:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    except FileNotFoundError as error:
        raise HarnessError(f"--on {box}: expected the command {command[0]}, found none.") from error
    with process:
        feeder = Thread(target=_feed, args=(process, sent), daemon=True)
        feeder.start()
        came_back = _listen(process, end, hear)
    if came_back is None:
        raise HarnessError(f"--on {box}: {_why(process.returncode)}")
    return Returned(exit_code=process.returncode, history=came_back)


def packed(root: Path, more: Mapping[str, Path], texts: Mapping[str, bytes]) -> bytes:
    """A clone's files as a gzipped tar, from `root` and what it shares with the package."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz", compresslevel=6) as tar:
        for name, path in [*_tree(root), *more.items()]:
            _add(tar, name, read_file(path))
        for name, data in texts.items():
            _add(tar, name, data)
    return out.getvalue()


def _tree(root: Path) -> Iterator[tuple[str, Path]]:
    yield from _files("harness", BESIDE_HARNESS / "harness")
    for part in PARTS:
        yield from _files(part, part_of(root, part))
    yield from ((name, setting_of(root, name)) for name in SETTINGS)


def _files(name: str, place: Path) -> Iterator[tuple[str, Path]]:
    """Each file below `place`, and what it is called where `place` is called `name`."""
    for path in sorted(place.rglob("*")):
        inside = path.relative_to(place)
        if path.is_file() and LEFT_OUT.isdisjoint(inside.parts):
            yield f"{name}/{inside.as_posix()}", path


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), 0o644
    tar.addfile(entry, io.BytesIO(data))


def _place(root: Path) -> str:
    """The name of the folder there: this machine's, and which folder of it."""
    machine = "".join(letter if letter.isalnum() else "-" for letter in node() or "machine")
    return f"{machine}-{hash_of(str(root).encode())[:8]}"


def _feed(process: subprocess.Popen[bytes], data: bytes) -> None:
    assert process.stdin is not None
    try:
        with process.stdin as stream:
            stream.write(data)
    except OSError:  # it ended before it had taken everything, and says why by its exit code
        return


def _listen(process: subprocess.Popen[bytes], end: str, hear: Callable[[str], None]) -> str | None:
    """Hand on each line up to `end`; what follows it, or None where it never came."""
    assert process.stdout is not None
    for line in process.stdout:
        text = line.decode("utf-8", errors="replace").rstrip("\r\n")
        if text == end:
            return process.stdout.read().decode("utf-8", errors="replace")
        hear(text)
    return None


def _why(exit_code: int) -> str:
    if exit_code == NOT_REACHED:
        return (
            "expected a machine that ssh reaches, found none. "
            "Try it by hand: ssh HOST true, with the same name."
        )
    return (
        f"expected its environment to be set up, found that it failed with exit code {exit_code}; "
        "what was said stands above. It needs tar, Python 3.11 or newer with venv, and pip's index."
    )
