"""What HLO's text says of bytes, FLOPs, fusions and layouts, against XLA's own figures."""

import json
from pathlib import Path

import pytest

NAMES = tuple(json.loads((Path(__file__).parent / "data/xla.json").read_text()))
ADD = "%add (a: f32[], b: f32[]) -> f32[] {\n  %a = f32[] parameter(0)\n  %b = f32[] parameter(1)\n"
ADD += "  ROOT %sum = f32[] add(%a, %b)\n}"


def entry(kata, oracle, *lines, above=""):
    return kata.parse(oracle.module(*lines, above=above))


def of(module, name):
    return module.computations[module.entry][name]


@pytest.mark.parametrize("name", NAMES)
def test_bytes_and_flops_are_those_of_xla(kata, oracle, name):
    module = kata.parse(oracle.text(name))
    assert [kata.bytes_accessed(module), kata.flops(module)] == oracle.XLA[name]


def test_agrees_with_the_xla_that_is_installed(kata, oracle):
    import jax.numpy as jnp

    text, moved, flops = oracle.lowered(
        lambda x, w: jnp.exp(x @ w).sum(0), jnp.ones((5, 7)), jnp.ones((7, 3))
    )
    module = kata.parse(text)
    assert (kata.bytes_accessed(module), kata.flops(module)) == (moved, flops)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("f32[2,3]{0,1}", ("f32", (2, 3), (0, 1), 24)),
        ("bf16[2,3]{1,0:T(8,128)(2,1)}", ("bf16", (2, 3), (1, 0), 12)),  # a tiled layout
        ("pred[7]{0}", ("pred", (7,), (0,), 7)),
        ("f8e4m3fn[5]{0}", ("f8e4m3fn", (5,), (0,), 5)),
        ("s64[3]{0}", ("s64", (3,), (0,), 24)),
        ("f32[]", ("f32", (), (), 4)),
        ("u8[2,3,4]", ("u8", (2, 3, 4), (2, 1, 0), 24)),  # no layout: the last is the fastest
        ("s8[65536,65536,2]{2,1,0}", ("s8", (65536, 65536, 2), (2, 1, 0), 2**33)),
        ("f32[0,4]{1,0}", ("f32", (0, 4), (1, 0), 0)),
    ],
    ids=["column", "tiled", "pred", "f8", "s64", "scalar", "no layout", "large", "empty"],
)
def test_shape(kata, oracle, text, expected):
    (shape,) = of(entry(kata, oracle, f"  p = {text} parameter(0)"), "p").shapes
    assert (shape.dtype, shape.dims, shape.layout, shape.bytes) == expected


def test_instruction_is_taken_apart(kata, oracle):
    module = entry(
        kata,
        oracle,
        "  %x-1.a = f32[4,6]{1,0} parameter(0)",
        "  zero = f32[] constant(0)",
        "  ROOT %r = f32[4]{0} reduce(%x-1.a, zero), "
        'dimensions={1}, to_apply=%add, metadata={b="c"}',
        above=ADD,
    )
    found = of(module, "r")
    assert (module.entry, list(module.computations)) == ("main", ["add", "main"])
    assert (found.name, found.opcode, found.operands) == ("r", "reduce", ("x-1.a", "zero"))
    assert list(found.attributes) == ["dimensions", "to_apply", "metadata"]
    assert (found.attributes["dimensions"], found.called()) == ("{1}", "add")


def test_operands_may_carry_their_types(kata, oracle):
    found = of(
        entry(
            kata,
            oracle,
            "  %p = f32[2,3]{1,0} parameter(0)",
            "  %q = f32[2,3]{1,0} add(f32[2,3]{1,0} %p, f32[2,3]{1,0} p)",
        ),
        "q",
    )
    assert found.operands == ("p", "p")


def test_brackets_in_strings_mean_nothing(kata, oracle):
    module = entry(
        kata,
        oracle,
        "  %p = f32[2]{0} parameter(0)",
        r'  %q = f32[2]{0} negate(%p), metadata={op_name="a)}, %z \"({["}, '
        'backend_config={"k":{"l":[]}}',
        "  %r = f32[2]{0} abs(%q)",
    )
    assert list(of(module, "q").attributes) == ["metadata", "backend_config"]
    assert kata.bytes_accessed(module) == 32


