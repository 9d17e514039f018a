"""The author's commands: begin a kata, and prove that katas hold what they promise."""

import json
import random
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from harness.base.errors import DeviceError, UsageProblem
from harness.base.files import write_atomically
from harness.base.processes import cores, cpu_of_children_s
from harness.cli import draw, screen, tables
from harness.cli.house import KATA, WEEKS, House
from harness.cli.practise import choose
from harness.cli.screen import json_option
from harness.content.kata import Kata
from harness.hardware.environment import SEEDS, device_present

SEED = click.IntRange(0, SEEDS - 1)


@click.command()
@click.argument("slug", metavar="weekNN/slug")
@click.option(
    "--backend", help="The backend whose templates to use; default: the entry's, or triton."
)
@click.option(
    "--from",
    "catalogue",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A catalogue in Markdown that has an entry for the kata.",
)
@click.option("--like", type=KATA, help="Begin with the files of this kata, renamed.")
@click.pass_obj
def new(
    house: House, slug: str, backend: str | None, catalogue: Path | None, like: Kata | None
) -> None:
    """Scaffold a kata; what is yours to write is marked TODO(author)."""
    from harness.authoring.entry import read_entry
    from harness.authoring.scaffold import scaffold

    entry = read_entry(catalogue, slug) if catalogue else None
    made = scaffold(house.root, slug, backend, entry=entry, like=like)
    for path in made:
        click.echo(f"  {house.shown(path)}")
    name = Path(slug).name
    click.echo(f"Fill in what is marked TODO(author), then: kata check {name}")


@click.command()
@click.argument("kata", type=KATA)
@click.option(
    "--write", is_flag=True, help="Write it into the kata's folder instead of showing it."
)
@click.pass_obj
def stub(house: House, kata: Kata, write: bool) -> None:
    """
    Cut the stub of a kata out of its reference.

    What kata.toml names under `functions`, and the bodies of kernels, are left to the learner;
    `[stub]` there says what else is, in which words, and what is given. A copy of the file that
    stood there is kept: `kata stash`. With --write the brief gets the line that names the steps.
    """
    from harness.authoring.brief import brief_with_steps
    from harness.authoring.stub import cut_stub

    text = cut_stub(kata)
    if not write:
        click.echo(text, nl=False)
        return
    house.workspace.reset(kata.name, kata.file, text.encode())
    click.echo(f"{house.shown(kata.file)}: cut out of {house.shown(kata.solution)}.")
    brief = kata.folder / "README.md"
    if kata.subgoals and brief.is_file():
        before = brief.read_text(encoding="utf-8")
        if (after := brief_with_steps(kata, before)) != before:
            write_atomically(brief, after.encode())
            click.echo(f"{house.shown(brief)}: names the steps.")
    click.echo(f"Read it as someone who has not seen the reference, then: kata check {kata.name}")


