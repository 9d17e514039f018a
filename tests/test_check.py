"""`kata check` finds what a kata fails to prove."""

import re

import pytest

from harness.authoring.check import (
    Part,
    Report,
    check_katas,
    draw_katas,
    judge_matrix,
    profile_katas,
)
from harness.authoring.contract import contract_problems
from harness.authoring.matrix import remembered_kills
from harness.authoring.scaffold import TEMPLATES, scaffold
from harness.base.errors import UsageProblem
from harness.content.catalog import load_curriculum
from harness.content.kata import load_kata
from harness.hardware.packages import missing_extra

DOUBLED = "katas/week01/doubled"


@pytest.fixture
def check(mini, tmp_path, monkeypatch):
    """Problems of the tiny kata, as `kata check` lists them."""
    monkeypatch.setenv("KATA_HOME", str(tmp_path / "home"))

    def run(name="doubled", *, jobs=1, **options):
        kata = load_curriculum(mini).kata(name)
        cache = tmp_path / "home" / "cache"
        (report,) = check_katas([kata], cache, jobs=jobs, seed=7, **options)
        return report

    return run


def edit(path, before, after):
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))


def test_a_sound_kata_has_no_problems(check):
    report = check()
    assert report.problems == []
    assert len(report.killed_by) == 10
    assert all(report.killed_by.values())


def test_what_the_matrix_fails_to_prove_is_told(check, mini):
    folder = mini / DOUBLED
    (folder / "test_doubled.py").write_text(
        "def test_asserts_nothing(kata):\n    pass\n\n\n"
        "def test_kills_nothing(kata):\n    import torch\n\n"
        "    assert kata.doubled(torch.ones(2)).shape == (2,)\n",
    )
    edits = mini / "tests/wrong/week01/doubled/edits.toml"
    first, _, rest = edits.read_text().partition("[writes_past_the_end]")
    edits.write_text(first + "[" + rest.partition("\n[")[2])
    (mini / "tests/wrong/week01/doubled/honest.py").write_text(
        '"""Wrong on purpose: not at all."""\n'
        + (mini / "solutions/week01/doubled.py").read_text().split('"""', 2)[2]
    )
    problems = check().problems
    assert "stub passes test_asserts_nothing: the test asserts nothing" in problems
    assert "wrong:honest lives: no test fails on it" in problems
    assert "wrong:copies lives: no test fails on it" in problems
    assert "test_kills_nothing kills no wrong solution" in problems
    assert "cost allocated_bytes: no test measures it" in problems


def test_a_kill_counts_only_where_the_reference_passes(check, mini):
    (mini / DOUBLED / "test_doubled.py").write_text(
        "import torch\n\n\n"
        "def test_allocates_the_result_only(kata, dispatch, cost):\n"
        "    x = torch.ones(1000)\n"
        "    with dispatch() as ops:\n        kata.doubled(x)\n"
        "    cost.check('allocated_bytes', ops.allocated_bytes)\n\n\n"
        "def test_fails(kata):\n    kata.doubled(torch.ones(2))\n    assert 1 + 1 == 3\n"
    )
    report = check(whole=True)
    assert "solution fails test_fails: 1 + 1: expected 3, found 2" in report.problems
    assert all("test_fails" not in tests for tests in report.killed_by.values())
    unjudged = [label for label, tests in report.killed_by.items() if not tests]
    assert unjudged
    for label in unjudged:
        told = f"{label} is not judged: it fails test_fails, as the solution does"
        assert told in report.problems


def test_what_a_simulator_does_not_model_kills_nobody(mini):
    message = "not modelled: f: expected PTX that the simulator models, found wgmma.sp"
    outcomes = {"stub": "failed", "solution": "passed", "wrong:odd": "failed"}
    stub = "doubled is still a stub: edit doubled.py"
    events = [
        {"impl": impl, "name": "test_it", "outcome": outcome, "cpu_s": 0.1, "measurements": [],
         "message": {"stub": stub, "wrong:odd": message}.get(impl, "")}
        for impl, outcome in outcomes.items()
    ]  # fmt: skip
    report = Report(kata=load_kata(mini / DOUBLED))
    judge_matrix(report, events)
    assert f"wrong:odd: no verdict of test_it: {message}" in report.problems
    assert "wrong:odd lives: no test fails on it" in report.problems


