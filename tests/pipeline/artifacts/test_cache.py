"""Listing, choosing and removing artifacts; what is in use stays."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from filelock import FileLock, Timeout

from pipeline.artifacts import cache
from pipeline.artifacts.build_lock import hold_build_lock
from pipeline.artifacts.manifest import format_nbytes
from pipeline.artifacts.progress_display import NullObserver, ProgressCallback
from pipeline.artifacts.runner import Runner
from pipeline.artifacts.stage import Stage
from pipeline.artifacts.store import Store
from tests.programs.build_artifacts import graph

LATER = datetime.now(UTC) + timedelta(days=3)
REPORT, OTHER = graph(), graph(steps=4)
MODEL = REPORT.inputs["model"]
CORPUS = MODEL.inputs["corpus"]


def build(stage: Stage, out: Path, work: Path, inputs: Mapping[str, Path], progress: ProgressCallback) -> None:
    (out / "weights").write_bytes(b"x" * 1500)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Holds one corpus, and model and report of two configurations."""
    store = Store(tmp_path)
    for stage in (REPORT, OTHER):
        Runner(store, build, NullObserver()).ensure_built(stage)
    return store


def run(store: Store, *argv: str) -> int:
    return cache.main(argv, store, lambda overrides: [CORPUS, Stage("new", "t", {"of": list(overrides)})], LATER)


def left(store: Store) -> list[str]:
    return [entry.manifest.key for entry in cache.list_entries(store)]


def test_cache_list_shows_size_age_and_relations(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(store, "list") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["NAME", "DIGEST", "SIZE", "AGE", "BUILT", "FROM", "USED", "BY"]
    assert lines[1].split()[:7] == ["corpus", CORPUS.digest[:12], "1.50", "kB", *lines[1].split()[4:6], "-"]
    assert lines[1].split()[7:] == ["2", "model"]
    (model,) = (line for line in lines if MODEL.digest[:12] in line.split()[1])
    assert model.split()[6:] == [CORPUS.key, "report"]
    assert len(lines) == 6


@pytest.mark.parametrize("first", [0, 1])
def test_artifacts_of_a_name_are_listed_oldest_first(store: Store, first: int) -> None:
    models = [stage.inputs["model"] for stage in (REPORT, OTHER)]
    for index, stage in enumerate(models):
        file = store.path(stage) / "stage.json"
        built = f"2026-01-0{1 if index == first else 2}T00:00:00+00:00"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"built": built}))
    assert left(store)[1:3] == [models[first].key, models[1 - first].key]


