"""Forward work: verdicts, hidden states between spans, trees, and refusals."""

import copy

import pytest
import torch

from serving.core.keyed_random import key, uniform
from serving.engines.torch.engine import TorchEngine
from serving.engines.torch.model import decompose
from serving.engines.torch.sampling import distribution, encode_probs, sample_token
from serving.engines.torch.tensor_store import TensorStore
from serving.messages import ForwardWork, SamplingParams, SequenceSlice, Span, Verdict

WHOLE = Span(0, 4, embedding=True, lm_head=True)
PROMPT = (5, 17, 40, 8, 23, 61, 9, 30, 77)


@pytest.fixture
def engine(llama):
    return TorchEngine(decompose(copy.deepcopy(llama)))


@pytest.fixture(scope="module")
def written(llama):
    out = llama.generate(torch.tensor([PROMPT]), max_new_tokens=8, do_sample=False, eos_token_id=None, pad_token_id=0)
    return tuple(out[0, len(PROMPT) :].tolist())


def _verdicts(engine, *rows, span=WHOLE):
    return [result.verdict for result in engine.execute(ForwardWork(span, rows, ("last",) * len(rows)))[0]]


def _other(token):
    return 3 + (token + 1) % 90


def test_drafts_are_accepted_up_to_the_first_that_the_target_would_not_write(engine, written):
    good = (*PROMPT, *written[:3])
    bad = (*PROMPT, written[0], _other(written[1]), written[2])
    rows = [
        SequenceSlice("all", 0, 12, good, 3, "greedy"),
        SequenceSlice("one", 0, 12, bad, 3, "greedy"),
        SequenceSlice("part", 0, 9, PROMPT),
        SequenceSlice("none", 0, 9, PROMPT, 0, "greedy"),
    ]
    wanted = [Verdict(3, written[3]), Verdict(1, written[1]), None, Verdict(0, written[0])]
    assert _verdicts(engine, *rows) == wanted


def test_a_chunked_prefill_and_a_verification_roll_back_and_continue(engine, written):
    assert _verdicts(engine, SequenceSlice("a", 0, 4, PROMPT[:4])) == [None]
    assert _verdicts(engine, SequenceSlice("a", 4, 6, (*PROMPT[4:], _other(written[0])), 1, "greedy")) == [
        Verdict(0, written[0])
    ]
    assert _verdicts(engine, SequenceSlice("a", 9, 3, written[:3], 2, "greedy")) == [Verdict(2, written[3])]


def test_three_engines_of_one_process_pass_hidden_states_by_id(llama, written):
    blobs = TensorStore()
    parts = [TorchEngine(decompose(copy.deepcopy(llama)), tensor_store=blobs) for _ in range(3)]
    spans = [Span(0, 1, embedding=True), Span(1, 4), Span(4, 4, lm_head=True)]

    def ask(rows, outs):
        for engine, span, out in zip(parts, spans, outs, strict=True):
            (result,), _ = engine.execute(ForwardWork(span, (rows,), (out,)))
            rows = SequenceSlice(
                rows.session,
                rows.start,
                rows.num_tokens,
                rows.tokens[-rows.num_drafts :] if rows.num_drafts else (),
                rows.num_drafts,
                rows.rule,
                hidden_states=result.hidden_states,
            )
        return result.verdict

    assert ask(SequenceSlice("a", 0, 4, PROMPT[:4]), ("all", "last", "last")) is None
    tokens = (*PROMPT[4:], *written[:2], _other(written[2]))
    assert ask(SequenceSlice("a", 4, 8, tokens, 3, "greedy"), ("all", "last", "last")) == Verdict(2, written[2])
    assert ask(SequenceSlice("a", 11, 1, (written[2],), 0, "greedy"), ("all", "all", "last")) == Verdict(0, written[3])
    assert len(blobs) == 0


def test_exported_hidden_states_take_two_bytes_a_number(engine):
    rows = (SequenceSlice("a", 0, 9, PROMPT, 2), SequenceSlice("b", 0, 9, PROMPT, 2))
    results, _ = engine.execute(ForwardWork(Span(0, 2, embedding=True), rows, ("all", "last")))
    assert [result.hidden_states.nbytes for result in results] == [9 * 32 * 2, 3 * 32 * 2]
    every, last = (engine.tensor_store.get(result.hidden_states) for result in results)
    torch.testing.assert_close(every[-3:], last)


