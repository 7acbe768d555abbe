"""What `tc` needs of this machine, found out before anything starts and without touching what others use."""

import os
import platform
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from serving.network.link import Link
from serving.transport.shaping.command import CommandError, Run, search_path
from serving.transport.shaping.netem import commands

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
