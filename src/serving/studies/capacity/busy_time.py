"""What the cloud's chips are busy with: the constant of a batch, prefills, verifications and decodes."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from serving.hardware.estimator import Estimator
from serving.messages import Command, Event, ForwardWork, Message, Outcome, SequenceSlice, Work

BusyWith = Literal["constant", "prefill", "verification", "decode"]


def busy_with(seq: SequenceSlice) -> BusyWith:
    """verification: drafts and the token before them; decode: that token alone; prefill: all else.

    A prefill is the text from its begin, its first drafts included, a later chunk of it, or what follows a cached
    prefix: several tokens that the cloud has not seen, be they a prompt's or written by the device alone.
    """
    if not seq.start or not seq.rule or seq.num_tokens > seq.num_drafts + 1:
        return "prefill"
    return "verification" if seq.num_drafts else "decode"


@dataclass
class BusyTimeObserver:
    """An observer of the batches that start from `begin_s` to `end_s`, divided as the workers' estimators do.

    A batch costs a constant, and each request adds its own seconds (WISP, Eq. 19).
    """

    estimators: Mapping[str, Estimator]
    begin_s: float
    end_s: float
    seconds: dict[BusyWith, float] = field(default_factory=lambda: defaultdict(float))
    num_batches: int = 0
    num_slices: int = 0

    def event_handled(self, node: str, event: Event, now: float, commands: Sequence[Command]) -> None: ...

    def message_sent(self, node: str, to: str, message: Message, nbytes: int, now: float, arrives_s: float) -> None: ...

    def work_done(self, node: str, work: Work, outcome: Outcome, begin_s: float, end_s: float) -> None:  # noqa: ARG002
        if type(work) is not ForwardWork or node not in self.estimators or not self.begin_s <= begin_s < self.end_s:
            return
        estimator = self.estimators[node]
        constant_s = estimator.constant_s(work.span)
        self.seconds["constant"] += constant_s
        for seq in work.slices:
            self.seconds[busy_with(seq)] += estimator.batch_s(ForwardWork(work.span, (seq,), ("",))) - constant_s
        self.num_batches += 1
        self.num_slices += len(work.slices)

    def metrics(self, num_tokens: int, num_workers: int) -> dict[str, float]:
        """Chip seconds a written token by kind, the busy share, and requests a batch; empty without tokens."""
        if not (num_tokens and self.num_batches):
            return {}
        total_s = sum(self.seconds.values())
        found = {f"busy/{kind}_s_per_token": self.seconds[kind] / num_tokens for kind in get_args(BusyWith)}
        return found | {
            "busy/s_per_token": total_s / num_tokens,
            "busy/share": total_s / (self.end_s - self.begin_s) / num_workers,
            "busy/requests_per_batch": self.num_slices / self.num_batches,
        }
