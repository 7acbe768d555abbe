"""A link that the kernel puts between processes of this machine, for as long as a run lasts."""

import json
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

from serving.network.link import Link
from serving.transport.shaping.command import CommandError, Run
from serving.transport.shaping.command import run as run_command
from serving.transport.shaping.kernel import check_machine, check_netem, rehearse
from serving.transport.shaping.netem import HANDLE, commands, common, removal

Shape: TypeAlias = Callable[[Iterable[str]], None]
"""Puts the link before the clouds that listen at these addresses."""


@contextmanager
def shaped(
    links: Sequence[Link], run: Run = run_command, device: str = "lo", check: Callable[[], None] = check_machine
) -> Iterator[Shape]:
    """Gives what puts the devices' one link on the loopback, and takes it away at the end, whatever happens.

    What a killed run has left is taken away first. Raises ValueError when this machine cannot, when the links ask what
    tc cannot say, when another run shapes this device, or when somebody's own queue is on it.
    """
    check()
    check_netem(run)
    link = common(links)
    rehearse(run, link)
    with claimed(device):
        clear(run, device)
        try:
            yield lambda addresses: _put(run, commands(link, addresses, device))
        finally:
            _take_away(run, device)


@contextmanager
def claimed(device: str) -> Iterator[None]:
    """The device is this run's; the claim dies with its process, so that a queue without one is a killed run's.

    Raises ValueError when another run has it.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as claim:
        try:
            claim.bind(f"\0tandem shapes {device}")
        except OSError:
            raise ValueError(
                f"runtime.shaping=tc: another run shapes {device} now, and would feel this one's link; "
                "wait for its end, or set runtime.shaping=user"
            ) from None
        yield


def clear(run: Run, device: str) -> None:
    """Takes away what a killed run has left. Raises ValueError when the queue there is somebody else's."""
    kind, handle = root(run, device)
    if handle == HANDLE:
        run(removal(device))
    elif handle != "0:":
        raise ValueError(
            f"runtime.shaping=tc: {device} has a root queue already, {kind} {handle}, which is not ours to replace. "
            f"Take it away if nobody needs it (tc qdisc del dev {device} root), or set runtime.shaping=user"
        )


def root(run: Run, device: str) -> tuple[str, str]:
    """(kind, handle) of a device's root queue; the handle is 0: where nobody has put one."""
    listed = json.loads(run(("tc", "-j", "qdisc", "show", "dev", device)) or "[]")
    return next(((each["kind"], each["handle"]) for each in listed if each.get("root")), ("noqueue", "0:"))


def _put(run: Run, told: Iterable[tuple[str, ...]]) -> None:
    for command in told:
        run(command)


def _take_away(run: Run, device: str) -> None:
    try:
        if root(run, device)[1] == HANDLE:
            run(removal(device))
    except CommandError as error:
        raise RuntimeError(
            f"{device} is perhaps still shaped: {error}; take it away with: {' '.join(removal(device))}"
        ) from error
