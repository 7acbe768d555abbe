"""From a message to the bytes in an outbox."""

from serving.messages import Message, Request
from serving.transport import encode, tensors
from serving.transport.ears import Blobs
from serving.transport.limits import Limits
from serving.transport.stream import Outbox


class Sender:
    """
    Args:
        blobs: where tensors are; None: they stay here, only their ids travel.
    """

    def __init__(self, blobs: Blobs | None, limits: Limits) -> None:
        self._blobs, self._limits = blobs, limits
        self._packs = _packs(blobs) if blobs is not None else None

    def send(self, outbox: Outbox | None, sender: str, to: str, message: Message) -> None:
        """Drops the message, and hidden states that only it needed, where nobody takes it (None).

        Raises KeyError for a tensor that is not in the store, ValueError for a message above the limit.
        """
        if outbox is None:
            self._drop(message)
            return
        data = encode.envelope(sender, to, message, self._packs)
        if len(data) > self._limits.message_nbytes:
            raise ValueError(
                f"a message of {len(data)} bytes to {to} is above limits.message_nbytes="
                f"{self._limits.message_nbytes}; raise it on both sides, or prefill in parts (policy/prefill=parts)."
            )
        outbox.put(data)

    def _drop(self, message: Message) -> None:
        if self._blobs is not None and isinstance(message, Request) and message.rows.blob:
            self._blobs.discard((message.rows.blob,))


def _packs(blobs: Blobs) -> tuple[encode.Pack, encode.Pack]:
    """Hidden states are asked for once; a draft's distribution again, when the question is asked again."""
    return lambda blob: tensors.pack(blobs.take(blob)), lambda blob: tensors.pack(blobs.get(blob))
