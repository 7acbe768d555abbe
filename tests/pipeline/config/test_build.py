"""From a node to canonical data, to objects; what is wrong is said with its place."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import pytest

from pipeline.config.build import ConfigSchema, PendingArtifact, construct, load, to_data
from pipeline.errors import ConfigError


class Shape(Protocol):
    def area(self) -> float: ...


@dataclass(frozen=True)
class Square:
    side: float
    name: str = "square"

    def __post_init__(self) -> None:
        if self.side < 0:
            raise ValueError(f"square.side is {self.side}; it cannot be negative")

    def area(self) -> float:
        return self.side**2


@dataclass(frozen=True)
class Everything:
    number: float
    count: int = 1
    on: bool = False
    kind: Literal["a", "b"] = "a"
    text: str | None = None
    shape: Shape | None = None
    square: Square | None = None
    squares: tuple[Square, ...] = ()
    names: list[str] = field(default_factory=list)
    pair: tuple[int, str] | None = None
    by_name: dict[str, Square] = field(default_factory=dict)
    by_text: Mapping[str, float] = field(default_factory=dict)
    either: int | str = 0
    file: Path | None = None
    anything: Any = None
    whole: float = 1
    best: Square = field(default=Square(2.0))
    order: Sequence[int] = ()
    later: int = field(init=False, default=7)


def shape_of(side: float, scale: int = 2) -> Square:
    return Square(side * scale)


def library(target: str, name: str) -> Any:
    if not target.endswith(".Square"):
        return None
    if name != "unit":
        raise LookupError(f"there is no {name!r} in squares. There are: unit.")
    return {"side": 1}


SCHEMA = ConfigSchema(lambda path: f"sha of {path.read_text()}", library)
ME = __name__


def coerced(**options: Any) -> dict[str, Any]:
    data = SCHEMA.coerce_target({"_target_": f"{ME}.Everything", "number": 1, **options}, "top")
    assert isinstance(data, dict)
    return data


def square(side: float, name: str = "square") -> dict[str, Any]:
    return {"_target_": f"{ME}.Square", "side": side, "name": name}


def test_defaults_are_filled_in() -> None:
    assert coerced() == {
        "_target_": f"{ME}.Everything",
        "number": 1.0,
        "count": 1,
        "on": False,
        "kind": "a",
        "text": None,
        "shape": None,
        "square": None,
        "squares": [],
        "names": [],
        "pair": None,
        "by_name": {},
        "by_text": {},
        "either": 0,
        "file": None,
        "anything": None,
        "whole": 1.0,
        "best": square(2.0),
        "order": [],
    }
    written = {k: v for k, v in coerced().items() if k not in ("_target_", "number")}
    assert repr(coerced(**written)) == repr(coerced())  # 1 and 1.0 print differently


@dataclass(frozen=True)
class Grown:
    old: int = 1
    later: bool = field(default=False, metadata={"omitted_at_default": True})


def test_a_later_option_at_its_default_leaves_identities_as_they_were() -> None:
    node = {"_target_": f"{ME}.Grown"}
    before = {**node, "old": 1}
    assert SCHEMA.coerce_target(node, "") == SCHEMA.coerce_target({**node, "later": False}, "") == before
    assert SCHEMA.coerce_target({**node, "later": True}, "") == {**before, "later": True}
    assert construct(before, None) == Grown()


@dataclass(frozen=True)
class Listed:
    size: int = 1

    @classmethod
    def data_revision(cls) -> str | None:
        return revision


revision: str | None = None


def test_changed_data_that_a_class_reads_counts_for_identities(monkeypatch: pytest.MonkeyPatch) -> None:
    node = {"_target_": f"{ME}.Listed"}
    before = SCHEMA.coerce_target(node, "")
    assert before == {**node, "size": 1}
    monkeypatch.setitem(globals(), "revision", "1a2b")
    now = SCHEMA.coerce_target(node, "")
    assert now == {**before, "_data_": "1a2b"}
    assert construct(now, None) == construct(before, None) == Listed()


TAKEN: dict[str, tuple[dict[str, Any], Any]] = {
    "a whole number where a number is wanted": ({"number": 3}, 3.0),
    "one of the allowed": ({"kind": "b"}, "b"),
    "nothing": ({"text": None}, None),
    "text": ({"text": "x"}, "x"),
    "digits where text is wanted": ({"text": 30}, "30"),
    "a node for a protocol": ({"shape": {"_target_": f"{ME}.Square", "side": 2}}, square(2.0)),
    "a function's node": (
        {"shape": {"_target_": f"{ME}.shape_of", "side": 2}},
        {"_target_": f"{ME}.shape_of", "side": 2.0, "scale": 2},
    ),
    "a group for a dataclass": ({"square": {"side": 2, "name": "x"}}, square(2.0, "x")),
    "a name of the library": ({"square": "unit"}, square(1.0)),
    "names and groups in a list": ({"squares": ["unit", {"side": 3}]}, [square(1.0), square(3.0)]),
    "a list": ({"names": ["x", "y"]}, ["x", "y"]),
    "a pair": ({"pair": [1, "x"]}, [1, "x"]),
    "a dict of groups": ({"by_name": {"x": {"side": 1}}}, {"x": square(1.0)}),
    "a mapping with keys that are no text": ({"by_text": {5: 1}}, {"5": 1.0}),
    "the first of several types": ({"either": 3}, 3),
    "the second of several types": ({"either": "x"}, "x"),
    "anything": ({"anything": {"x": [1, {"y": None}]}}, {"x": [1, {"y": None}]}),
    "an artifact": ({"file": {"_stage_": "corpus"}}, {"_stage_": "corpus"}),
}


@pytest.mark.parametrize("case", TAKEN)
def test_valid_values_are_coerced_to_the_annotated_type(case: str) -> None:
    options, expected = TAKEN[case]
    ((name, _),) = options.items()
    found = coerced(**options)[name]
    assert (found, repr(found)) == (expected, repr(expected))


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "text for a number": ({"number": "x"}, r"^top.number: got 'x'; a number is wanted.$"),
    "true for a number": ({"number": True}, r"^top.number: got True; a number is wanted.$"),
    "a fraction for a whole number": ({"count": 1.5}, r"^top.count: got 1.5; a whole number is wanted.$"),
    "a number for true or false": ({"on": 1}, r"^top.on: got 1; true or false is wanted.$"),
    "a number for text": ({"text": 1.5}, r"^top.text: got 1.5; text is wanted.$"),
    "nothing where something must be": ({"count": None}, r"^top.count: got null; a whole number is wanted.$"),
    "none of the allowed": ({"kind": "c"}, r"^top.kind: got 'c'; allowed are a, b.$"),
    "no number at all": ({"number": float("nan")}, r"^top.number: got nan; a finite number is wanted.$"),
    "an infinite number": ({"anything": [float("inf")]}, r"^top.anything\[0\]: got inf; a finite number is wanted.$"),
    "text for a choice": ({"shape": "window"}, r"^top.shape: got 'window'; a group of options .*policy/draft=window"),
    "an unknown name": ({"square": "big"}, r"^top.square: there is no 'big' in squares. There are: unit.$"),
    "an unknown name in a list": ({"squares": ["unit", "big"]}, r"^top.squares\[1\]: there is no 'big'"),
    "a list for one": ({"count": [1, 2]}, r"^top.count: got a list of 2; a whole number is wanted.$"),
    "one for a list": ({"names": 3}, r"^top.names: got 3; a list is wanted, as in \[3\].$"),
    "a wrong type in a list": ({"names": ["x", 3.5]}, r"^top.names\[1\]: got 3.5; text is wanted.$"),
    "too many for a pair": ({"pair": [1, "x", 2]}, r"^top.pair: got 3 values; 2 are wanted.$"),
    "a group for a number": ({"count": {"x": 1}}, r"^top.count: got a group of options \['x'\] without _target_"),
    "a group for one of several": ({"either": {"x": 1}}, r"^top.either: got a group of options"),
    "a wrong type deep inside": (
        {"by_name": {"x": {"side": "y"}}},
        r"^top.by_name.x.side: got 'y'; a number is wanted.$",
    ),
    "an unknown option": ({"nmber": 1}, rf"^top: {ME}.Everything has no option 'nmber'. Its options: number, count,"),
    "what is set inside": ({"later": 1}, r"has no option 'later'"),
    "an unknown option deep inside": (
        {"square": {"side": 1, "sid": 2}},
        r"^top.square: .*Square has no option 'sid'. Its options: side, name.$",
    ),
    "a missing option": ({"square": {"name": "x"}}, r"^top.square: .*Square needs the option 'side'.$"),
    "an unknown class": ({"shape": {"_target_": f"{ME}.Circle"}}, rf"^top.shape: there is no {ME}.Circle \("),
    "an unknown module": (
        {"shape": {"_target_": "no.such.Thing"}},
        r"^top.shape: there is no no.such.Thing \(No module named 'no'",
    ),
    "no module": ({"shape": {"_target_": "Thing"}}, r"^top.shape: there is no Thing"),
    "no class": ({"shape": {"_target_": f"{ME}.ME"}}, r"is a str; _target_ names a class or a function.$"),
    "a file that is not there": (
        {"file": "/no/such/file"},
        r"^top.file: there is nothing at /no/such/file. Check the path",
    ),
    "a number for a path": ({"file": 3}, r"^top.file: got 3; a path is wanted here.$"),
    "an object": ({"anything": object()}, r"^top.anything: object cannot be part of a configuration"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_invalid_values_are_refused_with_their_place(case: str) -> None:
    options, message = REFUSED[case]
    with pytest.raises(ConfigError, match=message):
        coerced(**options)


def test_a_file_argument_is_identified_by_its_content(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for path in (one, other):
        path.write_text("same")
    assert coerced(file=str(one))["file"] == {"_content_": "sha of same", "path": str(one)}
    assert coerced(file=str(other))["file"]["_content_"] == coerced(file=str(one))["file"]["_content_"]


def test_a_path_that_is_not_given_says_where_to_name_it() -> None:
    with pytest.raises(ConfigError, match=r"^serve.path: got null; a path is wanted. Name one there, or .*=FILE.$"):
        ConfigSchema(lambda path: "", lambda *_: None).coerce(None, Path, "serve.path")


@pytest.mark.parametrize("problem", [ValueError("holds no file"), PermissionError("not yours")])
def test_a_file_that_cannot_be_read_is_named(problem: Exception, tmp_path: Path) -> None:
    def content(path: Path) -> str:
        raise problem

    with pytest.raises(ConfigError, match=f"^top.file: {problem}$"):
        ConfigSchema(content, library).coerce_target(
            {"_target_": f"{ME}.Everything", "number": 1, "file": str(tmp_path)}, "top"
        )


def test_arguments_that_the_runner_passes_cannot_be_configured() -> None:
    with pytest.raises(ConfigError, match=r"has no option 'out'. Its options: seed.$"):
        SCHEMA.coerce_target({"_target_": f"{ME}.stage", "out": "x"}, "s")
    assert SCHEMA.coerce_target({"_target_": f"{ME}.stage"}, "s") == {"_target_": f"{ME}.stage", "seed": 0}


def stage(out: Path, *, work: Path, progress: Any, seed: int = 0) -> None: ...


# Objects.


def test_construct_builds_nested_objects() -> None:
    made = construct(coerced(squares=["unit"], by_name={"x": "unit"}, pair=[1, "x"]), None)
    assert made == Everything(
        1.0, squares=(Square(1.0),), by_name={"x": Square(1.0)}, pair=(1, "x"), names=(), order=()
    )  # type: ignore[arg-type]


def test_an_artifact_is_its_folder_or_pending() -> None:
    data = coerced(file={"_stage_": "corpus"})
    assert construct(data, {"corpus": Path("/store/corpus")}.__getitem__).file == Path("/store/corpus")
    assert isinstance(construct(data, None).file, PendingArtifact)
    pending = construct(data, lambda name: PendingArtifact(Path("/store", name))).file
    assert Path(pending) == Path("/store/corpus")


def test_a_value_built_from_a_pending_artifact_is_pending() -> None:
    data = {"_target_": f"{ME}.shape_of", "side": {"_stage_": "corpus"}, "scale": 2}
    assert isinstance(construct(data, None), PendingArtifact)


def test_an_error_of_a_constructor_is_passed_on_with_its_place() -> None:
    message = rf"^top.square: {ME}.Square \(\S+test_build.py line \d+\): square.side is -1.0; it cannot be negative$"
    with pytest.raises(ConfigError, match=message):
        construct(coerced(square={"side": -1}), None, "top")


@dataclass(frozen=True)
class Reader:
    """Reads a line of JSON lines as everybody does, a wrong one too."""

    line: str

    def __post_init__(self) -> None:
        assert json.loads(self.line)["id"] is not None


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"id": 1, ', "JSONDecodeError: .* in '{\"id\": 1, '. TANDEM_DEBUG=1 shows"),
        ('{"prompt": "x"}', "KeyError: 'id'. TANDEM_DEBUG=1 shows"),
        ("[]", "TypeError: list indices must be"),
    ],
)
def test_whatever_ends_a_users_class_is_said_with_its_place_class_and_line(line: str, message: str) -> None:
    data = SCHEMA.coerce_target({"_target_": f"{ME}.Reader", "line": line}, "workload.dataset")
    with pytest.raises(ConfigError, match=rf"^workload.dataset: {ME}.Reader \(\S+test_build.py line \d+\): {message}"):
        construct(data, None, "workload.dataset")


@dataclass(frozen=True)
class Dot:
    name: str = "dot"


def test_a_users_class_that_lacks_a_method_of_its_protocol_is_refused() -> None:
    assert construct(coerced(shape={"_target_": f"{ME}.Square", "side": 1}), None).shape == Square(1.0)
    with pytest.raises(
        ConfigError, match=rf"^top.shape: {ME}.Dot has no area, which {ME}.Shape asks for; add it to the class.$"
    ):
        construct(coerced(shape={"_target_": f"{ME}.Dot"}), None, "top")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def Every(:\n", r"SyntaxError: .*\(own_slot_0.py, line 1\)"),
        ("Every = 1 / 0\n", "ZeroDivisionError: division"),
        ("raise SystemExit\n", "SystemExit. TANDEM_DEBUG=1"),
    ],
)
def test_a_users_module_that_cannot_be_loaded_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    (tmp_path / "own_slot_0.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=f"^policy.offload: importing own_slot_0 ended in {message}"):
        load("own_slot_0.Every", "policy.offload")


def test_an_object_is_written_back_as_its_configuration() -> None:
    assert to_data(Square(2.0), "x") == square(2.0)
    assert to_data({"a": (Square(1.0), None)}, "x") == {"a": [square(1.0), None]}
    with pytest.raises(ConfigError, match=r"^x.a: object cannot be part"):
        to_data({"a": object()}, "x")


def test_targets_are_imported_by_dotted_path() -> None:
    assert load(f"{ME}.Square", "x") is Square


@pytest.mark.parametrize(("value", "shown"), [("/lab", "PYTHONPATH (/lab)"), (None, "PYTHONPATH (not set)")])
def test_a_target_that_cannot_be_imported_is_refused_with_where_it_was_looked_for(
    monkeypatch: pytest.MonkeyPatch, value: str | None, shown: str
) -> None:
    monkeypatch.setenv("PYTHONPATH", value) if value else monkeypatch.delenv("PYTHONPATH", raising=False)
    with pytest.raises(ConfigError, match=rf"No module named 'no_lab'.*{re.escape(f'{Path.cwd()} and')}") as refused:
        load("no_lab.offload.Every", "x")
    assert shown in str(refused.value)


def test_a_users_module_that_lacks_a_package_is_not_called_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_slot_1.py").write_text("import no_such_package.deep\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"^policy.offload: importing own_slot_1 needs no_such_package, which is not"):
        load("own_slot_1.Every", "policy.offload")
