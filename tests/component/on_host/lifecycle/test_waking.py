"""Who asks a machine that is asleep: by the real proxy, the real waker, and OpenAI's own client.

The engines' units are a stand-in: systemctl writes down what it is told, and an engine of ours is
up when a test says so.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import socket
import ssl
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import openai
import pytest
from waiting import HANGS_S, until

from kimi_prov.on_host.endpoint import api_client, draining, haproxy, stop_state
from kimi_prov.on_host.keys import metrics_key, publish
from kimi_prov.on_host.lifecycle import idle, starts, wake
from kimi_prov.on_host.system import machine_key

if TYPE_CHECKING:
    from pathlib import Path

BODY = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}]}
SYSTEMCTL = """#!/bin/sh
if [ "$1" = show ]; then
  state=inactive
  [ -e {root}/asked ] && state=activating
  [ -e {root}/up ] && state=active
  [ -e {root}/broken ] && state=failed
  for last; do case $last in
  kimi-rest.service) printf 'Id=%s\\nLoadState=loaded\\nActiveState=inactive\\n\\n' $last;;
  *.service) printf 'Id=%s\\nLoadState=loaded\\nActiveState=%s\\n' $last $state
    printf 'InvocationID=a1\\nInactiveExitTimestampMonotonic=9000000000\\n'
    printf 'ActiveEnterTimestampMonotonic=9005000000\\n\\n';;
  esac; done
else
  echo "$@" >> {root}/told
  case "$1" in start) touch {root}/asked;; stop) rm -f {root}/asked {root}/broken;; esac
