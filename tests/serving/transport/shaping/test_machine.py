import os
import platform
import subprocess

import pytest

from serving.network.link import Link
from serving.transport.shaping.netem import CommandError, run_command
from serving.transport.shaping.tc import check_machine, check_netem, dry_run, may_administer, scratch_device

LINK = Link(uplink_mbps=10, downlink_mbps=10, delay_ms=50, loss=0.01)
ROOT = "Name:\tpython\nCapEff:\t000001fffeffffff\n"
PERSON = "Name:\tpython\nCapEff:\t0000000000000000\n"
ONLY_NETWORK = "Name:\tpython\nCapEff:\t0000000000001000\n"


class Kernel:
    """Keeps what it is told; fails at the first command that holds `fails`."""

    def __init__(self, fails="nothing fails"):
        self.told, self.fails = [], fails

    def __call__(self, command):
        text = " ".join(command)
        self.told.append(text)
        if self.fails in text:
            raise CommandError(f"`{text}`: refused")
        return ""


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"system": "Darwin"}, r"tc needs Linux, but this machine runs Darwin.*shaping=user"),
        ({"found": lambda tool: None}, r"no program 'tc' on this machine; install iproute2.*shaping=user"),
        ({"found": {"tc": "/sbin/tc"}.get}, r"no program 'ip' on this machine; install iproute2.*shaping=user"),
        ({"status": PERSON}, r"may not change the network: user \d+ lacks.*CAP_NET_ADMIN.*as root.*shaping=user"),
        ({"system": "Darwin", "status": PERSON}, r"needs Linux"),
        ({"found": lambda tool: None, "status": PERSON}, r"install iproute2"),
    ],
)
def test_missing_requirements_are_named_in_order(how, said):
    good = {"system": "Linux", "found": lambda tool: f"/sbin/{tool}", "status": ROOT}
    check_machine(**good)
    with pytest.raises(ValueError, match=rf"runtime\.shaping=tc: .*{said}"):
        check_machine(**good | how)


@pytest.mark.parametrize(("status", "may"), [(ROOT, True), (PERSON, False), (ONLY_NETWORK, True), ("", False)])
def test_cap_net_admin_is_read_from_the_process_status(status, may):
    assert may_administer(status) is may


def test_an_unprivileged_process_is_refused():
    if platform.system() != "Linux" or os.geteuid() != 0:
        pytest.skip("only root on Linux can become another user to try it")
    status = subprocess.run(["cat", "/proc/self/status"], user=65534, capture_output=True, text=True, check=True).stdout
    with pytest.raises(ValueError, match="lacks the capability CAP_NET_ADMIN"):
        check_machine(found=lambda tool: tool, status=status)


def test_commands_are_tried_on_a_temporary_device():
    kernel = Kernel()
    check_netem(kernel)
    dry_run(kernel, LINK)
    assert not any("dev lo" in told for told in kernel.told)
    assert sum(told.startswith("ip link add") for told in kernel.told) == 2
    assert sum(told.startswith("ip link del") for told in kernel.told) == 2


@pytest.mark.parametrize("fails", [" netem", "prio bands", "u32"])
def test_the_temporary_device_is_removed_after_a_refusal(fails):
    kernel = Kernel(fails)
    with pytest.raises(ValueError, match=r"runtime\.shaping=tc: the kernel.*refused.*shaping=user"):
        dry_run(kernel, LINK)
    assert kernel.told[-1].startswith("ip link del")


def test_a_process_that_cannot_create_a_device_is_refused_with_the_reason():
    kernel = Kernel("ip link add")
    with pytest.raises(ValueError, match=r"may not change the network: no temporary device.*refused.*CAP_NET_ADMIN"):
        check_netem(kernel)
    assert len(kernel.told) == 1


def test_a_kernel_without_netem_is_refused():
    try:
        check_machine()
    except ValueError as reason:
        pytest.skip(f"the kernel cannot be asked: {reason}")
    try:
        check_netem(run_command)
    except ValueError as refusal:
        said = str(refusal)
    else:
        pytest.skip("this kernel has netem; there is nothing to refuse")
    assert f"tandem{os.getpid()}" not in run_command(("ip", "-o", "link"))
    assert platform.release() in said
    for part in ("does not offer netem", "modprobe sch_netem", "CONFIG_NET_SCH_NETEM", "runtime.shaping=user"):
        assert part in said


def test_a_temporary_device_is_created_and_removed():
    try:
        check_machine()
    except ValueError as reason:
        pytest.skip(f"no device can be made: {reason}")
    with scratch_device(run_command) as device:
        assert device in run_command(("ip", "-o", "link"))
    with pytest.raises(CommandError, match="does not exist"):
        run_command(("ip", "link", "show", device))


def test_a_missing_or_failing_command_is_named():
    with pytest.raises(CommandError, match=r"`tandem-has-no-such-tool`: .*No such file"):
        run_command(("tandem-has-no-such-tool",))
    with pytest.raises(CommandError, match=r"`false --now`: exit status 1"):
        run_command(("false", "--now"))
