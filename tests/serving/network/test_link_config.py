"""Traces and outages in a configuration: checked before work, and identified by the content of the file."""

from pathlib import Path

import pytest

from pipeline.artifacts.stage import CONTENT
from pipeline.config.build import ConfigSchema, construct
from pipeline.errors import ConfigError
from serving.network.link import Link
from serving.network.mahimahi import MahimahiTrace
from serving.network.outages import ListedOutages

SCHEMA = ConfigSchema(lambda path: f"sha of {path.read_text()}", lambda target, name: None)
MAHIMAHI = "serving.network.mahimahi.MahimahiTrace"


def made(node):
    return construct(SCHEMA.coerce(node, Link, "network"), None)


def test_a_configured_link_builds(written):
    path = written("5\n10\n")
    found = made(
        {
            "uplink": {"_target_": MAHIMAHI, "path": str(path)},
            "downlink_mbps": 8,
            "outages": {"_target_": "serving.network.outages.ListedOutages", "intervals": [[1, 2], [3, 4.5]]},
        }
    )
    assert found == Link(
        uplink=MahimahiTrace(path=path), downlink_mbps=8.0, outages=ListedOutages(((1.0, 2.0), (3.0, 4.5)))
    )


def test_a_trace_is_identified_by_its_content(written):
    path = written("5\n10\n")
    data = SCHEMA.coerce({"uplink": {"_target_": MAHIMAHI, "path": str(path)}, "downlink_mbps": 8}, Link, "network")
    assert data["uplink"]["path"] == {CONTENT: "sha of 5\n10\n", "path": str(path)}


def test_a_malformed_trace_is_refused_when_the_configuration_is_read(written):
    path = written("5\nten\n")
    with pytest.raises(ConfigError, match=r"trace.txt line 2: found 'ten', needed is one time in whole milliseconds"):
        made({"uplink": {"_target_": MAHIMAHI, "path": str(path)}, "downlink_mbps": 8})


def test_only_the_files_that_are_missing_are_asked_for():
    missing = {"_target_": MAHIMAHI, "path": None}
    with pytest.raises(ConfigError, match=r"MahimahiTrace is .* none is given; set network\.downlink\.path=FILE\.$"):
        made({"uplink_mbps": 8, "downlink": missing})
    with pytest.raises(ConfigError, match=r"set network\.uplink\.path=FILE network\.downlink\.path=FILE\.$"):
        made({"uplink": missing, "downlink": missing})


def test_the_trace_of_a_future_stage_is_not_read():
    node = {"uplink": {"_target_": MAHIMAHI, "path": {"_stage_": "measured"}}, "downlink_mbps": 8}
    assert not isinstance(made(node).uplink.path, Path)
