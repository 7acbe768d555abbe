"""What a server got wrong, or did not get to say."""

from serving.hardware.executor import OutageError


class RemoteError(OutageError):
    """A question that a server did not answer, with whose fault it is, what was got and what to do.

    `passing` says that the same question may be answered later: the server was not reached, too slow, or overloaded.
    `status` is that of an answer which will not get better.
    """

    def __init__(self, message: str, passing: bool = False, status: int | None = None) -> None:
        super().__init__(message)
        self.passing, self.status = passing, status

    @property
    def missing(self) -> bool:
        """Has the server no such URL?"""
        return self.status in (404, 405, 501)

    @property
    def barred(self) -> bool:
        """Is it the key, and so every question?"""
        return self.status in (401, 403)

    @property
    def refused(self) -> bool:
        """Does the server say that it is the question's fault?"""
        return self.status is not None and self.status < 500
