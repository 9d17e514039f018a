"""
Trains the tiny language model that ships: two minutes on one core.

    python -m harness.simulators.tinylm.train tinylm.npz

The same machine and the same torch give the same weights again; others give a model of the same
figures.
"""

import math
from pathlib import Path

import click
import torch
from torch import Tensor, nn

from harness.simulators.tinylm.data import draw_periodic
from harness.simulators.tinylm.model import TinyLM
from harness.simulators.tinylm.weights import save_weights, token_nll

STEPS = 2500
BATCH = 32
SEED = 1
INIT_STD = 0.05
PEAK_RATE = 5e-3
FLOOR = 0.05  # share of the peak that the rate ends at
WARMUP = 100
REPORT_EVERY = 250


def learning_rate(step: int, steps: int) -> float:
    """Warm up in a line, then follow a half cosine down to FLOOR of the peak."""
    cosine = 0.5 * (1 + math.cos(math.pi * step / steps))
    return PEAK_RATE * min(1.0, (step + 1) / WARMUP) * (FLOOR + (1 - FLOOR) * cosine)


def train(steps: int = STEPS, seed: int = SEED, *, report: bool = False) -> TinyLM:
    """Train for `steps` batches of BATCH sequences with AdamW, on the CPU."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = TinyLM()
        for parameter in model.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, 0.0, INIT_STD)
    random = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=PEAK_RATE, betas=(0.9, 0.95), weight_decay=0.1
    )
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps)
        loss = _learn(model, optimizer, random)
        if report and (step + 1) % REPORT_EVERY == 0:
            click.echo(f"step {step + 1} of {steps}: {loss:.3f} nats a token")
    return model.eval()


def _learn(model: TinyLM, optimizer: torch.optim.Optimizer, random: torch.Generator) -> Tensor:
    """Take one step and return the loss before it."""
    config = model.config
    tokens = draw_periodic(BATCH, config.train_length + 1, random, config.vocab)
    loss = token_nll(model(tokens[:, :-1]), tokens[:, 1:]).mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.detach()


@click.command()
@click.argument("out", type=click.Path(dir_okay=False, path_type=Path))
def main(out: Path) -> None:
    """Train the tiny language model and store its weights in OUT."""
    torch.set_num_threads(1)
    save_weights(train(report=True), out)


if __name__ == "__main__":
    main()
