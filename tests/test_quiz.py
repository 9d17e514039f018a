"""A quiz: what may be typed, what can be asked of every kata, and how the command goes."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from harness.base.errors import HarnessError
from harness.cli import main, quiz_words
from harness.cli import quiz as quiz_command
from harness.content.catalog import load_curriculum
from harness.content.kata import load_kata
from harness.hardware.profiles import load_profiles
from harness.hardware.roofline import Cost
from harness.learner.progress import Progress
from harness.practice import (
    call_questions,
    foretelling,
    line_questions,
    mistake_questions,
    quiz,
    roofline_questions,
)
from harness.practice.facts import AskedFacts, Call, Line, Work
from harness.practice.questions import Question, Unreadable, alike, figure, number, tolerance_of
from tests.conftest import ROOT

ROOFLINE = """
[[speed]]
kind = "roofline"
fraction = 0.8
case = { n = 1_000_000, dtype = "float32" }
"""
COST = """

def cost(*, x):
    from harness.hardware import Cost

    reads = x.nbytes
    return Cost(flops=x.numel(), bytes=2 * reads)
"""


class NoFacts:
    """What is known of a kata whose code is never run."""

    def calls(self, kata):
        return ()

    def works(self, kata, cases):
        return [None] * len(cases)

    def lines(self, kata):
        return ()

    def failing(self, kata, wrong, tests=()):
        return []


class SomeFacts(NoFacts):
    """Facts made by hand."""

    def __init__(self, calls=(), work=None, failing=()):
        self.known, self.work, self.fails = calls, work, list(failing)

    def calls(self, kata):
        return self.known

    def works(self, kata, cases):
        return [self.work] * len(cases)

    def failing(self, kata, wrong, tests=()):
        return self.fails


def drawn(kata, facts, seed, count=3, *, solved=True, profiles=None):
    source = quiz.Source(kata=kata, seed=seed, facts=facts, profiles=profiles or {}, solved=solved)
    return list(quiz.draw([source], count, seed))


@pytest.fixture(scope="module")
def course():
    return load_curriculum(ROOT).katas


@pytest.fixture
def doubled(mini):
    return load_kata(mini / "katas/week01/doubled")


# ---- answers -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("4096", "", 4096),
        ("16,777,216 bytes", "bytes", 2**24),
        ("16 Mi", "bytes", 2**24),
        ("16 MiB", "bytes", 2**24),
        ("1.5e9", "bytes", 1.5e9),
        ("3 * 8192 * 14336 * 2", "bytes", 704_643_072),
        ("2^10 + 1", "", 1025),
        ("-1/4", "", -0.25),
        ("3.2 TFLOP", "FLOP", 3.2e12),
        ("1.2 ms", "µs", 1200),
        ("80", "µs", 80),
        ("0.5 s", "µs", 5e5),
        ("inf", "", float("inf")),
    ],
)
def test_a_number_may_be_a_sum_with_prefix_and_unit(text, unit, value):
    assert number(text, unit) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "many", "1 +", "1/0", "9**9**9", "__import__('os')", "[1]"])
def test_what_is_no_number_is_asked_for_again(text):
    with pytest.raises(Unreadable, match="expected a number, as in"):
        number(text)


@pytest.mark.parametrize(
    ("given", "right"),
    [("1000", True), ("1019", True), ("1021", False), ("980", True), ("979", False)],
)
def test_what_is_estimated_is_right_within_what_is_stated(given, right):
    one = Question(kata="k", kind="bytes", text="", form="number", answer="1000", near=0.02)
    assert one.rule == "within 2%"
    assert one.is_right(given) is right


@pytest.mark.parametrize(
    ("value", "shown"),
    [(704_643_072, "704,643,072"), (33_830.4, "33,830"), (0.8333333, "0.8333"), (1e-7, "1e-07"),
     (float("inf"), "inf")],
)  # fmt: skip
def test_figures_are_for_people(value, shown):
    assert figure(value) == shown


@pytest.mark.parametrize(
    ("value", "near"),
    [(1000, 0.0), (0.5, 0.02), (1001, 0.02), (float("inf"), 0.02), ([1, 0.5], 0.02)],
)
def test_counts_are_exact_and_estimates_near(value, near):
    assert tolerance_of(value) == near


def test_values_are_compared_part_by_part():
    one = Question(kata="k", kind="result", text="", form="value", answer="[2, 0.5]", near=0.02)
    assert one.is_right("[2, 1/2]")
    assert one.is_right("(2, 0.501)")
    assert not one.is_right("[2, 0.5, 1]")
    assert not alike(1, True, 0.0)
    assert alike({"a": [1]}, {"a": (1,)}, 0.0)
    with pytest.raises(Unreadable, match="expected a value, as in"):
        one.is_right("[2,")


def test_the_shape_of_one_axis_needs_no_brackets():
    one = Question(kata="k", kind="shape", text="", form="value", answer="[7]")
    assert [one.is_right(text) for text in ("7", "[7]", "(7,)", "[7, 1]")] == [True] * 3 + [False]
    two = replace(one, answer="[7, 3]")
    assert [two.is_right(text) for text in ("7, 3", "[7, 3]", "21")] == [True, True, False]


def test_a_wrong_choice_is_answered_with_number_and_words():
    one = Question(kata="k", kind="bound", text="", form="choice", answer="b", choices=("a", "b"))
    assert quiz_words.judged(one, "1", False) == "✗ it is 2: b"


def test_a_choice_is_taken_by_number_or_word():
    one = Question(kata="k", kind="dtype", text="", form="choice", answer="b", choices=("a", "b"))
    assert one.is_right("2")
    assert one.is_right("b")
    assert not one.is_right("1")
    with pytest.raises(Unreadable, match="expected a number from 1 to 2, found '3'"):
        one.is_right("3")


# ---- what can be asked ---------------------------------------------------------------------


def wrong_answer(question):
    if question.form == "choice":
        return next(one for one in question.choices if one != question.answer)
    return "-12345"


def test_three_questions_can_be_asked_of_every_kata(course):
    for name, kata in course.items():
        found = drawn(kata, NoFacts(), seed=1)
        assert len(found) == 3, f"{name}: expected 3 questions, found {len(found)}"
        assert len({one.text for one in found}) == 3
        for one in found:
            right = quiz.judge(one, one.answer, NoFacts(), course)
            wrong = quiz.judge(one, wrong_answer(one), NoFacts(), course)
            assert (right.right, wrong.right) == (True, False), f"{name}: {one.text}"
            assert (one.form == "choice") == (one.choices.count(one.answer) == 1)
            assert len(set(one.choices)) == len(one.choices), f"{name}: {one.choices}"


def test_a_seed_draws_the_same_questions_and_another_one_others(course):
    katas = [course[name] for name in ("swiglu", "zero_memory", "ring_attn_fwd")]
    sources = [
        quiz.Source(kata=kata, seed=7, facts=NoFacts(), profiles={}, solved=True) for kata in katas
    ]
    found = list(quiz.draw(sources, 6, 7))
    assert found == list(quiz.draw(sources, 6, 7))
    assert found != list(quiz.draw(sources, 6, 8))
    assert {one.kata for one in found[:3]} == {kata.name for kata in katas}


def test_of_one_mistake_one_question_is_asked(course):
    for name in ("vector_add", "swiglu", "zero_memory"):
        for seed in range(5):
            about = [
                one.wrong for one in drawn(course[name], NoFacts(), seed, count=8) if one.wrong
            ]
            assert len(about) >= 2
            assert len(set(about)) == len(about), f"{name}, seed {seed}"


def test_what_may_be_as_true_of_an_edit_is_no_other_choice(course):
    found = [
        mistake_questions.described(course["nvshmem_put_signal"], Random(seed))
        for seed in range(60)
    ]
    some = [one for one in found if one.wrong == "quiet_not_yielded"]
    assert some
    for one in some:  # the line is the same, and so is the test
        assert "stores the new cells while the edges may still be read" not in one.choices


def test_a_question_is_made_while_the_one_before_is_answered(course):
    def questions():
        yield "first"
        yield "second"
        raise HarnessError("no more")

    ahead = quiz.Ahead(questions())
    assert [ahead.next(), ahead.next()] == ["first", "second"]
    with pytest.raises(HarnessError, match="no more"):
        ahead.next()
    assert quiz.Ahead(iter(())).next() is None


def test_before_a_kata_is_solved_nothing_of_its_reference_is_shown(course):
    assert drawn(course["swiglu"], NoFacts(), seed=1, solved=False) == []
    call = Call(function="f", call="f(n=2)", names=("n",), numbers={"n": 2}, given=(),
                result="41", value=41)  # fmt: skip
    (one,) = drawn(course["swiglu"], SomeFacts([call]), seed=1, solved=False)
    assert one.derivation == ("it returns 41",)


def test_a_test_that_fails_as_well_is_right_as_well(course):
    found = (drawn(course["swiglu"], NoFacts(), seed=seed, count=9) for seed in range(5))
    one = next(one for some in found for one in some if one.kind == "test")
    other = one.open[0]
    assert not quiz.judge(one, other, NoFacts(), course).right
    assert quiz.judge(one, other, SomeFacts(failing=[other]), course).right


def test_what_the_reference_was_counted_at_is_asked_where_it_can_be_told(course):
    one = mistake_questions.counted(course["swiglu"], Random(1))
    assert one.text.startswith("swiglu is called on the case rows = 7, cols = 1000, dtype = float")
    assert one.answer in ("1", "42000")
    only = [mistake_questions.counted(course["matmul"], Random(seed)) for seed in range(5)]
    assert {one.answer for one in only} == {"1"}, "its bytes depend on its tiles"
    assert mistake_questions.counted(course["zero_memory"], Random(1)) is None


def test_the_dearest_line_is_asked_for_where_it_is_so_by_far(course):
    def lines(*counts):
        return [
            Line(line=at, text=f"line {at}", counts={"bytes": count})
            for at, count in enumerate(counts, 1)
        ]

    one = line_questions.dearest(course["wmma_gemm"], lines(10, 130, 100, 0), Random(1))
    assert (one.answer, one.choices) == ("line 2", ("line 1", "line 2", "line 3"))
    assert "moves the most bytes" in one.text
    assert one.derivation[1] == "130 bytes: line 2"
    known = lines(10, 129, 100, 0)
    assert line_questions.dearest(course["wmma_gemm"], known, Random(1)) is None
    assert line_questions.dearest(course["wmma_gemm"], (), Random(1)) is None
    # its warps load the same again, as no line of it says
    assert line_questions.dearest(course["swiglu"], lines(10, 130, 100), Random(1)) is None


def test_passed_is_four_of_five_and_a_review_three_questions():
    one = Question(kata="k", kind="bytes", text="", form="number", answer="1")
    other = Question(kata="l", kind="bytes", text="", form="number", answer="1")

    def answers(rights, question):
        return [quiz.Answer(question=question, given="", right=right) for right in rights]

    assert quiz.passed(answers([1, 1, 1, 1, 0], one))
    assert not quiz.passed(answers([1, 1, 1, 0, 0], one))
    assert not quiz.passed([])
    assert quiz.reviewed(answers([1, 1, 0], one) + answers([1, 1], other)) == {"k": False}


def call_of(**changes):
    plain = {"function": "doubled", "call": "doubled(x=<float32 [7, 3]>)", "names": ("x", "y"),
             "numbers": {}, "given": ({"dtype": "float32", "shape": [7, 3]},)}  # fmt: skip
    return Call(**{**plain, **changes})


def test_shapes_that_say_nothing_are_not_asked(doubled):
    alike = {"dtype": "float32", "shape": [7, 3]}
    same = call_of(arrays=(alike,), result="<float32 [7, 3]>")
    assert call_questions.shaped(doubled, [same], Random(1)) is None
    assert call_questions.shaped(doubled, [same], Random(1), anything=True).answer == "[7, 3]"
    rows = call_of(arrays=({"dtype": "float32", "shape": [7]},), result="<float32 [7]>")
    one = call_questions.shaped(doubled, [same, rows], Random(1))
    assert one.is_right("[7]")
    assert one.is_right("(7,)")
    assert "doubled: Twice `x`." in one.text


def test_a_result_is_asked_where_few_lines_lead_to_it(doubled):
    one = Call(function="f", call="f(n=2)", names=("n",), numbers={"n": 2}, given=(),
               result="12", value=12)  # fmt: skip
    check = "def _check(n):\n    if n < 0:\n        raise ValueError(n)\n\n\n"
    helper = 'def _twice(n):\n    """Twice it."""\n    return 2 * n\n'
    doubled.solution.write_text(
        f"{check}{helper}\n\ndef f(n):\n    _check(n)\n    return 3 * _twice(n)\n"
    )
    asked = call_questions.returned(doubled, [one], Random(1), solved=True)
    assert asked.derivation == (
        "    _check(n)", "    return 3 * _twice(n)", "_twice(n):", "    return 2 * n",
        "with these numbers: 3 * _twice(2)", "it returns 12",
    )  # fmt: skip
    assert call_questions.returned(doubled, [one], Random(1), solved=False).derivation == (
        "it returns 12",
    )
    large = replace(one, value=2.5e11, result="250000000000.0")
    told = call_questions.returned(doubled, [large], Random(1), solved=False).derivation
    assert told == ("it returns 250,000,000,000",)
    call_questions._bodies.cache_clear()
    longer = helper.replace("    return", "    n = n\n" * call_questions.MOST_LINES + "    return")
    doubled.solution.write_text(f"{longer}\n\ndef f(n):\n    return 3 * _twice(n)\n")
    assert call_questions.returned(doubled, [one], Random(1), solved=True) is None


def test_a_refusal_is_asked_where_the_call_shows_why(doubled):
    seen = call_of(raised="ValueError", message="x: expected float16, found torch.float32")
    one = call_questions.refused(doubled, [seen], Random(1))
    assert (one.answer, one.choices) == ("x", ("x", "y", call_questions.COMPUTED))
    default = call_of(raised="ValueError", message="y: expected more than 0, found 0")
    assert call_questions.refused(doubled, [default], Random(1)) is None
    field = call_of(call="doubled(x=Config(n=0))", raised="ValueError", message="n: more than 0")
    assert call_questions.refused(doubled, [field], Random(1)) is None, "it is no argument"
    unseen = call_of(raised="ValueError", message="x: expected a contiguous last axis")
    assert call_questions.refused(doubled, [unseen], Random(1)) is None


# ---- the roofline --------------------------------------------------------------------------


@pytest.fixture
def streaming(course):
    """swiglu on 3 x 2**20 bytes."""
    work = Work(
        cost=Cost(flops=5 * 2**19, bytes=3 * 2**20, special=2**20),
        given={"e": "float16 [512, 1024]", "g": "float16 [512, 1024]"},
        terms={"bytes": ("3 * nbytes", "3 * 1048576")},
    )
    kata = course["swiglu"]
    return roofline_questions.Drawn(kata=kata, case={"rows": 512, "dtype": "float16"}, work=work)


def test_bytes_are_derived_with_the_numbers_of_the_case(streaming):
    one = roofline_questions.bytes_moved(streaming)
    assert one.text.startswith("swiglu is called with e: float16 [512, 1024], g: float16 [512,")
    assert one.is_right("3 * 512 * 1024 * 2")
    assert not one.is_right("2 * 512 * 1024 * 2")
    assert one.derivation == ("bytes = 3 * nbytes = 3 * 1,048,576 = 3,145,728",)
    assert roofline_questions.flops(streaming) is None, "what counts as one is a convention there"


def test_the_bound_is_that_of_the_named_gpu(streaming):
    profiles = load_profiles(ROOT / "hardware_profiles")
    t4 = roofline_questions.bound(streaming, profiles["t4"])
    assert "0.32 TB/s" in t4.text
    assert t4.answer == "memory bandwidth"
    late = roofline_questions.bound(streaming, profiles["b200_sxm"])
    assert late is None or late.answer == "the launch itself"
    small = replace(streaming, work=replace(streaming.work, cost=Cost(flops=1e3, bytes=1e3)))
    launch = roofline_questions.bound(small, profiles["t4"])
    assert launch.derivation[1] == "arithmetic: 1,000 FLOP take less than 0.01 µs"
    time = roofline_questions.time(streaming, profiles["t4"])
    assert time.is_right("9.83 µs")  # 3.146 MB at 0.32 TB/s
    assert not time.is_right("9.83 ms")


# ---- asked of the code itself --------------------------------------------------------------


@pytest.fixture
def costed(doubled):
    for name, more in (("kata.toml", ROOFLINE), ("oracle.py", COST)):
        path = doubled.folder / name
        path.write_text(path.read_text() + more)
    return load_kata(doubled.folder)


def test_calls_and_work_are_asked_of_the_kata_and_kept(costed, tmp_path, monkeypatch):
    facts = AskedFacts(folder=tmp_path / "kept", cache=tmp_path / "cache")
    calls = {one.call: one for one in facts.calls(costed)}
    assert calls["doubled(x=<float32 [7]>)"].result == "<float32 [7]>"
    refused = calls["doubled(x=<int64 [3]>)"]
    assert (refused.raised, refused.message) == (
        "ValueError", "x: expected floating point, found torch.int64"
    )  # fmt: skip
    cases = [{"n": 1000, "dtype": "float32"}, {"n": "many"}]
    (work, none) = facts.works(costed, cases)
    assert none is None, "the oracle cannot make such inputs"
    assert work.cost == Cost(flops=1000, bytes=8000)
    assert work.given == {"x": "float32 [1000]"}
    assert work.terms["bytes"] == ("2 * x.nbytes", "2 * 4000")

    def asked_again(*args, **options):
        raise AssertionError("it was asked again")

    monkeypatch.setattr("harness.practice.facts.run_group", asked_again)
    again = AskedFacts(folder=tmp_path / "kept", cache=tmp_path / "cache")
    assert again.works(costed, cases) == [work, None]
    assert len(again.calls(costed)) == len(calls)
    costed.oracle.write_text(costed.oracle.read_text() + "# another\n")
    with pytest.raises(AssertionError, match="it was asked again"):
        again.works(costed, cases)


def test_the_first_failing_test_is_found_by_running_them(doubled, tmp_path):
    facts = AskedFacts(folder=tmp_path / "kept", cache=tmp_path / "cache")
    assert facts.failing(doubled, "checks_nothing") == ["test_integers_are_refused"]


def test_a_mistake_can_be_foretold_of_every_kata(course):
    for name, kata in course.items():
        tests = mistake_questions.own_tests(kata)
        one = foretelling.first_failing(kata, SomeFacts(failing=tests[1:]), seed=1, solved=False)
        assert one is not None, name
        assert (one.answer, one.choices.count(one.answer)) == (tests[1], 1)


def test_what_is_foretold_of_a_mistake_is_in_words_until_it_is_solved(doubled):
    facts = SomeFacts(failing=["test_integers_are_refused"])
    one = foretelling.first_failing(doubled, facts, seed=1, solved=False)
    assert one.answer == "test_integers_are_refused"
    assert "@@" not in one.text
    assert "@@ def doubled" in foretelling.first_failing(doubled, facts, seed=1, solved=True).text
    assert foretelling.first_failing(doubled, NoFacts(), seed=1, solved=True) is None
    all_fail = SomeFacts(failing=mistake_questions.own_tests(doubled))
    assert foretelling.first_failing(doubled, all_fail, seed=1, solved=True) is None


# ---- the commands --------------------------------------------------------------------------


@pytest.fixture
def command(mini, tmp_path, monkeypatch):
    """The command in this process, on facts made by hand; `solve()` solves the kata."""
    monkeypatch.setenv("KATA_HOME", str(tmp_path / "home"))
    rows = call_of(arrays=({"dtype": "float32", "shape": [7]},), result="<float32 [7]>")
    facts = SomeFacts([rows], failing=["test_integers_are_refused"])
    monkeypatch.setattr("harness.cli.quiz.facts_of", lambda house: facts)
    monkeypatch.setattr("harness.cli.predict.facts_of", lambda house: facts)

    def run(*args, **options):
        return CliRunner().invoke(main, ["--root", str(mini), *args], **options)

    return run


def solved(home):
    progress = Progress(home)
    attempt = progress.start("doubled", "yours", "ab" * 32, seed=1, device="cpu", profile="cpu")
    progress.finish(attempt, "passed", "", checks=(), measurements=(), versions={}, duration_s=1.0)


def test_a_quiz_is_kept_as_a_short_review(command, tmp_path):
    solved(tmp_path / "home")
    asked = json.loads(command("quiz", "doubled", "--seed", "3", "--count", "4", "--json",
                               input="1\n" * 40).stdout)  # fmt: skip
    answers = [f"--answer={one['answer']}" for one in asked["questions"]]
    right = command("quiz", "--seed", "3", "--count", "4", *answers)
    assert right.exit_code == 0, right.output
    said = " ".join(right.output.partition("4 of 4: passed\n")[2].split())
    no = "doubled: does not count as a review, since you practised it today; still due 20"
    assert said.startswith(no)
    assert said.count("review") == 1
    notes = [one for one in Progress(tmp_path / "home").notes() if one.kind == "short_review"]
    assert json.loads(notes[-1].detail) == {
        "form": "quiz", "passed": True, "right": 4, "of": 4, "seed": 3
    }  # fmt: skip
    assert json.loads(notes[0].detail)["passed"] is asked["passed"] is False


def test_what_is_asked_is_what_kata_due_names_first(course):
    katas = {name: course[name] for name in ("swiglu", "vector_add")}
    now = datetime(2027, 1, 31, tzinfo=UTC)
    rows = [("swiglu", 0.6, 20), ("vector_add", 0.7, 30)]  # one longer due, one more forgotten
    known = {
        name: SimpleNamespace(kata=name, recall=recall, due=now - timedelta(days=days),
                              solved_at=now - timedelta(days=60), is_due=lambda _: True)
        for name, recall, days in rows
    }  # fmt: skip
    house = SimpleNamespace(
        standings=lambda: known, now=lambda: now, curriculum=SimpleNamespace(kata=katas.get)
    )
    for due in (True, False):
        assert quiz_command._chosen(house, (), None, due=due) == [katas["swiglu"]]


def test_an_unsolved_kata_is_asked_about_what_gives_nothing_away(command):
    done = command("quiz", "doubled", "--seed", "1", "--answer", "[7]")
    assert done.exit_code == 0, done.output
    assert "✓ right\n    it returns <float32 [7]>" in done.output
    assert "1 of 1: passed" in done.output
    assert "short review" not in done.output


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["doubled", "--answer", "1", "--answer", "2"], "--answer: expected 1 of them, found 2"),
        (["doubled", "--answer", ""], "--answer: expected a value, as in"),
        (["doubled", "--answer", "[7"], "--answer: expected a value, as in"),
        (["doubled", "--due"], "expected names, --week or --due, found several"),
        (["--due"], "expected a kata that is due, found none"),
        ([], "expected a kata that was solved, found none yet"),
    ],
)
def test_what_cannot_be_a_quiz_is_refused(command, options, said):
    done = command("quiz", *options)
    assert done.exit_code == 2
    assert said in done.output


def test_a_kata_without_a_roofline_is_foretold_in_the_parts_that_it_has(command, tmp_path):
    done = command("predict", "doubled", "--seed", "1", input="[7, 3]\n[7]\n")
    assert "✗ it is [7]" in done.output
    assert "is the first to fail?" in done.output
    assert done.output.count("foretold right: shape 0 of 1") == 1, done.output
    given = command("predict", "doubled", "--seed", "1", "--json", "--returns", "[7]",
                    "--test", "test_integers_are_refused")  # fmt: skip
    parts = json.loads(given.stdout)["parts"]
    assert [(one["part"], one["right"], one["after"]) for one in parts] == [
        ("shape", True, False), ("test", True, False)
    ]  # fmt: skip
    kinds = [one.kind for one in Progress(tmp_path / "home").notes("doubled")]
    assert kinds == ["foretold"] * 3


def test_nothing_foretold_is_said_so(command):
    done = command("predict", "doubled", input="\n\n")
    assert done.exit_code == 2
    assert "expected an estimate of doubled, found none" in done.output
    missing = command("predict", "doubled", "--bytes", "12")
    assert "--bytes: expected nothing, doubled has no such part" in missing.output
