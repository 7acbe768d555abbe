import json
import os
import re
import subprocess
import sys
from contextlib import contextmanager, nullcontext
from itertools import count

import pytest

from serving.network.link import Link
from serving.transport.shaping.netem import ROOT_HANDLE, CommandError, removal_command, run_command, setup_commands
from serving.transport.shaping.tc import check_machine, check_netem, device_lock, remove_stale, root_qdisc, shaped_links

LINK = Link(uplink_mbps=10, downlink_mbps=20, delay_ms=50)
CLOUD = "127.0.0.1:4711"
_serial = count()


def own_device():
    """A name that no other test, here or in a session beside, claims."""
    return f"t{os.getpid()}-{next(_serial)}"


class Kernel:
    """Root queues by device, changed as `tc` would change them; a command that holds `fails` fails."""

    def __init__(self, fails="nothing fails"):
        self.roots, self.told, self.fails = {}, [], fails

    def __call__(self, command):
        text = " ".join(command)
        self.told.append(text)
        if self.fails in text:
            raise CommandError(f"`{text}`: refused")
        if command[:3] == ("ip", "link", "del"):
            self.roots.pop(command[3], None)
        device = command[command.index("dev") + 1] if "dev" in command else None
        if "show" in command:
            kind, handle = self.roots.get(device, ("noqueue", "0:"))
            leaf = {"kind": "pfifo", "handle": "9:", "parent": f"{handle}1"}
            return json.dumps([leaf, {"kind": kind, "handle": handle, "root": True}])
        if "root" in command and "del" in command:
            if self.roots.pop(device, ("", ""))[1] != ROOT_HANDLE:
                raise CommandError("Error: Invalid handle")
        elif "handle" in command:
            if device in self.roots:
                raise CommandError("Error: Exclusivity flag on, cannot modify")
            self.roots[device] = ("prio", ROOT_HANDLE)
        return ""

    def on(self, device):
        """The commands that changed a device, without queries."""
        return [told for told in self.told if f"dev {device} " in f"{told} " and "show" not in told]


def shaping(kernel, device, links=(LINK,)):
    return shaped_links(links, kernel, device, check=lambda: None)


def a_run(kernel, device, does):
    with shaping(kernel, device) as shape:
        shape([CLOUD])
        does()


def refuse(kernel, fails, does=lambda: None):
    """From here on the kernel refuses what it took in the rehearsal."""
    kernel.fails = fails
    does()


def test_the_link_exists_from_shaping_until_the_end():
    kernel, device = Kernel(), own_device()
    with shaping(kernel, device) as shape:
        assert kernel.on(device) == []
        shape([CLOUD])
        assert kernel.on(device) == [" ".join(command) for command in setup_commands(LINK, [CLOUD], device)]
        assert kernel.roots == {device: ("prio", ROOT_HANDLE)}
    assert kernel.roots == {}


def test_an_unshaped_device_is_not_touched():
    kernel, device = Kernel(), own_device()
    with shaping(kernel, device):
        pass
    assert kernel.on(device) == []


