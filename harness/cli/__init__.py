"""
The command `kata`: parses, calls, prints. What it prints is drawn in `harness.cli.draw`.

Nothing here imports torch, triton or numba; a run that needs them happens in a child process.
"""

from pathlib import Path

import click

from harness.cli import (
    browse,
    classroom,
    inspect,
    keep,
    learn,
    pictures,
    practise,
    prove,
    watching,
)
from harness.cli.house import House
from harness.content.catalog import find_root

SECTIONS = {
    "Practise": ("next", "start", "show", "watch", "run", "hint", "explain", "due", "predict",
                 "placement"),
    "See where you stand": ("list", "scorecard", "coverage", "profile"),
    "See what your code does": ("inspect", "roofline", "trace"),
    "Your files": ("swap", "restore", "reset", "diff", "stash"),
    "Your history": ("export", "import", "verify"),
    "The house, its authors and instructors": ("doctor", "new", "stub", "check", "measure",
                                               "measured", "class"),
}  # fmt: skip


class InSections(click.Group):
    """Lists commands by what they are for, in the order in which a learner meets them."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """One block of names and first sentences for each section."""
        room = formatter.width - 6 - max(map(len, self.commands))
        for title, names in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [(name, self.commands[name].get_short_help_str(room)) for name in names]
                )


@click.group(cls=InSections, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--root", type=click.Path(path_type=Path), envvar="KATA_ROOT", help="Project root.")
@click.version_option(package_name="gpu-katas")
@click.pass_context
def main(ctx: click.Context, root: Path | None) -> None:
    """
    Katas for every mechanism of modern ML systems, judged with and without a GPU.

    Begin with `kata next`: it names a kata and what to type. Exit codes: 0 all passed, 1 a kata
    is not passed, 2 wrong usage, 3 the house is not in order, 4 device trouble.
    """
    ctx.obj = House((root or find_root(Path.cwd())).resolve())


for module in (learn, practise, watching, browse, inspect, pictures, prove, keep, classroom):
    for command in module.COMMANDS:
        main.add_command(command)
