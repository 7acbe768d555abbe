"""A recorded trace: per session the text, and at each position the next tokens of both models; in memory and on disk.

On disk: `trace.json` has the header, `trace.safetensors` the tables, `tokenizer/` the tokenizer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, cast

from serving.core.importance import NUM_PLANES
from serving.core.keyed_random import key, uniform
from serving.core.scores import LOGIT_SCORES, NUM_TOP_CANDIDATES, Scorers
from serving.learned.artifact import ArtifactFormat
from serving.learned.medusa import CandidateRanks
from serving.messages import DraftStopRule, EarlyExitRule, GenerationRequest, TreeRule
from serving.outcomes.outcomes import describe_exit
from serving.workload.prompt import Prompt

HEADER_FILE, TENSORS_FILE, TOKENIZER_DIR = "trace.json", "trace.safetensors", "tokenizer"
FORMAT = ArtifactFormat("trace", HEADER_FILE, TENSORS_FILE, "runtime.outcomes.path", "record_outcomes", version=4)
_SCORE = "score."
"""Begins the names of the saved tables of `TraceTables.scores`."""
_HEADER_FIELDS = (
    "policy_name",
    "seed",
    "device_layers",
    "cloud_layers",
    "stop_tokens",
    "made_from",
    "exit_rule",
    "medusa_tree",
    "tree_rule",
    "trees_ahead",
    "scorer_digests",
)


MAX_TOKEN = (1 << 31) - 1
"""Tokens are whole numbers of four bytes."""
NO_NODE = -2
"""The parent in the place of a node that a tree does not have."""


def tree_shapes(rows: int, rule: DraftStopRule | None) -> dict[str, tuple[int, ...]]:
    """The shapes of the tables of trees that grow by this rule."""
    nodes, levels = (rule.max_tokens, rule.tree.depth - 1) if rule and rule.tree else (0, 0)
    return {"trees": (rows, 2, nodes, 2), "tree_levels": (rows, 2, levels)}


def triangle_size(draft_len: int) -> int:
    """The number of attention values of one plane that give the importance of any part of a draft of this length."""
    return 1 + draft_len * (draft_len - 1) // 2


@dataclass(frozen=True, slots=True)
class RecordedSession:
    """One session: `token_ids` are prompt and answer, `first_row` is its first row in the tables.

    After the rows of its positions come those of its `lookahead_branches`: wrong guesses after which the recorded
    policy drafted while it waited. Each is (base, length, token): the text up to `base`, the recorded continuation from
    there up to `length`, and a token that neither has.
    """

    name: str
    prompt: Prompt
    token_ids: tuple[int, ...]
    prompt_tokens: int
    max_new_tokens: int
    first_row: int
    lookahead_branches: tuple[tuple[int, int, int], ...] = ()

    @property
    def num_positions(self) -> int:
        """Positions from the end of the prompt to the end of the text; each has a row."""
        return len(self.token_ids) - self.prompt_tokens + 1

    @property
    def num_rows(self) -> int:
        return self.num_positions + len(self.lookahead_branches)


@dataclass(frozen=True, eq=False)
class TraceTables:
    """NumPy arrays with a row for each position of a session and each lookahead branch: what follows the text up to it.

    L is the length of a whole continuation, `max_draft_len`.
    """

    targets: Any
    """(rows,) the target's next token; 0 at lookahead branches."""
    continuation_lens: Any
    """(rows,) the length of the drafter's continuation: shorter than L where it has a stop token."""
    drafts: Any
    """(rows, L) the drafter's continuation."""
    top_candidates: Any
    """(rows, L, 3) the drafter's likeliest tokens."""
    scores: Mapping[str, Any]
    """By name, each (rows, L): the `LOGIT_SCORES`, and trained scores of hidden states, which are not recorded."""
    exit_layers: Any
    """(rows, L) after how many layers each draft was decoded."""
    attention: Any
    """(rows, planes, triangle_size(L)) the attention of the row that wrote the first draft to itself, then of each
    draft i that was fed back to drafts 0..i. Planes: the mean over layers, and the last layer."""
    proposals: Any
    """(rows, tree size) the tree that the target's heads propose with the row's target; tree size 0: no heads."""
    trees: Any
    """(rows, 2, N, 2) token and parent of each node of the tree that the drafter grows here, and of the next one, which
    it grows ahead, behind the first path of that tree and its own next token; the parent -2: no node. N is 0 without a
    `tree_rule`; without `trees_ahead` the next ones have no nodes."""
    tree_levels: Any
    """(rows, 2, D) how many nodes the drafter runs for each level of these trees after the first."""

    @property
    def max_draft_len(self) -> int:
        return int(self.drafts.shape[1])

    def flat(self, name: str) -> Sequence[Any]:
        """A flat view of a table that gives Python numbers."""
        return _flat(getattr(self, name))

    def flat_scores(self, scorers: Scorers) -> dict[str, Sequence[float]]:
        """Flat views of the recorded scores, and of those that `scorers` compute from recorded ones."""
        columns = dict(self.scores)
        for name, scorer in scorers.items():
            if scorer.feature_kind == "scores":
                columns[name] = scorer.probabilities(self._logit_scores().T).astype("float64")
        return {name: _flat(column) for name, column in columns.items()}

    def _logit_scores(self) -> Any:
        """(4, rows * L)"""
        import numpy as np

        return np.stack([self.scores[name] for name in LOGIT_SCORES]).reshape(len(LOGIT_SCORES), -1)


