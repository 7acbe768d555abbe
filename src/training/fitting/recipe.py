"""Hyperparameters of the trainings. This file loads no torch: configuration builds recipes before any work starts."""

from dataclasses import dataclass, replace
from math import cos, pi
from typing import Literal


def check_at_least(recipe: object, least: float, *names: str, prefix: str = "recipe") -> None:
    """Raises ValueError for the first of the fields `names` that is below `least`."""
    for name in names:
        if getattr(recipe, name) < least:
            raise ValueError(f"{prefix}.{name} must be {least} or more, got {getattr(recipe, name)}")


def check_above_zero(recipe: object, *names: str, prefix: str = "recipe") -> None:
    """Raises ValueError for the first of the fields `names` that is not above 0."""
    for name in names:
        if not getattr(recipe, name) > 0:
            raise ValueError(f"{prefix}.{name} must be above 0, got {getattr(recipe, name)}")


@dataclass(frozen=True)
class LMRecipe:
    """Training of a language model of the embedded pair. Raises ValueError for a value out of range."""

    steps: int
    batch_size: int = 16
    """Packed rows per step."""
    row_tokens: int = 128
    learning_rate: float = 1.5e-3
    """Peak learning rate of embeddings and norms (AdamW)."""
    matrix_learning_rate: float = 0.02
    """Peak learning rate of matrices (Muon)."""
    warmup_steps: int = 20
    stable_share: float = 0.4
    """Share of the steps before the learning rate begins to fall, linearly, to a fiftieth."""
    prompt_loss_weight: float = 0.2
    """Weight of a prompt's token in the loss; an answer's token has weight 1."""
    distillation_weight: float = 0.0
    """Share of the loss that compares with the teacher's distribution; the rest compares with the corpus. Without a
    teacher it is 0.
    """

    def __post_init__(self) -> None:
        check_above_zero(
            self, "steps", "batch_size", "row_tokens", "learning_rate", "matrix_learning_rate", "warmup_steps"
        )
        for name in ("stable_share", "prompt_loss_weight", "distillation_weight"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"recipe.{name} must be between 0 and 1, got {getattr(self, name)}")

    def lr_factor(self, step: int) -> float:
        """Share of the peak learning rate at `step`: a linear rise, flat, a linear fall."""
        rise = min(1.0, (step + 1) / self.warmup_steps)
        falling = (1 - step / self.steps) / max(1 - self.stable_share, 1e-9)
        return rise * min(1.0, max(0.02, falling))


MAX_EPOCHS = 40