def test_what_the_author_has_still_to_write_keeps_nothing_from_being_judged(check, mini):
    edit(mini / DOUBLED / "README.md", "# Doubled", "# TODO(author)")
    edit(
        mini / "solutions/week01/doubled.py",
        "y = torch.empty_like(x)",
        "y = torch.empty_like(x)\n    x = 3 * x",
    )
    problems = "\n".join(check().problems)
    assert "README.md:1: TODO(author) is left" in problems
    assert "solution fails test_matches_reference" in problems


def test_one_wrong_solution_and_one_test_are_judged_by_themselves(check):
    report = check(part=Part(wrong=("copies",)))
    assert report.problems == []
    ((label, killers),) = report.killed_by.items()
    assert label == "wrong:copies"
    assert killers == ["test_allocates_the_result_only"]

    report = check(part=Part(tests=("test_integers_are_refused",)))
    assert report.problems == []
    assert report.tests == 1
    assert sum(map(bool, report.killed_by.values())) == 1

    report = check(part=Part(wrong=("copies",), tests=("test_integers_are_refused",)))
    assert report.problems == ["wrong:copies lives: no test fails on it"]


def test_what_ranks_compute_is_counted_and_a_test_names_its_own_limit(check, mini):
    with (mini / DOUBLED / "test_doubled.py").open("a") as tests:
        tests.write(
            "\n\n@pytest.mark.within_s(2)\ndef test_works_on_a_rank(kata, ranks):\n"
            "    import time\n\n"
            "    def compute(rank, world):\n"
            "        while time.process_time() < 0.6:\n            pass\n"
            "        return kata.doubled(torch.ones(1)).item()\n\n"
            "    assert ranks(2, compute) == [2.0, 2.0]\n"
        )
    events = []
    report = check(part=Part(tests=("test_works_on_a_rank",)), heard=events.append)
    assert report.problems == []
    (found,) = [one for one in events if one["event"] == "check" and one["impl"] == "solution"]
    assert found["cpu_s"] >= 1.0  # two ranks of 0.6 s


def test_what_is_asked_for_and_is_not_there_is_told(check):
    with pytest.raises(UsageProblem, match="found 'wrong:copis'. Did you mean wrong:copies?"):
        check(part=Part(wrong=("copis",)))
    (problem,) = check(part=Part(tests=("test_integers_are_refsed",))).problems
    assert "Did you mean test_integers_are_refused" in problem


def test_a_matrix_in_shares_proves_what_it_proves_in_one_piece(check, mini):
    (alone, shared) = check(whole=True), check(whole=True, jobs=3)
    assert shared.problems == alone.problems == []
    kills = [
        # one that remembers by address is met by other addresses
        {name: set(tests) for name, tests in one.killed_by.items() if name != "wrong:remembers"}
        for one in (alone, shared)
    ]
    assert kills[0] == kills[1]
    (mini / "tests/wrong/week01/doubled/kills.toml").unlink()
    assert check(jobs=3).problems == []


def test_a_test_that_never_ends_is_stopped_and_named(check, mini, monkeypatch):
    monkeypatch.setattr("harness.authoring.check.TEST_LIMIT_S", 2.0)
    monkeypatch.setattr("harness.authoring.session.cpu_pace", lambda: 1.0)
    with (mini / DOUBLED / "test_doubled.py").open("a") as tests:
        tests.write(
            "\n\ndef test_endless(kata):\n"
            "    kata.doubled(torch.ones(2))\n    while True:\n        pass\n"
        )
    problems = "\n".join(check(part=Part(wrong=("copies",), tests=("test_endless",))).problems)
    assert "solution fails test_endless: stopped after " in problems
    assert " s of CPU time in test_endless" in problems


