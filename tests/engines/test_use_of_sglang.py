"""What keys use of KTransformers is counted: sglang-kt's own server behind our gate, and a counter.

Its web server, its tokenizer and its detokenizer are those of its wheel; what computes is a
stand-in that gives two tokens a step (`tests/helpers/in_sglang/sglang_served.py`).
"""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import shutil
import subprocess
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import engine_environment
import pytest
from ports import free_port
from waiting import HANGS_S, until

from kimi_prov.contract import key_rules
from kimi_prov.contract.key_rules import Rule
from kimi_prov.lab import model
from kimi_prov.on_host.usage.counter import Counter
from kimi_prov.on_host.usage.store import EVER, Store
from kimi_prov.packaging.zipapp import build_zipapp

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow

KEY = "canary-0123456789"
HELLO = [{"role": "user", "content": "hello"}]
TOKENS = 6
# Where a piece of an answer is.
TEXTS = ("reasoning_content", "content", "text")
ASKED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HELLO, "max_tokens": TOKENS},
    "/v1/completions": {"prompt": "hello", "max_tokens": TOKENS},
    "/v1/messages": {"messages": HELLO, "max_tokens": TOKENS},
    "/v1/responses": {"input": "hello", "max_output_tokens": TOKENS},
}
TOOL = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object", "properties": {}}},
}
# Of one answer, beside those of ASKED.
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "several answers": ("/v1/chat/completions", {"n": 3}),
    "tools": ("/v1/chat/completions", {"tools": [TOOL]}),
    "no reasoning apart": ("/v1/chat/completions", {"separate_reasoning": False}),
    "several prompts": ("/v1/completions", {"prompt": ["hello", "and again"], "n": 2}),
    **{path: (path, {}) for path in ASKED},
}


class Engine:
    """The server, and the counter that its gate asks."""

    def __init__(self, port: int, database: Path) -> None:
        self.port, self._database = port, database

    @contextmanager
    def asked(
        self, path: str, body: dict[str, Any], key: str, **limits: int
    ) -> Iterator[http.client.HTTPResponse]:
        """Ask as the proxy does, which says whose request it is."""
        headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
        headers[key_rules.KEY_HEADER] = key
        if limits:
            headers[key_rules.RULE_HEADER] = Rule(None, limits).text()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=HANGS_S)
        try:
            connection.request("POST", path, json.dumps({"model": "kimi", **body}), headers)
            yield connection.getresponse()
        finally:
            connection.close()

    def ask(self, path: str, body: dict[str, Any], key: str, **limits: int) -> tuple[int, str]:
        with self.asked(path, body, key, **limits) as answer:
            return answer.status, answer.read().decode()

    def used(self, key: str) -> tuple[int, int, int]:
        """Requests, tokens of questions and tokens of answers that are counted of a key."""
        store = Store(self._database, keep_days=400)
        try:
            rows = [row for row in store.rows(until=EVER) if row["key"] == key]
        finally:
            store.close()
        names = ("requests", "prompt_tokens", "completion_tokens")
        return tuple(sum(row[name] for row in rows) for name in names)  # type: ignore[return-value]


@dataclass(frozen=True)
class Stream:
    """What a client sees of one, however many tokens come at a time: a busy server joins some.

    `forms`: the names in an event, and in its choice; `ends`: why an answer ended.
    """

    forms: frozenset[tuple[str, ...]]
    text: str
    ends: tuple[str, ...]

    @classmethod
    def of(cls, documents: list[dict[str, Any]]) -> Stream:
        choices = [choice for document in documents for choice in document["choices"]]
        deltas = [choice.get("delta", choice) for choice in choices]
        named = [{*each} - {"usage"} for each in (*documents, *choices, *deltas)]
        words = [delta.get(name) for delta in deltas for name in TEXTS]
        return cls(
            # The gate may ask for the counts: where none were wished they are none.
            frozenset(tuple(sorted(names)) for names in named),
            "".join(word for word in words if word),
            tuple(choice["finish_reason"] for choice in choices if choice["finish_reason"]),
        )


