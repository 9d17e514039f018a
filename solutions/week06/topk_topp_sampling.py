"""Kata week06/topk_topp_sampling: draw tokens by top-k and top-p, and sort no logits.

HBM: with a small top_k a row is read twice: for a bound that k logits reach, and to collect those
that do. The rest happens in shared memory.
"""

import math

import numpy as np
from numba import cuda

from harness.arrays import Array, empty

WARP = 32
FULL = 0xFFFFFFFF  # a mask that names every lane of a warp
MIN_BLOCK, BLOCK, MAX_BLOCK = WARP, 512, 512  # threads; 512 leave each 128 registers
KEPT = 128  # survivors that shared memory has room for

WARPS = MAX_BLOCK // WARP
AHEAD = 16  # loads that a thread has under way together
TOKEN_BITS = 24  # a vocabulary has at most 2^24 tokens
RANK_BITS = 32 + TOKEN_BITS
DIGIT_BITS = 8
BINS = 1 << DIGIT_BITS
BINS_PER_LANE = BINS // WARP
CELLS = BINS + 3  # a bin's mass each, and where the walk has come to
ONE = 1 << 40  # the largest logit's mass: integers add up to the same in any order


@cuda.jit(device=True)
def ordered(x):
    """
    A float32 as an int64 from 0 to 2^32 - 1: the larger the float, the larger the integer.

    -0.0 and 0.0 give the same; NaN, of either sign, gives the largest.
    """
    if x != x:
        return np.int64(FULL)
    bits = np.int64(np.float32(x + np.float32(0)).view(np.int32))  # -0.0 + 0.0 is 0.0
    if bits < 0:
        return -1 - bits
    return bits + np.int64(1 << 31)


@cuda.jit(device=True)
def logit_of(integer):
    """The float32 of `ordered`."""
    bits = integer - (1 << 31) if integer >= 1 << 31 else -1 - integer
    return np.int32(bits).view(np.float32)


@cuda.jit(device=True)
def rank_of(x, token):
    """Logit and token in one integer, the better the larger: no two tokens have the same."""
    return (ordered(x) << TOKEN_BITS) + ((1 << TOKEN_BITS) - 1 - token)


@cuda.jit(device=True)
def token_of(rank):
    """The token of `rank_of`."""
    return (1 << TOKEN_BITS) - 1 - (rank & ((1 << TOKEN_BITS) - 1))


@cuda.jit(device=True)
def load(values, first, n, held):
    """Load the thread's next AHEAD values, which lie a block apart; those past n are -inf."""
    step = cuda.blockDim.x
    if first + (AHEAD - 1) * step < n:
        # without a test for each of them the loads are under way together
        for r in range(AHEAD):
            held[r] = values[np.uint64(first + r * step)]
    else:
        for r in range(AHEAD):
            held[r] = -math.inf
            if first + r * step < n:
                held[r] = values[np.uint64(first + r * step)]


