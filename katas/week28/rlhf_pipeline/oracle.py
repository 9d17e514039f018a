"""What is given: a model with adapters, data of known utility, a store that takes its time."""

import copy
import hashlib

import torch
from torch import nn

from harness.simulators.deaths import point

VOCAB, PROMPT, ANSWER = 16, 2, 4
START = VOCAB
LAYERS = {"q": (24, 24), "k": (24, 24), "v": (24, 24), "up": (24, 48), "down": (48, 24)}
LAYERS |= {"head": (24, VOCAB)}
ADAPTED, RANK = ("q", "v", "up", "head"), 4


class Model:
    """A causal model of one block in 4 bits, and adapters of which one or none is active."""

    def __init__(self, seed=0, device="cpu"):
        generator = torch.Generator().manual_seed(seed)
        self.device = torch.device(device)
        quantiles = torch.linspace(0.03, 0.97, 16, dtype=torch.float64)
        self.levels = torch.special.ndtri(quantiles).float().to(device) / 1.88
        self.words = torch.randn(VOCAB + 1, 24, generator=generator).to(device)
        self.places = torch.randn(PROMPT + ANSWER, 24, generator=generator).to(device) / 2
        self.base = {}
        for name, (wide, out) in LAYERS.items():
            weight = torch.randn(out, wide, generator=generator) / wide**0.5
            absmax = weight.abs().amax(1, keepdim=True)
            levels = self.levels.cpu()
            codes = (weight[:, :, None] / absmax[:, :, None] - levels).abs().argmin(2)
            self.base[name] = codes.to(torch.uint8).to(device), absmax.to(device)
        self.slots, self.active = {}, None
        self.passes = []  # (active adapter, tokens, followed by autograd)
        self.samples = []  # active adapter
        self.seconds, self.peak_bytes = 0, 0  # what `Meter` shows

    def add(self, slot, like=None):
        """Make an adapter that changes nothing, or is a copy of another."""
        if slot in self.slots:
            raise ValueError(f"slot: there is an adapter {slot!r} already")
        if like is not None:
            values = [one.detach().clone() for one in self.slots[like]]
        else:
            generator, values = torch.Generator().manual_seed(1), []
            for name in ADAPTED:
                wide, out = LAYERS[name]
                down = torch.randn(RANK, wide, generator=generator) / wide**0.5
                values += [down.to(self.device), torch.zeros(out, RANK, device=self.device)]
        self.slots[slot] = [nn.Parameter(one) for one in values]

    def adapter(self, slot):
        """List the parameters of an adapter."""
        return list(self.slots[slot])

    def use(self, slot):
        """Compute with this adapter from now on, or with none."""
        assert slot is None or slot in self.slots, f"there is no adapter {slot!r}"
        self.active = slot

    def _linear(self, name, x):
        codes, absmax = self.base[name]
        y = x @ (self.levels[codes.long()] * absmax).T
        if self.active is None or name not in ADAPTED:
            return y
        at = 2 * ADAPTED.index(name)
        down, up = self.slots[self.active][at : at + 2]
        return y + 2 * (x @ down.T) @ up.T

    def _logits(self, tokens, documents=None):
        if documents is None:
            documents = torch.zeros_like(tokens)
        apart = documents[:, :, None] != documents[:, None, :]
        first = (~apart).int().argmax(2)  # of each token's document
        at = torch.arange(tokens.shape[1], device=tokens.device)
        before = torch.cat([tokens[:, -1:], tokens[:, :-1]], dim=1)
        before = before.masked_fill(first == at, START)
        places = (at - first).clamp(max=len(self.places) - 1)  # padding may be longer
        x = self.words[before] + self.places[places]
        q, k, v = (self._linear(name, x) for name in ("q", "k", "v"))
        scores = q @ k.transpose(1, 2) / 24**0.5
        hidden = apart | (at[None, :] > at[:, None])
        x = x + scores.masked_fill(hidden, float("-inf")).softmax(2) @ v
        x = x + self._linear("down", torch.tanh(self._linear("up", x)))
        return self._linear("head", x / x.square().mean(2, keepdim=True).sqrt())

    def __call__(self, tokens, documents=None):
        """Map tokens [n, t] to the log-probability of each, [n, t]."""
        point("pass")
        graph = torch.is_grad_enabled()
        self.passes.append((self.active, tokens.numel(), graph))
        self.works(3 if graph else 1, tokens.numel() * (50 if graph else 9))
        logp = self._logits(tokens, documents).log_softmax(2)
        return logp.gather(2, tokens[:, :, None])[:, :, 0]

    def works(self, seconds, size):
        """Let so much time pass, with so many bytes alive: what `Meter` shows."""
        self.seconds += seconds
        self.peak_bytes = max(self.peak_bytes, size)

    @torch.no_grad()
    def sample(self, prompts, generator):
        """Answer prompts [n, 2] with the active adapter; returns both, [n, 6]."""
        point("sample")
        self.samples.append(self.active)
        self.works(5, 7 * prompts.numel())
        tokens = prompts
        for _ in range(ANSWER):
            longer = torch.cat([tokens, tokens[:, :1]], dim=1)
            chances = self._logits(longer)[:, -1].softmax(1).cpu()
            drawn = torch.multinomial(chances, 1, generator=generator)
            tokens = torch.cat([tokens, drawn.to(tokens)], dim=1)
        return tokens

    def __deepcopy__(self, memo):
        raise AssertionError("the model: expected one, found a copy of it")

    def fingerprint(self):
        """Hash the base."""
        parts = [one.cpu().numpy().tobytes() for pair in self.base.values() for one in pair]
        return hashlib.sha256(b"".join(parts)).hexdigest()


