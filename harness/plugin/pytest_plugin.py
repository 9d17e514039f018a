"""
Pytest, taught about katas: whose code is judged, on what, and what the shared checks are.

One session is on one device. On the CPU kernels run in Triton's interpreter or on the SIMT
simulator and their work is counted; on a GPU they run for real and are timed.
"""

import gc
import json
import os
import random
import re
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from harness.authoring.draws import Draws
from harness.authoring.matrix import FailFast, MatrixState, function_name
from harness.base.errors import HarnessError, nearest
from harness.base.processes import cpu_s
from harness.content.cases import edge_cases, varied_cases
from harness.content.catalog import find_root
from harness.content.functions import by_function, function_of, in_oracle
from harness.content.kata import (
    SCHEDULED,
    Case,
    Kata,
    kata_of,
)
from harness.content.submission import resolve_all
from harness.hardware.environment import (
    SEEDS,
    cache_folder,
    device_present,
    session_profile,
)
from harness.hardware.packages import missing_for
from harness.judge.honesty.watch import protect, watched
from harness.judge.loading import Loadable
from harness.plugin.cpu_limit import CpuLimit
from harness.plugin.failures import JUDGING, tell
from harness.plugin.failures import pytest_assertrepr_compare as pytest_assertrepr_compare
from harness.plugin.run_limit import RunLimit
from harness.plugin.seeding import forget_local_constants, seed_generators
from harness.running.record import SEED, on_a_line, recorder_for
from harness.running.stages import ORDER, stage_of
from harness.running.verdict import waiting

# what the harness hands to its own checks, and names them for
HARNESS_PARAMETERS = ("submission", "case", "first_case", "float_case", "repeated_case",
                      "scheduled_case", "stateless_case",
                      "cost_threshold", "speed_threshold")  # fmt: skip
