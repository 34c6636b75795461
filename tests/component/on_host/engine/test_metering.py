"""What passes an engine's web server is counted by a counter that runs, and held to limits."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from kimi_prov.contract import key_rules
from kimi_prov.contract.key_rules import Rule
from kimi_prov.on_host.engine import metering
from kimi_prov.on_host.usage import store
from kimi_prov.on_host.usage.counter import Counter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

CHAT = "/v1/chat/completions"
USAGE = {"prompt_tokens": 5, "total_tokens": 8, "completion_tokens": 3}


def event(document: Any, name: str = "") -> bytes:
    text = document if isinstance(document, str) else json.dumps(document, separators=(",", ":"))
    return (f"event: {name}\n" if name else "").encode() + f"data: {text}\n\n".encode()


def piece(text: str, completion: int, index: int = 0) -> bytes:
    usage = {"prompt_tokens": 5, "total_tokens": 5 + completion, "completion_tokens": completion}
    choice = {"index": index, "delta": {"content": text}, "finish_reason": None}
    return event({"id": "c", "choices": [choice], "usage": usage})


class Engine:
    """Answers as vLLM does: with `usage` in a stream where it is asked for it."""

    def __init__(self, *events: bytes, answer: Any = None) -> None:
        self.events, self.answer = events, answer
        self.bodies: list[Any] = []
        self.lengths: list[int] = []
        # A stream stops there until it is let, or ended.
        self.stop_at: int | None = None
        self.stopped = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        self.bodies.append(json.loads(body) if body else None)
        self.lengths += [int(v) for n, v in scope["headers"] if n == b"content-length"]
        kind = b"text/event-stream; charset=utf-8" if self.events else b"application/json"
        start = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]}
        await send(start)
        for number, data in enumerate(self.events):
            await self._stop(number)
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await self._stop(len(self.events))
        last = b"" if self.events else json.dumps(self.answer).encode()
        await send({"type": "http.response.body", "body": last, "more_body": False})

    async def _stop(self, number: int) -> None:
        if number == self.stop_at:
            self.stopped.set()
            await asyncio.Event().wait()


@pytest.fixture
def db(tmp_path: Path) -> Any:
    made = store.Store(tmp_path / "usage.db", keep_days=400)
    yield made
    made.close()


@asynccontextmanager
async def counting(db: store.Store, address: Path) -> AsyncIterator[None]:
    address.unlink(missing_ok=True)
    server = await asyncio.start_unix_server(
        Counter(db, address.with_name("usage.prom")).serve, str(address)
    )
    async with server:
        yield


async def ask(meter: Any, body: Any, *, path: str = CHAT, key: str = "alice", **limits: int) -> Any:
    """Return status, headers and body that a client gets."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    halves = [data[: len(data) // 2], data[len(data) // 2 :]]
    headers = [(b"content-length", str(len(data)).encode())]
    if key:
        headers.append((key_rules.KEY_HEADER.encode(), key.encode()))
    if limits:
        headers.append((key_rules.RULE_HEADER.encode(), Rule(None, limits).text().encode()))
    scope = {"type": "http", "method": "POST", "path": path, "headers": headers}
    said: list[Any] = []

    async def receive() -> Any:
        if halves:
            return {"type": "http.request", "body": halves.pop(0), "more_body": bool(halves)}
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        said.append(message)

    await meter(scope, receive, send)
    told = dict(said[0]["headers"])
    return said[0]["status"], told, b"".join(m.get("body", b"") for m in said[1:])


def run(db: store.Store, tmp_path: Path, engine: Engine, *asks: dict[str, Any]) -> list[Any]:
    """Ask one after the other, with the counter at hand; return what clients got."""

    async def whole() -> list[Any]:
        async with counting(db, tmp_path / "s"):
            meter = metering.Meter(engine, str(tmp_path / "s"))
            return [await ask(meter, **wish) for wish in asks]

    return asyncio.run(whole())


def sums(db: store.Store) -> dict[str, tuple[int, int, int]]:
    return {
        row["key"]: (row["requests"], row["prompt_tokens"], row["completion_tokens"])
        for row in db.rows(until=store.EVER)
    }


DONE = event("[DONE]")
LAST = event({"id": "c", "choices": [], "usage": USAGE})
STREAM = (piece("", 0), piece('dröhn data: \n\n"usage":{}', 2), piece("b", 3), LAST, DONE)


