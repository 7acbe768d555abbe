"""Acceptance rules, and that speculative sampling has the target's distribution."""

from functools import cache

import pytest
import torch
from scipy.stats import chisquare

from serving.core.keyed_random import key, uniform
from serving.engines.torch.sampling import (
    decode_probs,
    distribution,
    encode_probs,
    sample_token,
    verify_greedy,
    verify_sampled,
)
from serving.messages import SamplingParams, Verdict

SAMPLING = SamplingParams(1.0, 0, 1.0, seed=11)
VOCABULARY, CONTEXTS, DRAFTS, ROUNDS = 32, 4, 3, 9000


@pytest.mark.parametrize(
    ("drafts", "verdict"),
    [((), (0, 4)), ((4,), (1, 5)), ((9,), (0, 4)), ((4, 5), (2, 6)), ((4, 9), (1, 5)), ((9, 5), (0, 4))],
)
def test_greedy_stops_at_the_first_difference(drafts, verdict):
    assert verify_greedy((4, 5, 6)[: len(drafts) + 1], drafts) == Verdict(*verdict)


@pytest.mark.parametrize(
    ("drafts", "parents", "choices", "verdict"),
    [
        ((7, 8), (-1, 0), (7, 8, 9), (2, 9, (0, 1))),
        ((7, 8, 5), (-1, -1, 1), (8, 1, 5, 6), (2, 6, (1, 2))),
        ((7, 8), (-1, -1), (9, 1, 2), (0, 9, ())),
        ((7, 7), (-1, 0), (7, 3, 9), (1, 3, (0,))),
    ],
)
def test_greedy_follows_the_targets_choices_down_a_tree(drafts, parents, choices, verdict):
    assert verify_greedy(choices, drafts, parents) == Verdict(*verdict)


def _tables():
    """Logits of the next token per context, of the target and of a drafter that often agrees."""
    generator = torch.Generator().manual_seed(7)
    target = torch.randn(CONTEXTS, VOCABULARY, generator=generator) * 0.8
    return target, target + torch.randn(CONTEXTS, VOCABULARY, generator=generator) * 0.8


@cache
def _write(verifier, rounds=ROUNDS, certain=False):
    """Counts of tokens per context, the context being the token before it modulo CONTEXTS, from independent rounds.

    With `certain`, each draft is the drafter's likeliest token, sent without a distribution.
    """
    target, drafter = _tables()
    sent, likeliest = [encode_probs(row) for row in distribution(drafter, SAMPLING)], drafter.argmax(-1).tolist()
    counts = [[0] * VOCABULARY for _ in range(CONTEXTS)]
    for round_ in range(rounds):
        session, contexts, drafts = f"s{round_}", [round_ % CONTEXTS], []
        stream = key(SAMPLING.seed, session)
        for i in range(DRAFTS):
            here = contexts[-1]
            drafts.append(likeliest[here] if certain else sample_token(sent[here], uniform(stream, i, "draft")))
            contexts.append(drafts[-1] % CONTEXTS)
        odds = [] if certain else [sent[c] for c in contexts[:-1]]
        verdict = verifier(target[contexts], drafts, odds, SAMPLING, session, 0)
        for context, token in zip(contexts, [*drafts[: verdict.accepted], verdict.next_token], strict=False):
            counts[context][token] += 1
    return torch.tensor(counts, dtype=torch.float)


def _p_value(counts):
    """Chi-square over all contexts against the target's distributions; cells of fewer than 5 expected are pooled."""
    target = distribution(_tables()[0], SAMPLING)
    seen, wanted = [], []
    for row, odds in zip(counts.double(), target, strict=True):
        expected = odds * row.sum()
        rare = expected < 5
        pooled = [(row[rare].sum(), expected[rare].sum())] if rare.any() else []
        cells = [*zip(row[~rare], expected[~rare], strict=True), *pooled]
        seen += [float(cell) for cell, _ in cells]
        wanted += [float(cell) for _, cell in cells]
    assert min(wanted) >= 5
    return chisquare(seen, wanted, ddof=CONTEXTS - 1).pvalue