def test_strings_and_comments_begin_where_the_other_has_ended(kata, oracle):
    module = entry(
        kata,
        oracle,
        "  %p = f32[2]{0} parameter(0)",
        '  %q = f32[2]{0} negate(/*"*/%p), metadata={op_name="/*"}, backend_config="*/)"',
    )
    assert of(module, "q").operands == ("p",)
    assert list(of(module, "q").attributes) == ["metadata", "backend_config"]


@pytest.mark.parametrize("character", ["\u2028", "\x0c", "\x85"], ids=["U+2028", "FF", "NEL"])
def test_only_line_feeds_end_a_line(kata, oracle, character):
    named = f'  %p = f32[2]{{0}} parameter(0), metadata={{op_name="({character}("}}'
    assert of(entry(kata, oracle, named), "p").opcode == "parameter"
    with pytest.raises(ValueError, match="^line 4: "):
        kata.parse(oracle.module(named, "  hello"))


def test_nothing_outside_of_computations_is_asked_for(kata, oracle):
    tables = """FileNames
1 "f{.py"

FunctionNames
1 <lambda>(

StackFrames
1 {file_location_id=1 parent_frame_id=1}
"""
    module = kata.parse(tables + oracle.module("  %p = f32[2]{0} parameter(0)"))
    assert (list(module.computations), module.entry) == (["main"], "main")


def test_statement_may_take_several_lines(kata, oracle):
    module = entry(
        kata,
        oracle,
        "  %c = s32[2,2]{1,0} constant({",
        "    { 1, 2 },",
        "    { 3, 4 }",
        "  })",
        '  %n = s32[2,2]{1,0} negate(%c), metadata={op_name="n"',
        "    source_line=7",
        "  }",
    )
    assert (of(module, "c").operands, of(module, "n").operands) == ((), ("c",))
    assert kata.bytes_accessed(module) == 32


def test_tuple_has_the_shapes_of_its_leaves(kata, oracle):
    module = entry(
        kata,
        oracle,
        "  %p = (f32[2]{0}, (s8[3]{0}, /*index=2)*/bf16[5]{0:T(256)})) parameter(0)",
        "  %g = f32[2]{0} get-tuple-element(%p), index=0",
        "  %t = (f32[2]{0}, f32[2]{0}) tuple(%g, %g)",
        "  %e = () tuple()",
        "  ROOT %u = ((f32[2]{0}, f32[2]{0}), f32[2]{0}) tuple(%t, %g)",
    )
    assert [shape.bytes for shape in of(module, "p").shapes] == [8, 3, 10]
    assert of(module, "e").shapes == of(module, "e").operands == ()
    assert kata.bytes_accessed(module) == 32  # two tables of two addresses, one of none
    assert kata.flops(module) == 0


def test_unknown_opcode_reads_its_operands_and_writes_its_result(kata, oracle):
    module = entry(
        kata,
        oracle,
        "  %p = f32[2]{0} parameter(0)",
        "  %u = (f32[4]{0}, s8[3]{0}) frobnicate-all(%p, %p), to_apply=%add",
        "  %w = s8[1]{0} frobnicate-all(%u)",
        above=ADD,
    )
    assert (kata.bytes_accessed(module), kata.flops(module)) == (35 + 20, 0)  # of %u both leaves


@pytest.mark.parametrize(
    ("result", "order", "moved"),
    [
        ("f32[3,4,2]{1,0,2}", "1,2,0", 0),  # the same bytes, other names for the axes
        ("f32[3,4,2]{2,1,0}", "1,2,0", 192),
        ("f32[4,2,3]{0,2,1}", "2,0,1", 0),
    ],
    ids=["bitcast", "moved", "other bitcast"],
)
def test_transpose_is_free_where_memory_stays(kata, oracle, result, order, moved):
    module = entry(
        kata,
        oracle,
        "  %p = f32[2,3,4]{2,1,0} parameter(0)",
        f"  %t = {result} transpose(%p), dimensions={{{order}}}",
    )
    assert kata.bytes_accessed(module) == moved


def test_layouts_of_size_1_are_compared_as_written(kata, oracle):
    """XLA counts this transpose, although not a byte changes its place."""
    module = entry(
        kata,
        oracle,
        "  %p = f32[1,4]{1,0} parameter(0)",
        "  %t = f32[4,1]{1,0} transpose(%p), dimensions={1,0}",
        "  %k = f32[4,1]{0,1} copy(%t)",
    )
    assert kata.bytes_accessed(module) == 64
    assert kata.layout_copies(module) == [("k", 16)]


