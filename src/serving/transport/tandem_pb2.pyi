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
    __slots__ = ("protocol", "version", "nodes", "digest", "tensors", "boot")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    BOOT_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    version: str
    nodes: _containers.RepeatedScalarFieldContainer[str]
    digest: str
    tensors: bool
    boot: str
    def __init__(self, protocol: _Optional[int] = ..., version: _Optional[str] = ..., nodes: _Optional[_Iterable[str]] = ..., digest: _Optional[str] = ..., tensors: bool = ..., boot: _Optional[str] = ...) -> None: ...

class Goodbye(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Envelope(_message.Message):
    __slots__ = ("sender", "to", "request", "reply", "miss", "release", "backlog")
    SENDER_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    REPLY_FIELD_NUMBER: _ClassVar[int]
    MISS_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    BACKLOG_FIELD_NUMBER: _ClassVar[int]
    sender: str
    to: str
    request: Request
    reply: Reply
    miss: Miss
    release: Release
    backlog: Backlog
    def __init__(self, sender: _Optional[str] = ..., to: _Optional[str] = ..., request: _Optional[_Union[Request, _Mapping]] = ..., reply: _Optional[_Union[Reply, _Mapping]] = ..., miss: _Optional[_Union[Miss, _Mapping]] = ..., release: _Optional[_Union[Release, _Mapping]] = ..., backlog: _Optional[_Union[Backlog, _Mapping]] = ...) -> None: ...

class Span(_message.Message):
    __slots__ = ("first", "last", "embed", "head")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    EMBED_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    first: int
    last: int
    embed: bool
    head: bool
    def __init__(self, first: _Optional[int] = ..., last: _Optional[int] = ..., embed: bool = ..., head: bool = ...) -> None: ...

class Tensor(_message.Message):
    __slots__ = ("dtype", "shape", "data")
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    data: bytes
    def __init__(self, dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., data: _Optional[bytes] = ...) -> None: ...

class Blob(_message.Message):
    __slots__ = ("id", "nbytes", "tensor")
    ID_FIELD_NUMBER: _ClassVar[int]
    NBYTES_FIELD_NUMBER: _ClassVar[int]
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    id: str
    nbytes: int
    tensor: Tensor
    def __init__(self, id: _Optional[str] = ..., nbytes: _Optional[int] = ..., tensor: _Optional[_Union[Tensor, _Mapping]] = ...) -> None: ...

class Sampling(_message.Message):
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

class Rows(_message.Message):
    __slots__ = ("session", "start", "n", "tokens", "check", "rule", "sampling", "parents", "keep", "blob", "odds")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    CHECK_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    PARENTS_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    BLOB_FIELD_NUMBER: _ClassVar[int]
    ODDS_FIELD_NUMBER: _ClassVar[int]
    session: str
    start: int
    n: int
    tokens: _containers.RepeatedScalarFieldContainer[int]
    check: int
    rule: str
    sampling: Sampling
    parents: Indices
    keep: Indices
    blob: Blob
    odds: _containers.RepeatedCompositeFieldContainer[Blob]
    def __init__(self, session: _Optional[str] = ..., start: _Optional[int] = ..., n: _Optional[int] = ..., tokens: _Optional[_Iterable[int]] = ..., check: _Optional[int] = ..., rule: _Optional[str] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., parents: _Optional[_Union[Indices, _Mapping]] = ..., keep: _Optional[_Union[Indices, _Mapping]] = ..., blob: _Optional[_Union[Blob, _Mapping]] = ..., odds: _Optional[_Iterable[_Union[Blob, _Mapping]]] = ...) -> None: ...

class Condition(_message.Message):
    __slots__ = ("tokens", "base_s", "row_s", "nodes", "uplink_mbps")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    BASE_S_FIELD_NUMBER: _ClassVar[int]
    ROW_S_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    UPLINK_MBPS_FIELD_NUMBER: _ClassVar[int]
    tokens: float
    base_s: float
    row_s: float
    nodes: int
    uplink_mbps: float
    def __init__(self, tokens: _Optional[float] = ..., base_s: _Optional[float] = ..., row_s: _Optional[float] = ..., nodes: _Optional[int] = ..., uplink_mbps: _Optional[float] = ...) -> None: ...

class Hop(_message.Message):
    __slots__ = ("node", "span", "out")
    NODE_FIELD_NUMBER: _ClassVar[int]
    SPAN_FIELD_NUMBER: _ClassVar[int]
    OUT_FIELD_NUMBER: _ClassVar[int]
    node: str
    span: Span
    out: str
    def __init__(self, node: _Optional[str] = ..., span: _Optional[_Union[Span, _Mapping]] = ..., out: _Optional[str] = ...) -> None: ...

class Request(_message.Message):
    __slots__ = ("round", "rows", "route", "hop", "path", "reply_to", "budget", "value", "probes", "ends", "slack_s", "rate", "spent_s", "sent_s", "condition")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    ROUTE_FIELD_NUMBER: _ClassVar[int]
    HOP_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    REPLY_TO_FIELD_NUMBER: _ClassVar[int]
    BUDGET_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    PROBES_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    SLACK_S_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    SPENT_S_FIELD_NUMBER: _ClassVar[int]
    SENT_S_FIELD_NUMBER: _ClassVar[int]
    CONDITION_FIELD_NUMBER: _ClassVar[int]
    round: int
    rows: Rows
    route: _containers.RepeatedCompositeFieldContainer[Hop]
    hop: int
    path: _containers.RepeatedScalarFieldContainer[str]
    reply_to: str
    budget: int
    value: float
    probes: _containers.RepeatedScalarFieldContainer[str]
    ends: _containers.RepeatedScalarFieldContainer[int]
    slack_s: float
    rate: float
    spent_s: float
    sent_s: float
    condition: Condition
    def __init__(self, round: _Optional[int] = ..., rows: _Optional[_Union[Rows, _Mapping]] = ..., route: _Optional[_Iterable[_Union[Hop, _Mapping]]] = ..., hop: _Optional[int] = ..., path: _Optional[_Iterable[str]] = ..., reply_to: _Optional[str] = ..., budget: _Optional[int] = ..., value: _Optional[float] = ..., probes: _Optional[_Iterable[str]] = ..., ends: _Optional[_Iterable[int]] = ..., slack_s: _Optional[float] = ..., rate: _Optional[float] = ..., spent_s: _Optional[float] = ..., sent_s: _Optional[float] = ..., condition: _Optional[_Union[Condition, _Mapping]] = ...) -> None: ...

class Proposal(_message.Message):
    __slots__ = ("tokens", "parents")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    PARENTS_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedScalarFieldContainer[int]
    parents: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, tokens: _Optional[_Iterable[int]] = ..., parents: _Optional[_Iterable[int]] = ...) -> None: ...

