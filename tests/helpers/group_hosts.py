"""Supervisors of a group as real processes, each with an address of its own on the loopback.

They run the program as a unit does; only the engine that they start is another: a few lines that
answer as vLLM's server does on the head, and wait on the ranks.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from ports import free_port
from waiting import until

PROGRAM = """
import http.server, os, signal, sys, time
from pathlib import Path
folder = Path(__file__).parent
if sys.argv[1] == "group":
    from kimi_prov.on_host.__main__ import run
    from kimi_prov.on_host.group import supervisor
    # What is looked for every half second, and tried again every second.
    assert supervisor._POLL_INTERVAL_S and supervisor._RECONNECT_S
    supervisor._POLL_INTERVAL_S = supervisor._RECONNECT_S = 0.1
    sys.exit(run(sys.argv[1:]))
host = sys.argv[sys.argv.index("--host-is") + 1]
starts = folder / f"starts-{host}"
with starts.open("a") as stream:
    stream.write(f"{os.getpid()}\\n")
assert "NOTIFY_SOCKET" not in os.environ
if (folder / f"breaks-{host}").exists():
    sys.exit(3)
if "--headless" in sys.argv:
    time.sleep(3600)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        text = (folder / "metrics").read_text() if self.path == "/metrics" else ""
        self.answer(200, text)
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        if (folder / "hangs").exists():
            time.sleep(3600)
        self.answer(503 if (folder / "loads").exists() else 200, "{}")
    def answer(self, status, text):
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())
    def log_message(self, *words):
        pass
port = int(sys.argv[sys.argv.index("--port") + 1])
server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
server.serve_forever()
"""


class Host:
    """One supervisor and what it wrote."""

    def __init__(self, command: list[str], env: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8", env=env
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout:
            self.lines.extend(line.rstrip("\n") for line in self.process.stdout)

    @property
    def text(self) -> str:
        """Everything it wrote by now."""
        return "\n".join(self.lines)

    def said(self, words: str) -> bool:
        """Wait until it wrote these words, or has ended without."""
        until(lambda: words in self.text or self.process.poll() is not None)
        if self.process.poll() is not None:
            self._reader.join()
        return words in self.text

    def end(self) -> int:
        """Wait for its end; the exit status."""
        status = self.process.wait(60)
        self._reader.join()
        return status

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send the supervisor a signal."""
        self.process.send_signal(number)


class Group:
    """Hosts a, b, ... at 127.0.0.2, 127.0.0.3, ..., whose files lie in one folder."""

    def __init__(self, folder: Path, size: int = 2) -> None:
        self.folder = folder
        self.addresses = [f"127.0.0.{2 + rank}" for rank in range(size)]
        self.names = [chr(ord("a") + rank) for rank in range(size)]
        self.port = free_port()
        self.chat_port = free_port()
        self.hosts: list[Host] = []
        (folder / "program.py").write_text(PROGRAM)
        (folder / "metrics").write_text("")
        (folder / "complete").write_text("vllm.txt\n")
        (folder / "verified").write_text('{"manifest_sha256": "0"}')

    def start(self, rank: int, *more: str, digest: str = "0" * 64, **env: str) -> Host:
        """Start the supervisor of a host; `more` are options of it."""
        members = [f"--member={n}={a}" for n, a in zip(self.names, self.addresses, strict=True)]
        command = [sys.executable, str(self.folder / "program.py"), "group", "--name", "pair"]
        command += ["--rank", str(rank), *members, "--port", str(self.port), "--digest", digest]
        command += ["--environment", str(self.folder / "complete")]
        command += ["--weights", str(self.folder / "verified")]
        command += ["--silence", "60", "--progress", "60", "--ask-every", "0.2", "--grace", "1"]
        engine = ["engine", "-m", "vllm", "--host-is", self.names[rank]]
        if rank == 0:
            command += ["--chat-port", str(self.chat_port), "--model", "k"]
            engine += ["--port", str(self.chat_port)]
        else:
            engine += ["--headless"]
        host = Host([*command, *more, "--", *engine], {**os.environ, **env})
        self.hosts.append(host)
        return host

    def serve(self, *more: str, **env: str) -> list[Host]:
        """Start all hosts and wait until the engine has answered."""
        hosts = [self.start(rank, *more, **env) for rank in range(len(self.names))]
        assert hosts[0].said("the engine answers"), hosts[0].text
        for host in hosts[1:]:
            assert host.said("the model is served by a"), host.text
        # The stand-in of the head answers alone.
        assert until(lambda: all(self.engines(name) for name in self.names))
        return hosts

    def engines(self, name: str) -> list[int]:
        """Return the processes of the engines that were started on a host, oldest first."""
        file = self.folder / f"starts-{name}"
        return [int(word) for word in file.read_text().split()] if file.exists() else []

    def close(self) -> None:
        """End what is left."""
        for host in self.hosts:
            if host.process.poll() is None:
                host.kill(signal.SIGCONT)
                host.kill()
            host.end()


def runs(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


def planned(plan: dict[str, Any], rank: int, *, size: int = 2) -> dict[str, Any]:
    """Make a plan of one host that of a host in a group, as the planner writes it."""
    members = [
        {"host": chr(ord("a") + n), "rank": n, "address": f"10.0.0.{1 + n}"} for n in range(size)
    ]
    (one,) = plan["instances"]
    argv = [*one["argv"], "--nnodes", str(size), "--node-rank", str(rank)]
    argv += ["--master-addr", "10.0.0.1", "--master-port", "29501"]
    own = members[rank]["address"]
    peers = [member["address"] for member in members if member["rank"] != rank]
    env = {"VLLM_HOST_IP": own, "GLOO_SOCKET_IFNAME": "host0", "VLLM_PORT": "29510"}
    instance = {**one, "env": {**one["env"], **env}, "argv": argv}
    found = {
        **plan,
        "group": {
            "name": "pair",
            "size": size,
            "rank": rank,
            "members": members,
            "address": own,
            "interface": "host0",
            "control_port": 29500,
            "master_port": 29501,
            "first_port": 29510,
            "peers": peers,
            "own_addresses": [own],
            "peer_addresses": peers,
            "rdma": None,
            "digest": "d" * 64,
        },
        "instances": [instance],
    }
    if rank:
        headless = [*argv, "--headless"]
        found["instances"] = [
            {**instance, "argv": headless, "unit": "kimi-rank.service", "port": None}
        ]
        found |= {"web": None}
        found["proxy"] = {**plan.get("proxy", {}), "backends": []}
        found["firewall"] = {**plan.get("firewall", {}), "ports": []}
    return found
