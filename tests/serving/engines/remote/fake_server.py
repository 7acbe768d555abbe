"""A server that reads every field of every question strictly, and misbehaves when a test tells it to.

What it writes is a brain's: `next_token(prefix) -> id`. It speaks as OpenAI's, vLLM's, SGLang's or llama.cpp's.
"""

import json
import socket
import ssl
import struct
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from serving.engines.remote.prompt_logprobs import decode

Brain = Callable[[tuple[int, ...]], int]
OWNERS = {"openai": "unknown-owner", "vllm": "vllm", "sglang": "sglang", "llama_cpp": "llamacpp"}
_DRAWN = {"temperature", "top_p", "top_k", "seed"}
_PLAIN = {"model", "prompt", "max_tokens", "echo", "logprobs"} | _DRAWN
_SGLANG = _PLAIN | {"return_token_ids", "skip_special_tokens", "min_p", "repetition_penalty"}
FIELDS = {
    "openai": _PLAIN,
    "sglang": _SGLANG,
    "vllm": _SGLANG | {"return_tokens_as_token_ids"},
    "llama_cpp": {"model", "prompt", "n_predict", "return_tokens", "cache_prompt", "samplers"} | _DRAWN,
}


_NUM_TRICKLED = 100
"""Bytes that a server sends one by one before it gives up."""


class BadQuestionError(Exception):
    """The server says 400, and the test fails."""


