from collections import Counter

import pytest

from serving.workload.slo import SloClass, assign_classes, check_classes

CLASSES = tuple(SloClass(name=f"{speed}", tokens_per_s=speed, share=0.25) for speed in (2, 4, 6, 8))


def test_every_class_has_its_share_of_the_requests():
    assert Counter(one.name for one in assign_classes(CLASSES, 102, seed=0)) in (
        {"2": 26, "4": 25, "6": 25, "8": 26},
        {"2": 26, "4": 25, "6": 26, "8": 25},
        {"2": 25, "4": 26, "6": 25, "8": 26},
    )
    uneven = (SloClass(name="a", tokens_per_s=1, share=0.9), SloClass(name="b", tokens_per_s=2, share=0.1))
    assert Counter(one.name for one in assign_classes(uneven, 50, seed=0)) == {"a": 45, "b": 5}


def test_the_seed_decides_which_request_gets_which_class():
    assert assign_classes(CLASSES, 40, seed=0) == assign_classes(CLASSES, 40, seed=0)
    assert assign_classes(CLASSES, 40, seed=0) != assign_classes(CLASSES, 40, seed=1)
    assert len({one.name for one in assign_classes(CLASSES, 40, seed=0)[:10]}) > 1


def test_without_classes_requests_have_no_slo():
    check_classes(())
    assert assign_classes((), 2, seed=0) == [None, None]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"tokens_per_s": 0}, "SLO class x: tokens_per_s must be above 0, got 0"),
        ({"tokens_per_s": 1, "ttft_s": 0}, "ttft_s must be above 0 seconds or null"),
        ({"tokens_per_s": 1, "share": 1.5}, "share must be above 0 and at most 1, got 1.5"),
    ],
)
def test_a_class_out_of_range_is_refused(values, message):
    with pytest.raises(ValueError, match=message):
        SloClass(name="x", **values)


def test_shares_and_names_are_checked():
    with pytest.raises(ValueError, match=r"add up to 1, got 0.75 \(2, 4, 6\)"):
        check_classes(CLASSES[:3])
    with pytest.raises(ValueError, match="names a class twice: 2, 2"):
        check_classes((CLASSES[0], CLASSES[0]))
