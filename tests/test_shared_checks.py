"""Each shared check catches what it is there for, on the tiny kata's wrong solutions."""

from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from harness.content.kata import CostThreshold
from harness.hardware.profiles import find_profile
from harness.judge.shared_checks import test_any_scale_matches as any_scale_matches
from harness.judge.shared_checks import test_matches_reference as matches_reference
from harness.judge.trial import Trial
from harness.meters.compiled import KernelFacts


def test_each_shared_check_kills_its_own_wrong_solution(judged):
    failed = defaultdict(set)
    for event in judged("--impl=wrong", "--impl=solution"):
        if event["outcome"] == "failed":
            failed[event["impl"].removeprefix("wrong:")].add(event["name"].partition("[")[0])
    assert failed.pop("solution", set()) == set()
    assert failed["mutates_input"] == {"test_leaves_inputs_alone"}
    # and wherever the allocator hands out the same storage again
    assert "test_second_call_sees_new_values" in failed["remembers"]
    assert "test_writes_every_element" in failed["writes_past_the_end"]
    assert "test_matches_reference" not in failed["writes_past_the_end"]
    assert "test_writes_every_element" in failed["last_element_unwritten"]
    assert "test_matches_reference" in failed["low_precision"]
    assert "test_matches_reference" in failed["wrong_dtype"]
    assert "test_matches_reference" in failed["calls_what_is_forbidden"]
    assert failed["clamps"] == {"test_any_scale_matches"}
    assert failed["copies"] == {"test_allocates_the_result_only"}
    assert failed["checks_nothing"] == {"test_integers_are_refused"}


def test_a_stub_fails_every_test_with_one_clear_line(judged):
    events = judged()
    assert len(events) == 8
    for event in events:
        assert event["outcome"] == "failed"
        expected = "doubled is still a stub: edit katas/week01/doubled/doubled.py"
        assert event["message"] == expected


def test_of_several_functions_the_one_that_is_not_written_is_named(judged, mini):
    file = mini / "katas" / "week01" / "doubled" / "doubled.py"
    file.write_text(
        "class Helper:\n    def twice(self, x):\n        raise NotImplementedError\n\n\n"
        "def doubled(x):\n    return Helper().twice(x)\n"
    )
    for event in judged():
        assert event["message"].startswith("doubled.Helper.twice is still a stub: edit katas/")


def test_a_syntax_error_says_its_line_once(judged, mini):
    file = mini / "katas" / "week01" / "doubled" / "doubled.py"
    file.write_text("def doubled(x:\n    return x\n")
    words = {event["message"] for event in judged()}
    assert words == {
        "doubled.py does not import: SyntaxError: '(' was never closed (line 1: def doubled(x:)"
    }


def test_an_import_that_fails_shows_the_line(judged, mini):
    file = mini / "katas" / "week01" / "doubled" / "doubled.py"
    file.write_text("import torch\n\nFACTOR = 1 / (2 - 2)  # twice\n")
    words = {event["message"] for event in judged()}
    assert words == {
        "doubled.py does not import: ZeroDivisionError: division by zero "
        "(line 3: FACTOR = 1 / (2 - 2)  # twice)"
    }


def test_the_learners_own_file_is_judged(judged, mini):
    solution = mini / "solutions" / "week01" / "doubled.py"
    (mini / "katas" / "week01" / "doubled" / "doubled.py").write_text(solution.read_text())
    assert {event["outcome"] for event in judged()} == {"passed"}


