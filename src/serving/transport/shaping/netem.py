"""Builds the `tc` commands that shape a link (pure functions), and runs a single command."""

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
"""Returns the command's output; raises CommandError if it fails."""

_TIMEOUT_S = 30.0


class CommandError(RuntimeError):
    """A command failed; the message holds the command and its output."""


def search_path(environ: Mapping[str, str] = os.environ) -> str:
    """PATH plus the folders of administrators' tools, which a user's PATH may lack."""
    return os.pathsep.join((environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))


def run_command(command: ShellCommand) -> str:
    """Runs a command without a shell, with English output. Raises CommandError if it fails or does not end in time."""
    env = os.environ | {"PATH": search_path(), "LC_ALL": "C"}
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CommandError(f"`{shlex.join(command)}`: {error}") from None
    if done.returncode:
        output = (done.stderr or done.stdout).strip(" .\n") or f"exit status {done.returncode}"
        raise CommandError(f"`{shlex.join(command)}`: {output}")
    return done.stdout


ROOT_HANDLE = "7a7d:"
"""Handle of the root qdisc, by which a later run recognises what a killed run left."""

_BANDS: dict[TrafficDirection, str] = {"up": f"{ROOT_HANDLE}2", "down": f"{ROOT_HANDLE}3"}
"""All other packets take the first band, unshaped."""

_QUEUE_PACKETS = 10_000
"""Queue length in one direction, large enough that packets are lost only by `loss`."""

_MIN_MBPS = 8e-6
"""A byte per second; netem would round less to 0, which means no limit."""


def setup_commands(link: Link, addresses: Iterable[str], device: str = "lo") -> list[ShellCommand]:
    """Returns the commands that put `link` before the clouds at `addresses` (IPv4 `host:port`), in order.

    They create a `prio` root, a netem queue for each direction, and filters for TCP to and from these ports only. netem
    also limits the rate: htb or tbf would let a lone message pass at once, and without a rate netem's jitter reorders.
    """
    root = ("tc", "qdisc", "add", "dev", device, "root", "handle", ROOT_HANDLE)
    return [
        (*root, "prio", "bands", "3", "priomap", *"0" * 16),
        *(_qdisc_command(link, direction, device) for direction in _BANDS),
        *(_filter_command(direction, address, device) for address in addresses for direction in _BANDS),
    ]


def removal_command(device: str = "lo") -> ShellCommand:
    """Removes everything; the kernel refuses if the root has another handle."""
    return ("tc", "qdisc", "del", "dev", device, "root", "handle", ROOT_HANDLE)


def netem_arguments(link: Link, direction: TrafficDirection) -> ShellCommand:
    """Arguments of netem for one direction."""
    delay_ms, spread_ms, shape = _delay(link)
    jitter = (f"{_decimal(spread_ms)}ms", *shape) if spread_ms else ()
    loss = ("loss", "random", f"{_decimal(link.loss * 100)}%") if link.loss else ()
    rate = ("rate", f"{_decimal(max(link.mean_mbps(direction), _MIN_MBPS))}mbit")
    return ("netem", "limit", str(_QUEUE_PACKETS), "delay", f"{_decimal(delay_ms)}ms", *jitter, *loss, *rate)


def common_link(links: Sequence[Link]) -> Link:
    """Returns the link of all devices. Raises ValueError if links differ or netem cannot express them."""
    link = links[0]
    if any(other != link for other in links):
        raise ValueError(
            "runtime.shaping=tc: the fleets of hardware have different links, and tc puts one link before the cloud. "
            "Give all fleets the run's network, or set runtime.shaping=user, which shapes each device separately."
        )
    for name in ("uplink", "downlink", "delay", "outages"):
        if (given := getattr(link, name)) is not None:
            raise ValueError(
                f"runtime.shaping=tc: network.{name} is {type(given).__name__}, but tc holds one constant rate and one "
                "constant delay, and is never down. Choose a network without traces, recorded delays and outages, or "
                "set runtime.shaping=user."
            )
    return link


def shaping_notes(links: Sequence[Link]) -> tuple[str, ...]:
    """Notes for readers of the results on how tc differs from user-space shaping; empty without links."""
    if not links:
        return ()
    link = links[0]
    notes = [
        "links by tc netem, each TCP segment of the loopback (up to 64 KiB) and each acknowledgement by itself",
        "real headers instead of overhead_nbytes and message_ms",
    ]
    if link.loss:
        notes.append("TCP resends lost segments at its own time, not after timeout_ms")
    if link.jitter_ms and link.jitter_shape == "half_normal":
        notes.append("jitter is normal with the half-normal's mean and deviation")
    if len(links) > 1:
        notes.append(f"{len(links)} devices share the rate of one link, as TCP shares it")
    return ("; ".join(notes),)


def _delay(link: Link) -> tuple[float, float, ShellCommand]:
    """Returns (mean ms, spread ms, distribution): netem jitters to both sides of its delay, a link only adds delay.

    Without a distribution netem draws uniformly within the spread. netem has no half-normal distribution, so a normal
    with the same mean s sqrt(2/pi) and variance s^2 (1 - 2/pi) replaces |N(0, s)|.
    """
    if link.jitter_shape == "uniform":
        return link.delay_ms + link.jitter_ms / 2, link.jitter_ms / 2, ()
    mean_ms, deviation_ms = link.jitter_ms * sqrt(2 / pi), link.jitter_ms * sqrt(1 - 2 / pi)
    return link.delay_ms + mean_ms, deviation_ms, ("distribution", "normal")


def _qdisc_command(link: Link, direction: TrafficDirection, device: str) -> ShellCommand:
    return ("tc", "qdisc", "add", "dev", device, "parent", _BANDS[direction], *netem_arguments(link, direction))


def _filter_command(direction: TrafficDirection, address: str, device: str) -> ShellCommand:
    """Up is to the cloud, down is from it."""
    host, _, port = address.rpartition(":")
    address_field, port_field = ("dst", "dport") if direction == "up" else ("src", "sport")
    match = ("match", "ip", address_field, f"{host}/32", "match", "ip", port_field, port, "0xffff")
    parent = ("parent", ROOT_HANDLE, "protocol", "ip", "prio", "1", "u32", "match", "ip", "protocol", "6", "0xff")
    return ("tc", "filter", "add", "dev", device, *parent, *match, "flowid", _BANDS[direction])


def _decimal(value: float) -> str:
    """Formats without exponent and trailing zeros; netem counts in microseconds and bits."""
    return f"{value:.6f}".rstrip("0").rstrip(".")
