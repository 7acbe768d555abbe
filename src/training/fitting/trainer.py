"""The machine's part of a training: devices, threads, precision. The learned task does not depend on it."""

import logging
import signal
import warnings
from collections.abc import Iterator, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import is_zipfile

from native.machine import usable_cores

if TYPE_CHECKING:
    import torch
    from lightning.pytorch import Callback, LightningModule

_ACCELERATORS = ("cpu", "gpu")
_PRECISIONS = ("auto", "bf16", "fp32")
_ZERO_STAGES = (0, 1, 2)
DEEPSPEED = "deepspeed"

NO_CHECKPOINT = Path("/no/earlier/attempt")
"""For trainings of seconds, which begin again instead of being continued."""


@dataclass(frozen=True)
class Trainer:
    """The machine's part of a training, from `conf/trainer`. Raises ValueError for a value out of range."""

    accelerator: str = "cpu"
    devices: int = 1
    strategy: str = "auto"
    threads: int = 0
    """CPU threads while training; 0: all cores that this process may use."""
    precision: str = "auto"
    """Of a language model's matrix products while it is trained, healed or prompts itself; weights, and the training of
    adapters, heads, routers and predictors, are fp32. auto: bf16 if the hardware multiplies it, else fp32.
    """
    zero_stage: int = 2
    """State that ZeRO shards over `devices` with strategy=deepspeed. 0: none; 1: optimizer states; 2: gradients too.
    Optimizers that need whole weights (Muon) shard nothing.
    """

    def __post_init__(self) -> None:
        for name, allowed in (("accelerator", _ACCELERATORS), ("precision", _PRECISIONS)):
            if getattr(self, name) not in allowed:
                raise ValueError(f"trainer.{name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}")
        if self.devices < 1:
            raise ValueError(f"trainer.devices must be 1 or more, got {self.devices}")
        if self.threads < 0:
            raise ValueError(f"trainer.threads must be 0 (all cores) or more, got {self.threads}")
        if self.zero_stage not in _ZERO_STAGES:
            allowed_stages = ", ".join(map(str, _ZERO_STAGES))
            raise ValueError(f"trainer.zero_stage must be one of {allowed_stages}, got {self.zero_stage}")
        if self.strategy == DEEPSPEED and self.accelerator == "gpu":
            _check_gpu()

    @property
    def torch_device(self) -> str:
        """The device of work that is no training, such as recording what a model writes."""
        return "cuda" if self.accelerator == "gpu" else "cpu"

    def dtype(self) -> "torch.dtype":
        """The dtype of matrix products."""
        import torch

        if self.precision == "auto":
            return torch.bfloat16 if self.accelerator == "gpu" or has_fast_bf16() else torch.float32
        return torch.bfloat16 if self.precision == "bf16" else torch.float32

    @contextmanager
    def using_threads(self) -> Iterator[int]:
        """Sets torch's thread count and restores it, since serving in the same process uses one thread."""
        import torch

        before = torch.get_num_threads()
        torch.set_num_threads(self.threads or usable_cores())
        try:
            yield torch.get_num_threads()
        finally:
            torch.set_num_threads(before)

    def fit(self, module: "LightningModule", loader: Sized, callbacks: "Sequence[Callback]", checkpoint: Path) -> None:
        """Runs one step for each batch of `loader`; continues from `checkpoint` if this strategy wrote it.

        strategy=deepspeed on GPUs writes a folder, others a file; one of the other kind is ignored and replaced, and so
        is a file that lost its end, as in a power cut.
        With several devices Lightning starts the command again for each further one (`Runner` says what that does).
        strategy=deepspeed on the CPU is ZeRO without Lightning, which ignores the checkpoint; a data module, whose
        validation set only Lightning reads, is trained by one process then.
        """
        from lightning.pytorch import LightningDataModule
        from lightning.pytorch import Trainer as LightningTrainer

        if self.strategy == DEEPSPEED and self.accelerator == "cpu":
            from training.fitting import zero

            if isinstance(loader, LightningDataModule):
                replace(self, strategy="auto", devices=1).fit(module, loader, callbacks, checkpoint)
            else:
                zero.fit(module, loader, callbacks, self.zero_stage, self.devices)
            return

        from training.fitting.callbacks import restore_checkpoint

        restore_checkpoint(checkpoint)
        with _quiet_lightning(), _keep_keyboard_interrupt():
            lightning = LightningTrainer(
                accelerator=self.accelerator,
                devices=self.devices,
                strategy=self._lightning_strategy(module),
                max_steps=len(loader),
                max_epochs=-1,
                gradient_clip_val=1.0,
                callbacks=list(callbacks),
                logger=False,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
                use_distributed_sampler=False,
            )
            known = checkpoint.is_dir() if self.strategy == DEEPSPEED else is_zipfile(checkpoint)  # torch saves those
            lightning.fit(module, loader, ckpt_path=str(checkpoint) if known else None, weights_only=True)

    def _lightning_strategy(self, module: "LightningModule") -> Any:
        """The strategy as Lightning expects it."""
        if self.strategy != DEEPSPEED:
            return self.strategy
        from lightning.pytorch.strategies import DeepSpeedStrategy

        from training.fitting import zero

        stage = zero.effective_stage(module, self.zero_stage)
        precision = zero.BatchPrecision("32-true")
        return DeepSpeedStrategy(stage=stage, logging_level=logging.WARNING, precision_plugin=precision)


CPU_TRAINER = Trainer()
"""One process on the CPU with all cores."""


def _check_gpu() -> None:
    import torch

    if not torch.cuda.is_available():
        raise ValueError(
            "trainer=deepspeed is Lightning's DeepSpeed strategy, which refuses the CPU, and torch sees no GPU here. "
            "Set trainer.accelerator=cpu, which runs ZeRO through DeepSpeed itself, in trainer.devices processes; or "
            "trainer=cpu, one process on all cores"
        )


@contextmanager
def _quiet_lightning() -> Iterator[None]:
    """Silences Lightning's start messages, its warning that trainer=cpu leaves a GPU idle, and a torch 2.13 deprecation
    warning that Lightning 2.6 causes.
    """
    log = logging.getLogger("lightning.pytorch")
    level = log.level
    log.setLevel(logging.WARNING)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*LeafSpec.* is deprecated")
        warnings.filterwarnings("ignore", message="GPU available but not used")
        try:
            yield
        finally:
            log.setLevel(level)


@contextmanager
def _keep_keyboard_interrupt() -> Iterator[None]:
    """Turns the SystemExit that Lightning makes of Ctrl-C back into KeyboardInterrupt, and restores the handler."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    except SystemExit as stopped:
        signal.signal(signal.SIGINT, handler)
        raise KeyboardInterrupt from stopped


def has_fast_bf16() -> bool:
    """True if this CPU multiplies bf16 natively (AVX512_BF16); without it bf16 is slower than fp32."""
    import torch

    return bool(torch.cpu._is_avx512_bf16_supported())