@pytest.mark.parametrize(
    ("lhs", "rhs", "result", "dims", "expected"),
    [
        ("3,5,7", "3,7,11", "3,5,11", ("lhs_batch_dims={0}", "lhs_contracting_dims={2}"), 2310),
        ("7,5", "7,11", "5,11", ("lhs_contracting_dims={0}",), 770),
        ("5,2,3", "2,3,4", "5,4", ("lhs_contracting_dims={1,2}",), 240),
        ("5", "4", "5,4", (), 40),  # an outer product
    ],
    ids=["batch", "first axis", "two axes", "outer"],
)
def test_flops_of_dot(kata, oracle, lhs, rhs, result, dims, expected):
    module = entry(
        kata,
        oracle,
        f"  %a = f32[{lhs}] parameter(0)",
        f"  %b = f32[{rhs}] parameter(1)",
        ", ".join((f"  ROOT %d = f32[{result}] dot(%a, %b)", *dims)),
    )
    assert kata.flops(module) == expected


def test_reduce_takes_one_step_less_than_elements(kata, oracle):
    module = entry(
        kata,
        oracle,
        "  %p = f32[4,6]{1,0} parameter(0)",
        "  %c = f32[] constant(0)",
        "  %r = f32[4]{0} reduce(%p, %c), dimensions={1}, to_apply=%add",
        above=ADD,
    )
    assert (kata.flops(module), kata.bytes_accessed(module)) == (20, 96 + 4 + 16)


ADD_AND_NEGATE = ADD.replace("ROOT %sum", "%sum")[:-1] + "  ROOT %neg = f32[] negate(%sum)\n}"


def test_reduce_applies_all_of_its_computation(kata, oracle):
    module = entry(
        kata,
        oracle,
        "  %p = f32[4,6]{1,0} parameter(0)",
        "  %c = f32[] constant(0)",
        "  %r = f32[6]{0} reduce(%p, %c), dimensions={0}, to_apply=%add",
        above=ADD_AND_NEGATE,
    )
    assert kata.flops(module) == 36  # 18 additions and as many negations


def test_call_costs_what_is_called_each_time(kata, oracle):
    module = entry(
        kata,
        oracle,
        "  %p = f32[] parameter(0)",
        "  %q = f32[] call(%p, %p), to_apply=%add",
        "  %r = f32[] call(%q, %p), to_apply=%add",
        above=ADD_AND_NEGATE,
    )
    assert (kata.bytes_accessed(module), kata.flops(module)) == (40, 4)


def test_fusion_report(kata, oracle):
    softmax = kata.parse(oracle.text("softmax.after"))
    assert kata.fusion_report(softmax) == {
        "ynn_fusion.1": ["reduce", "broadcast", "subtract", "exponential"],
        "ynn_fusion": ["reduce"],
        "broadcast_divide_fusion": ["broadcast", "divide"],
        "broadcast_multiply_fusion": ["broadcast", "multiply"],
    }
    assert kata.fusion_report(kata.parse(oracle.text("softmax.before"))) == {}


INNER = """%inner (a: f32[4]) -> f32[4] {
  %a = f32[4]{0} parameter(0)
  ROOT %n = f32[4]{0} negate(%a)
}
%outer (b: f32[4]) -> f32[4] {
  %b = f32[4]{0} parameter(0)
  %f = f32[4]{0} fusion(%b), kind=kLoop, calls=%inner
  %h = f32[4]{0} call(%f), to_apply=%inner
  ROOT %e = f32[4]{0} exponential(%h)
}"""


def test_nested_fusion_is_opened(kata, oracle):
    module = entry(
        kata,
        oracle,
        "  %p = f32[4]{0} parameter(0)",
        "  %g = f32[4]{0} fusion(%p), kind=kLoop, calls=%outer",
        above=INNER,
    )
    assert kata.fusion_report(module) == {"g": ["negate", "negate", "exponential"]}
    assert (kata.bytes_accessed(module), kata.flops(module)) == (32, 8)


