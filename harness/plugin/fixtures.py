"""The fixtures a kata's tests take: the code under test, its oracle, and the meters."""

import ast
import inspect
import linecache
import math
import os
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from harness.base.errors import HarnessError, UsageProblem
from harness.content.catalog import find_root
from harness.content.functions import arguments_in, function_of
from harness.content.kata import Case, Kata, kata_of
from harness.hardware.bridges import bridge_numba_cuda
from harness.hardware.environment import cache_folder, session_profile
from harness.hardware.profiles import Profile
from harness.judge.honesty.watch import watched
from harness.judge.loading import Loadable, load_module
from harness.judge.timing.threshold import judge_cost
from harness.plugin.cpu_limit import CpuLimit
from harness.plugin.run_limit import within_s
from harness.plugin.seeding import seed_of
from harness.plugin.values import cut

if TYPE_CHECKING:
    from harness.judge.trial import Trial
    from harness.simulators.deaths import End, Moment

MOST_TEXT = 80  # characters of a line that is shown
Record = Callable[[dict[str, Any]], None]


@pytest.fixture(scope="module")
def submission(request: pytest.FixtureRequest) -> Loadable:
    """The implementation under test."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def kata(submission: Loadable, request: pytest.FixtureRequest) -> ModuleType:
    """The module under test: ``kata.fused_silu(x)``."""
    try:
        with watched(submission, *_test_modules(request)):
            return submission.module
    except HarnessError as error:
        pytest.fail(error.message, pytrace=False)
    except NotImplementedError:
        pytest.fail(submission.stub_message(), pytrace=False)
    except Exception as error:  # noqa: BLE001 -- whatever a learner's file raises is told
        pytest.fail(_import_failure(submission, error), pytrace=False)


def _test_modules(request: pytest.FixtureRequest) -> set[ModuleType]:
    """The modules of the collected tests: an import could empty them before the first is run."""
    functions = (item for item in request.session.items if isinstance(item, pytest.Function))
    return {item.module for item in functions}


def _import_failure(submission: Loadable, error: Exception) -> str:
    """The error of an import, with the line of the learner's file where it arose, and its text."""
    _, line = submission.place_of(error)
    words, text = str(error), linecache.getline(str(submission.path), line or 0).strip()
    if isinstance(error, SyntaxError):  # says its line by itself
        line, words, text = error.lineno or line, error.msg, (error.text or "").strip()
    name = submission.path.name
    where = f"line {line or '?'}: {cut(text, MOST_TEXT)}" if text else f"line {line or '?'}"
    return f"{name} does not import: {type(error).__name__}: {words} ({where})"


@pytest.fixture(scope="module")
def oracle(request: pytest.FixtureRequest) -> ModuleType:
    """The kata's oracle module."""
    return load_oracle(request.path.parent / "oracle.py")


@cache
def load_oracle(path: Path) -> ModuleType:
    """Load an oracle once a session."""
    return load_module(path)


@pytest.fixture(scope="session")
def device() -> str:
    """``cpu`` or ``cuda``: where the tensors of a test live."""
    return os.environ["KATA_DEVICE"]


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """Where this test's random numbers start: fresh each run, replayed with ``--seed``."""
    return seed_of(request.node)


@pytest.fixture(scope="module")
def profile(request: pytest.FixtureRequest) -> Profile:
    """The hardware profile that counts: asked for, detected, the kata's own, or the CPU's."""
    kata = kata_of(request.path)
    asked = request.config.getoption("--profile")
    root = find_root(request.path)
    return session_profile(root, asked, os.environ["KATA_DEVICE"], kata)


@pytest.fixture
def record(request: pytest.FixtureRequest) -> Record:
    """Keep one measurement with the attempt."""

    def keep(measurement: dict[str, Any]) -> None:
        request.node.user_properties.append(("measurement", measurement))

    return keep


@pytest.fixture
def trial(
    submission: Loadable,
    kata: ModuleType,
    oracle: ModuleType,
    device: str,
    seed: int,
    profile: Profile,
    record: Record,
) -> "Trial":
    """What the shared checks work on."""
    from harness.judge.trial import Trial

    return Trial(
        submission=submission,
        oracle=oracle,
        device=device,
        seed=seed,
        profile=profile,
        record=record,
        compile=partial(_compile, submission),
    )


