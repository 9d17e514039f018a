"""`kata mutate` changes what the learner writes, and tells which changes no test notices."""

import tomllib
import warnings

import pytest

from harness.authoring import mutate as mutation
from harness.authoring.contract import contract_problems
from harness.authoring.mutants import mutants_of
from harness.base.errors import HarnessError, MetadataError
from harness.content.kata import load_kata

REFERENCE = "solutions/week01/doubled.py"


@pytest.fixture
def kata(mini, tmp_path, monkeypatch):
    monkeypatch.setenv("KATA_HOME", str(tmp_path / "home"))
    return load_kata(mini / "katas/week01/doubled")


def changed(body, stub="    raise NotImplementedError\n"):
    """What the lines of a function are changed to."""
    head = "def f(x, n=4):\n"
    return {(one.before, one.after) for one in mutants_of(head + body, head + stub)}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("return x < n", {"return (x <= n)", "return (x >= n)"}),
        ("return x - n", {"return (x + n)"}),
        ("return x & n", {"return (x | n)", "return x", "return n"}),
        ("return x and n", {"return (x or n)", "return x", "return n"}),
        ("return x[2]", {"return x[3]", "return x[1]"}),
        ("return x[n:]", {"return x[(n + 1):]", "return x[(n - 1):]"}),
        ("return not x", {"return x"}),
        ("return min(x, n)", {"return max(x, n)"}),
        ("return pow(x, n)", {"return pow(n, x)"}),
        ("return gcd(x, n)", set()),
        ("return np.float32(0)", {"return 0", "return np.float32(1)", "return np.float32((-1))"}),
        ("return load(x, mask=n)", {"return load(x)"}),
        ("return load(x, other=0.0)", {"return load(x, other=1.0)",
                                       "return load(x, other=(-1.0))"}),
        ("return load(x, other=y)", {"return load(x)"}),
        ("return empty(n, dtype=torch.float32)", set()),
        ("return empty(n, dtype=x.dtype)", {"return empty(n)"}),
        ("return x.transpose(n, x)", set()),
        ("return launch(x, n, num_warps=4)", {"return launch(n, x, num_warps=4)"}),
        ("return x.contiguous()", {"return x"}),
        ("return x if n else 0.5", {"return x", "return 0.5", "return x if n else 1.5",
                                    "return x if n else (-0.5)"}),
        ("return True", {"return False"}),
        ("x.wait()", {"pass"}),
        ("x[n] = n", {"pass"}),
        ("x += n", {"pass", "x -= n"}),
        ("if x: n = x", {"if (False): n = x", "if (True): n = x"}),
        ("if x: raise ValueError(f'{n + 1}')", {"if (False): raise ValueError(f'{n + 1}')"}),
        ("raise ValueError('n' * 3)", set()),
        ("y: Array[2] = x", set()),
        ("return lambda y=1: x", set()),
    ],
)  # fmt: skip
def test_a_line_has_the_mutants_that_it_should(line, expected):
    line = line.replace("(False)", "False").replace("(True)", "True")
    wanted = {one.replace("(False)", "False").replace("(True)", "True") for one in expected}
    assert changed(f"    {line}\n") == {(line, one) for one in wanted}


COMPILED = """
@cuda.jit
def kernel(x):
    x[0] = np.float32(0)
"""


def test_a_number_without_its_type_is_no_mutant_of_a_kernel():
    stub = COMPILED.replace("x[0] = np.float32(0)", "# TODO(kata)\n    pass")
    found = {one.after for one in mutants_of(COMPILED, stub)}
    assert {"x[0] = np.float32(1)", "x[1] = np.float32(0)", "pass"} <= found
    assert "x[0] = 0" not in found