@click.command()
@click.argument("katas", nargs=-1, type=KATA)
@click.option("--week", "weeks", type=WEEKS, help="Every kata of a week, or of weeks as in 1..4.")
@click.option("--all", "everything", is_flag=True, help="Every kata there is.")
@click.option("-j", "--jobs", type=int, help="Worker processes. Default: one per core.")
@click.option("-v", "--verbose", is_flag=True, help="Which test killed which wrong solution.")
@click.option(
    "--wrong", multiple=True, metavar="NAME", help="Only this wrong solution; repeatable."
)
@click.option("--test", "tests", multiple=True, metavar="NAME", help="Only this test; repeatable.")
@click.option("--seed", type=SEED, help="Replay the inputs of an earlier run.")
@click.option(
    "--seeds",
    type=click.IntRange(1),
    metavar="N",
    help="Only the references, each of their tests on N draws.",
)
@click.option(
    "--profiles",
    multiple=True,
    metavar="ID",
    help="Only the references that simulate a GPU, on this hardware profile; repeatable, or `all`.",
)
@click.option(
    "--remember",
    is_flag=True,
    help="Run every test on every wrong solution, and note the cheapest kills in kills.toml.",
)
@json_option
@click.pass_obj
def check(
    house: House,
    katas: tuple[Kata, ...],
    weeks: tuple[int, ...] | None,
    everything: bool,
    jobs: int | None,
    verbose: bool,
    wrong: tuple[str, ...],
    tests: tuple[str, ...],
    seed: int | None,
    seeds: int | None,
    profiles: tuple[str, ...],
    remember: bool,
    as_json: bool,
) -> None:
    """
    Prove katas, all by default: contract, kill matrix, thresholds.

    With --wrong or --test every test asked for is run on every wrong solution asked for, and
    only what they can show is judged; -v says which test killed which. With --seeds each kata is
    reported as it finishes, a draw that fails with the --seed that repeats it; --test picks the
    tests.
    """
    from harness.authoring.check import Part, Report, check_katas, draw_katas, profile_katas

    chosen = choose(house, katas, weeks, everything or (not katas and weeks is None))
    alone = remember or profiles or (wrong and seeds)
    if (wrong or tests) and (len(chosen) != 1 or alone):
        raise UsageProblem(
            "--wrong, --test: expected one kata, without --remember and --profiles, and no --wrong "
            "with --seeds, found otherwise. As in: kata check NAME --wrong NAME"
        )
    seed = random.randrange(SEEDS) if seed is None else seed
    count = max(1, jobs or cores())
    with draw.waiting(f"checking {len(chosen)} kata(s)") as say:

        def heard(event: dict[str, Any]) -> None:
            if event["event"] == "starting":
                say(_progress(event, seeds))

        found: Iterable[Report]
        if profiles:
            ids = _profile_ids(house.root / "hardware_profiles", profiles)
            found = profile_katas(chosen, ids, jobs=count, seed=seed, heard=heard)
        elif seeds:
            found = draw_katas(chosen, jobs=count, seed=seed, draws=seeds, tests=tests, heard=heard)
        else:
            found = check_katas(
                chosen,
                house.home / "cache",
                jobs=count,
                seed=seed,
                whole=remember,
                part=Part(wrong=wrong, tests=tests),
                heard=heard,
            )
        if as_json:
            proofs = list(found)
            screen.as_json(draw.report_row(one, seed) for one in proofs)
            sys.exit(1 if any(one.problems for one in proofs) else 0)
        sound = draw.reports(
            found,
            width=max(len(kata.name) for kata in chosen),
            seed=seed,
            spent_s=cpu_of_children_s,
            verbose=verbose,
        )
    sys.exit(0 if sound else 1)


def _progress(event: dict[str, Any], seeds: int | None) -> str:
    """Where a session is, in a line."""
    drawn = f", draw {event['draws']} of {seeds}" if seeds and "draws" in event else ""
    return f"{event['kata']}: {event['name']} on {event['impl']}{drawn}"


def _profile_ids(folder: Path, asked: tuple[str, ...]) -> list[str]:
    """The profiles asked for, each once; `all` stands for every GPU."""
    from harness.hardware.profiles import find_profile, load_profiles

    if "all" in asked:
        return [name for name, one in load_profiles(folder).items() if one.vendor != "cpu"]
    return [find_profile(folder, name).id for name in dict.fromkeys(asked)]


@click.command()
@click.argument("katas", nargs=-1, type=KATA)
@click.option("--week", "weeks", type=WEEKS, help="Every kata of a week, or of weeks as in 1..4.")
@click.option("--all", "everything", is_flag=True, help="Every kata there is.")
@click.option("-j", "--jobs", type=int, help="Worker processes. Default: one per core.")
@click.option("--seed", type=SEED, help="Replay the inputs of an earlier run.")
@click.option("--line", "lines", type=int, multiple=True, help="Only this line; repeatable.")
@click.option(
    "--mark", is_flag=True, help="Add the survivors to equivalent.toml, for you to explain."
)
@click.option("-v", "--verbose", is_flag=True, help="Also say what killed each of the others.")
@json_option
@click.pass_obj
def mutate(
    house: House,
    katas: tuple[Kata, ...],
    weeks: tuple[int, ...] | None,
    everything: bool,
    jobs: int | None,
    seed: int | None,
    lines: tuple[int, ...],
    mark: bool,
    verbose: bool,
    as_json: bool,
) -> None:
    """
    Mutate the references, and list the mutants that no test kills.

    Kill each survivor with a test, or say in equivalent.toml why no test can tell it from the
    reference. Exits with 1 while there are survivors, or marks that do not hold.
    """
    from harness.authoring import mutate as mutation

    surveys = []
    for kata in choose(house, katas, weeks, everything):
        with draw.waiting(f"mutating {kata.name}"):
            survey = mutation.mutate(
                kata,
                jobs=jobs or cores(),
                seed=random.randrange(SEEDS) if seed is None else seed,
                lines=lines,
            )
        surveys.append(survey)
        if not as_json:
            draw.survey(survey, house.shown(kata.solution), verbose=verbose)
        if mark and survey.survivors:
            marked = house.shown(mutation.mark(kata, survey.survivors))
            click.echo(f"marked: {marked}", err=as_json)
    if as_json:
        screen.as_json(map(draw.survey_row, surveys))
    sys.exit(1 if any(one.survivors or one.problems for one in surveys) else 0)


