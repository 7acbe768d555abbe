"""A link that the kernel puts between processes of this machine, for as long as a run lasts.

What `tc` needs of this machine, found out before anything starts and without touching what others use.
"""

import json
import os
import platform
import shutil
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from serving.network.link import Link
from serving.transport.shaping.netem import HANDLE, CommandError, Run, commands, common, removal, search_path
from serving.transport.shaping.netem import run as run_command

_CAP_NET_ADMIN = 12
_ELSE = "or set runtime.shaping=user, which needs nothing of the kernel"
_SOME_ADDRESS = "127.0.0.1:1"


def check_machine(
    system: str | None = None, found: Callable[[str], str | None] | None = None, status: str | None = None
) -> None:
    """Linux, its tools, and the right to use them. Raises ValueError with what is missing.

    The arguments stand for this machine's own: its system, where a tool is, the text of /proc/self/status.
    """
    system = system or platform.system()
    if system != "Linux":
        raise ValueError(f"runtime.shaping=tc: tc belongs to Linux, and this machine runs {system}; use Linux, {_ELSE}")
    for tool in ("tc", "ip"):
        if not (found or _find)(tool):
            raise ValueError(
                f"runtime.shaping=tc: there is no program {tool!r} on this machine; install iproute2, {_ELSE}"
            )
    if not may_administer(status or Path("/proc/self/status").read_text(encoding="ascii", errors="replace")):
        raise ValueError(_forbidden(f"user {os.geteuid()} lacks the capability CAP_NET_ADMIN"))


def may_administer(status: str) -> bool:
    """Does the text of a process's status grant CAP_NET_ADMIN?"""
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    return bool(int(fields.get("CapEff", "0"), 16) >> _CAP_NET_ADMIN & 1)


def check_netem(run: Run) -> None:
    """Tries netem on a device of its own. Raises ValueError when this kernel has none, or forbids it."""
    with spare(run) as device:
        try:
            run(("tc", "qdisc", "add", "dev", device, "root", "netem", "delay", "1ms"))
        except CommandError as error:
            raise ValueError(
                f"runtime.shaping=tc: the kernel of this machine, {platform.release()}, does not offer netem, which "
                f"delays and loses packets: {error}. Load it (modprobe sch_netem), use a kernel with "
                f"CONFIG_NET_SCH_NETEM, {_ELSE}"
            ) from None


def rehearse(run: Run, link: Link) -> None:
    """Runs all that the loopback would hear on a device of its own. Raises ValueError with what the kernel refuses."""
    with spare(run) as device:
        try:
            for command in commands(link, (_SOME_ADDRESS,), device):
                run(command)
        except CommandError as error:
            raise ValueError(
                f"runtime.shaping=tc: the kernel of this machine, {platform.release()}, or its tc, refuses this link: "
                f"{error}. It needs prio, netem and u32; choose another network or kernel, {_ELSE}"
            ) from None


@contextmanager
def spare(run: Run) -> Iterator[str]:
    """A network device that carries nothing, and is gone afterwards with what was put on it."""
    name, peer = f"tandem{os.getpid()}", f"tandemp{os.getpid()}"
    try:
        run(("ip", "link", "add", name, "type", "veth", "peer", "name", peer))
    except CommandError as error:
        raise ValueError(_forbidden(f"no device to try it on could be made: {error}")) from None
    try:
        yield name
    finally:
        run(("ip", "link", "del", name))


def _find(tool: str) -> str | None:
    return shutil.which(tool, path=search_path())


def _forbidden(why: str) -> str:
    return (
        f"runtime.shaping=tc: this process may not change the network: {why}. "
        f"Run it as root, or with CAP_NET_ADMIN, {_ELSE}"
    )


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