@cuda.jit(device=True)
def largest_of(values, n, of_warps):
    """The largest value, or NaN if there is one; `of_warps` is room for one of each warp."""
    held = cuda.local.array(AHEAD, np.float32)
    thread, threads = cuda.threadIdx.x, cuda.blockDim.x
    largest, broken = np.float32(-math.inf), np.int32(0)
    for first in range(thread, n, AHEAD * threads):
        load(values, first, n, held)
        for r in range(AHEAD):
            largest = max(largest, held[r])
            if held[r] != held[r]:
                broken = np.int32(1)
    for apart in (16, 8, 4, 2, 1):
        largest = max(largest, cuda.shfl_xor_sync(FULL, largest, apart))
    of_warps[thread // WARP] = largest
    if cuda.syncthreads_or(broken):
        return np.float32(math.nan)
    for warp in range(threads // WARP):
        largest = max(largest, of_warps[warp])
    return largest


@cuda.jit(device=True)
def sum_of_lower_lanes(value):
    """Sum of `value` over the lanes below the thread's own."""
    upto = value
    for apart in (1, 2, 4, 8, 16):
        below = cuda.shfl_up_sync(FULL, upto, apart)
        if cuda.threadIdx.x % WARP >= apart:
            upto += below
    return upto - value


@cuda.jit(device=True)
def mass_of(x, largest, temperature):
    """What softmax makes of `x`, in units of the largest logit's share / ONE."""
    if x == largest:  # also where both are infinite
        return ONE
    return np.int64(math.exp((x - largest) / temperature) * np.float32(ONE))


@cuda.jit(device=True)
def total_mass(values, n, lowest, largest, temperature, masses):
    """Mass of the values that rank no lower than `lowest`."""
    held = cuda.local.array(AHEAD, np.float32)
    thread, threads = cuda.threadIdx.x, cuda.blockDim.x
    if thread == 0:
        masses[0] = 0
    cuda.syncthreads()
    mass = 0
    for first in range(thread, n, AHEAD * threads):
        load(values, first, n, held)
        for r in range(AHEAD):
            token = first + r * threads
            if token < n and rank_of(held[r], token) >= lowest:
                mass += mass_of(held[r], largest, temperature)
    cuda.atomic.add(masses, 0, mass)
    cuda.syncthreads()
    mass = masses[0]
    cuda.syncthreads()
    return mass


@cuda.jit(device=True)
def select(values, n, need, largest, temperature, counts, masses, members):
    """
    Go down the ranks until the weights sum to `need`; say where that is.

    Every value weighs its mass, or 1 at a temperature of 0. Digit by digit a histogram tells the
    bin in which the sum gets there, until it is the bin of one value, or when values are counted
    until no more than KEPT are left.

    Returns:
        The lowest rank of that bin; the sum down to there; the token of one of its values.
    """
    held = cuda.local.array(AHEAD, np.float32)
    weights = cuda.local.array(BINS_PER_LANE, np.int64)
    thread, threads = cuda.threadIdx.x, cuda.blockDim.x
    # walk down the digits
    counting = temperature == 0
    prefix, above, shift, done = 0, 0, RANK_BITS, False
    while shift > 0 and not done:
        shift -= DIGIT_BITS
        for b in range(thread, BINS, threads):
            counts[b] = 0
            masses[b] = 0
        cuda.syncthreads()
        for first in range(thread, n, AHEAD * threads):
            load(values, first, n, held)
            for r in range(AHEAD):
                token = first + r * threads
                if token < n:
                    digits = rank_of(held[r], token) >> shift
                    if digits >> DIGIT_BITS == prefix:
                        b = digits % BINS
                        cuda.atomic.add(counts, b, 1)
                        members[b] = token
                        if not counting:
                            cuda.atomic.add(masses, b, mass_of(held[r], largest, temperature))
        cuda.syncthreads()

        if thread < WARP:  # each lane sums neighbouring bins, the first lane the highest
            highest = BINS - 1 - thread * BINS_PER_LANE
            own = 0
            for r in range(BINS_PER_LANE):
                weights[r] = counts[highest - r] if counting else masses[highest - r]
                own += weights[r]
            upto = above + sum_of_lower_lanes(own)
            for r in range(BINS_PER_LANE):
                if upto < need <= upto + weights[r]:
                    masses[BINS] = highest - r
                    masses[BINS + 1] = upto
                    masses[BINS + 2] = upto + weights[r]
                upto += weights[r]
        cuda.syncthreads()

        b, above, through = masses[BINS], masses[BINS + 1], masses[BINS + 2]
        token, done = members[b], counts[b] == 1 or (counting and through <= KEPT)
        prefix = prefix * BINS + b
        cuda.syncthreads()
    return prefix << shift, through, token


@cuda.jit(device=True)
def reached_by(k, values, n):
    """
    A logit that k of the values reach, and seldom many more: the best that k threads have found.

    It is -inf if there are fewer than k threads.
    """
    held = cuda.local.array(AHEAD, np.float32)
    best = np.float32(-math.inf)
    for first in range(cuda.threadIdx.x, n, AHEAD * cuda.blockDim.x):
        load(values, first, n, held)
        for r in range(AHEAD):
            best = max(best, held[r])  # of a number and NaN it is the number
    # bit by bit the largest integer that k of the bests reach
    own, reached = ordered(best), 0
    for bit in range(31, -1, -1):
        higher = reached + (1 << bit)
        if cuda.syncthreads_count(np.int32(own >= higher)) >= k:
            reached = higher
    return logit_of(reached) if reached > 0 else np.float32(-math.inf)


@cuda.jit(device=True)
def gather(values, n, bound, lowest, kept, ranks, counts):
    """
    Collect the values not below `bound` that rank no lower than `lowest`, and their ranks.

    Returns how many there are; they are in any order, and KEPT at most are stored.
    """
    held = cuda.local.array(AHEAD, np.float32)
    thread, threads = cuda.threadIdx.x, cuda.blockDim.x
    if thread == 0:
        counts[0] = 0
    cuda.syncthreads()
    for first in range(thread, n, AHEAD * threads):
        load(values, first, n, held)
        for pair in range(0, AHEAD, 2):
            # of most pairs comparisons of floats are enough; a NaN is not below anything
            if held[pair] < bound and held[pair + 1] < bound:
                continue
            for r in range(pair, pair + 2):
                token = first + r * threads
                if token < n and not held[r] < bound and rank_of(held[r], token) >= lowest:
                    place = cuda.atomic.add(counts, 0, 1)
                    if place < KEPT:
                        kept[place] = held[r]
                        ranks[place] = rank_of(held[r], token)
    cuda.syncthreads()
    found = counts[0]
    cuda.syncthreads()  # `counts` is for other things now
    return found


@cuda.jit(device=True)
def draw_from_few(kept, ranks, n, k, temperature, top_p, u, of_warps, masses, members):
    """Draw from the best k of n values, each of which counts those before it to find its place."""
    thread, threads = cuda.threadIdx.x, cuda.blockDim.x
    largest = largest_of(kept, n, of_warps)
    if not largest > -math.inf:
        return -1
    for at in range(thread, n, threads):
        rank, place = ranks[at], 0
        for other in range(n):
            if ranks[other] > rank:
                place += 1
        if place < k:
            masses[place] = mass_of(kept[at], largest, temperature)
            members[place] = token_of(rank)
    cuda.syncthreads()

    token = 0
    if thread == 0:  # sums over so few are quickest in one thread
        # find the nucleus
        total = nucleus = place = 0
        for other in range(k):
            total += masses[other]
        while nucleus < top_p * total:
            nucleus += masses[place]
            place += 1
        # draw
        place, upto = 0, masses[0]
        while upto <= u * nucleus:
            place += 1
            upto += masses[place]
        token = members[place]
    return token


@cuda.jit
def sample_rows(logits, temperature, top_k, top_p, u, out) -> None:
    """Draw a token from each row, by a block, whose first thread knows it."""
    counts = cuda.shared.array(BINS, np.int32)
    masses = cuda.shared.array(CELLS, np.int64)
    members = cuda.shared.array(BINS, np.int32)  # a token of each bin
    kept = cuda.shared.array(KEPT, np.float32)
    ranks = cuda.shared.array(KEPT, np.int64)
    of_warps = cuda.shared.array(WARPS, np.float32)

    row, vocab = cuda.blockIdx.x, logits.shape[1]
    values, heat, share, at = logits[row], temperature[row], top_p[row], u[row]
    k, token = top_k[row], -1
    if 0 <= heat < math.inf and k >= 0 and 0 < share <= 1 and 0 <= at < 1:
        if heat == 0:  # one survivor, whatever its mass
            k = 1
        if k == 0 or k > vocab:
            k = vocab
        # collect the survivors
        lowest, n, zero, least = 0, vocab, np.float32(0), np.float32(-math.inf)
        if vocab <= KEPT:
            gather(values, vocab, least, lowest, kept, ranks, counts)
        elif k < vocab:
            bound = reached_by(k, values, vocab)
            if bound > least:
                n = gather(values, vocab, bound, lowest, kept, ranks, counts)
            if n > KEPT:  # too many that are alike, or too few threads
                lowest, n, _ = select(values, vocab, k, zero, zero, counts, masses, members)
                if n <= KEPT:
                    gather(values, vocab, least, lowest, kept, ranks, counts)
        if n <= KEPT:
            token = draw_from_few(kept, ranks, n, k, heat, share, at, of_warps, masses, members)
        else:
            largest = largest_of(values, vocab, of_warps)
            if largest > -math.inf:
                # find the nucleus
                mass = total_mass(values, vocab, lowest, largest, heat, masses)
                if share < 1:
                    need = np.int64(math.ceil(share * mass))
                    _, mass, _ = select(values, vocab, need, largest, heat, counts, masses, members)
                # draw
                need = np.int64(at * mass) + 1
                _, _, token = select(values, vocab, need, largest, heat, counts, masses, members)
    if cuda.threadIdx.x == 0:
        out[row] = token


def topk_topp_sampling(
    logits: Array,
    temperature: Array,
    top_k: Array,
    top_p: Array,
    u: Array,
    out: Array | None = None,
    block: int = BLOCK,
) -> Array:
    """
    Draw one token from each row of `logits`, with parameters of its own.

    Top-k of logits / temperature first, then top-p of what softmax makes of the survivors, then
    the token at which the running probability passes `u`, all in the order of rank: larger logits
    first, equal ones by token. -1 where a row has a NaN, nothing but -inf, or a parameter outside
    its range.

    Args:
        logits: float32, at most 2^24 of a row.
        temperature: float32, finite and not negative; 0 takes the first token.
        top_k: int32, not negative; 0 keeps all, as does what exceeds the vocabulary.
        top_p: float32 in (0, 1].
        u: float32 in [0, 1).
        out: int32; allocated if not given.
        block: Threads of a block.

    Raises:
        ValueError: `logits` is not 2-D or has no tokens, an array has another dtype or not one
            element for each row, or `block` is not a multiple of 32 up to MAX_BLOCK.
    """
    # check
    if logits.ndim != 2:
        raise ValueError(f"logits: expected a 2-D array, found {logits.ndim}-D")
    rows, vocab = logits.shape
    if vocab == 0:
        raise ValueError("logits: expected at least one token, found none")
    out = empty(rows, like=top_k) if out is None else out
    if logits.dtype != np.float32:
        raise ValueError(f"logits: expected float32, found {logits.dtype}")
    for name, array, dtype in (
        ("temperature", temperature, np.float32),
        ("top_k", top_k, np.int32),
        ("top_p", top_p, np.float32),
        ("u", u, np.float32),
        ("out", out, np.int32),
    ):
        if array.dtype != dtype:
            raise ValueError(f"{name}: expected {np.dtype(dtype)}, found {array.dtype}")
        if array.shape != (rows,):
            raise ValueError(f"{name}: expected the shape {(rows,)}, found {array.shape}")
    if not MIN_BLOCK <= block <= MAX_BLOCK or block % WARP:
        raise ValueError(f"block: expected a multiple of {WARP} up to {MAX_BLOCK}, found {block}")
    # launch
    if rows:
        sample_rows[rows, block](logits, temperature, top_k, top_p, u, out)
    return out
