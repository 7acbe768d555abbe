"""The dispatch network: its features, its artifact, and the nodes that it chooses."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving.core.queued_request import Task
from serving.learned.dispatch_network import (
    HEADER,
    LAYER_NAMES,
    NODE_FEATURES,
    TASK_FEATURES,
    WEIGHTS,
    DispatchNetwork,
    graph_features,
    load,
)
from serving.messages import INF, LoadReport
from serving.policy.partition.baselines import GPipeSplit
from serving.policy.partition.division import ModelPartition
from serving.policy.slots.dispatch import HypSched, LearnedDispatch
from serving.policy.slots.placement import TieredPlacement
from serving.policy.slots.scheduler import Fifo
from serving.runtimes.emulated import simulate
from tests.support.conf_files import bed, chip, fleet, link
from tests.support.fake_setup import models, queries, setup
from tests.support.learned_models import earliest_completion_network, random_dispatch_network

TASK_OF_8 = Task("s", 17, 8, 24, 0)


def backlogs(queued_s: list[float], **more: Any) -> list[LoadReport]:
    return [LoadReport(f"n{i}", each, more.get("row_s", 0.01), more.get("step_s", 0.1), more.get("free", INF))
            for i, each in enumerate(queued_s)]  # fmt: skip


def test_node_features_are_relative_to_the_tasks_own_time() -> None:
    task, nodes = graph_features(
        TASK_OF_8, [LoadReport("a", 1.92, 0.01, 0.1, 12), LoadReport("b", 0.0, 0.01, 0.1, INF)]
    )
    assert task == pytest.approx([17 / 81, 0.5, 0.5])
    own = 16 * 0.01 + 8 * 0.1
    assert nodes[0] == pytest.approx([1.92 / own, 0.8 / own, 0.16 / own, 1.92 / own + 1, 12 / 24 / 4, 0])
    assert nodes[1] == pytest.approx([0, 0.8 / own, 0.16 / own, 1, 1, 1])
    assert (len(task), len(nodes[0])) == (len(TASK_FEATURES), len(NODE_FEATURES))


def test_scaling_all_speeds_changes_no_score() -> None:
    fast, slow = (
        random_dispatch_network(3).scores(TASK_OF_8, backlogs([0.0, k, 3 * k], row_s=0.01 * k, step_s=0.1 * k))
        for k in (1, 16)
    )
    assert fast == pytest.approx(slow)


@pytest.mark.parametrize("k", [2, 3, 7, 40])
def test_any_number_of_nodes_is_scored_and_their_order_does_not_matter(k: int) -> None:
    waiting = [0.3 * i % 1.1 for i in range(k)]
    forwards, backwards = (
        random_dispatch_network(1).scores(TASK_OF_8, backlogs(each)) for each in (waiting, waiting[::-1])
    )
    assert len(forwards) == k
    assert forwards == pytest.approx(backwards[::-1])


@pytest.mark.parametrize("k", range(2, 20))
def test_equal_nodes_have_equal_scores_to_the_last_bit(k: int) -> None:
    """Else rounding would choose, and not the first of them."""
    nodes = backlogs([0.7] + [0.1] * k)
    assert len(set(random_dispatch_network(k).scores(TASK_OF_8, nodes)[1:])) == 1
    assert LearnedDispatch(earliest_completion_network()).choose(TASK_OF_8, nodes) == "n1"


def test_nodes_that_do_not_know_their_speed_are_scored() -> None:
    assert np.isfinite(
        random_dispatch_network(0).scores(TASK_OF_8, backlogs([0.0, 0.0], row_s=0.0, step_s=0.0, free=-1e9))
    ).all()


def test_a_saved_dispatch_network_is_loaded(tmp_path: Path) -> None:
    dispatcher = replace(random_dispatch_network(5), metrics={"served/learned": 1.5}, made_from={"seed": "0"})
    dispatcher.save(tmp_path)
    found = load(tmp_path)
    assert repr(found) == repr(dispatcher) == f"dispatcher of width 4 {dispatcher.digest[:12]}"
    nodes = backlogs([0.1, 0.5, 0.2])
    assert found.scores(TASK_OF_8, nodes) == dispatcher.scores(TASK_OF_8, nodes)
    assert (found.metrics, found.made_from) == (dispatcher.metrics, dispatcher.made_from)


@pytest.mark.parametrize(("change", "said"), [
    ({"version": 9}, "version 9"), ({"sha256": "0" * 64}, "was written for 000000000000"),
    ({"graph": {"message_rounds": 3}}, "its graph is"), ({"metrics": None}, "TypeError"),
])  # fmt: skip
def test_a_header_that_contradicts_the_weights_is_refused(tmp_path: Path, change: dict[str, object], said: str) -> None:
    random_dispatch_network(0).save(tmp_path)
    header = json.loads((tmp_path / HEADER).read_text())
    (tmp_path / HEADER).write_text(json.dumps(header | change))
    with pytest.raises(ValueError, match=said) as caught:
        load(tmp_path)
    assert str(tmp_path / HEADER) in str(caught.value)
    assert "stage=train" in str(caught.value)


@pytest.mark.parametrize("file", [HEADER, WEIGHTS])
def test_a_damaged_dispatch_network_is_refused(tmp_path: Path, file: str) -> None:
    random_dispatch_network(0).save(tmp_path)
    (tmp_path / file).write_bytes((tmp_path / file).read_bytes()[:40])
    with pytest.raises(ValueError, match="cannot be read"):
        load(tmp_path)


def test_a_folder_without_a_dispatcher_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"policy\.dispatch\.dispatcher\.path names a folder"):
        load(tmp_path)


@pytest.mark.parametrize("name", LAYER_NAMES)
def test_dispatch_layers_that_do_not_fit_are_refused(name: str) -> None:
    layers = dict(random_dispatch_network(0).layers)
    weight, bias = layers[name]
    with pytest.raises(ValueError, match="a dispatcher has layers"):
        DispatchNetwork({key: layer for key, layer in layers.items() if key != name} | {"another": layers[name]})
    with pytest.raises(ValueError, match=f"layer {name}|layer "):
        DispatchNetwork(layers | {name: (weight[:, :-1], bias)})
    with pytest.raises(ValueError, match="not finite"):
        DispatchNetwork(layers | {name: (weight * np.float32("nan"), bias)})


def test_a_network_of_completion_times_dispatches_as_hypsched() -> None:
    """A network that reads nothing but the completion time, on unequal nodes of two tiers."""
    plain = bed("hyperion_2_tiers")
    slow = replace(fleet("jetson_agx_orin_32gb", mode="15W"), chip=chip("jetson_agx_orin_32gb"))
    tiers = {name: replace(tier, other_nodes=(slow,)) for name, tier in plain.tiers.items()}
    hardware = replace(plain, tiers=tiers)

    def served(dispatch: Any) -> dict[str, Any]:
        one = setup(
            "cloud_centric", hardware=hardware, network=link("lan_1gbps"),
            override={"scheduler": Fifo(), "dispatch": dispatch, "placement": TieredPlacement(
                ModelPartition(GPipeSplit(), setup().pair.cloud.timed_architecture, tiers, link("lan_1gbps"), 16, 24)
            )},
        )  # fmt: skip
        return simulate(one, models(), queries(12, at_s=0.0))

    learned, other = (
        served(LearnedDispatch(earliest_completion_network())),
        served(LearnedDispatch(random_dispatch_network(2))),
    )
    assert learned == served(HypSched())
    assert {record.ending for record in other.values()} == {"complete"}
    assert other != learned
