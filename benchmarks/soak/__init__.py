"""`python -m benchmarks soak [minutes=10 | seconds=600] [every=4] [seed=0] [--fake | pair=DEVICE,CLOUD |
outputs=outputs]`: 16 devices and a cloud in processes of their own, over gRPC, and something breaks every few seconds.
Exit status 1 if a request is not answered, or anything is left.

Faults: a device's link is cut, stalls, is slow or breaks off in a frame; the cloud, or a process of four devices, is
killed by SIGKILL and started again; hostile clients send anything; messages come twice. Half of the devices go on
without the cloud (link_loss=local), half wait for it. The cloud is not killed in the last 40 % of the time, so that a
leak would show. Chips are as slow as the named hardware.

The models are the embedded pair, which is trained first if `outputs` does not hold it; with `pair` the checkpoints in
two folders; with `--fake` functions. Ctrl-C ends the soak and all its processes.
"""

import asyncio
import sys
from pathlib import Path

_DEFAULTS = {"minutes": "10", "seconds": "", "every": "4", "seed": "0", "outputs": "outputs", "pair": ""}


def main(words: list[str]) -> bool:
    """Was every request answered, and is nothing left?"""
    from benchmarks.soak.hosts import SoakConfig
    from benchmarks.soak.soak import DEVICES, SoakRun

    given = _options(words)
    config = SoakConfig(int(given["seed"]), DEVICES, None if "--fake" in words else _pair(given))
    seconds = float(given["seconds"] or 60 * float(given["minutes"]))
    soak = SoakRun(config, seconds, float(given["every"]))
    try:
        return asyncio.run(soak.run())
    except KeyboardInterrupt:
        print("soak: stopped", file=sys.stderr)
        return False


def _options(words: list[str]) -> dict[str, str]:
    given = dict(word.partition("=")[::2] for word in words if word != "--fake")
    if unknown := sorted(given.keys() - _DEFAULTS.keys()):
        raise SystemExit(f"soak: not known: {', '.join(unknown)}; known: --fake, {'=, '.join(_DEFAULTS)}=")
    return _DEFAULTS | given


def _pair(given: dict[str, str]) -> tuple[Path, Path]:
    """The folders of the device's and of the cloud's model."""
    if given["pair"]:
        device, cloud = given["pair"].split(",")
        return Path(device), Path(cloud)
    from benchmarks.pair import artifacts

    found = artifacts(given["outputs"])
    return found["device_model"], found["cloud_model"]
