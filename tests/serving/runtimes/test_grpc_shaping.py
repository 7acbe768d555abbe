"""What stands before the connections of runtime `grpc`, and when; no process is started."""

from contextlib import nullcontext

import pytest
from fake_setup import LAYERS, setup

from serving.deployment.topology import Topology
from serving.runtimes import process_group as crews
from serving.runtimes.grpc import Grpc
from serving.transport.security import Security

ADDRESS = "127.0.0.1:4711"


class Crew(crews.ProcessGroup):
    """A crew that only writes down what it is told."""

    def __init__(self, runtime, cast, shape):
        super().__init__(runtime, cast, (), "cpu", None, shape)
        self.told = []

    def _running(self, parts):
        return nullcontext()

    def _receive_from(self, name, word):
        self.told.append(word)
        return ADDRESS

    def _send(self, names, word, value):
        self.told.append(word)

    def _wait_until_answered(self, progress):
        self.told.append("all answered")


def test_an_unknown_shaping_is_refused():
    with pytest.raises(ValueError, match=r"runtime\.shaping is True; it must be one of user, tc, none"):
        Grpc(shaping=True)


@pytest.mark.parametrize("half", [{"certificate": "c.pem", "key": "k.pem"}, {"authority": "c.pem"}])
def test_half_of_what_tls_needs_is_refused(half):
    with pytest.raises(ValueError, match=r"runtime\.security: \w+ is given without \w+, but both ends"):
        Grpc(security=Security(**half))


def test_each_shaping_says_what_it_is():
    assert {Grpc(shaping=each).described.rpartition(", ")[2] for each in ("user", "tc", "none")} == {
        "shaped in user space",
        "shaped by the kernel (tc netem)",
        "not shaped",
    }


def test_the_kernel_shapes_when_the_ports_are_known_and_nobody_has_dialled():
    crew = Crew(Grpc(shaping="tc"), Topology(setup(), LAYERS), lambda addresses: crew.told.append([*addresses]))
    crew.run(None)
    assert crew.told[:4] == ["listening", [ADDRESS], "dial", "dial"]
    assert crew.told[4:] == ["joined", "joined", "joined", "play", "all answered", "stop"]


@pytest.mark.parametrize(("shaping", "in_process"), [("user", True), ("tc", False), ("none", False)])
def test_a_process_shapes_only_in_user_space(shaping, in_process, tmp_path):
    cast = Topology(setup(), LAYERS)
    crew = Crew(Grpc(shaping=shaping), cast, None)
    crew.folder = tmp_path
    assert crew._process_config("cloud-0", ("cloud-0",), ADDRESS).shaped is in_process


def test_the_kernel_is_asked_for_the_links_of_those_who_have_a_cloud():
    cast = Topology(setup(devices=3), LAYERS)
    assert Grpc(shaping="tc")._kernel_links(cast) == [cast.setup.network] * 3
    assert Grpc(shaping="user")._kernel_links(cast) == []
    assert Grpc(shaping="tc")._kernel_links(Topology(setup("edge_centric"), LAYERS)) == []
