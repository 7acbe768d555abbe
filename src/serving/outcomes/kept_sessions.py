"""Ended sessions of a recording, a line of JSON each: an interrupted recording goes on with the others."""

import json
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

from serving.core.codec import codec
from serving.messages import DraftDecision, Origin, TokenIds
from serving.metrics.recorder import SessionRecord


def kept_in(work: Path | None, name: str = "sessions") -> Path | None:
    """The file below a stage's folder of what an interrupted build goes on from; None without such a folder."""
    return work / f"{name}.jsonl" if work else None


@dataclass(frozen=True)
class _KeptSession:
    """What recordings read of a session."""

    session: str
    prompt_tokens: int
    tokens: TokenIds
    origins: tuple[Origin, ...]
    draft_decisions: tuple[DraftDecision, ...]


class KeptSessions:
    """The sessions in `file`, to which `keep` adds; a context that closes the file. None: nothing is kept.

    The file is cut behind its last whole line: a killed process may have left a part of one.
    """

    def __init__(self, file: Path | None) -> None:
        self.records: dict[str, SessionRecord] = {}
        """Those that earlier attempts kept: text, origins and draft decisions, without times."""
        self._file: TextIO | None = None
        if file:
            whole = self._read(file) if file.exists() else 0
            self._file = file.open("a", encoding="utf-8")
            self._file.truncate(whole)

    def _read(self, file: Path) -> int:
        """The length of the whole lines, in bytes."""
        nbytes = 0
        for line in file.read_bytes().splitlines(keepends=True):
            if not line.endswith(b"\n"):
                break
            try:
                kept: _KeptSession = codec(_KeptSession).decode(json.loads(line))
            except ValueError:
                break
            nbytes += len(line)
            self.records[kept.session] = SessionRecord(
                kept.session, "", kept.prompt_tokens, 0.0, tokens=list(kept.tokens), origins=list(kept.origins),
                draft_decisions=list(kept.draft_decisions),
            )  # fmt: skip
        return nbytes

    def keep(self, record: SessionRecord) -> None:
        if self._file:
            kept = _KeptSession(
                record.session, record.prompt_tokens, tuple(record.tokens), tuple(record.origins),
                tuple(record.draft_decisions),
            )  # fmt: skip
            print(json.dumps(codec(_KeptSession).encode(kept)), file=self._file, flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _raised: BaseException | None, _at: TracebackType | None
    ) -> None:
        if self._file:
            self._file.close()
