import pytest

from serving.network.link import Link
from serving.network.outages import PeriodicOutages
from serving.network.two_columns import TwoColumnTrace
from serving.network.ucc_5g import PingTrace
from serving.transport.shaping.netem import (
    CommandError,
    common_link,
    netem_arguments,
    removal_command,
    run_command,
    setup_commands,
    shaping_notes,
)
from serving.transport.shaping.tc import check_machine, scratch_device
from tests.support.conf_files import fields, link, names

PLAIN = {"uplink_mbps": 10, "downlink_mbps": 80, "delay_ms": 50}

CONSTANT = [name for name in names("network") if not {"uplink", "downlink", "outages"} & fields("network", name).keys()]


@pytest.mark.parametrize(
    ("figures", "direction", "told"),
    [
        ({}, "up", "delay 50ms rate 10mbit"),
        ({}, "down", "delay 50ms rate 80mbit"),
        ({"delay_ms": 0}, "up", "delay 0ms rate 10mbit"),
        ({"uplink_mbps": 0.05}, "up", "delay 50ms rate 0.05mbit"),
        ({"uplink_mbps": 1e6}, "up", "delay 50ms rate 1000000mbit"),
        ({"uplink_mbps": 1e-9}, "up", "delay 50ms rate 0.000008mbit"),
        ({"jitter_ms": 5}, "up", "delay 52.5ms 2.5ms rate 10mbit"),
        (
            {"jitter_ms": 10, "jitter_shape": "half_normal"},
            "up",
            "delay 57.978846ms 6.028103ms distribution normal rate 10mbit",
        ),
        ({"loss": 0.015}, "down", "delay 50ms loss random 1.5% rate 80mbit"),
        ({"message_ms": 3, "overhead_nbytes": 100, "timeout_ms": 900}, "up", "delay 50ms rate 10mbit"),
    ],
)
def test_netem_arguments_of_one_direction(figures, direction, told):
    assert " ".join(netem_arguments(Link(**PLAIN | figures), direction)) == f"netem limit 10000 {told}"


def test_commands_shape_only_tcp_of_the_clouds_ports():
    told = [" ".join(command) for command in setup_commands(Link(**PLAIN), ("127.0.0.1:4711", "127.0.0.1:4712"))]
    tcp = "tc filter add dev lo parent 7a7d: protocol ip prio 1 u32 match ip protocol 6 0xff"
    assert told == [
        "tc qdisc add dev lo root handle 7a7d: prio bands 3 priomap 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0",
        "tc qdisc add dev lo parent 7a7d:2 netem limit 10000 delay 50ms rate 10mbit",
        "tc qdisc add dev lo parent 7a7d:3 netem limit 10000 delay 50ms rate 80mbit",
        f"{tcp} match ip dst 127.0.0.1/32 match ip dport 4711 0xffff flowid 7a7d:2",
        f"{tcp} match ip src 127.0.0.1/32 match ip sport 4711 0xffff flowid 7a7d:3",
        f"{tcp} match ip dst 127.0.0.1/32 match ip dport 4712 0xffff flowid 7a7d:2",
        f"{tcp} match ip src 127.0.0.1/32 match ip sport 4712 0xffff flowid 7a7d:3",
    ]
    assert " ".join(removal_command()) == "tc qdisc del dev lo root handle 7a7d:"


def test_every_command_names_the_device():
    assert {command[command.index("dev") + 1] for command in setup_commands(Link(**PLAIN), ("127.0.0.1:1",), "x")} == {
        "x"
    }


def asked(device, link, direction):
    """Has tc understood? A kernel without netem refuses only what tc has understood, in words of its own."""
    try:
        run_command(("tc", "qdisc", "replace", "dev", device, "root", *netem_arguments(link, direction)))
    except CommandError as error:
        return "qdisc kind is unknown" in str(error)
    return True


def test_tc_accepts_every_constant_link():
    try:
        check_machine()
    except ValueError as reason:
        pytest.skip(f"tc cannot be asked: {reason}")
    links = [*(link(name) for name in CONSTANT), Link(**PLAIN, loss=0.015)]
    assert {each.jitter_shape for each in links if each.jitter_ms} == {"uniform", "half_normal"}
    with scratch_device(run_command) as device:
        assert [each for each in links if not all(asked(device, each, way) for way in ("up", "down"))] == []
        with pytest.raises(CommandError, match="fastmbit"):
            run_command(("tc", "qdisc", "replace", "dev", device, "root", "netem", "rate", "fastmbit"))


def test_devices_with_different_links_are_refused():
    with pytest.raises(ValueError, match=r"fleets of hardware have different links.*shaping=user"):
        common_link([Link(**PLAIN), Link(**PLAIN | {"delay_ms": 5})])
    assert common_link([Link(**PLAIN), Link(**PLAIN)]) == Link(**PLAIN)


def test_tc_shaping_refuses_a_trace(tmp_path):
    path = tmp_path / "trace"
    path.write_text("1 8\n2 16\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"network\.uplink is TwoColumnTrace.*one constant rate.*shaping=user"):
        common_link([Link(**PLAIN | {"uplink_mbps": None, "uplink": TwoColumnTrace(path=path)})])


def test_tc_shaping_refuses_a_recorded_delay(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("Timestamp,State,PINGAVG\n2019.12.16_11.49.10,D,94\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"network\.delay is PingTrace.*one constant delay.*shaping=user"):
        common_link([Link(**PLAIN | {"delay_ms": 0}, delay=PingTrace(path=path))])


def test_tc_shaping_refuses_outages():
    with pytest.raises(ValueError, match=r"network\.outages is Periodic.*never down.*shaping=user"):
        common_link([Link(**PLAIN, outages=PeriodicOutages(period_s=20, duration_s=3))])


def test_shaping_notes_name_the_differences_to_user_space():
    assert shaping_notes([]) == ()
    (lone,) = shaping_notes([Link(**PLAIN)])
    assert "overhead_nbytes" in lone
    assert not any(word in lone for word in ("share", "timeout_ms", "half-normal"))
    rough = Link(**PLAIN, loss=0.01, jitter_ms=5, jitter_shape="half_normal")
    (several,) = shaping_notes([rough] * 3)
    assert all(word in several for word in ("3 devices share", "timeout_ms", "half-normal"))