def _wisp_equation_3(logits, drafts, odds, sampling, session, first):
    """The correction drawn from the target itself, as printed in WISP: not lossless."""
    target, stream = distribution(logits, sampling), key(sampling.seed, session)
    for i, token in enumerate(drafts):
        draft = decode_probs(odds[i], target.shape[1])
        if uniform(stream, first + i, "accept") * float(draft[token]) >= float(target[i, token]):
            return Verdict(i, sample_token(target[i], uniform(stream, first + i, "residual")))
    return Verdict(len(drafts), sample_token(target[-1], uniform(stream, first + len(drafts), "residual")))


def test_speculative_sampling_writes_the_targets_distribution():
    counts = _write(verify_sampled)
    assert counts.sum() >= 20_000
    assert ROUNDS * 1.5 < counts.sum() < ROUNDS * (DRAFTS + 1) * 0.9  # drafts are both accepted and rejected
    assert 0.01 < _p_value(counts) < 0.999


def test_drafts_without_distributions_leave_the_targets_distribution():
    counts = _write(verify_sampled, 3 * ROUNDS, certain=True)
    assert counts.sum() > 3 * ROUNDS * 1.05
    assert 0.01 < _p_value(counts) < 0.999


TREE = (-1, -1, 0, 0, 1, 2)
"""Two siblings, three children of theirs, a grandchild."""


@cache
def _write_trees(verifier, rounds=ROUNDS, certain=False):
    """As `_write`, with trees whose siblings are drawn without replacement."""
    target, drafter = _tables()
    sent, ranked = [encode_probs(row) for row in distribution(drafter, SAMPLING)], drafter.argsort(-1, descending=True)
    counts = [[0] * VOCABULARY for _ in range(CONTEXTS)]
    for round_ in range(rounds):
        session, drafts = f"s{round_}", []
        contexts, stream = [round_ % CONTEXTS], key(SAMPLING.seed, f"s{round_}")
        for i, parent in enumerate(TREE):
            here, siblings = contexts[parent + 1], [drafts[j] for j in range(i) if TREE[j] == parent]
            if certain:
                drafts.append(int(ranked[here, len(siblings)]))
            else:
                weights = sent[here].clone()
                weights[siblings] = 0
                drafts.append(sample_token(weights, uniform(stream, i, "draft")))
            contexts.append(drafts[-1] % CONTEXTS)
        odds = [] if certain else [sent[contexts[parent + 1]] for parent in TREE]
        verdict = verifier(target[contexts], drafts, odds, SAMPLING, session, 0, TREE)
        path = verdict.kept_tree_nodes
        written = [*(drafts[node] for node in path), verdict.next_token]
        for node, token in zip((-1, *path), written, strict=True):
            counts[contexts[node + 1]][token] += 1
    return torch.tensor(counts, dtype=torch.float)


def _each_against_the_target(logits, drafts, odds, sampling, session, first, parents):
    """Every sibling judged as if it were the first, and the correction drawn from the target: not lossless."""
    target, stream = distribution(logits, sampling), key(sampling.seed, session)
    path = []
    while True:
        node, position = path[-1] if path else -1, first + len(path)
        for i, child in enumerate(j for j, parent in enumerate(parents) if parent == node):
            token, draft = drafts[child], decode_probs(odds[child], target.shape[1])
            if uniform(stream, position, f"accept {i}") * float(draft[token]) < float(target[node + 1, token]):
                path.append(child)
                break
        else:
            token = sample_token(target[node + 1], uniform(stream, position, "residual"))
            return Verdict(len(path), token, tuple(path))


def test_sampled_trees_write_the_targets_distribution():
    counts = _write_trees(verify_sampled)
    assert ROUNDS * 1.7 < counts.sum() < ROUNDS * 4
    assert 0.01 < _p_value(counts) < 0.999