class Meter:
    """A clock and a memory of which only passes and writes take any."""

    def __init__(self, model):
        self.model = model

    def seconds(self):
        """Return the time."""
        return float(self.model.seconds)

    def reset_peak(self):
        """Count the peak from here on."""
        self.model.peak_bytes = 0

    def peak_bytes(self):
        """Return the peak."""
        return self.model.peak_bytes


class Data:
    """
    Instructions, preferences and prompts by step; even tokens are what answers are worth.

    A token of an answer is one of two, which the one before it decides: 8 and 9, 10 and 11, 12
    and 13, 14 and 15 follow each other, and a prompt that ends with 0 or 1 is answered by 10 or
    11. Which of the two is a matter of taste.
    """

    def __init__(self, seed=0, device="cpu"):
        self.seed, self.device = seed, device

    def _draw(self, kind, step, rows):
        generator = torch.Generator().manual_seed(hash((self.seed, kind, step)) % 2**31)
        prompts = torch.randint(VOCAB // 2, (rows, PROMPT), generator=generator)
        pair = (prompts[:, -1:] // 2 + 1 + torch.arange(ANSWER)) % 4
        taste = torch.randint(2, (2, rows, ANSWER), generator=generator)
        return prompts, VOCAB // 2 + 2 * pair + taste

    def _mask(self, rows):
        return (torch.arange(PROMPT + ANSWER) >= PROMPT).expand(rows, -1).to(self.device)

    def sft(self, step, rows=16):
        """Return examples, each of 3 to 6 tokens, with a mask of its answer."""
        prompts, answers = self._draw(1, step, rows)
        tokens = torch.cat([prompts, answers[0]], dim=1).to(self.device)
        mask = self._mask(rows)
        # short ones and a few long ones, in an order that differs from step to step
        lengths = [PROMPT + (1, 2, 4, 1)[(at + at // 4 * step) % 4] for at in range(rows)]
        return [(tokens[at, :most], mask[at, :most]) for at, most in enumerate(lengths)]

    def pairs(self, step, rows=8):
        """Return tokens and mask of `rows` chosen answers, then of as many rejected ones."""
        prompts, (one, other) = self._draw(2, step, rows)
        both = torch.stack([torch.cat([prompts, each], dim=1) for each in (one, other)])
        tied = self.utility(both[0]) == self.utility(both[1])
        both[1, tied, -1] ^= 1  # odd to even, or even to odd
        first = self.utility(both[0]) > self.utility(both[1])
        chosen = torch.where(first[:, None], both[0], both[1])
        rejected = torch.where(first[:, None], both[1], both[0])
        return torch.cat([chosen, rejected]).to(self.device), self._mask(2 * rows)

    def prompts(self, step, rows=6):
        """Return prompts [rows, 2]."""
        return self._draw(3, step, rows)[0].to(self.device)

    def held_out(self, rows=64):
        """Return prompts that no step has."""
        return self._draw(4, 0, rows)[0].to(self.device)

    def utility(self, tokens):
        """Count the share of even tokens in an answer."""
        return (tokens[:, PROMPT:] % 2 == 0).float().mean(1)


class Store:
    """Checkpoints, written while training goes on: each is read when it is waited for."""

    def __init__(self, model):
        self.written, self.committed = {}, []
        self.model = model  # whose passes show what went on meanwhile
        self.bytes, self.overlapped, self.running = [], [], None
        self.places = []  # passes that were followed by autograd before each write

    def write(self, name, state):
        """Start to write; `wait()` of what this returns ends when it is written."""
        assert self.running is None, "store.write: another write is in flight"
        assert name not in self.committed, f"store.write: {name!r} is committed already"
        self.running = name, state, len(self.model.passes)
        self.places.append(sum(graph for *_, graph in self.model.passes))
        return self

    def wait(self):
        """End the write in flight."""
        assert self.running is not None, "wait: nothing is being written"
        name, state, before = self.running
        point("wait")
        self.running = None
        self.overlapped.append(len(self.model.passes) > before)
        self.model.works(1000, 10**9)  # which are no step's
        tensors = []
        self.written[name] = _plain(state, tensors)
        self.bytes.append(sum(one.nbytes for one in tensors))

    def commit(self, name):
        """Let a checkpoint that is written be the latest."""
        assert name in self.written, f"store.commit: {name!r} is not written yet"
        point("commit")
        self.committed.append(name)

    def latest(self):
        """Return the latest checkpoint that was committed, or None."""
        return copy.deepcopy(self.written[self.committed[-1]]) if self.committed else None

    def reopened(self, model):
        """What another process finds: what was committed."""
        found = Store(model)
        found.written, found.committed = dict(self.written), list(self.committed)
        return found


class Disk(Store):
    """A store whose latest checkpoint outlives its process."""

    def __init__(self, model, file):
        super().__init__(model)
        self.file = file
        if file.exists():
            name, state = torch.load(file, weights_only=True)
            self.written[name], self.committed = state, [name]

    def commit(self, name):
        """Put it on the disk, at once or not at all."""
        super().commit(name)
        unfinished = self.file.with_suffix(".tmp")
        torch.save((name, self.written[name]), unfinished)
        unfinished.replace(self.file)


def _plain(state, tensors):
    """Copy what can be written: numbers, strings, tensors, and lists, tuples and dicts of them."""
    if isinstance(state, torch.Tensor):
        tensors.append(state)
        return state.detach().clone()
    if isinstance(state, dict):
        return {key: _plain(value, tensors) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        return type(state)(_plain(value, tensors) for value in state)
    assert state is None or isinstance(state, (int, float, str, bool)), (
        f"store.write: expected tensors, numbers, strings, lists, tuples, dicts, found {state!r}"
    )
    return state


def first_steps(stage, model, data, cfg, steps=4):
    """Train the adapter of that name for a few steps; return losses, and what else is noted."""
    parameters, found = model.adapter(stage), []
    optimizer = torch.optim.Adam(parameters, lr=cfg.lr)
    for step in range(steps):
        model.use(stage)
        if stage == "sft":
            examples = data.sft(step)
            losses = torch.cat([-model(one[None])[0, mask] for one, mask in examples])
            loss, notes = losses.sum() / len(losses), []
        elif stage == "dpo":
            tokens, mask = data.pairs(step)
            now = (model(tokens) * mask).sum(1)
            model.use("sft")
            apart = now - (model(tokens) * mask).sum(1).detach()
            half = len(apart) // 2
            margins = cfg.beta * (apart[:half] - apart[half:])
            loss = (1 + (-margins).exp()).log().mean()
            notes = [margins.mean().item(), sum(one > 0 for one in margins.tolist()) / half]
        else:
            generator = torch.Generator().manual_seed(cfg.seed + step)
            prompts = data.prompts(step)
            tokens = torch.cat(
                [prompts[at : at + 1].repeat(cfg.group, 1) for at in range(len(prompts))]
            )
            tokens = model.sample(tokens, generator)
            logp = model(tokens)[:, PROMPT:]
            model.use("sft")
            apart = model(tokens)[:, PROMPT:].detach() - logp
            total, divergence = 0, apart.exp() - apart - 1
            for rows in torch.arange(len(tokens)).split(cfg.group):
                r = data.utility(tokens[rows])
                a = (r - r.mean()) / (r.std() + 1e-4)
                ratio = (logp[rows] - logp[rows].detach()).exp()
                total = total + (cfg.kl * divergence[rows] - ratio * a[:, None]).sum()
            loss = total / logp.numel()
            notes = [data.utility(tokens).mean().item(), divergence.mean().item()]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append((loss.item(), *notes))
    model.use(stage)
    return [list(column) for column in zip(*found, strict=True)]
