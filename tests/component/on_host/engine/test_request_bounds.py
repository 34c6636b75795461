"""What reaches an engine is bounded, and no request keeps the others waiting while it is read."""

from __future__ import annotations

import asyncio
import json
import re
import time
from typing import TYPE_CHECKING, Any

import pytest

from kimi_prov.on_host.engine import api_gate, request_bounds
from kimi_prov.on_host.engine.json_scan import Limits
from kimi_prov.on_host.engine.request_bounds import RequestBounds, SizeLimit

if TYPE_CHECKING:
    from pathlib import Path

MOST = 100_000
MIB = 1 << 20


def limit_of(size: int, folder: Path) -> SizeLimit:
    plan = folder / "plan.json"
    plan.write_text(json.dumps({"proxy": {"request_body_max_bytes": size}}))
    return SizeLimit(str(plan))


class Engine:
    """Reads each request as an engine does, at once, and takes as long as it is told to."""

    def __init__(self, reads_s: float = 0.0) -> None:
        self.reads_s = reads_s
        self.bodies: list[bytes] = []
        self.messages = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        message = await receive()
        assert not message["more_body"]
        time.sleep(self.reads_s)
        self.bodies.append(message["body"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})


async def ask(
    gate: Any,
    *parts: bytes,
    length: int | None = None,
    gone: bool = False,
    method: str = "POST",
    key: str = "",
) -> tuple[int, dict[str, Any], int]:
    """Return status, answer and how many parts of the body were read."""
    headers = [] if length is None else [(b"content-length", str(length).encode())]
    headers += [(b"authorization", f"Bearer {key}".encode())] if key else []
    scope = {"type": "http", "method": method, "path": "/v1/x", "headers": headers}
    waiting, said, read = list(parts), [], 0

    async def receive() -> Any:
        nonlocal read
        if not waiting:
            return {"type": "http.disconnect"}
        read += 1
        body = waiting.pop(0)
        return {"type": "http.request", "body": body, "more_body": bool(waiting) or gone}

    async def send(message: Any) -> None:
        said.append(message)

    await gate(scope, receive, send)
    if not said:
        return 0, {}, read
    return said[0]["status"], json.loads(said[1]["body"]), read


def gate_of(engine: Engine, folder: Path, size: int = MOST, **limits: int) -> RequestBounds:
    return RequestBounds(engine, limit_of(size, folder), Limits(**limits))


def padded(size: int) -> bytes:
    return b'{"messages":[]}' + b" " * (size - 15)


def test_a_size_is_held_by_length_and_by_counting_chunks(tmp_path: Path) -> None:
    engine = Engine()
    gate = gate_of(engine, tmp_path)
    whole = padded(MOST)
    chunks = [whole[at : at + 9999] for at in range(0, MOST, 9999)]
    assert asyncio.run(ask(gate, whole, length=MOST))[0] == 200
    assert asyncio.run(ask(gate, *chunks))[0] == 200
    assert engine.bodies == [whole, whole]
    told = asyncio.run(ask(gate, whole, length=MOST + 1))
    counted = asyncio.run(ask(gate, *chunks, b" ", *chunks))
    for status, answer, _ in (told, counted):
        assert status == 413
        assert answer["error"]["code"] == "request_too_large"
        assert f"the most is {MOST}" in answer["error"]["message"]
    assert f"{MOST + 1} bytes" in told[1]["error"]["message"]
    # By its length none of it is read, and else nothing after the byte that is too many.
    assert (told[2], counted[2]) == (0, len(chunks) + 1)
    assert len(engine.bodies) == 2


@pytest.mark.parametrize(
    "wish",
    [
        {"n": 129},
        {"n": "129"},
        {"n": 129.0},
        {"best_of": 16384, "n": 1},
        {"n": 10**400},
        {"prompt": ["a"] * 65, "n": 2},
        {"prompt": [[1, 2]] * 129},
    ],
    ids=str,
)
def test_one_request_asks_for_so_many_answers_at_most(tmp_path: Path, wish: Any) -> None:
    """vLLM takes 16384 answers of one request, and all others wait for them."""
    engine = Engine()
    gate = gate_of(engine, tmp_path)
    status, answer, _ = asyncio.run(ask(gate, json.dumps(wish).encode()))
    assert (status, answer["error"]["code"]) == (400, "too_many_answers")
    assert "the most is 128" in answer["error"]["message"]
    assert engine.bodies == []


