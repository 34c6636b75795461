"""Each snippet of `connect --for` is pasted as it is printed, from an empty folder.

The engine is a stand-in that computes nothing and reads strictly; TLS and key are real.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from chat_stand_in import THOUGHT, Engine, serving
from console_runs import here

from kimi_prov.clients import snippets
from kimi_prov.on_host.endpoint import tls

if TYPE_CHECKING:
    from collections.abc import Iterator

KEY = "sk-kimi-canary-of-snippets"
HELLO = "Hello from the stand-in."
# Run by tests/clients/test_connect_agents.py: they are programs and packages of their own.
ELSEWHERE = {
    "javascript",
    "langchain",
    "llamaindex",
    "kimi-code",
    "aider",
    "opencode",
    "cline",
    "claude-code",
    "codex",
    "continue",
    "kilo-code",
    "litellm",
}
# Programs that no test has: what they are started with is looked at, as their makers describe it.
STARTED = {
    "goose": {"GOOSE_PROVIDER": "openai", "OPENAI_BASE_PATH": "v1/chat/completions"},
    "open-webui": {"OPENAI_API_KEY": KEY, "ENABLE_OLLAMA_API": "false"},
}


class Site:
    """A server, the files that its user has, and an empty folder."""

    def __init__(self, folder: Path, engine: Engine, port: int, certificate: str) -> None:
        self.engine = engine
        self.url = f"https://localhost:{port}/v1"
        self.ca = folder / "a certificate.pem"
        self.ca.write_text(certificate)
        self.key_file = folder / "api.key"
        self.key_file.write_text(f"{KEY}\n")
        self.folder = folder
        self.empty = folder / "empty"
        self.empty.mkdir()

    def snippet(self, name: str) -> str:
        words = (
            "connect",
            self.url,
            "--ca",
            self.ca,
            "--api-key-file",
            self.key_file,
            "--for",
            name,
        )
        code, out, err = here(*words)
        assert (code, err) == (0, "")
        assert KEY not in out
        return out

    def paste(self, text: str, **more: str) -> subprocess.CompletedProcess[str]:
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        return subprocess.run(
            ["bash", "-c", text],
            check=False,
            capture_output=True,
            text=True,
            cwd=self.empty,
            env={"PATH": path, "HOME": str(home), "LC_ALL": "C.UTF-8", **more},
            stdin=subprocess.DEVNULL,
            timeout=120,
        )

    def works(self, name: str, **more: str) -> str:
        done = self.paste(self.snippet(name), **more)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    pem = tls.make_self_signed(["lab1"])
    engine = Engine(KEY)
    with serving(tmp_path, pem, engine) as port:
        yield Site(tmp_path, engine, port, tls.extract_certificates(pem))


def test_curl(site: Site) -> None:
    answer = json.loads(site.works("curl"))
    assert answer["choices"][0]["message"]["content"] == HELLO
    (body,) = site.engine.asked
    assert (body["temperature"], body["top_p"]) == (1.0, 0.95)
    assert body["messages"][0]["content"].startswith("You are Kimi")


def test_curl_has_the_key_in_no_argument(site: Site) -> None:
    program = site.folder / "bin" / "curl"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    program.chmod(0o755)
    path = f"{program.parent}:{os.environ['PATH']}"
    done = site.paste(site.snippet("curl"), PATH=path)
    assert "chat/completions" in done.stdout
    assert KEY not in done.stdout


def test_python_streams(site: Site) -> None:
    assert site.works("python") == f"{HELLO}\n"
    assert site.engine.asked[0]["stream"] is True


def test_anthropic(site: Site) -> None:
    assert site.works("anthropic") == f"{HELLO}\n"
    assert site.engine.paths == ["/v1/messages"]


def test_env(site: Site) -> None:
    assert site.works("env") == ""
    file = site.empty / ".env"
    assert file.stat().st_mode & 0o777 == 0o600
    values = dict(line.split("=", 1) for line in file.read_text().splitlines())
    assert values["OPENAI_API_KEY"] == KEY
    # The SDK itself takes what stands in it.
    ask = (
        "import openai; print(openai.OpenAI().chat.completions.create("
        f"model={values.pop('OPENAI_MODEL')!r}, messages=[{{'role': 'user', 'content': 'x'}}]"
        ").choices[0].message.content)"
    )
    done = subprocess.run(
        [sys.executable, "-c", ask], capture_output=True, text=True, env=values, check=False
    )
    assert (done.stdout, done.stderr) == (f"{HELLO}\n", "")
    # One that is there is left alone.
    file.write_text("MINE=1\n")
    done = site.paste(site.snippet("env"))
    assert "stays as it is" in done.stderr
    assert file.read_text() == "MINE=1\n"


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_thinking(site: Site, field: str) -> None:
    site.engine.reasoning = field
    assert site.works("thinking") == f"reasoning: {THOUGHT}\nanswer: {HELLO}\n"
    assert site.engine.asked[0]["temperature"] == 1.0


def test_instant(site: Site) -> None:
    assert site.works("instant") == f"{HELLO}\n"
    (body,) = site.engine.asked
    assert body["chat_template_kwargs"] == {"thinking": False}
    assert (body["temperature"], body["top_p"]) == (0.6, 0.95)


def test_budget(site: Site) -> None:
    site.engine.ponders = True
    told = site.works("budget")
    assert told.splitlines()[-1] == HELLO
    first, second = site.engine.asked
    assert first["max_tokens"] == 2048
    assert second["chat_template_kwargs"] == {"thinking": False}


def test_sampling_is_the_makers_with_their_source(site: Site) -> None:
    assert "# As the model's makers recommend: github.com/MoonshotAI" in site.snippet("sampling")
    assert site.works("sampling") == f"{HELLO}\n"
    (body,) = site.engine.asked
    assert (body["temperature"], body["top_p"]) == (1.0, 0.95)


def test_tools(site: Site) -> None:
    told = site.works("tools")
    assert 'call: get_weather {"city": "Oslo"}' in told
    assert "After 1 calls" in told
    assert "sunny" in told


def test_tool_rounds(site: Site) -> None:
    told = site.works("tool-rounds").splitlines()
    assert [line.split()[1] for line in told[:2]] == ["find_flights", "book_flight"]
    assert told[2].startswith("After 2 calls")
    assert len(site.engine.asked) == 3


def test_structured(site: Site) -> None:
    assert set(json.loads(site.works("structured"))) == {"name", "capital", "languages"}
    (body,) = site.engine.asked
    assert body["response_format"]["json_schema"]["strict"] is True


def test_image(site: Site) -> None:
    assert site.works("image").startswith("a PNG of ")
    file = site.folder / "mine.png"
    file.write_bytes(b"\x89PNG\r\n" + bytes(4000))
    assert site.works("image", KIMI_IMAGE=str(file)) == "a PNG of 4006 bytes\n"


def test_the_key_may_come_from_the_environment(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KIMI_API_KEY", KEY)
    code, text, _ = here("connect", site.url, "--ca", site.ca, "--for", "curl")
    assert code == 0
    assert KEY not in text
    assert HELLO in site.paste(text, KIMI_API_KEY=KEY).stdout
    done = site.paste(text)
    assert done.returncode != 0
    assert "set it to the API key" in done.stderr


def test_every_snippet_is_run_here_or_with_the_agents() -> None:
    here_run = set(re.findall(r'works\("([\w-]+)"', Path(__file__).read_text()))
    assert here_run | ELSEWHERE | set(STARTED) == set(snippets.SNIPPETS)


@pytest.mark.parametrize("name", STARTED)
def test_what_a_program_is_started_with(site: Site, name: str) -> None:
    program = site.folder / "bin" / name
    program.parent.mkdir()
    program.write_text('#!/bin/sh\nenv > "$HOME/env"; printf "%s\\n" "$@"\n')
    program.chmod(0o755)
    done = site.paste(site.snippet(name), PATH=f"{program.parent}:{os.environ['PATH']}")
    assert (done.returncode, KEY in done.stdout + done.stderr) == (0, False), done.stderr
    lines = (site.folder / "home" / "env").read_text().splitlines()
    given = dict(line.partition("=")[::2] for line in lines)
    assert given.items() >= {**STARTED[name], "SSL_CERT_FILE": str(site.ca)}.items()
    assert site.url.removesuffix("/v1") in {
        given.get("OPENAI_HOST"),
        given.get("OPENAI_API_BASE_URL", "").removesuffix("/v1"),
    }


def test_what_is_entered_by_hand_is_told_without_the_key(site: Site) -> None:
    zed = json.loads(site.works("zed"))["language_models"]["openai_compatible"]["Kimi"]
    assert (zed["api_url"], zed["available_models"][0]["name"]) == (site.url, "kimi-k2.5")
    for told in (site.works("roo-code"), site.works("n8n"), site.works("dify")):
        assert f": {site.url}\n" in told
        assert ": kimi-k2.5\n" in told
        assert KEY not in told


def test_a_snippet_has_the_name_that_people_look_for(site: Site) -> None:
    assert site.snippet("openai") == site.snippet("python")


def test_comments_do_not_open_a_quote_in_a_shell_without_comments(site: Site) -> None:
    """zsh reads a pasted line that begins with # as a command, unless it is told otherwise."""
    for name in snippets.SNIPPETS:
        shell = re.sub(r"<<'?EOF'?\n.*?\nEOF\n", "\n", site.snippet(name), flags=re.DOTALL)
        for line in shell.splitlines():
            if line.startswith("#"):
                assert not re.search(r"['\"`$;&|<>()]", line), name


@pytest.mark.parametrize(
    ("model", "name", "said"),
    [
        ("kimi-k2-thinking", "instant", "always thinks"),
        ("kimi-k2-thinking", "image", "takes no images"),
        ("kimi-k2-instruct", "thinking", "does not think"),
    ],
)
def test_what_a_model_has_not_is_refused(site: Site, model: str, name: str, said: str) -> None:
    site.engine.model = model
    words = ("connect", site.url, "--ca", site.ca, "--api-key-file", site.key_file, "--for", name)
    code, out, err = here(*words)
    assert (code, out) == (2, "")
    assert said in err


def test_a_model_that_always_thinks_has_its_budget_raised(site: Site) -> None:
    site.engine.model = "kimi-k2-thinking"
    site.engine.ponders = True
    assert "once more with four times as much" in site.paste(site.snippet("budget")).stdout
    assert [body["max_tokens"] for body in site.engine.asked] == [2048, 8192]


def test_a_model_that_nobody_knows_has_no_sampling(site: Site) -> None:
    site.engine.model = "something-else"
    assert "knows no recommendation" in site.snippet("sampling")
    assert site.works("sampling") == f"{HELLO}\n"
    assert not {"temperature", "top_p"} & set(site.engine.asked[0])