@dataclass(frozen=True)
class HATRecipe:
    """Training of HAT's adapter and of Medusa heads. Raises ValueError for a value out of range."""

    steps: int = 2000
    """At most."""
    batch_size: int = 32
    """Texts per step."""
    learning_rate: float = 4e-3
    """Of AdamW after `warmup_steps`; it falls along a cosine to a twentieth."""
    warmup_steps: int = 30
    weight_decay: float = 0.01
    prompt_loss_weight: float = 0.2
    """Weight of a prompt's position in the loss; an answer's position has weight 1."""
    eval_steps: int = 200
    """Steps between two evaluations of the held-out loss."""
    patience: int = 4
    """Evaluations without a lower loss after which training stops."""

    def __post_init__(self) -> None:
        check_at_least(self, 1, "steps", "batch_size", "eval_steps", "patience")
        check_at_least(self, 0, "warmup_steps", "weight_decay", "prompt_loss_weight")
        check_above_zero(self, "learning_rate")

    def limit_epochs(self, texts: int) -> "HATRecipe":
        """This recipe with fewer steps, so that each of `texts` texts is used at most `MAX_EPOCHS` times."""
        return replace(self, steps=min(self.steps, MAX_EPOCHS * max(1, texts // min(self.batch_size, texts))))

    def lr_factor(self, step: int) -> float:
        """Factor on `learning_rate` at `step`, counted from 0."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        share = (step - self.warmup_steps) / max(1, self.steps - self.warmup_steps)
        return 0.05 + 0.95 * (1 + cos(pi * min(1.0, share))) / 2


MAX_HELD_OUT_SHARE = 0.4


@dataclass(frozen=True)
class HealingRecipe:
    """Training of a pruned model, one epoch. Raises ValueError for a value out of range."""

    tokens_per_step: int = 1024
    learning_rate: float = 4e-4
    """Of AdamW after `warmup_steps`."""
    warmup_steps: int = 8
    stable_share: float = 0.6
    """Share of the steps before the learning rate begins to fall, linearly, to a twentieth."""
    head_tokens: int = 16_384
    """Tokens of the restricted head that the loss is over."""
    held_out_share: float = 0.05
    """Of the conversations: agreement is measured on them. As many more are kept from training."""

    def __post_init__(self) -> None:
        check_at_least(self, 1, "tokens_per_step", "head_tokens", "warmup_steps")
        check_above_zero(self, "learning_rate", "held_out_share")
        if not 0 <= self.stable_share < 1:
            raise ValueError(f"recipe.stable_share must be 0 or more and below 1, got {self.stable_share}")
        if self.held_out_share >= MAX_HELD_OUT_SHARE:
            raise ValueError(
                f"recipe.held_out_share must be below {MAX_HELD_OUT_SHARE}, got {self.held_out_share}: twice as much "
                "is kept from training, half of it to be measured on"
            )

    def lr_factor(self, step: int, steps: int) -> float:
        """Factor on `learning_rate` at `step` of `steps`, counted from 0."""
        falling = (1 - step / steps) / (1 - self.stable_share)
        return min(1.0, (step + 1) / self.warmup_steps) * min(1.0, max(0.05, falling))


@dataclass(frozen=True)
class CoLLMRecipe:
    """Training of Co-LLM's deferral. Raises ValueError for a value out of range."""

    learning_rate: float = 1e-2
    """Of the classifier alone (Adam)."""
    batch_size: int = 256
    epochs: int = 40
    """At most, for each of the two objectives."""
    patience: int = 5
    joint_learning_rate: float = 2e-4
    """Of the small model and the classifier together (AdamW)."""
    joint_batch_size: int = 16
    """Texts."""
    joint_epochs: int = 6

    def __post_init__(self) -> None:
        check_at_least(self, 1, "batch_size", "epochs", "patience", "joint_batch_size", "joint_epochs")
        check_above_zero(self, "learning_rate", "joint_learning_rate")


@dataclass(frozen=True)
class ReinforceRecipe:
    """Training of the dispatch network. Raises ValueError for a value out of range."""

    hidden_size: int = 16
    """Of a vertex's state."""
    steps: int = 64
    """Each samples `episodes_per_step` new episodes."""
    episodes_per_step: int = 4
    rollouts_per_episode: int = 4
    """Rollouts of one episode are each other's baseline."""
    learning_rate: float = 0.01
    """Of Adam; it falls linearly to a twentieth."""
    discount: float = 0.8
    """Weight of the next task's reward in the return of a task's actions."""
    entropy_weight: float = 0.01
    """Weight of the actions' entropy in the loss; it falls linearly to 0."""
    ema_decay: float = 0.95
    """Share of the moving average of the weights that a step keeps; the average is what is served."""
    eval_steps: int = 16
    """Steps between two evaluations on the validation episodes."""
    validation_episodes: int = 32
    """Episodes that select the best weights."""
    test_episodes: int = 48
    """Further episodes that judge the selected weights."""
    initial_rule: Literal["hypsched", "random"] = "hypsched"
    """What training begins with: weights that make HypSched-RT's rule, or random ones."""

    def __post_init__(self) -> None:
        check_at_least(
            self, 1, "hidden_size", "steps", "episodes_per_step", "eval_steps", "validation_episodes", "test_episodes"
        )
        check_at_least(self, 2, "rollouts_per_episode")
        for name in ("discount", "ema_decay"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"recipe.{name} must be 0 or more and below 1, got {getattr(self, name)}")
        check_above_zero(self, "learning_rate")
        check_at_least(self, 0, "entropy_weight")
        if self.initial_rule not in ("hypsched", "random"):
            raise ValueError(f"recipe.initial_rule is {self.initial_rule!r}; it is hypsched or random")

    def remaining_share(self, step: int) -> float:
        """Share of the steps that is left at `step`, counted from 0."""
        return 1 - step / self.steps

    def lr_factor(self, step: int) -> float:
        """Factor on `learning_rate` at `step`, counted from 0."""
        return max(0.05, self.remaining_share(step))
