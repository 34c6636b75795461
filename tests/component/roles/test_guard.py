"""The table inet kimi in a network namespace of its own: packets, and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import jinja2
import pytest

from kimi_prov.on_host.endpoint import firewall
from kimi_prov.packaging.resources import find_root

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


PROXY, ENGINE, PAGE, ANOTHER = "daemon", "bin", "man", "games"
# Of the page, and of its way to the proxy.
PAGE_PORT, API_PORT = 8004, 8005
INSIDE, OUTSIDE = f"kpg-in-{os.getpid()}", f"kpg-out-{os.getpid()}"
# A port under guard, another TCP port, and UDP on the guarded number.
SERVER = """
import socket, threading
def serve(family, address):
    for port in (8000, 8100):
        s = socket.socket(family, socket.SOCK_STREAM)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6: s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        s.bind((address, port)); s.listen()
        threading.Thread(target=lambda s=s: [s.accept()[0].close() for _ in iter(int, 1)]).start()
    u = socket.socket(family, socket.SOCK_DGRAM)
    if family == socket.AF_INET6: u.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    u.bind((address, 8000))
    def echo(u=u):
        while True:
            data, peer = u.recvfrom(100); u.sendto(data, peer)
    threading.Thread(target=echo).start()
serve(socket.AF_INET, "0.0.0.0"); serve(socket.AF_INET6, "::")
print("up", flush=True)
"""
TRY = """
import socket, sys
kind, source, address, port = sys.argv[1:]
family = socket.AF_INET6 if ":" in address else socket.AF_INET
s = socket.socket(family, socket.SOCK_STREAM if kind == "tcp" else socket.SOCK_DGRAM)
s.settimeout(0.7); s.bind((source, 0))
try:
    s.connect((address, int(port)))
    if kind == "udp": s.send(b"x"); s.recv(10)
    print("through")
except OSError:
    print("kept out")
"""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture(scope="module")
def wire() -> Iterator[None]:
    """Two namespaces and a cable; inside a server, outside two addresses of each family."""
    for name in (INSIDE, OUTSIDE):
        ip("netns", "add", name)
    server = None
    try:
        ip("link", "add", "kpg0", "netns", INSIDE, "type", "veth", "peer", "kpg1", "netns", OUTSIDE)
        for name, link, own in (
            (INSIDE, "kpg0", ("10.9.0.1/24", "fd09::1/64")),
            (OUTSIDE, "kpg1", ("10.9.0.2/24", "10.9.0.3/24", "fd09::2/64", "fd09::3/64")),
        ):
            for address in own:
                nodad = ("nodad",) if ":" in address else ()
                ip("-n", name, "addr", "add", address, "dev", link, *nodad)
            ip("-n", name, "link", "set", link, "up")
            ip("-n", name, "link", "set", "lo", "up")
        server = subprocess.Popen(
            ["ip", "netns", "exec", INSIDE, sys.executable, "-c", SERVER],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert server.stdout is not None
        assert server.stdout.readline() == "up\n"
        yield
    finally:
        if server is not None:
            server.kill()
            server.communicate()
        for name in (INSIDE, OUTSIDE):
            subprocess.run(["ip", "netns", "del", name], check=False)


def load(tmp_path: Path, ipv4: list[str], ipv6: list[str], *, page: bool = False) -> None:
    """Load the role's own file in the inner namespace."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(find_root() / "roles/firewall/templates"),
        trim_blocks=True,
        autoescape=False,  # noqa: S701 - a rule set, no page
    )
    plan = {
        "firewall": {"ports": [8000], "ipv4": ipv4, "ipv6": ipv6},
        "proxy": {"backends": [{"index": 0, "port": 8001}, {"index": 1, "port": 8002}]},
        # Users that every Debian has, in the parts of the proxy's and the engine's.
        "users": {"proxy": PROXY, "service": ENGINE, "web": PAGE},
        "web": {"backend_port": PAGE_PORT, "api_port": API_PORT} if page else None,
    }
    file = tmp_path / "firewall.nft"
    file.write_text(environment.get_template("firewall.nft.j2").render(kimi_plan=plan) + "\n")
    nft("-f", str(file))


def nft(*words: str) -> str:
    done = subprocess.run(
        ["ip", "netns", "exec", INSIDE, "nft", *words], check=True, capture_output=True, text=True
    )
    return done.stdout


