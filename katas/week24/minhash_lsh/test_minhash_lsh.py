"""Near-duplicates: shingles, minima exact to the bit, bands, clusters, and few comparisons."""

import random
from fractions import Fraction

import numpy as np
import pytest

P = 2**61 - 1


def ints(array):
    return [int(each) for each in array]


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("The cat: sat on the MAT.", "the cat sat on the mat"),
        ("the\u00a0cat\r\nsat\ton  the mat", "the cat sat on the mat"),
        ("Die STRASSE am großen Fluß ist", "die straße am GROSSEN fluss ist"),
        ("ﬁve \uff46\uff55\uff4c\uff4c widths are the same", "five full widths are the same"),
        ("un cafe\u0301 pour la table six", "un café pour la table six"),
        ("five words\udcff and a broken byte", "five words and a broken byte"),
        ("a_b is one word not two", "A_B is one word not two"),
        ("\U0001d400 bold capital is small too", "a bold capital is small too"),
    ],
    ids=["case", "space", "casefold", "width", "composed", "surrogate", "underscore", "bold"],
)
def test_what_does_not_matter_is_normalised(kata, oracle, text, same):
    expected = sorted(oracle.shingles(same))
    for each in (text, same):
        found = kata.shingles(each)
        assert ints(found) == expected, f"{each!r}: expected {expected}, found {ints(found)}"


@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize(
    "text",
    [
        "",
        " … \n—!",
        "one",
        "a b c d",
        "a b c d e",
        "a b c d e f",
        "la la la la la la la",
        "a c a b a c",
    ],
    ids=["empty", "no words", "one word", "four", "five", "six", "repeated", "twice"],
)
def test_shingles_are_the_distinct_runs_of_n_words(kata, oracle, text, n):
    found = kata.shingles(text, n)
    expected = sorted(oracle.shingles(text, n))
    assert ints(found) == expected, f"{text!r}, n={n}: expected {expected}, found {ints(found)}"
    assert found.dtype == np.uint64


def test_minima_are_exact(kata, oracle, seed):
    draw = random.Random(seed)
    corners = [0, 1, P - 1, P, P + 1, 2**32 - 1, 2**32, 2**63, 2 * P, 7 * P + 3, 2**64 - 1]
    constants = [1, 2, 2**29, 2**32 - 1, 2**32, 2**60 + 2**32 - 1, P - 1]
    constants += [draw.randrange(1, P) for _ in range(9)]
    offsets = [P - 1, 0, *(draw.randrange(P) for _ in range(14))]
    a, b = np.array(constants, dtype=np.uint64), np.array(offsets, dtype=np.uint64)
    sets = [[each] for each in corners] + [
        [draw.getrandbits(64) for _ in range(m)] for m in (2, 9, 300)
    ]
    for values in sets:
        sh = np.array(values, dtype=np.uint64)
        sh.setflags(write=False)
        found = kata.minhash(sh, a, b)
        expected = oracle.minhash(values, constants, offsets)
        for i, (own, right) in enumerate(zip(ints(found), expected, strict=True)):
            assert own == right, (
                f"minhash of {values[:3]}, a={constants[i]}, b={offsets[i]}: expected {right}, "
                f"found {own}"
            )
        assert found.dtype == np.uint64


def test_no_shingles_have_the_empty_signature(kata):
    a, b = kata.permutations(6)
    found = kata.minhash(np.zeros(0, dtype=np.uint64), a, b)
    assert ints(found) == [2**64 - 1] * 6


CASES = {
    "no documents": (np.zeros((0, 4)), 2, 2, []),
    "one document": (np.zeros((1, 4)), 2, 2, []),
    "last band": ([[1, 2, 3, 4], [9, 9, 3, 4], [1, 9, 9, 4]], 2, 2, [[0, 1]]),
    "another band": ([[1, 2, 3, 4], [3, 4, 5, 6]], 2, 2, []),
    "another order": ([[1, 2, 3, 4], [2, 1, 4, 3]], 2, 2, []),
    "same sum and xor": ([[1, 6, 0, 0], [2, 5, 1, 1]], 2, 2, []),
    "high bits": ([[2**63, 2**60 + 1], [2**63 - 1, 2**60], [2**63, 2**60 + 1]], 1, 2, [[0, 2]]),
    "columns that are not used": ([[1, 2, 7, 7, 5], [1, 3, 8, 8, 5]], 2, 2, []),
    "in every band, once": ([[5, 5]] * 3, 2, 1, [[0, 1], [0, 2], [1, 2]]),
    "pairs in order": ([[7, 1], [8, 1], [8, 2], [7, 3]], 2, 1, [[0, 1], [0, 3], [1, 2]]),
    "empty": ([[2**64 - 1] * 2, [4, 4], [2**64 - 1] * 2], 2, 1, []),
    "not empty throughout": ([[2**64 - 1, 4], [2**64 - 1, 4], [4, 2**64 - 1]], 1, 2, [[0, 1]]),
    "empty but for what is not used": (
        [[2**64 - 1, 2**64 - 1, 7], [2**64 - 1, 2**64 - 1, 8]], 1, 2, [[0, 1]]
    ),
    "the largest at the end": ([[2**64 - 2, 2**64 - 1]] * 2, 1, 2, [[0, 1]]),
}  # fmt: skip


