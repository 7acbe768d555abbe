"""Notes of claims: what they say while one is held, and that a broken one does no harm."""

import errno
import io
import json
import os
import socket
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock, Timeout

from pipeline.artifacts import build_lock
from pipeline.artifacts import lease as leases
from pipeline.artifacts.build_lock import hold_build_lock, keys_in_use, other_reader, registration_lock
from pipeline.artifacts.lease import EXPIRY_S, HEARTBEAT_S, Holder, Lease, LeaseLostError, is_fresh, read_holder
from tests.programs.build_artifacts import graph


def never(stage: str) -> None:
    raise AssertionError(f"waited for {stage}")


def test_a_held_build_lock_claims_the_stage_and_its_ancestors(tmp_path: Path) -> None:
    needed = {one.key for one in graph().ancestors.values()}
    with hold_build_lock(tmp_path, graph(), never):
        assert claimed_elsewhere(tmp_path) == {graph().key, *needed}
        assert build_lock.is_being_built(tmp_path, graph().key)
    assert claimed_elsewhere(tmp_path) == set()
    assert not build_lock.is_being_built(tmp_path, graph().key)


def claimed_elsewhere(folder: Path) -> set[str]:
    with registration_lock(folder):
        return keys_in_use(folder)


def test_readers_are_looked_for_while_no_other_process_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each tries the locks, and would find those held that the other tries."""

    def read_builders(folder: Path) -> dict[str, Holder | None]:
        with pytest.raises(Timeout):
            FileLock(folder / ".registration.lock").acquire(timeout=0)
        return {graph().key: Holder("other", 7, ["corpus-1"])}

    monkeypatch.setattr(build_lock, "_builders", read_builders)
    assert other_reader(tmp_path, "corpus-1") == f"process 7 on other, which builds {graph().key}"
    assert other_reader(tmp_path, "corpus-2") is None


def test_an_unreadable_claim_file_is_ignored(tmp_path: Path) -> None:
    with hold_build_lock(tmp_path, graph(), never):
        (tmp_path / f"{graph().key}.json").write_text("{")
        assert keys_in_use(tmp_path) == {graph().key}


def held_elsewhere(folder: Path, host: str = "other", age_s: float = 0.0, **more: str) -> Path:
    """A lease of a process on another host."""
    path = folder / f"{graph().key}.json"
    path.write_text(json.dumps(asdict(Holder(host, 7, ["corpus-1"], "their token", **more))))
    then_s = path.stat().st_mtime - age_s
    os.utime(path, (then_s, then_s))
    return path


def lease(folder: Path) -> Lease:
    return Lease(folder / f"{graph().key}.json", ["model-1"])


def test_a_fresh_lease_of_another_host_is_respected(tmp_path: Path) -> None:
    path = held_elsewhere(tmp_path)
    found = lease(tmp_path).try_acquire()
    assert str(found) == "process 7 on other"
    assert claimed_elsewhere(tmp_path) == {graph().key, "corpus-1"}
    assert read_holder(path) == found


def test_the_lease_of_a_host_that_is_gone_is_taken_over(tmp_path: Path) -> None:
    path = held_elsewhere(tmp_path, age_s=2 * EXPIRY_S)
    assert claimed_elsewhere(tmp_path) == set()
    mine = lease(tmp_path)
    assert mine.try_acquire() is None
    holder = read_holder(path)
    assert holder is not None
    assert (holder.pid, holder.needs) == (os.getpid(), ["model-1"])
    mine.release()
    assert list(tmp_path.iterdir()) == [tmp_path / ".registration.lock"]


def test_the_lease_of_a_killed_process_of_this_host_is_taken_over_at_once(tmp_path: Path) -> None:
    held_elsewhere(tmp_path, host=socket.gethostname())
    assert claimed_elsewhere(tmp_path) == set()
    with hold_build_lock(tmp_path, graph(), never):
        holder = read_holder(tmp_path / f"{graph().key}.json")
        assert holder is not None
        assert holder.pid == os.getpid()


def test_a_lease_that_was_taken_over_is_not_released_by_its_old_holder(tmp_path: Path) -> None:
    mine = lease(tmp_path)
    assert mine.try_acquire() is None
    path = held_elsewhere(tmp_path)
    mine.release()
    assert str(read_holder(path)) == "process 7 on other"


def test_a_holder_that_slept_too_long_learns_that_another_host_builds_now(tmp_path: Path) -> None:
    mine = lease(tmp_path)
    assert mine.try_acquire() is None
    os.utime(mine.path, (0.0, 0.0))
    assert mine.touch()
    assert mine.path.stat().st_mtime > 0
    mine.path.write_text("{")
    assert mine.touch(), "a file that cannot be read says nothing"
    held_elsewhere(tmp_path)
    assert not mine.touch()
    mine.release()


def test_a_lease_is_kept_fresh_by_a_thread_that_ends_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touched, mine = threading.Event(), lease(tmp_path)
    monkeypatch.setattr(leases, "HEARTBEAT_S", 0.001)
    monkeypatch.setattr(Lease, "touch", lambda self: touched.set() or True)
    assert mine.try_acquire() is None
    assert touched.wait(10)
    (thread,) = (one for one in threading.enumerate() if one.name == f"lease {mine.path.name}")
    mine.release()
    thread.join(10)
    assert not thread.is_alive()


@pytest.mark.parametrize("released", [False, True])
def test_a_process_that_lost_its_lease_is_interrupted_unless_its_build_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, released: bool
) -> None:
    mine, interrupted = lease(tmp_path), list[bool]()

    def lost(self: Lease) -> bool:
        if released:
            self._released.set()
        return False

    monkeypatch.setattr(leases, "HEARTBEAT_S", 0.0)
    monkeypatch.setattr(Lease, "touch", lost)
    monkeypatch.setattr(leases._thread, "interrupt_main", lambda: interrupted.append(True))
    mine._keep_fresh()
    assert interrupted == [True] * (not released)


def test_a_lease_survives_lost_heartbeats() -> None:
    assert 3 * HEARTBEAT_S <= EXPIRY_S


def test_a_lease_whose_age_cannot_be_told_is_respected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = held_elsewhere(tmp_path, age_s=2 * EXPIRY_S)
    assert not is_fresh(path)
    monkeypatch.setattr(Path, "touch", lambda *_: raise_error(errno.ENOSPC))
    assert is_fresh(path)
    path.unlink()
    assert not is_fresh(path)


def raise_error(code: int) -> None:
    raise OSError(code, os.strerror(code))


def test_a_file_system_without_hard_links_holds_leases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", lambda source, target: raise_error(errno.EPERM))
    with hold_build_lock(tmp_path, graph(), never):
        holder = read_holder(tmp_path / f"{graph().key}.json")
        assert holder is not None
        assert holder.pid == os.getpid()
        assert not lease(tmp_path)._create()
    path = held_elsewhere(tmp_path)
    lease(tmp_path)._remove_stale(None)
    assert str(read_holder(path)) == "process 7 on other"


@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV, errno.EMLINK])
def test_every_error_of_a_file_system_without_links_leads_to_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(os, "link", lambda source, target: raise_error(code))
    assert lease(tmp_path)._create()


class FullFile(io.FileIO):
    def write(self, content: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_cannot_link_for_another_reason_leaves_no_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(os, "link", lambda source, target: raise_error(code))
    with pytest.raises(OSError, match=os.strerror(code)):
        lease(tmp_path).try_acquire()
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_full_when_a_lease_is_copied_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Path.open

    def open_full(path: Path, mode: str = "r", *more: Any, **named: Any) -> Any:
        return FullFile(path, "x") if mode == "xb" else opened(path, mode, *more, **named)

    monkeypatch.setattr(os, "link", lambda source, target: raise_error(errno.EPERM))
    monkeypatch.setattr(Path, "open", open_full)
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        lease(tmp_path).try_acquire()
    assert list(tmp_path.iterdir()) == []


def test_a_host_of_the_same_name_is_another_one(tmp_path: Path) -> None:
    path = held_elsewhere(tmp_path, host=socket.gethostname(), boot="another machine's")
    found = lease(tmp_path).try_acquire()
    assert found == read_holder(path)
    assert str(found) == f"process 7 on {socket.gethostname()}"


def test_a_lease_that_someone_removed_is_written_again(tmp_path: Path) -> None:
    mine = lease(tmp_path)
    assert mine.try_acquire() is None
    mine.path.unlink()
    mine.check()
    assert read_holder(mine.path) == mine._me
    mine.path.write_text("{")
    mine.check()  # a file that cannot be read says nothing
    mine.release()


def test_of_two_hosts_that_find_a_stale_lease_one_takes_it_over(tmp_path: Path) -> None:
    """The second one moved the first one's new lease aside, notices it, and puts it back."""
    path = held_elsewhere(tmp_path, age_s=2 * EXPIRY_S)
    stale, first, second = read_holder(path), lease(tmp_path), lease(tmp_path)
    assert first.try_acquire() is None
    second._remove_stale(stale)
    holder = read_holder(path)
    first.release()
    assert holder is not None
    assert holder.token == first._me.token


