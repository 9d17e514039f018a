"""
Makes the table and the picture of the simulated year in docs/mastery.md.

    python -m tests.schedule.sweep

The tests beside this file hold what the page promises of them, on one seed.
"""

from dataclasses import replace
from statistics import fmean

from harness.reports.pictures.canvas import BLUE, GREY, ORANGE, picture
from tests.schedule.catalogue import ROOT, concepts, entries
from tests.schedule.learner import BEFORE, HOLIDAY, NOW, Learner

PAGE = ROOT / "docs" / "mastery.md"
BEGIN, END = "<!-- the year: made by python -m tests.schedule.sweep -->\n", "<!-- end -->"
SEEDS = range(1, 6)
PACE = 8.8  # hours of new work a week: the whole course in a year
LATER = 26  # weeks after the last kata
# of words, of lines that are beside the point, and of this rule: on a light and on a dark page
INKS = {"": ("#1f2328", GREY, BLUE), "_dark": ("#e6edf3", "#9198a1", "#56B4E9")}
HIGHEST = 24  # hours that the picture shows


def spread(figures):
    """The least and the greatest, in whole numbers."""
    low, high = min(figures), max(figures)
    return f"{low:.0f}" if round(low) == round(high) else f"{low:.0f} to {high:.0f}"


def to_the_end(**how):
    """A line of the first table: the same learner on every seed, to the last kata and beyond."""
    ends, most, usual, known, later, load = [], [], [], [], [], []
    for seed in SEEDS:
        learner = Learner(seed=seed, **how)
        ends.append(learner.finish())
        weeks = learner.lived[: ends[-1] - 1]
        most.append(max(week.reviews for week in weeks))
        usual.append(fmean(week.reviews for week in weeks))
        known.append(learner.recall())
        learner.live(LATER)
        later.append(learner.recall())
        load.append(fmean(week.reviews for week in learner.lived[-8:]))
    return (
        f"{spread(ends)} | {fmean(usual):.1f} | {max(most):.1f} | "
        f"{fmean(one.remembered for one in known) / len(concepts()):.0%} | "
        f"{fmean(one.mean for one in known):.2f} | "
        f"{fmean(one.remembered for one in later) / len(concepts()):.0%} | {fmean(load):.1f}"
    )


def a_year(**how):
    """A line of the second table: after 52 weeks."""
    solved, usual, known = [], [], []
    for seed in SEEDS:
        learner = Learner(seed=seed, **how).live(52)
        solved.append(len(learner.owned))
        usual.append([week.reviews for week in learner.lived])
        known.append(learner.recall())
    at = [fmean(fmean(one[week - 3 : week + 1]) for one in usual) for week in (13, 26, 39, 51)]
    return (
        f"{spread(solved)} | {', '.join(f'{one:.0f}' for one in at)} | "
        f"{spread([one.remembered for one in known])} | {fmean(one.mean for one in known):.2f}"
    )


def row(*cells):
    return f"| {' | '.join(cells)} |"


def tables():
    """Both tables, in Markdown."""
    hours = sum(kata.minutes for kata in entries().values()) / 60
    yield f"{len(entries())} entries, {hours:.0f} hours for one pass, {len(SEEDS)} seeds:\n"
    yield row(
        "hours a week", "last kata solved in week", "hours of reviews a week, mean", "most",
        "concepts at 0.8 then", "mean recall", f"concepts at 0.8 {LATER} weeks later",
        "hours of reviews by then",
    )  # fmt: skip
    yield row(*["---:"] * 8)
    for many in (6, 10, 15, 20):
        yield f"| {many} | {to_the_end(hours=many)} |"
    yield "\nAfter 52 weeks at 10 hours, and by other rules or in other worlds:\n"
    yield row(
        "", "katas solved", "hours of reviews a week around weeks 13, 26, 39 and 52",
        f"concepts at 0.8, of {len(concepts())}", "mean recall of those met",
    )  # fmt: skip
    yield row("---", *["---:"] * 4)
    unbounded, uncredited = replace(BEFORE, keeps_up=True), replace(NOW, credit=False)
    for words, how in (
        ("this rule", {}),
        ("without credit, where it is worth what this rule assumes", {"rule": uncredited}),
        ("without short reviews", {"rule": replace(NOW, short=False)}),
        ("this rule, where a solve is worth twice as much below", {"transfer": 2.0}),
        ("this rule, where it is worth nothing below", {"transfer": 0.0}),
        ("without credit, where it is worth nothing below", {"transfer": 0.0, "rule": uncredited}),
        ("the rule before", {"rule": BEFORE}),
    ):  # fmt: skip
        yield f"| {words} | {a_year(hours=10, **how)} |"
    words = f"the rule before, were all that is due done beside {PACE} hours of new work"
    yield f"| {words} | {a_year(hours=PACE, rule=unbounded)} |"
    words = "this rule likewise"
    yield f"| {words} | {a_year(hours=PACE, rule=replace(NOW, keeps_up=True))} |"


