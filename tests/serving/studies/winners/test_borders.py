"""Borders of made-up advantages, and of simulated contenders beside the closed forms."""

from dataclasses import replace
from pathlib import Path

import pytest

from serving.hardware.latency import batch_load
from serving.policy.slots.scheduler import ContinuousBatch
from serving.studies.winners.border_finder import AGREES, DIFFERS, BorderFinder, Window
from serving.studies.winners.borders import FINEST_STEP, Border, Rivals, find_border
from serving.studies.winners.known_states import KnownStates
from serving.studies.winners.place import Place
from tests.serving.studies.winners.contest_setup import CONTENDERS, contest


def test_a_border_is_bisected_and_interpolated_by_seed() -> None:
    asked = []

    def advantage(value: float) -> list[float]:
        asked.append(value)
        return [value - 30, 2 * (value - 30.5)]

    found = find_border(advantage, 0.0, 100.0, 0.1)
    assert found.by_seed == (pytest.approx(30), pytest.approx(30.5))
    assert found.low < 30 < found.high <= found.low + 0.1 * found.high
    assert found.faster_at_low
    assert len(asked) == len(set(asked))


def test_whole_numbers_are_bisected_to_neighbours() -> None:
    found = find_border(lambda n: [5.5 - n], 1, 64, 0.0, whole=True)
    assert (found.low, found.high, found.faster_at_low) == (5, 6, False)
    assert found.by_seed == (pytest.approx(5.5),)


@pytest.mark.parametrize(("border", "resolution"), [(0.0, 0.05), (7.3, 0.0)])
def test_a_border_at_0_and_one_without_a_resolution_are_bisected_to_the_finest_step(
    border: float, resolution: float
) -> None:
    asked = []

    def advantage(value: float) -> list[float]:
        asked.append(value)
        assert len(asked) < 100
        return [value - border or -1.0]

    found = find_border(advantage, 0.0, 400.0, resolution)
    assert found.low <= border <= found.high <= found.low + FINEST_STEP


def test_without_a_change_there_is_no_border() -> None:
    assert find_border(lambda _: [1.0], 0, 10, 0.1) == Border(None, 0, 10, False)
    assert find_border(lambda _: [1.0], 0, 10, 0.1).text == "below 0"
    assert find_border(lambda _: [-1.0], 0, 10, 0.1).text == "beyond 10"


def test_a_seed_without_a_border_of_its_own_has_the_nearer_end() -> None:
    found = find_border(lambda value: [value - 5.0, value + 100.0], 0, 10, 1.0)
    assert found == Border(None, 0, 10, False)
    one = find_border(lambda value: [value - 5.0, value - 1.0], 0, 10, 1.0)
    assert one.by_seed == (pytest.approx(5.0), pytest.approx(1.0))


def finder(tmp_path: Path) -> BorderFinder:
    made = contest()
    window = Window(4, (0.6, 0.8, 0.9), longest_ms=200, num_devices=(1, 4))
    return BorderFinder(made, KnownStates(made, tmp_path), window, 0.1)


def test_rivals_are_compared_by_seconds_a_token(tmp_path: Path) -> None:
    made = contest()
    rivals = Rivals(made, KnownStates(made, tmp_path), "cloud_window", "cloud_decoding")
    near = rivals.advantage(Place(0.0, 0.9, "fast", 1), "round_trip_ms")(10.0)
    assert len(near) == 2
    assert max(near) < 0
    assert rivals.advantage(Place(10.0, 0.9, "fast", 8), "num_devices")(1.0) == near


def test_round_times_are_those_of_the_chips(tmp_path: Path) -> None:
    alone, batch = (finder(tmp_path).round_times("fast", n) for n in (1, 64))
    assert alone.device_draft_s == pytest.approx(0.02, rel=0.1)  # a device that drafts 50 tokens/s
    assert alone.cloud_draft_s < alone.device_draft_s < finder(tmp_path).round_times("slow").device_draft_s
    assert alone.decode_s <= alone.verify_s < batch.verify_s
    assert batch.device_draft_s == alone.device_draft_s
    assert alone.device_prompt_s > 0


def test_a_round_is_of_the_middle_of_an_answer_and_of_both_its_messages(tmp_path: Path) -> None:
    """40 tokens of the prompt and 6 of 12; a window of 4 and the token before it; 3 ms of the stack each way."""
    made = finder(tmp_path).contest
    own = replace(made.setup, network=replace(made.setup.network, message_ms=3.0))
    times = replace(finder(tmp_path), contest=replace(made, setup=own)).round_times("fast")
    target = own.pair.cloud.timed_architecture
    assert own.hardware.cloud is not None
    latency = own.hardware.cloud.latency(target)
    assert times.verify_s == latency.seconds(batch_load(target.layers, [(46, 5)], 5.0))
    assert times.decode_s == latency.seconds(batch_load(target.layers, [(46, 1)], 1.0))
    assert times.other_s == pytest.approx(0.006)