@pytest.mark.parametrize("example", CASES.values(), ids=CASES)
def test_candidates_agree_in_a_whole_band(kata, example):
    rows_of, bands, rows, expected = example
    sig = np.array(rows_of, dtype=np.uint64)
    sig.setflags(write=False)
    found = kata.lsh_candidates(sig, bands, rows)
    assert found.tolist() == expected, (
        f"sig {sig.tolist()}, {bands} bands of {rows}: expected {expected}, found {found.tolist()}"
    )
    assert (found.dtype, found.shape) == (np.int64, (len(expected), 2))


def test_pairs_of_many_documents(kata):
    sig = np.arange(50_000, dtype=np.uint64)[:, None]
    sig[-1] = sig[-2]
    found = kata.lsh_candidates(sig, 1, 1).tolist()
    assert found == [[49_998, 49_999]], f"the last two of 50,000 are equal: found {found}"


def test_signatures_may_be_columns_of_a_larger_array(kata, oracle, seed):
    draw = np.random.default_rng(seed)
    sig = draw.integers(0, 3, (12, 30), dtype=np.uint64)
    expected = oracle.candidates(sig[:, ::2].tolist(), 5, 3)
    for view in (sig[:, ::2], np.asfortranarray(sig[:, ::2])):
        assert kata.lsh_candidates(view, 5, 3).tolist() == expected


def chain(*starts, length=30):
    """Documents that are windows of one text: the further apart, the less they share."""
    source = [f"word{i}" for i in range(200)]
    return [" ".join(source[start : start + length]) for start in starts]


@pytest.mark.parametrize(
    ("starts", "threshold", "keep"),
    [
        ((0, 0, 0), 1.0, [True, False, False]),
        ((0, 3, 6), 0.75, [True, False, False]),
        ((0, 6, 3), 0.75, [True, False, False]),
        ((6, 0, 3, 9), 0.75, [True, False, False, False]),
        ((0, 9, 18), 0.75, [True, True, True]),
        ((50, 3, 52, 0, 1, 51), 0.75, [True, True, False, False, False, False]),
        ((0, 15, 9, 100, 3, 6, 12), 0.75, [True, False, False, True, False, False, False]),
    ],
    ids=[
        "equal",
        "chain",
        "middle last",
        "keeper first",
        "apart",
        "two clusters",
        "clusters that meet",
    ],
)
def test_the_first_of_each_cluster_is_kept(kata, starts, threshold, keep):
    found = kata.dedup(chain(*starts), 100, 1, threshold)
    assert found.tolist() == keep, (
        f"windows of 30 words from {starts}, threshold {threshold}: expected {keep}, "
        f"found {found.tolist()}"
    )
    assert found.dtype == bool


@pytest.mark.parametrize(
    ("more", "threshold", "keep"), [(1, 0.8, False), (1, 0.81, True), (4, 0.5, False)]
)
def test_the_threshold_itself_is_near_enough(kata, more, threshold, keep):
    (short,), (long,) = chain(0, length=8), chain(0, length=8 + more)  # 4 shingles of 4 + more
    found = kata.dedup([short, long], 150, 1, threshold)
    assert found.tolist() == [True, keep], (
        f"{4 / (4 + more)} of their shingles shared, threshold {threshold}: "
        f"expected {[True, keep]}, found {found.tolist()}"
    )


def test_documents_without_words_are_kept(kata):
    texts = ["", "?!", "hi", "", "Hi!", "hi there", "\ufffe"]
    found = kata.dedup(iter(texts))
    expected = [True, True, True, True, False, True, True]
    assert found.tolist() == expected, f"{texts}: expected {expected}, found {found.tolist()}"
    assert (kata.dedup([]).tolist(), kata.dedup([]).dtype) == ([], bool)
    assert kata.dedup([""] * 3).tolist() == [True] * 3


