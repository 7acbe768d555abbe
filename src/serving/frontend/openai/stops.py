"""Stop strings: where an answer ends, and what may be shown before that is known."""


class Stops:
    """Text passes until a stop string is complete; no part of that string passes.

    The first to be complete ends the text (of two at once, the longer), so the result is the same however the text
    is cut into pieces.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._held = ""
        self.met = False

    def push(self, text: str) -> str:
        """The text that is certain to stand before any stop string."""
        if self.met:
            return ""
        whole, self._held = self._held + text, ""
        found = [(at + len(stop), at) for stop in self._stops if (at := whole.find(stop)) >= 0]
        if found:
            self.met = True
            return whole[: min(found)[1]]
        passed = len(whole) - self._doubtful(whole)
        self._held = whole[passed:]
        return whole[:passed]

    def flush(self) -> str:
        """What was held back in vain."""
        rest, self._held = self._held, ""
        return rest

    def _doubtful(self, text: str) -> int:
        """The longest end of the text with which a stop string begins."""
        longest = max(map(len, self._stops), default=1) - 1
        lengths = range(min(longest, len(text)), 0, -1)
        return next((n for n in lengths if any(stop.startswith(text[-n:]) for stop in self._stops)), 0)
