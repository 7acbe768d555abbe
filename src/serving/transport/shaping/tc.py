"""Shapes the loopback with `tc` for the duration of a run, and checks beforehand that this machine allows it."""

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
    run_command,
    search_path,
    setup_commands,
)

_CAP_NET_ADMIN = 12
_ALTERNATIVE = "or set runtime.shaping=user, which needs no kernel support"
_TEST_ADDRESS = "127.0.0.1:1"


def check_machine(
    system: str | None = None, found: Callable[[str], str | None] | None = None, status: str | None = None
) -> None:
    """Raises ValueError if this is not Linux, or a tool or the right to use it is missing.

    Args:
        system, found, status: for tests, in place of this machine's system, its lookup of a tool, and the text of
            /proc/self/status.
    """
    system = system or platform.system()
    if system != "Linux":
        raise ValueError(
            f"runtime.shaping=tc: tc needs Linux, but this machine runs {system}; use Linux, {_ALTERNATIVE}"
        )
    for tool in ("tc", "ip"):
        if not (found or _find_tool)(tool):
            raise ValueError(
                f"runtime.shaping=tc: there is no program {tool!r} on this machine; install iproute2, {_ALTERNATIVE}"
            )
    if not may_administer(status or Path("/proc/self/status").read_text(encoding="ascii", errors="replace")):
        raise ValueError(_no_permission(f"user {os.geteuid()} lacks the capability CAP_NET_ADMIN"))


def may_administer(status: str) -> bool:
    """True if the status text of a process grants CAP_NET_ADMIN."""
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    return bool(int(fields.get("CapEff", "0"), 16) >> _CAP_NET_ADMIN & 1)


def check_netem(run: CommandRunner) -> None:
    """Tries netem on a temporary device. Raises ValueError if the kernel lacks or forbids it."""
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
    """Runs all commands on a temporary device. Raises ValueError with the command that the kernel refuses."""
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
    """Creates a network device without traffic, and deletes it afterwards."""
    name, peer = f"tandem{os.getpid()}", f"tandemp{os.getpid()}"
    try:
        run(("ip", "link", "add", name, "type", "veth", "peer", "name", peer))
    except CommandError as error:
        raise ValueError(_no_permission(f"no temporary device could be created: {error}")) from None
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
"""Shapes the traffic of the clouds that listen at these addresses."""


@contextmanager
def shaped_links(
    links: Sequence[Link],
    run: CommandRunner = run_command,
    device: str = "lo",
    check: Callable[[], None] = check_machine,
) -> Iterator[ApplyShaping]:
    """Yields the function that puts the devices' common link on the loopback, and always removes the link at the end.

    First removes what a killed run has left. Raises ValueError if the machine does not allow it, tc cannot express the
    links, another run shapes this device, or the device has a foreign root qdisc.
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
    """Locks the device for this run; the lock ends with the process, so a qdisc without a lock is a killed run's.

    Raises ValueError if another run holds the lock.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as lock:
        try:
            lock.bind(f"\0tandem shapes {device}")
        except OSError:
            raise ValueError(
                f"runtime.shaping=tc: another run shapes {device} now; wait until it ends, or set runtime.shaping=user"
            ) from None
        yield


def remove_stale(run: CommandRunner, device: str) -> None:
    """Removes what a killed run has left. Raises ValueError for a foreign root qdisc."""
    kind, handle = root_qdisc(run, device)
    if handle == ROOT_HANDLE:
        run(removal_command(device))
    elif handle != "0:":
        raise ValueError(
            f"runtime.shaping=tc: {device} already has another root qdisc, {kind} {handle}. "
            f"Remove it if it is not needed (tc qdisc del dev {device} root), or set runtime.shaping=user"
        )


def root_qdisc(run: CommandRunner, device: str) -> tuple[str, str]:
    """Returns (kind, handle) of a device's root qdisc; the handle of the kernel's default is 0:."""
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
            f"{device} may still be shaped: {error}; remove it with: {' '.join(removal_command(device))}"
        ) from error
