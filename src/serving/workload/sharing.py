"""What prompts have in common, where a workload has no text of its own: a system prompt, and earlier turns."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PromptSharing:
    """Every prompt begins with the same `shared_tokens` tokens; a device's requests are conversations of `turns`.

    A later turn's prompt is the earlier ones with their answers, and its own tokens. Raises ValueError for numbers out
    of range.
    """

    shared_tokens: int = 0
    turns: int = 1

    def __post_init__(self) -> None:
        if self.shared_tokens < 0:
            raise ValueError(f"workload.sharing.shared_tokens must be 0 or more, got {self.shared_tokens}")
        if self.turns < 1:
            raise ValueError(f"workload.sharing.turns must be 1 or more, got {self.turns}")