def test_accepted_tree_nodes_are_kept_in_the_cache(engine, written):
    wrong = _other(written[0])
    drafts, parents = (wrong, written[0], wrong, written[1], written[2]), (-1, -1, 1, 1, 3)
    seq = SequenceSlice("a", 0, 14, (*PROMPT, *drafts), 5, "greedy", parents=parents)
    assert _verdicts(engine, seq) == [Verdict(3, written[3], (1, 3, 4))]
    follow = SequenceSlice("a", 12, 2, (written[3], written[4]), 1, "greedy", parents=(-1,), kept_tree_nodes=(1, 3, 4))
    assert _verdicts(engine, follow) == [Verdict(1, written[5], (0,))]
    nothing = SequenceSlice(
        "a", 13, 2, (written[4], _other(written[5])), 1, "greedy", parents=(-1,), kept_tree_nodes=()
    )
    assert _verdicts(engine, nothing) == [Verdict(0, written[5], ())]


def test_a_tree_that_follows_a_prompt_in_chunks_gets_the_same_verdict(engine, written):
    """After a cache miss the whole text is sent again, and a worker may split it before the drafts."""
    drafts, parents = (_other(written[0]), written[0], written[1]), (-1, -1, 1)
    whole = SequenceSlice("tree", 0, len(PROMPT) + 3, (*PROMPT, *drafts), 3, "greedy", parents=parents)
    first, last = whole.narrow(0, 4), whole.narrow(4, whole.num_tokens)
    assert first.parents is None
    assert _verdicts(engine, first) == [None]
    assert _verdicts(engine, last) == [Verdict(2, written[2], (1, 2))]


def test_sampled_decoding_draws_from_the_target(engine, llama):
    sampling = SamplingParams(1.0, 1, 1.0, seed=1)  # only the likeliest token is left
    with torch.inference_mode():
        likeliest = int(llama(torch.tensor([PROMPT])).logits[0, -1].argmax())
    assert _verdicts(engine, SequenceSlice("a", 0, 9, PROMPT, 0, "sample", sampling)) == [Verdict(0, likeliest)]


@pytest.mark.parametrize("check", [0, 1, 2])
def test_random_numbers_depend_on_the_tokens_absolute_position(engine, llama, check):
    sampling = SamplingParams(1.5, 0, 1.0, seed=8)
    with torch.inference_mode():
        rows = distribution(llama(torch.tensor([PROMPT])).logits[0, -check - 1 :], sampling)
    own = tuple(engine.tensor_store.put(encode_probs(row), "test", 2 * 97) for row in rows[:-1])
    (verdict,) = _verdicts(engine, SequenceSlice("a", 0, 9, PROMPT, check, "sample", sampling, draft_probs=own))
    assert verdict == Verdict(
        check, sample_token(rows[-1], uniform(key(8, "a"), 9, "residual"))
    )  # drawn from the target: accepted


def test_a_session_may_have_one_slice_in_a_forward(engine):
    with pytest.raises(ValueError, match="a session has two slices"):
        _verdicts(engine, SequenceSlice("a", 0, 1, (5,)), SequenceSlice("a", 1, 1, (6,)))


def test_slices_without_tokens_or_hidden_states_are_refused(engine):
    with pytest.raises(ValueError, match="has 3 positions but 2 tokens to embed"):
        _verdicts(engine, SequenceSlice("a", 0, 3, (5, 6)))
    with pytest.raises(ValueError, match="no hidden states for layers 1 to 4"):
        _verdicts(engine, SequenceSlice("a", 0, 3, ()), span=Span(1, 4))
    short = engine.tensor_store.put(torch.zeros(2, 32), "test", 0)
    with pytest.raises(ValueError, match="has 3 positions but 2 hidden states"):
        _verdicts(engine, SequenceSlice("a", 0, 3, (), hidden_states=short), span=Span(1, 4))
    with pytest.raises(ValueError, match="without saying how tokens are drawn"):
        _verdicts(engine, SequenceSlice("a", 0, 1, (5,), 0, "sample"))
    one = (engine.tensor_store.put(torch.full((97,), 1 / 97), "test", 0),)
    with pytest.raises(ValueError, match="sent 2 drafts with 1 distributions"):
        _verdicts(
            engine, SequenceSlice("b", 0, 3, (5, 6, 7), 2, "sample", SamplingParams(1.0, 0, 1.0, 1), draft_probs=one)
        )
