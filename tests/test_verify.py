"""A scorecard held to its word."""

import json
import re
from types import SimpleNamespace

import pytest

from harness.base.errors import UsageProblem
from harness.content.catalog import load_curriculum
from harness.learner.workspace import Workspace
from harness.reports.verify import Claim, claims_of, verify


@pytest.fixture
def curriculum(mini):
    return load_curriculum(mini)


class Bench:
    """A kept file, and a judge that passes what holds the word "right"."""

    def __init__(self, curriculum, home):
        self.curriculum, self.workspace = curriculum, Workspace(home)
        self.kata = curriculum.kata("doubled")
        self.asked = []

    def keep(self, source):
        self.kata.file.write_text(source)
        return self.workspace.keep("doubled", self.kata.file, "passed")

    def judge(self, submission, *, device, seed, extra):
        self.asked.append((submission.kata.name, device, seed, *extra))
        status = "passed" if "right" in submission.path.read_text() else "failed"
        return SimpleNamespace(status=status, reason="4 of 7 failed")

    def verify(self, *claims, sample=5, seed=0, devices=("cpu",)):
        return verify(
            claims, self.curriculum, self.workspace, devices=devices, sample=sample, seed=seed,
            judge=self.judge,
        )  # fmt: skip

    def verdict(self, **changes):
        (found,) = self.verify(claim(**changes))
        return found.verdict, found.why


def claim(code_hash="ab" * 32, kata="doubled", device="cpu", seed=7, drawn=0):
    return Claim(kata=kata, code_hash=code_hash, device=device, seed=seed, drawn=drawn)


@pytest.fixture
def bench(curriculum, tmp_path):
    return Bench(curriculum, tmp_path / "home")


def test_the_same_code_is_judged_on_the_same_inputs(bench):
    key = bench.keep("# right")
    bench.keep("# something newer")
    assert bench.verdict(code_hash=key, seed=41, drawn=3)[0] == "held"
    assert bench.asked == [("doubled", "cpu", 41, "--vary=3")]


def test_code_that_does_not_pass_breaks_its_claim(bench):
    assert bench.verdict(code_hash=bench.keep("# wrong")) == ("broken", "4 of 7 failed")


def test_the_reference_is_nobodys_solution(bench):
    bench.kata.solution.write_text("# right")
    key = bench.keep("# right")
    assert bench.verdict(code_hash=key) == ("broken", "the code is the reference")


@pytest.mark.parametrize("forged", ["ab" * 32, "", "{start}"])
def test_a_forged_hash_finds_nothing(bench, forged):
    """Not even the start of one that is kept."""
    key = bench.keep("# right")
    verdict, why = bench.verdict(code_hash=forged.format(start=key[:20]))
    assert verdict == "unknown"
    assert "is not kept here" in why
    assert bench.asked == []


def test_a_damaged_copy_is_named(bench):
    key = bench.keep("# right")
    (copy,) = bench.workspace.stash.rglob(key)
    copy.chmod(0o644)
    copy.write_text("# right, and changed since")
    verdict, why = bench.verdict(code_hash=key)
    assert verdict == "unknown"
    assert "found a damaged one" in why


def test_what_this_machine_cannot_judge_is_unknown(bench):
    key = bench.keep("# right")
    assert bench.verdict(code_hash=key, device="cuda") == ("unknown", "no cuda device here")
    assert bench.verdict(code_hash=key, kata="gone") == ("unknown", "there is no such kata here")


def test_a_sample_is_a_sample_and_the_seed_chooses_it(bench):
    claims = [claim(kata=f"gone_{at}") for at in range(20)]
    one, same, other = (
        [found.kata for found in bench.verify(*claims, sample=3, seed=seed)] for seed in (1, 1, 2)
    )
    assert one == same != other
    assert len(set(one)) == 3
    assert len(bench.verify(*claims, sample=50)) == 20


def written(path, card):
    path.write_text(card if isinstance(card, str) else json.dumps(card))
    return path


EVIDENCE = {"code_hash": "cd" * 32, "device": "cpu", "seed": 3, "drawn": 2, "attempt": "x"}


def test_claims_are_what_has_evidence(tmp_path):
    katas = [{"name": "a", "evidence": EVIDENCE}, {"name": "b", "evidence": None}]
    path = written(tmp_path / "card.json", {"schema": 1, "katas": katas})
    assert claims_of(path) == [claim(kata="a", code_hash="cd" * 32, seed=3, drawn=2)]


@pytest.mark.parametrize(
    "card",
    ["", "[]", {"schema": 1}, {"schema": 1, "katas": [{"name": "a", "evidence": {"seed": 3}}]}],
)
def test_what_is_no_scorecard_is_refused_with_the_way_out(tmp_path, card):
    with pytest.raises(UsageProblem, match=r"(?s)card\.json: expected a scorecard.*--format json"):
        claims_of(written(tmp_path / "card.json", card))


def test_another_schema_is_refused(tmp_path):
    with pytest.raises(UsageProblem, match="expected schema 1, found 2"):
        claims_of(written(tmp_path / "card.json", {"schema": 2, "katas": []}))


@pytest.mark.parametrize("sample", ["-1", "0"])
def test_a_sample_of_nothing_is_refused(kata_command, tmp_path, sample):
    card = written(tmp_path / "card.json", {"schema": 1, "katas": []})
    done = kata_command("verify", str(card), "--sample", sample)
    assert done.returncode == 2
    assert "Invalid value for '--sample'" in done.stderr


def test_what_was_solved_again_is_judged_on_its_drawn_cases_too(kata_command, mini, tmp_path):
    folder = mini / "katas/week01/doubled"
    with (folder / "kata.toml").open("a") as stream:
        stream.write("\n[vary]\nn = [1, 5, 9, 1000]\n")
    reference = mini / "solutions/week01/doubled.py"
    (folder / "doubled.py").write_text("# mine\n" + reference.read_text())
    first, again = (_passed(kata_command("run", "doubled").stdout) for _ in range(2))
    assert again == first + 3
    card = tmp_path / "card.json"
    kata_command("scorecard", "--format", "json", "-o", str(card))
    verified = kata_command("verify", str(card)).stdout
    assert verified.startswith("✓ doubled: held: ")
    assert _passed(verified) == again


def _passed(shown):
    """How many checks a run says that it passed."""
    return int(re.search(r"(\d+) checks passed", shown)[1])
