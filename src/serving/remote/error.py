"""What a server got wrong, or did not get to say."""

from serving.executor import OutageError


class RemoteError(OutageError):
    """A question that a server did not answer, with whose fault it is, what was got and what to do.

    `passing` says that the same question may be answered later: the server was not reached, too slow, or overloaded;
    `missing` that it has no such URL.
    """

    def __init__(self, message: str, passing: bool = False, missing: bool = False) -> None:
        super().__init__(message)
        self.passing, self.missing = passing, missing
