"""
What a kata declares instead of testing it: `refuses`, `in_place`, `int64_rows` and others.

Each starts from inputs that the oracle makes, and changes what the declaration names.
"""

import builtins
import mmap
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
import torch

from harness.base.errors import MetadataError
from harness.content.functions import arguments_in, arguments_of, function_of, split
from harness.content.kata import Case
from harness.content.promises import Refusal
from harness.judge.correctness.answer import Value, as_tensor, copied, differences, parts
from harness.judge.honesty.forbidden import forbidden
from harness.judge.honesty.watch import nothing_left_behind, sealed
from harness.judge.setting import Inputs
from harness.judge.trial import ARRAY_BACKENDS, Trial

POISON = -99
PAST_31_BITS = 2**31
ALIGNED = 16  # elements, of a byte or more; bytes, which TMA asks rows to begin at
WITH_DESCRIPTORS = ("cuda", "gluon")  # backends that may load 16 bytes at once, or use TMA


def assert_refused(trial: Trial, refusal: Refusal) -> None:
    """Check that the first case, changed as `refusal` says, raises, and begins with its name."""
    __tracebackhide__ = True
    trial = trial.of(refusal.function)
    inputs = trial.inputs(trial.cases[0])
    given = {**inputs}
    for names, change in refusal.given.items():
        given |= {name: _changed(trial, inputs, name, change) for name in names.split()}
    held = [one for one in given.values() if not (isinstance(one, torch.Tensor) and one.is_meta)]
    before = copied(held)
    message = None
    try:
        _answer(trial, given)
    except getattr(builtins, refusal.error) as error:
        message = str(error)
    assert message is not None, (
        f"{refusal.label}: expected {refusal.error}, found that it was accepted"
    )
    assert message.startswith(f"{refusal.names}:"), (
        f"{refusal.label}: expected a message that begins with '{refusal.names}:', found "
        f"{message!r}"
    )
    assert refusal.says is None or _has_word(message, refusal.says), (
        f"{refusal.label}: expected {refusal.says!r} in the message, found {message!r}"
    )
    touched = any(bool(one) for one in differences(held, before))
    assert not touched, f"{refusal.label}: an argument was written to before it was refused"


def assert_read_in_place(trial: Trial, gaps: Mapping[str, str]) -> None:
    """
    Check that arguments with gaps in memory are taken as they are: nothing is copied first.

    All of `gaps` are arguments of one function. Of arrays that Numba is given only the answer is
    looked at.
    """
    __tracebackhide__ = True
    from harness.meters.dispatch import dispatch_meter

    trial = trial.of(split(next(iter(gaps)))[0])
    inputs = trial.inputs(trial.cases[0])
    given = {**inputs}
    for name, where in zip(arguments_of(gaps, trial.function), gaps.values(), strict=True):
        given[name] = _laid_out(trial, inputs[name], where)
    assert_right = _judge_of(trial, inputs)
    with dispatch_meter() as counted:
        result = _answer(trial, given)
    assert_right(result)
    results = [as_tensor(part) for _, part in parts(result, "")]
    allowed = sum(one.nbytes for one in results if one is not None)
    assert counted.allocated_bytes <= allowed, (
        f"{', '.join(gaps)} with gaps in memory: expected "
        f"{allowed:,} bytes to be allocated for the result, found {counted.allocated_bytes:,}: "
        "read them where they are"
    )


def assert_reaches_past_31_bits(trial: Trial, argument: str) -> None:
    """
    Check that rows of `argument` may lie so far apart that offsets leave int32.

    One case is tried of each form, that is of those with the same keys. Floats of its
    dtype are float16, so that what must be reserved stays small.
    """
    __tracebackhide__ = True
    function, name = split(argument)
    trial = trial.of(function)
    tried: set[frozenset[str]] = set()
    for case in trial.cases:
        if (form := frozenset(arguments_in(case))) in tried:
            continue
        inputs = trial.inputs(case)
        if (dtype := inputs[name].dtype).is_floating_point and dtype.itemsize > 1:
            inputs = {
                key: one.half() if getattr(one, "dtype", None) == dtype else one
                for key, one in inputs.items()
            }
        if len(inputs[name]) > 1:
            aligned = trial.submission.kata.backend in WITH_DESCRIPTORS
            inputs[name] = _far_apart(inputs[name], aligned=aligned)
            tried.add(form)
            assert_right = _judge_of(trial, inputs)
            try:
                assert_right(_answer(trial, inputs))
            except AssertionError as wrong:
                raise AssertionError(f"{argument}, rows 2**31 elements apart: {wrong}") from None
    assert tried, f"int64_rows: expected a case with two rows of {argument}, found none"


