"""The time of one engine step: a roofline at stated shares of a device's peaks."""

from collections.abc import Iterable
from dataclasses import dataclass

from harness.base.errors import UsageProblem
from harness.hardware.profiles import Profile
from harness.simulators.serving.traces import Trace

# The shares of the profile's peaks that a step reaches, and what it costs to start one.
COMPUTE_SHARE = 0.6
BANDWIDTH_SHARE = 0.8
STEP_OVERHEAD_S = 20e-6
ACTIVATION_BYTES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """The sizes of a decoder that set its cost."""

    params: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    d_model: int


llama2_7b = ModelSpec(
    params=6_738_415_616, layers=32, heads=32, kv_heads=32, head_dim=128, d_model=4096
)
llama3_8b = ModelSpec(
    params=8_030_261_248, layers=32, heads=32, kv_heads=8, head_dim=128, d_model=4096
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """What steps have to do: tokens through the model, query-key pairs, cached tokens read."""

    tokens: int
    pairs: float
    kv_reads: int
    steps: int = 1


@dataclass(frozen=True, slots=True)
class StepModel:
    """
    How long an engine step takes on `tp` devices of `profile`: a roofline at stated shares.

    `w_bytes` and `kv_bytes` are bytes per weight and per cached value; `dtype` names the peak
    that the matrix products run at.
    """

    profile: Profile
    model: ModelSpec
    tp: int = 1
    w_bytes: float = 2
    kv_bytes: float = 2
    dtype: str = "float16"

    def __post_init__(self) -> None:
        if self.tp < 1 or (self.tp > 1 and self.profile.link_bandwidth <= 0):
            raise UsageProblem(
                "StepModel: expected tp = 1, or more on a device with a link, "
                f"found tp = {self.tp} and a link of {self.profile.link_bandwidth:g} B/s. "
                "Choose another profile."
            )

    def kv_bytes_per_token(self) -> float:
        """Bytes one token keeps in the cache, over all layers and devices."""
        return 2 * self.model.layers * self.model.kv_heads * self.model.head_dim * self.kv_bytes

    def time(self, prefill: Iterable[tuple[int, int]] = (), decode: Iterable[int] = ()) -> float:
        """
        Seconds of one step.

        `prefill` holds (chunk, past): tokens put through now and those cached before; `decode`
        holds contexts that include the token put through now, so `decode=[c]` costs what
        `prefill=[(1, c - 1)]` does. Without tokens nothing is launched, in no time.
        """
        chunks, contexts = [*prefill], [*decode]
        if not chunks and not contexts:
            return 0.0
        cached = sum(contexts)
        return self._seconds(
            _Work(
                tokens=sum(chunk for chunk, _ in chunks) + len(contexts),
                pairs=cached + sum(chunk * (past + (chunk + 1) / 2) for chunk, past in chunks),
                kv_reads=cached + sum(chunk + past for chunk, past in chunks),
            )
        )

    def least_time(self, trace: Trace, batch: int) -> float:
        """
        Seconds of work in `trace` for an engine that emits `batch` tokens at every step.

        No schedule with at most `batch` requests in a step is busy for less: each prompt is read
        once, and compute and memory traffic overlap perfectly.
        """
        decodes = [(request.prompt_tokens, request.output_tokens - 1) for request in trace]
        cached = sum(more * prompt + more * (more + 1) // 2 for prompt, more in decodes)
        emitted = sum(request.output_tokens for request in trace)
        return self._seconds(
            _Work(
                tokens=sum(prompt + more for prompt, more in decodes),
                pairs=cached + sum(prompt * (prompt + 1) / 2 for prompt, _ in decodes),
                kv_reads=cached + sum(prompt for prompt, _ in decodes),
                steps=-(-emitted // batch),
            )
        )

    def capacity(self, trace: Trace, batch: int = 64) -> float:
        """Requests like those of `trace` a second that no engine of that batch size exceeds."""
        return len(trace) / self.least_time(trace, batch)

    def _seconds(self, work: _Work) -> float:
        model, profile = self.model, self.profile
        products = 2 * model.params * work.tokens
        attention = 4 * model.layers * model.heads * model.head_dim * work.pairs
        moved = self.w_bytes * model.params * work.steps
        moved += self.kv_bytes_per_token() * work.kv_reads
        compute_s = (products + attention) / (COMPUTE_SHARE * profile.peak_of(self.dtype))
        memory_s = moved / (BANDWIDTH_SHARE * profile.bandwidth)
        overhead_s = STEP_OVERHEAD_S * work.steps
        return max(compute_s, memory_s) / self.tp + overhead_s + self._communication_s(work)

    def _communication_s(self, work: _Work) -> float:
        """Two ring all-reduces of the activations per layer and step; none on one device."""
        if self.tp == 1:
            return 0.0
        sent = 2 * (self.tp - 1) / self.tp * work.tokens * self.model.d_model * ACTIVATION_BYTES
        latency_s = self.profile.link_latency_s * work.steps
        return 2 * self.model.layers * (sent / self.profile.link_bandwidth + latency_s)