fi
"""


@dataclass
class Asleep:
    """A proxy whose machine sleeps, and what would wake it."""

    proxy: object
    root: Path

    @property
    def starts(self) -> int:
        told = self.root / "told"
        lines = told.read_text().splitlines() if told.exists() else []
        return sum(line.startswith("start --no-block") for line in lines)

    def comes_up(self) -> None:
        (self.root / "up").touch()

    @property
    def waiting(self) -> int:
        """How many requests HAProxy has handed to the waker and not got back."""
        return haproxy.count_handed(self.proxy.paths.socket)

    def chat(self, key: str | None = None) -> api_client.Reply:
        return api_client.request_chat(self.proxy.endpoint, key or self.proxy.key_of_client, BODY)


@pytest.fixture
def sleeping(make_proxy, tmp_path, monkeypatch):
    """Builds a machine that is asleep; `how` is what the inventory wishes of a request."""

    def build(how: str, **options: int) -> Asleep:
        client = "sk-kimi-" + "c" * 43
        proxy = make_proxy(given={"client": client}, wake=how, **options)
        proxy.key_of_client = client
        paths = proxy.paths
        stub = tmp_path / "bin" / "systemctl"
        stub.parent.mkdir()
        stub.write_text(SYSTEMCTL.format(root=tmp_path))
        stub.chmod(0o755)
        monkeypatch.setenv("PATH", f"{stub.parent}:{os.environ['PATH']}")
        monkeypatch.setattr(wake, "_LEAVES_S", 0.5)
        plan = {
            "engine": {"env_name": "vllm-1"},
            "model": {"name": "m", "serve_dir": str(tmp_path)},
            "instances": [{"index": 0, "port": proxy.engines[0].port}],
            "rest": {"memory": "free", "idle": {"after_s": 60, "action": "stop"}, "wake": how},
            "timeouts": {"start_s": HANGS_S},
        }
        paths.waking.parent.mkdir(parents=True, exist_ok=True)
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(str(paths.wake_socket))
        # As kimi-wake.socket.
        listening.listen(4096)
        stop_state.write(
            paths, stop_state.build_state(stop_state.ASLEEP, "nobody asked for 60 s", wake=how)
        )

        def serve() -> None:
            # As systemd: it is started for the first connection.
            with listening:
                while running and stop_state.read(paths):
                    with listening.dup() as handed:
                        asyncio.run(wake.serve(paths, plan, handed))

        running.append(True)
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        threads.append(thread)
        return Asleep(proxy, tmp_path)

    running: list[bool] = []
    threads: list[threading.Thread] = []
    yield build
    running.clear()
    # A waker stays for some minutes after a start that failed.
    monkeypatch.setattr(stop_state, "read", lambda _: {})
    # Whoever still waits for an engine is let go.
    (tmp_path / "up").touch()
    for thread in threads:
        thread.join(HANGS_S)


def test_refuse_answers_with_how_far_the_start_is_and_openais_client_waits(sleeping):
    machine = sleeping("refuse")
    known = [{"id": "z", "model": "m", "held": "unknown", "by": "start", "seconds": 1.0}]
    machine.proxy.paths.starts.write_text(json.dumps({"starts": known}))
    first = machine.chat()
    error = first.json()["error"]
    assert (first.status, error["code"], error["param"]) == (503, "model_starting", None)
    assert "was asleep and is starting since" in error["message"]
    assert error["progress"]["elapsed_seconds"] >= 0
    assert int(first.headers["retry-after"]) >= 1
    threading.Timer(1.0, machine.comes_up).start()
    trust = ssl.create_default_context(cafile=str(machine.proxy.paths.tls_crt))
    # It is for other names than the loopback's.
    trust.check_hostname = False
    # As it comes: it retries by itself, twice, after what Retry-After says.
    with openai.OpenAI(
        base_url=machine.proxy.endpoint.url,
        api_key=machine.proxy.key_of_client,
        http_client=openai.DefaultHttpxClient(verify=trust),
        timeout=HANGS_S,
    ) as client:
        answer = client.chat.completions.create(**BODY)
    assert answer.choices[0].message.content == "hello"
    assert machine.starts == 1
    assert stop_state.read(machine.proxy.paths) == {}
    assert not machine.proxy.paths.waking.exists()


def test_who_has_no_key_and_the_machine_itself_wake_nobody(sleeping):
    machine = sleeping("refuse")
    assert machine.chat("sk-kimi-" + "x" * 43).status == 401
    assert api_client.call(machine.proxy.endpoint, "GET", "/health", None).status == 503
    own = machine.chat(machine.proxy.key())
    assert (own.status, own.json()["error"]["code"]) == (503, "model_asleep")
    time.sleep(0.5)
    assert machine.starts == 0
    assert stop_state.read(machine.proxy.paths)["state"] == "asleep"


def test_a_key_over_its_limit_wakes_nobody_and_looking_around_neither(sleeping, counting):
    machine = sleeping("refuse")
    paths, place = machine.proxy.paths, machine.proxy.endpoint
    key = machine.proxy.key_of_client
    publish.change(paths, "client", {"limits": {"requests_per_day": 1}})
    # Nobody says whether it may ask.
    unknown = machine.chat()
    assert (unknown.status, unknown.json()["error"]["code"]) == (503, "usage_unavailable")
    counter = counting(machine.proxy)
    counter.used("client", "one", 5)
    over = machine.chat()
    assert (over.status, over.json()["error"]["code"]) == (429, "rate_limit_exceeded")
    assert over.headers["x-should-retry"] == "false"
    models = api_client.call(place, "GET", "/v1/models", key)
    assert models.status == 200
    assert [row["id"] for row in models.json()["data"]] == ["tiny", "it's 1%"]
    assert {row["max_model_len"] for row in models.json()["data"]} == {4096}
    publish.change(paths, "client", {"limits": {"requests_per_day": None}})
    for method, path in (("GET", "/v1/x"), ("POST", "/v1/x"), ("DELETE", "/v1/chat/completions")):
        found = api_client.call(place, method, path, key)
        assert (found.status, found.json()["error"]["code"]) == (503, "model_asleep"), path
    time.sleep(0.5)
    assert machine.starts == 0
    assert stop_state.read(paths)["state"] == "asleep"
    publish.change(paths, "client", {"limits": {"requests_per_day": 2}})
    assert machine.chat().json()["error"]["code"] == "model_starting"
    assert until(lambda: machine.starts == 1)
    counter.end()
    assert 'kimi_usage_refused_total{key="client",reason="requests_per_day"} 1' in (
        paths.usage_prom.read_text()
    )


@pytest.mark.parametrize("stream", [False, True])
def test_hold_keeps_many_requests_and_starts_once_for_all(sleeping, stream):
    machine = sleeping("hold")
    many = 40

    def ask(_: int) -> str:
        if not stream:
            return str(machine.chat().status)
        found = list(
            api_client.stream(
                machine.proxy.endpoint, machine.proxy.key_of_client, {**BODY, "stream": True}
            )
        )
        return f"{len(found)} {found[-1][1]}"

    with ThreadPoolExecutor(many) as pool:
        answers = [pool.submit(ask, number) for number in range(many)]
        assert until(lambda: machine.starts == 1)
        time.sleep(0.5)
        assert not any(answer.done() for answer in answers)
        machine.comes_up()
        assert {answer.result(HANGS_S) for answer in answers} == {"6 None" if stream else "200"}
    assert machine.starts == 1
    # With the machine key, as the proxy itself sends it.
    engine = machine.proxy.engines[0]
    sent = [
        {name.lower(): value for name, value in headers.items()}["authorization"]
        for path, headers in engine.seen
        if "chat" in path
    ]
    own = machine_key.read(machine.proxy.paths.machine_key)
    assert set(sent) == {f"Bearer {own}"}


async def asked(machine: Asleep, trust: ssl.SSLContext, begun: list[int], number: int) -> str:
    """Ask by a connection of its own, each second one for a stream; returns the status."""
    reader, writer = await asyncio.open_connection("127.0.0.1", machine.proxy.port, ssl=trust)
    body = json.dumps({**BODY, "stream": bool(number % 2)})
    head = (
        "POST /v1/chat/completions HTTP/1.1",
        "Host: kimi",
        "Connection: close",
        f"Authorization: Bearer {machine.proxy.key_of_client}",
        f"Content-Length: {len(body)}",
    )
    writer.write("\r\n".join((*head, "", body)).encode())
    await writer.drain()
    begun.append(number)
    try:
        answer = (await reader.read()).decode()
    except ConnectionError:
        return "closed"
    finally:
        writer.close()
    status = answer.split(" ", 2)[1] if answer else "closed"
    whole = "[DONE]" in answer if number % 2 else "hello" in answer
    return status if whole or status != "200" else "cut"


@pytest.fixture
def many_files():
    """A thousand clients, what waits for them and an engine, all in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 16_384), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_files")
