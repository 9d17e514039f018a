"""
Every way past the judge that is known is tried, and refused with a sentence that names it.

Each file beside this one is a cheat that answers right as far as it is looked at carelessly.
"""

from pathlib import Path

import pytest

HERE = Path(__file__).parent

# cheat: words of the refusal, by MATCHES where no other check is named
MATCHES, ALONE = "test_matches_reference[7-float32]", "test_leaves_inputs_alone[7-float32]"
SECOND = "test_second_call_sees_new_values[7-float32]"
UNTIMED = {
    # first, while no right answer of another lies in this process's memory
    "found_memory": "all zeros",
    "lazy_subclass": "result: expected a plain torch.Tensor, found its subclass",
    "promise": "result: expected a finished tensor",
    "cached_by_pointer": (SECOND, "values off"),
    "cached_by_shape": (SECOND, "values off"),
    "reuses_its_buffer": (SECOND, "an earlier call was written to by a later one"),
    "zeroes_its_input": (ALONE, "input x was written to"),
    "returns_its_input": "result shares memory with the input x",
    "returns_a_view": "result shares memory with the input x",
    "shares_one_element": "one shared along axis 0",
    "stale_memory": "never written",
    "patched_clock": "found replaced: time.perf_counter",
    "patched_clock_module": "found replaced: harness.judge.timing.measure.perf_counter",
    "patched_event": "found replaced: torch.cuda.Event",
    "patched_allclose": "found replaced: torch.allclose, torch.equal",
    "patched_method": "found replaced: torch.Tensor.norm",
    "patched_harness": "found replaced: harness.judge.setting.assert_matches",
    "patched_bool": "found replaced: torch.Tensor.__bool__",
    "patched_hypothesis": "found replaced: hypothesis.core.StateForActualGivenExecution.run_engine",
    "patched_json": "found replaced: json.dumps",
    "patched_limits": "found replaced: harness.judge.correctness.matching.NORM_LIMITS",
    "patched_numpy_testing": "found replaced: numpy.testing._private.utils.assert_array_compare",
    "patched_pytest": "found replaced: _pytest.python.pytest_pyfunc_call",
    # by the name of any of the modules that have it
    "patched_code": ".assert_matches",
    "patched_oracle": "values off",
    "patched_watch": "found replaced: the judge's watch",
    "asks_the_oracle": "oracle.reference: the code under test may not call this",
    "imports_the_solution": "it opened SOLUTIONS",
    "reads_the_solution_quietly": "it opened SOLUTIONS",
    "reads_through_exec": "it opened SOLUTIONS",
    "reads_in_another_process": "it opened SOLUTIONS",
    "reads_on_a_thread": "it opened SOLUTIONS",
    "reads_past_realpath": "it opened SOLUTIONS",
    "reads_from_the_history": "it opened SOLUTIONS",
    "reads_from_a_string": "it opened SOLUTIONS",
    "edits_its_threshold": "it changed ",
    "edits_by_a_program": "it changed ",
    "empties_the_tests": "found replaced: ",
    "poisons_the_bytecode": "it changed ",
    "opens_the_progress": "it opened the database :memory:",
    "moves_the_progress": "it moved ",
    "reads_a_wrong_solution": "doubled/edits.toml",
    "forges_the_record": "record.jsonl",
    "replaces_the_record": "record.jsonl",
    "skips_the_test": "it ended the test (Skipped: not today)",
    "skips_at_import": "it ended the test (Skipped: could not import",
    "expects_to_fail": "it ended the test (XFailed: known)",
    "exits_in_a_call": "it ended the test (SystemExit: 0)",
    "ends_the_session": "it ended the test (Exit: all done)",
    "library_op": "aten.cat was called",
    "lower_precision": "values off",
    "sampled_work": "only the last 3 of 7 along axis 0 are wrong",
    "leaves_a_thread": "found the thread 'Thread-",
    "leaves_a_pool": "found the thread 'ThreadPoolExecutor-",
    "leaves_a_child": "found the child process",
    "works_in_a_profile_hook": "the result changed after the call had returned",
}
WRITES = "test_writes_every_element[100-float32]"
KERNELS = {
    "no_kernel": (WRITES, "no kernel was launched"),
    "decoy_kernel": (WRITES, "comes out right when no kernel does anything"),
    "detects_the_poison": (WRITES, "never written"),
    "library_op": (WRITES, "aten.mul was called"),
    "library_op_without_modes": (WRITES, "aten.mul was called"),
    "library_op_on_a_thread": (WRITES, "aten.mul was called"),
    "library_op_of_numpy": (WRITES, "Tensor.numpy was called"),
    # 400 bytes in and out by the kernel, 800 in and 400 out by the addition
    "half_by_the_library": ("test_cost[bytes_moved]", "2,000 (2.5 x the least possible)"),
    "silent_fallback": (
        WRITES,
        "a kernel failed and the failure was hidden: OutOfBounds: _scaled_kernel: reads",
    ),
}
SPEED = "test_speed[vs slow]"
TIMED = {
    "skips_when_timed": "timed result: ",
    "stale_when_timed": "timed result: ",
    "in_place_when_timed": "result shares memory with the input x",
    "writes_input_when_timed": "input x was written to while timed",
    "cached_by_value": "times as fast",
    "library_op_when_timed": "aten.cat was called: this kata is about writing it yourself",
    "stops_the_clock": "found replaced: time.perf_counter",
    "works_in_a_hook_when_timed": "a hook of the interpreter was left behind",
    "leaves_a_thread_when_timed": "found the thread 'Thread-",
    "patched_baseline": "found replaced: torch.cat",
    "cached_by_sample": "timed result: ",
    "cached_by_call_count": "timed result: ",
}


def files(folder, names):
    return [str(HERE / folder / f"{name}.py") for name in names]


@pytest.fixture(scope="session")
def untimed(judge):
    return judge("doubled", files("doubled", UNTIMED), "-k", "not test_speed")


@pytest.fixture(scope="session")
def kernels(judge):
    return judge("scaled", files("scaled", KERNELS))


@pytest.fixture(scope="session")
def timed(judge):
    return judge("doubled", files("timed", TIMED), "-k", "test_speed")


@pytest.mark.parametrize("name", UNTIMED)
def test_a_cheat_is_refused_by_name(untimed, curriculum, name):
    told = UNTIMED[name]
    check, words = told if isinstance(told, tuple) else (MATCHES, told)
    words = words.replace("SOLUTIONS", str(curriculum / "solutions" / "week01"))
    assert words in untimed.failed[name][check]


@pytest.mark.parametrize("name", KERNELS)
def test_an_answer_without_a_kernel_is_refused(kernels, name):
    check, words = KERNELS[name]
    assert words in kernels.failed[name][check]


@pytest.mark.parametrize("name", TIMED)
def test_the_timed_calls_are_the_checked_ones(timed, name):
    assert TIMED[name] in timed.failed[name][SPEED]


def test_the_honest_solution_passes_beside_them(untimed, kernels, timed):
    for verdicts in (untimed, kernels, timed):
        assert verdicts.outcomes["solution"] == {"passed"}, verdicts.words("solution")


def test_every_cheat_is_tried():
    # those that test_device.py tries
    device = {"on_another_stream", "answers_on_the_host", "joins_its_stream", "sets_cache_aside"}
    folders = {"doubled": UNTIMED, "scaled": KERNELS, "timed": TIMED, "device": device}
    for folder, tried in folders.items():
        assert {path.stem for path in (HERE / folder).glob("*.py")} == set(tried)
