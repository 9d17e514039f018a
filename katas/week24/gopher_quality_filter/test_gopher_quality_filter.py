"""Documents on both sides of each threshold, exact fractions, and every order of a cascade."""

import random

import numpy as np
import pytest

QUALITY = {
    "words", "mean_length", "hashes", "ellipses", "bullets", "ellipsis_lines", "letters",
    "stop_words",
}  # fmt: skip


def prose(n, *more):
    """n words of 4 letters on average, each on a line, the last of them `more`."""
    start = ["the", "with"][: n - len(more)]
    rest = [
        f"{chr(97 + i // 26 % 26)}{chr(97 + i % 26)}xy" for i in range(n - len(start) - len(more))
    ]
    return "\n".join([*start, *rest, *more])


def broken(found):
    return {rule for rule, kept in found.items() if not kept}


BULLET = "- the cats were with brown hats"
PAGES = {
    "50 words": (prose(50), set()),
    "49 words": (prose(49), {"words"}),
    "100000 words": (prose(100_000), set()),
    "100001 words": (prose(100_001), {"words"}),
    "nothing": ("", {"words", "mean_length", "letters", "stop_words"}),
    "only space": (" \r\n\t\u3000", {"words", "mean_length", "letters", "stop_words"}),
    "one word": ("with", {"words", "stop_words"}),
    "punctuation": ("?! " * 60, {"mean_length", "letters", "stop_words"}),
    "mean of 3": ("to of " * 30 + "with " * 60, set()),
    "mean below 3": ("to of " * 30 + "with " * 59 + "abc", {"mean_length"}),
    "mean of 10": ("the of " * 5 + "letters--- " * 35 + "twenty-five-letters------ " * 5, set()),
    "mean above 10": (
        "the of " * 5 + "letters--- " * 35 + "twenty-five-letters------ " * 4 + "x" * 26,
        {"mean_length"},
    ),
    "5 hashes in 50": (prose(50, "a#x#", "x###"), set()),
    "6 hashes in 50": (prose(50, "##x#", "x###"), {"hashes"}),
    "5 ellipses in 50": (prose(50, "x...y", "x…y", "x…y", "x……y"), set()),
    "6 ellipses in 50": (prose(50, "x...y", "x…y", "x…y", "x………y"), {"ellipses"}),
    "6 of both": (prose(50, "x...y", "x…y", "x…y", "a#x#", "x#xx"), set()),
    "4 dots are one": (prose(50, "x....y", "x.....y", "x…y", "x…y", "x…y"), set()),
    "6 dots are two": (prose(50, "x......y", "x…y", "x…y", "x…y", "x…y"), {"ellipses"}),
    "9 bullets of 10": ("\n".join([BULLET] * 9 + ["end of it"]), set()),
    "all bullets": ("\n".join(["• they have the brown hat", "* they have with"] * 7), {"bullets"}),
    "bullets indented": ("\n".join(["  ‣ the cats were with brown hats"] * 10), {"bullets"}),
    "bullets, CRLF": ("\r\n\r\n".join([BULLET] * 10), {"bullets"}),
    "3 of 10 lines trail": (
        "\n".join([*["the cats had hats..."] * 2, "gone… ", *["the cat sits here and bites"] * 7]),
        set(),
    ),
    "4 of 10 lines trail": (
        "\n".join(
            [*["the cats had hats..."] * 2, "gone…", "…", *["the cat has sat here with all"] * 6]
        ),
        {"ellipsis_lines"},
    ),
    "80 percent letters": (prose(50, *["1234"] * 10), set()),
    "78 percent letters": (prose(50, *["1234"] * 11), {"letters"}),
    "letters of any script": ("the with " + "слово 単語ですね été1 " * 20, set()),
    "one stop word": (prose(60).replace("with", "xyzq"), {"stop_words"}),
    "one stop word twice": (prose(60).replace("with", "the"), {"stop_words"}),
    "stop words in capitals": (prose(60).replace("with", "OF").replace("the", "The"), set()),
    "stop words with commas": (prose(60).replace("with", "with,"), {"stop_words"}),
}  # fmt: skip


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)
def test_quality_rules_at_their_thresholds(kata, page):
    text, expected = page
    found = kata.gopher_quality(text)
    assert set(found) == QUALITY
    assert broken(found) == expected, (
        f"{text[:300]!r} ({len(text.split())} words): expected broken {expected or 'none'}, "
        f"found {broken(found) or 'none'}"
    )