def test_the_closed_forms_stand_beside_what_is_found(tmp_path: Path) -> None:
    """A device that drafts as slowly as the cloud decodes is never faster, as the inequality says."""
    found = {(group, row): find for group, row, find in finder(tmp_path).tasks()}
    window, order, busy, _ = dict.fromkeys(group for group, _ in found)
    assert len(found) == 2 * 3 + 2 + 2 * 2
    slow = found[window, "slow, acceptance 0.9"]()
    assert (slow["found"], slow["agrees"]) == ("none", AGREES)
    assert slow["predicted"] < 0
    order = found[order, "slow"]()
    assert (order["found"], order["agrees"]) == ("none", AGREES)
    alone, four = found[busy, "1 devices"](), found[busy, "4 devices"]()
    assert alone["predicted"] == alone["refined"] == four["predicted"]
    assert four["refined"] != four["predicted"]
    assert slow["refined"] < slow["predicted"]
    assert all(value > 1 for value in alone["found"]["by_seed"].values())


def test_a_pass_takes_as_many_sessions_as_its_scheduler_has_rows_for(tmp_path: Path) -> None:
    made = finder(tmp_path)
    bounded = replace(CONTENDERS["device_drafts"], scheduler=ContinuousBatch(64, 256))
    other = replace(made, contest=replace(made.contest, contenders={**CONTENDERS, "device_drafts": bounded}))
    assert [made._pass_sessions(n) for n in (1, 64, 512)] == [1, 64, 256]
    assert [other._pass_sessions(n) for n in (1, 64, 512)] == [1, 51, 51]  # 256 rows, 5 a session


def test_what_is_found_agrees_within_the_tolerance(tmp_path: Path) -> None:
    made = finder(tmp_path)
    found = Border((50.0, 54.0), 50, 54, True)
    assert [made._agrees(predicted, found) for predicted in (46, 48, 57, 58)] == [DIFFERS, AGREES, AGREES, DIFFERS]
    nowhere, everywhere = Border(None, 0, 200, False), Border(None, 0, 200, True)
    assert [made._agrees(predicted, nowhere) for predicted in (-5, 4, 6)] == [AGREES, AGREES, DIFFERS]
    assert [made._agrees(predicted, everywhere) for predicted in (201, 150)] == [AGREES, DIFFERS]


def test_the_larger_of_both_tolerances_counts(tmp_path: Path) -> None:
    made = finder(tmp_path)
    near, far = Border((10.0, 10.0), 10, 10, True), Border((150.0, 154.0), 150, 154, True)
    assert [made._agrees(predicted, near) for predicted in (4.9, 5.1)] == [DIFFERS, AGREES]
    assert [made._agrees(predicted, far) for predicted in (136, 138)] == [DIFFERS, AGREES]


def test_neighbours_with_other_winners_are_refined(tmp_path: Path) -> None:
    def cell(rtt: float, count: int, fastest: str) -> dict[str, object]:
        return {"round_trip_ms": rtt, "acceptance": 0.8, "device": "fast", "num_devices": count, "fastest": fastest}

    rows = {
        "a": {"0": cell(0.0, 1, "cloud_window = device_drafts"), "1": cell(80.0, 1, "device_drafts")},
        "b": {"0": cell(0.0, 8, "cloud_decoding"), "1": cell(80.0, 8, "cloud_window")},
    }
    tasks = list(finder(tmp_path).refinements(rows, 9))
    assert {(group, row) for group, row, _ in tasks} == {
        ("devices", "fast, 0 ms, acceptance 0.8: cloud_window, then cloud_decoding"),
        ("devices", "fast, 80 ms, acceptance 0.8: device_drafts, then cloud_window"),
        ("round trip, ms", "fast, 8 devices, acceptance 0.8: cloud_decoding, then cloud_window"),
    }
    assert len(list(finder(tmp_path).refinements(rows, 2))) == 2
    winners = ("cloud_window", "device_drafts", "cloud_window", "device_drafts")
    line = {"a": {str(i): cell(40.0 * i, 1, name) for i, name in enumerate(winners)}}
    assert [row for _, row, _ in finder(tmp_path).refinements(line, 9)] == [
        "fast, 1 devices, acceptance 0.8: cloud_window, then device_drafts",
        "fast, 1 devices, acceptance 0.8: device_drafts, then cloud_window",
        "fast, 1 devices, acceptance 0.8: cloud_window, then device_drafts, 80 to 120",
    ]
    assert {cells["unit"] for cells in (find() for _, _, find in tasks)} == {"ms", "devices"}
