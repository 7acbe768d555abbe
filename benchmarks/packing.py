"""What packed weights change: texts, drafts, verdicts and scores with packing and without, in one run.

`python -m benchmarks.packing`: 240 prompts of the embedded pair, greedy, are served under each policy of `POLICIES`,
and each model alone drafts behind each prompt. Without packing a served run must equal, byte for byte, one of models
whose layers were never fused. What packing changes is printed.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias
from unittest.mock import patch

from benchmarks.pair import served_setup
from serving.messages import DraftDecision, DraftOutcome, DraftStopRule, DraftWork
from serving.progress import silent
from serving.runtimes.emulated import Emulated

if TYPE_CHECKING:
    from serving.deployment.queries import Query
    from serving.deployment.setup import Setup
    from serving.metrics.recorder import SessionRecord
    from serving.runtimes.runtime import RunResult

POLICIES = ("sled", "synera", "wisp")
PROMPTS = 240
DRAFT_TOKENS = 8
SCORES = ("confidence", "margin")
DecisionPair: TypeAlias = tuple[DraftDecision | None, DraftDecision | None]
Scores: TypeAlias = Mapping[str, tuple[float, ...]]


def main() -> bool:
    setups = [served_setup(f"policy={policy}", f"workload.num_prompts={PROMPTS}") for policy in POLICIES]
    exact = [_compare(setup) for setup in setups]
    queries = _serve(setups[0], True).queries
    for name, model in (("device", setups[0].models.device), ("cloud", setups[0].models.cloud)):
        _compare_models(name, Path(model.name_or_path), queries)
    return all(exact)


def _compare(setup: "Setup") -> bool:
    """Prints what packing changes in a served run; True if the run without it equals that of layers never fused."""
    packed, plain = _serve(setup, True).records, _serve(setup, False).records
    pairs = [pair for name in plain for pair in _decision_pairs(packed[name], plain[name])]
    texts = sum(packed[name].tokens != plain[name].tokens for name in plain)
    drafts = sum(one is None or other is None or one.tokens != other.tokens for one, other in pairs)
    verdicts = sum(one is None or other is None or one.accepted != other.accepted for one, other in pairs)
    exact = plain == _serve_unfused(setup).records
    print(
        f"packed weights, {setup.policy.name}: {texts} of {len(plain)} texts, {drafts} of {len(pairs)} drafts and "
        f"{verdicts} of their verdicts differ; {_describe_scores(_scores_of_equal(pairs))}; without packing "
        f"{'equal to' if exact else 'OTHER THAN'} layers that were never fused"
    )
    return exact


def _serve(setup: "Setup", packed: bool) -> "RunResult":
    decoding = replace(setup.decoding, packed_weights=packed)
    return Emulated().serve(replace(setup, decoding=decoding), "cpu", silent)


def _serve_unfused(setup: "Setup") -> "RunResult":
    """As packed, of models that nothing packs or fuses."""
    with patch("serving.engines.torch.packed_layers.pack_weights"):
        return _serve(setup, True)


def _decision_pairs(packed: "SessionRecord", plain: "SessionRecord") -> Iterator[DecisionPair]:
    """The drafts of a session in turn; None where one run has no such draft."""
    return zip_longest(packed.draft_decisions, plain.draft_decisions)


def _scores_of_equal(pairs: Iterable[DecisionPair]) -> Iterator[tuple[Scores, Scores]]:
    """The scores of drafts that both runs wrote."""
    for one, other in pairs:
        if one and other and one.tokens == other.tokens:
            yield one.scores, other.scores


def _compare_models(name: str, checkpoint: Path, queries: "Sequence[Query]") -> None:
    """Prints what packing changes in drafts that a model writes behind each prompt."""
    packed, plain = _draft(checkpoint, queries, True), _draft(checkpoint, queries, False)
    equal = [(one.scores, other.scores) for one, other in zip(packed, plain, strict=True) if one.tokens == other.tokens]
    print(
        f"packed weights, the {name}'s model alone: {len(plain) - len(equal)} of {len(plain)} drafts differ; "
        f"{_describe_scores(equal)}"
    )


def _draft(checkpoint: Path, queries: "Sequence[Query]", packed: bool) -> list[DraftOutcome]:
    from serving.engines.torch.engine import TorchEngine
    from serving.engines.torch.model import load_model
    from serving.engines.torch.packed_layers import pack_weights

    model = load_model(checkpoint)
    if packed:
        pack_weights(model)
    engine, rule, found = TorchEngine(model), DraftStopRule(DRAFT_TOKENS), []
    for i, query in enumerate(queries):
        work = DraftWork(str(i), 0, tuple(query.request.prompt), rule, requested_scores=SCORES)
        outcome, _ = engine.execute(work)
        assert isinstance(outcome, DraftOutcome)
        found.append(outcome)
        engine.drop(str(i), None)
    return found


def _describe_scores(pairs: Iterable[tuple[Scores, Scores]]) -> str:
    """How far the scores of equal drafts are apart."""
    apart = [abs(a - b) for one, other in pairs for name in one for a, b in zip(one[name], other[name], strict=True)]
    return f"{len(apart)} scores differ by {max(apart):.1e} at most" if apart else "no scores are asked for"


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