def draw():
    """Hours of reviews, and katas solved, by this rule and by the one before."""
    import matplotlib as mpl

    now = Learner(hours=10)
    now.finish()
    now.live(90 - len(now.lived))
    before = Learner(hours=10, rule=BEFORE).live(90)
    unbounded = Learner(hours=PACE, rule=replace(BEFORE, keeps_up=True)).live(52)
    words = (
        "Left: hours of reviews in each week. This rule stays near 4 while there is new work; all "
        "that the rule before called due would have taken more and more. Right: katas solved."
    )
    for suffix, (ink, grey, blue) in INKS.items():
        inks = dict.fromkeys(("text.color", "axes.labelcolor"), ink)
        inks |= dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color"), grey)
        file = ROOT / "docs" / f"year{suffix}.svg"
        title = "A simulated learner, 10 hours a week"
        with (
            mpl.rc_context({**inks, "savefig.transparent": True}),
            picture(file, title=title, words=words, size=(9.0, 3.2)) as figure,
        ):
            left, right = figure.subplots(1, 2)
            for learner, colour, style in ((now, blue, "-"), (before, ORANGE, "--")):
                weeks = range(1, len(learner.lived) + 1)
                left.plot(weeks, smooth(learner), color=colour, ls=style)
                solved = [sum(week.solved for week in learner.lived[:n]) for n in weeks]
                right.plot(weeks, solved, color=colour, ls=style)
            left.plot(range(1, 53), smooth(unbounded), color=grey, ls=":")
            left.axhline(5, color=grey, lw=0.6)
            left.text(90, 5.2, "5 hours", ha="right", fontsize=7, color=grey)
            last = f"rule before, all that is due:\n{smooth(unbounded)[-1]:.0f} hours by week 52"
            left.text(25, HIGHEST - 3.5, last, fontsize=8)
            left.text(30, 11.5, "rule before, in 10 hours", color=ORANGE, fontsize=8)
            left.text(40, 1.8, "this rule", color=blue, fontsize=8)
            right.text(40, 300, "this rule", color=blue, fontsize=8, ha="right")
            right.text(60, 120, "rule before", color=ORANGE, fontsize=8)
            left.set_ylabel("hours of reviews a week")
            right.set_ylabel(f"katas solved, of {len(entries())}")
            left.set_ylim(0, HIGHEST)
            right.set_ylim(0)
            for axes in (left, right):
                axes.set_xlabel("week")
                axes.set_xlim(1, 90)
                axes.axvspan(HOLIDAY.start / 7 + 1, HOLIDAY.stop / 7 + 1, color=grey, alpha=0.15)


def smooth(learner, over=4):
    """The hours of reviews, each the mean of the last weeks."""
    hours = [week.reviews for week in learner.lived]
    return [fmean(hours[max(0, n - over) : n]) for n in range(1, len(hours) + 1)]


def main():
    """Write both."""
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    after = rest.split(END, 1)[1]
    made = "\n".join(tables())
    PAGE.write_text(f"{before}{BEGIN}{made}\n{END}{after}", encoding="utf-8")
    draw()


if __name__ == "__main__":
    main()
