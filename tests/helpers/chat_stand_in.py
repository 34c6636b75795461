"""An engine behind TLS and a key that computes nothing and reads strictly what clients send.

It answers as vLLM does, or with sglang's name of the reasoning; what it was sent is kept. A request
that an engine would refuse is refused: unknown roles, a tool's result without its call, a schema
that is none, an image that is no PNG.
"""

from __future__ import annotations

import base64
import http.server
import json
import ssl
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import jsonschema

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

THOUGHT = "I weigh it."
ROLES = {"system", "user", "assistant", "tool"}


@dataclass
class Engine:
    """How it answers, and what it was asked."""

    key: str
    model: str = "kimi-k2.5"
    reasoning: str = "reasoning"
    # Of each streamed piece; an answer to "wait" begins with one piece, and goes on when told.
    goes_on: threading.Event = field(default_factory=threading.Event)
    words: tuple[str, ...] = ("Hello", " from", " the", " stand-in.")
    # Refuses all with this status and body.
    refuses: tuple[int, str] | None = None
    # Reasoning takes the whole budget, unless it is turned off.
    ponders: bool = False
    # Calls each tool that it is given, and then answers.
    calls: bool = True
    asked: list[dict[str, Any]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    left: threading.Event = field(default_factory=threading.Event)


class BadRequestError(Exception):
    """What an engine answers with HTTP 400."""


def message_of(body: dict[str, Any], engine: Engine) -> dict[str, Any]:
    """Give the whole answer to a chat."""
    check(body, engine)
    last = body["messages"][-1]
    kwargs = body.get("chat_template_kwargs", {})
    thinks = kwargs.get("thinking", True)
    message: dict[str, Any] = {"role": "assistant", "content": "".join(engine.words)}
    if thinks:
        message[engine.reasoning] = THOUGHT
    if engine.ponders and thinks:
        return message | {"content": None, "finish": "length"}
    if schema := body.get("response_format", {}).get("json_schema"):
        jsonschema.Draft202012Validator.check_schema(schema["schema"])
        message["content"] = json.dumps(filled(schema["schema"]))
    if image := images(last):
        message["content"] = f"a PNG of {len(image[0])} bytes"
    if body.get("tools") and engine.calls:
        return message | called(body)
    return message


def check(body: dict[str, Any], engine: Engine) -> None:
    """Refuse what an engine would."""
    if body.get("model") != engine.model:
        raise BadRequestError(f"no model {body.get('model')!r}")
    if not body.get("max_tokens", 1) > 0:
        raise BadRequestError("max_tokens")
    calls: set[str] = set()
    for row in body["messages"]:
        if row["role"] not in ROLES:
            raise BadRequestError(f"role {row['role']!r}")
        calls |= {call["id"] for call in row.get("tool_calls") or ()}
        if row["role"] == "tool" and row["tool_call_id"] not in calls:
            raise BadRequestError("a result without its call")


def filled(schema: dict[str, Any]) -> Any:
    """Give a value of a schema."""
    if schema["type"] == "object":
        return {name: filled(inner) for name, inner in schema["properties"].items()}
    return ["Norwegian"] if schema["type"] == "array" else "Oslo"


def images(message: dict[str, Any]) -> list[bytes]:
    """Give the images of a message."""
    parts = message["content"] if isinstance(message["content"], list) else []
    found = []
    for part in parts:
        if part["type"] == "image_url":
            head, _, data = part["image_url"]["url"].partition(",")
            if head != "data:image/png;base64":
                raise BadRequestError(head)
            found.append(base64.b64decode(data, validate=True))
            if not found[-1].startswith(b"\x89PNG\r\n"):
                raise BadRequestError("no PNG")
    return found


def called(body: dict[str, Any]) -> dict[str, Any]:
    """Call the tools one after the other, each once, and then answer."""
    tools = [tool["function"] for tool in body["tools"]]
    done = sum(row["role"] == "tool" for row in body["messages"])
    if done == len(tools):
        results = [row["content"] for row in body["messages"] if row["role"] == "tool"]
        return {"content": f"After {done} calls: {results[-1]}", "tool_calls": None}
    function = tools[done]
    values = {"city": "Oslo", "origin": "Oslo", "destination": "Rome", "flight": "KX 2"}
    given = {name: values[name] for name in function["parameters"]["properties"]}
    # The reasoning of a call goes back with it.
    for row in body["messages"]:
        if row["role"] == "assistant" and not {"reasoning", "reasoning_content"} & set(row):
            raise BadRequestError("the reasoning of a call is lost")
    call = {"name": function["name"], "arguments": json.dumps(given)}
    made = {"id": f"functions.{function['name']}:{done}", "type": "function", "function": call}
    return {"content": None, "tool_calls": [made], "finish": "tool_calls"}


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    engine: Engine

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        if self._allowed():
            row = {"id": self.engine.model, "object": "model", "max_model_len": 262144}
            self._send(200, {"object": "list", "data": [row]})

    def do_HEAD(self) -> None:
        self._send(200, {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self._allowed():
            return
        self.engine.asked.append(body)
        self.engine.paths.append(self.path)
        if self.engine.refuses:
            status, told = self.engine.refuses
            self._send(status, {"error": {"message": told, "code": status}})
            return
        try:
            if self.path.startswith("/v1/messages"):
                self._messages(body)
                return
            if self.path == "/v1/responses":
                self._responses(body)
                return
            message = message_of(body, self.engine)
        except BadRequestError as error:
            self._send(400, {"error": {"message": str(error), "type": "BadRequestError"}})
            return
        finish = message.pop("finish", "stop")
        usage = {"prompt_tokens": 7, "completion_tokens": 11, "total_tokens": 18}
        if body.get("stream"):
            self._stream(body, message, finish, usage)
            return
        choice = {"index": 0, "message": message, "finish_reason": finish}
        self._send(200, self._frame("chat.completion", [choice]) | {"usage": usage})

    def _frame(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        model = self.engine.model
        return {"id": "x", "object": kind, "created": 1, "model": model, "choices": choices}

    def _allowed(self) -> bool:
        if self.headers["Authorization"] == f"Bearer {self.engine.key}":
            return True
        self._send(401, {"error": {"message": "no key", "code": "invalid_api_key"}})
        return False

    def _stream(
        self, body: dict[str, Any], message: dict[str, Any], finish: str, usage: dict[str, int]
    ) -> None:
        self._begin()
        name = self.engine.reasoning
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
        if name in message:
            deltas += [{name: "I weigh"}, {name: " it."}]
        if message["content"] == "".join(self.engine.words):
            deltas += [{"content": word} for word in self.engine.words]
        else:
            deltas.append({"content": message["content"]})
        try:
            for number, delta in enumerate(deltas):
                self._event({"index": 0, "delta": delta, "finish_reason": None})
                if body["messages"][-1]["content"] == "wait" and number == len(deltas) - 3:
                    self._wait()
            self._event({"index": 0, "delta": {}, "finish_reason": finish})
            if body.get("stream_options", {}).get("include_usage"):
                self._line(json.dumps(self._frame("chat.completion.chunk", []) | {"usage": usage}))
            self._line("[DONE]")
        except (OSError, ssl.SSLError):
            self.engine.left.set()

    def _begin(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.close_connection = True
        self.end_headers()

    def _wait(self) -> None:
        """Send nothing more until told, or until the client has left."""
        while not self.engine.goes_on.wait(0.05):
            # Comments show in time that nobody reads any more.
            self.wfile.write(b": still here\n\n")
            time.sleep(0)

    def _event(self, choice: dict[str, Any]) -> None:
        self._line(json.dumps(self._frame("chat.completion.chunk", [choice])))

    def _line(self, data: str) -> None:
        self.wfile.write(f"data: {data}\n\n".encode())
        self.wfile.flush()

    def _messages(self, body: dict[str, Any]) -> None:
        """Answer as Anthropic's API does."""
        if body["model"] != self.engine.model or not body["max_tokens"]:
            raise BadRequestError("model or max_tokens")
        text = "".join(self.engine.words)
        if self.path.partition("?")[0].endswith("/count_tokens"):
            self._send(200, {"input_tokens": 7})
            return
        blocks = [
            {"type": "thinking", "thinking": THOUGHT, "signature": ""},
            {"type": "text", "text": text},
        ]
        found = {"id": "msg_1", "type": "message", "role": "assistant", "model": body["model"]}
        usage = {"input_tokens": 7, "output_tokens": 11}
        found |= {"stop_reason": "end_turn", "stop_sequence": None, "usage": usage}
        if not body.get("stream"):
            self._send(200, found | {"content": blocks})
            return
        self._begin()
        opened = {**found, "content": [], "stop_reason": None}
        self._named({"type": "message_start", "message": opened})
        block = {"type": "text", "text": ""}
        self._named({"type": "content_block_start", "index": 0, "content_block": block})
        for word in self.engine.words:
            delta = {"type": "text_delta", "text": word}
            self._named({"type": "content_block_delta", "index": 0, "delta": delta})
        self._named({"type": "content_block_stop", "index": 0})
        end = {"stop_reason": "end_turn", "stop_sequence": None}
        self._named({"type": "message_delta", "delta": end, "usage": usage})
        self._named({"type": "message_stop"})

    def _responses(self, body: dict[str, Any]) -> None:
        """Answer as OpenAI's newer API does, as a stream: the only form that Codex asks for."""
        if body["model"] != self.engine.model or not body["stream"]:
            raise BadRequestError("model or stream")
        words = self.engine.words
        text = {"type": "output_text", "text": "".join(words), "annotations": []}
        item = {"id": "m1", "type": "message", "role": "assistant", "content": [text]}
        opened = {"id": "r1", "object": "response", "status": "in_progress", "output": []}
        usage = {"input_tokens": 7, "output_tokens": 11, "total_tokens": 18}
        at = {"item_id": "m1", "output_index": 0, "content_index": 0}
        self._begin()
        self._named({"type": "response.created", "response": opened})
        added = {**item, "content": []}
        self._named({"type": "response.output_item.added", "output_index": 0, "item": added})
        for word in words:
            self._named({"type": "response.output_text.delta", **at, "delta": word})
        self._named({"type": "response.output_item.done", "output_index": 0, "item": item})
        whole = {**opened, "status": "completed", "output": [item], "usage": usage}
        self._named({"type": "response.completed", "response": whole})

    def _named(self, event: dict[str, Any]) -> None:
        self.wfile.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
        self.wfile.flush()

    def _send(self, code: int, document: object) -> None:
        content = json.dumps(document).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@contextmanager
def serving(folder: Path, pem: str, engine: Engine) -> Iterator[int]:
    """Serve with this certificate and key of TLS on the loopback; give the port."""
    file = folder / "engine.pem"
    file.write_text(pem)
    handler = type("EngineHandler", (_Handler,), {"engine": engine})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        engine.goes_on.set()
        server.shutdown()
        server.server_close()
        thread.join()
