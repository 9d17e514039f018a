"""PTX text, as NVRTC, Triton and LLVM write it, into functions and variables."""

import re
from collections.abc import Sequence

import numpy as np

from harness.simulators.ptx.formats import SIZE, u64
from harness.simulators.ptx.program import (
    Address,
    Function,
    Immediate,
    Instruction,
    Label,
    Negated,
    Operand,
    Pair,
    Parameter,
    Register,
    Sink,
    Special,
    Symbol,
    Unsupported,
    Variable,
    Vector,
)

SPECIAL = re.compile(
    r"%(tid|ntid|ctaid|nctaid|laneid|warpid|nwarpid|lanemask_\w+|clock(?:64|_hi)?"
    r"|globaltimer(?:_lo|_hi)?|smid|nsmid|gridid|dynamic_smem_size|total_smem_size|cluster_\w+"
    r"|clusterid|nclusterid|is_explicit_cluster|envreg\d+)(\.[xyz])?$"
)
NUMBER = re.compile(
    r"-?(0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}|0[xX][0-9a-fA-F]+U?|\d+\.\d+(e[-+]?\d+)?|\d+U?)$"
)
WORD = re.compile(r"\.[\w:]+")
LABEL = re.compile(r"([\w$%]+)\s*:(?!:)")
INNER_LABEL = re.compile(r"(?:^|[;{}\n])\s*([\w$%]+)\s*:(?!:)")
INSTRUCTION = re.compile(r"(?:@(!?)([\w$%]+)\s+)?([\w.:]+)\s*(.*)$")
MEMORY = re.compile(r"\s*([\w$%.]+)\s*(?:\+\s*(-?\w+))?\s*$")

Scope = dict[str, int | str]  # registers by name, and labels (as ":name") that were renamed
Place = tuple[int, int, int]  # file, line, column


def split_arguments(text: str) -> list[str]:
    """The parts between commas that no bracket encloses."""
    parts, depth, current = [], 0, ""
    for letter in text:
        depth += (letter in "{[(") - (letter in "}])")
        if letter == "," and depth == 0:
            parts.append(current.strip())
            current = ""
        else:
            current += letter
    return [*parts, current.strip()] if current.strip() else parts


def parse_number(text: str) -> Immediate:
    """A literal of PTX."""
    if text[:2].lower() == "0f":
        return Immediate("f4", int(text[2:], 16))
    if text[:2].lower() == "0d":
        return Immediate("f8", int(text[2:], 16))
    if "." in text:
        return Immediate("f8", int(np.array(float(text)).view(u64)))
    return Immediate("i", int(text.rstrip("U"), 0))


