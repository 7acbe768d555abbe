"""The table of winners and the table of borders, at toy size."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from serving.outcomes.constant import ConstantAcceptance
from serving.progress import silent
from serving.runtimes.simulated import Simulated
from serving.studies.winners import stages
from serving.studies.winners.border_finder import Window
from serving.studies.winners.place import Grid, Place
from serving.studies.winners.stages import check_find_borders, check_map_winners, find_borders, map_winners
from serving.studies.winners.steady_state import SteadyLoad, SteadyState
from tests.serving.studies.winners.contest_setup import CONTENDERS, DEVICES, contest, outcomes, setup
from tests.support.policies import policy

GRID = Grid((0.0, 200.0), (0.6, 0.9), (1, 4))
CONTEST: Mapping[str, Any] = {
    "setup": setup(), "runtime": Simulated(outcomes()), "contenders": CONTENDERS, "devices": DEVICES,
    "load": SteadyLoad(2, 0.5), "seeds": (0, 1),
}  # fmt: skip


def table(folder: Path, file: str = "rows.json") -> Any:
    return json.loads((folder / file).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Where the map is, and where its simulations are: the first run is interrupted."""
    out, work = tmp_path_factory.mktemp("out"), tmp_path_factory.mktemp("work")

    def interrupt(done: int, total: int, note: str) -> None:
        assert total == 2 * 2 + 2 * 2 * 2 * 2 + 2 * 2 * 2 * 2  # of decoding, of clouds that draft, of devices
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        map_winners(out, progress=interrupt, work=work, grid=GRID, promised_tokens_per_s=(8.0,), **CONTEST)
    kept = {file.name: file.stat().st_mtime_ns for file in work.iterdir()}
    assert len(kept) == 5
    map_winners(out, progress=silent, work=work, grid=GRID, promised_tokens_per_s=(8.0,), **CONTEST)
    assert {name: (work / name).stat().st_mtime_ns for name in kept} == kept
    return out, work


def test_the_map_has_a_row_for_each_place(folders: tuple[Path, Path]) -> None:
    rows = table(folders[0])
    assert list(rows) == ["slow, 1 devices", "slow, 4 devices", "fast, 1 devices", "fast, 4 devices"]
    assert list(rows["slow, 1 devices"]) == ["0 ms, 0.6", "200 ms, 0.6", "0 ms, 0.9", "200 ms, 0.9"]
    row = rows["slow, 1 devices"]["0 ms, 0.9"]
    assert row["fastest"].split(" = ")[0] in ("cloud_speculative", "cloud_window")
    assert set(row["s_per_token"]["by_seed"]) == {"0", "1"}
    assert min(row["device_of_cloud"]["by_seed"].values()) > 1  # a slow device
    assert row["at_8_tokens_per_s"] != "none"
    counts = table(folders[0], "metrics.json")
    assert sum(value for name, value in counts.items() if name.startswith("fastest/")) == 16


def test_a_tie_is_no_win_of_its_first() -> None:
    cells = [{"fastest": text, "cheapest": "a", "at_8_tokens_per_s": "none"} for text in ("a = b", "a", "b = a")]
    assert stages._counts({"group": dict(enumerate(cells))}) == {  # type: ignore[dict-item]
        "fastest/a and b": 2, "fastest/a": 1, "cheapest/a": 3, "at_8_tokens_per_s/none": 3,
    }  # fmt: skip


def test_the_fastest_that_drafts_on_a_device_stands_for_devices() -> None:
    made = replace(contest(), contenders=CONTENDERS | {"other_drafts": CONTENDERS["device_drafts"]})
    s_per_token = {"cloud_speculative": 0.10, "device_drafts": 0.30, "other_drafts": 0.20}
    states = {name: (SteadyState((each,), each),) * 2 for name, each in s_per_token.items()}
    found = dict(stages._device_against_cloud(made, Place(30.0, 0.6, "slow", 8), states))
    assert found["device_of_cloud"] == {"by_seed": {"0": pytest.approx(2.0), "1": pytest.approx(2.0)}}


def test_a_map_of_too_many_places_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the grid has 16 places, more than max_places=15"):
        map_winners(tmp_path, progress=silent, work=tmp_path, grid=GRID, max_places=15, **CONTEST)


def test_the_table_of_borders_counts_what_agrees(folders: tuple[Path, Path], tmp_path: Path) -> None:
    out, work = tmp_path / "out", tmp_path / "work"
    out.mkdir()
    work.mkdir()
    window = Window(4, (0.9,), longest_ms=100, num_devices=(1,))
    find_borders(out, progress=silent, work=work, winners=folders[0], window=window, max_refined=1, **CONTEST)
    rows = table(out)
    assert [name.split(":")[0] for name in rows][:3] == ["window", "order", "capacity"]
    cells = [cell for own in rows.values() for cell in own.values()]
    assert table(out, "metrics.json") == {
        f"borders/{kind}/{text}": sum(cell.get(kind) == text for cell in cells)
        for kind in ("agrees", "refined_agrees")
        for text in ("agrees", "differs")
    }


def test_what_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    wrong = {**CONTEST, "runtime": Simulated(ConstantAcceptance(0.7))}
    with pytest.raises(ValueError, match="ConstantAcceptance cannot be shifted; choose runtime/outcomes=shifted"):
        map_winners(tmp_path, progress=silent, work=tmp_path, grid=GRID, **wrong)
    with pytest.raises(ValueError, match="lossy changes the text"):
        check_map_winners(**{**CONTEST, "contenders": {**CONTENDERS, "lossy": policy("synera")}})
    with pytest.raises(ValueError, match=r"promised_tokens_per_s is \[0.0\]"):
        check_map_winners(**CONTEST, promised_tokens_per_s=(0.0,))
    for check in (check_map_winners, check_find_borders):
        with pytest.raises(ValueError, match="give 1 to 10 different ones"):
            check(**{**CONTEST, "seeds": tuple(range(11))})
    for resolution in (0.0, -1.0, 1.0):
        with pytest.raises(ValueError, match=f"resolution is {resolution}; it is a share"):
            check_find_borders(**CONTEST, resolution=resolution)
    two = {name: CONTENDERS[name] for name in ("cloud_decoding", "device_drafts")}
    with pytest.raises(ValueError, match="cloud_window is missing"):
        check_find_borders(**{**CONTEST, "contenders": two})