@dataclass
class FakeServer:
    """`faults` are taken one a question to write: a name of `_FAULTS`, a status, or a change of the answer."""

    hf: Any
    brain: Brain
    kind: str = "vllm"
    model: str = "large"
    key: str | None = None
    ends: tuple[int, ...] = ()
    refuses_ids: bool = False
    late_echo: bool = False
    """Echoed log-probabilities are those of the next position, as of one well-known server."""
    ignores_echo: bool = False
    context: int = 512
    """Tokens of prompt and answer together; a question that asks for more is a bad one."""
    added: int = 0
    """Tokens that it puts before every prompt."""
    files: tuple[Path, Path] | None = None
    """Certificate and key: then it speaks TLS."""
    faults: deque[Any] = field(default_factory=deque)
    asked: list[dict[str, Any]] = field(default_factory=list)
    """All completion requests, including refused and failed ones."""
    wrong: list[str] = field(default_factory=list)
    """Why questions were refused."""

    def __enter__(self) -> "FakeServer":
        self.over = threading.Event()
        self._http = _Listener(("127.0.0.1", 0), type("_Own", (_Handler,), {"fake": self}))
        self._http.daemon_threads = True
        if self.files:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*map(str, self.files))
            self._http.socket = context.wrap_socket(self._http.socket, server_side=True)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        scheme = "https" if self.files else "http"
        self.root = f"{scheme}://127.0.0.1:{self._http.server_address[1]}"
        self.url = f"{self.root}/v1"
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    # What it knows.

    def models(self) -> dict[str, Any]:
        card = {"id": self.model, "object": "model", "created": 1, "owned_by": OWNERS[self.kind]}
        return {"object": "list", "data": [card | {"max_model_len": self.context}]}

    def tokenize(self, body: dict[str, Any]) -> dict[str, Any]:
        text = body["content" if self.kind == "llama_cpp" else "prompt"]
        return {"tokens": self.hf(text, add_special_tokens=False)["input_ids"]}

    def detokenize(self, body: dict[str, Any]) -> dict[str, Any]:
        name = {"llama_cpp": "content", "vllm": "prompt", "sglang": "text"}[self.kind]
        return {name: decode(self.hf, body["tokens"])}

    def write(self, body: dict[str, Any]) -> dict[str, Any]:
        if unknown := body.keys() - FIELDS[self.kind]:
            raise BadQuestionError(f"unknown fields {sorted(unknown)}")
        prompt = self._prompt(body.get("prompt"))
        native = self.kind == "llama_cpp"
        n = self._whole(body, "n_predict" if native else "max_tokens", 1, 64)
        if len(prompt) + n > self.context:
            raise BadQuestionError(f"{len(prompt)} tokens and {n} more are above {self.context}")
        if body.get("model") != self.model:
            raise BadQuestionError(f"model is {body.get('model')!r}")
        self._check_drawing(body)
        new: list[int] = []
        while len(new) < n and not (new and new[-1] in self.ends):
            new.append(self.brain((*prompt, *new)))
        stopped = new[-1] in self.ends
        return self._native(prompt, new, stopped) if native else self._completion(body, prompt, new, stopped)

    def _prompt(self, prompt: Any) -> tuple[int, ...]:
        if isinstance(prompt, str) and prompt:
            return tuple(self.hf(prompt, add_special_tokens=False)["input_ids"])
        if self.refuses_ids or not isinstance(prompt, list) or not prompt:
            raise BadQuestionError("prompt must be a text")
        if not all(type(t) is int and 0 <= t < len(self.hf) for t in prompt):
            raise BadQuestionError("prompt has tokens that are none")
        return tuple(prompt)

    def _whole(self, body: dict[str, Any], name: str, low: int, high: int) -> int:
        value = body.get(name)
        if type(value) is not int or not low <= value <= high:
            raise BadQuestionError(f"{name} is {value!r}")
        return value

    def _check_drawing(self, body: dict[str, Any]) -> None:
        temperature = body.get("temperature")
        if isinstance(temperature, bool) or not isinstance(temperature, int | float) or not 0 <= temperature <= 2:
            raise BadQuestionError(f"temperature is {temperature!r}")
        if temperature:
            self._whole(body, "seed", 0, (1 << 31) - 1)
            if not 0 < body.get("top_p", 1.0) <= 1:
                raise BadQuestionError("top_p")
        overruled = body.get("repetition_penalty") == 1.0 and body.get("min_p") == 0.0 and "top_k" in body
        if self.kind in ("vllm", "sglang") and not overruled:  # a model's own generation config must not count
            raise BadQuestionError("a default of the model's is not overruled")
        if self.kind == "llama_cpp" and body.get("samplers") != ["temperature", "top_k", "top_p"]:
            raise BadQuestionError("samplers of its own")

    def _native(self, prompt: Sequence[int], new: list[int], stopped: bool) -> dict[str, Any]:
        return {
            "content": self._text(prompt, new), "tokens": new, "stop": True, "truncated": False,
            "stop_type": "eos" if stopped else "limit", "tokens_evaluated": len(prompt) + self.added,
        }  # fmt: skip

    def _completion(
        self, body: dict[str, Any], prompt: tuple[int, ...], new: list[int], stopped: bool
    ) -> dict[str, Any]:
        echo = bool(body.get("echo")) and not self.ignores_echo
        text = (decode(self.hf, prompt) if echo else "") + self._text(prompt, new)
        choice: dict[str, Any] = {"index": 0, "text": text, "finish_reason": "stop" if stopped else "length"}
        if body.get("return_token_ids"):
            choice["token_ids"] = new
        if body.get("logprobs"):
            choice["logprobs"] = self._logprobs(body, (*prompt, *new) if echo else tuple(new), prompt, echo)
        usage = {"prompt_tokens": len(prompt) + self.added, "completion_tokens": len(new)}
        return {"id": "c", "object": "text_completion", "choices": [choice], "usage": usage}

    def _text(self, prompt: Sequence[int], new: Sequence[int]) -> str:
        """As servers do: special tokens are silent, and a space before the first word is the text's."""
        special = {i for i, token in self.hf.added_tokens_decoder.items() if token.special}
        shown = [t for t in new if t not in special]
        return decode(self.hf, [*prompt, *shown]).removeprefix(decode(self.hf, prompt))

    def _logprobs(
        self, body: dict[str, Any], tokens: tuple[int, ...], prompt: tuple[int, ...], echo: bool
    ) -> dict[str, Any]:
        named = bool(body.get("return_tokens_as_token_ids"))

        def name(token: int) -> str:
            return f"token_id:{token}" if named else decode(self.hf, [token])

        own: list[float | None] = []
        tops: list[dict[str, float] | None] = []
        before = () if echo else prompt
        for i, token in enumerate(tokens):
            prefix = (*before, *tokens[: i + self.late_echo])
            if not prefix:
                own.append(None)
                tops.append(None)
                continue
            best = self.brain(prefix)
            own.append(-0.5 if token == best else -4.0)
            tops.append({name(best): -0.5} | ({} if self.kind == "sglang" else {name(token): own[-1] or 0.0}))
        return {"tokens": [name(t) for t in tokens], "token_logprobs": own, "top_logprobs": tops, "text_offset": []}


