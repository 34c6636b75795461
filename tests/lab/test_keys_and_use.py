"""Keys with limits, and what they used: real clients, HAProxy, engine and counter."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import httpx2
import openai
import pytest
from key_clients import Client, command, used
from machines import HANGS_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from machines import Host

pytestmark = pytest.mark.lab

NAMES = ("lab-a", "lab-b")


def wait_until(true: Callable[[], bool]) -> None:
    """Wait for what must come; a test that waits for ever has found what does not."""
    end = time.monotonic() + HANGS_S
    while not true():
        assert time.monotonic() < end
        time.sleep(0.2)


@pytest.fixture
def clients(served_host: Host) -> Iterator[Callable[[], list[Client]]]:
    """Makes two clients with keys of their own, and takes the keys away."""
    made: list[str] = []
    found: list[Client] = []

    def make() -> list[Client]:
        for name in NAMES:
            host, key = command(served_host, "key", "--add", name).split()
            made.append(name)
            assert host == served_host.name
            found.append(Client(served_host, key))
        return found

    yield make
    for client in found:
        client.http.close()
    for name in made:
        served_host.ssh(f"python3 -I /srv/kimi/lib/kimi-target.pyz keys remove {name}", check=False)


def test_use_adds_up_to_what_clients_were_told_and_limits_bite_at_once(
    served_host: Host, clients: Callable[[], list[Client]]
) -> None:
    first, second = clients()
    before = used(served_host)
    for client in (first, second):
        client.plain()
        client.stream(tokens=5)
    # What comes back is no use of a limit: the client is told by whom, for how long, and why.
    command(served_host, "key", "--set", NAMES[0], "--tokens-per-day", str(sum(first.told[1:])))
    refused = first.raw()
    assert refused.status_code == 429
    assert 0 < int(refused.headers["retry-after"]) <= 86400
    assert refused.json()["error"]["code"] == "rate_limit_exceeded"
    with pytest.raises(openai.RateLimitError):
        first.plain()
    assert first.raw(**{"x-kimi-key": "verify", "x-kimi-rule": "0:0:0:0:0"}).status_code == 429
    second.plain()
    after = used(served_host)
    for name, client in zip(NAMES, (first, second), strict=True):
        was = before.get(name, [0, 0, 0])
        assert [now - then for now, then in zip(after[name], was, strict=True)] == client.told
    assert "verify" not in after

    command(served_host, "key", "--set", NAMES[0], "--expires", "2020-01-01")
    assert first.raw().json()["error"]["code"] == "key_expired"
    listed = command(served_host, "key", "--remove", NAMES[1])
    assert f" {NAMES[0]} made=" in listed
    assert "EXPIRED" in listed
    assert second.raw().json()["error"]["code"] == "invalid_api_key"


def count(host: Host, name: str) -> list[int]:
    """What the machine itself says at once of a key: requests, tokens in, tokens out."""
    document = json.loads(host.ssh("python3 -I /srv/kimi/lib/kimi-target.pyz usage"))
    rows = [row for row in document["rows"] if row["key"] == name]
    columns = ("requests", "prompt_tokens", "completion_tokens")
    return [sum(row[column] for row in rows) for column in columns]


def main_pid(host: Host, unit: str) -> int:
    return int(host.ssh(f"systemctl show --value -p MainPID {unit}"))


@pytest.mark.slow
def test_what_was_counted_stays_whatever_ends_the_counter_the_proxy_or_the_engine(
    served_host: Host, clients: Callable[[], list[Client]]
) -> None:
    host = served_host
    client, other = clients()
    before = count(host, NAMES[0])

    def so_far() -> list[int]:
        return [now - was for now, was in zip(count(host, NAMES[0]), before, strict=True)]

    # The counter is killed while an answer comes, and once more between two.
    pieces = client.sdk(max_retries=0).chat.completions.create(
        **client.wish(40), stream=True, stream_options={"include_usage": True}
    )
    for number, piece in enumerate(pieces):
        if number == 2:
            host.ssh("systemctl kill --signal=KILL kimi-usage")
        client.add(piece.usage)
    host.ssh("systemctl kill --signal=KILL kimi-usage")
    client.plain()
    wait_until(lambda: so_far() == client.told)
    # Limits hold while it comes back: the question waits for it.
    limit = sum(client.told[1:]) + sum(before[1:])
    command(host, "key", "--set", NAMES[0], "--tokens-per-day", str(limit))
    host.ssh("systemctl kill --signal=KILL kimi-usage")
    assert client.raw().status_code == 429
    assert other.raw().status_code == 200
    for unit, verb in (
        ("kimi-proxy", "reload"),
        ("kimi-usage", "restart"),
        ("kimi-proxy", "restart"),
    ):
        host.ssh(f"systemctl {verb} {unit}")
        assert client.raw().status_code == 429
    assert so_far() == client.told

    # A client that leaves has used what was sent; an engine that is killed, what it told before.
    command(host, "key", "--set", NAMES[0], "--tokens-per-day", "0")
    with client.sdk(max_retries=0).chat.completions.create(
        **client.wish(2000), stream=True
    ) as left:
        for number, _ in enumerate(left):
            if number == 5:
                break
    wait_until(lambda: so_far()[0] == client.told[0] + 1 and so_far()[2] >= client.told[2] + 5)
    client.told = so_far()
    assert client.told[2] < sum(before) + 2000
    got: list[object] = []

    def read_until_it_breaks() -> None:
        sdk = client.sdk(max_retries=0)
        for piece in sdk.chat.completions.create(**client.wish(2000), stream=True):
            got.append(piece)
            if len(got) == 100:
                host.ssh(f"kill -KILL {main_pid(host, 'kimi-serve@0')}")

    with pytest.raises((openai.APIError, httpx2.HTTPError)):
        read_until_it_breaks()
    host.ssh("systemctl stop kimi-serve@0; systemctl start kimi-serve@0", timeout=1200)
    requests, _, completion = so_far()
    assert requests == client.told[0] + 1
    # Parts of it were told while it ran; the client itself may have read less than was sent.
    assert 0 < completion - client.told[2] <= 2000
    client.told = so_far()
    client.plain()
    assert so_far() == client.told


@pytest.mark.slow
def test_a_minutes_limit_lets_the_official_client_go_on_by_itself(
    served_host: Host, clients: Callable[[], list[Client]], record_property: Callable[..., None]
) -> None:
    client, other = clients()
    command(served_host, "key", "--set", NAMES[0], "--requests-per-minute", "2")
    client.plain()
    client.plain()
    refused = client.raw()
    assert refused.status_code == 429
    wait = int(refused.headers["retry-after"])
    assert 0 < wait <= 60
    assert "x-should-retry" not in refused.headers
    began = time.monotonic()
    other.plain()
    # It reads Retry-After, waits, and gets its answer.
    client.plain(max_retries=1)
    record_property("Retry-After", wait)
    record_property("waited", round(time.monotonic() - began, 1))
    assert client.told[0] == 3


@pytest.mark.slow
def test_two_engines_share_one_count(
    served_host: Host, clients: Callable[[], list[Client]]
) -> None:
    """A second server's gate beside the real engine's, in the engine's own python and as its user.

    Stand-in: the second answers without a model. One memory node holds one engine of the lab.
    """
    host = served_host
    client, _ = clients()
    client.plain()
    used_before = count(host, NAMES[0])
    host.ssh(f"cat > /tmp/second.py <<'END'\n{SECOND}\nEND")
    told = host.ssh(
        "systemd-run -q --pipe --wait -p User=kimi -p Group=kimi /srv/kimi/engine/bin/python "
        f"/tmp/second.py {NAMES[0]} {used_before[1] + used_before[2]}"
    )
    assert told.split() == ["429", "200"]
    requests, prompt, completion = count(host, NAMES[0])
    assert [requests - used_before[0], prompt - used_before[1]] == [1, 7]
    assert completion == used_before[2] + 3


@pytest.mark.slow
def test_the_engines_user_can_neither_write_the_count_nor_end_the_counter(
    served_host: Host,
) -> None:
    pid = main_pid(served_host, "kimi-usage")
    for attempt in (
        f"kill -KILL {pid}",
        "cat /var/lib/kimi/usage/usage.db",
        "touch /var/lib/kimi/usage/usage.db",
        "rm -f /run/kimi-usage/counter.sock",
        "cat /etc/kimi/keys/book.json",
        "touch /etc/kimi/proxy/rules.map",
    ):
        found = served_host.ssh(f"runuser -u kimi -- {attempt} && echo done", check=False)
        assert "done" not in found, attempt
    assert main_pid(served_host, "kimi-usage") == pid


# Asks by the same gate as an engine, first under the limit that is reached, then under none.
SECOND = """
import asyncio, sys
sys.path.insert(0, "/srv/kimi/lib/kimi-target.pyz")
from kimi_prov.contract.key_rules import Rule
from kimi_prov.on_host.engine.gate import Gate
from kimi_prov.on_host.system import machine_key
from pathlib import Path

async def engine(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    body = b'{"usage": {"prompt_tokens": 7, "completion_tokens": 3}}'
    await send({"type": "http.response.body", "body": body})

async def ask(rule):
    key = machine_key.read(Path("/etc/kimi/machine-key.map")).encode()
    headers = [(b"authorization", b"Bearer " + key), (b"x-kimi-key", sys.argv[1].encode())]
    headers.append((b"x-kimi-rule", rule.text().encode()))
    said = []
    async def receive():
        return {"type": "http.request", "body": b"{}", "more_body": False}
    async def send(message):
        said.append(message)
    scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": headers}
    await Gate(engine)(scope, receive, send)
    print(said[0]["status"])

asyncio.run(ask(Rule(None, {"tokens_per_day": int(sys.argv[2])})))
asyncio.run(ask(Rule()))
"""