@pytest.mark.parametrize(("bands", "rows", "threshold"), [(4, 2, 0.5), (3, 4, 0.3), (14, 8, 0.8)])
def test_same_documents_as_pair_by_pair(kata, oracle, seed, bands, rows, threshold):
    draw = random.Random(seed)
    texts = chain(*(draw.randrange(100) for _ in range(25)), length=14)
    a, b = kata.permutations(bands * rows)
    expected = oracle.dedup(texts, a, b, bands, rows, threshold)
    found = kata.dedup(texts, bands, rows, threshold).tolist()
    assert found == expected, (
        f"{bands} bands of {rows}, threshold {threshold}, {texts}: expected {expected}, "
        f"found {found}"
    )


@pytest.mark.parametrize(
    ("s", "published"), [(0.70, 0.56), (0.75, 0.77), (0.80, 0.92), (0.85, 0.988)]
)
def test_fineweb_s_bands_collide_as_published(kata, s, published):
    assert kata.collision_prob(s, 14, 8) == pytest.approx(published, abs=0.006)


@pytest.mark.parametrize("bands", [1, 14, 450])
@pytest.mark.parametrize("s", [0.0, 1e-30, 0.001, 0.01, 0.07, 0.3, 0.999999, 1.0])
def test_small_probabilities_keep_their_digits(kata, s, bands):
    for rows in (1, 8):
        exact = float(1 - (1 - Fraction(s) ** rows) ** bands)
        found = kata.collision_prob(s, bands, rows)
        assert found == pytest.approx(exact, rel=1e-9, abs=0), (
            f"s={s}, {bands} bands of {rows}: expected {exact}, found {found}"
        )


def test_few_pairs_are_compared(kata, oracle, calls, cost, seed):
    documents = oracle.web(seed, originals=600, copies=150, boilerplate=100)
    n = len(documents)
    compared = calls("jaccard", limit=n * n // 20)
    keep = kata.dedup(text for text, _, _ in documents)
    seen, duplicates, dropped = set(), 0, 0
    for (_, family, near), kept in zip(documents, keep.tolist(), strict=True):
        if not near:
            assert kept, "a page of which 0.54 is shared with another: expected kept, found dropped"
        elif family in seen:
            duplicates += 1
            dropped += not kept
        else:
            assert kept, "the first page of its family: expected kept, found dropped"
            seen.add(family)
    assert compared.calls >= (~keep).sum(), (
        f"{(~keep).sum()} pages dropped: expected as many calls of jaccard, found {compared.calls}"
    )
    cost.check("compared", compared.calls / (n * (n - 1) / 2))
    cost.check("recall", dropped / duplicates)


def test_work_grows_with_the_documents(kata, lines, cost, seed):
    n = 1000
    sig = np.random.default_rng(seed).integers(0, P, (n, 112), dtype=np.uint64)
    sig[n - 1, 104:] = sig[0, 104:]
    with lines(limit=2_000_000) as counted:
        found = kata.lsh_candidates(sig, 14, 8)
    assert found.tolist() == [[0, n - 1]]
    cost.check("lines", counted.lines / n)


SIG = np.ones((2, 6), dtype=np.uint64)


@pytest.mark.parametrize(
    ("name", "ask"),
    [
        ("n", lambda kata: kata.shingles("some text", 0)),
        ("bands", lambda kata: kata.lsh_candidates(SIG, 0, 2)),
        ("rows", lambda kata: kata.lsh_candidates(SIG, 2, 0)),
        ("bands", lambda kata: kata.lsh_candidates(SIG, 7, 1)),
        ("bands", lambda kata: kata.lsh_candidates(SIG[:0], 2, 4)),
        ("bands", lambda kata: kata.dedup([], bands=0)),
        ("rows", lambda kata: kata.dedup(["a"], rows=-1)),
        ("threshold", lambda kata: kata.dedup([], threshold=0.0)),
        ("threshold", lambda kata: kata.dedup(["a"], threshold=1.001)),
        ("threshold", lambda kata: kata.dedup(["a"], threshold=float("nan"))),
        ("s", lambda kata: kata.collision_prob(-1e-9, 2, 2)),
        ("s", lambda kata: kata.collision_prob(1.001, 2, 2)),
        ("s", lambda kata: kata.collision_prob(float("nan"), 2, 2)),
        ("bands", lambda kata: kata.collision_prob(0.5, 0, 2)),
        ("rows", lambda kata: kata.collision_prob(0.5, 2, 0)),
    ],
    ids=[
        "no words", "no bands", "no rows", "too many bands", "too many rows", "dedup without bands",
        "dedup without rows", "threshold of 0", "threshold above 1", "threshold NaN",
        "s below 0", "s above 1", "s NaN", "s without bands", "s without rows",
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(kata, name, ask):
    with pytest.raises(ValueError, match=f"^{name}: "):
        ask(kata)
