"""A target split over engines, the device's two ends and the cloud's stages, against the whole model."""

from dataclasses import replace

import pytest
import torch

from serving.drivers.simulator import ComputeResource, Simulator
from serving.engines.torch import draft_heads
from serving.engines.torch.draft_heads import MedusaProposer, init_medusa_heads
from serving.engines.torch.engine import TorchEngine
from serving.engines.torch.model import decompose, load_model
from serving.engines.torch.model_runner import ModelRunner
from serving.engines.torch.tensor_store import TensorStore
from serving.learned.medusa import MedusaHeads
from serving.messages import (
    MEDUSA_TREE,
    DraftStopRule,
    DraftTree,
    DraftWork,
    ForwardWork,
    GenerationRequest,
    RequestArrived,
    SequenceSlice,
    Span,
    Verdict,
    WorkFinished,
)
from serving.metrics.recorder import Recorder
from serving.nodes.device import Device
from serving.nodes.worker import Worker
from serving.policy.slots.draft import MedusaDraft, WindowDraft
from serving.policy.slots.placement import DEVICE_TIER, UShapedPlacement
from serving.policy.slots.prefill import ChunkedPrefill as InParts
from tests.support.policies import policy

VARIANTS = ("llama", "llama_yarn", "qwen2_mixed", "qwen3", "mistral", "phi3", "neox")
"""All six architectures, with sliding windows of 8 where there are any."""
SPLITS = ((1, 1), (1, 2), (1, 3), (2, 1), (2, 2))
PROMPT = (5, 17, 40, 8, 23, 61, 9, 30, 77, 12, 55, 3, 90, 41, 66, 7, 19, 84, 33, 50, 21, 72, 15)
WHOLE = Span(0, 4, embedding=True, lm_head=True)
TREE = MedusaHeads(
    3, tuple((i,) for i in range(40)) + tuple((i, j) for i in range(8) for j in range(6)) + ((0, 0, 0),), 1
)


@pytest.fixture(scope="module")
def saved(causal, tmp_path_factory):
    """A checkpoint of each architecture."""
    found = {}
    for variant in VARIANTS:
        found[variant] = tmp_path_factory.mktemp(variant)
        causal(variant).save_pretrained(found[variant])
    return found


