"""The connected hosts of a listener: who is there, who replaces whom, and whose message goes where.

What one remote host says, from bytes to the ears: parsed, checked, its tensors stored, then heard.

The tensors that one remote host has in this host's store.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from serving.messages import Blob
from serving.transport import errors, tensors
from serving.transport import tandem_pb2 as pb
from serving.transport.decode import Decoder
from serving.transport.errors import RefusedError, invalid
from serving.transport.handshake import Hello
from serving.transport.limits import Limits
from serving.transport.session_ownership import Owners
from serving.transport.stream import Blobs, Ears, Outbox

if TYPE_CHECKING:
    import torch


class Luggage:
    """Bounded: beyond its share, a host's own oldest tensors go, so that one host cannot push out another's."""

    def __init__(self, blobs: Blobs | None, capacity_nbytes: int) -> None:
        self._blobs, self._capacity_nbytes = blobs, capacity_nbytes
        self._held: dict[str, tuple[Blob, int]] = {}
        self._nbytes = 0

    def add(self, carried: list[tuple[Blob, pb.Tensor]]) -> None:
        """Raises RefusedError for a tensor that cannot be; then none of them is kept."""
        if self._blobs is None:
            return
        for blob, tensor in [(blob, _open(blob, wire)) for blob, wire in carried]:
            _, old = self._held.pop(blob.id, (blob, 0))
            self._held[blob.id] = blob, tensor.nbytes
            self._nbytes += tensor.nbytes - old
            self._blobs.add(blob, tensor)
        while self._nbytes > self._capacity_nbytes:
            self._forget(next(iter(self._held)))

    def discard(self) -> None:
        """The host is gone for good."""
        for name in list(self._held):
            self._forget(name)

    def _forget(self, name: str) -> None:
        blob, nbytes = self._held.pop(name)
        self._nbytes -= nbytes
        if self._blobs is not None:
            self._blobs.discard((blob,))


def _open(blob: Blob, wire: pb.Tensor) -> "torch.Tensor":
    tensor = tensors.unpack(blob.id, wire)
    if tensor.dim() == 1 and not (bool((tensor >= 0).all()) and float(tensor.double().sum()) > 0):
        raise invalid(f"{blob.id}: a distribution must be of shares from 0, one of them above it.")
    return tensor


@dataclass(eq=False)
class Guest:
    """One connected host."""

    hello: Hello
    place: str
    """Where it connects from, without the port."""
    outbox: Outbox
    luggage: Luggage

    def restarts(self, older: "Guest") -> bool:
        """Is this a host of that one's name, but of another process?"""
        shared = set(self.hello.nodes) & set(older.hello.nodes)
        return bool(shared) and self.hello.boot != older.hello.boot


class Desk:
    """At most `limits.hosts` guests; a node lives with one of them at a time."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.guests: list[Guest] = []
        self.owners = Owners(limits.sessions, limits.hosts)
        self._by_node: dict[str, Guest] = {}
        self._boots: dict[str, str] = {}

    def rivals(self, guest: Guest, proven: bool) -> list[Guest]:
        """The hosts that a new one replaces, because it has nodes of theirs: a device that came back before its old
        stream was found dead.

        Args:
            proven: did the new host show the token? Else it replaces only what connects from the same place.

        Raises RefusedError (ALREADY_EXISTS) when it may not, (RESOURCE_EXHAUSTED) when there are too many hosts.
        """
        found = {id(other): other for node in guest.hello.nodes if (other := self._by_node.get(node))}
        for other in found.values():
            if not proven and other.place != guest.place:
                raise RefusedError(
                    "ALREADY_EXISTS",
                    f"hello.nodes: {other.hello.nodes[0]} is connected from another address. Give each device a name "
                    "of its own, or this server a token: whoever shows it may replace a device that restarts.",
                )
        if len(self.guests) - len(found) >= self._limits.hosts:
            raise RefusedError("RESOURCE_EXHAUSTED", f"limits.hosts={self._limits.hosts} hosts are connected already.")
        return list(found.values())

    def enter(self, guest: Guest) -> None:
        self.guests.append(guest)
        self.owners.back(guest.hello.nodes)
        for node in guest.hello.nodes:
            self._by_node[node] = guest
            if self._boots.pop(node, guest.hello.boot) != guest.hello.boot:
                self.owners.restarted((node,))

    def leave(self, guest: Guest) -> bool:
        """Was it still here?"""
        if guest not in self.guests:
            return False
        self.guests.remove(guest)
        self.owners.away(guest.hello.nodes)
        for node in guest.hello.nodes:
            del self._by_node[node]
            self._boots[node] = guest.hello.boot
        while len(self._boots) > self._limits.hosts:
            del self._boots[next(iter(self._boots))]
        return True

    def find(self, node: str) -> Guest | None:
        return self._by_node.get(node)


class Reception:
    """
    Args:
        here, there: the nodes on either side.
        owners: whose session is whose; None: nobody here asks.
        trusted: may the other side speak of every session?
    """

    def __init__(
        self,
        ears: Ears,
        decoder: Decoder,
        luggage: Luggage,
        here: tuple[str, ...],
        there: tuple[str, ...],
        owners: Owners | None,
        trusted: bool,
    ) -> None:
        self._ears, self._decoder, self._luggage = ears, decoder, luggage
        self._owners, self._trusted = owners, trusted
        self._here, self._there = frozenset(here), frozenset(there)

    async def hear(self, data: bytes) -> None:
        """Returns when the driver has taken it. Raises RefusedError for anything out of bounds."""
        frame = errors.parsed(data)
        match frame.WhichOneof("kind"):
            case "envelope":
                await self._open(frame.envelope)
            case "goodbye":
                return  # the stream ends by itself
            case _:
                raise invalid("frame: after the Hello come Envelopes and a Goodbye.")

    async def _open(self, wire: pb.Envelope) -> None:
        if wire.sender not in self._there:
            raise invalid("envelope.sender: it is not one of the nodes of your Hello.")
        if wire.to not in self._here:
            raise invalid("envelope.to: that node does not live here.")
        message, carried = self._decoder.message(wire)
        if self._owners is not None and self._trusted:
            self._owners.vouched(wire.to, message)
        elif self._owners is not None:
            wanted, before = self._owners.admit(self._there, wire.to, message)
            for node, release in before:
                await self._ears.heard(wire.sender, node, release)
            if not wanted:
                return
        self._luggage.add(carried)
        await self._ears.heard(wire.sender, wire.to, message)