def test_a_missing_function_is_named_with_the_nearest(judged, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def double(x):\n    return x\n")
    (first, *_) = judged(f"--impl={file}")
    assert "expected a function `doubled`" in first["message"]
    assert "Did you mean double?" in first["message"]


def test_the_same_seed_gives_the_same_inputs(judged, tmp_path):
    file = tmp_path / "shows.py"
    file.write_text(
        "def doubled(x):\n    raise ValueError(f'saw x = {x.tolist()}')\n", encoding="utf-8"
    )
    name = "test_matches_reference[7-float32]"

    def seen(*options):
        events = judged(f"--impl={file}", *options)
        return next(event["message"] for event in events if event["name"] == name)

    assert seen("--seed=1") == seen("--seed=1")
    assert seen("--seed=1") != seen("--seed=2")


def test_what_pytorch_has_not_implemented_is_no_stub(judged, mini):
    stub = mini / "katas" / "week01" / "doubled" / "doubled.py"
    words = "\"geqrf_cpu\" not implemented for 'BFloat16'"
    stub.write_text(
        stub.read_text().replace(
            "raise NotImplementedError ", f"raise NotImplementedError({words!r}) "
        )
    )
    messages = {event["message"] for event in judged()}
    assert not any("still a stub" in message for message in messages)
    assert any(words in message for message in messages)


def test_a_wrong_answer_that_changes_from_run_to_run_is_told_from_one_that_does_not():
    oracle = SimpleNamespace(
        make_inputs=lambda **_: {"x": torch.ones(4)}, reference=lambda x: 2 * x
    )
    other = iter(range(10))

    def racing(x):
        return torch.full((4,), float(next(other)))

    def steady(x):
        return torch.zeros(4)

    for entry, told in ((racing, "4 of 4 values differ between two runs"), (steady, "")):
        with pytest.raises(AssertionError) as caught:
            matches_reference(scaled_trial(oracle, entry), {"dtype": "float32"})
        assert ("between two runs" in str(caught.value)) == bool(told)
        assert told in str(caught.value)


def test_a_kata_that_promises_the_same_bits_is_called_again(judged, mini, tmp_path):
    toml = mini / "katas" / "week01" / "doubled" / "kata.toml"
    toml.write_text(toml.read_text().replace("forbidden =", "repeats = true\nforbidden ="))
    file = tmp_path / "varies.py"
    file.write_text(
        "CALLS = []\n\n\ndef doubled(x):\n    CALLS.append(x)\n"
        "    return x + x if len(CALLS) % 3 else (x + x) * (1 - 2**-23)\n"
    )
    events = {
        event["impl"]: event
        for event in judged(f"--impl={file}", "--impl=solution", "-k", "test_repeats")
    }
    assert events["solution"]["outcome"] == "passed"
    assert "of 4 on the same inputs: " in events[str(file)]["message"]
    assert "by rounding only" in events[str(file)]["message"]


NARROW = """
[[cases]]
n = 5
dtype = "bfloat16"

[[cases]]
n = 5
dtype = "float8_e4m3fn"
"""


def test_a_dtype_that_the_gpu_lacks_is_skipped_and_no_failure(judged, mini, tmp_path, monkeypatch):
    toml = mini / "katas" / "week01" / "doubled" / "kata.toml"
    toml.write_text(toml.read_text().replace("[[cost]]", f"{NARROW}[[cost]]"))
    (tmp_path / "with_a_gpu.py").write_text(
        "import harness.hardware.environment as around\n\naround.DEVICE_NODES = ('/dev/null',)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    options = ("-p", "with_a_gpu", "--device=cuda", "--impl=solution", "-k", "float8 or bfloat16")

    def skipped(profile):
        events = judged(*options, f"--profile={profile}")
        return {e["name"]: e["message"] for e in events if e["outcome"] == "skipped"}

    bfloat16, float8 = (
        f"test_matches_reference[5-{dtype}]" for dtype in ("bfloat16", "float8_e4m3fn")
    )
    assert set(skipped("t4")) == {bfloat16, float8}
    (lacking,) = skipped("a100_sxm_80gb").items()
    assert lacking[0] == float8
    assert "has no float8_e4m3fn" in lacking[1]


def test_a_name_that_contains_an_implementation_is_kept_whole(judged, mini):
    tests = mini / "katas" / "week01" / "doubled" / "test_doubled.py"
    text = "\n\ndef test_resolution_of_3(kata):\n    assert kata.doubled\n"
    tests.write_text(tests.read_text() + text)
    (event,) = judged("--impl=solution", "-k", "resolution")
    assert event["name"] == "test_resolution_of_3"


# ---- scales --------------------------------------------------------------------------------


def scaled_trial(oracle, entry=None, backend="torch"):
    kata = SimpleNamespace(
        name="scaled", backend=backend, forbidden=(), writes=(), oracle="oracle.py", speed=()
    )
    return Trial(
        submission=SimpleNamespace(kata=kata, entry=entry),
        oracle=oracle,
        device="cpu",
        seed=0,
        profile=None,
        record=None,
        compile=None,
    )


def test_floats_are_scaled_where_they_lie_and_nothing_else_is():
    wide = torch.ones(6)
    inputs = {"x": wide[::2], "pair": [np.ones(2, np.float32), torch.arange(2)],
              "weights": torch.ones(2), "scale": 0.5}  # fmt: skip
    oracle = SimpleNamespace(make_inputs=lambda **_: inputs, STRUCTURED=("weights",))
    call = scaled_trial(oracle).prepare({}, seed_offset=0, scale=4.0)
    assert wide.tolist() == [4, 1, 4, 1, 4, 1], "the gaps are no input"
    assert call.original["pair"][0].tolist() == [4, 4]
    assert call.original["pair"][1].tolist() == [0, 1]
    assert call.original["weights"].tolist() == [1, 1]
    assert call.original["scale"] == 0.5


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_scales_keep_products_in_range(dtype):
    """4.5 is as far as a thousand normal values go; 19 of their products in the same direction."""
    scales = scaled_trial(SimpleNamespace()).scales({"dtype": dtype})
    assert 19 * (4.5 * max(scales)) ** 2 < torch.finfo(getattr(torch, dtype)).max
    assert max(scales) >= 8
    assert min(scales) <= 1e-2


def test_an_oracle_chooses_its_scales():
    seen = []

    def make_inputs(**_):
        return {"x": torch.ones(2)}

    def entry(x):
        seen.append(x.tolist())
        return 2 * x

    oracle = SimpleNamespace(make_inputs=make_inputs, reference=lambda x: 2 * x.double())
    oracle.SCALES = (3.0, 0.25)
    any_scale_matches(scaled_trial(oracle, entry), {"dtype": "float32"})
    assert seen == [[3, 3], [0.25, 0.25]]
    with pytest.raises(AssertionError, match=r"^inputs times 3: result: 2 of 2 values off"):
        any_scale_matches(scaled_trial(oracle, lambda x: 2 * x.clamp(-1, 1)), {"dtype": "float32"})
    oracle.SCALES = ()
    any_scale_matches(scaled_trial(oracle, None), {"dtype": "float32"})


@pytest.mark.parametrize("label", ["yours", "wrong:slow", "wrong:naive"])
def test_the_naive_version_is_timed_with_what_is_forbidden(label):
    trial = scaled_trial(SimpleNamespace())
    vars(trial.submission).update(label=label)
    trial.submission.kata.forbidden = ("aten.sin",)
    check = SimpleNamespace(before=lambda **_: None, call=lambda: torch.sin(torch.ones(2)))
    if label == "wrong:naive":
        trial._call_watched(check)
    else:
        with pytest.raises(AssertionError, match=r"aten\.sin was called"):
            trial._call_watched(check)


# ---- what was compiled ---------------------------------------------------------------------


def wave(*, registers, shared_bytes):
    """One wave of 64 lanes, built for gfx942."""
    return KernelFacts(
        name="kernel",
        target="gfx942",
        grid=(1,),
        num_warps=1,
        num_stages=1,
        registers=registers,
        spills=0,
        local_bytes=0,
        shared_bytes=shared_bytes,
        binary=Path("kernel.hsaco"),
    )


@pytest.mark.parametrize(
    ("kernels", "share", "built"),
    [
        # 97 x 64 registers are given in units of 512 as 13 x 512, of 32768 on each of 4 SIMDs
        ([(97, 0)], 4 * 4 / 32, "97 registers a thread, 0 bytes"),
        # 72 x 64 are 9 units exactly, which go 7 times into 64
        ([(72, 0)], 4 * 7 / 32, "72 registers a thread, 0 bytes"),
        # 2049 bytes are given as 5 x 512, 25 times in 64 KiB
        ([(8, 2049)], 25 / 32, "8 registers a thread, 2,049 bytes"),
        # the kernel with the most registers is shown, the one with the lowest share counts
        ([(8, 2049), (72, 0), (96, 0)], 4 * 5 / 32, "96 registers a thread, 0 bytes"),
    ],
)
def test_occupancy_is_that_of_the_kernels_that_are_built(kernels, share, built):
    threshold = CostThreshold(
        name="resident",
        meter="occupancy",
        at_least=share,
        **dict.fromkeys(("bound", "at_most", "exactly")),
        case={"dtype": "float32"},
        target="gfx942",
    )
    facts = tuple(wave(registers=one, shared_bytes=two) for one, two in kernels)
    trial = replace(
        scaled_trial(SimpleNamespace(), backend="triton"),
        profile=find_profile(Path(__file__).parents[1] / "hardware_profiles", "mi300x"),
        compile=lambda target, case: facts,
        record=lambda fields: None,
    )
    verdict = trial.judge_cost(threshold)
    assert (verdict.outcome, verdict.value) == ("passed", share)
    assert verdict.message.endswith(f"; {built} of shared memory")


LOOP = """\
    %0 = scf.for %i = %a to %b step %c {
      %1 = scf.for %j = %a to %b step %c {
        %2 = tt.dot %x, %y, %z
      }
      %3 = tt.dot %x, %y, %z
    }
"""
COPY = """\
    %0 = scf.for %i = %a to %b step %c {
      %1 = tt.load %p
    }
"""


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (COPY + LOOP, "A smaller tile or more warps need fewer registers"),
        (LOOP + COPY + LOOP, "It has 2 loops with products, each with a body of its own"),
    ],
)
def test_spills_name_case_tile_and_what_to_look_at(tmp_path, code, advice):
    (tmp_path / "kernel.ttgir").write_text(code)
    built = wave(registers=255, shared_bytes=0)
    facts = replace(
        built, spills=120, tile={"BLOCK_M": 128}, num_warps=4, binary=tmp_path / "kernel.hsaco"
    )
    threshold = CostThreshold(
        name="spills",
        meter="spills",
        at_most=0,
        **dict.fromkeys(("bound", "at_least", "exactly")),
        case={"n": 4096, "dtype": "float16"},
        target="gfx942",
    )
    trial = replace(
        scaled_trial(SimpleNamespace(), backend="triton"),
        compile=lambda target, case: (built, facts),
        record=lambda fields: None,
    )
    message = trial.judge_cost(threshold).message
    assert "kernel spills on n = 4096, dtype = float16 with 4 warps, BLOCK_M = 128. " in message
    assert advice in message
    assert ": kata inspect " in message
    assert message.endswith(" --target gfx942")