@pytest.mark.parametrize(("many", "of_a_source", "answered"), [(1000, 0, 1000), (200, 100, 100)])
def test_a_thousand_at_once_are_held_and_start_it_once(sleeping, many, of_a_source, answered):
    machine = sleeping("hold", proxy_max_connections_per_source=of_a_source)
    trust = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE

    async def all_of_them() -> list[str]:
        begun: list[int] = []
        tasks = []
        for number in range(many):
            tasks.append(asyncio.create_task(asked(machine, trust, begun, number)))
            # Some at a time: the proxy does not wait long for who connects and says nothing.
            while len(tasks) - len(begun) - sum(task.done() for task in tasks) > 20:
                await asyncio.sleep(0.01)
        loop = asyncio.get_running_loop()
        assert await loop.run_in_executor(None, until, lambda: machine.waiting == answered)
        machine.comes_up()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        return [one if isinstance(one, str) else "closed" for one in found]

    found = asyncio.run(all_of_them())
    # More than one source may have are not taken; they learn of it by a connection that closes.
    wanted = {"200": answered} | ({"closed": many - answered} if answered < many else {})
    assert Counter(found) == wanted
    assert machine.starts == 1


def test_a_client_that_gives_up_is_not_waited_for(sleeping):
    machine = sleeping("hold")
    impatient = api_client.Endpoint(
        "127.0.0.1", machine.proxy.port, machine.proxy.endpoint.fingerprint, 1.0
    )
    with pytest.raises(api_client.ApiError):
        api_client.request_chat(impatient, machine.proxy.key_of_client, BODY)
    assert until(lambda: machine.waiting == 0)
    machine.comes_up()
    assert until(lambda: not stop_state.read(machine.proxy.paths))
    assert machine.chat().status == 200
    assert len([path for path, _ in machine.proxy.engines[0].seen if "chat" in path]) == 1