def unlike(n, start=0):
    """Words of 4 characters, each another."""
    return [f"{i:04}" for i in range(start, start + n)]


def repeated(total, n, times, length=4):
    """`total` words, among them one n-gram so many times, each time after another word."""
    gram = [f"{'g' * (length - 1)}{i}" for i in range(n)]
    words, rest = [], iter(unlike(total))
    for _ in range(times):
        words += [next(rest), *gram]
    return " ".join(words + [next(rest) for _ in range(total - len(words))])


REPEATS = {
    "nothing": "",
    "one word": "word",
    "3 lines of 10 again": "\n".join([*unlike(7), *["0000"] * 3]),
    "3 short lines of 10 again": "\n".join([*(f"{i} long line" for i in range(7)), "a", "a"]),
    "2-grams at 20 percent": repeated(40, 2, 4),
    "2-grams above": repeated(39, 2, 4),
    "3-grams at 18 percent": repeated(50, 3, 3),
    "3-grams above": repeated(49, 3, 3),
    "4-grams at 16 percent": repeated(50, 4, 2),
    "4-grams above": repeated(49, 4, 2),
    "5-grams at 15 percent": repeated(100, 5, 4),
    "long words": repeated(40, 2, 2, length=9),
    "itself overlapping": "la " * 11 + " ".join(unlike(20)),
    "top of few, long": "a b x a b y a b z cccccccccc dddddddddd q cccccccccc dddddddddd",
    "as often, longer in itself": "ccc ccc ccc bbb bb q bbb bb " + " ".join(unlike(7)),
    "run together": "ab c x a bc",
    "tabs": "aa\tbb x aa\u3000bb y aa  bb",
    "as often, longer": "aa bb x aa bb y cccccccccc dddddddddd q cccccccccc dddddddddd",
    "overlapping top": "lala lala lala " + " ".join(unlike(12)),
    "lines by other ends": "\r".join(["line", "line", "\u2028".join(unlike(8)), "a\vb\fc\x85c"]),
    "lines by CRLF": "one line\r\nanother\r\none line \r\n\r\n one line",
    **{f"lines by {end!r}": end.join(["line"] * 3) for end in "\r\v\f\x1c\x85\u2028\u2029"},
    "case matters": "One line\none line\nONE LINE\n" + "\n".join(unlike(5)),
}  # fmt: skip


@pytest.mark.parametrize("text", REPEATS.values(), ids=REPEATS)
def test_repetition_rules_at_their_thresholds(kata, oracle, text):
    expected, found = oracle.repetition(text), kata.gopher_repetition(text)
    assert set(found) == set(expected)
    assert broken(found) == broken(expected), (
        f"{text!r}: expected broken {broken(expected) or 'none'}, found {broken(found) or 'none'}"
    )


@pytest.mark.parametrize("n", range(5, 11))
def test_duplicate_n_grams_at_their_thresholds(kata, oracle, n):
    # one n-gram twice: n of `total` words are in its second occurrence
    percent = 20 - n
    exact = 100 * n // percent + (100 * n % percent > 0)
    for total in (exact, exact - 1):
        text = repeated(total, n, 2)
        found = kata.gopher_repetition(text)[f"dup_{n}"]
        assert found == oracle.repetition(text)[f"dup_{n}"], (
            f"an {n}-gram twice in {total} words: expected {n}/{total} against {percent} %, "
            f"found kept: {found}"
        )


def test_repetition_is_that_of_every_position(kata, oracle, seed):
    draw = random.Random(seed)
    for _ in range(40):
        text = oracle.page(draw)
        expected, found = oracle.repetition(text), kata.gopher_repetition(text)
        assert broken(found) == broken(expected), (
            f"{text!r}: expected broken {broken(expected)}, found {broken(found)}"
        )


def test_work_on_repetition_grows_with_the_words(kata, oracle, seed):
    assert broken(kata.gopher_repetition(oracle.long_page(seed, 60_000))) == set()