def test_a_build_that_another_host_has_taken_over_is_no_interruption_by_a_person(tmp_path: Path) -> None:
    def interrupted(taken_over: bool) -> None:
        with hold_build_lock(tmp_path, graph(), never):
            if taken_over:
                held_elsewhere(tmp_path)
            raise KeyboardInterrupt

    with pytest.raises(LeaseLostError, match="is being built by process 7 on other: this process slept longer"):
        interrupted(taken_over=True)
    (tmp_path / f"{graph().key}.json").unlink()
    with pytest.raises(KeyboardInterrupt):
        interrupted(taken_over=False)


def test_a_third_host_that_takes_a_stale_lease_meanwhile_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = held_elsewhere(tmp_path)
    link, second = os.link, lease(tmp_path)

    def third_is_faster(source: Path, target: Path) -> None:
        target.write_text(json.dumps(asdict(Holder("third", 8, [], "third's token"))))
        link(source, target)

    monkeypatch.setattr(os, "link", third_is_faster)
    second._remove_stale(None)
    assert str(read_holder(path)) == "process 8 on third"
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


class BusyLock:
    """Held by another process for the first three tries."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    def acquire(self, timeout: float, poll_interval: float) -> None:
        self.waits.append(timeout)
        if len(self.waits) < 4:
            raise Timeout("lock")


def test_a_process_that_waits_says_so_once(tmp_path: Path) -> None:
    held_elsewhere(tmp_path)
    lock, said = BusyLock(), list[str]()
    build_lock._acquire(lock, lease(tmp_path), said.append)  # type: ignore[arg-type]
    assert (said, lock.waits) == (["process 7 on other"], [0, *[build_lock._RETRY_S] * 3])


def test_a_process_that_waits_for_another_host_says_so_once_and_tries_under_the_registration_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, said = [Holder("other", 7), Holder("other", 7), Holder("third", 8), None], list[str]()

    def try_acquire(self: Lease) -> Holder | None:
        with pytest.raises(Timeout):
            FileLock(tmp_path / ".registration.lock").acquire(timeout=0)
        return answers.pop(0)

    monkeypatch.setattr(build_lock, "_RETRY_S", 0.0)
    monkeypatch.setattr(Lease, "try_acquire", try_acquire)
    build_lock._acquire_lease(tmp_path, lease(tmp_path), said.append)
    assert said == ["process 7 on other", "process 8 on third"]


def test_a_full_disk_leaves_no_file_of_a_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(path: Path, text: str, encoding: str) -> None:
        path.touch()
        raise_error(errno.ENOSPC)

    monkeypatch.setattr(Path, "write_text", write)
    with pytest.raises(OSError, match="No space left"):
        lease(tmp_path)._create()
    assert list(tmp_path.iterdir()) == []
