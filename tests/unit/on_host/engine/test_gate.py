"""The gate before an engine, asked as a web server asks it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.engine.gate import Gate
from kimi_prov.on_host.system import machine_key

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    machine_key.ensure(tmp_path / "machine-key.map")
    return tmp_path / "machine-key.map"


async def behind(scope: Any, receive: Any, send: Any) -> None:
    """The engine: answers 200 to whatever reaches it."""
    del scope, receive
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"from the engine"})


def said(gate: Gate, scope: dict[str, Any]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        messages.append(message)

    asyncio.run(gate(scope, receive, send))
    return messages


def status(gate: Gate, path: str, *given: str, method: str = "POST") -> int:
    headers = [(b"authorization", value.encode("latin-1")) for value in given]
    scope = {"type": "http", "method": method, "path": path, "headers": headers}
    return int(said(gate, scope)[0]["status"])


PATHS = (
    *("/v1/chat/completions", "/v1/models", "/invocations", "/tokenize", "/metrics", "/health/"),
    *("/update_weights_from_tensor", "/health_generate", "/load", "//health", "/", ""),
)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
def test_every_path_wants_the_key(file: Path, path: str, method: str) -> None:
    gate, key = Gate(behind, str(file)), machine_key.read(file)
    assert status(gate, path, method=method) == 401
    assert status(gate, path, f"Bearer {key}", method=method) == 200


def test_only_the_whole_key_once_is_the_key(file: Path) -> None:
    gate, key = Gate(behind, str(file)), machine_key.read(file)
    assert status(gate, "/v1/models", f"bearer {key}") == 200
    for wrong in ("", "Bearer", "Bearer ", key, f"Bearer {key[:-1]}", f"Basic {key}", "Bearer ü"):
        assert status(gate, "/v1/models", wrong) == 401, wrong
    assert status(gate, "/v1/models", f"Bearer {key}", "Bearer x") == 401


def test_health_is_open_and_can_only_be_read(file: Path) -> None:
    gate = Gate(behind, str(file))
    assert status(gate, "/health", method="GET") == 200
    assert status(gate, "/health", method="POST") == 401


def test_a_socket_without_the_key_is_closed_and_the_servers_own_start_passes(file: Path) -> None:
    gate = Gate(behind, str(file))
    socket = {"type": "websocket", "path": "/v1/realtime", "headers": []}
    assert [message["type"] for message in said(gate, socket)] == ["websocket.close"]
    assert said(gate, {"type": "lifespan"})[0]["status"] == 200


def test_a_key_that_is_made_anew_counts_at_once_and_a_lost_file_keeps_the_last(file: Path) -> None:
    gate, old = Gate(behind, str(file)), machine_key.read(file)
    file.unlink()
    assert status(gate, "/v1/models", f"Bearer {old}") == 200
    machine_key.ensure(file)
    assert status(gate, "/v1/models", f"Bearer {old}") == 401
    assert status(gate, "/v1/models", f"Bearer {machine_key.read(file)}") == 200


def test_without_a_key_it_does_not_open_at_all(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="there is no key"):
        Gate(behind, str(tmp_path / "none"))