def test_a_wrong_solution_that_never_ends_is_waited_for_once(check, mini, monkeypatch):
    monkeypatch.setattr("harness.authoring.session.LEAST_LIMIT_S", 1.0)
    monkeypatch.setattr("harness.authoring.session.cpu_pace", lambda: 1.0)
    with (mini / "tests/wrong/week01/doubled/edits.toml").open("a") as edits:
        edits.write(
            '\n[never_ends]\nwhy = "it waits"\nfind = "    torch.mul"\n'
            'replace = "    while x.numel():\\n        pass\\n    torch.mul"\n'
        )
    events = []
    report = check(whole=True, jobs=2, heard=events.append)
    assert report.problems == []
    judged = [one for one in events if one["event"] == "check"]
    told = [one["message"] for one in judged if one["impl"] == "wrong:never_ends"]
    limits = [
        float(found[1])
        for message in told
        if (found := re.match(r"stopped after ([\d.]+) s of CPU time", message))
    ]
    reference = [one for one in judged if one["impl"] == "solution"]
    slowest_s = max(one["cpu_s"] for one in reference)
    assert len(limits) > 4
    # the reference of its own process
    assert 1.0 < limits[0] < 1.1 + 5.0 * slowest_s
    assert all(one < limits[0] for one in limits[1:])
    # each share has judged the reference, and it counts once
    assert report.tests == len({one["name"] for one in judged})
    assert report.solution_s < sum(one["cpu_s"] for one in reference)


def test_a_kill_is_remembered_that_holds_on_another_draw(check, mini):
    with (mini / DOUBLED / "test_doubled.py").open("a") as tests:
        tests.write(
            "\n\ndef test_at_times(kata, request):\n"
            "    lucky = request.config.getoption('--seed') == 7\n"
            "    assert not lucky or kata.doubled(torch.ones(3))[2] == 2\n"
        )
    (problem,) = check(whole=True).problems
    assert problem == (
        "test_at_times kills a wrong solution on --seed 7, but none of them on --seed 8"
    )
    kills = remembered_kills(load_kata(mini / DOUBLED))
    assert len(kills) == 10
    assert all("test_at_times" not in tests for tests in kills.values())


def test_what_the_tests_prove_is_remembered_whatever_is_wrong_with_the_brief(check, mini):
    with (mini / DOUBLED / "README.md").open("a") as brief:
        brief.write("a long line " * 20 + "\n")
    (problem,) = check(whole=True).problems
    assert "expected at most 120 characters" in problem
    assert len(remembered_kills(load_kata(mini / DOUBLED))) == 10


def test_a_stub_that_passes_for_the_error_that_is_asked_for_is_explained(check, mini):
    tests = mini / DOUBLED / "test_doubled.py"
    lines = len(tests.read_text().splitlines())
    with tests.open("a") as file:
        file.write(
            "\n\ndef test_bytes_are_refused(kata):\n"
            "    with pytest.raises((TypeError, RuntimeError)):\n        kata.doubled(b'')\n"
            "\n\ndef test_text_is_refused(kata):\n"
            "    with pytest.raises(Exception, match='doubled'):\n        kata.doubled('')\n"
        )
    problems = check(part=Part(tests=("test_bytes_are_refused", "test_text_is_refused"))).problems
    assert [one for one in problems if one.startswith("stub")] == [
        "stub passes test_bytes_are_refused: pytest.raises((TypeError, RuntimeError)) in line "
        f"{lines + 4} takes the stub's NotImplementedError for it. Ask for a narrower class, or "
        "for words: match=",
    ]


def test_a_session_that_breaks_down_is_told_where_and_stops_no_other_kata(mini, tmp_path):
    edit(
        mini / "solutions/week01/doubled.py",
        "    torch.mul",
        "    if x.numel() == 1000:\n        import os\n\n        os._exit(9)\n    torch.mul",
    )
    scaffold(mini, "week02/fresh", "torch")
    katas = [load_curriculum(mini).kata(name) for name in ("doubled", "fresh")]
    doubled, fresh = check_katas(katas, tmp_path / "cache", jobs=1, seed=7)
    assert any(
        line.startswith("ended with exit code 9: ")
        and line.endswith(" in test_allocates_the_result_only")
        for line in doubled.problems
    )
    assert fresh.killed_by


