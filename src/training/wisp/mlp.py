"""The family that is served: WISP's multi-layer perceptron (section 5.4, appendix B)."""

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from serving.learned.mlp import NumpyMLP
from serving.learned.rejection_predictor import RejectionPredictor
from serving.progress import Progress, silent
from training.fitting.recipe import check_above_zero, check_at_least
from training.fitting.trainer import CPU_TRAINER, NO_CHECKPOINT, Trainer
from training.wisp.samples import TokenSamples

if TYPE_CHECKING:
    from training.fitting.callbacks import EarlyStoppingByEpoch
    from training.fitting.mlp_network import LabelledSamples


@dataclass(frozen=True)
class MLP:
    """Hyperparameters, by default the paper's shape. Raises ValueError for one out of range."""

    hidden_sizes: tuple[int, ...] = (512, 128, 64)
    batch_norm: bool = False
    dropout: float = 0.1
    learning_rate: float = 1e-3
    """Of Adam."""
    weight_decay: float = 0.0
    batch_size: int = 128
    epochs: int = 60
    """At most."""
    patience: int = 8
    """Epochs without a lower validation loss after which training stops."""
    positive_weight: Literal["none", "balanced"] = "none"
    """none: every token weighs the same | balanced: accepted and rejected tokens weigh the same in total; outputs are
    then no probabilities.
    """
    name: ClassVar[str] = "MLP"

    def __post_init__(self) -> None:
        if not self.hidden_sizes or min(self.hidden_sizes) < 1:
            raise ValueError(f"mlp.hidden_sizes is {self.hidden_sizes}; give one layer or more, each of 1 or more")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"mlp.dropout is {self.dropout}; it is a share below 1")
        check_at_least(self, 2, "batch_size", prefix="mlp")
        check_at_least(self, 1, "epochs", "patience", prefix="mlp")
        check_above_zero(self, "learning_rate", prefix="mlp")
        check_at_least(self, 0, "weight_decay", prefix="mlp")

    def fit(
        self,
        train: TokenSamples,
        validation: TokenSamples,
        seed: int,
        trainer: Trainer = CPU_TRAINER,
        progress: Progress = silent,
    ) -> RejectionPredictor:
        """The predictor with the weights of the lowest validation loss; its threshold is 0.5 until a rule sets it.

        The same seed gives the same weights on one machine.
        """
        found, metrics = self.fit_network(train, validation, seed, trainer, progress)
        return RejectionPredictor(found.layers, found.mean, found.std, threshold=0.5, metrics=metrics)

    def fit_network(
        self,
        train: "LabelledSamples",
        validation: "LabelledSamples",
        seed: int,
        trainer: Trainer = CPU_TRAINER,
        progress: Progress = silent,
    ) -> tuple[NumpyMLP, dict[str, Any]]:
        """The network and its training metrics; works with any features."""
        import torch

        from training.fitting.batches import TensorDataModule
        from training.fitting.callbacks import EarlyStoppingByEpoch
        from training.fitting.mlp_network import ClassifierModule, StandardScaler, build_network, folded_layers

        trainer = replace(trainer, threads=1)  # more threads only wait for each other on a network of this size
        scaler = StandardScaler.fit(train.features)
        learned, held_out = (
            (scaler.transform(s.features), torch.from_numpy(s.accepted).float()) for s in (train, validation)
        )
        data = TensorDataModule(learned, held_out, min(self.batch_size, len(train)), self.epochs, seed)
        best = EarlyStoppingByEpoch(self.patience, self.epochs, progress)
        with torch.random.fork_rng(devices=[]), trainer.using_threads():
            torch.manual_seed(seed)
            network = build_network(self.hidden_sizes, self.batch_norm, self.dropout, train.features.shape[1])
            module = ClassifierModule(network, self.learning_rate, self.weight_decay, self._positive_weight(train))
            trainer.fit(module, data, [best], checkpoint=NO_CHECKPOINT)
        best.restore_best(module)
        return NumpyMLP(folded_layers(network), scaler.mean, scaler.std), self._training_metrics(best)

    def _positive_weight(self, train: "LabelledSamples") -> float:
        accepted = int(train.accepted.sum())
        return 1.0 if self.positive_weight == "none" else (len(train) - accepted) / max(1, accepted)

    def _training_metrics(self, best: "EarlyStoppingByEpoch") -> dict[str, Any]:
        return {"hyperparameters": asdict(self), **best.summary()}
