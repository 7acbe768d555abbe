"""A link in the words of `tc`: what to tell the kernel, worked out without telling it.

One command of the operating system, run to its end.
"""

import os
import shlex
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import pi, sqrt
from typing import TypeAlias

from serving.network.link import Link
from serving.network.rate import TrafficDirection

ShellCommand: TypeAlias = tuple[str, ...]

CommandRunner: TypeAlias = Callable[[ShellCommand], str]
"""What the command wrote; raises CommandError when it fails."""

_TIMEOUT_S = 30.0


class CommandError(RuntimeError):
    """A command failed; the message holds both, the command and what it said."""


def search_path(environ: Mapping[str, str] = os.environ) -> str:
    """PATH, and where administrators' tools are, which other people's PATH leaves out."""
    return os.pathsep.join((environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))


def run_command(command: ShellCommand) -> str:
    """Without a shell, in plain English. Raises CommandError when it fails or does not end."""
    told = os.environ | {"PATH": search_path(), "LC_ALL": "C"}
    try:
        done = subprocess.run(command, env=told, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise CommandError(f"`{shlex.join(command)}`: {problem}") from None
    if done.returncode:
        said = (done.stderr or done.stdout).strip(" .\n") or f"exit status {done.returncode}"
        raise CommandError(f"`{shlex.join(command)}`: {said}")
    return done.stdout


ROOT_HANDLE = "7a7d:"
"""Of the root queue; by it a later run knows what a killed one left behind."""

_BANDS: dict[TrafficDirection, str] = {"up": f"{ROOT_HANDLE}2", "down": f"{ROOT_HANDLE}3"}
"""Everybody else's packets take the first band, untouched."""

_QUEUE_PACKETS = 10_000
"""Packets on their way in one direction: so many that none is lost but by `loss`."""

_MIN_MBPS = 8e-6
"""A byte a second; less is rounded to 0, which is netem's word for no limit."""


def setup_commands(link: Link, addresses: Iterable[str], device: str = "lo") -> list[ShellCommand]:
    """Puts `link` before the clouds that listen at `addresses` (IPv4 `host:port`), in the order to be run.

    A `prio` root, a netem queue for each direction, and filters that pick TCP to and from just these ports. netem keeps
    the rate itself: a rate of htb or tbf lets a lone message pass at once, and netem's jitter overtakes without one.
    """
    return [
        (
            "tc",
            "qdisc",
            "add",
            "dev",
            device,
            "root",
            "handle",
            ROOT_HANDLE,
            "prio",
            "bands",
            "3",
            "priomap",
            *"0" * 16,
        ),
        *(_qdisc_command(link, direction, device) for direction in _BANDS),
        *(_filter_command(direction, address, device) for address in addresses for direction in _BANDS),
    ]


def removal_command(device: str = "lo") -> ShellCommand:
    """Takes away all of it; the kernel refuses if the root is somebody else's."""
    return ("tc", "qdisc", "del", "dev", device, "root", "handle", ROOT_HANDLE)


def netem_arguments(link: Link, direction: TrafficDirection) -> ShellCommand:
    """One direction's figures, as netem takes them."""
    delay_ms, spread_ms, shape = _delay(link)
    jitter = (f"{_decimal(spread_ms)}ms", *shape) if spread_ms else ()
    loss = ("loss", "random", f"{_decimal(link.loss * 100)}%") if link.loss else ()
    rate = ("rate", f"{_decimal(max(link.mean_mbps(direction), _MIN_MBPS))}mbit")
    return ("netem", "limit", str(_QUEUE_PACKETS), "delay", f"{_decimal(delay_ms)}ms", *jitter, *loss, *rate)


def common_link(links: Sequence[Link]) -> Link:
    """The link that all devices have. Raises ValueError where netem cannot say what the links ask."""
    link = links[0]
    if any(other != link for other in links):
        raise ValueError(
            "runtime.shaping=tc: the fleets of hardware have different links, and tc puts one link before the cloud. "
            "Give all fleets the run's network, or set runtime.shaping=user, which shapes each device for itself."
        )
    for name, given in (("uplink", link.uplink), ("downlink", link.downlink), ("outages", link.outages)):
        if given is not None:
            raise ValueError(
                f"runtime.shaping=tc: network.{name} is {type(given).__name__}, and tc holds one constant rate that is "
                "never down. Choose a network without traces and outages, or set runtime.shaping=user."
            )
    return link


def shaping_notes(links: Sequence[Link]) -> tuple[str, ...]:
    """What a reader of the figures must know of these devices' links, which are alike; nothing if there are none."""
    if not links:
        return ()
    link = links[0]
    said = [
        "links by tc netem, each TCP segment of the loopback (up to 64 KiB) and each acknowledgement by itself",
        "real headers instead of overhead_nbytes and message_ms",
    ]
    if link.loss:
        said.append("what is lost TCP sends again at its own time, not after timeout_ms")
    if link.jitter_ms and link.jitter_shape == "half_normal":
        said.append("jitter is normal with the half-normal's mean and deviation")
    if len(links) > 1:
        said.append(f"{len(links)} devices share the rate of one link, as TCP shares it")
    return ("; ".join(said),)


def _delay(link: Link) -> tuple[float, float, ShellCommand]:
    """(mean ms, spread ms, distribution) of a way: netem jitters to both sides of its delay, a link only adds.

    Without a distribution netem draws uniformly within the spread. |N(0, s)| has the mean s sqrt(2/pi) and the
    variance s^2 (1 - 2/pi); netem has no half-normal, but a normal of these.
    """
    if link.jitter_shape == "uniform":
        return link.delay_ms + link.jitter_ms / 2, link.jitter_ms / 2, ()
    mean_ms, deviation_ms = link.jitter_ms * sqrt(2 / pi), link.jitter_ms * sqrt(1 - 2 / pi)
    return link.delay_ms + mean_ms, deviation_ms, ("distribution", "normal")


def _qdisc_command(link: Link, direction: TrafficDirection, device: str) -> ShellCommand:
    return ("tc", "qdisc", "add", "dev", device, "parent", _BANDS[direction], *netem_arguments(link, direction))


def _filter_command(direction: TrafficDirection, address: str, device: str) -> ShellCommand:
    """To the cloud is up, from it is down."""
    host, _, port = address.rpartition(":")
    place, door = ("dst", "dport") if direction == "up" else ("src", "sport")
    cloud = ("match", "ip", place, f"{host}/32", "match", "ip", door, port, "0xffff")
    where = ("parent", ROOT_HANDLE, "protocol", "ip", "prio", "1", "u32", "match", "ip", "protocol", "6", "0xff")
    return ("tc", "filter", "add", "dev", device, *where, *cloud, "flowid", _BANDS[direction])


def _decimal(figure: float) -> str:
    """Without an exponent and needless zeros; netem counts in microseconds and bits."""
    return f"{figure:.6f}".rstrip("0").rstrip(".")
