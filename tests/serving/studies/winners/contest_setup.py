"""A small contest: decoding, drafts in the cloud, and drafts on two devices, with made-up outcomes."""

from dataclasses import replace
from functools import cache

from serving.deployment.setup import Setup
from serving.outcomes import fit
from serving.outcomes.fitted import FittedAcceptance, PromptLengths
from serving.policy.slots.draft import WindowDraft
from serving.policy.slots.kv_cache import PrefixCaching
from serving.policy.slots.placement import ColocatedPlacement
from serving.policy.slots.prefill import WholePrefill
from serving.policy.slots.scheduler import ContinuousBatch
from serving.studies.winners.contest import Contest
from serving.studies.winners.steady_state import SteadyLoad
from tests.serving.outcomes.made_up_trace import trace
from tests.serving.studies.capacity import steady_setup
from tests.support.conf_files import bed, link
from tests.support.policies import policy

KEPT = {"kv_cache": PrefixCaching(), "scheduler": ContinuousBatch(256), "prefill": WholePrefill("first")}
CONTENDERS = {
    "cloud_decoding": policy("cloud_centric"),
    "cloud_speculative": policy(
        "sled", draft=WindowDraft(4), placement=ColocatedPlacement(), batch_drafts=True, **KEPT
    ),
    "cloud_window": policy("sled", draft=WindowDraft(4), placement=ColocatedPlacement(), batch_drafts=True, **KEPT),
    "device_drafts": policy("sled", draft=WindowDraft(4), **KEPT),
}
DEVICES = {"slow": bed("raspberry_pi").device, "fast": bed("wisp").device}


@cache
def outcomes() -> FittedAcceptance:
    found = fit.fit_acceptance(trace(), 0)
    return replace(found, full_length_answers=True, prompt_lengths=PromptLengths(40, 10))


def setup() -> Setup:
    made = steady_setup.setup(slo=(), max_new_tokens=12)
    return replace(made, network=link("lan_100mbps"))


def contest(seeds: tuple[int, ...] = (0, 1), min_answers: int = 4) -> Contest:
    devices = {name: fleet for name, fleet in DEVICES.items() if fleet}
    return Contest(setup(), outcomes(), CONTENDERS, devices, {}, SteadyLoad(min_answers, 0.5), seeds)