KERNELS = """
SOURCE = r\'\'\'
__device__ int given(int a) { return a + 1; }
extern "C" __global__ void f(const float* x, float* y, int n) {
%s
}
\'\'\'
"""


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("int at = b * 4;  // 5 < 6", {"int at = b + 4;  // 5 < 6", "int at = b * 5;  // 5 < 6"}),
        ("__syncthreads();", {";"}),
        ("cp_wait<1>();", {";", "cp_wait<2>();"}),
        ('asm volatile("wait %0, 3;" :: "n"(k) : "memory");', {";"}),
        ("y[at] += min(x[at], z);", {"y[at] -= min(x[at], z);", "y[at] += max(x[at], z);"}),
        (
            "if (f(at) < n) return;",
            {
                "if (f(at) <= n) return;",
                "if (f(at) >= n) return;",
                "if (true) return;",
                "if (false) return;",
            },
        ),
        ("#pragma unroll 4", set()),
    ],
)
def test_lines_of_a_kernel_have_mutants_too(line, expected):
    stub = KERNELS % "    // TODO(kata)"
    found = mutants_of(KERNELS % f"    {line}", stub)
    assert {one.after for one in found} == expected
    assert {(one.function, one.before, one.number) for one in found} <= {("f", line, 5)}


def test_a_kernel_that_is_given_has_no_mutants():
    text = KERNELS % "    y[0] = x[0] + 1;"
    assert mutants_of(text, text) == []


def test_a_range_ends_early_and_late():
    after = {after for _, after in changed("    return range(x, n)\n")}
    assert after == {
        "return range((x + 1), n)",
        "return range((x - 1), n)",
        "return range(x, (n + 1))",
        "return range(x, (n - 1))",
        "return range(n, x)",
    }


def test_mutants_that_cannot_be_right_are_not_warned_of():
    with warnings.catch_warnings(record=True, action="always") as warned:
        assert changed("    return (x or 3)[n]\n")
    assert warned == []


def test_what_the_stub_gives_away_is_left_alone():
    reference = (
        "N = 2\nM = 3\n\n\ndef helper(x):\n    return x + 1\n\n\n"
        "class Box:\n    size = 5\n\n    def half(self):\n        return self.size // 2\n\n\n"
        "def f(x):\n    y = x[0]\n    return y - 1\n"
    )
    stub = (
        "N = 2\n\n\ndef helper(x):\n    return x + 1\n\n\n"
        "class Box:\n    size = 5\n\n    def half(self):\n        raise NotImplementedError\n\n\n"
        "def f(x):\n    y = x[0]\n    raise NotImplementedError  # TODO(kata): subtract\n"
    )
    found = {(one.function, one.before) for one in mutants_of(reference, stub)}
    assert found == {
        ("M", "M = 3"),
        ("Box.half", "return self.size // 2"),
        ("f", "return y - 1"),
    }


def test_a_key_outlives_lines_that_move_and_tells_twins_apart():
    body = "def f(x):\n    x += 1\n    x += 1\n"
    keys = [one.key for one in mutants_of(body, "")]
    assert len(set(keys)) == len(keys) == 8
    moved = mutants_of(f'"""Moved."""\n\nimport torch\n\n\n{body}', "")
    assert [one.key for one in moved] == keys
    assert moved[0].number == 7


def test_survivors_are_told_and_marked_and_marks_are_held_to(kata, mini):
    reference = mini / REFERENCE
    reference.write_text(
        reference.read_text().replace("    return y\n", "    unused = 7\n    return y\n")
    )
    survey = mutation.mutate(kata, jobs=2, seed=7)
    after = {one.after for one in survey.survivors}
    assert survey.problems == []
    assert {"unused = 8", "unused = 6"} <= after
    killed = {one.after for one, _ in survey.killed}
    assert {"if False:", "if x.is_floating_point():", "torch.mul(x, 3, out=y)", "pass"} <= killed

    path = mutation.mark(kata, survey.survivors)
    assert all(
        row["why"].startswith("TODO(author)")
        for row in tomllib.loads(path.read_text())["equivalent"]
    )
    told = contract_problems(kata, mini / "cache")
    assert any("equivalent.toml" in line and "TODO(author) is left" in line for line in told)
    again = mutation.mutate(kata, jobs=2, seed=7)
    assert again.survivors == []
    assert {one.after for one, _ in again.equivalent} == after

    # one mark is of a line that is gone, another of a mutant that dies
    path.write_text(
        path.read_text().replace("unused = 8", "unused = 9")
        + "\n[[equivalent]]\nfunction = 'doubled'\nbefore = 'torch.mul(x, 2, out=y)'\n"
        + "after = 'torch.mul(x, 3, out=y)'\nwhy = 'not at all'\n"
    )
    stale, dies = mutation.mutate(kata, jobs=2, seed=7).problems
    assert "(changed to 'unused = 9'). Take the mark away" in stale
    assert "'torch.mul(x, 3, out=y)' in doubled, killed by test_" in dies
    (stale_too,) = mutation.mark_problems(kata)
    assert stale_too == stale


