"""Stages that make checkpoints from other checkpoints: unpacked from GGUF; self-prompts, layer influences, pruned."""

import json
import shutil
from pathlib import Path
from typing import Any

from serving.engines.llama_cpp.gguf import Weights
from serving.engines.models import GGUF_FILE, Checkpoint
from serving.progress import Progress
from serving.workload.datasets.self_asked import QUESTIONS_FILE
from serving.workload.workload import Workload
from training.checkpoints.drafters import Drafter
from training.checkpoints.gguf import PackagedGGUF, UserGGUF
from training.fitting.recipe import HealingRecipe
from training.fitting.trainer import CPU_TRAINER, Trainer

INFLUENCES_FILE = "influences.json"


def convert_gguf(out: Path, *, source: PackagedGGUF) -> None:
    """Unpacks a GGUF file into a checkpoint of bf16 safetensors with its tokenizer.

    Raises ValueError if the file is another one than its digest names.
    """
    from training.checkpoints.gguf import convert

    source.check_content()
    convert(source, out)


def convert_user_gguf(out: Path, *, source: UserGGUF) -> None:
    """Unpacks a user's GGUF file into a checkpoint of bf16 safetensors with its tokenizer.

    Raises ValueError for a file that `transformers` cannot read.
    """
    from training.checkpoints.gguf import convert_file

    assert source.path is not None
    convert_file(source.path, out)


def copy_packaged_gguf(out: Path, *, source: PackagedGGUF) -> None:
    """Copies the GGUF file of an installed package: model.gguf, which llama.cpp runs as it is.

    Raises ValueError if the file is another one than its digest names.
    """
    source.check_content()
    shutil.copyfile(source.path, out / GGUF_FILE)


def export_gguf(out: Path, *, checkpoint: Path, weights: Weights = "f16") -> None:
    """Writes a Llama checkpoint as model.gguf, which llama.cpp runs; matrices in the format of `weights`.

    Raises ValueError for anything but a Llama with a byte-level BPE tokenizer.
    """
    from serving.engines.llama_cpp.gguf import convert

    convert(checkpoint, out / GGUF_FILE, weights)


def check_record_self_prompts(*, model: Checkpoint, **_: object) -> None:
    """Raises ValueError for a model that is trained here, on items without turns."""
    if "corpus" in getattr(model.path, "options", ()):
        raise ValueError(
            "model/drafter=pruned learns from what a chat model writes when it prompts itself, and the embedded pair's "
            "has no turns of a conversation; choose a pair of chat models, as model=smollm2 or model=qwen3_hub"
        )


def record_self_prompts(
    out: Path,
    *,
    work: Path,
    progress: Progress,
    model: Checkpoint,
    answer_tokens: int,
    rows: int = 64,
    top_k: int = 64,
    seed: int = 0,
    trainer: Trainer = CPU_TRAINER,
) -> None:
    """Lets a chat model ask and answer itself, and keeps the `top_k` largest logits at each token of its answers:
    self_prompts.safetensors.

    Raises ValueError for a model without a chat template.
    """
    from transformers import AutoTokenizer

    from training.checkpoints import self_prompts

    tokenizer = AutoTokenizer.from_pretrained(model.name_or_path)
    prompter = self_prompts.SelfPrompter(_load(model, trainer), tokenizer, rows, top_k)
    with trainer.using_threads():
        found = self_prompts.record(prompter, answer_tokens, seed, work, progress)
    self_prompts.write(out, found, {"model": model.display_name, "seed": str(seed)})