@click.command()
@click.argument("katas", nargs=-1, type=KATA)
@click.option("--week", "weeks", type=WEEKS, help="Every kata of a week, or of weeks as in 1..4.")
@click.option("--all", "everything", is_flag=True, help="Every kata there is.")
@click.option("--impl", default="solution", show_default=True)
@click.option("--naive", is_flag=True, help="Also time the naive versions.")
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True)
@click.pass_obj
def measure(
    house: House,
    katas: tuple[Kata, ...],
    weeks: tuple[int, ...] | None,
    everything: bool,
    impl: str,
    naive: bool,
    output: Path,
) -> None:
    """
    Time the references on this machine's GPU.

    The file is written after each kata, so that nothing is lost when it is stopped.
    """
    from harness.reports import measured

    if not device_present():
        raise DeviceError("measure: expected a GPU, found none. Run it on a machine with one.")

    def keep(kata: str, results: dict[str, Any]) -> None:
        measured.save(results, output)
        result = results["katas"][kata]
        click.echo(f"{kata}: {result['status']}: {result['reason']} in {result['duration_s']:g} s")

    chosen = choose(house, katas, weeks, everything)
    results = measured.measure(chosen, impl, naive=naive, keep=keep)
    tables.measured(measured.rows([results], _by_id(house)))


@click.command("measured")
@click.argument("katas", nargs=-1, type=KATA)
@click.option("--history", is_flag=True, help="Every measurement, not only the newest of each.")
@click.option("--naive", is_flag=True, help="Also show what the naive versions reached.")
@click.option(
    "-v", "--verbose", is_flag=True, help="Also the spread, the host's time, dates and machines."
)
@json_option
@click.pass_obj
def show_measured(
    house: House,
    katas: tuple[Kata, ...],
    history: bool,
    naive: bool,
    verbose: bool,
    as_json: bool,
) -> None:
    """
    What the references reached on real devices.

    Exits with 1 when a figure does not hold: a reference without room to spare, or a naive version
    that is fast enough, which is then shown. What was never timed is named.
    """
    from harness.reports import measured

    chosen = {kata.id: kata for kata in katas} or _by_id(house)
    results = measured.kept_results(house.root)
    rows = [row for row in measured.rows(results, _by_id(house)) if row["kata"] in chosen]
    asked = [row for row in rows if row["latest"] or history]
    shown = [row for row in asked if naive or row["impl"] == "solution" or row["problem"]]
    if as_json:
        screen.as_json(shown)
        sys.exit(1 if any(row["problem"] for row in rows) else 0)
    untimed = [name for name, kata in chosen.items() if all(one.on == "any" for one in kata.speed)]
    if len(untimed) < len(chosen):
        tables.measured(shown, verbose=verbose)
    if verbose:
        for line in measured.machines(results, shown):
            click.echo(screen.folded(line))
    for name in untimed if katas else ():
        click.echo(f"{name}: no threshold on a GPU's clock")
    for missing in measured.never_timed(rows, chosen):
        click.echo(f"never timed: {missing}")
    if not verbose and shown:
        click.echo(
            "µs: median time of the launch. -v: spread and machines; --naive: naive versions"
        )
    sys.exit(1 if any(row["problem"] for row in rows) else 0)


@click.command()
@click.option("-n", "--ranks", type=click.IntRange(min=2), required=True)
@click.option("--device", type=click.Choice(["cuda", "cpu"]), default="cuda", show_default=True)
@click.option("--largest", type=int, default=2**30, show_default=True, help="Bytes.")
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True)
@click.pass_obj
def sweep(house: House, ranks: int, device: str, largest: int, output: Path) -> None:
    """Measure bus bandwidth over size: NCCL's and the reference's."""
    from harness.reports import sweep as report

    ring = house.curriculum.kata("ring_collectives").solution
    sizes = [size for size in report.SIZES if size <= largest]
    results = report.sweep(ranks, ring, device=device, sizes=sizes)
    write_atomically(output, (json.dumps(results, indent=1) + "\n").encode())
    tables.sweep(results["rows"])


def _by_id(house: House) -> dict[str, Kata]:
    return {kata.id: kata for kata in house.curriculum.katas.values()}


COMMANDS = [new, stub, check, mutate, measure, show_measured, sweep]
