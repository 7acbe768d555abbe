"""Stages of the embedded pair that configuration names: a model's training and the pair's quality."""

from pathlib import Path

from serving.progress import Progress
from training.embedded_pair.model_config import COPYING_INIT, InitConfig, LlamaSizes
from training.fitting.recipe import LMRecipe
from training.fitting.trainer import CPU_TRAINER, Trainer


def check_train(*, recipe: LMRecipe, teacher: Path | None = None, **_: object) -> None:
    """Raises ValueError for a recipe that compares with a teacher where there is none."""
    if recipe.distillation_weight and teacher is None:
        raise ValueError(
            f"recipe.distillation_weight is {recipe.distillation_weight}, and this model has no teacher; give 0"
        )


def train(
    out: Path,
    *,
    work: Path,
    progress: Progress,
    corpus: Path,
    teacher: Path | None = None,
    architecture: LlamaSizes,
    recipe: LMRecipe,
    init: InitConfig = COPYING_INIT,
    seed: int = 0,
    trainer: Trainer = CPU_TRAINER,
) -> None:
    """Trains a model on the corpus, and on the distributions of the checkpoint `teacher` if there is one.

    `out` becomes a Hugging Face checkpoint with training.json beside it. After an interruption, a call with the same
    `work` continues from the last saved step and ends with the same weights (same machine, threads and precision).
    """
    from training.embedded_pair.lm_training import train_model  # loads torch and Lightning, which a plan does not need

    train_model(out, work, progress, corpus, architecture, recipe, init, seed, trainer, teacher)


def measure_quality(
    out: Path, *, progress: Progress, corpus: Path, large: Path, small: Path, items_per_task: int, trainer: Trainer
) -> None:
    """Accuracy, ROUGE-1, acceptance, calibration and cost of the pair on test items: quality.json and a table."""
    from training.embedded_pair.quality import measure_pair, scorecard

    report = measure_pair(
        out, progress=progress, corpus=corpus, large=large, small=small, items_per_task=items_per_task, trainer=trainer
    )
    (out / "quality.txt").write_text(scorecard(report) + "\n", encoding="utf-8")
