"""Snippets for clients of a served model: each works when it is pasted into a shell.

A snippet begins with variables: the model's URL and the file of its key. No snippet holds the key.
A snippet trusts the server's certificate for its own command alone, so that other commands of the
shell keep their authorities.

Decides: what `connect` says to clients, and its snippets (the snippets, with their templates).
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from kimi_prov.contract import clean_text
from kimi_prov.errors import UserError

if TYPE_CHECKING:
    from jinja2 import Environment

    from kimi_prov.clients.server import Server


@dataclass(frozen=True)
class Snippet:
    """What a snippet shows, and what it needs: a program or package, and a feature of the server.

    `needs`: "messages" Anthropic's API, "vision" a model that takes images, "instant" one that
    answers without thinking, "thinking" one that thinks.
    """

    title: str
    install: str | None = None
    needs: str | None = None


_OPENAI = "pip install openai"
CLIENTS = {
    "curl": Snippet("one question by curl, in bash or zsh"),
    "python": Snippet("a streamed answer by the OpenAI SDK for Python", _OPENAI),
    "javascript": Snippet("the same by the OpenAI SDK for JavaScript", "npm install openai"),
    "env": Snippet("a .env of mode 0600 for OpenAI SDKs"),
    "langchain": Snippet("LangChain", "pip install langchain-openai"),
    "llamaindex": Snippet("LlamaIndex", "pip install llama-index-llms-openai-like"),
    "anthropic": Snippet("the Anthropic SDK for Python", "pip install anthropic", "messages"),
    "kimi-code": Snippet(
        "Kimi Code, the coding agent of the makers of the models",
        "npm install -g @moonshot-ai/kimi-code",
    ),
    "aider": Snippet("the coding agent aider", "pip install aider-chat"),
    "opencode": Snippet("the coding agent opencode", "npm install -g opencode-ai"),
    "cline": Snippet("the coding agent Cline in a terminal", "npm install -g cline"),
    "claude-code": Snippet(
        "the coding agent Claude Code", "npm install -g @anthropic-ai/claude-code", "messages"
    ),
    "codex": Snippet("the coding agent Codex, on /v1/responses", "npm install -g @openai/codex"),
    "continue": Snippet("the coding agent Continue", "npm install -g @continuedev/cli"),
    "kilo-code": Snippet("the coding agent Kilo Code", "npm install -g @kilocode/cli"),
    "goose": Snippet("the agent goose", "the program goose"),
    "litellm": Snippet("LiteLLM", "pip install litellm"),
    "open-webui": Snippet("Open WebUI on another machine", "pip install open-webui"),
    "zed": Snippet("settings for the editor Zed"),
    "roo-code": Snippet("what to enter in Roo Code, Kilo Code or Cline in an editor"),
    "n8n": Snippet("what to enter in n8n"),
    "dify": Snippet("what to enter in Dify"),
}
# Other names, by which people look for a snippet.
ALIASES = {"openai": "python"}
TOPICS = {
    "thinking": Snippet("reasoning and answer apart", _OPENAI, "thinking"),
    "instant": Snippet("an answer without reasoning", _OPENAI, "instant"),
    "budget": Snippet("a bound on the tokens of reasoning", _OPENAI, "thinking"),
    "sampling": Snippet("sampling and system prompt as the makers recommend", _OPENAI),
    "tools": Snippet("a tool call and its result", _OPENAI),
    "tool-rounds": Snippet("tool calls in several rounds", _OPENAI),
    "structured": Snippet("an answer in the form of a JSON Schema", _OPENAI),
    "image": Snippet("a question about an image", _OPENAI, "vision"),
}
SNIPPETS = {**CLIENTS, **TOPICS}


def list_snippets() -> str:
    """Return each snippet's name and what it shows, a line each."""
    width = max(map(len, SNIPPETS))
    return "\n".join(f"{name:{width}}  {row.title}" for name, row in SNIPPETS.items())


