"""Clients of a served host with keys of their own, and what the host counted of them."""

from __future__ import annotations

import json
import ssl
from typing import TYPE_CHECKING, Any

import closed_form
import httpx2
import openai
from machines import kimi_prov

if TYPE_CHECKING:
    from machines import Host

QUESTION = [{"role": "user", "content": "hi there"}]


class Client:
    """A client of one key, by OpenAI's SDK, that adds up what it is told."""

    def __init__(self, host: Host, key: str) -> None:
        trusted = ssl.create_default_context(cadata=host.ssh("cat /etc/kimi/proxy/tls.crt"))
        # The certificate has the name by which the machine knows itself; the address is ours.
        trusted.check_hostname = False
        self.http = httpx2.Client(verify=trusted, timeout=300)
        self.key = key
        self.url = f"https://{host.address}:8000/v1"
        self.told = [0, 0, 0]

    def sdk(self, **options: Any) -> openai.OpenAI:
        return openai.OpenAI(base_url=self.url, api_key=self.key, http_client=self.http, **options)

    def add(self, usage: Any) -> None:
        if usage is not None:
            self.told = [
                self.told[0] + 1,
                self.told[1] + usage.prompt_tokens,
                self.told[2] + usage.completion_tokens,
            ]

    def plain(self, tokens: int = 3, **options: Any) -> None:
        answer = self.sdk(**options).chat.completions.create(**self.wish(tokens))
        self.add(answer.usage)

    def stream(self, tokens: int = 3) -> None:
        pieces = self.sdk(max_retries=0).chat.completions.create(
            **self.wish(tokens), stream=True, stream_options={"include_usage": True}
        )
        for piece in pieces:
            self.add(piece.usage)

    def wish(self, tokens: int) -> dict[str, Any]:
        """What is asked for, with so many tokens in the answer."""
        return {
            "model": "kimi-k2-lab",
            "messages": QUESTION,
            "max_tokens": tokens,
            "extra_body": {"ignore_eos": True},
        }

    def raw(self, **headers: str) -> httpx2.Response:
        """Ask once, with further headers."""
        wish = {"model": "kimi-k2-lab", "messages": QUESTION, "max_tokens": 1}
        bearer = {"Authorization": f"Bearer {self.key}"}
        return self.http.post(f"{self.url}/chat/completions", json=wish, headers=bearer | headers)


def command(host: Host, *words: str) -> str:
    done = kimi_prov(words[0], host.inventory, "--limit", host.name, *words[1:])
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def used(host: Host, *words: str) -> dict[str, list[int]]:
    """What the machine counted by key, as the command tells it."""
    document = json.loads(command(host, "usage", "--format", "json", *words))
    closed_form.validate(document, "usage")
    numbers = ("requests", "prompt_tokens", "completion_tokens")
    return {row["key"]: [row[name] for name in numbers] for row in document["rows"]}