def test_trees_without_distributions_leave_the_targets_distribution():
    counts = _write_trees(verify_sampled, 2 * ROUNDS, certain=True)
    assert counts.sum() > 2 * ROUNDS * 1.1
    assert 0.01 < _p_value(counts) < 0.999


def test_the_distribution_test_rejects_a_verifier_of_trees_that_forgets_rejected_siblings():
    assert _p_value(_write_trees(_each_against_the_target)) < 1e-6


def test_a_tree_accepts_more_than_its_first_path():
    chain = _write(verify_sampled).sum()
    assert _write_trees(verify_sampled).sum() > 1.05 * chain


def test_distributions_are_given_for_all_drafts_or_none():
    with pytest.raises(ValueError, match="sent 2 drafts with 1 distributions"):
        verify_sampled(torch.zeros(3, 4), (2, 1), [encode_probs(torch.ones(4) / 4)], SAMPLING, "s", 0)


def test_the_distribution_test_rejects_a_verifier_that_corrects_from_the_target():
    assert _p_value(_write(_wisp_equation_3)) < 1e-6


def test_a_draft_outside_the_targets_support_is_rejected():
    logits = torch.zeros(2, 4)
    logits[0, 2] = -1e9
    odds = encode_probs(torch.tensor([0.0, 0.0, 1.0, 0.0]))
    for session in map(str, range(50)):
        verdict = verify_sampled(logits, (2,), [odds], SAMPLING, session, 0)
        assert verdict.accepted == 0
        assert verdict.next_token != 2


def test_a_drafter_with_a_larger_vocabulary_is_verified():
    odds = encode_probs(torch.tensor([0.0, 0.5, 0.0, 0.5]))
    verdicts = {
        verify_sampled(torch.zeros(2, 3), (t,), [odds], SAMPLING, str(s), 0).next_token
        for s in range(20)
        for t in (1, 3)
    }
    assert verdicts <= {0, 1, 2}


@pytest.mark.parametrize(
    "sampling", [SamplingParams(1.0, 6, 1.0, 3), SamplingParams(1.3, 0, 0.6, 3), SamplingParams(0.7, 9, 0.8, 3)]
)
def test_sparse_distributions_change_no_verdict(sampling):
    generator = torch.Generator().manual_seed(4)
    target = torch.randn(DRAFTS + 1, 200, generator=generator) * 3
    odds = distribution(target[:-1] + torch.randn(DRAFTS, 200, generator=generator), sampling)
    sent, whole = [encode_probs(row) for row in odds], [encode_probs(row, full=True) for row in odds]
    assert all(len(short) < 90 and len(long) == 200 for short, long in zip(sent, whole, strict=True))
    verdicts = []
    for session in map(str, range(60)):
        drafts = [sample_token(row, uniform(key(3, session), i, "draft")) for i, row in enumerate(whole)]
        verdict, other = (verify_sampled(target, drafts, each, sampling, session, 0) for each in (sent, whole))
        assert verdict == other
        verdicts.append(verdict.accepted)
    assert {0, DRAFTS} < set(verdicts)


def test_a_padded_target_verifies_sparse_and_dense_distributions_alike():
    sampling = SamplingParams(1.0, 5, 1.0, 3)
    odds = distribution(torch.randn(60, generator=torch.Generator().manual_seed(4)), sampling)
    target = torch.zeros(2, 64)
    for session in map(str, range(20)):
        token = sample_token(encode_probs(odds, full=True), uniform(key(3, session), 0, "draft"))
        verdicts = [
            verify_sampled(target, (token,), [encode_probs(odds, w)], sampling, session, 0) for w in (True, False)
        ]
        assert verdicts[0] == verdicts[1]


def test_a_draft_beyond_the_targets_vocabulary_is_refused():
    odds = encode_probs(torch.nn.functional.one_hot(torch.tensor(70), 97).double())
    with pytest.raises(ValueError, match="names tokens 70 to 70 of a vocabulary of 64"):
        verify_sampled(torch.zeros(2, 64), (70,), [odds], SAMPLING, "s", 0)
