"""A kernel as one list of instructions: calls inlined, loops contiguous."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from harness.simulators.ptx.program import (
    Address,
    Function,
    Instruction,
    Label,
    Negated,
    Operand,
    Pair,
    Register,
    Slot,
    Symbol,
    Table,
    Unsupported,
    Vector,
)

ENDS = ("bra", "brx", "ret", "exit", "trap")  # of a basic block


@dataclass(slots=True)
class Layout:
    """
    A kernel ready to run.

    Where paths split, the one at the smaller `pc` runs first: since blocks stand in topological
    order and each loop is contiguous, all meet again where the paths do.

    Attributes:
        code: The instructions.
        following: The pc that comes after each one, where it does not branch.
        targets: The pc of each label.
        registers: The type of each register.
    """

    code: list[Instruction]
    following: list[int]
    targets: dict[str, int]
    registers: list[str]


def lay_out(functions: Mapping[str, Function], kernel: str) -> Layout:
    """
    Inline every call of `kernel` and order its blocks.

    Raises:
        Unsupported: a function that calls itself.
    """
    registers: list[str] = []
    statements = _Inlined(functions, registers).body(kernel)
    code, following, targets = _ordered(statements)
    return Layout(code, following, targets, registers)


# ---- calls ---------------------------------------------------------------------------------


@dataclass(slots=True)
class _Inlined:
    functions: Mapping[str, Function]
    registers: list[str]
    calls: int = field(default=0)

    def body(
        self,
        name: str,
        prefix: str = "",
        binding: Mapping[str, str] | None = None,
        within: tuple[str, ...] = (),
    ) -> list[Label | Instruction]:
        """
        The statements of a function with its own registers and labels.

        `binding` says what the caller calls the function's parameters and results.
        """
        function = self.functions[name]
        base, bound = len(self.registers), binding or {}
        self.registers.extend(function.registers)
        found: list[Label | Instruction] = []
        for one in function.body:
            if isinstance(one, Label):
                found.append(Label(prefix + one.name))
            elif one.op == "call":
                found += self._call(one, base, prefix, bound, (*within, name))
            else:
                found.append(self._own(one, function, base, prefix, bound))
        return found

    def _own(
        self, one: Instruction, function: Function, base: int, prefix: str, bound: Mapping[str, str]
    ) -> Instruction:
        args = [_moved(arg, base) for arg in one.args]
        op, mods = one.op, list(one.mods)
        if op in ("ld", "st") and "param" in mods:
            parameters = {parameter.name for parameter in function.parameters}
            for at, arg in enumerate(args):
                if not isinstance(arg, Address) or not isinstance(arg.base, Symbol):
                    continue
                variable = arg.base.name
                if not (function.entry and variable in parameters):
                    args[at] = Slot(bound.get(variable, prefix + variable), arg.offset)
        if op in ("bra", "brx"):
            args = [Symbol(prefix + arg.name) if isinstance(arg, Symbol) else arg for arg in args]
        if op == "brx":
            table = one.args[1]
            assert isinstance(table, Symbol)
            args[1] = Table(tuple(prefix + label for label in function.tables[table.name]))
        if op == "ret" and prefix:
            op, mods, args = "bra", [], [Symbol(prefix + "$ret")]
        return Instruction(op, mods, args, _moved_guard(one, base), one.line, one.text)

    def _call(
        self,
        one: Instruction,
        base: int,
        prefix: str,
        bound: Mapping[str, str],
        within: tuple[str, ...],
    ) -> list[Label | Instruction]:
        groups = [
            [item.name for item in arg.items if isinstance(item, Symbol)]
            for arg in one.args
            if isinstance(arg, Vector)
        ]
        target = next((arg.name for arg in one.args if isinstance(arg, Symbol)), None)
        if target is None or any(isinstance(arg, Register) for arg in one.args):
            raise Unsupported(f"line {one.line}: a call through a pointer")
        if one.guard is not None:
            raise Unsupported(f"line {one.line}: a call under a predicate")
        called = self.functions.get(target)
        if called is None or not called.body:
            given = groups[-1] if groups else []
            args: list[Operand] = [Slot(bound.get(name, prefix + name), 0) for name in given]
            return [Instruction("extern_call", [target], args, None, one.line, one.text)]
        if target in within:
            raise Unsupported(f"line {one.line}: {target} calls itself")
        names = [parameter.name for parameter in called.parameters + called.results]
        given = (groups[-1] if called.parameters else []) + (groups[0] if called.results else [])
        self.calls += 1
        inner = f"{prefix}{target}#{self.calls}:"
        binding = {
            name: bound.get(outer, prefix + outer) for name, outer in zip(names, given, strict=True)
        }
        return [*self.body(target, inner, binding, within), Label(f"{inner}$ret")]


def _moved(arg: Operand, base: int) -> Operand:
    """An operand with its registers numbered from `base` on."""
    if isinstance(arg, Register):
        return Register(arg.index + base)
    if isinstance(arg, Vector):
        return replace(arg, items=tuple(_moved(item, base) for item in arg.items))
    if isinstance(arg, Address):
        more = tuple(_moved(item, base) for item in arg.more)
        return Address(_moved(arg.base, base), arg.offset, more)
    if isinstance(arg, Pair):
        return Pair(_moved(arg.first, base), _moved(arg.second, base))
    if isinstance(arg, Negated):
        return Negated(_moved(arg.operand, base))
    return arg


def _moved_guard(one: Instruction, base: int) -> tuple[Register, bool] | None:
    return (Register(one.guard[0].index + base), one.guard[1]) if one.guard else None


# ---- order ---------------------------------------------------------------------------------


def _ordered(
    statements: Sequence[Label | Instruction],
) -> tuple[list[Instruction], list[int], dict[str, int]]:
    blocks, labels = _blocks(statements)
    after = [_successors(number, blocks, labels) for number in range(len(blocks))]
    sequence = list(_in_order(set(range(len(blocks))), 0, after))
    code: list[Instruction] = []
    start: dict[int, int] = {}
    for number in sequence:
        start[number] = len(code)
        code += blocks[number] or [Instruction("nop", [], [], None, 0, "nop")]
    following: list[int] = []
    for number in sequence:
        first, size = start[number], max(1, len(blocks[number]))
        following += range(first + 1, first + size)
        following.append(start.get(number + 1, -1))
    for pc, one in enumerate(code):
        one.pc = pc
    targets = {label: start[number] for label, number in labels.items() if number in start}
    return code, following, targets


def _blocks(
    statements: Sequence[Label | Instruction],
) -> tuple[list[list[Instruction]], dict[str, int]]:
    blocks: list[list[Instruction]] = [[]]
    labels: dict[str, int] = {}
    for one in statements:
        if isinstance(one, Label):
            if blocks[-1]:
                blocks.append([])
            labels[one.name] = len(blocks) - 1
        else:
            blocks[-1].append(one)
            if one.op in ENDS:
                blocks.append([])
    return blocks, labels


def _successors(
    number: int, blocks: Sequence[Sequence[Instruction]], labels: Mapping[str, int]
) -> list[int]:
    last = blocks[number][-1] if blocks[number] else None
    found = []
    if last is not None and last.op == "bra" and isinstance(last.args[0], Symbol):
        found.append(labels[last.args[0].name])
    if last is not None and last.op == "brx" and isinstance(last.args[1], Table):
        found += [labels[label] for label in last.args[1].labels]
    leaves = last is not None and last.op in ENDS and last.guard is None
    if not leaves and number + 1 < len(blocks):
        found.append(number + 1)
    return found


def _in_order(nodes: Collection[int], entry: int, after: Sequence[Sequence[int]]) -> Iterator[int]:
    """
    The nodes that `entry` reaches, in topological order of their strongly connected components.

    Within a component, a loop, the order is that of the loop without its way back.
    """

    def inner(node: int) -> Iterator[int]:
        return (one for one in after[node] if one in nodes and one != entry)

    for component in reversed(list(_components(entry, inner))):
        if len(component) == 1:
            yield from component
            continue
        inside = set(component)
        heads = [one for one in sorted(inside) if _entered(one, nodes, inside, after)]
        yield from _in_order(inside, heads[0] if heads else min(inside), after)


def _entered(
    node: int, nodes: Collection[int], inside: Collection[int], after: Sequence[Sequence[int]]
) -> bool:
    return any(node in after[one] for one in nodes if one not in inside)


def _components(entry: int, inner: Callable[[int], Iterator[int]]) -> Iterator[list[int]]:
    """Strongly connected components, last ones first (R. Tarjan, 1972), without recursion."""
    index = {entry: 0}
    low = {entry: 0}
    stack, waiting = [entry], {entry}
    work = [(entry, inner(entry))]
    while work:
        node, rest = work[-1]
        for one in rest:
            if one not in index:
                index[one] = low[one] = len(index)
                stack.append(one)
                waiting.add(one)
                work.append((one, inner(one)))
                break
            if one in waiting:
                low[node] = min(low[node], index[one])
        else:
            work.pop()
            if work:
                outer = work[-1][0]
                low[outer] = min(low[outer], low[node])
            if low[node] == index[node]:
                at = stack.index(node)
                component, stack[at:] = stack[at:], []
                waiting.difference_update(component)
                yield component