def test_a_plain_answer_counts_by_its_usage_and_passes_as_it_is(db: Any, tmp_path: Path) -> None:
    answer = {"choices": [{"message": {"content": '"usage":{"prompt_tokens":99}'}}], "usage": USAGE}
    engine = Engine(answer=answer)
    body = {"model": "m", "messages": []}
    [(status, _, got)] = run(db, tmp_path, engine, {"body": body})
    assert (status, json.loads(got)) == (200, answer)
    assert engine.bodies == [body]
    assert sums(db) == {"alice": (1, 5, 3)}


def test_a_stream_counts_and_the_client_gets_no_usage_that_it_did_not_want(
    db: Any, tmp_path: Path
) -> None:
    engine = Engine(*STREAM)
    body = {"stream": True, "messages": [{"role": "user", "content": "ü" * 9}]}
    [(_, _, got)] = run(db, tmp_path, engine, {"body": body})
    options = {"include_usage": True, "continuous_usage_stats": True}
    assert engine.bodies == [{**body, "stream_options": options}]
    assert engine.lengths == [
        len(json.dumps(body)) + len('"stream_options":,') + len(json.dumps(options))
    ]
    events = [part.removeprefix("data: ") for part in got.decode().split("\n\n") if part]
    assert events.pop() == "[DONE]"
    told = [json.loads(part) for part in events]
    assert all("usage" not in part for part in told)
    assert [p["choices"][0]["delta"]["content"] for p in told] == [
        "", "dröhn data: \n\n\"usage\":{}", "b",
    ]  # fmt: skip
    assert sums(db) == {"alice": (1, 5, 3)}


@pytest.mark.parametrize("often", [False, True])
def test_a_client_that_wants_usage_gets_it_as_it_asked(
    db: Any, tmp_path: Path, often: bool
) -> None:
    options = {"include_usage": True, "continuous_usage_stats": often}
    body = {"stream": True, "stream_options": options}
    [(_, _, got)] = run(db, tmp_path, Engine(*STREAM), {"body": body})
    parts = got.split(b"\n\n")[:-1]
    assert [b'"usage":{"prompt' in part for part in parts] == [often, often, often, True, False]
    assert not often or got == b"".join(STREAM)
    assert sums(db) == {"alice": (1, 5, 3)}


@pytest.mark.parametrize("wish", [1, 1.0, "1", "true", "T", "yes", "Y", "ON"], ids=repr)
def test_a_stream_counts_however_its_client_says_yes(db: Any, tmp_path: Path, wish: Any) -> None:
    engine = Engine(*STREAM)
    options = {"include_usage": "no"}
    body = {"stream": wish, "stream_options": options}
    [(_, _, got)] = run(db, tmp_path, engine, {"body": body})
    assert engine.bodies[0]["stream_options"]["continuous_usage_stats"] is True
    assert b'"usage":{"prompt' not in got
    assert sums(db) == {"alice": (1, 5, 3)}


@pytest.mark.parametrize("wish", [False, None, 0, 2, "no", "off", "", [], {}], ids=repr)
def test_what_the_engine_takes_for_no_stream_is_left_as_it_is(
    db: Any, tmp_path: Path, wish: Any
) -> None:
    engine = Engine(answer={"usage": USAGE})
    run(db, tmp_path, engine, {"body": {"stream": wish}})
    assert engine.bodies == [{"stream": wish}]


def test_an_answer_in_the_background_is_refused_for_nobody_would_be_told_its_use(
    db: Any, tmp_path: Path
) -> None:
    engine = Engine(answer={"usage": USAGE})
    later, now = ({"input": "a", "background": wish} for wish in ("true", False))
    path = "/v1/responses"
    got = run(db, tmp_path, engine, {"body": later, "path": path}, {"body": now, "path": path})
    assert [status for status, *_ in got] == [400, 200]
    assert json.loads(got[0][2])["error"]["param"] == "background"
    assert engine.bodies == [now]
    assert sums(db) == {"alice": (2, 5, 3)}