def test_work_on_repeats_grows_with_the_words(kata, lines, cost):
    n = 2000
    with lines(limit=1_500_000) as counted:
        found = broken(kata.gopher_repetition("la " * n))  # each n-gram is a repeat
    expected = {"top_2", "top_3", "top_4", *(f"dup_{n}" for n in range(5, 11))}
    assert found == expected, f"{n} times la: expected broken {expected}, found {found}"
    cost.check("lines", counted.lines / n)


TRAINING = ["the cat sat", "the cat ran", "a dog sat down", "", "the the the"]


@pytest.mark.parametrize(
    "text",
    [
        "the cat sat",
        "cat the sat",
        "",
        "unheard of",
        "the unheard sat",
        "  the\r\ncat ",
        "the dog\ufffd",
    ],
    ids=["seen", "mixed up", "empty", "unknown", "unknown between", "space", "odd"],
)
@pytest.mark.parametrize("k", [0.1, 2.0])
def test_perplexity_is_that_of_counted_bigrams(kata, oracle, text, k):
    found = kata.BigramLM(k).fit(iter(TRAINING)).perplexity(text)
    expected = oracle.perplexity(TRAINING, text, k)
    assert found == pytest.approx(expected, rel=1e-9), (
        f"{text!r} after {TRAINING}, k={k}: expected {expected}, found {found}"
    )


def test_words_may_look_like_markers(kata, oracle):
    marks = "<s> </s> <unk> None ^ $ [UNK] <eos>"
    training = [*TRAINING, marks, "</s> the", "cat <s>"]
    for text in (marks, "the cat", "<unk> <unk>", "never heard"):
        found = kata.BigramLM().fit(training).perplexity(text)
        expected = oracle.perplexity(training, text, 0.1)
        assert found == pytest.approx(expected, rel=1e-9), (
            f"{text!r} after {training}: expected {expected}, found {found}"
        )


def test_a_model_that_saw_nothing_finds_two_things_equally_probable(kata):
    assert kata.BigramLM().perplexity("any words") == pytest.approx(2)
    assert kata.BigramLM(3.0).fit([]).perplexity("") == pytest.approx(2)


def test_long_texts_have_a_perplexity(kata, oracle):
    text = "the cat unheard of " * 1000
    found = kata.BigramLM().fit(TRAINING).perplexity(text)
    assert found == pytest.approx(oracle.perplexity(TRAINING, text, 0.1), rel=1e-9)


def test_fit_forgets_and_perplexity_learns_nothing(kata, oracle):
    model = kata.BigramLM().fit(["some other words", "the end"])
    model.fit(TRAINING)
    expected = oracle.perplexity(TRAINING, "a cat unheard of", 0.1)
    for _ in range(2):
        found = model.perplexity("a cat unheard of")
        assert found == pytest.approx(expected, rel=1e-9), f"expected {expected}, found {found}"


@pytest.mark.parametrize(
    ("ppl", "cutoffs", "expected"),
    [
        (1.0, (30.0, 60.0), "head"),
        (29.99, (30.0, 60.0), "head"),
        (30.0, (30.0, 60.0), "middle"),
        (60.0, (30.0, 60.0), "tail"),
        (float("inf"), (30.0, 60.0), "tail"),
        (30.0, (30.0, 30.0), "tail"),
    ],
)
def test_buckets_begin_at_their_cutoff(kata, ppl, cutoffs, expected):
    assert kata.ccnet_bucket(ppl, cutoffs) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0.0),
        ("?!", 0.0),
        ("zork you", 0.5),
        ("ZORK, you Zork! zorky grozork", 0.4),
        ("that is gruß and GRUSS", 0.4),
        ("zork-free", 0.5),
        ("clean words only", 0.0),
    ],
    ids=["empty", "no words", "half", "case", "casefold", "hyphen", "clean"],
)
def test_toxic_words_are_whole_words(kata, text, expected):
    found = kata.toxic_ratio(text, iter(["zork", "Gruss", "frobnak"]))
    assert found == expected, f"{text!r}: expected {expected}, found {found}"


