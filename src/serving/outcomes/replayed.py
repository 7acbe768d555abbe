"""Outcomes from a recorded trace, and the checks that it was recorded for a policy."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from serving.core.decoding import Decoding
from serving.core.scores import reading_hidden_states
from serving.deployment.queries import Query
from serving.learned.medusa import CandidateRanks, MedusaHeads
from serving.outcomes.outcomes import OutcomeEngines, PlannedOutcomes, check_exit
from serving.outcomes.trace import TOKENIZER_DIR, OutcomeTrace, load_trace
from serving.outcomes.trace_engine import TraceEngine, UnrecordedCounts
from serving.policy.policy import Policy
from serving.policy.slots.draft import TreeDraft
from serving.workload.prompt import Prompt
from serving.workload.workload import WorkloadRequest

if TYPE_CHECKING:
    from serving.engines.tokenizer import Tokenizer


class Recording(Protocol):
    """A trace that is still to be recorded; `options` are those of the stage that does it, empty where not known."""

    @property
    def options(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True)
class TraceOutcomes:
    """Outcomes of recorded sessions. A request gets the session of its name and prompt, else that of its prompt, else a
    randomly chosen one, so that a few hundred sessions serve any number of devices.
    """

    trace: OutcomeTrace
    tokenizer: "Tokenizer"
    is_text: ClassVar[bool] = True

    @property
    def described(self) -> str:
        return self.trace.described

    def make_queries(self, requests: Sequence[WorkloadRequest], decoding: Decoding, seed: int) -> list[Query]:
        """The requests with recorded prompts; the token limit is the lower of the request's and the record's.

        Raises ValueError for prompts with text that are those of another data set than the recorded ones, and for a
        recorded prompt that is longer than the workload allows.
        """
        check_greedy(decoding)
        check_prompts_recorded(self.trace, [one.prompt for one in requests])
        made = [self._make_query(one, seed) for one in requests]
        check_lengths(requests, made)
        return made

    def check(self, policy: Policy) -> None:
        """Raises ValueError for a drafter's trees that were not recorded, or grew by another rule."""
        check_trees(self.trace, policy)

    def open(self, queries: Sequence[Query], policy: Policy, seed: int) -> OutcomeEngines:
        """Engines that read the trace. Raises ValueError for prompts that were not recorded, another early-exit rule,
        other heads or another scorer.
        """
        trace, unrecorded = self.trace, UnrecordedCounts()
        check_exit(trace.exit_rule, policy, "the trace")
        sessions = {query.request.session: trace.session_for(query.request, seed) for query in queries}

        def token_text(token: int) -> str:
            return self.tokenizer.token_text(token)

        device = TraceEngine(
            trace,
            sessions,
            trace.device_layers,
            unrecorded,
            trace.exit_rule,
            policy.scorers,
            token_text=token_text,
        )
        medusa = policy.draft.medusa
        check_medusa_tree(trace.medusa_tree, medusa)
        check_trees(trace, policy)
        check_scorers(trace.scorer_digests, policy)
        cloud, device_target = (
            TraceEngine(trace, sessions, trace.cloud_layers, unrecorded, medusa=medusa) for _ in range(2)
        )

        def notes() -> tuple[str, ...]:
            return (*_quality_notes(trace, policy, seed), *unrecorded.notes())

        return OutcomeEngines(
            device, trace.device_layers, cloud, trace.cloud_layers, self.tokenizer, device_target, notes
        )

    def _make_query(self, request: WorkloadRequest, seed: int) -> Query:
        name = request.session_name
        session = self.trace.find_session(name, request.prompt.id) or self.trace.sampled_session(name, seed)
        tokens, limit = session.token_ids[: session.prompt_tokens], min(request.max_new_tokens, session.max_new_tokens)
        prompt, stop_tokens = session.prompt, self.trace.stop_tokens
        return Query.of(request, tokens, limit, stop_tokens, None, prompt=prompt, stop_strings=prompt.stop)


def load(path: Path) -> TraceOutcomes:
    """Reads what the stage `serving.stages.record_outcomes` wrote, with the tokenizer of its pair.

    Raises ValueError that names the file when it is missing or damaged.
    """
    from serving.engines.tokenizer import Tokenizer

    return TraceOutcomes(load_trace(path), Tokenizer(path / TOKENIZER_DIR))


def planned_load(path: Recording) -> PlannedOutcomes:
    """What a plan knows of the trace, before it is recorded."""
    policy = path.options.get("policy") or {}
    grown = (path.options.get("tree"), policy.get("draft"))
    trees = any("nodes" in draft for draft in grown if draft)
    return PlannedOutcomes("runtime/outcomes=trace", draws_trees=trees or not path.options, is_text=True)


