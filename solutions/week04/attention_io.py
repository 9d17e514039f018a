"""Kata week04/attention_io: count what each loop order reads and writes again.

Whatever the inner loop touches moves once for each pass of the outer one.
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
    # check
    _check_positive(n=n, d=d, itemsize=itemsize)
    # loads and stores by line
    # q, k in; scores out; scores in, probabilities out; probabilities, v in; o out
    return (4 * n * d + 4 * n * n) * itemsize


def flash1_bytes(n: int, d: int, br: int, bc: int, itemsize: int) -> int:
    """
    Bytes that FlashAttention moves: algorithm 1, K and V in the outer loop.

    O and the statistics l and m live in device memory from the start; br and bc may exceed n.

    Raises:
        ValueError: an argument is below 1; the message names it.
    """
    # check
    _check_positive(n=n, d=d, br=br, bc=bc, itemsize=itemsize)
    # keys outside
    matrix, statistic = n * d * itemsize, n * STATISTIC_BYTES
    start = matrix + 2 * statistic  # o, l and m
    each_pass = 3 * matrix + 4 * statistic  # q, o, l, m in; o, l, m out
    return start + 2 * matrix + _tiles(n, bc) * each_pass


def flash2_bytes(n: int, d: int, br: int, bc: int, itemsize: int) -> int:
    """
    Bytes that FlashAttention-2 moves: algorithm 1, Q in the outer loop.

    O stays on chip until it is done; one statistic per row, the log-sum-exp, is written with it.

    Raises:
        ValueError: an argument is below 1; the message names it.
    """
    # check
    _check_positive(n=n, d=d, br=br, bc=bc, itemsize=itemsize)
    # queries outside
    matrix = n * d * itemsize
    return 2 * matrix + n * STATISTIC_BYTES + _tiles(n, br) * 2 * matrix


def fa1_tiles(sram_elements: int, d: int) -> tuple[int, int]:
    """
    Return the tiles (br, bc) of FlashAttention's algorithm 1 for an SRAM of that many elements.

    Raises:
        ValueError: an argument is below 1; the message names it.
    """
    # check
    _check_positive(sram_elements=sram_elements, d=d)
    # room on the chip
    bc = _tiles(sram_elements, 4 * d)
    return min(bc, d), bc


def smem_bytes(br: int, bc: int, d: int, itemsize: int, stages: int = 1) -> int:
    """
    Shared memory of one tile of Q and `stages` tiles of K and of V.

    Raises:
        ValueError: an argument is below 1; the message names it.
    """
    # check
    _check_positive(br=br, bc=bc, d=d, itemsize=itemsize, stages=stages)
    # room on the chip
    return (br + 2 * stages * bc) * d * itemsize


def best_tiles(n: int, d: int, itemsize: int, sram_bytes: int, stages: int = 1) -> tuple[int, int]:
    """
    Return the tiles (br, bc) whose `smem_bytes` fit and whose `flash2_bytes` are the fewest.

    Both are multiples of 16, up to the first that covers n. Among equals the largest bc wins,
    then the smallest br.

    Raises:
        ValueError: an argument is below 1, or no tiles fit `sram_bytes`; the message names it.
    """
    # check
    _check_positive(n=n)
    smallest = smem_bytes(TILE, TILE, d, itemsize, stages)
    if smallest > sram_bytes:
        raise ValueError(f"sram_bytes: expected {smallest} or more, found {sram_bytes}")
    # fewest passes
    whole = _round_up(n)
    rows = sram_bytes // (d * itemsize)  # of q, k or v that fit
    tallest = min(whole, _round_down(rows - 2 * stages * TILE))
    # as few passes as the tallest tile makes, and no row more than they need: the rest is for k, v
    br = _round_up(_tiles(n, _tiles(n, tallest)))
    return br, min(whole, _round_down((rows - br) // (2 * stages)))


def score_matrix_bytes(batch: int, heads: int, n: int, itemsize: int) -> int:
    """
    Bytes of the scores of one layer, if they are stored.

    Raises:
        ValueError: an argument is below 1; the message names it.
    """
    _check_positive(batch=batch, heads=heads, n=n, itemsize=itemsize)
    return batch * heads * n * n * itemsize


def _tiles(length: int, tile: int) -> int:
    """Tiles that cover `length`, the last one perhaps in part."""
    return -(-length // tile)


def _round_up(length: int) -> int:
    return TILE * _tiles(length, TILE)


def _round_down(length: int) -> int:
    return TILE * (length // TILE)


def _check_positive(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name}: expected 1 or more, found {size}")
