"""The scorecard as one HTML file: for a phone and paper, for a keyboard and a screen reader."""

import re
from base64 import b64encode
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from html import unescape
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from harness.base.errors import UsageProblem
from harness.learner.mastery import Level
from harness.reports.scorecard import Day, Group, ItemLine, Scorecard, TopicLine

if TYPE_CHECKING:
    from harness.reports.classroom import Pupil

MARKS = {str(level): level.glyph for level in Level}
BOX_WIDTH, BOX_HEIGHT, GAP_X, GAP_Y = 168, 54, 28, 12  # of the map, in pixels
LINE, LEADING = 24, 16  # characters and height of a line in a box
CELL = 12  # a day of the history
SHOWN_DAYS = 371  # 53 weeks
SHADES = (0.25, 0.5, 0.75, 1.0)  # of a day without, with one, two and more runs that passed


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
    tried = [kata for kata in card.katas if kata.touched]
    by_name = {kata.name: kata for kata in card.katas}
    items: dict[int, list[ItemLine]] = defaultdict(list)
    for item in card.items:
        items[item.week].append(item)
    return _template("scorecard").render(
        card=card,
        levels=[str(level) for level in reversed(Level)],
        marks=MARKS,
        mastered=Level.MASTERED,
        solved=sum(kata.level.owned for kata in card.katas),
        hints=sum(kata.hints for kata in card.katas),
        peeks=sum(kata.peeks for kata in card.katas),
        due=[by_name[name] for name in card.due],
        tried=tried,
        shown={kata.name for kata in tried},
        weeks_of={
            part.number: [week for week in card.weeks if week.part == part.number]
            for part in card.parts
        },
        items_of=items,
        bar=bar,
        percent=lambda share: f"{share or 0:.0%}",
        map=dependency_map(card.topics),
        history=history(card.days, card.at.date()),
        pictures=pictures,
    )


def class_as_html(pupils: "Sequence[Pupil]") -> str:
    """A class: its learners, and who owns how much of each week that has katas."""
    return _template("class").render(
        pupils=pupils,
        weeks=[week for week in pupils[0].card.weeks if week.covered],
    )


def _template(name: str) -> Template:
    environment = Environment(
        loader=PackageLoader("harness.reports.scorecard"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(f"{name}.html.jinja")


def bar(group: Group) -> Markup:
    """Its items by level, the furthest first, as a strip; the words beside it say the same."""
    parts = [
        Markup('<span class="{}" style="flex-grow:{}"></span>').format(str(level), count)
        for level, count in sorted(group.items.items(), reverse=True)
        if count
    ]
    return Markup('<div class="bar" aria-hidden="true">{}</div>').format(Markup("").join(parts))


def dependency_map(topics: tuple[TopicLine, ...]) -> Markup:
    """Topics in columns by how much lies before them; each links to its first week."""
    depth: dict[str, int] = {}
    needs = {topic.id: topic.needs for topic in topics}

    def column(key: str) -> int:
        if key not in depth:
            depth[key] = 0  # a circle ends here instead of never
            depth[key] = max((column(need) + 1 for need in needs[key]), default=0)
        return depth[key]

    rows: dict[int, int] = defaultdict(int)
    place: dict[str, tuple[int, int]] = {}
    for topic in topics:
        at = column(topic.id)
        place[topic.id] = (at * (BOX_WIDTH + GAP_X), rows[at] * (BOX_HEIGHT + GAP_Y))
        rows[at] += 1
    width = max((x for x, _ in place.values()), default=0) + BOX_WIDTH + 2
    height = max((y for _, y in place.values()), default=0) + BOX_HEIGHT + 2
    lines = [
        _edge(place[need], place[topic.id])
        for topic in topics
        for need in topic.needs
        if place[need] != place[topic.id]
    ]
    boxes = [_box(topic, *place[topic.id]) for topic in topics]
    return Markup(
        '<svg viewBox="-1 -1 {} {}" width="{}" role="group" class="boxes" '
        'aria-label="Dependency map of {} topics; the list below says the same">{}{}</svg>'
    ).format(width, height, width, len(topics), Markup("").join(lines), Markup("").join(boxes))


def _edge(start: tuple[int, int], end: tuple[int, int]) -> Markup:
    x0, y0 = start[0] + BOX_WIDTH, start[1] + BOX_HEIGHT / 2
    x1, y1 = end[0], end[1] + BOX_HEIGHT / 2
    middle = (x0 + x1) / 2
    return Markup('<path d="M{} {}C{} {} {} {} {} {}" fill="none" stroke="var(--line)"/>').format(
        x0, y0, middle, y0, middle, y1, x1, y1
    )


def _box(topic: TopicLine, x: int, y: int) -> Markup:
    fill = "solved" if topic.share >= 1 and topic.katas else "correct" if topic.share else "untried"
    state = "open" if topic.open else "locked"
    done = f"{topic.share:.0%} of {topic.katas}" if topic.katas else "no katas yet"
    name = wrap(topic.name, LINE, max_lines=2, placeholder="…")
    words = [
        Markup('<text x="{}" y="{}">{}</text>').format(x + 6, y + LEADING * at, line)
        for at, line in enumerate([*name, f"{state} · {done}"], start=1)
    ]
    return Markup(
        '<a href="#week-{}"><title>{}: {}, {}</title><rect x="{}" y="{}" width="{}" height="{}" '
        'rx="6" fill="var(--{})" stroke="var(--{})"/>{}</a>'
    ).format(
        topic.weeks[0] if topic.weeks else 1,
        topic.name,
        state,
        done,
        x,
        y,
        BOX_WIDTH,
        BOX_HEIGHT,
        fill,
        "ink" if topic.open else "line",
        Markup("").join(words),
    )


def history(days: tuple[Day, ...], today: date) -> Markup:
    """A square for each day of the last year, darker for more runs that passed."""
    by_day = {day.on: day for day in days}
    start = today - timedelta(days=SHOWN_DAYS - 1)
    start -= timedelta(days=start.weekday())
    squares = []
    count = (today - start).days + 1
    for number in range(count):
        on = start + timedelta(days=number)
        day = by_day.get(on)
        fill, opacity = ("mastered", SHADES[min(3, day.passed)]) if day else ("untried", 1.0)
        title = f"{on}: {day.runs} runs, {day.passed} passed" if day else f"{on}: none"
        squares.append(
            Markup(
                '<rect x="{}" y="{}" width="{size}" height="{size}" fill="var(--{})" '
                'fill-opacity="{}"><title>{}</title></rect>'
            ).format(number // 7 * CELL, number % 7 * CELL, fill, opacity, title, size=CELL - 2)
        )
    width = -(-count // 7) * CELL
    return Markup('<svg viewBox="0 0 {} {}" width="{}" role="img" aria-label="{}">{}</svg>').format(
        width,
        7 * CELL,
        width,
        f"Runs a day over the last year: {len(days)} days with runs",
        Markup("").join(squares),
    )
