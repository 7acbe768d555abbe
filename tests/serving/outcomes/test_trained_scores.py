"""Trained scores of hidden states, more than one and by name: recorded, replayed, fitted, and refused by digest."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest

from serving.core.scores import LOGIT_SCORES, Scorer, Scorers, by_name
from serving.core.session import Session
from serving.deployment.queries import LoadedModels
from serving.deployment.setup import Setup
from serving.engines.torch.engine import TorchEngine
from serving.learned.router import TokenRouter
from serving.outcomes import fit, fitted
from serving.outcomes.record import TraceRecorder
from serving.outcomes.replayed import TraceOutcomes
from serving.outcomes.trace import HEADER_FILE, OutcomeTrace, load_trace, save_trace
from serving.policy.slots.draft import RejectionAwareDraft
from serving.runtimes.emulated import simulate
from tests.serving.outcomes.made_up_trace import trace
from tests.serving.outcomes.noisy_pair import pair, questions
from tests.support.fake_setup import setup
from tests.support.learned_models import random_router

HIDDEN = 32


@dataclass(frozen=True, eq=False, repr=False)
class Doubt(TokenRouter):
    """Another score of hidden states, by which drafts end."""

    name: ClassVar[str] = "doubt"
    acceptance: ClassVar[float] = 0.5


@dataclass(frozen=True)
class ScoreOffload:
    """Sends a draft when a token's score is below the scorer's threshold."""

    scorer: Any
    scope: ClassVar[Literal["some"]] = "some"
    requested_scores: ClassVar[tuple[str, ...]] = ()

    def tokens_to_offload(self, session: Session) -> int:
        return int(min(session.scores[self.scorer.name]) < self.scorer.threshold)


def doubt(threshold: float = 0.3, seed: int = 2) -> Doubt:
    plain = random_router(HIDDEN, seed=seed)
    return Doubt(plain.layers, plain.mean, plain.std, threshold)


def scored(offload: Scorer | None = None, draft: Scorer | None = None) -> Setup:
    made, router = setup("sled"), offload or random_router(HIDDEN, 0.4)
    slots = {"draft": RejectionAwareDraft(6, draft or doubt()), "offload": ScoreOffload(router)}  # type: ignore[arg-type]
    return replace(made, policy=replace(made.policy, **slots))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def models() -> LoadedModels:
    return pair(noise=0.05)


def scoring(models: LoadedModels, scorers: Scorers) -> LoadedModels:
    assert isinstance(models.device, TorchEngine)
    engine = TorchEngine(models.device.model, tensor_store=models.device.tensor_store, scorers=scorers)
    return replace(models, device=engine)


@pytest.fixture(scope="module")
def recorded(models: LoadedModels, tmp_path_factory: pytest.TempPathFactory) -> OutcomeTrace:
    """The text of the policy with both scores, saved and read again."""
    policy, folder = scored().policy, tmp_path_factory.mktemp("trace")
    recorder = TraceRecorder(scoring(models, policy.scorers), policy, 0, 8, {"pair": "x"}, scorers=policy.scorers)
    return recorder.record(questions(), folder, lambda *_: None)


def test_a_trace_with_two_scores_decides_as_the_engine(models: LoadedModels, recorded: OutcomeTrace) -> None:
    made = scored()
    assert made.policy.requested_scores == ("doubt", "route")
    assert recorded.tables.scores.keys() == {*LOGIT_SCORES, "doubt", "route"}
    ran = simulate(made, scoring(models, made.policy.scorers), questions())
    opened = TraceOutcomes(recorded, None).open(questions(), made.policy, made.seed)  # type: ignore[arg-type]
    read = simulate(made, opened, questions())
    for name, record in ran.items():
        assert read[name].tokens == record.tokens
        for a, b in zip(read[name].draft_decisions, record.draft_decisions, strict=True):
            assert (a.position, a.tokens, a.accepted) == (b.position, b.tokens, b.accepted)
            for score in ("doubt", "route"):
                assert a.scores[score] == pytest.approx(b.scores[score], abs=1e-5)
    lengths = {len(decision.tokens) for record in ran.values() for decision in record.draft_decisions}
    accepted = {decision.accepted is None for record in ran.values() for decision in record.draft_decisions}
    assert len(lengths) > 2
    assert accepted == {True, False}, "a policy that sends every draft, or none, would show nothing"


@pytest.mark.parametrize("source", ["trace", "fitted"])
def test_scores_of_another_scorer_are_refused_by_name(source: str, recorded: OutcomeTrace) -> None:
    found: Any = TraceOutcomes(recorded, None) if source == "trace" else fit.fit_acceptance(recorded, 0)  # type: ignore[arg-type]
    queries = questions()
    found.open(queries, scored().policy, 0)
    other = doubt(seed=9)
    with pytest.raises(ValueError, match=rf"scores 'doubt' of .*{other.digest[:12]}.* has those of another scorer"):
        found.open(queries, scored(draft=other).policy, 0)
    bare = replace(found.trace if source == "trace" else found, scorer_digests={"doubt": doubt().digest})
    with pytest.raises(ValueError, match=r"'route' of .*none of this name.*scorers: \$\{hidden_scorers:\}"):
        (TraceOutcomes(bare, None) if source == "trace" else bare).open(queries, scored().policy, 0)  # type: ignore[arg-type]


def test_fitted_pools_keep_both_scores(recorded: OutcomeTrace, tmp_path: Path) -> None:
    made = fit.fit_acceptance(recorded, 0)
    fitted.save(tmp_path, made)
    again = fitted.load(tmp_path)
    assert again.scorer_digests == recorded.scorer_digests
    assert again.pools.trained_scores == ("doubt", "route")
    table = recorded.tables.scores["doubt"]
    assert {row[-2] for row in made.pools.rows[3]} <= {*table[:, 0].tolist()}
    queries = again.make_queries([], scored().decoding, 0)
    assert again.open(queries, scored().policy, 0).device


@pytest.mark.parametrize(("load", "file", "save", "version"), [
    (load_trace, HEADER_FILE, lambda folder: save_trace(folder, trace()), 4),
    (fitted.load, fitted.HEADER_FILE, lambda folder: fitted.save(folder, fit.fit_acceptance(trace(), 0)), 4),
])  # fmt: skip
def test_a_record_of_an_older_version_is_refused(
    load: Callable[[Path], Any], file: str, save: Callable[[Path], None], version: int, tmp_path: Path
) -> None:
    save(tmp_path)
    header = json.loads((tmp_path / file).read_text())
    (tmp_path / file).write_text(json.dumps({**header, "version": 1}))
    with pytest.raises(ValueError, match=f"it is of version 1, this code reads {version}"):
        load(tmp_path)


def test_scorers_that_cannot_share_a_name_are_refused() -> None:
    a, b = random_router(HIDDEN), random_router(HIDDEN, seed=5)
    assert by_name([a, replace(a)]) == {"route": a}
    with pytest.raises(ValueError, match="both name their score 'route'; give one of them another name"):
        by_name([a, b])
    for name in ("entropy", "my score", ""):
        wrong = type("Wrong", (Doubt,), {"name": name})(a.layers, a.mean, a.std)
        with pytest.raises(ValueError, match=rf"names its score '{name}'; a trained score's name is letters"):
            by_name([wrong])