def record_questions(
    out: Path,
    *,
    progress: Progress,
    model: Checkpoint,
    count: int,
    rows: int = 64,
    seed: int = 0,
    trainer: Trainer = CPU_TRAINER,
) -> None:
    """Lets a chat model ask `count` questions: questions.jsonl, the data set `self_asked`.

    Raises ValueError for a model without a chat template.
    """
    from transformers import AutoTokenizer

    from training.checkpoints.self_prompts import SelfPrompter

    tokenizer = AutoTokenizer.from_pretrained(model.name_or_path)
    with trainer.using_threads():
        asked = SelfPrompter(_load(model, trainer), tokenizer, rows, 1).ask(count, seed, progress)
    texts = [str(tokenizer.decode(list(question))).strip() for question in asked]
    lines = [json.dumps({"id": f"asked-{number}", "question": text}) for number, text in enumerate(texts)]
    (out / QUESTIONS_FILE).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def rank_layers(
    out: Path,
    *,
    progress: Progress,
    model: Checkpoint,
    self_prompts: Path,
    texts: int = 48,
    trainer: Trainer = CPU_TRAINER,
) -> None:
    """The influence of every layer on the hidden states of some conversations: influences.json."""
    from training.checkpoints import pruning
    from training.checkpoints.self_prompts import read

    found = read(self_prompts)
    read_texts = [found.tokens[slice(*found.span(text))] for text in range(min(texts, len(found)))]
    with trainer.using_threads():
        influences = pruning.layer_influences(_load(model, trainer), read_texts, progress)
    (out / INFLUENCES_FILE).write_text(json.dumps([round(one, 6) for one in influences]), encoding="utf-8")


def prune_model(
    out: Path,
    *,
    work: Path,
    progress: Progress,
    model: Checkpoint,
    self_prompts: Path,
    layer_influences: Path,
    keep: int,
    recipe: HealingRecipe = HealingRecipe(),  # noqa: B008
    seed: int = 0,
    trainer: Trainer = CPU_TRAINER,
) -> None:
    """Drops the layers of least influence and heals the rest on the whole model's distributions: a checkpoint, with
    pruning.json beside it.

    After an interruption, a call with the same `work` continues. Raises ValueError if `keep` is not below all layers.
    """
    from training.checkpoints.healing import heal_pruned
    from training.checkpoints.pruning import kept_layers
    from training.checkpoints.self_prompts import read

    influences = json.loads((layer_influences / INFLUENCES_FILE).read_text(encoding="utf-8"))
    layers = kept_layers(influences, keep)
    heal_pruned(out, work, progress, model.name_or_path, layers, read(self_prompts), recipe, seed, trainer)


def record_answers(
    out: Path,
    *,
    progress: Progress,
    model: Checkpoint,
    workload: Workload,
    accelerator: str = "cpu",
    work: Path | None = None,
) -> None:
    """Records a model's greedy answers: answers.json."""
    from serving.outcomes.kept_sessions import kept_in
    from training.checkpoints import agreement

    agreement.write(out, agreement.record(model, workload, accelerator, progress, kept_in(work)))


def measure_agreement(out: Path, *, progress: Progress, answers: Path, drafter: Drafter, gamma: int = 4) -> None:
    """Measures how often a drafter writes the next token of recorded answers, and what a round of `gamma` drafts gives.

    Writes rows.json and metrics.json: agreement, tokens a round, and tokens for as many weights as a pass of the target
    reads.
    """
    from training.checkpoints import agreement

    drafted = drafter.along(agreement.read(answers), gamma, progress)
    rows = agreement.rows(drafted, drafter.num_forwards(gamma) * drafter.weights_share)
    (out / "rows.json").write_text(json.dumps(rows), encoding="utf-8")
    means = {f"drafter/all/{name}": sum(cell) / len(cell) for name, cell in rows["drafter"]["all"].items()}
    means["drafter/all/weights_share"] = drafter.weights_share
    (out / "metrics.json").write_text(json.dumps(means, indent=1), encoding="utf-8")


def _load(model: Checkpoint, trainer: Trainer) -> Any:
    """The model as `transformers` has it, in the trainer's precision, where the trainer works."""
    from transformers import AutoModelForCausalLM

    whole: Any = AutoModelForCausalLM.from_pretrained(model.name_or_path, dtype=trainer.dtype())
    return whole.eval().to(trainer.torch_device)