def _flat(table: Any) -> Sequence[Any]:
    return cast("Sequence[Any]", memoryview(table.reshape(-1)))


@dataclass(frozen=True)
class OutcomeTrace:
    """Recorded outcomes.

    `policy_name` None: the target's own greedy text, which every lossless policy writes. Else the text that this policy
    wrote under `seed`; it is exact for this policy only.
    """

    sessions: tuple[RecordedSession, ...]
    tables: TraceTables
    policy_name: str | None
    seed: int
    device_layers: int
    cloud_layers: int
    stop_tokens: tuple[int, ...]
    """Tokens that end an answer."""
    made_from: dict[str, str]
    exit_rule: EarlyExitRule | None = None
    """The early-exit rule of the recorded drafts; None: they ran all layers."""
    medusa_tree: tuple[CandidateRanks, ...] = ()
    """The tree that the target's heads proposed with each of its tokens; (): it has no heads."""
    tree_rule: DraftStopRule | None = None
    """How the drafter's trees grew; None: none were recorded."""
    trees_ahead: bool = False
    """True if the trees were recorded that a drafter grows ahead."""
    scorer_digests: Mapping[str, str] = field(default_factory=dict)
    """The digests of the scorers of the recorded trained scores, by name."""

    @property
    def drafter_is_target(self) -> bool:
        """True for a trace of policies without a draft model: the target itself was recorded in its place."""
        small, _, large = self.made_from.get("pair", "").partition(" + ")
        return bool(large) and small == large

    @property
    def described(self) -> str:
        text = (
            f"text of policy {self.policy_name} under seed {self.seed}"
            if self.policy_name
            else "the target's own greedy text"
        )
        text += f", drafts {describe_exit(self.exit_rule)}" if self.exit_rule else ""
        pair = self.made_from.get("pair", "a pair")
        return f"tokens are read from a trace of {pair}: {len(self.sessions)} sessions, {text}"

    @cached_property
    def _by_name(self) -> dict[str, RecordedSession]:
        return {session.name: session for session in self.sessions}

    @cached_property
    def _by_prompt_tokens(self) -> dict[tuple[int, ...], RecordedSession]:
        return {session.token_ids[: session.prompt_tokens]: session for session in reversed(self.sessions)}

    @cached_property
    def _by_prompt_id(self) -> dict[str, RecordedSession]:
        return {session.prompt.id: session for session in reversed(self.sessions)}

    def session_for(self, request: GenerationRequest, seed: int) -> RecordedSession:
        """The recorded session for a request: that of its name and prompt, else that of its prompt; without a prompt a
        randomly chosen one. Raises ValueError for a prompt that was not recorded.
        """
        if not request.prompt:
            return self.sampled_session(request.session, seed)
        named = self._by_name.get(request.session)
        if named and named.token_ids[: named.prompt_tokens] == request.prompt:
            return named
        try:
            return self._by_prompt_tokens[request.prompt]
        except KeyError:
            raise ValueError(
                f"request {request.session} asks a prompt of {len(request.prompt)} tokens that is not in the trace; "
                "record the workload that is simulated, or let the trace choose its own prompts"
            ) from None

    def recorded_prompt(self, prompt_id: str) -> Prompt | None:
        """The prompt of the data set that was recorded under this id."""
        session = self._by_prompt_id.get(prompt_id)
        return session.prompt if session else None

    def find_session(self, name: str, prompt_id: str) -> RecordedSession | None:
        """The session recorded under this name, or for this prompt of the data set."""
        named = self._by_name.get(name)
        return named if named and named.prompt.id == prompt_id else self._by_prompt_id.get(prompt_id)

    def sampled_session(self, name: str, seed: int) -> RecordedSession:
        """A session chosen at random by this name and seed."""
        return self.sessions[int(uniform(key(seed, name), 0, "recorded session") * len(self.sessions))]


