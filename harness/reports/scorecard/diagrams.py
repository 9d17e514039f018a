"""What a page draws by itself: strips of levels, the dependency map, the year's history."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from textwrap import wrap

from markupsafe import Markup

from harness.reports.scorecard import Day, Group, TopicLine

BOX_WIDTH, BOX_HEIGHT, GAP_X, GAP_Y = 178, 58, 22, 12  # of the map, in pixels
LINE, LEADING = 24, 16  # characters and height of a line in a box
CELL = 12  # a day of the history
HALVES = (27, 26)  # weeks of the history's two pictures, each as wide as a phone
NAMES, MONTHS = 30, 16  # room for the names of days and of months, in pixels
SHADES = ((None, 0.12), (0, 0.3), (1, 0.5), (2, 0.75), (3, 1.0))  # runs that passed, opacity
ROOM = 2  # weeks that the name of a month takes
WEEKDAYS = {0: "Mon", 2: "Wed", 4: "Fri"}


def bar(group: Group) -> Markup:
    """Its items by level, the furthest first, as a strip; the words beside it say the same."""
    parts = [
        Markup('<span class="{}" style="flex-grow:{}"></span>').format(str(level), count)
        for level, count in sorted(group.items.items(), reverse=True)
        if count
    ]
    return Markup('<div class="bar" aria-hidden="true">{}</div>').format(Markup("").join(parts))


# ---- the dependency map --------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """
    A topic as it is drawn.

    Attributes:
        needs: Topics, by `id`, that come before it.
        href: Where it leads.
        words: Under its name; `said` is its whole title.
        fill: The name of a colour of the page.
        dashed: Whether its border is.
    """

    id: str
    name: str
    needs: tuple[str, ...]
    href: str
    words: str
    said: str
    fill: str = "paper"
    dashed: bool = False


def topic_box(topic: TopicLine) -> Box:
    """A topic with what the learner has done of it; leads to its first week."""
    state = state_words(topic)
    return Box(
        id=topic.id,
        name=topic.name,
        needs=topic.needs,
        href=f"#week-{topic.weeks[0] if topic.weeks else 1}",
        words=state,
        said=f"{topic.name}: {f'{topic.level}, ' if topic.katas else ''}{state}",
        fill=str(topic.level) if topic.katas else "paper",
        dashed=topic.later,
    )


def state_words(topic: TopicLine) -> str:
    """Whether it is advised yet, and how much of it is done; nothing keeps anyone from any."""
    solved = round(topic.share * topic.katas)
    done = f"{solved} of {topic.katas} solved" if topic.katas else "no katas yet"
    return f"{'open' if topic.open else 'begun' if topic.share else 'later'} · {done}"


def dependency_map(boxes: Sequence[Box]) -> Markup:
    """Topics in columns by how much lies before them."""
    depth: dict[str, int] = {}
    needs = {box.id: box.needs for box in boxes}

    def column(key: str) -> int:
        if key not in depth:
            depth[key] = 0  # a circle ends here instead of never
            depth[key] = max((column(need) + 1 for need in needs[key]), default=0)
        return depth[key]

    rows: dict[int, int] = defaultdict(int)
    place: dict[str, tuple[int, int]] = {}
    for box in boxes:
        at = column(box.id)
        place[box.id] = (at * (BOX_WIDTH + GAP_X), rows[at] * (BOX_HEIGHT + GAP_Y))
        rows[at] += 1
    width = max((x for x, _ in place.values()), default=0) + BOX_WIDTH + 2
    height = max((y for _, y in place.values()), default=0) + BOX_HEIGHT + 2
    lines = [
        _edge(place[need], place[box.id])
        for box in boxes
        for need in box.needs
        if place[need] != place[box.id]
    ]
    drawn = [_drawn_box(box, *place[box.id]) for box in boxes]
    return Markup(
        '<svg viewBox="-1 -1 {} {}" width="{}" role="group" class="boxes" '
        'aria-label="Dependency map of {} topics">{}{}</svg>'
    ).format(width, height, width, len(boxes), Markup("").join(lines), Markup("").join(drawn))


def _edge(start: tuple[int, int], end: tuple[int, int]) -> Markup:
    x0, y0 = start[0] + BOX_WIDTH, start[1] + BOX_HEIGHT / 2
    x1, y1 = end[0], end[1] + BOX_HEIGHT / 2
    middle = (x0 + x1) / 2
    return Markup('<path d="M{} {}C{} {} {} {} {} {}" fill="none" stroke="var(--edge)"/>').format(
        x0, y0, middle, y0, middle, y1, x1, y1
    )


def _drawn_box(box: Box, x: int, y: int) -> Markup:
    name = wrap(box.name, LINE, max_lines=2, placeholder="…")
    words = [
        Markup('<text x="{}" y="{}">{}</text>').format(x + 7, y + LEADING * at, line)
        for at, line in enumerate([*name, box.words], start=1)
    ]
    return Markup(
        '<a href="{}"><title>{}</title><rect x="{}" y="{}" width="{}" height="{}" '
        'rx="6" fill="var(--{})" stroke="var(--ink)"{}/>{}</a>'
    ).format(
        box.href,
        box.said,
        x,
        y,
        BOX_WIDTH,
        BOX_HEIGHT,
        box.fill,
        Markup(' stroke-dasharray="5 4"') if box.dashed else "",
        Markup("").join(words),
    )


# ---- the history ---------------------------------------------------------------------------


def history(days: Sequence[Day], today: date) -> Markup:
    """A square for each day of the last year, darker for more runs that passed; two half years."""
    by_day = {day.on: day for day in days}
    monday = today - timedelta(days=today.weekday())
    first = monday - timedelta(weeks=sum(HALVES) - 1)
    halves = []
    for weeks in HALVES:
        halves.append(_half_year(by_day, first, weeks, today))
        first += timedelta(weeks=weeks)
    return Markup("").join(halves)


def _half_year(by_day: dict[date, Day], first: date, weeks: int, today: date) -> Markup:
    """`weeks` columns from the Monday `first` on, none of them after `today`."""
    count = min(weeks * 7, (today - first).days + 1)
    days = [first + timedelta(days=number) for number in range(count)]
    squares = [_square(by_day.get(on), on, at) for at, on in enumerate(days)]
    names = [
        Markup('<text x="0" y="{}">{}</text>').format(MONTHS + (at + 1) * CELL - 3, name)
        for at, name in WEEKDAYS.items()
    ]
    # a month stands over the first whole week of it, where there is room for its name
    months = [
        Markup('<text x="{}" y="{}">{}</text>').format(
            NAMES + at // 7 * CELL, MONTHS - 5, on.strftime("%b") + (f" {on.year}" if new else "")
        )
        for at, on in enumerate(days)
        if on.weekday() == 0 and on.day <= 7 and at // 7 <= weeks - ROOM
        for new in [on.month == 1]
    ]
    runs = sum(day.runs for on, day in by_day.items() if days and days[0] <= on <= days[-1])
    width, height = NAMES + weeks * CELL, MONTHS + 7 * CELL
    return Markup(
        '<svg viewBox="0 0 {} {}" width="{}" height="{}" role="img" class="half" '
        'aria-label="{}">{}</svg>'
    ).format(
        width,
        height,
        width,
        height,
        f"{days[0]} to {days[-1]}: {runs} runs",
        Markup("").join([*names, *months, *squares]),
    )


def _square(day: Day | None, on: date, at: int) -> Markup:
    said = f"{on}: {day.runs} runs, {day.passed} passed" if day else f"{on}: none"
    passed = min(3, day.passed) if day else None
    return Markup(
        '<rect x="{}" y="{}" width="{size}" height="{size}" fill="var(--{})" '
        'fill-opacity="{}"><title>{}</title></rect>'
    ).format(
        NAMES + at // 7 * CELL,
        MONTHS + at % 7 * CELL,
        "deed" if day else "soft",
        dict(SHADES)[passed],
        said,
        size=CELL - 2,
    )
