"""The target's law, whatever the draft says; one call a round; and caches that are rolled back."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.judge import assert_follows
from harness.simulators.ngrams import ngram_pair

ROUNDING = 1e-12  # of sums of a few float64 numbers below 1


def law(*probabilities):
    return torch.tensor(probabilities, dtype=torch.float64)


def decode(kata, pair, prompt, n_new, k, u=None, **options):
    """Tokens as a list, and the stats; certain models need no particular numbers."""
    u = iter([0.5] * 100_000) if u is None else u
    prompt = torch.as_tensor(prompt)
    tokens, stats = kata.speculative_decode(*pair, prompt, n_new, k, u, **options)
    assert tokens.dtype == torch.int64
    return tokens.tolist(), stats


def fixed_pair(oracle, p, q):
    """Models with one law each, whatever came before."""
    return oracle.pair_of(len(p), lambda prefix: [*p], lambda prefix: [*q])


# ---- one token -------------------------------------------------------------------------------


@given(
    vocab=st.integers(2, 5),
    seed=st.integers(0, 2**31),
    zeros=st.tuples(st.integers(0, 1), st.integers(0, 1)),
)
def test_accepted_or_replaced_a_token_follows_the_target(kata, oracle, vocab, seed, zeros):
    p, q = (oracle.random_law(vocab, seed + at, zeros[at]) for at in (0, 1))
    emitted = torch.zeros_like(p)
    for x in range(vocab):
        accepted = kata.accept_prob(p, q, x)
        emitted[x] += q[x] * accepted
        emitted += q[x] * (1 - accepted) * kata.residual(p, q)
    assert float((emitted - p).abs().max()) < ROUNDING


@given(seed=st.integers(0, 2**31))
def test_acceptance_is_one_less_the_distance_of_the_laws(kata, oracle, seed):
    p, q = oracle.random_law(5, seed), oracle.random_law(5, seed + 1)
    accepted = sum(float(q[x]) * kata.accept_prob(p, q, x) for x in range(5))
    distance = float((p - q).abs().sum()) / 2
    assert math.isclose(accepted, 1 - distance, abs_tol=ROUNDING)


@pytest.mark.parametrize(
    ("p_x", "q_x", "expected"),
    [
        (0.25, 0.5, 0.5),
        (0.5, 0.25, 1.0),  # never above 1
        (0.5, 0.5, 1.0),
        (0.0, 0.5, 0.0),
        (0.5, 0.0, 1.0),  # no division by zero
        (0.0, 0.0, 1.0),
        (0.0, 2.0**-48, 0.0),  # rare is not never
        (2.0**-50, 2.0**-48, 0.25),
    ],
)
def test_the_chance_of_a_token(kata, p_x, q_x, expected):
    found = kata.accept_prob(law(1 - p_x, p_x), law(1 - q_x, q_x), 1)
    assert found == expected
    assert type(found) is float


def test_the_residual_is_what_the_draft_left_uncovered(kata):
    found = kata.residual(law(0.5, 0.25, 0.25, 0.0), law(0.125, 0.125, 0.25, 0.5))
    assert found.tolist() == [0.75, 0.25, 0.0, 0.0]


@pytest.mark.parametrize("left", [0.0, 1e-15], ids=["equal", "equal but for rounding"])
def test_where_nothing_is_left_the_residual_is_the_target(kata, left):
    p, q = law(0.5 + left, 0.25, 0.25), law(0.5, 0.25 + left, 0.25)
    found = kata.residual(p, q)
    assert float((found - p).abs().max()) < ROUNDING
    found[0] = 7.0
    assert float(p[0]) < 1, "the result shares its memory with p"


def test_as_much_as_tiny_is_nothing(kata):
    p, q = law(kata.TINY, 1 - kata.TINY), law(0.0, 1.0)
    assert kata.residual(p, q).tolist() == p.tolist()


def test_a_small_residual_is_no_rounding(kata):
    found = kata.residual(law(0.5 + 2**-30, 0.5 - 2**-30), law(0.5, 0.5))
    assert found.tolist() == [1.0, 0.0]


def test_one_token_leaves_both_laws_alone(kata):
    p, q = law(0.5, 0.5, 0.0), law(0.25, 0.0, 0.75)
    kata.residual(p, q)
    kata.accept_prob(p, q, 1)
    assert (p.tolist(), q.tolist()) == ([0.5, 0.5, 0.0], [0.25, 0.0, 0.75])


# ---- what is emitted -------------------------------------------------------------------------


@pytest.mark.parametrize(("k", "n_new"), [(0, 2), (1, 2), (2, 1)])
def test_every_continuation_has_exactly_its_chance(kata, oracle, seed, k, n_new):
    pair, prompt = oracle.quarter_pair(seed), (1, 2)
    found = oracle.outcomes(lambda u: tuple(decode(kata, pair, prompt, n_new, k, u)[0]))
    assert found == oracle.joint_law(pair.target, prompt, n_new)


@pytest.mark.parametrize("k", [1, 3])
def test_samples_follow_the_target(kata, oracle, k):
    ngrams = ngram_pair(11, vocab=4)
    pair, u = oracle.table_pair(ngrams), oracle.uniforms(seed=5)
    counts = torch.zeros(4, 4, 4)
    for _ in range(400):
        counts[tuple(decode(kata, pair, [2, 1], 3, k, u)[0])] += 1
    assert_follows(counts, ngrams.law(ngrams.target, (2, 1), 3))


@given(
    seed=st.integers(0, 2**31),
    agreement=st.integers(0, 10),
    k=st.integers(0, 6),
    n_new=st.integers(1, 24),
    prompt=st.lists(st.integers(0, 6), min_size=1, max_size=5),
)
def test_certain_models_emit_what_the_target_would_alone(
    kata, oracle, seed, agreement, k, n_new, prompt
):
    pair = oracle.greedy_pair(7, agreement, salt=seed)
    tokens, stats = decode(kata, pair, prompt, n_new, k)
    assert tokens == oracle.plain(pair.target, prompt, n_new)
    # every call saw the text as it stood then, and the target k guesses behind it
    text = (*prompt, *tokens)
    for call in pair.target.calls:
        settled = call.tokens[: len(call.tokens) - k]
        assert settled == text[: len(settled)]
    assert len(pair.target.calls) == stats.target_calls


def test_the_draft_guesses_from_the_text_that_was_kept(kata, oracle):
    # right wherever it is asked: of 40 tokens and k = 3, ten rounds of four
    right = oracle.greedy_pair(7, 10)
    assert decode(kata, right, [1, 2], 40, 3)[1].accepted == 30
    # right or wrong by the text: a draft that misses a token guesses something else
    pair = oracle.greedy_pair(7, 7)
    tokens, stats = decode(kata, pair, [1, 2], 40, 3)
    text, length, rounds, accepted = [1, 2, *tokens], 2, 0, 0
    text += oracle.plain(pair.target, text, 4)  # the last round may go on behind the end
    while length < 42:
        guesses = oracle.plain(pair.draft, text[:length], 3)
        kept = 0
        while kept < 3 and guesses[kept] == text[length + kept]:
            kept += 1
        rounds, accepted, length = rounds + 1, accepted + kept, length + kept + 1
    assert (stats.target_calls, stats.accepted) == (rounds, accepted)


def test_an_accepted_round_adds_one_token_more(kata, oracle):
    pair = fixed_pair(oracle, (0.25, 0.75), (0.25, 0.75))
    u = oracle.Reads([0.5, 0.1, 0.5, 0.99, 0.99, 0.99, 0.1])
    tokens, stats = decode(kata, pair, [0], 4, 3, u)
    assert tokens == [1, 0, 1, 0]
    assert u.left == []
    assert (stats.target_calls, stats.accepted) == (1, 3)


def test_laws_without_a_common_token_yield_one_a_round(kata, oracle):
    pair = fixed_pair(oracle, (0.0, 0.0, 0.5, 0.5), (0.5, 0.5, 0.0, 0.0))
    # u = 0 is below no chance at all; every round: two drafted, one refused, one in its place
    u = oracle.Reads([0.1, 0.9, 0.0, 0.1, 0.9, 0.1, 0.0, 0.9])
    tokens, stats = decode(kata, pair, [0], 2, 2, u)
    assert tokens == [2, 3]
    assert u.left == []
    assert (stats.target_calls, stats.proposed, stats.accepted) == (2, 4, 0)


def test_nothing_behind_a_refused_token_is_looked_at(kata, oracle):
    pair = fixed_pair(oracle, (0.5, 0.5, 0.0), (0.5, 0.0, 0.5))
    # drafted 0 2 0 0: 0 is taken, 2 is refused, 1 takes its place, and the rest is gone
    u = oracle.Reads([0.1, 0.9, 0.1, 0.1, 0.9, 0.0, 0.5])
    tokens, stats = decode(kata, pair, [0], 2, 4, u)
    assert tokens == [0, 1]
    assert u.left == []
    assert stats.accepted == 1


def test_numbers_are_read_when_they_are_needed(kata, oracle):
    # of two rounds: three after a call of the draft each, all others after that of the target
    pair, reads = oracle.greedy_pair(7, 10), []

    def numbers():
        while True:
            reads.append((len(pair.target.calls), len(pair.draft.calls)))
            yield 0.5

    decode(kata, pair, [1, 2], 8, 3, numbers())
    first = [(0, 1), (0, 2), (0, 3), *[(1, 3)] * 4]
    second = [(1, 4), (1, 5), (1, 6), *[(2, 6)] * 4]
    assert reads == [*first, *second], "calls of target and draft at each number"


@pytest.mark.parametrize(
    ("law_of_all", "number", "expected"),
    [
        ((0.0, 0.5, 0.5), 0.0, 1),
        ((0.5, 0.5), 0.5, 1),
        ((0.1, 0.9), 0.1 - 5e-10, 0),
        ((0.5, 0.5 - 1e-9, 0.0), 1 - 1e-12, 1),
    ],
    ids=["never the impossible", "at an edge", "close to one", "behind the end"],
)
def test_tokens_are_drawn_by_sample(kata, oracle, law_of_all, number, expected):
    # one drafted, which is taken for certain, and one of the target's
    pair = fixed_pair(oracle, law_of_all, law_of_all)
    assert decode(kata, pair, [0], 2, 1, oracle.Reads([number, 0.0, number]))[0] == [expected] * 2


def test_plain_decoding_reads_one_number_a_token(kata, oracle):
    pair = fixed_pair(oracle, (0.5, 0.5), (1.0, 0.0))
    tokens, stats = decode(kata, pair, [0], 3, 0, oracle.Reads([0.9, 0.1, 0.9]))
    assert tokens == [1, 0, 1]
    assert (stats.target_calls, stats.draft_calls, stats.proposed) == (3, 0, 0)


# ---- where it ends ---------------------------------------------------------------------------


@pytest.mark.parametrize("n_new", [1, 3, 4, 5, 8, 9])
def test_as_many_tokens_as_were_asked_for(kata, oracle, n_new):
    # a round yields four: ends on its edge, one before and one behind
    pair = oracle.greedy_pair(7, 10)
    tokens, stats = decode(kata, pair, [3], n_new, 3)
    assert tokens == oracle.plain(pair.target, [3], n_new)
    rounds = math.ceil(n_new / 4)
    assert (stats.target_calls, stats.draft_calls) == (rounds, 3 * rounds)
    assert (stats.proposed, stats.accepted) == (3 * rounds, 3 * rounds)


def counting_pair(oracle, wrong_after=None):
    """The target counts up; the draft too, but says 0 after `wrong_after`."""

    def one_hot(token):
        return [float(other == token) for other in range(12)]

    return oracle.pair_of(
        12,
        lambda prefix: one_hot((prefix[-1] + 1) % 12),
        lambda prefix: one_hot(0 if prefix[-1] == wrong_after else (prefix[-1] + 1) % 12),
    )


@pytest.mark.parametrize(
    ("eos", "rounds"),
    [(2, 1), (4, 1), (5, 1), (6, 2)],
    ids=["first", "last drafted", "the target's own", "first of the second round"],
)
def test_the_text_ends_with_eos(kata, oracle, eos, rounds):
    # after 1 a round yields 2 3 4 and 5, and is done to its end
    pair, u = counting_pair(oracle), oracle.Reads([0.5] * 7 * rounds)
    tokens, stats = decode(kata, pair, [1], 9, 3, u, eos=eos)
    assert tokens == list(range(2, eos + 1))
    assert u.left == []
    assert (stats.target_calls, stats.accepted) == (rounds, 3 * rounds)
    assert len(pair.draft.calls) == 3 * rounds


def test_eos_that_takes_the_place_of_a_guess_ends_the_text(kata, oracle):
    tokens, stats = decode(kata, counting_pair(oracle, wrong_after=3), [1], 9, 3, eos=4)
    assert tokens == [2, 3, 4]
    assert stats.accepted == 2


@pytest.mark.parametrize(
    ("prompt", "wrong_after", "n_new", "expected"),
    [
        ([0, 1], None, 6, [2, 3, 4, 5, 6, 7]),
        ([9], None, 2, [10, 11]),  # the round goes on to 0
        ([1], 2, 3, [2, 3, 4]),  # 0 is drafted after 2
    ],
    ids=["in the prompt", "too late", "refused"],
)
def test_only_eos_among_the_new_tokens_counts(kata, oracle, prompt, wrong_after, n_new, expected):
    pair = counting_pair(oracle, wrong_after)
    assert decode(kata, pair, prompt, n_new, 3, eos=0)[0] == expected


def test_token_zero_may_be_eos(kata, oracle):
    # in the middle of a round
    assert decode(kata, counting_pair(oracle), [9], 9, 4, eos=0)[0] == [10, 11, 0]


def test_the_first_eos_of_a_round_ends_the_text(kata, oracle):
    # the round yields 10 11 0 … 11 0
    assert decode(kata, counting_pair(oracle), [9], 30, 14, eos=0)[0] == [10, 11, 0]


def test_without_eos_every_token_is_one_of_many(kata, oracle):
    pair = counting_pair(oracle)
    assert decode(kata, pair, [9], 14, 2)[0] == [*range(10, 12), *range(12)]


# ---- what it takes ---------------------------------------------------------------------------


def test_nothing_goes_through_a_model_twice(kata, oracle, cost):
    pair = oracle.greedy_pair(7, 10)
    prompt = [at % 7 for at in range(100)]
    assert decode(kata, pair, prompt, 64, 3)[0] == oracle.plain(pair.target, prompt, 64)
    cost.check("target_calls", len(pair.target.calls))
    cost.check("target_positions", pair.target.positions)
    cost.check("draft_positions", pair.draft.positions)


def test_a_round_is_one_forward_and_k_small_ones(kata, oracle):
    pair = oracle.greedy_pair(7, 6)
    _, stats = decode(kata, pair, [1, 2, 3], 30, 4)
    assert [call.fed for call in pair.target.calls] == [7] + [5] * (stats.target_calls - 1)
    assert len(pair.draft.calls) == stats.draft_calls == 4 * stats.target_calls
    # after a round of which all was accepted the draft lacks two tokens, else one
    assert {call.fed for call in pair.draft.calls[1:]} == {1, 2}
    assert (pair.target.caches, pair.draft.caches) == (1, 1)


@pytest.mark.parametrize("k", [0, 3])
def test_stats_say_what_was_called(kata, oracle, k):
    pair = oracle.greedy_pair(7, 6)
    _, stats = decode(kata, pair, [1, 2, 3], 30, k)
    assert stats.target_calls == len(pair.target.calls)
    assert stats.draft_calls == len(pair.draft.calls)
    assert stats.proposed == k * stats.target_calls
    assert (pair.target.caches, pair.draft.caches) == (1, 1)


def test_a_round_yields_what_the_acceptance_promises(kata, oracle, cost):
    p, q = (0.4, 0.3, 0.2, 0.1), (0.1, 0.3, 0.2, 0.4)
    alpha, k, n_new = 0.7, 4, 2000
    u = oracle.uniforms(seed=3)
    _, stats = decode(kata, fixed_pair(oracle, p, q), [0], n_new, k, u)
    yielded = (1 - alpha ** (k + 1)) / (1 - alpha)
    cost.check("rounds", stats.target_calls * yielded / n_new)


def test_two_decodes_share_nothing(kata, oracle):
    pair = oracle.greedy_pair(7, 6)
    prompt = torch.tensor([1, 2, 3])
    first = decode(kata, pair, prompt, 12, 3)
    assert decode(kata, pair, prompt, 12, 3) == first
    assert prompt.tolist() == [1, 2, 3]


# ---- bad input -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "prompt", "n_new", "k"),
    [("k", [1], 4, -1), ("n_new", [1], 0, 2), ("n_new", [1], -3, 2), ("prompt", [], 4, 2)],
    ids=["k", "no tokens", "fewer than none", "no prompt"],
)
def test_what_makes_no_sense_is_refused(kata, oracle, name, prompt, n_new, k):
    pair, u = oracle.greedy_pair(7, 6), oracle.Reads([0.5])
    with pytest.raises(ValueError, match=rf"\b{name}\b"):
        kata.speculative_decode(*pair, torch.tensor(prompt, dtype=torch.int64), n_new, k, u)
    assert not pair.target.calls
    assert not pair.draft.calls
    assert (pair.target.caches, pair.draft.caches) == (0, 0)
    assert u.left == [0.5]


@pytest.mark.parametrize("vocab", [6, 8])
def test_models_of_different_vocabularies_are_refused(kata, oracle, vocab):
    target, draft = oracle.greedy_pair(7, 6).target, oracle.greedy_pair(vocab, 6).draft
    with pytest.raises(ValueError, match=r"\bvocab\b"):
        kata.speculative_decode(target, draft, torch.tensor([1]), 4, 2, oracle.Reads([]))
    assert not target.calls
    assert not draft.calls
    assert (target.caches, draft.caches) == (0, 0)