@pytest.mark.parametrize("problem", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_a_crash_of_the_run_removes_the_link(problem):
    kernel, device = Kernel(), own_device()

    def crash():
        raise problem("the run")

    with pytest.raises(problem):
        a_run(kernel, device, crash)
    assert kernel.roots == {}


@pytest.mark.parametrize("fails", ["parent 7a7d:3 netem", "4711 0xffff flowid 7a7d:3"])
def test_a_partial_setup_is_removed(fails):
    kernel, device = Kernel(), own_device()
    with pytest.raises(CommandError, match="refused"), shaping(kernel, device) as shape:
        refuse(kernel, fails, lambda: shape([CLOUD]))
    assert kernel.on(device)[-1] == f"tc qdisc del dev {device} root handle 7a7d:"
    assert kernel.roots == {}


def test_remains_of_a_killed_run_are_removed_first():
    kernel, device = Kernel(), own_device()
    kernel.roots[device] = ("prio", ROOT_HANDLE)
    with shaping(kernel, device) as shape:
        assert kernel.roots == {}
        shape([CLOUD])
    assert kernel.roots == {}


@pytest.mark.parametrize(("kind", "handle"), [("htb", "1:"), ("netem", "8001:"), ("pfifo", "8002:")])
def test_a_foreign_root_qdisc_is_not_replaced(kind, handle):
    kernel, device = Kernel(), own_device()
    kernel.roots[device] = (kind, handle)
    said = rf"{device} already has another root qdisc, {kind} {handle}\. .*tc qdisc del dev {device} root.*shaping=user"
    with pytest.raises(ValueError, match=said), shaping(kernel, device):
        pass
    assert kernel.on(device) == []
    assert kernel.roots == {device: (kind, handle)}


def test_the_kernels_default_qdisc_is_accepted():
    kernel, device = Kernel(), own_device()
    kernel.roots[device] = ("pfifo_fast", "0:")
    remove_stale(kernel, device)
    assert kernel.on(device) == []


def test_two_runs_cannot_shape_one_device():
    device, kernel = own_device(), Kernel()
    with device_lock(device):
        with (
            pytest.raises(ValueError, match=rf"another run shapes {device} now.*shaping=user"),
            shaping(kernel, device),
        ):
            pass
        assert kernel.on(device) == []
    with shaping(kernel, device):
        pass


def test_a_failed_removal_says_how_to_remove_the_link():
    kernel, device = Kernel(), own_device()
    said = rf"{device} may still be shaped: .*remove it with: tc qdisc del dev {device} root handle 7a7d:"
    with pytest.raises(RuntimeError, match=said):
        a_run(kernel, device, lambda: refuse(kernel, "qdisc del"))


def test_no_command_runs_if_the_machine_check_fails():
    kernel = Kernel()

    def check():
        raise ValueError("no tc")

    with pytest.raises(ValueError, match="no tc"), shaped_links([LINK], kernel, own_device(), check):
        pass
    assert kernel.told == []


def test_netem_is_checked_before_the_links():
    kernel = Kernel(" netem")
    with pytest.raises(ValueError, match="netem"), shaping(kernel, own_device(), [LINK, Link(1, 1)]):
        pass
    with pytest.raises(ValueError, match="different links"), shaping(Kernel(), own_device(), [LINK, Link(1, 1)]):
        pass


@contextmanager
def namespace():
    """(its process, what runs commands in it) of a network namespace of its own; gone with the process."""
    try:
        check_machine()
    except ValueError as reason:
        pytest.skip(f"no network of one's own: {reason}")
    waits = ["unshare", "--net", "sh", "-c", "ip link set lo up && echo up && read line"]
    try:
        inside = subprocess.Popen(waits, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    except FileNotFoundError:
        pytest.skip("no network of one's own: there is no program unshare")
    with inside:
        if inside.stdout.readline() != b"up\n":
            pytest.skip(f"no network of one's own: {inside.stderr.read().decode().strip()}")
        yield inside.pid, lambda command: run_command(("nsenter", f"--net=/proc/{inside.pid}/ns/net", *command))


def in_htb(command):
    """The same shape for a kernel that has htb and neither prio nor netem: a root, and a class for each rate."""
    if "netem" in command and "parent" in command:
        band = command[command.index("parent") + 1]
        return ("tc", "class", *command[2:6], ROOT_HANDLE, "classid", band, "htb", *command[-2:])
    if "qdisc" in command and {"prio", "netem"} & {*command}:
        end = command.index("prio" if "prio" in command else "netem")
        return (*command[:end], "htb", "default", "0")
    return command


TALK = """
import socket
with socket.create_server(("127.0.0.1", 0)) as cloud, socket.create_server(("127.0.0.1", 0)) as other:
    print("%s:%d" % cloud.getsockname(), flush=True)
    input()
    for server, nbytes in ((cloud, 30_000), (other, 500_000)):
        with socket.create_connection(server.getsockname()) as device, server.accept()[0] as there:
            device.sendall(bytes(nbytes))
            device.shutdown(socket.SHUT_WR)
            while there.recv(65536):
                pass
            there.sendall(b"thanks")
            device.recv(6)
"""


def talk(pid, shape):
    """30 kB to a cloud that is shaped once it listens, 500 kB to another server, in the network of a process."""
    command = ["nsenter", f"--net=/proc/{pid}/ns/net", sys.executable, "-c", TALK]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as talks:
        shape([talks.stdout.readline().strip()])
        talks.communicate("go\n", timeout=60)
    assert talks.returncode == 0


def sent(inside):
    """Bytes by class."""
    listed = inside(("tc", "-s", "class", "show", "dev", "lo"))
    return {band: int(nbytes) for band, nbytes in re.findall(r"^class htb (\S+).*\n Sent (\d+) bytes", listed, re.M)}


def test_a_real_kernel_removes_only_our_qdisc():
    with namespace() as (_, inside):
        before = root_qdisc(inside, "lo")
        inside(("tc", "qdisc", "add", "dev", "lo", "root", "handle", ROOT_HANDLE, "htb", "default", "0"))
        remove_stale(inside, "lo")
        assert root_qdisc(inside, "lo") == before == ("noqueue", "0:")
        inside(("tc", "qdisc", "add", "dev", "lo", "root", "handle", "1:", "htb", "default", "0"))
        with pytest.raises(ValueError, match="another root qdisc, htb 1:"):
            remove_stale(inside, "lo")
        with pytest.raises(CommandError, match="Invalid handle"):
            inside(removal_command("lo"))
        assert root_qdisc(inside, "lo") == ("htb", "1:")


def test_a_real_kernel_shapes_only_the_clouds_packets(monkeypatch):
    """With htb in the place of prio and netem, which not every kernel has; the filters are the run's own."""
    monkeypatch.setattr(
        "serving.transport.shaping.tc.device_lock", nullcontext
    )  # the claim is to this network's loopback
    with namespace() as (pid, inside):
        in_place = shaping(lambda command: inside(in_htb(command)), "lo")
        with in_place as shape:
            talk(pid, shape)
            up, down = (sent(inside)[f"{ROOT_HANDLE}{band}"] for band in (2, 3))
        assert root_qdisc(inside, "lo") == ("noqueue", "0:")
    assert 30_000 < up < 60_000
    assert 0 < down < 30_000


@pytest.mark.slow
def test_a_real_netem_delays_packets_in_both_directions(monkeypatch):
    monkeypatch.setattr(
        "serving.transport.shaping.tc.device_lock", nullcontext
    )  # the claim is to this network's loopback
    with namespace() as (pid, inside):
        try:
            check_netem(inside)
        except ValueError as reason:
            pytest.skip(f"only a kernel with netem shows it: {reason}")
        with shaping(inside, "lo") as shape:
            talk(pid, shape)
            listed = json.loads(inside(("tc", "-s", "-j", "qdisc", "show", "dev", "lo")))
            up, down = (next(q for q in listed if q.get("parent") == f"{ROOT_HANDLE}{band}") for band in (2, 3))
        assert root_qdisc(inside, "lo") == ("noqueue", "0:")
    assert [q["kind"] for q in (up, down)] == ["netem", "netem"]
    assert [q["options"]["delay"]["delay"] for q in (up, down)] == pytest.approx([0.05, 0.05])
    assert 30_000 < up["bytes"] < 60_000
    assert 0 < down["bytes"] < 30_000