def save_trace(out: Path, trace: OutcomeTrace) -> None:
    """Writes the trace into a folder."""
    import numpy as np

    sessions = [asdict(session) for session in trace.sessions]
    texts = [session.pop("token_ids") for session in sessions]
    for session, token_ids in zip(sessions, texts, strict=True):
        session["num_tokens"] = len(token_ids)
        del session["first_row"]
    header = {name: getattr(trace, name) for name in _HEADER_FIELDS} | {"sessions": sessions}
    header["exit_rule"] = asdict(trace.exit_rule) if trace.exit_rule else None
    header["tree_rule"] = asdict(trace.tree_rule) if trace.tree_rule else None
    token_ids = np.array([token for text in texts for token in text], np.int32)
    FORMAT.save(out, header, {"token_ids": token_ids, **table_arrays(trace.tables)})


def load_trace(path: Path) -> OutcomeTrace:
    """Reads what `save_trace` wrote.

    Raises ValueError that names the file when it is missing, cut off or inconsistent.
    """
    header, arrays = FORMAT.read_header(path), FORMAT.read_weights(path)
    with FORMAT.parsing(path):
        text = _texts(arrays.pop("token_ids"), header["sessions"])
        header["exit_rule"] = EarlyExitRule(**header["exit_rule"]) if header["exit_rule"] else None
        header["tree_rule"] = _tree_rule(header["tree_rule"])
        header["medusa_tree"] = tuple(tuple(ranks) for ranks in header["medusa_tree"])
        header["stop_tokens"] = tuple(header["stop_tokens"])
        trace = OutcomeTrace(_sessions(header.pop("sessions"), text), _tables(arrays), **header)
        _check(trace)
        return trace


def _tree_rule(node: dict[str, Any] | None) -> DraftStopRule | None:
    if node is None:
        return None
    tree = {**node["tree"], "shape": tuple(map(tuple, node["tree"]["shape"]))}
    return DraftStopRule(**{**node, "tree": TreeRule(**tree)})


def join_traces(parts: Sequence[OutcomeTrace]) -> OutcomeTrace:
    """One trace with the sessions of several; all else is that of the first."""
    begins = accumulate((len(part.tables.targets) for part in parts), initial=0)
    sessions = [
        replace(s, first_row=s.first_row + begin)
        for part, begin in zip(parts, begins, strict=False)
        for s in part.sessions
    ]
    header = {name: getattr(parts[0], name) for name in _HEADER_FIELDS}
    return OutcomeTrace(tuple(sessions), stack_tables([part.tables for part in parts]), **header)


def stack_tables(tables: Sequence[TraceTables]) -> TraceTables:
    """One table with the rows of several."""
    import numpy as np

    parts = [table_arrays(one) for one in tables]
    return _tables({name: np.concatenate([part[name] for part in parts]) for name in parts[0]})


def table_arrays(tables: TraceTables) -> dict[str, Any]:
    """All tables by name, as they are saved."""
    plain = {each.name: getattr(tables, each.name) for each in fields(TraceTables) if each.name != "scores"}
    return plain | {f"{_SCORE}{name}": column for name, column in tables.scores.items()}


def _tables(arrays: Mapping[str, Any]) -> TraceTables:
    scores = {name.removeprefix(_SCORE): array for name, array in arrays.items() if name.startswith(_SCORE)}
    return TraceTables(**{name: array for name, array in arrays.items() if not name.startswith(_SCORE)}, scores=scores)


def _sessions(listed: Sequence[dict[str, Any]], text: list[int]) -> tuple[RecordedSession, ...]:
    found, start, first_row = [], 0, 0
    for one in listed:
        end = start + one["num_tokens"]
        branches = tuple((base, length, token) for base, length, token in one["lookahead_branches"])
        session = RecordedSession(
            one["name"],
            _prompt(one["prompt"]),
            tuple(text[start:end]),
            one["prompt_tokens"],
            one["max_new_tokens"],
            first_row,
            branches,
        )
        found.append(session)
        start, first_row = end, first_row + session.num_rows
    return tuple(found)


def _prompt(fields_: dict[str, Any]) -> Prompt:
    plain: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in fields_.items()}
    return Prompt(**plain)


def _check(trace: OutcomeTrace) -> None:
    """Raises ValueError if the tables contradict the header, and for numbers that no pair writes."""
    _check_header(trace)
    for session in trace.sessions:
        _check_session(session, trace.tables.max_draft_len)
    _check_shapes(trace)
    for name, table in table_arrays(trace.tables).items():
        _check_kind(name, table)
    _check_tokens(trace.tables)
    _check_exits(trace.tables, trace.device_layers)
    _check_trees(trace.tables.trees[..., 1])


def _texts(array: Any, listed: Sequence[Mapping[str, Any]]) -> list[int]:
    """All sessions' tokens, end to end. Raises ValueError for what are no tokens, and for more or fewer."""
    _check_kind("token_ids", array)
    _check_range("token_ids", array, 0, MAX_TOKEN)
    text: list[int] = array.tolist()
    if not listed or sum(one["num_tokens"] for one in listed) != len(text):
        raise ValueError(f"{len(listed)} sessions do not add up to the {len(text)} tokens of text")
    return text