@pytest.mark.parametrize("how", ["hold", "refuse"])
def test_a_start_that_fails_ends_those_who_wait_with_the_reason(sleeping, how):
    machine = sleeping(how)
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(machine.chat) for _ in range(4)]
        assert until(lambda: machine.starts == 1)
        (machine.root / "broken").touch()
        replies = [answer.result(HANGS_S) for answer in waiting]
    assert until(lambda: machine.chat().json()["error"]["code"] == "model_start_failed")
    found = machine.chat()
    assert "kimi-serve@0.service failed" in found.json()["error"]["message"]
    assert {reply.status for reply in replies} == {503}
    if how == "hold":
        assert {reply.json()["error"]["code"] for reply in replies} == {"model_start_failed"}
    # It is not tried for every request: a start takes minutes.
    assert machine.starts == 1
    assert stop_state.read(machine.proxy.paths)["failed"]
    assert not machine.proxy.paths.waking.exists()


def test_a_start_that_failed_is_remembered_after_those_who_waited_have_gone(sleeping):
    machine = sleeping("refuse")
    machine.chat()
    assert until(lambda: machine.starts == 1)
    (machine.root / "broken").touch()
    assert until(lambda: machine.chat().json()["error"]["code"] == "model_start_failed")
    # Longer than a waker stays without a request.
    time.sleep(wake._LEAVES_S + 1)
    assert machine.chat().json()["error"]["code"] == "model_start_failed"
    assert machine.starts == 1


def test_a_request_that_is_not_all_there_yet_is_answered_before_it_is_closed(sleeping):
    """HAProxy sends its body after the answer: a write that fails there cuts the client off."""
    machine = sleeping("refuse")
    with socket.socket(socket.AF_UNIX) as proxy:
        proxy.settimeout(HANGS_S)
        proxy.connect(str(machine.proxy.paths.wake_socket))
        proxy.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 2\r\n\r\n")
        answer = b"".join(iter(lambda: proxy.recv(65536), b""))
        proxy.sendall(b"{}")
    assert answer.startswith(b"HTTP/1.1 503")
    assert b"model_starting" in answer


def test_an_apply_that_is_over_leaves_no_start_that_failed(sleeping, monkeypatch):
    machine = sleeping("refuse")
    monkeypatch.setattr(wake, "_BUSY_S", 0.5)
    monkeypatch.setattr(wake.apply_lock, "find_holder", lambda: {"user": "ann"})
    machine.chat()
    assert until(lambda: "ann works on this" in machine.chat().json()["error"]["message"])
    assert machine.starts == 0
    monkeypatch.setattr(wake.apply_lock, "find_holder", lambda: None)
    assert until(lambda: machine.chat() and machine.starts == 1)


def test_a_stop_while_it_wakes_stays_a_stop(sleeping):
    machine = sleeping("hold")
    paths = machine.proxy.paths
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(machine.chat)
        assert until(lambda: machine.starts == 1)
        assert paths.waking.exists()
        stop_state.write(
            paths, stop_state.build_state(stop_state.STOPPED, "stopped by the operator")
        )
        # The engine's unit has a condition on it: none starts from here on.
        assert not paths.waking.exists()
        reply = held.result(HANGS_S)
    machine.comes_up()
    assert reply.status == 503
    assert "stopped on purpose by the operator" in reply.json()["error"]["message"]
    assert stop_state.read(paths)["state"] == stop_state.STOPPED
    # It is the stop that ends the engine, after its drain.
    assert "stop kimi-serve@0.service" not in (machine.root / "told").read_text()


def test_an_answer_that_was_held_is_use_and_a_stop_waits_for_it(sleeping):
    machine = sleeping("hold")
    proxy = machine.proxy
    proxy.engines[0].hold_streams()
    found: list[object] = []

    def read() -> None:
        asked = {**BODY, "stream": True}
        found.extend(api_client.stream(proxy.endpoint, proxy.key_of_client, asked))

    client = threading.Thread(target=read, daemon=True)
    client.start()
    assert until(lambda: machine.starts == 1)
    # Who waits for the start of a machine that falls asleep does not keep it awake.
    assert draining.drain(proxy.paths, 0, handed=False) == 0
    draining.set_state(proxy.paths, draining.READY)
    machine.comes_up()
    assert until(lambda: not stop_state.read(proxy.paths))
    assert draining.count_requests(proxy.paths) == 1
    assert draining.drain(proxy.paths, 0) == 1
    proxy.engines[0].let(6)
    client.join(HANGS_S)
    assert len(found) == 6
    assert until(lambda: draining.count_requests(proxy.paths) == 0)


