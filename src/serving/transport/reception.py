"""What one remote host says, from bytes to the ears: parsed, checked, its tensors stored, then heard."""

from serving.transport import checks
from serving.transport import tandem_pb2 as pb
from serving.transport.decode import Decoder
from serving.transport.ears import Ears
from serving.transport.errors import invalid
from serving.transport.luggage import Luggage
from serving.transport.session_ownership import Owners


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
        frame = checks.parsed(data)
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