JAX_DEVICES = 8  # of the host, for katas about sharding
FLOATS = ("float16", "bfloat16", "float32", "float64")
THREAD = re.compile(r"tid=\[[\d, ]+\] ctaid=\[[\d, ]+\]")
pytest_plugins = ["harness.plugin.fixtures", "harness.plugin.benchmarks"]
pytest.register_assert_rewrite("harness.judge.shared_checks")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register the options of a judging session."""
    group = parser.getgroup("katas")
    group.addoption(
        "--impl",
        action="append",
        default=[],
        metavar="yours|solution|wrong|PATH",
        help="Whose code to judge; repeat to judge several. Default: yours.",
    )
    group.addoption("--device", choices=("auto", "cpu", "cuda"), default="auto")
    group.addoption("--seed", type=int, default=None, help="Replay the inputs of an earlier run.")
    group.addoption("--profile", default=None, help="Hardware profile to judge against.")
    group.addoption("--vary", type=int, default=0, metavar="N", help="N cases more than listed.")
    group.addoption("--case", metavar="JSON", help="This case in place of those of kata.toml.")
    group.addoption(
        "--staged", action="store_true", help="Cases, edges, memory and thresholds, in this order."
    )
    group.addoption("--record", default=None, help="Write what was judged to this file.")
    group.addoption(
        "--matrix",
        choices=("lean", "whole", "remembered"),
        help="Judge wrong solutions as far as a kill matrix needs it, with every test, or with "
        "those that kills.toml names for them.",
    )
    group.addoption(
        "--only",
        action="append",
        default=[],
        metavar="TEST",
        help="A test of this name, with or without its parameters; repeat for several.",
    )
    group.addoption(
        "--draws", type=int, metavar="N", help="Run each test on N seeds, until one fails."
    )
    group.addoption(
        "--fail-fast",
        metavar="FILE",
        help="Run the tests in this file's order; each solution stops at its first failure.",
    )
    group.addoption(
        "--cpu-limit", type=float, metavar="S", help="CPU seconds that one test may take."
    )
    group.addoption(
        "--test-limit", type=float, metavar="S", help="Stop a test of a learner's that hangs."
    )
    group.addoption(
        "--wrong-limit",
        type=float,
        default=0.0,
        metavar="S",
        help="CPU seconds that a wrong solution's test may take on top of the reference's.",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Choose the device before anything imports triton or numba; workers inherit it."""
    # a sixth of the time that importing torch takes goes into looking for garbage
    gc.disable()
    options = early_config.known_args_namespace
    worker = "PYTEST_XDIST_WORKER" in os.environ
    if not worker:
        device = options.device
        if device == "auto":
            device = "cuda" if device_present() else "cpu"
        os.environ["KATA_DEVICE"] = device
        if device == "cuda" and not device_present():
            raise pytest.UsageError("--device cuda: expected a GPU, found none. Use --device cpu.")
    if os.environ["KATA_DEVICE"] == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"
        os.environ["NUMBA_ENABLE_CUDASIM"] = "1"
        # on small tensors a second OpenMP thread only spins
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    # JAX: no GPU's memory is taken, and a program can be divided among devices
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("XLA_FLAGS", f"--xla_force_host_platform_device_count={JAX_DEVICES}")
    os.environ["KINETO_LOG_LEVEL"] = "99"  # the profiler would tell of each start and stop
    os.environ["NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS"] = "0"  # small cases are meant to be small


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Draw the seed, start the record, and hypothesis' profile for katas."""
    config.stash[SEED] = _session_seed(config)
    config.addinivalue_line("markers", "within_s(seconds): less CPU time than a test has as a rule")
    path = config.getoption("--record")
    if path and not on_a_line(path):
        protect(Path(path))
    device, asked = os.environ["KATA_DEVICE"], config.getoption("--profile")
    if (path or asked) and "PYTEST_XDIST_WORKER" not in os.environ:
        try:
            profile = session_profile(find_root(config.rootpath), asked, device, None)
        except HarnessError as error:
            raise pytest.UsageError(error.message) from None
        if path:
            config.pluginmanager.register(recorder_for(path, device, profile.id))
    matrix = config.getoption("--matrix")
    if matrix:
        state = MatrixState(whole=matrix == "whole", remembered=matrix == "remembered")
        config.pluginmanager.register(state, "kata-matrix")
    order = config.getoption("--fail-fast")
    if order:
        names = Path(order).read_text(encoding="utf-8").splitlines()
        config.pluginmanager.register(FailFast(names), "kata-fail-fast")
    if config.getoption("--draws"):
        draws = Draws(config.getoption("--draws"), seed_generators)
        config.pluginmanager.register(draws, "kata-draws")
    if config.getoption("--cpu-limit"):
        limits = (config.getoption(f"--{name}") for name in ("cpu-limit", "timeout", "wrong-limit"))
        limit = CpuLimit(*(one or 0.0 for one in limits))
        config.pluginmanager.register(limit, "kata-cpu-limit")
    if test_limit := config.getoption("--test-limit"):
        config.pluginmanager.register(RunLimit(test_limit, waits=device == "cpu"))
    _settle_hypothesis(shrink=not (matrix or order))


def _session_seed(config: pytest.Config) -> int:
    """
    What all random numbers start from; a worker is told by its controller.

    It stands in no environment and in no module: who knows it before the inputs are made, knows
    the answers.
    """
    if hasattr(config, "workerinput"):
        return int(config.workerinput["kata_seed"])
    asked: int | None = config.getoption("--seed")
    seed = random.SystemRandom().randrange(SEEDS) if asked is None else asked
    if not 0 <= seed < SEEDS:
        raise pytest.UsageError(f"--seed: expected 0 to {SEEDS - 1}, found {seed}.")
    return seed


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:  # noqa: ANN401 -- pytest-xdist's own
    """Tell a worker of pytest-xdist the seed."""
    node.workerinput["kata_seed"] = node.config.stash[SEED]


def _settle_hypothesis(*, shrink: bool) -> None:
    """Few examples, no deadline, nothing written; a kill matrix needs no smallest example."""
    from hypothesis import HealthCheck, Phase, settings

    phases = [Phase.explicit, Phase.generate, *([Phase.shrink] if shrink else [])]
    settings.register_profile(
        "katas",
        max_examples=25,
        deadline=None,
        database=None,
        phases=phases,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.differing_executors],
    )
    settings.load_profile("katas")
    forget_local_constants()