def test_layout_copies(kata, oracle):
    module = entry(
        kata,
        oracle,
        "  %p = bf16[4,6]{0,1} parameter(0)",
        "  %same = bf16[4,6]{0,1} copy(%p)",
        "  %turned = bf16[4,6]{1,0} copy(%same)",
        "  %b = bf16[4,6]{1,0} bitcast(%p)",
        "  %back = bf16[4,6]{0,1} copy(%turned)",
    )
    assert kata.layout_copies(module) == [("turned", 48), ("back", 48)]


def test_layout_copies_inside_fusions_and_calls(kata, oracle):
    fused = kata.parse(oracle.text("add_transposed.after"))
    assert kata.layout_copies(fused) == [("copy.1", 3840)]
    above = "%c (a: f32[2,3]) -> f32[2,3] {\n  %a = f32[2,3]{0,1} parameter(0)\n"
    above += "  ROOT %k = f32[2,3]{1,0} copy(%a)\n}"
    called = entry(
        kata,
        oracle,
        "  %p = f32[2,3]{0,1} parameter(0)",
        "  %q = f32[2,3]{1,0} call(%p), to_apply=%c",
        "  %r = f32[2,3]{0,1} copy(%q)",
        "  %s = f32[2,3]{1,0} call(%r), to_apply=%c",
        above=above,
    )
    assert kata.layout_copies(called) == [("k", 24), ("r", 24), ("k", 24)]


@pytest.mark.parametrize(
    ("lines", "line"),
    [
        (["  %p = f32[2]{0} parameter(0)", "", "  %q = f32[2]{0} abs(%z)"], 5),
        (["  %q = f32[2]{0} abs(%p)", "  %p = f32[2]{0} parameter(0)"], 3),
        (["  %p = f32[2]{0} parameter(0))"], 3),
        (["  %p = f32[2}{0] parameter(0)"], 3),
        (["  %p = f32[2]{0} parameter(0)", "  %q = f32[2]{0} abs(%p", "", "  "], 4),
        (["  %p = f33[2]{0} parameter(0)"], 3),
        (["  %p = f32[2]{0} parameter(0)", "  %q = f32[2]{0} call(%p), to_apply=%f"], 4),
        (["  %p = f32[2]{0} parameter(0)", "  hello"], 4),
        (["  %p = f32[2]{0}"], 3),
        (["  %p = f32 parameter(0)"], 3),
        (["  %p = (f32[2]{0}, f32) parameter(0)"], 3),
        (["  %c = f32[2]{0} call(), to_apply=%main"], 3),
        (["  %p = s32[2]{0} constant({1,", "2})", "  %q = s32[2]{0} abs(%", "z)"], 5),
    ],
    ids=[
        "undefined", "used before", "closed twice", "crossed", "not closed", "dtype", "callee",
        "no instruction", "no opcode", "no type", "no type in a tuple", "itself", "several lines",
    ],
)  # fmt: skip
def test_bad_text_is_refused_with_its_line(kata, oracle, lines, line):
    with pytest.raises(ValueError, match=f"^line {line}: "):
        kata.parse(oracle.module(*lines))


def test_operand_of_another_computation_is_undefined(kata, oracle):
    with pytest.raises(ValueError, match="^line 8: "):
        kata.parse(oracle.module("  %q = f32[] abs(%sum)", above=ADD))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (f"HloModule m\n{ADD}\n", 6),
        ("HloModule m\n\n\n", 3),
        ("HloModule m\nENTRY %m {\n  %p = f32[] parameter(0)\n", 2),
        ("ENTRY %m {\n  %p = s32[2] constant(\n {\n [\n 1\n", 4),
        ("", 1),
        ("ENTRY %m {\n  %p = f32[] call(), to_apply=%n\n}\n%n {\n  %c = f32[] constant(1)\n}\n", 2),
    ],
    ids=["no entry", "blank lines", "entry never closed", "innermost", "empty", "called before"],
)
def test_incomplete_module_is_refused(kata, text, line):
    with pytest.raises(ValueError, match=f"^line {line}: "):
        kata.parse(text)


def test_four_times_the_text_takes_four_times_the_work(kata, oracle, lines, cost):
    counted = []
    for length in (100, 400):
        text = oracle.chain(length)
        with lines(limit=1_000_000) as of_this:
            module = kata.parse(text)
            kata.bytes_accessed(module)
        counted.append(of_this.lines)
    cost.check("ratio", counted[1] / counted[0])
