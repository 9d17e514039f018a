"""The author's command: prove that katas hold what they promise."""

import sys

import click

from harness.cli import draw
from harness.cli.house import KATA, House
from harness.cli.practise import choose
from harness.kata import Kata


@click.command()
@click.argument("katas", nargs=-1, type=KATA)
@click.option("--week", type=int, help="Every kata of this week.")
@click.option("--all", "everything", is_flag=True, help="Every kata there is.")
@click.option("-j", "--jobs", default=2, show_default=True, help="Worker processes.")
@click.option("-v", "--verbose", is_flag=True, help="Which test killed which wrong solution.")
@click.pass_obj
def check(
    house: House,
    katas: tuple[Kata, ...],
    week: int | None,
    everything: bool,
    jobs: int,
    verbose: bool,
) -> None:
    """Prove katas: contract, kill matrix, thresholds. For authors and for CI."""
    from harness.check import check_katas

    chosen = choose(house, katas, week, everything)
    with draw.waiting(f"checking {len(chosen)} kata(s)"):
        reports = check_katas(
            chosen, house.curriculum, house.home / "cache", jobs=min(jobs, len(chosen))
        )
    draw.reports(reports, verbose=verbose)
    sys.exit(1 if any(report.problems for report in reports) else 0)


COMMANDS = [check]