def test_use_is_what_clients_ask_and_nothing_else(make_proxy):
    client = "sk-kimi-" + "c" * 43
    proxy = make_proxy(given={"client": client}, wake="refuse", metrics=True)

    def used() -> tuple[str, str]:
        names = (idle.USED, idle.OWN)
        return tuple(haproxy.read_variable(proxy.paths.socket, name) for name in names)

    assert used() == ("", "")
    api_client.request_chat(proxy.endpoint, "sk-kimi-" + "x" * 43, BODY)
    api_client.call(proxy.endpoint, "GET", "/health", None)
    watched = replace(proxy.endpoint, port=proxy.metrics["port"])
    key = metrics_key.read(proxy.paths)
    assert api_client.call(watched, "GET", "/metrics/proxy", key).status == 200
    api_client.call(watched, "GET", "/metrics/engine/0", key)
    assert used() == ("", "")
    api_client.request_chat(proxy.endpoint, proxy.key(), BODY)
    of_client, of_verify = used()
    assert of_client == ""
    assert of_verify
    api_client.request_chat(proxy.endpoint, client, BODY)
    first = used()[0]
    assert first
    api_client.request_chat(proxy.endpoint, client, BODY)
    second = used()[0]
    assert second not in ("", first)
    for method, path in (("GET", "/v1/models"), ("POST", "/v1/x"), ("OPTIONS", "/v1/x")):
        api_client.call(proxy.endpoint, method, path, client, {} if method == "POST" else None)
    # What the engine refuses is none either.
    proxy.engines[0].status = 400
    assert api_client.request_chat(proxy.endpoint, client, BODY).status == 400
    assert used()[0] == second
    proxy.engines[0].status = 429
    assert api_client.request_chat(proxy.endpoint, client, BODY).status == 429
    assert used()[0] == second


def test_use_of_a_key_over_its_limit_is_none(make_proxy, counting):
    client = "sk-kimi-" + "c" * 43
    proxy = make_proxy(given={"client": client}, wake="refuse")
    counting(proxy).used("client", "one", 10)
    publish.change(proxy.paths, "client", {"limits": {"tokens_per_day": 10}})
    reply = api_client.request_chat(proxy.endpoint, client, BODY)
    assert (reply.status, reply.json()["error"]["type"]) == (429, "tokens")
    assert haproxy.read_variable(proxy.paths.socket, idle.USED) == ""
    # It is refused before an engine has it.
    assert proxy.engines[0].seen == []
    publish.change(proxy.paths, "client", {"limits": {"tokens_per_day": 11}})
    assert api_client.request_chat(proxy.endpoint, client, BODY).status == 200
    assert haproxy.read_variable(proxy.paths.socket, idle.USED)


def test_requests_that_begin_nothing_are_not_under_way(make_proxy):
    client = "sk-kimi-" + "c" * 43
    proxy = make_proxy(given={"client": client}, wake="refuse")
    engine = proxy.engines[0]
    engine.hangs = True

    def ask(method: str, path: str) -> threading.Thread:
        asking = threading.Thread(
            target=lambda: api_client.call(proxy.endpoint, method, path, client, BODY), daemon=True
        )
        asking.start()
        return asking

    looking = ask("POST", "/v1/x")
    assert until(lambda: draining.count_requests(proxy.paths) == 1)
    assert haproxy.count_questions(proxy.paths.socket) == 0
    asking = ask("POST", "/v1/chat/completions")
    assert until(lambda: haproxy.count_questions(proxy.paths.socket) == 1)
    proxy.reload()
    assert haproxy.count_questions(proxy.paths.socket) == 1
    engine.hangs = False
    for thread in (looking, asking):
        thread.join(HANGS_S)
    assert until(lambda: haproxy.count_questions(proxy.paths.socket) == 0)


def test_the_time_from_the_first_request_to_an_answer_is_kept(sleeping):
    machine = sleeping("hold")
    threading.Timer(0.5, machine.comes_up).start()
    assert machine.chat().status == 200
    assert until(lambda: starts.read_starts(machine.proxy.paths))
    (row,) = json.loads(machine.proxy.paths.starts.read_text())["starts"]
    assert row["first_token_s"] >= 0.5
