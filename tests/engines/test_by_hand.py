"""The commands of docs/guides/kt-experts.md, "By hand", run against the lab's tiny INT4 model."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kimi_prov.lab import model, settings

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
INDEX = "--extra-index-url https://download.pytorch.org/whl/cpu"
READY = "Application startup complete"


def documented() -> list[str]:
    """The commands of the section, each on lines that a backslash joins."""
    page = (ROOT / "docs" / "guides" / "kt-experts.md").read_text()
    section = page.split("## By hand", 1)[1].split("\n## ", 1)[0]
    code = "\n".join(line[4:] for line in section.splitlines() if line.startswith("    "))
    return re.sub(r"\\\n\s*", "", code).splitlines()


def replaced(command: str, words: dict[str, str]) -> str:
    """The command with other words, each of which it has to have."""
    for word, other in words.items():
        assert word in command, command
        command = command.replace(word, other)
    return command


def test_the_commands_install_serve_and_answer(tmp_path: Path) -> None:
    make, torch, plugin, kernel, serve, ask = documented()
    links = settings.detect_variables().get("kimi_pip_find_links")
    if links:
        torch = replaced(torch, {INDEX: f"--find-links {links}"})
    (tmp_path / "kimi_prov").symlink_to(ROOT / "kimi_prov")
    env = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for command in (make, torch, plugin, kernel):
        subprocess.run(["bash", "-c", command], check=True, cwd=tmp_path, env=env)
    tiny = str(model.make_model(tmp_path / "tiny", experts="int4"))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    small = {"SPACE=40": "SPACE=1", "32768": "4096", "/data/Kimi-K2.5": tiny}
    log = tmp_path / "log"
    with log.open("w") as told:
        server = subprocess.Popen(
            ["bash", "-c", replaced(serve, small) + f" --port {port}"],
            cwd=tmp_path,
            env=env,
            stdout=told,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        until = time.monotonic() + 600
        while READY not in log.read_text():
            assert server.poll() is None, log.read_text()[-4000:]
            assert time.monotonic() < until, log.read_text()[-4000:]
            time.sleep(1)
        ask = replaced(ask, {"/data/Kimi-K2.5": tiny, ":8000": f":{port}"})
        said = subprocess.run(["bash", "-c", ask], check=True, capture_output=True)
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(60)
    assert json.loads(said.stdout)["choices"][0]["message"]["content"]
    assert "experts of layer 2 (2 of 2) in the own kernel for " in log.read_text()
