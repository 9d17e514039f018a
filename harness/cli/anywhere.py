"""Commands of a learner's own folder, outside a clone: make one, bring it up to date."""

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import click

from harness.base.errors import UsageProblem
from harness.cli.house import House
from harness.content.course import is_package, shipped
from harness.hardware.packages import PROJECT
from harness.learner.folder import Update, create, shipped_files
from harness.learner.folder import update as updated

MOST_NAMED = 12  # paths in a list


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
def init(folder: Path) -> None:
    """Make a folder of your own to work in, with every kata."""
    if not is_package(shipped()):
        raise UsageProblem(
            f"init: expected the installed package, found a clone, {shipped()}. Work there; "
            "`kata init` is for the installed package: pip install gpu-katas"
        )
    found = create(folder.resolve(), shipped_files(), version(PROJECT))
    katas = [name for name in found.added if name.endswith("/kata.toml")]
    click.echo(f"{folder}: {len(katas)} katas of release {found.after}.")
    _tell_both(found)
    here = folder.resolve() == Path.cwd()
    click.echo("next: kata next" if here else f"next: cd {folder}, then kata next")


@click.command()
@click.pass_obj
def update(house: House) -> None:
    """Bring new and corrected katas; files that you edited stay."""
    found = updated(house.root, shipped_files(), version(PROJECT))
    new = [name.removesuffix("/kata.toml") for name in found.added if name.endswith("/kata.toml")]
    click.echo(f"{house.root}: {_releases(found)}")
    _tell("new kata{s}", [name.removeprefix("katas/") for name in new])
    others = [name for name in found.added if not any(name.startswith(f"{one}/") for one in new)]
    _tell("other new file{s}", others)
    _tell("missing file{s} put back", found.restored)
    _tell("file{s} brought up to date", found.replaced)
    _tell("file{s} removed, no longer part of the course", found.removed)
    _tell("file{s} of yours kept, no longer part of the course", found.dropped)
    _tell_both(found)
    if not any((found.added, found.restored, found.replaced, found.removed, found.both)):
        click.echo("Nothing to do.")


def _releases(found: Update) -> str:
    edited = len(found.kept) + len(found.both)
    release = found.after if found.before == found.after else f"{found.before} to {found.after}"
    return f"release {release}; {_edited(edited)}."


def _edited(count: int) -> str:
    if count < 2:
        return "1 file that you edited, kept" if count else "no file edited"
    return f"{count} files that you edited, all kept"


def _tell(what: str, names: Sequence[str]) -> None:
    """Name what something was done to; `what` has {s} where several want an s."""
    if names:
        what = f"{len(names)} {what.format(s='' if len(names) == 1 else 's')}"
        more = f", and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        click.echo(f"  {what}: {', '.join(names[:MOST_NAMED])}{more}")


def _tell_both(found: Update) -> None:
    """Name each file that both sides have changed, and where each side is."""
    for name, spare in found.both.items():
        click.echo(f"! {name}: changed by you and by the release. Yours stays; theirs is {spare}")


COMMANDS = [init, update]
