"""The report on what is installed here, and what is missing for what."""

import os
import tomllib
from pathlib import Path

import pytest

from native import machine
from pipeline.command import doctor

PYPROJECT = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())


def test_every_extra_says_what_needs_it():
    assert set(doctor.EXTRAS) == set(PYPROJECT["project"]["optional-dependencies"])
    assert PYPROJECT["project"]["name"] == doctor.DISTRIBUTION


def test_an_extra_names_the_options_of_both_sides_that_need_it():
    for extra in ("quantization", "llama_cpp"):
        assert "model.device." in doctor.EXTRAS[extra]
        assert "model.cloud." in doctor.EXTRAS[extra]


def test_an_installed_extra_lacks_nothing():
    assert doctor.missing_packages("dev") == []


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(doctor, "_is_installed", lambda package: package != "datasets")
    assert doctor.missing_packages("hub") == ["datasets"]
    report = doctor.describe().splitlines()
    (line,) = (line for line in report if line[4:].startswith("hub "))
    assert line.startswith("no  ")
    assert "pip install 'tandem-llm[hub]' (lacks datasets)" in line


def test_the_cache_of_files_counts_as_available_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(machine, "MEMINFO", tmp_path / "meminfo")
    machine.MEMINFO.write_text("MemTotal:  8388608 kB\nMemFree:  1048576 kB\nMemAvailable:  3145728 kB\n")
    assert "GiB, 3.0 GiB available" in doctor.describe()


def test_without_root_or_tc_netem_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("shutil.which", lambda *args, **kwargs: None)
    monkeypatch.setattr(doctor, "may_administer", lambda status: False)
    assert "lacks the command tc (package iproute2) and root, or CAP_NET_ADMIN" in doctor.describe()


def test_a_system_without_proc_has_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As macOS, which has no SC_AVPHYS_PAGES either."""
    for name in ("MEMINFO", "CPUINFO"):
        monkeypatch.setattr(machine, name, tmp_path)
    machine.cpu_flags.cache_clear()
    monkeypatch.delitem(os.sysconf_names, "SC_AVPHYS_PAGES")
    found = doctor.describe()
    machine.cpu_flags.cache_clear()
    assert "none that matter" in found
    assert f"{machine.memory_nbytes() / 2**30:.1f} GiB available" in found
