"""
The command `kata`: parses, calls, prints. What it prints is drawn in `harness.cli.draw`.

Nothing here imports torch, triton or numba; a run that needs them happens in a child process. The
module of a command is imported when the command is called: most of the time that a short command
takes is the time of its imports.
"""

import sys
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path

import click

# name to module and first sentence of its help, in the order in which a learner meets them
SECTIONS = {
    "Practise": {
        "next": ("learn", "What to practise next, and why."),
        "start": ("learn", "Start a kata, or start it again, from the blank stub."),
        "show": ("browse", "A kata's brief, thresholds and attempts; or a week's plan."),
        "watch": ("watching", "Judge on every save, stage by stage, up to the first failure."),
        "run": ("practise", "Judge your code, each kata in a process of its own."),
        "hint": ("hint", "The next hint; the last one is lines to put in order."),
        "explain": ("learn", "The reference, its worksheet filled in, and how yours compares."),
        "due": ("learn", "What you are about to forget, and when the rest will be due."),
        "hunt": ("hunt", "Find the fault in a broken reference, and mend it."),
        "plan": ("plan", "The weeks ahead: new katas, reviews and hours."),
        "predict": ("predict", "Estimate intensity, bound and time; see how close you were."),
        "quiz": ("quiz", "Short, freshly drawn questions: a five-minute review."),
        "placement": ("learn", "Test out of a week."),
    },
    "See where you stand": {
        "list": ("browse", "Every kata, and where you stand with it."),
        "scorecard": ("browse", "What you own, what is due, what was measured."),
        "coverage": ("browse", "Which katas cover each concept, exercise and milestone."),
        "profile": ("browse", "Hardware profiles: the peak figures of each GPU."),
    },
    "See what your code does": {
        "inspect": ("inspect", "What the compiler makes of your kernels."),
        "roofline": (
            "pictures",
            "Your code on the roofline, beside the reference.",
        ),
        "trace": (
            "pictures",
            "Which program or warp accesses what, and at what cost.",
        ),
        "lines": (
            "lines",
            "Line by line: instructions, sectors, bytes and bank conflicts.",
        ),
    },
    "Your files": {
        "doctor": ("keep", "What is installed, what is missing, and how to fix it."),
        "init": ("anywhere", "Make a folder of your own to work in, with every kata."),
        "update": (
            "anywhere",
            "Bring new and corrected katas; files that you edited stay.",
        ),
        "swap": ("practise", "Put the reference solution in place; your file is kept."),
        "restore": ("practise", "Bring back what was in place before `kata swap`."),
        "reset": ("practise", "Start again from the blank stub; your file is kept."),
        "diff": ("practise", "Your file against the reference."),
        "stash": ("practise", "Every kept copy of your files."),
    },
    "Your history": {
        "export": ("keep", "Write every attempt as JSON Lines, to merge elsewhere."),
        "import": ("keep", "Merge an exported history into yours."),
        "verify": ("keep", "Judge again a sample of what a scorecard calls solved."),
    },
    "For authors and teachers": {
        "new": ("prove", "Scaffold a kata; what is yours to write is marked TODO(author)."),
        "stub": ("prove", "Cut the stub of a kata out of its reference."),
        "check": (
            "prove",
            "Prove katas, all by default: contract, kill matrix, thresholds.",
        ),
        "mutate": (
            "prove",
            "Mutate the references, and list the mutants that no test kills.",
        ),
        "measure": (
            "prove",
            "Time the references on this machine's GPU.",
        ),
        "measured": (
            "prove",
            "What the references reached on real devices.",
        ),
        "sweep": (
            "prove",
            "Measure bus bandwidth over size: NCCL's and the reference's.",
        ),
        "site": ("publish", "The course as static pages that need no server."),
        "release": (
            "publish",
            "Write the course for learners, without solutions.",
        ),
        "class": ("classroom", "For teachers: a class in one table, submissions graded."),
    },
}
INTERRUPTED = 130  # 128 and the number of SIGINT
KNOWN = {name: row for section in SECTIONS.values() for name, row in section.items()}


class InSections(click.Group):
    """Lists commands by what they are for; imports one when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Every name, in the order of the sections."""
        return list(KNOWN)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, from the module that it lives in."""
        if cmd_name not in KNOWN:
            return None
        module = import_module(f"harness.cli.{KNOWN[cmd_name][0]}")
        commands: list[click.Command] = module.COMMANDS
        return next(one for one in commands if one.name == cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that is called; a misspelt one is answered with the nearest names."""
        if args and args[0] not in KNOWN and not args[0].startswith("-"):
            from harness.base.errors import nearest

            ctx.fail(f"No such command '{args[0]}'.{nearest(args[0], list(KNOWN))}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        """Run the command; Ctrl-C ends it with 130 wherever it strikes, as shells have it."""
        try:
            return super().invoke(ctx)
        except (KeyboardInterrupt, click.Abort) as error:
            click.echo("stopped", err=True)
            pressed = error if isinstance(error, KeyboardInterrupt) else error.__context__
            ctx.exit(INTERRUPTED if isinstance(pressed, KeyboardInterrupt) else 1)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """One block of names and first sentences for each section."""
        room = formatter.width - 6 - max(map(len, KNOWN))
        for title, section in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [
                        (name, click.Command(name, help=text).get_short_help_str(room))
                        for name, (_, text) in section.items()
                    ]
                )


@click.group(cls=InSections, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--root", type=click.Path(path_type=Path), envvar="KATA_ROOT", help="Project root.")
@click.version_option(package_name="gpu-katas")
@click.pass_context
def main(ctx: click.Context, root: Path | None) -> None:
    """
    Katas for every mechanism of modern ML systems, judged with and without a GPU.

    Begin with `kata next`: it names a kata and what to type. Outside a clone `kata init DIR` comes
    first. Exit codes: 0 all passed, 1 a kata did not pass, 2 wrong usage, 3 an error in the katas
    or the harness, 4 a problem with the device, 130 stopped by Ctrl-C.
    """
    if sys.platform == "win32":  # no fork, no signals, no descriptors that a process inherits
        from harness.base.errors import HarnessError

        raise HarnessError(
            "kata: expected Linux or macOS, found Windows. Run it in WSL2 (wsl --install), in the "
            "container of .devcontainer/, or in Colab."
        )
    from harness.cli.house import House
    from harness.content.catalog import find_root

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # what an encoding lacks is written as an escape
            stream.reconfigure(errors="backslashreplace")
    ctx.obj = House((root or find_root(Path.cwd())).resolve())
