"""Errors in the JSON shape that OpenAI's clients turn into their typed exceptions."""

from math import ceil
from typing import Any

from starlette.responses import JSONResponse


class ApiError(Exception):
    """`status` is the HTTP status; `param` names the request's field at fault."""

    def __init__(
        self,
        status: int,
        message: str,
        code: str | None = None,
        param: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.param, self.headers = status, message, code, param, headers or {}

    @property
    def error_type(self) -> str:
        if self.status == 429:
            return "rate_limit_error"
        return "server_error" if self.status >= 500 else "invalid_request_error"

    @property
    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.error_type, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        return JSONResponse(self.body, self.status, self.headers)

    @classmethod
    def invalid(cls, message: str, param: str | None = None, code: str | None = "invalid_value") -> "ApiError":
        return cls(400, message, code, param)

    @classmethod
    def unsupported(cls, param: str, message: str) -> "ApiError":
        return cls(400, message, "unsupported_parameter", param)

    @classmethod
    def too_long(cls, context_len: int, prompt_len: int, max_new_tokens: int | None, param: str) -> "ApiError":
        wanted = f" and {max_new_tokens} more are asked for" if max_new_tokens else ""
        return cls(
            400,
            f"this model's context is {context_len} tokens, but the prompt has {prompt_len}{wanted}; shorten the "
            "prompt or ask for fewer tokens",
            "context_length_exceeded",
            param,
        )

    @classmethod
    def too_large(cls, max_nbytes: int) -> "ApiError":
        """Closes the connection, since the rest of the body is not read."""
        message = f"the request's body is above {max_nbytes} bytes, the most that this endpoint reads"
        return cls(413, message, "request_too_large", None, {"connection": "close"})

    @classmethod
    def queue_full(cls, waiting: int, retry_after_s: float) -> "ApiError":
        message = f"this device serves one request at a time and {waiting} wait already; try again"
        headers = {"retry-after": str(ceil(retry_after_s)), "retry-after-ms": str(round(1000 * retry_after_s))}
        return cls(429, message, "queue_full", None, headers)

    @classmethod
    def failed(cls, cloud_reachable: bool) -> "ApiError":
        if cloud_reachable:
            return cls(500, "the answer broke off on this device; its log says why", "generation_failed")
        return cls(
            503,
            "the cloud cannot be reached, and this device's policy does not answer without it (link_loss)",
            "cloud_unreachable",
        )

    @classmethod
    def stopping(cls) -> "ApiError":
        return cls(503, "this device is shutting down", "shutting_down")

    @classmethod
    def internal(cls) -> "ApiError":
        return cls(500, "an error inside this device; its log says what", "internal_error")