def attempt(kind: str, source: str, address: str, port: int, where: str = OUTSIDE) -> bool:
    done = subprocess.run(
        ["ip", "netns", "exec", where, sys.executable, "-c", TRY, kind, source, address, str(port)],
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip() == "through"


@pytest.mark.parametrize(
    ("ipv4", "ipv6", "through"),
    [
        ([], [], []),
        (["10.9.0.2/32"], [], ["10.9.0.2"]),
        (["10.9.0.2/32"], ["fd09::3/128"], ["10.9.0.2", "fd09::3"]),
        (["10.0.0.0/8", "10.9.0.0/24"], ["fd00::/8", "fd09::/64"], None),
        (["0.0.0.0/0"], ["::/0"], None),
    ],
)
def test_the_port_opens_for_the_listed_networks_alone(
    wire: None, tmp_path: Path, ipv4: list[str], ipv6: list[str], through: list[str] | None
) -> None:
    load(tmp_path, ipv4, ipv6)
    for source in ("10.9.0.2", "10.9.0.3", "fd09::2", "fd09::3"):
        address = "fd09::1" if ":" in source else "10.9.0.1"
        expected = through is None or source in through
        assert attempt("tcp", source, address, 8000) == expected, source


def test_nothing_but_the_port_is_touched(wire: None, tmp_path: Path) -> None:
    nft("add", "table", "ip", "theirs")
    load(tmp_path, [], [])
    load(tmp_path, [], [])  # again: one transaction, no leftovers
    for source, address in (("10.9.0.2", "10.9.0.1"), ("fd09::2", "fd09::1")):
        assert attempt("tcp", source, address, 8100)
        assert attempt("udp", source, address, 8000)
        assert not attempt("tcp", source, address, 8000)
        # The machine itself, by the loopback and by its own address.
        loop = "::1" if ":" in address else "127.0.0.1"
        assert attempt("tcp", loop, loop, 8000, INSIDE)
        assert attempt("tcp", address, address, 8000, INSIDE)
    assert nft("list", "tables").split("\n")[:-1] == ["table ip theirs", "table inet kimi"]


def test_a_drop_of_somebody_else_is_found_in_the_real_listing(wire: None, tmp_path: Path) -> None:
    load(tmp_path, ["10.0.0.0/8"], [])
    nft("add", "table", "inet", "filter")
    nft(
        "add",
        "chain",
        "inet",
        "filter",
        "input",
        "{ type filter hook input priority 0; policy drop; }",
    )
    found = firewall.find_drops(json.loads(nft("-j", "list", "ruleset")), 8000, "nftables")
    assert len(found) == 1
    assert "inet filter" in found[0]
    nft("add", "rule", "inet", "filter", "input", "tcp", "dport", "{ 22, 8000 }", "accept")
    assert firewall.find_drops(json.loads(nft("-j", "list", "ruleset")), 8000, "nftables") == []


# Says what it was sent, so that nothing sent can stay unseen.
EARS = """
import os, pwd, socket, sys
user, address, port, backlog = sys.argv[1:]
os.setuid(pwd.getpwnam(user).pw_uid)
family = socket.AF_INET6 if ":" in address else socket.AF_INET
s = socket.socket(family, socket.SOCK_STREAM)
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind((address, int(port))); s.listen(int(backlog)); print("up", flush=True)
while True:
    peer, _ = s.accept(); peer.settimeout(5)
    print(peer.recv(100).decode(), flush=True); peer.sendall(b"answer"); peer.close()
"""
ASK = """
import os, pwd, socket, sys
user, address, port = sys.argv[1:]
os.setuid(pwd.getpwnam(user).pw_uid)
s = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
s.settimeout(0.7)
try:
    s.connect((address, int(port))); s.sendall(b"prompt"); print(s.recv(10).decode())
except ConnectionRefusedError:
    print("refused")
except OSError:
    print("nothing")
"""


@contextmanager
def listening(user: str, address: str, port: int, backlog: int = 16) -> Iterator[Callable[[], str]]:
    """A user who listens on a port of the inner machine; gives all that this user was sent."""
    words = [sys.executable, "-c", EARS, user, address, str(port), str(backlog)]
    with subprocess.Popen(
        ["ip", "netns", "exec", INSIDE, *words], stdout=subprocess.PIPE, text=True
    ) as ears:
        assert ears.stdout is not None
        assert ears.stdout.readline() == "up\n"

        def heard() -> str:
            ears.kill()
            return str(ears.communicate()[0])

        try:
            yield heard
        finally:
            ears.kill()


def asked(user: str, address: str, port: int) -> str:
    words = [sys.executable, "-c", ASK, user, address, str(port)]
    done = subprocess.run(
        ["ip", "netns", "exec", INSIDE, *words], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.mark.parametrize("address", ["::1", "10.9.0.1"])
def test_the_engines_ports_answer_the_proxy_the_service_and_root_alone(
    wire: None, tmp_path: Path, address: str
) -> None:
    nft("flush", "ruleset")
    load(tmp_path, ["0.0.0.0/0"], ["::/0"])
    for port in (8001, 8002):
        with listening(ENGINE, address, port):
            said = {user: asked(user, address, port) for user in (PROXY, ENGINE, "root", ANOTHER)}
        assert said == {PROXY: "answer", ENGINE: "answer", "root": "answer", ANOTHER: "refused"}
    with listening(ANOTHER, address, 8003):
        assert asked(ANOTHER, address, 8003) == "answer"


def send_cookies(which: str) -> None:
    """2: for every knock, and the answer to it belongs to no socket. 1: as the kernel has it."""
    inside = ["ip", "netns", "exec", INSIDE, "sysctl", "-qw", f"net.ipv4.tcp_syncookies={which}"]
    subprocess.run(inside, check=True)


@pytest.mark.parametrize("address", ["127.0.0.1", "fd09::1"])
@pytest.mark.parametrize("cookies", ["1", "2"])
def test_who_squats_on_an_engines_port_is_sent_nothing(
    wire: None, tmp_path: Path, address: str, cookies: str
) -> None:
    nft("flush", "ruleset")
    load(tmp_path, ["0.0.0.0/0"], ["::/0"])
    assert asked(PROXY, address, 8001) == "refused", "a port that nobody has says so at once"
    send_cookies(cookies)
    with listening(ANOTHER, address, 8001) as heard:
        assert asked(PROXY, address, 8001) == "nothing"
        assert asked("root", address, 8001) == "nothing"
        assert heard() == ""
    with listening(ENGINE, address, 8001) as heard:
        assert (asked(PROXY, address, 8001) == "answer") == (cookies == "1")
        assert ("prompt" in heard()) == (cookies == "1")


def test_the_page_is_asked_by_the_proxy_and_reaches_the_proxy_alone(
    wire: None, tmp_path: Path
) -> None:
    nft("flush", "ruleset")
    load(tmp_path, ["0.0.0.0/0"], [], page=True)
    send_cookies("1")
    everybody = (PROXY, PAGE, "root", ANOTHER)
    with listening(PAGE, "127.0.0.1", PAGE_PORT):
        said = {user: asked(user, "127.0.0.1", PAGE_PORT) for user in everybody}
    assert said == {PROXY: "answer", PAGE: "refused", "root": "answer", ANOTHER: "refused"}
    with listening(PROXY, "127.0.0.1", API_PORT):
        said = {user: asked(user, "127.0.0.1", API_PORT) for user in everybody}
    assert said == {PROXY: "refused", PAGE: "answer", "root": "answer", ANOTHER: "refused"}
    with listening(ENGINE, "127.0.0.1", 8001):
        assert asked(PAGE, "127.0.0.1", 8001) == "refused"
    with listening(ANOTHER, "127.0.0.1", 8003):
        assert asked(PAGE, "127.0.0.1", 8003) == "refused"
        assert asked(ANOTHER, "127.0.0.1", 8003) == "answer"


@pytest.mark.parametrize("cookies", ["1", "2"])
@pytest.mark.parametrize(("asks", "owner", "port"), [(PROXY, PAGE, 8004), (PAGE, PROXY, 8005)])
def test_who_squats_on_a_port_of_the_page_gets_no_password_and_no_key(
    wire: None, tmp_path: Path, asks: str, owner: str, port: int, cookies: str
) -> None:
    nft("flush", "ruleset")
    load(tmp_path, ["0.0.0.0/0"], [], page=True)
    send_cookies(cookies)
    with listening(ANOTHER, "127.0.0.1", port) as heard:
        assert asked(asks, "127.0.0.1", port) == "nothing"
        assert heard() == ""
    with listening(owner, "127.0.0.1", port) as heard:
        assert (asked(asks, "127.0.0.1", port) == "answer") == (cookies == "1")
