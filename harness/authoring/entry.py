"""
An entry of a catalogue of katas to be made, read from Markdown.

    ### week05/gptq — Second-order weight quantization
    - covers: 05.3
    - backend: torch · difficulty 5 · minutes 100 · requires: fake_quant_ste
    - signature: `gptq(w, x, bits=4) -> Quantized`
    - tests: block = 1 and K give the same codes; dead input. **Traps:** error not divided.
    - hints: (1) …; (2) …; (3) …
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.base.errors import UsageProblem, nearest

HEADING = re.compile(r"^#+ +(week\d\d/\w+)\s*(?:\W+\s(.*))?$")
FIELD = re.compile(r"^- ([a-z][a-z ]*?) *(?:\([^)]*\))? *:\s*(.*)$")
TRAPS = re.compile(r"\**\b[Tt]raps?\b *:?\** *:?|\*\*TRAPS?\*\*:?")
ASIDE = re.compile(r"\(\**\btraps?\b\**: *([^()]*(?:\([^()]*\)[^()]*)*)\)")
CONCEPT = re.compile(r"\b\d\d\.(?:\d+|[HMA-Z])\b")
CALLED = re.compile(r"`(class )?([A-Za-z_]\w*)\b[(`:]")
NOTHING = ("", "—", "-", "none")
OPENING, CLOSING = "([{", ")]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """
    What the catalogue says of one kata; texts as they stand there.

    `tests` and `traps` are single items of the entry's list of tests.
    """

    slug: str
    title: str
    covers: tuple[str, ...]
    backend: str
    difficulty: int
    minutes: int
    requires: tuple[str, ...]
    teaches: str
    signature: str
    functions: tuple[str, ...]
    given: str
    oracle: str
    tests: tuple[str, ...]
    traps: tuple[str, ...]
    judged: str
    hints: tuple[str, ...]
    bad_input: str
    sources: tuple[str, ...]


def read_entry(path: Path, slug: str) -> Entry:
    """
    The entry `slug` ("weekNN/name") of a catalogue.

    Raises:
        UsageProblem: no such file, no such entry, or one without a backend.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageProblem(f"--from: expected a catalogue in Markdown, found {error}.") from None
    entries = dict(_sections(lines))
    if slug not in entries:
        raise UsageProblem(
            f"--from {path}: expected an entry '### {slug}', found none.{nearest(slug, entries)}"
        )
    title, body = entries[slug]
    fields = _fields(body)
    line = fields.get("backend", "")
    backend = re.match(r"\w+", line)
    if backend is None:
        raise UsageProblem(f"--from {path}: {slug}: expected a line '- backend: …', found none.")
    name = slug.partition("/")[2]
    tests, traps = _tests(fields.get("tests", fields.get("invariants", "")))
    signature = fields.get("signature", "")
    return Entry(
        slug=slug,
        title=title or name.replace("_", " ").capitalize(),
        covers=tuple(dict.fromkeys(CONCEPT.findall(fields.get("covers", "")))),
        backend=backend[0],
        difficulty=_number(line, "difficulty", 3),
        minutes=_number(line, "minutes", 60),
        requires=_names(line.partition("requires:")[2]),
        teaches=fields.get("teaches", ""),
        signature=signature,
        functions=tuple(_functions(signature, name)) or (name,),
        given=fields.get("given", ""),
        oracle=fields.get("oracle", ""),
        tests=tests,
        traps=traps,
        judged=fields.get("speed", ""),
        hints=_hints(fields.get("hints", "")),
        bad_input=fields.get("bad input", ""),
        sources=tuple(_items(fields.get("sources", ""))),
    )


def _sections(lines: list[str]) -> Iterator[tuple[str, tuple[str, list[str]]]]:
    """Slug, and title and lines, of each entry."""
    starts = [(at, found) for at, line in enumerate(lines) if (found := HEADING.match(line))]
    ends = [at for at, _ in starts[1:]] + [len(lines)]
    for (at, found), end in zip(starts, ends, strict=True):
        yield found[1], ((found[2] or "").strip(), lines[at + 1 : end])


def _fields(lines: list[str]) -> dict[str, str]:
    """The lines `- key: text`, each with what follows it up to the next."""
    fields: dict[str, str] = {}
    key = ""
    for line in lines:
        if found := FIELD.match(line):
            key = found[1]
            fields[key] = found[2]
        elif line.startswith(("#", "coverage week")):  # the week's, behind its last entry
            break
        elif key and line.strip():
            fields[key] += " " + line.strip()
    return fields


def _number(line: str, word: str, default: int) -> int:
    found = re.search(rf"{word} (\d+)", line)
    return int(found[1]) if found else default


def _names(text: str) -> tuple[str, ...]:
    """Names between commas, without what is said of them in brackets."""
    plain = re.sub(r"\([^)]*\)", "", text.partition("·")[0])
    names = [one.strip(" .`") for one in plain.split(",")]
    return tuple(one for one in names if one not in NOTHING)


def _functions(signature: str, name: str) -> list[str]:
    """The functions and classes that it names, without the methods that follow a class."""
    found: dict[str, None] = {}
    for item in _items(signature):
        named = CALLED.findall(item)
        classes = [name for is_class, name in named if is_class]
        found |= dict.fromkeys(classes or [name for _, name in named])
    return sorted(found, key=lambda one: one != name)  # the kata's own comes first


def _tests(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What is to be tested, and the traps among it or after it."""
    asides = ASIDE.findall(text)
    plain, *rest = TRAPS.split(ASIDE.sub("", text))
    return tuple(_items(plain)), tuple(item for trap in [*asides, *rest] for item in _items(trap))


def _items(text: str) -> list[str]:
    """What stands between semicolons that are in no brackets and in no code."""
    items, depth, code, start = [], 0, False, 0
    for at, letter in enumerate(text):
        code ^= letter == "`"
        depth += (letter in OPENING) - (letter in CLOSING) if not code else 0
        if letter == ";" and depth <= 0 and not code:
            items.append(text[start:at])
            start = at + 1
    items.append(text[start:])
    return [item for one in items if (item := one.strip(" .*")) not in NOTHING]


def _hints(text: str) -> tuple[str, ...]:
    """Three of them at most: numbered, quoted, with dots or semicolons between, or sentences."""
    ways = (
        re.split(r"\(\d\)", text)[1:],
        re.findall(r'"([^"]+)"', text),
        text.split(" · "),
        _items(text),
        text.split(". "),
    )
    parts = next((parts for parts in ways if len(parts) > 2), max(ways, key=len))
    hints = [hint for one in parts if (hint := one.strip(" ;·")) not in NOTHING]
    return tuple([*hints[:2], "; ".join(hints[2:])] if len(hints) > 3 else hints)
