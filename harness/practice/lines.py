"""
The lines of a reference, shuffled: a Parsons problem, with wrong lines beside some right ones.

Each line stands with its indentation. A wrong line is one of the kata's wrong solutions, and is
shown with the right one that it would replace: of such a pair one is right.
"""

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from random import Random
from typing import NamedTuple

from harness.authoring.cuda_stub import KERNEL, closing_brace
from harness.base.errors import UsageProblem
from harness.content.kata import Kata
from harness.content.pristine import pristine_stub
from harness.practice.bugs import Bug, bugs_of, mutants_of
from harness.practice.plain import plain

LEAST, MOST = 6, 16  # lines on the screen, wrong ones among them
WRONG = 3  # wrong lines at most
FEW = 2  # wrong lines with which wrong solutions will do; with fewer, mutants are looked at
SUBSTANCE = 12  # lines that do something with which a function is as good as a longer one
PREFERRED = 3  # for a kernel, and for the function that the kata is named for
LOOKED_AT = 16  # faults that are looked at for wrong lines
CONTINUES = re.compile(r"[^;{})]$")  # an end of a line of C++ after which the statement goes on
NO_STATEMENT = re.compile(r"\s*(?:else|finally):$")


CONDITION = re.compile(r"\s*(?:if|elif)\b")


