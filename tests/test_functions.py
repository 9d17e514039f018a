"""Functions of a kata after its first one: cases, thresholds and promises of their own."""

from types import SimpleNamespace

import pytest

from harness.base.errors import MetadataError
from harness.content.cases import edge_cases
from harness.content.functions import in_oracle
from harness.content.kata import load_kata

HALVED = '''

def halved(z: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Half of `z`."""
    if not z.is_floating_point():
        raise ValueError(f"z: expected floating point, found {z.dtype}")
    y = torch.empty_like(z)
    torch.mul(z, 0.5, out=y)
    return y


def same(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Twice `x`, as the first function has it."""
    return doubled(x)
'''
ORACLE = """

def make_inputs_halved(*, n, dtype, device, seed):
    return {"z": make_inputs(n=n, dtype=dtype, device=device, seed=seed)["x"]}


def reference_halved(*, z):
    return z.double() / 2


def slow_halved(z):
    return sum((z / 8 for _ in range(4)), start=z * 0)
"""
TOML = """
refuses = [{ function = "halved", with = { z = { dtype = "int64" } } }]
in_place = { "halved.z" = "elements", x = "elements" }
int64_rows = ["halved.z"]

[[cases]]
function = "halved"
n = 5
dtype = "float32"

[[cases]]
function = "same"
n = 6
dtype = "float64"

[[speed]]
function = "halved"
kind = "baseline"
against = "slow_halved"
ratio = 1e-9
on = "any"
case = { n = 1000, dtype = "float32" }
"""
CALLS_THE_ORACLE = """
def halved(z):
    import sys
    (oracle,) = (one for name, one in sys.modules.items() if name.startswith("_kata_oracle"))
    return oracle.reference_halved(z=z).to(z.dtype)
"""


@pytest.fixture
def several(mini):
    """The tiny curriculum, its kata with two functions more."""
    folder = mini / "katas" / "week01" / "doubled"
    toml = folder / "kata.toml"
    text = toml.read_text().replace('["doubled"]', '["doubled", "halved", "same"]')
    head, cases, rest = text.partition("\n[[cases]]")
    promises, thresholds = TOML.split("\n[[cases]]", 1)
    toml.write_text(f"{head}{promises}{cases}{rest}\n[[cases]]{thresholds}")
    for path, more in (
        (mini / "solutions" / "week01" / "doubled.py", HALVED),
        (folder / "oracle.py", ORACLE),
    ):
        path.write_text(path.read_text() + more)
    return mini


def changed(mini, tmp_path, old, new):
    """The reference with one place changed, as a file of its own."""
    text = (mini / "solutions" / "week01" / "doubled.py").read_text()
    assert old in text
    file = tmp_path / "other.py"
    file.write_text(text.replace(old, new))
    return file


def failures(events):
    return {event["name"] for event in events if event["outcome"] == "failed"}


def test_each_function_has_the_shared_checks_of_its_cases(several, judged):
    events = judged("--impl=solution", "-k", "kata.toml")
    assert {event["outcome"] for event in events} == {"passed"}
    names = {event["name"] for event in events}
    for test in ("matches_reference", "leaves_inputs_alone", "writes_every_element"):
        assert {f"test_{test}[halved-5-float32]", f"test_{test}[7-float32]"} <= names
    assert "test_matches_reference[same-6-float64]" in names
    assert {"test_refuses[halved, z: dtype int64]", "test_rows_past_31_bits[halved.z]"} <= names
    assert {"test_reads_in_place[halved.z]", "test_reads_in_place[x]"} <= names
    assert "test_speed[halved: vs slow_halved]" in names


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("torch.mul(z, 0.5, out=y)", "torch.mul(z, 0.49, out=y)", "test_matches_reference"),
        ("torch.mul(z, 0.5, out=y)", "z.mul_(0.5); y.copy_(z)", "test_leaves_inputs_alone"),
        ("y = torch.empty_like(z)", "y = torch.empty_like(z.clone())", "test_reads_in_place"),
        ('f"z: expected floating', 'f"no: expected floating', "test_refuses[halved, "),
    ],
    ids=["wrong", "writes", "copies", "names nothing"],
)
def test_what_is_wrong_in_a_later_function_is_told(several, judged, tmp_path, old, new, told):
    file = changed(several, tmp_path, old, new)
    failed = failures(judged(f"--impl={file}", "-k", "kata.toml"))
    assert any(name.startswith(told) and "halved" in name for name in failed)
    assert not any("7-float32" in name or "same" in name for name in failed)


def test_a_later_functions_answer_is_out_of_reach(several, judged, tmp_path):
    text = (several / "solutions" / "week01" / "doubled.py").read_text()
    file = tmp_path / "other.py"
    file.write_text(text + CALLS_THE_ORACLE)
    events = judged(f"--impl={file}", "-k", "test_matches_reference")
    (event,) = (event for event in events if event["outcome"] == "failed")
    assert event["name"] == "test_matches_reference[halved-5-float32]"
    assert "oracle.reference_halved: the code under test may not call this" in event["message"]


def test_what_an_oracle_lacks_for_a_function_is_the_firsts():
    whole = SimpleNamespace(make_inputs=1, reference=2, same_precision=3, cost=4)
    assert in_oracle(whole, "cost", None) == in_oracle(whole, "cost", "other") == 4
    whole.reference_other = 5
    assert in_oracle(whole, "make_inputs", "other") == 1
    assert in_oracle(whole, "reference", "other") == 5
    assert in_oracle(whole, "same_precision", "other") is None  # it would be of another answer
    assert in_oracle(whole, "cost", "other") is None


def test_edges_are_those_of_a_functions_cases(several):
    folder = several / "katas" / "week01" / "doubled"
    toml = folder / "kata.toml"
    toml.write_text(
        toml.read_text().replace('backend = "torch"', 'backend = "triton"\nedges = ["halved.n"]')
    )
    assert edge_cases(load_kata(folder), "cpu") == {
        "halved-plain": [{"function": "halved", "n": 5, "dtype": "float32"}]
    }


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('function = "same"', 'function = "sam"', "cases.function: expected a function after"),
        ('function = "same"', 'function = "doubled"', "which needs no name, found 'doubled'"),
        ('["halved.z"]', '["halve.z"]', "int64_rows: expected a function after"),
        ('{ "halved.z"', '{ "halve.z"', "Did you mean halved?"),
        ("at_most = 4000", 'at_most = 4000\nfunction = "same"', "cost[0].function: expected a"),
    ],
    ids=["case", "first", "rows", "gaps", "threshold"],
)
def test_a_function_that_there_is_not_is_told(several, old, new, told):
    folder = several / "katas" / "week01" / "doubled"
    toml = folder / "kata.toml"
    text = toml.read_text()
    assert old in text
    toml.write_text(text.replace(old, new))
    with pytest.raises(MetadataError) as caught:
        load_kata(folder)
    assert told in caught.value.message
