"""The connected hosts of a listener: who is there, who replaces whom, and whose message goes where."""

from dataclasses import dataclass

from serving.transport.errors import RefusedError
from serving.transport.handshake import Hello
from serving.transport.limits import Limits
from serving.transport.luggage import Luggage
from serving.transport.session_ownership import Owners
from serving.transport.stream import Outbox


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
