"""Lookahead, early exit and importance on real models change neither drafts nor text."""

import itertools

import pytest

from serving.drivers.simulator import ComputeResource, Simulator
from serving.engines.torch.engine import TorchEngine
from serving.engines.torch.model import decompose
from serving.messages import GenerationRequest, RequestArrived, SamplingParams
from serving.metrics.recorder import Recorder
from serving.nodes.device import Device
from serving.nodes.worker import Worker
from serving.policy.slots.draft import WindowDraft
from serving.policy.slots.early_exit import LayerwiseExit, NoEarlyExit
from serving.policy.slots.kv_cache import PrefixCaching
from serving.policy.slots.lookahead import NoLookahead, SyneraLookahead
from tests.support.policies import THRESHOLDS, policy

PROMPTS = ((5, 17, 40, 8, 23, 61), (9, 30, 77))
LIMIT = 20
SAMPLING = SamplingParams(0.2, 4, 0.95, 3)


class Weighed:
    scope = "all"
    requested_scores = ("confidence", "importance")

    def tokens_to_offload(self, s):
        return 1


class Slow:
    """Takes so long for everything."""

    def __init__(self, engine, seconds):
        self.engine, self.seconds = engine, seconds

    def execute(self, work):
        return self.engine.execute(work)[0], self.seconds

    def drop(self, session, first):
        self.engine.drop(session, first)


@pytest.fixture(scope="module")
def models(causal):
    """Upper layers change little, and those of the target a little more: most drafts are accepted, not all."""
    drafter, target = decompose(causal("llama")), decompose(causal("llama"))
    for model, share in ((drafter, 0.15), (target, 0.25)):
        for layer in model.layers[1:]:
            layer.self_attn.o_proj.weight.data.mul_(share)
            layer.mlp.down_proj.weight.data.mul_(share)
    return drafter, target


def play(models, lookahead, early_exit, sampling=None):
    p = policy(
        "sled",
        lookahead=lookahead,
        early_exit=early_exit,
        kv_cache=PrefixCaching(),
        offload=Weighed(),
        draft=WindowDraft(4),
    )
    device = TorchEngine(models[0])
    cloud = TorchEngine(models[1], tensor_store=device.tensor_store)  # which is all the transport there is
    recorder = Recorder(["device"])
    simulator = Simulator([recorder])
    simulator.add("cloud", Worker("cloud", p), ComputeResource(Slow(cloud, 10.0)))
    simulator.add(
        "device",
        Device("device", p, p.placement.hops(4, 4), {"cloud": ("cloud",)}, 0),
        ComputeResource(Slow(device, 1)),
    )
    for i, prompt in enumerate(PROMPTS):
        simulator.post(0.0, "device", RequestArrived(GenerationRequest(f"r{i}", prompt, LIMIT, (), sampling)))
    simulator.run()
    assert not len(device.cache)
    return recorder.records


@pytest.mark.parametrize("early_exit", [NoEarlyExit(), LayerwiseExit(0.3, 0.75), LayerwiseExit(0.3, 0.5, 1)], ids=str)
@pytest.mark.parametrize("sampling", [None, SAMPLING], ids=["greedy", "sampled"])
def test_lookahead_changes_no_draft_score_or_text(models, early_exit, sampling):
    idle = play(models, NoLookahead(), early_exit, sampling)
    busy = play(models, SyneraLookahead(THRESHOLDS, 3), early_exit, sampling)
    for name, record in idle.items():
        assert busy[name].tokens == record.tokens
        assert len(record.tokens) == LIMIT
        for mine, other in itertools.zip_longest(busy[name].draft_decisions, record.draft_decisions):
            assert (mine.position, mine.tokens, mine.accepted) == (other.position, other.tokens, other.accepted)
            for score, values in other.scores.items():
                assert mine.scores[score] == pytest.approx(values, abs=1e-4)
    assert sum(record.lookahead_hits for record in busy.values()) > 0
    assert sum(record.lookahead_attempts - record.lookahead_hits for record in busy.values()) > 0


@pytest.mark.parametrize(
    "early_exit", [LayerwiseExit(0.3, 0.75), LayerwiseExit(0.0, 0.5), LayerwiseExit(1.0, 0.5)], ids=str
)
def test_early_exits_with_lookahead_leave_the_targets_text(models, early_exit):
    plain = play(models, NoLookahead(), NoEarlyExit())
    exited = play(models, SyneraLookahead(THRESHOLDS, 5), early_exit)
    assert [r.tokens for r in exited.values()] == [r.tokens for r in plain.values()]
    shares = {r.early_exit_tokens / r.drafted for r in exited.values()}
    assert shares == {0.0} if early_exit.margin == 1.0 else min(shares) > 0
