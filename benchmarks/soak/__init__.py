"""`python -m benchmarks soak [minutes=10] [every=4] [seed=0] [--fake]`: 16 devices and a cloud in processes of their
own, over gRPC, and something breaks every few seconds. Exit status 1 if anybody is not answered, or anything is left.

Faults: a device's link is cut, stalls, is slow or breaks off in a frame; the cloud, or a process of four devices, is
killed by SIGKILL and started again; strangers say anything; messages come twice. Half of the devices go on without
the cloud (link_loss=local), half wait for it. The cloud is not killed in the last 40 % of the time, so that a leak
would show. Chips are as slow as the named hardware.
"""

import asyncio
import sys


def main(words: list[str]) -> bool:
    """Did everybody get an answer, and is nothing left?"""
    from benchmarks.soak.hosts import SoakConfig
    from benchmarks.soak.soak import DEVICES, SoakRun

    given = dict(word.split("=", 1) for word in words if "=" in word)
    pair = None
    if "--fake" not in words:
        from benchmarks.pair import artifacts

        found = artifacts(given.get("outputs", "outputs"))
        pair = found["device_model"], found["cloud_model"]
    world = SoakConfig(int(given.get("seed", 0)), DEVICES, pair)
    soak = SoakRun(world, float(given.get("minutes", 10)), float(given.get("every", 4)))
    try:
        return asyncio.run(soak.run())
    except KeyboardInterrupt:
        print("soak: stopped", file=sys.stderr)
        return False
