"""What a chip is busy with, in a load test of one device, against values computed by hand."""

from dataclasses import replace

import pytest

from serving.messages import SequenceSlice
from serving.policy.slots.scheduler import ContinuousBatch
from serving.studies.capacity.busy_time import busy_with
from serving.studies.capacity.load_test import LoadTest, run_load_test
from tests.serving.studies.capacity.steady_setup import ALWAYS, setup
from tests.support.policies import policy

SHORT = LoadTest(warmup_s=4, window_s=40, stagger_s=2, answers=4, busy_time=True)
A_S, B_S, READ_S, C_S = 33.14e-6, 34.5e-9, 4.62e-6, 14.86e-3


def test_kinds_of_work_are_told_by_cache_and_drafts() -> None:
    prompt = SequenceSlice("a", 0, 108, (0,) * 108, 8, "greedy")
    assert busy_with(prompt) == "prefill"
    assert busy_with(replace(prompt, start=100, num_tokens=9)) == "verification"
    assert busy_with(replace(prompt, start=100, num_tokens=1, num_drafts=0)) == "decode"


def test_chunks_of_a_prompt_and_what_follows_a_cached_prefix_are_prefills() -> None:
    """A prompt of 500 with 8 drafts, in chunks of 256: the last one has 244 of its tokens."""
    prompt = SequenceSlice("a", 0, 508, (0,) * 508, 8, "greedy")
    middle, last = prompt.narrow(100, 356), prompt.narrow(256, 508)
    undrafted = replace(prompt, num_tokens=500, num_drafts=0).narrow(256, 500)
    behind_prefix = replace(prompt, start=64, num_tokens=444)
    one_token = prompt.narrow(256, 257)
    assert {busy_with(seq) for seq in (middle, last, undrafted, behind_prefix, one_token)} == {"prefill"}


def test_the_busy_time_of_verifications_and_decodes_by_hand() -> None:
    """Answers of 18 tokens: a prefill with 8 drafts and a verification of 9 rows, or a prefill and 17 decodes."""
    drafted = run_load_test(setup(), ALWAYS, SHORT, 1, 0).metrics
    assert drafted["busy/constant_s_per_token"] == pytest.approx(2 * C_S / 18, rel=0.05)
    assert drafted["busy/prefill_s_per_token"] == pytest.approx((A_S * 108 + B_S * 108 * 108) / 18, rel=0.05)
    assert drafted["busy/verification_s_per_token"] == pytest.approx(
        (A_S * 9 + B_S * 117 * 9 + READ_S * 108) / 18, rel=0.05
    )
    assert drafted["busy/decode_s_per_token"] == 0
    served = run_load_test(
        setup(chosen=policy("cloud_centric", scheduler=ContinuousBatch(1))), ALWAYS, SHORT, 1, 0
    ).metrics
    assert served["busy/verification_s_per_token"] == 0
    assert served["busy/constant_s_per_token"] == pytest.approx(C_S, rel=0.05)
    assert served["busy/share"] == pytest.approx(1, abs=0.02)
    assert served["busy/requests_per_batch"] == 1


def test_busy_time_is_left_out_unless_asked_for() -> None:
    plain = run_load_test(setup(), ALWAYS, replace(SHORT, busy_time=False), 1, 0).metrics
    assert not [name for name in plain if name.startswith("busy/")]
