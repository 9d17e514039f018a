"""Kata week04/attention_io: bytes between device memory and chip, for one head, forward.

n rows of q, k, v and o, d channels each; tiles of br rows of q and bc rows of k and v.
"""

STATISTIC_BYTES = 4  # maxima, sums and log-sum-exps are float32, whatever the matrices are
TILE = 16  # tiles come in multiples of what a tensor core multiplies

# shared memory that one thread block may have, by GPU: CUDA C++ Programming Guide
SRAM_BYTES = {"T4": 64 * 1024, "A100": 163 * 1024, "H100": 227 * 1024}


def standard_bytes(n: int, d: int, itemsize: int) -> int:
    """
    Bytes that attention moves when it stores scores and probabilities: FlashAttention, algorithm 0.

    Raises:
        ValueError: an argument is below 1; the message names it.
    """
    # TODO(kata): check, loads and stores by line (about 6 lines with helpers)
    raise NotImplementedError


def flash1_bytes(n: int, d: int, br: int, bc: int, itemsize: int) -> int:
    """
    Bytes that FlashAttention moves: algorithm 1, K and V in the outer loop.

    O and the statistics l and m live in device memory from the start; br and bc may exceed n.

    Raises:
        ValueError: an argument is below 1; the message names it.
    """
    raise NotImplementedError  # TODO(kata): check, keys outside (about 7 lines with helpers)


def flash2_bytes(n: int, d: int, br: int, bc: int, itemsize: int) -> int:
    """
    Bytes that FlashAttention-2 moves: algorithm 1, Q in the outer loop.

    O stays on chip until it is done; one statistic per row, the log-sum-exp, is written with it.

    Raises:
        ValueError: an argument is below 1; the message names it.
    """
    raise NotImplementedError  # TODO(kata): check, queries outside (3 lines)


def fa1_tiles(sram_elements: int, d: int) -> tuple[int, int]:
    """
    Return the tiles (br, bc) of FlashAttention's algorithm 1 for an SRAM of that many elements.

    Raises:
        ValueError: an argument is below 1; the message names it.
    """
    raise NotImplementedError  # TODO(kata): check, room on the chip (3 lines)


def smem_bytes(br: int, bc: int, d: int, itemsize: int, stages: int = 1) -> int:
    """
    Shared memory of one tile of Q and `stages` tiles of K and of V.

    Raises:
        ValueError: an argument is below 1; the message names it.
    """
    raise NotImplementedError  # TODO(kata): check, room on the chip (2 lines)


def best_tiles(n: int, d: int, itemsize: int, sram_bytes: int, stages: int = 1) -> tuple[int, int]:
    """
    Return the tiles (br, bc) whose `smem_bytes` fit and whose `flash2_bytes` are the fewest.

    Both are multiples of 16, up to the first that covers n. Among equals the largest bc wins,
    then the smallest br.

    Raises:
        ValueError: an argument is below 1, or no tiles fit `sram_bytes`; the message names it.
    """
    raise NotImplementedError  # TODO(kata): check, fewest passes (about 15 lines with helpers)


def score_matrix_bytes(batch: int, heads: int, n: int, itemsize: int) -> int:
    """
    Bytes of the scores of one layer, if they are stored.

    Raises:
        ValueError: an argument is below 1; the message names it.
    """
    raise NotImplementedError  # TODO(kata): (2 lines)
