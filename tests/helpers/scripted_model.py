"""A server that answers the full suite's questions as a good model would, or with faults.

It computes nothing: it knows the questions, and looks up what stands in a prompt or a picture. Each
fault is one that a real model, tokenizer or version of an engine was seen, or feared, to have.
"""

from __future__ import annotations

import base64
import http.server
import json
import re
import ssl
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from waiting import HANGS_S

from kimi_prov.on_host.acceptance import images, knowledge, output_forms, tools
from kimi_prov.on_host.endpoint import checks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SPECIAL = {"<think>": 1814, "</think>": 1815, "<|im_end|>": 1794, "<|im_user|>": 1795}
TEMPLATE = (
    "{%- for m in messages -%}<|im_user|>{{ m.role }}: {{ m.content }}<|im_end|>{%- endfor -%}"
    "{%- if thinking is defined and not thinking -%}<think></think>{%- else -%}<think>{%- endif -%}"
)
_KNOWN = {**dict(knowledge.FACTS), **dict(knowledge.PROBLEMS), **dict(checks.KNOWN)}
_SEEN = {picture: answer for _, picture, answer in images.build_questions()}
_CODE = {
    "roman": """
def roman(n):
    text = ""
    for value, mark in [(1000, "M"), (900, "CM"), (500, "D"), (400, "CD"), (100, "C"), (90, "XC"),
            (50, "L"), (40, "XL"), (10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I")]:
        text += mark * (n // value)
        n %= value
    return text
""",
    "merge": """
def merge(intervals):
    found = []
    for start, end in sorted(intervals):
        if found and start <= found[-1][1]:
            found[-1][1] = max(end, found[-1][1])
        else:
            found.append([start, end])
    return found
""",
    "balanced": """
def balanced(text):
    left = []
    for c in text:
        if c in "([{":
            left.append({"(": ")", "[": "]", "{": "}"}[c])
        elif c in ")]}" and (not left or left.pop() != c):
            return False
    return not left
""",
}
_WRONG_CODE = {
    "wrong-code": "def roman(n):\n    return 'I' * n\n",
    "endless-code": "while True:\n    print('x' * 1000)\n",
    "few-results": "import os\nprint('\\nkimi-suite-result:[]', flush=True)\nos._exit(0)\n",
    "steering-code": "print('\\x1b]0;t\\x07MARK')\nraise SystemExit(7)\n",
}
# As long as a thought is that nothing switches off.
_THOUGHT = 2000
# What each of these faults has in place of a piece of a stream.
_PIECES = {"no-object": "[1]", "deep-piece": "[" * 100_000, "null-piece": "null"}
_CALL = {"name": "get_temperature", "arguments": '{"city": "Oslo"}'}


