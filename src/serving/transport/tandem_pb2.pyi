from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Frame(_message.Message):
    __slots__ = ("hello", "envelope", "goodbye")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    ENVELOPE_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    envelope: Envelope
    goodbye: Goodbye
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., envelope: _Optional[_Union[Envelope, _Mapping]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol", "version", "nodes", "config_digest", "sends_tensors", "boot_id")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    CONFIG_DIGEST_FIELD_NUMBER: _ClassVar[int]
    SENDS_TENSORS_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    version: str
    nodes: _containers.RepeatedScalarFieldContainer[str]
    config_digest: str
    sends_tensors: bool
    boot_id: str
    def __init__(self, protocol: _Optional[int] = ..., version: _Optional[str] = ..., nodes: _Optional[_Iterable[str]] = ..., config_digest: _Optional[str] = ..., sends_tensors: bool = ..., boot_id: _Optional[str] = ...) -> None: ...

class Goodbye(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Envelope(_message.Message):
    __slots__ = ("sender", "to", "request", "reply", "cache_miss", "release", "load_report")
    SENDER_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    REPLY_FIELD_NUMBER: _ClassVar[int]
    CACHE_MISS_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    LOAD_REPORT_FIELD_NUMBER: _ClassVar[int]
    sender: str
    to: str
    request: Request
    reply: Reply
    cache_miss: CacheMiss
    release: Release
    load_report: LoadReport
    def __init__(self, sender: _Optional[str] = ..., to: _Optional[str] = ..., request: _Optional[_Union[Request, _Mapping]] = ..., reply: _Optional[_Union[Reply, _Mapping]] = ..., cache_miss: _Optional[_Union[CacheMiss, _Mapping]] = ..., release: _Optional[_Union[Release, _Mapping]] = ..., load_report: _Optional[_Union[LoadReport, _Mapping]] = ...) -> None: ...

class Span(_message.Message):
    __slots__ = ("start_layer", "end_layer", "embedding", "lm_head")
    START_LAYER_FIELD_NUMBER: _ClassVar[int]
    END_LAYER_FIELD_NUMBER: _ClassVar[int]
    EMBEDDING_FIELD_NUMBER: _ClassVar[int]
    LM_HEAD_FIELD_NUMBER: _ClassVar[int]
    start_layer: int
    end_layer: int
    embedding: bool
    lm_head: bool
    def __init__(self, start_layer: _Optional[int] = ..., end_layer: _Optional[int] = ..., embedding: bool = ..., lm_head: bool = ...) -> None: ...

class Tensor(_message.Message):
    __slots__ = ("dtype", "shape", "data")
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    data: bytes
    def __init__(self, dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., data: _Optional[bytes] = ...) -> None: ...

class TensorRef(_message.Message):
    __slots__ = ("id", "nbytes", "tensor")
    ID_FIELD_NUMBER: _ClassVar[int]
    NBYTES_FIELD_NUMBER: _ClassVar[int]
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    id: str
    nbytes: int
    tensor: Tensor
    def __init__(self, id: _Optional[str] = ..., nbytes: _Optional[int] = ..., tensor: _Optional[_Union[Tensor, _Mapping]] = ...) -> None: ...

class SamplingParams(_message.Message):
    __slots__ = ("temperature", "top_k", "top_p", "seed")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_k: int
    top_p: float
    seed: int
    def __init__(self, temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., seed: _Optional[int] = ...) -> None: ...

class Indices(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, values: _Optional[_Iterable[int]] = ...) -> None: ...

class SequenceSlice(_message.Message):
    __slots__ = ("session", "start", "num_tokens", "tokens", "num_drafts", "rule", "sampling", "parents", "kept_tree_nodes", "hidden_states", "draft_probs")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_DRAFTS_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    PARENTS_FIELD_NUMBER: _ClassVar[int]
    KEPT_TREE_NODES_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_STATES_FIELD_NUMBER: _ClassVar[int]
    DRAFT_PROBS_FIELD_NUMBER: _ClassVar[int]
    session: str
    start: int
    num_tokens: int
    tokens: _containers.RepeatedScalarFieldContainer[int]
    num_drafts: int
    rule: str
    sampling: SamplingParams
    parents: Indices
    kept_tree_nodes: Indices
    hidden_states: TensorRef
    draft_probs: _containers.RepeatedCompositeFieldContainer[TensorRef]
    def __init__(self, session: _Optional[str] = ..., start: _Optional[int] = ..., num_tokens: _Optional[int] = ..., tokens: _Optional[_Iterable[int]] = ..., num_drafts: _Optional[int] = ..., rule: _Optional[str] = ..., sampling: _Optional[_Union[SamplingParams, _Mapping]] = ..., parents: _Optional[_Union[Indices, _Mapping]] = ..., kept_tree_nodes: _Optional[_Union[Indices, _Mapping]] = ..., hidden_states: _Optional[_Union[TensorRef, _Mapping]] = ..., draft_probs: _Optional[_Iterable[_Union[TensorRef, _Mapping]]] = ...) -> None: ...

class PathStats(_message.Message):
    __slots__ = ("mean_batch_tokens", "base_s", "per_token_s", "num_nodes", "uplink_mbps")
    MEAN_BATCH_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BASE_S_FIELD_NUMBER: _ClassVar[int]
    PER_TOKEN_S_FIELD_NUMBER: _ClassVar[int]
    NUM_NODES_FIELD_NUMBER: _ClassVar[int]
    UPLINK_MBPS_FIELD_NUMBER: _ClassVar[int]
    mean_batch_tokens: float
    base_s: float
    per_token_s: float
    num_nodes: int
    uplink_mbps: float
    def __init__(self, mean_batch_tokens: _Optional[float] = ..., base_s: _Optional[float] = ..., per_token_s: _Optional[float] = ..., num_nodes: _Optional[int] = ..., uplink_mbps: _Optional[float] = ...) -> None: ...

class Hop(_message.Message):
    __slots__ = ("node", "span", "hidden_export")
    NODE_FIELD_NUMBER: _ClassVar[int]
    SPAN_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_EXPORT_FIELD_NUMBER: _ClassVar[int]
    node: str
    span: Span
    hidden_export: str
    def __init__(self, node: _Optional[str] = ..., span: _Optional[_Union[Span, _Mapping]] = ..., hidden_export: _Optional[str] = ...) -> None: ...

class Request(_message.Message):
    __slots__ = ("attempt", "slice", "hops", "hop_index", "path", "reply_to", "budget", "expected_tokens", "requested_outputs", "stop_tokens", "slack_s", "slo_tokens_per_s", "upstream_s", "sent_s", "path_stats")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    SLICE_FIELD_NUMBER: _ClassVar[int]
    HOPS_FIELD_NUMBER: _ClassVar[int]
    HOP_INDEX_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    REPLY_TO_FIELD_NUMBER: _ClassVar[int]
    BUDGET_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REQUESTED_OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SLACK_S_FIELD_NUMBER: _ClassVar[int]
    SLO_TOKENS_PER_S_FIELD_NUMBER: _ClassVar[int]
    UPSTREAM_S_FIELD_NUMBER: _ClassVar[int]
    SENT_S_FIELD_NUMBER: _ClassVar[int]
    PATH_STATS_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    slice: SequenceSlice
    hops: _containers.RepeatedCompositeFieldContainer[Hop]
    hop_index: int
    path: _containers.RepeatedScalarFieldContainer[str]
    reply_to: str
    budget: int
    expected_tokens: float
    requested_outputs: _containers.RepeatedScalarFieldContainer[str]
    stop_tokens: _containers.RepeatedScalarFieldContainer[int]
    slack_s: float
    slo_tokens_per_s: float
    upstream_s: float
    sent_s: float
    path_stats: PathStats
    def __init__(self, attempt: _Optional[int] = ..., slice: _Optional[_Union[SequenceSlice, _Mapping]] = ..., hops: _Optional[_Iterable[_Union[Hop, _Mapping]]] = ..., hop_index: _Optional[int] = ..., path: _Optional[_Iterable[str]] = ..., reply_to: _Optional[str] = ..., budget: _Optional[int] = ..., expected_tokens: _Optional[float] = ..., requested_outputs: _Optional[_Iterable[str]] = ..., stop_tokens: _Optional[_Iterable[int]] = ..., slack_s: _Optional[float] = ..., slo_tokens_per_s: _Optional[float] = ..., upstream_s: _Optional[float] = ..., sent_s: _Optional[float] = ..., path_stats: _Optional[_Union[PathStats, _Mapping]] = ...) -> None: ...

class DraftTree(_message.Message):
    __slots__ = ("tokens", "parents")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    PARENTS_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedScalarFieldContainer[int]
    parents: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, tokens: _Optional[_Iterable[int]] = ..., parents: _Optional[_Iterable[int]] = ...) -> None: ...

class Verdict(_message.Message):
    __slots__ = ("accepted", "next_token", "kept_tree_nodes", "next_tree")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    NEXT_TOKEN_FIELD_NUMBER: _ClassVar[int]
    KEPT_TREE_NODES_FIELD_NUMBER: _ClassVar[int]
    NEXT_TREE_FIELD_NUMBER: _ClassVar[int]
    accepted: int
    next_token: int
    kept_tree_nodes: Indices
    next_tree: DraftTree
    def __init__(self, accepted: _Optional[int] = ..., next_token: _Optional[int] = ..., kept_tree_nodes: _Optional[_Union[Indices, _Mapping]] = ..., next_tree: _Optional[_Union[DraftTree, _Mapping]] = ...) -> None: ...

class Reply(_message.Message):
    __slots__ = ("session", "attempt", "committed_len", "verdict", "path", "remaining_budget", "path_latency_s", "path_stats")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_LEN_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    REMAINING_BUDGET_FIELD_NUMBER: _ClassVar[int]
    PATH_LATENCY_S_FIELD_NUMBER: _ClassVar[int]
    PATH_STATS_FIELD_NUMBER: _ClassVar[int]
    session: str
    attempt: int
    committed_len: int
    verdict: Verdict
    path: _containers.RepeatedScalarFieldContainer[str]
    remaining_budget: int
    path_latency_s: float
    path_stats: PathStats
    def __init__(self, session: _Optional[str] = ..., attempt: _Optional[int] = ..., committed_len: _Optional[int] = ..., verdict: _Optional[_Union[Verdict, _Mapping]] = ..., path: _Optional[_Iterable[str]] = ..., remaining_budget: _Optional[int] = ..., path_latency_s: _Optional[float] = ..., path_stats: _Optional[_Union[PathStats, _Mapping]] = ...) -> None: ...

class CacheMiss(_message.Message):
    __slots__ = ("session", "attempt", "node")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    session: str
    attempt: int
    node: str
    def __init__(self, session: _Optional[str] = ..., attempt: _Optional[int] = ..., node: _Optional[str] = ...) -> None: ...

class Release(_message.Message):
    __slots__ = ("session",)
    SESSION_FIELD_NUMBER: _ClassVar[int]
    session: str
    def __init__(self, session: _Optional[str] = ...) -> None: ...

class LoadReport(_message.Message):
    __slots__ = ("node", "queued_s", "per_token_s", "free_tokens", "pass_s")
    NODE_FIELD_NUMBER: _ClassVar[int]
    QUEUED_S_FIELD_NUMBER: _ClassVar[int]
    PER_TOKEN_S_FIELD_NUMBER: _ClassVar[int]
    FREE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PASS_S_FIELD_NUMBER: _ClassVar[int]
    node: str
    queued_s: float
    per_token_s: float
    free_tokens: float
    pass_s: float
    def __init__(self, node: _Optional[str] = ..., queued_s: _Optional[float] = ..., per_token_s: _Optional[float] = ..., free_tokens: _Optional[float] = ..., pass_s: _Optional[float] = ...) -> None: ...