def assert_keeps_nothing(trial: Trial, case: Case) -> None:
    """Check that calls between two calls change neither's answer."""
    __tracebackhide__ = True
    trial = trial.of(function_of(case))
    others = [one for one in trial.cases if one != case][:2] or [case]
    told = "the first call"
    held: list[tuple[str, Value, Value]] = []
    for at, one in enumerate((case, *others, case)):
        inputs = trial.inputs(one, seed_offset=10 + at)
        if at:
            shown = ", ".join(f"{name} = {value}" for name, value in arguments_in(one).items())
            told = f"call {at + 1}, on {shown}, after others"
        assert_right = _judge_of(trial, inputs)
        result = _answer(trial, inputs)
        try:
            assert_right(result)
        except AssertionError as wrong:
            raise AssertionError(f"{told}: {wrong}") from None
        for earlier, before, copy in held:
            changed = any(bool(differs) for differs in differences(before, copy))
            assert not changed, (
                f"{told} wrote to the result of {earlier}: expected memory of its own"
            )
        held.append((told, result, copied(result)))


def assert_writes_into(trial: Trial, arguments: Sequence[str]) -> None:
    """
    Check that arrays given for the parts of the result are written to, and returned themselves.

    `arguments` are those of one function, one for each part, in the order of the parts.
    """
    __tracebackhide__ = True
    trial = trial.of(split(arguments[0])[0])
    names = arguments_of(arguments, trial.function)
    made = trial.inputs(trial.cases[0])
    inputs = {name: value for name, value in made.items() if name not in names}
    assert_right = _judge_of(trial, inputs)
    alone = [part for _, part in parts(_answer(trial, inputs), "")]
    assert len(alone) == len(names), (
        f"into: expected an argument for each of the result's {len(alone)} parts, found {names}"
    )
    given = {name: poisoned_like(part) for name, part in zip(names, alone, strict=True)}
    launched = trial.launchable(inputs | given)
    result = _answer(trial, launched)
    for (where, part), name in zip(parts(result, "result"), names, strict=True):
        assert part is launched[name], (
            f"{where}: expected the array that was given as `{name}`, found another"
        )
    assert_right(result)


def assert_not_finite_stays(trial: Trial, arguments: Sequence[str]) -> None:
    """
    Check that a NaN, then an infinity, in each of these arguments shows where it should.

    They are those of one function. The NaN has a place of the seed's; the infinity is the last
    element, which what is read in a tile beyond the end may be multiplied with.
    """
    __tracebackhide__ = True
    trial = trial.of(split(arguments[0])[0])
    names = arguments_of(arguments, trial.function)
    places = torch.Generator().manual_seed(trial.seed)
    for at, value in enumerate((torch.nan, torch.inf)):
        inputs = trial.inputs(trial.cases[0], seed_offset=20 + at)
        told = []
        for sign, name in zip((1, -1) * len(names), names, strict=False):
            flat = as_tensor(inputs[name])
            if flat is None or not flat.numel() or not flat.is_floating_point():
                raise MetadataError(
                    f"{trial.submission.kata.folder / 'kata.toml'}: not_finite: expected `{name}` "
                    "of the first case to have floating-point elements, found others."
                )
            drawn = [int(torch.randint(size, (), generator=places)) for size in flat.shape]
            place = tuple(drawn) if at == 0 else tuple(size - 1 for size in flat.shape)
            if at == 0 or flat.itemsize > 1:  # not every format of 8 bits has an infinity
                flat[place] = sign * value
                told.append(f"{name}[{', '.join(map(str, place))}] = {sign * value}")
        assert_right = _judge_of(trial, inputs)
        try:
            assert_right(_answer(trial, inputs))
        except AssertionError as wrong:
            raise AssertionError(f"with {', '.join(told)}: {wrong}") from None


def poisoned_like(part: Value) -> Value:
    """An array or tensor of the same kind that shows no answer."""
    if isinstance(part, torch.Tensor):
        return torch.full_like(part, POISON)
    return np.full(part.shape, POISON, dtype=part.dtype)


def _answer(trial: Trial, inputs: Inputs) -> Value:
    """The entry function's answer, with the oracle's out of its reach."""
    kata = trial.submission.kata
    with ExitStack() as around:
        around.enter_context(nothing_left_behind())
        around.enter_context(sealed(trial.oracle, trial.answers))
        around.enter_context(forbidden(kata.forbidden, on_the_host=trial.device == "cpu"))
        return trial.callable(trial.entry)(**trial.launchable(inputs))