def format_snippet(name: str, server: Server) -> str:
    """Return a snippet for a server.

    Raises UserError where the server lacks the feature that the snippet needs.
    """
    _check_snippet(name, server)
    snippet = SNIPPETS[name]
    thinks = server.thinks
    body = (
        _make_environment()
        .get_template(f"{name}.j2")
        .render(
            model=server.model,
            base_url=server.base_url,
            context=server.context,
            usage=server.usage,
            thinks=thinks,
            sees=bool(server.sees),
            switches=server.switches,
            certificate_file=server.certificate_file,
            curl_options=_make_curl_options(server),
            # Half of a short context is left for the question.
            limit=lambda tokens: min(tokens, (server.context or 2 * tokens) // 2),
            trust=lambda variable: _make_trust_option(server, variable),
        )
    )
    return "\n".join([*_make_preamble(snippet, server), body.strip("\n")]) + "\n"


def _check_snippet(name: str, server: Server) -> None:
    needs, model = SNIPPETS[name].needs, clean_text.clean_line(server.model)
    usage = server.usage
    if needs == "messages" and server.messages_api is False:
        raise UserError(
            f"--for {name}: {server.engine} has no /v1/messages, Anthropic's API",
            fix="take a client of OpenAI's API, or an engine that has it (kimi-prov catalog "
            "engines: messages_api)",
        )
    if needs == "vision" and server.sees is False:
        raise UserError(f"--for {name}: {model} takes no images", fix="serve a model that does")
    if needs == "instant" and usage and usage.thinking == "always":
        raise UserError(
            f"--for {name}: {model} always thinks: it has no instant mode",
            fix="--for budget  bounds the reasoning",
        )
    if needs == "thinking" and usage and usage.thinking == "never":
        raise UserError(f"--for {name}: {model} does not think", fix="--for sampling")


def _make_preamble(snippet: Snippet, server: Server) -> list[str]:
    url, model = shlex.quote(server.base_url), shlex.quote(server.model)
    lines = [f"# {snippet.title[0].upper()}{snippet.title[1:]}."]
    if snippet.install:
        lines.append(f"# It needs: {snippet.install}")
    if snippet.needs == "messages" and server.messages_api is None:
        lines.append("# Whether this engine has the API of Anthropic is not known.")
    if server.resolve and snippet is not CLIENTS["curl"]:
        name, address = server.resolve.name, server.resolve.address
        lines.append(f"# {name} has to lead to {address}: a line in /etc/hosts does that,")
        lines.append(f"#   {address} {name}")
    lines.append(f"export KIMI_BASE_URL={url}")
    lines.append(f"export KIMI_MODEL={model}")
    if server.certificate_file:
        lines.append(f"export KIMI_CA_FILE={shlex.quote(server.certificate_file)}")
    if server.key_file:
        lines.append(f'export KIMI_API_KEY="$(cat {shlex.quote(server.key_file)})"')
    else:
        if server.key_hint:
            lines.append(f"# A key is shown by:  {clean_text.clean_line(server.key_hint)}")
        lines.append(': "${KIMI_API_KEY:?set it to the API key}"')
        lines.append("export KIMI_API_KEY")
    return lines


def _make_trust_option(server: Server, variable: str) -> str:
    return f'{variable}="$KIMI_CA_FILE" ' if server.certificate_file else ""


def _make_curl_options(server: Server) -> str:
    options = ' --cacert "$KIMI_CA_FILE"' if server.certificate_file else ""
    if server.resolve:
        resolve = server.resolve
        options += f" --resolve {shlex.quote(f'{resolve.name}:{resolve.port}:{resolve.address}')}"
    return options


@cache
def _make_environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # noqa: PLC0415  (not at once)

    folder = Path(__file__).resolve().parent / "snippets"
    made = Environment(
        loader=FileSystemLoader(folder),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701  (shell, Python and JSON; no page)
    )
    # JSON's texts and numbers are valid in Python and JavaScript too; one line of ASCII.
    made.filters["json"] = json.dumps
    made.filters["line"] = clean_text.clean_line
    return made