class Parser:
    """
    Reads one module.

    Attributes:
        functions: By name, those that are only declared included.
        variables: By name.
        target: The GPU it is written for, as "sm_90".
    """

    def __init__(self, text: str) -> None:
        text = re.sub(r"/\*.*?\*/", " ", text, flags=re.DOTALL)
        self.text = re.sub(r"//[^\n]*", "", text)
        self.at = 0
        self.functions: dict[str, Function] = {}
        self.variables: dict[str, Variable] = {}
        target = re.search(r"\.target\s+(\w+)", self.text)
        if target is None:
            raise Unsupported("a text without a .target is no PTX")
        self.target = target[1]
        self.line = 0
        self._inlined: dict[Place, int] = {}
        self._scopes_opened = 0
        self._module()

    # ---- characters ------------------------------------------------------------------------

    def _skip_space(self) -> None:
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1

    def _until(self, mark: str) -> str:
        end = self.text.find(mark, self.at)
        end = len(self.text) if end < 0 else end
        found, self.at = self.text[self.at : end], end + len(mark)
        return found

    def _balanced(self, opening: str = "(", closing: str = ")") -> str:
        self.at = self.text.index(opening, self.at)
        depth, start = 0, self.at + 1
        while True:
            depth += (self.text[self.at] == opening) - (self.text[self.at] == closing)
            self.at += 1
            if depth == 0:
                return self.text[start : self.at - 1]

    # ---- module ----------------------------------------------------------------------------

    def _module(self) -> None:
        while True:
            self._skip_space()
            if self.at >= len(self.text):
                return
            found = WORD.match(self.text, self.at)
            word = found.group() if found else ""
            if found and word in (".entry", ".func"):
                self.at = found.end()
                self._function(entry=word == ".entry")
            elif word in (".global", ".const", ".shared"):
                self._variable(self._until(";"))
            elif word == ".section":
                self._balanced("{", "}")
            elif found and word in (".visible", ".extern", ".weak", ".common"):
                self.at = found.end()
            elif word in (".alias", ".pragma"):
                self._until(";")
            else:
                self._until("\n")

    def _variable(self, text: str) -> None:
        head, _, initial = text.partition("=")
        found = re.match(r"\s*\.(\w+)(.*)$", head.strip(), re.DOTALL)
        assert found is not None, f"expected a variable, found {text!r}"
        space, rest = found[1], found[2]
        align = int((re.search(r"\.align\s+(\d+)", rest) or ["", "1"])[1])
        rest = re.sub(r"\.align\s+\d+", "", rest)
        kind = re.search(r"\.([bsuf]\d+|pred)\b", rest)
        if kind is None:
            raise Unsupported(f"a variable as {text.strip()!r}")
        size = SIZE[kind[1]]
        for item in re.sub(r"\.[\w:]+", "", rest).split(","):
            name = re.match(r"\s*([\w$%]+)", item)
            assert name is not None, f"expected a name, found {item!r}"
            count = 1
            for extent in re.findall(r"\[(\d*)\]", item):
                count *= int(extent or 0)
            contents = self._initial(name[1], initial, size) if initial.strip() else None
            if contents is not None and not count:
                count = len(contents) // size
            self.variables[name[1]] = Variable(
                name[1], space, max(align, size), count * size, contents
            )

    @staticmethod
    def _initial(name: str, text: str, size: int) -> bytes:
        values = [value for value in re.split(r"[{},\s]+", text) if value]
        if not all(NUMBER.match(value) for value in values):
            raise Unsupported(f"an address in the initial value of {name}")
        numbers = [parse_number(value).bits for value in values]
        return b"".join(number.to_bytes(size, "little", signed=number < 0) for number in numbers)

    @staticmethod
    def _parameters(text: str) -> list[Parameter]:
        found = []
        for item in split_arguments(text):
            kind = re.findall(r"\.([bsuf]\d+)\b", item)[-1]
            name = re.findall(r"([\w$]+)\s*(?:\[\d*\])?$", item.strip())[0]
            count = re.search(r"\[(\d+)\]$", item.strip())
            size = SIZE[kind] * int(count[1]) if count else SIZE[kind]
            found.append(Parameter(name, kind, size))
        return found

    def _function(self, *, entry: bool) -> None:
        self._skip_space()
        results = self._parameters(self._balanced()) if self.text[self.at] == "(" else []
        self._skip_space()
        name = re.compile(r"[\w$]+").match(self.text, self.at)
        assert name is not None, "expected the name of a function"
        self.at = name.end()
        function = Function(name.group(), [], results, entry)
        self._skip_space()
        if self.text[self.at] == "(":
            function.parameters = self._parameters(self._balanced())
        stop = re.compile(r"[;{]").search(self.text, self.at)
        assert stop is not None, f"expected a body of {function.name}"
        head, self.at = self.text[self.at : stop.start()], stop.end()
        function.block = self._sizes("reqntid", head)
        function.cluster = self._sizes("reqnctapercluster", head)
        if stop.group() == "{":
            self._body(function)
            self.functions[function.name] = function
        else:
            self.functions.setdefault(function.name, function)

    @staticmethod
    def _sizes(word: str, head: str) -> tuple[int, ...] | None:
        found = re.search(rf"\.{word}\s+(\d+(?:\s*,\s*\d+)*)", head)
        return tuple(map(int, found[1].split(","))) if found else None

    # ---- body ------------------------------------------------------------------------------

    def _body(self, function: Function) -> None:
        scopes: list[Scope] = [{}]
        label = ""
        while scopes:
            self._skip_space()
            letter = self.text[self.at]
            if letter == "{":
                scopes.append(self._opened_scope())
            elif letter == "}":
                scopes.pop()
                self.at += 1
            elif letter == ";":
                self.at += 1
            elif found := WORD.match(self.text, self.at):
                self._directive(found.group(), function, scopes, label)
            elif found := LABEL.match(self.text, self.at):
                label = _label(found[1], scopes)
                function.body.append(Label(label))
                self.at = found.end()
            else:
                function.body.append(self._instruction(self._until(";").strip(), scopes))

    def _opened_scope(self) -> Scope:
        """Inline assembly repeats its labels: those of an inner scope are its own."""
        start = self.at
        inner = self._balanced("{", "}")
        self.at = start + 1
        self._scopes_opened += 1
        return {f":{name}": f"{name}@{self._scopes_opened}" for name in INNER_LABEL.findall(inner)}

    def _directive(
        self, word: str, function: Function, scopes: Sequence[Scope], label: str
    ) -> None:
        if word == ".loc":
            self._location(self._until("\n"))
        elif word == ".reg":
            self._registers(self._until(";"), function, scopes[-1])
        elif word in (".shared", ".local", ".const", ".global"):
            self._variable(self._until(";"))
        elif word == ".branchtargets":
            labels = self._until(";")[len(word) :].split(",")
            function.tables[label] = tuple(one.strip() for one in labels)
        else:
            self._until(";" if word in (".param", ".pragma", ".callprototype") else "\n")

    @staticmethod
    def _registers(text: str, function: Function, scope: Scope) -> None:
        kind = re.match(r"\.reg\s*\.(\w+)", text)
        assert kind is not None, f"expected registers, found {text!r}"
        for item in text[kind.end() :].split(","):
            found = re.match(r"\s*([\w$%]+)(?:<(\d+)>)?", item)
            assert found is not None, f"expected a register, found {item!r}"
            stem, count = found.groups()
            for name in [f"{stem}{number}" for number in range(int(count))] if count else [stem]:
                scope[name] = len(function.registers)
                function.registers.append(kind[1])

    def _location(self, text: str) -> None:
        """Take the line in the user's file, the first one, that code of a header was called at."""
        where = re.search(r"\.loc\s+(\d+)\s+(\d+)\s+(\d+)", text)
        assert where is not None, f"expected a place, found {text!r}"
        file, line, column = map(int, where.groups())
        if called := re.search(r"inlined_at\s+(\d+)\s+(\d+)\s+(\d+)", text):
            outer, outer_line, outer_column = map(int, called.groups())
            known = outer_line if outer == 1 else self.line
            found = self._inlined.get((outer, outer_line, outer_column), known)
        else:
            found = line if file == 1 else self.line
        self._inlined[file, line, column] = found
        self.line = found or self.line

    def _instruction(self, text: str, scopes: Sequence[Scope]) -> Instruction:
        text = " ".join(text.split())
        found = INSTRUCTION.match(text)
        assert found is not None, f"expected an instruction, found {text!r}"
        turned, predicate, name, rest = found.groups()
        guard = None
        if predicate:
            register = operand(predicate, scopes)
            assert isinstance(register, Register)
            guard = (register, turned == "!")
        op, *mods = name.split(".")
        args = [operand(one, scopes) for one in split_arguments(rest)]
        return Instruction(op, mods, args, guard, self.line, text)


