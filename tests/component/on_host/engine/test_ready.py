"""Readiness as a unit's start sees it, against a real server on the loopback."""

import json
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from waiting import HANGS_S, until

from kimi_prov.on_host.engine import ready


class Engine(ThreadingHTTPServer):
    """Healthy at once; refuses the first chat, as an engine does that still warms up."""

    refusals = 1
    asked: list[dict[str, object]]


class Handler(BaseHTTPRequestHandler):
    server: Engine

    def do_GET(self) -> None:
        self._answer(200 if self.path == "/health" else 404, b"")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(body)
        early = len(self.server.asked) <= self.server.refusals
        self._answer(503 if early else 200, b'{"choices": [{}]}')

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    monkeypatch.setattr(ready, "_POLL_INTERVAL_S", 0.01)
    server = Engine(("127.0.0.1", 0), Handler)
    server.asked = []
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_ready_is_a_chat_of_one_token_not_an_open_socket(
    engine: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["--port", str(engine.server_port), "--model", "m", "--pid", str(os.getpid())]
    assert ready.main(argv) == 0
    assert [(asked["model"], asked["max_tokens"]) for asked in engine.asked] == [("m", 1)] * 2
    assert "not ready yet: POST /v1/chat/completions: 503" in capsys.readouterr().out


def test_a_process_that_ended_is_not_waited_for(
    engine: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    argv = ["--port", str(engine.server_port), "--model", "m", "--pid", str(ended.pid)]
    assert ready.main(argv) == 1
    assert "ended before it was ready" in capsys.readouterr().out
    assert engine.asked == []


def started(capsys: pytest.CaptureFixture[str], says: str, *argv: str) -> threading.Thread:
    """A `ready` that has said what it waits for."""
    waiting = threading.Thread(target=ready.main, args=(list(argv),), daemon=True)
    waiting.start()
    said: list[str] = []

    def has_said() -> bool:
        said.append(capsys.readouterr().out)
        return says in "".join(said)

    assert until(has_said), said
    return waiting


def test_weights_are_waited_for_until_the_mark_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ready, "_POLL_INTERVAL_S", 0.01)
    waiting = started(capsys, "waiting for verified weights", "--weights", str(tmp_path))
    assert waiting.is_alive()
    (tmp_path / ".kimi-verified").touch()
    waiting.join(HANGS_S)
    assert not waiting.is_alive()


SMI = """#!/bin/sh
case "$1" in
*memory.used) cat "$(dirname "$0")/memory" ;;
*compute-apps*) echo 'GPU-b, 4711, /srv/kimi/engine/bin/python' ;;
esac
"""


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two GPUs; the file says what each has in use."""
    monkeypatch.setattr(ready, "_POLL_INTERVAL_S", 0.01)
    tool = tmp_path / "nvidia-smi"
    tool.write_text(SMI)
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    table = tmp_path / "memory"
    table.write_text("0, GPU-a, 4\n1, GPU-b, 131072\n")
    return table


def test_a_process_without_a_name_is_told_by_its_number(
    memory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tool = memory.parent / "nvidia-smi"
    tool.write_text(SMI.replace("/srv/kimi/engine/bin/python", "[Not Found]"))
    assert ready.main(["--gpus", "0,1", "--patience", "0"]) == 1
    assert "GPU 1: 131072 MiB in use by process (4711)" in capsys.readouterr().out


def test_gpus_are_waited_for_until_their_memory_is_free(
    memory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    held = "GPU 1: 131072 MiB in use by /srv/kimi/engine/bin/python (4711)"
    waiting = started(capsys, held, "--gpus", "0,1")
    assert waiting.is_alive()
    memory.write_text("0, GPU-a, 4\n1, GPU-b, 17\n")
    waiting.join(HANGS_S)
    assert not waiting.is_alive()


def test_gpus_that_stay_held_are_given_up_with_their_holder(
    memory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ready.main(["--gpus", "0"]) == 0
    assert ready.main(["--gpus", "0,1", "--patience", "0"]) == 1
    assert "gave up after 0 s: GPU 1: 131072 MiB" in capsys.readouterr().out
    memory.unlink()
    assert ready.main(["--gpus", "0", "--patience", "0"]) == 1
    assert "nvidia-smi does not answer" in capsys.readouterr().out


@contextmanager
def silent_listener() -> Iterator[int]:
    """A port that a process holds which reads and answers nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_the_engines_end_is_seen_while_another_process_holds_its_port(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ready, "_HEALTH_TIMEOUT_S", 0.2)
    with silent_listener() as port, subprocess.Popen(["sleep", "0.1"]) as ended:
        # Nobody else waits for it, so that its number would stay.
        threading.Thread(target=ended.wait).start()
        assert ready.wait_for_chat(port, "kimi", ended.pid) == 1
    assert "ended before it was ready" in capsys.readouterr().out


def test_engines_are_asked_at_once_for_their_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each answers only once all were asked."""
    ports = [1, 2, 3]
    all_asked = threading.Barrier(len(ports))

    def answer(port: int, *_: object, **__: object) -> tuple[None, str]:
        all_asked.wait(HANGS_S)
        return None, f"of {port}"

    monkeypatch.setattr(ready, "send_request", answer)
    assert ready.request_metrics(ports, 1.0) == [(None, f"of {port}") for port in ports]
