"""Why a stream ended: what the other side is told, in words for people."""


class RefusedError(Exception):
    """A stream is ended on purpose.

    Args:
        code: the name of a gRPC status code.
        text: whose fault, what was got, what is allowed, what to do; never a token or a key.
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code, self.text = code, text


def invalid(text: str) -> RefusedError:
    return RefusedError("INVALID_ARGUMENT", text)
