"""What is right: published runs, and the formula of the PaLM paper in exact fractions."""

from fractions import Fraction

PALM = {"params": 540.35e9, "layers": 118, "d": 18432, "heads": 48, "d_head": 256}
MT_NLG = {"params": 530e9, "layers": 105, "d": 20480, "heads": 128, "d_head": 160}
LLAMA3_405B = {
    "params": 405_853_388_800, "layers": 126, "d": 16384, "heads": 128, "d_head": 128,
}  # fmt: skip
MIXTRAL = {
    "params": 46.7e9, "active_params": 12.9e9, "layers": 32, "d": 4096, "heads": 32, "d_head": 128,
}  # fmt: skip

# model, tokens per second, chips, chip, with attention, MFU; sequences of 2048 tokens. The shares
# of MT-NLG are 29.8 and 30.3 % from these figures; the PaLM paper's appendix B prints 0.1 less.
PUBLISHED = {
    "palm-540b": (PALM, 238.3e3, 6144, "TPU_V4", True, 0.462),
    "mt-nlg-530b": (MT_NLG, 65.43e3, 2240, "A100", False, 0.297),
    "mt-nlg-530b with attention": (MT_NLG, 65.43e3, 2240, "A100", True, 0.302),
}


def share(fields, tokens_per_s, n_chips, dense_peak, seq):
    """(6N + 12·L·H·Q·T) · tokens/s over the peak of all chips, exactly."""
    active = fields.get("active_params") or fields["params"]
    per_token = 6 * Fraction(active) + 12 * seq * (
        fields["layers"] * fields["heads"] * fields["d_head"]
    )
    return per_token * Fraction(tokens_per_s) / (n_chips * Fraction(dense_peak))
