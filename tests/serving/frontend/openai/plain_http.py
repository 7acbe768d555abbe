"""HTTP by hand: what no well-behaved client sends, and what it gets."""

import asyncio
import json
from dataclasses import dataclass
from typing import Any

from tests.serving.frontend.openai.fake_gateway import Loop

JSON = "content-type: application/json"


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        found: dict[str, Any] = self.json["error"]
        assert found.keys() == {"message", "type", "param", "code"}
        return found


async def send(loop: Loop, raw: bytes, at_once: bool = False) -> Answer:
    """Sends bytes as they are and reads until the server closes; `at_once`: begins to read when all is sent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", loop.server.port)
    writer.write(raw)
    if at_once:
        writer.transport.set_write_buffer_limits(0)
        await writer.drain()
    found = await reader.read()
    writer.close()
    await writer.wait_closed()
    return parsed(found)


def parsed(raw: bytes) -> Answer:
    head, _, body = raw.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    return Answer(int(first.split()[1]), headers, body)


def request(method: str, path: str, *headers: str, body: bytes = b"") -> bytes:
    length = [f"content-length: {len(body)}"] if body else []
    lines = [f"{method} {path} HTTP/1.1", "host: localhost", "connection: close", *length, *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def asking(**more: Any) -> bytes:
    body = json.dumps({"model": "toy", "prompt": "where"} | more).encode()
    return request("POST", "/v1/completions", JSON, body=body)
