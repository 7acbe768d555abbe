"""Messages cannot be written to where tests look, and a run that trusts them says the same."""

import os
import subprocess
import sys
from dataclasses import FrozenInstanceError, fields, replace

import pytest

from serving.messages import (
    FROZEN,
    DraftStopRule,
    DraftTree,
    Reply,
    Request,
    SamplingParams,
    SequenceSlice,
    Span,
    TensorRef,
    Verdict,
    message_nbytes,
)
from tests.support.policies import policy
from tests.support.simulated_nodes import world

SCRIPT = """
from serving.messages import FROZEN
from tests.support.policies import policy
from tests.support.simulated_nodes import world
assert not FROZEN
print(world(policy("{name}"), devices=2).run().log.entries)
"""


@pytest.mark.skipif(not FROZEN, reason="messages are not frozen in this run (TANDEM_FROZEN)")
def test_messages_are_immutable_in_tests() -> None:
    with pytest.raises(FrozenInstanceError, match="max_tokens"):
        DraftStopRule(4).max_tokens = 5  # type: ignore[misc]


def test_a_slice_with_its_whole_text_keeps_all_that_belongs_to_its_drafts() -> None:
    """Every field has another value than its default's, so that none can be forgotten."""
    states, probs = TensorRef("hidden/1", 64), TensorRef("odds/1", 32)
    sampling = SamplingParams(0.8, 5, 0.9, 3)
    part = SequenceSlice("s", 5, 2, (6, 7), 1, "greedy", sampling, (-1,), (0,), states, (probs,), 4)
    plain = SequenceSlice("", 0, 0, ())
    assert all(getattr(part, one.name) != getattr(plain, one.name) for one in fields(SequenceSlice))
    text = tuple(range(1, 8))
    assert part.with_prefix(text) == replace(part, start=0, num_tokens=7, tokens=text, kept_tree_nodes=None)


def test_messages_compare_and_hash_by_type_and_value() -> None:
    seq = SequenceSlice("s", 0, 2, (1, 2))
    assert seq == SequenceSlice("s", 0, 2, (1, 2)) != SequenceSlice("s", 0, 2, (1, 3))
    assert len({Span(0, 8), Span(0, 8), Span(0, 9), DraftStopRule(4)}) == 3
    assert Request(0, seq, (), 0, (), "d") != (0, seq, (), 0, (), "d")


@pytest.mark.parametrize("name", ["synera", "cloud_centric"])
def test_unfrozen_messages_make_the_same_log(name: str) -> None:
    environment = {**os.environ, "TANDEM_FROZEN": "0", "PYTHONPATH": os.pathsep.join(sys.path)}
    script = [sys.executable, "-c", SCRIPT.format(name=name)]
    told = subprocess.run(script, env=environment, check=True, capture_output=True, text=True)
    assert told.stdout.strip() == repr(world(policy(name), devices=2).run().log.entries)


def test_a_tree_that_the_cloud_proposes_is_charged_as_one_that_it_is_sent() -> None:
    tokens, parents = tuple(range(63)), (-1,) * 63
    verdicts = Verdict(0, 7), Verdict(0, 7, None, DraftTree(tokens, parents))
    plain, proposing = (message_nbytes(Reply("s", 0, 3, verdict, (), 1)) for verdict in verdicts)
    assert proposing - plain == SequenceSlice("s", 0, 63, tokens, 63, parents=parents).nbytes
