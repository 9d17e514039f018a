"""
A tiny language model, trained and shipped: 84,288 parameters that know how to repeat a pattern.

    model = load_tinylm()
    tokens = periodic_tokens(32, 129, seed=0)
    token_nll(model(tokens[:, :-1]), tokens[:, 1:])     # [32, 128], in nats

It was trained at 64 positions, on what `periodic_tokens` draws, so that extending its context,
quantizing, pruning and distilling it show for real, each in under a second. Over the second half
of the positions it has a mean NLL of 1.02 nats at 64 positions and of 1.85, 3.07 and 3.34 at 128,
256 and 512; of 1.80 over all 64. A uniform guess has ln 32 = 3.47.

`python -m harness.simulators.tinylm.train` trains it again, in two minutes on one core.
"""

from harness.simulators.tinylm.data import periodic_tokens
from harness.simulators.tinylm.model import (
    Attention,
    TinyConfig,
    TinyLM,
    causal_attention,
    rotate,
)
from harness.simulators.tinylm.weights import load_tinylm, token_nll

__all__ = [
    "Attention",
    "TinyConfig",
    "TinyLM",
    "causal_attention",
    "load_tinylm",
    "periodic_tokens",
    "rotate",
    "token_nll",
]