@contextmanager
def counting(database: Path, address: Path) -> Iterator[None]:
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        store = Store(database, keep_days=400)
        counter = Counter(store, database.with_suffix(".prom"))
        async with await asyncio.start_unix_server(counter.serve, str(address)):
            await asyncio.Event().wait()

    def run() -> None:
        with pytest.raises(asyncio.CancelledError):
            loop.run_until_complete(served)

    served = loop.create_task(serve())
    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert until(address.exists)
        yield
    finally:
        loop.call_soon_threadsafe(served.cancel)
        thread.join()
        loop.close()


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    folder = tmp_path_factory.mktemp("sglang")
    made = folder / "model"
    made.mkdir()
    for file in model.make_model(folder / "whole").iterdir():
        if "safetensors" not in file.name:
            shutil.copy(file, made)
    # The name that this environment's transformers know the same layers by.
    config = made / "config.json"
    config.write_text(config.read_text().replace('"kimi_k2"', '"deepseek_v3"'))
    (folder / "key").write_text(f"engine {KEY}\n")
    python, path = engine_environment.sglang()
    script = Path(path.rpartition(":")[2]) / "sglang_served.py"
    port, socket = free_port(), folder / "socket"
    words = [build_zipapp(folder / "kimi-target.pyz"), folder / "key", socket, made, port]
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "PYTHONPATH": path}
    # As the plan has it: else a model of this kind gets another's configuration.
    environment |= {"HF_HUB_OFFLINE": "1", "SGLANG_APPLY_CONFIG_BACKUP": "none"}
    log = folder / "log"
    with counting(folder / "usage.db", socket), log.open("w") as told:
        running = subprocess.Popen(
            [str(word) for word in (python, script, *words)],
            stdout=told,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )

        def answers() -> bool:
            assert running.poll() is None, log.read_text()[-3000:]
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HANGS_S)
            try:
                connection.request("GET", "/health")
                return connection.getresponse().status == 200
            except OSError:
                return False
            finally:
                connection.close()

        try:
            assert until(answers, 600, every_s=1), log.read_text()[-3000:]
            yield Engine(port, folder / "usage.db")
        finally:
            subprocess.run(["kill", "-9", "--", f"-{running.pid}"], check=False)
            running.wait()


def name_key(*parts: object) -> str:
    """Return a name that a key may have."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", " ".join(map(repr, parts))).strip("-")


def events(text: str) -> list[Any]:
    """The events of a stream in order."""
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def told(text: str, *, streams: bool) -> tuple[int, int]:
    """What the engine itself says at the end that an answer took."""
    found = (0, 0)
    for document in events(text) if streams else [json.loads(text)]:
        usage = document.get("usage") or (document.get("response") or {}).get("usage")
        if usage and not (streams and document.get("choices")):
            prompt = usage.get("prompt_tokens", usage.get("input_tokens"))
            found = prompt, usage.get("completion_tokens", usage.get("output_tokens"))
    return found


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("streams", [False, True], ids=["whole", "stream"])
def test_what_is_counted_is_what_the_client_is_told(
    engine: Engine, form: str, streams: bool
) -> None:
    path, more = FORMS[form]
    body = {**ASKED[path], **more, "stream": streams}
    if streams and path.endswith("completions"):
        body["stream_options"] = {"include_usage": True}
    key = name_key("told", form, streams)
    status, text = engine.ask(path, body, key)
    assert status == 200, text
    prompt, completion = told(text, streams=streams)
    assert min(prompt, completion) > 0
    assert engine.used(key) == (1, prompt, completion)


@pytest.mark.parametrize("wish", [True, 1, "true", "Yes"], ids=repr)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_a_stream_looks_as_if_nobody_counted(engine: Engine, path: str, wish: Any) -> None:
    """However a client says that it wants one: what the server takes for yes is a stream."""
    body = {**ASKED[path], "stream": wish}
    key = name_key("silent", path, wish)

    def shown(user: str) -> Stream:
        status, text = engine.ask(path, body, user)
        assert status == 200, text
        return Stream.of([document for document in events(text) if not document.get("usage")])

    whole = engine.ask(path, ASKED[path], name_key("whole", path))[1]
    assert shown(key) == shown("verify")
    assert engine.used(key) == (1, *told(whole, streams=False))
    assert engine.used("verify") == (0, 0, 0)


def test_a_client_that_leaves_has_used_its_question_and_what_was_sent(engine: Engine) -> None:
    body = {**ASKED["/v1/chat/completions"], "max_tokens": 2000, "stream": True}
    with engine.asked("/v1/chat/completions", body, "left") as answer:
        got = 0
        while got < 4:
            got += b"reasoning_content" in answer.readline()
    whole = engine.ask("/v1/chat/completions", ASKED["/v1/chat/completions"], "stayed")[1]
    assert until(lambda: engine.used("left")[2] > 0)
    requests, prompt, completion = engine.used("left")
    assert (requests, prompt) == (1, told(whole, streams=False)[0])
    assert 6 <= completion < 2000


def test_a_limit_bites_on_the_next_request(engine: Engine) -> None:
    path = "/v1/chat/completions"
    body = {**ASKED[path], "stream": True}
    codes = [engine.ask(path, body, "limited", tokens_per_day=1)[0] for _ in range(2)]
    assert codes == [200, 429]


def test_an_answer_that_is_computed_after_it_was_given_is_refused(engine: Engine) -> None:
    """What it uses nobody would be told."""
    path = "/v1/responses"
    status, text = engine.ask(path, {**ASKED[path], "background": True}, "later")
    assert status == 400
    assert json.loads(text)["error"]["param"] == "background"
    assert engine.used("later") == (1, 0, 0)
    assert engine.ask(path, {**ASKED[path], "background": False}, "now")[0] == 200
