"""How long a client waits while another sends large requests, of any size and rate."""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from key_clients import Client, command

if TYPE_CHECKING:
    from collections.abc import Iterator

    from machines import Host

pytestmark = [pytest.mark.lab, pytest.mark.slow]

MODEL = b'{"model":"kimi-k2-lab","max_tokens":1,'
# With a role, so that the engine itself writes errors about each of its fields.
WRONG = b'{"role":"user","content":1,"name":1,"tool_calls":1}'
USER = b'{"role":"user","content":"hi"}'
# As many as one key sends at once here, and for how long each body is sent.
AT_ONCE, SECONDS = 4, 10.0
# The aim on two quiet cores. On busy ones a request alone takes as long: then by how much more.
AIM_S, TIMES = 0.3, 3.0


@pytest.fixture
def clients(served_host: Host) -> Iterator[list[Client]]:
    """Who sends large requests, and who asks small questions."""
    names = ("large", "small")
    made = [Client(served_host, command(served_host, "key", "--add", n).split()[1]) for n in names]
    yield made
    for client, name in zip(made, names, strict=True):
        client.http.close()
        served_host.ssh(f"python3 -I /srv/kimi/lib/kimi-target.pyz keys remove {name}", check=False)


def listed(name: bytes, piece: bytes, count: int, *, more: bytes = b"") -> bytes:
    """A request whose list `name` has so many pieces."""
    return MODEL + b'"' + name + b'":[' + b",".join([piece] * count) + b"]" + more + b"}"


def bodies(most: int) -> dict[str, tuple[bytes, int]]:
    """What is sent, and the answer's status."""
    messages = b',"messages":[' + USER + b"]"
    deep = b"[" * 62 + b"]" * 62
    valid = listed(b"x", deep, 29_000 // 62, more=messages)
    padded = valid[:-1] + b" " * (most - len(valid)) + b"}"
    text = MODEL + b'"messages":[{"role":"user","content":"'
    triples = b"[[],[],[]]"
    return {
        "the largest, valid and deeply nested": (padded, 200),
        "as many items as may be, each wrong": (listed(b"messages", WRONG, 1_990), 400),
        "as many items as may be, none with a role": (listed(b"messages", b"{}", 1_990), 400),
        "the largest text": (text + b"\\n" * ((most - len(text) - 4) // 2) + b'"}]}', 400),
        "nested, as large as may be": (listed(b"messages", triples, most // 11 - 10), 400),
        "larger than may be": (listed(b"messages", triples, 20 * most // 11), 413),
    }


def send(client: Client, body: bytes) -> int | None:
    """Send a body; its answer's status, None where the connection was closed while it was sent."""
    headers = {"Authorization": f"Bearer {client.key}", "Content-Type": "application/json"}
    try:
        answer = client.http.post(f"{client.url}/chat/completions", content=body, headers=headers)
    except OSError:
        return None
    except Exception as error:
        if "httpx" in type(error).__module__:
            return None
        raise
    return answer.status_code


def measure(client: Client, seconds: float) -> list[float]:
    """How long small questions take, one after the other, in ascending order."""
    times = []
    until = time.monotonic() + seconds
    while time.monotonic() < until or len(times) < 20:
        began = time.monotonic()
        assert client.raw().status_code == 200
        times.append(time.monotonic() - began)
        time.sleep(0.01)
    return sorted(times)


def find_p99(times: list[float]) -> float:
    return times[min(len(times) - 1, int(len(times) * 0.99))]


def test_a_client_waits_for_no_large_request_of_another(
    served_host: Host, clients: list[Client], record_property: Any
) -> None:
    large, small = clients
    plan = json.loads(served_host.ssh("cat /etc/kimi/plan.json"))
    most = plan["proxy"]["request_body_max_bytes"]
    measure(small, 1.0)
    alone = find_p99(measure(small, SECONDS))
    record_property("p99 alone", f"{alone:.3f} s")
    waits = {}
    for name, (body, expected) in bodies(most).items():
        ended = threading.Event()
        statuses: list[int | None] = []

        def flood(body: bytes = body, ended: Any = ended, statuses: Any = statuses) -> None:
            while not ended.is_set():
                statuses.append(send(large, body))

        threads = [threading.Thread(target=flood) for _ in range(AT_ONCE)]
        for thread in threads:
            thread.start()
        try:
            # A stream that goes on all the while; `stream` raises where it breaks.
            small.stream(tokens=60)
            waits[name] = find_p99(measure(small, SECONDS))
        finally:
            ended.set()
            for thread in threads:
                thread.join()
        record_property(f"p99, {name}", f"{waits[name]:.3f} s, {len(statuses)} sent")
        assert set(statuses) - {None} == {expected}, name
    late = {name: wait for name, wait in waits.items() if wait > max(AIM_S, TIMES * alone)}
    assert not late, (alone, waits)
