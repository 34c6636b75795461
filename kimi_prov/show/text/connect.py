"""What clients of served models need, as text, without the key."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from kimi_prov.clients import snippets
from kimi_prov.contract import clean_text
from kimi_prov.show.text.formats import describe_engine
from kimi_prov.show.text.lines import wrap

if TYPE_CHECKING:
    from collections.abc import Mapping


def format_hosts(document: Mapping[str, Any], inventory: str) -> str:
    """Write the document of an inventory's hosts. `inventory`: as a word of a command."""
    lines: list[str] = []
    for name, row in document["hosts"].items():
        lines.append(clean_text.clean_line(name))
        if "base_url" in row:
            lines += [f"  {line}" for line in _format_rows(row, inventory)]
        if row["detail"]:
            lines.append(f"  {'detail':12} {clean_text.clean_line(row['detail'])}")
    if any("base_url" in row for row in document["hosts"].values()):
        lines += _format_snippets(inventory)
    return "\n".join(lines)


def format_server(document: Mapping[str, Any], url: str) -> str:
    """Write the document of one server."""
    return "\n".join([*_format_rows(document, url), *_format_snippets(clean_text.quote_word(url))])


def format_cluster(document: Mapping[str, Any]) -> str:
    """Write what a client of a cluster needs, without the key."""
    url, name = document["base_url"], clean_text.clean_line(document["model"])
    certificate, key = (shlex.quote(document[n]) for n in ("certificate_file", "key_file"))
    through = f" through {document['login']}" if document["login"] else ""
    job = f"job {document['job']} on " if document["job"] else ""
    server = f"{job}{document['node'] or 'a node that is not known'}{through}"
    return "\n".join(
        [
            f"base URL     {url}",
            f"model        {name}",
            f"server       {server}",
            *([f"until        {document['ends_at'] or 'not known'}"] if document["job"] else []),
            f"certificate  {document['certificate_file']}",
            f"key file     {document['key_file']}",
            "",
            f"cert={certificate}",
            f"key={key}",
            'curl --cacert "$cert" -H @<(echo "Authorization: Bearer $(cat "$key")") \\',
            f"  {url}/models",
            "",
            "# OpenAI's client:",
            f"export OPENAI_BASE_URL={url}",
            'export SSL_CERT_FILE="$cert" OPENAI_API_KEY="$(cat "$key")"',
        ]
    )


def _format_rows(row: Mapping[str, Any], target: str) -> list[str]:
    rows = [("base URL", row["base_url"]), ("model", ", ".join(row["models"]))]
    if row["engine"]:
        rows.append(("engine", describe_engine(row["engine"])))
    if row["context"]:
        rows.append(("context", f"{row['context']:,} tokens"))
    if row["page_url"]:
        rows.append(("page", row["page_url"]))
    trusted = row["certificate_file"] or "of an authority that this computer trusts"
    rows.append(("certificate", trusted))
    if row["resolve"]:
        name, address = row["resolve"]["name"], row["resolve"]["address"]
        rows.append(("name", f"{name} has to lead to {address} (a line in /etc/hosts)"))
    rows.append(("key", _describe_key(row, target)))
    rows.append(("anthropic", _ANTHROPIC[row["messages_api"]]))
    rows += [("stand-in", told) for told in row["stand_ins"]]
    return [f"{name:12} {clean_text.clean_line(value)}" for name, value in rows]


_ANTHROPIC = {
    True: "its API is there too, at /v1/messages",
    False: "the engine has no /v1/messages",
    None: "whether the engine has /v1/messages is not known",
}


def _describe_key(row: Mapping[str, Any], target: str) -> str:
    where = row["key_file"] or "KIMI_API_KEY"
    if row["answers"] is None:
        return f"none given; kimi-prov key {target}  shows a new one, once"
    return f"{where}: the server takes it" if row["answers"] else f"{where}: not proven"


def _format_snippets(target: str) -> list[str]:
    names = {"clients": snippets.CLIENTS, "topics": snippets.TOPICS}
    lines = ["", f"A snippet to paste:  kimi-prov connect {target} --for NAME"]
    for kind, rows in names.items():
        lines += wrap(", ".join(rows), f"  {kind:9}", " " * 11)
    return lines
