"""Identity: what changes a digest and what must not."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import pipeline
from pipeline.artifacts.stage import Stage

CORPUS = Stage("corpus", "training.embedded_pair.corpus.build", {"seed": 1})
FROM_CORPUS = {"corpus": {"_stage_": "corpus"}}


def model(corpus: Stage = CORPUS, **changed: Any) -> Stage:
    fields: dict[str, Any] = {"args": {**FROM_CORPUS, "lr": 0.001}, "inputs": {"corpus": corpus}, **changed}
    return Stage("model", "training.model.fit", **fields)


def test_resources_do_not_change_the_digest() -> None:
    assert model(resources={"gpus": 4}).digest == model().digest


@pytest.mark.parametrize(
    "other",
    [
        model(args={**FROM_CORPUS, "lr": 0.002}),
        model(version=2),
        model(corpus=Stage("corpus", "training.embedded_pair.corpus.build", {"seed": 2})),
        Stage("model2", "training.model.fit", model().args, inputs={"corpus": CORPUS}),
        Stage("model", "training.other.fit", model().args, inputs={"corpus": CORPUS}),
    ],
    ids=["arg", "version", "input", "name", "target"],
)
def test_target_version_arguments_and_inputs_change_the_digest(other: Stage) -> None:
    assert other.digest != model().digest


def test_integers_and_floats_have_different_digests() -> None:
    assert Stage("a", "t", {"x": 1}).digest != Stage("a", "t", {"x": 1.0}).digest


def test_the_order_of_keys_does_not_change_the_digest() -> None:
    assert Stage("a", "t", {"x": 1, "y": 2}).digest == Stage("a", "t", {"y": 2, "x": 1}).digest


def test_a_file_changes_the_digest_by_its_content_not_its_path() -> None:
    def checkpoint(sha: str, path: str) -> str:
        return Stage("a", "t", {"of": [{"_content_": sha, "path": path}]}).digest

    assert checkpoint("aa", "/x") == checkpoint("aa", "/y") != checkpoint("bb", "/y")


def test_a_plain_path_string_changes_the_digest() -> None:
    assert Stage("a", "t", {"path": "/x"}).digest != Stage("a", "t", {"path": "/y"}).digest


def test_digest_is_the_same_in_another_process() -> None:
    code = (
        "from pipeline.artifacts.stage import Stage; "
        "print(Stage('corpus', 'training.embedded_pair.corpus.build', {'seed': 1}).digest)"
    )
    environment = {"PYTHONPATH": str(Path(str(pipeline.__file__)).parents[1]), "PYTHONHASHSEED": "7"}
    answer = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == CORPUS.digest
    assert CORPUS.key == f"corpus-{CORPUS.digest[:12]}"


def test_ancestors_are_listed_before_their_descendants() -> None:
    report = Stage(
        "report", "t", {"m": {"_stage_": "model"}, **FROM_CORPUS}, inputs={"model": model(), "corpus": CORPUS}
    )
    assert [stage.name for stage in report.ancestors.values()] == ["corpus", "model"]


def test_a_stage_reference_without_its_input_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'model' refers to 'corpus' in its args, but its inputs are \[\]"):
        Stage("model", "t", FROM_CORPUS)


def test_an_input_without_its_stage_reference_is_refused() -> None:
    with pytest.raises(ValueError, match="does not refer to 'corpus'"):
        Stage("model", "t", {}, inputs={"corpus": CORPUS})


def test_a_reference_to_an_input_under_another_name_is_refused() -> None:
    with pytest.raises(ValueError, match="calls its input 'corpus' by another name, 'data'"):
        Stage("model", "t", {"corpus": {"_stage_": "data"}}, inputs={"data": CORPUS})


def test_a_stage_reference_with_other_keys_is_refused() -> None:
    with pytest.raises(ValueError, match="a reference is"):
        Stage("model", "t", {"corpus": {"_stage_": "corpus", "lr": 1}}, inputs={"corpus": CORPUS})


@pytest.mark.parametrize("name", ["", ".work", "a/b", "1st"])
def test_a_stage_name_must_be_a_folder_name(name: str) -> None:
    with pytest.raises(ValueError, match="stage name"):
        Stage(name, "t", {})


def test_args_without_canonical_form_are_refused_with_their_place() -> None:
    with pytest.raises(TypeError, match=r"^model\.args\.where\[0\] is pathlib"):
        Stage("model", "t", {"where": [Path("x")]})
