"""Leases: of several hosts that share a file system, one builds an artifact at a time.

A lease is a file that names its holder. The holder touches it every few seconds; one that was not touched for
`EXPIRY_S`, by the file system's own clock, belongs to a host that is gone, and is taken over.
"""

import _thread
import contextlib
import errno
import json
import os
import socket
import threading
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path

from pipeline.errors import UserError

HEARTBEAT_S = 10.0
EXPIRY_S = 60.0


@cache
def _boot() -> str:
    """The kernel's boot id, in which two hosts of one name differ; "" on a system without one."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


@dataclass(frozen=True)
class Holder:
    """The process that holds a lease, and the artifacts that its build needs."""

    host: str
    pid: int
    needs: Sequence[str] = ()
    token: str = ""
    boot: str = field(default_factory=_boot)

    @property
    def is_here(self) -> bool:
        """True for a process of this host."""
        return (self.host, self.boot) == (socket.gethostname(), _boot())

    @property
    def is_this_process(self) -> bool:
        return self.is_here and self.pid == os.getpid()

    def __str__(self) -> str:
        return f"process {self.pid}" if self.is_here else f"process {self.pid} on {self.host}"


def read_holder(path: Path) -> Holder | None:
    """The holder of the lease at `path`; None without one that can be read."""
    try:
        return Holder(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def is_fresh(path: Path) -> bool:
    """True if its holder touched the lease lately, by the file system's clock, since a host's own may be wrong; also if
    the time cannot be read, as on a full disk.
    """
    probe = path.with_name(f".clock-{uuid.uuid4().hex}")
    try:
        probe.touch()
        return probe.stat().st_mtime - path.stat().st_mtime < EXPIRY_S
    except OSError:
        return path.exists()
    finally:
        with contextlib.suppress(OSError):
            probe.unlink(missing_ok=True)


_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EXDEV, errno.EMLINK}


def _link(source: Path, target: Path) -> None:
    """Gives the file a second name, or a copy where the file system has no hard links (FAT, shared folders of virtual
    machines, some buckets). Raises FileExistsError, and OSError where neither can be written.
    """
    try:
        os.link(source, target)
    except OSError as problem:
        if problem.errno not in _NO_LINKS:
            raise
        _copy(source, target)


def _copy(source: Path, target: Path) -> None:
    content = source.read_bytes()
    # The file is empty for a moment, in which another host takes it for a stale one.
    with target.open("xb", buffering=0) as file:
        try:
            file.write(content)
        except OSError:
            target.unlink()
            raise


class LeaseLostError(UserError):
    """Another host has taken over the build of an artifact, because this process gave no sign of life."""


@dataclass
class Lease:
    """The lease at `path`, for a process that holds the lock of its own host: others of this host do not hold it."""

    path: Path
    needs: Sequence[str]
    _me: Holder = field(init=False)
    _released: threading.Event = field(default_factory=threading.Event, init=False)

    def __post_init__(self) -> None:
        self._me = Holder(socket.gethostname(), os.getpid(), list(self.needs), uuid.uuid4().hex)

    def try_acquire(self) -> Holder | None:
        """None if this process holds the lease now, else the holder on another host."""
        while not self._create():
            found = read_holder(self.path)
            if found and not found.is_here and is_fresh(self.path):
                return found
            self._remove_stale(found)
        threading.Thread(target=self._keep_fresh, name=f"lease {self.path.name}", daemon=True).start()
        return None

    @property
    def token(self) -> str:
        return self._me.token

    def check(self) -> None:
        """Raises LeaseLostError if another host has taken the lease; writes it again if it is gone. A file that cannot
        be read now says neither, as in `touch`.
        """
        found = read_holder(self.path)
        if found is None and not self._create():
            found = read_holder(self.path)
        if found and found.token != self._me.token:
            raise LeaseLostError(
                f"{self.path.stem} is being built by {found}: this process slept longer than its lease. The same "
                "command waits for it, and goes on."
            )

    def release(self) -> None:
        self._released.set()
        found = read_holder(self.path)
        if found and found.token == self._me.token:
            self.path.unlink(missing_ok=True)

    def _create(self) -> bool:
        """Creates the file with its content at once, which also works on network file systems."""
        own = self.path.with_name(f".{self.path.name}-{self._me.token}")
        try:
            own.write_text(json.dumps(asdict(self._me)), encoding="utf-8")
            _link(own, self.path)
        except FileExistsError:
            return False
        finally:
            own.unlink(missing_ok=True)
        return True

    def _remove_stale(self, found: Holder | None) -> None:
        """Moves the file aside, and back if another host took it over meanwhile."""
        aside = self.path.with_name(f".{self.path.name}-stale-{self._me.token}")
        try:
            self.path.rename(aside)
        except FileNotFoundError:
            return
        moved = read_holder(aside)
        if moved and (found is None or moved.token != found.token):
            with contextlib.suppress(FileExistsError):  # a third host has it now
                _link(aside, self.path)
        aside.unlink()

    def _keep_fresh(self) -> None:
        while not self._released.wait(HEARTBEAT_S):
            if not self.touch() and not self._released.is_set():
                _thread.interrupt_main()
                return

    def touch(self) -> bool:
        """Tells other hosts that this process still builds; False if it slept too long and another host builds now.

        A file that cannot be read now, as on a network file system that is away for a moment, says neither.
        """
        with contextlib.suppress(OSError):
            found = read_holder(self.path)
            if found:
                if found.token != self._me.token:
                    return False
                os.utime(self.path)
        return True
