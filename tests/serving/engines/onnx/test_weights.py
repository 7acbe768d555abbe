"""The digest of the weights that a graph was exported from."""

import os
from pathlib import Path

import pytest

from serving.engines.models import Checkpoint
from serving.engines.onnx import header


class Files(Checkpoint):
    """A directory without a configuration, which the digest does not read."""

    def __post_init__(self) -> None: ...


def made(folder: Path, **files: bytes) -> Files:
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("_", ".")).write_bytes(content)
    return Files(path=folder)


def test_the_weights_digest_depends_on_names_and_contents(tmp_path: Path) -> None:
    one = header.weights_digest(made(tmp_path / "a", a_safetensors=b"1234", b_safetensors=b"5", config_json=b"{}"))
    assert header.weights_digest(made(tmp_path / "b", a_safetensors=b"1234", b_safetensors=b"5", other_bin=b"?")) == one
    assert header.weights_digest(made(tmp_path / "c", a_safetensors=b"1235", b_safetensors=b"5")) != one
    assert header.weights_digest(made(tmp_path / "d", a_safetensors=b"123", b_safetensors=b"45")) != one
    bins = [header.weights_digest(made(tmp_path / name, a_bin=name.encode())) for name in "ef"]
    assert bins[0] != bins[1]
    assert header.weights_digest(Checkpoint(hub="a/small")) == "hub:a/small"


def test_unchanged_weight_files_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint, read, opens = made(tmp_path / "a", a_safetensors=b"1234"), list[Path](), Path.open
    monkeypatch.setattr(Path, "open", lambda self, *a, **how: read.append(self) or opens(self, *a, **how))
    first = header.weights_digest(checkpoint)
    assert header.weights_digest(checkpoint) == first
    assert len(read) == 1
    file = tmp_path / "a" / "a.safetensors"
    file.write_bytes(b"1235")
    os.utime(file, ns=(1, 1))
    assert header.weights_digest(checkpoint) != first


@pytest.mark.parametrize(("at", "told"), [(0, True), (1, True), (4, False), (8, True), (9, True)])
def test_of_large_weight_files_only_the_ends_are_read(
    at: int, told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(header, "MAX_FULL_HASH_NBYTES", 9)
    monkeypatch.setattr(header, "_MIB", 2)
    changed = bytearray(b"0123456789")
    changed[at] = 99
    one, other = (
        header.weights_digest(made(tmp_path / name, a_safetensors=bytes(content)))
        for name, content in (("a", b"0123456789"), ("b", changed))
    )
    assert (one != other) == told
    assert header.weights_digest(made(tmp_path / "c", a_safetensors=b"01234567890")) != one
