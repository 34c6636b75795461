"""Counts what each key uses, inside the engine's web server, and refuses keys over their limits.

The proxy says in two headers whose request it is and under which rule. The machine's counter says
whether it may begin; what was used is in the answer itself, in `usage`. In a stream an engine sends
`usage` only if it is asked: so it is asked, and what the client did not request is removed again.
Nothing of questions and answers is stored.

Decides: what counts as usage.
Applied by: playbooks/usage.yml.
Held by: tests/component/on_host/engine/test_metering.py, tests/engines/test_use_of_sglang.py,
  tests/lab/test_keys_and_use.py.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
import uuid
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kimi_prov.contract import key_rules, paths
from kimi_prov.on_host.engine.request_bounds import RefusedError, RequestBounds

if TYPE_CHECKING:
    from kimi_prov.on_host.engine.asgi import App, Message, Receive, Scope, Send
    from kimi_prov.on_host.engine.request_bounds import Body

# Seconds that a request waits for a counter that is being restarted.
MAX_WAIT_S = 5.0
_POLL_INTERVAL_S = 0.1
_TIMEOUT_S = 5.0
# Seconds after which a long answer is reported in parts: a crash of the engine loses at most this.
PART_S = 5.0
# Requests whose use waits for the counter; it is never away for so many.
_MAX_QUEUED = 20000
# Larger answers are not searched for `usage`: no engine writes any.
_MAX_BODY_BYTES = 64 << 20
_STREAM = b"text/event-stream"
# Endpoints whose streams take `stream_options`; other streams report their use anyway.
_ASKED = ("/chat/completions", "/completions")
# Endpoints whose answer may be computed after it was returned.
_DETACHED = "/responses"
# Values that the engines' own JSON parsers take for true, besides `true` and 1.
_YES = ("1", "true", "t", "yes", "y", "on")


class AwayError(Exception):
    """The counter does not answer."""


class Line:
    """A connection to the counter, for one request."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def say(self, **said: object) -> dict[str, Any]:
        """Return the counter's answer. Raises AwayError where there is none."""
        try:
            if self._streams is None:
                self._streams = await asyncio.open_unix_connection(self._address)
            reader, writer = self._streams
            writer.write(json.dumps(said).encode() + b"\n")
            line = await asyncio.wait_for(reader.readline(), _TIMEOUT_S)
            answer = json.loads(line)
        # Before Python 3.11 asyncio's TimeoutError is another class.
        except (asyncio.TimeoutError, OSError, ValueError) as error:
            self.close()
            raise AwayError(str(error)) from error
        return dict(answer)

    def close(self) -> None:
        """End the connection."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


class Use:
    """What one request has used so far."""

    def __init__(self, key: str) -> None:
        self.request = uuid.uuid4().hex
        self.key = key
        self.prompt = 0
        self._final = 0
        self._by_choice: dict[int, int] = {}
        self._pieces = 0

    @property
    def completion(self) -> int:
        """Return the answer's tokens as the engine reported them, else its pieces."""
        return self._final or sum(self._by_choice.values()) or self._pieces

    def count_piece(self, data: bytes) -> None:
        """Count a piece of an answer that does not report its use."""
        self._pieces += b"delta" in data or b'"text"' in data

    def add_usage(self, usage: object, choices: object = None) -> None:
        """Store an engine's `usage`; with `choices` it belongs to a piece of a stream."""
        if not isinstance(usage, Mapping):
            return
        # Names of OpenAI's chats and completions, or of its responses and Anthropic's messages.
        prompt = _get_number(usage, "prompt_tokens")
        if prompt is None:
            parts = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
            known = [n for n in (_get_number(usage, name) for name in parts) if n is not None]
            prompt = sum(known) if known else None
        self.prompt = max(self.prompt, prompt or 0)
        completion = _get_number(usage, "completion_tokens")
        if completion is None:
            completion = _get_number(usage, "output_tokens")
        if completion is None:
            return
        if isinstance(choices, list) and choices:
            index = choices[0].get("index") if isinstance(choices[0], dict) else None
            index = index if isinstance(index, int) else 0
            self._by_choice[index] = max(self._by_choice.get(index, 0), completion)
        else:
            self._final = max(self._final, completion)

    def to_message(self, *, ended: bool) -> dict[str, Any]:
        """Return the report for the counter."""
        return {
            "do": "tell",
            "id": self.request,
            "key": self.key,
            "prompt": self.prompt,
            "completion": self.completion,
            "ended": ended,
        }