def test_a_slow_reference_is_a_note(check, monkeypatch):
    monkeypatch.setattr("harness.authoring.check.SLOW_S", 0.0)
    report = check()
    assert report.problems == []
    (note,) = report.notes
    assert note.startswith("slow: the reference takes ")


def test_references_are_judged_on_many_draws(mini, tmp_path):
    with (mini / DOUBLED / "test_doubled.py").open("a") as tests:
        tests.write(
            "\n\nfrom pathlib import Path\n\n\n"
            "def test_rarely(kata, seed):\n    assert seed % 8 != 0\n\n\n"
            "def test_draws_nothing(kata):\n"
            "    with Path(__file__).with_name('once').open('a') as told:\n"
            "        told.write('x')\n\n\n"
            "def test_draws_from_a_generator(kata):\n"
            "    with Path(__file__).with_name('drawn').open('a') as told:\n"
            "        print(torch.rand(()).item(), file=told)\n"
        )
    kata = load_curriculum(mini).kata("doubled")
    heard = []
    (report,) = draw_katas([kata], jobs=2, seed=7, draws=60, heard=heard.append)
    assert len(report.problems) == 1, report.problems
    (problem,) = report.problems
    found = re.match(r"solution fails test_rarely on --seed (\d+): ", problem)
    assert found
    assert (mini / DOUBLED / "once").read_text() == "x"
    drawn = (mini / DOUBLED / "drawn").read_text().split()
    assert len(set(drawn)) == len(drawn) == 60
    begun = [event for event in heard if event["event"] == "starting"]
    assert max(event["draws"] for event in begun) == 60
    # that seed alone shows it again
    (report,) = draw_katas([kata], jobs=1, seed=int(found[1]), draws=1)
    assert report.problems == [problem]


def test_draws_of_one_test_leave_the_others_out(mini):
    kata = load_curriculum(mini).kata("doubled")
    (report,) = draw_katas([kata], jobs=1, seed=7, draws=3, tests=["test_integers_are_refused"])
    assert (report.tests, report.problems) == (1, [])
    (report,) = draw_katas([kata], jobs=1, seed=7, draws=3, tests=["test_integers_are_refsed"])
    assert "Did you mean test_integers_are_refused" in report.problems[0]


def test_each_kata_is_told_as_it_ends(mini):
    scaffold(mini, "week02/fresh", "python")
    katas = [load_curriculum(mini).kata(name) for name in ("doubled", "fresh")]
    with (mini / DOUBLED / "test_doubled.py").open("a") as tests:
        tests.write(
            "\n\ndef test_waits_for_the_other(kata):\n"
            "    import time\n    from pathlib import Path\n"
            "    while not Path(__file__).with_name('told').exists():\n"
            "        time.sleep(0.05)\n"
        )
    ended = []
    for report in draw_katas(katas, jobs=2, seed=7, draws=2):
        ended.append(report.kata.name)
        (mini / DOUBLED / "told").touch()
        assert report.problems == []
    assert ended == ["fresh", "doubled"]


def test_a_draw_that_ends_the_session_names_its_seed(mini):
    edit(
        mini / "solutions/week01/doubled.py",
        "    torch.mul",
        "    if x.numel() == 5:\n        import os\n\n        os._exit(9)\n    torch.mul",
    )
    with (mini / DOUBLED / "test_doubled.py").open("a") as tests:
        tests.write(
            "\n\ndef test_rarely(kata, seed):\n    kata.doubled(torch.ones(5 + seed % 4))\n"
        )
    kata = load_curriculum(mini).kata("doubled")
    (report,) = draw_katas([kata], jobs=1, seed=7, draws=60, tests=["test_rarely"])
    found = re.search(r"exit code 9: .* in test_rarely on --seed (\d+)$", report.problems[0])
    assert found
    (report,) = draw_katas([kata], jobs=1, seed=int(found[1]), draws=1, tests=["test_rarely"])
    assert report.problems


