"""The least cost of one case of a kata, printed as JSON; it runs in a process of its own."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from harness.content.functions import function_of, in_oracle
from harness.content.kata import load_kata
from harness.hardware.roofline import Cost
from harness.judge.loading import load_module
from harness.judge.trial import ARRAY_BACKENDS, case_arguments


def cost_of(folder: Path, case: dict[str, Any]) -> Cost:
    """What the kata in `folder` must do at least on `case`; its tensors take no memory."""
    kata = load_kata(folder)
    oracle, function = load_module(kata.oracle), function_of(case)
    least, make_inputs = (in_oracle(oracle, name, function) for name in ("cost", "make_inputs"))
    arguments = {**case_arguments(case, kata.backend), "device": "cpu", "seed": 0}
    if kata.backend in ARRAY_BACKENDS:
        return least(**make_inputs(**arguments))  # type: ignore[no-any-return]
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            return least(**make_inputs(**arguments))  # type: ignore[no-any-return]
    except RuntimeError:  # it reads values of what it draws
        return least(**make_inputs(**arguments))  # type: ignore[no-any-return]


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(asdict(cost_of(Path(sys.argv[1]), json.loads(sys.argv[2])))))  # noqa: T201
