"""The page's own files, read once; nothing else on this machine can be asked for."""

from functools import cache
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

KINDS = {
    "html": "text/html; charset=utf-8", "css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}  # fmt: skip


@cache
def static() -> dict[str, bytes]:
    """By path on the server."""
    folder = files("serving.frontend.ui").joinpath("static")
    found = {f"/{file.name}": file.read_bytes() for file in folder.iterdir() if file.is_file()}
    return {"/": found.pop("/index.html"), **found}


def routes() -> list[Route]:
    return [Route(path, _answer, methods=["GET"]) for path in static()]


async def _answer(request: Request) -> Response:
    path = request.url.path
    kind = KINDS[path.rpartition(".")[2] if path != "/" else "html"]
    return Response(static()[path], media_type=kind, headers={"cache-control": "no-cache"})
