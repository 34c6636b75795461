"""`kimi-prov catalog pin` against a local hub that speaks the same protocol."""

from __future__ import annotations

import hashlib
import json
import os
from typing import TYPE_CHECKING, Any

import command_line
import pytest
from weights_server import COMMIT, HubHandler, Server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FILES = {
    "model-1.safetensors": os.urandom(300_000),
    "config.json": b'{"architectures": []}\n',
    "sub/merges.txt": b"",
    ".gitattributes": b"*.safetensors lfs\n",
}
REPOSITORY = f"hf://{HubHandler.repository}"


@pytest.fixture
def hub() -> Iterator[Server]:
    server = Server(FILES, type("Here", (HubHandler,), {}))
    yield server
    server.stop()


def pin(hub: Server | None, address: str, *more: str) -> command_line.Done:
    url = hub.url if hub else "http://hub.invalid"
    with command_line.surroundings({**os.environ, "HF_ENDPOINT": url}):
        return command_line.run("catalog", "pin", address, *more)


def test_sizes_and_digests_of_every_file_are_written(hub: Server, tmp_path: Path) -> None:
    file = tmp_path / "manifest.json"
    done = pin(hub, f"{REPOSITORY}@main", "--output", str(file))
    assert done.returncode == 0, done.stderr
    document = json.loads(file.read_text())
    assert document["revision"] == COMMIT
    assert document["files"] == [
        {"path": name, "size": len(FILES[name]), "sha256": hashlib.sha256(FILES[name]).hexdigest()}
        for name in sorted(FILES)
        if not name.startswith(".")
    ]
    asked = [path for path, _ in hub.behaviour.requests]
    assert not [path for path in asked if path.endswith(".safetensors")]


def test_the_manifest_is_one_that_an_inventory_takes(hub: Server, tmp_path: Path) -> None:
    from kimi_prov.planner.settings.parsing import parse_settings  # noqa: PLC0415

    (tmp_path / "m.json").write_text(pin(hub, REPOSITORY).stdout)
    settings = parse_settings(
        {"kimi_model": "kimi-k2.5", "kimi_weights_manifest": "m.json"}, host="h", base=tmp_path
    )
    assert settings.manifest is not None
    assert len(settings.manifest["files"]) == 3


def test_the_token_comes_from_a_file_and_goes_nowhere_else(hub: Server, tmp_path: Path) -> None:
    hub.behaviour.token = "hf_canary"
    refused = pin(hub, REPOSITORY)
    assert refused.returncode == 1
    assert "--hf-token-file" in refused.stderr
    token = tmp_path / "token"
    token.write_text("hf_canary\n")
    done = pin(hub, REPOSITORY, "--hf-token-file", str(token))
    assert done.returncode == 0, done.stderr
    assert "hf_canary" not in done.stdout + done.stderr + refused.stderr


@pytest.mark.parametrize(
    ("address", "code"),
    [("moonshotai/Kimi-K2.5", 2), ("hf://one", 2), ("", 2), (f"{REPOSITORY}@nowhere", 1)],
)
def test_what_is_wrong_is_said_in_one_sentence(hub: Server, address: str, code: int) -> None:
    done = pin(hub, address)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.strip()
    assert done.stdout == ""


def test_bytes_that_are_not_the_hubs_are_refused(
    hub: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = HubHandler.info

    def lying(self: HubHandler) -> dict[str, Any]:
        document = honest(self)
        for row in document["siblings"]:
            row["blobId"] = "0" * 40
        return document

    monkeypatch.setattr(HubHandler, "info", lying)
    done = pin(hub, REPOSITORY)
    assert done.returncode == 1
    assert "config.json" in done.stderr


def test_a_token_is_not_sent_in_clear(tmp_path: Path) -> None:
    """Refused before a connection: the name leads nowhere."""
    token = tmp_path / "token"
    token.write_text("hf_canary")
    done = pin(None, f"{REPOSITORY}@main", "--hf-token-file", str(token))
    assert done.returncode == 2, done.stderr
    assert "HF_ENDPOINT: expected https, found 'http://hub.invalid'" in done.stderr
    assert "hf_canary" not in done.stderr