def pytest_report_header(config: pytest.Config) -> str:
    """The two things needed to see the same run again."""
    return f"katas: device {os.environ['KATA_DEVICE']}, --seed {config.stash[SEED]}"


# ---- collection ----------------------------------------------------------------------------


class SharedChecks(pytest.Module):
    """The shared checks, collected once for each kata, in the name of its kata.toml."""

    def _getobj(self) -> ModuleType:
        from harness.judge import shared_checks

        return shared_checks


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collect the shared checks of a kata that feeds them."""
    try:
        kata = kata_of(file_path)
    except HarnessError as error:
        raise pytest.Collector.CollectError(error.message) from None
    if file_path.name != "kata.toml" or kata is None:
        return None
    # a kata that feeds none of them is judged without torch
    if not (kata.cases or kata.speed or any(one.case is not None for one in kata.cost)):
        return None
    if not (file_path.parent / "oracle.py").is_file():
        return None
    return SharedChecks.from_parent(parent, path=file_path)


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One item per implementation, case and threshold."""
    kata = kata_of(metafunc.definition.path)
    if kata is None:
        return
    device = os.environ["KATA_DEVICE"]
    wanted = metafunc.fixturenames
    if "submission" in wanted:
        found = _submissions(kata, metafunc.config)
        metafunc.parametrize(
            "submission", found, ids=[one.label for one in found], indirect=True, scope="module"
        )
    cases = [case for case in kata.cases if case.get("only", device) == device]
    more = metafunc.config.getoption("--vary")
    cases += varied_cases(kata, device, more, metafunc.config.stash[SEED])
    if asked := metafunc.config.getoption("--case"):
        cases = [json.loads(asked)]
    judged = _comparable(kata)
    cases = [case for case in cases if function_of(case) in judged]
    firsts = _firsts(cases)
    if "case" in wanted:
        metafunc.parametrize("case", cases, ids=_case_id)
    if "first_case" in wanted:
        metafunc.parametrize("first_case", firsts, ids=_case_id)
    if "repeated_case" in wanted:
        repeated = firsts if kata.repeats else []
        metafunc.parametrize("repeated_case", repeated, ids=_case_id)
    if "scheduled_case" in wanted:
        scheduled = firsts if device == "cpu" and kata.backend in SCHEDULED else []
        metafunc.parametrize("scheduled_case", scheduled, ids=_case_id)
    if "refusal" in wanted:
        fed = {function_of(case) for case in firsts}
        refused = [one for one in kata.refuses if one.function in fed]
        metafunc.parametrize("refusal", refused, ids=lambda one: one.label)
    if "in_place" in wanted:
        gaps = [{one: kata.in_place[one] for one in group} for group in by_function(kata.in_place)]
        metafunc.parametrize("in_place", gaps, ids=", ".join)
    if "not_finite" in wanted:
        metafunc.parametrize("not_finite", by_function(kata.not_finite), ids=", ".join)
    if "into" in wanted:
        metafunc.parametrize("into", by_function(kata.into), ids=", ".join)
    if "stateless_case" in wanted:
        metafunc.parametrize("stateless_case", firsts if kata.stateless else [], ids=_case_id)
    if "far_argument" in wanted:
        metafunc.parametrize("far_argument", kata.int64_rows)
    if "float_case" in wanted:
        floats = [case for case in cases if str(case.get("dtype")).startswith(FLOATS)]
        metafunc.parametrize("float_case", _firsts(floats), ids=_case_id)
    if "swept_cases" in wanted:
        # where a simulator shows the tiles
        swept = {
            name: cases
            for name, cases in (edge_cases(kata, device) if device == "cpu" else {}).items()
            if function_of(cases[0]) in judged
        }
        metafunc.parametrize("swept_cases", list(swept.values()), ids=list(swept))
    if "cost_threshold" in wanted:
        counted = [one for one in kata.cost if one.case is not None] if device == "cpu" else []
        metafunc.parametrize("cost_threshold", counted, ids=lambda one: one.name)
    if "speed_threshold" in wanted:
        timed = [one for one in kata.speed if device == "cuda" or one.on == "any"]
        metafunc.parametrize("speed_threshold", timed, ids=lambda one: one.name)