def test_cache_list_names_damaged_artifacts(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    (store.path(REPORT) / "weights").write_text("short")
    (store.path(MODEL) / "stage.json").unlink()
    (store.path(CORPUS) / "weights").write_bytes(b"y" * 1500)
    run(store, "list")
    said = capsys.readouterr().out
    assert "DAMAGED: weights has 5 bytes instead of 1500" in said
    assert any(line.startswith("model") and line.endswith("DAMAGED") for line in said.splitlines())
    assert "another content" not in said
    assert run(store, "check") == 1
    assert "DAMAGED: weights has another content than was written" in capsys.readouterr().out


def test_cache_check_reads_every_file_and_says_how_to_build_again(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(store, "check") == 0
    assert capsys.readouterr().out == "5 read, 0 damaged\n"
    (store.path(CORPUS) / "weights").write_bytes(b"y" * 1500)
    assert run(store, "check") == 1
    damage, remedy, total = capsys.readouterr().out.splitlines()
    assert damage.startswith(f"{CORPUS.key}  DAMAGED: weights has another content than was written")
    assert remedy == "    build it again: python -m pipeline ARGUMENTS OF ITS RUN 'force=[corpus]'"
    assert total == "5 read, 1 damaged"


def test_cache_check_reads_those_that_are_named(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    (store.path(CORPUS) / "weights").write_bytes(b"y" * 1500)
    (store.path(MODEL) / "stage.json").unlink()
    assert run(store, "check", "report") == 0
    assert run(store, "check", MODEL.key) == 1
    assert f"{MODEL.key}  DAMAGED: stage.json is missing" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        run(store, "check", "reprot")
    assert "nothing stored is called 'reprot'; stored are corpus, model, report." in capsys.readouterr().err


def test_cache_check_says_which_older_records_have_no_digest(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    file = store.path(CORPUS) / "stage.json"
    written = json.loads(file.read_text())
    written["files"]["weights"]["sha256"] = None
    file.write_text(json.dumps(written))
    assert run(store, "check", "corpus") == 0
    assert f"{CORPUS.key}  has files without a digest" in capsys.readouterr().out


def test_cache_clean_removes_nothing_without_yes(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    before = left(store)
    run(store, "clean", "report")
    assert "would be freed; add --yes" in capsys.readouterr().out
    assert left(store) == before


def test_cache_clean_sums_what_it_frees(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    files = [path for stage in (REPORT, OTHER) for path in store.path(stage).iterdir()]
    run(store, "clean", "report")
    freed = format_nbytes(sum(path.stat().st_size for path in files))
    assert capsys.readouterr().out.splitlines()[-1] == f"{freed:>9}  would be freed; add --yes to do it"


def test_what_stays_is_no_part_of_the_sum(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    with hold_build_lock(store.locks, MODEL, print):
        run(store, "clean", "corpus")
    line, summed = capsys.readouterr().out.splitlines()
    assert line.startswith(f"      0 B  {CORPUS.key}  stays")
    assert summed == "      0 B  would be freed; add --yes to do it"


def test_cache_clean_selects_by_name_or_key(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    run(store, "clean", "report", MODEL.key, "--yes")
    assert left(store) == [CORPUS.key, OTHER.inputs["model"].key]
    assert "freed" in capsys.readouterr().out.splitlines()[-1]
    assert not (store.root / ".trash").exists()


def test_cache_clean_keeps_the_ancestors_of_kept_artifacts(store: Store) -> None:
    run(store, "clean", "--keep", MODEL.key, "--yes")
    assert left(store) == [CORPUS.key, MODEL.key]


def test_cache_clean_keeps_all_ancestors_of_all_artifacts_of_a_name(store: Store) -> None:
    run(store, "clean", "--keep", "report", "--yes")
    assert len(left(store)) == 5
    run(store, "clean", "--keep", REPORT.key, "--yes")
    assert left(store) == [CORPUS.key, MODEL.key, REPORT.key]


@pytest.mark.parametrize(("days", "number"), [("2", 0), ("4", 5)])
def test_cache_clean_selects_by_age(store: Store, days: str, number: int) -> None:
    run(store, "clean", "--older-than", days, "--yes")
    assert len(left(store)) == number


def test_cache_clean_by_age_leaves_what_has_no_readable_age(store: Store) -> None:
    (store.path(MODEL) / "stage.json").unlink()
    run(store, "clean", "model", "--older-than", "2", "--yes")
    assert store.path(MODEL).exists()
    assert OTHER.inputs["model"].key not in left(store)


def test_cache_clean_keeps_a_running_build_and_its_ancestors(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    store.ensure_writable()
    (store.workspace(REPORT)[1] / "state").write_text("x")
    with hold_build_lock(store.locks, REPORT, print):
        run(store, "clean", "corpus", "model", "report", "--yes")
        run(store, "clean", "--yes")
    assert sorted(left(store)) == sorted([CORPUS.key, MODEL.key, REPORT.key])
    assert f"{MODEL.key}  stays: it is being built or needed for a build" in capsys.readouterr().out
    assert store.has_saved_state(REPORT)


def test_no_build_starts_while_what_is_in_use_is_looked_for_and_removed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def in_use(folder: Path) -> set[str]:
        with pytest.raises(Timeout):
            FileLock(folder / ".registration.lock").acquire(timeout=0)
        return {REPORT.key}

    monkeypatch.setattr(cache, "keys_in_use", in_use)
    run(store, "clean", "report", "--yes")
    assert store.has(REPORT)
    assert not store.has(OTHER)


def test_cache_clean_removes_what_cache_list_calls_damaged(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    (store.path(REPORT) / "weights").write_text("short")
    (store.path(CORPUS) / "weights").write_bytes(b"y" * 1500)
    run(store, "clean", "--yes")
    assert set(left(store)) == {CORPUS.key, MODEL.key, OTHER.inputs["model"].key, OTHER.key}
    with pytest.raises(SystemExit):
        run(store, "clean", "report", "--check", "--yes")
    assert "--check looks for damaged artifacts" in capsys.readouterr().err
    run(store, "clean", "--check", "--yes")
    assert set(left(store)) == {MODEL.key, OTHER.inputs["model"].key, OTHER.key}


def test_cache_clean_without_a_selection_removes_only_damaged_and_unfinished_artifacts(store: Store) -> None:
    (store.workspace(graph(steps=5))[1] / "state").write_text("x")
    (store.path(REPORT) / "weights").unlink()
    store.move_to_damaged(REPORT)
    (store.path(MODEL) / "stage.json").unlink()
    run(store, "clean", "--yes")
    assert sorted(left(store)) == sorted([CORPUS.key, OTHER.inputs["model"].key, OTHER.key])
    assert not store.path(MODEL).exists()
    assert not [*(store.root / ".damaged").iterdir(), *(store.root / ".work").iterdir()]


def test_cache_clean_lists_what_an_earlier_one_was_stopped_in_removing(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    moved = store.move_to_trash(store.path(REPORT))
    run(store, "clean")
    assert moved.name in capsys.readouterr().out
    run(store, "clean", "--yes")
    freed, summed = (line.split()[:2] for line in capsys.readouterr().out.splitlines())
    assert freed == summed != ["0", "B"]
    assert not moved.exists()


def test_cache_clean_passes_over_what_another_process_removed_meanwhile(store: Store) -> None:
    for stage in (REPORT, OTHER):
        (store.path(stage) / "weights").write_text("short")
    found = cache.find_leftovers(store)
    store.move_to_trash(store.path(REPORT))
    assert len(cache.clean(store, found, True)) == 2
    assert not store.path(OTHER).exists()


def test_an_artifact_in_the_folder_of_another_is_damaged(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    store.move_to_trash(store.path(OTHER))
    store.path(REPORT).rename(store.path(OTHER))
    assert run(store, "check") == 1
    assert f"{OTHER.key}  DAMAGED: stage.json describes another artifact, {REPORT.key}" in capsys.readouterr().out
    assert (OTHER.key, store.path(OTHER)) in cache.find_leftovers(store)


def test_days_below_zero_are_refused(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run(store, "clean", "--older-than", "-1", "--yes")
    assert "--older-than is -1; days are wanted, 0 or more" in capsys.readouterr().err
    assert len(left(store)) == 5


def test_cache_clean_removes_a_damaged_artifact_and_the_work_of_its_next_build(store: Store) -> None:
    (store.workspace(REPORT)[1] / "state").write_text("x")
    (store.path(REPORT) / "weights").unlink()
    run(store, "clean", "--yes")
    assert not store.path(REPORT).exists()
    assert not [*(store.root / ".work").iterdir()]


@pytest.mark.parametrize("name", ["model", MODEL.key])
def test_cache_clean_removes_what_is_named_and_cannot_be_read(store: Store, name: str) -> None:
    (store.path(MODEL) / "stage.json").unlink()
    run(store, "clean", name, "--yes")
    assert not store.path(MODEL).exists()
    assert store.path(CORPUS).exists()


@pytest.mark.parametrize("argv", [["clean", "reprot", "--yes"], ["clean", "--keep", "reprot", "--yes"]])
def test_cache_clean_with_a_misspelt_name_removes_nothing(
    store: Store, argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        run(store, *argv)
    assert "nothing stored is called 'reprot'; stored are corpus, model, report." in capsys.readouterr().err
    assert len(left(store)) == 5


def test_an_unknown_cache_option_is_refused(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        run(store, "clean", "--al")
    assert "unrecognized arguments: --al" in capsys.readouterr().err


def test_cache_why_accepts_the_arguments_of_a_run(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    run(store, "why", "+policy=synera", "network=lte")
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith(f"{CORPUS.key}: cached (built 2")
    assert said[1] == f"{Stage('new', 't', {'of': ['+policy=synera', 'network=lte']}).key}: new"


def test_why_may_name_stages(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    run(store, "why", "corpus", "+policy=synera")
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"{CORPUS.key}: cached")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "which run? Give its own arguments: python -m pipeline cache why +policy="),
        (("corpus",), "python -m pipeline cache why corpus +policy="),
        (("nope", "+policy=synera"), "this run has no stage 'nope'; it has corpus, new."),
    ],
)
def test_why_needs_a_run_and_its_stages(
    store: Store, words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        run(store, "why", *words)
    assert said in capsys.readouterr().err


def test_without_a_command_the_commands_are_explained(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(store) == 0
    said = capsys.readouterr().out
    assert all(f"python -m pipeline cache {command}" in said for command in ("list", "check", "clean", "why"))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1.0, "0 s"), (59.4, "59 s"), (60, "1 min"), (3599, "59 min"), (3600, "1 h"), (86399, "23 h"), (172799, "1 d")],
)
def test_ages_are_whole_units_that_have_passed(seconds: float, text: str) -> None:
    assert cache._format_age(seconds) == text
