"""The links of a run: between two nodes, or from and to one node whatever the other is."""

from typing import Protocol


class LinkDirection(Protocol):
    """One direction of a link."""

    def arrival_s(self, nbytes: float, now: float) -> float:
        """When a message sent at `now` arrives; infinite: it is lost. Calls come in order of `now`."""
        ...


class LinkTable:
    """Thousands of devices share tens of cloud nodes: the access links take one entry a device, not one a pair."""

    def __init__(self) -> None:
        self._links: dict[tuple[str, str], LinkDirection] = {}
        """(sender, receiver) -> the link."""
        self._access_links: dict[str, tuple[LinkDirection, LinkDirection]] = {}
        """Node -> the links from it and to it."""

    def connect(self, sender: str, receiver: str, link: LinkDirection) -> None:
        """Messages from `sender` to `receiver` take this link."""
        self._links[sender, receiver] = link

    def connect_access(self, name: str, outgoing: LinkDirection, incoming: LinkDirection) -> None:
        """All messages from and to this node take these links, but those for which `connect` gives another one."""
        self._access_links[name] = outgoing, incoming

    def find(self, sender: str, receiver: str) -> LinkDirection | None:
        """None: messages arrive at once, as those of a node to itself do unless `connect` gives a link."""
        link = self._links.get((sender, receiver))
        if link or sender == receiver:
            return link
        if access := self._access_links.get(sender):
            return access[0]
        access = self._access_links.get(receiver)
        return access[1] if access else None