@pytest.fixture(scope="module")
def written(causal):
    """The text that each model writes after the prompt."""
    options = {"max_new_tokens": 24, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    return {
        v: tuple(causal(v).generate(torch.tensor([PROMPT]), **options)[0, len(PROMPT) :].tolist()) for v in VARIANTS
    }


@pytest.fixture
def logits(monkeypatch):
    """All logits."""
    said, plain = [], ModelRunner.logits

    def spy(self, hidden):
        said.append(plain(self, hidden))
        return said[-1]

    monkeypatch.setattr(ModelRunner, "logits", spy)
    return said


class Route:
    """Hops over engines of their own, as nodes pass hidden states on."""

    def __init__(self, path, shallow, stages, download="last", hidden_dtype="fp32", heads=None):
        self.hops = UShapedPlacement(shallow, stages, download).hops(4, 4)
        self.tensor_store, whole = TensorStore(), load_model(path)
        options = {"tensor_store": self.tensor_store, "hidden_dtype": hidden_dtype}
        self.device = TorchEngine(load_model(path, num_layers=shallow), **options, proposer=heads)
        self.clouds = [TorchEngine(whole.restricted_to(h.span), **options) for h in self.hops if h.node != DEVICE_TIER]

    def ask(self, *asked, probes=()):
        """Verdicts by session, of a batch."""
        tokens = {rows.session: rows.tokens[len(rows.tokens) - rows.num_drafts :] for rows in asked}
        for hop, engine in zip(self.hops, (self.device, *self.clouds, self.device), strict=True):
            if hop.span.lm_head:
                asked = [replace(rows, tokens=tokens[rows.session]) for rows in asked if rows.hidden_states]
            if not asked:
                return {}
            out = [
                "" if hop is self.hops[-2] and hop.hidden_export == "last" and not rows.rule else hop.hidden_export
                for rows in asked
            ]
            results, _ = engine.execute(
                ForwardWork(hop.span, tuple(asked), tuple(out), probes if hop.span.lm_head else ())
            )
            if hop.span.lm_head:
                return told(asked, results)
            asked = [
                replace(rows, tokens=(), hidden_states=result.hidden_states)
                for rows, result in zip(asked, results, strict=True)
            ]
        raise AssertionError("a route ends with a head")


def told(asked, results):
    return {rows.session: result.verdict for rows, result in zip(asked, results, strict=True) if result.verdict}


class Unsplit:
    def __init__(self, path):
        self.engine = TorchEngine(load_model(path), hidden_dtype="fp32")

    def ask(self, *asked):
        results, _ = self.engine.execute(ForwardWork(WHOLE, asked, ("last",) * len(asked)))
        return told(asked, results)


def other(token):
    return 3 + (token + 1) % 90


def conversation(w):
    """A prompt in uneven parts, a decode, drafts of which one falls, drafts behind it, a tree, what its verdict keeps;
    and beside it another session.
    """
    n = len(PROMPT)
    yield (SequenceSlice("a", 0, 5, PROMPT[:5]),)
    yield (SequenceSlice("a", 5, 1, PROMPT[5:6]), SequenceSlice("b", 0, 9, PROMPT[:9], 0, "greedy"))
    yield (SequenceSlice("b", 9, 2, PROMPT[9:11], 0, "greedy"), SequenceSlice("a", 6, 12, PROMPT[6:18]))
    yield (SequenceSlice("a", 18, 5, PROMPT[18:], 0, "greedy"),)
    yield (SequenceSlice("a", n, 1, w[:1], 0, "greedy"),)
    yield (SequenceSlice("a", n + 1, 4, (w[1], w[2], other(w[3]), w[4]), 3, "greedy"),)
    yield (SequenceSlice("a", n + 3, 3, w[3:6], 2, "greedy"), SequenceSlice("b", 11, 3, PROMPT[11:14], 1, "greedy"))
    drafts, parents = (other(w[7]), w[7], other(w[8]), w[8], w[9]), (-1, -1, 1, 1, 3)
    yield (SequenceSlice("a", n + 6, 6, (w[6], *drafts), 5, "greedy", parents=parents),)
    yield (SequenceSlice("a", n + 10, 2, w[10:12], 1, "greedy", parents=(-1,), kept_tree_nodes=(1, 3, 4)),)
    yield (SequenceSlice("a", n + 11, 2, (w[11], other(w[12])), 1, "greedy", parents=(-1,), kept_tree_nodes=()),)


def wanted(w):
    """The verdicts on session a."""
    return [
        Verdict(0, w[0]), Verdict(0, w[1]), Verdict(1, w[3]), Verdict(2, w[6]), Verdict(3, w[10], (1, 3, 4)),
        Verdict(1, w[12], (0,)), Verdict(0, w[12], ()),
    ]  # fmt: skip


@pytest.mark.parametrize(("shallow", "stages"), SPLITS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_split_model_has_the_verdicts_and_logits_of_the_whole(variant, shallow, stages, saved, written, logits):
    said = []
    for way in (Unsplit(saved[variant]), Route(saved[variant], shallow, stages)):
        logits.clear()
        verdicts = [way.ask(*asked) for asked in conversation(written[variant])]
        said.append((verdicts, torch.cat(logits)))
    assert said[0][0] == said[1][0]
    assert [found["a"] for found in said[1][0] if "a" in found] == wanted(written[variant])
    assert [found["b"].accepted for found in said[1][0] if "b" in found] == [0, 0, 0]
    torch.testing.assert_close(said[1][1], said[0][1], atol=1e-4, rtol=0)


@pytest.mark.parametrize("download", ["last", "all"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_split_model_writes_the_text_of_the_whole(variant, download, saved, written):
    route, text = Route(saved[variant], 1, 2, download), list(PROMPT)
    at = 0
    while len(text) < len(PROMPT) + 24:
        verdict = route.ask(SequenceSlice("a", at, len(text) - at, tuple(text[at:]), 0, "greedy"))["a"]
        at = len(text)
        text.append(verdict.next_token)
    assert tuple(text[len(PROMPT) :]) == written[variant]
    assert len(route.tensor_store) == 0


@pytest.mark.parametrize("sizes", [(23,), (1, 22), (7, 7, 9), (20, 2, 1)])
@pytest.mark.parametrize("download", ["last", "all"])
def test_hidden_states_received_whole_may_be_run_in_parts(download, sizes, saved, written, logits):
    route = Route(saved["mistral"], 1, 1, download)
    first, middle, head = route.hops
    seq = SequenceSlice("a", 0, 23, PROMPT, 0, "greedy")
    (whole,), _ = route.device.execute(ForwardWork(first.span, (seq,), ("all",)))
    seq, at = replace(seq, tokens=(), hidden_states=whole.hidden_states), 0
    for size in sizes:
        assert len(route.tensor_store) == 1  # until its last row has run
        part, at = seq.narrow(at, at + size), at + size
        out = download if download == "all" or part.rule else ""
        (deep,), _ = route.clouds[0].execute(ForwardWork(middle.span, (part,), (out,)))
        if deep.hidden_states:
            asked = (replace(part, hidden_states=deep.hidden_states, hidden_offset=0),)
            (found,), _ = route.device.execute(ForwardWork(head.span, asked, ("last",)))
    assert found.verdict == Verdict(0, written["mistral"][0])
    assert len(route.tensor_store) == 0
    split = logits[-1]
    Unsplit(saved["mistral"]).ask(SequenceSlice("a", 0, 23, PROMPT, 0, "greedy"))
    torch.testing.assert_close(split, logits[-1], atol=1e-4, rtol=0)


def test_drafts_are_verified_from_hidden_states_cut_before_them(saved, written):
    route, w = Route(saved["qwen3"], 1, 1), written["qwen3"]
    seq = SequenceSlice("a", 0, 25, (*PROMPT, w[0], other(w[1])), 2, "greedy")
    (whole,), _ = route.device.execute(ForwardWork(route.hops[0].span, (seq,), ("all",)))
    seq = replace(seq, tokens=(), hidden_states=whole.hidden_states)
    for part in (seq.narrow(0, 20), seq.narrow(20, 25)):
        (deep,), _ = route.clouds[0].execute(ForwardWork(route.hops[1].span, (part,), ("last" if part.rule else "",)))
    asked = replace(seq, tokens=(w[0], other(w[1])), hidden_states=deep.hidden_states, hidden_offset=0)
    (found,), _ = route.device.execute(ForwardWork(route.hops[2].span, (asked,), ("last",)))
    assert found.verdict == Verdict(1, w[1])


@pytest.mark.parametrize("span", [Span(0, 2, embedding=True), Span(2, 4), Span(0, 1), Span(4, 4, lm_head=True)])
def test_a_span_runs_only_its_layers(span, saved):
    part = TorchEngine(load_model(saved["llama"]).restricted_to(Span(1, 3)))
    seq = SequenceSlice("a", 0, 2, (5, 6), 0, "greedy")
    if not span.embedding:
        seq = replace(seq, tokens=(), hidden_states=part.tensor_store.put(torch.zeros(2, 32), "test", 0))
    with pytest.raises(RuntimeError, match="is not held here; its placement has it run elsewhere"):
        part.execute(ForwardWork(span, (seq,), ("all",)))


def test_a_device_loads_only_its_first_layers(saved):
    assert [len(load_model(saved[v], num_layers=2).layers) for v in VARIANTS] == [2] * len(VARIANTS)
    assert load_model(saved["qwen2_mixed"], num_layers=3).sliding_windows == (None, None, 8)


# HAT's draft model.


def random_weights(module, seed=3):
    """Weights of the size that `causal` draws, so that nothing is as it began."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        drawn = torch.randn(parameter.shape, generator=generator) * 0.3
        parameter.data.copy_(drawn + 1 if parameter.dim() == 1 else drawn)
    return module


def plain_drafter(model, shallow, weights):
    """The same with `transformers`' own layers, loop, masks and attention."""

    class Nothing(torch.nn.Module):
        def forward(self, hidden):
            return hidden * 0

    base, config = model.base_model, model.config
    layer = base.layers[shallow]
    layer.mlp, layer.post_attention_layernorm = Nothing(), torch.nn.Identity()
    layer.load_state_dict(weights)
    if hasattr(layer, "attention_type"):
        layer.attention_type = base.layers[shallow - 1].attention_type
    base.layers = base.layers[: shallow + 1]
    config.num_hidden_layers = shallow + 1
    if getattr(config, "layer_types", None):
        config.layer_types = [*config.layer_types[:shallow], config.layer_types[shallow - 1]]
    assert config._attn_implementation == "sdpa"
    return model


@pytest.mark.parametrize("shallow", [1, 3])
@pytest.mark.parametrize("variant", VARIANTS)
@torch.inference_mode()
def test_adapter_drafts_equal_a_plain_computation(variant, shallow, causal):
    model = decompose(causal(variant))
    module = random_weights(draft_heads.init_adapter(model, shallow))
    plain = plain_drafter(causal(variant), shallow, module.state_dict())
    engine, text, sure = TorchEngine(draft_heads.attach_adapter(model, shallow, module)), list(PROMPT), []
    for _ in range(12):
        odds = plain(torch.tensor([text]), use_cache=False).logits[0, -1].softmax(-1)
        text.append(int(odds.argmax()))
        sure.append(float(odds.max()))
    drafted, loads = engine.execute(DraftWork("a", 0, PROMPT, DraftStopRule(12), requested_scores=("confidence",)))
    assert drafted.tokens == tuple(text[len(PROMPT) :])
    assert drafted.scores["confidence"] == pytest.approx(sure, abs=1e-4)
    assert loads[0].layers == shallow + 1
    branches = ((text[-1],), (other(text[-1]),))
    ahead, _ = engine.execute(DraftWork("a", len(text) - 1, (), DraftStopRule(1), branches=branches))
    ends = [plain(torch.tensor([[*text[:-1], *b]]), use_cache=False).logits[0, -1].argmax() for b in branches]
    assert ahead.tokens == tuple(map(int, ends))


@pytest.mark.parametrize("variant", VARIANTS)
def test_an_initial_adapter_is_a_copy_of_its_layers_attention(variant, causal):
    model = decompose(causal(variant))
    module = draft_heads.init_adapter(model, 2)
    here = {name: value for name, value in model.layers[2].state_dict().items() if name in module.state_dict()}
    assert here.keys() == module.state_dict().keys()
    assert all(torch.equal(value, module.state_dict()[name]) for name, value in here.items())
    module.load_state_dict(random_weights(module).state_dict())
    assert not any(torch.equal(value, module.state_dict()[name]) for name, value in here.items())  # a copy
    assert not any("mlp" in name for name in here)


# Heads that draft.


def proposer(model, seed, medusa=TREE):
    return MedusaProposer(random_weights(init_medusa_heads(model, medusa.num_heads), seed), medusa, 97)


def test_medusa_heads_propose_their_top_tokens_along_the_tree(saved):
    model = load_model(saved["llama"])
    medusa = MedusaHeads(2, ((0,), (1,), (0, 2), (1, 0)), 1)
    heads = random_weights(init_medusa_heads(model, 2))
    hidden = torch.randn(32, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        first, second = (list(head(hidden).argsort(descending=True)) for head in heads)
        tree = MedusaProposer(heads, medusa, 97).propose(hidden)
    assert tree == DraftTree((first[0], first[1], second[2], second[0]), (-1, -1, 0, 1))


def test_initial_medusa_heads_equal_the_models_head(saved):
    model = load_model(saved["llama"])
    hidden = torch.randn(5, 32, generator=torch.Generator().manual_seed(1))
    for head in init_medusa_heads(model, 3):
        torch.testing.assert_close(head(hidden), model.lm_head(hidden))


def test_a_proposed_tree_grows_from_the_last_accepted_token(saved, written):
    """Which the next question would see: the same heads on the same text, asked anew."""
    w, n = written["llama"], len(PROMPT)
    model = load_model(saved["llama"])
    drafts, parents = (other(w[1]), w[1], other(w[2]), w[2]), (-1, -1, 1, 1)
    asked = {
        "tree": SequenceSlice("t", 0, n + 5, (*PROMPT, w[0], *drafts), 4, "greedy", parents=parents),
        "none": SequenceSlice("n", 0, n + 2, (*PROMPT, w[0], other(w[1])), 1, "greedy", parents=(-1,)),
    }
    for name, known in (("tree", w[:3]), ("none", w[:1])):
        (verdict,) = (
            Route(saved["llama"], 1, 2, heads=proposer(model, 1)).ask(asked[name], probes=(MEDUSA_TREE,)).values()
        )
        plain = SequenceSlice("p", 0, n + len(known), (*PROMPT, *known), 0, "greedy")
        (anew,) = Route(saved["llama"], 1, 2, heads=proposer(model, 1)).ask(plain, probes=(MEDUSA_TREE,)).values()
        assert verdict.next_token == anew.next_token == w[len(known)]
        assert verdict.next_tree == anew.next_tree


class Half:
    """A device's chip; how long things take does not matter."""

    def __init__(self, drafter, target):
        self.drafter, self.target = drafter, target

    def execute(self, work):
        return (self.drafter if isinstance(work, DraftWork) else self.target).execute(work)[0], 0.01

    def drop(self, session, first):
        (self.drafter if first is None else self.target).drop(session, first)


class Log:
    def __init__(self):
        self.verdicts = []

    def event_handled(self, node, event, now, commands):
        if isinstance(event, WorkFinished) and isinstance(event.outcome, tuple):
            self.verdicts += [result.verdict for result in event.outcome if result.verdict]

    def work_done(self, *_): ...

    def message_sent(self, *_): ...


def served(route, drafter, p, prompt=PROMPT, limit=24):
    """Through real nodes: the text, and the verdicts."""
    recorder, log = Recorder(("d",)), Log()
    simulator = Simulator([recorder, log])
    tiers = {hop.node: (hop.node,) for hop in route.hops if hop.node != DEVICE_TIER}
    simulator.add("d", Device("d", p, route.hops, tiers, 0), ComputeResource(Half(drafter, route.device)))
    for tier, engine in zip(tiers, route.clouds, strict=True):
        simulator.add(tier, Worker(tier, p, tiers), ComputeResource(Half(engine, engine)))
    simulator.post(0.0, "d", RequestArrived(GenerationRequest("s", prompt, limit)))
    simulator.run()
    assert not any(len(engine.cache) for engine in (route.device, drafter, *route.clouds))
    return tuple(recorder.records["s"].tokens), log.verdicts


@pytest.mark.parametrize("variant", VARIANTS)
def test_trees_of_any_medusa_heads_leave_the_text_unchanged(variant, saved, written):
    accepted = 0
    for seed in range(3):
        route = Route(saved[variant], 1, 2, heads=proposer(load_model(saved[variant]), seed))
        p = policy("u_medusa", draft=MedusaDraft(TREE), placement=UShapedPlacement(1, 2), prefill=InParts(5, "first"))
        text, verdicts = served(route, route.device, p)
        assert text == written[variant]
        assert len(route.tensor_store) == 0
        accepted += sum(verdict.accepted for verdict in verdicts)
    assert accepted > 5


@pytest.mark.parametrize("variant", VARIANTS)
def test_hat_writes_the_targets_text_with_any_adapter(variant, saved, written):
    for seed in range(2):
        route = Route(saved[variant], 1, 2)
        module = draft_heads.init_adapter(route.device.model, 1)
        module = random_weights(module, seed) if seed else module
        drafter = TorchEngine(draft_heads.attach_adapter(route.device.model, 1, module))
        p = policy(
            "hat",
            draft=WindowDraft(5, "confidence", 0.2),
            placement=UShapedPlacement(1, 2),
            prefill=InParts(5, "first"),
        )
        text, verdicts = served(route, drafter, p)
        assert text == written[variant]
        assert len(verdicts) > 2
