"""What this machine gives a process."""

import os
from pathlib import Path

import pytest

from native import machine
from native.machine import usable_cores


def test_cores_that_this_process_may_not_use_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 5}, raising=False)
    assert usable_cores() == 3


@pytest.mark.parametrize(("known", "expected"), [(8, 8), (None, 1)])
def test_a_system_without_affinities_has_the_cores_of_the_machine(
    monkeypatch: pytest.MonkeyPatch, known: int | None, expected: int
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: known)
    assert usable_cores() == expected


@pytest.mark.parametrize(
    ("text", "name", "flags"),
    [
        ("processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nflags\t\t: fpu avx2\n", "Some CPU @ 2 GHz", {"fpu", "avx2"}),
        ("processor\t: 0\nFeatures\t: asimd bf16\n", "an architecture", {"asimd", "bf16"}),
        (None, "an architecture", set()),
    ],
)
def test_the_processor_is_named_by_the_system_or_else_by_its_architecture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, name: str, flags: set[str]
) -> None:
    monkeypatch.setattr(machine, "CPUINFO", file := tmp_path / "cpuinfo")
    monkeypatch.setattr("platform.processor", lambda: "")
    monkeypatch.setattr("platform.machine", lambda: "an architecture")
    if text is not None:
        file.write_text(text)
    assert machine.processor() == name
    assert machine.cpu_flags.__wrapped__() == flags


def test_the_cache_of_files_counts_as_free_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "MEMINFO", file := tmp_path / "meminfo")
    file.write_text("MemTotal:  8388608 kB\nMemFree:  1048576 kB\nMemAvailable:  3145728 kB\n")
    assert machine.free_nbytes() == 3 * 2**30
    file.unlink()
    assert machine.free_nbytes() == machine.memory_nbytes() > 0