class Model:
    """The script, and its faults by name."""

    def __init__(self, *faults: str) -> None:
        self.faults = set(faults)
        self.key = "sk-kimi-test"
        # In tokens, prompt and answer; 0 for any.
        self.context = 0
        # Requests that are there now, and the most that ever were.
        self.here, self.most = 0, 0
        self.name = "kimi-test"
        self.asked: list[dict[str, Any]] = []
        self.counters = dict.fromkeys(("queries", "hits", "drafts", "drafted", "accepted"), 0)
        self.cache: set[str] = set()
        self.lock = threading.Lock()
        # So many that ask for a word have to be there at once before any is answered.
        self.meeting: threading.Barrier | None = None

    def has(self, fault: str) -> bool:
        return fault in self.faults

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        """The whole answer to a chat."""
        with self.lock:
            self.here += 1
            self.most = max(self.most, self.here)
        try:
            return self._answered(body)
        finally:
            with self.lock:
                self.here -= 1

    def _answered(self, body: dict[str, Any]) -> dict[str, Any]:
        if self.has("slow"):
            time.sleep(0.02)
        if self.has("silent"):
            time.sleep(2)
        with self.lock:
            self.asked.append(body)
        text = _written(body["messages"])
        tokens = self.tokens(body)
        with self.lock:
            cached = self._count(text, tokens)
        if self.has("short-context") and tokens > 15_000:
            return {"error": "too long"}
        if self.context and tokens + body["max_tokens"] > self.context:
            return {"error": f"{tokens} and {body['max_tokens']} tokens are more than the context"}
        message = self._message(body)
        thinks = body.get("chat_template_kwargs", {}).get("thinking", True)
        if self.has("no-switch") and body["max_tokens"] < _THOUGHT:
            message = {"content": None, "reasoning": "Let me think"}
        elif thinks or self.has("always-thinks"):
            message.setdefault("reasoning", "Let me think.")
        counted = min(tokens, 9000) if self.has("truncates") else tokens
        usage: dict[str, Any] = {"prompt_tokens": counted, "completion_tokens": 3}
        if self.has("tells-cached"):
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
        choice = {"message": message, "finish_reason": "stop"}
        return {"choices": [choice], "usage": usage}

    def tokens(self, body: dict[str, Any]) -> int:
        """Tokens of a prompt."""
        return _tokens(_written(body["messages"]))

    def _count(self, text: str, tokens: int) -> int:
        """Count in the engine's counters; return how many tokens were in the cache."""
        cached = tokens if text in self.cache and not self.has("no-cache") else 0
        self.counters["queries"] += tokens
        self.counters["hits"] += cached
        if self.has("others-ask"):
            self.counters["queries"] += 10 * tokens
            self.counters["hits"] += 10 * tokens
        self.cache.add(text)
        if not self.has("no-drafts"):
            self.counters["drafts"] += 10
            self.counters["drafted"] += 30
            self.counters["accepted"] += 0 if self.has("bad-drafts") else 20
        return cached

    def _message(self, body: dict[str, Any]) -> dict[str, Any]:  # noqa: PLR0911 - a question each
        question = body["messages"][0]["content"]
        if isinstance(question, list):
            return {"content": self._seen(question)}
        if body.get("tools"):
            return self._called(body, question)
        if body.get("response_format"):
            return {"content": self._form()}
        if question.startswith("Repeat this word"):
            if self.meeting:
                self.meeting.wait(HANGS_S)
            return {"content": self._echo(question.split()[-1])}
        if "access words" in question:
            return {"content": self._found(question)}
        if question.startswith("Write a Python function"):
            return {"content": self._code(question)}
        if question == "What is 25 plus 17? Answer with the number alone.":
            return {"content": "</think>42" if self.has("marks-in-instant") else "42"}
        if question == "Say hello." and self.has("marks-in-answers"):
            return {"content": "Hello.<|im_end|>"}
        return {"content": self._known(question)}

    def _known(self, question: str) -> str:
        if self.has("ignorant") and "Canada" in question:
            return "\x1b[2JToronto, as I am told by MARK."
        missed = ("sheep", "snail") if self.has("dull") else ("snail",) if self.has("tired") else ()
        if any(word in question for word in missed):
            return "I cannot say."
        if self.has("names-all") and "pwd" in question:
            return "directory, date, or user"
        if self.has("names-all") and "Tom" in question:
            return "Tom, Ann or Bob"
        if self.has("latex"):
            marked = _KNOWN.get(question, "").replace("H2O", r"H_2\mathrm{O}")
            return rf"So $\boxed{{\text{{{marked}}}}}$." if marked else "Hello."
        return f"It is **{_KNOWN[question]}**." if question in _KNOWN else "Hello."

    def _seen(self, content: list[dict[str, Any]]) -> str:
        picture = base64.b64decode(content[0]["image_url"]["url"].partition(",")[2])
        if self.has("names-all"):
            return "red, green or blue" if "colour" in content[1]["text"] else _SEEN[picture]
        if self.has("blind"):
            return "red" if "colour" in content[1]["text"] else "2"
        return _SEEN[picture]

    def _form(self) -> str:
        if self.has("no-grammar"):
            return "Sure! Lima is warm."
        warm = not self.has("wrong-form")
        return json.dumps({"city": "Lima", "warm": warm, "scale": "celsius"})

    def _echo(self, word: str) -> str:
        if self.has("mixes"):
            at = output_forms.MARKERS.index(word)
            return output_forms.MARKERS[(at + 1) % len(output_forms.MARKERS)]
        return "something" if self.has("deaf") and word == "ember" else word

    def _found(self, question: str) -> str:
        words = re.findall(r"warehouse in \w+ is (\w+)\.", question)
        long = len(question.split()) > 15_000
        return ", ".join(words[:1] if self.has("forgetful") and long else words)

    def _code(self, question: str) -> str:
        (name,) = re.findall(r"function (\w+)\(", question)
        if self.has("no-code"):
            return "I would rather not."
        wrong = [text for fault, text in _WRONG_CODE.items() if self.has(fault)]
        code = _CODE[name]
        if wrong and name == "roman":
            code = wrong[0] if "def roman" in wrong[0] else f"def roman(n): ...\n{wrong[0]}"
        if self.has("ones") and name == "balanced":
            code = code.replace("return not left", "return int(not left)")
        if self.has("chatty-code"):
            return f"So:\n```sh\npython3 x.py < in\n```\n```python\n{code}```\n```\nIV!\n```"
        return f"```python\n{code}```"

    def _called(self, body: dict[str, Any], question: str) -> dict[str, Any]:
        calls = self._calls(body, question)
        lost = question == tools.WHILE_THINKING[0] and (
            self.has("lost-call") or (self.has("lost-in-stream") and body.get("stream"))
        )
        if lost:
            told = f"<|tool_call_begin|>functions.get_temperature:0{_CALL['arguments']}"
            return {"content": None, "reasoning": told}
        if not calls:
            return {"content": self._told(body, question)}
        same = self.has("same-ids")
        made = [
            {"id": "c0" if same else f"c{number}", "type": "function", "function": call}
            for number, call in enumerate(calls)
        ]
        return {"content": None, "tool_calls": made}

    def _calls(self, body: dict[str, Any], question: str) -> list[dict[str, str]]:
        wanted = dict((*tools.SINGLE, tools.PARALLEL))
        wanted[tools.WHILE_THINKING[0]] = tools.WHILE_THINKING[1]
        if question == tools.ROUNDS[0]:
            done = sum(message["role"] == "tool" for message in body["messages"])
            cities = () if self.has("guesses") else ("Oslo", "Rome")
            if self.has("asks-forever"):
                cities = ("Oslo",) * 99
            if done >= len(cities):
                return []
            return [{"name": "get_temperature", "arguments": json.dumps({"city": cities[done]})}]
        if body.get("tool_choice") == "required":
            return [_CALL]
        found = [{"name": n, "arguments": json.dumps(v)} for n, v in wanted[question]]
        if self.has("wrong-tool"):
            found = [{**call, "name": "get_time"} for call in found]
        if self.has("broken-arguments"):
            found = [{**call, "arguments": "{city: "} for call in found]
        if self.has("deep-arguments"):
            found = [{**call, "arguments": '{"city":' * 100_000} for call in found]
        if self.has("calls-for-nothing"):
            found = found or [_CALL]
        return found[:1] if self.has("one-call") else found

    def _told(self, body: dict[str, Any], question: str) -> str:
        if question != tools.ROUNDS[0]:
            return "hello"
        told = [message["content"] for message in body["messages"] if message["role"] == "tool"]
        if self.has("compares"):
            return "Rome is warmer than Oslo."
        if self.has("ignores-results") or self.has("guesses"):
            return "Rome"
        return "Oslo" if told == ["31 degrees Celsius", "-7 degrees Celsius"] else f"{told}"

    def metrics(self) -> str:
        names = {
            "queries": "prefix_cache_queries_total",
            "hits": "prefix_cache_hits_total",
            "drafts": "spec_decode_num_drafts_total",
            "drafted": "spec_decode_num_draft_tokens_total",
            "accepted": "spec_decode_num_accepted_tokens_total",
        }
        return "".join(
            f'vllm:{names[key]}{{engine="0"}} {value}.0\n' for key, value in self.counters.items()
        )

    def engine(self, path: str, asked: dict[str, Any]) -> object | None:
        """What the engine's own port answers beside chats; None where it has no such path."""
        if self.has("no-tokenize"):
            return None
        if path == "/detokenize":
            return {"prompt": "".join(map(chr, asked["tokens"]))}
        if path != "/tokenize":
            return None
        if "prompt" in asked:
            split = self.has("split-think") and asked["prompt"] == "<think>"
            return {"tokens": [27, 963, 29] if split else [SPECIAL[asked["prompt"]]]}
        text = "".join(
            f"<|im_user|>{m['role']}: {m['content']}<|im_end|>" for m in asked["messages"]
        )
        text += "" if self.has("other-template") else "<think>"
        return {"tokens": [ord(c) for c in text]}


