"""What Hydra notes of a run and of a sweep (.hydra/, multirun.yaml), without the secrets of the command."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins import basic_sweeper
from hydra.core import utils
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from pipeline.report.mlflow_store import mask_override, mask_secrets

_hydras_save = utils._save_config


def mask_hydras_notes() -> None:
    """Makes Hydra mask the secrets of commands in this process in what it notes."""
    utils._save_config = _save_config
    basic_sweeper.OmegaConf = _MaskingOmegaConf  # type: ignore[attr-defined]


def masked_sweep(config: Any) -> Any:
    """As `masked_config`, of a sweep's whole configuration."""
    return masked_config(config, config.hydra.overrides)


def masked_config(config: Any, given: Any) -> Any:
    """The configuration with secrets masked, also in the words `given`; as it is where no word has one."""
    words = {word: mask_override(word) for word in map(str, (*given.task, *given.hydra))}
    secret = {word: masked for word, masked in words.items() if masked != word}
    if not secret:
        return config
    return OmegaConf.create(mask_secrets(_replaced(OmegaConf.to_container(config, resolve=False), secret)))


def _replaced(node: Any, words: Mapping[str, str]) -> Any:
    if isinstance(node, dict):
        return {key: _replaced(value, words) for key, value in node.items()}
    if isinstance(node, list):
        return [_replaced(value, words) for value in node]
    for word, masked in words.items() if isinstance(node, str) else ():
        node = node.replace(word, masked)  # Hydra also keeps all words in one text
    return node


def _save_config(cfg: Any, filename: str, output_dir: Path) -> None:
    _hydras_save(masked_config(cfg, HydraConfig.get().overrides), filename, output_dir)


class _MaskingOmegaConf(OmegaConf):
    """OmegaConf for the sweeper, which saves nothing but multirun.yaml."""

    @staticmethod
    def save(config: Any, f: Any, resolve: bool = False) -> None:
        OmegaConf.save(masked_sweep(config), f, resolve)
