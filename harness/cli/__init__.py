"""
The command `kata`: parses, calls, prints. What it prints is drawn in `harness.cli.draw`.

Nothing here imports torch, triton or numba; a run that needs them happens in a child process.
"""

from pathlib import Path

import click

from harness.catalog import find_root
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


class InOrder(click.Group):
    """Lists commands in the order in which a learner meets them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Order of registration, not of the alphabet."""
        return list(self.commands)


@click.group(cls=InOrder, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--root", type=click.Path(path_type=Path), envvar="KATA_ROOT", help="Project root.")
@click.version_option(package_name="gpu-katas")
@click.pass_context
def main(ctx: click.Context, root: Path | None) -> None:
    """
    Katas for every mechanism of modern ML systems, judged with and without a GPU.

    Start with `kata list`, then `kata run NAME`. Exit codes: 0 all passed, 1 a kata is not
    passed, 2 wrong usage, 3 the house is not in order, 4 device trouble.
    """
    ctx.obj = House((root or find_root(Path.cwd())).resolve())


for module in (learn, practise, watching, browse, inspect, pictures, prove, keep, classroom):
    for command in module.COMMANDS:
        main.add_command(command)