def _get_number(usage: Mapping[str, Any], name: str) -> int | None:
    value = usage.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if 0 <= value <= key_rules.MAX_LIMIT else None


class Meter:
    """ASGI middleware behind the key check: the requests here came through the proxy."""

    def __init__(self, app: App, address: str = paths.USAGE_SOCKET) -> None:
        self._app = RequestBounds(app)
        self._address = address
        # Reports that could not be sent yet, oldest first.
        self._kept: deque[dict[str, Any]] = deque(maxlen=_MAX_QUEUED)
        self._telling: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on and count it, or refuse it."""
        key = _get_header(scope, key_rules.KEY_HEADER)
        posts = scope["type"] == "http" and scope.get("method") == "POST"
        if not posts or not key or key in key_rules.UNCOUNTED:
            await self._app(scope, receive, send)
            return
        rule = _get_header(scope, key_rules.RULE_HEADER)
        use, line = Use(key), Line(self._address)
        try:
            refusal = await self._ask(line, use, rule)
            if refusal is not None:
                await _refuse(send, *refusal)
                return
            passing = _Passing(self, line, use, send)
            try:
                body = await self._app.read(scope, receive, key)
                if body is None:
                    return
                refusal = await self._ask_for_answers(line, use, rule, body.count_answers())
                if refusal is not None:
                    await _refuse(send, *refusal)
                    return
                scope, body = passing.request_usage(scope, body)
                await self._app.pass_on(scope, body, receive, passing.send, key)
            except RefusedError as refused:
                await refused.send(send)
            finally:
                if not passing.ended:
                    # The client has gone, and this task may be about to be cancelled.
                    self._later(use.to_message(ended=True))
        finally:
            line.close()

    async def _ask_for_answers(
        self, line: Line, use: Use, rule: str, answers: int
    ) -> tuple[int, str, str, int] | None:
        """Ask for the places of a request that wants several answers; return as `_ask` does."""
        most = key_rules.parse(rule).limits.get(key_rules.PARALLEL)
        if most is None or answers == 1:
            return None
        if answers > most:
            said = f"The request asks for {answers} answers at once; this key may have {most}."
            raise RefusedError(400, "too_many_answers", said, "n")
        return await self._ask(line, use, rule, do="widen", answers=answers)

    async def _ask(
        self, line: Line, use: Use, rule: str, **more: object
    ) -> tuple[int, str, str, int] | None:
        """Return status, type, message and seconds to wait of a refusal; None for none."""
        question = {"do": "ask", "id": use.request, "key": use.key, "rule": rule, **more}
        limited = bool(key_rules.parse(rule).limits)
        until = time.monotonic() + MAX_WAIT_S
        while True:
            try:
                await self._deliver(line)
                answer = await line.say(**question)
                break
            except AwayError:
                if not limited:
                    # It is reported at its end, and counted then.
                    return None
                if time.monotonic() > until:
                    said = "The use of this key cannot be counted now; try again."
                    return 503, "server_error", said, 5
                await asyncio.sleep(_POLL_INTERVAL_S)
        if answer.get("ok") is not False:
            return None
        wait_s = max(int(answer.get("wait_s") or 1), 1)
        kind, said = key_rules.describe_refusal(str(answer.get("reason")), wait_s)
        return 429, kind, said, wait_s

    async def tell(self, line: Line, use: Use, *, ended: bool) -> None:
        """Report what a request has used; keep the report where the counter is away."""
        try:
            await self._deliver(line)
            await line.say(**use.to_message(ended=ended))
        except AwayError:
            if ended:
                self._later(use.to_message(ended=True))

    async def _deliver(self, line: Line) -> None:
        """Send the kept reports. Raises AwayError where the counter is still away."""
        while self._kept:
            said = self._kept[0]
            await line.say(**said)
            # Another request may have sent it meanwhile: the counter knows it by its id.
            if self._kept and self._kept[0] is said:
                self._kept.popleft()

    def _later(self, said: dict[str, Any]) -> None:
        self._kept.append(said)
        if self._telling is None or self._telling.done():
            self._telling = asyncio.get_running_loop().create_task(self._until_told())

    async def _until_told(self) -> None:
        line = Line(self._address)
        told = False
        while self._kept:
            try:
                await self._deliver(line)
            except AwayError as error:
                if not told:
                    print(f"the counter is away, use is kept: {error}", file=sys.stderr, flush=True)
                told = True
                await asyncio.sleep(1.0)
        line.close()


class _Passing:
    """One request on its way through: what it requests, and what comes back."""

    def __init__(self, meter: Meter, line: Line, use: Use, send: Send) -> None:
        self.ended = False
        self._meter, self._line, self._use, self._send = meter, line, use, send
        self._asked = False
        # Whether the client itself requests `usage` in a stream: at its end, in every piece.
        self._at_end, self._always = True, True
        self._streams = False
        self._rest = b""
        self._parts: list[bytes] = []
        self._size = 0
        # Of a whole answer, where its head says so.
        self._length: int | None = None
        self._told_at = time.monotonic()

    def request_usage(self, scope: Scope, body: Body) -> tuple[Scope, Body]:
        """Make the engine report what a stream used, whether or not the client requests it.

        Raises RefusedError where nobody would be told what is used.
        """
        path = str(scope["path"])
        if path.endswith(_DETACHED) and _is_yes(body.read_fields().get("background")):
            said = "Background answers are not supported here: request without it, or a stream."
            raise RefusedError(400, "unsupported_value", said, "background")
        changed = self._add_usage_option(body) if path.endswith(_ASKED) else body
        if changed is not body:
            headers = _set_content_length(scope["headers"], len(changed.data))
            scope = {**scope, "headers": headers}
        return scope, changed

    def _add_usage_option(self, body: Body) -> Body:
        """Return the body of a request whose stream reports its use."""
        request = body.read_fields()
        given = request.get("stream_options")
        if not _is_yes(request.get("stream")) or not (given is None or isinstance(given, dict)):
            return body
        options = dict(given or {})
        self._asked = True
        self._at_end = _is_yes(options.get("include_usage"))
        self._always = self._at_end and _is_yes(options.get("continuous_usage_stats"))
        options.update(include_usage=True, continuous_usage_stats=True)
        return body.with_field("stream_options", options)

    async def send(self, message: Message) -> None:
        """Pass on the engine's answer, and read in it what was used."""
        if message["type"] == "http.response.start":
            heads = {name.lower(): value for name, value in message["headers"]}
            self._streams = heads.get(b"content-type", b"").lower().startswith(_STREAM)
            length = heads.get(b"content-length", b"")
            self._length = int(length) if length.isdigit() else None
        elif message["type"] == "http.response.body":
            body, more = message.get("body", b""), bool(message.get("more_body"))
            body = await (self._stream(body, more=more) if self._streams else self._plain(body))
            # A client has a whole answer with its last byte, whatever the engine sends after it.
            whole = not self._streams and self._length is not None and self._size >= self._length
            if (whole or not more) and not self.ended:
                if not self._streams:
                    self._read_plain()
                await self._end()
            message = {**message, "body": body}
            if more and not body:
                return
        await self._send(message)

    async def _plain(self, body: bytes) -> bytes:
        self._size += len(body)
        self._parts = [*self._parts, body] if self._size <= _MAX_BODY_BYTES else []
        return body

    def _read_plain(self) -> None:
        body = b"".join(self._parts)
        if b'"usage"' in body:
            self._use.add_usage(_parse_object(body).get("usage"))

    async def _stream(self, body: bytes, *, more: bool) -> bytes:
        """Read the complete events of a stream; a partial event waits for its end."""
        events = (self._rest + body).split(b"\n\n")
        self._rest = events.pop()
        told = [self._event(event) for event in events]
        out = b"".join(event + b"\n\n" for event in told if event is not None)
        if not more or b"\r\n\r\n" in self._rest:
            out, self._rest = out + self._rest, b""
        if any(_is_last(event) for event in events):
            # Reported before the client knows that the answer is over, and may send the next
            # request.
            await self._end()
        elif time.monotonic() - self._told_at > PART_S:
            self._told_at = time.monotonic()
            await self._meter.tell(self._line, self._use, ended=False)
        return out

    def _event(self, event: bytes) -> bytes | None:
        """Read one event; return what the client gets of it, None where it is only for us."""
        head, mark, data = event.partition(b"data: ")
        piece = _parse_object(data) if b'"usage"' in data else {}
        if not piece:
            self._use.count_piece(data)
            return event
        inner = piece.get("response") or piece.get("message")
        inner = inner if isinstance(inner, dict) else {}
        usage, choices = piece.get("usage") or inner.get("usage"), piece.get("choices")
        self._use.add_usage(usage, choices)
        if usage is None:
            self._use.count_piece(data)
        if not self._asked or "usage" not in piece or not isinstance(choices, list):
            return event
        if not choices and usage is not None and not self._at_end:
            return None
        if choices and usage is not None and not self._always:
            del piece["usage"]
            text = json.dumps(piece, ensure_ascii=False, separators=(",", ":"))
            return head + mark + text.encode("utf-8", "surrogatepass")
        return event

    async def _end(self) -> None:
        if not self.ended:
            self.ended = True
            await self._meter.tell(self._line, self._use, ended=True)


