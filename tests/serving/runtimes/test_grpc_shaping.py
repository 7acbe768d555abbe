"""Where and when runtime `grpc` shapes its links; no process is started."""

from contextlib import nullcontext
from dataclasses import replace

import pytest

from serving.deployment.topology import Topology
from serving.network.outages import PeriodicOutages
from serving.runtimes.grpc import Grpc
from serving.runtimes.process_group import ProcessGroup
from serving.transport.limits import Limits
from serving.transport.security import Security
from tests.support.fake_pair import LAYERS
from tests.support.fake_setup import setup

ADDRESS = "127.0.0.1:4711"
TOPOLOGY = Topology(setup(), LAYERS)


class LoggedGroup(ProcessGroup):
    """A process group that starts no process and logs the messages."""

    def __init__(self, runtime, folder=None, apply_shaping=None):
        super().__init__(TOPOLOGY, (), runtime._process_options("cpu"), runtime.device_processes, folder, apply_shaping)
        self.log = []

    def _running(self, nodes_of):
        return nullcontext()

    def _receive_from(self, name, kind):
        self.log.append(kind)
        return ADDRESS

    def _send(self, names, kind, value):
        self.log.append(kind)

    def _wait_until_answered(self, progress):
        self.log.append("all answered")


def test_an_unknown_shaping_is_refused():
    with pytest.raises(ValueError, match=r"runtime\.shaping is True; it must be one of user, tc, none"):
        Grpc(shaping=True)


@pytest.mark.parametrize("timeout_s", [0.0, -1.0])
def test_a_timeout_that_is_never_or_always_over_is_refused(timeout_s):
    with pytest.raises(ValueError, match=r"runtime\.timeout_s is -?\d\.0; it must be above 0 s, or null"):
        Grpc(timeout_s=timeout_s)


@pytest.mark.parametrize("half", [{"certificate": "c.pem", "private_key": "k.pem"}, {"ca_certificate": "c.pem"}])
def test_tls_with_only_one_end_configured_is_refused(half):
    with pytest.raises(ValueError, match=r"runtime\.security: \w+ is given without \w+, but both ends"):
        Grpc(security=Security(**half))


def test_more_running_sessions_than_a_cloud_keeps_are_refused():
    crowded = setup("sled", limits={"max_concurrency": 65})
    with pytest.raises(ValueError, match=r"max_concurrency is 65, but a cloud keeps .*sessions_per_node=64"):
        Grpc().check(crowded)
    Grpc(limits=Limits(sessions_per_node=65)).check(crowded)
    Grpc().check(setup("edge_centric", limits={"max_concurrency": 65}))


def test_links_that_the_kernel_cannot_hold_are_refused_before_any_work():
    broken = replace(setup().network, outages=PeriodicOutages(period_s=20, duration_s=3))
    with pytest.raises(ValueError, match=r"runtime\.shaping=tc: network\.outages is Periodic"):
        Grpc(shaping="tc").check(setup(network=broken))
    Grpc(shaping="user").check(setup(network=broken))
    Grpc(shaping="tc").check(setup("edge_centric", network=broken))  # sends nothing


def test_the_description_names_the_shaping():
    assert {Grpc(shaping=each).described.rpartition(", ")[2] for each in ("user", "tc", "none")} == {
        "shaped in user space",
        "shaped by the kernel (tc netem)",
        "not shaped",
    }


def test_the_kernel_shapes_after_listening_and_before_dialling():
    group = LoggedGroup(Grpc(shaping="tc"), None, lambda addresses: group.log.append([*addresses]))
    group.run(None)
    assert group.log[:4] == ["listening", [ADDRESS], "dial", "dial"]
    assert group.log[4:] == ["joined", "joined", "joined", "play", "all answered", "stop"]


@pytest.mark.parametrize(("shaping", "in_process"), [("user", True), ("tc", False), ("none", False)])
def test_a_process_shapes_its_links_only_with_user_shaping(shaping, in_process, tmp_path):
    group = LoggedGroup(Grpc(shaping=shaping), tmp_path)
    assert group._process_config("cloud-0", ("cloud-0",), ADDRESS).options.shaped is in_process


def test_the_kernel_shapes_the_links_of_devices_that_have_a_cloud():
    topology = Topology(setup(devices=3), LAYERS)
    assert Grpc(shaping="tc")._kernel_links(topology) == [topology.setup.network] * 3
    assert Grpc(shaping="user")._kernel_links(topology) == []
    assert Grpc(shaping="tc")._kernel_links(Topology(setup("edge_centric"), LAYERS)) == []
