"""`connect` and `chat` on a served host: a real engine, proxy, certificate, firewall and sshd."""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import closed_form
import pytest
from machines import kimi_prov

if TYPE_CHECKING:
    from machines import Host

pytestmark = [pytest.mark.lab, pytest.mark.slow]
CLI = "from kimi_prov.cli import main; main()"


@pytest.fixture
def key_file(served_host: Host, tmp_path: Path) -> Path:
    """The key by which the machine tests itself: a client's key as any other."""
    file = tmp_path / "api.key"
    file.write_text(served_host.ssh("cat /etc/kimi/keys/verify.key"))
    file.chmod(0o600)
    return file


def words(host: Host, key_file: Path, *more: str) -> list[str]:
    return [str(host.inventory), "--limit", host.name, "--api-key-file", str(key_file), *more]


def models(found: dict[str, Any], key: str) -> int:
    trusted = ssl.create_default_context(cafile=found["certificate_file"])
    request = urllib.request.Request(  # noqa: S310
        f"{found['base_url']}/models", headers={"Authorization": f"Bearer {key}"}
    )
    with urllib.request.urlopen(request, timeout=60, context=trusted) as answer:  # noqa: S310
        return int(answer.status)


def test_a_client_gets_through_with_what_connect_tells(
    served_host: Host, key_file: Path, tmp_path: Path
) -> None:
    done = kimi_prov("connect", *words(served_host, key_file, "--format=json"))
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    closed_form.validate(document, "connect")
    found = document["hosts"][served_host.name]
    key = key_file.read_text().strip()
    assert key not in done.stdout + done.stderr
    assert found["answers"] is True
    assert models(found, key) == 200
    # Pasted as they are: curl, OpenAI's SDK, and Anthropic's API of the real engine.
    for name in ("curl", "python", "anthropic"):
        snippet = kimi_prov("connect", *words(served_host, key_file, "--for", name))
        empty = tmp_path / name
        empty.mkdir()
        pasted = subprocess.run(
            ["bash", "-c", snippet.stdout],
            capture_output=True,
            text=True,
            cwd=empty,
            env={"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
            check=False,
            timeout=600,
        )
        assert pasted.returncode == 0, f"{name}: {pasted.stderr}"
        assert pasted.stdout


def test_the_tunnel_reaches_the_port_through_sshd(served_host: Host, key_file: Path) -> None:
    line = [sys.executable, "-c", CLI, "connect"]
    line += words(served_host, key_file, "--tunnel", "--format=json")
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            lines: list[str] = []
            while not lines or lines[-1] not in ("}\n", ""):
                lines.append(process.stdout.readline())
            found = json.loads("".join(lines))["hosts"][served_host.name]
            assert found["base_url"].startswith("https://127.0.0.1:")
            assert models(found, key_file.read_text().strip()) == 200
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130


@pytest.mark.parametrize("more", [[], ["--tunnel"]])
def test_a_chat_is_answered(served_host: Host, key_file: Path, more: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CLI, "chat", *words(served_host, key_file, *more, "--reasoning")],
        input="Say hello.",
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert " tokens, " in done.stderr
    assert "tok/s" in done.stderr