SUBMISSIONS = pytest.StashKey[dict[Path, list[Loadable]]]()


def _submissions(kata: Kata, config: pytest.Config) -> list[Loadable]:
    """The same objects for each test of a kata, so that a file is imported once a session."""
    known = config.stash.setdefault(SUBMISSIONS, {})
    if kata.folder not in known:
        impls = config.getoption("--impl") or ["yours"]
        try:
            found = [Loadable.of(one) for one in resolve_all(kata, impls, cache_folder())]
        except HarnessError as error:
            raise pytest.UsageError(error.message) from None
        known[kata.folder] = found
    return known[kata.folder]


def _comparable(kata: Kata) -> set[str | None]:
    """Functions whose answers the oracle can judge; None stands for the first one."""
    text = kata.oracle.read_text(encoding="utf-8")
    defined = set(re.findall(r"^def (\w+)\(", text, re.M))
    oracle = SimpleNamespace(**dict.fromkeys(defined, True))
    functions = (None, *kata.functions[1:])
    needed = ("make_inputs", "reference")
    return {one for one in functions if all(in_oracle(oracle, name, one) for name in needed)}


def _firsts(cases: Sequence[Case]) -> list[Case]:
    """The first case of each function."""
    return list({function_of(case): case for case in reversed(cases)}.values())[::-1]


def _case_id(case: Case) -> str:
    return "-".join(str(value) for value in case.values())


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Name each item's kata, implementation and test; drop what cannot be judged here."""
    parallel = bool(config.getoption("numprocesses", None)) or "PYTEST_XDIST_WORKER" in os.environ
    kept = []
    for item in items:
        kata = kata_of(item.path)
        if kata is None:
            kept.append(item)
            continue
        callspec = getattr(item, "callspec", None)
        if callspec is not None and any(
            type(value).__name__ == "NotSetType" for value in callspec.params.values()
        ):
            continue  # an empty parameter list: this kata has no such cases or thresholds
        submission = callspec.params.get("submission") if callspec else None
        label = submission.label if submission else "-"
        test, bracket, parameters = item.name.partition("[")
        parameters = re.sub(rf"{re.escape(label)}-?", "", parameters, count=1)
        name = f"{test}{bracket}{parameters}".removesuffix("[]")
        item.user_properties += [("kata", kata.id), ("impl", label), ("test", name)]
        item.add_marker(pytest.mark.filterwarnings("default"))
        # infinities and NaN are inputs like any other
        item.add_marker(pytest.mark.filterwarnings("ignore::RuntimeWarning"))
        item.add_marker(pytest.mark.xdist_group(kata.id))
        if missing := missing_for(kata):
            item.add_marker(pytest.mark.skip(reason=missing))
        if name.startswith("test_speed") and parallel:
            item.add_marker(pytest.mark.skip(reason="speed is never timed under xdist"))
        kept.append(item)
    if only := config.getoption("--only"):
        kept = _chosen(kept, only)
    if config.getoption("--staged"):
        kept.sort(key=_stage)
    items[:] = kept


def _chosen(items: list[pytest.Item], names: list[str]) -> list[pytest.Item]:
    """The tests that are called so, with or without their parameters."""
    tests = [str(dict(item.user_properties).get("test", item.name)) for item in items]
    known = {name for test in tests for name in (test, function_name(test))}
    for name in names:
        if name not in known:
            raise pytest.UsageError(
                f"--only: expected a test, found {name!r}.{nearest(name, known)}"
            )
    return [
        item
        for item, test in zip(items, tests, strict=True)
        if test in names or function_name(test) in names
    ]


def _stage(item: pytest.Item) -> tuple[int, bool]:
    """Its place among the stages; what hypothesis feeds comes after its neighbours."""
    name = str(dict(item.user_properties).get("test", item.name))
    by_hypothesis = getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
    return ORDER.index(stage_of(name)), by_hypothesis


