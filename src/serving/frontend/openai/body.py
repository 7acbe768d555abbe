"""A request's body, as far as this endpoint reads one."""

import asyncio

from starlette.requests import Request

from serving.frontend.openai.errors import ApiError


async def read(request: Request, max_nbytes: int, within_s: float) -> bytes:
    """The bytes of a JSON body. Raises ApiError: 415 for another type, 413 above the bound, 408 when too slow."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(415, f"the body's type is {kind or 'missing'}; send application/json", "unsupported_media_type")
    announced = request.headers.get("content-length", "0")
    if announced.isdecimal() and int(announced) > max_nbytes:
        raise ApiError.too_large(max_nbytes)
    try:
        async with asyncio.timeout(within_s):
            return await _bounded(request, max_nbytes)
    except TimeoutError:
        close = {"connection": "close"}
        raise ApiError(408, f"the body did not arrive within {within_s:g} s", "timeout", None, close) from None


async def _bounded(request: Request, max_nbytes: int) -> bytes:
    found = bytearray()
    async for chunk in request.stream():
        found += chunk
        if len(found) > max_nbytes:
            raise ApiError.too_large(max_nbytes)
    return bytes(found)
