"""The page as a process, with a pair of tiny checkpoints that never end a text and a router made by hand."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.serving.frontend.ui.tiny_page import router
from tests.support.tiny_models import save_checkpoints


def described(root: Path, store: Path) -> tuple[str, ...]:
    """The words that a page and its cloud are started with."""
    models = save_checkpoints(root / "models")
    for side in ("device", "cloud"):
        _endless(models[side])
    (root / "router").mkdir()
    router().save(root / "router")
    (root / "conf" / "policy" / "offload").mkdir(parents=True)
    (root / "conf" / "policy" / "by_hand.yaml").write_text(_policy(root / "router"))
    paths = [f"model.{side}.path={models[side]}" for side in ("device", "cloud")]
    return (
        "+policy=by_hand", "--config-dir", str(root / "conf"), "model=toy", *paths, f"outputs={store}",
        "workload.template=plain", "trainer.threads=1", "service.limits.backoff_max_s=0.3", "service.health.port=null",
        "network.delay_ms=5",
    )  # fmt: skip


def _policy(folder: Path) -> str:
    slots = {
        "draft": "single_token", "lookahead": "none", "early_exit": "none", "verify": "replace", "prefill": "whole",
        "payload": "tokens", "kv_cache": "reuse", "scheduler": "continuous", "placement": "cloud",
        "dispatch": "round_robin", "link_loss": "local",
    }  # fmt: skip
    defaults = "\n".join(f"  - {slot}: {choice}" for slot, choice in slots.items())
    return (
        f"# CITER with a router made by hand.\ndefaults:\n{defaults}\n  - _self_\n_target_: "
        "serving.policy.policy.Policy\n"
        "name: citer\noffload:\n  _target_: serving.policy.slots.routed_offload.RoutedOffload\n"
        f"  scorer: {{_target_: serving.learned.router.load, path: {folder}}}\n"
    )


def _endless(model: Path) -> None:
    """Without an end token a text goes on to its limit."""
    about = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps({k: v for k, v in about.items() if k != "eos_token"}))
    for name in ("config.json", "generation_config.json"):
        found = json.loads((model / name).read_text())
        (model / name).write_text(json.dumps(found | {"eos_token_id": None}))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


class Process:
    """A service with its output; `said` waits for a line."""

    def __init__(self, name: str, *words: str, **environment: str) -> None:
        self.output = ""
        self._run = subprocess.Popen(
            [sys.executable, "-m", f"serving.{name}", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, env=os.environ | environment,
        )  # fmt: skip

    def said(self, pattern: str) -> str:
        assert self._run.stdout
        for line in self._run.stdout:
            self.output += line
            if found := re.search(pattern, line):
                return found[1]
        raise AssertionError(f"{pattern} was never said:\n{self.output}")

    def kill(self) -> None:
        """SIGKILL: no goodbye; nothing where it is over."""
        if self._run.returncode is None:
            self._run.kill()
            self._run.communicate()

    def stop(self) -> int:
        """SIGTERM, and its exit code."""
        self._run.send_signal(signal.SIGTERM)
        self.output += self._run.communicate(timeout=30)[0]
        return self._run.returncode


@contextmanager
def served(*words: str, **environment: str) -> Iterator[tuple[Process, str]]:
    """A page, and where it is."""
    process = Process("page", *words, **environment)
    try:
        yield process, process.said(r"open (http\S+)")
    finally:
        process.kill()