@pytest.mark.parametrize(
    "wish",
    [
        {"n": 128},
        {"n": None},
        {"n": "many"},
        {"n": True},
        {"stop": ["a"] * 200},
        {"prompt": list(range(500))},
        {"prompt": ["a"] * 64, "n": 2},
    ],
    ids=str,
)
def test_what_asks_for_no_more_is_passed_on(tmp_path: Path, wish: Any) -> None:
    engine = Engine()
    body = json.dumps(wish).encode()
    assert asyncio.run(ask(gate_of(engine, tmp_path), body))[0] == 200
    assert engine.bodies == [body]


def test_a_plan_that_changes_counts_at_once_and_one_that_is_broken_does_not(tmp_path: Path) -> None:
    limit = limit_of(10, tmp_path)
    plan = tmp_path / "plan.json"
    sizes = [limit.read_bytes()]
    for text in ('{"proxy":{"request_body_max_bytes":2000}}', '{"proxy":{}}', "{", "[]"):
        plan.unlink()
        plan.write_text(text + " " * len(sizes))
        sizes.append(limit.read_bytes())
    assert sizes == [10, 2000, 2000, 2000, 2000]


def test_a_job_s_engine_has_it_from_its_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(request_bounds.BODY_MAX, "77")
    assert limit_of(10, tmp_path).read_bytes() == 77


def test_the_gate_of_a_job_or_a_pod_holds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (api_gate.API_KEY_FILE, api_gate.JOB_KEY_FILE):
        (tmp_path / name).write_text(f"{name}\n")
        monkeypatch.setenv(name, str(tmp_path / name))
    plan = {"proxy": {"request_body_max_bytes": MOST}}
    for name, value in request_bounds.build_environment(plan).items():
        monkeypatch.setenv(name, value)
    engine = Engine()
    gate = api_gate.ApiGate(engine)
    key = api_gate.API_KEY_FILE
    answers = [asyncio.run(ask(gate, padded(size), key=key)) for size in (MOST, MOST + 1)]
    assert [status for status, *_ in answers] == [200, 413]
    assert asyncio.run(ask(gate, b"[" * 99, key=key))[0] == 400
    assert len(engine.bodies) == 1
    assert request_bounds.build_environment({"proxy": {}}) == {}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"messages": [{"role": "user"}] * 30}, "messages has more than 20 items"),
        ({"messages": [{}]}, "messages: expected objects with a role"),
        ({"x": [0] * 200}, "more than 90 JSON names and values"),
        ({"x": [[[[[[[0]]]]]]]}, "more than 5 levels"),
        ({"messages": "a" * 9000}, "expected an array"),
        ({"stream": "a" * 9000}, "stream has 9002 bytes; the most is 4096"),
    ],
)
def test_what_is_too_much_json_is_refused_with_its_limit(
    body: object, said: str, tmp_path: Path
) -> None:
    engine = Engine()
    gate = gate_of(engine, tmp_path, values=90, items=20, depth=5)
    data = json.dumps(body).encode()
    status, answer, _ = asyncio.run(ask(gate, data[:7], data[7:]))
    assert status == 400
    assert re.search(re.escape(said), answer["error"]["message"])
    assert answer["error"]["code"] == "request_too_complex"
    assert answer["error"]["type"] == "invalid_request_error"
    assert not engine.bodies


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32", "utf-32-be"])
def test_an_encoding_that_would_hide_values_is_refused(encoding: str, tmp_path: Path) -> None:
    engine = Engine()
    # Read as bytes, each of these characters is a quote behind a backslash.
    data = json.dumps({"\u225c": [[]] * 99}, ensure_ascii=False).encode(encoding)
    status, answer, _ = asyncio.run(ask(gate_of(engine, tmp_path, values=90), data))
    assert (status, answer["error"]["code"]) == (400, "invalid_encoding")
    assert not engine.bodies


