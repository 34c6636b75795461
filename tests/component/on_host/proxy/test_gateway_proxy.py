"""A gateway before several hosts: the real HAProxy on all of them, stand-in engines behind."""

from __future__ import annotations

import json
import socket
import threading
from typing import TYPE_CHECKING

import pytest
from gateway_site import QUESTION, Site
from waiting import HANGS_S, until

from kimi_prov.contract.key_rules import KEY_HEADER, RULE_HEADER
from kimi_prov.on_host.endpoint import api_client, haproxy, stop_state, tls
from kimi_prov.on_host.keys import publish

if TYPE_CHECKING:
    from running_proxy import Proxy


@pytest.fixture
def site(make_proxy) -> Site:
    return Site(make_proxy, 2)


def test_a_client_of_the_gateway_is_answered_and_the_engine_is_told_whose_request_it_is(
    site: Site,
) -> None:
    assert site.ask().status == 200
    (engine,) = [host.engines[0] for host in site.hosts.values() if host.engines[0].seen]
    _, headers = engine.seen[0]
    assert headers[KEY_HEADER] == "client"
    assert site.client not in str(headers)


def test_a_key_of_the_gateway_is_none_of_a_host(site: Site) -> None:
    for host in site.hosts.values():
        assert api_client.request_chat(host.endpoint, site.client, QUESTION).status == 401


def test_nobody_but_a_gateway_may_say_whose_request_it_is(site: Site) -> None:
    host = site.hosts["gpu1"]
    line = api_client.connect(host.endpoint)
    headers = {"Authorization": f"Bearer {host.key()}", KEY_HEADER: "client", RULE_HEADER: "0:9"}
    line.request("POST", "/v1/chat/completions", json.dumps(QUESTION), headers)
    assert line.getresponse().status == 200
    line.close()
    _, seen = host.engines[0].seen[-1]
    assert (seen[KEY_HEADER], seen.get(RULE_HEADER)) == ("verify", None)


def test_the_rule_of_a_key_reaches_the_engine(site: Site) -> None:
    publish.change(site.gateway.paths, "client", {"limits": {"tokens_per_day": 7}})
    assert site.ask().status == 200
    (headers,) = [headers for host in site.hosts.values() for _, headers in host.engines[0].seen]
    assert headers[RULE_HEADER] == "0:0:0:0:7"


SYSTEM = {"role": "system", "content": "You are kind."}


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


@pytest.mark.parametrize("before", [[], [SYSTEM]], ids=["no system prompt", "a system prompt"])
def test_a_conversation_stays_with_its_host(site: Site, before: list[dict[str, str]]) -> None:
    """All begin alike where there is a system prompt; the first question tells them apart."""
    went = set()
    for text in ("one", "two", "three", "four"):
        said = [*before, user(text)]
        known = site.asked()
        for _ in range(3):
            reply = api_client.request_chat(site.gateway.endpoint, site.client, {"messages": said})
            said = [*said, {"role": "assistant", "content": "yes"}, user("and?")]
            assert reply.status == 200
        (host,) = [name for name, count in site.asked().items() if count != known[name]]
        went.add(host)
    assert went == set(site.hosts)


def test_the_cache_key_of_a_request_tells_its_conversation(site: Site) -> None:
    for text in "abcd":
        site.ask(text, prompt_cache_key="one")
    assert sorted(site.asked().values()) == [0, 4]


def test_what_a_draining_host_refuses_another_answers(make_proxy) -> None:
    """Before any check has seen that it drains."""
    site = Site(make_proxy, 2, checks="2s")
    for name, host in site.hosts.items():
        haproxy.set_state(host.paths.socket, 0, "drain")
        assert [site.ask(f"{name}{n}").status for n in range(6)] == [200] * 6
        haproxy.set_state(host.paths.socket, 0, "ready")
        assert until(lambda: len(site.up()) == 2)


def test_a_host_that_is_gone_costs_no_request(make_proxy) -> None:
    site = Site(make_proxy, 2, checks="2s")
    site.hosts["gpu1"].stop()
    assert [site.ask(f"n{n}").status for n in range(8)] == [200] * 8
    assert until(lambda: site.up() == ["gpu2"])


def test_a_host_with_another_certificate_gets_no_request(make_proxy) -> None:
    site = Site(make_proxy, 2)
    impostor = site.hosts["gpu1"]
    impostor.stop()
    tls.install(impostor.paths, tls.make_self_signed(["lab1", "10.0.0.1"]))
    impostor.start()
    assert until(lambda: site.up() == ["gpu2"])
    seen = len(impostor.engines[0].seen)
    assert [site.ask(f"n{n}").status for n in range(4)] == [200] * 4
    assert len(impostor.engines[0].seen) == seen


def test_who_comes_while_all_are_busy_is_told_to_come_again(site: Site) -> None:
    for host in site.hosts.values():
        host.engines[0].hold_streams()

    def stream(number: int) -> None:
        asked = {"messages": [user(f"n{number}")], "stream": True}
        list(api_client.stream(site.gateway.endpoint, site.client, asked))

    held = [threading.Thread(target=stream, args=(number,)) for number in range(8)]
    for thread in held:
        thread.start()
    # Two at each host, and as many more wait here.
    assert until(lambda: sum(site.asked().values()) == 4 and site.waiting() == 4)
    reply = site.ask("one more")
    assert (reply.status, reply.json()["error"]["code"]) == (429, "all_busy")
    assert reply.headers["retry-after"] == "5"
    for host in site.hosts.values():
        host.engines[0].let(1000)
    for thread in held:
        thread.join(HANGS_S)
    assert site.ask("after").status == 200


class Waker(threading.Thread):
    """Stands where kimi-wake.socket is: answers each request that it comes up, and counts."""

    REPLY = (
        b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 20\r\n"
        b"Content-Length: 6\r\nConnection: close\r\n\r\nwaking"
    )

    def __init__(self, host: Proxy) -> None:
        super().__init__(daemon=True)
        self.asked = 0
        host.paths.wake_socket.parent.mkdir(parents=True, exist_ok=True)
        self.listening = socket.socket(socket.AF_UNIX)
        self.listening.bind(str(host.paths.wake_socket))
        self.listening.listen(64)
        self.start()

    def run(self) -> None:
        while True:
            line, _ = self.listening.accept()
            line.recv(65536)
            self.asked += 1
            line.sendall(self.REPLY)
            line.close()


def test_where_all_are_asleep_the_first_is_woken(make_proxy) -> None:
    site = Site(make_proxy, 2, wake="refuse", checks="2s")
    wakers = {name: Waker(host) for name, host in site.hosts.items()}
    for host in site.hosts.values():
        stop_state.write(
            host.paths, stop_state.build_state(stop_state.ASLEEP, "nobody asked", wake="refuse")
        )
    # Before the gateway has seen that they sleep: another may be up.
    assert site.ask().status == 503
    assert [waker.asked for waker in wakers.values()] == [0, 0]
    # Nobody is up, and both say that a request would wake them.
    down = {"gpu1": "DOWN", "gpu2": "DOWN"}
    assert until(lambda: site.states() == down and site.up("asleep") == ["gpu1", "gpu2"])
    reply = site.ask()
    assert (reply.status, reply.body, reply.headers["retry-after"]) == (503, b"waking", "20")
    assert [waker.asked for waker in wakers.values()] == [1, 0]
    stop_state.clear(site.hosts["gpu2"].paths)
    assert until(lambda: site.up() == ["gpu2"])
    assert site.ask().status == 200
    assert wakers["gpu1"].asked == 1