class Cost:
    """Judges the ``[[cost]]`` entries that a kata's own tests measure."""

    def __init__(self, kata: Kata, record: Record) -> None:
        self.kata = kata
        self.record = record

    def check(self, name: str, value: float, *, ideal: float | None = None) -> None:
        """Hold `value` against the entry `name`; `ideal` is what a `bound` multiplies."""
        __tracebackhide__ = True
        entries = {entry.name: entry for entry in self.kata.cost}
        if name not in entries:
            raise UsageProblem(
                f"cost.check: expected a [[cost]] entry of {self.kata.name}, found {name!r}. "
                f"kata.toml has {', '.join(entries) or 'none'}."
            )
        verdict = judge_cost(entries[name], value, ideal)
        self.record({"name": name, "meter": entries[name].meter, **asdict(verdict), "detail": {}})
        assert verdict.outcome == "passed", verdict.message


@pytest.fixture
def cost(request: pytest.FixtureRequest, record: Record) -> Cost:
    """``cost.check("evaluations", 17)`` judges and records a counted threshold."""
    kata = kata_of(request.path)
    if kata is None:
        raise UsageProblem(f"{request.path}: expected a test of a kata, found another file.")
    return Cost(kata, record)


# ---- meters as fixtures --------------------------------------------------------------------


@pytest.fixture
def traffic(device: str) -> Callable[..., Any]:
    """``with traffic() as t:`` counts what Triton kernels load and store."""
    if device != "cpu":
        pytest.skip("traffic is counted in Triton's interpreter: pytest --device cpu")
    from harness.meters.triton_traffic import traffic_meter

    return traffic_meter


@pytest.fixture
def simt(device: str) -> Callable[..., Any]:
    """``with simt() as s:`` counts what Numba kernels do on the SIMT simulator."""
    if device != "cpu":
        pytest.skip("SIMT counters need the simulator: pytest --device cpu")
    from harness.meters.simt import simt_meter

    return simt_meter


@pytest.fixture
def hazards(device: str) -> Callable[..., Any]:
    """``with hazards() as h:`` counts what Gluon kernels do; ``collect=True`` keeps hazards."""
    if device != "cpu":
        pytest.skip("hazards are found on the Gluon simulator: pytest --device cpu")
    from harness.meters.gluon import gluon_meter

    return gluon_meter


@pytest.fixture
def ptx(device: str) -> Callable[..., Any]:
    """``with ptx() as p:`` runs CUDA C++ as PTX, names its hazards and counts what warps do."""
    if device != "cpu":
        pytest.skip("hazards and counters of CUDA C++ need the simulator: pytest --device cpu")
    from harness.meters.ptx import ptx_meter

    return ptx_meter


@pytest.fixture
def dispatch() -> Callable[..., Any]:
    """``with dispatch() as d:`` counts aten calls, allocations and copies."""
    from harness.meters.dispatch import dispatch_meter

    return dispatch_meter


@pytest.fixture
def hlo() -> Callable[..., Any]:
    """``hlo(kata.fn, x)``: the jaxpr and the HLO that JAX makes of a function, counted."""
    from harness.meters.hlo import compiled_program

    return compiled_program


NARROW = ("bfloat16", "float8", "float4")  # what not every GPU has


@pytest.fixture(scope="session")
def lines() -> Callable[..., Any]:
    """``with lines(limit=100) as counted: …``; ``counted.lines`` of Python were run."""
    from harness.meters.lines import line_meter

    return line_meter


@pytest.fixture(scope="session")
def host_memory() -> Callable[..., Any]:
    """``with host_memory() as m: …``; ``m.peak_bytes`` were held at once by Python and NumPy."""
    from harness.meters.host_memory import host_memory_meter

    return host_memory_meter


@pytest.fixture
def compiled(submission: Loadable, kata: ModuleType) -> Callable[..., Any]:
    """``compiled(target="sm_90", n=4096, dtype="float16")``: the kernels built for that GPU."""

    def build(*, target: str, **case: Any) -> Any:  # noqa: ANN401
        return _compile(submission, target, case)

    return build


