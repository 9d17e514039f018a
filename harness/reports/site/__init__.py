"""
The course as static pages: weeks, katas, the dependency map, search; to be opened from a disk.

What is not told here is what a learner is to find: no hints, no solutions.
"""

import json
import shutil
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from harness.base.errors import UsageProblem
from harness.content.catalog import Curriculum, Topic
from harness.content.kata import CostThreshold, Kata, SpeedThreshold
from harness.reports.scorecard.diagrams import Box, dependency_map
from harness.reports.scorecard.html import breakable
from harness.reports.site.brief import as_page, as_words
from harness.reports.site.ladder import gates_of

MARKER = ".kata-site"  # in a folder that a site was written to, and may be again
LITTLE = 0.1  # below it two places say little
PACKAGE = "harness.reports.site"

Picture = Callable[[Kata], Path | None]


@dataclass(kw_only=True)
class Site:
    """
    Pages under `folder`.

    Attributes:
        results: Measured on real devices, oldest first.
        picture: The trace of a kata as a file, or None where there is none.
    """

    curriculum: Curriculum
    folder: Path
    results: Sequence[Mapping[str, Any]]
    picture: Picture
    found: list[tuple[str, str, str, str]] = field(default_factory=list)

    def write(self) -> list[Path]:
        """
        Write every page; what an earlier site left is gone.

        Returns:
            The pages.

        Raises:
            UsageProblem: the folder holds something else.
        """
        self._clear()
        katas = self.curriculum.katas
        self.order = sorted(katas.values(), key=lambda one: (one.week, one.difficulty))
        self.gates = gates_of(self.results, katas)
        self.leads_to: dict[str, list[str]] = defaultdict(list)
        for kata in katas.values():
            for need in kata.requires:
                self.leads_to[need].append(kata.name)
        self.weekly: dict[int, list[Kata]] = defaultdict(list)
        for kata in self.order:
            self.weekly[kata.week].append(kata)
        pages = [self._kata(kata) for kata in katas.values()]
        pages += [self._week(number) for number in self.curriculum.weeks]
        pages.append(self._page("index.html", "index", parts=self.curriculum.parts))
        pages.append(self._map())
        pages.append(self._page("search.html", "search"))
        style = _environment().get_template("style.css.jinja").render()
        (self.folder / "style.css").write_text(style, encoding="utf-8")
        index = json.dumps(self.found, ensure_ascii=False)
        script = resources.files(PACKAGE).joinpath("templates/search.js").read_text("utf-8")
        (self.folder / "search.js").write_text(f"const PAGES = {index}\n{script}", "utf-8")
        return pages

    def _clear(self) -> None:
        if self.folder.exists() and any(self.folder.iterdir()):
            if not (self.folder / MARKER).is_file():
                raise UsageProblem(
                    f"-o {self.folder}: expected an empty folder or an earlier site, found other "
                    "files. Name another folder."
                )
            shutil.rmtree(self.folder)
        for name in ("week", "kata", "trace"):
            (self.folder / name).mkdir(parents=True)
        (self.folder / MARKER).touch()

    def _page(self, path: str, template: str, **values: object) -> Path:
        text = (
            _environment()
            .get_template(f"{template}.html.jinja")
            .render(
                up="../" if "/" in path else "",
                weeks=self.curriculum.weeks,
                katas=self.curriculum.katas,
                weekly=self.weekly,
                breakable=breakable,
                **values,
            )
        )
        file = self.folder / path
        file.write_text(text, encoding="utf-8")
        return file

    def _kata(self, kata: Kata) -> Path:
        brief = (kata.folder / "README.md").read_text(encoding="utf-8")
        path = f"kata/{kata.name}.html"
        self._remember(kata.name, path, kata.title, f"{kata.teaches} {brief}")
        picture = self.picture(kata)
        if picture is not None:
            shutil.copyfile(picture, self.folder / "trace" / f"{kata.name}.svg")
        order = [one.name for one in self.order]
        at = order.index(kata.name)
        return self._page(
            path,
            "kata",
            kata=kata,
            brief=as_page(brief, self._link),
            items=self.curriculum.items,
            cost=[(one.name, limit_words(one)) for one in kata.cost],
            speed=[(one.name, speed_words(one)) for one in kata.speed],
            figure=figure,
            gates=self.gates.get(kata.name, ()),
            has_picture=picture is not None,
            leads_to=self.leads_to[kata.name],
            before=order[at - 1] if at else None,
            after=order[at + 1] if at + 1 < len(order) else None,
        )

    def _week(self, number: int) -> Path:
        week = self.curriculum.weeks[number]
        readme = self.curriculum.root / "katas" / f"week{number:02d}" / "README.md"
        text = readme.read_text(encoding="utf-8") if readme.is_file() else ""
        path = f"week/{number:02d}.html"
        words = " ".join([week.goal, *week.items().values(), text])
        self._remember(f"Week {number}", path, week.title, words)
        covering: dict[str, list[str]] = defaultdict(list)
        for kata in self.curriculum.katas.values():
            for item in kata.covers:
                covering[item].append(kata.name)
        opening, heading, rest = as_page(text, self._link).partition("<h2>")
        return self._page(
            path,
            "week",
            week=week,
            opening=opening,
            text=heading + rest,
            covering=covering,
            part=next((part for part in self.curriculum.parts if number in part.weeks), None),
        )

    def _map(self) -> Path:
        boxes = [self._box(topic) for topic in self.curriculum.topics]
        names = {topic.id: topic.name for topic in self.curriculum.topics}
        return self._page(
            "map.html", "map", map=dependency_map(boxes), boxes=boxes, topic_names=names
        )

    def _box(self, topic: Topic) -> Box:
        count = sum(len(self.weekly[number]) for number in topic.weeks)
        words = f"{count} kata{'s' if count > 1 else ''}" if count else "no katas yet"
        return Box(
            id=topic.id,
            name=topic.name,
            needs=topic.needs,
            href=f"week/{topic.weeks[0] if topic.weeks else 1:02d}.html",
            words=words,
            said=f"{topic.name}: {words}",
            fill="untried" if count else "paper",
        )

    def _remember(self, name: str, path: str, title: str, text: str) -> None:
        self.found.append((name, path, title, as_words(text)))

    def _link(self, target: str) -> str | None:
        """Where a link of a brief or of a week's page leads on the site; None: nowhere."""
        if target.startswith(("https://", "http://", "#")):
            return target
        name = target.rstrip("/").rpartition("/")[2]
        return f"../kata/{name}.html" if name in self.curriculum.katas else None


def _environment() -> Environment:
    return Environment(
        loader=ChoiceLoader([PackageLoader(PACKAGE), PackageLoader("harness.reports.scorecard")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def limit_words(one: CostThreshold) -> str:
    """What a counted threshold asks for."""
    if one.bound is not None:
        return f"at most {one.bound:g} x the least possible"
    if one.at_most is not None:
        return f"at most {one.at_most:,g}"
    if one.at_least is not None:
        return f"at least {one.at_least:,g}"
    return f"exactly {one.exactly:,g}"


def speed_words(one: SpeedThreshold) -> str:
    """What a threshold on the clock asks for."""
    where = "on a GPU" if one.on == "cuda" else "on any machine"
    if one.kind == "roofline":
        return f"at least {one.fraction:g} of the speed of light, {where}"
    return f"at least {one.ratio:g} times as fast as {one.against}, {where}"


def figure(value: float | None) -> str:
    """A share or a ratio with two digits that say something; nothing for None."""
    if value is None:
        return ""
    return f"{value:.2f}" if value >= LITTLE else f"{value:.2g}"