def _check_header(trace: OutcomeTrace) -> None:
    for name in ("device_layers", "cloud_layers"):
        _check_count(name, getattr(trace, name), 1)
    for ranks in trace.medusa_tree:
        if not ranks:
            raise ValueError("medusa_tree has a candidate without a rank")
        for rank in ranks:
            _check_count("a rank of medusa_tree", rank)
    for token in trace.stop_tokens:
        _check_count("a stop token", token)


def _check_session(session: RecordedSession, max_draft_len: int) -> None:
    name, text = session.name, len(session.token_ids)
    _check_count(f"max_new_tokens of {name}", session.max_new_tokens, 1)
    _check_count(f"prompt_tokens of {name}", session.prompt_tokens, 1)
    if session.prompt_tokens > text:
        raise ValueError(f"{name} has a prompt of {session.prompt_tokens} tokens, and {text} in all")
    for branch in session.lookahead_branches:
        for number in branch:
            _check_count(f"a number of lookahead_branches of {name}", number)
        base, length, _ = branch
        if not base <= length <= base + max_draft_len or base > text:
            raise ValueError(f"{name} has a lookahead branch at {branch}; it is behind at most {max_draft_len} tokens")


def _check_count(name: str, value: object, least: int = 0) -> None:
    if type(value) is not int or not least <= value <= MAX_TOKEN:
        raise ValueError(f"{name} is {value!r:.40}; it is a whole number, {least} or more")


def _check_shapes(trace: OutcomeTrace) -> None:
    tables, rows = trace.tables, sum(session.num_rows for session in trace.sessions)
    length = tables.max_draft_len
    shapes = {
        "targets": (rows,),
        "continuation_lens": (rows,),
        "drafts": (rows, length),
        "top_candidates": (rows, length, NUM_TOP_CANDIDATES),
        "exit_layers": (rows, length),
        "attention": (rows, NUM_PLANES, triangle_size(length)),
        "proposals": (rows, len(trace.medusa_tree)),
        **tree_shapes(rows, trace.tree_rule),
        **{f"{_SCORE}{name}": (rows, length) for name in (*LOGIT_SCORES, *trace.scorer_digests)},
    }
    found = {name: array.shape for name, array in table_arrays(tables).items()}
    if found != shapes:
        name = next(name for name in {**shapes, **found} if shapes.get(name) != found.get(name))
        raise ValueError(f"{name} has the shape {found.get(name)}, and the header says {shapes.get(name)}")


def _check_kind(name: str, table: Any) -> None:
    """Raises ValueError for real numbers in place of whole ones, for half precision, NaN and infinities."""
    import numpy as np

    if name != "attention" and not name.startswith(_SCORE):
        if table.dtype.kind not in "iu":
            raise ValueError(f"{name} holds {table.dtype}; it has whole numbers")
    elif table.dtype not in (np.float32, np.float64):
        raise ValueError(f"{name} holds {table.dtype}; it has float32 or float64")
    elif not np.isfinite(table).all():
        raise ValueError(f"{name} has a value that is no finite number")


def _check_range(name: str, table: Any, least: int, most: int) -> None:
    if table.size and not least <= int(table.min()) <= int(table.max()) <= most:
        raise ValueError(f"{name} has values from {table.min()} to {table.max()}; they are {least} to {most}")


def _check_tokens(tables: TraceTables) -> None:
    """Raises ValueError for what is no token, and for a continuation that is empty or longer than there is room for."""
    for name in ("targets", "drafts", "top_candidates", "proposals"):
        _check_range(name, getattr(tables, name), 0, MAX_TOKEN)
    _check_range("trees", tables.trees[..., 0][tables.trees[..., 1] != NO_NODE], 0, MAX_TOKEN)
    _check_range("tree_levels", tables.tree_levels, 0, MAX_TOKEN)
    _check_range("continuation_lens", tables.continuation_lens, 1, tables.max_draft_len)


def _check_exits(tables: TraceTables, device_layers: int) -> None:
    """Raises ValueError for a draft that was read off before the first layer, or behind the last one."""
    import numpy as np

    drafted = np.arange(tables.max_draft_len) < tables.continuation_lens[:, None]
    _check_range("exit_layers", tables.exit_layers[drafted], 1, device_layers)


def _check_trees(parents: Any) -> None:
    """Raises ValueError for a node in front of its parent, or behind a place without one; (rows, 2, nodes)"""
    import numpy as np

    is_node, places = parents != NO_NODE, np.arange(parents.shape[-1])
    if (is_node & ((parents < -1) | (parents >= places))).any():
        raise ValueError("a node of trees comes before its parent")
    if (is_node[..., 1:] & ~is_node[..., :-1]).any():
        raise ValueError("a node of trees comes after an empty place")
