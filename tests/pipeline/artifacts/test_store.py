"""Whole or absent, and why: what the store says of artifacts that are there, broken, or of another configuration."""

import json
import os
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from pipeline.artifacts.stage import Stage
from pipeline.artifacts.store import Store, StoreError


def corpus(seed: int = 1) -> Stage:
    return Stage("corpus", "training.embedded_pair.corpus.build", {"seed": seed})


def model(data: Stage | None = None, **args: Any) -> Stage:
    data = data or corpus()
    return Stage("model", "training.fit", {"corpus": {"_stage_": "corpus"}, **args}, inputs={"corpus": data})


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "artifacts")


def put(store: Store, stage: Stage, text: str = "twelve bytes", seconds: float = 188.2) -> Path:
    store.ensure_writable()
    out, _ = store.workspace(stage)
    (out / "deep").mkdir()
    (out / "deep" / "weights.safetensors").write_text(text)
    return store.commit(stage, out, seconds)


def test_an_artifact_is_absent_until_it_is_committed(store: Store) -> None:
    store.ensure_writable()
    out, _ = store.workspace(corpus())
    (out / "half").write_text("x")
    assert not store.has(corpus())
    assert put(store, corpus()) == store.path(corpus()) == store.root / "corpus" / corpus().digest[:16]
    assert store.has(corpus())


def test_manifest_records_what_the_artifact_is(store: Store) -> None:
    put(store, corpus())
    put(store, model(lr=0.1))
    found = store.manifest(model(lr=0.1))
    assert found is not None
    assert found.args == {"corpus": {"_stage_": "corpus"}, "lr": 0.1}
    assert found.inputs == {"corpus": corpus().digest}
    assert (found.key, found.seconds, found.nbytes) == (model(lr=0.1).key, 188.2, 12)
    assert found.versions.keys() >= {"python", "torch"}


def test_a_record_has_the_memory_of_its_build(store: Store) -> None:
    store.ensure_writable()
    out, _ = store.workspace(corpus())
    (out / "weights").write_text("x")
    store.commit(corpus(), out, 1.25, 7_000_000)
    found = store.manifest(corpus())
    assert found is not None
    assert (found.seconds, found.peak_memory_nbytes) == (1.25, 7_000_000)


