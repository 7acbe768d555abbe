"""One answer while it is written: tokens in, text out, up to an end token, a stop string or the limit."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from serving.frontend.openai.detokenizer import Decoder
from serving.frontend.openai.gateway import Piece
from serving.frontend.openai.request_handlers import Finish
from serving.frontend.openai.stops import Stops
from serving.messages import Origin

if TYPE_CHECKING:
    from serving.engines.tokenizer import Tokenizer


class Writing:
    """`count` hears the origin of each token that belongs to the answer; what a stop string cuts off does not."""

    def __init__(self, tokenizer: "Tokenizer", stops: tuple[str, ...], count: Callable[[Origin], None]) -> None:
        self.tokens: list[int] = []
        """All that the gateway delivered."""
        self.finish: Finish | None = None
        """Why it ended; None while it goes on."""
        self._ends, self._decoder, self._stops, self._count = tokenizer.ends, Decoder(tokenizer.hf), Stops(stops), count

    def write(self, piece: Piece) -> str:
        """The text that a piece makes certain."""
        self.tokens.extend(piece.tokens)
        text = ""
        for token, origin in zip(piece.tokens, piece.origins, strict=True):
            self._count(origin)
            if token not in self._ends:
                text += self._stops.push(self._decoder.push(token))
            if self._stops.met:
                self.finish = "stop"
                return text
        return text + self._close() if piece.ending == "complete" else text

    def _close(self) -> str:
        text = self._stops.push(self._decoder.flush()) + self._stops.flush()
        ended = self._stops.met or (bool(self.tokens) and self.tokens[-1] in self._ends)
        self.finish = "stop" if ended else "length"
        return text