def test_a_simulation_is_judged_on_each_profile(mini):
    plain = load_curriculum(mini).kata("doubled")
    with pytest.raises(UsageProblem, match="--profiles: expected a kata that simulates a GPU"):
        profile_katas([plain], ["t4"], jobs=1, seed=7)
    toml = mini / DOUBLED / "kata.toml"
    toml.write_text('profile = "cpu"\n' + toml.read_text())
    with (mini / DOUBLED / "test_doubled.py").open("a") as tests:
        tests.write("\n\ndef test_runs(kata, profile):\n    assert profile.id != 't4'\n")
    kata = load_curriculum(mini).kata("doubled")
    (report,) = profile_katas([kata], ["t4", "h100_sxm"], jobs=2, seed=7)
    (problem,) = report.problems
    assert problem.startswith("solution fails test_runs on t4 on --seed 7: ")


def test_a_failing_reference_is_told(check, mini):
    edit(
        mini / "solutions/week01/doubled.py",
        "y = torch.empty_like(x)",
        "y, x = torch.empty_like(x), 3 * x",
    )
    problems = check().problems
    assert any(line.startswith("solution fails test_matches_reference") for line in problems)


@pytest.mark.parametrize(
    ("file", "before", "after", "expected"),
    [
        (
            f"{DOUBLED}/doubled.py",
            "def doubled(x:",
            "def doubled(y:",
            'doubled.py:8: expected \'def doubled(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:\''
            ", as cut out of the reference, solutions/week01/doubled.py, found 'def doubled(y:",
        ),
        (
            f"{DOUBLED}/doubled.py",
            "lines)\n",
            "lines)\n\n\nLIMIT = 3\n",
            "doubled.py:11: expected the end, as cut out of the reference",
        ),
        (
            f"{DOUBLED}/kata.toml",
            '["doubled"]',
            '["doubled", "tripled"]',
            "functions: expected names that the reference, solutions/week01/doubled.py, defines, "
            "found 'tripled'",
        ),
        (
            f"{DOUBLED}/kata.toml",
            "[[cost]]",
            '[stub]\ngive = ["doubles"]\n\n[[cost]]',
            "expected names that the reference has, found 'doubles'. Did you mean doubled?",
        ),
        (
            f"{DOUBLED}/kata.toml",
            "functions",
            'extra = "plto"\nfunctions',
            "extra: expected one of ",
        ),
        (
            f"{DOUBLED}/kata.toml",
            "[[cost]]",
            '[[speed]]\nkind = "roofline"\nfraction = 0.5\ncase = { n = 9, dtype = "float32" }\n'
            "profiles = { amper = 0.4, hopper = 0.6, sm_80 = 0.3, t4 = 0.2 }\n\n[[cost]]",
            "speed.profiles: expected hardware profiles, architectures or generations, found "
            "'amper'. Did you mean ampere",
        ),
        (
            f"{DOUBLED}/README.md",
            "# Doubled",
            "# TODO(author)",
            f"{DOUBLED}/README.md:1: TODO(author) is left",
        ),
        (
            f"{DOUBLED}/README.md",
            "# Doubled",
            f"# Doubled\n\n| {'wide ' * 40} |\n\n{'long ' * 25}",
            f"{DOUBLED}/README.md:5: expected at most 120 characters, found 125. Wrap the line.",
        ),
        (
            f"{DOUBLED}/README.md",
            "| `doubled(x)` |",
            "| `doubles(x)` |",
            "expected functions, classes and methods of the stub, found 'doubles'",
        ),
        (
            "solutions/week01/doubled.py",
            "\n\ndef doubled",
            '\nONE = """\n__device__ int f() {\n    # one\n    return 1;\n}\n"""\n\n\ndef doubled',
            "doubled.py:9: expected a comment in CUDA C++ to begin with //, found #. Mend it, "
            "then: kata stub doubled --write",
        ),
        (
            "tests/wrong/week01/doubled/edits.toml",
            "y.clone()",
            "y.clone()  # TODO(author)",
            "edits.toml:",
        ),
        ("tests/wrong/week01/doubled/edits.toml", "y.clone()", "y.clone(", "wrong:copies"),
        (
            "tests/wrong/week01/doubled/edits.toml",
            'find    = "if not x.is_floating_point():"',
            'find    = "no such line"',
            "found once in the reference, found 0",
        ),
    ],
)
def test_a_breach_of_the_contract_is_told(mini, tmp_path, file, before, after, expected):
    edit(mini / file, before, after)
    kata = load_kata(mini / DOUBLED)
    problems = contract_problems(kata, tmp_path / "cache")
    assert expected in "\n".join(problems)