class Verdict(_message.Message):
    __slots__ = ("accepted", "token", "keep", "proposal")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    PROPOSAL_FIELD_NUMBER: _ClassVar[int]
    accepted: int
    token: int
    keep: Indices
    proposal: Proposal
    def __init__(self, accepted: _Optional[int] = ..., token: _Optional[int] = ..., keep: _Optional[_Union[Indices, _Mapping]] = ..., proposal: _Optional[_Union[Proposal, _Mapping]] = ...) -> None: ...

class Reply(_message.Message):
    __slots__ = ("session", "round", "at", "verdict", "path", "left", "spent_s", "condition")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    SPENT_S_FIELD_NUMBER: _ClassVar[int]
    CONDITION_FIELD_NUMBER: _ClassVar[int]
    session: str
    round: int
    at: int
    verdict: Verdict
    path: _containers.RepeatedScalarFieldContainer[str]
    left: int
    spent_s: float
    condition: Condition
    def __init__(self, session: _Optional[str] = ..., round: _Optional[int] = ..., at: _Optional[int] = ..., verdict: _Optional[_Union[Verdict, _Mapping]] = ..., path: _Optional[_Iterable[str]] = ..., left: _Optional[int] = ..., spent_s: _Optional[float] = ..., condition: _Optional[_Union[Condition, _Mapping]] = ...) -> None: ...

class Miss(_message.Message):
    __slots__ = ("session", "round", "node")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    session: str
    round: int
    node: str
    def __init__(self, session: _Optional[str] = ..., round: _Optional[int] = ..., node: _Optional[str] = ...) -> None: ...

class Release(_message.Message):
    __slots__ = ("session",)
    SESSION_FIELD_NUMBER: _ClassVar[int]
    session: str
    def __init__(self, session: _Optional[str] = ...) -> None: ...

class Backlog(_message.Message):
    __slots__ = ("node", "queued_s", "row_s", "free", "step_s")
    NODE_FIELD_NUMBER: _ClassVar[int]
    QUEUED_S_FIELD_NUMBER: _ClassVar[int]
    ROW_S_FIELD_NUMBER: _ClassVar[int]
    FREE_FIELD_NUMBER: _ClassVar[int]
    STEP_S_FIELD_NUMBER: _ClassVar[int]
    node: str
    queued_s: float
    row_s: float
    free: float
    step_s: float
    def __init__(self, node: _Optional[str] = ..., queued_s: _Optional[float] = ..., row_s: _Optional[float] = ..., free: _Optional[float] = ..., step_s: _Optional[float] = ...) -> None: ...