def test_files_are_on_the_disk_before_their_artifact_has_its_name(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[bool] = []
    monkeypatch.setattr(os, "fsync", lambda _: synced.append(store.path(corpus()).exists()))
    put(store, corpus())
    assert synced == [False, False], "the weights and stage.json"


def test_an_artifact_has_the_same_relative_path_in_every_store(tmp_path: Path) -> None:
    a, b = (put(Store(tmp_path / name), corpus()) for name in "ab")
    assert a.relative_to(tmp_path / "a") == b.relative_to(tmp_path / "b")


def truncate(path: Path) -> None:
    os.truncate(path, 5)


def lengthen(path: Path) -> None:
    os.truncate(path, 14)


@pytest.mark.parametrize(
    ("file", "harm", "said"),
    [
        ("deep/weights.safetensors", truncate, r"deep/weights.safetensors has 5 bytes instead of 12"),
        ("deep/weights.safetensors", lengthen, r"deep/weights.safetensors has 14 bytes instead of 12"),
        ("deep/weights.safetensors", Path.unlink, r"deep/weights.safetensors is missing"),
        ("stage.json", truncate, r"stage.json is missing or unreadable"),
        ("stage.json", Path.unlink, r"stage.json is missing or unreadable"),
    ],
)
def test_a_damaged_artifact_counts_as_absent_and_is_explained(store: Store, file: str, harm: Any, said: str) -> None:
    harm(put(store, corpus()) / file)
    assert not store.has(corpus())
    assert store.find_damage(corpus()) == said
    assert store.explain(corpus()) == f"damaged: {said}"


@pytest.mark.parametrize("text", ["{}", "[]", '{"files": []}', '{"files": {}}'])
def test_a_record_of_another_form_counts_as_unreadable(store: Store, text: str) -> None:
    (put(store, corpus()) / "stage.json").write_text(text)
    assert store.find_damage(corpus()) == "stage.json is missing or unreadable"


def test_changed_content_of_equal_size_is_noticed_when_hashes_are_checked(store: Store) -> None:
    (put(store, corpus()) / "deep" / "weights.safetensors").write_text("TWELVE BYTES")
    assert store.has(corpus())
    assert (
        store.find_damage(corpus(), check_contents=True)
        == "deep/weights.safetensors has another content than was written"
    )


def test_an_artifact_copied_to_another_key_counts_as_damaged(store: Store) -> None:
    put(store, corpus(1)).rename(store.path(corpus(2)))
    assert store.find_damage(corpus(2)) == f"stage.json describes another artifact, {corpus(1).key}"


def test_every_file_is_hashed(store: Store) -> None:
    record = json.loads((put(store, corpus()) / "stage.json").read_text())
    digest = sha256((store.path(corpus()) / "deep" / "weights.safetensors").read_bytes()).hexdigest()
    assert record["files"] == {"deep/weights.safetensors": {"nbytes": 12, "sha256": digest}}


def test_damaged_artifacts_are_moved_aside_one_by_one(store: Store) -> None:
    places = []
    for _ in range(2):
        truncate(put(store, corpus()) / "stage.json")
        places.append(store.move_to_damaged(corpus()).name)
    assert places == [f"{corpus().key}-1", f"{corpus().key}-2"]
    assert store.explain(corpus()) == "new"


def test_a_new_attempt_replaces_the_old(store: Store) -> None:
    put(store, corpus(), "old")
    assert (put(store, corpus(), "new") / "deep" / "weights.safetensors").read_text() == "new"
    assert not any((store.root / ".trash").iterdir())
    assert not any((store.root / ".work").iterdir())


def test_two_processes_of_one_number_share_the_store(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """As processes of two containers may; here the second one tries the store before the first one has ended."""
    unlink = Path.unlink

    def unlink_late(path: Path) -> None:
        monkeypatch.setattr(Path, "unlink", unlink)
        store.ensure_writable()
        unlink(path)

    monkeypatch.setattr(Path, "unlink", unlink_late)
    store.ensure_writable()
    kept = [store.move_to_trash(put(store, corpus(), text)) for text in ("first", "second")]
    assert [(folder / "deep" / "weights.safetensors").read_text() for folder in kept] == ["first", "second"]


def test_explain_distinguishes_new_and_cached_artifacts(store: Store) -> None:
    assert store.explain(corpus()) == "new"
    assert not store.root.exists()
    put(store, corpus())
    built = json.loads((store.path(corpus()) / "stage.json").read_text())["built"]
    assert store.explain(corpus()) == f"cached (built {built[:16].replace('T', ' ')}, 188 s)"


@pytest.mark.parametrize(("seconds", "text"), [(2.46, "2.5 s"), (9.94, "9.9 s"), (10.0, "10 s"), (188.2, "188 s")])
def test_short_builds_are_told_with_a_decimal(store: Store, seconds: float, text: str) -> None:
    put(store, corpus(), seconds=seconds)
    assert store.explain(corpus()).endswith(f", {text})")


@pytest.mark.parametrize(
    ("stage", "said"),
    [
        (model(steps=400, lr=0.1), "steps 500 -> 400 (against"),
        (model(steps=500.0, lr=0.1), "steps 500 -> 500.0 (against"),
        (model(steps=500), "lr removed (was 0.1) (against"),
        (model(steps=500, lr=0.1, seed=3), "seed added (3) (against"),
        (model(corpus(2), steps=500, lr=0.1), "its input corpus changed (against"),
        (model(corpus(2), steps=400, lr=0.1), "steps 500 -> 400, its input corpus changed (against"),
        (model(steps={"up": 1}, lr=0.1), 'steps 500 -> {"up":1} (against'),
        (model(None, steps=500, **dict.fromkeys("abcdefg", 0)), "e added (0), f added (0), and 2 more (against"),
    ],
)
def test_explain_names_the_changed_arguments(store: Store, stage: Stage, said: str) -> None:
    put(store, model(steps=500, lr=0.1))
    assert store.explain(stage).startswith("changed: ")
    assert f" {said} the nearest, built 2" in store.explain(stage)


def test_explain_compares_nested_arguments_and_file_contents(store: Store) -> None:
    def of(sha: str, layers: list[int], kind: str) -> Stage:
        return model(init={"_content_": sha, "path": "/x"}, net={"layers": layers, "kind": kind})

    put(store, of("aa", [1, 2], "x"))
    said = store.explain(of("bb", [1, 3], "y"))
    assert said.startswith('changed: the content of init changed, net.kind "x" -> "y", net.layers[1] 2 -> 3 (against')


def test_explain_names_the_modules_of_a_user_that_changed(store: Store) -> None:
    def of(code: dict[str, str]) -> Stage:
        return Stage("corpus", "lab.corpus", {"seed": 1}, code=code)

    put(store, of({"lab": "1a", "lab.more": "2a"}))
    assert store.explain(of({"lab": "1a", "lab.more": "2b"})).startswith("changed: your own code in lab.more (against")
    assert store.explain(of({"lab": "1a", "lab.more": "2a"})).startswith("cached")


def test_explain_compares_with_the_latest_artifact_of_that_name(store: Store) -> None:
    for index, stage in enumerate((model(steps=1), model(steps=2))):
        os.utime(put(store, stage) / "stage.json", ns=(index, index))
    assert store.explain(model(steps=3)).startswith("changed: steps 2 -> 3 ")


def test_the_latest_of_many_artifacts_are_compared(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.artifacts.store._MAX_COMPARED", 1)
    for index, stage in enumerate((model(steps=1, lr=0.1), model(steps=2, lr=0.2))):
        os.utime(put(store, stage) / "stage.json", ns=(index, index))
    assert store.explain(model(steps=3, lr=0.1)).startswith("changed: lr 0.2 -> 0.1, steps 2 -> 3 ")


def test_why_compares_with_the_nearest(store: Store) -> None:
    for index, stage in enumerate((model(steps=1, lr=0.1), model(steps=2, lr=0.2, seed=1))):
        os.utime(put(store, stage) / "stage.json", ns=(index, index))
    assert store.explain(model(steps=3, lr=0.1)).startswith("changed: steps 1 -> 3 (against the nearest")


def test_why_says_a_node_of_another_name_or_class_in_words(store: Store) -> None:
    def of(name: str, slot: str, **options: int) -> Stage:
        return model(policy={"name": name, "draft": {"_target_": f"slots.{slot}", **options}, "seed": 1})

    put(store, of("synera", "WindowDraft", k=4))
    assert store.explain(of("sled", "NoDraft")).startswith("changed: policy sled instead of synera (against")
    assert store.explain(of("synera", "NoDraft")).startswith("changed: policy.draft NoDraft instead of WindowDraft (")
    assert store.explain(of("synera", "WindowDraft", k=8)).startswith("changed: policy.draft.k 4 -> 8 (against")


def test_explain_reports_a_resumable_build(store: Store) -> None:
    store.ensure_writable()
    _, state = store.workspace(corpus())
    (state / "step").write_text("7")
    assert store.explain(corpus()) == "new; goes on from its unfinished state"
    assert store.discard_attempt(corpus())
    _, state = store.workspace(corpus())
    assert (state / "step").read_text() == "7"


def test_an_empty_state_is_none(store: Store) -> None:
    store.ensure_writable()
    store.workspace(corpus())
    assert store.explain(corpus()) == "new"


def test_a_failed_attempt_leaves_its_state_alone(store: Store) -> None:
    store.ensure_writable()
    out, state = store.workspace(corpus())
    (state / "step").write_text("7")
    assert store.discard_attempt(corpus())
    assert not out.exists()


def test_an_estimate_knows_by_which_functions_inputs_were_made(store: Store) -> None:
    put(store, corpus())
    put(store, model())
    assert store.estimate(model(corpus(2))).learned
    other = Stage("corpus", "mine.build", {"seed": 1})
    put(store, other)
    assert not store.estimate(model(other)).learned


def test_explain_names_a_changed_target_or_version(store: Store) -> None:
    put(store, corpus())
    said = store.explain(Stage("corpus", "mine.build", {"seed": 1}, version=2))
    assert said.startswith("changed: target training.embedded_pair.corpus.build -> mine.build, version 1 -> 2 (")


@pytest.mark.parametrize("files", [[], ["stage.json"]])
def test_a_stage_that_writes_nothing_is_an_error(store: Store, files: list[str]) -> None:
    store.ensure_writable()
    out, _ = store.workspace(corpus())
    for name in files:
        (out / name).write_text("{}")
    with pytest.raises(RuntimeError, match=r"training\.embedded_pair\.corpus\.build .*must write its files to"):
        store.commit(corpus(), out, 0.0)


def test_digests_of_input_files_are_cached_in_the_store(store: Store, tmp_path: Path) -> None:
    (tmp_path / "weights").write_text("x")
    assert len(store.content_digest(tmp_path / "weights")) == 64
    assert (store.root / ".content.json").exists()


def test_an_unwritable_store_is_refused_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "outputs").write_text("a file where the folder should be")
    with pytest.raises(
        StoreError, match=r"cannot write artifacts below .*outputs.*s: Not a directory\. Nothing was run\. Give"
    ):
        Store(tmp_path / "outputs" / "artifacts").ensure_writable()


def test_an_artifact_that_is_moved_while_a_plan_is_made_is_passed_over(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the search for records and the look at their age."""
    put(store, model())
    glob = Path.glob

    def glob_and_move(folder: Path, pattern: str) -> list[Path]:
        found = list(glob(folder, pattern))
        store.move_to_trash(found[0].parent)
        return found

    monkeypatch.setattr(Path, "glob", glob_and_move)
    assert store.explain(model(steps=3)) == "new"