def _compile(submission: Loadable, target: str, case: Case) -> Any:  # noqa: ANN401
    function = function_of(case) or submission.kata.functions[0]
    if _ends_as_a_stub(submission.named(function)):
        raise NotImplementedError  # no compiler need be asked
    from harness.meters.compiled import CompileRequest, StillAStub, compile_kernels

    request = CompileRequest(
        file=submission.path,
        oracle=submission.kata.oracle,
        function=function,
        case=arguments_in(case),
        target=target,
    )
    try:
        return compile_kernels(request, cache_dir=cache_folder() / "compiled")
    except StillAStub:
        raise NotImplementedError from None


def _ends_as_a_stub(entry: Callable[..., Any]) -> bool:
    """Whether the last thing that a function does is to raise a bare NotImplementedError."""
    try:
        (function,) = ast.parse(textwrap.dedent(inspect.getsource(entry))).body
    except (OSError, SyntaxError, TypeError, ValueError):
        return False  # no function of a file
    last = getattr(function, "body", [None])[-1]
    return isinstance(last, ast.Raise) and ast.unparse(last) == "raise NotImplementedError"


@pytest.fixture
def calls(kata: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """``calls("predict", limit=200)`` counts, in `.calls`, who looks this up in `kata` from now."""
    from harness.meters.calls import counting

    def counted(name: str, *, limit: int | None = None) -> Any:  # noqa: ANN401 -- a Counted
        found = counting(getattr(kata, name), limit=limit)
        monkeypatch.setattr(kata, name, found)
        return found

    return counted


@pytest.fixture
def stateless(submission: Loadable, kata: ModuleType) -> Callable[..., None]:
    """
    ``stateless(lambda kata: kata.f(1), lambda kata: kata.f(2))``: what one leaves, none sees.

    Each call has to give what it gives to a file that has just been imported.
    """
    from harness.plugin.stateless import assert_stateless

    return partial(assert_stateless, kata, lambda: load_module(submission.path))


@pytest.fixture
def one_thread() -> Iterator[None]:
    """PyTorch computes on one thread: a short call would spend its time waiting for a second."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Ranks:
    """
    Small jobs of many ranks: ``ranks(4, fn, *args)`` calls ``fn(rank, world, *args)`` on each.

    On the CPU gloo joins them. On a GPU session NCCL does, with one GPU a rank; a test that needs
    more than there are is skipped.
    """

    def __init__(
        self, device: str, limit: CpuLimit | None = None, most_s: float = math.inf
    ) -> None:
        self.device = device
        self.limit = limit
        self.most_s = most_s

    def world(self, most: int) -> int:
        """As many ranks as there can be, from 2 to `most`."""
        if self.device == "cpu":
            return most
        from harness.hardware.environment import gpu_count

        return max(2, min(most, gpu_count()))

    def __call__(
        self, world: int, fn: Callable[..., Any], *args: object, timeout_s: float = 20.0
    ) -> list[Any]:
        """Run the ranks and return their results in order, tensors on the CPU."""
        __tracebackhide__ = True
        from harness.simulators.ranks import run_ranks

        with self._within_limits(timeout_s) as timeout_s:
            return run_ranks(world, _watched(fn), *args, timeout_s=timeout_s, device=self.device)

    def ends(
        self,
        world: int,
        fn: Callable[..., Any],
        *args: object,
        dies: Mapping[int, "Moment"],
        joined: bool = True,
        together: bool = False,
        timeout_s: float = 20.0,
    ) -> "list[End]":
        """Run ranks of which some are killed, on the CPU: `harness.simulators.deaths`."""
        __tracebackhide__ = True
        from harness.simulators.deaths import run_mortals

        with self._within_limits(timeout_s) as timeout_s:
            return run_mortals(
                world,
                _watched(fn),
                *args,
                dies=dies,
                joined=joined,
                together=together,
                timeout_s=timeout_s,
            )

    def alone(self, fn: Callable[..., Any], *args: object) -> Any:  # noqa: ANN401 -- fn's own
        """Run ``fn(*args)`` on the CPU, in a process that may train: see `no_training_here`."""
        __tracebackhide__ = True
        from harness.simulators.ranks import run_ranks

        with self._within_limits(20.0) as timeout_s:
            return run_ranks(1, lambda _rank, _world: fn(*args), timeout_s=timeout_s)[0]

    @contextmanager
    def _within_limits(self, timeout_s: float) -> Iterator[float]:
        """Yield how long ranks may take; a test is skipped where they cannot be had."""
        __tracebackhide__ = True
        from harness.simulators.ranks import RanksHung, RanksUnavailable

        try:
            timeout_s = min(timeout_s, self.most_s)
            yield min(timeout_s, self.limit.now.wall) if self.limit else timeout_s
        except RanksHung:
            if self.limit:
                self.limit.note_stop()
            raise
        except RanksUnavailable as error:
            pytest.skip(error.message)


def _watched(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Call `fn` on a rank, and look there for tools that it has replaced."""

    def on_rank(rank: int, world: int, *args: object) -> Any:  # noqa: ANN401 -- fn's own
        from harness.judge.honesty.watch import assert_tools_kept

        result = fn(rank, world, *args)
        assert_tools_kept()  # nobody else looks at what was this process's alone
        return result

    return on_rank


@pytest.fixture
def ranks(device: str, request: pytest.FixtureRequest) -> Ranks:
    """``ranks(4, fn, *args)`` runs ``fn(rank, world, *args)`` on forked ranks."""
    limit = request.config.pluginmanager.get_plugin("kata-cpu-limit")
    return Ranks(device, limit, within_s(request.node, math.inf))


@pytest.fixture(autouse=True)
def _fit_to_fork(request: pytest.FixtureRequest) -> Iterator[None]:
    """Refuse without a GPU as well what leaves no rank able to use one."""
    kata = kata_of(request.path)
    if kata is None or kata.backend != "distributed":
        yield
        return
    from harness.simulators.ranks import no_training_here

    with no_training_here():
        yield


@pytest.fixture(autouse=True)
def _device_has_the_dtype(request: pytest.FixtureRequest) -> None:
    """A case in a dtype that this GPU lacks is no failure of anyone."""
    callspec = getattr(request.node, "callspec", None)
    if os.environ["KATA_DEVICE"] == "cpu" or callspec is None:
        return
    threshold = callspec.params.get("speed_threshold")
    cases = [callspec.params.get("case"), callspec.params.get("first_case")]
    cases += [callspec.params.get("float_case"), callspec.params.get("repeated_case")]
    cases.append(threshold.case if threshold else None)
    dtypes = {str(case["dtype"]) for case in cases if case and "dtype" in case}
    narrow = sorted(dtype for dtype in dtypes if dtype.startswith(NARROW))
    if narrow:
        profile: Profile = request.getfixturevalue("profile")
        for dtype in narrow:
            if not profile.supports(dtype):
                pytest.skip(f"{profile.name} has no {dtype}")


@pytest.fixture(autouse=True)
def _kernels_ready(request: pytest.FixtureRequest) -> None:
    """Put what launches kernels in place once a kata's test is about to use it."""
    kata = kata_of(request.path)
    if kata is None:
        return
    if os.environ["KATA_DEVICE"] == "cuda":
        if kata.backend == "numba":
            bridge_numba_cuda()
    else:
        if kata.backend == "triton":
            from harness.simulators.triton_guards import install_bf16_guard, install_bounds_guard
            from harness.simulators.triton_semantics import install_compiled_semantics

            install_compiled_semantics()
            install_bf16_guard()
            install_bounds_guard()
        if kata.backend == "numba":
            from harness.simulators.simt import install

            install()
        if kata.backend == "gluon":
            from harness.simulators.gluon import Settings
            from harness.simulators.gluon import install as install_gluon

            install_gluon(Settings(seed=seed_of(request.node)))
        if kata.backend == "cuda":
            _install_ptx(request, kata)


def _install_ptx(request: pytest.FixtureRequest, kata: Kata) -> None:
    """Let CUDA C++ run as the PTX of the GPU that the kata is about, a Hopper without one."""
    from harness.simulators.ptx.host import Settings, install

    settings = Settings()
    if kata.profile:
        profile: Profile = request.getfixturevalue("profile")
        if profile.arch.startswith("sm_"):
            settings = Settings(arch=profile.arch, shared_bytes=profile.smem_per_block_bytes)
    install(settings)