def _judge_of(trial: Trial, inputs: Inputs) -> Callable[[Value], None]:
    """What holds an answer against the truth, which is found now: a call may change its inputs."""
    want, trusted = trial.truth(inputs), trial.trusted(inputs)
    return partial(trial.assert_equals, want=want, trusted=trusted)


def _has_word(message: str, word: str) -> bool:
    """Whether `word` stands in `message`, and not as a part of another."""
    at = message.find(word)
    while at >= 0:
        around = message[at - 1 : at] + message[at + len(word) : at + len(word) + 1]
        if not any(letter.isalnum() or letter == "_" for letter in around):
            return True
        at = message.find(word, at + 1)
    return False


def _changed(trial: Trial, inputs: Inputs, name: str, change: Any) -> Value:  # noqa: ANN401
    """Argument `name` as `change` of a refusal wants it: another value, or itself altered."""
    if not isinstance(change, Mapping):
        return change
    tensors = [
        one for one in map(as_tensor, (inputs.get(name), *inputs.values())) if one is not None
    ]
    if not tensors:
        raise MetadataError(
            f"{trial.submission.kata.folder / 'kata.toml'}: refuses: expected a tensor or an array "
            f"among the inputs to make `{name}` from, found none."
        )
    tensor = tensors[0]
    if "shape" in change:
        tensor = torch.ones(change["shape"], dtype=tensor.dtype, device=tensor.device)
    if "dtype" in change:
        tensor = tensor.to(getattr(torch, change["dtype"]))
    if "device" in change:
        tensor = tensor.to(change["device"])
    value = tensor.numpy() if trial.submission.kata.backend in ARRAY_BACKENDS else tensor
    return _laid_out(trial, value, change["gaps"]) if "gaps" in change else value


def _laid_out(trial: Trial, value: Value, gaps: str) -> Value:
    """The same values with gaps in memory, as the backend takes them: Numba on the device."""
    if isinstance(value, torch.Tensor):
        return _with_gaps(value, gaps)
    if trial.submission.kata.backend != "numba":
        return _with_gaps(torch.from_numpy(value), gaps).numpy()
    from numba import cuda

    wide, last = _with_room(torch.from_numpy(value), gaps), value.shape[-1]
    # as a slice of what is there: an array that is moved by itself loses its gaps
    there = cuda.to_device(wide.numpy())
    kept = slice(0, 2 * last, 2) if gaps == "elements" else slice(last)
    return there[(slice(None),) * (value.ndim - 1) + (kept,)]  # Numba takes no `...` for no axis


def _with_gaps(tensor: torch.Tensor, gaps: str) -> torch.Tensor:
    """The same values with gaps in memory; where, `content.promises.GAPS` says."""
    wide, last = _with_room(tensor, gaps), tensor.shape[-1]
    return wide[..., : 2 * last : 2] if gaps == "elements" else wide[..., :last]


def _with_room(tensor: torch.Tensor, gaps: str) -> torch.Tensor:
    """The same values where `gaps` will have them, with zeros in between and behind."""
    *rest, last = tensor.shape
    pitch = 2 * last + 1
    if gaps == "aligned":
        pitch = -(-pitch * tensor.itemsize // ALIGNED) * ALIGNED // tensor.itemsize
    wide = tensor.new_zeros(*rest, pitch)
    (wide[..., : 2 * last : 2] if gaps == "elements" else wide[..., :last]).copy_(tensor)
    return wide


def _room(count: int, like: torch.Tensor) -> torch.Tensor:
    """
    Uninitialised memory for `count` elements like those of a tensor.

    On the host it is a mapping of which only what is touched takes memory; that it is shared, with
    nobody, keeps it out of the limit on what a process may allocate.
    """
    if like.device.type != "cpu":
        return torch.empty(count, dtype=like.dtype, device=like.device)
    flags = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    return torch.frombuffer(mmap.mmap(-1, count * like.itemsize, flags=flags), dtype=like.dtype)


def _far_apart(tensor: torch.Tensor, *, aligned: bool) -> torch.Tensor:
    """The same values, the last row 2**31 elements or more behind the first one."""
    rows = len(tensor)
    apart = max(PAST_31_BITS // (rows - 1) + 1, tensor[0].numel())
    # odd: no descriptor can hold it, whose addresses have 64 bits anyway. Where there are none,
    # as CUDA C++ would have it, which may load 16 bytes at once
    apart = -(-apart // ALIGNED) * ALIGNED if aligned else apart | 1
    room = _room((rows - 1) * apart + tensor[0].numel(), tensor)
    inner = torch.empty_like(tensor[0], memory_format=torch.contiguous_format).stride()
    return room.as_strided(tensor.shape, (apart, *inner)).copy_(tensor)