def test_a_whole_answer_is_counted_before_its_client_has_the_last_byte(
    db: Any, tmp_path: Path
) -> None:
    """Though the engine's server ends its answer with an empty piece, later."""
    answer = json.dumps({"usage": USAGE}).encode()
    said: list[Any] = []

    async def engine(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"Content-Length", str(len(answer)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for part in (answer[:9], answer[9:]):
            said.append(sums(db).get("alice"))
            await send({"type": "http.response.body", "body": part, "more_body": True})
        said.append(sums(db)["alice"])
        await send({"type": "http.response.body", "body": b""})

    [(_, _, got)] = run(db, tmp_path, engine, {"body": {}})  # type: ignore[arg-type]
    assert got == answer
    assert said == [(1, 0, 0), (1, 0, 0), (1, 5, 3)]
    assert sums(db) == {"alice": (1, 5, 3)}


def test_events_may_come_in_any_pieces(db: Any, tmp_path: Path) -> None:
    whole = b"".join(STREAM)
    engine = Engine(*(whole[n : n + 7] for n in range(0, len(whole), 7)))
    body = {
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    [(_, _, got)] = run(db, tmp_path, engine, {"body": body})
    assert got == whole
    assert sums(db) == {"alice": (1, 5, 3)}


def test_responses_and_messages_count_by_their_own_words(db: Any, tmp_path: Path) -> None:
    used = {"usage": {"input_tokens": 7, "output_tokens": 2}}
    start = {"type": "message_start", "message": {"usage": {"input_tokens": 4, "output_tokens": 0}}}
    usage = {"input_tokens": 1, "cache_read_input_tokens": 3, "output_tokens": 6}
    responses = (
        event({"type": "response.created", "response": {"usage": None}}),
        event({"type": "response.completed", "response": used}, "response.completed"),
    )
    messages = (
        event(start, "message_start"),
        event({"type": "message_delta", "usage": usage}, "message_delta"),
        event({}, "message_stop"),
    )
    for path, events in (("/v1/responses", responses), ("/v1/messages", messages)):
        [(_, _, got)] = run(db, tmp_path, Engine(*events), {"body": {"stream": True}, "path": path})
        assert got == b"".join(events)
    assert sums(db) == {"alice": (2, 11, 8)}


def test_a_client_that_leaves_in_the_middle_has_used_what_was_sent(db: Any, tmp_path: Path) -> None:
    async def whole() -> None:
        for key, events, at in (
            ("told", STREAM, 2),
            ("untold", (event({"delta": "a"}), event({"delta": "b"}), DONE), 2),
        ):
            engine = Engine(*events)
            engine.stop_at = at
            async with counting(db, tmp_path / "s"):
                meter = metering.Meter(engine, str(tmp_path / "s"))
                task = asyncio.ensure_future(ask(meter, {"stream": True}, key=key))
                await engine.stopped.wait()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                await asyncio.wait_for(meter._telling, 30)  # type: ignore[arg-type]

    asyncio.run(whole())
    assert sums(db) == {"told": (1, 5, 2), "untold": (1, 0, 2)}


def test_a_limit_bites_on_the_next_request_of_its_key_and_of_no_other(
    db: Any, tmp_path: Path
) -> None:
    engine = Engine(answer={"usage": USAGE})
    wish = {"body": {}, "tokens_per_day": 8}
    got = run(
        db, tmp_path, engine, wish, wish, {**wish, "key": "bob"}, {**wish, "tokens_per_day": 9}
    )
    assert [status for status, *_ in got] == [200, 429, 200, 200]
    _, headers, body = got[1]
    error = json.loads(body)["error"]
    assert (error["type"], error["code"]) == ("tokens", "rate_limit_exceeded")
    assert 0 < int(headers[b"retry-after"]) <= 86400
    assert len(engine.bodies) == 3
    assert sums(db) == {"alice": (2, 10, 6), "bob": (1, 5, 3)}


def test_a_stream_is_counted_before_its_client_knows_that_it_is_over(
    db: Any, tmp_path: Path
) -> None:
    """Who asks again at the last event, as SDKs do, meets the limit."""
    engine = Engine(*STREAM)
    engine.stop_at = len(STREAM)

    async def whole() -> int:
        async with counting(db, tmp_path / "s"):
            meter = metering.Meter(engine, str(tmp_path / "s"))
            first = asyncio.ensure_future(ask(meter, {"stream": True}))
            await engine.stopped.wait()
            status, *_ = await ask(meter, {"stream": True}, tokens_per_minute=8)
            first.cancel()
            return int(status)

    assert asyncio.run(whole()) == 429


def test_requests_at_once_have_a_limit_and_free_their_places_however_they_end(
    db: Any, tmp_path: Path
) -> None:
    engine = Engine(*STREAM)
    limits = {"parallel": 2}

    async def whole() -> None:
        async def ask_now(meter: Any) -> tuple[int, Any]:
            status, _, body = await ask(meter, {"stream": True}, **limits)
            return status, body

        async def begin(meter: Any) -> Any:
            engine.stop_at, engine.stopped = 2, asyncio.Event()
            begun = asyncio.ensure_future(ask(meter, {"stream": True}, **limits))
            await engine.stopped.wait()
            engine.stop_at = None
            return begun

        async with counting(db, tmp_path / "s"):
            meter, other = (metering.Meter(engine, str(tmp_path / "s")) for _ in range(2))
            # What ends in order frees its place before its client asks again.
            assert [(await ask_now(meter))[0] for _ in range(4)] == [200] * 4
            # All engines of a machine together.
            first, second = await begin(meter), await begin(other)
            status, body = await ask_now(meter)
            error = json.loads(body)["error"]
            assert (status, error["type"], error["code"]) == (
                429, "requests", "rate_limit_exceeded"
            )  # fmt: skip
            assert "limit of requests at once. Try again in 5 s" in error["message"]
            # Another key has its own.
            assert (await ask(meter, {"stream": True}, key="bob", **limits))[0] == 200
            # A client that leaves.
            first.cancel()
            await asyncio.wait([first])
            await asyncio.wait_for(meter._telling, 30)  # type: ignore[arg-type]
            assert (await ask_now(meter))[0] == 200
            second.cancel()
            await asyncio.wait([second])
        # What was counted before a counter ended holds no place in the next one.
        async with counting(db, tmp_path / "s"):
            assert (await ask_now(meter))[0] == 200

    asyncio.run(whole())
    (row,) = [row for row in db.rows(until=store.EVER) if row["key"] == "alice"]
    assert row["refused"] == {"parallel": 1}


def test_an_engine_that_is_killed_frees_the_places_of_its_requests(db: Any, tmp_path: Path) -> None:
    async def whole() -> list[Any]:
        said = {"do": "ask", "key": "alice", "rule": Rule(None, {"parallel": 1}).text()}

        async def say(writer: Any, reader: Any, request: str) -> Any:
            writer.write(json.dumps({**said, "id": request}).encode() + b"\n")
            return json.loads(await reader.readline()).get("reason", "begins")

        async with counting(db, tmp_path / "s"):
            reader, writer = await asyncio.open_unix_connection(str(tmp_path / "s"))
            found = [await say(writer, reader, "one")]
            again, other = await asyncio.open_unix_connection(str(tmp_path / "s"))
            found.append(await say(other, again, "two"))
            # The answer was lost, and the same request asks again elsewhere.
            found.append(await say(other, again, "one"))
            other.close()
            writer.close()
            third, last = await asyncio.open_unix_connection(str(tmp_path / "s"))
            while (then := await say(last, third, "three")) != "begins":
                await asyncio.sleep(0.01)
            last.close()
            return [*found, then]

    assert asyncio.run(whole()) == ["begins", "parallel", "begins", "begins"]


def test_requests_at_once_bound_by_how_much_a_day_is_exceeded(db: Any, tmp_path: Path) -> None:
    """300 requests at once under 1,000 tokens a day: without a bound all pass, 60,000 tokens."""
    engine = Engine(answer={"usage": {"prompt_tokens": 100, "completion_tokens": 100}})
    wish = {"body": {}, "tokens_per_day": 1000, "parallel": 3}

    async def whole() -> list[int]:
        async with counting(db, tmp_path / "s"):
            meter = metering.Meter(engine, str(tmp_path / "s"))

            async def client() -> int:
                while True:
                    status, _, body = await ask(meter, **wish)
                    if b"at once" not in body:
                        return int(status)
                    await asyncio.sleep(0.001)

            return await asyncio.gather(*(client() for _ in range(300)))

    statuses = asyncio.run(whole())
    assert 5 <= statuses.count(200) <= 7
    assert statuses.count(429) == 300 - statuses.count(200)


def test_several_answers_of_one_request_take_as_many_places(db: Any, tmp_path: Path) -> None:
    """`n` and lists of prompts would pass a limit of requests at once by one request."""
    engine = Engine(*STREAM)
    limits = {"parallel": 4}

    async def whole() -> list[Any]:
        async with counting(db, tmp_path / "s"):
            meter = metering.Meter(engine, str(tmp_path / "s"))
            engine.stop_at = 0
            begun = asyncio.ensure_future(ask(meter, {"stream": True, "n": 3}, **limits))
            await engine.stopped.wait()
            engine.stop_at = None
            wishes = [{"n": 2}, {"n": 1}, {"n": 5}, {"prompt": ["a", "b"]}, {"prompt": [1, 2, 3]}]
            found = [await ask(meter, {"stream": True, **wish}, **limits) for wish in wishes]
            others = await ask(meter, {"stream": True, "n": 5}, key="bob", parallel=5)
            begun.cancel()
            await asyncio.gather(begun, return_exceptions=True)
            after = await ask(meter, {"stream": True, "n": 4}, **limits)
            return [*found, others, after]

    found = asyncio.run(whole())
    assert [status for status, *_ in found] == [429, 200, 400, 429, 200, 200, 200]
    assert b"5 answers at once; this key may have 4" in found[2][2]
    assert len(engine.bodies) == 5


def test_the_machines_own_requests_are_no_use(db: Any, tmp_path: Path) -> None:
    keys = ("", *key_rules.UNCOUNTED)
    run(db, tmp_path, Engine(answer={"usage": USAGE}), *({"body": {}, "key": key} for key in keys))
    assert sums(db) == {}


def test_a_counter_that_is_away_keeps_limits_and_loses_nothing(
    db: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(metering, "MAX_WAIT_S", 0.0)
    engine = Engine(answer={"usage": USAGE})

    async def whole() -> list[int]:
        meter = metering.Meter(engine, str(tmp_path / "s"))
        away = [await ask(meter, {}), await ask(meter, {}, tokens_per_day=1)]
        async with counting(db, tmp_path / "s"):
            # What was kept is told before the next question.
            back = [await ask(meter, {}, tokens_per_day=8), await ask(meter, {}, tokens_per_day=9)]
            await asyncio.wait_for(meter._telling, 30)  # type: ignore[arg-type]
        return [status for status, *_ in (*away, *back)]

    assert asyncio.run(whole()) == [200, 503, 429, 200]
    assert sums(db) == {"alice": (2, 10, 6)}


def test_a_question_that_is_no_json_reaches_the_engine_as_it_is(db: Any, tmp_path: Path) -> None:
    seen = []

    async def engine(scope: Any, receive: Any, send: Any) -> None:
        parts = []
        while True:
            message = await receive()
            parts.append(message["body"])
            if not message["more_body"]:
                break
        seen.append(b"".join(parts))
        await send({"type": "http.response.start", "status": 400, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    odd = [b"{", b"", b'{"stream": true, "stream_options": 3}', b"\xff\xc0", b"[1]"]
    run(db, tmp_path, engine, *({"body": body} for body in odd))  # type: ignore[arg-type]
    assert seen == odd
    assert sums(db) == {"alice": (5, 0, 0)}


def test_nonsense_on_its_socket_ends_that_connection_alone(db: Any, tmp_path: Path) -> None:
    odd = (
        b"\n", b"[]\n", b'{"do":"ask"}\n', b'{"do":"ask","id":"i","key":""}\n', b"x" * 9000 + b"\n",
        b'{"do":"tell","id":"i","key":"k","prompt":-1,"completion":0,"ended":true}\n',
        b'{"do":"tell","id":"i","key":"k","prompt":true,"completion":0,"ended":true}\n',
        b'{"do":"stop","id":"i","key":"k"}\n', b'{"do":"ask","id":1,"key":"k"}\n',
    )  # fmt: skip

    async def whole() -> list[bytes]:
        async with counting(db, tmp_path / "s"):
            answers = []
            for line in odd:
                reader, writer = await asyncio.open_unix_connection(str(tmp_path / "s"))
                writer.write(line)
                answers.append(await asyncio.wait_for(reader.read(), 30))
                writer.close()
        return answers

    assert asyncio.run(whole()) == [b""] * len(odd)
    assert sums(db) == {}
    run(db, tmp_path, Engine(answer={"usage": USAGE}), {"body": {}})
    assert sums(db) == {"alice": (1, 5, 3)}