class Piece(NamedTuple):
    """A statement or the first line of a block, with its indentation; where it is, from 0."""

    at: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A function of the learner's: its name, its head without a docstring, its body in pieces."""

    name: str
    head: tuple[str, ...]
    pieces: tuple[Piece, ...]
    is_kernel: bool

    def refuses(self, at: int) -> bool:
        """Whether a piece belongs to a condition, of any number of branches, that raises."""
        return any(at in one for one in self._refusals())

    def _refusals(self) -> Iterator[range]:
        """The pieces of each branch that ends by raising, from its condition on."""
        for last, piece in enumerate(self.pieces):
            if not piece.text.lstrip().startswith("raise "):
                continue
            depth, first = _depth(piece.text), last
            while first and _depth(self.pieces[first - 1].text) == depth:
                first -= 1
            above = self.pieces[first - 1].text if first else ""
            is_branch = CONDITION.match(above) and _depth(above) < depth
            yield range(first - 1 if is_branch else last, last + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A numbered line; `pair` is the number of the one it is shown with, if it is."""

    number: int
    text: str
    pair: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Puzzle:
    """
    Lines to be put in order.

    Attributes:
        function: Whose lines they are.
        head: The function's head.
        above: What is given of its body above them.
        shown: The lines, numbered from 1.
        right: The numbers of the right ones, in their order.
        below: What is given of its body below them.
        before: The file down to the lines.
        after: The file from there on.
    """

    function: str
    head: tuple[str, ...]
    above: tuple[str, ...]
    shown: tuple[Shown, ...]
    right: tuple[int, ...]
    below: tuple[str, ...]
    before: str
    after: str

    def ordered(self, text: str) -> tuple[int, ...]:
        """
        The order that somebody typed.

        Raises:
            UsageProblem: not the numbers of as many lines as are right, each at most once.
        """
        words = re.findall(r"[^\s,]+", text)
        numbers = [int(word) for word in words if word.isdecimal()]
        wrong = [word for word in words if not word.isdecimal()]
        wrong += [str(one) for one in numbers if not 1 <= one <= len(self.shown)]
        if wrong:
            raise UsageProblem(
                f"--order: expected numbers from 1 to {len(self.shown)}, found {', '.join(wrong)}."
            )
        twice = sorted({one for one in numbers if numbers.count(one) > 1})
        if twice or len(numbers) != len(self.right):
            often = f", {', '.join(map(str, twice))} more than once" if twice else ""
            raise UsageProblem(
                f"--order: expected {len(self.right)} different lines, one of each pair, found "
                f"{len(numbers)}{often}."
            )
        return tuple(numbers)

    def text(self, order: Sequence[int]) -> str:
        """The whole file with the lines in this order."""
        lines = [self.shown[number - 1].text for number in order]
        return "\n".join([self.before, *lines, self.after])

    def first_off(self, order: Sequence[int]) -> int | None:
        """The first place, from 1, where another line stands in the reference."""
        texts = [
            [self.shown[number - 1].text for number in numbers] for numbers in (order, self.right)
        ]
        pairs = enumerate(zip(*texts, strict=True), start=1)
        return next((at for at, (one, other) in pairs if one != other), None)


def puzzle_of(kata: Kata, draw: str = "", looked_at: int = LOOKED_AT) -> Puzzle | None:
    """
    Lines of one function of the kata's reference, shuffled; the same for the same `draw`.

    It is the function with most to put in order and most that is known to go wrong: a kernel or
    the kata's first one where others have no more. Checks of arguments at its ends are given.

    Args:
        kata: Whose reference it is.
        draw: What the order and the wrong lines are drawn from.
        looked_at: How many faults are looked at for wrong lines.

    None where there is no reference, or no function has enough lines.
    """
    if not kata.solution.is_file():
        return None
    source = plain(kata.solution.read_text(encoding="utf-8"))
    random = Random(f"{kata.name} {draw}")
    parts = [one for one in learners_parts(source, kata) if len(one.pieces) >= LEAST]
    if not parts:
        return None
    wrong: dict[Part, dict[int, str]] = {one: {} for one in parts}

    def worth(part: Part) -> int:
        window = _window(part, wrong[part])
        apart = PREFERRED if part.is_kernel or part.name == kata.name else 0
        known = sum(at in window for at in wrong[part])
        return min(_substance(part, window), SUBSTANCE) + 2 * min(known, WRONG) + apart

    for bug in islice(bugs_of(kata, random), looked_at):
        for part in parts:
            wrong[part].update(_wrong_piece(bug, part))
    part = max(parts, key=worth)
    if looked_at and sum(at in _window(part, wrong[part]) for at in wrong[part]) < FEW:
        for bug in islice(mutants_of(kata, random, part.name), looked_at):
            wrong[part] = dict(_wrong_piece(bug, part)) | wrong[part]
    return _puzzle(source, part, _window(part, wrong[part]), wrong[part], random)


def learners_parts(source: str, kata: Kata) -> list[Part]:
    """The functions of a reference, as `plain` lays it out, that the stub does not give."""
    stub = pristine_stub(kata)
    given = {ast.dump(node) for node in _functions(plain(stub.decode()))} if stub else set()
    lines = source.splitlines()
    found = []
    for node in _functions(source):
        documented = ast.get_docstring(node) is not None
        body = node.body[1:] if documented else node.body
        if body and ast.dump(node) not in given:
            start, stop = body[0].lineno - 1, node.end_lineno or 0
            head = lines[node.lineno - 1 : node.body[0].lineno - 1]
            pieces = tuple(_pieces(lines[start:stop], start, _starts(node)))
            found.append(
                Part(name=node.name, head=tuple(head), pieces=pieces, is_kernel=_is_kernel(node))
            )
    blank = stub.decode() if stub else ""
    return found + [one for one in _kernels(source) if one.pieces[0].text not in blank]


def _functions(source: str) -> list[ast.FunctionDef]:
    """Functions and methods, none inside of another."""
    found = []
    for node in ast.parse(source).body:
        inside = node.body if isinstance(node, ast.ClassDef) else [node]
        found += [one for one in inside if isinstance(one, ast.FunctionDef)]
    return found


def _is_kernel(node: ast.FunctionDef) -> bool:
    return any(".jit" in ast.unparse(one) for one in node.decorator_list)


def _starts(node: ast.FunctionDef) -> set[int]:
    """The lines, as indices, on which something of a function's body begins."""
    kinds = ast.stmt | ast.ExceptHandler
    nodes = [one for one in ast.walk(node) if isinstance(one, kinds) and one is not node]
    decorators = [one for part in nodes for one in getattr(part, "decorator_list", [])]
    cases = [one.pattern for one in ast.walk(node) if isinstance(one, ast.match_case)]
    return {one.lineno - 1 for one in [*nodes, *decorators, *cases]}


def _pieces(lines: Sequence[str], first: int, starts: set[int]) -> Iterator[Piece]:
    """The lines of a body, those of one statement together, empty ones left out."""
    piece: list[str] = []
    begun = first
    for at, line in enumerate(lines, start=first):
        if piece and (at in starts or NO_STATEMENT.match(line)):
            yield Piece(begun, "\n".join(piece).rstrip())
            piece = []
        if line.strip() or piece:
            begun = begun if piece else at
            piece.append(line)
    if piece:
        yield Piece(begun, "\n".join(piece).rstrip())


def _kernels(source: str) -> Iterator[Part]:
    """The kernels in CUDA C++; a brace that closes belongs to the statement before it."""
    lines = source.splitlines()
    for kernel in KERNEL.finditer(source):
        first = source.count("\n", 0, kernel.start())
        start = source.count("\n", 0, kernel.end()) + 1
        stop = source.count("\n", 0, closing_brace(source, kernel.end()))
        pieces: list[Piece] = []
        whole, depth = True, 0
        for at in range(start, stop):
            line = lines[at]
            if not line.strip():
                continue
            if not whole or (pieces and line.strip().startswith("}")):
                pieces[-1] = Piece(pieces[-1].at, f"{pieces[-1].text}\n{line}")
            else:
                pieces.append(Piece(at, line))
            depth += line.count("(") - line.count(")")
            whole = not depth and not CONTINUES.search(line.rstrip())
        names = re.findall(r"(\w+)\s*\(", kernel[0])
        if names and pieces:
            head = tuple(lines[first:start])
            yield Part(name=names[-1], head=head, pieces=tuple(pieces), is_kernel=True)


def _wrong_piece(bug: Bug, part: Part) -> Iterator[tuple[int, str]]:
    """The piece of a function that a fault changes, by its number, and what it becomes, if one."""
    if len(bug.changes) != 1:
        return
    ((old, new),) = bug.changes
    for number, piece in enumerate(part.pieces):
        lines = piece.text.split("\n")
        if piece.at <= old.start and old.stop <= piece.at + len(lines) and old and new:
            there = bug.text.splitlines()[new.start : new.stop]
            lines[old.start - piece.at : old.stop - piece.at] = there
            text = "\n".join(lines)
            if text != piece.text and _is_one(text, piece.text):
                yield number, text


def _is_one(text: str, like: str) -> bool:
    """Whether a changed piece is still one, and stands as far to the right."""
    if _depth(text) != _depth(like):
        return False
    counts = [[len(_statements(one)), one.count(";")] for one in (text, like)]
    return counts[0] == counts[1]


def _depth(text: str) -> int:
    """How far to the right a piece stands."""
    return len(text) - len(text.lstrip())


def _statements(text: str) -> list[ast.stmt]:
    """What a piece says in Python; nothing where it is no Python by itself."""
    bare = "\n".join([text.lstrip(), ""])
    for whole in (bare, f"{bare.rstrip()} pass", f"if _: pass\n{bare.rstrip()} pass"):
        try:
            return ast.parse(whole).body
        except SyntaxError:
            continue
    return []


def _substance(part: Part, window: range) -> int:
    """How many pieces of a window do more than to refuse an argument."""
    return sum(not part.refuses(at) for at in window)


def _window(part: Part, wrong: dict[int, str]) -> range:
    """Pieces that fit on the screen, of which most do something and are known to go wrong."""
    count = min(len(part.pieces), MOST - WRONG)
    windows = [range(at, at + count) for at in range(len(part.pieces) - count + 1)]
    best = max(windows, key=lambda one: _substance(part, one) + sum(at in one for at in wrong))
    kept = [at for at in best if not part.refuses(at)]
    shorter = range(kept[0], kept[-1] + 1) if kept else best
    return shorter if len(shorter) >= LEAST else best


def _puzzle(
    source: str, part: Part, window: range, wrong: dict[int, str], random: Random
) -> Puzzle:
    """Number the lines of `window` and the wrong ones beside them, in a random order."""
    beside = [at for at in wrong if at in window][:WRONG]
    order = list(window)
    while len(order) > 1 and order == list(window):
        random.shuffle(order)
    shown: list[Shown] = []
    number_of = {}
    for at in order:
        number = len(shown) + 1
        if at not in beside:
            shown.append(Shown(number=number, text=part.pieces[at].text, pair=None))
            number_of[at] = number
            continue
        right_first = random.random() < 0.5
        texts = [part.pieces[at].text, wrong[at]]
        for text, own in zip(texts if right_first else texts[::-1], (0, 1), strict=True):
            shown.append(Shown(number=number + own, text=text, pair=number + 1 - own))
        number_of[at] = number + (not right_first)
    lines = source.splitlines()
    first, last = part.pieces[window[0]], part.pieces[window[-1]]
    stop = last.at + len(last.text.split("\n"))
    return Puzzle(
        function=part.name,
        head=part.head,
        above=tuple(one.text for one in part.pieces[: window.start]),
        shown=tuple(shown),
        right=tuple(number_of[at] for at in window),
        below=tuple(one.text for one in part.pieces[window.stop :]),
        before="\n".join(lines[: first.at]),
        after="\n".join([*lines[stop:], ""]),
    )