def test_every_case_that_may_be_drawn_is_tried(check, mini):
    toml = mini / DOUBLED / "kata.toml"
    sizes = ", ".join(map(str, range(100, 140)))
    toml.write_text(f"{toml.read_text()}\n[vary]\nn = [{sizes}]\n")
    edit(mini / DOUBLED / "oracle.py", "2 * x.double()", "2 * x.double() + (x.numel() == 123)")
    (problem,) = [one for one in check(whole=True).problems if one.startswith("[vary]")]
    assert "found test_matches_reference[123-float32]: " in problem


def test_a_missing_file_is_told(mini, tmp_path):
    (mini / DOUBLED / "README.md").unlink()
    problems = contract_problems(load_kata(mini / DOUBLED), tmp_path)
    assert problems == [
        "katas/week01/doubled/README.md: expected a file with something in it, found none"
    ]


@pytest.mark.parametrize("backend", TEMPLATES)
def test_a_new_kata_lacks_only_what_is_the_authors(check, mini, backend):
    files = scaffold(mini, "week02/fresh", backend)
    if missing := missing_extra(load_kata(mini / "katas/week02/fresh")):
        pytest.skip(missing)
    problems = check("fresh").problems
    assert {line.split(":")[-1] for line in problems} == {" TODO(author) is left"}
    places = {line.split(":")[0] for line in problems}
    assert "katas/week02/fresh/fresh.py" in places
    assert "tests/wrong/week02/fresh/edits.toml" in places
    for path in files:
        path.write_text(path.read_text().replace("TODO(author)", "done"))
    report = check("fresh")
    assert report.problems == []
    assert len(report.killed_by) >= 3


@pytest.mark.parametrize(
    ("slug", "backend", "expected"),
    [
        ("week02/Fresh", "torch", "expected weekNN/snake_case_name, found 'week02/Fresh'"),
        ("week09/fresh", "torch", "expected a week of the curriculum, found week09"),
        ("week02/doubled", "torch", "expected a name that is free"),
        ("week02/import", "torch", "found 'import', a keyword"),
        ("week02/numpy", "torch", "found 'numpy', a module"),
        ("week02/fresh", "metal", "expected one of python, torch, triton, numba, distributed,"),
    ],
)
def test_what_cannot_be_scaffolded_is_told(mini, slug, backend, expected):
    with pytest.raises(UsageProblem, match=expected):
        scaffold(mini, slug, backend)
    assert not list((mini / "katas/week02").glob("*/kata.toml"))


@pytest.mark.parametrize(
    ("way", "said"),
    [
        ("torch.add(x, x, out=y)", []),
        ("torch.add(x, 1, out=y)", ["approach:adds fails "]),
    ],
    ids=["right", "wrong"],
)
def test_an_approach_passes_every_test(check, mini, way, said):
    (mini / "tests/wrong/week01/doubled/approaches.toml").write_text(
        f'[adds]\nwhy = "a sum"\nfind = "torch.mul(x, 2, out=y)"\nreplace = "{way}"\n'
    )
    found = check().problems
    assert bool(found) == bool(said), found
    assert all(any(one in problem for problem in found) for one in said)