# ---- running -------------------------------------------------------------------------------


def pytest_collection_finish() -> None:
    """Look for garbage again, but not among what has been imported, which stays."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Seed what fixtures may draw from."""
    if kata_of(item.path) is not None:
        seed_generators(item)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """Seed what the test may draw from, whichever libraries its fixtures have loaded."""
    if kata_of(item.path) is not None:
        seed_generators(item)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    """One clear line for a stub, instead of its traceback; of other failures what they are."""
    start, start_own = cpu_s(), time.process_time()
    submission = _submission_of(pyfuncitem)
    pyfuncitem.config.stash[JUDGING] = submission is not None
    try:
        with watched(submission, pyfuncitem.module) if submission else nullcontext():
            return (yield)
    except NotImplementedError as error:
        if submission is None or not _is_bare(error):
            raise
        message = submission.stub_message(error)
        pyfuncitem.user_properties.append(("stub", message))
    except HarnessError as error:
        if kata_of(pyfuncitem.path) is None:
            raise
        message = error.message
        _tell(pyfuncitem, submission, error)
    except (Exception, pytest.fail.Exception) as error:
        # asked for a RuntimeError in certain words, pytest.raises finds that these are none
        met = error.__context__
        if submission is None or not isinstance(met, NotImplementedError) or not _is_bare(met):
            _tell(pyfuncitem, submission, error)
            raise
        message = submission.stub_message(met)
        pyfuncitem.user_properties.append(("stub", message))
    finally:
        pyfuncitem.config.stash[JUDGING] = False
        pyfuncitem.user_properties += [
            ("cpu_s", cpu_s() - start),  # that of forked ranks as well
            ("own_cpu_s", time.process_time() - start_own),
        ]
    raise pytest.fail.Exception(message, pytrace=False)


def _tell(item: pytest.Function, submission: Loadable | None, error: BaseException) -> None:
    """Note where a failure arose in the code under test, what it is, and on which input."""
    if submission is None:
        return
    function, line = submission.place_of(error)
    if line:
        item.user_properties.append(("place", f"line {line}, in {function}"))
    params = item.callspec.params
    unnamed = {name: value for name, value in params.items() if str(value) not in item.name}
    drawn = {name: value for name, value in unnamed.items() if name not in HARNESS_PARAMETERS}
    fixtures = set(item.funcargs) - set(drawn)
    try:
        told = tell(error, [item.path, submission.kata.oracle], fixtures, drawn)
    except Exception:  # noqa: BLE001 -- values of the learner's own types may refuse to be looked at
        return
    said = [("told", told.words), ("asked", told.asked), ("input", told.given)]
    item.user_properties += said


def _is_bare(error: NotImplementedError) -> bool:
    """Whether a stub raised it, saying nothing; PyTorch raises the same type, and says for what."""
    # Numba's simulator adds which thread it was
    return not error.args or THREAD.fullmatch(str(error)) is not None


def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, str] | None:
    """A stub fails, but needs no section of its own in the terminal."""
    if report.when == "call" and report.failed and _stub_line(report):
        return "stub", "s", "STUB"
    return None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line for each kata whose tests met a stub."""
    met: dict[str, list[str]] = {}
    for report in terminalreporter.stats.get("stub", []):
        met.setdefault(dict(report.user_properties)["kata"], []).append(_stub_line(report))
    for kata, messages in met.items():
        terminalreporter.write_line(f"STUB {kata}: {waiting(messages)}", red=True)


def _stub_line(report: pytest.TestReport) -> str:
    return str(dict(report.user_properties).get("stub", ""))


def _submission_of(item: pytest.Item) -> Loadable | None:
    callspec = getattr(item, "callspec", None)
    found = callspec.params.get("submission") if callspec else None
    return found if isinstance(found, Loadable) else None


def pytest_sessionfinish() -> None:
    """Let the compile helper go, if one was started."""
    compiled_module = sys.modules.get("harness.meters.compiled")
    if compiled_module is not None:
        compiled_module.stop_worker()