def operand(text: str, scopes: Sequence[Scope]) -> Operand:
    """One operand; `scopes` say which names are registers."""
    text = text.strip()
    if text[0] in "{(":
        items = tuple(operand(one, scopes) for one in split_arguments(text[1:-1]))
        return Vector(items, called=text[0] == "(")
    if text[0] == "[":
        first, *more = split_arguments(text[1:-1])
        found = MEMORY.match(first)
        assert found is not None, f"expected an address, found {text!r}"
        offset = int(found[2] or "0", 0)
        return Address(
            operand(found[1], scopes), offset, tuple(operand(one, scopes) for one in more)
        )
    if "|" in text:
        first, second = text.split("|")
        return Pair(operand(first, scopes), operand(second, scopes))
    if text[0] == "!":
        return Negated(operand(text[1:], scopes))
    if text == "_":
        return Sink()
    if NUMBER.match(text):
        return parse_number(text)
    if SPECIAL.match(text):
        return Special(text)
    for scope in reversed(scopes):
        if isinstance(index := scope.get(text), int):
            return Register(index)
    return Symbol(_label(text, scopes))


def _label(name: str, scopes: Sequence[Scope]) -> str:
    return next((str(one[f":{name}"]) for one in reversed(scopes) if f":{name}" in one), name)
