"""Words of cells, and devices dealt to networks."""

import pytest

from pipeline.answers import words


def test_of_two_words_with_one_key_the_later_holds_and_groups_come_first() -> None:
    found = words.joined(["network=wifi", "seed=0"], ["policy.draft.k=2"], ["+network=lte", "seed=3", "policy=sled"])
    assert set(found) == {"+network=lte", "policy=sled", "policy.draft.k=2", "seed=3"}
    groups = [place for place, word in enumerate(found) if "." not in word.partition("=")[0]]
    assert groups == [0, 1, 2]


def test_words_below_a_key_are_left_out_and_keys_that_only_begin_alike_are_not() -> None:
    given = ["require.lossless=false", "+require=x", "requirement=1", "~choose.policies.hat", "seed=1"]
    assert words.without(given, ("require", "choose")) == ["requirement=1", "seed=1"]


def test_devices_are_dealt_by_shares() -> None:
    assert words.deal({"wifi": 60, "lte": 30, "flaky": 10}, 10) == {"wifi": 6, "lte": 3, "flaky": 1}
    assert words.deal({"wifi": 1, "lte": 1, "flaky": 1}, 4) == {"wifi": 2, "lte": 1, "flaky": 1}
    assert sum(words.deal({"a": 0.17, "b": 0.46, "c": 0.37}, 7).values()) == 7


def test_a_mixture_of_networks_is_a_testbed_of_several_fleets() -> None:
    fleet = {"chip": "pixel7", "software": None, "count": 8, "network": None, "heat": "cold", "precision": "fp16"}
    assert words.mixed_networks({"wifi": 3, "lte": 1}, fleet, 4) == (
        "hardware.device=null",
        "+hardware.fleets=[{chip:pixel7,heat:cold,precision:fp16,count:3,network:wifi},"
        "{chip:pixel7,heat:cold,precision:fp16,count:1,network:lte}]",
    )


@pytest.mark.parametrize(
    ("networks", "fleet", "said"),
    [({"wifi": 0}, {"chip": "pixel7"}, "wifi: 0"), ({"wifi": 1}, {"chip": {"name": "own"}}, "chip has options")],
)
def test_a_mixture_that_cannot_be_written_is_refused(
    networks: dict[str, float], fleet: dict[str, object], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        words.mixed_networks(networks, fleet, 4)
