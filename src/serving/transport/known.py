"""What a host knows of its run, so that it can check what others say."""

from dataclasses import dataclass

from serving.messages import Hop


@dataclass(frozen=True)
class Known:
    """None: not known here, only the general limits are checked."""

    vocabulary: int | None = None
    """Token ids are below this."""
    hidden: int | None = None
    """The width of hidden states."""
    route: tuple[Hop, ...] | None = None
    """The only route that requests may take."""
    peers: frozenset[str] = frozenset()
    """Nodes of other tiers: they may speak of sessions that a device opened. A name is trusted as far as the token."""