def test_a_mark_without_a_reason_is_refused(kata):
    (kata.wrong / "equivalent.toml").write_text("[[equivalent]]\nfunction = 'doubled'\nwy = 'x'\n")
    with pytest.raises(MetadataError, match=r"equivalent\[0\]\.why: expected text, found nothing"):
        mutation.equivalents(kata)


def test_a_mutant_that_never_ends_or_ends_the_process_is_dead(kata, mini, monkeypatch):
    monkeypatch.setattr(mutation, "LEAST_LIMIT_S", 1.0)
    reference = mini / REFERENCE
    reference.write_text(
        reference.read_text().replace(
            "    return y\n",
            "    left = 3\n    while left > 0:\n        left -= 1\n"
            "    if left:\n        import os\n\n        os._exit(7)\n    return y\n",
        )
    )
    deaths = {one.after: cause for one, cause in mutation.mutate(kata, jobs=1, seed=7).killed}
    assert "of CPU time in test_" in deaths["left += 1"]
    assert "exit code 7" in deaths["if True:"]
    assert "torch.mul(x, 3, out=y)" in deaths


def test_a_mutant_that_breaks_the_process_for_others_kills_none_of_them(kata, mini, monkeypatch):
    reference = mini / REFERENCE
    reference.write_text(
        reference.read_text().replace(
            "    return y\n", "    if y.ndim > 9:\n        torch.mul = None\n    return y\n"
        )
    )
    # one process for all of them
    monkeypatch.setattr(mutation, "BATCH", 1000)
    survey = mutation.mutate(kata, jobs=1, seed=7)
    assert "if y.ndim > 10:" in {one.after for one in survey.survivors}


def test_a_reference_that_fails_is_mended_first(kata, mini):
    reference = mini / REFERENCE
    reference.write_text(reference.read_text().replace("(x, 2,", "(x, 3,"))
    with pytest.raises(
        HarnessError, match=r"mutate: expected a reference that passes, found test_"
    ):
        mutation.mutate(kata, jobs=1, seed=7)


def test_the_command_lists_survivors_as_differences(kata_command, mini):
    reference = mini / REFERENCE
    reference.write_text(
        reference.read_text().replace("    return y\n", "    unused = 7\n    return y\n")
    )
    done = kata_command("mutate", "doubled", "--mark", "--seed", "7")
    assert done.returncode == 1
    assert "solutions/week01/doubled.py:17, in doubled: alive" in done.stdout
    assert "    - unused = 7\n    + unused = 8\n" in done.stdout
    assert "marked: tests/wrong/week01/doubled/equivalent.toml" in done.stdout
    done = kata_command("mutate", "doubled", "--seed", "7", "--verbose")
    assert done.returncode == 0
    assert " 0 alive  --seed 7" in done.stdout
    assert "equivalent: TODO(author)" in done.stdout


def test_only_the_lines_asked_for_are_changed(kata, mini):
    line = 1 + next(
        number
        for number, text in enumerate((mini / REFERENCE).read_text().splitlines())
        if "return y" in text or "(x, 2," in text
    )
    survey = mutation.mutate(kata, jobs=1, seed=7, lines=[line])
    found = [*(one for one, _ in survey.killed), *survey.survivors]
    assert found
    assert {one.number for one in found} == {line}
    with pytest.raises(HarnessError, match=r"expected lines of .* found \[9999\]"):
        mutation.mutate(kata, jobs=1, seed=7, lines=[9999])
