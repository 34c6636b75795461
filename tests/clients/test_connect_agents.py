"""The snippets that need programs of their own: frameworks, node, and coding agents.

The packages are real and pinned beside this file; the engine is a stand-in behind TLS and a key.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import node_packages
import pytest
from chat_stand_in import Engine, serving
from console_runs import here

from kimi_prov.on_host.endpoint import tls

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow
PINS = Path(__file__).resolve().parent
KEY = "sk-kimi-canary-of-agents"
HELLO = "Hello from the stand-in."


@pytest.fixture(scope="session")
def of_npm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs and packages of npm, as the lock has them."""
    return node_packages.installed(PINS, tmp_path_factory.mktemp("npm"))


def environment(pins: str, folder: Path) -> Path:
    """Make an environment of Python with a file's pins."""
    uv = Path(sys.executable).with_name("uv")
    subprocess.run([uv, "venv", "-q", "--python", sys.executable, folder], check=True)
    line = [uv, "pip", "install", "-q", "--require-hashes", "-r", PINS / pins]
    subprocess.run([*line, "--python", folder / "bin" / "python"], check=True, timeout=1800)
    return folder / "bin"


@pytest.fixture(scope="session")
def frameworks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return environment("frameworks.txt", tmp_path_factory.mktemp("frameworks") / "venv")


@pytest.fixture(scope="session")
def aider(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return environment("aider.txt", tmp_path_factory.mktemp("aider") / "venv")


class Site:
    """A server, and what its user has of it."""

    def __init__(self, folder: Path, engine: Engine, port: int) -> None:
        self.folder, self.engine = folder, engine
        self.url = f"https://localhost:{port}"
        self.key_file = folder / "api.key"
        self.key_file.write_text(f"{KEY}\n")

    def paste(self, name: str, programs: Path, empty: Path) -> str:
        """Paste a snippet into bash, from an empty folder; give what it printed."""
        ca = self.folder / "certificate.pem"
        words = ("--ca", ca, "--api-key-file", self.key_file, "--for", name)
        code, text, err = here("connect", self.url, *words)
        assert (code, err) == (0, "")
        empty.mkdir()
        home = self.folder / "home"
        home.mkdir()
        done = subprocess.run(
            ["bash", "-c", text],
            check=False,
            capture_output=True,
            text=True,
            cwd=empty,
            env={
                "PATH": f"{programs}:{os.environ['PATH']}",
                "HOME": str(home),
                "LC_ALL": "C.UTF-8",
                # As root Claude Code asks for this; nothing else reads it.
                "IS_SANDBOX": "1",
            },
            stdin=subprocess.DEVNULL,
            timeout=600,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert KEY not in done.stdout + done.stderr
        return done.stdout


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    engine = Engine(KEY, calls=False)
    pem = tls.make_self_signed(["lab1"])
    (tmp_path / "certificate.pem").write_text(tls.extract_certificates(pem))
    with serving(tmp_path, pem, engine) as port:
        yield Site(tmp_path, engine, port)


def test_javascript(site: Site, of_npm: Path) -> None:
    # node looks for packages in the folders above.
    found = site.paste("javascript", of_npm / "node_modules" / ".bin", of_npm / "empty-js")
    assert found == f"{HELLO}\n"
    assert site.engine.asked[0]["top_p"] == 0.95


@pytest.mark.parametrize("name", ["langchain", "llamaindex"])
def test_frameworks(site: Site, frameworks: Path, name: str, tmp_path: Path) -> None:
    assert site.paste(name, frameworks, tmp_path / "empty") == f"{HELLO}\n"
    (body,) = site.engine.asked
    assert (body["temperature"], body["top_p"]) == (1.0, 0.95)


def test_aider(site: Site, aider: Path, tmp_path: Path) -> None:
    assert HELLO in site.paste("aider", aider, tmp_path / "empty")


def test_kimi_code(site: Site, of_npm: Path, tmp_path: Path) -> None:
    assert HELLO in site.paste("kimi-code", of_npm / "node_modules" / ".bin", tmp_path / "empty")
    assert set(site.engine.paths) == {"/v1/chat/completions"}


def test_opencode(site: Site, of_npm: Path, tmp_path: Path) -> None:
    assert HELLO in site.paste("opencode", of_npm / "node_modules" / ".bin", tmp_path / "empty")
    assert all(path.startswith("/v1/chat/completions") for path in site.engine.paths)


def test_cline(site: Site, of_npm: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    assert HELLO in site.paste("cline", of_npm / "node_modules" / ".bin", empty)
    assert set(site.engine.paths) == {"/v1/chat/completions"}
    # Its sessions and settings lie there; the key is in none of them.
    kept = [file for file in empty.rglob("*") if file.is_file()]
    assert kept
    assert not [file for file in kept if KEY.encode() in file.read_bytes()]


def test_codex(site: Site, of_npm: Path, tmp_path: Path) -> None:
    assert HELLO in site.paste("codex", of_npm / "node_modules" / ".bin", tmp_path / "empty")
    assert {path.partition("?")[0] for path in site.engine.paths} == {"/v1/responses"}


def test_continue(site: Site, of_npm: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    assert HELLO in site.paste("continue", of_npm / "node_modules" / ".bin", empty)
    assert set(site.engine.paths) == {"/v1/chat/completions"}
    assert KEY not in (empty / "continue-kimi.yaml").read_text()


def test_kilo_code(site: Site, of_npm: Path, tmp_path: Path) -> None:
    assert HELLO in site.paste("kilo-code", of_npm / "node_modules" / ".bin", tmp_path / "empty")
    assert set(site.engine.paths) == {"/v1/chat/completions"}


def test_litellm(site: Site, aider: Path, tmp_path: Path) -> None:
    # aider is built on it.
    assert site.paste("litellm", aider, tmp_path / "empty") == f"{HELLO}\n"
    (body,) = site.engine.asked
    assert (body["temperature"], body["top_p"]) == (1.0, 0.95)


def test_claude_code(site: Site, of_npm: Path, tmp_path: Path) -> None:
    assert HELLO in site.paste("claude-code", of_npm / "node_modules" / ".bin", tmp_path / "empty")
    assert {path.partition("?")[0] for path in site.engine.paths} <= {
        "/v1/messages",
        "/v1/messages/count_tokens",
    }
