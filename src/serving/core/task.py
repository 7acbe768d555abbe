"""A request as a choice of nodes sees it."""

from typing import NamedTuple

from serving.messages import LoadReport


class Task(NamedTuple):
    """What is to be placed: one request, with all that its route writes before it asks again."""

    session: str
    num_tokens: int
    """Of its first pass."""
    num_passes: int
    """Passes: as many as tokens may be written, the last of which nobody may need."""
    max_cached_len: int
    """That its cache comes to, at most."""
    choice_index: int
    """How many choices this chooser made before."""

    def compute_s(self, report: LoadReport) -> float:
        """How long a node would compute for it, by itself: F* / C of Hyperion, Eq. 20."""
        return (self.num_tokens - 1) * report.per_token_s + self.num_passes * report.pass_s