def _tokens(text: str) -> int:
    """Count as Kimi's tokenizer does, about: words, and digits by threes."""
    return len(re.findall(r"\d{1,3}|[^\W\d]+", text))


def _written(messages: list[dict[str, Any]]) -> str:
    parts = []
    for message in messages:
        content = message.get("content") or ""
        listed = content if isinstance(content, list) else [{"text": content}]
        parts += [str(part.get("text", "")) for part in listed]
    return "\n".join(parts)


class _Handler(http.server.BaseHTTPRequestHandler):
    model: Model

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        if self._allowed():
            listed = {"data": [{"id": self.model.name}]} if self.path == "/v1/models" else None
            self._send(200 if listed else 404, listed or {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self._allowed():
            return
        found = self.model.answer(body)
        if "error" in found:
            self._send(400, found)
        elif body.get("stream"):
            self._stream(found)
        else:
            self._send(200, found)

    def _allowed(self) -> bool:
        if self.headers["Authorization"] == f"Bearer {self.model.key}":
            return True
        self._send(401, {"error": {"code": "invalid_api_key"}})
        return False

    def _stream(self, found: dict[str, Any]) -> None:
        """The same answer in pieces, its calls' arguments cut in two."""
        message = found["choices"][0]["message"]
        deltas: list[dict[str, Any]] = [{"role": "assistant"}]
        deltas += [{"reasoning": message[k]} for k in ("reasoning",) if message.get(k)]
        deltas += [{"content": message[k]} for k in ("content",) if message.get(k)]
        for at, call in enumerate(message.get("tool_calls") or ()):
            function = call["function"]
            half = len(function["arguments"]) // 2
            first = {"name": function["name"], "arguments": function["arguments"][:half]}
            rest = {"arguments": function["arguments"][half:]}
            deltas.append({"tool_calls": [{"index": at, "id": call["id"], "function": first}]})
            deltas.append({"tool_calls": [{"index": at, "function": rest}]})
        pieces = [{"choices": [{"delta": delta}]} for delta in deltas]
        pieces.append({"choices": [{"delta": {}, "finish_reason": "stop"}]})
        pieces.append({"choices": [], "usage": found["usage"]})
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        wrong = [text for fault, text in _PIECES.items() if self.model.has(fault)]
        for piece in [*wrong, *map(json.dumps, pieces)]:
            self.wfile.write(f"data: {piece}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")

    def _send(self, code: int, document: object) -> None:
        if self.model.has("deep-answer"):
            document = "[" * 100_000
        content = (document if isinstance(document, str) else json.dumps(document)).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


class _Engine(_Handler):
    """The engine's own port, on the loopback and without TLS."""

    def do_GET(self) -> None:
        self._send(200, self.model.metrics()) if self.path == "/metrics" else self._send(404, {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        found = self.model.engine(self.path, body)
        self._send(404 if found is None else 200, found or {})


class _Server(http.server.ThreadingHTTPServer):
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Who waits no longer has hung up."""


@contextmanager
def serving(folder: Path, pem: str, model: Model) -> Iterator[int]:
    """Serve over TLS; give the port."""
    file = folder / "scripted.pem"
    file.write_text(pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    with _listening(_Handler, model, context) as port:
        yield port


@contextmanager
def engine(model: Model) -> Iterator[int]:
    """Serve what the engine has on the loopback beside chats; give the port."""
    with _listening(_Engine, model, None) as port:
        yield port


@contextmanager
def _listening(kind: type[_Handler], model: Model, tls: ssl.SSLContext | None) -> Iterator[int]:
    server = _Server(("127.0.0.1", 0), type("Scripted", (kind,), {"model": model}))
    if tls:
        server.socket = tls.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