def test_what_is_no_json_and_what_has_no_body_reaches_the_engine_as_it_is(tmp_path: Path) -> None:
    engine = Engine()
    gate = gate_of(engine, tmp_path)
    odd = [b"", b"{", b"\xff\xc0", b'--x\r\n{"a": [[[', b"null", b'"a']
    assert [asyncio.run(ask(gate, body))[0] for body in odd] == [200] * len(odd)
    assert asyncio.run(ask(gate, b"x", method="DELETE"))[0] == 200
    assert engine.bodies == [*odd, b"x"]


def test_a_client_that_leaves_early_reaches_no_engine(tmp_path: Path) -> None:
    engine = Engine()
    assert asyncio.run(ask(gate_of(engine, tmp_path), b"{", gone=True))[0] == 0
    assert not engine.bodies


async def longest_wait(work: Any) -> float:
    """How long anybody else has waited for the event loop, in one piece."""
    worst, ended = 0.0, False

    async def watch() -> None:
        nonlocal worst
        while not ended:
            before = time.thread_time()
            await asyncio.sleep(0)
            worst = max(worst, time.thread_time() - before)

    task = asyncio.create_task(watch())
    await work
    ended = True
    await task
    return worst


@pytest.mark.parametrize(
    "piece",
    [
        b"[[],[],[]],",
        b"{},",
        b"[",
        b'{"a":',
        b'"a":',
        b'"\\"\\\\",',
        b"1",
        b" ",
        b'\\"',
        b":",
        b"]",
    ],
)
def test_no_body_holds_the_event_loop(piece: bytes, tmp_path: Path) -> None:
    """Processor time, so that a busy machine changes nothing; a parser needs a hundred times it."""
    first = b'{"messages":[' if piece != b'\\"' else b'{"messages":["'
    body = first + piece * (8 * MIB // len(piece))
    gate = gate_of(Engine(), tmp_path, size=16 * MIB)
    worst = asyncio.run(longest_wait(ask(gate, body)))
    assert worst < 0.05


def test_many_dear_requests_leave_time_between_them(tmp_path: Path) -> None:
    """They arrive at once; another's request waits for one of them, not for all."""
    engine = Engine(reads_s=0.01)
    gate = gate_of(engine, tmp_path)
    dear, many = json.dumps({"x": [0] * 500}).encode(), 20
    seen: list[int] = []

    async def whole() -> None:
        tasks = [asyncio.create_task(ask(gate, dear)) for _ in range(many)]
        while len(engine.bodies) < many:
            before = len(engine.bodies)
            await asyncio.sleep(0)
            seen.append(len(engine.bodies) - before)
        assert [status for status, *_ in await asyncio.gather(*tasks)] == [200] * many

    asyncio.run(whole())
    assert max(seen) == 1


def test_a_key_with_many_dear_requests_lets_another_key_in(tmp_path: Path) -> None:
    engine = Engine()
    gate = gate_of(engine, tmp_path)
    order: list[str] = []

    async def request(key: str) -> None:
        scope = {"type": "http", "method": "POST", "path": "/v1/x", "headers": []}
        data = json.dumps({"x": [key] * 500}).encode()

        async def receive() -> Any:
            return {"type": "http.request", "body": data, "more_body": False}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                order.append(key)

        body = await gate.read(scope, receive, key)
        assert body
        await gate.pass_on(scope, body, receive, send, key)

    async def whole() -> None:
        many = [asyncio.create_task(request("greedy")) for _ in range(10)]
        await asyncio.gather(*many, asyncio.create_task(request("modest")))

    asyncio.run(whole())
    assert order.index("modest") < 4


def test_who_leaves_while_waiting_for_a_turn_leaves_no_turn_behind(tmp_path: Path) -> None:
    engine = Engine()
    gate = gate_of(engine, tmp_path)
    dear = json.dumps({"x": [0] * 500}).encode()

    async def whole() -> None:
        tasks = [asyncio.create_task(ask(gate, dear)) for _ in range(5)]
        await asyncio.sleep(0)
        for task in tasks[:4]:
            task.cancel()
        await asyncio.wait_for(tasks[4], 30)
        assert (await asyncio.wait_for(ask(gate, dear), 30))[0] == 200

    asyncio.run(whole())
