"""The weights that ship, and the measure they are judged by."""

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from harness.simulators.tinylm.model import TinyLM

WEIGHTS = Path(__file__).with_name("tinylm.npz")


def load_tinylm() -> TinyLM:
    """Return the model that ships, a fresh copy on the CPU: float32 values of float16 weights."""
    model = TinyLM()
    with np.load(WEIGHTS, allow_pickle=False) as stored:
        model.load_state_dict({name: torch.from_numpy(stored[name]) for name in stored.files})
    return model.eval()


def save_weights(model: TinyLM, path: Path) -> None:
    """Store the parameters by name as float16, what `load_tinylm` reads."""
    halves = {name: weight.detach().half().numpy() for name, weight in model.named_parameters()}
    np.savez(path, **halves)  # type: ignore[arg-type]


def token_nll(
    logits: Float[Tensor, "b t vocab"], targets: Int[Tensor, "b t"]
) -> Float[Tensor, "b t"]:
    """Return the negative log-likelihood of each target, in nats."""
    return F.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
