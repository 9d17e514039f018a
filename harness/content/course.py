"""
What the project ships, in a clone or in an installed package, and a learner's own folder of it.

A clone holds everything. In a wheel the same files lie in ``gpu_katas/`` beside ``harness/``, laid
out as in the clone. A folder made by ``kata init`` holds what a learner reads and edits; what it
lacks, the references above all, is the package's.
"""

from pathlib import Path

PLACED = Path("katas") / ".placed.json"  # what `kata init` and `kata update` put into a folder

BESIDE_HARNESS = Path(__file__).resolve().parents[2]
PACKAGED = BESIDE_HARNESS / "gpu_katas"  # where a wheel puts the course


def shipped() -> Path:
    """The root of what this installation ships: a clone, or a folder of an installed package."""
    return PACKAGED if PACKAGED.is_dir() else BESIDE_HARNESS


def is_package(root: Path) -> bool:
    """Whether `root` is the installed package's own copy, which is nobody's to work in."""
    return root == PACKAGED


def is_placed(root: Path) -> bool:
    """Whether `root` was made by ``kata init``."""
    return (root / PLACED).is_file()


def part_of(root: Path, part: str) -> Path:
    """`part`, as in ``solutions/week01``, of `root`, or the package's where `root` has none."""
    own = root / part
    return shipped() / part if is_placed(root) and not own.exists() else own


def setting_of(root: Path, name: str) -> Path:
    """A file of the project itself, as ``pyproject.toml``; a placed folder may have its own one."""
    return (shipped() if is_placed(root) else root) / name


def shown(path: Path, root: Path) -> Path:
    """`path` as it is told: relative to `root`, or to the package, where it lies inside."""
    for folder in (root, shipped()):
        if path.is_relative_to(folder):
            return path.relative_to(folder)
    return path