def _parse_object(text: bytes) -> dict[str, Any]:
    """Return a JSON object; an empty one where it is none."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _is_yes(value: object) -> bool:
    if isinstance(value, str):
        return value.lower() in _YES
    # True, 1 and 1.0 are equal.
    return value == 1


def _is_last(event: bytes) -> bool:
    """Return whether an event ends a stream of chats, responses or messages."""
    return event.endswith(b"data: [DONE]") or event.startswith(
        (b"event: response.completed", b"event: response.incomplete", b"event: message_stop")
    )


def _get_header(scope: Scope, name: str) -> str:
    """Return a header that the proxy has set; it sets each once."""
    wanted = name.encode()
    for found, value in scope.get("headers") or ():
        if found.lower() == wanted:
            return str(value.decode("latin-1"))
    return ""


def _set_content_length(headers: list[tuple[bytes, bytes]], size: int) -> list[tuple[bytes, bytes]]:
    rest = [pair for pair in headers if pair[0].lower() != b"content-length"]
    return [*rest, (b"content-length", str(size).encode())]


async def _refuse(send: Send, status: int, kind: str, said: str, wait_s: int) -> None:
    """Refuse in the form that OpenAI's clients read; they wait and retry by themselves."""
    code = "rate_limit_exceeded" if status == 429 else "usage_unavailable"
    headers = [(b"retry-after", str(wait_s).encode())]
    if wait_s > key_rules.WAITS_S:
        headers.append((b"x-should-retry", b"false"))
    await _send_error(
        send, status, {"message": said, "type": kind, "param": None, "code": code}, headers
    )


async def _send_error(
    send: Send, status: int, error: Mapping[str, object], headers: list[tuple[bytes, bytes]]
) -> None:
    headers = [(b"content-type", b"application/json"), *headers]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps({"error": error}).encode()})
