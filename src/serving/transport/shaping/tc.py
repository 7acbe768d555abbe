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
from serving.transport.shaping.netem import (
    ROOT_HANDLE,
    CommandError,
    CommandRunner,
    common_link,
    removal_command,
    search_path,
    setup_commands,
)
from serving.transport.shaping.netem import run_command as run_command

_CAP_NET_ADMIN = 12
_ALTERNATIVE = "or set runtime.shaping=user, which needs nothing of the kernel"
_TEST_ADDRESS = "127.0.0.1:1"


def check_machine(
    system: str | None = None, found: Callable[[str], str | None] | None = None, status: str | None = None
) -> None:
    """Linux, its tools, and the right to use them. Raises ValueError with what is missing.

    The arguments stand for this machine's own: its system, where a tool is, the text of /proc/self/status.
    """
    system = system or platform.system()
    if system != "Linux":
        raise ValueError(
            f"runtime.shaping=tc: tc belongs to Linux, and this machine runs {system}; use Linux, {_ALTERNATIVE}"
        )
    for tool in ("tc", "ip"):
        if not (found or _find_tool)(tool):
            raise ValueError(
                f"runtime.shaping=tc: there is no program {tool!r} on this machine; install iproute2, {_ALTERNATIVE}"
            )
    if not may_administer(status or Path("/proc/self/status").read_text(encoding="ascii", errors="replace")):
        raise ValueError(_no_permission(f"user {os.geteuid()} lacks the capability CAP_NET_ADMIN"))


def may_administer(status: str) -> bool:
    """Does the text of a process's status grant CAP_NET_ADMIN?"""
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    return bool(int(fields.get("CapEff", "0"), 16) >> _CAP_NET_ADMIN & 1)


def check_netem(run: CommandRunner) -> None:
    """Tries netem on a device of its own. Raises ValueError when this kernel has none, or forbids it."""
    with scratch_device(run) as device:
        try:
            run(("tc", "qdisc", "add", "dev", device, "root", "netem", "delay", "1ms"))
        except CommandError as error:
            raise ValueError(
                f"runtime.shaping=tc: the kernel of this machine, {platform.release()}, does not offer netem, which "
                f"delays and loses packets: {error}. Load it (modprobe sch_netem), use a kernel with "
                f"CONFIG_NET_SCH_NETEM, {_ALTERNATIVE}"
            ) from None


def dry_run(run: CommandRunner, link: Link) -> None:
    """Runs all that the loopback would hear on a device of its own. Raises ValueError with what the kernel refuses."""
    with scratch_device(run) as device:
        try:
            for command in setup_commands(link, (_TEST_ADDRESS,), device):
                run(command)
        except CommandError as error:
            raise ValueError(
                f"runtime.shaping=tc: the kernel of this machine, {platform.release()}, or its tc, refuses this link: "
                f"{error}. It needs prio, netem and u32; choose another network or kernel, {_ALTERNATIVE}"
            ) from None


@contextmanager
def scratch_device(run: CommandRunner) -> Iterator[str]:
    """A network device that carries nothing, and is gone afterwards with what was put on it."""
    name, peer = f"tandem{os.getpid()}", f"tandemp{os.getpid()}"
    try:
        run(("ip", "link", "add", name, "type", "veth", "peer", "name", peer))
    except CommandError as error:
        raise ValueError(_no_permission(f"no device to try it on could be made: {error}")) from None
    try:
        yield name
    finally:
        run(("ip", "link", "del", name))


def _find_tool(tool: str) -> str | None:
    return shutil.which(tool, path=search_path())


def _no_permission(reason: str) -> str:
    return (
        f"runtime.shaping=tc: this process may not change the network: {reason}. "
        f"Run it as root, or with CAP_NET_ADMIN, {_ALTERNATIVE}"
    )


ApplyShaping: TypeAlias = Callable[[Iterable[str]], None]
"""Puts the link before the clouds that listen at these addresses."""


@contextmanager
def shaped_links(
    links: Sequence[Link],
    run: CommandRunner = run_command,
    device: str = "lo",
    check: Callable[[], None] = check_machine,
) -> Iterator[ApplyShaping]:
    """Gives what puts the devices' one link on the loopback, and takes it away at the end, whatever happens.

    What a killed run has left is taken away first. Raises ValueError when this machine cannot, when the links ask what
    tc cannot say, when another run shapes this device, or when somebody's own queue is on it.
    """
    check()
    check_netem(run)
    link = common_link(links)
    dry_run(run, link)
    with device_lock(device):
        remove_stale(run, device)
        try:
            yield lambda addresses: _run_all(run, setup_commands(link, addresses, device))
        finally:
            _remove(run, device)


@contextmanager
def device_lock(device: str) -> Iterator[None]:
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


def remove_stale(run: CommandRunner, device: str) -> None:
    """Takes away what a killed run has left. Raises ValueError when the queue there is somebody else's."""
    kind, handle = root_qdisc(run, device)
    if handle == ROOT_HANDLE:
        run(removal_command(device))
    elif handle != "0:":
        raise ValueError(
            f"runtime.shaping=tc: {device} has a root queue already, {kind} {handle}, which is not ours to replace. "
            f"Take it away if nobody needs it (tc qdisc del dev {device} root), or set runtime.shaping=user"
        )


def root_qdisc(run: CommandRunner, device: str) -> tuple[str, str]:
    """(kind, handle) of a device's root queue; the handle is 0: where nobody has put one."""
    listed = json.loads(run(("tc", "-j", "qdisc", "show", "dev", device)) or "[]")
    return next(((each["kind"], each["handle"]) for each in listed if each.get("root")), ("noqueue", "0:"))


def _run_all(run: CommandRunner, shell_commands: Iterable[tuple[str, ...]]) -> None:
    for command in shell_commands:
        run(command)


def _remove(run: CommandRunner, device: str) -> None:
    try:
        if root_qdisc(run, device)[1] == ROOT_HANDLE:
            run(removal_command(device))
    except CommandError as error:
        raise RuntimeError(
            f"{device} is perhaps still shaped: {error}; take it away with: {' '.join(removal_command(device))}"
        ) from error