def check_lengths(requests: Sequence[WorkloadRequest], queries: Sequence[Query]) -> None:
    """Raises ValueError for recorded prompts that are longer than the requests allow: they are served whole."""
    longest = max((len(query.request.prompt) for query in queries), default=0)
    limit = min((one.max_prompt_tokens for one in requests), default=0)
    if longest > limit:
        raise ValueError(
            f"workload.max_prompt_tokens is {limit}, and the trace has prompts of up to {longest} tokens, which are "
            f"served whole; set workload.max_prompt_tokens={longest}"
        )


def check_greedy(decoding: Decoding) -> None:
    """Raises ValueError for sampled text, which one trace cannot represent."""
    if decoding.temperature:
        raise ValueError(
            f"decoding.temperature is {decoding.temperature}: sampled text depends on every draw, so no trace can "
            "stand for it; use runtime/outcomes=fitted, or temperature 0"
        )


def check_prompts_recorded(trace: OutcomeTrace, prompts: Sequence[Prompt]) -> None:
    """Raises ValueError if the trace has another text under a prompt's id, or has none of the prompts with a text.

    If the trace has some of these prompts, recorded prompts stand for the others.
    """
    asked = [one for one in prompts if one.text.strip()]
    recorded = [(one, trace.recorded_prompt(one.id)) for one in asked]
    advice = (
        "deal the trace's own prompts onto the requests (workload=synthetic), or record the workload that is simulated "
        "(leave runtime.outcomes.path out; runtime.stages.record_outcomes.workload is what is recorded)"
    )
    of = ", ".join(trace.made_from.values()) or "a pair"
    if other := next((one.id for one, known in recorded if known and known.text != one.text), None):
        raise ValueError(
            f"the trace ({of}) has another text for prompt {other!r} than the workload: they are of different data "
            f"sets; {advice}"
        )
    if asked and not any(known for _, known in recorded):
        raise ValueError(
            f"the trace ({of}) has none of the workload's prompts, such as {asked[0].id!r}: their answers and quality "
            f"would be those of other prompts; {advice}"
        )


def check_medusa_tree(recorded: tuple[CandidateRanks, ...], medusa: MedusaHeads | None) -> None:
    """Raises ValueError for heads whose proposals were not recorded, or recorded with another tree."""
    if medusa and medusa.tree != recorded:
        raise ValueError(
            f"the target's heads propose a tree of {len(medusa.tree)} candidates, and the record has "
            f"{f'another of {len(recorded)}' if recorded else 'none'}; record it with them (runtime/outcomes=trace or "
            "fitted, medusa: ${policy.draft.medusa})"
        )


def check_trees(trace: OutcomeTrace, policy: Policy) -> None:
    """Raises ValueError for a drafter's trees that were not recorded, or grew by another rule."""
    if not isinstance(policy.draft, TreeDraft):
        return
    recorded, advice = trace.tree_rule, "record them (runtime/outcomes=tree_trace or own_trace)"
    if policy.draft.stop_rule != recorded:
        raise ValueError(
            f"policy {policy.name} grows trees of up to {policy.draft.nodes} nodes, and the record has "
            f"{'others' if recorded else 'none'}; {advice}"
        )
    if policy.lookahead_tree and not trace.trees_ahead:
        raise ValueError(f"policy {policy.name} grows trees ahead, and the record has none of these; {advice}")


def check_scorers(recorded: Mapping[str, str], policy: Policy) -> None:
    """Raises ValueError for a score of hidden states that was not recorded, or that another scorer computed.

    `recorded` has the digests of the recorded scorers, by name.
    """
    for name, scorer in reading_hidden_states(policy.scorers).items():
        if recorded.get(name) != scorer.digest:
            other = f"those of another scorer ({recorded[name][:12]})" if name in recorded else "none of this name"
            raise ValueError(
                f"policy {policy.name} decides by the scores {name!r} of {scorer!r} ({scorer.digest[:12]}), and the "
                f"record has {other}. They come from hidden states, which are not recorded: record it with this "
                "scorer (runtime/outcomes=trace, own_trace or fitted does, scorers: ${hidden_scorers:})"
            )


def _quality_notes(trace: OutcomeTrace, policy: Policy, seed: int) -> tuple[str, ...]:
    """Notes on the difference between the recorded text and that of this policy."""
    if trace.policy_name is None and policy.lossless:
        return ()
    if trace.policy_name is None:
        return (
            f"policy {policy.name} is lossy, and the trace holds the target's own text: quality is not simulated; "
            "record this policy's own text (runtime/outcomes=own_trace)",
        )
    if (trace.policy_name, trace.seed) != (policy.name, seed):
        return (
            f"the trace holds the text of policy {trace.policy_name} under seed {trace.seed}, which {policy.name} "
            f"under seed {seed} would not write exactly",
        )
    return (f"quality is that of policy {policy.name}'s own recorded text",)
