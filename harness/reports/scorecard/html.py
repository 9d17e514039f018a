"""The scorecard as one HTML file: for a phone and paper, for a keyboard and a screen reader."""

import re
from base64 import b64encode
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import TYPE_CHECKING

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from harness.base.errors import UsageProblem
from harness.learner.levels import Level
from harness.learner.mastery import CLEAN_DAYS
from harness.reports.scorecard import ItemLine, KataLine, Scorecard
from harness.reports.scorecard.diagrams import (
    SHADES,
    bar,
    dependency_map,
    history,
    state_words,
    topic_box,
)

if TYPE_CHECKING:
    from harness.content.syllabus import Assignment
    from harness.reports.classroom import Pupil

MARKS = {str(level): level.glyph for level in Level}


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture inside the page: what it shows, and its bytes as a data URI."""

    title: str
    uri: str


def read_picture(file: Path) -> Picture:
    """
    The SVG or PNG in `file`, titled by its own title or by its name.

    Raises:
        UsageProblem: it is neither.
    """
    kinds = {".svg": "image/svg+xml", ".png": "image/png"}
    if file.suffix not in kinds:
        raise UsageProblem(
            f"{file}: expected an SVG or a PNG, found {file.suffix or 'no suffix'}. "
            "Make one: kata roofline NAME -o FILE.svg"
        )
    data = file.read_bytes()
    title = re.search(r"<title>([^<]+)</title>", data.decode(errors="replace"))
    encoded = b64encode(data).decode()
    return Picture(
        title=unescape(title[1]) if title else file.stem,
        uri=f"data:{kinds[file.suffix]};base64,{encoded}",
    )


def as_html(card: Scorecard, pictures: Sequence[Picture] = ()) -> str:
    """The whole page, with `pictures` in it; it loads nothing and runs no script."""
    tried = sorted((kata for kata in card.katas if kata.touched), key=_by_due)
    by_name = {kata.name: kata for kata in card.katas}
    items: dict[int, list[ItemLine]] = defaultdict(list)
    for item in card.items:
        items[item.week].append(item)
    return page_template("scorecard").render(
        card=card,
        levels=[str(level) for level in reversed(Level)],
        marks=MARKS,
        mastered=sum(kata.level == Level.MASTERED for kata in card.katas),
        solved=sum(kata.level.owned for kata in card.katas),
        clean_days=CLEAN_DAYS,
        hints=sum(kata.hints for kata in card.katas),
        peeks=sum(kata.peeks for kata in card.katas),
        due=[by_name[name] for name in card.due],
        tried=tried,
        shown={kata.name for kata in tried},
        begun={kata.week for kata in tried},
        weeks_of={
            part.number: [week for week in card.weeks if week.part == part.number]
            for part in card.parts
        },
        items_of=items,
        bar=bar,
        percent=lambda share: f"{share or 0:.0%}",
        breakable=breakable,
        map=dependency_map([topic_box(topic) for topic in card.topics]),
        topic_names={topic.id: topic.name for topic in card.topics},
        state_words=state_words,
        history=history(card.days, card.at.date()),
        shades=SHADES,
        pictures=pictures,
    )


def _by_due(kata: KataLine) -> tuple[bool, str, str]:
    """What has a date first, the earliest before the others."""
    return kata.due is None, kata.due.isoformat() if kata.due else "", kata.name


def breakable(name: str) -> Markup:
    """A name of code that a narrow column may break after an underscore."""
    return Markup("_<wbr>").join(name.split("_"))


def class_as_html(pupils: "Sequence[Pupil]", assignments: "Sequence[Assignment]" = ()) -> str:
    """A class: its learners, what they solved in time, how much of each week they own."""
    return page_template("class").render(
        pupils=pupils,
        assignments=assignments,
        weeks=[week for week in pupils[0].card.weeks if week.covered],
    )


def page_template(name: str) -> Template:
    """The template of a page; what it is not given is an error."""
    environment = Environment(
        loader=PackageLoader("harness.reports.scorecard"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(f"{name}.html.jinja")