def test_the_cascade_costs_little_more_than_the_best_order(kata, oracle, cost, seed):
    prices, passes = oracle.corpus(seed, 5000)
    passes.setflags(write=False)
    order = kata.order_cascade(prices, passes)
    assert sorted(order) == [0, 1, 2, 3, 4, 5]
    cost.check("cascade", oracle.total(order, prices, passes) / oracle.least(prices, passes))


ORDERS = {
    "no filters": ([], np.zeros((0, 5)), []),
    "no documents": ([3, 1, 2], np.zeros((3, 0)), [0, 1, 2]),
    "equal": ([1, 1, 1], [[0, 1, 1, 1], [1, 0, 1, 1], [1, 1, 0, 1]], [0, 1, 2]),
    "passes all": ([0.1, 5, 1], [[1, 1, 1, 1], [1, 0, 1, 1], [1, 1, 0, 1]], [2, 1, 0]),
    "nothing left": ([9, 1, 2, 1], [[0, 0, 1], [0, 0, 0], [0, 0, 1], [1, 1, 1]], [1, 0, 2, 3]),
    # alone 1 would be second; of those that 0 leaves it rejects none
    "correlated": ([1, 1.5, 2], [[0, 0, 0, 1, 1], [0, 0, 1, 1, 1], [1, 1, 1, 0, 1]], [0, 2, 1]),
    "equal, unless rounded twice": ([3, 1], [[0, 0, 0, 1, 1], [1, 1, 1, 0, 1]], [0, 1]),
    "dear but thorough": ([4, 1], [[0, 0, 0, 0, 0], [0, 1, 1, 1, 1]], [0, 1]),
    "cheap and lax": ([6, 1], [[0, 0, 0, 0, 0], [0, 1, 1, 1, 1]], [1, 0]),
}  # fmt: skip


@pytest.mark.parametrize("example", ORDERS.values(), ids=ORDERS)
def test_the_next_filter_rejects_most_of_what_is_left_for_its_cost(kata, example):
    prices, passes, expected = example
    found = kata.order_cascade(np.array(prices, dtype=float), np.array(passes, dtype=bool))
    assert {type(each) for each in found} <= {int}, f"expected a list of int, found {found!r}"
    assert list(found) == expected, (
        f"cost {prices}, passes {np.array(passes, dtype=int).tolist()}: expected {expected}, "
        f"found {list(found)}"
    )


TWO = np.ones((2, 3), dtype=bool)


@pytest.mark.parametrize(
    ("name", "ask"),
    [
        ("k", lambda kata: kata.BigramLM(0.0)),
        ("k", lambda kata: kata.BigramLM(float("nan"))),
        ("k", lambda kata: kata.BigramLM(float("inf"))),
        ("cutoffs", lambda kata: kata.ccnet_bucket(5.0, (3.0, 2.0))),
        ("cutoffs", lambda kata: kata.ccnet_bucket(5.0, (3.0, float("nan")))),
        ("ppl", lambda kata: kata.ccnet_bucket(0.99, (2.0, 3.0))),
        ("ppl", lambda kata: kata.ccnet_bucket(float("nan"), (2.0, 3.0))),
        ("lexicon", lambda kata: kata.toxic_ratio("", [])),
        ("lexicon", lambda kata: kata.toxic_ratio("word", iter([]))),
        ("cost", lambda kata: kata.order_cascade(np.array([1.0, 0.0]), TWO)),
        ("cost", lambda kata: kata.order_cascade(np.array([1.0, -2.0]), TWO)),
        ("cost", lambda kata: kata.order_cascade(np.array([float("nan"), 1.0]), TWO)),
        ("cost", lambda kata: kata.order_cascade(np.array([float("inf"), 1.0]), TWO)),
        ("passes", lambda kata: kata.order_cascade(np.ones(3), TWO)),
        ("passes", lambda kata: kata.order_cascade(np.ones(1), TWO)),
    ],
    ids=[
        "k of 0", "k NaN", "k infinite", "cutoffs in reverse", "cutoff NaN", "ppl below 1",
        "ppl NaN", "no lexicon", "iterator of no lexicon", "cost of 0", "cost below 0", "cost NaN",
        "cost infinite", "more costs", "fewer costs",
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(kata, name, ask):
    with pytest.raises(ValueError, match=f"^{name}: "):
        ask(kata)