class _Listener(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hung up, or was hung up on, is no fault of this server's."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _Answered(Exception):  # noqa: N818
    """A fault has said all there is to say."""


class _Handler(BaseHTTPRequestHandler):
    """One connection to the fake."""

    fake: FakeServer
    protocol_version, disable_nagle_algorithm = "HTTP/1.1", True

    def do_GET(self) -> None:
        self._answer(lambda _: self.fake.models() if self.path == "/v1/models" else None, {})

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers["content-length"]))
        writes = {"llama_cpp": "/completion"}.get(self.fake.kind, "/v1/completions")
        known = {writes: self._write}
        if self.fake.kind != "openai":
            known |= {"/tokenize": self.fake.tokenize, "/detokenize": self.fake.detokenize}
        self._answer(known.get(self.path, lambda _: None), json.loads(raw))

    def _answer(self, answer: Callable[[dict[str, Any]], dict[str, Any] | None], body: dict[str, Any]) -> None:
        try:
            if self.fake.key and self.headers.get("authorization") != f"Bearer {self.fake.key}":
                self._say(401, {"error": {"message": f"wrong key {self.headers.get('authorization')}"}})
                return
            found = answer(body)
            self._say(200 if found is not None else 404, found or {"error": {"message": "no such URL"}})
        except BadQuestionError as why:
            self.fake.wrong.append(str(why))
            self._say(400, {"error": {"message": str(why), "type": "invalid_request_error"}})
        except _Answered as fault:  # a whole answer leaves the connection to the next question
            self.close_connection = str(fault) in ("hang", "drip", "drip_header", "drip_chunk_size", "reset", "cut")
        except OSError:
            self.close_connection = True

    def _write(self, body: dict[str, Any]) -> dict[str, Any]:
        self.fake.asked.append(body)
        fault = self.fake.faults.popleft() if self.fake.faults else None
        if isinstance(fault, str):
            getattr(self, f"_{fault}")()
            raise _Answered(fault)
        if isinstance(fault, int):
            self._say(fault, {"error": {"message": "told to fail", "code": fault}})
            raise _Answered
        found = self.fake.write(body)
        return fault(found) if fault else found

    def _say(self, status: int, body: dict[str, Any], **headers: str) -> None:
        raw = json.dumps(body).encode()
        self._send(status, raw, len(raw), headers)

    def _send(self, status: int, raw: bytes, nbytes: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in ({"content-type": "application/json", "content-length": str(nbytes)} | headers).items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(raw)

    def _busy(self) -> None:
        self._say(429, {"error": {"message": "too many"}}, retry_after="7")

    def _redirect(self) -> None:
        self._say(307, {}, location=f"{self.fake.url}/completions")

    def _hang(self) -> None:
        self.fake.over.wait(20)

    def _drip(self) -> None:
        self.send_response(200)
        self.send_header("content-length", "100000")
        self.end_headers()
        self._trickle()

    def _drip_header(self) -> None:
        self.wfile.write(b"HTTP/1.1 200 OK\r\nx-slow: ")
        self._trickle()

    def _drip_chunk_size(self) -> None:
        self.send_response(200)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        self.wfile.write(b"2;")
        self._trickle()

    def _trickle(self) -> None:
        """Until the client hangs up, or its patience would have been seen."""
        for _ in range(_NUM_TRICKLED):
            if self.fake.over.wait(0.02):
                return
            self.wfile.write(b" ")

    def _reset(self) -> None:
        linger = struct.pack("ii", 1, 0)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.connection.close()

    def _cut(self) -> None:
        self._send(200, b'{"choices": [{"te', 1000, {})

    def _truncated(self) -> None:
        raw = b'{"choices": [{"te'
        self._send(200, raw, len(raw), {})

    def _half_utf8(self) -> None:
        raw = b'{"choices": [{"text": "\xc3'
        self._send(200, raw, len(raw), {})

    def _empty(self) -> None:
        self._send(200, b"", 0, {})

    def _array(self) -> None:
        self._send(200, b"[]", 2, {})

    def _deep(self) -> None:
        raw = b"[" * 100_000
        self._send(200, raw, len(raw), {})

    def _huge(self) -> None:
        raw = b" " * 200_000
        self._send(200, raw, len(raw), {})

    def _zipped(self) -> None:
        self._send(200, b"\x1f\x8b", 2, {"content_encoding": "gzip"})

    def log_message(self, *_: object) -> None: ...
